/* AURA of quern/cuda.h on a fake driver: tables of codecs, what is queued with which arguments, and each refusal. The
 * results of the kernels are checked by quern-check, on a device. */
#include "helper_cuda_api.h"

#include "kernels/aura/aura.h"
#include "cuda/kernels/aura/aura_attention.h"
#include "cuda/kernels/aura/aura.h"

#include <math.h>

#define CODES(dim, key_bits, value_bits)                                                                               \
    FAKE_CUBIN("aura/aura.cu", "-DQN_HEAD_DIM=" dim " -DQN_BITS=" key_bits " -DQN_VALUE_BITS=" key_bits),              \
        FAKE_CUBIN("aura/aura.cu", "-DQN_HEAD_DIM=" dim " -DQN_BITS=" value_bits " -DQN_VALUE_BITS=" value_bits),      \
        FAKE_CUBIN("aura/aura.cu", "-DQN_HEAD_DIM=" dim " -DQN_BITS=" key_bits " -DQN_VALUE_BITS=" value_bits),        \
        FAKE_CUBIN("aura/pass2.cu", "-DQN_HEAD_DIM=" dim),                                                             \
        FAKE_CUBIN("aura/score.cu", "-DQN_HEAD_DIM=" dim " -DQN_BITS=" key_bits),                                      \
        FAKE_CUBIN("aura/value.cu", "-DQN_HEAD_DIM=" dim " -DQN_BITS=" value_bits),                                    \
        FAKE_CUBIN("aura/flash.cu", "-DQN_HEAD_DIM=" dim " -DQN_KEY_BITS=" key_bits " -DQN_VALUE_BITS=" value_bits)
static const qn_gpu_cubin cubins[] = { CODES("128", "4", "3"), CODES("80", "2", "6") };

static size_t args_bytes(const char *function)
{
    static const struct {
        const char *function;
        size_t bytes;
    } sizes[] = { { "qn_aura_encode", sizeof(qn_aura_encode_args) },
                  { "qn_aura_decode", sizeof(qn_aura_decode_args) },
                  { "qn_aura_store", sizeof(qn_aura_store_args) },
                  { "qn_aura_rotate", sizeof(qn_aura_rotate_args) },
                  { "qn_aura_score", sizeof(qn_aura_score_args) },
                  { "qn_aura_value", sizeof(qn_aura_value_args) },
                  { "qn_aura_flash_pass1", sizeof(qn_aura_flash_pass1_args) },
                  { "qn_aura_flash_pass2", sizeof(qn_aura_flash_pass2_args) },
                  { "qn_aura_attention", sizeof(qn_aura_attention_args) } };
    for (size_t i = 0; i < COUNT(sizes); i++)
        if (!strcmp(function, sizes[i].function))
            return sizes[i].bytes;
    fail_msg("no kernel %s", function);
    return 0;
}

enum { HEADS = 6, KV_HEADS = 2, CAPACITY = 1000, KEYS = 900, TOKENS = 3, BLOCK = 100, BLOCKS = 9, WORKSPACE = 0x90000 };

static qn_aura_codec *key_codec, *value_codec;       /* 128, signs */
static qn_aura_codec *dense_key_codec, *dense_value; /* 80 */

/* Arguments of valid calls. */
struct call {
    qn_cuda_kernels *kernels;
    qn_cuda_aura_cache cache;
    qn_cuda_aura_queries q;
    qn_cuda_view keys, values, positions, scores, weights, partials, m, l, out;
    size_t bytes, block;
    float skip;
};

static qn_cuda_view f32_at(size_t at, size_t count)
{
    return (qn_cuda_view){ address(at), QN_DTYPE_F32, count, 0 };
}

static qn_cuda_view u32_at(size_t at, size_t count)
{
    return (qn_cuda_view){ address(at), QN_DTYPE_U32, count, 0 };
}

