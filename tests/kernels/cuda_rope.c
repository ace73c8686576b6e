/* Biases, qk_norm, rope and kv_store on the GPU, against the same operations in double; rope angles against the CPU's.
 * */
#include "cuda_codec.h"

#include "base/f16.h"
#include "kernels/kernels.h"
#include "kernels/rope/rope.h"
#include "cuda/kernels/rope/rope.h"

/* For values up to about 10 in magnitude: a norm of up to 512 terms, rope, and with pages a rotation of up to 512
 * terms. */
#define FLOAT_BOUND 2e-5
#define F16_BOUND (0x1p-11 + FLOAT_BOUND) /* relative; for smaller values, relative to the smallest normal f16 */
#define F16_MIN_NORMAL 0x1p-14

enum { N_OPEN = 2, CAPACITY = 512, SESSIONS = 2 };

struct shape {
    size_t dim, n_heads, n_kv_heads, n_rot, n_rows;
    uint32_t first;
    bool pages, gated, interleaved, norms, biases;
};

struct problem {
    const struct shape *s;
    qn_kernels kernels;
    qn_aura_codec *keys, *values;    /* with pages */
    float *queries, *k, *v, *biases; /* biases: of all queries, keys and values, or NULL */
    float *query_weight, *key_weight, *cosines, *sines;
    double *frequencies, attn_factor;
    uint32_t *positions, *sessions;
    uint64_t out, f16_keys, f16_values, gpu_positions, gpu_cosines, gpu_sines;
};

/* f16 rows of a head in the cache. */
static size_t head_rows(const struct shape *s)
{
    return s->pages ? (1 + N_OPEN) * QN_PAGE : CAPACITY;
}

static size_t query_stride(const struct shape *s)
{
    return s->gated ? 2 * s->dim : s->dim;
}

/* The expected head, in double except for the codec's rotation. */
static void rope_head(const struct problem *p, const float *from, const float *bias, const float *weight, size_t row,
                      bool with_rope, const qn_aura_codec *codec, double *to)
{
    const size_t dim = p->s->dim, half = p->s->n_rot / 2;
    double x[QN_AURA_MAX_DIM], square = 0;
    for (size_t d = 0; d < dim; d++) {
        x[d] = (double)from[d] + (bias ? (double)bias[d] : 0);
        square += x[d] * x[d];
    }
    for (size_t d = 0; weight && d < dim; d++)
        x[d] *= (double)weight[d] / sqrt(square / (double)dim + 1e-6);
    for (size_t i = 0; with_rope && i < half; i++) {
        const size_t a = p->s->interleaved ? 2 * i : i, b = p->s->interleaved ? 2 * i + 1 : i + half;
        const double cosine = (double)p->cosines[row * half + i], sine = (double)p->sines[row * half + i];
        const double first = x[a] * cosine - x[b] * sine;
        x[b] = x[a] * sine + x[b] * cosine;
        x[a] = first;
    }
    if (!codec) {
        memcpy(to, x, dim * sizeof *to);
        return;
    }
    float plain[QN_AURA_MAX_DIM] = { 0 }, rotated[QN_AURA_MAX_DIM];
    for (size_t d = 0; d < dim; d++)
        plain[d] = (float)x[d];
    qn_aura_rotate(&p->kernels.aura, codec, rotated, plain);
    for (size_t d = 0; d < dim; d++)
        to[d] = (double)rotated[d];
}

static void expect_f16(const uint16_t *found, const double *expected, size_t n, bool is_nan, const char *what)
{
    for (size_t d = 0; d < n; d++) {
        const double x = (double)qn_f16_to_f32(found[d]);
        const bool near =
            fabs(x - expected[d]) <= F16_BOUND * fabs(expected[d]) + FLOAT_BOUND + F16_MIN_NORMAL * 0x1p-10;
        qn_expect(is_nan ? x != x : near, "%s %zu is %g, expected %g%s", what, d, x, expected[d],
                  is_nan ? ", as NaN" : "");
    }
}

/* The row of a position's f16 values in the cache of a session's head. */
static size_t row_of(const struct shape *s, size_t session, size_t head, uint32_t position)
{
    const size_t rows = head_rows(s), page = position / QN_PAGE;
    const size_t slot = page ? 1 + (page - 1) % N_OPEN : 0;
    const size_t at = s->pages ? slot * QN_PAGE + position % QN_PAGE : position;
    return (session * s->n_kv_heads + head) * rows + at;
}

/* The bias of head `head` of queries, then keys, then values. */
static const float *bias_of(const struct problem *p, size_t head)
{
    return p->biases ? p->biases + head * p->s->dim : NULL;
}

