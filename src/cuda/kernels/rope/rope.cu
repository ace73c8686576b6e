// Biases, qk_norm, rope and kv_store, between the q, k, v matmuls and attention. A warp, or where heads are rotated a
// group of warps ("team"), processes one query head of a row, or one key head with its value. A rotation is bound by
// the length of the instruction sequence, so such a team is as large as useful: two values per thread.
#include "cuda/kernels/rope/rope.h"

#include "cuda/kernels/kv_pages.cuh"
#include "cuda/kernels/qk_norm_rope.cuh"
#include "cuda/kernels/typed_rows.cuh"

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
#define TEAM QN_ROPE_GPU_TEAM(DIM, QN_PAGES)
#define TEAMS QN_ROPE_GPU_TEAMS(DIM, QN_PAGES)
#define THREADS QN_ROPE_GPU_THREADS(DIM, QN_PAGES)
#define VALUES (QN_PAGES ? 2 : (DIM + 31) / 32) // of a thread: elements thread, thread + STRIDE, ...
#define STRIDE (QN_PAGES ? DIM / 2 : 32)

// The values of a head that a thread holds; zeros beyond the head.
struct values {
    float x[VALUES];
};

// A thread's index in its team, and the team's shared memory.
struct team_context {
    int thread;
    bool is_row; // the team has a head
    float *row, *sums;

    // Whether the thread holds value i.
    __device__ __forceinline__ bool has(int i) const
    {
        return is_row && thread < STRIDE && thread + i * STRIDE < DIM;
    }
};

QN_DEVICE void team_barrier()
{
    if (TEAM == QN_WARP_SIZE)
        __syncwarp();
    else
        __syncthreads();
}

QN_DEVICE void add_values(values &x, const values &y)
{
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        x.x[i] += y.x[i];
}

QN_DEVICE values load_values(const float *from, const team_context &p, bool is_there = true)
{
    values x;
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        x.x[i] = is_there && p.has(i) ? from[p.thread + i * STRIDE] : 0;
    return x;
}

QN_DEVICE values load_typed_values(const uint8_t *from, uint64_t at, uint32_t dtype, const team_context &p, bool is_there)
{
    values x;
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        x.x[i] = is_there && p.has(i) ? qn_load_typed(from, at + p.thread + i * STRIDE, dtype) : 0;
    return x;
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

QN_DEVICE void rotate(values &v, const qn_aura_gpu_rotation &r, const values &signs, const team_context &p)
{
#if QN_PAGES
    if (has_signs(r)) {
        v.x[0] *= signs.x[0];
        v.x[1] *= signs.x[1];
        qn_group_hadamard<(DIM & (DIM - 1)) == 0 && DIM >= 64 ? DIM : 64>(v.x, p.row, p.thread, p.has(0));
    } else if (r.forward) {
        qn_group_gemv<DIM>(v.x, r.forward, p.row, p.thread, p.has(0));
    }
#endif
}

// Cosines and sines of a thread's elements.
struct rope_angles {
    float cosine[VALUES], sine[VALUES];
};

QN_DEVICE rope_angles load_angles(const qn_rope_qk_norm_store_args &a, uint32_t row, uint32_t half, const team_context &p)
{
    rope_angles angles;
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        const uint32_t d = p.thread + i * STRIDE, pair_of = a.interleaved ? d / 2 : d < half ? d : d - half;
        const bool rotated = p.has(i) && d < a.n_rot;
        angles.cosine[i] = rotated ? a.cosines[row * half + pair_of] : 1;
        angles.sine[i] = rotated ? a.sines[row * half + pair_of] : 0;
    }
    return angles;
}

// Rope, through the team's row in shared memory.
QN_DEVICE void apply_rope(values &x, const qn_rope_qk_norm_store_args &a, const rope_angles &angles, uint32_t half,
                          const team_context &p)
{
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        if (p.has(i))
            p.row[p.thread + i * STRIDE] = x.x[i];
    team_barrier();
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        const uint32_t d = p.thread + i * STRIDE;
        if (p.has(i) && d < a.n_rot) {
            const bool second = a.interleaved ? d % 2 : d >= half;
            const float other = p.row[a.interleaved ? d ^ 1 : second ? d - half : d + half];
            x.x[i] = second ? qn_rope_second(other, x.x[i], angles.cosine[i], angles.sine[i])
                            : qn_rope_first(x.x[i], other, angles.cosine[i], angles.sine[i]);
        }
    }
    team_barrier();
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
    const uint32_t page = position / QN_PAGE, at = position % QN_PAGE * DIM;
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

