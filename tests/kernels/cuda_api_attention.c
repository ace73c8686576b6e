/* Attention over an fp16 KV cache and rope of quern/cuda.h on a GPU against the CPU's functions: several sequences, all
 * types, rows with and without gaps, decode and prefill, a step of decoding in a CUDA graph. */
#include "cuda_api.h"
#include "cuda_paged_arrays.h"
#include "cuda_views.h"

#include "base/f16.h"

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

static qn_cuda_view f32_view(uint64_t array)
{
    return qn_array_view(array, QN_DTYPE_F32);
}

/* ---- Caches, on both sides ---- */

struct cache_shape {
    size_t dim, n_kv_heads, capacity, n_sequences;
    bool paged;
};

struct caches {
    struct cache_shape s;
    uint16_t *keys, *values; /* the CPU's, a cache for each sequence */
    uint64_t gpu_keys, gpu_values;
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
    *c = (struct caches){ .s = *s,
                          .keys = memset(qn_new(bytes, 1), 0xff, bytes),
                          .values = memset(qn_new(bytes, 1), 0xff, bytes) };
    c->gpu = (qn_cuda_kv_cache){
        .n_sequences = s->n_sequences, .n_kv_heads = s->n_kv_heads, .capacity = s->capacity, .head_dim = s->dim
    };
    if (s->paged) {
        const size_t row_bytes[QN_PAGED_ARRAYS] = { s->dim * sizeof(uint16_t), s->dim * sizeof(uint16_t) };
        qn_paged_new(&c->pages, s->n_sequences, s->capacity / QN_PAGE, s->n_kv_heads, row_bytes);
        c->gpu.tables = qn_paged_tables(&c->pages);
        c->gpu.page_values = c->pages.offsets[0];
        c->gpu.page_keys = c->pages.offsets[1];
        return;
    }
    c->gpu_keys = qn_gpu_new(bytes);
    c->gpu_values = qn_gpu_new(bytes);
    c->gpu.keys = qn_array_view(c->gpu_keys, QN_DTYPE_F16);
    c->gpu.values = qn_array_view(c->gpu_values, QN_DTYPE_F16);
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
static const uint16_t *read_cache(struct caches *c, bool is_key)
{
    if (!c->s.paged)
        return qn_gpu_read(is_key ? c->gpu_keys : c->gpu_values);
    qn_paged_read(&c->pages);
    return qn_paged_gather(&c->pages, is_key, c->s.capacity);
}

/* All bits of keys and values are those of the CPU; bound above 0: values within it, relative to a row's norm. */
static void compare_caches(struct caches *c, double bound)
{
    const struct cache_shape *s = &c->s;
    static const char *const names[] = { "values of the cache", "keys of the cache" };
    float *x = qn_floats(s->dim), *y = qn_floats(s->dim);
    for (int is_key = 0; is_key < 2; is_key++) {
        const uint16_t *found = read_cache(c, is_key);
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
            qn_expect_relative(
                x, y, 1, s->dim, QN_DTYPE_F16, bound, bound,
                qn_text("%s: sequence %zu, head %zu, position %zu", names[is_key], sequence, head, position));
        }
    }
}

/* ---- Tokens: rows of keys and values, and their places ---- */

struct tokens {
    size_t n;
    uint32_t *positions, *sequences;
    uint64_t gpu_positions;
    qn_cuda_kv_tokens gpu;
};

static struct tokens tokens_new(size_t n)
{
    return (struct tokens){ .n = n, .positions = qn_new(n, 4), .sequences = qn_new(n, 4) };
}

