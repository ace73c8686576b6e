/* Speed of the public AURA operations on the GPU: score, value, flash decoding, decoding of rows. Each iteration reads
 * another copy of the cache, so that codes come from HBM. */
#include "cuda_aura_problem.h"

struct bench {
    qn_aura_ops_problem p;
    size_t n_iterations, key_bytes, value_bytes, scale_bytes, query_bytes;
    qn_aura_gpu_cache *caches; /* of each iteration */
    uint64_t *weights;         /* of each iteration, after its cache: a float for each query and key */
    const char *text;
};

static void bench_new(struct bench *b, const qn_aura_ops_shape *s)
{
    qn_aura_ops_problem_new(&b->p, s);
    const qn_attention_gpu_cache *rows = &b->p.gpu_cache.rows;
    b->key_bytes = rows->key_head_stride * s->n_kv_heads;
    b->value_bytes = rows->value_head_stride * s->n_kv_heads;
    b->scale_bytes = rows->scale_head_stride * s->n_kv_heads;
    b->query_bytes = b->p.n_queries * s->n_keys * sizeof(float);
    b->n_iterations =
        qn_gpu_bench_copies((b->key_bytes < b->value_bytes ? b->key_bytes : b->value_bytes) + b->query_bytes);
    b->caches = qn_new(b->n_iterations, sizeof *b->caches);
    b->weights = qn_new(b->n_iterations, sizeof *b->weights);
    for (size_t i = 0; i < b->n_iterations; i++) {
        b->caches[i] = b->p.gpu_cache;
        b->weights[i] =
            qn_attention_copy_cache(&b->caches[i].rows, b->key_bytes, b->value_bytes, b->scale_bytes, b->query_bytes);
        qn_gpu_write(b->weights[i], b->p.weights, b->query_bytes);
    }
    b->text = qn_text("%zu heads of %zu over %zu, %zu keys", s->n_heads, s->dim, s->n_kv_heads, s->n_keys);
}

/* second: arguments of a second pass, or NULL. */
static void bench_run(struct bench *b, const qn_gpu_timed *first, const qn_aura_flash_pass2_args *second,
                      const char *what, size_t bytes)
{
    const qn_aura_ops_shape *s = b->p.s;
    qn_gpu_timed launches[2] = { *first, { .args = second } };
    if (second)
        qn_assert_ok(qn_aura_gpu_flash_pass2(s->dim, b->p.n_queries, &launches[1].launch));
    launches[0].launch.pdl = launches[1].launch.pdl = true;
    qn_gpu_bench_launches("aura", qn_text("%s %u/%u", what, s->key_bits, s->value_bits), b->text, (double)bytes, "B",
                          qn_gpu_read_rate(), launches, second ? 2 : 1, b->n_iterations);
}

static void bench_score(struct bench *b)
{
    qn_aura_score_args *args = qn_new(b->n_iterations, sizeof *args);
    qn_gpu_timed t = { .args = args, .stride = sizeof *args };
    for (size_t i = 0; i < b->n_iterations; i++)
        args[i] = (qn_aura_score_args){ b->caches[i], b->p.gpu_queries, b->weights[i] };
    qn_assert_ok(qn_aura_gpu_score(&b->p.gpu, b->p.s->n_tokens, (uint32_t)b->p.n_splits, &t.launch));
    bench_run(b, &t, NULL, "score", b->key_bytes + b->scale_bytes + b->query_bytes);
}

static void bench_value(struct bench *b, float skip, const char *what)
{
    const qn_aura_ops_problem *p = &b->p;
    const qn_aura_ops_shape *s = p->s;
    const size_t n = p->n_queries * s->dim;
    qn_aura_value_args *args = qn_new(b->n_iterations, sizeof *args);
    const uint64_t partials = qn_gpu_floats(n * p->n_splits);
    const qn_aura_flash_pass2_args sum =
        qn_aura_ops_pass2(p, partials, 0, 0, p->n_splits, qn_gpu_floats(n), QN_DTYPE_F32);
    qn_gpu_timed t = { .args = args, .stride = sizeof *args };
    for (size_t i = 0; i < b->n_iterations; i++)
        args[i] = (qn_aura_value_args){ .cache = b->caches[i],
                                        .weights = b->weights[i],
                                        .partials = partials,
                                        .n_tokens = (uint32_t)s->n_tokens,
                                        .n_heads = (uint32_t)s->n_heads,
                                        .skip = skip };
    qn_assert_ok(qn_aura_gpu_value(&p->gpu, s->n_tokens, (uint32_t)p->n_splits, &t.launch));
    bench_run(b, &t, &sum, what, b->value_bytes + b->scale_bytes + b->query_bytes);
}

