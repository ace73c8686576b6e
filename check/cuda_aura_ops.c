/* The public AURA operations on the GPU compared with the CPU's: scores, values, flash decoding in two passes,
 * attention in one. Windows, sinks, several tokens, blocks of any length, queries without visible keys, capacities
 * larger than n_keys. */
#include "check/cuda.h"

#include "base/f16.h"
#include "kernels/aura/aura.h"
#include "kernels/aura/aura_attention_cuda.h"
#include "kernels/aura/aura_cuda.h"
#include "quern/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Keys, values, queries and weights are rounded to fp16: a relative error of up to 2^-11 each, mostly less than half of
 * that. Errors are random and do not add up. */
#define ERROR_BOUND 2e-3
#define WORST_BOUND 8e-3    /* of one query: values may cancel */
#define PASS2_BOUND 1e-5    /* float32 sums of up to some hundred blocks, exponents of up to 2^4 */
#define MAXIMUM_BOUND 8e-3f /* worst error of many scores of about 1 */

enum { MAX_GPU = 40, MAX_TOKENS = 5 };

struct shape {
    size_t dim, n_heads, n_kv_heads, n_keys, capacity, n_tokens;
    unsigned key_bits, value_bits;
    bool causal, sinks, custom_codec; /* custom_codec: a dense rotation for every dim */
    size_t window, block;
    uint32_t positions[MAX_TOKENS];
    qn_dtype dtype, out_dtype;
    float skip;
};

struct problem {
    const struct shape *s;
    qn_aura_codec *key_codec, *value_codec;
    size_t n_queries, n_blocks, n_splits;
    uint32_t *keys, *values;          /* [kv heads][capacity][words] */
    float *key_scales, *value_scales; /* [kv heads][capacity] */
    void *queries;                    /* [n_queries][dim], typed */
    float *sinks, *weights;
    qn_aura_cache cache;
    qn_aura_queries cpu_queries;
    qn_aura_gpu gpu;
    qn_aura_gpu_cache gpu_cache;
    qn_aura_gpu_queries gpu_queries;
    qn_aura_gpu_rotation key_rotation, value_rotation;
    uint64_t gpu_sinks;
    qn_gpu_guarded memory[MAX_GPU];
    size_t n_memory;
};

static uint64_t keep(struct problem *p, qn_gpu_guarded g)
{
    if (p->n_memory == MAX_GPU)
        exit(1);
    p->memory[p->n_memory++] = g;
    return g.data;
}

static uint64_t on_gpu(struct problem *p, const void *data, size_t bytes)
{
    return keep(p, qn_gpu_from(data, bytes));
}

static size_t type_bytes(qn_dtype dtype)
{
    return dtype == QN_DTYPE_F32 ? 4 : 2;
}

static float value_of(const void *typed, qn_dtype dtype, size_t i)
{
    if (dtype == QN_DTYPE_F32)
        return ((const float *)typed)[i];
    const uint16_t x = ((const uint16_t *)typed)[i];
    return dtype == QN_DTYPE_F16 ? qn_f16_to_f32(x) : qn_bf16_to_f32(x);
}

static void *random_rows(size_t n, qn_dtype dtype)
{
    void *rows = qn_xcalloc(n, type_bytes(dtype));
    for (size_t i = 0; i < n; i++) {
        const float x = qn_random_normal();
        if (dtype == QN_DTYPE_F32)
            ((float *)rows)[i] = x;
        else
            ((uint16_t *)rows)[i] = dtype == QN_DTYPE_F16 ? qn_f32_to_f16(x) : qn_f32_to_bf16(x);
    }
    return rows;
}

/* Random codes of all heads, and scales of rows with elements of about 1: scores are then about 1, too. Scales of
 * positions after n_keys are NaN: they must not be read. */
static uint32_t *random_codes(const struct shape *s, unsigned bits)
{
    const size_t n = s->n_kv_heads * s->capacity * qn_aura_row_words(s->dim, bits);
    uint32_t *codes = qn_xcalloc(n, sizeof *codes);
    for (size_t i = 0; i < n; i++)
        codes[i] = (uint32_t)(qn_random() >> 16);
    return codes;
}

static float *random_scales(const struct shape *s)
{
    const size_t n = s->n_kv_heads * s->capacity;
    float *scales = qn_xcalloc(n, sizeof *scales);
    for (size_t i = 0; i < n; i++)
        scales[i] =
            i % s->capacity < s->n_keys ? sqrtf((float)s->dim) * (0.3f + 1.4f * (float)qn_random_below(1000) / 1000) : NAN;
    return scales;
}

/* The standard codec, or one created from its tables, which has the same rotation as a dense matrix. */
static qn_aura_codec *codec_new(const struct shape *s, unsigned bits, uint64_t seed)
{
    const size_t dim = s->dim, levels = (size_t)1 << bits;
    qn_aura_codec *codec, *custom_codec;
    qn_assert_ok(qn_aura_codec_new(&codec, dim, bits, seed));
    if (!s->custom_codec)
        return codec;
    float *rotation = qn_xcalloc(dim * dim, sizeof *rotation);
    qn_assert_ok(qn_aura_codec_tables(codec, (qn_view){ rotation, QN_DTYPE_F32, dim * dim }, (qn_view){ 0 }, (qn_view){ 0 }));
    qn_assert_ok(qn_aura_codec_create_with(&custom_codec, dim, bits, (qn_view){ rotation, QN_DTYPE_F32, dim * dim },
                                           (qn_view){ codec->boundaries, QN_DTYPE_F32, levels - 1 },
                                           (qn_view){ codec->codebook, QN_DTYPE_F32, levels }));
    qn_aura_codec_delete(codec);
    free(rotation);
    return custom_codec;
}

