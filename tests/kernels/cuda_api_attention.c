/* Attention over an fp16 KV cache and rope of quern/cuda.h on a GPU against the CPU's functions: several sequences, all
 * types, rows with and without gaps, decode and prefill, a step of decoding in a CUDA graph. */
#include "cuda_api.h"
#include "cuda_paged_arrays.h"
#include "cuda_views.h"

#include "base/f16.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Keys, values and weights are rounded to fp16: a relative error of up to 2^-11 each, mostly less than half of that.
 * Errors are random and do not add up. */
#define ERROR_BOUND 2e-3
#define WORST_BOUND 8e-3 /* of one query: values may cancel */
/* Norms of up to 512 terms and rotations in float32, of angles that are rounded to float32 once. */
#define FLOAT_BOUND 2e-6

static qn_cuda_kernels *kernels;

static qn_view floats_view(const float *x, size_t n)
{
    return (qn_view){ (void *)(uintptr_t)x, QN_DTYPE_F32, n };
}

static qn_view u32_view(const uint32_t *x, size_t n)
{
    return (qn_view){ (void *)(uintptr_t)x, QN_DTYPE_U32, n };
}

static void *pointer(const qn_gpu_guarded *g)
{
    return (void *)(uintptr_t)g->data;
}

static void expect_guards(const qn_gpu_guarded *g, const char *name)
{
    qn_expect(qn_gpu_guards_intact(g), "%s: bytes outside the array were written", name);
}

/* ---- Caches, on both sides ---- */

struct cache_shape {
    size_t dim, n_kv_heads, capacity, n_sequences;
    bool paged;
};

struct caches {
    struct cache_shape s;
    uint16_t *keys, *values; /* the CPU's, a cache for each sequence */
    qn_gpu_guarded gpu_keys, gpu_values;
    qn_paged_arrays pages; /* instead of them, if paged */
    qn_cuda_kv_cache gpu;
};

static size_t sequence_values(const struct cache_shape *s)
{
    return s->n_kv_heads * s->capacity * s->dim;
}

/* Both filled with poison. */
static void caches_new(struct caches *c, const struct cache_shape *s)
{
    const size_t bytes = s->n_sequences * sequence_values(s) * sizeof(uint16_t);
    *c = (struct caches){ .s = *s, .keys = qn_xcalloc(bytes, 1), .values = qn_xcalloc(bytes, 1) };
    memset(c->keys, 0xff, bytes);
    memset(c->values, 0xff, bytes);
    c->gpu = (qn_cuda_kv_cache){
        .n_sequences = s->n_sequences, .n_kv_heads = s->n_kv_heads, .capacity = s->capacity, .head_dim = s->dim
    };
    if (s->paged) {
        const size_t row_bytes[QN_PAGED_ARRAYS] = { s->dim * sizeof(uint16_t), s->dim * sizeof(uint16_t) };
        qn_paged_new(&c->pages, s->n_sequences, s->capacity / QN_ATTENTION_PAGE, s->n_kv_heads, row_bytes);
        c->gpu.tables = qn_paged_tables(&c->pages);
        c->gpu.page_values = c->pages.offsets[0];
        c->gpu.page_keys = c->pages.offsets[1];
        return;
    }
    c->gpu_keys = qn_gpu_new(bytes);
    c->gpu_values = qn_gpu_new(bytes);
    c->gpu.keys = qn_array_view(&c->gpu_keys, QN_DTYPE_F16);
    c->gpu.values = qn_array_view(&c->gpu_values, QN_DTYPE_F16);
}

static void caches_free(struct caches *c)
{
    qn_paged_free(&c->pages);
    if (!c->s.paged) {
        qn_gpu_free(&c->gpu_keys);
        qn_gpu_free(&c->gpu_values);
    }
    free(c->keys);
    free(c->values);
}

static qn_kv_cache cpu_cache(const struct caches *c, size_t sequence)
{
    const size_t n = sequence_values(&c->s);
    return (qn_kv_cache){ .keys = { c->keys + sequence * n, QN_DTYPE_F16, n },
                          .values = { c->values + sequence * n, QN_DTYPE_F16, n },
                          .n_kv_heads = c->s.n_kv_heads,
                          .capacity = c->s.capacity,
                          .head_dim = c->s.dim };
}

