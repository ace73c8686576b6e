/* Test problem of the public AURA operations on the GPU: random inputs on the host and on the device. */
#include "cuda_aura_problem.h"

#include "base/f16.h"

size_t qn_aura_ops_bytes(qn_dtype dtype)
{
    return dtype == QN_DTYPE_F32 ? 4 : 2;
}

static void *random_rows(size_t n, qn_dtype dtype)
{
    void *rows = qn_new(n, qn_aura_ops_bytes(dtype));
    for (size_t i = 0; i < n; i++) {
        const float x = qn_random_normal();
        if (dtype == QN_DTYPE_F32)
            ((float *)rows)[i] = x;
        else
            ((uint16_t *)rows)[i] = dtype == QN_DTYPE_F16 ? qn_f32_to_f16(x) : qn_f32_to_bf16(x);
    }
    return rows;
}

uint32_t *qn_aura_ops_codes(const qn_aura_ops_shape *s, unsigned bits)
{
    const size_t n = s->n_kv_heads * s->capacity * qn_aura_row_words(s->dim, bits);
    uint32_t *codes = qn_new(n, sizeof *codes);
    for (size_t i = 0; i < n; i++)
        codes[i] = (uint32_t)(qn_random() >> 16);
    return codes;
}

float *qn_aura_ops_scales(const qn_aura_ops_shape *s)
{
    const size_t n = s->n_kv_heads * s->capacity;
    float *scales = qn_floats(n);
    for (size_t i = 0; i < n; i++)
        scales[i] = i % s->capacity < s->n_keys
                        ? sqrtf((float)s->dim) * (0.3f + 1.4f * (float)qn_random_below(1000) / 1000)
                        : NAN;
    return scales;
}

qn_aura_codec *qn_aura_ops_codec(const qn_aura_ops_shape *s, unsigned bits, uint64_t seed)
{
    const size_t dim = s->dim, levels = (size_t)1 << bits;
    qn_aura_codec *codec = qn_codec(dim, bits, seed), *custom_codec;
    if (!s->custom_codec)
        return codec;
    const qn_view rotation = qn_floats_view(qn_floats(dim * dim), dim * dim);
    qn_assert_ok(qn_aura_codec_tables(codec, rotation, (qn_view){ 0 }, (qn_view){ 0 }));
    qn_assert_ok(qn_aura_codec_create_with(&custom_codec, dim, bits, rotation,
                                           qn_floats_view(codec->boundaries, levels - 1),
                                           qn_floats_view(codec->codebook, levels)));
    return qn_codec_keep(custom_codec);
}