static struct call call_with(const qn_aura_codec *keys, const qn_aura_codec *values)
{
    const size_t dim = keys->dim, rows = KV_HEADS * CAPACITY, queries = TOKENS * HEADS;
    return (struct call){ .kernels = kernels,
                          .cache = { .key_codec = { keys, f32_at(0x10000, qn_cuda_aura_table_size(keys)) },
                                     .value_codec = { values, f32_at(0x20000, qn_cuda_aura_table_size(values)) },
                                     .key_codes = u32_at(0x30000, rows * qn_aura_words(keys)),
                                     .value_codes = u32_at(0x40000, rows * qn_aura_words(values)),
                                     .key_scales = f32_at(0x50000, rows),
                                     .value_scales = f32_at(0x60000, rows),
                                     .n_kv_heads = KV_HEADS,
                                     .capacity = CAPACITY,
                                     .n_keys = KEYS },
                          .q = { .queries = { address(0x70000), QN_DTYPE_BF16, queries * dim, 0 },
                                 .n_tokens = TOKENS,
                                 .n_heads = HEADS,
                                 .scale = 0.5f,
                                 .causal = true,
                                 .positions = u32_at(0x80000, TOKENS) },
                          .keys = { address(0x100), QN_DTYPE_F16, TOKENS * KV_HEADS * dim, 0 },
                          .values = { address(0x200), QN_DTYPE_F32, TOKENS * KV_HEADS * dim, 0 },
                          .positions = u32_at(0x300, TOKENS),
                          .scores = f32_at(0x400, queries * KEYS),
                          .weights = f32_at(0x500, queries * KEYS),
                          .partials = f32_at(0x600, queries * BLOCKS * dim),
                          .m = f32_at(0x700, queries * BLOCKS),
                          .l = f32_at(0x800, queries * BLOCKS),
                          .out = { address(0x900), QN_DTYPE_F16, queries * dim, 0 },
                          .bytes = (size_t)1 << 30,
                          .block = BLOCK };
}

static struct call call_of(void)
{
    return call_with(key_codec, value_codec);
}

static qn_status store(const struct call *c)
{
    return qn_cuda_aura_store(c->kernels, &c->cache, c->keys, c->values, c->positions, TOKENS, NULL);
}

static qn_status score(const struct call *c)
{
    return qn_cuda_aura_score(c->kernels, &c->cache, &c->q, c->scores, address(WORKSPACE), c->bytes, NULL);
}

static qn_status value(const struct call *c)
{
    return qn_cuda_aura_value(c->kernels, &c->cache, c->weights, c->q.n_tokens, c->q.n_heads, c->skip, c->out,
                              address(WORKSPACE), c->bytes, NULL);
}

static qn_status pass1(const struct call *c)
{
    return qn_cuda_aura_flash_pass1(c->kernels, &c->cache, &c->q, c->block, c->partials, c->m, c->l, address(WORKSPACE),
                                    c->bytes, NULL);
}

static qn_status pass2(const struct call *c)
{
    return qn_cuda_aura_flash_pass2(c->kernels, &c->cache.value_codec, c->q.n_tokens, c->q.n_heads, BLOCKS, c->partials,
                                    c->m, c->l, c->q.sinks, c->out, NULL);
}

static qn_status attention(const struct call *c)
{
    return qn_cuda_aura_attention(c->kernels, &c->cache, &c->q, c->out, address(WORKSPACE), c->bytes, NULL);
}

static int open_kernels(void)
{
    open_fake_kernels(cubins, COUNT(cubins));
    fake.args_bytes = args_bytes;
    return 0;
}

TEST_EVERY(open_kernels, close_kernels)

static int make_codecs(void)
{
    assert_ok(qn_aura_codec_create(&key_codec, 128, 4, 1));
    assert_ok(qn_aura_codec_create(&value_codec, 128, 3, 2));
    assert_ok(qn_aura_codec_create(&dense_key_codec, 80, 2, 3));
    assert_ok(qn_aura_codec_create(&dense_value, 80, 6, 4));
    return 0;
}

static int free_codecs(void)
{
    qn_aura_codec_free(key_codec);
    qn_aura_codec_free(value_codec);
    qn_aura_codec_free(dense_key_codec);
    qn_aura_codec_free(dense_value);
    return 0;
}

