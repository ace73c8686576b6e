/* AURA in sixteen-lane vectors. Each instruction set's file includes this header after it has defined QUERY_GROUP, the
 * largest number of queries that share decoded codes (8 or 4), ACCUMULATORS and KEY_ACCUMULATORS, the number of
 * accumulators of values and of keys that fit its registers (multiples of QUERY_GROUP), and
 *
 *   tables                                    a codec's centroids, in registers as far as they fit
 *   tables_of(codec, bits)
 *   words                                     sixteen lanes of two centroids
 *   decode_step(unit, bits, j, tables, out)   codes 4j to 4j+3 of a unit, as words out[2]: (4j, 4j+1), (4j+2, 4j+3)
 *   words_dot(sum, words, pair)               sum + first * pair[0] + second * pair[1] in each lane
 *   store_i16(p, v16i)                        sixteen int32 as int16, saturated
 *
 * A group of queries processes keys up to the last one visible to any of them. Masked keys get a weight of 0. Codes of
 * later positions may be read as part of a vector, and have weight 0, too. */
#ifndef QN_KERNELS_AURA_AURA_SIMD_H
#define QN_KERNELS_AURA_AURA_SIMD_H

#include "kernels/aura/aura.h"
#include "kernels/vec16.h"

/* ---- Rows of floats ---- */

static float dot_simd(const float *a, const float *b, size_t n)
{
    v16 sum = v16_set1(0);
    for (size_t i = 0; i < n; i += QN_LANES)
        sum = v16_fma(v16_load(a + i), v16_load(b + i), sum);
    return v16_sum(sum);
}

static void gemv_simd(float *y, const float *matrix, const float *x, size_t n)
{
    for (size_t row = 0; row < n; row++)
        y[row] = dot_simd(matrix + row * n, x, n);
}

static void axpy_simd(float *y, float weight, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i += QN_LANES)
        v16_store(y + i, v16_fma(v16_set1(weight), v16_load(x + i), v16_load(y + i)));
}

/* ---- Blocks ---- */

#define KEY_TILES(n) (KEY_ACCUMULATORS / (n) < 2 ? KEY_ACCUMULATORS / (n) : 2) /* tiles per step */
#define PAGE_TILES ((size_t)QN_PAGE / QN_AURA_TILE)
#define UNIT_CODES(bits) ((bits) == 3 ? 32u : (bits) == 6 ? 16u : 32u / (bits))
#define UNIT_BYTES(bits) (2 * UNIT_CODES(bits) * (bits))

/* Prefetches a block's pages into L2, which has more outstanding misses than L1, while another block, or the other half
 * of the same block, is read. Prefetches are issued in steps: spread evenly, they do not delay the demand loads, as
 * bursts would. */
typedef struct prefetch_stream {
    const uint8_t *at, *end;                  /* of the current page */
    const uint8_t *const *page, *const *last; /* pages after it: [page, last) */
    size_t page_bytes, step;                  /* step: bytes to prefetch per unit read */
} prefetch_stream;

/* Returns a stream that prefetches a page of page_bytes per n_units units read. pages: NULL for nothing. */
static prefetch_stream prefetch_stream_of(const uint8_t *const *pages, size_t page_bytes, size_t n_units)
{
    return (prefetch_stream){ .page = pages,
                              .last = pages ? pages + QN_AURA_BLOCK_PAGES : NULL,
                              .page_bytes = page_bytes,
                              .step = n_units ? (page_bytes + n_units - 1) / n_units : 0 };
}

/* Called when the units of a page begin: moves to the stream's next page if the present one is prefetched. A page of
 * the stream ends only where the units of a page end. */
QN_INLINE void prefetch_page(prefetch_stream *a)
{
    if (a->at == a->end && a->page < a->last) {
        a->at = *a->page++;
        a->end = a->at ? a->at + a->page_bytes : NULL;
    }
}

