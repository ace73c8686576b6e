/* AURA attention over the packed stream: one pass and two passes compared with float64 over the decoded cache; masks,
 * windows, sinks, poisoned outputs of empty blocks, rejected arguments. */
#include "helper_aura.h"

#include "base/f16.h"

#include <float.h>

enum { GUARD = 64 };

typedef struct guarded {
    uint8_t *block;
    qn_view view;
    size_t bytes;
} guarded;

/* All bytes are 0xff: NaN in every float type. */
static guarded guarded_new(qn_dtype dtype, size_t count)
{
    guarded g = { .bytes = count * (dtype == QN_DTYPE_F32 ? 4 : 2) };
    g.block = memory(g.bytes + 2 * GUARD, 0xff);
    g.view = (qn_view){ g.block + GUARD, dtype, count };
    return g;
}

static void guarded_free(guarded *g)
{
    for (size_t i = 0; i < GUARD; i++)
        assert_true(g->block[i] == 0xff && g->block[GUARD + g->bytes + i] == 0xff);
    free(g->block);
}

typedef struct shape {
    size_t dim;
    unsigned key_bits, value_bits;
    size_t kv_heads, group, capacity, n_keys, n_tokens, block, window;
    bool causal, sinks;
} shape;

static float element(qn_view view, size_t i)
{
    const uint16_t *values16 = view.data;
    return view.dtype == QN_DTYPE_F32   ? ((const float *)view.data)[i]
           : view.dtype == QN_DTYPE_F16 ? qn_f16_to_f32(values16[i])
                                        : qn_bf16_to_f32(values16[i]);
}

/* Compares each row of `out` with float64: the error must be within `bound` of the row's norm. */
static void compare(const shape *s, const aura_case *c, const qn_aura_queries *q, qn_view out, double bound,
                    const char *what)
{
    const size_t n_heads = s->kv_heads * s->group;
    for (size_t row = 0; row < s->n_tokens * n_heads; row++) {
        const size_t t = row / n_heads, h = row % n_heads, kv = h / s->group, at = kv * s->n_keys * s->dim;
        const size_t position = ((const uint32_t *)q->positions.data)[t];
        const size_t from = s->window && position + 1 > s->window ? position + 1 - s->window : 0;
        size_t to = s->causal && position + 1 < s->n_keys ? position + 1 : s->n_keys;
        double exact[512];
        float found[512], query[512];
        to = to > from ? to : from;
        for (size_t d = 0; d < s->dim; d++) {
            query[d] = element(q->queries, row * s->dim + d);
            found[d] = element(out, row * s->dim + d);
        }
        attend_float64(query, c->keys + at, c->values + at, from, to, s->dim, (double)q->scale,
                       s->sinks ? (double)((const float *)q->sinks.data)[h] : NAN, exact);
        if (!(relative(found, exact, s->dim) <= bound))
            fail_msg("%s: row %zu: off by %g, bound %g", what, row, relative(found, exact, s->dim), bound);
        for (size_t d = 0; from == to && d < s->dim; d++)
            assert_true(found[d] == 0);
    }
}

