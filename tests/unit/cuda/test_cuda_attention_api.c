/* Attention over an fp16 KV cache and rope of quern/cuda.h on a fake driver: what is queued with which arguments, and
 * each refusal. The results of the kernels are checked by quern-check, on a device. */
#include "helper_cuda_api.h"

#include "cuda/kernels/attention/attention.h"
#include "cuda/kernels/rope/rope.h"

#include <math.h>

#define HEAD_SIZE(dim)                                                                                                 \
    FAKE_CUBIN("rope/rope.cu", "-DQN_HEAD_DIM=" dim " -DQN_PAGES=0"),                                                  \
        FAKE_CUBIN("attention/decode.cu", "-DQN_HEAD_DIM=" dim " -DQN_WARPS=1"),                                       \
        FAKE_CUBIN("attention/decode.cu", "-DQN_HEAD_DIM=" dim " -DQN_WARPS=2"),                                       \
        FAKE_CUBIN("attention/decode.cu", "-DQN_HEAD_DIM=" dim " -DQN_WARPS=4"),                                       \
        FAKE_CUBIN("attention/decode.cu", "-DQN_HEAD_DIM=" dim " -DQN_WARPS=8"),                                       \
        FAKE_CUBIN("attention/prefill.cu", "-DQN_HEAD_DIM=" dim " -DQN_KEY_BITS=16 -DQN_VALUE_BITS=16 -DQN_PAGES=0")
static const qn_gpu_cubin cubins[] = { HEAD_SIZE("128"), HEAD_SIZE("512"), FAKE_CUBIN("rope/rope.cu", "") };

static size_t args_bytes(const char *function)
{
    if (!strcmp(function, "qn_rope_angles"))
        return sizeof(qn_rope_angles_args);
    if (!strcmp(function, "qn_rope_qk_norm_store"))
        return sizeof(qn_rope_qk_norm_store_args);
    if (!strcmp(function, "qn_attention_decode"))
        return sizeof(qn_attention_decode_args);
    assert_string_equal(function, "qn_attention_prefill");
    return sizeof(qn_attention_prefill_args);
}

enum {
    DIM = 128,
    HEADS = 6,
    KV_HEADS = 2,
    CAPACITY = 4096,
    SEQUENCES = 3,
    TOKENS = 5,
    MANY = 70, /* tokens of a prefill step */
    ROT = 64
};

/* The fake driver clears the counters at the beginning of the workspace; nothing accesses the rest. */
static uint8_t counters[256 * HEADS * sizeof(uint32_t)];
#define WORKSPACE ((uintptr_t)counters)

/* Arguments of valid calls; the views have MANY tokens. */
struct call {
    qn_cuda_kernels *kernels;
    qn_cuda_kv_cache cache;
    qn_cuda_kv_tokens tokens;
    qn_cuda_rope_shape shape;
    qn_cuda_qk_norm norm;
    qn_cuda_view queries, keys, values, out, frequencies;
    size_t bytes, n_heads;
    float scale;
};

static qn_cuda_view view_at(size_t at, qn_dtype dtype, size_t count)
{
    return (qn_cuda_view){ address(at), dtype, count, 0 };
}

