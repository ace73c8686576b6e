// Gated DeltaNet over chunks of 64 tokens, the sequential pass from chunk to chunk: qn_gdn_advance of deltanet_cuda.h.
//
// The state is stored transposed, [values][keys], as MMA accumulators. Rounded to bf16 pairs, accumulators are the A
// operand of the next MMA, in the same registers. The sequential dependency from chunk to chunk therefore stays in a warp's
// registers, and every B operand is a tile that was loaded to shared memory in advance: k, q, the inverse, the scores.
//
// With wgmma (sm_90a) four warps share each B operand; without it each warp loads it with ldmatrix. The fragment layouts are
// the same.
#include "kernels/deltanet/chunk.cuh"
#include "kernels/mbarrier.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && !defined(QN_GDN_NO_WGMMA)
#define QN_WGMMA 1
#else
#define QN_WGMMA 0
#endif

#define SLICE QN_GDN_SLICE

// ---- MMA. d and a are arrays of m16n8k16 fragments ----

QN_DEVICE void pack_bf16(uint32_t a[4], const float d0[4], const float d1[4])
{
    a[0] = qn_f32_to_bf16x2(d0[0], d0[1]);
    a[1] = qn_f32_to_bf16x2(d0[2], d0[3]);
    a[2] = qn_f32_to_bf16x2(d1[0], d1[1]);
    a[3] = qn_f32_to_bf16x2(d1[2], d1[3]);
}

#if QN_WGMMA

#define ACC_REGS(d, i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define A_REGS(a) "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])

// The wgmma descriptor of a tile with 128-byte swizzle: groups of 8 rows (transposed: rows of the inner dimension) are 1024
// bytes apart, the next 64 columns are in the next tile.
QN_DEVICE uint64_t matrix_descriptor(const unsigned char *at)
{
    return (uint64_t)(qn_shared_address(at) >> 4) | (uint64_t)(TILE >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

QN_DEVICE void mma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

QN_DEVICE void mma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most the last `left` groups are in flight. d belongs to a completed group; the empty asm statements prevent
// the compiler from reading it earlier.
template <int left> QN_DEVICE void mma_wait(float d[8][4])
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            asm volatile("" : "+f"(d[n][e])::"memory");
}

template <int transposed> QN_DEVICE void wgmma_m64n64k16(float (*d)[4], const uint32_t a[4], uint64_t b, int accumulate)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
                 "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, p, 1, 1, %38; }"
                 : ACC_REGS(d, 0), ACC_REGS(d, 1), ACC_REGS(d, 2), ACC_REGS(d, 3), ACC_REGS(d, 4), ACC_REGS(d, 5), ACC_REGS(d, 6), ACC_REGS(d, 7)
                 : A_REGS(a), "l"(b), "r"(accumulate), "n"(transposed));
}

// d = a x^T, or d += a x^T, x [64 rows][64].
template <bool accumulate> QN_DEVICE void mma_abt(float d[8][4], const uint32_t a[4][4], const unsigned char *x)
{
#pragma unroll
    for (int s = 0; s < 4; s++)
        wgmma_m64n64k16<0>(d, a[s], matrix_descriptor(x) + s * (32 >> 4), accumulate || s > 0);
}

// The same for a lower triangular x, in blocks of 16, whose upper blocks are zeros. wgmma of a smaller n for the other blocks
// alone gain nothing: the compiler then waits after each.
template <bool accumulate> QN_DEVICE void mma_abt_lower(float d[8][4], const uint32_t a[4][4], const unsigned char *x)
{
    mma_abt<accumulate>(d, a, x);
}

// d += a x, x [64 rows][64].
QN_DEVICE void mma_ab(float d[8][4], const uint32_t a[4][4], const unsigned char *x)
{
#pragma unroll
    for (int s = 0; s < 4; s++)
        wgmma_m64n64k16<1>(d, a[s], matrix_descriptor(x) + s * (2048 >> 4), 1);
}

#else

QN_DEVICE void mma_fence()
{
}

QN_DEVICE void mma_commit()
{
}

template <int left> QN_DEVICE void mma_wait(float d[8][4])
{
}

