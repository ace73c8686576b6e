/* Attention on the GPU compared with attention in double over the contents of the cache: fp16, codes, and a session's
 * codes with fp16 pages; windows, sinks, gates, several rows, positions at the edges of tiles and pages. */
#include "cuda_codec.h"
#include "cuda_attention_rows.h"
#include "cuda_views.h"

#include "base/f16.h"
#include "cuda/kernels/attention/attention.h"
#include "gpu/format.h"
#include "kernels/kernels.h"
#include "cuda/kernels/rope/rope.h"

/* Keys, values and weights are rounded to fp16: a relative error of up to 2^-11 each, mostly less than half of that.
 * Errors are random and do not add up. */
#define ERROR_BOUND 2e-3
#define WORST_BOUND 8e-3 /* of one query: values may cancel */

enum { N_OPEN = 2 };

struct shape {
    size_t dim, n_heads, n_kv_heads, capacity;
    unsigned key_bits, value_bits;
    bool pages;
    size_t n_rows;
    uint32_t positions[4], window; /* positions: of rows 0 to 3, which the others repeat */
    bool not_causal, sinks, gates;
    uint32_t first; /* positions before it are not attended to */
};

struct problem {
    const struct shape *s;
    qn_kernels kernels;
    qn_aura_codec *key_codec, *value_codec; /* NULL for fp16 */
    size_t key_words, value_words;
    uint32_t *keys, *values;          /* [rows][kv heads][capacity][words] */
    float *key_scales, *value_scales; /* [rows][kv heads][capacity] */
    uint16_t *f16_keys, *f16_values;  /* [rows][kv heads][1 + N_OPEN][page][dim] */
    float *means, *queries, *sinks, *gates;
    uint32_t *positions, *sessions;
    qn_attention_gpu gpu_shape;
    qn_launch decode;
    qn_attention_decode_args decode_args;
};

static uint16_t *random_f16(size_t n)
{
    uint16_t *h = qn_new(n, sizeof *h);
    for (size_t i = 0; i < n; i++)
        h[i] = qn_f32_to_f16(qn_random_normal());
    return h;
}

static uint32_t *random_words(size_t n)
{
    uint32_t *w = qn_new(n, sizeof *w);
    for (size_t i = 0; i < n; i++)
        w[i] = (uint32_t)(qn_random() >> 16);
    return w;
}

/* Norms of rows with elements of about 1. Scores are then about 1, too, so that softmax is neither uniform nor a single
 * key. */
static float *random_scales(size_t n, size_t dim)
{
    float *x = qn_floats(n);
    for (size_t i = 0; i < n; i++)
        x[i] = sqrtf((float)dim) * (0.3f + 1.4f * (float)qn_random_below(1000) / 1000);
    return x;
}

/* A session's queries are rotated already. */
static qn_attention_gpu_codec gpu_codec(const struct problem *p, const qn_aura_codec *codec)
{
    const bool rotates = codec->signs && !p->s->pages;
    return qn_gpu_codec(codec, rotates ? qn_gpu_from(codec->signs, codec->dim * sizeof(float)) : 0);
}

