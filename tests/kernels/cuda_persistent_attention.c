/* Attention layers in the persistent decode kernel, from the RMS norm to the output's GEMV, at positions at the edges
 * of tiles and splits, over a cache, contiguous or in pages, that contains NaN from the position on; and over a
 * session's cache of AURA codes, whose fp16 pages but for the first and the open one, and whose codes from the open
 * page on, are NaN. Stored keys and values and the attention output are compared with float64 on the partials of the
 * qkv GEMV, the last GEMV with float64 on the attention partials. Benchmark: time of the attention phase. */
#include "cuda_codec.h"
#include "cuda_paged_arrays.h"
#include "cuda_persistent.h"

#include "base/f16.h"
#include "gpu/format.h"
#include "kernels/rope/rope.h"

/* Queries and softmax weights are rounded to fp16: 2^-11 at most each, mostly less than half of that, with independent
 * signs. */
#define ERROR_BOUND 2e-3
#define WORST_BOUND 8e-3 /* of one head, whose values may cancel */
/* Of stored keys and values, as for qn_rope_qk_norm_store: float32 of values up to about 10, then fp16. */
#define FLOAT_BOUND 2e-5
#define F16_BOUND (0x1p-11 + FLOAT_BOUND)
#define F16_MAX 65504.0
/* Activations are rounded to 15 or 16 bits of the amax of 128, which is three or four times their root mean square: an
 * error of 4 / 16383 / sqrt(12), 7e-5 of the norm. */
#define OUT_BOUND 2e-4

enum { MAX_DIM = 256, ROWS = 80, SYNTHETIC_PARTIALS = 3, F16_NAN = 0x7e00 };

struct shape {
    size_t dim, n_heads, n_kv_heads, n_rot, hidden;
    bool interleaved, norms, gated, biases;
    bool synthetic; /* partials from make_synthetic_partials instead of a GEMV */
    uint32_t n_splits;
    size_t rows;                   /* of the last GEMV, for benchmarks; 0: ROWS */
    unsigned key_bits, value_bits; /* of AURA codes; 0: fp16 */
};

struct problem {
    const struct shape *s;
    size_t query_stride, rows, capacity;
    struct gpu_weights in, out;
    float *out_weights; /* dequantised; NULL in benchmarks */
    float *biases;      /* [n_heads + 2 * n_kv_heads][dim]: of queries, keys and values */
    float *query_weight, *key_weight, *cosines, *sines;
    double *frequencies, *qkv; /* qkv: sums of the partials, and biases */
    uint16_t *keys, *values;   /* [kv heads][capacity][dim], expected contents of the cache; of codes: of fp16 pages */
    qn_aura_codec *codecs[2];
    uint32_t *codes[2]; /* of keys and values, [kv heads][capacity][words] */
    float *scales[2];   /* [kv heads][capacity] */
    float *means;       /* [kv heads][dim] */
    qn_paged_arrays code_pages;
    uint64_t positions, gpu_y;
    qn_paged_arrays pages; /* of keys and values, if paged */
    bool paged;
    qn_persistent_gemv first, last;
    qn_persistent_attention attention;
    qn_persistent_args args;
    qn_launch launch;
};

/* ---- A layer's phases ---- */

static void set_weights(qn_persistent_gemv *p, const struct gpu_weights *w)
{
    qn_persistent_set(p, &w->matrix.tiles, w->matrix.address, w->matrix.n_tiles, w->n_cols, 1);
}

static uint32_t splits_of(const struct shape *s)
{
    const qn_persistent_gpu gpu = qn_persistent_device();
    const uint32_t splits = qn_persistent_gpu_splits(&gpu, s->dim, s->n_heads, s->n_kv_heads, s->n_rot);
    return s->n_splits && s->n_splits < splits ? s->n_splits : splits;
}

/* A session's cache of codes: contents of all positions, of which upload_codes makes those there that a row at a
 * position has. */
static void codes_new(struct problem *p)
{
    const struct shape *s = p->s;
    const size_t dim = s->dim, rows = s->n_kv_heads * p->capacity;
    const unsigned bits[2] = { s->key_bits, s->value_bits };
    size_t code_bytes[QN_PAGED_ARRAYS];
    for (size_t i = 0; i < 2; i++) {
        code_bytes[i] = qn_gpu_row_bytes(dim, bits[i]);
        code_bytes[2 + i] = sizeof(float);
        p->codecs[i] = qn_codec(dim, bits[i], 1 + i);
        p->codes[i] = qn_new(rows, code_bytes[i]);
        p->scales[i] = qn_floats(rows);
        for (size_t k = 0; k < rows * code_bytes[i] / 4; k++)
            p->codes[i][k] = (uint32_t)(qn_random() >> 16);
        for (size_t k = 0; k < rows; k++)
            p->scales[i][k] = sqrtf((float)dim) * (0.3f + 1.4f * (float)qn_random_below(1000) / 1000);
    }
    p->means = qn_floats_of(s->n_kv_heads * dim, 1);
    const size_t f16_bytes[QN_PAGED_ARRAYS] = { dim * 2, dim * 2, dim * sizeof(float) / QN_PAGE };
    qn_paged_new(&p->code_pages, 1, p->capacity / QN_PAGE, s->n_kv_heads, code_bytes);
    qn_paged_new(&p->pages, 1, p->capacity / QN_PAGE, s->n_kv_heads, f16_bytes);
    p->attention.cache = (qn_persistent_cache){ .keys = p->code_pages.offsets[0],
                                                .values = p->code_pages.offsets[1],
                                                .key_scales = p->code_pages.offsets[2],
                                                .value_scales = p->code_pages.offsets[3],
                                                .key_head_stride = QN_PAGE * code_bytes[0],
                                                .value_head_stride = QN_PAGE * code_bytes[1],
                                                .scale_head_stride = QN_PAGE * sizeof(float),
                                                .tables = p->code_pages.tables };
    p->attention.f16_keys = p->pages.offsets[0];
    p->attention.f16_values = p->pages.offsets[1];
    p->attention.means = p->pages.offsets[2];
}

