/* Decode attention that does qk_norm, rope and kv_store itself (qn_attention_new_rows), against the two launches: the
 * same bits in the results and in the caches, whose rows at the queries' own positions are NaN before. */
#include "cuda_attention_rows.h"

#include "cuda_codec.h"

#include "base/f16.h"
#include "cuda/kernels/rope/rope.h"

struct shape {
    size_t dim, n_heads, n_kv_heads, n_rot, capacity, n_rows; /* capacity: a multiple of a page */
    uint32_t positions[4];                                    /* of rows 0 to 3, which the others repeat */
    uint32_t window;
    bool pages, gated, interleaved, norms, biases;
};

/* The outputs of either way: a cache of all sessions, and results. */
struct way {
    uint64_t cache;
    qn_attention_decode_args args;
    qn_launch launch;
};

struct problem {
    const struct shape *s;
    uint16_t *cache; /* [sessions][capacity / page][keys and values][kv heads][page][dim] */
    uint32_t *positions, *sessions;
    qn_launch store;
    qn_rope_qk_norm_store_args store_args;
    struct way two, one; /* launches; `two` begins with store */
};

static size_t session_values(const struct shape *s)
{
    return s->capacity * 2 * s->n_kv_heads * s->dim;
}

/* Where a head's row of a position is in a session's part of the cache, in values: of keys, or of values. Pages are in
 * reverse order. */
static size_t row_at(const struct shape *s, bool is_value, size_t head, uint32_t position)
{
    const size_t page = (s->capacity - 1 - position) / QN_PAGE, in_page = position % QN_PAGE,
                 part = s->pages ? QN_PAGE : s->capacity;
    const size_t first = s->pages ? page * 2 * s->n_kv_heads * QN_PAGE : 0;
    return (first + ((is_value ? s->n_kv_heads : 0) + head) * part + (s->pages ? in_page : position)) * s->dim;
}

static void make_cache(struct problem *p)
{
    const struct shape *s = p->s;
    const size_t n = s->n_rows * session_values(s);
    p->cache = qn_new(n, sizeof *p->cache);
    for (size_t i = 0; i < n; i++)
        p->cache[i] = qn_f32_to_f16(qn_random_normal());
    for (size_t row = 0; row < s->n_rows; row++)
        for (size_t head = 0; head < 2 * s->n_kv_heads; head++) {
            const size_t session = s->n_rows - 1 - row;
            uint16_t *own = p->cache + session * session_values(s) +
                            row_at(s, head >= s->n_kv_heads, head % s->n_kv_heads, p->positions[row]);
            for (size_t d = 0; d < s->dim && p->sessions[row] == session; d++)
                own[d] = 0x7e00;
        }
}

/* The cache of a way: contiguous, or in pages. */
static qn_attention_gpu_cache cache_of(struct problem *p, const struct way *way)
{
    const struct shape *s = p->s;
    const size_t n_pages = s->capacity / QN_PAGE, head = (s->pages ? QN_PAGE : s->capacity) * s->dim * 2,
                 session = session_values(s) * 2;
    qn_attention_gpu_cache cache = { .key_head_stride = head,
                                     .value_head_stride = head,
                                     .key_session_stride = session,
                                     .value_session_stride = session };
    if (s->pages) {
        uint64_t *entries = qn_new(s->n_rows * n_pages, sizeof *entries), *tables = qn_new(s->n_rows, sizeof *tables);
        for (size_t i = 0; i < s->n_rows * n_pages; i++)
            entries[i] = way->cache + i / n_pages * session + (n_pages - 1 - i % n_pages) * (session / n_pages);
        const uint64_t at = qn_gpu_copy(entries);
        for (size_t i = 0; i < s->n_rows; i++)
            tables[i] = at + i * n_pages * sizeof *entries;
        cache.tables = qn_gpu_copy(tables);
    } else {
        cache.keys = way->cache;
    }
    cache.values = cache.keys + s->n_kv_heads * head;
    return cache;
}

/* An array whose last value is not random. */
static uint64_t floats_with(size_t n, float last)
{
    float *x = qn_floats_of(n, 2);
    x[n - 1] = last;
    return qn_gpu_copy(x);
}