// Lanes 0-7, 8-15, 16-23, 24-31 address the rows of the 8x8 matrices (0,0), (0,1), (1,0), (1,1) of a block of 16 rows and 2
// segments.
QN_DEVICE void ldmatrix_16x16(uint32_t b[4], const unsigned char *tile, uint32_t row, uint32_t segment)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE;
    qn_ldmatrix_x4(b, tile + swizzled_offset(row + lane % 8 + lane / 16 * 8, segment + lane / 8 % 2));
}

template <bool accumulate> QN_DEVICE void clear_unless(float d[8][4])
{
    if (!accumulate)
#pragma unroll
        for (int i = 0; i < 8; i++)
            d[i][0] = d[i][1] = d[i][2] = d[i][3] = 0;
}

template <bool accumulate> QN_DEVICE void mma_abt(float d[8][4], const uint32_t a[4][4], const unsigned char *x)
{
    clear_unless<accumulate>(d);
#pragma unroll
    for (int s = 0; s < 4; s++)
#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint32_t b[4];
            ldmatrix_16x16(b, x, n * 16, s * 2);
            qn_mma_m16n8k16_bf16(d[2 * n], a[s], b);
            qn_mma_m16n8k16_bf16(d[2 * n + 1], a[s], b + 2);
        }
}

template <bool accumulate> QN_DEVICE void mma_abt_lower(float d[8][4], const uint32_t a[4][4], const unsigned char *x)
{
    clear_unless<accumulate>(d);
#pragma unroll
    for (int s = 0; s < 4; s++)
#pragma unroll
        for (int n = s; n < 4; n++) {
            uint32_t b[4];
            ldmatrix_16x16(b, x, n * 16, s * 2);
            qn_mma_m16n8k16_bf16(d[2 * n], a[s], b);
            qn_mma_m16n8k16_bf16(d[2 * n + 1], a[s], b + 2);
        }
}

QN_DEVICE void mma_ab(float d[8][4], const uint32_t a[4][4], const unsigned char *x)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE;
#pragma unroll
    for (int s = 0; s < 4; s++)
#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint32_t b[4];
            qn_ldmatrix_x4_trans(b, x + swizzled_offset(s * 16 + lane % 16, n * 2 + lane / 16));
            qn_mma_m16n8k16_bf16(d[2 * n], a[s], b);
            qn_mma_m16n8k16_bf16(d[2 * n + 1], a[s], b + 2);
        }
}

#endif

QN_DEVICE uint32_t key_head(const qn_gdn_chunk_args &a, uint32_t head)
{
    return a.tiled ? head % a.k_heads : head / (a.v_heads / a.k_heads);
}

// ---- Shared memory, barriers ----

#ifndef QN_GDN_STAGES
#define QN_GDN_STAGES 3
#endif
#define STAGES QN_GDN_STAGES
#define WARPGROUP 128 // threads: one warp group each for the state, the outputs and the loads

struct stage {
    unsigned char k[2 * TILE], q[2 * TILE], v[TILE], record[QN_GDN_RECORD];
};

struct advance_smem {
    stage stages[STAGES];
    uint4 state[4][8][QN_WARP_SIZE];      // bf16 fragments of S, [warp][keys / 16][lane]
    uint4 v_new_bf16[4][4][QN_WARP_SIZE]; // bf16 fragments of v', [warp][tokens / 16][lane]
    unsigned char o[TILE];
    // mbarriers. The first three, one per warp: a state warp passes fragments to the output warp of the same index.
    // stage_empty: the state and the output warp group have read the stage.
    uint64_t state_full[4], v_new_full[4], fragments_empty[4], stage_empty[4];
};

static_assert(sizeof(advance_smem) == QN_GDN_ADVANCE_BYTES + STAGES * QN_GDN_STAGE_BYTES, "the launch's shared memory");
static_assert(3 * WARPGROUP == QN_GDN_ADVANCE_THREADS, "the launch's threads");