/* What the device gets is what qn_aura_codec_tables gives; P itself follows its transpose. */
TEST(tables)
{
    enum { DIM = 80, LEVELS = 4, SIZE = 2 * LEVELS + 2 * DIM * DIM };
    static float found[SIZE], rotation[DIM * DIM], boundaries[LEVELS - 1], codebook[LEVELS];
    assert_int_equal(qn_cuda_aura_table_size(NULL), 0);
    assert_int_equal(qn_cuda_aura_table_size(key_codec), 2 * 16 + 128);
    assert_int_equal(qn_cuda_aura_table_size(dense_key_codec), SIZE);
    assert_ok(qn_cuda_aura_tables(dense_key_codec, (qn_view){ found, QN_DTYPE_F32, SIZE }));
    assert_ok(qn_aura_codec_tables(dense_key_codec, (qn_view){ rotation, QN_DTYPE_F32, DIM * DIM },
                                   (qn_view){ boundaries, QN_DTYPE_F32, LEVELS - 1 },
                                   (qn_view){ codebook, QN_DTYPE_F32, LEVELS }));
    assert_memory_equal(found, codebook, sizeof codebook);
    assert_memory_equal(found + LEVELS, boundaries, sizeof boundaries);
    for (size_t i = 0; i < DIM; i++)
        for (size_t j = 0; j < DIM; j++) {
            assert_true(found[2 * LEVELS + j * DIM + i] == rotation[i * DIM + j]);
            assert_true(found[2 * LEVELS + DIM * DIM + i * DIM + j] == rotation[i * DIM + j]);
        }
    assert_ok(qn_cuda_aura_tables(key_codec, (qn_view){ found, QN_DTYPE_F32, SIZE }));
    assert_memory_equal(found + 32, key_codec->signs, 128 * sizeof(float));
    assert_fails(qn_cuda_aura_tables(NULL, (qn_view){ found, QN_DTYPE_F32, SIZE }), QN_ERR_INVALID, "codec: NULL");
    assert_fails(qn_cuda_aura_tables(dense_key_codec, (qn_view){ found, QN_DTYPE_F32, SIZE - 1 }), QN_ERR_INVALID,
                 "tables: 12807 elements, expected at least 12808");
}

TEST(rows)
{
    enum { ROWS = 20 };
    const qn_cuda_aura_codec codec = { key_codec, f32_at(0x10000, qn_cuda_aura_table_size(key_codec)) },
                             dense = { dense_key_codec, f32_at(0x20000, qn_cuda_aura_table_size(dense_key_codec)) };
    qn_cuda_view x = { address(0x30000), QN_DTYPE_BF16, ROWS * 136, 136 }, codes = u32_at(0x40000, ROWS * 16),
                 scales = f32_at(0x50000, ROWS);
    assert_ok(qn_cuda_aura_encode(kernels, &codec, x, ROWS, codes, scales, NULL));
    const qn_aura_encode_args *e = expect_launch(0, 1, "qn_aura_encode", 3, 1, false);
    assert_int_equal(e->rows, 0x30000);
    assert_int_equal(e->codes, 0x40000);
    assert_int_equal(e->scales, 0x50000);
    assert_int_equal(e->levels.codebook, 0x10000);
    assert_int_equal(e->levels.boundaries, 0x10000 + 16 * 4);
    assert_int_equal(e->rotation.signs, 0x10000 + 32 * 4);
    assert_int_equal(e->rotation.forward, 0);
    assert_int_equal(e->n_rows, ROWS);
    assert_int_equal(e->stride, 136);
    assert_int_equal(e->dtype, QN_DTYPE_BF16);

    x.stride = 0;
    for (int back = 0; back < 2; back++) {
        assert_ok(qn_cuda_aura_decode(kernels, &dense, codes, scales, ROWS, back, x, NULL));
        const qn_aura_decode_args *d = expect_launch(0, 1, "qn_aura_decode", 3, 1, false);
        assert_int_equal(d->rows, 0x30000);
        assert_int_equal(d->stride, 80);
        assert_int_equal(d->rotation.signs, 0);
        assert_int_equal(d->rotation.forward, back ? 0x20000 + 8 * 4 : 0);
        assert_int_equal(d->rotation.inverse, back ? 0x20000 + (8 + 80 * 80) * 4 : 0);
    }
    const int launches = fake.launches;
    assert_ok(qn_cuda_aura_encode(kernels, &codec, x, 0, codes, scales, NULL));
    assert_int_equal(fake.launches, launches);
    refused(qn_cuda_aura_encode(NULL, &codec, x, ROWS, codes, scales, NULL), "kernels: NULL");
    refused(qn_cuda_aura_encode(kernels, NULL, x, ROWS, codes, scales, NULL), "codec: NULL");
    refused(qn_cuda_aura_encode(kernels, &codec, x, ROWS + 2, codes, scales, NULL),
            "rows: 2720 elements, expected at least 2816");
    refused(qn_cuda_aura_encode(kernels, &codec, x, (size_t)1 << 31, codes, scales, NULL), "n_rows: 2147483648");
    codes.count--;
    refused(qn_cuda_aura_decode(kernels, &codec, codes, scales, ROWS, true, x, NULL), "codes: 319 elements");
    codes = u32_at(0x40000, ROWS * 16);
    codes.dtype = QN_DTYPE_I32;
    assert_ok(qn_cuda_aura_decode(kernels, &codec, codes, scales, ROWS, true, x, NULL));
    codes.dtype = QN_DTYPE_F32;
    refused(qn_cuda_aura_decode(kernels, &codec, codes, scales, ROWS, true, x, NULL),
            "codes: data type 0, expected 1000");
    codes.dtype = QN_DTYPE_U32;
    scales.dtype = QN_DTYPE_F16;
    refused(qn_cuda_aura_decode(kernels, &codec, codes, scales, ROWS, true, x, NULL), "scales: data type 1");
    x.dtype = QN_DTYPE_U32;
    refused(qn_cuda_aura_decode(kernels, &codec, codes, scales, ROWS, true, x, NULL),
            "rows: data type 1000, expected 0 (f32)");
    const qn_cuda_aura_codec few = { key_codec, f32_at(0x10000, 159) };
    refused(qn_cuda_aura_encode(kernels, &few, x, ROWS, codes, scales, NULL),
            "tables of codec: 159 elements, expected at least 160");
}