static struct call call_of(void)
{
    const size_t rows = (size_t)SEQUENCES * KV_HEADS * CAPACITY * DIM, half = MANY * ROT / 2;
    return (struct call){ .kernels = kernels,
                          .cache = { .keys = view_at(0x10000, QN_DTYPE_F16, rows),
                                     .values = view_at(0x20000, QN_DTYPE_F16, rows),
                                     .n_sequences = SEQUENCES,
                                     .n_kv_heads = KV_HEADS,
                                     .capacity = CAPACITY,
                                     .head_dim = DIM },
                          .tokens = { .n_tokens = TOKENS,
                                      .positions = view_at(0x30000, QN_DTYPE_U32, MANY),
                                      .sequences = view_at(0x40000, QN_DTYPE_I32, MANY) },
                          .shape = { .n_heads = HEADS,
                                     .head_dim = DIM,
                                     .n_rot = ROT,
                                     .pairing = QN_ROPE_NEOX,
                                     .cosines = view_at(0x100, QN_DTYPE_F32, half),
                                     .sines = view_at(0x200, QN_DTYPE_F32, half) },
                          .norm = { .query_bias = view_at(0x300, QN_DTYPE_F32, HEADS * DIM),
                                    .key_bias = view_at(0x400, QN_DTYPE_F32, KV_HEADS * DIM),
                                    .value_bias = view_at(0x500, QN_DTYPE_F32, KV_HEADS * DIM),
                                    .query_weight = view_at(0x600, QN_DTYPE_F32, DIM),
                                    .key_weight = view_at(0x700, QN_DTYPE_F32, DIM),
                                    .eps = 1e-6f },
                          .queries = view_at(0x50000, QN_DTYPE_BF16, MANY * HEADS * DIM),
                          .keys = view_at(0x60000, QN_DTYPE_BF16, MANY * KV_HEADS * DIM),
                          .values = view_at(0x70000, QN_DTYPE_BF16, MANY * KV_HEADS * DIM),
                          .out = view_at(0x80000, QN_DTYPE_BF16, MANY * HEADS * DIM),
                          .frequencies = view_at(0x800, QN_DTYPE_F64, ROT / 2),
                          .bytes = (size_t)1 << 40,
                          .n_heads = HEADS,
                          .scale = 0.25f };
}

static qn_status store(const struct call *c)
{
    return qn_cuda_kv_store(c->kernels, &c->cache, &c->tokens, c->keys, c->values, NULL);
}

static qn_status attention(const struct call *c)
{
    return qn_cuda_attention(c->kernels, &c->cache, &c->tokens, c->queries, c->n_heads, c->scale, c->out, counters,
                             c->bytes, NULL);
}

static qn_status angles(const struct call *c)
{
    return qn_cuda_rope_angles(c->kernels, c->tokens.positions, c->frequencies, c->tokens.n_tokens, c->shape.n_rot, 1.5,
                               c->shape.cosines, c->shape.sines, NULL);
}

static qn_status rope(const struct call *c)
{
    return qn_cuda_rope(c->kernels, &c->shape, c->queries, c->tokens.n_tokens, NULL);
}

static qn_status fused(const struct call *c)
{
    return qn_cuda_qk_norm_rope_store(c->kernels, &c->cache, &c->tokens, &c->shape, &c->norm, c->queries, c->keys,
                                      c->values, c->out, NULL);
}

static int open_kernels(void)
{
    open_fake_kernels(cubins, COUNT(cubins));
    fake.args_bytes = args_bytes;
    return 0;
}

TEST_EVERY(open_kernels, close_kernels)

static void expect_cache(const qn_attention_gpu_cache *cache)
{
    assert_int_equal(cache->keys, 0x10000);
    assert_int_equal(cache->values, 0x20000);
    assert_int_equal(cache->key_head_stride, CAPACITY * DIM * 2);
    assert_int_equal(cache->value_head_stride, CAPACITY * DIM * 2);
    assert_int_equal(cache->key_session_stride, KV_HEADS * CAPACITY * DIM * 2);
    assert_int_equal(cache->value_session_stride, KV_HEADS * CAPACITY * DIM * 2);
}

