/* Attention layers in a chain on the GPU: from the norm to the output's product, at positions at the edges of tiles and splits,
 * each over a cache that has NaN from the position on. Keys, values and sums are held to float64 on the parts that the first
 * product has left, the last product to float64 on what attention has left. And the time that attention takes in a chain. */
#include "check/cuda_chain.h"

#include "base/half.h"
#include "base/memory.h"
#include "kernels/chain/chain_cuda.h"
#include "kernels/rope/rope.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Queries and weights are rounded to halves, 2^-11 at most each, mostly less than half of that, and they do not add up. */
#define ERROR_BOUND 2e-3
#define WORST_BOUND 8e-3 /* of one query, whose values may cancel */
/* Of keys and values, as for qn_rope_heads: float32 of values up to about 10, then a half. */
#define FLOAT_BOUND 2e-5
#define HALF_BOUND (0x1p-11 + FLOAT_BOUND)
#define LARGEST_HALF 65504.0
/* Columns are rounded to 15 or 16 bits of the largest of 128, which is three or four times their root mean square: by
 * 4 / 16383 / sqrt(12), 7e-5 of the norm. */
#define OUT_BOUND 2e-4

enum { MOST_DIM = 256, ROWS = 80, GIVEN_PARTS = 3, NAN_HALF = 0x7e00 };

static const float eps = 1e-6f;

struct shape {
    size_t dim, n_heads, n_kv_heads, n_rot, hidden;
    bool interleaved, norms, gated;
    bool given; /* parts that no product has left, with values beyond halves and NaN */
    uint32_t n_splits;
    size_t rows; /* of the product after it, where only time counts; 0: ROWS */
};

struct matrix {
    float *weights; /* as stored; NULL where nobody asked */
    qn_gpu_guarded tiles;
    qn_matmul_tiles how;
    size_t n_tiles;
};

struct problem {
    const struct shape *s;
    size_t query_stride, rows, out_rows, capacity;
    struct matrix in, out;
    float *query_weight, *key_weight, *cosines, *sines, *y;
    double *frequencies, *qkv; /* qkv: what the parts come to */
    uint16_t *keys, *values;   /* [kv heads][capacity][dim], what the cache holds */
    qn_gpu_guarded x, norm, x_out, squares, parts, gpu_query_weight, gpu_key_weight, gpu_cosines, gpu_sines, positions;
    qn_gpu_guarded gpu_keys, gpu_values, partials, maxima, out_parts, gpu_y, stages, meeting;
    qn_chain_product first, last;
    qn_chain_attention attention;
    qn_chain_args args;
    qn_launch launch;
};

static qn_gpu_guarded normal_on_gpu(size_t n, float scale)
{
    float *x = qn_floats_of(n, scale);
    const qn_gpu_guarded g = qn_gpu_floats(x, n);
    free(x);
    return g;
}

static struct matrix matrix_room(const qn_type_info *type, size_t n_rows, size_t n_cols)
{
    struct matrix m = { .how = qn_matmul_gpu_tiles(type), .n_tiles = qn_matmul_gpu_tile_count(n_rows) };
    size_t bytes;
    qn_must(qn_matmul_gpu_bytes(&m.how, m.n_tiles, n_cols, &bytes));
    m.tiles = qn_gpu_new(bytes);
    return m;
}

/* Weights that make ordinary numbers of ordinary activations. */
static struct matrix matrix_new(const qn_type_info *type, size_t n_rows, size_t n_cols)
{
    struct matrix m = matrix_room(type, n_rows, n_cols);
    size_t row_bytes;
    if (!qn_row_bytes(type, n_cols, &row_bytes))
        exit(1);
    m.weights = qn_floats_of(n_rows * n_cols, 1 / sqrtf((float)n_cols));
    uint8_t *stored = qn_room(n_rows, row_bytes);
    type->encode(m.weights, n_rows * n_cols / type->block_weights, stored);
    type->decode(stored, n_rows * n_cols / type->block_weights, m.weights);
    const qn_matmul_area area = { .tiles = m.how, .address = m.tiles.data, .n_tiles = m.n_tiles, .n_cols = n_cols };
    qn_gpu_pack_rows(&area, stored, row_bytes, n_rows, 0);
    free(stored);
    return m;
}

