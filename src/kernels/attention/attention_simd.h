/* Attention over a KV cache of fp16 or fp32 elements in sixteen-lane vectors. Each instruction set's file includes this
 * header after it has defined QUERY_GROUP, the largest number of queries that share a load of keys and values (8 or 4),
 * and ACCUMULATORS, the number of vector accumulators that fit its registers (a multiple of QUERY_GROUP). `is_f32`, the
 * type of the elements, is a constant in each function that has its own name in the tables.
 *
 * A group of queries processes keys up to the last one visible to any of them. A masked key gets p = 0, which adds
 * nothing. Positions after the group's last visible key are never read as values, and are read as keys only within a
 * tile that contains a visible one. */
#ifndef QN_KERNELS_ATTENTION_ATTENTION_SIMD_H
#define QN_KERNELS_ATTENTION_ATTENTION_SIMD_H

#include "base/fmaf.h"
#include "kernels/attention/attention.h"
#include "kernels/vec16.h"

#include <float.h>
#include <stdbool.h>

/* Clamps x to +-max. NaN passes through: it is the second operand of each min and max. */
QN_INLINE v16 clamp_range(v16 x, float max)
{
    return v16_min(v16_set1(max), v16_max(v16_set1(-max), x));
}

static void store_f16_simd(void *keys, void *values, size_t position, const float *key, const float *value,
                           size_t head_dim)
{
    uint16_t *tile = (uint16_t *)keys + position / QN_KEY_TILE * QN_KEY_TILE * head_dim + position % QN_KEY_TILE;
    uint16_t *to = (uint16_t *)values + position * head_dim;
    v16 zeros = v16_set1(0); /* NaN if any value is */
    for (size_t d = 0; d < head_dim; d += QN_LANES) {
        uint16_t f16[QN_LANES];
        const v16 x = clamp_range(v16_load(value + d), QN_F16_MAX);
        v16_store_f16(f16, clamp_range(v16_load(key + d), QN_F16_MAX));
        for (size_t i = 0; i < QN_LANES; i++)
            tile[(d + i) * QN_KEY_TILE] = f16[i];
        v16_store_f16(to + d, x);
        zeros = v16_fma(x, v16_set1(0), zeros);
    }
    if (v16_sum(zeros) == 0)
        return;
    tile[0] = QN_F16_NAN;
    for (size_t d = 0; d < head_dim; d++)
        if (isnan(value[d]))
            to[d] = 0;
}

static void store_f32_simd(void *keys, void *values, size_t position, const float *key, const float *value,
                           size_t head_dim)
{
    float *tile = (float *)keys + position / QN_KEY_TILE * QN_KEY_TILE * head_dim + position % QN_KEY_TILE;
    float *to = (float *)values + position * head_dim;
    v16 zeros = v16_set1(0); /* NaN if any value is */
    for (size_t d = 0; d < head_dim; d += QN_LANES) {
        float f32[QN_LANES];
        const v16 x = clamp_range(v16_load(value + d), FLT_MAX);
        v16_store(f32, clamp_range(v16_load(key + d), FLT_MAX));
        for (size_t i = 0; i < QN_LANES; i++)
            tile[(d + i) * QN_KEY_TILE] = f32[i];
        v16_store(to + d, x);
        zeros = v16_fma(x, v16_set1(0), zeros);
    }
    if (v16_sum(zeros) == 0)
        return;
    tile[0] = NAN;
    for (size_t d = 0; d < head_dim; d++)
        if (isnan(value[d]))
            to[d] = 0;
}

/* ---- Elements of a cache ---- */

QN_INLINE size_t element_bytes(bool is_f32)
{
    return is_f32 ? sizeof(float) : sizeof(uint16_t);
}

QN_INLINE const void *element_at(const void *elements, size_t i, bool is_f32)
{
    return (const uint8_t *)elements + i * element_bytes(is_f32);
}

QN_INLINE v16 load_elements(const void *elements, size_t i, bool is_f32)
{
    return is_f32 ? v16_load((const float *)elements + i) : v16_load_f16((const uint16_t *)elements + i);
}

/* Prefetches elements [i, i + n) into L2, which has more outstanding misses than L1. */
QN_INLINE void prefetch_elements(const void *elements, size_t i, size_t n, bool is_f32)
{
    const uint8_t *from = element_at(elements, i, is_f32);
    for (size_t at = 0; at < n * element_bytes(is_f32); at += 64)
        __builtin_prefetch(from + at, 0, 2);
}