#define refused_change(function, change, text) refused_with(function, call_of(), change, text)

TEST(stores)
{
    struct call c = call_of();
    c.keys.stride = 3 * 128;
    c.keys.count *= 2;
    assert_ok(store(&c));
    const qn_aura_store_args *a = expect_launch(0, 1, "qn_aura_store", 1, 2, false);
    assert_int_equal(a->positions, 0x300);
    assert_int_equal(a->keys.rows, 0x100);
    assert_int_equal(a->values.rows, 0x200);
    assert_int_equal(a->cache.keys, 0x30000);
    assert_int_equal(a->cache.values, 0x40000);
    assert_int_equal(a->cache.key_scales, 0x50000);
    assert_int_equal(a->cache.value_scales, 0x60000);
    assert_int_equal(a->cache.key_head_stride, CAPACITY * 64);
    assert_int_equal(a->cache.scale_head_stride, CAPACITY * 4);
    assert_int_equal(a->cache.tables, 0);
    assert_int_equal(a->keys.rotation.signs, 0x10000 + 32 * 4);
    assert_int_equal(a->values.rotation.signs, 0x20000 + 16 * 4);
    assert_int_equal(a->values.levels.boundaries, 0x20000 + 8 * 4);
    assert_int_equal(a->keys.stride, 384);
    assert_int_equal(a->values.stride, 256);
    assert_int_equal(a->keys.dtype, QN_DTYPE_F16);
    assert_int_equal(a->values.dtype, QN_DTYPE_F32);
    assert_int_equal(a->n_tokens, TOKENS);
    assert_int_equal(a->n_kv_heads, KV_HEADS);
    assert_int_equal(a->capacity, CAPACITY);
    c.positions.dtype = QN_DTYPE_I32;
    assert_ok(store(&c));
    const int launches = fake.launches;
    assert_ok(qn_cuda_aura_store(kernels, &c.cache, c.keys, c.values, c.positions, 0, NULL));
    assert_int_equal(fake.launches, launches);

    refused_change(store, positions.count--, "positions: 2 elements, expected at least 3");
    refused_change(store, positions.dtype = QN_DTYPE_I64, "positions: data type 27, expected 1000");
    refused_change(store, keys.count--, "keys: 767 elements, expected at least 768");
    refused_change(store, values.dtype = QN_DTYPE_I32, "values: data type 26");
    refused_change(store, keys.stride = 260, "keys: rows are 260 elements apart, expected a multiple of 8");
    refused_change(store, values.data = address(0x208), "values: address 0x208");
}

