/* Attention over an fp16 KV cache in sixteen-lane vectors. Each instruction set's file includes this header after it
 * has defined QUERY_GROUP, the largest number of queries that share a load of keys and values (8 or 4), and
 * ACCUMULATORS, the number of vector accumulators that fit its registers (a multiple of QUERY_GROUP).
 *
 * A group of queries processes keys up to the last one visible to any of them. A masked key gets p = 0, which adds
 * nothing. Positions after the group's last visible key are never read as values, and are read as keys only within a
 * tile that contains a visible one. */
#ifndef QN_KERNELS_ATTENTION_ATTENTION_SIMD_H
#define QN_KERNELS_ATTENTION_ATTENTION_SIMD_H

#include "kernels/attention/attention.h"
#include "kernels/vec16.h"

#include <stdbool.h>

/* Clamps x to the range of fp16. NaN passes through: it is the second operand of each min and max. */
QN_INLINE v16 clamp_f16_range(v16 x)
{
    return v16_min(v16_set1(QN_F16_MAX), v16_max(v16_set1(-QN_F16_MAX), x));
}

static void store_simd(uint16_t *keys, uint16_t *values, size_t position, const float *key, const float *value,
                       size_t head_dim)
{
    uint16_t *tile = keys + position / QN_KEY_TILE * QN_KEY_TILE * head_dim + position % QN_KEY_TILE;
    v16 zeros = v16_set1(0); /* NaN if any value is */
    for (size_t d = 0; d < head_dim; d += QN_LANES) {
        uint16_t f16[QN_LANES];
        const v16 x = clamp_f16_range(v16_load(value + d));
        v16_store_f16(f16, clamp_f16_range(v16_load(key + d)));
        for (size_t i = 0; i < QN_LANES; i++)
            tile[(d + i) * QN_KEY_TILE] = f16[i];
        v16_store_f16(values + position * head_dim + d, x);
        zeros = v16_fma(x, v16_set1(0), zeros);
    }
    if (v16_sum(zeros) == 0)
        return;
    tile[0] = QN_F16_NAN;
    for (size_t d = 0; d < head_dim; d++)
        if (isnan(value[d]))
            values[position * head_dim + d] = 0;
}

/* Prefetches into L2, which has more outstanding misses than L1. */
QN_INLINE void prefetch_f16(const uint16_t *f16, size_t n)
{
    for (size_t i = 0; i < n; i += 32)
        __builtin_prefetch(f16 + i, 0, 2);
}

/* Computes the scores of `tiles` tiles of keys. n and tiles are constants at each call, so the n * tiles accumulators
 * stay in registers and independent multiply-adds hide each other's latency. For each line of keys read, one line of
 * to_prefetch[0] and one of to_prefetch[1] are prefetched: spread evenly, prefetches do not delay the demand loads, as
 * bursts would. NULL: no prefetch. */