/* Few tokens are split over keys. The launch counts the splits of each query, from zero. */
TEST(decode)
{
    struct call c = call_of();
    c.queries.stride = HEADS * DIM + 8;
    c.out.stride = HEADS * DIM + 16;
    assert_ok(qn_cuda_attention_workspace(kernels, &c.cache, &c.tokens, HEADS, &c.bytes));
    const unsigned splits = CAPACITY / 256;                    /* fewer than 132 / KV_HEADS, which fill the device */
    enum { COUNTERS = TOKENS * HEADS * sizeof(uint32_t) + 8 }; /* a multiple of 16 */
    assert_int_equal(c.bytes, COUNTERS + TOKENS * HEADS * splits * (DIM + 2) * sizeof(float));
    memset(counters, 0xff, sizeof counters);
    assert_ok(attention(&c));
    for (size_t i = 0; i < sizeof counters; i++)
        assert_int_equal(counters[i], i < COUNTERS ? 0 : 0xff);
    assert_int_equal(fake.launches, 1);
    const qn_attention_decode_args *d = expect_launch(0, 1, "qn_attention_decode", 132, 1, false);
    expect_cache(&d->cache);
    assert_int_equal(d->queries, 0x50000);
    assert_int_equal(d->query_stride, HEADS * DIM + 8);
    assert_int_equal(d->dtype, QN_DTYPE_BF16);
    assert_int_equal(d->mask.sessions, 0x40000);
    assert_int_equal(d->n_rows, TOKENS);
    assert_int_equal(d->splits.n, splits);
    assert_int_equal(d->splits.tiles, 16);
    assert_int_equal(d->counters, WORKSPACE);
    assert_int_equal(d->partials, WORKSPACE + COUNTERS);
    assert_int_equal(d->maxima, d->partials + TOKENS * HEADS * splits * DIM * sizeof(float));
    assert_int_equal(d->mask.positions, 0x30000);
    assert_int_equal(d->mask.n_keys, CAPACITY);
    assert_int_equal(d->mask.causal, 1);
    assert_int_equal(d->mask.window, 0);
    assert_int_equal(d->n_heads, HEADS);
    assert_int_equal(d->n_kv_heads, KV_HEADS);
    assert_int_equal(d->pdl_prefetch, 0);
    assert_true(d->scale == 0.25f);
    assert_int_equal(d->sinks | d->gates | d->rotation.signs | d->rotation.inverse, 0);
    assert_int_equal(d->out, 0x80000);
    assert_int_equal(d->out_stride, HEADS * DIM + 16);
    c.bytes--;
    refused(attention(&c), "workspace: 249727 bytes, expected at least 249728");
    c.tokens.sequences = (qn_cuda_view){ 0 };
    c.bytes++;
    assert_ok(attention(&c));
    assert_int_equal(((const qn_attention_decode_args *)arguments(0, 1))->mask.sessions, 0);
    const int launches = fake.launches;
    c.tokens.n_tokens = 0;
    assert_ok(attention(&c));
    assert_int_equal(fake.launches, launches);
}

/* Many consecutive tokens need no workspace; others, and heads of 512, are split over keys. */
TEST(prefill)
{
    struct call c = call_of();
    c.tokens.n_tokens = MANY;
    c.tokens.consecutive = true;
    c.queries.stride = HEADS * DIM + 8;
    c.queries.count += MANY * 8;
    assert_ok(qn_cuda_attention_workspace(kernels, &c.cache, &c.tokens, HEADS, &c.bytes));
    assert_int_equal(c.bytes, 0);
    assert_ok(qn_cuda_attention(kernels, &c.cache, &c.tokens, c.queries, HEADS, 0.25f, c.out, NULL, 0, NULL));
    assert_int_equal(fake.launches, 1);
    const qn_attention_prefill_args *a = expect_launch(0, 1, "qn_attention_prefill", 3 * 2, KV_HEADS, false);
    expect_cache(&a->cache);
    assert_int_equal(a->queries, 0x50000);
    assert_int_equal(a->out, 0x80000);
    assert_int_equal(a->positions, 0x30000);
    assert_int_equal(a->sessions, 0x40000);
    assert_int_equal(a->n_rows, MANY);
    assert_int_equal(a->n_heads, HEADS);
    assert_int_equal(a->n_kv_heads, KV_HEADS);
    assert_int_equal(a->query_stride, HEADS * DIM + 8);
    assert_int_equal(a->out_stride, HEADS * DIM);
    assert_int_equal(a->dtype, QN_DTYPE_BF16);
    assert_true(a->scale == 0.25f);
    c.tokens.n_tokens = 63;
    assert_ok(qn_cuda_attention_workspace(kernels, &c.cache, &c.tokens, HEADS, &c.bytes));
    assert_true(c.bytes > 0);
    c.tokens.n_tokens = MANY;
    c.tokens.consecutive = false;
    assert_ok(qn_cuda_attention_workspace(kernels, &c.cache, &c.tokens, HEADS, &c.bytes));
    assert_ok(attention(&c));
    expect_launch(0, 1, "qn_attention_decode", 2 * 132, 1, false);
    c.tokens.consecutive = true;
    c.cache.head_dim = 512;
    assert_ok(qn_cuda_attention_workspace(kernels, &c.cache, &c.tokens, HEADS, &c.bytes));
    assert_true(c.bytes > 0);
}