static void compare(const struct problem *p)
{
    const struct shape *s = p->s;
    const size_t dim = s->dim, stride = query_stride(s);
    const float *out = qn_gpu_read(p->out);
    const uint16_t *keys = qn_gpu_read(p->f16_keys), *values = qn_gpu_read(p->f16_values);
    double expected[QN_AURA_MAX_DIM], bound[QN_AURA_MAX_DIM];
    for (size_t row = 0; row < s->n_rows; row++) {
        for (size_t h = 0; h < s->n_heads; h++) {
            rope_head(p, p->queries + (row * s->n_heads + h) * stride, bias_of(p, h), p->query_weight, row, true,
                      p->keys, expected);
            for (size_t d = 0; d < dim; d++)
                bound[d] = FLOAT_BOUND * (1 + fabs(expected[d]));
            qn_expect_near(out + (row * s->n_heads + h) * dim, expected, bound, dim, "query");
        }
        for (size_t h = 0; h < s->n_kv_heads; h++) {
            const float *v = p->v + (row * s->n_kv_heads + h) * dim;
            const size_t at = row_of(s, p->sessions[row], h, p->positions[row]) * dim;
            bool has_nan = false;
            for (size_t d = 0; d < dim; d++)
                has_nan = has_nan || v[d] != v[d];
            rope_head(p, p->k + (row * s->n_kv_heads + h) * dim, bias_of(p, s->n_heads + h), p->key_weight, row, true,
                      p->keys, expected);
            expect_f16(keys + at, expected, dim, has_nan, "key");
            rope_head(p, v, bias_of(p, s->n_heads + s->n_kv_heads + h), NULL, row, false, p->values, expected);
            for (size_t d = 0; d < dim; d++)
                expected[d] = expected[d] != expected[d] ? 0 : fmin(fmax(expected[d], -65504), 65504);
            expect_f16(values + at, expected, dim, false, "value");
        }
    }
}

/* The inputs, and the angles of the CPU. */
static void problem_new(struct problem *p, const struct shape *s)
{
    const size_t dim = s->dim, half = s->n_rot / 2, cache = SESSIONS * s->n_kv_heads * head_rows(s) * dim;
    *p = (struct problem){ .s = s, .attn_factor = s->gated ? 1.25 : 1 };
    qn_kernels_init(&p->kernels, 0);
    if (s->pages) {
        p->keys = qn_codec(dim, 4, 3);
        p->values = qn_codec(dim, 4, 4);
    }
    p->queries = qn_floats_of(s->n_rows * s->n_heads * query_stride(s), 2);
    p->k = qn_floats_of(s->n_rows * s->n_kv_heads * dim, 2);
    p->v = qn_floats_of(s->n_rows * s->n_kv_heads * dim, 2);
    if (s->biases)
        p->biases = qn_floats_of((s->n_heads + 2 * s->n_kv_heads) * dim, 2);
    if (s->norms) {
        p->query_weight = qn_floats_of(dim, 1);
        p->key_weight = qn_floats_of(dim, 1);
    } else {
        p->v[1] = 1e9f; /* beyond f16 */
        p->v[dim * s->n_kv_heads * (s->n_rows - 1) + 2] = NAN;
    }
    p->frequencies = qn_doubles(half);
    p->cosines = qn_floats(s->n_rows * half);
    p->sines = qn_floats(s->n_rows * half);
    p->positions = qn_new(s->n_rows, sizeof *p->positions);
    p->sessions = qn_new(s->n_rows, sizeof *p->sessions);
    qn_rope_frequencies(1e7, NULL, NULL, s->n_rot, p->frequencies);
    for (size_t row = 0; row < s->n_rows; row++) {
        p->positions[row] = s->first + (uint32_t)row;
        p->sessions[row] = s->n_rows > 1;
        qn_rope_angles(p->positions[row], p->frequencies, p->attn_factor, s->n_rot, p->cosines + row * half,
                       p->sines + row * half);
    }
    p->gpu_positions = qn_gpu_copy(p->positions);
    p->out = qn_gpu_floats(s->n_rows * s->n_heads * dim);
    p->f16_keys = qn_gpu_new(cache * 2);
    p->f16_values = qn_gpu_new(cache * 2);
}

/* The GPU's angles, which qk_norm, rope and kv_store then use. */
static void check_angles(struct problem *p)
{
    const struct shape *s = p->s;
    const size_t n = s->n_rows * (s->n_rot / 2);
    p->gpu_cosines = qn_gpu_floats(n);
    p->gpu_sines = qn_gpu_floats(n);
    const qn_rope_angles_args args = { .positions = p->gpu_positions,
                                       .frequencies = qn_gpu_copy(p->frequencies),
                                       .cosines = p->gpu_cosines,
                                       .sines = p->gpu_sines,
                                       .attn_factor = p->attn_factor,
                                       .n_rot = (uint32_t)s->n_rot };
    qn_launch launch;
    qn_assert_ok(qn_rope_gpu_angles(s->n_rot, s->n_rows, &launch));
    qn_gpu_launch(&launch, &args);
    const float *expected[2] = { p->cosines, p->sines };
    for (int i = 0; i < 2; i++) {
        const float *found = qn_gpu_read(i ? p->gpu_sines : p->gpu_cosines);
        for (size_t j = 0; j < n; j++) /* both sides round a double with an error below 1e-15 */
            qn_expect(fabsf(found[j] - expected[i][j]) <= 0x1p-23f, "%s %zu is %g, expected %g", i ? "sine" : "cosine",
                      j, (double)found[j], (double)expected[i][j]);
    }
}

