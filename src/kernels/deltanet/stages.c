/* The stages of the chunked delta rule on one chunk of one value head. */
#include "kernels/deltanet/stages.h"

#include "base/memory.h"

#include <string.h>

enum { CHUNK = QN_GDN_CHUNK, BLOCK = QN_GDN_UNIT };

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

qn_status qn_gdn_tiles_create(qn_gdn_tiles *tiles, size_t head_k, size_t head_v)
{
    const size_t keys = CHUNK * head_k, values = CHUNK * head_v, square = CHUNK * CHUNK, state = head_k * head_v;
    const struct tile_spec {
        float **tile;
        size_t count;
    } tile_specs[] = {
        { &tiles->q, keys },         { &tiles->k, keys },
        { &tiles->w, keys },         { &tiles->gated_k, keys },
        { &tiles->u, values },       { &tiles->v, values },
        { &tiles->v_new, values },   { &tiles->gated_v, values },
        { &tiles->o, values },       { &tiles->a, square },
        { &tiles->kk, square },      { &tiles->qk, square },
        { &tiles->inverse, square }, { &tiles->k_transposed, keys },
        { &tiles->state, state },    { &tiles->start, state },
        { &tiles->beta, CHUNK },
    };
    const size_t n_tile_specs = sizeof tile_specs / sizeof tile_specs[0],
                 sums = CHUNK * sizeof *tiles->gc / sizeof(float);
    size_t total = sums;
    *tiles = (qn_gdn_tiles){ 0 };
    for (size_t i = 0; i < n_tile_specs; i++)
        total += tile_specs[i].count;
    QN_TRY(qn_alloc(&tiles->memory, total, sizeof(float), "delta rule"));
    tiles->gc = (double *)(void *)tiles->memory;
    float *next = tiles->memory + sums;
    for (size_t i = 0; i < n_tile_specs; i++) {
        *tile_specs[i].tile = next;
        next += tile_specs[i].count;
    }
    return QN_OK;
}

void qn_gdn_tiles_free(qn_gdn_tiles *tiles)
{
    qn_free(tiles->memory);
    *tiles = (qn_gdn_tiles){ 0 };
}

void qn_gdn_transpose(float *to, size_t to_row, const float *from, size_t from_row, size_t rows, size_t columns)
{
    /* In blocks, so that the cache lines of both matrices stay in L1. */
    for (size_t r0 = 0; r0 < rows; r0 += BLOCK)
        for (size_t c0 = 0; c0 < columns; c0 += BLOCK)
            for (size_t c = c0; c < min_size(c0 + BLOCK, columns); c++)
                for (size_t r = r0; r < min_size(r0 + BLOCK, rows); r++)
                    to[c * to_row + r] = from[r * from_row + c];
}

void qn_gdn_tile_dots(const qn_gdn_stages *stages, const qn_gdn_tiles *tiles, float *dots, const float *x, size_t n)
{
    const size_t head_k = stages->head_k;
    for (size_t i = 0; i < n; i += BLOCK) {
        const size_t end = min_size(i + BLOCK, n);
        stages->kernels->gemm(dots + i * CHUNK, CHUNK, x + i * head_k, head_k, 1, tiles->k_transposed, CHUNK, end - i,
                              end, head_k, false, NULL);
    }
}

/* Computes a[i][j] = e^(gc_i - gc_j) dots[i][j] for j <= i; 0 for j > i. */
static void gated_dots(const qn_gdn_stages *stages, qn_gdn_tiles *tiles, const float *dots, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float *row = tiles->a + i * CHUNK;
        memcpy(row, dots + i * CHUNK, (i + 1) * sizeof *row);
        stages->kernels->gate(row, CHUNK, 1, tiles->gc[i], tiles->gc, i + 1);
        memset(row + i + 1, 0, (CHUNK - i - 1) * sizeof *row);
    }
}

static void round_tile(const qn_gdn_stages *stages, float *tile, size_t n)
{
    if (stages->dtype != QN_DTYPE_F32)
        stages->rows->round(tile, tile, stages->dtype, n);
}

/* Computes y = l x, or y += l x. l is lower triangular, with zeros from the diagonal to the end of the diagonal
 * blocks. */
static void trmm(const qn_gdn_stages *stages, float *y, const float *l, const float *x, size_t width, size_t n,
                 bool accumulate)
{
    for (size_t i = 0; i < n; i += BLOCK) {
        const size_t end = min_size(i + BLOCK, n);
        stages->kernels->gemm(y + i * width, width, l + i * CHUNK, CHUNK, 1, x, width, end - i, width, end, accumulate,
                              NULL);
    }
}

/* Computes y_i = e^(at - from_i) x_i for rows of `width` elements. */
static void gated_rows(const qn_gdn_stages *stages, float *y, const float *x, size_t width, double at,
                       const double *from, size_t n)
{
    float factors[CHUNK];
    for (size_t i = 0; i < n; i++)
        factors[i] = 1;
    stages->kernels->gate(factors, 0, 1, at, from, n);
    for (size_t i = 0; i < n; i++)
        stages->kernels->scale(y + i * width, x + i * width, factors[i], width);
}

