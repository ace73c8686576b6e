// Biases, qk_norm, rope and kv_store, between the q, k, v matmuls and attention. A warp group ("team") processes one query
// head of a row, or one key head with its value. A single row is bound by the length of the instruction sequence, so a team
// is as large as useful: two values per thread.
#include "kernels/rope/rope_cuda.h"

#include "kernels/kv_pages.cuh"
#include "kernels/typed_rows.cuh"

#define F16_MAX 65504.0f

extern "C" __global__ void __launch_bounds__(64) qn_rope_angles(const __grid_constant__ qn_rope_angles_args a)
{
    const uint32_t i = blockIdx.x * 64 + threadIdx.x, row = blockIdx.y;
    qn_pdl_wait();
    qn_pdl_trigger();
    if (i >= a.n_rot / 2)
        return;
    const double angle = a.positions[row] * a.frequencies[i];
    a.cosines[row * (a.n_rot / 2) + i] = (float)(a.attn_factor * cos(angle));
    a.sines[row * (a.n_rot / 2) + i] = (float)(a.attn_factor * sin(angle));
}

#ifdef QN_HEAD_DIM

#define DIM QN_HEAD_DIM
#define HALF_DIM (DIM / 2)
#define TEAM QN_ROPE_GPU_TEAM(DIM)
#define TEAMS QN_ROPE_GPU_TEAMS(DIM)

// The two values of a head that a thread holds: elements `thread` and `thread + HALF_DIM`.
struct pair {
    float x[2];
};

// A thread's index in its team, and the team's shared memory.
struct team_context {
    int thread;
    bool has; // this thread holds values
    float *row, *sums;
};

QN_DEVICE void add_pair(pair &x, const pair &y)
{
    x.x[0] += y.x[0];
    x.x[1] += y.x[1];
}

QN_DEVICE pair load_pair(const float *from, const team_context &p, bool is_there = true)
{
    const bool has = p.has && is_there;
    return { { has ? from[p.thread] : 0, has ? from[p.thread + HALF_DIM] : 0 } };
}

QN_DEVICE pair load_typed_pair(const uint8_t *from, uint64_t at, uint32_t dtype, const team_context &p, bool is_there)
{
    const bool has = p.has && is_there;
    return { { has ? qn_load_typed(from, at + p.thread, dtype) : 0,
               has ? qn_load_typed(from, at + p.thread + HALF_DIM, dtype) : 0 } };
}

// The sum over a team's threads, returned to each of them.
QN_DEVICE float team_sum(float x, const team_context &p)
{
    x = qn_warp_sum(x);
    if (TEAM == QN_WARP_SIZE)
        return x;
    if (p.thread % QN_WARP_SIZE == 0)
        p.sums[p.thread / QN_WARP_SIZE] = x;
    __syncthreads();
    x = 0;
#pragma unroll
    for (int i = 0; i < TEAM / QN_WARP_SIZE; i++)
        x += p.sums[i];
    return x;
}

QN_DEVICE bool has_signs(const qn_aura_gpu_rotation &r)
{
    return QN_PAGES && qn_is_hadamard<DIM>(r);
}

QN_DEVICE void rotate(pair &v, const qn_aura_gpu_rotation &r, const pair &signs, const team_context &p)
{
    if (has_signs(r)) {
        v.x[0] *= signs.x[0];
        v.x[1] *= signs.x[1];
        qn_group_hadamard<(DIM & (DIM - 1)) == 0 && DIM >= 64 ? DIM : 64>(v.x, p.row, p.thread, p.has);
    } else if (QN_PAGES && r.forward) {
        qn_group_gemv<DIM>(v.x, r.forward, p.row, p.thread, p.has);
    }
}

// Stores x rounded to f16, saturated to +-F16_MAX. NaN is stored as 0, and the result is true.
QN_DEVICE bool store_f16(uint16_t *to, float x)
{
    *to = x != x ? 0 : qn_f32_to_f16(fminf(fmaxf(x, -F16_MAX), F16_MAX));
    return x != x;
}

