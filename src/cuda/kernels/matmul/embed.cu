// Embedding: rows of a table dequantised from tiles, and rotated back. A thread handles eight consecutive columns: two
// words of codes, or four of fp16. Butterflies over registers, then lanes, then, after one exchange through shared
// memory, over registers again.
#include "cuda/kernels/butterflies.cuh"
#include "cuda/kernels/matmul/embed.h"

enum { THREADS = QN_EMBED_THREADS, PER_THREAD = QN_EMBED_PER_THREAD, WARP_VALUES = QN_WARP_SIZE * PER_THREAD };

// Columns col to col + 7 of a row of the table; tiles are zero beyond n_cols.
QN_DEVICE void dequantize_8(float v[PER_THREAD], const qn_matmul_embed_args &a, uint32_t row, uint32_t col)
{
    const uint32_t in_tile = row % QN_TILE_ROWS, g = in_tile % 8, upper = in_tile / 8;
    const uint32_t k_tile = col / QN_TILE_COLS, group = col % QN_TILE_COLS / 32, half = col % 32 / 16, t = col % 16 / 4;
    const uint64_t tile = (uint64_t)k_tile * a.n_tiles + a.first_tile + row / QN_TILE_ROWS;
    const uint32_t *codes =
        (const uint32_t *)(a.weights + tile * a.bits * QN_FRAGMENT_BYTES) + (4 * g + t) * 4 + 2 * half + upper;
    if (a.bits == 16) {
        const uint32_t *even = codes + 2 * group * (QN_FRAGMENT_BYTES / 4), *odd = even + QN_FRAGMENT_BYTES / 4;
#pragma unroll
        for (int i = 0; i < 2; i++) { // the next lane's word is at + 4
            const uint32_t e = even[4 * i], o = odd[4 * i];
            v[4 * i] = qn_f16_to_f32((uint16_t)e);
            v[4 * i + 1] = qn_f16_to_f32((uint16_t)o);
            v[4 * i + 2] = qn_f16_to_f32((uint16_t)(e >> 16));
            v[4 * i + 3] = qn_f16_to_f32((uint16_t)(o >> 16));
        }
        return;
    }
    const uint32_t fields = 8 / a.bits, shift = group % fields * a.bits, mask = (1u << a.bits) - 1;
    const uint32_t *words = codes + group / fields * (QN_FRAGMENT_BYTES / 4);
    const uint16_t *scales = (const uint16_t *)(a.weights + (uint64_t)a.n_k_tiles * a.n_tiles * a.bits * QN_FRAGMENT_BYTES) +
                             tile * a.n_scales * (1 + a.has_offset) * QN_TILE_ROWS + 2 * g + upper;
    const uint32_t scale_index = group * a.n_scales / QN_TILE_GROUPS;
    const uint32_t low = words[0], high = words[4];
    const float scale = qn_f16_to_f32(scales[scale_index * QN_TILE_ROWS]);
    const float offset = a.has_offset ? qn_f16_to_f32(scales[(a.n_scales + scale_index) * QN_TILE_ROWS]) : 0;
    // Codes are integers, odd ones with 1 bit: every value is exact, or rounded once.
    const float factor = a.bits == 1 ? 2 : 1, zero = QN_TILE_ZERO(a.bits);
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        const uint32_t code = (i < 4 ? low : high) >> (8 * (i % 4) + shift) & mask;
        v[i] = fmaf(fmaf((float)code, factor, -zero), scale, offset);
    }
}

// By all threads. Both the token and the source may be in pinned host memory, where loads of several warps, even of the
// same address, would take the time of separate loads: two lanes load for all.
QN_DEVICE uint32_t token_of(const qn_matmul_embed_args &a, uint32_t row)
{
    __shared__ uint32_t loaded[2];
    if (threadIdx.x < 2) {
        const volatile uint32_t *from = threadIdx.x ? a.sources : (const uint32_t *)a.tokens;
        loaded[threadIdx.x] = from ? from[row] : 0;
    }
    __syncthreads();
    return loaded[1] ? (uint32_t)max(a.sampled[loaded[1] - 1], 0) : loaded[0];
}

// By all warps but the one that loads the token.
QN_DEVICE void copy_words(const qn_matmul_embed_args &a)
{
    for (uint32_t i = threadIdx.x - QN_WARP_SIZE; threadIdx.x >= QN_WARP_SIZE && i < a.n_words; i += THREADS - QN_WARP_SIZE)
        a.to[i] = ((const volatile uint32_t *)a.from)[i];
}

extern "C" __global__ void __launch_bounds__(THREADS) qn_matmul_embed(const __grid_constant__ qn_matmul_embed_args a)
{
    __shared__ __align__(16) float exchange[QN_EMBED_TILE];
    const uint32_t first = blockIdx.x * QN_EMBED_TILE, first_col = first + threadIdx.x * PER_THREAD;
    float v[PER_THREAD];
    qn_pdl_trigger();
    qn_pdl_wait();
    if (blockIdx.x == 0 && blockIdx.y == 0)
        copy_words(a);
    const uint32_t token = token_of(a, blockIdx.y);
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++)
        v[i] = 0;
    if (first_col < a.n_cols)
        dequantize_8(v, a, token, first_col);
    if (a.block > 1)
        qn_butterflies<1, PER_THREAD>(v);
    if (a.block > 2)
        qn_butterflies<2, PER_THREAD>(v);
    if (a.block > 4)
        qn_butterflies<4, PER_THREAD>(v);
#pragma unroll
    for (int distance = 1; distance < QN_WARP_SIZE; distance *= 2)
        if (a.block > PER_THREAD * distance)
            qn_lane_butterflies<PER_THREAD>(v, distance);
#pragma unroll
    for (int i = 0; i < PER_THREAD; i += 4)
        *(float4 *)&exchange[threadIdx.x * PER_THREAD + i] = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) // values THREADS = WARP_VALUES apart
        v[i] = exchange[i * WARP_VALUES + threadIdx.x];
    if (a.block > WARP_VALUES)
        qn_butterflies<1, PER_THREAD>(v);
    if (a.block > 2 * WARP_VALUES)
        qn_butterflies<2, PER_THREAD>(v);
    if (a.block > 4 * WARP_VALUES)
        qn_butterflies<4, PER_THREAD>(v);
    float *out = a.out + (uint64_t)blockIdx.y * a.n_cols;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        const uint32_t at = first + i * WARP_VALUES + threadIdx.x;
        if (at < a.n_cols)
            out[at] = v[i] * (a.signs ? a.scale * a.signs[at] : a.scale);
    }
}
