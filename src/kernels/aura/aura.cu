// AURA's codec on the GPU: rows to codes and back, a warp a row.
#include "kernels/aura/aura_cuda.h"
#include "kernels/aura/rows.cuh"

#define DIM QN_HEAD_DIM
#define VALUES QN_ROW_VALUES(DIM)
#define ROW_WORDS ((DIM * QN_BITS + 31) / 32)
#define THREADS (QN_AURA_GPU_WARPS * QN_WARP)

extern "C" __global__ void __launch_bounds__(THREADS) qn_aura_encode(const __grid_constant__ qn_aura_encode_args a)
{
    const int lane = threadIdx.x % QN_WARP;
    const uint32_t row = blockIdx.x * QN_AURA_GPU_WARPS + threadIdx.x / QN_WARP;
    float x[VALUES];
    qn_wait_for_previous();
    qn_let_next_begin();
    if (row >= a.n_rows)
        return;
    read_row<DIM>(x, a.rows, row, a.dtype, lane);
    // Rotated at the size of 1: a float's sums would else leave its range before its norm does.
    float largest = 0;
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    largest = qn_warp_max(largest);
    const uint32_t exponent = __float_as_uint(largest) >> 23;
    const float down = exponent > 1 && exponent < 254 ? __uint_as_float((254 - exponent) << 23) : 1;
    const float up = exponent > 1 && exponent < 254 ? __uint_as_float(exponent << 23) : 1;
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        x[i] *= down;
    qn_row_rotate<DIM>(x, a.rotation, lane);
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        x[i] *= up;
    qn_row_encode<DIM, QN_BITS>(a.codes + (uint64_t)row * ROW_WORDS, a.scales + row, x, a.levels, lane);
}

extern "C" __global__ void __launch_bounds__(THREADS) qn_aura_decode(const __grid_constant__ qn_aura_decode_args a)
{
    const int lane = threadIdx.x % QN_WARP;
    const uint32_t row = blockIdx.x * QN_AURA_GPU_WARPS + threadIdx.x / QN_WARP;
    float x[VALUES];
    qn_wait_for_previous();
    qn_let_next_begin();
    if (row >= a.n_rows)
        return;
    const float scale = a.scales[row];
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        const int d = i * QN_WARP + lane;
        x[i] = d < DIM ? scale * a.levels.codebook[qn_row_code<DIM, QN_BITS>(a.codes + (uint64_t)row * ROW_WORDS, d)] : 0;
    }
    qn_row_rotate_back<DIM>(x, a.rotation, lane);
    write_row<DIM>(a.rows, row, a.dtype, x, lane);
}

#define RUN QN_ATTENTION_RUN
#define VALUE_WORDS ((DIM * QN_VALUE_BITS + 31) / 32)

extern "C" __global__ void __launch_bounds__(THREADS) qn_aura_seal(const __grid_constant__ qn_aura_seal_args a)
{
    __shared__ float mean[DIM];
    const int lane = threadIdx.x % QN_WARP, warp = threadIdx.x / QN_WARP;
    const uint32_t run = a.first_run + blockIdx.x, head = blockIdx.y;
    qn_wait_for_previous();
    qn_let_next_begin();
    const uint16_t *half_keys = (const uint16_t *)(a.half_keys + head * a.half_head);
    const uint16_t *half_values = (const uint16_t *)(a.half_values + head * a.half_head);
    for (int d = threadIdx.x; d < DIM; d += THREADS) {
        float sum = 0;
#pragma unroll 16
        for (int i = 0; i < RUN; i++)
            sum += qn_half_to_float(half_keys[i * DIM + d]);
        mean[d] = sum / RUN;
        if (run == 0)
            ((float *)a.means)[head * DIM + d] = mean[d];
    }
    if (run == 0)
        return;
    __syncthreads();
    const uint32_t place = 1 + (run - 1) % a.n_open;
    for (int i = warp; i < RUN; i += QN_AURA_GPU_WARPS) {
        const uint64_t from = (place * RUN + i) * DIM, to = (uint64_t)(run - 1) * RUN + i;
        float key[VALUES], value[VALUES];
#pragma unroll
        for (int j = 0; j < VALUES; j++) {
            const int d = j * QN_WARP + lane;
            key[j] = d < DIM ? qn_half_to_float(half_keys[from + d]) - mean[d] : 0;
            value[j] = d < DIM ? qn_half_to_float(half_values[from + d]) : 0;
        }
        qn_row_encode<DIM, QN_BITS>((uint32_t *)(a.keys + head * a.key_head) + to * ROW_WORDS,
                                    (float *)(a.key_scales + head * a.scale_head) + to, key, a.key_levels, lane);
        qn_row_encode<DIM, QN_VALUE_BITS>((uint32_t *)(a.values + head * a.value_head) + to * VALUE_WORDS,
                                          (float *)(a.value_scales + head * a.scale_head) + to, value, a.value_levels, lane);
    }
}
