// Rows of a table from tiles, rotated back. A thread takes eight columns that follow one another: two words of codes, or four
// of halves. The transform is over registers, then lanes, then after one exchange through shared memory over registers again.
#include "kernels/butterflies.cuh"
#include "kernels/matmul/embed_cuda.h"

enum { THREADS = QN_EMBED_THREADS, EACH = QN_EMBED_EACH, OF_WARP = QN_WARP * EACH };

// Columns col to col + 7 of a row of the table; beyond n_cols tiles are zeros.
QN_DEVICE void eight_columns(float v[EACH], const qn_matmul_embed_args &a, uint32_t row, uint32_t col)
{
    const uint32_t in_tile = row % QN_TILE_ROWS, g = in_tile % 8, upper = in_tile / 8;
    const uint32_t chunk = col / QN_TILE_COLS, run = col % QN_TILE_COLS / 32, half = col % 32 / 16, t = col % 16 / 4;
    const uint64_t tile = (uint64_t)chunk * a.n_tiles + a.first_tile + row / QN_TILE_ROWS;
    const uint32_t *codes = (const uint32_t *)(a.weights + tile * a.bits * QN_TILE_SET) + (4 * g + t) * 4 + 2 * half + upper;
    if (a.bits == 16) {
        const uint32_t *even = codes + 2 * run * (QN_TILE_SET / 4), *odd = even + QN_TILE_SET / 4;
#pragma unroll
        for (int i = 0; i < 2; i++) { // the next lane's word is four further
            const uint32_t e = even[4 * i], o = odd[4 * i];
            v[4 * i] = qn_half_to_float((uint16_t)e);
            v[4 * i + 1] = qn_half_to_float((uint16_t)o);
            v[4 * i + 2] = qn_half_to_float((uint16_t)(e >> 16));
            v[4 * i + 3] = qn_half_to_float((uint16_t)(o >> 16));
        }
        return;
    }
    const uint32_t fields = 8 / a.bits, shift = run % fields * a.bits, mask = (1u << a.bits) - 1;
    const uint32_t *words = codes + run / fields * (QN_TILE_SET / 4);
    const uint16_t *scales = (const uint16_t *)(a.weights + (uint64_t)a.n_chunks * a.n_tiles * a.bits * QN_TILE_SET) +
                             tile * a.n_scales * (1 + a.has_offset) * QN_TILE_ROWS + 2 * g + upper;
    const uint32_t number = run * a.n_scales / QN_TILE_RUNS;
    const uint32_t low = words[0], high = words[4];
    const float scale = qn_half_to_float(scales[number * QN_TILE_ROWS]);
    const float offset = a.has_offset ? qn_half_to_float(scales[(a.n_scales + number) * QN_TILE_ROWS]) : 0;
    // Codes are whole numbers, and of a bit odd ones: every value is exact, or rounded once.
    const float factor = a.bits == 1 ? 2 : 1, zero = a.bits <= 2 ? 1 : a.bits == 8 ? 128 : 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const uint32_t code = (i < 4 ? low : high) >> (8 * (i % 4) + shift) & mask;
        v[i] = fmaf(fmaf((float)code, factor, -zero), scale, offset);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) qn_matmul_embed(const __grid_constant__ qn_matmul_embed_args a)
{
    __shared__ float exchange[QN_EMBED_TILE];
    const uint32_t first = blockIdx.x * QN_EMBED_TILE, mine = first + threadIdx.x * EACH;
    float v[EACH];
    qn_let_next_begin();
    qn_wait_for_previous();
    const uint32_t token = (uint32_t)((const volatile int32_t *)a.tokens)[blockIdx.y];
    if (blockIdx.x == 0 && blockIdx.y == 0)
        for (uint32_t i = threadIdx.x; i < a.n_words; i += THREADS)
            a.to[i] = ((const volatile uint32_t *)a.from)[i];
#pragma unroll
    for (int i = 0; i < EACH; i++)
        v[i] = 0;
    if (mine < a.n_cols)
        eight_columns(v, a, token, mine);
    if (a.block > 1)
        qn_butterflies<1, EACH>(v);
    if (a.block > 2)
        qn_butterflies<2, EACH>(v);
    if (a.block > 4)
        qn_butterflies<4, EACH>(v);
#pragma unroll
    for (int distance = 1; distance < QN_WARP; distance *= 2)
        if (a.block > EACH * distance)
            qn_lane_butterflies<EACH>(v, distance);
#pragma unroll
    for (int i = 0; i < EACH; i += 4)
        *(float4 *)&exchange[threadIdx.x * EACH + i] = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; i++) // values that lie THREADS, which is OF_WARP, apart
        v[i] = exchange[i * OF_WARP + threadIdx.x];
    if (a.block > OF_WARP)
        qn_butterflies<1, EACH>(v);
    if (a.block > 2 * OF_WARP)
        qn_butterflies<2, EACH>(v);
    if (a.block > 4 * OF_WARP)
        qn_butterflies<4, EACH>(v);
    float *out = a.out + (uint64_t)blockIdx.y * a.n_cols;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const uint32_t at = first + i * OF_WARP + threadIdx.x;
        if (at < a.n_cols)
            out[at] = v[i] * (a.signs ? a.scale * a.signs[at] : a.scale);
    }
}