static void matrix_free(struct matrix *m)
{
    free(m->weights);
    qn_gpu_free(&m->tiles);
}

/* ---- A layer's stages ---- */

static void share(qn_chain_product *p, const struct matrix *m, size_t n_cols)
{
    const qn_chain_gpu gpu = qn_chain_device();
    p->n_cols = (uint32_t)n_cols;
    p->n_tiles = (uint32_t)m->n_tiles;
    p->n_chunks = (uint32_t)((n_cols + QN_TILE_COLS - 1) / QN_TILE_COLS);
    p->weights = m->tiles.data;
    qn_must(qn_chain_gpu_share(&gpu, &m->how, p));
}

static uint32_t splits_of(const struct shape *s)
{
    const qn_chain_gpu gpu = qn_chain_device();
    const uint32_t splits = qn_chain_gpu_splits(&gpu, s->dim, s->n_heads, s->n_kv_heads, s->n_rot);
    return s->n_splits && s->n_splits < splits ? s->n_splits : splits;
}

static void attention_new(struct problem *p)
{
    const struct shape *s = p->s;
    const size_t dim = s->dim, splits = splits_of(s), queries = s->n_heads * p->query_stride, row = s->n_kv_heads * dim;
    p->partials = qn_gpu_new(s->n_heads * splits * dim * sizeof(float));
    p->maxima = qn_gpu_new(s->n_heads * splits * 2 * sizeof(float));
    p->gpu_keys = qn_gpu_new(p->capacity * row * 2);
    p->gpu_values = qn_gpu_new(p->capacity * row * 2);
    p->attention = (qn_chain_attention){ .qkv = { .data = p->parts.data,
                                                  .squares = p->squares.data,
                                                  .n_parts = s->given ? GIVEN_PARTS : p->first.n_slices,
                                                  .stride = (uint32_t)p->rows,
                                                  .n_squares = s->given ? GIVEN_PARTS : p->first.n_slices,
                                                  .n_cols = (uint32_t)s->hidden,
                                                  .eps = eps },
                                         .k_row = (uint32_t)queries,
                                         .v_row = (uint32_t)(queries + row),
                                         .query_stride = (uint32_t)p->query_stride,
                                         .head_dim = (uint32_t)dim,
                                         .n_heads = (uint32_t)s->n_heads,
                                         .n_kv_heads = (uint32_t)s->n_kv_heads,
                                         .n_rot = (uint32_t)s->n_rot,
                                         .interleaved = s->interleaved,
                                         .n_splits = (uint32_t)splits,
                                         .query_weight = s->norms ? p->gpu_query_weight.data : 0,
                                         .key_weight = s->norms ? p->gpu_key_weight.data : 0,
                                         .cosines = p->gpu_cosines.data,
                                         .sines = p->gpu_sines.data,
                                         .cache = { .keys = p->gpu_keys.data,
                                                    .values = p->gpu_values.data,
                                                    .key_head = p->capacity * dim * 2,
                                                    .value_head = p->capacity * dim * 2 },
                                         .partials = p->partials.data,
                                         .maxima = p->maxima.data,
                                         .eps = eps,
                                         .scale = 1 / sqrtf((float)dim) };
}

/* Parts that are large, that no half holds, and that are not numbers; a factor that is not 1. */
static void give_parts(struct problem *p)
{
    const struct shape *s = p->s;
    float *parts = qn_floats_of(GIVEN_PARTS * p->rows, 1);
    const float squares[GIVEN_PARTS] = { 0.5f * (float)s->hidden, 0.25f * (float)s->hidden, 3.25f * (float)s->hidden };
    const size_t k = p->attention.k_row, v = p->attention.v_row;
    for (size_t i = 0; i < s->dim; i++)
        parts[i] *= 1e4f; /* the first query */
    parts[k + 1] = 3e5f;
    parts[v + 3] = -1e9f;
    if (s->n_kv_heads > 1)
        parts[v + s->dim + 5] = NAN; /* of the second head */
    qn_gpu_free(&p->parts);
    qn_gpu_free(&p->squares);
    p->parts = qn_gpu_floats(parts, GIVEN_PARTS * p->rows);
    p->squares = qn_gpu_floats(squares, GIVEN_PARTS);
    p->attention.qkv.data = p->parts.data;
    p->attention.qkv.squares = p->squares.data;
    free(parts);
}