static qn_aura_gpu_rotation rotation_of(struct problem *p, const qn_aura_codec *codec)
{
    const size_t dim = codec->dim;
    if (codec->signs)
        return (qn_aura_gpu_rotation){ .signs = on_gpu(p, codec->signs, dim * sizeof(float)) };
    return (qn_aura_gpu_rotation){ .forward = on_gpu(p, codec->transpose, dim * dim * sizeof(float)),
                                   .inverse = on_gpu(p, codec->rotation, dim * dim * sizeof(float)) };
}

static qn_attention_gpu_codec gpu_codec(struct problem *p, const qn_aura_codec *codec, const qn_aura_gpu_rotation *rotation)
{
    const size_t levels = (size_t)1 << codec->bits;
    return (qn_attention_gpu_codec){ .codebook = on_gpu(p, codec->codebook, levels * sizeof(float)),
                                     .signs = rotation->signs,
                                     .gain = qn_attention_gpu_gain(codec->codebook, levels) };
}

static qn_view floats(void *data, size_t n)
{
    return (qn_view){ data, QN_DTYPE_F32, n };
}

static void init_cpu(struct problem *p)
{
    const struct shape *s = p->s;
    const size_t rows = s->n_kv_heads * s->capacity;
    p->cache = (qn_aura_cache){ .key_codec = p->key_codec,
                                .value_codec = p->value_codec,
                                .key_codes = { p->keys, QN_DTYPE_U32, rows * qn_aura_row_words(s->dim, s->key_bits) },
                                .value_codes = { p->values, QN_DTYPE_U32, rows * qn_aura_row_words(s->dim, s->value_bits) },
                                .key_scales = floats(p->key_scales, rows),
                                .value_scales = floats(p->value_scales, rows),
                                .n_kv_heads = s->n_kv_heads,
                                .capacity = s->capacity,
                                .n_keys = s->n_keys };
    p->cpu_queries = (qn_aura_queries){ .queries = { p->queries, s->dtype, p->n_queries * s->dim },
                                        .n_tokens = s->n_tokens,
                                        .n_heads = s->n_heads,
                                        .scale = 1 / sqrtf((float)s->dim),
                                        .causal = s->causal,
                                        .window = s->window,
                                        .positions = { (void *)(uintptr_t)s->positions, QN_DTYPE_U32, s->n_tokens } };
    if (s->sinks)
        p->cpu_queries.sinks = floats(p->sinks, s->n_heads);
}

/* Uploads the queries. With a dense rotation a separate launch rotates them. */
static void gpu_queries(struct problem *p)
{
    const struct shape *s = p->s;
    const size_t n = p->n_queries * s->dim;
    qn_aura_gpu_queries *q = &p->gpu_queries;
    *q = (qn_aura_gpu_queries){ .queries = on_gpu(p, p->queries, n * type_bytes(s->dtype)),
                                .positions = on_gpu(p, s->positions, s->n_tokens * sizeof *s->positions),
                                .window = s->window,
                                .n_tokens = (uint32_t)s->n_tokens,
                                .n_heads = (uint32_t)s->n_heads,
                                .dtype = (uint32_t)s->dtype,
                                .causal = s->causal,
                                .scale = p->cpu_queries.scale };
    if (p->key_codec->signs)
        return;
    qn_launch launch;
    const qn_aura_rotate_args args = { .rows = q->queries,
                                       .out = keep(p, qn_gpu_new(n * sizeof(float))),
                                       .rotation = p->key_rotation,
                                       .n_rows = (uint32_t)p->n_queries,
                                       .dtype = q->dtype };
    qn_assert_ok(qn_aura_gpu_rotate(s->dim, p->n_queries, &launch));
    qn_gpu_launch(&launch, &args);
    q->queries = args.out;
    q->dtype = QN_DTYPE_F32;
}

static void init_gpu(struct problem *p)
{
    const struct shape *s = p->s;
    const qn_cuda_info *info = qn_cuda_get_info(qn_gpu());
    const size_t rows = s->n_kv_heads * s->capacity, key_row = qn_aura_row_words(s->dim, s->key_bits) * 4,
                 value_row = qn_aura_row_words(s->dim, s->value_bits) * 4;
    p->gpu = (qn_aura_gpu){ .head_dim = s->dim,
                            .n_heads = s->n_heads,
                            .n_kv_heads = s->n_kv_heads,
                            .key_bits = s->key_bits,
                            .value_bits = s->value_bits,
                            .n_sms = info->n_sms,
                            .max_shared_bytes = info->max_shared_bytes };
    qn_assert_ok(qn_aura_gpu_check(&p->gpu));
    p->key_rotation = rotation_of(p, p->key_codec);
    p->value_rotation = rotation_of(p, p->value_codec);
    p->gpu_cache = (qn_aura_gpu_cache){ .rows = { .keys = on_gpu(p, p->keys, rows * key_row),
                                                  .values = on_gpu(p, p->values, rows * value_row),
                                                  .key_scales = on_gpu(p, p->key_scales, rows * 4),
                                                  .value_scales = on_gpu(p, p->value_scales, rows * 4),
                                                  .key_head_stride = s->capacity * key_row,
                                                  .value_head_stride = s->capacity * value_row,
                                                  .scale_head_stride = s->capacity * 4 },
                                        .key_codec = gpu_codec(p, p->key_codec, &p->key_rotation),
                                        .value_codec = gpu_codec(p, p->value_codec, &p->value_rotation),
                                        .n_kv_heads = (uint32_t)s->n_kv_heads,
                                        .n_keys = (uint32_t)s->n_keys };
    p->gpu_sinks = s->sinks ? on_gpu(p, p->sinks, s->n_heads * sizeof *p->sinks) : 0;
    gpu_queries(p);
}

