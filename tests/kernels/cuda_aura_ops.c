/* The public AURA operations on the GPU compared with the CPU's: scores, values, flash decoding in two passes,
 * attention in one. Windows, sinks, several tokens, blocks of any length, queries without visible keys, capacities
 * larger than n_keys. */
#include "cuda_aura_problem.h"

#include "base/f16.h"

/* Keys, values, queries and weights are rounded to fp16: a relative error of up to 2^-11 each, mostly less than half of
 * that. Errors are random and do not add up. */
#define ERROR_BOUND 2e-3
#define WORST_BOUND 8e-3    /* of one query: values may cancel */
#define PASS2_BOUND 1e-5    /* float32 sums of up to some hundred blocks, exponents of up to 2^4 */
#define MAXIMUM_BOUND 8e-3f /* worst error of many scores of about 1 */

/* ---- Operations ---- */

/* Rows of the problem's queries, for results. */
static qn_gpu_rows new_out(const qn_aura_ops_problem *p, qn_dtype dtype, size_t n)
{
    return qn_gpu_rows_poison(dtype, p->n_queries, n, 0, 0);
}

static void expect_rows(const qn_gpu_rows *found, const float *expected, const char *what)
{
    qn_gpu_rows_expect_relative(found, expected, found->n, ERROR_BOUND, WORST_BOUND, what);
}

static void check_score(qn_aura_ops_problem *p)
{
    const size_t n_keys = p->s->n_keys, n = p->n_queries * n_keys;
    qn_launch launch;
    float *expected = qn_floats(n);
    const qn_gpu_rows out = new_out(p, QN_DTYPE_F32, n_keys);
    const qn_aura_score_args args = { .cache = p->gpu_cache, .queries = p->gpu_queries, .scores = out.memory };
    qn_assert_ok(qn_aura_gpu_score(&p->gpu, p->s->n_tokens, (uint32_t)p->n_splits, &launch));
    qn_gpu_launch(&launch, &args);
    qn_assert_ok(qn_aura_score(&p->cache, &p->cpu_queries, qn_floats_view(expected, n)));
    expect_rows(&out, expected, "scores");
}

static void check_value(qn_aura_ops_problem *p)
{
    const qn_aura_ops_shape *s = p->s;
    const size_t n = p->n_queries * s->dim;
    qn_launch launch;
    float *expected = qn_floats(n);
    const qn_gpu_rows out = new_out(p, s->out_dtype, s->dim);
    const qn_aura_value_args args = { .cache = p->gpu_cache,
                                      .weights = qn_gpu_copy(p->weights),
                                      .partials = qn_gpu_floats(n * p->n_splits),
                                      .n_tokens = (uint32_t)s->n_tokens,
                                      .n_heads = (uint32_t)s->n_heads,
                                      .skip = s->skip };
    const qn_aura_flash_pass2_args sum =
        qn_aura_ops_pass2(p, args.partials, 0, 0, p->n_splits, out.memory, s->out_dtype);
    qn_assert_ok(qn_aura_gpu_value(&p->gpu, s->n_tokens, (uint32_t)p->n_splits, &launch));
    qn_gpu_launch(&launch, &args);
    qn_aura_ops_launch_pass2(p, &sum);
    qn_assert_ok(qn_aura_value(&p->cache, qn_floats_view(p->weights, p->n_queries * s->n_keys), s->n_tokens, s->n_heads,
                               s->skip, qn_floats_view(expected, n)));
    expect_rows(&out, expected, "values");
}

/* The outputs of pass 1. */
struct pass1_output {
    float *partials, *m, *l;
    size_t n;
};

static bool untouched(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (qn_f32_bits(x[i]) != 0xffffffffu)
            return false;
    return true;
}

static void expect_pass1(const qn_aura_ops_problem *p, const struct pass1_output *found,
                         const struct pass1_output *expected)
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
        qn_expect(fabsf(found->l[i] * factor - expected->l[i]) <= MAXIMUM_BOUND * expected->l[i],
                  "l[%zu] is %g, expected %g", i, (double)(found->l[i] * factor), (double)expected->l[i]);
        for (size_t d = 0; d < dim; d++)
            x[d] *= factor;
    }
    qn_expect_relative(found->partials, expected->partials, found->n, dim, QN_DTYPE_F32, ERROR_BOUND, WORST_BOUND,
                       "pass 1");
}