static void check(const shape *s, qn_dtype dtype)
{
    aura_case c = new_case(s->dim, s->key_bits, s->value_bits, s->kv_heads, s->capacity, s->n_keys);
    label("dim %zu bits %u %u keys %zu block %zu window %zu, type %d", s->dim, s->key_bits, s->value_bits, s->n_keys,
          s->block, s->window, (int)dtype);
    const size_t n_heads = s->kv_heads * s->group, rows = s->n_tokens * n_heads, n = rows * s->dim;
    const size_t n_blocks = (s->n_keys + s->block - 1) / s->block;
    float *x = normals(n, 1), *sinks = normals(n_heads, 2);
    uint16_t *values16 = memory(n * 2, 0);
    uint32_t *positions = memory(s->n_tokens * 4, 0);
    for (size_t t = 0; t < s->n_tokens; t++) /* all keys are visible to the last token, one to the first */
        positions[t] = (uint32_t)(t + 1 == s->n_tokens ? (s->n_keys ? s->n_keys - 1 : 0) : t * s->n_keys / s->n_tokens);
    for (size_t i = 0; i < n; i++)
        values16[i] = dtype == QN_DTYPE_BF16 ? qn_f32_to_bf16(x[i]) : qn_f32_to_f16(x[i]);
    const qn_aura_queries q = { .queries = { dtype == QN_DTYPE_F32 ? (void *)x : (void *)values16, dtype, n },
                                .n_tokens = s->n_tokens,
                                .n_heads = n_heads,
                                .scale = 1.5f / sqrtf((float)s->dim),
                                .causal = s->causal,
                                .window = s->window,
                                .positions = u32(positions, s->n_tokens),
                                .sinks = s->sinks ? f32(sinks, n_heads) : (qn_view){ 0 } };
    guarded one = guarded_new(dtype, n), two = guarded_new(dtype, n),
            partials = guarded_new(QN_DTYPE_F32, rows * n_blocks * s->dim);
    guarded m = guarded_new(QN_DTYPE_F32, rows * n_blocks), l = guarded_new(QN_DTYPE_F32, rows * n_blocks);
    /* fp32: sums of hundreds of terms and scores of up to 10. fp16 and bf16: the rounding of each output element, at
     * most 2^-11 and 2^-9 of it. */
    const double bound = dtype == QN_DTYPE_F32 ? 1e-5 : dtype == QN_DTYPE_F16 ? 5e-4 : 2e-3;
    assert_ok(qn_aura_attention(&c.cache, &q, one.view));
    compare(s, &c, &q, one.view, bound, "single pass");
    assert_ok(qn_aura_flash_pass1(&c.cache, &q, s->block, partials.view, m.view, l.view));
    for (size_t i = 0; i < rows * n_blocks; i++)
        if (((float *)l.view.data)[i] == 0) { /* not written: the poison must still be there, and must not matter */
            const float *o = (float *)partials.view.data + i * s->dim;
            assert_true(isnan(o[0]) && isnan(o[s->dim - 1]) && isnan(((float *)m.view.data)[i]));
        }
    assert_ok(qn_aura_flash_pass2(c.cache.value_codec, rows, n_heads, n_blocks, partials.view, m.view, l.view, q.sinks,
                                  two.view));
    compare(s, &c, &q, two.view, bound, "two passes");
    guarded_free(&one);
    guarded_free(&two);
    guarded_free(&partials);
    guarded_free(&m);
    guarded_free(&l);
    free(x);
    free(sinks);
    free(values16);
    free(positions);
    free_case(&c);
}

TEST(all_dims_and_bits)
{
    static const size_t blocks[] = { 64, 1, 37, 256, 1000 };
    for (size_t i = 0; i < N_DIMS; i++)
        for (size_t j = 0; j < N_BITS; j++)
            for (size_t k = 0; k < 2; k++) {
                const size_t dim = aura_dims[i];
                const shape s = { dim,
                                  aura_bits[j],
                                  aura_bits[(j + 1 + i) % N_BITS],
                                  2,
                                  1 + (i + j) % 4,
                                  307,
                                  300,
                                  3,
                                  blocks[(i + j + k) % 5],
                                  k ? 100 : 0,
                                  true,
                                  k == 1 };
                check(&s, QN_DTYPE_F32);
            }
}

TEST(types)
{
    const shape s = { 128, 4, 4, 1, 8, 512, 400, 2, 128, 0, false, false };
    check(&s, QN_DTYPE_F16);
    check(&s, QN_DTYPE_BF16);
}