/* Computes the scores of `tiles` tiles of keys. n and tiles are constants at each call, so the n * tiles accumulators
 * stay in registers and independent multiply-adds hide each other's latency. For each line of keys read, one line of
 * to_prefetch[0] and one of to_prefetch[1] are prefetched: spread evenly, prefetches do not delay the demand loads, as
 * bursts would. NULL: no prefetch. */
QN_INLINE void tile_scores(const float *queries, size_t n, const void *keys, bool is_f32, size_t tiles, size_t head_dim,
                           const void *const to_prefetch[2], float *scores)
{
    v16 sum[ACCUMULATORS];
#pragma GCC unroll 16
    for (size_t i = 0; i < n * tiles; i++)
        sum[i] = v16_set1(0);
    for (size_t d = 0; d < head_dim; d++) {
        v16 query[QUERY_GROUP];
        if (to_prefetch[0]) {
            prefetch_elements(to_prefetch[0], d * tiles * QN_KEY_TILE, tiles * QN_KEY_TILE, is_f32);
            prefetch_elements(to_prefetch[1], d * tiles * QN_KEY_TILE, tiles * QN_KEY_TILE, is_f32);
        }
#pragma GCC unroll 16
        for (size_t q = 0; q < n; q++)
            query[q] = v16_set1(queries[q * head_dim + d]);
#pragma GCC unroll 16
        for (size_t t = 0; t < tiles; t++) {
            const v16 k = load_elements(keys, (t * head_dim + d) * QN_KEY_TILE, is_f32);
#pragma GCC unroll 16
            for (size_t q = 0; q < n; q++)
                sum[t * n + q] = v16_fma(query[q], k, sum[t * n + q]);
        }
    }
#pragma GCC unroll 16
    for (size_t t = 0; t < tiles; t++)
#pragma GCC unroll 16
        for (size_t q = 0; q < n; q++)
            v16_store(scores + q * QN_KEY_BLOCK + t * QN_KEY_TILE, sum[t * n + q]);
}

/* Returns tile t of a block's keys. The values of the same positions have the same number of elements. */
QN_INLINE const void *tile_of(const void *const *pages, bool is_f32, size_t t, size_t head_dim)
{
    const size_t page_tiles = QN_PAGE / QN_KEY_TILE;
    return element_at(pages[t / page_tiles], t % page_tiles * QN_KEY_TILE * head_dim, is_f32);
}

/* Computes the scores of a group. If there is a next block, prefetches the keys of the next step and the values of this
 * one. A page is a multiple of a step. */
QN_INLINE void group_scores(const float *queries, size_t n, const qn_attention_block *block, bool is_f32, size_t n_keys,
                            size_t head_dim, float *scores)
{
    /* Tiles of 128 dimensions are 4 KiB apart and map to the same L1 set: more than four would evict each other. */
    const size_t tiles = ACCUMULATORS / n < 4 ? ACCUMULATORS / n : 4,
                 n_tiles = (n_keys + QN_KEY_TILE - 1) / QN_KEY_TILE;
    const void *const no_prefetch[2] = { NULL, NULL };
    size_t t = 0;
    for (; t + tiles <= n_tiles; t += tiles) {
        const size_t next = t + 2 * tiles <= n_tiles ? t + tiles : t;
        const void *const to_prefetch[2] = { tile_of(block->keys, is_f32, next, head_dim),
                                             tile_of(block->values, is_f32, t, head_dim) };
        tile_scores(queries, n, tile_of(block->keys, is_f32, t, head_dim), is_f32, tiles, head_dim,
                    block->next_keys[0] ? to_prefetch : no_prefetch, scores + t * QN_KEY_TILE);
    }
    for (; t < n_tiles; t++)
        tile_scores(queries, n, tile_of(block->keys, is_f32, t, head_dim), is_f32, 1, head_dim, no_prefetch,
                    scores + t * QN_KEY_TILE);
}

/* Converts scores to weights in place. Weights after the query's last visible key, up to the group's, are 0. */
QN_INLINE void softmax_row(float *p, size_t visible, size_t n_keys, float *m, float *l)
{
    float largest = p[0];
    for (size_t j = 0; j < visible; j += QN_LANES) {
        const size_t n = visible - j < QN_LANES ? visible - j : QN_LANES;
        if (n == QN_LANES) {
            const float tile = v16_hmax(v16_load(p + j));
            largest = tile > largest ? tile : largest;
        } else {
            for (size_t i = 0; i < n; i++)
                largest = p[j + i] > largest ? p[j + i] : largest;
        }
    }
    v16 partial = v16_set1(0);
    const v16 minus = v16_set1(-largest);
    for (size_t j = 0; j < visible; j += QN_LANES) {
        v16_store(p + j, v16_exp(v16_add(v16_load(p + j), minus)));
        if (visible - j < QN_LANES)
            for (size_t i = visible - j; i < QN_LANES; i++)
                p[j + i] = 0;
        partial = v16_add(partial, v16_load(p + j));
    }
    for (size_t j = (visible + QN_LANES - 1) / QN_LANES * QN_LANES; j < n_keys; j++)
        p[j] = 0;
    *m = largest;
    *l = v16_sum(partial);
}