static void attention_new(struct problem *p)
{
    const struct shape *s = p->s;
    const size_t dim = s->dim, splits = splits_of(s), queries = s->n_heads * p->query_stride, row = s->n_kv_heads * dim,
                 head_bytes = (p->paged ? QN_PAGE : p->capacity) * dim * 2;
    const uint64_t biases = s->biases ? qn_gpu_copy(p->biases) : 0;
    p->attention =
        (qn_persistent_attention){ .qkv = qn_persistent_partials_of(&p->first, false),
                                   .k_row = (uint32_t)queries,
                                   .v_row = (uint32_t)(queries + row),
                                   .query_stride = (uint32_t)p->query_stride,
                                   .head_dim = (uint32_t)dim,
                                   .n_heads = (uint32_t)s->n_heads,
                                   .n_kv_heads = (uint32_t)s->n_kv_heads,
                                   .n_rot = (uint32_t)s->n_rot,
                                   .interleaved = s->interleaved,
                                   .n_splits = (uint32_t)splits,
                                   .query_bias = biases,
                                   .key_bias = biases ? biases + s->n_heads * dim * 4 : 0,
                                   .value_bias = biases ? biases + (s->n_heads * dim + row) * 4 : 0,
                                   .query_weight = s->norms ? qn_gpu_copy(p->query_weight) : 0,
                                   .key_weight = s->norms ? qn_gpu_copy(p->key_weight) : 0,
                                   .cosines = qn_gpu_floats(s->n_rot / 2),
                                   .sines = qn_gpu_floats(s->n_rot / 2),
                                   .cache = { .key_head_stride = head_bytes, .value_head_stride = head_bytes },
                                   .partials = qn_gpu_floats(s->n_heads * splits * dim),
                                   .maxima = qn_gpu_floats(s->n_heads * splits * 2),
                                   .eps = QN_PERSISTENT_EPS,
                                   .scale = 1 / sqrtf((float)dim) };
    qn_persistent_cache *cache = &p->attention.cache;
    if (s->key_bits) {
        codes_new(p);
    } else if (p->paged) {
        const size_t row_bytes[QN_PAGED_ARRAYS] = { dim * 2, dim * 2 };
        qn_paged_new(&p->pages, 1, p->capacity / QN_PAGE, s->n_kv_heads, row_bytes);
        cache->keys = p->pages.offsets[0];
        cache->values = p->pages.offsets[1];
        cache->tables = p->pages.tables;
    } else {
        cache->keys = qn_gpu_new(p->capacity * row * 2);
        cache->values = qn_gpu_new(p->capacity * row * 2);
    }
}

/* Partials with large values, values beyond the range of fp16, and NaN; and an RMS norm factor other than 1. */
static void make_synthetic_partials(struct problem *p)
{
    const struct shape *s = p->s;
    float *gemv_partials = qn_floats_of(SYNTHETIC_PARTIALS * p->rows, 1);
    const float sumsq[SYNTHETIC_PARTIALS] = { 0.5f * (float)s->hidden, 0.25f * (float)s->hidden,
                                              3.25f * (float)s->hidden };
    const size_t k = p->attention.k_row, v = p->attention.v_row;
    for (size_t i = 0; i < s->dim; i++)
        gemv_partials[i] *= 1e4f; /* the first query */
    gemv_partials[k + 1] = 3e5f;
    gemv_partials[v + 3] = -1e9f;
    if (s->n_kv_heads > 1)
        gemv_partials[v + s->dim + 5] = NAN; /* of the second head */
    qn_persistent_partials *qkv = &p->attention.qkv;
    qkv->data = qn_gpu_copy(gemv_partials);
    qkv->sumsq = qn_gpu_from(sumsq, sizeof sumsq);
    qkv->n_partials = qkv->n_sumsq = SYNTHETIC_PARTIALS;
}

