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

// The fp16 rows of page 0 and of a page, and where the page's codes go; of one head.
struct page_rows {
    const uint16_t *first_keys, *keys, *values;
    uint8_t *key_codes, *value_codes;
    float *key_scales, *value_scales, *mean;
};

QN_DEVICE page_rows contiguous_page(const qn_aura_quantize_page_args &a, uint32_t page, uint32_t head)
{
    const uint8_t *keys = a.f16_keys + head * a.f16_head, *values = a.f16_values + head * a.f16_head;
    const uint64_t at = page ? (1 + (page - 1) % a.n_open_pages) * (uint64_t)(PAGE * DIM * 2) : 0,
                   to = page ? (uint64_t)(page - 1) * PAGE : 0;
    return { (const uint16_t *)keys,
             (const uint16_t *)(keys + at),
             (const uint16_t *)(values + at),
             a.keys + head * a.key_head_stride + to * (ROW_WORDS * 4),
             a.values + head * a.value_head_stride + to * (VALUE_WORDS * 4),
             (float *)(a.key_scales + head * a.scale_head_stride) + to,
             (float *)(a.value_scales + head * a.scale_head_stride) + to,
             (float *)a.means + head * DIM };
}

QN_DEVICE page_rows page_of_table(const qn_aura_quantize_page_args &a, uint32_t sequence, uint32_t page, uint32_t layer,
                                  uint32_t head)
{
    const uint64_t *f16_table = (const uint64_t *)a.f16_tables[sequence];
    const uint64_t first = f16_table[0] + layer * a.f16_layer_stride, f16 = f16_table[page] + layer * a.f16_layer_stride;
    const uint64_t codes = page ? ((const uint64_t *)a.tables[sequence])[page] + layer * a.layer_stride : 0;
    const uint64_t keys = (uint64_t)a.f16_keys + head * a.f16_head, values = (uint64_t)a.f16_values + head * a.f16_head;
    return { (const uint16_t *)(first + keys),
             (const uint16_t *)(f16 + keys),
             (const uint16_t *)(f16 + values),
             (uint8_t *)(codes + (uint64_t)a.keys + head * a.key_head_stride),
             (uint8_t *)(codes + (uint64_t)a.values + head * a.value_head_stride),
             (float *)(codes + (uint64_t)a.key_scales + head * a.scale_head_stride),
             (float *)(codes + (uint64_t)a.value_scales + head * a.scale_head_stride),
             (float *)(first + (uint64_t)a.means) + head * DIM };
}

extern "C" __global__ void __launch_bounds__(THREADS)
    qn_aura_quantize_page(const __grid_constant__ qn_aura_quantize_page_args a)
{
    __shared__ float mean[DIM];
    const int lane = threadIdx.x % QN_WARP_SIZE, warp = threadIdx.x / QN_WARP_SIZE;
    uint32_t page = a.first_page + blockIdx.x;
    page_rows rows;
    // Before any return: if no block waited, the next kernel could run before the previous one has ended.
    qn_pdl_trigger();
    qn_pdl_wait();
    if (a.tables) {
        const uint32_t sequence = blockIdx.z, n = a.cu_seqlens[sequence + 1] - a.cu_seqlens[sequence];
        const uint32_t first = a.first_positions[sequence];
        page = first / PAGE + blockIdx.x;
        if (n == 0 || page >= (first + n) / PAGE)
            return;
        rows = page_of_table(a, sequence, page, blockIdx.y / a.n_kv_heads, blockIdx.y % a.n_kv_heads);
    } else {
        rows = contiguous_page(a, page, blockIdx.y);
    }
    for (int d = threadIdx.x; d < DIM; d += THREADS) {
        float sum = 0;
#pragma unroll 16
        for (int i = 0; i < PAGE; i++)
            sum += qn_f16_to_f32(rows.first_keys[i * DIM + d]);
        mean[d] = sum / PAGE;
        if (page == 0)
            rows.mean[d] = mean[d];
    }
    if (page == 0)
        return;
    __syncthreads();
    for (int i = warp; i < PAGE; i += QN_AURA_GPU_WARPS) {
        float key[VALUES], value[VALUES];
#pragma unroll
        for (int j = 0; j < VALUES; j++) {
            const int d = j * QN_WARP_SIZE + lane;
            key[j] = d < DIM ? qn_f16_to_f32(rows.keys[i * DIM + d]) - mean[d] : 0;
            value[j] = d < DIM ? qn_f16_to_f32(rows.values[i * DIM + d]) : 0;
        }
        qn_row_encode<DIM, QN_BITS>((uint32_t *)rows.key_codes + i * ROW_WORDS, rows.key_scales + i, key, a.key_levels, lane);
        qn_row_encode<DIM, QN_VALUE_BITS>((uint32_t *)rows.value_codes + i * VALUE_WORDS, rows.value_scales + i, value,
                                          a.value_levels, lane);
    }
}