static void init_cpu(qn_aura_ops_problem *p)
{
    const qn_aura_ops_shape *s = p->s;
    const size_t rows = s->n_kv_heads * s->capacity;
    p->cache =
        (qn_aura_cache){ .key_codec = p->key_codec,
                         .value_codec = p->value_codec,
                         .key_codes = { p->keys, QN_DTYPE_U32, rows * qn_aura_row_words(s->dim, s->key_bits) },
                         .value_codes = { p->values, QN_DTYPE_U32, rows * qn_aura_row_words(s->dim, s->value_bits) },
                         .key_scales = qn_floats_view(p->key_scales, rows),
                         .value_scales = qn_floats_view(p->value_scales, rows),
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
        p->cpu_queries.sinks = qn_floats_view(p->sinks, s->n_heads);
}

/* Uploads the queries. With a dense rotation a separate launch rotates them. */
static void gpu_queries(qn_aura_ops_problem *p)
{
    const qn_aura_ops_shape *s = p->s;
    const size_t n = p->n_queries * s->dim;
    qn_aura_gpu_queries *q = &p->gpu_queries;
    *q = (qn_aura_gpu_queries){ .queries = qn_gpu_from(p->queries, n * qn_aura_ops_bytes(s->dtype)),
                                .positions = qn_gpu_from(s->positions, s->n_tokens * sizeof *s->positions),
                                .window = s->window,
                                .n_tokens = (uint32_t)s->n_tokens,
                                .n_heads = (uint32_t)s->n_heads,
                                .stride = (uint32_t)(s->n_heads * s->dim),
                                .dtype = (uint32_t)s->dtype,
                                .causal = s->causal,
                                .scale = p->cpu_queries.scale };
    if (p->key_codec->signs)
        return;
    qn_launch launch;
    const qn_aura_rotate_args args = { .rows = q->queries,
                                       .out = qn_gpu_floats(n),
                                       .rotation = p->key_rotation,
                                       .n_heads = q->n_heads,
                                       .stride = q->stride,
                                       .dtype = q->dtype };
    qn_assert_ok(qn_aura_gpu_rotate(s->dim, p->n_queries, &launch));
    qn_gpu_launch(&launch, &args);
    q->queries = args.out;
    q->dtype = QN_DTYPE_F32;
}

static void init_gpu(qn_aura_ops_problem *p)
{
    const qn_aura_ops_shape *s = p->s;
    const qn_cuda_info *info = qn_gpu_info();
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
    p->key_rotation = qn_gpu_rotation(p->key_codec);
    p->value_rotation = qn_gpu_rotation(p->value_codec);
    p->gpu_cache = (qn_aura_gpu_cache){ .rows = { .keys = qn_gpu_from(p->keys, rows * key_row),
                                                  .values = qn_gpu_from(p->values, rows * value_row),
                                                  .key_scales = qn_gpu_copy(p->key_scales),
                                                  .value_scales = qn_gpu_copy(p->value_scales),
                                                  .key_head_stride = s->capacity * key_row,
                                                  .value_head_stride = s->capacity * value_row,
                                                  .scale_head_stride = s->capacity * 4 },
                                        .key_codec = qn_gpu_codec(p->key_codec, p->key_rotation.signs),
                                        .value_codec = qn_gpu_codec(p->value_codec, p->value_rotation.signs),
                                        .n_kv_heads = (uint32_t)s->n_kv_heads,
                                        .n_keys = (uint32_t)s->n_keys };
    p->gpu_sinks = s->sinks ? qn_gpu_copy(p->sinks) : 0;
    gpu_queries(p);
}

/* Weights like those of a softmax: most are small. With a threshold, a third of the keys has weights below it from all
 * queries; their values must not be read. */
static void make_weights(qn_aura_ops_problem *p)
{
    const qn_aura_ops_shape *s = p->s;
    for (size_t t = 0; t < s->n_keys; t++) {
        const bool unused_key = s->skip > 0 && qn_random_below(3) == 0;
        for (size_t q = 0; q < p->n_queries; q++) {
            const float x = qn_random_normal();
            p->weights[q * s->n_keys + t] = unused_key ? s->skip * 0.5f : expf(2 * x) / (8 * (float)s->n_keys);
        }
    }
}

void qn_aura_ops_problem_new(qn_aura_ops_problem *p, const qn_aura_ops_shape *s)
{
    *p = (qn_aura_ops_problem){ .s = s, .n_queries = s->n_tokens * s->n_heads };
    p->n_blocks = (s->n_keys + s->block - 1) / s->block;
    p->key_codec = qn_aura_ops_codec(s, s->key_bits, 1);
    p->value_codec = qn_aura_ops_codec(s, s->value_bits, 2);
    p->keys = qn_aura_ops_codes(s, s->key_bits);
    p->values = qn_aura_ops_codes(s, s->value_bits);
    p->key_scales = qn_aura_ops_scales(s);
    p->value_scales = qn_aura_ops_scales(s);
    p->queries = random_rows(p->n_queries * s->dim, s->dtype);
    p->sinks = random_rows(s->n_heads, QN_DTYPE_F32);
    p->weights = qn_new(p->n_queries * s->n_keys, sizeof *p->weights);
    make_weights(p);
    init_cpu(p);
    init_gpu(p);
    p->n_splits = qn_aura_gpu_splits(&p->gpu, s->n_tokens, s->n_keys);
}

qn_aura_flash_pass2_args qn_aura_ops_pass2(const qn_aura_ops_problem *p, uint64_t partials, uint64_t m, uint64_t l,
                                           size_t n_blocks, uint64_t out, qn_dtype dtype)
{
    return (qn_aura_flash_pass2_args){ .partials = partials,
                                       .m = m,
                                       .l = l,
                                       .out = out,
                                       .rotation = p->value_rotation,
                                       .n_heads = (uint32_t)p->s->n_heads,
                                       .n_blocks = (uint32_t)n_blocks,
                                       .out_stride = (uint32_t)(p->s->n_heads * p->s->dim),
                                       .dtype = (uint32_t)dtype };
}

void qn_aura_ops_launch_pass2(const qn_aura_ops_problem *p, const qn_aura_flash_pass2_args *args)
{
    qn_launch launch;
    qn_assert_ok(qn_aura_gpu_flash_pass2(p->s->dim, p->n_queries, &launch));
    qn_gpu_launch(&launch, args);
}
