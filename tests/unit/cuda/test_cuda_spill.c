/* Kept prefixes that are spilled from a CUDA device to host memory, with a fake driver: contents after the round trip,
 * copies larger than the staging buffers, failures of the driver. */
#include "helper_cuda_model.h"
#include "helper_random.h"

#include "cache/prefix.h"
#include "cuda/executor/model.h"

enum { N_TOKENS = 5 * QN_PAGE + 10, CONTEXT = 512 };

static qn_memory *memory_of(const struct cuda_fixture *x)
{
    const qn_memory_params params = memory_params(x, CONTEXT, CONTEXT);
    qn_memory *memory;
    assert_ok(x->device->vtable->memory_new(x->device, &params, &memory));
    return memory;
}

/* ---- Contents ---- */

/* Random bytes in place of what kernels would write; `seed` names them. */
static void fill_item(const qn_pool_class *class, uint32_t item, uint32_t seed)
{
    uint32_t *words = (uint32_t *)(uintptr_t)qn_pool_address(class, item);
    for (size_t i = 0; i < qn_pool_stride(class) / sizeof *words; i++)
        words[i] = seed = seed * 1664525u + 1013904223u;
}

static void check_item(const qn_pool_class *class, uint32_t item, uint32_t seed)
{
    const uint32_t *words = (const uint32_t *)(uintptr_t)qn_pool_address(class, item);
    for (size_t i = 0; i < qn_pool_stride(class) / sizeof *words; i++)
        if (words[i] != (seed = seed * 1664525u + 1013904223u))
            fail_msg("word %zu of item %u differs", i, item);
}

typedef void (*item_fn)(const qn_pool_class *class, uint32_t item, uint32_t seed);

/* The complete pages and the state of a sequence. */
static void for_items(const qn_sequence *s, item_fn function)
{
    const qn_cache *cache = s->cache;
    for (size_t i = 0; i < s->length / QN_PAGE; i++)
        if (cache->f16_pages && i == 0)
            function(cache->f16_pages, s->f16_pages[i], 1000);
        else
            function(cache->pages, s->pages[i], (uint32_t)i);
    if (cache->states && s->state_position)
        function(cache->states, s->state, 2000);
}

/* A prefix of N_TOKENS tokens that no sequence holds. */
static void keep(const struct cuda_fixture *x, qn_prefix *prefix, const int32_t *tokens)
{
    qn_memory *memory = memory_of(x);
    assert_ok(memory->vtable->prepare(memory, N_TOKENS));
    qn_memory_on_append(memory, N_TOKENS);
    for_items(memory->sequence, fill_item);
    qn_prefix_add(prefix, NULL, qn_token_ids(tokens), memory->sequence);
    qn_prefix_keep_state(prefix, NULL, qn_token_ids(tokens), memory->sequence, QN_STATE_MARK);
    memory->vtable->free(memory);
}

static void evict_all(qn_prefix *prefix)
{
    while (qn_prefix_evict(prefix))
        ;
}

static void fill_tokens(int32_t *tokens)
{
    for (int32_t i = 0; i < N_TOKENS; i++)
        tokens[i] = i * 7;
}

/* ---- The tests ---- */