/* Weights like those of a softmax: most are small. With a threshold, a third of the keys has weights below it from all
 * queries; their values must not be read. */
static void make_weights(struct problem *p)
{
    const struct shape *s = p->s;
    for (size_t t = 0; t < s->n_keys; t++) {
        const bool unused_key = s->skip > 0 && qn_random_below(3) == 0;
        for (size_t q = 0; q < p->n_queries; q++) {
            const float x = qn_random_normal();
            p->weights[q * s->n_keys + t] = unused_key ? s->skip * 0.5f : expf(2 * x) / (8 * (float)s->n_keys);
        }
    }
}

static void problem_new(struct problem *p, const struct shape *s)
{
    *p = (struct problem){ .s = s, .n_queries = s->n_tokens * s->n_heads };
    p->n_blocks = (s->n_keys + s->block - 1) / s->block;
    p->key_codec = codec_new(s, s->key_bits, 1);
    p->value_codec = codec_new(s, s->value_bits, 2);
    p->keys = random_codes(s, s->key_bits);
    p->values = random_codes(s, s->value_bits);
    p->key_scales = random_scales(s);
    p->value_scales = random_scales(s);
    p->queries = random_rows(p->n_queries * s->dim, s->dtype);
    p->sinks = random_rows(s->n_heads, QN_DTYPE_F32);
    p->weights = qn_xcalloc(p->n_queries * s->n_keys, sizeof *p->weights);
    make_weights(p);
    init_cpu(p);
    init_gpu(p);
    p->n_splits = qn_aura_gpu_splits(&p->gpu, s->n_tokens, s->n_keys);
}

static void problem_free(struct problem *p)
{
    bool ok = true;
    for (size_t i = 0; i < p->n_memory; i++) {
        ok = ok && qn_gpu_guards_intact(&p->memory[i]);
        qn_gpu_free(&p->memory[i]);
    }
    qn_expect(ok, "bytes outside the output were written");
    void *const all[] = { p->keys, p->values, p->key_scales, p->value_scales, p->queries, p->sinks, p->weights };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    qn_aura_codec_delete(p->key_codec);
    qn_aura_codec_delete(p->value_codec);
}

/* ---- Errors: of all rows, and of the worst row ---- */

static void expect_rows(const void *found, qn_dtype dtype, const float *expected, size_t n_rows, size_t n, double bound,
                        double worst_bound, const char *what)
{
    double error = 0, square = 0, worst = 0;
    for (size_t row = 0; row < n_rows; row++) {
        double row_error = 0, row_square = 0;
        for (size_t i = row * n; i < (row + 1) * n; i++) {
            const double x = (double)expected[i], difference = (double)value_of(found, dtype, i) - x;
            row_error += difference * difference;
            row_square += x * x;
        }
        const double relative = row_square > 0 ? sqrt(row_error / row_square) : sqrt(row_error);
        worst = relative <= worst ? worst : relative; /* NaN counts as worst */
        error += row_error;
        square += row_square;
    }
    const double all = square > 0 ? sqrt(error / square) : sqrt(error), rounding = dtype == QN_DTYPE_F32   ? 0
                                                                                   : dtype == QN_DTYPE_F16 ? 0x1p-11
                                                                                                           : 0x1p-8;
    qn_expect(all <= bound + rounding, "%s: error %.2e, expected up to %.1e", what, all, bound + rounding);
    qn_expect(worst <= worst_bound + rounding, "%s: error of a row %.2e, expected up to %.1e", what, worst,
              worst_bound + rounding);
}

/* ---- Operations ---- */

static void check_score(struct problem *p)
{
    const size_t n_keys = p->s->n_keys, n = p->n_queries * n_keys;
    qn_launch launch;
    float *expected = qn_xcalloc(n, sizeof *expected), *found = qn_xcalloc(n, sizeof *found);
    const qn_gpu_guarded out = qn_gpu_new(n * sizeof(float));
    const qn_aura_score_args args = { .cache = p->gpu_cache, .queries = p->gpu_queries, .scores = keep(p, out) };
    qn_assert_ok(qn_aura_gpu_score(&p->gpu, p->s->n_tokens, (uint32_t)p->n_splits, &launch));
    qn_gpu_launch(&launch, &args);
    qn_gpu_read(&out, found);
    qn_assert_ok(qn_aura_score(&p->cache, &p->cpu_queries, floats(expected, n)));
    expect_rows(found, QN_DTYPE_F32, expected, p->n_queries, n_keys, ERROR_BOUND, WORST_BOUND, "scores");
    free(expected);
    free(found);
}