/* Adds the values of one page to the accumulators. */
QN_INLINE void page_values(const float *p, size_t n, const void *values, bool is_f32, size_t n_keys,
                           const void *next_keys, size_t width, size_t head_dim, v16 *sum)
{
    for (size_t j = 0; j < n_keys; j++) {
        v16 weight[QUERY_GROUP];
        if (next_keys)
            prefetch_elements(next_keys, j * head_dim, width * QN_LANES, is_f32);
#pragma GCC unroll 16
        for (size_t q = 0; q < n; q++)
            weight[q] = v16_set1(p[q * QN_KEY_BLOCK + j]);
#pragma GCC unroll 16
        for (size_t i = 0; i < width; i++) {
            const v16 v = load_elements(values, j * head_dim + i * QN_LANES, is_f32);
#pragma GCC unroll 16
            for (size_t q = 0; q < n; q++)
                sum[i * n + q] = v16_fma(weight[q], v, sum[i * n + q]);
        }
    }
}

/* Computes `width` vectors of the output, from dimension d on. n and width are constants at each call, so the
 * accumulators stay in registers, as in tile_scores. */
QN_INLINE void vector_values(const float *p, size_t n, const qn_attention_block *block, bool is_f32, size_t n_keys,
                             size_t width, size_t d, size_t head_dim, float *out)
{
    v16 sum[ACCUMULATORS];
#pragma GCC unroll 16
    for (size_t i = 0; i < n * width; i++)
        sum[i] = v16_set1(0);
    for (size_t first = 0; first < n_keys; first += QN_PAGE) {
        const void *next_keys = block->next_keys[first / QN_PAGE];
        page_values(p + first, n, element_at(block->values[first / QN_PAGE], d, is_f32), is_f32,
                    n_keys - first < QN_PAGE ? n_keys - first : QN_PAGE,
                    next_keys ? element_at(next_keys, d, is_f32) : NULL, width, head_dim, sum);
    }
#pragma GCC unroll 16
    for (size_t i = 0; i < width; i++)
#pragma GCC unroll 16
        for (size_t q = 0; q < n; q++)
            v16_store(out + q * head_dim + d + i * QN_LANES, sum[i * n + q]);
}

QN_INLINE void group_values(const float *p, size_t n, const qn_attention_block *block, bool is_f32, size_t n_keys,
                            size_t head_dim, float *out)
{
    const size_t width = ACCUMULATORS / n;
    size_t d = 0;
    for (; d + width * QN_LANES <= head_dim; d += width * QN_LANES)
        vector_values(p, n, block, is_f32, n_keys, width, d, head_dim, out);
    for (; d < head_dim; d += QN_LANES)
        vector_values(p, n, block, is_f32, n_keys, 1, d, head_dim, out);
}

/* The two passes over a block, for each type of elements and group size: separate functions, so that all pointers stay
 * in registers in their loops. */
#define DEFINE_SCORES_AND_VALUES(type, is_f32, n)                                                                      \
    static void scores_##type##_##n(const float *queries, const qn_attention_block *block, size_t n_keys,              \
                                    size_t head_dim, float *scores)                                                    \
    {                                                                                                                  \
        group_scores(queries, n, block, is_f32, n_keys, head_dim, scores);                                             \
    }                                                                                                                  \
    static void values_##type##_##n(const float *p, const qn_attention_block *block, size_t n_keys, size_t head_dim,   \
                                    float *out)                                                                        \
    {                                                                                                                  \
        group_values(p, n, block, is_f32, n_keys, head_dim, out);                                                      \
    }

DEFINE_SCORES_AND_VALUES(f16, false, 1)
DEFINE_SCORES_AND_VALUES(f16, false, 2)
DEFINE_SCORES_AND_VALUES(f16, false, 4)
DEFINE_SCORES_AND_VALUES(f32, true, 1)
DEFINE_SCORES_AND_VALUES(f32, true, 2)
DEFINE_SCORES_AND_VALUES(f32, true, 4)
#if QUERY_GROUP >= 8
DEFINE_SCORES_AND_VALUES(f16, false, 8)
DEFINE_SCORES_AND_VALUES(f32, true, 8)
#endif