static struct problem *problem_new(const struct shape *s, const qn_type_info *type, size_t capacity)
{
    struct problem *p = qn_room(1, sizeof *p);
    const qn_chain_gpu gpu = qn_chain_device();
    const size_t values = s->n_heads * s->dim;
    p->s = s;
    p->capacity = capacity;
    p->query_stride = s->gated ? 2 * s->dim : s->dim;
    p->rows = s->n_heads * p->query_stride + 2 * s->n_kv_heads * s->dim;
    p->out_rows = s->rows ? s->rows : ROWS;
    p->in = s->rows ? matrix_room(type, p->rows, s->hidden) : matrix_new(type, p->rows, s->hidden);
    p->out = s->rows ? matrix_room(type, p->out_rows, values) : matrix_new(type, p->out_rows, values);
    p->x = normal_on_gpu(s->hidden, 2);
    p->norm = normal_on_gpu(s->hidden, 1);
    p->x_out = qn_gpu_new(s->hidden * sizeof(float));
    p->query_weight = qn_floats_of(s->dim, 1);
    p->key_weight = qn_floats_of(s->dim, 1);
    p->gpu_query_weight = qn_gpu_floats(p->query_weight, s->dim);
    p->gpu_key_weight = qn_gpu_floats(p->key_weight, s->dim);
    p->cosines = qn_room(s->n_rot / 2, sizeof(float));
    p->sines = qn_room(s->n_rot / 2, sizeof(float));
    p->gpu_cosines = qn_gpu_new(s->n_rot / 2 * sizeof(float));
    p->gpu_sines = qn_gpu_new(s->n_rot / 2 * sizeof(float));
    p->positions = qn_gpu_new(sizeof(uint32_t));
    p->frequencies = qn_room(s->n_rot / 2, sizeof(double));
    qn_rope_frequencies(1e6, NULL, NULL, s->n_rot, p->frequencies);
    p->qkv = qn_room(p->rows, sizeof *p->qkv);
    p->y = qn_room(ROWS, sizeof *p->y);
    p->gpu_y = qn_gpu_new(ROWS * sizeof(float));
    p->first = (qn_chain_product){ .make = QN_CHAIN_NORM, .x = p->x.data, .x_out = p->x_out.data, .weight = p->norm.data };
    share(&p->first, &p->in, s->hidden);
    p->squares = qn_gpu_new(p->first.n_slices * sizeof(float));
    p->parts = qn_gpu_new(p->first.n_slices * p->rows * sizeof(float));
    p->first.squares = p->squares.data;
    p->first.out = p->parts.data;
    attention_new(p);
    if (s->given)
        give_parts(p);
    p->last = (qn_chain_product){ .make = QN_CHAIN_MERGED,
                                  .x = p->partials.data,
                                  .maxima = p->maxima.data,
                                  .from = p->attention.qkv,
                                  .head = (uint32_t)s->dim,
                                  .n_heads = (uint32_t)s->n_heads,
                                  .gated = s->gated,
                                  .n_splits = p->attention.n_splits };
    share(&p->last, &p->out, values);
    p->out_parts = qn_gpu_new((size_t)p->last.n_slices * p->out_rows * sizeof(float));
    p->last.out = p->out_parts.data;
    qn_chain_stage stages[4] = {
        { .kind = QN_CHAIN_PRODUCT, .next_product = 2, .u.product = p->first },
        { .kind = QN_CHAIN_ATTENTION, .next_product = 2, .u.attention = p->attention },
        { .kind = QN_CHAIN_PRODUCT, .next_product = 4, .u.product = p->last },
        { .kind = QN_CHAIN_STORE,
          .next_product = 4,
          .u.store = { .from = { .data = p->out_parts.data, .n_parts = p->last.n_slices, .stride = ROWS },
                       .n_outs = 1,
                       .outs = { { p->gpu_y.data, 0, 0, ROWS } } } },
    };
    const uint32_t n = s->given ? 3 : 4;
    for (uint32_t i = 0; s->given && i < 4; i++)
        stages[i].next_product--;
    p->stages = qn_gpu_from(stages + 4 - n, n * sizeof *stages);
    p->meeting = qn_gpu_from(&(uint32_t){ 0 }, sizeof(uint32_t));
    p->args =
        (qn_chain_args){ .stages = p->stages.data, .meeting = p->meeting.data, .positions = p->positions.data, .n_stages = n };
    qn_must(qn_chain_gpu_launch(&gpu, &p->in.how, &p->launch));
    const size_t cache = s->n_kv_heads * capacity * s->dim;
    p->keys = qn_room(cache, sizeof *p->keys);
    p->values = qn_room(cache, sizeof *p->values);
    for (size_t i = 0; i < cache; i++)
        p->keys[i] = p->values[i] = NAN_HALF;
    return p;
}