static void check_value(struct problem *p)
{
    const struct shape *s = p->s;
    const size_t n = p->n_queries * s->dim, size = type_bytes(s->out_dtype);
    qn_launch launch, sum;
    float *expected = qn_xcalloc(n, sizeof *expected);
    void *found = qn_xcalloc(n, size);
    const qn_gpu_guarded out = qn_gpu_new(n * size);
    const qn_aura_value_args args = { .cache = p->gpu_cache,
                                      .weights = on_gpu(p, p->weights, p->n_queries * s->n_keys * sizeof(float)),
                                      .partials = keep(p, qn_gpu_new(n * p->n_splits * sizeof(float))),
                                      .n_tokens = (uint32_t)s->n_tokens,
                                      .n_heads = (uint32_t)s->n_heads,
                                      .skip = s->skip };
    const qn_aura_flash_pass2_args sum_args = { .partials = args.partials,
                                                .out = keep(p, out),
                                                .rotation = p->value_rotation,
                                                .n_heads = (uint32_t)s->n_heads,
                                                .n_blocks = (uint32_t)p->n_splits,
                                                .dtype = (uint32_t)s->out_dtype };
    qn_assert_ok(qn_aura_gpu_value(&p->gpu, s->n_tokens, (uint32_t)p->n_splits, &launch));
    qn_assert_ok(qn_aura_gpu_flash_pass2(s->dim, p->n_queries, &sum));
    qn_gpu_launch(&launch, &args);
    qn_gpu_launch(&sum, &sum_args);
    qn_gpu_read(&out, found);
    qn_assert_ok(qn_aura_value(&p->cache, floats(p->weights, p->n_queries * s->n_keys), s->n_tokens, s->n_heads, s->skip,
                               floats(expected, n)));
    expect_rows(found, s->out_dtype, expected, p->n_queries, s->dim, ERROR_BOUND, WORST_BOUND, "values");
    free(expected);
    free(found);
}

/* The outputs of pass 1. */
struct pass1_output {
    float *partials, *m, *l;
    size_t n;
};

static struct pass1_output pass1_new(const struct problem *p)
{
    const size_t n = p->n_queries * p->n_blocks;
    struct pass1_output x = { .partials = qn_xcalloc(n * p->s->dim, 4), .m = qn_xcalloc(n, 4), .l = qn_xcalloc(n, 4), .n = n };
    memset(x.partials, 0xff, n * p->s->dim * 4);
    memset(x.m, 0xff, n * 4);
    return x;
}

static void pass1_free(struct pass1_output *x)
{
    free(x->partials);
    free(x->m);
    free(x->l);
}

static bool untouched(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (qn_f32_bits(x[i]) != 0xffffffffu)
            return false;
    return true;
}

static void expect_pass1(const struct problem *p, const struct pass1_output *found, struct pass1_output *expected)
{
    const size_t dim = p->s->dim;
    for (size_t i = 0; i < found->n; i++) {
        float *x = found->partials + i * dim;
        qn_expect((found->l[i] == 0) == (expected->l[i] == 0), "l[%zu] is %g, expected %g", i, (double)found->l[i],
                  (double)expected->l[i]);
        if (expected->l[i] == 0) {
            qn_expect(untouched(x, dim) && untouched(&found->m[i], 1),
                      "block %zu: no key is visible, but the output was written", i);
            memset(x, 0, dim * sizeof *x); /* not compared below */
            memset(expected->partials + i * dim, 0, dim * sizeof *x);
            continue;
        }
        const float m = expected->m[i];
        qn_expect(fabsf(found->m[i] - m) <= MAXIMUM_BOUND * fmaxf(1, fabsf(m)), "m[%zu] is %g, expected %g", i,
                  (double)found->m[i], (double)m);
        /* Converted to the same maximum. */
        const float factor = expf(found->m[i] - m);
        qn_expect(fabsf(found->l[i] * factor - expected->l[i]) <= MAXIMUM_BOUND * expected->l[i], "l[%zu] is %g, expected %g",
                  i, (double)(found->l[i] * factor), (double)expected->l[i]);
        for (size_t d = 0; d < dim; d++)
            x[d] *= factor;
    }
    expect_rows(found->partials, QN_DTYPE_F32, expected->partials, found->n, dim, ERROR_BOUND, WORST_BOUND, "pass 1");
}

static void check_pass2(struct problem *p, const struct pass1_output *x)
{
    const struct shape *s = p->s;
    const size_t n = p->n_queries * s->dim, size = type_bytes(s->out_dtype);
    qn_launch launch;
    float *expected = qn_xcalloc(n, sizeof *expected);
    void *found = qn_xcalloc(n, size);
    const qn_gpu_guarded out = qn_gpu_new(n * size);
    const qn_aura_flash_pass2_args args = { .partials = on_gpu(p, x->partials, x->n * s->dim * sizeof(float)),
                                            .m = on_gpu(p, x->m, x->n * sizeof(float)),
                                            .l = on_gpu(p, x->l, x->n * sizeof(float)),
                                            .sinks = p->gpu_sinks,
                                            .out = keep(p, out),
                                            .rotation = p->value_rotation,
                                            .n_heads = (uint32_t)s->n_heads,
                                            .n_blocks = (uint32_t)p->n_blocks,
                                            .dtype = (uint32_t)s->out_dtype };
    qn_assert_ok(qn_aura_gpu_flash_pass2(s->dim, p->n_queries, &launch));
    qn_gpu_launch(&launch, &args);
    qn_gpu_read(&out, found);
    qn_assert_ok(qn_aura_flash_pass2(p->value_codec, p->n_queries, s->n_heads, p->n_blocks, floats(x->partials, x->n * s->dim),
                                     floats(x->m, x->n), floats(x->l, x->n), p->cpu_queries.sinks, floats(expected, n)));
    expect_rows(found, s->out_dtype, expected, p->n_queries, s->dim, PASS2_BOUND, PASS2_BOUND, "pass 2");
    free(expected);
    free(found);
}