// Named barriers (bar.arrive, bar.sync).
enum {
    BARRIER_STATE = 1,                  // + stage: loaded, for the state warp group
    BARRIER_OUTPUT = BARRIER_STATE + 3, // + stage: loaded, for the output warp group
    BARRIER_O_TILE = BARRIER_OUTPUT + 3 // the output tile is written; the next BARRIER_OUTPUT implies that it has been read
};

QN_DEVICE void arrive(uint32_t barrier, uint32_t threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

QN_DEVICE void wait(uint32_t barrier, uint32_t threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// mbarriers in shared memory, at which each thread arrives. Named barriers give the same ordering and are 3% faster, but
// compute-sanitizer's racecheck does not track threads that continue after bar.arrive, and reports false races on the data
// that they publish.
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

struct work_tile {
    sequence s;
    uint32_t head, k_head, column; // column: the slice's first value among the values of all heads
    uint32_t chunks, thread;       // thread: index in its warp group
};

QN_DEVICE uint32_t next(uint32_t stage)
{
    return stage + 1 == STAGES ? 0 : stage + 1;
}

// Zeros the blocks above the diagonal, which records do not contain.
QN_DEVICE void clear_upper(const work_tile &w, stage &to)
{
#pragma unroll
    for (uint32_t block = 0; block < 3; block++)
        if (w.thread % 8 >= 2 * (block + 1)) {
            const uint32_t at = swizzled_offset(block * 16 + w.thread / 8, w.thread % 8);
            *(uint4 *)(to.record + QN_GDN_RECORD_INVERSE + at) = make_uint4(0, 0, 0, 0);
            *(uint4 *)(to.record + QN_GDN_RECORD_SCORES + at) = make_uint4(0, 0, 0, 0);
        }
}

// ---- The producer warp group ----

QN_DEVICE void load(const qn_gdn_chunk_args &a, const work_tile &w, advance_smem &m)
{
    const uint16_t *k = a.k + (size_t)w.s.first * a.k_stride + w.k_head * HEAD_K;
    const uint16_t *q = a.q + (size_t)w.s.first * a.q_stride + w.k_head * HEAD_K;
    const uint16_t *v = a.v + (size_t)w.s.first * a.v_stride + w.column;
    const unsigned char *record = a.records + ((size_t)w.s.record_offset * a.v_heads + w.head) * QN_GDN_RECORD;
    const uint32_t at = swizzled_offset(w.thread / 8, w.thread % 8);
    for (uint32_t i = 0; i < STAGES; i++)
        clear_upper(w, m.stages[i]);
    for (uint32_t c = 0, in = 0, ready = 0; c <= w.chunks; c++) {
        if (c < w.chunks) {
            const uint32_t left = w.s.n - c * TOKENS, n = left < TOKENS ? left : TOKENS;
            stage &to = m.stages[in];
            if (c >= STAGES)
                wait(m.stage_empty[in], c / STAGES - 1);
            load_rows<16, WARPGROUP>(to.k, k, a.k_stride, n, w.thread);
            load_rows<16, WARPGROUP>(to.q, q, a.q_stride, n, w.thread);
            load_rows<8, WARPGROUP>(to.v, v, a.v_stride, n, w.thread);
#pragma unroll
            for (uint32_t block = 0; block < 4; block++)
                if (w.thread % 8 < 2 * (block + 1)) {
                    const uint32_t in_record = at + block * 2048;
                    qn_cp_async_16(to.record + QN_GDN_RECORD_INVERSE + in_record, record + QN_GDN_RECORD_INVERSE + in_record);
                    qn_cp_async_16(to.record + QN_GDN_RECORD_SCORES + in_record, record + QN_GDN_RECORD_SCORES + in_record);
                }
            if (w.thread < (QN_GDN_RECORD - QN_GDN_RECORD_K_READ) / 16)
                qn_cp_async_16(to.record + QN_GDN_RECORD_K_READ + w.thread * 16,
                                 record + QN_GDN_RECORD_K_READ + w.thread * 16);
            k += (size_t)TOKENS * a.k_stride;
            q += (size_t)TOKENS * a.q_stride;
            v += (size_t)TOKENS * a.v_stride;
            record += (size_t)a.v_heads * QN_GDN_RECORD;
            in = next(in);
        }
        qn_cp_async_commit();
        // With three stages the copies of two chunks are in flight: a chunk is awaited after the next one is issued.
        if (STAGES > 2 ? c > 0 : c < w.chunks) {
            qn_cp_async_wait<(STAGES > 2)>();
            fence_async_proxy();
            arrive(BARRIER_STATE + ready, 2 * WARPGROUP);
            arrive(BARRIER_OUTPUT + ready, 2 * WARPGROUP);
            ready = next(ready);
        }
    }
}

// ---- The state warp group ----

// A chunk's inputs of the state pass except the B operands: fragments of v and factors of the tokens.
struct chunk_values {
    uint32_t v[4][4];
    float2 k_read[8], k_update[8];
    float decay;
};

QN_DEVICE void load_chunk_values(chunk_values &now, const stage &in, uint32_t warp)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, t = lane % 4;
#pragma unroll
    for (int i = 0; i < 4; i++)
        qn_ldmatrix_x4_trans(now.v[i], in.v + swizzled_offset(i * 16 + lane % 8 + lane / 16 * 8, warp * 2 + lane / 8 % 2));
#pragma unroll
    for (int i = 0; i < 8; i++) {
        now.k_read[i] = ((const float2 *)(in.record + QN_GDN_RECORD_K_READ))[i * 4 + t];
        now.k_update[i] = ((const float2 *)(in.record + QN_GDN_RECORD_K_UPDATE))[i * 4 + t];
    }
    now.decay = *(const float *)(in.record + QN_GDN_RECORD_DECAY);
}

// One chunk of the state pass; the MMA of keys and state is in flight in x. Publishes the state and v' to the output warp, and
// issues the state's update as two groups of 64 keys each. Fragments for the output warp are stored while MMAs are in flight.
// The state is stored only after x is complete, because the output warp's MMAs would otherwise delay x.
QN_DEVICE void state_pass_chunk(advance_smem &m, const stage &in, chunk_values &now, uint32_t warp, uint32_t c, float s[16][4],
                             float x[8][4], const uint32_t state[8][4])
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE;
    uint32_t gated_v[4][4];
    float v_new[8][4];
    mma_wait<0>(x);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const int n = 2 * i + r / 2, e = r % 2 * 2;
            const float2 f = now.k_read[n];
            now.v[i][r] = qn_f32_to_bf16x2(fmaf(f.x, x[n][e], bf16_lo(now.v[i][r])), fmaf(f.y, x[n][e + 1], bf16_hi(now.v[i][r])));
        }
    mma_fence();
    mma_abt_lower<false>(v_new, now.v, in.record + QN_GDN_RECORD_INVERSE);
    mma_commit();
    if (c > 0)
        wait(m.fragments_empty[warp], c - 1);
