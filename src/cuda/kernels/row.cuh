// Operations on one head's row of floats: rotation (Hadamard transform or matrix) and AURA codes. In the registers of a
// warp, value i of a lane is dimension i * QN_WARP_SIZE + lane; values beyond the head's dimension are zeros.
#ifndef QN_CUDA_KERNELS_ROW_CUH
#define QN_CUDA_KERNELS_ROW_CUH

#include "cuda/kernels/kv.h"

#define QN_LANE_VALUES(dim) (((dim) + QN_WARP_SIZE - 1) / QN_WARP_SIZE)

// Whether the rotation of rows is a Hadamard transform with signs; else it is a matrix, or none.
template <int dim> QN_DEVICE bool qn_is_hadamard(const qn_aura_gpu_rotation &r)
{
    return (dim & (dim - 1)) == 0 && r.signs;
}

// Normalised Walsh-Hadamard transform; dim is a power of two of at least 64.
template <int dim> QN_DEVICE void qn_row_hadamard(float x[QN_LANE_VALUES(dim)], int lane)
{
    constexpr int n = QN_LANE_VALUES(dim);
#pragma unroll
    for (int distance = 1; distance < QN_WARP_SIZE; distance *= 2) {
#pragma unroll
        for (int i = 0; i < n; i++) {
            const float other = __shfl_xor_sync(QN_FULL_MASK, x[i], distance);
            x[i] = lane & distance ? other - x[i] : x[i] + other;
        }
    }
#pragma unroll
    for (int distance = 1; distance < n; distance *= 2) {
#pragma unroll
        for (int i = 0; i < n; i++) {
            if (!(i & distance)) {
                const float a = x[i], b = x[i + distance];
                x[i] = a + b;
                x[i + distance] = a - b;
            }
        }
    }
    const float norm = rsqrtf((float)dim);
#pragma unroll
    for (int i = 0; i < n; i++)
        x[i] *= norm;
}

// ---- A row by a group of dim/2 threads: thread i holds dimensions i and i + dim/2. For kernels whose latency is that
// of one row: a single warp would take longer. All threads of the block call these functions (they contain
// __syncthreads); `active`: the thread belongs to a group. `shared`: dim floats for each group; all previous uses have
// finished. ----

// Normalised Walsh-Hadamard transform; dim is a power of two of at least 64.
template <int dim> QN_DEVICE void qn_group_hadamard(float x[2], float *shared, int thread, bool active)
{
    constexpr int half = dim / 2, warps = half / QN_WARP_SIZE;
    const float sum = x[0] + x[1], difference = x[0] - x[1];
    x[0] = sum;
    x[1] = difference;
#pragma unroll
    for (int distance = 1; distance < QN_WARP_SIZE; distance *= 2) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float other = __shfl_xor_sync(QN_FULL_MASK, x[i], distance);
            x[i] = thread & distance ? other - x[i] : x[i] + other;
        }
    }
    if (warps > 1) {
        const int warp = thread / QN_WARP_SIZE;
        if (active) {
            shared[thread] = x[0];
            shared[thread + half] = x[1];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; active && i < 2; i++) {
            x[i] = 0;
#pragma unroll
            for (int w = 0; w < warps; w++) {
                const float other = shared[i * half + w * QN_WARP_SIZE + thread % QN_WARP_SIZE];
                x[i] += __popc(w & warp) & 1 ? -other : other;
            }
        }
        __syncthreads();
    }
    const float norm = rsqrtf((float)dim);
    x[0] *= norm;
    x[1] *= norm;
}

// x = sum over j of matrix[j] * x_j, in ascending order of j.
template <int dim> QN_DEVICE void qn_group_gemv(float x[2], const float *matrix, float *shared, int thread, bool active)
{
    constexpr int half = dim / 2;
    if (active) {
        shared[thread] = x[0];
        shared[thread + half] = x[1];
    }
    __syncthreads();
    if (active) {
        float y[2] = { 0, 0 };
#pragma unroll 16
        for (int j = 0; j < dim; j++) {
            y[0] = fmaf(shared[j], matrix[j * dim + thread], y[0]);
            y[1] = fmaf(shared[j], matrix[j * dim + thread + half], y[1]);
        }
        x[0] = y[0];
        x[1] = y[1];
    }
    __syncthreads();
}

// ---- A row by a warp ----