TEST(stores)
{
    struct call c = call_of();
    c.keys.stride = 3 * DIM;
    assert_ok(store(&c));
    assert_int_equal(fake.launches, 1);
    const qn_rope_qk_norm_store_args *a =
        expect_launch(0, 1, "qn_rope_qk_norm_store", (TOKENS * KV_HEADS + 3) / 4, 1, false);
    expect_cache(&a->cache);
    assert_int_equal(a->keys, 0x60000);
    assert_int_equal(a->values, 0x70000);
    assert_int_equal(a->key_row_stride, 3 * DIM);
    assert_int_equal(a->value_row_stride, KV_HEADS * DIM);
    assert_int_equal(a->positions, 0x30000);
    assert_int_equal(a->sessions, 0x40000);
    assert_int_equal(a->capacity, CAPACITY);
    assert_int_equal(a->n_rows, TOKENS);
    assert_int_equal(a->n_heads, 0);
    assert_int_equal(a->n_rot, 0);
    assert_int_equal(a->n_kv_heads, KV_HEADS);
    assert_int_equal(a->dtype, QN_DTYPE_BF16);
    assert_int_equal(a->key_weight | a->key_bias | a->value_bias, 0);
    c.tokens.n_tokens = 0;
    assert_ok(store(&c));
    assert_int_equal(fake.launches, 1);

    c = call_of();
    c.norm.query_bias = (qn_cuda_view){ 0 };
    c.shape.pairing = QN_ROPE_INTERLEAVED;
    c.out.stride = HEADS * DIM + 8;
    assert_ok(fused(&c));
    a = expect_launch(0, 1, "qn_rope_qk_norm_store", TOKENS * (HEADS + KV_HEADS) / 4, 1, false);
    expect_cache(&a->cache);
    assert_int_equal(a->queries, 0x50000);
    assert_int_equal(a->keys, 0x60000);
    assert_int_equal(a->out, 0x80000);
    assert_int_equal(a->query_row_stride, HEADS * DIM);
    assert_int_equal(a->out_row_stride, HEADS * DIM + 8);
    assert_int_equal(a->query_stride, DIM);
    assert_int_equal(a->query_bias, 0);
    assert_int_equal(a->key_bias, 0x400);
    assert_int_equal(a->value_bias, 0x500);
    assert_int_equal(a->query_weight, 0x600);
    assert_int_equal(a->key_weight, 0x700);
    assert_int_equal(a->cosines, 0x100);
    assert_int_equal(a->sines, 0x200);
    assert_int_equal(a->n_heads, HEADS);
    assert_int_equal(a->n_rot, ROT);
    assert_int_equal(a->interleaved, 1);
    assert_true(a->eps == 1e-6f);
    assert_ok(qn_cuda_qk_norm_rope_store(kernels, &c.cache, &c.tokens, &c.shape, NULL, c.queries, c.keys, c.values,
                                         c.queries, NULL));
    a = arguments(0, 1);
    assert_int_equal(a->out, 0x50000);
    assert_int_equal(a->key_weight | a->key_bias | a->value_bias | a->query_weight, 0);
}

TEST(ropes)
{
    struct call c = call_of();
    assert_ok(angles(&c));
    const qn_rope_angles_args *g = expect_launch(0, 1, "qn_rope_angles", 1, TOKENS, false);
    assert_int_equal(g->positions, 0x30000);
    assert_int_equal(g->frequencies, 0x800);
    assert_int_equal(g->cosines, 0x100);
    assert_int_equal(g->sines, 0x200);
    assert_true(g->attn_factor == 1.5);
    assert_int_equal(g->n_rot, ROT);
    c.queries.stride = HEADS * DIM + 8;
    assert_ok(rope(&c));
    const qn_rope_qk_norm_store_args *a =
        expect_launch(0, 1, "qn_rope_qk_norm_store", (TOKENS * HEADS + 3) / 4, 1, false);
    assert_int_equal(a->queries, 0x50000);
    assert_int_equal(a->out, 0x50000);
    assert_int_equal(a->query_row_stride, HEADS * DIM + 8);
    assert_int_equal(a->out_row_stride, HEADS * DIM + 8);
    assert_int_equal(a->query_stride, DIM);
    assert_int_equal(a->n_heads, HEADS);
    assert_int_equal(a->n_kv_heads, 0);
    assert_int_equal(a->n_rot, ROT);
    assert_int_equal(a->interleaved, 0);
    assert_int_equal(a->dtype, QN_DTYPE_BF16);
    assert_int_equal(a->query_weight | a->query_bias, 0);
    const int launches = fake.launches;
    c.tokens.n_tokens = 0;
    assert_ok(angles(&c));
    assert_ok(rope(&c));
    assert_int_equal(fake.launches, launches);
}