static void check_flash(struct problem *p)
{
    const struct shape *s = p->s;
    const size_t n = p->n_queries * s->dim, size = type_bytes(s->out_dtype);
    struct pass1_output found = pass1_new(p), again = pass1_new(p), expected = pass1_new(p);
    qn_launch pass1, pass2, single;
    float *result = qn_xcalloc(n, sizeof *result);
    void *out = qn_xcalloc(n, size);
    const qn_gpu_guarded partials = qn_gpu_new(found.n * s->dim * 4), m = qn_gpu_new(found.n * 4), l = qn_gpu_new(found.n * 4),
                         combined = qn_gpu_new(n * size), single_out = qn_gpu_new(n * size);
    qn_aura_flash_pass1_args args = { .cache = p->gpu_cache,
                                      .queries = p->gpu_queries,
                                      .partials = keep(p, partials),
                                      .m = keep(p, m),
                                      .l = keep(p, l),
                                      .block = (uint32_t)s->block,
                                      .n_blocks = (uint32_t)p->n_blocks };
    const qn_aura_flash_pass2_args combine = { .partials = partials.data,
                                               .m = m.data,
                                               .l = l.data,
                                               .sinks = p->gpu_sinks,
                                               .out = keep(p, combined),
                                               .rotation = p->value_rotation,
                                               .n_heads = (uint32_t)s->n_heads,
                                               .n_blocks = (uint32_t)p->n_blocks,
                                               .dtype = (uint32_t)s->out_dtype };
    const qn_aura_attention_args single_args = { .cache = p->gpu_cache,
                                                 .queries = p->gpu_queries,
                                                 .sinks = p->gpu_sinks,
                                                 .out = keep(p, single_out),
                                                 .rotation = p->value_rotation,
                                                 .dtype = (uint32_t)s->out_dtype };
    qn_assert_ok(qn_aura_gpu_flash_pass1(&p->gpu, s->n_tokens, s->n_keys, s->block, &args.warps_per_block, &pass1));
    qn_assert_ok(qn_aura_gpu_flash_pass2(s->dim, p->n_queries, &pass2));
    qn_assert_ok(qn_aura_gpu_attention(&p->gpu, s->n_tokens, &single));
    qn_gpu_launch(&pass1, &args);
    qn_gpu_launch(&pass2, &combine);
    qn_gpu_launch(&single, &single_args);
    qn_gpu_read(&partials, found.partials);
    qn_gpu_read(&m, found.m);
    qn_gpu_read(&l, found.l);

    qn_gpu_launch(&pass1, &args); /* again, over its own output: the same bits */
    qn_gpu_read(&partials, again.partials);
    qn_expect(!memcmp(again.partials, found.partials, found.n * s->dim * 4), "the second run's partials differ");

    qn_assert_ok(qn_aura_attention(&p->cache, &p->cpu_queries, floats(result, n)));
    qn_gpu_read(&combined, out);
    expect_rows(out, s->out_dtype, result, p->n_queries, s->dim, ERROR_BOUND, WORST_BOUND, "two passes");
    qn_gpu_read(&single_out, out);
    expect_rows(out, s->out_dtype, result, p->n_queries, s->dim, ERROR_BOUND, WORST_BOUND, "single pass");

    qn_assert_ok(qn_aura_flash_pass1(&p->cache, &p->cpu_queries, s->block, floats(expected.partials, found.n * s->dim),
                                     floats(expected.m, found.n), floats(expected.l, found.n)));
    check_pass2(p, &expected); /* partials and m of blocks without visible keys are NaN */
    expect_pass1(p, &found, &expected);
    pass1_free(&found);
    pass1_free(&again);
    pass1_free(&expected);
    free(result);
    free(out);
}