static void make_cache(struct problem *p)
{
    const struct shape *s = p->s;
    const size_t heads = s->n_rows * s->n_kv_heads, rows = heads * s->capacity, dim = s->dim;
    const bool codes = s->key_bits != 16;
    p->key_words = qn_gpu_row_bytes(dim, s->key_bits) / 4;
    p->value_words = qn_gpu_row_bytes(dim, s->value_bits) / 4;
    if (codes) {
        p->keys = random_words(rows * p->key_words);
        p->values = random_words(rows * p->value_words);
        p->key_scales = random_scales(rows, dim);
        p->value_scales = random_scales(rows, dim);
        p->key_codec = qn_codec(dim, s->key_bits, 1);
        p->value_codec = qn_codec(dim, s->value_bits, 2);
    } else {
        p->keys = (uint32_t *)(void *)random_f16(rows * dim);
        p->values = (uint32_t *)(void *)random_f16(rows * dim);
    }
    qn_attention_gpu_cache *cache = &p->decode_args.cache;
    cache->keys = qn_gpu_copy(p->keys);
    cache->values = qn_gpu_copy(p->values);
    cache->key_head_stride = s->capacity * p->key_words * 4;
    cache->value_head_stride = s->capacity * p->value_words * 4;
    cache->scale_head_stride = s->capacity * 4;
    cache->key_session_stride = cache->key_head_stride * s->n_kv_heads;
    cache->value_session_stride = cache->value_head_stride * s->n_kv_heads;
    cache->scale_session_stride = cache->scale_head_stride * s->n_kv_heads;
    if (codes) {
        cache->key_scales = qn_gpu_copy(p->key_scales);
        cache->value_scales = qn_gpu_copy(p->value_scales);
        p->decode_args.key_codec = gpu_codec(p, p->key_codec);
        p->decode_args.value_codec = gpu_codec(p, p->value_codec);
        p->decode_args.rotation = qn_gpu_rotation(p->value_codec);
    }
    if (!s->pages)
        return;
    const size_t f16 = (1 + N_OPEN) * QN_PAGE * dim;
    qn_attention_gpu_pages *pages = &p->decode_args.pages;
    p->f16_keys = random_f16(heads * f16);
    p->f16_values = random_f16(heads * f16);
    p->means = qn_floats_of(heads * dim, 1);
    pages->keys = qn_gpu_copy(p->f16_keys);
    pages->values = qn_gpu_copy(p->f16_values);
    pages->means = qn_gpu_copy(p->means);
    pages->head = f16 * 2;
    pages->session = pages->head * s->n_kv_heads;
    pages->mean_session_stride = s->n_kv_heads * dim * 4;
    pages->n_open_pages = N_OPEN;
}

static void problem_new(struct problem *p, const struct shape *s, uint32_t n_splits)
{
    const size_t dim = s->dim, queries = s->n_rows * s->n_heads;
    *p = (struct problem){ .s = s };
    qn_kernels_init(&p->kernels, 0);
    p->gpu_shape = qn_attention_device(dim, s->n_heads, s->n_kv_heads, s->key_bits, s->value_bits, s->pages);
    qn_attention_splits splits = qn_attention_gpu_splits(&p->gpu_shape, s->capacity);
    if (n_splits)
        splits.n = n_splits;
    qn_assert_ok(qn_attention_gpu_decode(&p->gpu_shape, s->n_rows, &splits, &p->decode));
    qn_attention_decode_args *a = &p->decode_args;
    *a = qn_decode_args(&p->gpu_shape, s->n_rows, &splits);
    make_cache(p);
    p->queries = qn_floats_of(queries * dim, 1);
    p->sinks = qn_floats_of(s->n_heads, 1);
    p->gates = qn_floats_of(2 * queries * dim, 1);
    p->sessions = qn_new(s->n_rows, sizeof *p->sessions);
    p->positions = qn_new(s->n_rows, sizeof *p->positions);
    for (size_t i = 0; i < s->n_rows; i++) {
        p->positions[i] = s->positions[i % 4];
        p->sessions[i] = (uint32_t)(s->n_rows - 1 - i);
    }
    a->queries = qn_gpu_copy(p->queries);
    a->mask = (qn_attention_mask){ .positions = qn_gpu_copy(p->positions),
                                   .sessions = qn_gpu_copy(p->sessions),
                                   .n_keys = (uint32_t)(s->not_causal ? s->capacity - 3 : s->capacity),
                                   .window = s->window,
                                   .causal = !s->not_causal,
                                   .first = s->first };
    a->pdl_prefetch = s->n_rows == 1 && !s->not_causal;
    a->sinks = s->sinks ? qn_gpu_copy(p->sinks) : 0;
    a->gates = s->gates ? qn_gpu_copy(p->gates) : 0;
}

static const float *run(const struct problem *p)
{
    qn_gpu_launch(&p->decode, &p->decode_args);
    return qn_gpu_read(p->decode_args.out);
}

/* ---- In double ---- */

static void decode_row(float *x, const uint32_t *words, float scale, const qn_aura_codec *codec)
{
    uint8_t codes[QN_AURA_MAX_DIM];
    qn_aura_unpack(codes, words, codec->dim, codec->bits);
    for (size_t d = 0; d < codec->dim; d++)
        x[d] = scale * codec->codebook[codes[d]];
}

static void to_f32(float *x, const uint16_t *f16, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = qn_f16_to_f32(f16[i]);
}

/* Key and value of position t as the kernel must read them. In a session's cache of codes that depends on the query's
 * position. */