#pragma unroll
    for (int i = 0; i < 8; i++)
        m.state[warp][i][lane] = make_uint4(state[i][0], state[i][1], state[i][2], state[i][3]);
    arrive(m.state_full[warp]);
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][e] *= now.decay;
    mma_wait<0>(v_new);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const int n = 2 * i + r / 2, e = r % 2 * 2;
            gated_v[i][r] = qn_f32_to_bf16x2(now.k_update[n].x * v_new[n][e], now.k_update[n].y * v_new[n][e + 1]);
        }
    mma_fence();
    mma_ab(s, gated_v, in.k);
    mma_commit();
    mma_fence();
    mma_ab(s + 8, gated_v, in.k + TILE);
    mma_commit();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t v_new_bf16[4];
        pack_bf16(v_new_bf16, v_new[2 * i], v_new[2 * i + 1]);
        m.v_new_bf16[warp][i][lane] = make_uint4(v_new_bf16[0], v_new_bf16[1], v_new_bf16[2], v_new_bf16[3]);
    }
    arrive(m.v_new_full[warp]);
}

// v' and the state, chunk by chunk. MMAs are asynchronous: the next chunk's MMA with the first 64 keys of the state starts
// while the other 64 are still being updated.
QN_DEVICE void state_pass(const qn_gdn_chunk_args &a, const work_tile &w, advance_smem &m)
{
    const uint32_t warp = w.thread / QN_WARP_SIZE, lane = w.thread % QN_WARP_SIZE, g = lane / 4, t = lane % 4;
    const size_t row = (size_t)(w.column + warp * 16 + g) * HEAD_K + 2 * t;
    const size_t all = (size_t)blockIdx.z * a.v_heads * a.head_v * HEAD_K;
    const float *initial = a.memory    ? (a.positions[blockIdx.z] ? qn_gdn_state_of(a, blockIdx.z) : nullptr)
                           : a.initial ? a.initial + all
                                       : nullptr;
    float *final = a.memory ? qn_gdn_state_of(a, blockIdx.z) : a.final ? a.final + all : nullptr;
    float s[16][4], x[8][4];
    uint32_t state[8][4], stage_index = 0;
    chunk_values now;
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float2 y = initial ? *(const float2 *)(initial + row + i * 8 * HEAD_K + n * 8) : make_float2(0, 0);
            s[n][2 * i] = y.x;
            s[n][2 * i + 1] = y.y;
        }
    if (w.chunks) {
        wait(BARRIER_STATE, 2 * WARPGROUP);
        load_chunk_values(now, m.stages[0], warp);
#pragma unroll
        for (int i = 0; i < 8; i++)
            pack_bf16(state[i], s[2 * i], s[2 * i + 1]);
        mma_fence();
        mma_abt<false>(x, state, m.stages[0].k);
        mma_abt<true>(x, state + 4, m.stages[0].k + TILE);
        mma_commit();
        for (uint32_t c = 0; c + 1 < w.chunks; c++) {
            state_pass_chunk(m, m.stages[stage_index], now, warp, c, s, x, state);
            uint64_t &stage_empty = m.stage_empty[stage_index];
            if (STAGES == 1) {
                mma_wait<0>(s + 8);
                arrive(stage_empty);
            }
            stage_index = next(stage_index);
            const stage &in = m.stages[stage_index];
            wait(BARRIER_STATE + stage_index, 2 * WARPGROUP);
            load_chunk_values(now, in, warp);
            mma_wait<1>(s);
#pragma unroll
            for (int i = 0; i < 4; i++)
                pack_bf16(state[i], s[2 * i], s[2 * i + 1]);
            mma_fence();
            mma_abt<false>(x, state, in.k);
            mma_commit();
            mma_wait<1>(s + 8);
            if (STAGES > 1 && c + STAGES < w.chunks)
                arrive(stage_empty);
#pragma unroll
            for (int i = 4; i < 8; i++)
                pack_bf16(state[i], s[2 * i], s[2 * i + 1]);
            mma_fence();
            mma_abt<true>(x, state + 4, in.k + TILE);
            mma_commit();
        }
        state_pass_chunk(m, m.stages[stage_index], now, warp, w.chunks - 1, s, x, state);
        mma_wait<0>(s);
        mma_wait<0>(s + 8);
    }
    if (final)