/* Stores one token on the CPU, if it has a place. */
static void store_on_cpu(struct caches *c, uint32_t sequence, uint32_t position, const float *keys, const float *values)
{
    const size_t row = c->s.n_kv_heads * c->s.dim;
    if (position >= c->s.capacity)
        return;
    const qn_kv_cache cache = cpu_cache(c, sequence);
    qn_assert_ok(qn_kv_store(&cache, floats_view(keys, row), floats_view(values, row), u32_view(&position, 1), 1));
}

/* A value of the CPU's cache: keys are interleaved by 16 positions there. */
static uint16_t cpu_value(const struct caches *c, bool is_key, size_t sequence, size_t head, size_t position, size_t d)
{
    const struct cache_shape *s = &c->s;
    const size_t first = sequence * sequence_values(s) + head * s->capacity * s->dim;
    return is_key ? c->keys[first + (position / 16 * s->dim + d) * 16 + position % 16]
                  : c->values[first + position * s->dim + d];
}

/* Keys or values of the GPU's cache, in the order of a contiguous one. */
static void read_cache(struct caches *c, bool is_key, uint16_t *to)
{
    const qn_gpu_guarded *g = is_key ? &c->gpu_keys : &c->gpu_values;
    if (c->s.paged) {
        qn_paged_read(&c->pages);
        qn_paged_gather(&c->pages, is_key, to, c->s.capacity);
        return;
    }
    qn_gpu_read(g, to);
    expect_guards(g, is_key ? "keys of the cache" : "values of the cache");
}

/* All bits of keys and values are those of the CPU; bound above 0: values within it, relative to a row's norm. */
static void compare_caches(struct caches *c, double bound)
{
    const struct cache_shape *s = &c->s;
    static const char *const names[] = { "values of the cache", "keys of the cache" };
    uint16_t *found = qn_xcalloc(s->n_sequences * sequence_values(s), sizeof *found);
    float *x = qn_xcalloc(s->dim, sizeof *x), *y = qn_xcalloc(s->dim, sizeof *y);
    char name[96];
    for (int is_key = 0; is_key < 2; is_key++) {
        read_cache(c, is_key, found);
        for (size_t row = 0; row < s->n_sequences * s->n_kv_heads * s->capacity; row++) {
            const size_t position = row % s->capacity, head = row / s->capacity % s->n_kv_heads,
                         sequence = row / s->capacity / s->n_kv_heads;
            bool same = true;
            for (size_t d = 0; d < s->dim; d++) {
                const uint16_t expected = cpu_value(c, is_key, sequence, head, position, d),
                               bits = found[row * s->dim + d];
                same = same && bits == expected;
                x[d] = qn_f16_to_f32(bits);
                y[d] = qn_f16_to_f32(expected);
                qn_expect(bits == expected || (bound > 0 && expected != 0xffff),
                          "%s: sequence %zu, head %zu, position %zu, element %zu is %04x, expected %04x", names[is_key],
                          sequence, head, position, d, bits, expected);
            }
            if (same)
                continue;
            snprintf(name, sizeof name, "%s: sequence %zu, head %zu, position %zu", names[is_key], sequence, head,
                     position);
            qn_expect_relative(x, y, 1, s->dim, QN_DTYPE_F16, bound, bound, name);
        }
    }
    free(found);
    free(x);
    free(y);
}

/* ---- Tokens: rows of keys and values, and their places ---- */

struct tokens {
    size_t n;
    uint32_t *positions, *sequences;
    qn_gpu_guarded gpu_positions, gpu_sequences;
    qn_cuda_kv_tokens gpu;
};

static void tokens_new(struct tokens *t, size_t n)
{
    *t = (struct tokens){ .n = n, .positions = qn_xcalloc(n, 4), .sequences = qn_xcalloc(n, 4) };
}

/* Uploads the places, which have been set. with_sequences: else all tokens are of sequence 0. */
static void tokens_upload(struct tokens *t, bool with_sequences, bool consecutive)
{
    t->gpu_positions = qn_gpu_from(t->positions, t->n * 4);
    t->gpu_sequences = qn_gpu_from(t->sequences, t->n * 4);
    t->gpu = (qn_cuda_kv_tokens){ .n_tokens = t->n,
                                  .positions = qn_array_view(&t->gpu_positions, QN_DTYPE_U32),
                                  .consecutive = consecutive };
    if (with_sequences)
        t->gpu.sequences = qn_array_view(&t->gpu_sequences, QN_DTYPE_U32);
}