static void problem_free(struct problem *p)
{
    qn_gpu_guarded *const on_gpu[] = { &p->x,
                                       &p->norm,
                                       &p->x_out,
                                       &p->squares,
                                       &p->parts,
                                       &p->gpu_keys,
                                       &p->gpu_values,
                                       &p->partials,
                                       &p->maxima,
                                       &p->out_parts,
                                       &p->gpu_y,
                                       &p->gpu_cosines,
                                       &p->gpu_sines,
                                       &p->positions,
                                       &p->gpu_query_weight,
                                       &p->gpu_key_weight,
                                       &p->stages,
                                       &p->meeting };
    void *const all[] = {
        p->query_weight, p->key_weight, p->cosines, p->sines, p->y, p->frequencies, p->qkv, p->keys, p->values
    };
    for (size_t i = 0; i < sizeof on_gpu / sizeof *on_gpu; i++)
        qn_gpu_free(on_gpu[i]);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    matrix_free(&p->in);
    matrix_free(&p->out);
    free(p);
}

/* ---- In double ---- */

static void *read_all(const qn_gpu_guarded *g, size_t size)
{
    void *x = qn_room(g->bytes / size, size);
    qn_gpu_read(g, x);
    return x;
}

static void read_parts(struct problem *p)
{
    float *parts = read_all(&p->parts, sizeof(float)), *squares = read_all(&p->squares, sizeof(float));
    double sum = 0;
    for (size_t i = 0; i < p->attention.qkv.n_squares; i++)
        sum += (double)squares[i];
    const double factor = 1 / sqrt(sum / (double)p->s->hidden + (double)eps);
    for (size_t i = 0; i < p->rows; i++) {
        p->qkv[i] = 0;
        for (size_t k = 0; k < p->attention.qkv.n_parts; k++)
            p->qkv[i] += (double)parts[k * p->rows + i];
        p->qkv[i] *= factor;
    }
    free(parts);
    free(squares);
}

static void make_head(const struct problem *p, const double *from, const float *weight, double *x)
{
    const size_t dim = p->s->dim, half = p->s->n_rot / 2;
    double square = 0;
    for (size_t d = 0; d < dim; d++)
        square += from[d] * from[d];
    for (size_t d = 0; d < dim; d++)
        x[d] = p->s->norms ? from[d] * (double)weight[d] / sqrt(square / (double)dim + (double)eps) : from[d];
    for (size_t i = 0; i < half; i++) {
        const size_t a = p->s->interleaved ? 2 * i : i, b = p->s->interleaved ? 2 * i + 1 : i + half;
        const double cosine = (double)p->cosines[i], sine = (double)p->sines[i], first = x[a] * cosine - x[b] * sine;
        x[b] = x[a] * sine + x[b] * cosine;
        x[a] = first;
    }
}

static void expect_halves(const uint16_t *found, const double *expected, size_t n, bool is_nan, const char *what, size_t head)
{
    for (size_t d = 0; d < n; d++) {
        const double x = (double)qn_f16_to_f32(found[d]), in_range = fmin(fmax(expected[d], -LARGEST_HALF), LARGEST_HALF);
        const bool near = fabs(x - in_range) <= HALF_BOUND * fabs(in_range) + FLOAT_BOUND;
        qn_expect(is_nan ? x != x : near, "%s %zu of head %zu is %g, expected %g%s", what, d, head, x, in_range,
                  is_nan ? ", as NaN" : "");
    }
}