static void check_shape(const struct shape *s)
{
    if (!qn_case_selected())
        return;
    struct problem p;
    qn_random_seed(s->dim * 1000 + s->key_bits * 100 + s->value_bits * 10 + s->n_keys + s->block);
    qn_case_begin("aura-ops", "cuda",
                  "heads %zu of %zu over %zu, %zu tokens, %zu of %zu keys in %u and %u bits, blocks of %zu%s%s%s, window %zu",
                  s->n_heads, s->dim, s->n_kv_heads, s->n_tokens, s->n_keys, s->capacity, s->key_bits, s->value_bits, s->block,
                  s->causal ? ", causal" : "", s->sinks ? ", sinks" : "", s->custom_codec ? ", custom codec" : "", s->window);
    problem_new(&p, s);
    check_score(&p);
    check_flash(&p);
    /* Values whose weights are all below the threshold are not read: their scales may be NaN. */
    bool *reached = qn_xcalloc(s->n_keys, sizeof *reached);
    for (size_t i = 0; i < p.n_queries * s->n_keys; i++)
        reached[i % s->n_keys] |= !(p.weights[i] < s->skip);
    for (size_t i = 0; i < s->n_kv_heads * s->n_keys; i++)
        if (!reached[i % s->n_keys])
            p.value_scales[i / s->n_keys * s->capacity + i % s->n_keys] = NAN;
    p.gpu_cache.rows.value_scales = on_gpu(&p, p.value_scales, s->n_kv_heads * s->capacity * 4);
    check_value(&p);
    free(reached);
    problem_free(&p);
}

/* ---- Speed ---- */

struct timed {
    qn_launch first, second; /* second is optional: its function may be NULL */
    void *first_args;        /* of each iteration */
    size_t args_bytes;
    const void *second_args;
};

static void run_iteration(void *context, size_t iteration)
{
    const struct timed *t = context;
    qn_gpu_launch(&t->first, (const char *)t->first_args + iteration * t->args_bytes);
    if (t->second.function)
        qn_gpu_launch(&t->second, t->second_args);
}

struct bench {
    struct problem p;
    size_t n_iterations, key_bytes, value_bytes, scale_bytes, query_bytes;
    qn_gpu_guarded *copies; /* of the cache, each followed by a float for each query and key */
    qn_aura_gpu_cache *caches;
    char text[96];
};

static void bench_new(struct bench *b, const struct shape *s)
{
    problem_new(&b->p, s);
    const qn_attention_gpu_cache *rows = &b->p.gpu_cache.rows;
    b->key_bytes = rows->key_head_stride * s->n_kv_heads;
    b->value_bytes = rows->value_head_stride * s->n_kv_heads;
    b->scale_bytes = rows->scale_head_stride * s->n_kv_heads;
    b->query_bytes = b->p.n_queries * s->n_keys * sizeof(float);
    b->n_iterations = qn_gpu_bench_copies((b->key_bytes < b->value_bytes ? b->key_bytes : b->value_bytes) + b->query_bytes);
    b->copies = qn_xcalloc(b->n_iterations, sizeof *b->copies);
    b->caches = qn_xcalloc(b->n_iterations, sizeof *b->caches);
    for (size_t i = 0; i < b->n_iterations; i++) {
        const size_t bytes = b->key_bytes + b->value_bytes + 2 * b->scale_bytes;
        b->copies[i] = qn_gpu_new(bytes + b->query_bytes);
        b->caches[i] = b->p.gpu_cache;
        qn_attention_gpu_cache *c = &b->caches[i].rows;
        c->keys = b->copies[i].data;
        c->values = c->keys + b->key_bytes;
        c->key_scales = c->values + b->value_bytes;
        c->value_scales = c->key_scales + b->scale_bytes;
        qn_assert_ok(qn_cuda_copy_d2d(qn_gpu(), qn_gpu_stream(), c->keys, rows->keys, b->key_bytes));
        qn_assert_ok(qn_cuda_copy_d2d(qn_gpu(), qn_gpu_stream(), c->values, rows->values, b->value_bytes));
        qn_assert_ok(qn_cuda_copy_d2d(qn_gpu(), qn_gpu_stream(), c->key_scales, rows->key_scales, b->scale_bytes));
        qn_assert_ok(qn_cuda_copy_d2d(qn_gpu(), qn_gpu_stream(), c->value_scales, rows->value_scales, b->scale_bytes));
        qn_gpu_synchronize();
        qn_assert_ok(qn_cuda_upload(qn_gpu(), b->copies[i].data + bytes, b->p.weights, b->query_bytes, NULL, NULL));
    }
    snprintf(b->text, sizeof b->text, "%zu heads of %zu over %zu, %zu keys", s->n_heads, s->dim, s->n_kv_heads, s->n_keys);
}

static void bench_free(struct bench *b)
{
    for (size_t i = 0; i < b->n_iterations; i++)
        qn_gpu_free(&b->copies[i]);
    free(b->copies);
    free(b->caches);
    problem_free(&b->p);
}

static void bench_run(struct bench *b, struct timed *t, const char *what, size_t bytes)
{
    const struct shape *s = b->p.s;
    char variant[48];
    t->first.pdl = t->second.pdl = true;
    snprintf(variant, sizeof variant, "%s %u/%u", what, s->key_bits, s->value_bits);
    qn_gpu_bench("aura", variant, b->text, (double)bytes, "B", qn_gpu_read_rate(), run_iteration, t, b->n_iterations);
}

static void bench_score(struct bench *b)
{
    qn_aura_score_args *args = qn_xcalloc(b->n_iterations, sizeof *args);
    struct timed t = { .first_args = args, .args_bytes = sizeof *args };
    for (size_t i = 0; i < b->n_iterations; i++)
        args[i] =
            (qn_aura_score_args){ b->caches[i], b->p.gpu_queries, b->copies[i].data + b->copies[i].bytes - b->query_bytes };
    qn_assert_ok(qn_aura_gpu_score(&b->p.gpu, b->p.s->n_tokens, (uint32_t)b->p.n_splits, &t.first));
    bench_run(b, &t, "score", b->key_bytes + b->scale_bytes + b->query_bytes);
    free(args);
}