// Stores a key and its value at their place, if they have one. A NaN in the value is stored as 0, and the whole key as
// NaN. has_nan: of the team, in shared memory, 0. By all threads of the team.
QN_DEVICE void store_key_value(const row_place &place, const values &key, const values &value, int *has_nan,
                               const team_context &p)
{
    bool value_nan = false;
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        if (!place.key || !p.has(i))
            continue;
        place.value[p.thread + i * STRIDE] = qn_to_f16(value.x[i], 0);
        place.key[p.thread + i * STRIDE] = qn_to_f16(key.x[i], QN_F16_NAN);
        value_nan = value_nan || value.x[i] != value.x[i];
    }
    if (value_nan)
        atomicOr(has_nan, 1);
    team_barrier();
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        if (place.key && p.has(i) && *has_nan)
            place.key[p.thread + i * STRIDE] = QN_F16_NAN;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    qn_rope_qk_norm_store(const __grid_constant__ qn_rope_qk_norm_store_args a)
{
    __shared__ float rows[TEAMS][DIM], sums[TEAMS][TEAM / QN_WARP_SIZE];
    __shared__ int has_nan[TEAMS]; // an element of the value row is NaN
    const int team = threadIdx.x / TEAM, thread = threadIdx.x % TEAM;
    const uint32_t index = blockIdx.x * TEAMS + team, all = a.n_heads + a.n_kv_heads, row = index / all, head = index % all;
    const bool is_row = row < a.n_rows, is_key = is_row && head >= a.n_heads;
    const team_context p = { thread, is_row, rows[team], sums[team] };
    const uint32_t kv = is_key ? head - a.n_heads : 0;
    qn_pdl_trigger();
    const float *weight = is_key ? a.key_weight : a.query_weight;
    const values weights = load_values(weight, p, weight != 0);
    const float *head_bias = is_key ? a.key_bias : a.query_bias;
    const values bias = load_values(head_bias + (is_key ? kv : head) * DIM, p, head_bias != 0);
    const values value_bias = load_values(a.value_bias + kv * DIM, p, is_key && a.value_bias);
    const values signs = load_values(a.key_rotation.signs, p, has_signs(a.key_rotation)),
                 value_signs = load_values(a.value_rotation.signs, p, has_signs(a.value_rotation));
    if (thread == 0)
        has_nan[team] = 0;
    const row_place place = is_key ? find_place(a, row, kv) : row_place{ 0, 0 };
    qn_pdl_wait();

    // All loads of a row are issued here, before the first use.
    const uint64_t query_at = (uint64_t)row * a.query_row_stride + head * a.query_stride,
                   key_at = (uint64_t)row * a.key_row_stride + kv * DIM, value_at = (uint64_t)row * a.value_row_stride + kv * DIM;
    values x = load_typed_values(is_key ? a.keys : a.queries, is_key ? key_at : query_at, a.dtype, p, true);
    values value = load_typed_values(a.values, value_at, a.dtype, p, is_key);
    const uint32_t half = a.n_rot / 2;
    const rope_angles angles = load_angles(a, row, half, p);

    if (head_bias)
        add_values(x, bias);
    if (a.value_bias)
        add_values(value, value_bias);
    const float mean = team_sum(qn_sum_of_squares(x.x), p) / DIM;
    if (weight)
        qn_apply_norm(x.x, weights.x, mean, a.eps);
    apply_rope(x, a, angles, half, p);
    rotate(x, a.key_rotation, signs, p);
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        if (p.has(i) && !is_key)
            qn_store_typed(a.out, (uint64_t)row * a.out_row_stride + head * DIM + thread + i * STRIDE, a.dtype, x.x[i]);
    if (!(TEAM == QN_WARP_SIZE ? is_key : __syncthreads_or(is_key)))
        return;

    rotate(value, a.value_rotation, value_signs, p);
    store_key_value(place, x, value, &has_nan[team], p);
}

#endif