static void tokens_free(struct tokens *t)
{
    qn_gpu_free(&t->gpu_positions);
    qn_gpu_free(&t->gpu_sequences);
    free(t->positions);
    free(t->sequences);
}

/* ---- Store, then attention ---- */

struct shape {
    struct cache_shape cache;
    size_t depth; /* positions of each sequence that are stored */
    size_t n_heads, n_tokens;
    bool consecutive;
    uint32_t positions[5]; /* of queries; consecutive: the first, all of the last sequence */
    qn_dtype dtype;
    size_t gap;
};

/* Stores all positions of all sequences in one call, the last position first, and two tokens without a place. */
static void check_store(struct caches *c, const struct shape *s)
{
    const size_t n = s->cache.n_sequences * s->depth + 2, row = s->cache.n_kv_heads * s->cache.dim;
    struct tokens t;
    qn_gpu_rows keys = qn_gpu_rows_random(s->dtype, n, row, s->gap, 0, 1),
                values = qn_gpu_rows_random(s->dtype, n, row, 0, 0, 1);
    qn_case_begin("api", "kv_store", "%zu tokens, %zu heads of %zu, capacity %zu of %zu sequences, type %d, gap %zu%s",
                  n, s->cache.n_kv_heads, s->cache.dim, s->cache.capacity, s->cache.n_sequences, (int)s->dtype, s->gap,
                  s->cache.paged ? ", pages" : "");
    tokens_new(&t, n);
    for (size_t i = 0; i + 2 < n; i++) {
        t.positions[i] = (uint32_t)(s->depth - 1 - i / s->cache.n_sequences);
        t.sequences[i] = (uint32_t)(i % s->cache.n_sequences);
    }
    t.positions[n - 2] = (uint32_t)s->cache.capacity;
    t.positions[n - 1] = UINT32_MAX;
    tokens_upload(&t, s->cache.n_sequences > 1, false);
    qn_assert_ok(qn_cuda_kv_store(kernels, &c->gpu, &t.gpu, qn_gpu_rows_view(&keys), qn_gpu_rows_view(&values),
                                  qn_gpu_stream()));
    for (size_t i = 0; i < n; i++)
        store_on_cpu(c, t.sequences[i], t.positions[i], keys.values + i * row, values.values + i * row);
    compare_caches(c, 0);
    qn_gpu_rows_expect_unchanged(&keys, "keys");
    tokens_free(&t);
    qn_gpu_rows_free(&keys);
    qn_gpu_rows_free(&values);
}

static void attention_on_cpu(const struct caches *c, const struct tokens *t, const float *queries, size_t n_heads,
                             float scale, float *out)
{
    const size_t row = n_heads * c->s.dim;
    for (size_t i = 0; i < t->n; i++) {
        const qn_kv_cache cache = cpu_cache(c, t->sequences[i]);
        qn_assert_ok(qn_attention(&cache, floats_view(queries + i * row, row), u32_view(&t->positions[i], 1), 1,
                                  n_heads, scale, floats_view(out + i * row, row)));
    }
}