QN_INLINE void prefetch(prefetch_stream *a)
{
    const uint8_t *until = a->end - a->at > (ptrdiff_t)a->step ? a->at + a->step : a->end;
    for (; a->at < until; a->at += 64)
        __builtin_prefetch(a->at, 0, 2);
}

/* Computes some steps of a unit, for `tiles` tiles of keys. n, tiles, bits and steps are constants at each call. */
QN_INLINE void unit_dots(const int16_t *queries, size_t n, const uint8_t *keys, size_t tiles, size_t dim, unsigned bits,
                         unsigned steps, tables t, v16i *sum)
{
    const size_t tile_bytes = 64 * ((dim * bits + 31) / 32);
    QN_UNROLLED
    for (unsigned j = 0; j < steps; j++) {
        QN_UNROLLED
        for (size_t tile = 0; tile < tiles; tile++) {
            words w[2];
            decode_step(keys + tile * tile_bytes, bits, j, t, w);
            QN_UNROLLED
            for (size_t q = 0; q < n; q++) {
                sum[tile * n + q] = words_dot(sum[tile * n + q], w[0], queries + q * dim + 4 * j);
                sum[tile * n + q] = words_dot(sum[tile * n + q], w[1], queries + q * dim + 4 * j + 2);
            }
        }
    }
}

/* Computes `tiles` tiles of keys. The n * tiles accumulators stay in registers; independent multiply-adds hide each
 * other's latency. */
QN_INLINE void tile_dots(const int16_t *queries, size_t n, const uint8_t *keys, size_t tiles, size_t dim, unsigned bits,
                         tables t, prefetch_stream *next, v16i *sum)
{
    size_t d = 0;
    QN_UNROLLED
    for (size_t i = 0; i < n * tiles; i++)
        sum[i] = v16i_set1(0);
    for (; d + UNIT_CODES(bits) <= dim; d += UNIT_CODES(bits), keys += UNIT_BYTES(bits)) {
        prefetch(next);
        unit_dots(queries + d, n, keys, tiles, dim, bits, UNIT_CODES(bits) / 4, t, sum);
    }
    if (bits == 3 && d < dim) /* half a unit */
        unit_dots(queries + d, n, keys, tiles, dim, bits, 4, t, sum);
}

QN_INLINE void tile_scores(const int16_t *queries, const float *query_scales, size_t n, const uint8_t *keys,
                           size_t tiles, const float *scales, size_t dim, unsigned bits, tables t,
                           prefetch_stream *next, float *scores)
{
    v16i sum[ACCUMULATORS];
    tile_dots(queries, n, keys, tiles, dim, bits, t, next, sum);
    QN_UNROLLED
    for (size_t tile = 0; tile < tiles; tile++) {
        const v16 scale = v16_load(scales + tile * QN_AURA_TILE);
        QN_UNROLLED
        for (size_t q = 0; q < n; q++) {
            const v16 score = v16_mul(v16i_to_float(sum[tile * n + q]), v16_set1(query_scales[q]));
            v16_store(scores + q * QN_AURA_BLOCK + tile * QN_AURA_TILE, v16_mul(score, scale));
        }
    }
}

QN_INLINE void group_scores(const int16_t *queries, const float *query_scales, size_t n, const qn_aura_block *block,
                            size_t n_keys, unsigned bits, prefetch_stream *next, float *scores)
{
    const size_t dim = block->key_codec->dim, tile_bytes = 64 * ((dim * bits + 31) / 32);
    const size_t tiles = KEY_TILES(n), n_tiles = (n_keys + QN_AURA_TILE - 1) / QN_AURA_TILE;
    const tables t = tables_of(block->key_codec, bits);
    for (size_t first = 0; first < n_tiles; first += PAGE_TILES) {
        const uint8_t *keys = block->keys[first / PAGE_TILES];
        const float *scales = (const float *)(const void *)(keys + PAGE_TILES * tile_bytes);
        const size_t end = n_tiles - first < PAGE_TILES ? n_tiles - first : PAGE_TILES;
        size_t i = 0;
        prefetch_page(next);
        for (; i + tiles <= end; i += tiles)
            tile_scores(queries, query_scales, n, keys + i * tile_bytes, tiles, scales + i * QN_AURA_TILE, dim, bits, t,
                        next, scores + (first + i) * QN_AURA_TILE);
        for (; i < end; i++)
            tile_scores(queries, query_scales, n, keys + i * tile_bytes, 1, scales + i * QN_AURA_TILE, dim, bits, t,
                        next, scores + (first + i) * QN_AURA_TILE);
    }
}