#define refused_change(function, change, text) refused_with(function, call_of(), change, text)

TEST(caches)
{
    qn_status (*const calls[])(const struct call *) = { store, attention, fused };
    size_t n;
    for (size_t i = 0; i < COUNT(calls); i++) {
        struct call c = call_of();
        refused_with(calls[i], c, kernels = NULL, "kernels: NULL");
        c.cache.n_kv_heads = 0;
        refused(calls[i](&c), "n_kv_heads: 0");
        refused_change(calls[i], cache.n_sequences = 0, "n_sequences: 0");
        refused_change(calls[i], cache.capacity = 100, "capacity: 100, expected a multiple of 16");
        refused_change(calls[i], cache.head_dim = 72, "head size 72");
        refused_change(calls[i], tokens.n_tokens = 65536, "n_tokens: 65536, at most 65535");
        refused_change(calls[i], cache.keys.count--, "keys of the cache: 3145727 elements, expected at least 3145728");
        c = call_of();
        c.cache.n_sequences = INT32_MAX;
        c.cache.n_kv_heads = 65535;
        c.cache.capacity = 0x7ffffff0;
        c.n_heads = 65535;
        refused(calls[i](&c), "do not fit in memory");
        refused_change(calls[i], cache.values.dtype = QN_DTYPE_BF16, "values of the cache: data type 30, expected 1");
        refused_change(calls[i], tokens.positions.count = TOKENS - 1, "positions: 4 elements, expected at least 5");
        refused_change(calls[i], tokens.sequences.dtype = QN_DTYPE_I64, "sequences: data type 27");
    }
    struct call c = call_of();
    refused(qn_cuda_kv_store(kernels, NULL, &c.tokens, c.keys, c.values, NULL), "cache: NULL");
    refused(qn_cuda_kv_store(kernels, &c.cache, NULL, c.keys, c.values, NULL), "tokens: NULL");
    refused(qn_cuda_attention_workspace(kernels, &c.cache, &c.tokens, HEADS, NULL), "bytes: NULL");
    refused(qn_cuda_attention_workspace(kernels, &c.cache, &c.tokens, 5, &n), "5 query heads over 2");
    assert_int_equal(n, 0);
}

/* A cache in pages: keys and values are offsets, and nothing but the page tables is read of the cache's views. */
TEST(pages)
{
    struct call c = call_of();
    c.cache.keys = c.cache.values = (qn_cuda_view){ 0 };
    c.cache.tables = view_at(0xa0000, QN_DTYPE_I64, SEQUENCES);
    c.cache.page_keys = 0x1230;
    c.cache.page_values = 0x40;
    qn_attention_gpu_cache expected = { .keys = 0x1230,
                                        .values = 0x40,
                                        .key_head_stride = 64 * DIM * 2,
                                        .value_head_stride = 64 * DIM * 2,
                                        .tables = 0xa0000 };
    assert_ok(attention(&c));
    assert_memory_equal(&((const qn_attention_decode_args *)arguments(0, 1))->cache, &expected, sizeof expected);
    assert_ok(fused(&c));
    assert_memory_equal(&((const qn_rope_qk_norm_store_args *)arguments(0, 1))->cache, &expected, sizeof expected);
    c.tokens.n_tokens = MANY;
    c.tokens.consecutive = true;
    assert_ok(attention(&c));
    const qn_attention_prefill_args *a = arguments(0, 1);
    assert_memory_equal(&a->cache, &expected, sizeof expected);
    assert_int_equal(a->n_pieces, 1);
    assert_int_equal(a->cu_seqlens, 0);

    qn_status (*const calls[])(const struct call *) = { store, attention, fused };
    for (size_t i = 0; i < COUNT(calls); i++) {
        refused_with(calls[i], c, cache.tables.count--, "tables: 2 elements, expected at least 3");
        refused_with(calls[i], c, cache.tables.dtype = QN_DTYPE_U32, "tables: data type 1000, expected 27");
        refused_with(calls[i], c, cache.capacity = 4096 + 16,
                     "capacity: 4112, expected a multiple of 64 with page tables");
        refused_with(calls[i], c, cache.page_keys = 8, "page_keys: 8, expected a multiple of 16");
        refused_with(calls[i], c, cache.page_values = 0x41, "page_values: 65, expected a multiple of 16");
    }
}