static void bench_flash(struct bench *b, size_t block)
{
    const qn_aura_ops_problem *p = &b->p;
    const qn_aura_ops_shape *s = p->s;
    const size_t n_blocks = (s->n_keys + block - 1) / block, n = p->n_queries * n_blocks;
    qn_aura_flash_pass1_args *args = qn_new(b->n_iterations, sizeof *args),
                             all = { .queries = p->gpu_queries,
                                     .partials = qn_gpu_floats(n * s->dim),
                                     .m = qn_gpu_floats(n),
                                     .l = qn_gpu_floats(n),
                                     .block = (uint32_t)block,
                                     .n_blocks = (uint32_t)n_blocks };
    const qn_aura_flash_pass2_args combine =
        qn_aura_ops_pass2(p, all.partials, all.m, all.l, n_blocks, qn_gpu_floats(p->n_queries * s->dim), QN_DTYPE_F32);
    qn_gpu_timed t = { .args = args, .stride = sizeof *args };
    qn_assert_ok(qn_aura_gpu_flash_pass1(&p->gpu, s->n_tokens, s->n_keys, block, &all.warps_per_block, &t.launch));
    for (size_t i = 0; i < b->n_iterations; i++) {
        args[i] = all;
        args[i].cache = b->caches[i];
    }
    bench_run(b, &t, &combine, qn_text("flash, blocks of %zu", block),
              b->key_bytes + b->value_bytes + 2 * b->scale_bytes);
}

static void bench_shape(size_t dim, size_t n_heads, size_t n_kv_heads, size_t n_keys, unsigned bits, bool all_blocks)
{
    const qn_aura_ops_shape s = { .dim = dim,
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
    qn_release();
}

static void bench_decode(size_t dim, unsigned bits, qn_dtype dtype, bool rotate)
{
    enum { ROWS = 1 << 17 };
    static const char *const names[] = { "f32", "f16" };
    const qn_aura_ops_shape s = { .dim = dim, .n_heads = 1, .n_kv_heads = 1, .n_keys = ROWS, .capacity = ROWS };
    const size_t words = qn_aura_row_words(dim, bits), bytes = ROWS * (words * 4 + 4 + dim * qn_aura_ops_bytes(dtype));
    const qn_aura_codec *codec = qn_aura_ops_codec(&s, bits, 1);
    const qn_aura_gpu_rotation rotation = qn_gpu_rotation(codec);
    qn_aura_decode_args args = { .codes = qn_gpu_copy(qn_aura_ops_codes(&s, bits)),
                                 .scales = qn_gpu_copy(qn_aura_ops_scales(&s)),
                                 .rows = qn_gpu_new(ROWS * dim * qn_aura_ops_bytes(dtype)),
                                 .levels = { .codebook = qn_gpu_codec(codec, 0).codebook },
                                 .n_rows = ROWS,
                                 .stride = (uint32_t)dim,
                                 .dtype = (uint32_t)dtype };
    qn_gpu_timed t = { .args = &args };
    if (rotate)
        args.rotation = rotation;
    qn_assert_ok(qn_aura_gpu_decode(dim, bits, ROWS, &t.launch));
    qn_gpu_bench_launches("aura", qn_text("decode %u, %s", bits, dtype == QN_DTYPE_BF16 ? "bf16" : names[dtype]),
                          qn_text("%d rows of %zu%s", (int)ROWS, dim, rotate ? ", rotated back" : ""), (double)bytes,
                          "B", qn_gpu_read_rate(), &t, 1, 1);
    qn_release();
}

void qn_bench_cuda_aura_ops(void)
{
    static const unsigned bits[] = { 2, 3, 4, 6, 8 };
    for (size_t i = 0; i < QN_LENGTH(bits); i++)
        bench_shape(256, 24, 4, 32768, bits[i], bits[i] == 4);
    bench_shape(128, 32, 8, 32768, 4, false);
    bench_decode(256, 4, QN_DTYPE_F32, false);
    bench_decode(256, 4, QN_DTYPE_F16, false);
    bench_decode(256, 4, QN_DTYPE_BF16, true);
    bench_decode(128, 3, QN_DTYPE_F16, true);
    bench_decode(128, 8, QN_DTYPE_F16, false);
}