TEST(awkward_shapes)
{
    static const shape shapes[] = {
        { 64, 4, 2, 1, 1, 1, 1, 1, 1, 0, true, false },        /* one key, the whole capacity */
        { 64, 4, 2, 1, 1, 9, 1, 1, 256, 0, false, true },      /* one key and a sink */
        { 64, 4, 4, 2, 2, 16, 0, 2, 8, 0, false, false },      /* nothing stored */
        { 64, 4, 4, 2, 2, 16, 0, 2, 8, 0, true, true },        /* nothing but sinks */
        { 80, 3, 3, 1, 2, 600, 600, 5, 100, 1, true, false },  /* a window of the token itself */
        { 80, 3, 6, 1, 2, 600, 599, 70, 100, 30, true, true }, /* more rows than a tile holds; windows across blocks */
        { 96, 8, 2, 3, 1, 300, 290, 4, 64, 50, false, false }, /* a window, not causal: later keys are visible, too */
        { 64, 2, 8, 1, 1, 300, 257, 3, 256, 1000, true, false },
    };
    for (size_t i = 0; i < COUNT(shapes); i++)
        check(&shapes[i], QN_DTYPE_F32);
}

/* All stored keys are visible to positions past them, but a window hides them. */
TEST(no_visible_key)
{
    enum { DIM = 64, N = 40 };
    aura_case c = new_case(DIM, 4, 4, 1, 64, N);
    float *x = normals(DIM, 1), out[DIM], sink = 1, partials[3 * DIM], m[3], l[3];
    uint32_t position = 60;
    qn_aura_queries q = { .queries = f32(x, DIM),
                          .n_tokens = 1,
                          .n_heads = 1,
                          .scale = 0.1f,
                          .causal = true,
                          .window = 21,
                          .positions = u32(&position, 1) };
    for (int with_sink = 0; with_sink < 2; with_sink++) {
        label("%s sink", with_sink ? "with a" : "without");
        memset(out, 0xff, sizeof out);
        memset(partials, 0xff, sizeof partials);
        q.sinks = with_sink ? f32(&sink, 1) : (qn_view){ 0 };
        assert_ok(qn_aura_attention(&c.cache, &q, f32(out, DIM)));
        for (size_t d = 0; d < DIM; d++)
            assert_true(out[d] == 0);
        memset(out, 0xff, sizeof out);
        assert_ok(qn_aura_flash_pass1(&c.cache, &q, 16, f32(partials, 3 * DIM), f32(m, 3), f32(l, 3)));
        assert_true(l[0] == 0 && l[1] == 0 && l[2] == 0 && isnan(partials[0]));
        assert_ok(qn_aura_flash_pass2(c.cache.value_codec, 1, 1, 3, f32(partials, 3 * DIM), f32(m, 3), f32(l, 3),
                                      q.sinks, f32(out, DIM)));
        for (size_t d = 0; d < DIM; d++)
            assert_true(out[d] == 0);
    }
    q.window = 22; /* only key 39 is visible */
    q.sinks = (qn_view){ 0 };
    assert_ok(qn_aura_attention(&c.cache, &q, f32(out, DIM)));
    for (size_t d = 0; d < DIM; d++)
        assert_true(fabsf(out[d] - c.values[39 * DIM + d]) < 1e-5f);
    free(x);
    free_case(&c);
}