/* Inputs of both ways, as qn_rope_qk_norm_store has them. */
static void make_store(struct problem *p)
{
    const struct shape *s = p->s;
    const size_t stride = s->gated ? 2 * s->dim : s->dim, key_row = s->n_kv_heads * s->dim, half = s->n_rot / 2;
    float *angles = qn_floats(2 * s->n_rows * half);
    for (size_t i = 0; i < s->n_rows * half; i++) {
        const double angle = p->positions[i / half] * pow(1e4, -(double)(i % half) / (double)half);
        angles[i] = (float)cos(angle);
        angles[s->n_rows * half + i] = (float)sin(angle);
    }
    const uint64_t cosines = qn_gpu_copy(angles);
    p->store_args = (qn_rope_qk_norm_store_args){
        .queries = qn_gpu_floats_of(s->n_rows * s->n_heads * stride, 2),
        .keys = floats_with(s->n_rows * key_row, 1e9f),
        .values = floats_with(s->n_rows * key_row, s->norms ? -1e9f : NAN),
        .out = qn_gpu_floats(s->n_rows * s->n_heads * s->dim),
        .query_bias = s->biases ? qn_gpu_floats_of(s->n_heads * s->dim, 2) : 0,
        .key_bias = s->biases ? qn_gpu_floats_of(key_row, 2) : 0,
        .value_bias = s->biases ? qn_gpu_floats_of(key_row, 2) : 0,
        .query_weight = s->norms ? qn_gpu_floats_of(s->dim, 2) : 0,
        .key_weight = s->norms ? qn_gpu_floats_of(s->dim, 2) : 0,
        .cosines = cosines,
        .sines = cosines + s->n_rows * half * sizeof(float),
        .positions = qn_gpu_copy(p->positions),
        .sessions = qn_gpu_copy(p->sessions),
        .cache = cache_of(p, &p->two),
        .n_rows = (uint32_t)s->n_rows,
        .n_heads = (uint32_t)s->n_heads,
        .n_kv_heads = (uint32_t)s->n_kv_heads,
        .n_rot = (uint32_t)s->n_rot,
        .query_row_stride = (uint32_t)(s->n_heads * stride),
        .key_row_stride = (uint32_t)key_row,
        .value_row_stride = (uint32_t)key_row,
        .out_row_stride = (uint32_t)(s->n_heads * s->dim),
        .capacity = (uint32_t)s->capacity,
        .query_stride = (uint32_t)stride,
        .interleaved = s->interleaved,
        .eps = 1e-6f,
    };
    qn_assert_ok(qn_rope_gpu_qk_norm_store(s->dim, false, s->n_rows, s->n_heads, s->n_kv_heads, &p->store));
}

static void make_attention(struct problem *p, struct way *way)
{
    const struct shape *s = p->s;
    const qn_attention_gpu gpu = qn_attention_device(s->dim, s->n_heads, s->n_kv_heads, 16, 16, false);
    const qn_attention_splits splits = qn_attention_gpu_splits(&gpu, s->capacity);
    way->args = qn_decode_args(&gpu, s->n_rows, &splits);
    way->args.queries = p->store_args.out;
    way->args.gates = s->gated ? p->store_args.queries : 0;
    way->args.mask = (qn_attention_mask){ .positions = p->store_args.positions,
                                          .sessions = p->store_args.sessions,
                                          .n_keys = (uint32_t)s->capacity,
                                          .window = s->window,
                                          .causal = 1 };
    way->args.cache = cache_of(p, way);
    way->args.pdl_prefetch = 1;
    qn_expect(qn_attention_gpu_prepares_rows(&gpu, s->n_rows, s->n_rot, s->interleaved),
              "the launch accepts no new rows");
    qn_assert_ok(qn_attention_gpu_decode(&gpu, s->n_rows, &splits, &way->launch));
    way->launch.pdl = true;
}

static void use_new_rows(struct problem *p, qn_attention_decode_args *args)
{
    const qn_rope_qk_norm_store_args *from = &p->store_args;
    args->queries = from->queries;
    args->query_stride = from->query_row_stride;
    args->query_head_stride = from->query_stride;
    args->new_rows = (qn_attention_new_rows){ .keys = from->keys,
                                              .values = from->values,
                                              .query_bias = from->query_bias,
                                              .key_bias = from->key_bias,
                                              .value_bias = from->value_bias,
                                              .query_weight = from->query_weight,
                                              .key_weight = from->key_weight,
                                              .cosines = from->cosines,
                                              .sines = from->sines,
                                              .n_rot = from->n_rot,
                                              .interleaved = from->interleaved,
                                              .eps = from->eps };
}

static void problem_new(struct problem *p, const struct shape *s)
{
    *p = (struct problem){ .s = s };
    p->positions = qn_new(s->n_rows, sizeof *p->positions);
    p->sessions = qn_new(s->n_rows, sizeof *p->sessions);
    for (size_t row = 0; row < s->n_rows; row++) {
        p->positions[row] = s->positions[row % 4];
        p->sessions[row] = row % 7 == 5 ? QN_ATTENTION_NO_SESSION : (uint32_t)(s->n_rows - 1 - row);
    }
    make_cache(p);
    p->two.cache = qn_gpu_copy(p->cache);
    p->one.cache = qn_gpu_copy(p->cache);
    make_store(p);
    make_attention(p, &p->two);
    make_attention(p, &p->one);
    use_new_rows(p, &p->one.args);
}