/* Uploads the places, which have been set. with_sequences: else all tokens are of sequence 0. */
static void tokens_upload(struct tokens *t, bool with_sequences, bool consecutive)
{
    t->gpu_positions = qn_gpu_copy(t->positions);
    t->gpu = (qn_cuda_kv_tokens){ .n_tokens = t->n,
                                  .positions = qn_array_view(t->gpu_positions, QN_DTYPE_U32),
                                  .consecutive = consecutive };
    if (with_sequences)
        t->gpu.sequences = qn_array_view(qn_gpu_copy(t->sequences), QN_DTYPE_U32);
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
    struct tokens t = tokens_new(n);
    const qn_gpu_rows keys = qn_gpu_rows_random(s->dtype, n, row, s->gap, 0, 1),
                      values = qn_gpu_rows_random(s->dtype, n, row, 0, 0, 1);
    qn_case_begin("api", "kv_store", "%zu tokens, %zu heads of %zu, capacity %zu of %zu sequences, type %d, gap %zu%s",
                  n, s->cache.n_kv_heads, s->cache.dim, s->cache.capacity, s->cache.n_sequences, (int)s->dtype, s->gap,
                  s->cache.paged ? ", pages" : "");
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

static void attend(const struct caches *c, const struct tokens *t, const qn_gpu_rows *queries, size_t n_heads,
                   float scale, const qn_gpu_rows *out, uint64_t workspace)
{
    qn_assert_ok(qn_cuda_attention(kernels, &c->gpu, &t->gpu, qn_gpu_rows_view(queries), n_heads, scale,
                                   qn_gpu_rows_view(out), (void *)(uintptr_t)workspace, qn_gpu_bytes(workspace),
                                   qn_gpu_stream()));
}

static uint64_t workspace_new(const struct caches *c, const struct tokens *t, size_t n_heads)
{
    size_t bytes = 0;
    qn_assert_ok(qn_cuda_attention_workspace(kernels, &c->gpu, &t->gpu, n_heads, &bytes));
    return qn_gpu_new(bytes);
}

static void check_attention(const struct shape *s)
{
    const size_t row = s->n_heads * s->cache.dim;
    const float scale = 1 / sqrtf((float)s->cache.dim);
    struct caches c;
    qn_random_seed(s->cache.dim * 100 + s->n_tokens);
    caches_new(&c, &s->cache);
    qn_assert_ok(qn_cuda_kv_prepare(kernels, s->cache.dim)); /* compiles several sources at a time */
    check_store(&c, s);
    qn_case_begin(
        "api", s->consecutive ? "attention prefill" : "attention decode",
        "heads %zu of %zu over %zu, %zu tokens from position %u, capacity %zu of %zu sequences, type %d, gap %zu%s",
        s->n_heads, s->cache.dim, s->cache.n_kv_heads, s->n_tokens, s->positions[0], s->cache.capacity,
        s->cache.n_sequences, (int)s->dtype, s->gap, s->cache.paged ? ", pages" : "");
    struct tokens t = tokens_new(s->n_tokens);
    for (size_t i = 0; i < s->n_tokens; i++) {
        t.positions[i] = s->consecutive ? s->positions[0] + (uint32_t)i : s->positions[i % 5];
        t.sequences[i] = (uint32_t)(s->consecutive ? s->cache.n_sequences - 1 : i % s->cache.n_sequences);
    }
    tokens_upload(&t, s->cache.n_sequences > 1, s->consecutive);
    const qn_gpu_rows queries = qn_gpu_rows_random(s->dtype, s->n_tokens, row, s->gap, 0, 1),
                      out = qn_gpu_rows_poison(s->dtype, s->n_tokens, row, s->gap, 0);
    attend(&c, &t, &queries, s->n_heads, scale, &out, workspace_new(&c, &t, s->n_heads));
    float *expected = qn_floats(s->n_tokens * row);
    attention_on_cpu(&c, &t, queries.values, s->n_heads, scale, expected);
    qn_gpu_rows_expect_relative(&out, expected, s->cache.dim, ERROR_BOUND, WORST_BOUND, "attention");
    compare_caches(&c, 0);
    qn_release();
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
    uint64_t frequencies, cosines, sines;
};

static struct angles angles_new(size_t n_tokens, size_t n_rot)
{
    double *f = qn_doubles(n_rot / 2);
    for (size_t i = 0; i < n_rot / 2; i++)
        f[i] = pow(BASE, -2.0 * (double)i / (double)n_rot);
    return (struct angles){ qn_gpu_copy(f), qn_gpu_floats(n_tokens * n_rot / 2), qn_gpu_floats(n_tokens * n_rot / 2) };
}

static qn_status queue_angles(const struct angles *a, const qn_cuda_kv_tokens *t, size_t n_rot, double attn_factor)
{
    return qn_cuda_rope_angles(kernels, t->positions, qn_array_view(a->frequencies, QN_DTYPE_F64), t->n_tokens, n_rot,
                               attn_factor, f32_view(a->cosines), f32_view(a->sines), qn_gpu_stream());
}

/* Both sides round a double, whose angle has an error below 1e-9 at these positions, to float32. */
static void check_angles(const struct angles *a, const struct tokens *t, size_t n_rot)
{
    const double attn_factor = 1.25;
    const size_t half = n_rot / 2;
    qn_assert_ok(queue_angles(a, &t->gpu, n_rot, attn_factor));
    for (int is_sine = 0; is_sine < 2; is_sine++) {
        const float *found = qn_gpu_read(is_sine ? a->sines : a->cosines);
        for (size_t i = 0; i < t->n * half; i++) {
            const double angle = t->positions[i / half] * pow(BASE, -2.0 * (double)(i % half) / (double)n_rot);
            const double x = attn_factor * (is_sine ? sin(angle) : cos(angle));
            qn_expect(fabs((double)found[i] - x) <= 1e-7, "%s: token %zu, pair %zu is %.9g, expected %.9g",
                      is_sine ? "sines" : "cosines", i / half, i % half, (double)found[i], x);
        }
    }
}

static qn_cuda_rope_shape rope_of(const struct rope_shape *s, const struct angles *a)
{
    return (qn_cuda_rope_shape){ .n_heads = s->n_heads,
                                 .head_dim = s->cache.dim,
                                 .n_rot = s->n_rot,
                                 .pairing = s->pairing,
                                 .cosines = f32_view(a->cosines),
                                 .sines = f32_view(a->sines) };
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
    const qn_gpu_rows x = qn_gpu_rows_random(s->dtype, s->n_tokens, row, s->gap, 0, 1);
    float *expected = qn_floats(n);
    begin_rope(s, "rope");
    memcpy(expected, x.values, n * sizeof *expected);
    rope_on_cpu(s, t, expected, s->n_heads);
    qn_assert_ok(qn_cuda_rope(kernels, &shape, qn_gpu_rows_view(&x), s->n_tokens, qn_gpu_stream()));
    qn_gpu_rows_expect_relative(&x, expected, s->cache.dim, FLOAT_BOUND, FLOAT_BOUND, "x");
}

/* Biases and weights on both sides, in the order of qn_cuda_qk_norm. */
struct norm {
    float *x[5];
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
        *views[i] = f32_view(qn_gpu_copy(n->x[i]));
    }
}