// Cosines and sines of a thread's two elements.
struct rope_angles {
    float cosine[2], sine[2];
};

QN_DEVICE rope_angles load_angles(const qn_rope_qk_norm_store_args &a, uint32_t row, uint32_t half, const team_context &p)
{
    rope_angles angles;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t d = p.thread + i * HALF_DIM, pair_of = a.interleaved ? d / 2 : d < half ? d : d - half;
        const bool rotated = p.has && d < a.n_rot;
        angles.cosine[i] = rotated ? a.cosines[row * half + pair_of] : 1;
        angles.sine[i] = rotated ? a.sines[row * half + pair_of] : 0;
    }
    return angles;
}

// Rope, through the team's row in shared memory.
QN_DEVICE void apply_rope(pair &x, const qn_rope_qk_norm_store_args &a, const rope_angles &angles, uint32_t half,
                          const team_context &p)
{
    if (p.has) {
        p.row[p.thread] = x.x[0];
        p.row[p.thread + HALF_DIM] = x.x[1];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t d = p.thread + i * HALF_DIM;
        if (p.has && d < a.n_rot) {
            const bool second = a.interleaved ? d % 2 : d >= half;
            const float other = p.row[a.interleaved ? d ^ 1 : second ? d - half : d + half];
            x.x[i] = second ? other * angles.sine[i] + x.x[i] * angles.cosine[i]
                            : x.x[i] * angles.cosine[i] - other * angles.sine[i];
        }
    }
    __syncthreads();
}

// Where a row's key and value are stored; 0: nowhere.
struct row_place {
    uint16_t *key, *value;
};

QN_DEVICE row_place find_place(const qn_rope_qk_norm_store_args &a, uint32_t row, uint32_t kv)
{
    const uint32_t position = a.positions[row], session = a.sessions ? a.sessions[row] : 0;
    if (session == QN_ATTENTION_NO_SESSION || (!QN_PAGES && position >= a.capacity))
        return { 0, 0 };
    // The pointers of caches are const for their readers; this kernel writes them.
#if QN_PAGES
    const uint64_t *table = qn_kv_table(a.pages.tables, session);
    const uint32_t page = position / QN_ATTENTION_PAGE, at = position % QN_ATTENTION_PAGE * DIM;
    return { (uint16_t *)qn_kv_f16_page(a.pages, table, a.pages.keys, session, kv, page, DIM * 2) + at,
             (uint16_t *)qn_kv_f16_page(a.pages, table, a.pages.values, session, kv, page, DIM * 2) + at };
#else
    const qn_attention_gpu_cache &c = a.cache;
    const uint64_t *table = qn_kv_table(c.tables, session);
    return { (uint16_t *)qn_kv_row(qn_kv_rows_of(table, c.keys, kv, c.key_head_stride, session, c.key_session_stride), position,
                                   DIM * 2),
             (uint16_t *)qn_kv_row(qn_kv_rows_of(table, c.values, kv, c.value_head_stride, session, c.value_session_stride),
                                   position, DIM * 2) };
#endif
}

// Stores a key and its value at their place. A NaN in the value is stored as 0, and the whole key as NaN. has_nan: of each
// team, in shared memory, 0. By all threads of the block; stores: the thread holds elements of a key that has a place.
QN_DEVICE void store_key_value(const row_place &place, const pair &key, const pair &value, int thread, bool stores,
                               int *has_nan, int team)
{
    uint16_t *keys = place.key, *values = place.value;
    bool value_nan = false, key_nan[2] = { false, false };
#pragma unroll
    for (int i = 0; stores && i < 2; i++) {
        value_nan = store_f16(values + thread + i * HALF_DIM, value.x[i]) || value_nan;
        key_nan[i] = store_f16(keys + thread + i * HALF_DIM, key.x[i]);
    }
    if (value_nan)
        atomicOr(&has_nan[team], 1);
    __syncthreads();
#pragma unroll
    for (int i = 0; stores && i < 2; i++)
        if (key_nan[i] || has_nan[team])
            keys[thread + i * HALF_DIM] = 0x7e00;
}