static void bench_value(struct bench *b, float skip, const char *what)
{
    struct problem *p = &b->p;
    const struct shape *s = p->s;
    const size_t n = p->n_queries * s->dim;
    qn_aura_value_args *args = qn_xcalloc(b->n_iterations, sizeof *args);
    qn_gpu_guarded partials = qn_gpu_new(n * p->n_splits * 4), out = qn_gpu_new(n * 4);
    const qn_aura_flash_pass2_args sum = { .partials = partials.data,
                                           .out = out.data,
                                           .rotation = p->value_rotation,
                                           .n_heads = (uint32_t)s->n_heads,
                                           .n_blocks = (uint32_t)p->n_splits };
    struct timed t = { .first_args = args, .args_bytes = sizeof *args, .second_args = &sum };
    for (size_t i = 0; i < b->n_iterations; i++)
        args[i] = (qn_aura_value_args){ .cache = b->caches[i],
                                        .weights = b->copies[i].data + b->copies[i].bytes - b->query_bytes,
                                        .partials = partials.data,
                                        .n_tokens = (uint32_t)s->n_tokens,
                                        .n_heads = (uint32_t)s->n_heads,
                                        .skip = skip };
    qn_assert_ok(qn_aura_gpu_value(&p->gpu, s->n_tokens, (uint32_t)p->n_splits, &t.first));
    qn_assert_ok(qn_aura_gpu_flash_pass2(s->dim, p->n_queries, &t.second));
    bench_run(b, &t, what, b->value_bytes + b->scale_bytes + b->query_bytes);
    qn_gpu_free(&partials);
    qn_gpu_free(&out);
    free(args);
}

static void bench_flash(struct bench *b, size_t block)
{
    struct problem *p = &b->p;
    const struct shape *s = p->s;
    const size_t n_blocks = (s->n_keys + block - 1) / block, n = p->n_queries * n_blocks;
    char what[32];
    qn_aura_flash_pass1_args *args = qn_xcalloc(b->n_iterations, sizeof *args);
    qn_gpu_guarded partials = qn_gpu_new(n * s->dim * 4), m = qn_gpu_new(n * 4), l = qn_gpu_new(n * 4),
                   out = qn_gpu_new(p->n_queries * s->dim * 4);
    const qn_aura_flash_pass2_args combine = { .partials = partials.data,
                                               .m = m.data,
                                               .l = l.data,
                                               .out = out.data,
                                               .rotation = p->value_rotation,
                                               .n_heads = (uint32_t)s->n_heads,
                                               .n_blocks = (uint32_t)n_blocks };
    struct timed t = { .first_args = args, .args_bytes = sizeof *args, .second_args = &combine };
    uint32_t warps_per_block;
    qn_assert_ok(qn_aura_gpu_flash_pass1(&p->gpu, s->n_tokens, s->n_keys, block, &warps_per_block, &t.first));
    qn_assert_ok(qn_aura_gpu_flash_pass2(s->dim, p->n_queries, &t.second));
    for (size_t i = 0; i < b->n_iterations; i++)
        args[i] = (qn_aura_flash_pass1_args){ .cache = b->caches[i],
                                              .queries = p->gpu_queries,
                                              .partials = partials.data,
                                              .m = m.data,
                                              .l = l.data,
                                              .block = (uint32_t)block,
                                              .n_blocks = (uint32_t)n_blocks,
                                              .warps_per_block = warps_per_block };
    snprintf(what, sizeof what, "flash, blocks of %zu", block);
    bench_run(b, &t, what, b->key_bytes + b->value_bytes + 2 * b->scale_bytes);
    qn_gpu_free(&partials);
    qn_gpu_free(&m);
    qn_gpu_free(&l);
    qn_gpu_free(&out);
    free(args);
}

static void bench_shape(size_t dim, size_t n_heads, size_t n_kv_heads, size_t n_keys, unsigned bits, bool all_blocks)
{
    const struct shape s = { .dim = dim,
                             .n_heads = n_heads,
                             .n_kv_heads = n_kv_heads,
                             .n_keys = n_keys,
                             .capacity = n_keys,
                             .n_tokens = 1,
                             .key_bits = bits,
                             .value_bits = bits,
                             .block = n_keys };
    struct bench b;
    qn_random_seed(1);
    bench_new(&b, &s);
    bench_score(&b);
    bench_value(&b, 0, "value");
    /* exp(2 x) of a normal x is above this threshold for 1 of 31 query-key pairs: with 6 queries a group, 5 of 6 keys
     * are not read. */
    bench_value(&b, expf(2 * 1.85f) / (8 * (float)n_keys), "value, few");
    bench_flash(&b, qn_aura_gpu_flash_block(&b.p.gpu, 1, n_keys));
    if (all_blocks) {
        bench_flash(&b, 64);
        bench_flash(&b, 256);
    }
    bench_free(&b);
}