static void check_attention(const struct shape *s)
{
    const size_t row = s->n_heads * s->cache.dim;
    const float scale = 1 / sqrtf((float)s->cache.dim);
    struct caches c;
    struct tokens t;
    size_t bytes = 0;
    qn_random_seed(s->cache.dim * 100 + s->n_tokens);
    caches_new(&c, &s->cache);
    qn_assert_ok(qn_cuda_kv_prepare(kernels, s->cache.dim)); /* compiles several sources at a time */
    check_store(&c, s);
    qn_case_begin(
        "api", s->consecutive ? "attention prefill" : "attention decode",
        "heads %zu of %zu over %zu, %zu tokens from position %u, capacity %zu of %zu sequences, type %d, gap %zu%s",
        s->n_heads, s->cache.dim, s->cache.n_kv_heads, s->n_tokens, s->positions[0], s->cache.capacity,
        s->cache.n_sequences, (int)s->dtype, s->gap, s->cache.paged ? ", pages" : "");
    tokens_new(&t, s->n_tokens);
    for (size_t i = 0; i < s->n_tokens; i++) {
        t.positions[i] = s->consecutive ? s->positions[0] + (uint32_t)i : s->positions[i % 5];
        t.sequences[i] = (uint32_t)(s->consecutive ? s->cache.n_sequences - 1 : i % s->cache.n_sequences);
    }
    tokens_upload(&t, s->cache.n_sequences > 1, s->consecutive);
    qn_gpu_rows queries = qn_gpu_rows_random(s->dtype, s->n_tokens, row, s->gap, 0, 1),
                out = qn_gpu_rows_poison(s->dtype, s->n_tokens, row, s->gap, 0);
    qn_assert_ok(qn_cuda_attention_workspace(kernels, &c.gpu, &t.gpu, s->n_heads, &bytes));
    qn_gpu_guarded workspace = qn_gpu_new(bytes);
    qn_assert_ok(qn_cuda_attention(kernels, &c.gpu, &t.gpu, qn_gpu_rows_view(&queries), s->n_heads, scale,
                                   qn_gpu_rows_view(&out), pointer(&workspace), bytes, qn_gpu_stream()));
    float *expected = qn_xcalloc(s->n_tokens * row, sizeof *expected);
    attention_on_cpu(&c, &t, queries.values, s->n_heads, scale, expected);
    qn_gpu_rows_expect_relative(&out, expected, s->cache.dim, ERROR_BOUND, WORST_BOUND, "attention");
    expect_guards(&workspace, "workspace");
    compare_caches(&c, 0);
    free(expected);
    qn_gpu_free(&workspace);
    qn_gpu_rows_free(&queries);
    qn_gpu_rows_free(&out);
    tokens_free(&t);
    caches_free(&c);
}

/* ---- Rope ---- */

#define BASE 1e6

struct rope_shape {
    struct cache_shape cache;
    size_t n_heads, n_rot, n_tokens;
    uint32_t first; /* position of the first token */
    qn_rope_pairing pairing;
    bool norms, biases, in_place;
    qn_dtype dtype;
    size_t gap;
};

/* Angles on the device. */
struct angles {
    qn_gpu_guarded frequencies, cosines, sines;
};

static void angles_new(struct angles *a, size_t n_tokens, size_t n_rot)
{
    double *f = qn_xcalloc(n_rot / 2, sizeof *f);
    for (size_t i = 0; i < n_rot / 2; i++)
        f[i] = pow(BASE, -2.0 * (double)i / (double)n_rot);
    a->frequencies = qn_gpu_from(f, n_rot / 2 * sizeof *f);
    a->cosines = qn_gpu_new(n_tokens * n_rot / 2 * 4);
    a->sines = qn_gpu_new(n_tokens * n_rot / 2 * 4);
    free(f);
}

static void angles_free(struct angles *a)
{
    expect_guards(&a->cosines, "cosines");
    expect_guards(&a->sines, "sines");
    qn_gpu_free(&a->frequencies);
    qn_gpu_free(&a->cosines);
    qn_gpu_free(&a->sines);
}

static qn_status queue_angles(const struct angles *a, const qn_cuda_kv_tokens *t, size_t n_rot, double attn_factor)
{
    return qn_cuda_rope_angles(kernels, t->positions, qn_array_view(&a->frequencies, QN_DTYPE_F64), t->n_tokens, n_rot,
                               attn_factor, qn_array_view(&a->cosines, QN_DTYPE_F32),
                               qn_array_view(&a->sines, QN_DTYPE_F32), qn_gpu_stream());
}

/* Both sides round a double, whose angle has an error below 1e-9 at these positions, to float32. */
static void check_angles(const struct angles *a, const struct tokens *t, size_t n_rot)
{
    const double attn_factor = 1.25;
    const size_t half = n_rot / 2;
    float *found = qn_xcalloc(t->n * half, 4);
    qn_assert_ok(queue_angles(a, &t->gpu, n_rot, attn_factor));
    for (int is_sine = 0; is_sine < 2; is_sine++) {
        qn_gpu_read(is_sine ? &a->sines : &a->cosines, found);
        for (size_t i = 0; i < t->n * half; i++) {
            const double angle = t->positions[i / half] * pow(BASE, -2.0 * (double)(i % half) / (double)n_rot);
            const double x = attn_factor * (is_sine ? sin(angle) : cos(angle));
            qn_expect(fabs((double)found[i] - x) <= 1e-7, "%s: token %zu, pair %zu is %.9g, expected %.9g",
                      is_sine ? "sines" : "cosines", i / half, i % half, (double)found[i], x);
        }
    }
    free(found);
}