#pragma unroll
        for (int n = 0; n < 16; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                *(float2 *)(final + row + i * 8 * HEAD_K + n * 8) = make_float2(s[n][2 * i], s[n][2 * i + 1]);
}

// ---- The output warp group ----

// Stores a warp's 16 values of all tokens to the output tile, [token][value].
QN_DEVICE void store_transposed(unsigned char *tile, uint32_t warp, const float d[8][4])
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE;
#if __CUDA_ARCH__ >= 900
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
        uint32_t x[4];
        pack_bf16(x, d[n], d[n + 1]);
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
                qn_f32_to_bf16(d[n][e]);
#endif
}

// The outputs of each chunk, concurrently with the state pass of the following one.
QN_DEVICE void output(const qn_gdn_chunk_args &a, const work_tile &w, advance_smem &m)
{
    const uint32_t warp = w.thread / QN_WARP_SIZE, lane = w.thread % QN_WARP_SIZE, t = lane % 4;
    uint16_t *o = a.o + (size_t)(w.s.first + w.thread / 8) * a.o_stride + w.column + w.thread % 8 * 8;
    uint32_t stage_index = 0;
    for (uint32_t c = 0; c < w.chunks; c++) {
        const stage &in = m.stages[stage_index];
        uint32_t state[8][4], v_new_bf16[4][4];
        float d[8][4];
        float2 f[8];
        wait(BARRIER_OUTPUT + stage_index, 2 * WARPGROUP);
        wait(m.state_full[warp], c);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint4 x = m.state[warp][i][lane];
            state[i][0] = x.x, state[i][1] = x.y, state[i][2] = x.z, state[i][3] = x.w;
        }
        mma_fence();
        mma_abt<false>(d, state, in.q);
        mma_abt<true>(d, state + 4, in.q + TILE);
        mma_commit();
#pragma unroll
        for (int i = 0; i < 8; i++)
            f[i] = ((const float2 *)(in.record + QN_GDN_RECORD_Q_READ))[i * 4 + t];
        mma_wait<0>(d);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                d[n][e] *= e % 2 ? f[n].y : f[n].x;
        wait(m.v_new_full[warp], c);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint4 x = m.v_new_bf16[warp][i][lane];
            v_new_bf16[i][0] = x.x, v_new_bf16[i][1] = x.y, v_new_bf16[i][2] = x.z, v_new_bf16[i][3] = x.w;
        }
        if (c + 1 < w.chunks)
            arrive(m.fragments_empty[warp]);
        mma_fence();
        mma_abt_lower<true>(d, v_new_bf16, in.record + QN_GDN_RECORD_SCORES);
        mma_commit();
        mma_wait<0>(d);
        if (c + STAGES < w.chunks)
            arrive(m.stage_empty[stage_index]);
        stage_index = next(stage_index);
        store_transposed(m.o, warp, d);
        wait(BARRIER_O_TILE, WARPGROUP);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t token = i * 16 + w.thread / 8;
            if (c * TOKENS + token < w.s.n)
                *(uint4 *)(o + (size_t)i * 16 * a.o_stride) = *(const uint4 *)(m.o + swizzled_offset(token, w.thread % 8));
        }
        o += (size_t)TOKENS * a.o_stride;
    }
}