/* Refusals that all functions of a cache share, by the single pass. */
TEST(caches)
{
    struct call c = call_of();
    refused(qn_cuda_aura_attention(kernels, NULL, &c.q, c.out, NULL, 0, NULL), "cache: NULL");
    refused_with(attention, c, kernels = NULL, "kernels: NULL");
    c.cache.key_codec.codec = NULL;
    refused(attention(&c), "key_codec: NULL");
    refused_change(store, cache.value_codec.codec = NULL, "value_codec: NULL");
    refused_change(attention, cache.value_codec.codec = dense_value,
                   "value_codec: dim 80, expected that of key_codec, 128");
    refused_change(store, cache.n_kv_heads = 0, "n_kv_heads: 0");
    refused_change(attention, cache.n_kv_heads = 4, "6 query heads over 4 key-value heads");
    refused_change(attention, q.n_heads = 0, "0 query heads");
    refused_change(store, cache.capacity = (size_t)1 << 31, "capacity: 2147483648");
    c = call_of();
    c.cache.n_keys = CAPACITY + 1;
    refused(attention(&c), "n_keys: 1001, expected at most the capacity 1000");
    assert_ok(store(&c)); /* which does not read n_keys */
    refused_change(attention, cache.key_codec.tables.data = address(0x10004), "tables of key_codec: address");
    refused_change(value, cache.value_codec.tables.count = 143,
                   "tables of value_codec: 143 elements, expected at least 144");
    refused_change(attention, cache.key_codes.count--, "key_codes: 31999 elements, expected at least 32000");
    refused_change(store, cache.value_codes.dtype = QN_DTYPE_F32, "value_codes: data type 0");
    refused_change(score, cache.key_scales.count--, "key_scales: 1999 elements");
    refused_change(pass1, cache.value_scales.data = NULL, "value_scales: NULL");
}

static void expect_queries(const qn_aura_gpu_queries *q, const qn_aura_gpu_cache *cache, uint32_t causal)
{
    assert_int_equal(q->queries, 0x70000);
    assert_int_equal(q->positions, 0x80000);
    assert_int_equal(q->n_tokens, TOKENS);
    assert_int_equal(q->n_heads, HEADS);
    assert_int_equal(q->stride, HEADS * 128);
    assert_int_equal(q->dtype, QN_DTYPE_BF16);
    assert_int_equal(q->causal, causal);
    assert_true(q->scale == 0.5f);
    assert_int_equal(cache->rows.keys, 0x30000);
    assert_int_equal(cache->rows.value_scales, 0x60000);
    assert_int_equal(cache->rows.key_head_stride, CAPACITY * 16 * 4);
    assert_int_equal(cache->rows.value_head_stride, CAPACITY * 12 * 4);
    assert_int_equal(cache->rows.scale_head_stride, CAPACITY * 4);
    assert_int_equal(cache->key_codec.codebook, 0x10000);
    assert_int_equal(cache->key_codec.signs, 0x10000 + 32 * 4);
    assert_int_equal(cache->value_codec.codebook, 0x20000);
    assert_true(cache->value_codec.gain == qn_attention_gpu_gain(value_codec->codebook, 8));
    assert_int_equal(cache->n_kv_heads, KV_HEADS);
    assert_int_equal(cache->n_keys, KEYS);
}

/* What each operation queues, with signs. 3 tokens of 3 heads a key-value head are two tiles of 8 queries. */
TEST(operations)
{
    struct call c = call_of();
    assert_ok(qn_cuda_aura_queries_workspace(kernels, &c.cache, TOKENS, HEADS, &c.bytes));
    assert_int_equal(c.bytes, 0);
    assert_ok(score(&c));
    const qn_aura_score_args *s = expect_launch(0, 1, "qn_aura_score", 4, 4, false);
    expect_queries(&s->queries, &s->cache, 0);
    assert_int_equal(s->scores, 0x400);

    assert_ok(pass1(&c));
    const qn_aura_flash_pass1_args *p = arguments_of("qn_aura_flash_pass1", 0, 1);
    expect_queries(&p->queries, &p->cache, 1);
    assert_int_equal(p->partials, 0x600);
    assert_int_equal(p->m, 0x700);
    assert_int_equal(p->l, 0x800);
    assert_int_equal(p->block, BLOCK);
    assert_int_equal(p->n_blocks, BLOCKS);
    assert_true(p->warps_per_block > 0);
    assert_int_equal(p->queries.window, 0);
    c.q.causal = false;
    c.q.window = 77;
    c.block = SIZE_MAX; /* one block of all keys */
    assert_ok(pass1(&c));
    p = arguments(0, 1);
    assert_int_equal(p->block, KEYS);
    assert_int_equal(p->n_blocks, 1);
    assert_int_equal(p->queries.causal, 0);
    assert_int_equal(p->queries.window, 77);
    c.q.causal = true;
    c.q.window = 0;

    c.q.sinks = f32_at(0xa00, HEADS);
    c.out.stride = HEADS * 128 + 8;
    c.out.count *= 2;
    assert_ok(attention(&c));
    const qn_aura_attention_args *a = expect_launch(0, 1, "qn_aura_attention", 4, 1, false);
    expect_queries(&a->queries, &a->cache, 1);
    assert_int_equal(a->sinks, 0xa00);
    assert_int_equal(a->out, 0x900);
    assert_int_equal(a->out_stride, HEADS * 128 + 8);
    assert_int_equal(a->dtype, QN_DTYPE_F16);
    assert_int_equal(a->rotation.signs, 0x20000 + 16 * 4);

    assert_ok(pass2(&c));
    const qn_aura_flash_pass2_args *f = expect_launch(0, 1, "qn_aura_flash_pass2", TOKENS * HEADS, 1, false);
    assert_int_equal(f->partials, 0x600);
    assert_int_equal(f->m, 0x700);
    assert_int_equal(f->l, 0x800);
    assert_int_equal(f->sinks, 0xa00);
    assert_int_equal(f->out, 0x900);
    assert_int_equal(f->out_stride, HEADS * 128 + 8);
    assert_int_equal(f->n_blocks, BLOCKS);
    assert_int_equal(f->n_heads, HEADS);

    c.skip = 0.25f;
    assert_ok(qn_cuda_aura_value_workspace(kernels, &c.cache, TOKENS, HEADS, &c.bytes));
    assert_int_equal(c.bytes, TOKENS * HEADS * 4 * 128 * sizeof(float));
    assert_ok(value(&c));
    expect_launch(0, 2, "qn_aura_value", 4, 4, false);
    expect_launch(1, 2, "qn_aura_flash_pass2", TOKENS * HEADS, 1, true);
    const qn_aura_value_args *v = arguments(0, 2);
    f = arguments(1, 2);
    assert_int_equal(v->weights, 0x500);
    assert_int_equal(v->partials, WORKSPACE);
    assert_true(v->skip == 0.25f);
    assert_int_equal(f->partials, WORKSPACE);
    assert_int_equal(f->m | f->l | f->sinks, 0);
    assert_int_equal(f->n_blocks, 4);
    c.bytes--;
    refused(value(&c), "workspace: 36863 bytes, expected at least 36864");
}