static void load_key_value(const struct problem *p, size_t head, size_t t, uint32_t position, float *key, float *value)
{
    const struct shape *s = p->s;
    const size_t dim = s->dim, page = t / QN_PAGE;
    size_t row = head * s->capacity + t;
    if (s->key_bits == 16) {
        to_f32(key, (const uint16_t *)(const void *)p->keys + row * dim, dim);
        to_f32(value, (const uint16_t *)(const void *)p->values + row * dim, dim);
        return;
    }
    if (s->pages && (page == 0 || page == position / QN_PAGE)) {
        const size_t slot = page ? 1 + (page - 1) % N_OPEN : 0;
        const size_t at = ((head * (1 + N_OPEN) + slot) * QN_PAGE + t % QN_PAGE) * dim;
        to_f32(key, p->f16_keys + at, dim);
        to_f32(value, p->f16_values + at, dim);
        return;
    }
    row -= s->pages ? QN_PAGE : 0;
    decode_row(key, p->keys + row * p->key_words, p->key_scales[row], p->key_codec);
    decode_row(value, p->values + row * p->value_words, p->value_scales[row], p->value_codec);
    for (size_t d = 0; s->pages && d < dim; d++)
        key[d] += p->means[head * dim + d];
}

/* Attention of a query of head h at a position, over a session's cache; gate [dim] or NULL. With pages, or with a dense
 * rotation, `given` is rotated already. */
static void attend(const struct problem *p, size_t session, uint32_t position, size_t h, const float *given,
                   const float *gate, float *result)
{
    const struct shape *s = p->s;
    const size_t dim = s->dim, head = session * s->n_kv_heads + h / (s->n_heads / s->n_kv_heads);
    float query[QN_AURA_MAX_DIM], key[QN_AURA_MAX_DIM], value[QN_AURA_MAX_DIM], rotated[QN_AURA_MAX_DIM];
    memcpy(query, given, dim * sizeof *query);
    if (p->key_codec && p->key_codec->signs && !s->pages)
        qn_aura_rotate(&p->kernels.aura, p->key_codec, query, given);
    size_t end = s->not_causal ? s->capacity - 3 : position + 1u, begin = s->first;
    if (s->window && position + 1u > s->window)
        begin = position + 1 - s->window;
    double out[QN_AURA_MAX_DIM] = { 0 }, m = s->sinks ? (double)p->sinks[h] : -INFINITY, l = s->sinks ? 1 : 0;
    for (size_t t = begin; t < end; t++) {
        double score = 0;
        load_key_value(p, head, t, position, key, value);
        for (size_t d = 0; d < dim; d++)
            score += (double)query[d] * (double)key[d];
        score *= (double)p->decode_args.scale;
        const double new_m = score > m ? score : m, old_scale = exp(m - new_m), weight = exp(score - new_m);
        m = new_m;
        l = l * old_scale + weight;
        for (size_t d = 0; d < dim; d++)
            out[d] = out[d] * old_scale + weight * (double)value[d];
    }
    for (size_t d = 0; d < dim; d++)
        rotated[d] = l > 0 ? (float)(out[d] / l) : 0;
    if (p->value_codec)
        qn_aura_rotate_back(&p->kernels.aura, p->value_codec, value, rotated);
    else
        memcpy(value, rotated, dim * sizeof *value);
    for (size_t d = 0; d < dim; d++)
        result[d] = (float)((double)value[d] / (1 + (gate ? exp(-(double)gate[d]) : 0)));
}

static void check_shape(const struct shape *s, uint32_t n_splits)
{
    if (!qn_case_selected())
        return;
    struct problem p;
    const size_t dim = s->dim, n_queries = s->n_rows * s->n_heads;
    qn_random_seed(dim * 100 + s->key_bits * 10 + s->value_bits + s->positions[0]);
    qn_case_begin("attention", "cuda",
                  "heads %zu of %zu over %zu, bits %u and %u%s, capacity %zu, %zu rows, position %u%s%s%s%s%s",
                  s->n_heads, dim, s->n_kv_heads, s->key_bits, s->value_bits, s->pages ? " in pages" : "", s->capacity,
                  s->n_rows, s->positions[0], s->window ? ", window" : "", s->not_causal ? ", all" : "",
                  s->sinks ? ", sinks" : "", s->gates ? ", gates" : "", s->first ? ", not the first" : "");
    problem_new(&p, s, n_splits);
    const float *found = run(&p);
    qn_gpu_poison(p.decode_args.out, p.decode_args.partials);
    qn_expect_same(run(&p), found, n_queries * dim, "element of the second run");
    float *exact = qn_floats(n_queries * dim);
    for (size_t q = 0; q < n_queries; q++)
        attend(&p, p.sessions[q / s->n_heads], p.positions[q / s->n_heads], q % s->n_heads, p.queries + q * dim,
               s->gates ? p.gates + (q * 2 + 1) * dim : NULL, exact + q * dim);
    qn_expect_relative(found, exact, n_queries, dim, QN_DTYPE_F32, ERROR_BOUND, WORST_BOUND, "attention");
    qn_release();
}

