// Heads between the products that make them and attention: a warp takes a query head of a row, or a key head with its value.
#include "kernels/rope/rope_cuda.h"

#include "kernels/row.cuh"

#define LARGEST_HALF 65504.0f

extern "C" __global__ void __launch_bounds__(64) qn_rope_angles(const __grid_constant__ qn_rope_angles_args a)
{
    const uint32_t i = blockIdx.x * 64 + threadIdx.x, row = blockIdx.y;
    qn_wait_for_previous();
    qn_let_next_begin();
    if (i >= a.n_rot / 2)
        return;
    const double angle = a.positions[row] * a.frequencies[i];
    a.cosines[row * (a.n_rot / 2) + i] = (float)cos(angle);
    a.sines[row * (a.n_rot / 2) + i] = (float)sin(angle);
}

#ifdef QN_HEAD_DIM

#define DIM QN_HEAD_DIM
#define VALUES QN_ROW_VALUES(DIM)

QN_DEVICE void load_row(float x[VALUES], const float *from, int lane)
{
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        x[i] = i * QN_WARP + lane < DIM ? from[i * QN_WARP + lane] : 0;
}

// What a row is normalised, turned and rotated with: asked for at once, and before it is known where the row goes.
struct means {
    float weight[VALUES], cosine[VALUES], sine[VALUES], signs[VALUES];
};

QN_DEVICE bool has_signs(const qn_aura_gpu_rotation &r)
{
    return QN_RUNS && (DIM & (DIM - 1)) == 0 && r.signs;
}

QN_DEVICE void load_means(means &m, const qn_rope_heads_args &a, const float *weight, uint32_t row, int lane)
{
    const uint32_t half = a.n_rot / 2;
    if (weight)
        load_row(m.weight, weight, lane);
    if (has_signs(a.key_rotation))
        load_row(m.signs, a.key_rotation.signs, lane);
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        const uint32_t d = i * QN_WARP + lane, pair = a.interleaved ? d / 2 : d < half ? d : d - half;
        m.cosine[i] = d < a.n_rot ? a.cosines[row * half + pair] : 1;
        m.sine[i] = d < a.n_rot ? a.sines[row * half + pair] : 0;
    }
}

QN_DEVICE void rotate(float x[VALUES], const qn_aura_gpu_rotation &r, const float signs[VALUES], int lane)
{
    if (has_signs(r)) {
#pragma unroll
        for (int i = 0; i < VALUES; i++)
            x[i] *= signs[i];
        qn_row_hadamard<DIM>(x, lane);
    } else if (QN_RUNS && r.forward) {
        qn_row_product<DIM>(x, r.forward, lane);
    }
}

// Normalised, and turned by way of a row in shared memory, where partners meet; then rotated.
QN_DEVICE void turn(float x[VALUES], const qn_rope_heads_args &a, const means &m, bool normalised, float *shared, int lane)
{
    if (normalised) {
        float square = 0;
#pragma unroll
        for (int i = 0; i < VALUES; i++)
            square += x[i] * x[i];
        const float scale = rsqrtf(qn_warp_sum(square) / DIM + a.eps);
#pragma unroll
        for (int i = 0; i < VALUES; i++)
            x[i] = x[i] * scale * m.weight[i];
    }
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        if (i * QN_WARP + lane < DIM)
            shared[i * QN_WARP + lane] = x[i];
    __syncwarp();
    const uint32_t half = a.n_rot / 2;
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        const uint32_t d = i * QN_WARP + lane;
        if (d < a.n_rot) {
            const bool second = a.interleaved ? d % 2 : d >= half;
            const float other = shared[a.interleaved ? d ^ 1 : second ? d - half : d + half];
            x[i] = second ? other * m.sine[i] + x[i] * m.cosine[i] : x[i] * m.cosine[i] - other * m.sine[i];
        }
    }
    rotate(x, a.key_rotation, m.signs, lane);
}

// As the nearest halves. NaN becomes 0; true where there is any.
QN_DEVICE bool store_halves(uint16_t *to, const float x[VALUES], int lane)
{
    bool bad = false;
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        bad = bad || x[i] != x[i];
        if (i * QN_WARP + lane < DIM)
            to[i * QN_WARP + lane] = x[i] != x[i] ? 0 : qn_float_to_half(fminf(fmaxf(x[i], -LARGEST_HALF), LARGEST_HALF));
    }
    return __any_sync(QN_ALL_LANES, bad);
}

extern "C" __global__ void __launch_bounds__(QN_ROPE_GPU_WARPS *QN_WARP)
    qn_rope_heads(const __grid_constant__ qn_rope_heads_args a)
{
    __shared__ float rows[QN_ROPE_GPU_WARPS][DIM];
    const int warp = threadIdx.x / QN_WARP, lane = threadIdx.x % QN_WARP;
    const uint32_t index = blockIdx.x * QN_ROPE_GPU_WARPS + warp, all = a.n_heads + a.n_kv_heads;
    const uint32_t row = index / all, head = index % all;
    qn_wait_for_previous();
    qn_let_next_begin();
    if (row >= a.n_rows)
        return;
    float x[VALUES];
    means m;
    if (head < a.n_heads) {
        load_row(x, a.queries + ((uint64_t)row * a.n_heads + head) * a.query_stride, lane);
        load_means(m, a, a.query_weight, row, lane);
        turn(x, a, m, a.query_weight != 0, rows[warp], lane);
        float *out = a.out + ((uint64_t)row * a.n_heads + head) * DIM;
#pragma unroll
        for (int i = 0; i < VALUES; i++)
            if (i * QN_WARP + lane < DIM)
                out[i * QN_WARP + lane] = x[i];
        return;
    }
    const uint32_t kv = head - a.n_heads, position = a.positions[row], session = a.sessions ? a.sessions[row] : 0;
    float value[VALUES], value_signs[VALUES];
    load_row(x, a.keys + ((uint64_t)row * a.n_kv_heads + kv) * DIM, lane);
    load_row(value, a.values + ((uint64_t)row * a.n_kv_heads + kv) * DIM, lane);
    load_means(m, a, a.key_weight, row, lane);
    if (has_signs(a.value_rotation))
        load_row(value_signs, a.value_rotation.signs, lane);
    turn(x, a, m, a.key_weight != 0, rows[warp], lane);
#if QN_RUNS
    rotate(value, a.value_rotation, value_signs, lane);
    const uint32_t run = position / QN_ATTENTION_RUN, place = run ? 1 + (run - 1) % a.runs.n_open : 0;
    const uint64_t at = ((uint64_t)place * QN_ATTENTION_RUN + position % QN_ATTENTION_RUN) * (DIM * 2) +
                        session * a.runs.session + kv * a.runs.head;
    // The cache is this kernel's to write: its own pointers are not const.
    uint16_t *keys = (uint16_t *)(a.runs.keys + at), *values = (uint16_t *)(a.runs.values + at);
#else
    uint16_t *keys =
        (uint16_t *)(a.cache.keys + session * a.cache.key_session + kv * a.cache.key_head) + (uint64_t)position * DIM;
    uint16_t *values =
        (uint16_t *)(a.cache.values + session * a.cache.value_session + kv * a.cache.value_head) + (uint64_t)position * DIM;
#endif
    const bool bad_value = store_halves(values, value, lane), bad_key = store_halves(keys, x, lane);
    if (bad_value || bad_key) {
#pragma unroll
        for (int i = 0; i < VALUES; i++)
            if (i * QN_WARP + lane < DIM && (bad_value || x[i] != x[i]))
                keys[i * QN_WARP + lane] = 0x7e00;
    }
}

#endif