/* The row's own key and value are as they should be, and nothing else of the cache has changed; they are kept. */
static void check_cache(struct problem *p, uint32_t position)
{
    const struct shape *s = p->s;
    const size_t dim = s->dim;
    uint16_t *keys = read_all(&p->gpu_keys, 2), *values = read_all(&p->gpu_values, 2);
    double expected[MOST_DIM];
    for (size_t h = 0; h < s->n_kv_heads; h++) {
        const size_t at = (h * p->capacity + position) * dim;
        const double *v = p->qkv + p->attention.v_row + h * dim;
        bool bad = false;
        for (size_t d = 0; d < dim; d++)
            bad = bad || v[d] != v[d];
        make_head(p, p->qkv + p->attention.k_row + h * dim, p->key_weight, expected);
        expect_halves(keys + at, expected, dim, bad, "key", h);
        for (size_t d = 0; d < dim; d++)
            expected[d] = v[d] != v[d] ? 0 : v[d];
        expect_halves(values + at, expected, dim, false, "value", h);
        memcpy(p->keys + at, keys + at, dim * 2);
        memcpy(p->values + at, values + at, dim * 2);
    }
    qn_expect(!memcmp(keys, p->keys, p->gpu_keys.bytes) && !memcmp(values, p->values, p->gpu_values.bytes),
              "other positions of the cache have changed");
    qn_expect(qn_gpu_ok(&p->gpu_keys) && qn_gpu_ok(&p->gpu_values), "bytes around the cache were written");
    free(keys);
    free(values);
}

static void attend(const struct problem *p, uint32_t position, size_t head, double *out)
{
    const size_t dim = p->s->dim, kv = head / (p->s->n_heads / p->s->n_kv_heads);
    double query[MOST_DIM], m = -INFINITY, l = 0;
    make_head(p, p->qkv + head * p->query_stride, p->query_weight, query);
    for (size_t d = 0; d < dim; d++)
        out[d] = 0;
    for (size_t t = 0; t <= position; t++) {
        const uint16_t *key = p->keys + (kv * p->capacity + t) * dim, *value = p->values + (kv * p->capacity + t) * dim;
        double score = 0;
        for (size_t d = 0; d < dim; d++)
            score += query[d] * (double)qn_f16_to_f32(key[d]);
        score *= (double)p->attention.scale;
        const double raised = score > m ? score : m, old = exp(m - raised), weight = exp(score - raised);
        m = raised;
        l = l * old + weight;
        for (size_t d = 0; d < dim; d++)
            out[d] = out[d] * old + weight * (double)qn_f16_to_f32(value[d]);
    }
    for (size_t d = 0; d < dim; d++)
        out[d] /= l;
}

/* What a head's parts on the GPU come to; a split that left nothing has its poison still. */
static void merge(const struct problem *p, const float *partials, const float *maxima, size_t head, double *out)
{
    static const uint32_t poison[2] = { UINT32_MAX, UINT32_MAX };
    const size_t dim = p->s->dim, n = p->attention.n_splits;
    double m = -INFINITY, l = 0;
    size_t n_left = 0;
    for (size_t d = 0; d < dim; d++)
        out[d] = 0;
    while (n_left < n && memcmp(maxima + (head * n + n_left) * 2, poison, sizeof poison))
        n_left++;
    for (size_t i = 0; i < n_left; i++)
        m = fmax(m, (double)maxima[(head * n + i) * 2]);
    for (size_t i = 0; i < n_left; i++) {
        const double factor = exp2((double)maxima[(head * n + i) * 2] - m);
        l += factor * (double)maxima[(head * n + i) * 2 + 1];
        for (size_t d = 0; d < dim; d++)
            out[d] += factor * (double)partials[(head * n + i) * dim + d];
    }
    for (size_t d = 0; d < dim; d++)
        out[d] /= l;
}

static void check_out(const struct problem *p, const double *columns)
{
    const size_t n = p->s->n_heads * p->s->dim;
    float *y = read_all(&p->gpu_y, sizeof(float));
    double error = 0, norm = 0;
    for (size_t r = 0; r < ROWS; r++) {
        double sum = 0;
        for (size_t k = 0; k < n; k++)
            sum += (double)p->out.weights[r * n + k] * columns[k];
        error += ((double)y[r] - sum) * ((double)y[r] - sum);
        norm += sum * sum;
    }
    qn_expect(sqrt(error / norm) <= OUT_BOUND, "the last product is %.2e away, more than %.0e", sqrt(error / norm), OUT_BOUND);
    qn_expect(qn_gpu_ok(&p->gpu_y) && qn_gpu_ok(&p->out_parts), "bytes around the last product were written");
    free(y);
}