/* Of many tokens 256 at a time are split over keys: the workspace is for as many. */
TEST(groups)
{
    enum { ALL = 300 };
    struct call c = call_of();
    c.tokens.n_tokens = ALL;
    c.tokens.positions.count = c.tokens.sequences.count = ALL;
    c.queries.count = c.out.count = ALL * (HEADS * DIM + 8);
    c.queries.stride = HEADS * DIM + 8;
    assert_ok(qn_cuda_attention_workspace(kernels, &c.cache, &c.tokens, HEADS, &c.bytes));
    assert_int_equal(c.bytes, 256 * HEADS * (sizeof(uint32_t) + (CAPACITY / 256) * (DIM + 2) * sizeof(float)));
    assert_ok(attention(&c));
    assert_int_equal(fake.launches, 2);
    for (int i = 0; i < 2; i++) {
        const qn_attention_decode_args *d = arguments(i, 2);
        expect_launch(i, 2, "qn_attention_decode", i ? 132 : 4 * 132, 1, false); /* blocks of eight warps, and of two */
        assert_int_equal(d->n_rows, i ? ALL - 256 : 256);
        assert_int_equal(d->queries, 0x50000 + i * 256 * (HEADS * DIM + 8) * 2);
        assert_int_equal(d->mask.positions, 0x30000 + i * 256 * 4);
        assert_int_equal(d->mask.sessions, 0x40000 + i * 256 * 4);
        assert_int_equal(d->counters, WORKSPACE);
        assert_int_equal(d->out, 0x80000 + i * 256 * HEADS * DIM * 2);
    }
}

TEST(refusals)
{
    struct call c = call_of();
    c.n_heads = 7;
    refused(attention(&c), "7 query heads over 2");
    refused_change(attention, scale = INFINITY, "scale: inf");
    refused_change(attention, queries.dtype = QN_DTYPE_U32, "queries: data type 1000");
    refused_change(rope, queries.dtype = QN_DTYPE_U32, "x: data type 1000");
    refused_change(fused, queries.dtype = QN_DTYPE_U32, "queries: data type 1000, expected 30");
    refused_change(attention, queries.count = TOKENS * HEADS * DIM - 1,
                   "queries: 3839 elements, expected at least 3840");
    refused_change(rope, queries.count = TOKENS * HEADS * DIM - 1, "x: 3839 elements");
    refused_change(attention, out.dtype = QN_DTYPE_F32, "out: data type 0, expected 30");
    refused_change(fused, out.dtype = QN_DTYPE_F32, "out: data type 0, expected 30");
    c = call_of();
    refused(qn_cuda_attention(kernels, &c.cache, &c.tokens, c.queries, HEADS, 1, c.out, address(4), c.bytes, NULL),
            "workspace: address 0x4");
    c.keys.dtype = QN_DTYPE_Q8_0;
    refused(store(&c), "keys: data type 8");
    refused_change(store, values.dtype = QN_DTYPE_F16, "values: data type 1, expected 30");
    refused_change(store, values.stride = DIM, "values: rows are 128 elements apart, expected 256");
    refused_change(store, keys.data = address(0x60002), "keys: address");
}