TEST(scores_and_values)
{
    enum { DIM = 192, KV = 2, HEADS = 6, TOKENS = 3, KEYS = 50, ROWS = TOKENS * HEADS };
    aura_case c = new_case(DIM, 3, 6, KV, 64, KEYS);
    float *x = normals(ROWS * DIM, 1), *weights = memory(ROWS * KEYS * 4, 0);
    const qn_aura_queries q = { .queries = f32(x, ROWS * DIM), .n_tokens = TOKENS, .n_heads = HEADS, .scale = 0.25f };
    guarded scores = guarded_new(QN_DTYPE_F32, ROWS * KEYS), out = guarded_new(QN_DTYPE_F32, ROWS * DIM);
    assert_ok(qn_aura_score(&c.cache, &q, scores.view));
    for (size_t i = 0; i < ROWS * KEYS; i++) {
        const size_t row = i / KEYS, kv = row % HEADS / (HEADS / KV);
        double exact = 0, magnitude = 0;
        for (size_t d = 0; d < DIM; d++) {
            const double term = 0.25 * (double)x[row * DIM + d] * (double)c.keys[(kv * KEYS + i % KEYS) * DIM + d];
            exact += term;
            magnitude += fabs(term);
        }
        assert_true(fabs((double)((float *)scores.view.data)[i] - exact) < 2e-6 * magnitude); /* three roundings a term
                                                                                               */
        weights[i] = (float)pow(uniform(), 6);
    }
    static const float skips[] = { 0, 0.1f, 2 };
    for (size_t k = 0; k < 3; k++) {
        label("threshold %g", (double)skips[k]);
        /* Values with weights below the threshold must not be read: their scales are NaN. */
        qn_aura_cache cache = c.cache;
        float *scales = memory(KV * 64 * 4, 0);
        memcpy(scales, cache.value_scales.data, KV * 64 * 4);
        cache.value_scales = f32(scales, KV * 64);
        for (size_t i = 0; i < ROWS * KEYS; i++)
            if (i % KEYS % 4 == 1)
                weights[i] = fminf(weights[i], 0.09f);
        for (size_t i = 0; skips[k] > 0 && i < KV * 64; i++)
            if (i % 64 % 4 == 1)
                scales[i] = NAN;
        assert_ok(qn_aura_value(&cache, f32(weights, ROWS * KEYS), TOKENS, HEADS, skips[k], out.view));
        for (size_t row = 0; row < ROWS; row++) {
            label("row %zu", row);
            double exact[DIM] = { 0 };
            const size_t kv = row % HEADS / (HEADS / KV);
            for (size_t j = 0; j < KEYS; j++)
                for (size_t d = 0; d < DIM && weights[row * KEYS + j] >= skips[k]; d++)
                    exact[d] += (double)weights[row * KEYS + j] * (double)c.values[(kv * KEYS + j) * DIM + d];
            assert_true(relative((float *)out.view.data + row * DIM, exact, DIM) < 1e-5);
        }
        free(scales);
    }
    guarded_free(&scores);
    guarded_free(&out);
    free(x);
    free(weights);
    free_case(&c);
}

/* The capacity is the stride between heads, and nothing past n_keys is read: results do not depend on it. */
TEST(capacity_is_the_stride)
{
    enum { DIM = 64, HEADS = 2, KEYS = 20 };
    float *x = normals(HEADS * DIM, 1), out[2][HEADS * DIM];
    for (int i = 0; i < 2; i++) {
        random_state = 99;
        aura_case c = new_case(DIM, 3, 3, HEADS, i ? 1000 : KEYS, KEYS);
        const qn_aura_queries q = { .queries = f32(x, HEADS * DIM), .n_tokens = 1, .n_heads = HEADS, .scale = 0.2f };
        assert_ok(qn_aura_attention(&c.cache, &q, f32(out[i], HEADS * DIM)));
        free_case(&c);
    }
    assert_memory_equal(out[0], out[1], sizeof out[0]);
    free(x);
}

enum { DIM = 64, KV = 2, HEADS = 4, KEYS = 10, CAPACITY = 12, N = HEADS * DIM, BLOCKS = 5 };

/* Valid arguments, of which a test changes one. */
struct arguments {
    aura_case c;
    qn_aura_codec *other; /* of another dim */
    float *x, sinks[HEADS], out[N], partials[BLOCKS * N], m[BLOCKS * HEADS], l[BLOCKS * HEADS];
    uint32_t position;
    qn_aura_queries queries;
};

static void make_arguments(struct arguments *a)
{
    *a = (struct arguments){ .c = new_case(DIM, 4, 3, KV, CAPACITY, KEYS), .other = new_codec(80, 4), .position = 5 };
    a->x = normals(N, 1);
    a->queries = (qn_aura_queries){ .queries = f32(a->x, N),
                                    .n_tokens = 1,
                                    .n_heads = HEADS,
                                    .scale = 1,
                                    .causal = true,
                                    .positions = u32(&a->position, 1),
                                    .sinks = f32(a->sinks, HEADS) };
    memset(a->out, 0xff, sizeof a->out);
    memset(a->l, 0xff, sizeof a->l);
}