/* The CPU's first pass, combined by both. Partials and m of blocks without visible keys are NaN. */
static void check_pass2(qn_aura_ops_problem *p, const struct pass1_output *x)
{
    const qn_aura_ops_shape *s = p->s;
    const size_t n = p->n_queries * s->dim;
    float *expected = qn_floats(n);
    const qn_gpu_rows out = new_out(p, s->out_dtype, s->dim);
    qn_aura_flash_pass2_args args = qn_aura_ops_pass2(p, qn_gpu_copy(x->partials), qn_gpu_copy(x->m), qn_gpu_copy(x->l),
                                                      p->n_blocks, out.memory, s->out_dtype);
    args.sinks = p->gpu_sinks;
    qn_aura_ops_launch_pass2(p, &args);
    qn_assert_ok(qn_aura_flash_pass2(p->value_codec, p->n_queries, s->n_heads, p->n_blocks,
                                     qn_floats_view(x->partials, x->n * s->dim), qn_floats_view(x->m, x->n),
                                     qn_floats_view(x->l, x->n), p->cpu_queries.sinks, qn_floats_view(expected, n)));
    qn_gpu_rows_expect_relative(&out, expected, s->dim, PASS2_BOUND, PASS2_BOUND, "pass 2");
}

static void check_flash(qn_aura_ops_problem *p)
{
    const qn_aura_ops_shape *s = p->s;
    const size_t n = p->n_queries * s->dim, n_pass1 = p->n_queries * p->n_blocks;
    qn_launch pass1, single;
    float *result = qn_floats(n);
    const qn_gpu_rows combined = new_out(p, s->out_dtype, s->dim), single_out = new_out(p, s->out_dtype, s->dim);
    qn_aura_flash_pass1_args args = { .cache = p->gpu_cache,
                                      .queries = p->gpu_queries,
                                      .partials = qn_gpu_floats(n_pass1 * s->dim),
                                      .m = qn_gpu_floats(n_pass1),
                                      .l = qn_gpu_floats(n_pass1),
                                      .block = (uint32_t)s->block,
                                      .n_blocks = (uint32_t)p->n_blocks };
    qn_aura_flash_pass2_args combine =
        qn_aura_ops_pass2(p, args.partials, args.m, args.l, p->n_blocks, combined.memory, s->out_dtype);
    combine.sinks = p->gpu_sinks;
    const qn_aura_attention_args single_args = { .cache = p->gpu_cache,
                                                 .queries = p->gpu_queries,
                                                 .sinks = p->gpu_sinks,
                                                 .out = single_out.memory,
                                                 .rotation = p->value_rotation,
                                                 .out_stride = combine.out_stride,
                                                 .dtype = combine.dtype };
    qn_assert_ok(qn_aura_gpu_flash_pass1(&p->gpu, s->n_tokens, s->n_keys, s->block, &args.warps_per_block, &pass1));
    qn_assert_ok(qn_aura_gpu_attention(&p->gpu, s->n_tokens, &single));
    qn_gpu_launch(&pass1, &args);
    qn_aura_ops_launch_pass2(p, &combine);
    qn_gpu_launch(&single, &single_args);
    const struct pass1_output found = { qn_gpu_read(args.partials), qn_gpu_read(args.m), qn_gpu_read(args.l), n_pass1 };

    qn_gpu_launch(&pass1, &args); /* again, over its own output: the same bits */
    qn_expect(!memcmp(qn_gpu_read(args.partials), found.partials, qn_gpu_bytes(args.partials)),
              "the second run's partials differ");

    qn_assert_ok(qn_aura_attention(&p->cache, &p->cpu_queries, qn_floats_view(result, n)));
    expect_rows(&combined, result, "two passes");
    expect_rows(&single_out, result, "single pass");

    struct pass1_output expected = { memset(qn_floats(n_pass1 * s->dim), 0xff, n_pass1 * s->dim * 4),
                                     memset(qn_floats(n_pass1), 0xff, n_pass1 * 4), qn_floats(n_pass1), n_pass1 };
    qn_assert_ok(qn_aura_flash_pass1(&p->cache, &p->cpu_queries, s->block,
                                     qn_floats_view(expected.partials, n_pass1 * s->dim),
                                     qn_floats_view(expected.m, n_pass1), qn_floats_view(expected.l, n_pass1)));
    check_pass2(p, &expected);
    expect_pass1(p, &found, &expected);
}