/* A dense rotation of queries is a launch before. */
TEST(dense_rotations)
{
    struct call c = call_with(dense_key_codec, dense_value);
    qn_status (*const calls[])(const struct call *) = { score, pass1, attention };
    const char *const functions[] = { "qn_aura_score", "qn_aura_flash_pass1", "qn_aura_attention" };
    assert_ok(qn_cuda_aura_queries_workspace(kernels, &c.cache, TOKENS, HEADS, &c.bytes));
    assert_int_equal(c.bytes, TOKENS * HEADS * 80 * sizeof(float));
    c.q.queries.stride = HEADS * 80 + 16;
    c.q.queries.count *= 2;
    for (size_t i = 0; i < 3; i++) {
        label("%s", functions[i]);
        assert_ok(calls[i](&c));
        expect_launch(0, 2, "qn_aura_rotate", TOKENS * HEADS, 1, false);
        assert_string_equal(launched(1, 2)->function, functions[i]);
        assert_true(launched(1, 2)->pdl);
        const qn_aura_rotate_args *r = arguments(0, 2);
        assert_int_equal(r->rows, 0x70000);
        assert_int_equal(r->out, WORKSPACE);
        assert_int_equal(r->rotation.forward, 0x10000 + 8 * 4);
        assert_int_equal(r->n_heads, HEADS);
        assert_int_equal(r->stride, HEADS * 80 + 16);
        assert_int_equal(r->dtype, QN_DTYPE_BF16);
        const qn_aura_gpu_queries *q = i == 0   ? &((const qn_aura_score_args *)arguments(1, 2))->queries
                                       : i == 1 ? &((const qn_aura_flash_pass1_args *)arguments(1, 2))->queries
                                                : &((const qn_aura_attention_args *)arguments(1, 2))->queries;
        assert_int_equal(q->queries, WORKSPACE);
        assert_int_equal(q->stride, HEADS * 80);
        assert_int_equal(q->dtype, QN_DTYPE_F32);
    }
    const qn_aura_attention_args *a = arguments(1, 2);
    assert_int_equal(a->rotation.inverse, 0x20000 + (128 + 80 * 80) * 4);
    assert_int_equal(a->cache.key_codec.signs, 0);
    c.bytes--;
    for (size_t i = 0; i < 3; i++)
        refused(calls[i](&c), "workspace: 5759 bytes, expected at least 5760");
    refused(qn_cuda_aura_score(kernels, &c.cache, &c.q, c.scores, address(8), 6000, NULL), "workspace: address 0x8");
}