/* The arguments without the destination of keys and values. */
static qn_rope_qk_norm_store_args store_args(struct problem *p)
{
    const struct shape *s = p->s;
    const size_t dim = s->dim;
    return (qn_rope_qk_norm_store_args){ .queries = qn_gpu_copy(p->queries),
                                         .keys = qn_gpu_copy(p->k),
                                         .values = qn_gpu_copy(p->v),
                                         .out = p->out,
                                         .query_weight = s->norms ? qn_gpu_copy(p->query_weight) : 0,
                                         .key_weight = s->norms ? qn_gpu_copy(p->key_weight) : 0,
                                         .cosines = p->gpu_cosines,
                                         .sines = p->gpu_sines,
                                         .positions = p->gpu_positions,
                                         .sessions = qn_gpu_copy(p->sessions),
                                         .n_rows = (uint32_t)s->n_rows,
                                         .n_heads = (uint32_t)s->n_heads,
                                         .n_kv_heads = (uint32_t)s->n_kv_heads,
                                         .n_rot = (uint32_t)s->n_rot,
                                         .query_row_stride = (uint32_t)(s->n_heads * query_stride(s)),
                                         .key_row_stride = (uint32_t)(s->n_kv_heads * dim),
                                         .value_row_stride = (uint32_t)(s->n_kv_heads * dim),
                                         .out_row_stride = (uint32_t)(s->n_heads * dim),
                                         .capacity = CAPACITY,
                                         .query_stride = (uint32_t)query_stride(s),
                                         .interleaved = s->interleaved,
                                         .eps = 1e-6f };
}

static void check_store(struct problem *p)
{
    const struct shape *s = p->s;
    const size_t head_bytes = head_rows(s) * s->dim * 2;
    qn_rope_qk_norm_store_args args = store_args(p);
    qn_launch launch;
    if (s->biases) {
        args.query_bias = qn_gpu_copy(p->biases);
        args.key_bias = args.query_bias + s->n_heads * s->dim * 4;
        args.value_bias = args.key_bias + s->n_kv_heads * s->dim * 4;
    }
    if (s->pages) {
        args.pages = (qn_attention_gpu_pages){ .keys = p->f16_keys,
                                               .values = p->f16_values,
                                               .head = head_bytes,
                                               .session = head_bytes * s->n_kv_heads,
                                               .n_open_pages = N_OPEN };
        args.key_rotation = qn_gpu_rotation(p->keys);
        args.value_rotation = qn_gpu_rotation(p->values);
    } else {
        args.cache = (qn_attention_gpu_cache){ .keys = p->f16_keys,
                                               .values = p->f16_values,
                                               .key_head_stride = head_bytes,
                                               .value_head_stride = head_bytes,
                                               .key_session_stride = head_bytes * s->n_kv_heads,
                                               .value_session_stride = head_bytes * s->n_kv_heads };
    }
    qn_assert_ok(qn_rope_gpu_qk_norm_store(s->dim, s->pages, s->n_rows, s->n_heads, s->n_kv_heads, &launch));
    qn_gpu_launch(&launch, &args);
    compare(p);
}

static void check_shape(const struct shape *s)
{
    struct problem p;
    qn_random_seed(s->dim * 10 + s->n_rows);
    qn_case_begin("rope", "cuda", "%zu and %zu heads of %zu, n_rot %zu, %zu rows from position %u%s%s%s%s%s",
                  s->n_heads, s->n_kv_heads, s->dim, s->n_rot, s->n_rows, s->first, s->pages ? ", pages" : "",
                  s->gated ? ", gated" : "", s->interleaved ? ", interleaved" : "", s->norms ? ", norms" : "",
                  s->biases ? ", biases" : "");
    problem_new(&p, s);
    check_angles(&p);
    check_store(&p);
    qn_release();
}

void qn_check_cuda_rope(bool bench)
{
    static const struct shape shapes[] = {
        { 256, 24, 4, 64, 1, 300, true, true, false, true, false },
        { 256, 24, 4, 64, 70, 100, true, true, false, false, false },
        { 128, 32, 8, 128, 3, 0, false, false, false, true, false },
        { 64, 9, 3, 64, 40, 400, false, false, true, false, false },
        { 64, 9, 3, 32, 1, 63, true, false, true, false, false },
        { 80, 5, 5, 20, 66, 62, true, true, false, true, false },
        { 16, 2, 1, 16, 5, 7, false, false, false, true, false },
        { 512, 2, 1, 512, 2, 64, true, false, false, true, false },
        { 96, 4, 2, 96, 129, 0, false, true, true, true, false },
        { 64, 14, 2, 64, 1, 77, false, false, false, false, true },
        { 128, 12, 2, 128, 70, 60, true, false, false, false, true },
        { 80, 4, 2, 40, 3, 64, true, true, true, true, true },
    };
    (void)bench;
    for (size_t i = 0; i < QN_LENGTH(shapes); i++)
        check_shape(&shapes[i]);
}