/* Refused calls have not written their output. */
static void free_arguments(struct arguments *a)
{
    for (size_t i = 0; i < N; i++)
        assert_true(isnan(a->out[i]));
    for (size_t i = 0; i < BLOCKS * HEADS; i++)
        assert_true(isnan(a->l[i]));
    free(a->x);
    qn_aura_codec_free(a->other);
    free_case(&a->c);
}

static qn_status pass1(struct arguments *a, const qn_aura_cache *cache, const qn_aura_queries *queries)
{
    return qn_aura_flash_pass1(cache, queries, 2, f32(a->partials, BLOCKS * N), f32(a->m, BLOCKS * HEADS),
                               f32(a->l, BLOCKS * HEADS));
}

TEST(refuses_caches_and_queries)
{
    struct arguments a;
    make_arguments(&a);
    struct {
        qn_aura_cache cache;
        qn_aura_queries queries;
        const char *text;
    } bad[16];
    const size_t n = COUNT(bad);
    for (size_t i = 0; i < n; i++) {
        bad[i].cache = a.c.cache;
        bad[i].queries = a.queries;
    }
    bad[0].cache.key_codec = NULL;
    bad[0].text = "key_codec: NULL";
    bad[1].cache.value_codec = a.other;
    bad[1].text = "value_codec: dim 80, expected that of key_codec, 64";
    bad[2].cache.n_kv_heads = 0;
    bad[2].text = "n_kv_heads: 0";
    bad[3].cache.n_keys = CAPACITY + 1;
    bad[3].text = "n_keys: 13, expected at most the capacity 12";
    bad[4].cache.capacity++;
    bad[4].text = "key_codes: 192 elements, expected at least 208";
    bad[5].cache.key_scales.count--;
    bad[5].text = "key_scales: 23 elements, expected at least 24";
    bad[6].cache.value_codes.count--;
    bad[6].text = "value_codes: 143 elements, expected at least 144";
    bad[7].cache.value_scales.data = NULL;
    bad[7].text = "value_scales: NULL";
    bad[8].queries.n_heads = 3;
    bad[8].text = "n_heads: 3, expected a multiple of n_kv_heads 2";
    bad[9].queries.queries.count--;
    bad[9].text = "queries: 255 elements, expected at least 256";
    bad[10].queries.scale = INFINITY;
    bad[10].text = "scale: inf";
    bad[11].queries.positions = (qn_view){ 0 };
    bad[11].text = "positions: type f32 (0), expected u32";
    bad[12].queries.sinks.count = 3;
    bad[12].text = "sinks: 3 elements, expected at least 4";
    float bad_sinks[HEADS] = { 0, 0, NAN, 0 };
    bad[13].queries.sinks = f32(bad_sinks, HEADS);
    bad[13].text = "sinks: element 2 is nan, expected a finite value";
    bad[14].cache.capacity = SIZE_MAX / 2;
    bad[14].text = "do not fit in memory";
    bad[15].queries.queries.dtype = QN_DTYPE_Q8_0;
    bad[15].text = "expected f32, f16 or bf16";
    for (size_t i = 0; i < n; i++) {
        label("%s", bad[i].text);
        assert_fails(qn_aura_attention(&bad[i].cache, &bad[i].queries, f32(a.out, N)), QN_ERR_INVALID, bad[i].text);
        if (i == 12 || i == 13) /* pass 1 does not read sinks */
            continue;
        assert_fails(pass1(&a, &bad[i].cache, &bad[i].queries), QN_ERR_INVALID, bad[i].text);
    }
    free_arguments(&a);
}