static float largest_of(const float *p, size_t n)
{
    float largest = p[0];
    size_t j = 0;
    for (; j + QN_LANES <= n; j += QN_LANES) {
        const float tile = v16_hmax(v16_load(p + j));
        largest = tile > largest ? tile : largest;
    }
    for (; j < n; j++)
        largest = p[j] > largest ? p[j] : largest;
    return largest;
}

/* Loads the scales of the values of sixteen positions from j on. */
QN_INLINE v16 value_scales(const qn_aura_block *block, size_t code_bytes, size_t j)
{
    const uint8_t *scales = block->values[j / QN_PAGE] + code_bytes;
    return v16_load((const float *)(const void *)scales + j % QN_PAGE);
}

/* Converts scores to int16 weights and returns their unit. Weights after the query's last visible key, up to the
 * group's last unit, are 0. */
static float softmax_row(float *p, const qn_aura_block *block, size_t visible, size_t n_keys, int16_t *weights_i16,
                         float *m, float *l)
{
    const size_t code_bytes = qn_aura_value_code_bytes(block->value_codec->dim, block->value_codec->bits);
    v16 partial = v16_set1(0), weights = v16_set1(0);
    const float largest_score = largest_of(p, visible);
    for (size_t j = 0; j < visible; j += QN_LANES) {
        v16 e = v16_exp(v16_add(v16_load(p + j), v16_set1(-largest_score)));
        v16 w = v16_mul(e, value_scales(block, code_bytes, j));
        if (visible - j < QN_LANES) {
            float lanes[QN_LANES];
            v16_store(lanes, e);
            e = v16_load_n(lanes, visible - j);
            v16_store(lanes, w);
            w = v16_load_n(lanes, visible - j);
        }
        v16_store(p + j, w);
        partial = v16_add(partial, e);
        weights = v16_add(weights, w);
    }
    *m = largest_score;
    *l = v16_sum(partial);
    const float largest_weight = largest_of(p, visible),
                by_largest = (largest_weight > 0 ? largest_weight : 0) / INT16_MAX;
    const float by_sum = v16_sum(weights) / QN_AURA_MAX_ABS_SUM,
                weight_scale = by_sum > by_largest ? by_sum : by_largest;
    const v16 inverse = v16_set1(weight_scale > QN_AURA_TINY ? 1 / weight_scale : 0);
    size_t j = 0;
    for (; j < visible; j += QN_LANES)
        store_i16(weights_i16 + j, v16_to_int(v16_mul(v16_load(p + j), inverse)));
    for (; j < n_keys; j++)
        weights_i16[j] = 0;
    return weight_scale;
}

/* Adds the values of one page, whose units are `stride` bytes apart, to the accumulators. A page is full units. */
QN_INLINE void page_values(const int16_t *weights_i16, size_t n, const uint8_t *values, size_t stride, size_t n_keys,
                           size_t width, unsigned bits, tables t, prefetch_stream *next, v16i *sum)
{
    const unsigned steps = UNIT_CODES(bits) / 4;
    prefetch_page(next);
    for (size_t at = 0; at < n_keys; at += UNIT_CODES(bits), values += stride) {
        prefetch(next);
        QN_UNROLLED
        for (size_t c = 0; c < width; c++)
            QN_UNROLLED
        for (unsigned j = 0; j < steps; j++) {
            words w[2];
            decode_step(values + c * UNIT_BYTES(bits), bits, j, t, w);
            QN_UNROLLED
            for (size_t q = 0; q < n; q++) {
                sum[c * n + q] = words_dot(sum[c * n + q], w[0], weights_i16 + q * QN_AURA_BLOCK + at + 4 * j);
                sum[c * n + q] = words_dot(sum[c * n + q], w[1], weights_i16 + q * QN_AURA_BLOCK + at + 4 * j + 2);
            }
        }
    }
}

