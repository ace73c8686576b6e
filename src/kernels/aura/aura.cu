// AURA's codec on the GPU: encodes and decodes rows, one warp a row, encodes rows into a cache, and quantises pages of a
// session's cache.
#include "kernels/aura/aura_cuda.h"
#include "kernels/typed_rows.cuh"

#define DIM QN_HEAD_DIM
#define VALUES QN_LANE_VALUES(DIM)
#define ROW_WORDS ((DIM * QN_BITS + 31) / 32)
#define THREADS (QN_AURA_GPU_WARPS * QN_WARP_SIZE)

// The rotation is computed on the row scaled to an amax of about 1: otherwise its sums would overflow float32 before the
// norm does.
QN_DEVICE void rotate_scaled(float x[VALUES], const qn_aura_gpu_rotation &rotation, int lane)
{
    float row_max = 0;
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        row_max = fmaxf(row_max, fabsf(x[i]));
    row_max = qn_warp_max(row_max);
    const uint32_t exponent = __float_as_uint(row_max) >> 23;
    const float scale_down = exponent > 1 && exponent < 254 ? __uint_as_float((254 - exponent) << 23) : 1;
    const float scale_up = exponent > 1 && exponent < 254 ? __uint_as_float(exponent << 23) : 1;
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        x[i] *= scale_down;
    qn_row_rotate<DIM>(x, rotation, lane);
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        x[i] *= scale_up;
}

extern "C" __global__ void __launch_bounds__(THREADS) qn_aura_encode(const __grid_constant__ qn_aura_encode_args a)
{
    const int lane = threadIdx.x % QN_WARP_SIZE;
    const uint32_t row = blockIdx.x * QN_AURA_GPU_WARPS + threadIdx.x / QN_WARP_SIZE;
    float x[VALUES];
    qn_pdl_wait();
    qn_pdl_trigger();
    if (row >= a.n_rows)
        return;
    read_row<DIM>(x, a.rows, (uint64_t)row * a.stride, a.dtype, lane);
    rotate_scaled(x, a.rotation, lane);
    qn_row_encode<DIM, QN_BITS>(a.codes + (uint64_t)row * ROW_WORDS, a.scales + row, x, a.levels, lane);
}

extern "C" __global__ void __launch_bounds__(THREADS) qn_aura_decode(const __grid_constant__ qn_aura_decode_args a)
{
    const int lane = threadIdx.x % QN_WARP_SIZE;
    const uint32_t row = blockIdx.x * QN_AURA_GPU_WARPS + threadIdx.x / QN_WARP_SIZE;
    float x[VALUES];
    qn_pdl_wait();
    qn_pdl_trigger();
    if (row >= a.n_rows)
        return;
    const float scale = a.scales[row];
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        const int d = i * QN_WARP_SIZE + lane;
        x[i] = d < DIM ? scale * a.levels.codebook[qn_row_code<DIM, QN_BITS>(a.codes + (uint64_t)row * ROW_WORDS, d)] : 0;
    }
    qn_row_rotate_inverse<DIM>(x, a.rotation, lane);
    write_row<DIM>(a.rows, (uint64_t)row * a.stride, a.dtype, x, lane);
}

#define VALUE_WORDS ((DIM * QN_VALUE_BITS + 31) / 32)

// One side of the cache, keys or values: row `row` of [n_tokens][n_kv_heads][dim] to its token's position.
template <int bits> QN_DEVICE void store_side(const qn_aura_store_args &a, const qn_aura_store_side &side, uint32_t row, int lane)
{
    const uint32_t token = row / a.n_kv_heads, head = row % a.n_kv_heads, position = a.positions[token];
    float x[VALUES];
    if (position >= a.capacity)
        return;
    read_row<DIM>(x, side.rows, (uint64_t)token * side.stride + head * DIM, side.dtype, lane);
    rotate_scaled(x, side.rotation, lane);
    const uint64_t to = (uint64_t)head * a.capacity + position;
    qn_row_encode<DIM, bits>(side.codes + to * ((DIM * bits + 31) / 32), side.scales + to, x, side.levels, lane);
}

extern "C" __global__ void __launch_bounds__(THREADS) qn_aura_store(const __grid_constant__ qn_aura_store_args a)
{
    const int lane = threadIdx.x % QN_WARP_SIZE;
    const uint32_t row = blockIdx.x * QN_AURA_GPU_WARPS + threadIdx.x / QN_WARP_SIZE;
    qn_pdl_wait();
    qn_pdl_trigger();
    if (row >= a.n_tokens * a.n_kv_heads)
        return;
    if (blockIdx.y == 0)
        store_side<QN_BITS>(a, a.keys, row, lane);
    else
        store_side<QN_VALUE_BITS>(a, a.values, row, lane);
}

#define PAGE QN_ATTENTION_PAGE

extern "C" __global__ void __launch_bounds__(THREADS)
    qn_aura_quantize_page(const __grid_constant__ qn_aura_quantize_page_args a)
{
    __shared__ float mean[DIM];
    const int lane = threadIdx.x % QN_WARP_SIZE, warp = threadIdx.x / QN_WARP_SIZE;
    const uint32_t page = a.first_page + blockIdx.x, head = blockIdx.y;
    qn_pdl_wait();
    qn_pdl_trigger();
    const uint16_t *f16_keys = (const uint16_t *)(a.f16_keys + head * a.f16_head);
    const uint16_t *f16_values = (const uint16_t *)(a.f16_values + head * a.f16_head);
    for (int d = threadIdx.x; d < DIM; d += THREADS) {
        float sum = 0;
#pragma unroll 16
        for (int i = 0; i < PAGE; i++)
            sum += qn_f16_to_f32(f16_keys[i * DIM + d]);
        mean[d] = sum / PAGE;
        if (page == 0)
            ((float *)a.means)[head * DIM + d] = mean[d];
    }
    if (page == 0)
        return;
    __syncthreads();
    const uint32_t slot = 1 + (page - 1) % a.n_open_pages;
    for (int i = warp; i < PAGE; i += QN_AURA_GPU_WARPS) {
        const uint64_t from = (slot * PAGE + i) * DIM, to = (uint64_t)(page - 1) * PAGE + i;
        float key[VALUES], value[VALUES];
#pragma unroll
        for (int j = 0; j < VALUES; j++) {
            const int d = j * QN_WARP_SIZE + lane;
            key[j] = d < DIM ? qn_f16_to_f32(f16_keys[from + d]) - mean[d] : 0;
            value[j] = d < DIM ? qn_f16_to_f32(f16_values[from + d]) : 0;
        }
        qn_row_encode<DIM, QN_BITS>((uint32_t *)(a.keys + head * a.key_head_stride) + to * ROW_WORDS,
                                    (float *)(a.key_scales + head * a.scale_head_stride) + to, key, a.key_levels, lane);
        qn_row_encode<DIM, QN_VALUE_BITS>((uint32_t *)(a.values + head * a.value_head_stride) + to * VALUE_WORDS,
                                          (float *)(a.value_scales + head * a.scale_head_stride) + to, value, a.value_levels,
                                          lane);
    }
}