TEST(refuses_sizes)
{
    struct arguments a;
    make_arguments(&a);
    const qn_aura_cache *cache = &a.c.cache;
    const qn_aura_queries *queries = &a.queries;
    const qn_view out = f32(a.out, N), partials = f32(a.partials, BLOCKS * N), m = f32(a.m, BLOCKS * HEADS),
                  l = f32(a.l, BLOCKS * HEADS);
    assert_fails(qn_aura_attention(cache, queries, f32(a.out, N - 1)), QN_ERR_INVALID,
                 "out: 255 elements, expected at least 256");
    assert_int_equal(qn_aura_attention(NULL, queries, out), QN_ERR_INVALID);
    assert_int_equal(qn_aura_attention(cache, NULL, out), QN_ERR_INVALID);
    assert_fails(qn_aura_flash_pass1(cache, queries, 0, partials, m, l), QN_ERR_INVALID, "block: 0");
    assert_fails(qn_aura_flash_pass1(cache, queries, 2, f32(a.partials, BLOCKS * N - 1), m, l), QN_ERR_INVALID,
                 "partials: 1279 elements, expected at least 1280");
    assert_int_equal(qn_aura_flash_pass1(cache, queries, 2, partials, f32(a.m, BLOCKS * HEADS - 1), l), QN_ERR_INVALID);
    assert_int_equal(qn_aura_flash_pass1(cache, queries, 2, partials, m, f32(a.l, BLOCKS * HEADS - 1)), QN_ERR_INVALID);
    assert_int_equal(qn_aura_flash_pass2(NULL, HEADS, HEADS, BLOCKS, partials, m, l, queries->sinks, out),
                     QN_ERR_INVALID);
    assert_fails(qn_aura_flash_pass2(a.other, HEADS, 3, BLOCKS, partials, m, l, queries->sinks, out), QN_ERR_INVALID,
                 "n_queries: 4, expected a multiple of n_heads 3");
    assert_fails(qn_aura_value(cache, f32(a.partials, HEADS * KEYS), 1, HEADS, NAN, out), QN_ERR_INVALID,
                 "skip: nan, expected at least 0");
    assert_fails(qn_aura_value(cache, f32(a.partials, HEADS * KEYS - 1), 1, HEADS, 0, out), QN_ERR_INVALID,
                 "weights: 39 elements, expected at least 40");
    assert_fails(qn_aura_score(cache, queries, f32(a.out, HEADS * KEYS - 1)), QN_ERR_INVALID,
                 "scores: 39 elements, expected at least 40");
    free_arguments(&a);
}

/* qn_aura_store rejects a bad row, leaves the cache unchanged from that row on, and names token and head. */
TEST(store_refuses)
{
    enum { POSITIONS = 8, TOKENS = 2, VALUES = TOKENS * KV * DIM };
    aura_case c = new_case(DIM, 4, 3, KV, POSITIONS, 4);
    float *k = normals(VALUES, 1), *v = normals(VALUES, 1), scales[2 * POSITIONS];
    uint32_t positions[TOKENS] = { 3, POSITIONS };
    memcpy(scales, c.cache.key_scales.data, sizeof scales);
    assert_fails(qn_aura_store(&c.cache, f32(k, VALUES), f32(v, VALUES), u32(positions, TOKENS), TOKENS),
                 QN_ERR_INVALID, "positions: token 1 is at 8, expected below the capacity 8");
    assert_memory_equal(scales, c.cache.key_scales.data, sizeof scales);
    positions[1] = 5;
    v[2 * DIM + 9] = NAN;
    assert_fails(qn_aura_store(&c.cache, f32(k, VALUES), f32(v, VALUES), u32(positions, TOKENS), TOKENS),
                 QN_ERR_INVALID, "values: token 1, head 0 is not finite");
    k[3 * DIM] = INFINITY;
    v[2 * DIM + 9] = 0;
    assert_fails(qn_aura_store(&c.cache, f32(k, VALUES), f32(v, VALUES), u32(positions, TOKENS), TOKENS),
                 QN_ERR_INVALID, "keys: token 1, head 1 is not finite");
    assert_true(isnan(((float *)c.cache.key_scales.data)[POSITIONS + 5]));
    assert_fails(qn_aura_store(&c.cache, f32(k, VALUES - 1), f32(v, VALUES), u32(positions, TOKENS), TOKENS),
                 QN_ERR_INVALID, "keys: 255 elements, expected at least 256");
    assert_fails(qn_aura_store(&c.cache, f32(k, VALUES), f32(v, VALUES), u32(positions, 1), TOKENS), QN_ERR_INVALID,
                 "positions: 1 elements, expected at least 2");
    free(k);
    free(v);
    free_case(&c);
}