/* Words that both ways wrote; all ones are poison, which no kernel writes. */
static void compare(uint64_t two, uint64_t one, const char *what)
{
    const uint32_t *expected = qn_gpu_read(two), *found = qn_gpu_read(one);
    for (size_t i = 0; i < qn_gpu_bytes(two) / sizeof *found; i++)
        if (found[i] != expected[i] || found[i] == UINT32_MAX) {
            qn_expect(false, "word %zu of the %s is 0x%08x, expected 0x%08x", i, what, found[i], expected[i]);
            break;
        }
}

static void begin_case(const struct shape *s)
{
    qn_random_seed(s->dim * 100 + s->n_rows * 10 + s->positions[0]);
    qn_case_begin("attention", "cuda new rows",
                  "heads %zu of %zu over %zu, n_rot %zu, %zu rows, position %u%s%s%s%s%s%s", s->n_heads, s->dim,
                  s->n_kv_heads, s->n_rot, s->n_rows, s->positions[0], s->pages ? ", pages" : "",
                  s->gated ? ", gated" : "", s->interleaved ? ", interleaved" : "", s->norms ? ", norms" : "",
                  s->biases ? ", biases" : "", s->window ? ", window" : "");
}

static void check_shape(const struct shape *s)
{
    if (!qn_case_selected())
        return;
    struct problem p;
    begin_case(s);
    problem_new(&p, s);
    qn_gpu_launch(&p.store, &p.store_args);
    qn_gpu_launch(&p.two.launch, &p.two.args);
    qn_gpu_launch(&p.one.launch, &p.one.args);
    compare(p.two.args.out, p.one.args.out, "results");
    compare(p.two.cache, p.one.cache, "cache");
    qn_release();
}

/* All iterations have the same cache, which L2 holds in part. */
static void bench_shape(const struct shape *s)
{
    struct problem p;
    qn_random_seed(1);
    problem_new(&p, s);
    p.store.pdl = true;
    const char *shape = qn_text("%zu heads of %zu over %zu, %zu x %u keys", s->n_heads, s->dim, s->n_kv_heads,
                                s->n_rows, s->positions[0] + 1);
    const double bytes = (double)s->n_rows * (s->positions[0] + 1) * 4 * (double)(s->n_kv_heads * s->dim);
    const qn_gpu_timed two[] = { { p.store, &p.store_args, 0 }, { p.two.launch, &p.two.args, 0 } },
                       one = { p.one.launch, &p.one.args, 0 };
    qn_gpu_bench_launches("attention", "qk_norm, then f16", shape, bytes, "B", 0, two, 2, 32);
    qn_gpu_bench_launches("attention", "qk_norm in f16", shape, bytes, "B", 0, &one, 1, 32);
    qn_release();
}

void qn_check_cuda_attention_rows(bool bench)
{
    static const struct shape shapes[] = {
        { 128, 32, 8, 128, 256, 1, { 0 }, 0, true, false, false, true, false },
        { 128, 32, 8, 128, 256, 32, { 15, 16, 127, 191 }, 0, true, false, false, true, false },
        { 128, 32, 8, 128, 192, 64, { 160, 63, 64, 1 }, 0, true, false, false, true, false },
        { 128, 32, 8, 128, 192, 66, { 130, 48, 47, 191 }, 0, true, false, false, true, false },
        { 128, 32, 8, 128, 2048, 8, { 2047, 1030, 256, 255 }, 0, true, false, false, true, true },
        { 128, 48, 2, 64, 1024, 3, { 1023, 300, 767 }, 0, false, true, false, true, false },
        { 128, 8, 8, 128, 1024, 5, { 900, 99, 100, 5 }, 100, false, false, false, false, true },
        { 128, 16, 4, 32, 320, 40, { 256, 319, 17, 80 }, 0, false, false, true, false, false },
        { 64, 9, 3, 64, 320, 90, { 47, 300, 48, 200 }, 0, true, false, false, false, true },
        { 64, 20, 2, 20, 1024, 6, { 1000, 62, 600, 63 }, 0, true, true, true, true, true },
        { 80, 5, 5, 64, 320, 7, { 40, 319, 128, 0 }, 0, false, false, false, true, false },
        { 32, 4, 2, 32, 128, 4, { 127, 126, 3, 64 }, 0, true, false, true, true, false },
    };
    for (size_t i = 0; i < QN_LENGTH(shapes); i++)
        check_shape(&shapes[i]);
    for (size_t rows = 8; bench && rows <= 64; rows *= 2) {
        const uint32_t last = 159;
        bench_shape(&(struct shape){
            128, 32, 8, 128, 192, rows, { last, last, last, last }, 0, true, false, false, true, false });
    }
}