QN_INLINE void tile_scores(const float *queries, size_t n, const uint16_t *keys, size_t tiles, size_t head_dim,
                           const uint16_t *const to_prefetch[2], float *scores)
{
    v16 sum[ACCUMULATORS];
#pragma GCC unroll 16
    for (size_t i = 0; i < n * tiles; i++)
        sum[i] = v16_set1(0);
    for (size_t d = 0; d < head_dim; d++) {
        v16 query[QUERY_GROUP];
        if (to_prefetch[0]) {
            prefetch_f16(to_prefetch[0] + d * tiles * QN_KEY_TILE, tiles * QN_KEY_TILE);
            prefetch_f16(to_prefetch[1] + d * tiles * QN_KEY_TILE, tiles * QN_KEY_TILE);
        }
#pragma GCC unroll 16
        for (size_t q = 0; q < n; q++)
            query[q] = v16_set1(queries[q * head_dim + d]);
#pragma GCC unroll 16
        for (size_t t = 0; t < tiles; t++) {
            const v16 k = v16_load_f16(keys + (t * head_dim + d) * QN_KEY_TILE);
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
QN_INLINE const uint16_t *tile_of(const uint16_t *const *pages, size_t t, size_t head_dim)
{
    const size_t page_tiles = QN_PAGE / QN_KEY_TILE;
    return pages[t / page_tiles] + t % page_tiles * QN_KEY_TILE * head_dim;
}

/* Computes the scores of a group. If there is a next block, prefetches the keys of the next step and the values of this
 * one. A page is a multiple of a step. */
QN_INLINE void group_scores(const float *queries, size_t n, const qn_attention_block *block, size_t n_keys,
                            size_t head_dim, float *scores)
{
    /* Tiles of 128 dimensions are 4 KiB apart and map to the same L1 set: more than four would evict each other. */
    const size_t tiles = ACCUMULATORS / n < 4 ? ACCUMULATORS / n : 4,
                 n_tiles = (n_keys + QN_KEY_TILE - 1) / QN_KEY_TILE;
    const uint16_t *const no_prefetch[2] = { NULL, NULL };
    size_t t = 0;
    for (; t + tiles <= n_tiles; t += tiles) {
        const size_t next = t + 2 * tiles <= n_tiles ? t + tiles : t;
        const uint16_t *const to_prefetch[2] = { tile_of(block->keys, next, head_dim),
                                                 tile_of(block->values, t, head_dim) };
        tile_scores(queries, n, tile_of(block->keys, t, head_dim), tiles, head_dim,
                    block->next_keys[0] ? to_prefetch : no_prefetch, scores + t * QN_KEY_TILE);
    }
    for (; t < n_tiles; t++)
        tile_scores(queries, n, tile_of(block->keys, t, head_dim), 1, head_dim, no_prefetch, scores + t * QN_KEY_TILE);
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
QN_INLINE void page_values(const float *p, size_t n, const uint16_t *values, size_t n_keys, const uint16_t *next_keys,
                           size_t width, size_t head_dim, v16 *sum)
{
    for (size_t j = 0; j < n_keys; j++) {
        v16 weight[QUERY_GROUP];
        if (next_keys)
            prefetch_f16(next_keys + j * head_dim, width * QN_LANES);
#pragma GCC unroll 16
        for (size_t q = 0; q < n; q++)
            weight[q] = v16_set1(p[q * QN_KEY_BLOCK + j]);
#pragma GCC unroll 16
        for (size_t i = 0; i < width; i++) {
            const v16 v = v16_load_f16(values + j * head_dim + i * QN_LANES);
#pragma GCC unroll 16
            for (size_t q = 0; q < n; q++)
                sum[i * n + q] = v16_fma(weight[q], v, sum[i * n + q]);
        }
    }
}

/* Computes `width` vectors of the output, from dimension d on. n and width are constants at each call, so the
 * accumulators stay in registers, as in tile_scores. */
QN_INLINE void vector_values(const float *p, size_t n, const qn_attention_block *block, size_t n_keys, size_t width,
                             size_t d, size_t head_dim, float *out)
{
    v16 sum[ACCUMULATORS];
#pragma GCC unroll 16
    for (size_t i = 0; i < n * width; i++)
        sum[i] = v16_set1(0);
    for (size_t first = 0; first < n_keys; first += QN_PAGE) {
        const uint16_t *next_keys = block->next_keys[first / QN_PAGE];
        page_values(p + first, n, block->values[first / QN_PAGE] + d,
                    n_keys - first < QN_PAGE ? n_keys - first : QN_PAGE, next_keys ? next_keys + d : NULL, width,
                    head_dim, sum);
    }
#pragma GCC unroll 16
    for (size_t i = 0; i < width; i++)
#pragma GCC unroll 16
        for (size_t q = 0; q < n; q++)
            v16_store(out + q * head_dim + d + i * QN_LANES, sum[i * n + q]);
}

QN_INLINE void group_values(const float *p, size_t n, const qn_attention_block *block, size_t n_keys, size_t head_dim,
                            float *out)
{
    const size_t width = ACCUMULATORS / n;
    size_t d = 0;
    for (; d + width * QN_LANES <= head_dim; d += width * QN_LANES)
        vector_values(p, n, block, n_keys, width, d, head_dim, out);
    for (; d < head_dim; d += QN_LANES)
        vector_values(p, n, block, n_keys, 1, d, head_dim, out);
}

/* The two passes over a block, for each group size: separate functions, so that all pointers stay in registers in their
 * loops. */
#define DEFINE_SCORES_AND_VALUES(n)                                                                                    \
    static void scores_##n(const float *queries, const qn_attention_block *block, size_t n_keys, size_t head_dim,      \
                           float *scores)                                                                              \
    {                                                                                                                  \
        group_scores(queries, n, block, n_keys, head_dim, scores);                                                     \
    }                                                                                                                  \
    static void values_##n(const float *p, const qn_attention_block *block, size_t n_keys, size_t head_dim,            \
                           float *out)                                                                                 \
    {                                                                                                                  \
        group_values(p, n, block, n_keys, head_dim, out);                                                              \
    }

DEFINE_SCORES_AND_VALUES(1)
DEFINE_SCORES_AND_VALUES(2)
DEFINE_SCORES_AND_VALUES(4)
#if QUERY_GROUP >= 8
DEFINE_SCORES_AND_VALUES(8)
#endif

typedef void group_pass(const float *from, const qn_attention_block *block, size_t n_keys, size_t head_dim, float *to);

static group_pass *const scores_of[QUERY_GROUP + 1] = {
    [1] = scores_1,
    [2] = scores_2,
    [4] = scores_4,
#if QUERY_GROUP >= 8
    [8] = scores_8,
#endif
};
static group_pass *const values_of[QUERY_GROUP + 1] = {
    [1] = values_1,
    [2] = values_2,
    [4] = values_4,
#if QUERY_GROUP >= 8
    [8] = values_8,
#endif
};

/* Queries are processed in groups of eight, four, two or one adjacent queries with visible keys. */
static void block_simd(const float *queries, size_t n_queries, const qn_attention_block *block, const uint16_t *visible,
                       size_t head_dim, float *out, float *m, float *l, float *scores)
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
        scores_of[n](queries + first * head_dim, block, n_keys, head_dim, scores);
        for (size_t q = 0; q < n; q++)
            softmax_row(scores + q * QN_KEY_BLOCK, visible[first + q], n_keys, &m[first + q], &l[first + q]);
        values_of[n](scores, block, n_keys, head_dim, out + first * head_dim);
    }
}

static void combine_simd(float *out, float *m, float *l, const float *block_out, float block_m, float block_l,
                         size_t head_dim)
{
    const float largest = block_m > *m ? block_m : *m;
    const float out_scale = qn_exp(*m - largest), block_scale = qn_exp(block_m - largest);
    for (size_t d = 0; d < head_dim; d += QN_LANES)
        v16_store(out + d, v16_fma(v16_load(block_out + d), v16_set1(block_scale),
                                   v16_mul(v16_load(out + d), v16_set1(out_scale))));
    *l = fmaf(block_l, block_scale, *l * out_scale);
    *m = largest;
}

static void normalize_simd(float *y, const float *x, float l, size_t head_dim)
{
    for (size_t d = 0; d < head_dim; d += QN_LANES)
        v16_store(y + d, v16_div(v16_load(x + d), v16_set1(l)));
}

QN_INLINE void attention_init_simd(qn_attention_kernels *kernels)
{
    *kernels = (qn_attention_kernels){
        .store = store_simd, .block = block_simd, .combine = combine_simd, .normalize = normalize_simd
    };
}

#endif