/* Bias, norm and rope of heads; a copy. weight and bias may be NULL. */
static float *heads_on_cpu(const struct rope_shape *s, const struct tokens *t, const float *from, size_t n_heads,
                           const float *bias, const float *weight, bool rope)
{
    const size_t row = n_heads * s->cache.dim, n = t->n * row;
    float *x = qn_new(n, sizeof *x);
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
    const qn_gpu_rows queries = qn_gpu_rows_random(s->dtype, s->n_tokens, row, s->gap, 0, 1),
                      keys = qn_gpu_rows_random(s->dtype, s->n_tokens, kv_row, s->gap, 0, 1),
                      values = qn_gpu_rows_random(s->dtype, s->n_tokens, kv_row, 0, 0, 1),
                      out = qn_gpu_rows_poison(s->dtype, s->n_tokens, row, 0, 0);
    const float *q = heads_on_cpu(s, t, queries.values, s->n_heads, norm.x[0], norm.x[3], true),
                *k = heads_on_cpu(s, t, keys.values, s->cache.n_kv_heads, norm.x[1], norm.x[4], true),
                *v = heads_on_cpu(s, t, values.values, s->cache.n_kv_heads, norm.x[2], NULL, false);
    for (size_t i = 0; i < t->n; i++)
        store_on_cpu(&c, t->sequences[i], t->positions[i], k + i * kv_row, v + i * kv_row);
    const qn_gpu_rows *to = s->in_place ? &queries : &out;
    qn_assert_ok(qn_cuda_qk_norm_rope_store(kernels, &c.gpu, &t->gpu, &shape, s->norms || s->biases ? &norm.args : NULL,
                                            qn_gpu_rows_view(&queries), qn_gpu_rows_view(&keys),
                                            qn_gpu_rows_view(&values), qn_gpu_rows_view(to), qn_gpu_stream()));
    qn_gpu_rows_expect_relative(to, q, dim, FLOAT_BOUND, FLOAT_BOUND, "out");
    compare_caches(&c, FLOAT_BOUND);
}