/* Heads whose cache has a NaN are NaN; `finite`: there are none. */
static void check_heads(const struct problem *p, uint32_t position, bool *finite)
{
    const struct shape *s = p->s;
    const size_t dim = s->dim;
    float *partials = read_all(&p->partials, sizeof(float)), *maxima = read_all(&p->maxima, sizeof(float));
    double *columns = qn_room(s->n_heads * dim, sizeof *columns), exact[MOST_DIM];
    double error = 0, square = 0, worst = 0;
    *finite = true;
    for (size_t h = 0; h < s->n_heads; h++) {
        double *found = columns + h * dim, of_head = 0, size = 0;
        attend(p, position, h, exact);
        merge(p, partials, maxima, h, found);
        if (exact[0] != exact[0]) {
            *finite = false;
            qn_expect(found[0] != found[0], "head %zu is %g, expected NaN", h, found[0]);
            continue;
        }
        for (size_t d = 0; d < dim; d++) {
            of_head += (found[d] - exact[d]) * (found[d] - exact[d]);
            size += exact[d] * exact[d];
            const double gate = s->gated ? p->qkv[h * 2 * dim + dim + d] : INFINITY;
            found[d] /= 1 + exp(-gate);
        }
        error += of_head;
        square += size;
        worst = sqrt(of_head / size) <= worst ? worst : sqrt(of_head / size);
    }
    qn_expect(square == 0 || sqrt(error / square) <= ERROR_BOUND, "position %u: error %.2e, expected up to %.0e", position,
              sqrt(error / square), ERROR_BOUND);
    qn_expect(worst <= WORST_BOUND, "position %u: error of a head %.2e, expected up to %.0e", position, worst, WORST_BOUND);
    qn_expect(qn_gpu_ok(&p->partials) && qn_gpu_ok(&p->maxima), "bytes around the parts were written");
    if (*finite)
        check_out(p, columns);
    free(partials);
    free(maxima);
    free(columns);
}

static void fill_cache(struct problem *p, uint32_t position)
{
    const struct shape *s = p->s;
    for (size_t h = 0; h < s->n_kv_heads; h++)
        for (size_t i = 0; i < position * s->dim; i++) {
            const size_t at = h * p->capacity * s->dim + i;
            if (p->keys[at] == NAN_HALF) {
                p->keys[at] = qn_f32_to_f16(qn_random_normal());
                p->values[at] = qn_f32_to_f16(qn_random_normal());
            }
        }
    qn_must(qn_cuda_upload(qn_gpu(), p->gpu_keys.data, p->keys, p->gpu_keys.bytes, NULL, NULL));
    qn_must(qn_cuda_upload(qn_gpu(), p->gpu_values.data, p->values, p->gpu_values.bytes, NULL, NULL));
}

static void set_position(struct problem *p, uint32_t position)
{
    const size_t bytes = p->s->n_rot / 2 * sizeof(float);
    qn_rope_angles(position, p->frequencies, 1, p->s->n_rot, p->cosines, p->sines);
    qn_gpu_wait();
    qn_must(qn_cuda_upload(qn_gpu(), p->positions.data, &position, sizeof position, NULL, NULL));
    qn_must(qn_cuda_upload(qn_gpu(), p->gpu_cosines.data, p->cosines, bytes, NULL, NULL));
    qn_must(qn_cuda_upload(qn_gpu(), p->gpu_sines.data, p->sines, bytes, NULL, NULL));
}

static void run_layer(struct problem *p)
{
    qn_gpu_poison(&p->partials);
    qn_gpu_poison(&p->maxima);
    qn_gpu_poison(&p->gpu_y);
    qn_gpu_launch(&p->launch, &p->args);
    qn_gpu_wait();
}

static const qn_type_info *type_for(const struct shape *s)
{
    return qn_type_find(s->n_heads * s->dim % 128 ? QN_TYPE_Q2_0 : QN_TYPE_Q1_0);
}