/* ---- Prefill ---- */

/* A prefill: n rows from position `first` of the one session of a shape, and their outputs. */
struct prefill {
    struct problem p;
    size_t n;
    float *queries, *gates;
    uint32_t *positions;
    qn_launch launch;
    qn_attention_prefill_args args;
};

static void prefill_new(struct prefill *t, const struct shape *s, uint32_t first, size_t n)
{
    const size_t values = n * s->n_heads * s->dim;
    problem_new(&t->p, s, 0);
    qn_assert_ok(qn_attention_gpu_prefill(&t->p.gpu_shape, n, 1, &t->launch));
    t->n = n;
    t->queries = qn_floats_of(values, 1);
    t->gates = s->gates ? qn_floats_of(2 * values, 1) : NULL;
    t->positions = qn_new(n, sizeof *t->positions);
    for (size_t i = 0; i < n; i++)
        t->positions[i] = first + (uint32_t)i;
    const qn_attention_decode_args *like = &t->p.decode_args;
    t->args = (qn_attention_prefill_args){ .queries = qn_gpu_copy(t->queries),
                                           .gates = s->gates ? qn_gpu_copy(t->gates) : 0,
                                           .out = qn_gpu_floats(values),
                                           .positions = qn_gpu_copy(t->positions),
                                           .cache = like->cache,
                                           .pages = like->pages,
                                           .key_codec = like->key_codec,
                                           .value_codec = like->value_codec,
                                           .rotation = like->rotation,
                                           .n_rows = (uint32_t)n,
                                           .n_pieces = 1,
                                           .n_heads = like->n_heads,
                                           .n_kv_heads = like->n_kv_heads,
                                           .query_stride = like->query_stride,
                                           .out_stride = like->query_stride,
                                           .scale = like->scale };
}

static void check_prefill(const struct shape *s, uint32_t first, size_t n)
{
    if (!qn_case_selected())
        return;
    struct prefill t;
    const size_t dim = s->dim, n_queries = n * s->n_heads;
    qn_random_seed(dim * 100 + s->key_bits * 10 + s->value_bits + first + n);
    qn_case_begin("attention", "cuda prefill", "heads %zu of %zu over %zu, bits %u and %u%s, %zu rows from %u on%s",
                  s->n_heads, dim, s->n_kv_heads, s->key_bits, s->value_bits, s->pages ? " in pages" : "", n, first,
                  s->gates ? ", gates" : "");
    prefill_new(&t, s, first, n);
    qn_gpu_launch(&t.launch, &t.args);
    const float *found = qn_gpu_read(t.args.out);
    qn_expect_finite(found, n_queries * dim, "attention");
    /* A random subset of the queries, with the first and the last: all of them would take the CPU too long. */
    float *some = qn_floats(n_queries * dim), *exact = qn_floats(n_queries * dim);
    size_t n_some = 0;
    for (size_t q = 0; q < n_queries;
         q += q + 1 == n_queries ? 1 : 1 + qn_random_below(n_queries - q - 1 < 40 ? 1 : 40)) {
        attend(&t.p, 0, t.positions[q / s->n_heads], q % s->n_heads, t.queries + q * dim,
               s->gates ? t.gates + (q * 2 + 1) * dim : NULL, exact + n_some * dim);
        memcpy(some + n_some++ * dim, found + q * dim, dim * sizeof *some);
    }
    qn_expect_relative(some, exact, n_some, dim, QN_DTYPE_F32, ERROR_BOUND, WORST_BOUND, "attention");
    qn_release();
}