/* Weights of a shape; in benchmarks, which time other tiles, their sizes alone. */
static struct gpu_weights weights_of(const struct shape *s, const qn_type_info *type, size_t n_rows, size_t n_cols)
{
    if (!s->rows)
        return qn_check_weights_normal(type, n_cols, 1, &n_rows);
    return (struct gpu_weights){ .n_cols = n_cols,
                                 .matrix = { .tiles = qn_matmul_gpu_tile_layout(type),
                                             .n_tiles = qn_matmul_gpu_tile_count(n_rows) } };
}

static struct problem *problem_new(const struct shape *s, const qn_type_info *type, size_t capacity, bool paged)
{
    struct problem *p = qn_new(1, sizeof *p);
    const size_t values = s->n_heads * s->dim, half = s->n_rot / 2, cache = s->n_kv_heads * capacity * s->dim;
    p->s = s;
    p->capacity = capacity;
    p->paged = paged;
    p->query_stride = s->gated ? 2 * s->dim : s->dim;
    p->rows = s->n_heads * p->query_stride + 2 * s->n_kv_heads * s->dim;
    p->in = weights_of(s, type, p->rows, s->hidden);
    p->out = weights_of(s, type, s->rows ? s->rows : ROWS, values);
    p->out_weights = s->rows ? NULL : qn_check_weights_f32(&p->out, 0);
    p->first = (qn_persistent_gemv){ .prologue = QN_PROLOGUE_RMS_NORM,
                                     .x = qn_gpu_floats_of(s->hidden, 2),
                                     .weight = qn_gpu_floats_of(s->hidden, 1) };
    p->first.x_out = qn_gpu_floats(s->hidden);
    p->biases = qn_floats_of((s->n_heads + 2 * s->n_kv_heads) * s->dim, 2);
    p->query_weight = qn_floats_of(s->dim, 1);
    p->key_weight = qn_floats_of(s->dim, 1);
    p->cosines = qn_floats(half);
    p->sines = qn_floats(half);
    p->positions = qn_gpu_new(sizeof(uint32_t));
    p->frequencies = qn_doubles(half);
    qn_rope_frequencies(1e6, NULL, NULL, s->n_rot, p->frequencies);
    p->qkv = qn_doubles(p->rows);
    p->gpu_y = qn_gpu_floats(ROWS);
    set_weights(&p->first, &p->in);
    p->first.sumsq = qn_gpu_floats(p->first.n_slices);
    p->first.out = qn_gpu_floats(p->first.n_slices * p->rows);
    attention_new(p);
    if (s->synthetic)
        make_synthetic_partials(p);
    p->last = (qn_persistent_gemv){ .prologue = QN_PROLOGUE_ATTENTION_COMBINE,
                                    .x = p->attention.partials,
                                    .maxima = p->attention.maxima,
                                    .from = p->attention.qkv,
                                    .head = (uint32_t)s->dim,
                                    .n_heads = (uint32_t)s->n_heads,
                                    .gated = s->gated,
                                    .n_splits = p->attention.n_splits };
    set_weights(&p->last, &p->out);
    p->last.out = qn_gpu_floats((size_t)p->last.n_slices * p->last.n_tiles * QN_TILE_ROWS);
    const qn_persistent_phase store = {
        .kind = QN_PHASE_STORE,
        .u.store = { .from = { .data = p->last.out, .n_partials = p->last.n_slices, .stride = ROWS },
                     .n_outs = 1,
                     .outs = { { p->gpu_y, 0, 0, ROWS } } }
    };
    /* Attention is never the first phase: with synthetic partials the first one stores poison, which the last one
     * overwrites. */
    qn_persistent_phase phases[] = { { .kind = QN_PHASE_GEMV, .u.gemv = p->first },
                                     { .kind = QN_PHASE_ATTENTION, .u.attention = p->attention },
                                     { .kind = QN_PHASE_GEMV, .u.gemv = p->last },
                                     store };
    if (s->synthetic)
        phases[0] = store;
    p->args = (qn_persistent_args){ .phases = qn_persistent_link(phases, QN_LENGTH(phases)),
                                    .barrier = qn_persistent_barrier(),
                                    .positions = p->positions,
                                    .n_phases = QN_LENGTH(phases) };
    p->launch = qn_persistent_launch(&p->in.matrix.tiles, 1);
    if (s->key_bits) {
        const qn_persistent_gpu gpu = qn_persistent_device();
        p->args.codes =
            (qn_persistent_codes){ .keys = qn_gpu_codec(p->codecs[0], qn_gpu_rotation(p->codecs[0]).signs),
                                   .values = qn_gpu_codec(p->codecs[1], qn_gpu_rotation(p->codecs[1]).signs),
                                   .tables = p->pages.tables,
                                   .f16_head = QN_PAGE * s->dim * 2 };
        qn_assert_ok(
            qn_persistent_gpu_launch_codes(&gpu, &p->in.matrix.tiles, s->dim, s->key_bits, s->value_bits, &p->launch));
    }
    p->keys = qn_new(cache, sizeof *p->keys);
    p->values = qn_new(cache, sizeof *p->values);
    for (size_t i = 0; i < cache; i++)
        p->keys[i] = p->values[i] = F16_NAN;
    return p;
}

/* ---- Reference in float64 ---- */