/* Computes `width` columns of sixteen dimensions, from column `column` on. n, width and bits are constants at each
 * call. */
QN_INLINE void column_values(const int16_t *weights_i16, const float *weight_scales, size_t n,
                             const qn_aura_block *block, size_t n_keys, size_t column, size_t width, unsigned bits,
                             tables t, prefetch_stream *next, float *out)
{
    const size_t dim = block->value_codec->dim, stride = dim / QN_AURA_TILE * UNIT_BYTES(bits);
    v16i sum[ACCUMULATORS];
    QN_UNROLLED
    for (size_t i = 0; i < n * width; i++)
        sum[i] = v16i_set1(0);
    for (size_t first = 0; first < n_keys; first += QN_PAGE)
        page_values(weights_i16 + first, n, block->values[first / QN_PAGE] + column * UNIT_BYTES(bits), stride,
                    n_keys - first < QN_PAGE ? n_keys - first : QN_PAGE, width, bits, t, next, sum);
    QN_UNROLLED
    for (size_t c = 0; c < width; c++)
        QN_UNROLLED
    for (size_t q = 0; q < n; q++)
        v16_store(out + q * dim + (column + c) * QN_AURA_TILE,
                  v16_mul(v16i_to_float(sum[c * n + q]), v16_set1(weight_scales[q])));
}

QN_INLINE void group_values(const int16_t *weights_i16, const float *weight_scales, size_t n,
                            const qn_aura_block *block, size_t n_keys, unsigned bits, prefetch_stream *next, float *out)
{
    const size_t width = ACCUMULATORS / n, columns = block->value_codec->dim / QN_AURA_TILE;
    const tables t = tables_of(block->value_codec, bits);
    size_t c = 0;
    for (; c + width <= columns; c += width)
        column_values(weights_i16, weight_scales, n, block, n_keys, c, width, bits, t, next, out);
    for (; c < columns; c++)
        column_values(weights_i16, weight_scales, n, block, n_keys, c, 1, bits, t, next, out);
}

/* Arguments of the two passes over a block (keys, then values), each compiled per code width and number of queries. */
typedef struct group {
    const int16_t *queries;
    const float *query_scales;
    const qn_aura_block *block;
    size_t n_keys;
    prefetch_stream next;
    float *out;
    float *weight_scales, *scores; /* [QUERY_GROUP], [QUERY_GROUP][QN_AURA_BLOCK] */
    int16_t *weights_i16;          /* [QUERY_GROUP][QN_AURA_BLOCK] */
} group;

#define DEFINE_KEYS_AND_VALUES(n, bits)                                                                                \
    static void keys_##n##_##bits(group *g)                                                                            \
    {                                                                                                                  \
        group_scores(g->queries, g->query_scales, n, g->block, g->n_keys, bits, &g->next, g->scores);                  \
    }                                                                                                                  \
    static void values_##n##_##bits(group *g)                                                                          \
    {                                                                                                                  \
        group_values(g->weights_i16, g->weight_scales, n, g->block, g->n_keys, bits, &g->next, g->out);                \
    }
#define DEFINE_ALL_BITS(n)                                                                                             \
    DEFINE_KEYS_AND_VALUES(n, 2)                                                                                       \
    DEFINE_KEYS_AND_VALUES(n, 3) DEFINE_KEYS_AND_VALUES(n, 4) DEFINE_KEYS_AND_VALUES(n, 6) DEFINE_KEYS_AND_VALUES(n, 8)

DEFINE_ALL_BITS(1)
DEFINE_ALL_BITS(2)
DEFINE_ALL_BITS(4)
#if QUERY_GROUP >= 8
DEFINE_ALL_BITS(8)
#endif