static qn_cuda_rope_shape rope_of(const struct rope_shape *s, const struct angles *a)
{
    return (qn_cuda_rope_shape){ .n_heads = s->n_heads,
                                 .head_dim = s->cache.dim,
                                 .n_rot = s->n_rot,
                                 .pairing = s->pairing,
                                 .cosines = qn_array_view(&a->cosines, QN_DTYPE_F32),
                                 .sines = qn_array_view(&a->sines, QN_DTYPE_F32) };
}

static void rope_on_cpu(const struct rope_shape *s, const struct tokens *t, float *x, size_t n_heads)
{
    qn_assert_ok(qn_rope(floats_view(x, t->n * n_heads * s->cache.dim), u32_view(t->positions, t->n), t->n, n_heads,
                         s->cache.dim, s->n_rot, BASE, s->pairing));
}

static void begin_rope(const struct rope_shape *s, const char *variant)
{
    qn_case_begin(
        "api", variant,
        "%zu and %zu heads of %zu, n_rot %zu, %zu tokens from position %u, %zu sequences, type %d, gap %zu%s%s%s%s",
        s->n_heads, s->cache.n_kv_heads, s->cache.dim, s->n_rot, s->n_tokens, s->first, s->cache.n_sequences,
        (int)s->dtype, s->gap, s->pairing == QN_ROPE_NEOX ? ", neox" : ", interleaved", s->norms ? ", norms" : "",
        s->biases ? ", biases" : "", s->in_place ? ", in place" : "");
}

static void check_rope_in_place(const struct rope_shape *s, const struct tokens *t, const struct angles *a)
{
    const size_t row = s->n_heads * s->cache.dim, n = s->n_tokens * row;
    const qn_cuda_rope_shape shape = rope_of(s, a);
    qn_gpu_rows x = qn_gpu_rows_random(s->dtype, s->n_tokens, row, s->gap, 0, 1);
    float *expected = qn_xcalloc(n, sizeof *expected);
    begin_rope(s, "rope");
    memcpy(expected, x.values, n * sizeof *expected);
    rope_on_cpu(s, t, expected, s->n_heads);
    qn_assert_ok(qn_cuda_rope(kernels, &shape, qn_gpu_rows_view(&x), s->n_tokens, qn_gpu_stream()));
    qn_gpu_rows_expect_relative(&x, expected, s->cache.dim, FLOAT_BOUND, FLOAT_BOUND, "x");
    qn_gpu_rows_free(&x);
    free(expected);
}

/* Biases and weights on both sides, in the order of qn_cuda_qk_norm. */
struct norm {
    float *x[5];
    qn_gpu_guarded gpu[5];
    qn_cuda_qk_norm args;
};

static void norm_new(struct norm *n, const struct rope_shape *s)
{
    const size_t queries = s->n_heads * s->cache.dim, keys = s->cache.n_kv_heads * s->cache.dim, dim = s->cache.dim;
    const size_t sizes[] = { queries, keys, keys, dim, dim };
    *n = (struct norm){ .args.eps = 1e-6f };
    qn_cuda_view *const views[] = { &n->args.query_bias, &n->args.key_bias, &n->args.value_bias, &n->args.query_weight,
                                    &n->args.key_weight };
    for (size_t i = 0; i < 5; i++) {
        if (!(i < 3 ? s->biases : s->norms))
            continue;
        n->x[i] = qn_floats_of(sizes[i], 1);
        n->gpu[i] = qn_gpu_from(n->x[i], sizes[i] * sizeof(float));
        *views[i] = qn_array_view(&n->gpu[i], QN_DTYPE_F32);
    }
}

static void norm_free(struct norm *n)
{
    for (size_t i = 0; i < 5; i++) {
        if (n->x[i])
            qn_gpu_free(&n->gpu[i]);
        free(n->x[i]);
    }
}