/* Computes y_i = e^gc_i x_i. */
static void scale_rows_exp_gc(const qn_gdn_stages *stages, const qn_gdn_tiles *tiles, float *y, const float *x,
                              size_t width, size_t n)
{
    double neg_gc[CHUNK] = { 0 };
    for (size_t i = 0; i < n; i++)
        neg_gc[i] = -tiles->gc[i];
    gated_rows(stages, y, x, width, 0, neg_gc, n);
}

void qn_gdn_tile_kkt(const qn_gdn_stages *stages, qn_gdn_tiles *tiles, size_t n)
{
    gated_dots(stages, tiles, tiles->kk, n);
    for (size_t i = 0; i < n; i++) {
        stages->kernels->scale(tiles->a + i * CHUNK, tiles->a + i * CHUNK, tiles->beta[i], i);
        tiles->a[i * CHUNK + i] = 0;
    }
}

void qn_gdn_tile_inverse(const qn_gdn_stages *stages, qn_gdn_tiles *tiles, size_t n)
{
    float *inverse = tiles->inverse;
    memset(inverse, 0, n * CHUNK * sizeof *inverse);
    for (size_t begin = 0; begin < n; begin += BLOCK) {
        const size_t end = min_size(begin + BLOCK, n);
        stages->kernels->gemm(inverse + begin * CHUNK, CHUNK, tiles->a + begin * CHUNK, CHUNK, 1, inverse, CHUNK,
                              end - begin, begin, begin, false, NULL);
        for (size_t i = begin; i < end; i++) {
            float *row = inverse + i * CHUNK;
            stages->kernels->gemm(row, CHUNK, tiles->a + i * CHUNK + begin, CHUNK, 1, inverse + begin * CHUNK, CHUNK, 1,
                                  i, i - begin, true, NULL);
            stages->kernels->scale(row, row, -1, i);
            row[i] = 1;
        }
    }
}

void qn_gdn_tile_w_u(const qn_gdn_stages *stages, qn_gdn_tiles *tiles, size_t n)
{
    const size_t head_k = stages->head_k, head_v = stages->head_v;
    for (size_t i = 0; i < n; i++) {
        stages->kernels->scale(tiles->gated_k + i * head_k, tiles->k + i * head_k, tiles->beta[i], head_k);
        stages->kernels->scale(tiles->gated_v + i * head_v, tiles->v + i * head_v, tiles->beta[i], head_v);
    }
    scale_rows_exp_gc(stages, tiles, tiles->gated_k, tiles->gated_k, head_k, n);
    round_tile(stages, tiles->gated_k, n * head_k);
    round_tile(stages, tiles->gated_v, n * head_v);
    trmm(stages, tiles->w, tiles->inverse, tiles->gated_k, head_k, n, false);
    trmm(stages, tiles->u, tiles->inverse, tiles->gated_v, head_v, n, false);
    round_tile(stages, tiles->w, n * head_k);
    round_tile(stages, tiles->u, n * head_v);
}

void qn_gdn_tile_state(const qn_gdn_stages *stages, qn_gdn_tiles *tiles, size_t n)
{
    const size_t head_k = stages->head_k, head_v = stages->head_v;
    const double last = tiles->gc[n - 1], neg_gc = -last;
    stages->kernels->gemm(tiles->v_new, head_v, tiles->w, head_k, 1, tiles->state, head_v, n, head_v, head_k, false,
                          NULL);
    stages->kernels->delta(tiles->v_new, tiles->u, tiles->v_new, 1, n * head_v);
    gated_rows(stages, tiles->gated_v, tiles->v_new, head_v, last, tiles->gc, n);
    round_tile(stages, tiles->gated_v, n * head_v);
    round_tile(stages, tiles->v_new, n * head_v);
    gated_rows(stages, tiles->state, tiles->state, head_k * head_v, 0, &neg_gc, 1);
    stages->kernels->gemm(tiles->state, head_v, tiles->k, 1, head_k, tiles->gated_v, head_v, head_k, head_v, n, true,
                          NULL);
}

void qn_gdn_tile_output(const qn_gdn_stages *stages, qn_gdn_tiles *tiles, float scale, size_t n)
{
    const size_t head_k = stages->head_k, head_v = stages->head_v;
    gated_dots(stages, tiles, tiles->qk, n);
    for (size_t i = 0; i < n; i++)
        round_tile(stages, tiles->a + i * CHUNK, i + 1);
    stages->kernels->gemm(tiles->o, head_v, tiles->q, head_k, 1, tiles->start, head_v, n, head_v, head_k, false, NULL);
    scale_rows_exp_gc(stages, tiles, tiles->o, tiles->o, head_v, n);
    trmm(stages, tiles->o, tiles->a, tiles->v_new, head_v, n, true);
    stages->kernels->scale(tiles->o, tiles->o, scale, n * head_v);
}