// x = sum over j of matrix[j] * x_j, in ascending order of j.
template <int dim> QN_DEVICE void qn_row_gemv(float x[QN_LANE_VALUES(dim)], const float *matrix, int lane)
{
    constexpr int n = QN_LANE_VALUES(dim);
    float y[n];
#pragma unroll
    for (int i = 0; i < n; i++)
        y[i] = 0;
#pragma unroll
    for (int j = 0; j < n; j++) {
        for (int k = 0; k < QN_WARP_SIZE && j * QN_WARP_SIZE + k < dim; k++) {
            const float factor = __shfl_sync(QN_FULL_MASK, x[j], k);
#pragma unroll
            for (int i = 0; i < n; i++)
                if (i * QN_WARP_SIZE + lane < dim)
                    y[i] = fmaf(factor, matrix[(j * QN_WARP_SIZE + k) * dim + i * QN_WARP_SIZE + lane], y[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < n; i++)
        x[i] = y[i];
}

template <int dim> QN_DEVICE void qn_row_signs(float x[QN_LANE_VALUES(dim)], const float *signs, int lane)
{
#pragma unroll
    for (int i = 0; i < QN_LANE_VALUES(dim); i++)
        x[i] *= signs[i * QN_WARP_SIZE + lane];
}

template <int dim> QN_DEVICE void qn_row_rotate(float x[QN_LANE_VALUES(dim)], const qn_aura_gpu_rotation &r, int lane)
{
    if (qn_is_hadamard<dim>(r)) {
        qn_row_signs<dim>(x, r.signs, lane);
        qn_row_hadamard<dim>(x, lane);
    } else if (r.forward) {
        qn_row_gemv<dim>(x, r.forward, lane);
    }
}

template <int dim> QN_DEVICE void qn_row_rotate_inverse(float x[QN_LANE_VALUES(dim)], const qn_aura_gpu_rotation &r, int lane)
{
    if (qn_is_hadamard<dim>(r)) {
        qn_row_hadamard<dim>(x, lane);
        qn_row_signs<dim>(x, r.signs, lane);
    } else if (r.inverse) {
        qn_row_gemv<dim>(x, r.inverse, lane);
    }
}

// Packs codes: code d is at bits [d*bits, (d+1)*bits) of the row's words. The codes of 32 lanes fill exactly `bits`
// words.
template <int dim, int bits> QN_DEVICE void qn_row_pack(uint32_t *words, const uint32_t codes[QN_LANE_VALUES(dim)], int lane)
{
    constexpr int n_words = (dim * bits + 31) / 32;
    const int at = lane * bits, word = at / 32, shift = at % 32;
#pragma unroll
    for (int i = 0; i < QN_LANE_VALUES(dim); i++) {
        const uint32_t low = codes[i] << shift, high = shift + bits > 32 ? codes[i] >> (32 - shift) : 0;
        uint32_t mine = 0;
#pragma unroll
        for (int w = 0; w < bits; w++) {
            const uint32_t all = __reduce_or_sync(QN_FULL_MASK, word == w ? low : word + 1 == w ? high : 0);
            mine = lane == w ? all : mine;
        }
        if (lane < bits && i * bits + lane < n_words)
            words[i * bits + lane] = mine;
    }
}

template <int dim, int bits> QN_DEVICE uint32_t qn_row_code(const uint32_t *words, int d)
{
    constexpr int n_words = (dim * bits + 31) / 32;
    const int at = d * bits, word = at / 32;
    const uint32_t low = words[word], high = words[word + 1 < n_words ? word + 1 : word];
    return __funnelshift_r(low, high, at % 32) & ((1u << bits) - 1);
}

// AURA codes and scale of a row in the rotated basis. A row that is not finite, or whose norm overflows float32, gets
// the codes of zeros and a scale of NaN. The norm is computed on the row divided by its amax, so that squares stay in
// range.
template <int dim, int bits>
QN_DEVICE void qn_row_encode(uint32_t *words, float *scale, const float y[QN_LANE_VALUES(dim)],
                             const qn_aura_gpu_levels &levels, int lane)
{
    constexpr int n = QN_LANE_VALUES(dim);
    uint32_t codes[n];
    float amax = 0, square = 0, decoded = 0, nan_probe = 0;
#pragma unroll
    for (int i = 0; i < n; i++) {
        amax = fmaxf(amax, fabsf(y[i]));
        nan_probe += y[i] * 0; // an infinity, too, becomes NaN
    }
    amax = qn_warp_max(amax);
    nan_probe = qn_warp_sum(nan_probe);
    float unit[n];
#pragma unroll
    for (int i = 0; i < n; i++) {
        unit[i] = amax > 0 ? y[i] / amax : 0;
        square += unit[i] * unit[i];
    }
    const float norm_scaled = sqrtf(qn_warp_sum(square)), norm = norm_scaled * amax;
    const bool finite = nan_probe == 0 && norm < QN_INFINITY, is_nonzero = finite && norm > 1e-8f;
#pragma unroll
    for (int i = 0; i < n; i++) {
        const float x = is_nonzero ? unit[i] / norm_scaled : 0;
        uint32_t code = 0;
        // Boundaries ascend: binary search for the number of boundaries below x.
#pragma unroll
        for (int step = 1 << (bits - 1); step > 0; step /= 2)
            code += x > levels.boundaries[code + step - 1] ? step : 0;
        const bool active = i * QN_WARP_SIZE + lane < dim;
        codes[i] = active ? code : 0;
        const float c = active ? levels.codebook[code] : 0;
        decoded += c * c;
    }
    decoded = sqrtf(qn_warp_sum(decoded));
    qn_row_pack<dim, bits>(words, codes, lane);
    if (lane == 0)
        *scale = !finite ? QN_NAN : decoded > 1e-8f ? norm / decoded : norm;
}

#endif