static void add_biases(struct problem *p)
{
    const struct shape *s = p->s;
    const float *key_biases = p->biases + s->n_heads * s->dim;
    for (size_t i = 0; i < s->n_heads * s->dim; i++)
        p->qkv[i / s->dim * p->query_stride + i % s->dim] += (double)p->biases[i];
    for (size_t i = 0; i < 2 * s->n_kv_heads * s->dim; i++) /* values follow keys in both */
        p->qkv[p->attention.k_row + i] += (double)key_biases[i];
}

static void read_partials(struct problem *p)
{
    const qn_persistent_partials *from = &p->attention.qkv;
    const float *gemv_partials = qn_gpu_read(from->data), *sumsq = qn_gpu_read(from->sumsq);
    double sum = 0;
    for (size_t i = 0; i < from->n_sumsq; i++)
        sum += (double)sumsq[i];
    const double factor = 1 / sqrt(sum / (double)p->s->hidden + (double)QN_PERSISTENT_EPS);
    for (size_t i = 0; i < p->rows; i++) {
        p->qkv[i] = 0;
        for (size_t k = 0; k < from->n_partials; k++)
            p->qkv[i] += (double)gemv_partials[k * p->rows + i];
        p->qkv[i] *= factor;
    }
    if (p->s->biases)
        add_biases(p);
}

static void expected_head(const struct problem *p, const double *from, const float *weight, double *x)
{
    const size_t dim = p->s->dim, half = p->s->n_rot / 2;
    double square = 0;
    for (size_t d = 0; d < dim; d++)
        square += from[d] * from[d];
    for (size_t d = 0; d < dim; d++)
        x[d] = p->s->norms ? from[d] * (double)weight[d] / sqrt(square / (double)dim + (double)QN_PERSISTENT_EPS)
                           : from[d];
    for (size_t i = 0; i < half; i++) {
        const size_t a = p->s->interleaved ? 2 * i : i, b = p->s->interleaved ? 2 * i + 1 : i + half;
        const double cosine = (double)p->cosines[i], sine = (double)p->sines[i], first = x[a] * cosine - x[b] * sine;
        x[b] = x[a] * sine + x[b] * cosine;
        x[a] = first;
    }
}

/* The rotation of a codec, a Walsh-Hadamard transform after a multiplication by signs; or back. */
static void rotate(const qn_aura_codec *codec, double *x, bool back)
{
    const size_t dim = codec->dim;
    for (size_t d = 0; d < dim; d++)
        x[d] *= (back ? 1 : (double)codec->signs[d]) / sqrt((double)dim);
    for (size_t n = 1; n < dim; n *= 2)
        for (size_t d = 0; d < dim; d++)
            if (!(d & n)) {
                const double a = x[d], b = x[d + n];
                x[d] = a + b;
                x[d + n] = a - b;
            }
    for (size_t d = 0; back && d < dim; d++)
        x[d] *= (double)codec->signs[d];
}

static void expect_f16(const uint16_t *found, const double *expected, size_t n, bool is_nan, const char *what,
                       size_t head)
{
    for (size_t d = 0; d < n; d++) {
        const double x = (double)qn_f16_to_f32(found[d]), in_range = fmin(fmax(expected[d], -F16_MAX), F16_MAX);
        const bool near = fabs(x - in_range) <= F16_BOUND * fabs(in_range) + FLOAT_BOUND;
        qn_expect(is_nan ? x != x : near, "%s %zu of head %zu is %g, expected %g%s", what, d, head, x, in_range,
                  is_nan ? ", as NaN" : "");
    }
}

/* Keys or values of the cache, contiguous. */
static uint16_t *read_cache(struct problem *p, bool is_value)
{
    if (!p->paged)
        return qn_gpu_read(is_value ? p->attention.cache.values : p->attention.cache.keys);
    qn_paged_read(&p->pages);
    return qn_paged_gather(&p->pages, is_value, p->capacity);
}

/* Copies an array [kv heads][capacity] of rows, with poison in place of those outside [begin, end), to pages. */
static void scatter_part(const struct problem *p, qn_paged_arrays *pages, size_t array, const void *from, size_t begin,
                         size_t end)
{
    const size_t row = pages->row_bytes[array], mark = qn_mark();
    uint8_t *rows = qn_new(p->s->n_kv_heads * p->capacity, row);
    memset(rows, 0xff, p->s->n_kv_heads * p->capacity * row);
    for (size_t h = 0; h < p->s->n_kv_heads && begin < end; h++)
        memcpy(rows + (h * p->capacity + begin) * row, (const uint8_t *)from + (h * p->capacity + begin) * row,
               (end - begin) * row);
    qn_paged_scatter(pages, array, rows, p->capacity);
    qn_release_to(mark);
}