static void check_shape(const qn_aura_ops_shape *s)
{
    if (!qn_case_selected())
        return;
    qn_aura_ops_problem p;
    qn_random_seed(s->dim * 1000 + s->key_bits * 100 + s->value_bits * 10 + s->n_keys + s->block);
    qn_case_begin(
        "aura-ops", "cuda",
        "heads %zu of %zu over %zu, %zu tokens, %zu of %zu keys in %u and %u bits, blocks of %zu%s%s%s, window %zu",
        s->n_heads, s->dim, s->n_kv_heads, s->n_tokens, s->n_keys, s->capacity, s->key_bits, s->value_bits, s->block,
        s->causal ? ", causal" : "", s->sinks ? ", sinks" : "", s->custom_codec ? ", custom codec" : "", s->window);
    qn_aura_ops_problem_new(&p, s);
    check_score(&p);
    check_flash(&p);
    /* Values whose weights are all below the threshold are not read: their scales may be NaN. */
    bool *reached = qn_new(s->n_keys, sizeof *reached);
    for (size_t i = 0; i < p.n_queries * s->n_keys; i++)
        reached[i % s->n_keys] |= !(p.weights[i] < s->skip);
    for (size_t i = 0; i < s->n_kv_heads * s->n_keys; i++)
        if (!reached[i % s->n_keys])
            p.value_scales[i / s->n_keys * s->capacity + i % s->n_keys] = NAN;
    p.gpu_cache.rows.value_scales = qn_gpu_copy(p.value_scales);
    check_value(&p);
    qn_release();
}

void qn_check_cuda_aura_ops(bool bench)
{
    static const size_t dims[] = { 64, 80, 96, 128, 192, 256, 512 }, blocks[] = { 64, 1000, 16, 100, 7, 256, 33 };
    static const unsigned bits[] = { 2, 3, 4, 6, 8 };
    static const qn_dtype types[] = { QN_DTYPE_F32, QN_DTYPE_F16, QN_DTYPE_BF16 };
    for (size_t i = 0; i < QN_LENGTH(dims); i++)
        for (size_t j = 0; j < QN_LENGTH(bits); j++) {
            const size_t n_keys = 150 + 37 * ((i + 3 * j) % 7);
            const bool mixed = (i + j) % 5 == 4;
            check_shape(&(qn_aura_ops_shape){ .dim = dims[i],
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
                                              /* with a window, the third token has no visible key: its position is far
                                               * past them */
                                              .positions = { (uint32_t)n_keys - 1, 20, 2000, (uint32_t)n_keys / 2 },
                                              .dtype = types[i % 3],
                                              .out_dtype = types[(i + j) % 3],
                                              .skip = j % 2 ? 0.5f / (float)n_keys : 0 });
        }
    /* A single key; a group of more heads than a tile holds; caches long enough for warps to share a block; custom
     * rotations. */
    check_shape(&(qn_aura_ops_shape){ 128, 4, 4, 1, 3, 1, 4, 4, .causal = true, .block = 64 });
    check_shape(&(qn_aura_ops_shape){ 128, 20, 2, 500, 500, 5, 4, 4, .causal = true, .sinks = true, .block = 48,
                                      .positions = { 499, 100, 0, 47, 48 } });
    check_shape(&(qn_aura_ops_shape){ 256, 24, 4, 6001, 6016, 1, 4, 4, .block = 1024, .skip = 1e-4f });
    check_shape(&(qn_aura_ops_shape){ 256, 24, 4, 6001, 6016, 1, 4, 4, .block = 100000, .sinks = true });
    check_shape(&(qn_aura_ops_shape){ 128, 8, 8, 4097, 4097, 2, 4, 4, .causal = true, .window = 1000, .block = 512,
                                      .positions = { 4096, 3000 } });
    check_shape(&(qn_aura_ops_shape){ 128, 8, 2, 300, 301, 2, 4, 4, .custom_codec = true, .causal = true, .block = 128,
                                      .positions = { 299, 200 }, .dtype = QN_DTYPE_F16, .out_dtype = QN_DTYPE_BF16 });
    if (bench)
        qn_bench_cuda_aura_ops();
}