/* Bias, norm and rope of heads; a copy, which the caller frees. weight and bias may be NULL. */
static float *heads_on_cpu(const struct rope_shape *s, const struct tokens *t, const float *from, size_t n_heads,
                           const float *bias, const float *weight, bool rope)
{
    const size_t row = n_heads * s->cache.dim, n = t->n * row;
    float *x = qn_xcalloc(n, sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = from[i] + (bias ? bias[i % row] : 0);
    if (weight)
        qn_assert_ok(qn_rms_norm(floats_view(x, n), floats_view(weight, s->cache.dim), t->n * n_heads, s->cache.dim,
                                 1e-6f, floats_view(x, n)));
    if (rope)
        rope_on_cpu(s, t, x, n_heads);
    return x;
}

static void check_fused(const struct rope_shape *s, const struct tokens *t, const struct angles *a)
{
    const size_t dim = s->cache.dim, row = s->n_heads * dim, kv_row = s->cache.n_kv_heads * dim;
    const qn_cuda_rope_shape shape = rope_of(s, a);
    struct caches c;
    struct norm norm;
    caches_new(&c, &s->cache);
    norm_new(&norm, s);
    begin_rope(s, "qk_norm_rope_store");
    qn_gpu_rows queries = qn_gpu_rows_random(s->dtype, s->n_tokens, row, s->gap, 0, 1),
                keys = qn_gpu_rows_random(s->dtype, s->n_tokens, kv_row, s->gap, 0, 1),
                values = qn_gpu_rows_random(s->dtype, s->n_tokens, kv_row, 0, 0, 1),
                out = qn_gpu_rows_poison(s->dtype, s->n_tokens, row, 0, 0);
    float *q = heads_on_cpu(s, t, queries.values, s->n_heads, norm.x[0], norm.x[3], true),
          *k = heads_on_cpu(s, t, keys.values, s->cache.n_kv_heads, norm.x[1], norm.x[4], true),
          *v = heads_on_cpu(s, t, values.values, s->cache.n_kv_heads, norm.x[2], NULL, false);
    for (size_t i = 0; i < t->n; i++)
        store_on_cpu(&c, t->sequences[i], t->positions[i], k + i * kv_row, v + i * kv_row);
    qn_gpu_rows *to = s->in_place ? &queries : &out;
    qn_assert_ok(qn_cuda_qk_norm_rope_store(kernels, &c.gpu, &t->gpu, &shape, s->norms || s->biases ? &norm.args : NULL,
                                            qn_gpu_rows_view(&queries), qn_gpu_rows_view(&keys),
                                            qn_gpu_rows_view(&values), qn_gpu_rows_view(to), qn_gpu_stream()));
    qn_gpu_rows_expect_relative(to, q, dim, FLOAT_BOUND, FLOAT_BOUND, "out");
    compare_caches(&c, FLOAT_BOUND);
    float *const host[] = { q, k, v };
    qn_gpu_rows *const rows[] = { &queries, &keys, &values, &out };
    for (size_t i = 0; i < sizeof host / sizeof *host; i++)
        free(host[i]);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        qn_gpu_rows_free(rows[i]);
    norm_free(&norm);
    caches_free(&c);
}

static void check_rope(const struct rope_shape *s)
{
    struct tokens t;
    struct angles a;
    qn_random_seed(s->cache.dim * 10 + s->n_tokens);
    begin_rope(s, "rope angles");
    tokens_new(&t, s->n_tokens);
    for (size_t i = 0; i < s->n_tokens; i++) {
        t.positions[i] = s->first + (uint32_t)i;
        t.sequences[i] = (uint32_t)(i % s->cache.n_sequences);
    }
    tokens_upload(&t, s->cache.n_sequences > 1, false);
    angles_new(&a, s->n_tokens, s->n_rot);
    check_angles(&a, &t, s->n_rot);
    qn_assert_ok(queue_angles(&a, &t.gpu, s->n_rot, 1));
    check_rope_in_place(s, &t, &a);
    check_fused(s, &t, &a);
    angles_free(&a);
    tokens_free(&t);
}

/* ---- A step of decoding in a CUDA graph ---- */

/* Angles, then queries, keys and values of one token, then attention, at a position that changes from run to run. */
static void check_graph(void)
{
    enum { STEPS = 40 };
    static const struct rope_shape s = {
        { 128, 2, 256, 1, true }, 8, 128, 1, 0, QN_ROPE_NEOX, true, false, true, QN_DTYPE_BF16, 0
    };
    const size_t row = s.n_heads * s.cache.dim, kv_row = s.cache.n_kv_heads * s.cache.dim;
    const float scale = 0.09f;
    struct caches c;
    struct tokens t;
    struct angles a;
    struct norm norm;
    size_t bytes = 0;
    qn_cuda_graph *graph = NULL;
    qn_random_seed(1);
    caches_new(&c, &s.cache);
    norm_new(&norm, &s);
    tokens_new(&t, 1);
    tokens_upload(&t, false, false);
    angles_new(&a, 1, s.n_rot);
    const qn_cuda_rope_shape shape = rope_of(&s, &a);
    qn_gpu_rows queries = qn_gpu_rows_random(s.dtype, 1, row, 0, 0, 1),
                keys = qn_gpu_rows_random(s.dtype, 1, kv_row, 0, 0, 1),
                values = qn_gpu_rows_random(s.dtype, 1, kv_row, 0, 0, 1),
                out = qn_gpu_rows_poison(s.dtype, 1, row, 0, 0);
    const qn_cuda_view q = qn_gpu_rows_view(&queries);
    qn_assert_ok(qn_cuda_attention_workspace(kernels, &c.gpu, &t.gpu, s.n_heads, &bytes));
    qn_gpu_guarded workspace = qn_gpu_new(bytes);
    qn_assert_ok(qn_cuda_kv_prepare(kernels, s.cache.dim));
    qn_assert_ok(qn_cuda_capture_begin(qn_gpu(), qn_gpu_stream()));
    qn_assert_ok(queue_angles(&a, &t.gpu, s.n_rot, 1));
    qn_assert_ok(qn_cuda_qk_norm_rope_store(kernels, &c.gpu, &t.gpu, &shape, &norm.args, q, qn_gpu_rows_view(&keys),
                                            qn_gpu_rows_view(&values), q, qn_gpu_stream()));
    qn_assert_ok(qn_cuda_attention(kernels, &c.gpu, &t.gpu, q, s.n_heads, scale, qn_gpu_rows_view(&out),
                                   pointer(&workspace), bytes, qn_gpu_stream()));
    qn_assert_ok(qn_cuda_capture_end(qn_gpu(), qn_gpu_stream(), &graph));
    qn_gpu_rows *const rows[] = { &queries, &keys, &values, &out };
    float *expected = qn_xcalloc(row, sizeof *expected);
    for (uint32_t position = 0; position < STEPS; position++) {
        qn_case_begin("api", "attention graph", "position %u of a captured step, heads %zu of %zu over %zu", position,
                      s.n_heads, s.cache.dim, s.cache.n_kv_heads);
        for (size_t i = 0; i < 3; i++) {
            qn_random_floats(rows[i]->values, rows[i]->n, 1);
            qn_gpu_rows_reset(rows[i]);
        }
        t.positions[0] = position;
        qn_assert_ok(qn_cuda_upload(qn_gpu(), t.gpu_positions.data, t.positions, sizeof(uint32_t), NULL, NULL));
        float *cpu_q = heads_on_cpu(&s, &t, queries.values, s.n_heads, NULL, norm.x[3], true),
              *cpu_k = heads_on_cpu(&s, &t, keys.values, s.cache.n_kv_heads, NULL, norm.x[4], true);
        store_on_cpu(&c, 0, position, cpu_k, values.values);
        attention_on_cpu(&c, &t, cpu_q, s.n_heads, scale, expected);
        qn_assert_ok(qn_cuda_graph_launch(qn_gpu(), graph, qn_gpu_stream()));
        /* The queries have been rounded to bf16 between the kernels, too. */
        const double rounding = qn_float_rounding(s.dtype);
        qn_gpu_rows_expect_relative(&out, expected, s.cache.dim, ERROR_BOUND + rounding, WORST_BOUND + rounding,
                                    "attention");
        free(cpu_q);
        free(cpu_k);
    }
    free(expected);
    qn_cuda_graph_free(qn_gpu(), graph);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        qn_gpu_rows_free(rows[i]);
    expect_guards(&workspace, "workspace");
    qn_gpu_free(&workspace);
    norm_free(&norm);
    angles_free(&a);
    tokens_free(&t);
    caches_free(&c);
}

void qn_check_api_attention(qn_cuda_kernels *handle)
{
    /* Capacities are multiples of 256, as the CPU's. */
    static const struct shape shapes[] = {
        { { 128, 2, 512, 3, false }, 400, 8, 7, false, { 399, 0, 16, 63, 255 }, QN_DTYPE_BF16, 8 },
        { { 64, 3, 256, 1, false }, 256, 9, 1, false, { 255 }, QN_DTYPE_F32, 0 },
        { { 80, 1, 256, 2, false }, 100, 20, 5, false, { 99, 1, 15, 47, 48 }, QN_DTYPE_F16, 16 },
        { { 256, 4, 4096, 1, false }, 4000, 24, 2, false, { 3999, 2047 }, QN_DTYPE_F32, 40 },
        { { 16, 2, 256, 1, false }, 90, 2, 80, false, { 89, 88, 3, 2, 64 }, QN_DTYPE_BF16, 0 },
        { { 512, 1, 256, 1, false }, 33, 2, 3, false, { 32, 15, 16 }, QN_DTYPE_F16, 8 },
        { { 128, 2, 512, 1, false }, 300, 12, 150, true, { 37 }, QN_DTYPE_BF16, 24 },
        { { 64, 1, 256, 3, false }, 192, 5, 64, true, { 128 }, QN_DTYPE_F32, 0 },
        { { 256, 2, 256, 1, false }, 256, 2, 256, true, { 0 }, QN_DTYPE_F16, 8 },
        { { 96, 2, 256, 2, false }, 130, 6, 65, true, { 1 }, QN_DTYPE_F32, 16 },
        { { 128, 2, 256, 1, false }, 100, 4, 20, true, { 77 }, QN_DTYPE_F32, 0 },
        { { 128, 2, 512, 3, true }, 400, 8, 7, false, { 399, 0, 16, 63, 255 }, QN_DTYPE_BF16, 8 },
        { { 256, 4, 4096, 2, true }, 4000, 24, 3, false, { 3999, 2047, 64 }, QN_DTYPE_F32, 40 },
        { { 64, 1, 256, 2, true }, 90, 3, 300, false, { 89, 88, 3, 2, 64 }, QN_DTYPE_F16, 0 },
        { { 128, 2, 512, 2, true }, 300, 12, 150, true, { 37 }, QN_DTYPE_BF16, 24 },
        { { 64, 3, 256, 1, true }, 192, 6, 64, true, { 128 }, QN_DTYPE_F32, 0 },
    };
    static const struct rope_shape ropes[] = {
        { { 128, 2, 256, 1, false }, 8, 128, 5, 0, QN_ROPE_NEOX, true, false, false, QN_DTYPE_BF16, 8 },
        { { 64, 3, 256, 2, false }, 9, 64, 40, 100, QN_ROPE_INTERLEAVED, false, true, true, QN_DTYPE_F32, 16 },
        { { 256, 4, 256, 1, false }, 24, 64, 1, 200, QN_ROPE_NEOX, true, true, true, QN_DTYPE_F16, 0 },
        { { 80, 5, 256, 3, false }, 5, 20, 66, 62, QN_ROPE_NEOX, false, false, false, QN_DTYPE_F32, 8 },
        { { 16, 1, 256, 1, false }, 3, 16, 7, 3, QN_ROPE_INTERLEAVED, true, false, false, QN_DTYPE_BF16, 24 },
        { { 512, 1, 256, 1, false }, 2, 512, 2, 250, QN_ROPE_NEOX, true, false, false, QN_DTYPE_F32, 0 },
        { { 64, 3, 256, 2, true }, 9, 64, 40, 100, QN_ROPE_INTERLEAVED, false, true, true, QN_DTYPE_F32, 16 },
    };
    kernels = handle;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_attention(&shapes[i]);
    for (size_t i = 0; i < sizeof ropes / sizeof *ropes; i++)
        check_rope(&ropes[i]);
    check_graph();
}