static void check_shape(const struct shape *s)
{
    static const uint32_t positions[] = { 0, 1, 15, 16, 17, 63, 64, 100, 127, 128, 255, 256, 700, 1000, 1039 };
    const qn_type_info *type = type_for(s);
    qn_random_seed(s->dim * 100 + s->n_heads);
    qn_case_begin("chain-attention", "cuda", "%zu heads of %zu over %zu, %zu turned%s%s%s%s, %u splits", s->n_heads, s->dim,
                  s->n_kv_heads, s->n_rot, s->interleaved ? ", interleaved" : "", s->norms ? ", norms" : "",
                  s->gated ? ", gated" : "", s->given ? ", parts given" : "", splits_of(s));
    struct problem *p = problem_new(s, type, 1040);
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
        bool finite;
        fill_cache(p, positions[i]);
        set_position(p, positions[i]);
        run_layer(p);
        read_parts(p);
        check_cache(p, positions[i]);
        check_heads(p, positions[i], &finite);
        float *before = read_all(&p->gpu_y, sizeof(float));
        run_layer(p);
        float *again = read_all(&p->gpu_y, sizeof(float));
        qn_expect(!memcmp(before, again, ROWS * sizeof(float)), "position %u: two runs differ", positions[i]);
        free(before);
        free(again);
    }
    problem_free(p);
}

/* ---- Speed ---- */

enum { LAYERS = 8 };

/* The attention layers of a model, as far as they are not feed-forward. */
struct model {
    const char *name;
    struct shape shape;
};

struct timed {
    qn_launch launch;
    qn_chain_args args;
};

static void one_turn(void *context, size_t turn)
{
    const struct timed *t = context;
    (void)turn;
    qn_gpu_launch(&t->launch, &t->args);
}

/* Bits of which halves and floats are finite numbers. */
static qn_gpu_guarded noise(size_t bytes)
{
    enum { PIECE = 4 << 20 };
    const qn_gpu_guarded g = qn_gpu_new(bytes);
    uint8_t *piece = qn_room(PIECE, 1);
    for (size_t i = 0; i < PIECE; i++)
        piece[i] = (uint8_t)(qn_random() & 0xbf);
    qn_gpu_wait();
    for (size_t at = 0; at < bytes; at += PIECE)
        qn_must(qn_cuda_upload(qn_gpu(), g.data + at, piece, bytes - at < PIECE ? bytes - at : PIECE, NULL, NULL));
    free(piece);
    return g;
}

/* Time of a layer's two products with attention between them, or without. */
static double layer_seconds(struct problem *p, const qn_gpu_guarded areas[2], const qn_gpu_guarded *cache, bool with)
{
    qn_chain_stage stages[3 * LAYERS] = { 0 };
    const size_t of_cache = cache->bytes / (2 * LAYERS);
    uint32_t n = 0;
    for (uint32_t l = 0; l < LAYERS; l++) {
        p->first.weights = areas[0].data + areas[0].bytes / LAYERS * l;
        p->last.weights = areas[1].data + areas[1].bytes / LAYERS * l;
        p->attention.cache.keys = cache->data + 2 * l * of_cache;
        p->attention.cache.values = p->attention.cache.keys + of_cache;
        stages[n++] = (qn_chain_stage){ .kind = QN_CHAIN_PRODUCT, .u.product = p->first };
        if (with)
            stages[n++] = (qn_chain_stage){ .kind = QN_CHAIN_ATTENTION, .u.attention = p->attention };
        stages[n++] = (qn_chain_stage){ .kind = QN_CHAIN_PRODUCT, .u.product = p->last };
        if (!with) {
            stages[n - 1].u.product.make = QN_CHAIN_PLAIN;
            stages[n - 1].u.product.from = (qn_chain_parts){ 0 };
        }
    }
    for (uint32_t i = n, next = n; i-- > 0; next = stages[i].kind == QN_CHAIN_PRODUCT ? i : next)
        stages[i].next_product = next;
    qn_gpu_guarded array = qn_gpu_from(stages, n * sizeof *stages);
    struct timed t = { .launch = p->launch, .args = p->args };
    t.args.stages = array.data;
    t.args.n_stages = n;
    const double seconds = qn_gpu_seconds(one_turn, &t, 4) / LAYERS;
    qn_gpu_free(&array);
    return seconds;
}

