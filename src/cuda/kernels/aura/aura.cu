// AURA's codec on the GPU: encodes and decodes rows, one warp a row, encodes rows into a cache, and quantises pages of
// sessions' caches.
#include "cuda/kernels/aura/aura.h"

#include "cuda/kernels/kv_pages.cuh"
#include "cuda/kernels/ranges.cuh"
#include "cuda/kernels/typed_rows.cuh"

#define DIM QN_HEAD_DIM
#define VALUES QN_LANE_VALUES(DIM)
#define ROW_WORDS ((DIM * QN_BITS + 31) / 32)
#define THREADS (QN_AURA_GPU_WARPS * QN_WARP_SIZE)

// The rotation is computed on the row scaled to an amax of about 1: otherwise its sums would overflow float32 before
// the norm does.
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
template <int bits>
QN_DEVICE void store_side(const qn_aura_store_args &a, const qn_aura_store_side &side, const uint8_t *codes,
                          uint64_t head_stride, const uint8_t *scales, uint32_t row, int lane)
{
    const uint32_t token = row / a.n_kv_heads, head = row % a.n_kv_heads, position = a.positions[token];
    constexpr uint32_t row_bytes = (DIM * bits + 31) / 32 * 4;
    float x[VALUES];
    if (position >= a.capacity)
        return;
    read_row<DIM>(x, side.rows, (uint64_t)token * side.stride + head * DIM, side.dtype, lane);
    rotate_scaled(x, side.rotation, lane);
    // The cache's pointers are const for its readers; this kernel writes it.
    const uint64_t *table = qn_kv_table(a.cache.tables, 0);
    qn_row_encode<DIM, bits>((uint32_t *)qn_kv_row(qn_kv_rows_of(table, codes, head, head_stride, 0, 0), position, row_bytes),
                             (float *)qn_kv_row(qn_kv_rows_of(table, scales, head, a.cache.scale_head_stride, 0, 0), position,
                                                4),
                             x, side.levels, lane);
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
        store_side<QN_BITS>(a, a.keys, a.cache.keys, a.cache.key_head_stride, a.cache.key_scales, row, lane);
    else
        store_side<QN_VALUE_BITS>(a, a.values, a.cache.values, a.cache.value_head_stride, a.cache.value_scales, row, lane);
}


// A page that a block quantises.
struct page_of_block {
    uint32_t session, page;
};

// False if the block has none.
QN_DEVICE bool find_page(page_of_block &of, const qn_aura_quantize_page_args &a)
{
    of = { 0, a.first_page + blockIdx.x };
    if (!a.cu_seqlens)
        return true;
    const qn_range piece = qn_find_range(a.n_pieces, blockIdx.x, [&](uint32_t i) {
        const uint32_t first = a.positions[i];
        return (uint64_t)((first + a.cu_seqlens[i + 1] - a.cu_seqlens[i]) / QN_PAGE - first / QN_PAGE);
    });
    if (piece.index == a.n_pieces)
        return false;
    of.session = a.sessions ? a.sessions[piece.index] : piece.index;
    of.page = a.positions[piece.index] / QN_PAGE + (blockIdx.x - (uint32_t)piece.begin);
    return true;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    qn_aura_quantize_page(const __grid_constant__ qn_aura_quantize_page_args a)
{
    __shared__ float mean[DIM];
    const int lane = threadIdx.x % QN_WARP_SIZE, warp = threadIdx.x / QN_WARP_SIZE;
    const uint32_t head = blockIdx.y;
    page_of_block of;
    qn_pdl_trigger();
    if (!find_page(of, a)) {
        qn_pdl_wait(); // if no block waited, the next kernel could overtake the previous one
        return;
    }
    // The pointers of caches are const for their readers; this kernel writes them.
    const uint64_t *f16_table = qn_kv_table(a.pages.tables, of.session), *table = qn_kv_table(a.cache.tables, of.session);
    const uint64_t f16_layer = blockIdx.z * a.f16_layer_stride, layer = blockIdx.z * a.layer_stride;
    const auto f16_rows = [&](const uint8_t *array, uint32_t page) {
        return (const uint16_t *)(qn_kv_f16_page(a.pages, f16_table, array, of.session, head, page, DIM * 2) + f16_layer);
    };
    const uint16_t *first_keys = f16_rows(a.pages.keys, 0), *f16_keys = f16_rows(a.pages.keys, of.page),
                   *f16_values = f16_rows(a.pages.values, of.page);
    qn_pdl_wait();
    for (int d = threadIdx.x; d < DIM; d += THREADS) {
        float sum = 0;
#pragma unroll 16
        for (int i = 0; i < QN_PAGE; i++)
            sum += qn_f16_to_f32(first_keys[i * DIM + d]);
        mean[d] = sum / QN_PAGE;
        if (of.page == 0)
            ((float *)((uint8_t *)qn_kv_means(a.pages, f16_table, of.session, head, DIM) + f16_layer))[d] = mean[d];
    }
    if (of.page == 0)
        return;
    __syncthreads();
    const qn_attention_gpu_cache &c = a.cache;
    const auto code_rows = [&](const uint8_t *array, uint64_t head_stride, uint64_t session_stride, uint32_t row_bytes) {
        return (uint8_t *)qn_kv_code_page(qn_kv_rows_of(table, array, head, head_stride, of.session, session_stride), of.page,
                                          row_bytes) +
               layer;
    };
    uint32_t *keys = (uint32_t *)code_rows(c.keys, c.key_head_stride, c.key_session_stride, ROW_WORDS * 4),
             *values = (uint32_t *)code_rows(c.values, c.value_head_stride, c.value_session_stride, VALUE_WORDS * 4);
    float *key_scales = (float *)code_rows(c.key_scales, c.scale_head_stride, c.scale_session_stride, 4),
          *value_scales = (float *)code_rows(c.value_scales, c.scale_head_stride, c.scale_session_stride, 4);
    for (int i = warp; i < QN_PAGE; i += QN_AURA_GPU_WARPS) {
        float key[VALUES], value[VALUES];
#pragma unroll
        for (int j = 0; j < VALUES; j++) {
            const int d = j * QN_WARP_SIZE + lane;
            key[j] = d < DIM ? qn_f16_to_f32(f16_keys[i * DIM + d]) - mean[d] : 0;
            value[j] = d < DIM ? qn_f16_to_f32(f16_values[i * DIM + d]) : 0;
        }
        qn_row_encode<DIM, QN_BITS>(keys + i * ROW_WORDS, key_scales + i, key, a.key_levels, lane);
        qn_row_encode<DIM, QN_VALUE_BITS>(values + i * VALUE_WORDS, value_scales + i, value, a.value_levels, lane);
    }
}