static void bench_prefill(const struct shape *s, uint32_t first, size_t n)
{
    struct prefill t;
    qn_random_seed(1);
    prefill_new(&t, s, first, n);
    const double pairs = (double)n * (first + ((double)n + 1) / 2);
    qn_gpu_bench_launches(
        "attention",
        s->key_bits == 16 ? "prefill f16" : qn_text("prefill %u/%u bits, pages", s->key_bits, s->value_bits),
        qn_text("%zu heads of %zu over %zu, %zu rows from %u on", s->n_heads, s->dim, s->n_kv_heads, n, first),
        4 * pairs * (double)(s->n_heads * s->dim), "FLOP", 0, &(qn_gpu_timed){ .launch = t.launch, .args = &t.args }, 1,
        4);
    qn_release();
}

/* ---- Speed ---- */

/* The launch that computes queries and stores the newest key and value of a session's cache: qk_norm, and rope on a
 * quarter of each head. */
static qn_launch qk_norm_rope_store(const struct problem *p, qn_rope_qk_norm_store_args *a)
{
    const struct shape *s = p->s;
    const size_t n_rot = s->dim / 4, values = (s->n_heads + 2 * s->n_kv_heads + 3) * s->dim;
    const uint64_t from = qn_gpu_floats_of(values, 1), head = s->dim * sizeof(float);
    qn_launch launch;
    *a = (qn_rope_qk_norm_store_args){
        .queries = from,
        .keys = from + s->n_heads * head,
        .values = from + (s->n_heads + s->n_kv_heads) * head,
        .out = p->decode_args.queries,
        .query_weight = from + (s->n_heads + 2 * s->n_kv_heads) * head,
        .positions = p->decode_args.mask.positions,
        .pages = p->decode_args.pages,
        .key_rotation = { .signs = qn_gpu_from(p->key_codec->signs, head) },
        .value_rotation = p->decode_args.rotation,
        .n_rows = 1,
        .n_heads = (uint32_t)s->n_heads,
        .n_kv_heads = (uint32_t)s->n_kv_heads,
        .n_rot = (uint32_t)n_rot,
        .query_row_stride = p->decode_args.query_stride,
        .key_row_stride = (uint32_t)(s->n_kv_heads * s->dim),
        .value_row_stride = (uint32_t)(s->n_kv_heads * s->dim),
        .out_row_stride = p->decode_args.query_stride,
        .query_stride = (uint32_t)s->dim,
        .eps = 1e-6f,
    };
    a->key_weight = a->query_weight + head;
    a->cosines = a->key_weight + head;
    a->sines = a->cosines + n_rot / 2 * sizeof(float);
    qn_assert_ok(qn_rope_gpu_qk_norm_store(s->dim, true, 1, s->n_heads, s->n_kv_heads, &launch));
    launch.pdl = true;
    return launch;
}

/* Each iteration reads its own copy of the cache. */
static void bench_shape(const struct shape *one, bool with_qk_norm_rope_store, uint32_t n_splits)
{
    struct problem p;
    const size_t row_bytes = qn_gpu_row_bytes(one->dim, one->key_bits) + qn_gpu_row_bytes(one->dim, one->value_bits) +
                             (one->key_bits == 16 ? 0 : 8);
    const size_t bytes = one->n_kv_heads * one->capacity * row_bytes, n_iterations = qn_gpu_bench_copies(bytes);
    qn_random_seed(1);
    problem_new(&p, one, n_splits);
    p.decode.pdl = true;
    qn_attention_decode_args *turns = qn_new(n_iterations, sizeof *turns);
    for (size_t i = 0; i < n_iterations; i++) {
        turns[i] = p.decode_args;
        qn_attention_copy_cache(&turns[i].cache, p.decode_args.cache.key_session_stride,
                                p.decode_args.cache.value_session_stride,
                                one->key_bits == 16 ? 0 : p.decode_args.cache.scale_session_stride, 0);
    }
    const char *variant = one->key_bits == 16 ? "f16"
                                              : qn_text(with_qk_norm_rope_store ? "%u/%u bits, pages, qk_norm"
                                                        : one->pages            ? "%u/%u bits, pages"
                                                                                : "%u/%u bits",
                                                        one->key_bits, one->value_bits);
    qn_rope_qk_norm_store_args store;
    qn_gpu_timed launches[2] = { { .args = &store }, { p.decode, turns, sizeof *turns } };
    if (with_qk_norm_rope_store)
        launches[0].launch = qk_norm_rope_store(&p, &store);
    qn_gpu_bench_launches(
        "attention", variant,
        qn_text("%zu heads of %zu over %zu, %zu keys", one->n_heads, one->dim, one->n_kv_heads, one->capacity),
        (double)bytes, "B", qn_gpu_read_rate(), launches + !with_qk_norm_rope_store, 1 + with_qk_norm_rope_store,
        n_iterations);
    qn_release();
}

