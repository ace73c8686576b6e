/* Speed of the public AURA operations on the GPU: score, value, flash decoding, decoding of rows. Each iteration reads
 * another copy of the cache, so that codes come from HBM. */
#include "cuda_aura_problem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

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
    qn_aura_ops_problem p;
    size_t n_iterations, key_bytes, value_bytes, scale_bytes, query_bytes;
    qn_gpu_guarded *copies; /* of the cache, each followed by a float for each query and key */
    qn_aura_gpu_cache *caches;
    char text[96];
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
    snprintf(b->text, sizeof b->text, "%zu heads of %zu over %zu, %zu keys", s->n_heads, s->dim, s->n_kv_heads,
             s->n_keys);
}

static void bench_free(struct bench *b)
{
    for (size_t i = 0; i < b->n_iterations; i++)
        qn_gpu_free(&b->copies[i]);
    free(b->copies);
    free(b->caches);
    qn_aura_ops_problem_free(&b->p);
}

static void bench_run(struct bench *b, struct timed *t, const char *what, size_t bytes)
{
    const qn_aura_ops_shape *s = b->p.s;
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
        args[i] = (qn_aura_score_args){ b->caches[i], b->p.gpu_queries,
                                        b->copies[i].data + b->copies[i].bytes - b->query_bytes };
    qn_assert_ok(qn_aura_gpu_score(&b->p.gpu, b->p.s->n_tokens, (uint32_t)b->p.n_splits, &t.first));
    bench_run(b, &t, "score", b->key_bytes + b->scale_bytes + b->query_bytes);
    free(args);
}

static void bench_value(struct bench *b, float skip, const char *what)
{
    qn_aura_ops_problem *p = &b->p;
    const qn_aura_ops_shape *s = p->s;
    const size_t n = p->n_queries * s->dim;
    qn_aura_value_args *args = qn_xcalloc(b->n_iterations, sizeof *args);
    qn_gpu_guarded partials = qn_gpu_new(n * p->n_splits * 4), out = qn_gpu_new(n * 4);
    const qn_aura_flash_pass2_args sum = { .partials = partials.data,
                                           .out = out.data,
                                           .rotation = p->value_rotation,
                                           .n_heads = (uint32_t)s->n_heads,
                                           .n_blocks = (uint32_t)p->n_splits,
                                           .out_stride = (uint32_t)(s->n_heads * s->dim) };
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
    qn_aura_ops_problem *p = &b->p;
    const qn_aura_ops_shape *s = p->s;
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
                                               .n_blocks = (uint32_t)n_blocks,
                                               .out_stride = (uint32_t)(s->n_heads * s->dim) };
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
    bench_free(&b);
}

static void bench_decode(size_t dim, unsigned bits, qn_dtype dtype, bool rotate)
{
    enum { ROWS = 1 << 17 };
    static const char *const names[] = { "f32", "f16" };
    const qn_aura_ops_shape s = { .dim = dim, .n_heads = 1, .n_kv_heads = 1, .n_keys = ROWS, .capacity = ROWS };
    const size_t words = qn_aura_row_words(dim, bits), bytes = ROWS * (words * 4 + 4 + dim * qn_aura_ops_bytes(dtype));
    qn_aura_ops_problem p = { .s = &s };
    struct timed t = { .args_bytes = 0 };
    char variant[48], text[96];
    uint32_t *codes = qn_aura_ops_codes(&s, bits);
    float *scales = qn_aura_ops_scales(&s);
    qn_aura_codec *codec = qn_aura_ops_codec(&s, bits, 1);
    const qn_aura_gpu_rotation rotation = qn_gpu_keep_rotation(&p.arrays, codec);
    qn_aura_decode_args args = { .codes = qn_gpu_keep_copy(&p.arrays, codes, ROWS * words * 4),
                                 .scales = qn_gpu_keep_copy(&p.arrays, scales, ROWS * 4),
                                 .rows = qn_gpu_keep(&p.arrays, qn_gpu_new(ROWS * dim * qn_aura_ops_bytes(dtype))),
                                 .levels = { .codebook = qn_aura_ops_gpu_codec(&p, codec, &rotation).codebook },
                                 .n_rows = ROWS,
                                 .stride = (uint32_t)dim,
                                 .dtype = (uint32_t)dtype };
    if (rotate)
        args.rotation = rotation;
    t.first_args = &args;
    qn_assert_ok(qn_aura_gpu_decode(dim, bits, ROWS, &t.first));
    snprintf(variant, sizeof variant, "decode %u, %s", bits, dtype == QN_DTYPE_BF16 ? "bf16" : names[dtype]);
    snprintf(text, sizeof text, "%d rows of %zu%s", (int)ROWS, dim, rotate ? ", rotated back" : "");
    qn_gpu_bench("aura", variant, text, (double)bytes, "B", qn_gpu_read_rate(), run_iteration, &t, 1);
    qn_gpu_free_arrays(&p.arrays);
    free(codes);
    free(scales);
    qn_aura_codec_delete(codec);
}

void qn_bench_cuda_aura_ops(void)
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
