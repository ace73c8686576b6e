/* Launches of the Walsh-Hadamard transform on the GPU. */
#include "cuda/kernels/hadamard/hadamard.h"

#include "kernels/hadamard/hadamard.h"
#include "cuda/kernels/variants.h"
#include "cuda/kernels/hadamard/variants.def"

qn_status qn_hadamard_gpu_plan(uint64_t y, uint64_t x, uint64_t signs_before, uint64_t signs_after, size_t n_signs,
                               size_t n, size_t n_values, qn_hadamard_gpu *out)
{
    if (n == 0 || (n & (n - 1)) != 0 || n > QN_HADAMARD_MAX_BLOCK)
        return qn_fail(QN_ERR_INVALID, "Hadamard blocks of %zu: expected a power of two up to %d", n,
                       QN_HADAMARD_MAX_BLOCK);
    if (n_values == 0 || n_values % n || n_signs == 0 || n_signs % n || n_signs > UINT32_MAX)
        return qn_fail(QN_ERR_INVALID, "%zu values with %zu signs: both must be multiples of the block, %zu", n_values,
                       n_signs, n);
    if (x % 16 || y % 16)
        return qn_fail(QN_ERR_INVALID, "Hadamard blocks: x and y must be at multiples of 16 bytes");
    const bool large = n > QN_HADAMARD_TILE;
    const size_t tiles = (n_values + QN_HADAMARD_TILE - 1) / QN_HADAMARD_TILE, blocks = n_values / n;
    if (tiles > INT32_MAX || (large && blocks > 65535)) /* limits of a grid */
        return qn_fail(QN_ERR_INVALID, "%zu values in blocks of %zu exceed the limits of one launch", n_values, n);
    *out = (qn_hadamard_gpu){
        .tiles = { .variant.source = &hadamard_source,
                   .function = "qn_hadamard_tiles",
                   .grid = { (uint32_t)tiles, 1, 1 },
                   .block = { QN_HADAMARD_THREADS, 1, 1 },
                   .args_bytes = sizeof out->tiles_args },
        .tiles_args = { .y = y,
                        .x = x,
                        .signs_before = signs_before,
                        .signs_after = large ? 0 : signs_after,
                        .n_values = n_values,
                        .n = (uint32_t)n,
                        .n_signs = (uint32_t)n_signs,
                        .scale = large ? 1 : qn_hadamard_scale(n) },
        .cross = { .variant.source = &hadamard_source,
                   .function = "qn_hadamard_cross",
                   .grid = { QN_HADAMARD_TILE / QN_HADAMARD_THREADS, (uint32_t)(large ? blocks : 1), 1 },
                   .block = { QN_HADAMARD_THREADS, 1, 1 },
                   .args_bytes = sizeof out->cross_args },
        .cross_args = { .y = y,
                        .signs_after = signs_after,
                        .n = (uint32_t)n,
                        .n_signs = (uint32_t)n_signs,
                        .scale = qn_hadamard_scale(n) },
        .has_cross = large,
    };
    return QN_OK;
}

qn_status qn_hadamard_gpu_rows(qn_hadamard_gpu *plan, size_t n_rows, size_t stride)
{
    if (n_rows == 0 || n_rows > UINT16_MAX || stride % 4)
        return qn_fail(QN_ERR_INVALID,
                       "Hadamard blocks: %zu rows that are %zu values apart, expected 1 to %d, and a multiple of 4",
                       n_rows, stride, UINT16_MAX);
    plan->tiles.grid[1] = plan->cross.grid[2] = (uint32_t)n_rows;
    plan->tiles_args.stride = plan->cross_args.stride = stride;
    return QN_OK;
}