/* Without keys, results are zeros; without queries, nothing is queued. */
TEST(empty)
{
    for (int dense = 0; dense < 2; dense++) {
        label("dense %d", dense);
        struct call c = dense ? call_with(dense_key_codec, dense_value) : call_of();
        c.cache.n_keys = 0;
        int launches = fake.launches;
        assert_ok(score(&c));
        assert_ok(pass1(&c));
        assert_int_equal(fake.launches, launches);
        assert_ok(value(&c));
        assert_ok(attention(&c));
        assert_int_equal(fake.launches, launches + 2);
        for (int i = 0; i < 2; i++) {
            const qn_aura_flash_pass2_args *a = expect_launch(i, 2, "qn_aura_flash_pass2", TOKENS * HEADS, 1, false);
            assert_int_equal(a->n_blocks, 0);
            assert_int_equal(a->out, 0x900);
            assert_int_equal(a->out_stride, HEADS * (dense ? 80 : 128));
        }
        c = dense ? call_with(dense_key_codec, dense_value) : call_of();
        c.q.n_tokens = 0;
        launches = fake.launches;
        assert_ok(score(&c));
        assert_ok(pass1(&c));
        assert_ok(pass2(&c));
        assert_ok(value(&c));
        assert_ok(attention(&c));
        assert_int_equal(fake.launches, launches);
    }
}

TEST(refusals)
{
    size_t n;
    struct call c = call_of();
    refused(qn_cuda_aura_attention(kernels, &c.cache, NULL, c.out, NULL, 0, NULL), "queries: NULL");
    c.q.scale = NAN;
    refused(score(&c), "scale: ");
    refused_change(score, q.queries.dtype = QN_DTYPE_U32, "queries: data type 1000");
    refused_change(pass1, q.queries.count--, "queries: 2303 elements, expected at least 2304");
    refused_change(attention, q.n_tokens = INT32_MAX, "2147483647 tokens of 6 heads");
    c = call_of();
    c.q.positions.count = 2;
    refused(attention(&c), "positions: 2 elements, expected at least 3");
    assert_ok(score(&c)); /* which has no mask */
    c.q.causal = false;
    assert_ok(attention(&c));
    c.q.window = 5;
    refused(pass1(&c), "positions: 2 elements");
    refused_change(attention, q.sinks = f32_at(0xa00, HEADS - 1), "sinks: 5 elements, expected at least 6");
    refused_change(pass2, q.sinks = f32_at(0xa00, HEADS - 1), "sinks: 5 elements");
    refused_change(score, scores.count--, "scores: 16199 elements, expected at least 16200");
    refused_change(value, weights.dtype = QN_DTYPE_F16, "weights: data type 1, expected 0");
    c = call_of();
    c.skip = -1;
    refused(value(&c), "skip: -1, expected at least 0");
    c.skip = NAN;
    refused(value(&c), "skip: ");
    refused_change(pass1, block = 0, "block: 0");
    refused_change(pass1, partials.count--, "partials: 20735 elements, expected at least 20736");
    refused_change(pass2, partials.count--, "partials: 20735 elements");
    refused_change(pass1, m.count--, "m: 161 elements, expected at least 162");
    refused_change(pass2, l.data = address(0x804), "l: address 0x804");
    refused_change(value, out.dtype = QN_DTYPE_I64, "out: data type 27");
    refused_change(pass2, out.dtype = QN_DTYPE_I64, "out: data type 27");
    refused_change(attention, out.stride = HEADS * 128 - 8, "out: rows are 760 elements apart, expected 768");
    c = call_of();
    c.q.n_heads = 0;
    refused(pass2(&c), "3 tokens of 0 heads");
    refused_with(pass2, c, kernels = NULL, "kernels: NULL");
    refused(
        qn_cuda_aura_flash_pass2(kernels, NULL, TOKENS, HEADS, BLOCKS, c.partials, c.m, c.l, c.q.sinks, c.out, NULL),
        "value_codec: NULL");
    refused(qn_cuda_aura_flash_pass2(kernels, &c.cache.value_codec, TOKENS, HEADS, SIZE_MAX, c.partials, c.m, c.l,
                                     c.q.sinks, c.out, NULL),
            "n_blocks: ");
    refused(qn_cuda_aura_queries_workspace(kernels, &c.cache, TOKENS, HEADS, NULL), "bytes: NULL");
    refused(qn_cuda_aura_value_workspace(kernels, &c.cache, TOKENS, HEADS, NULL), "bytes: NULL");
    refused(qn_cuda_aura_flash_block(kernels, &c.cache, TOKENS, HEADS, NULL), "block: NULL");
    refused(qn_cuda_aura_value_workspace(kernels, &c.cache, TOKENS, 5, &n), "5 query heads");
    assert_int_equal(n, 0);
    assert_ok(qn_cuda_aura_flash_block(kernels, &c.cache, 1, HEADS, &n));
    assert_true(n > 0 && n % 16 == 0);
}