TEST(rope_refusals)
{
    struct call c = call_of();
    c.shape.n_rot = 63;
    refused(rope(&c), "n_rot: 63");
    refused(fused(&c), "n_rot: 63");
    refused(angles(&c), "rows of 63");
    c.shape.n_rot = DIM + 2;
    refused(rope(&c), "n_rot: 130, expected an even number, 2 to head_dim 128");
    refused_change(rope, shape.n_heads = 0, "n_heads: 0");
    refused_change(rope, shape.pairing = (qn_rope_pairing)4, "pairing: 4");
    refused_change(rope, shape.cosines.count = TOKENS * ROT / 2 - 1, "cosines: 159 elements, expected at least 160");
    refused_change(angles, shape.cosines.count = TOKENS * ROT / 2 - 1, "cosines: 159 elements");
    refused_change(fused, shape.sines.dtype = QN_DTYPE_BF16, "sines: data type 30");
    refused_change(angles, shape.sines.dtype = QN_DTYPE_BF16, "sines: data type 30");
    c = call_of();
    c.shape.head_dim = 64;
    refused(fused(&c), "head_dim: 64, expected that of the cache, 128");
    c.shape.head_dim = 24;
    refused(rope(&c), "head size 24");
    c = call_of();
    refused_with(rope, c, kernels = NULL, "kernels: NULL");
    refused_with(angles, c, kernels = NULL, "kernels: NULL");
    refused(qn_cuda_rope(kernels, NULL, c.queries, TOKENS, NULL), "shape: NULL");
    refused(qn_cuda_rope(kernels, &c.shape, c.queries, 65536, NULL), "n_tokens: 65536");
    refused(
        qn_cuda_qk_norm_rope_store(kernels, &c.cache, &c.tokens, NULL, NULL, c.queries, c.keys, c.values, c.out, NULL),
        "shape: NULL");
    c.frequencies.dtype = QN_DTYPE_F32;
    refused(angles(&c), "frequencies: data type 0, expected 28");
    c = call_of();
    refused(qn_cuda_rope_angles(kernels, c.tokens.positions, c.frequencies, TOKENS, ROT, NAN, c.shape.cosines,
                                c.shape.sines, NULL),
            "attn_factor: ");

    c.norm.key_bias.count--;
    refused(fused(&c), "key_bias: 255 elements, expected at least 256");
    refused_change(fused, norm.query_bias.dtype = QN_DTYPE_BF16, "query_bias: data type 30");
    refused_change(fused, norm.value_bias.data = NULL, "value_bias: NULL");
    refused_change(fused, norm.query_weight.count = 1, "query_weight: 1 elements");
    refused_change(fused, norm.key_weight.data = address(0x704), "key_weight: address 0x704");
    c = call_of();
    c.norm.eps = 0;
    refused(fused(&c), "eps: 0");
    c.norm.query_weight = c.norm.key_weight = (qn_cuda_view){ 0 };
    assert_ok(fused(&c)); /* without weights, eps is not read */
    c = call_of();
    c.out = c.queries;
    assert_ok(fused(&c));
    c.out.stride = HEADS * DIM + 8;
    refused(fused(&c), "out: rows are 776 elements apart, expected 768 as those of queries");
}

/* After qn_cuda_kv_prepare, every function can be captured. */
TEST(captures)
{
    qn_status (*const calls[])(const struct call *) = { store, attention, angles, rope, fused };
    struct call c = call_of();
    fake.capturing = true;
    for (size_t i = 0; i < COUNT(calls); i++)
        refused(calls[i](&c), "the stream is captured");
    fake.capturing = false;
    assert_ok(qn_cuda_kv_prepare(kernels, DIM));
    assert_ok(qn_cuda_kv_prepare(kernels, 512)); /* which has no prefill kernel */
    assert_int_equal(fake.launches, 0);
    fake.capturing = true;
    for (size_t i = 0; i < COUNT(calls); i++)
        assert_ok(calls[i](&c));
    c.tokens.n_tokens = MANY;
    c.tokens.consecutive = true;
    assert_ok(attention(&c));
    assert_string_equal(launched(0, 1)->function, "qn_attention_prefill");
    refused(qn_cuda_kv_prepare(kernels, 72), "heads of 72");
    refused(qn_cuda_kv_prepare(NULL, DIM), "kernels: NULL");
}