/* What a session has before the row at this position. */
static void upload_codes(struct problem *p, uint32_t position)
{
    const size_t page = position / QN_PAGE, dim = p->s->dim, mark = qn_mark();
    uint16_t *of[2] = { p->keys, p->values };
    for (size_t h = 0; h < p->s->n_kv_heads; h++)
        for (size_t t = 0; t < p->capacity; t++)
            for (size_t i = 0; i < 2; i++)
                for (size_t d = 0; d < dim; d++)
                    of[i][(h * p->capacity + t) * dim + d] = t < position && (t < QN_PAGE || t >= page * QN_PAGE)
                                                                 ? qn_f32_to_f16(qn_random_normal())
                                                                 : 0xffff;
    for (size_t i = 0; i < 2; i++) {
        scatter_part(p, &p->code_pages, i, p->codes[i], QN_PAGE, page * QN_PAGE);
        scatter_part(p, &p->code_pages, 2 + i, p->scales[i], QN_PAGE, page * QN_PAGE);
        qn_paged_scatter(&p->pages, i, of[i], p->capacity);
    }
    uint8_t *means = qn_new(p->s->n_kv_heads * p->capacity, p->pages.row_bytes[2]);
    for (size_t h = 0; h < p->s->n_kv_heads; h++)
        memcpy(means + h * p->capacity * p->pages.row_bytes[2], p->means + h * dim, dim * sizeof *p->means);
    scatter_part(p, &p->pages, 2, means, 0, QN_PAGE);
    qn_paged_upload(&p->code_pages);
    qn_paged_upload(&p->pages);
    qn_release_to(mark);
}

static void upload_cache(struct problem *p)
{
    const size_t bytes = qn_bytes_of(p->keys);
    if (p->paged) {
        qn_paged_scatter(&p->pages, 0, p->keys, p->capacity);
        qn_paged_scatter(&p->pages, 1, p->values, p->capacity);
        qn_paged_upload(&p->pages);
        return;
    }
    qn_gpu_write(p->attention.cache.keys, p->keys, bytes);
    qn_gpu_write(p->attention.cache.values, p->values, bytes);
}

/* Checks the row's stored key and value and that nothing else in the cache has changed; adds them to p->keys and
 * p->values. */
static void check_cache(struct problem *p, uint32_t position)
{
    const struct shape *s = p->s;
    const size_t dim = s->dim;
    const size_t bytes = s->n_kv_heads * p->capacity * dim * sizeof(uint16_t);
    uint16_t *keys = read_cache(p, false), *values = read_cache(p, true);
    double expected[MAX_DIM];
    for (size_t h = 0; h < s->n_kv_heads; h++) {
        const size_t at = (h * p->capacity + position) * dim;
        const double *v = p->qkv + p->attention.v_row + h * dim;
        bool bad = false;
        for (size_t d = 0; d < dim; d++)
            bad = bad || v[d] != v[d];
        expected_head(p, p->qkv + p->attention.k_row + h * dim, p->key_weight, expected);
        if (s->key_bits)
            rotate(p->codecs[0], expected, false);
        expect_f16(keys + at, expected, dim, bad, "key", h);
        for (size_t d = 0; d < dim; d++)
            expected[d] = v[d] != v[d] ? 0 : v[d];
        if (s->key_bits)
            rotate(p->codecs[1], expected, false);
        expect_f16(values + at, expected, dim, false, "value", h);
        memcpy(p->keys + at, keys + at, dim * 2);
        memcpy(p->values + at, values + at, dim * 2);
    }
    qn_expect(!memcmp(keys, p->keys, bytes) && !memcmp(values, p->values, bytes),
              "other positions of the cache have changed");
}

/* Key (i 0) or value (i 1) of position t of a key-value head, as a row at `position` reads it. */
static void load_row(const struct problem *p, size_t kv, size_t t, uint32_t position, size_t i, double *x)
{
    const size_t dim = p->s->dim, row = kv * p->capacity + t;
    if (!p->s->key_bits || t < QN_PAGE || t / QN_PAGE == position / QN_PAGE) {
        for (size_t d = 0; d < dim; d++)
            x[d] = (double)qn_f16_to_f32((i ? p->values : p->keys)[row * dim + d]);
        return;
    }
    const qn_aura_codec *codec = p->codecs[i];
    uint8_t codes[QN_AURA_MAX_DIM];
    qn_aura_unpack(codes, p->codes[i] + row * qn_gpu_row_bytes(dim, codec->bits) / 4, dim, codec->bits);
    for (size_t d = 0; d < dim; d++)
        x[d] = (double)p->scales[i][row] * (double)codec->codebook[codes[d]] + (i ? 0 : (double)p->means[kv * dim + d]);
}

static void attend(const struct problem *p, uint32_t position, size_t head, double *out)
{
    const size_t dim = p->s->dim, kv = head / (p->s->n_heads / p->s->n_kv_heads);
    double query[MAX_DIM], key[MAX_DIM], value[MAX_DIM], m = -INFINITY, l = 0;
    expected_head(p, p->qkv + head * p->query_stride, p->query_weight, query);
    if (p->s->key_bits)
        rotate(p->codecs[0], query, false);
    for (size_t d = 0; d < dim; d++)
        out[d] = 0;
    for (size_t t = 0; t <= position; t++) {
        double score = 0;
        load_row(p, kv, t, position, 0, key);
        load_row(p, kv, t, position, 1, value);
        for (size_t d = 0; d < dim; d++)
            score += query[d] * key[d];
        score *= (double)p->attention.scale;
        const double raised = score > m ? score : m, old = exp(m - raised), weight = exp(score - raised);
        m = raised;
        l = l * old + weight;
        for (size_t d = 0; d < dim; d++)
            out[d] = out[d] * old + weight * value[d];
    }
    for (size_t d = 0; d < dim; d++)
        out[d] /= l;
    if (p->s->key_bits)
        rotate(p->codecs[1], out, true);
}