/* After qn_cuda_aura_prepare, every function can be captured. */
TEST(captures)
{
    struct call c = call_with(dense_key_codec, dense_value);
    qn_status (*const calls[])(const struct call *) = { store, score, value, pass1, pass2, attention };
    const qn_cuda_view codes = c.cache.key_codes, scales = c.cache.key_scales, x = c.keys;
    fake.capturing = true;
    for (size_t i = 0; i < COUNT(calls); i++)
        refused(calls[i](&c), "the stream is captured");
    fake.capturing = false;
    assert_ok(qn_cuda_aura_prepare(kernels, dense_key_codec, dense_value));
    assert_int_equal(fake.launches, 0);
    fake.capturing = true;
    for (size_t i = 0; i < COUNT(calls); i++)
        assert_ok(calls[i](&c));
    assert_ok(qn_cuda_aura_encode(kernels, &c.cache.key_codec, x, TOKENS, codes, scales, NULL));
    assert_ok(qn_cuda_aura_decode(kernels, &c.cache.key_codec, codes, scales, TOKENS, true, x, NULL));
    assert_ok(qn_cuda_aura_encode(kernels, &c.cache.value_codec, x, TOKENS, codes, scales, NULL));
    assert_ok(qn_cuda_aura_decode(kernels, &c.cache.value_codec, codes, scales, TOKENS, true, x, NULL));
    assert_int_equal(qn_cuda_aura_prepare(kernels, dense_key_codec, NULL), QN_ERR_INVALID);
    assert_int_equal(qn_cuda_aura_prepare(NULL, dense_key_codec, dense_value), QN_ERR_INVALID);
}

/* A cache in pages: arrays are offsets, and nothing but the page table is read of the cache's views. */
TEST(pages)
{
    struct call c = call_of();
    c.cache.key_codes = c.cache.value_codes = c.cache.key_scales = c.cache.value_scales = (qn_cuda_view){ 0 };
    c.cache.tables = (qn_cuda_view){ address(0xa0000), QN_DTYPE_I64, 1, 0 };
    c.cache.capacity = 1024;
    c.cache.page_key_codes = 0x100;
    c.cache.page_value_codes = 0x200;
    c.cache.page_key_scales = 0x310;
    c.cache.page_value_scales = 0x320;
    const qn_attention_gpu_cache expected = { .keys = 0x100,
                                              .values = 0x200,
                                              .key_scales = 0x310,
                                              .value_scales = 0x320,
                                              .key_head_stride = 64 * qn_aura_words(key_codec) * 4,
                                              .value_head_stride = 64 * qn_aura_words(value_codec) * 4,
                                              .scale_head_stride = 64 * 4,
                                              .tables = 0xa0000 };
    assert_ok(store(&c));
    const qn_aura_store_args *s = arguments(0, 1);
    assert_memory_equal(&s->cache, &expected, sizeof expected);
    assert_int_equal(s->capacity, 1024);
    assert_ok(attention(&c));
    assert_memory_equal(&((const qn_aura_attention_args *)arguments(0, 1))->cache.rows, &expected, sizeof expected);

    qn_status (*const calls[])(const struct call *) = { store, attention, score, value };
    for (size_t i = 0; i < COUNT(calls); i++) {
        refused_with(calls[i], c, cache.tables.count = 0, "tables: 0 elements, expected at least 1");
        refused_with(calls[i], c, cache.capacity = 1000, "capacity: 1000, expected a multiple of 64 with page tables");
        refused_with(calls[i], c, cache.page_key_codes = 1, "page_key_codes: 1, expected a multiple of 16");
        refused_with(calls[i], c, cache.page_value_codes = 2, "page_value_codes: 2, expected");
        refused_with(calls[i], c, cache.page_key_scales = 4, "page_key_scales: 4, expected");
        refused_with(calls[i], c, cache.page_value_scales = 8, "page_value_scales: 8, expected");
    }
}

TEST_GROUP(make_codecs, free_codecs)