#define OF_BITS(pass, n)                                                                                               \
    {                                                                                                                  \
        [2] = pass##_##n##_2, [3] = pass##_##n##_3, [4] = pass##_##n##_4, [6] = pass##_##n##_6, [8] = pass##_##n##_8   \
    }

static void (*const keys_of[QUERY_GROUP + 1][9])(group *g) = {
    [1] = OF_BITS(keys, 1),
    [2] = OF_BITS(keys, 2),
    [4] = OF_BITS(keys, 4),
#if QUERY_GROUP >= 8
    [8] = OF_BITS(keys, 8),
#endif
};
static void (*const values_of[QUERY_GROUP + 1][9])(group *g) = {
    [1] = OF_BITS(values, 1),
    [2] = OF_BITS(values, 2),
    [4] = OF_BITS(values, 4),
#if QUERY_GROUP >= 8
    [8] = OF_BITS(values, 8),
#endif
};

static void group_block(const int16_t *queries, const float *query_scales, size_t n, const qn_aura_block *block,
                        const uint16_t *visible, float *out, float *m, float *l)
{
    const size_t dim = block->key_codec->dim;
    const unsigned key_bits = block->key_codec->bits, value_bits = block->value_codec->bits;
    const size_t key_units = (dim + UNIT_CODES(key_bits) - 1) / UNIT_CODES(key_bits);
    const size_t width = ACCUMULATORS / n, columns = dim / QN_AURA_TILE, passes = columns / width + columns % width;
    float weight_scales[QUERY_GROUP], scores[QUERY_GROUP * QN_AURA_BLOCK];
    int16_t weights_i16[QUERY_GROUP * QN_AURA_BLOCK];
    group g = { queries, query_scales, block, 0, { 0 }, out, weight_scales, scores, weights_i16 };
    for (size_t q = 0; q < n; q++)
        g.n_keys = visible[q] > g.n_keys ? visible[q] : g.n_keys;
    const bool do_prefetch = block->next_keys[0];
    g.next = prefetch_stream_of(do_prefetch ? block->values : NULL, qn_aura_value_page_bytes(dim, value_bits),
                                PAGE_TILES / KEY_TILES(n) * key_units);
    keys_of[n][key_bits](&g);
    /* Rounded up to full units of values: 32 positions are full units at all code widths. */
    const size_t padded = (g.n_keys + 31) / 32 * 32;
    for (size_t q = 0; q < n; q++)
        g.weight_scales[q] = softmax_row(g.scores + q * QN_AURA_BLOCK, block, visible[q], padded,
                                         g.weights_i16 + q * QN_AURA_BLOCK, &m[q], &l[q]) *
                             block->value_codec->step;
    g.next = prefetch_stream_of(do_prefetch ? block->next_keys : NULL, qn_aura_key_page_bytes(dim, key_bits),
                                QN_PAGE / UNIT_CODES(value_bits) * passes);
    values_of[n][value_bits](&g);
}

/* Queries are processed in groups of eight, four, two or one adjacent queries with visible keys. */
static void block_simd(const int16_t *queries, const float *query_scales, size_t n_queries, const qn_aura_block *block,
                       const uint16_t *visible, float *out, float *m, float *l)
{
    const size_t dim = block->key_codec->dim;
    for (size_t q = 0, n; q < n_queries; q += n ? n : 1) {
        for (n = 0; n < QUERY_GROUP && q + n < n_queries && visible[q + n];)
            n++;
        n = n >= 8 ? 8 : n >= 4 ? 4 : n >= 2 ? 2 : n;
        if (n)
            group_block(queries + q * dim, query_scales + q, n, block, visible + q, out + q * dim, m + q, l + q);
    }
}

QN_INLINE void aura_init_simd(qn_aura_kernels *kernels)
{
    kernels->dot = dot_simd;
    kernels->gemv = gemv_simd;
    kernels->axpy = axpy_simd;
    kernels->block = block_simd;
}

#endif