/* Combines the partials of a head. Splits without positions still hold the poison pattern. */
static void combine(const struct problem *p, const float *partials, const float *maxima, size_t head, double *out)
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

static void check_out(const struct problem *p, const double *acts)
{
    const size_t n = p->s->n_heads * p->s->dim;
    const float *y = qn_gpu_read(p->gpu_y);
    double error = 0, norm = 0;
    for (size_t r = 0; r < ROWS; r++) {
        double sum = 0;
        for (size_t k = 0; k < n; k++)
            sum += (double)p->out_weights[r * n + k] * acts[k];
        error += ((double)y[r] - sum) * ((double)y[r] - sum);
        norm += sum * sum;
    }
    qn_expect(sqrt(error / norm) <= OUT_BOUND, "the error of the last GEMV is %.2e, expected up to %.0e",
              sqrt(error / norm), OUT_BOUND);
}

/* Checks the attention output of all heads. Heads with a NaN in the cache must be NaN; *finite: there are none. */
static void check_heads(const struct problem *p, uint32_t position, bool *finite)
{
    const struct shape *s = p->s;
    const size_t dim = s->dim;
    const float *partials = qn_gpu_read(p->attention.partials), *maxima = qn_gpu_read(p->attention.maxima);
    double *acts = qn_doubles(s->n_heads * dim), exact[MAX_DIM];
    double error = 0, square = 0, worst = 0;
    *finite = true;
    for (size_t h = 0; h < s->n_heads; h++) {
        double *found = acts + h * dim, head_error = 0, size = 0;
        attend(p, position, h, exact);
        combine(p, partials, maxima, h, found);
        if (exact[0] != exact[0]) {
            *finite = false;
            qn_expect(found[0] != found[0], "head %zu is %g, expected NaN", h, found[0]);
            continue;
        }
        for (size_t d = 0; d < dim; d++) {
            head_error += (found[d] - exact[d]) * (found[d] - exact[d]);
            size += exact[d] * exact[d];
            const double gate = s->gated ? p->qkv[h * 2 * dim + dim + d] : INFINITY;
            found[d] /= 1 + exp(-gate);
        }
        error += head_error;
        square += size;
        worst = sqrt(head_error / size) <= worst ? worst : sqrt(head_error / size);
    }
    qn_expect(square == 0 || sqrt(error / square) <= ERROR_BOUND, "position %u: error %.2e, expected up to %.0e",
              position, sqrt(error / square), ERROR_BOUND);
    qn_expect(worst <= WORST_BOUND, "position %u: error of a head %.2e, expected up to %.0e", position, worst,
              WORST_BOUND);
    if (*finite)
        check_out(p, acts);
}

static void fill_cache(struct problem *p, uint32_t position)
{
    const struct shape *s = p->s;
    if (s->key_bits) {
        upload_codes(p, position);
        return;
    }
    for (size_t h = 0; h < s->n_kv_heads; h++)
        for (size_t i = 0; i < position * s->dim; i++) {
            const size_t at = h * p->capacity * s->dim + i;
            if (p->keys[at] == F16_NAN) {
                p->keys[at] = qn_f32_to_f16(qn_random_normal());
                p->values[at] = qn_f32_to_f16(qn_random_normal());
            }
        }
    upload_cache(p);
}

static void set_position(struct problem *p, uint32_t position)
{
    const size_t bytes = p->s->n_rot / 2 * sizeof(float);
    qn_rope_angles(position, p->frequencies, 1, p->s->n_rot, p->cosines, p->sines);
    qn_gpu_write(p->positions, &position, sizeof position);
    qn_gpu_write(p->attention.cosines, p->cosines, bytes);
    qn_gpu_write(p->attention.sines, p->sines, bytes);
}

static void run_layer(struct problem *p)
{
    qn_gpu_poison(p->attention.partials, p->attention.maxima, p->gpu_y);
    qn_gpu_launch(&p->launch, &p->args);
}

static const qn_type_info *type_for(const struct shape *s)
{
    return qn_type_find(s->n_heads * s->dim % 128 ? QN_TYPE_Q2_0 : QN_TYPE_Q1_0);
}