static struct shape long_row(size_t dim, size_t n_heads, size_t n_kv_heads, size_t n_keys, unsigned key_bits,
                             unsigned value_bits, bool pages)
{
    return (struct shape){ .dim = dim,
                           .n_heads = n_heads,
                           .n_kv_heads = n_kv_heads,
                           .capacity = n_keys,
                           .key_bits = key_bits,
                           .value_bits = value_bits,
                           .pages = pages,
                           .n_rows = 1,
                           .positions = { (uint32_t)n_keys - 1 } };
}

/* The launches of a session with a capacity of 32768 positions: 33 splits. */
static void bench_session(size_t depth)
{
    struct shape s = long_row(256, 24, 4, depth, 4, 4, true);
    s.gates = true;
    bench_shape(&s, true, 33);
}

static void bench_all(void)
{
    static const unsigned bits[][2] = { { 8, 8 }, { 6, 6 }, { 4, 2 }, { 3, 3 }, { 2, 2 } };
    static const size_t depths[] = { 512, 4096, 32768, 131072 }, filled[] = { 128, 512, 2048, 8192, 32768 };
    struct shape s;
    for (size_t i = 0; i < QN_LENGTH(filled); i++)
        bench_session(filled[i]);
    for (size_t i = 0; i < QN_LENGTH(depths); i++)
        for (unsigned format = 0; format < 3; format++) {
            s = long_row(256, 24, 4, depths[i], format ? 4 : 16, format ? 4 : 16, format == 2);
            bench_shape(&s, false, 0);
        }
    for (size_t i = 0; i < QN_LENGTH(bits); i++) {
        s = long_row(256, 24, 4, 32768, bits[i][0], bits[i][1], false);
        bench_shape(&s, false, 0);
    }
    for (unsigned format = 0; format < 2; format++) {
        s = long_row(256, 24, 4, 32768, format ? 4 : 16, format ? 4 : 16, format);
        bench_prefill(&s, 0, 4096);
        bench_prefill(&s, 28672, 4096);
        s = long_row(128, 32, 8, 4096, format ? 4 : 16, format ? 4 : 16, format);
        bench_prefill(&s, 0, 4096);
    }
    for (size_t i = 2; i < QN_LENGTH(depths); i++)
        for (unsigned format = 0; format < 2; format++) {
            s = long_row(128, 32, 8, depths[i], format ? 4 : 16, format ? 4 : 16, false);
            bench_shape(&s, false, 0);
        }
}