typedef void group_pass(const float *from, const qn_attention_block *block, size_t n_keys, size_t head_dim, float *to);

/* The passes for each number of queries in a group. */
struct group_passes {
    group_pass *scores[QUERY_GROUP + 1], *values[QUERY_GROUP + 1];
};

#if QUERY_GROUP >= 8
#define GROUP_PASSES(pass, type)                                                                                       \
    {                                                                                                                  \
        [1] = pass##_##type##_1, [2] = pass##_##type##_2, [4] = pass##_##type##_4, [8] = pass##_##type##_8             \
    }
#else
#define GROUP_PASSES(pass, type)                                                                                       \
    {                                                                                                                  \
        [1] = pass##_##type##_1, [2] = pass##_##type##_2, [4] = pass##_##type##_4                                      \
    }
#endif

static const struct group_passes passes_f16 = { GROUP_PASSES(scores, f16), GROUP_PASSES(values, f16) };
static const struct group_passes passes_f32 = { GROUP_PASSES(scores, f32), GROUP_PASSES(values, f32) };

/* Queries are processed in groups of eight, four, two or one adjacent queries with visible keys. */
QN_INLINE void block_simd(const struct group_passes *passes, const float *queries, size_t n_queries,
                          const qn_attention_block *block, const uint16_t *visible, size_t head_dim, float *out,
                          float *m, float *l, float *scores)
{
    for (size_t first = 0, n; first < n_queries; first += n ? n : 1) {
        size_t n_keys = 0;
        for (n = 0; n < QUERY_GROUP && first + n < n_queries && visible[first + n];)
            n++;
        n = n >= 8 ? 8 : n >= 4 ? 4 : n >= 2 ? 2 : n;
        if (!n)
            continue;
        for (size_t q = first; q < first + n; q++)
            n_keys = visible[q] > n_keys ? visible[q] : n_keys;
        passes->scores[n](queries + first * head_dim, block, n_keys, head_dim, scores);
        for (size_t q = 0; q < n; q++) {
            float *p = scores + q * QN_KEY_BLOCK;
            for (size_t j = 0; j < block->first; j++)
                p[j] = -INFINITY;
            softmax_row(p, visible[first + q], n_keys, &m[first + q], &l[first + q]);
            for (size_t j = 0; j < block->first; j++)
                p[j] = 0;
        }
        passes->values[n](scores, block, n_keys, head_dim, out + first * head_dim);
    }
}

static void block_f16_simd(const float *queries, size_t n_queries, const qn_attention_block *block,
                           const uint16_t *visible, size_t head_dim, float *out, float *m, float *l, float *scores)
{
    block_simd(&passes_f16, queries, n_queries, block, visible, head_dim, out, m, l, scores);
}

static void block_f32_simd(const float *queries, size_t n_queries, const qn_attention_block *block,
                           const uint16_t *visible, size_t head_dim, float *out, float *m, float *l, float *scores)
{
    block_simd(&passes_f32, queries, n_queries, block, visible, head_dim, out, m, l, scores);
}

static void combine_simd(float *out, float *m, float *l, const float *block_out, float block_m, float block_l,
                         size_t head_dim)
{
    const float largest = block_m > *m ? block_m : *m;
    const float out_scale = qn_exp(*m - largest), block_scale = qn_exp(block_m - largest);
    for (size_t d = 0; d < head_dim; d += QN_LANES)
        v16_store(out + d, v16_fma(v16_load(block_out + d), v16_set1(block_scale),
                                   v16_mul(v16_load(out + d), v16_set1(out_scale))));
    *l = qn_fmaf(block_l, block_scale, *l * out_scale);
    *m = largest;
}

static void normalize_simd(float *y, const float *x, float l, size_t head_dim)
{
    for (size_t d = 0; d < head_dim; d += QN_LANES)
        v16_store(y + d, v16_div(v16_load(x + d), v16_set1(l)));
}

QN_INLINE void attention_init_simd(qn_attention_kernels *kernels)
{
    *kernels = (qn_attention_kernels){ .f16 = { store_f16_simd, block_f16_simd },
                                       .f32 = { store_f32_simd, block_f32_simd },
                                       .combine = combine_simd,
                                       .normalize = normalize_simd };
}

#endif