static void check_shape(const struct shape *s, bool paged)
{
    static const uint32_t positions[] = { 0, 1, 15, 16, 17, 63, 64, 100, 127, 128, 255, 256, 700, 1000, 1039 };
    const qn_type_info *type = type_for(s);
    qn_random_seed(s->dim * 100 + s->n_heads);
    qn_case_begin("persistent-attention", "cuda", "%zu heads of %zu over %zu, rope of %zu%s%s%s%s%s, %u splits%s%s",
                  s->n_heads, s->dim, s->n_kv_heads, s->n_rot, s->interleaved ? ", interleaved" : "",
                  s->norms ? ", norms" : "", s->gated ? ", gated" : "", s->biases ? ", biases" : "",
                  s->synthetic ? ", synthetic partials" : "", splits_of(s), paged ? ", pages" : "",
                  s->key_bits ? qn_text(", codes of %u and %u bits", s->key_bits, s->value_bits) : "");
    struct problem *p = problem_new(s, type, paged ? 1088 : 1040, paged);
    for (size_t i = 0; i < QN_LENGTH(positions); i++) {
        bool finite;
        fill_cache(p, positions[i]);
        set_position(p, positions[i]);
        run_layer(p);
        read_partials(p);
        check_cache(p, positions[i]);
        check_heads(p, positions[i], &finite);
        const float *before = qn_gpu_read(p->gpu_y);
        run_layer(p);
        qn_expect(!memcmp(before, qn_gpu_read(p->gpu_y), ROWS * sizeof(float)), "position %u: two runs differ",
                  positions[i]);
    }
    qn_release();
}

/* Shapes whose partials come from a GEMV, with codes of all bits. */
static void check_codes(const struct shape *shapes, size_t n)
{
    static const unsigned bits[][2] = { { 4, 4 }, { 4, 2 }, { 3, 3 }, { 2, 2 }, { 8, 8 }, { 6, 6 } };
    const qn_persistent_gpu gpu = qn_persistent_device();
    for (size_t i = 0, k = 0; i < n; i++) {
        struct shape s = shapes[i];
        const qn_tile_layout tiles = qn_matmul_gpu_tile_layout(type_for(&s));
        for (size_t b = 0; b < QN_LENGTH(bits) && !s.synthetic && splits_of(&s) > 1; b++) {
            s.key_bits = bits[b][0];
            s.value_bits = bits[b][1];
            /* Each shape with 4 bits, and with one of the others: kernels take seconds to compile. */
            if ((b == 0 || b == 1 + k % (QN_LENGTH(bits) - 1)) &&
                qn_persistent_gpu_supports_codes(&gpu, &tiles, s.dim, s.key_bits, s.value_bits))
                check_shape(&s, true);
        }
        k += !s.synthetic;
    }
}

/* ---- Speed ---- */

enum { LAYERS = 8 };

/* The attention layers of a model, without the feed-forward part. */
struct model {
    const char *name;
    struct shape shape;
};

/* Seconds for a layer's two GEMVs, with or without the attention phase between them. An array of the cache is of_cache
 * bytes after the one before, the first at p->attention.cache.keys. */
static double layer_seconds(const struct problem *p, const uint64_t weights[2], size_t of_cache, bool with)
{
    qn_persistent_phase phases[3 * LAYERS] = { 0 };
    qn_persistent_gemv gemvs[2] = { p->first, p->last };
    qn_persistent_attention attention = p->attention;
    qn_persistent_args args = p->args;
    size_t n = 0;
    if (!with) {
        gemvs[1].prologue = QN_PROLOGUE_PLAIN;
        gemvs[1].from = (qn_persistent_partials){ 0 };
    }
    for (size_t l = 0; l < LAYERS; l++) {
        for (size_t i = 0; i < 2; i++)
            gemvs[i].weights = weights[i] + qn_gpu_bytes(weights[i]) / LAYERS * l;
        attention.cache.keys = p->attention.cache.keys + 2 * l * of_cache;
        attention.cache.values = attention.cache.keys + of_cache;
        phases[n++] = (qn_persistent_phase){ .kind = QN_PHASE_GEMV, .u.gemv = gemvs[0] };
        if (with)
            phases[n++] = (qn_persistent_phase){ .kind = QN_PHASE_ATTENTION, .u.attention = attention };
        phases[n++] = (qn_persistent_phase){ .kind = QN_PHASE_GEMV, .u.gemv = gemvs[1] };
    }
    args.phases = qn_persistent_link(phases, n);
    args.n_phases = (uint32_t)n;
    return qn_persistent_seconds(&p->launch, &args, 4) / LAYERS;
}

/* The address of a page table, then the table: the pages of a pool in random order. */
static uint64_t page_tables(uint64_t pool, size_t n_pages)
{
    uint64_t *table = qn_new(1 + n_pages, sizeof *table);
    const uint64_t array = qn_gpu_new((1 + n_pages) * sizeof *table);
    table[0] = array + sizeof *table;
    for (size_t i = 0; i < n_pages; i++) {
        const size_t j = qn_random_below(i + 1);
        table[1 + i] = table[1 + j];
        table[1 + j] = pool + i * (qn_gpu_bytes(pool) / n_pages);
    }
    qn_gpu_write(array, table, (1 + n_pages) * sizeof *table);
    return array;
}

/* Random tiles of all layers. */
static uint64_t bench_tiles(const struct gpu_weights *w)
{
    size_t bytes;
    qn_assert_ok(qn_matmul_gpu_bytes(&w->matrix.tiles, w->matrix.n_tiles, w->n_cols, &bytes));
    return qn_gpu_random(bytes * LAYERS);
}