extern "C" __global__ void __launch_bounds__(QN_ROPE_GPU_THREADS(DIM))
    qn_rope_qk_norm_store(const __grid_constant__ qn_rope_qk_norm_store_args a)
{
    __shared__ float rows[TEAMS][DIM], sums[TEAMS][TEAM / QN_WARP_SIZE];
    __shared__ int has_nan[TEAMS]; // an element of the value row is NaN
    const int team = threadIdx.x / TEAM, thread = threadIdx.x % TEAM;
    const uint32_t index = blockIdx.x * TEAMS + team, all = a.n_heads + a.n_kv_heads, row = index / all, head = index % all;
    const bool is_row = row < a.n_rows, is_key = is_row && head >= a.n_heads;
    const team_context p = { thread, is_row && thread < HALF_DIM, rows[team], sums[team] };
    const uint32_t kv = is_key ? head - a.n_heads : 0;
    qn_pdl_trigger();
    const float *weight = is_key ? a.key_weight : a.query_weight;
    const pair weights = load_pair(weight, p, weight != 0);
    const float *head_bias = is_key ? a.key_bias : a.query_bias;
    const pair bias = load_pair(head_bias + (is_key ? kv : head) * DIM, p, head_bias != 0);
    const pair value_bias = load_pair(a.value_bias + kv * DIM, p, is_key && a.value_bias);
    const pair ones = { { 1, 1 } };
    const pair signs = has_signs(a.key_rotation) ? load_pair(a.key_rotation.signs, p) : ones;
    const pair value_signs = has_signs(a.value_rotation) ? load_pair(a.value_rotation.signs, p) : ones;
    if (thread == 0)
        has_nan[team] = 0;
    const row_place place = is_key ? find_place(a, row, kv) : row_place{ 0, 0 };
    qn_pdl_wait();

    // All loads of a row are issued here, before the first use.
    const uint64_t query_at = (uint64_t)row * a.query_row_stride + head * a.query_stride,
                   key_at = (uint64_t)row * a.key_row_stride + kv * DIM, value_at = (uint64_t)row * a.value_row_stride + kv * DIM;
    pair x = load_typed_pair(is_key ? a.keys : a.queries, is_key ? key_at : query_at, a.dtype, p, true);
    pair value = load_typed_pair(a.values, value_at, a.dtype, p, is_key);
    const uint32_t half = a.n_rot / 2;
    const rope_angles angles = load_angles(a, row, half, p);

    if (head_bias)
        add_pair(x, bias);
    if (a.value_bias)
        add_pair(value, value_bias);
    const float mean = team_sum(x.x[0] * x.x[0] + x.x[1] * x.x[1], p) / DIM;
    if (weight) {
        const float scale = rsqrtf(mean + a.eps);
        x.x[0] = x.x[0] * scale * weights.x[0];
        x.x[1] = x.x[1] * scale * weights.x[1];
    }
    apply_rope(x, a, angles, half, p);
    rotate(x, a.key_rotation, signs, p);
    if (p.has && !is_key) {
        const uint64_t to = (uint64_t)row * a.out_row_stride + head * DIM + thread;
        qn_store_typed(a.out, to, a.dtype, x.x[0]);
        qn_store_typed(a.out, to + HALF_DIM, a.dtype, x.x[1]);
    }
    if (!__syncthreads_or(is_key))
        return;

    if (QN_PAGES)
        rotate(value, a.value_rotation, value_signs, p);
    store_key_value(place, x, value, thread, p.has && place.key, has_nan, team);
}

#endif