static void bench_model(const struct model *m)
{
    static const uint32_t depths[] = { 0, 128, 1024, 4096, 32768 };
    const struct shape *s = &m->shape;
    qn_random_seed(1);
    struct problem *p = problem_new(s, type_for(s), 16);
    const qn_gpu_guarded areas[2] = { noise(p->in.tiles.bytes * LAYERS), noise(p->out.tiles.bytes * LAYERS) };
    qn_gpu_guarded partials = noise(p->partials.bytes); /* what is plain columns without attention */
    p->attention.partials = p->last.x = partials.data;
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++) {
        const size_t capacity = (depths[i] + 16) / 16 * 16, row = s->n_kv_heads * s->dim * 2;
        qn_gpu_guarded cache = noise(2 * LAYERS * capacity * row);
        char text[96];
        p->attention.cache.key_head = p->attention.cache.value_head = capacity * s->dim * 2;
        set_position(p, depths[i]);
        const double with = layer_seconds(p, areas, &cache, true), without = layer_seconds(p, areas, &cache, false);
        snprintf(text, sizeof text, "%s at %u, layer %.2f us without", m->name, depths[i], without * 1e6);
        qn_report_rate("chain-attention", "f16", text, with - without, 2 * (double)(row * depths[i]) / (with - without), "B",
                       qn_gpu_read_rate());
        qn_gpu_free(&cache);
    }
    for (size_t i = 0; i < 2; i++)
        qn_gpu_free(&(qn_gpu_guarded){ .block = areas[i].block });
    qn_gpu_free(&partials);
    problem_free(p);
}

static void bench_all(void)
{
    static const struct model models[] = {
        { "27B",
          { .dim = 256,
            .n_heads = 24,
            .n_kv_heads = 4,
            .n_rot = 64,
            .hidden = 5120,
            .norms = true,
            .gated = true,
            .rows = 5120 } },
        { "8B", { .dim = 128, .n_heads = 32, .n_kv_heads = 8, .n_rot = 128, .hidden = 4096, .norms = true, .rows = 4096 } },
        { "1.7B", { .dim = 128, .n_heads = 16, .n_kv_heads = 8, .n_rot = 128, .hidden = 2048, .norms = true, .rows = 2048 } },
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        bench_model(&models[i]);
}

void qn_check_cuda_chain_attention(bool bench)
{
    static const struct shape shapes[] = {
        { .dim = 256, .n_heads = 24, .n_kv_heads = 4, .n_rot = 64, .hidden = 1024, .norms = true, .gated = true },
        { .dim = 128, .n_heads = 32, .n_kv_heads = 8, .n_rot = 128, .hidden = 512, .norms = true },
        { .dim = 64, .n_heads = 9, .n_kv_heads = 3, .n_rot = 64, .hidden = 576, .interleaved = true },
        { .dim = 128, .n_heads = 4, .n_kv_heads = 2, .n_rot = 32, .hidden = 512, .norms = true, .gated = true },
        { .dim = 128, .n_heads = 16, .n_kv_heads = 8, .n_rot = 128, .hidden = 256, .norms = true, .given = true },
        { .dim = 256, .n_heads = 8, .n_kv_heads = 1, .n_rot = 256, .hidden = 256, .interleaved = true, .n_splits = 4 },
        { .dim = 128, .n_heads = 6, .n_kv_heads = 1, .n_rot = 8, .hidden = 256, .norms = true, .n_splits = 1 },
        { .dim = 64, .n_heads = 7, .n_kv_heads = 1, .n_rot = 24, .hidden = 256, .n_splits = 2, .norms = true },
        { .dim = 64, .n_heads = 2, .n_kv_heads = 2, .n_rot = 64, .hidden = 256, .gated = true },
        { .dim = 256, .n_heads = 6, .n_kv_heads = 2, .n_rot = 16, .hidden = 512, .given = true, .gated = true },
        { .dim = 64, .n_heads = 10, .n_kv_heads = 2, .n_rot = 32, .hidden = 256, .given = true, .interleaved = true },
    };
    if (!qn_chain_runs())
        return;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_shape(&shapes[i]);
    if (bench)
        bench_all();
}