// ---- The kernel ----

// Registers per thread: the state warp group needs more than an equal share, the producer warp group fewer.
template <int n> QN_DEVICE void warpgroup_reg_alloc()
{
#if QN_WGMMA
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
#endif
}

template <int n> QN_DEVICE void warpgroup_reg_dealloc()
{
#if QN_WGMMA
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
#endif
}

// Grid: slices of 64 values (x), value heads (y), sequences (z).
extern "C" __global__ void __launch_bounds__(3 * WARPGROUP, 1) qn_gdn_advance(const __grid_constant__ qn_gdn_chunk_args a)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    advance_smem &m = *(advance_smem *)shared;
    work_tile w;
    if (threadIdx.x < 4) {
        qn_mbarrier_init(qn_shared_address(&m.state_full[threadIdx.x]), QN_WARP_SIZE);
        qn_mbarrier_init(qn_shared_address(&m.v_new_full[threadIdx.x]), QN_WARP_SIZE);
        qn_mbarrier_init(qn_shared_address(&m.fragments_empty[threadIdx.x]), QN_WARP_SIZE);
        qn_mbarrier_init(qn_shared_address(&m.stage_empty[threadIdx.x]), 2 * WARPGROUP);
    }
    __syncthreads();
    qn_pdl_wait();
    w.s = sequence_at(a, blockIdx.z);
    w.head = blockIdx.y;
    w.k_head = key_head(a, w.head);
    w.column = w.head * a.head_v + blockIdx.x * SLICE;
    w.chunks = (w.s.n + TOKENS - 1) / TOKENS;
    w.thread = threadIdx.x % WARPGROUP;
    if (threadIdx.x < WARPGROUP) {
        warpgroup_reg_alloc<240>();
        state_pass(a, w, m);
    } else if (threadIdx.x < 2 * WARPGROUP) {
        output(a, w, m);
    } else {
        warpgroup_reg_dealloc<56>();
        load(a, w, m);
    }
}