static void bench_decode(size_t dim, unsigned bits, qn_dtype dtype, bool rotate)
{
    enum { ROWS = 1 << 17 };
    static const char *const names[] = { "f32", "f16" };
    const struct shape s = { .dim = dim, .n_heads = 1, .n_kv_heads = 1, .n_keys = ROWS, .capacity = ROWS };
    const size_t words = qn_aura_row_words(dim, bits), bytes = ROWS * (words * 4 + 4 + dim * type_bytes(dtype));
    struct problem p = { .s = &s };
    struct timed t = { .args_bytes = 0 };
    char variant[48], text[96];
    uint32_t *codes = random_codes(&s, bits);
    float *scales = random_scales(&s);
    qn_aura_codec *codec = codec_new(&s, bits, 1);
    const qn_aura_gpu_rotation rotation = rotation_of(&p, codec);
    qn_aura_decode_args args = { .codes = on_gpu(&p, codes, ROWS * words * 4),
                                 .scales = on_gpu(&p, scales, ROWS * 4),
                                 .rows = keep(&p, qn_gpu_new(ROWS * dim * type_bytes(dtype))),
                                 .levels = { .codebook = gpu_codec(&p, codec, &rotation).codebook },
                                 .n_rows = ROWS,
                                 .dtype = (uint32_t)dtype };
    if (rotate)
        args.rotation = rotation;
    t.first_args = &args;
    qn_assert_ok(qn_aura_gpu_decode(dim, bits, ROWS, &t.first));
    snprintf(variant, sizeof variant, "decode %u, %s", bits, dtype == QN_DTYPE_BF16 ? "bf16" : names[dtype]);
    snprintf(text, sizeof text, "%d rows of %zu%s", (int)ROWS, dim, rotate ? ", rotated back" : "");
    qn_gpu_bench("aura", variant, text, (double)bytes, "B", qn_gpu_read_rate(), run_iteration, &t, 1);
    for (size_t i = 0; i < p.n_memory; i++)
        qn_gpu_free(&p.memory[i]);
    free(codes);
    free(scales);
    qn_aura_codec_delete(codec);
}

static void bench_all(void)
{
    static const unsigned bits[] = { 2, 3, 4, 6, 8 };
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++)
        bench_shape(256, 24, 4, 32768, bits[i], bits[i] == 4);
    bench_shape(128, 32, 8, 32768, 4, false);
    bench_decode(256, 4, QN_DTYPE_F32, false);
    bench_decode(256, 4, QN_DTYPE_F16, false);
    bench_decode(256, 4, QN_DTYPE_BF16, true);
    bench_decode(128, 3, QN_DTYPE_F16, true);
    bench_decode(128, 8, QN_DTYPE_F16, false);
}

void qn_check_cuda_aura_ops(bool bench)
{
    static const size_t dims[] = { 64, 80, 96, 128, 192, 256, 512 }, blocks[] = { 64, 1000, 16, 100, 7, 256, 33 };
    static const unsigned bits[] = { 2, 3, 4, 6, 8 };
    static const qn_dtype types[] = { QN_DTYPE_F32, QN_DTYPE_F16, QN_DTYPE_BF16 };
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (size_t j = 0; j < sizeof bits / sizeof *bits; j++) {
            const size_t n_keys = 150 + 37 * ((i + 3 * j) % 7);
            const bool mixed = (i + j) % 5 == 4;
            check_shape(&(struct shape){ .dim = dims[i],
                                         .n_heads = 6,
                                         .n_kv_heads = 2,
                                         .n_keys = n_keys,
                                         .capacity = n_keys + (i + j) % 3 * 5,
                                         .n_tokens = 1 + (i + j) % 4,
                                         .key_bits = bits[j],
                                         .value_bits = mixed ? bits[(j + 3) % 5] : bits[j],
                                         .causal = i % 2,
                                         .sinks = j % 2,
                                         .window = (i + j) % 3 == 1 ? 40 : 0,
                                         .block = blocks[(i + j) % 7],
                                         /* with a window, the third token has no visible key: its position is far past
                                          * them */
                                         .positions = { (uint32_t)n_keys - 1, 20, 2000, (uint32_t)n_keys / 2 },
                                         .dtype = types[i % 3],
                                         .out_dtype = types[(i + j) % 3],
                                         .skip = j % 2 ? 0.5f / (float)n_keys : 0 });
        }
    /* A single key; a group of more heads than a tile holds; caches long enough for warps to share a block; custom
     * rotations. */
    check_shape(&(struct shape){ 128, 4, 4, 1, 3, 1, 4, 4, .causal = true, .block = 64 });
    check_shape(&(struct shape){ 128, 20, 2, 500, 500, 5, 4, 4, .causal = true, .sinks = true, .block = 48,
                                 .positions = { 499, 100, 0, 47, 48 } });
    check_shape(&(struct shape){ 256, 24, 4, 6001, 6016, 1, 4, 4, .block = 1024, .skip = 1e-4f });
    check_shape(&(struct shape){ 256, 24, 4, 6001, 6016, 1, 4, 4, .block = 100000, .sinks = true });
    check_shape(&(struct shape){ 128, 8, 8, 4097, 4097, 2, 4, 4, .causal = true, .window = 1000, .block = 512,
                                 .positions = { 4096, 3000 } });
    check_shape(&(struct shape){ 128, 8, 2, 300, 301, 2, 4, 4, .custom_codec = true, .causal = true, .block = 128,
                                 .positions = { 299, 200 }, .dtype = QN_DTYPE_F16, .out_dtype = QN_DTYPE_BF16 });
    if (bench)
        bench_all();
}