static void bench_model(const struct model *m)
{
    static const uint32_t depths[] = { 0, 128, 1024, 4096, 32768 };
    const struct shape *s = &m->shape;
    qn_random_seed(1);
    struct problem *p = problem_new(s, type_for(s), 16, false);
    const uint64_t weights[2] = { bench_tiles(&p->in), bench_tiles(&p->out) };
    /* Also the input of the PLAIN prologue without attention. */
    p->attention.partials = p->last.x = qn_gpu_random(qn_gpu_bytes(p->attention.partials));
    for (size_t i = 0; i < 2 * QN_LENGTH(depths); i++) {
        const uint32_t depth = depths[i / 2];
        const bool paged = i % 2;
        const size_t n_pages = depth / QN_PAGE + 1, capacity = n_pages * QN_PAGE, row = s->n_kv_heads * s->dim * 2,
                     positions = paged ? QN_PAGE : capacity, mark = qn_mark();
        const uint64_t cache = qn_gpu_random(2 * LAYERS * capacity * row), tables = page_tables(cache, n_pages);
        p->attention.cache = (qn_persistent_cache){ .keys = paged ? 0 : cache,
                                                    .tables = paged ? tables : 0,
                                                    .key_head_stride = positions * s->dim * 2,
                                                    .value_head_stride = positions * s->dim * 2 };
        set_position(p, depth);
        const double with = layer_seconds(p, weights, positions * row, true),
                     without = layer_seconds(p, weights, positions * row, false);
        qn_report_rate("persistent-attention", paged ? "f16, pages" : "f16",
                       qn_text("%s at %u, layer %.2f us without", m->name, depth, without * 1e6), with - without,
                       2 * (double)(row * depth) / (with - without), "B", qn_gpu_read_rate());
        qn_release_to(mark);
    }
    qn_release();
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
        { "8B",
          { .dim = 128, .n_heads = 32, .n_kv_heads = 8, .n_rot = 128, .hidden = 4096, .norms = true, .rows = 4096 } },
        { "1.7B",
          { .dim = 128, .n_heads = 16, .n_kv_heads = 8, .n_rot = 128, .hidden = 2048, .norms = true, .rows = 2048 } },
    };
    for (size_t i = 0; i < QN_LENGTH(models); i++)
        bench_model(&models[i]);
}

void qn_check_cuda_persistent_attention(bool bench)
{
    static const struct shape shapes[] = {
        { .dim = 256, .n_heads = 24, .n_kv_heads = 4, .n_rot = 64, .hidden = 1024, .norms = true, .gated = true },
        { .dim = 128, .n_heads = 32, .n_kv_heads = 8, .n_rot = 128, .hidden = 512, .norms = true },
        { .dim = 64, .n_heads = 9, .n_kv_heads = 3, .n_rot = 64, .hidden = 576, .interleaved = true },
        { .dim = 128, .n_heads = 4, .n_kv_heads = 2, .n_rot = 32, .hidden = 512, .norms = true, .gated = true },
        { .dim = 128, .n_heads = 16, .n_kv_heads = 8, .n_rot = 128, .hidden = 256, .norms = true, .synthetic = true },
        { .dim = 256, .n_heads = 8, .n_kv_heads = 1, .n_rot = 256, .hidden = 256, .interleaved = true, .n_splits = 4 },
        { .dim = 128, .n_heads = 6, .n_kv_heads = 1, .n_rot = 8, .hidden = 256, .norms = true, .n_splits = 1 },
        { .dim = 64, .n_heads = 7, .n_kv_heads = 1, .n_rot = 24, .hidden = 256, .n_splits = 2, .norms = true },
        { .dim = 64, .n_heads = 2, .n_kv_heads = 2, .n_rot = 64, .hidden = 256, .gated = true },
        { .dim = 256, .n_heads = 6, .n_kv_heads = 2, .n_rot = 16, .hidden = 512, .synthetic = true, .gated = true },
        { .dim = 64,
          .n_heads = 10,
          .n_kv_heads = 2,
          .n_rot = 32,
          .hidden = 256,
          .synthetic = true,
          .interleaved = true },
        { .dim = 64, .n_heads = 14, .n_kv_heads = 2, .n_rot = 64, .hidden = 896, .biases = true },
        { .dim = 128, .n_heads = 12, .n_kv_heads = 2, .n_rot = 128, .hidden = 256, .synthetic = true, .biases = true },
        { .dim = 256,
          .n_heads = 4,
          .n_kv_heads = 2,
          .n_rot = 64,
          .hidden = 256,
          .norms = true,
          .gated = true,
          .biases = true },
    };
    if (!qn_persistent_supported(1))
        return;
    for (size_t i = 0; i < QN_LENGTH(shapes); i++)
        for (int paged = 0; paged < 2; paged++)
            check_shape(&shapes[i], paged);
    check_codes(shapes, QN_LENGTH(shapes));
    if (bench)
        bench_all();
}