void qn_check_cuda_attention(bool bench)
{
    static const size_t dims[] = { 64, 80, 96, 128, 192, 256, 512, 16, 32, 48, 112, 160, 224 }, n_code_dims = 7;
    static const unsigned bits[] = { 16, 4, 2, 3, 6, 8 }, mixed[][2] = { { 4, 2 }, { 3, 8 }, { 6, 3 } };
    static const uint32_t edges[] = { 0, 1, 15, 16, 63, 64, 127, 128, 129, 191, 192, 1000 };
    static const struct {
        size_t dim, n_heads;
        unsigned bits;
        uint32_t first;
        size_t n;
    } prefills[] = {
        { 256, 12, 4, 0, 200 }, { 256, 12, 4, 100, 300 }, { 128, 8, 8, 0, 512 }, { 128, 2, 4, 63, 2 },
        { 64, 18, 3, 10, 130 }, { 80, 6, 3, 64, 64 },     { 96, 4, 2, 1, 1 },    { 192, 10, 6, 190, 260 }
    };
    /* Rows of one split next to rows of several; of the many rows, blocks have several pieces of work, and two warps or
     * one. */
    static const struct {
        size_t dim, n_heads, capacity, n_rows;
        uint32_t positions[4];
    } mixes[] = { { 64, 8, 1024, 4, { 0, 62, 1023, 63 } },      { 128, 16, 1024, 4, { 64, 255, 256, 511 } },
                  { 256, 24, 1024, 4, { 510, 15, 900, 127 } },  { 128, 48, 1024, 3, { 512, 300, 767 } },
                  { 128, 16, 320, 160, { 130, 63, 319, 191 } }, { 256, 24, 576, 50, { 64, 575, 0, 256 } },
                  { 64, 20, 320, 200, { 255, 256, 128, 16 } },  { 128, 16, 320, 90, { 257, 1, 80, 319 } },
                  { 256, 16, 272, 90, { 271, 100, 17, 255 } },  { 64, 8, 320, 90, { 47, 300, 48, 200 } } };
    for (size_t i = 0; i < QN_LENGTH(dims); i++)
        for (size_t j = 0; j < (i < n_code_dims ? QN_LENGTH(bits) : 1); j++) {
            const struct shape s = { .dim = dims[i],
                                     .n_heads = 12,
                                     .n_kv_heads = 2,
                                     .capacity = 304,
                                     .key_bits = bits[j],
                                     .value_bits = bits[j],
                                     .n_rows = 1,
                                     .positions = { 36 + (uint32_t)(97 * (i + 7 * j) % 268) } };
            check_shape(&s, 3);
        }
    for (size_t i = 0; i < QN_LENGTH(mixed); i++)
        check_shape(
            &(struct shape){ 128, 32, 8, 512, mixed[i][0], mixed[i][1], i == 1, 1, { 400 }, 0, false, false, false, 0 },
            0);
    for (size_t i = 0; i < QN_LENGTH(edges); i++) {
        check_shape(&(struct shape){ 256, 24, 4, 1024, 4, 4, false, 1, { edges[i] }, 0, false, true, false, 0 }, 33);
        check_shape(&(struct shape){ 256, 24, 4, 1024, 4, 4, true, 1, { edges[i] }, 0, false, false, true, 0 }, 0);
        /* A draft head. The only row at position 0 sees nothing. */
        check_shape(&(struct shape){ 256, 24, 4, 1024, 16, 16, false, 1, { edges[i] }, 0, false, false, true, 1 }, 0);
        check_shape(&(struct shape){ 256, 24, 4, 1024, 4, 4, true, 1, { edges[i] }, 0, false, false, true, 1 }, 0);
        check_shape(&(struct shape){ 128, 8, 2, 1024, 16, 16, false, 1, { edges[i] }, 0, false, false, false, 1 }, 0);
    }
    for (unsigned format = 4; format <= 16; format += 12) {
        check_shape(
            &(struct shape){
                128, 32, 2, 1024, format, format, false, 4, { 900, 3, 99, 100 }, 100, false, true, false, 0 },
            5);
        check_shape(&(struct shape){ 128, 20, 2, 1024, format, format, false, 2, { 900, 3 }, 0, true, false, true, 0 },
                    0);
    }
    check_shape(&(struct shape){ 128, 8, 8, 1024, 8, 8, true, 3, { 900, 77, 0 }, 0, false, false, true, 0 }, 0);
    for (size_t i = 0; i < 2 * QN_LENGTH(mixes); i++) {
        const unsigned format = i % 2 ? 4 : 16;
        struct shape s = { .dim = mixes[i / 2].dim,
                           .n_heads = mixes[i / 2].n_heads,
                           .n_kv_heads = 4,
                           .capacity = mixes[i / 2].capacity,
                           .key_bits = format,
                           .value_bits = format,
                           .pages = format != 16,
                           .n_rows = mixes[i / 2].n_rows,
                           .gates = i % 3 == 0 };
        memcpy(s.positions, mixes[i / 2].positions, sizeof s.positions);
        check_shape(&s, 0);
    }
    for (size_t i = 0; i < QN_LENGTH(prefills); i++) {
        const struct shape f16 = { .dim = prefills[i].dim,
                                   .n_heads = prefills[i].n_heads,
                                   .n_kv_heads = 2,
                                   .capacity = 512,
                                   .key_bits = 16,
                                   .value_bits = 16,
                                   .n_rows = 1,
                                   .gates = i % 2 };
        struct shape codes = f16;
        codes.key_bits = prefills[i].bits;
        codes.value_bits = i % 3 ? prefills[i].bits : 2;
        codes.pages = true;
        check_prefill(&f16, prefills[i].first, prefills[i].n);
        check_prefill(&codes, prefills[i].first, prefills[i].n);
    }
    if (bench)
        bench_all();
    qn_check_cuda_attention_rows(bench);
}
