// A state as MMA accumulators of a warp group, transposed, [values][keys]: loads and stores in memory, rounding, and
// the shared code for kernels that pass it from chunk to chunk: warp groups and barriers.
#ifndef QN_CUDA_KERNELS_DELTANET_STATE_CUH
#define QN_CUDA_KERNELS_DELTANET_STATE_CUH

#include "cuda/kernels/deltanet/chunk_mma.cuh"
#include "cuda/kernels/mbarrier.cuh"

#define SLICE QN_GDN_SLICE
#define WARPGROUP 128 // threads

// ---- Warp groups and barriers ----

// The warp group, and the thread's index in it.
QN_DEVICE uint32_t group()
{
    return threadIdx.x / WARPGROUP;
}

QN_DEVICE uint32_t thread()
{
    return threadIdx.x % WARPGROUP;
}

// Named barriers (bar.arrive, bar.sync).
QN_DEVICE void arrive(uint32_t barrier, uint32_t threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

QN_DEVICE void wait(uint32_t barrier, uint32_t threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// mbarriers in shared memory.
QN_DEVICE void arrive(uint64_t &barrier)
{
    qn_mbarrier_arrive(qn_shared_address(&barrier));
}

// Waits for the completion of the barrier's phase n, counted from 0.
QN_DEVICE void wait(uint64_t &barrier, uint32_t n)
{
    qn_mbarrier_wait(qn_shared_address(&barrier), n % 2);
}

// Makes data written by cp.async visible to wgmma (the async proxy).
QN_DEVICE void fence_async_proxy()
{
#if QN_WGMMA
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// ---- The state in memory ----

// Of a slice a thread has the values first_value(slice) and first_value(slice) + 8, and the keys n * 8 + first_key() +
// {0, 1}.
QN_DEVICE uint32_t first_value(uint32_t slice)
{
    return slice * SLICE + thread() / QN_WARP_SIZE * 16 + thread() % QN_WARP_SIZE / 4;
}

QN_DEVICE uint32_t first_key()
{
    return thread() % 4 * 2;
}

// Whether keys n * 8 to n * 8 + 7 are a key's and not padding.
QN_DEVICE bool is_key(const qn_gdn_head_state &state, int n)
{
    return state.value_step == PADDED_K || HEAD_K == PADDED_K || n * 8 < HEAD_K;
}

// The two values of a thread in a state in memory: the addresses of their first keys, and whether they exist. Those
// that do not have the address of one that does.
struct state_rows {
    uint32_t at[2];
    bool exists[2];
};

QN_DEVICE state_rows rows_of(uint32_t slice, const qn_gdn_head_state &state, uint32_t n_values)
{
    state_rows r;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t value = first_value(slice) + i * 8;
        r.exists[i] = value < n_values;
        r.at[i] = (r.exists[i] ? value * state.value_step : 0) + first_key() * state.key_step;
    }
    return r;
}

// Types and orders are template parameters, and loads have no conditions: else they would wait for each other.
template <uint32_t type, bool transposed>
QN_DEVICE void load_state(float s[8 * KEY_TILES][4], const qn_gdn_head_state &from, const state_rows &r)
{
    constexpr bool bf16 = type == QN_GDN_STATE_BF16;
    const uint32_t step = transposed ? from.key_step : 1;
#pragma unroll
    for (int n = 0; n < 8 * KEY_TILES; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const bool exists = r.exists[i] && is_key(from, n);
            const uint32_t at = r.at[i] + (is_key(from, n) ? n * 8 * step : 0);
            const uint16_t *half = (const uint16_t *)from.data + at;
            float2 y;
            if (transposed)
                y = make_float2(qn_gdn_load_state<bf16>(from, at), qn_gdn_load_state<bf16>(from, at + step));
            else if (type == QN_GDN_STATE_PLANES)
                y = qn_gdn_join(*(const uint32_t *)half, *(const uint32_t *)(half + from.plane));
            else if (bf16)
                y = qn_bf16x2_to_f32(*(const uint32_t *)half);
            else
                y = *(const float2 *)((const float *)from.data + at);
            s[n][2 * i] = exists ? y.x : 0.0f;
            s[n][2 * i + 1] = exists ? y.y : 0.0f;
        }
}

// all: all values exist.
template <uint32_t type, bool transposed, bool all>
QN_DEVICE void store_state(const float s[8 * KEY_TILES][4], const qn_gdn_head_state &to, const state_rows &r)
{
    constexpr bool bf16 = type == QN_GDN_STATE_BF16;
    const uint32_t step = transposed ? to.key_step : 1;
#pragma unroll
    for (int n = 0; n < 8 * KEY_TILES; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t at = r.at[i] + n * 8 * step;
            const float x = s[n][2 * i], y = s[n][2 * i + 1];
            uint16_t *half = (uint16_t *)to.data + at;
            if (!(all || r.exists[i]) || !is_key(to, n))
                continue;
            if (transposed) {
                qn_gdn_store_state<bf16>(to, at, x);
                qn_gdn_store_state<bf16>(to, at + step, y);
            } else if (type == QN_GDN_STATE_PLANES) {
                qn_gdn_split(x, y, *(uint32_t *)half, *(uint32_t *)(half + to.plane));
            } else if (bf16) {
                *(uint32_t *)half = qn_f32_to_bf16x2(x, y);
            } else {
                *(float2 *)((float *)to.data + at) = make_float2(x, y);
            }
        }
}

QN_DEVICE void read_state(uint32_t slice, float s[8 * KEY_TILES][4], const qn_gdn_head_state &from, uint32_t n_values)
{
    const state_rows r = rows_of(slice, from, n_values);
    if (!from.data) {
#pragma unroll
        for (int n = 0; n < 8 * KEY_TILES; n++)
            s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
    } else if (from.key_step > 1) {
        if (from.type == QN_GDN_STATE_BF16)
            load_state<QN_GDN_STATE_BF16, true>(s, from, r);
        else
            load_state<QN_GDN_STATE_F32, true>(s, from, r);
    } else if (from.type == QN_GDN_STATE_BF16) {
        load_state<QN_GDN_STATE_BF16, false>(s, from, r);
    } else if (from.type == QN_GDN_STATE_PLANES) {
        load_state<QN_GDN_STATE_PLANES, false>(s, from, r);
    } else {
        load_state<QN_GDN_STATE_F32, false>(s, from, r);
    }
}

QN_DEVICE void write_state(uint32_t slice, const float s[8 * KEY_TILES][4], const qn_gdn_head_state &to, uint32_t n_values)
{
    const state_rows r = rows_of(slice, to, n_values);
    if (to.key_step > 1) {
        if (to.type == QN_GDN_STATE_BF16)
            store_state<QN_GDN_STATE_BF16, true, false>(s, to, r);
        else
            store_state<QN_GDN_STATE_F32, true, false>(s, to, r);
    } else if (to.type == QN_GDN_STATE_BF16) {
        store_state<QN_GDN_STATE_BF16, false, false>(s, to, r);
    } else if (to.type == QN_GDN_STATE_PLANES) {
        store_state<QN_GDN_STATE_PLANES, false, false>(s, to, r);
    } else if (n_values >= (slice + 1) * SLICE) {
        store_state<QN_GDN_STATE_F32, false, true>(s, to, r);
    } else {
        store_state<QN_GDN_STATE_F32, false, false>(s, to, r);
    }
}

// ---- Accumulators to shared memory ----

// Rounds 64 values of 64 columns to a tile, [value][column].
QN_DEVICE void store_rounded(unsigned char *tile, const float d[8][4])
{
    const uint32_t row = thread() / QN_WARP_SIZE * 16 + thread() % QN_WARP_SIZE / 4;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            *(uint32_t *)(tile + swizzled_offset(row + i * 8, n) + first_key() * 2) = pack_pair(d[n][2 * i], d[n][2 * i + 1]);
}

// Rounds a warp's 16 values of all tokens to a tile, [token][value].
QN_DEVICE void store_transposed(unsigned char *tile, uint32_t warp, const float d[8][4])
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE;
#if __CUDA_ARCH__ >= 900
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
        uint32_t x[4];
        pack_fragment(x, d[n], d[n + 1]);
        const unsigned char *at = tile + swizzled_offset(n * 8 + lane % 8 + lane / 16 * 8, warp * 2 + lane / 8 % 2);
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(qn_shared_address(at)),
                     "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                     : "memory");
    }
#else
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            *(uint16_t *)(tile + swizzled_offset(n * 8 + lane % 4 * 2 + e % 2, warp * 2 + e / 2) + lane / 4 * 2) =
                (uint16_t)pack_pair(d[n][e], 0);
#endif
}

#endif