TEST(contents_come_back)
{
    static const struct {
        const char *golden;
        unsigned bits;
    } cases[] = { { "qwen3.q1_0", 0 }, { "qwen3.q1_0", 4 }, { "qwen35.q1_0", 0 }, { "qwen35-rotated.pq2_0", 4 } };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct cuda_fixture x;
        int32_t tokens[N_TOKENS];
        uint32_t matched;
        qn_prefix *prefix;
        label("%s, %u bits", cases[i].golden, cases[i].bits);
        read_golden(&x, cases[i].golden);
        create_device(&x, cases[i].bits);
        fill_tokens(tokens);
        qn_memory *other = memory_of(&x);
        const qn_cache *cache = other->sequence->cache;
        qn_pool *pool = qn_pool_of(cache->pages);
        const uint64_t held = qn_pool_get_usage(pool).held;
        assert_ok(qn_prefix_create(cache, (uint64_t)1 << 30, (uint64_t)1 << 30, &prefix));
        keep(&x, prefix, tokens);
        const uint64_t kept = qn_pool_get_usage(pool).held - held;
        evict_all(prefix);
        assert_int_equal(qn_pool_get_usage(pool).held, held);
        assert_int_equal(qn_prefix_get_counts(prefix).host_bytes, kept);
        assert_ok(qn_prefix_adopt(prefix, NULL, qn_token_ids(tokens), N_TOKENS, other->sequence, &matched));
        assert_int_equal(other->sequence->length, 5 * QN_PAGE);
        assert_int_equal(qn_prefix_get_counts(prefix).host_bytes, 0);
        for_items(other->sequence, check_item);
        assert_ok(other->vtable->prepare(other, 10)); /* the page tables follow */
        other->vtable->free(other);
        qn_prefix_free(prefix);
        free_device(&x);
    }
}

TEST(failing_calls)
{
    static const char *const calls[] = { "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync",  "cuEventRecord", "cuStreamCreate",
                                         "cuMemHostAlloc",    "cuEventSynchronize", "cuMemCreate" };
    for (size_t i = 0; i < COUNT(calls); i++)
        for (int after = 0; after < 8; after++) {
            struct cuda_fixture x;
            int32_t tokens[N_TOKENS];
            uint32_t matched;
            qn_prefix *prefix;
            label("%s, %d", calls[i], after);
            read_golden(&x, "qwen35.q1_0");
            create_device(&x, 0);
            fill_tokens(tokens);
            qn_memory *other = memory_of(&x);
            assert_ok(qn_prefix_create(other->sequence->cache, (uint64_t)1 << 30, (uint64_t)1 << 30, &prefix));
            keep(&x, prefix, tokens);
            fake.fails = calls[i];
            fake.fails_after = after;
            evict_all(prefix);
            const qn_status status =
                qn_prefix_adopt(prefix, NULL, qn_token_ids(tokens), N_TOKENS, other->sequence, &matched);
            fake.fails = NULL;
            if (status != QN_OK) {
                assert_int_equal(other->sequence->length, 0);
                assert_ok(qn_prefix_adopt(prefix, NULL, qn_token_ids(tokens), N_TOKENS, other->sequence, &matched));
            }
            for_items(other->sequence, check_item);
            other->vtable->free(other);
            qn_prefix_free(prefix);
            free_device(&x);
        }
}

/* Sizes on both sides of one and two staging buffers. */
TEST(copies_through_staging_buffers)
{
    static const size_t sizes[] = { 0, 1, 1 << 24, (1 << 24) + 1, 1 << 25, (1 << 25) + 12345 };
    const size_t most = (1 << 25) + 12345;
    uint8_t *from = malloc(most), *to = malloc(most + 1);
    struct cuda_fixture x;
    qn_cuda_buffer buffer;
    assert_true(from && to);
    read_golden(&x, "qwen3.q1_0");
    create_device(&x, 0);
    qn_cuda *cuda = ((qn_cuda_model *)x.device)->common.cuda;
    assert_ok(qn_cuda_alloc(cuda, most, 1, "test", &buffer));
    for (size_t i = 0; i < most; i++)
        from[i] = (uint8_t)(i * 2654435761u >> 13);
    assert_ok(qn_cuda_upload(cuda, buffer.address, from, most, NULL, NULL));
    for (size_t i = 0; i < COUNT(sizes); i++) {
        label("%zu bytes", sizes[i]);
        memset(to, 0xee, most + 1);
        assert_ok(qn_cuda_download_staged(cuda, to, buffer.address, sizes[i]));
        assert_memory_equal(to, from, sizes[i]);
        assert_int_equal(to[sizes[i]], 0xee);
    }
    qn_cuda_free(cuda, &buffer);
    free(from);
    free(to);
    free_device(&x);
}