static void check_rope(const struct rope_shape *s)
{
    struct tokens t = tokens_new(s->n_tokens);
    qn_random_seed(s->cache.dim * 10 + s->n_tokens);
    begin_rope(s, "rope angles");
    for (size_t i = 0; i < s->n_tokens; i++) {
        t.positions[i] = s->first + (uint32_t)i;
        t.sequences[i] = (uint32_t)(i % s->cache.n_sequences);
    }
    tokens_upload(&t, s->cache.n_sequences > 1, false);
    const struct angles a = angles_new(s->n_tokens, s->n_rot);
    check_angles(&a, &t, s->n_rot);
    qn_assert_ok(queue_angles(&a, &t.gpu, s->n_rot, 1));
    check_rope_in_place(s, &t, &a);
    check_fused(s, &t, &a);
    qn_release();
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
    struct norm norm;
    qn_random_seed(1);
    caches_new(&c, &s.cache);
    norm_new(&norm, &s);
    struct tokens t = tokens_new(1);
    tokens_upload(&t, false, false);
    const struct angles a = angles_new(1, s.n_rot);
    const qn_cuda_rope_shape shape = rope_of(&s, &a);
    const qn_gpu_rows queries = qn_gpu_rows_random(s.dtype, 1, row, 0, 0, 1),
                      keys = qn_gpu_rows_random(s.dtype, 1, kv_row, 0, 0, 1),
                      values = qn_gpu_rows_random(s.dtype, 1, kv_row, 0, 0, 1),
                      out = qn_gpu_rows_poison(s.dtype, 1, row, 0, 0);
    const qn_cuda_view q = qn_gpu_rows_view(&queries);
    const uint64_t workspace = workspace_new(&c, &t, s.n_heads);
    qn_assert_ok(qn_cuda_kv_prepare(kernels, s.cache.dim));
    qn_gpu_capture_begin();
    qn_assert_ok(queue_angles(&a, &t.gpu, s.n_rot, 1));
    qn_assert_ok(qn_cuda_qk_norm_rope_store(kernels, &c.gpu, &t.gpu, &shape, &norm.args, q, qn_gpu_rows_view(&keys),
                                            qn_gpu_rows_view(&values), q, qn_gpu_stream()));
    attend(&c, &t, &queries, s.n_heads, scale, &out, workspace);
    qn_cuda_graph *graph = qn_gpu_capture_end();
    float *expected = qn_floats(row);
    for (uint32_t position = 0; position < STEPS; position++) {
        qn_case_begin("api", "attention graph", "position %u of a captured step, heads %zu of %zu over %zu", position,
                      s.n_heads, s.cache.dim, s.cache.n_kv_heads);
        qn_gpu_rows_draw(&queries, 1);
        qn_gpu_rows_draw(&keys, 1);
        qn_gpu_rows_draw(&values, 1);
        t.positions[0] = position;
        qn_gpu_write(t.gpu_positions, t.positions, sizeof(uint32_t));
        store_on_cpu(&c, 0, position, heads_on_cpu(&s, &t, keys.values, s.cache.n_kv_heads, NULL, norm.x[4], true),
                     values.values);
        attention_on_cpu(&c, &t, heads_on_cpu(&s, &t, queries.values, s.n_heads, NULL, norm.x[3], true), s.n_heads,
                         scale, expected);
        qn_gpu_graph_launch(graph);
        /* The queries have been rounded to bf16 between the kernels, too. */
        const double rounding = qn_float_rounding(s.dtype);
        qn_gpu_rows_expect_relative(&out, expected, s.cache.dim, ERROR_BOUND + rounding, WORST_BOUND + rounding,
                                    "attention");
    }
    qn_release();
}

void qn_check_api_attention(void)
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
    kernels = qn_api();
    for (size_t i = 0; i < QN_LENGTH(shapes); i++)
        check_attention(&shapes[i]);
    for (size_t i = 0; i < QN_LENGTH(ropes); i++)
        check_rope(&ropes[i]);
    check_graph();
}
