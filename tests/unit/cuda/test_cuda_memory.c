/* Memories on a CUDA device, with a fake driver: page tables that follow the sequence, copies, checkpoints, the pool's
 * budget, failures; and contents that come from sessions on the CPU and go back. quern-check tests the kernels on a
 * GPU, tests/unit/gpu what all GPUs share. */
#include "helper_contents.h"
#include "helper_cuda_model.h"
#include "helper_sessions.h"

#include "cuda/executor/model.h"

enum { CONTEXT = 512, BATCH = 100 };

static struct cuda_fixture fixture; /* of the current test */

static void set_up(const char *golden, unsigned bits)
{
    read_golden(&fixture, golden);
    create_device(&fixture, bits);
}

static void tear_down(void)
{
    free_device(&fixture);
}

static qn_memory *memory_of(void)
{
    const qn_memory_params params = memory_params(&fixture, CONTEXT, BATCH);
    qn_memory *memory;
    assert_ok(fixture.device->vtable->memory_new(fixture.device, &params, &memory));
    return memory;
}

static void free_memory(qn_memory *memory)
{
    memory->vtable->free(memory);
}

/* As a session: n rows in one step, whose work is nothing. */
static void append(qn_memory *memory, size_t n)
{
    const size_t length = memory->sequence->length;
    assert_ok(memory->vtable->prepare(memory, n));
    qn_memory_on_append(memory, length + n);
    assert_int_equal(memory->sequence->length, length + n);
}

/* ---- Page tables ---- */

static void check_table(const uint64_t *table, const qn_pool_class *class, const uint32_t *items, size_t n)
{
    for (size_t i = 0; i < CONTEXT / QN_PAGE; i++)
        assert_int_equal(table[i], i < n && items[i] != QN_NO_ITEM ? qn_pool_address(class, items[i]) : 0);
}

/* Reserves n rows: the device's tables then have the items. Returns the bytes that were copied for it. */
static int check_prepared(qn_memory *memory, size_t n)
{
    const qn_gpu_memory *m = (const qn_gpu_memory *)memory;
    const qn_sequence *s = memory->sequence;
    fake.copied_in_bytes = 0;
    assert_ok(memory->vtable->prepare(memory, n));
    const size_t n_pages = (s->length + n + QN_PAGE - 1) / QN_PAGE;
    check_table((const uint64_t *)(uintptr_t)m->kv_table, s->cache->pages, s->pages, n_pages);
    if (s->cache->f16_pages)
        check_table((const uint64_t *)(uintptr_t)m->f16_table, s->cache->f16_pages, s->f16_pages, n_pages);
    else
        assert_int_equal(m->f16_table, 0);
    return fake.copied_in_bytes;
}

static void check_tables(unsigned bits)
{
    label("%u bits", bits);
    set_up("qwen3.q1_0", bits);
    qn_memory *memory = memory_of(), *other = memory_of();
    assert_int_equal(check_prepared(memory, 200), bits ? (4 + 2) * 8 : 4 * 8); /* codes of pages 1 and 2 */
    qn_memory_on_append(memory, 200);
    assert_int_equal(check_prepared(memory, 1), bits ? 2 * 8 : 0); /* fp16 pages 1 and 2 were dropped */
    qn_memory_on_append(memory, 201);
    assert_int_equal(check_prepared(memory, 1), 0);
    qn_memory_on_append(memory, 202);
    /* A copy shares complete pages: its open page is its own. */
    assert_ok(qn_memory_copy(other, memory));
    check_prepared(other, 10);
    qn_memory_on_append(other, 212);
    assert_true(check_prepared(memory, 1) == 0);
    qn_memory_on_append(memory, 202);
    /* Truncated into a page that is shared: it is copied before it changes. */
    qn_memory_truncate(memory, qn_memory_rewind_length(memory, 70));
    check_prepared(memory, 300);
    qn_memory_on_append(memory, memory->sequence->length + 300);
    qn_memory_truncate(memory, 0);
    check_prepared(memory, 5);
    qn_memory_on_append(memory, 0);
    free_memory(memory);
    check_prepared(other, 300);
    qn_memory_on_append(other, 512);
    free_memory(other);
    tear_down();
}

TEST(page_tables)
{
    check_tables(0);
    check_tables(4);
}

/* An empty sequence that adopts pages and a state of another. */
TEST(adopted_pages)
{
    set_up("qwen35.q1_0", 0);
    qn_memory *memory = memory_of(), *other = memory_of();
    append(memory, 3 * QN_PAGE);
    append(memory, 1);
    assert_ok(qn_sequence_begin(other->sequence, 3));
    for (size_t i = 0; i < 3; i++)
        qn_sequence_take_page(other->sequence, i, memory->sequence->pages[i], QN_NO_ITEM);
    qn_sequence_take_state(other->sequence, memory->sequence->state);
    free_memory(memory);
    check_prepared(other, 4);
    qn_memory_on_append(other, 3 * QN_PAGE + 4);
    assert_int_equal(qn_memory_open_tokens(other), 4);
    free_memory(other);
    tear_down();
}

/* ---- Formats ---- */

/* Memories of one format share its classes; states are of one class in all formats. */
TEST(formats)
{
    set_up("qwen35-rotated.pq2_0", 4);
    qn_memory *codes = memory_of(), *same = memory_of(), *f16;
    const qn_memory_params params = f16_params(&fixture, CONTEXT, BATCH);
    assert_ok(fixture.device->vtable->memory_new(fixture.device, &params, &f16));
    const qn_cache *a = codes->sequence->cache, *b = f16->sequence->cache;
    assert_ptr_equal(a, same->sequence->cache);
    assert_ptr_not_equal(a, b);
    assert_ptr_not_equal(a->pages, b->pages);
    assert_ptr_equal(a->states, b->states);
    assert_ptr_equal(a->open_chunks, b->open_chunks);
    assert_null(b->f16_pages);
    free_memory(codes);
    free_memory(same);
    free_memory(f16);
    tear_down();
}

/* ---- Contents ---- */

/* The model on the CPU, too. */
static void open_both(const char *golden, unsigned bits)
{
    open_model(golden, CPU_MODEL(.n_threads = 1), 1);
    set_up(golden, bits);
}

static void close_both(void)
{
    tear_down();
    close_model();
}

static qn_session *session_of(const char *kv, const qn_token *tokens, size_t n)
{
    qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = CONTEXT, .kv = kv));
    append_tokens(session, tokens, n);
    return session;
}

/* Contents of a session on the CPU pass through the driver's copies: the KV cache exactly, and all of it from one
 * memory on the GPU to another (test_gpu_session_file has the conversion). A copy that fails ends them. */
static void check_contents(const char *golden, unsigned bits, const char *kv)
{
    static const char *const calls[] = { "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync" };
    label("%s, %s", golden, kv);
    open_both(golden, bits);
    qn_memory *gpu = memory_of(), *second = memory_of();
    qn_session *session = session_of(kv, ids, 330);
    const qn_extent extent = qn_sequence_extent(session->memory->sequence);
    struct contents cpu = contents_of(session->memory);
    for (int i = 0; i < 2; i++) {
        struct contents c = cpu;
        fake.fails = calls[i];
        fake.fails_after = 3;
        qn_status status = gpu->vtable->deserialize(gpu, &extent, take, &c);
        assert_int_equal(status, i ? QN_OK : QN_ERR_DEVICE);
        c = (struct contents){ 0 };
        if (i)
            status = gpu->vtable->serialize(gpu, put, &c);
        assert_int_equal(status, QN_ERR_DEVICE);
        assert_text("made to fail");
        fake.fails = NULL;
        free(c.bytes);
        qn_memory_truncate(gpu, 0);
    }
    fill(gpu, &cpu, &extent);
    const qn_extent gpu_extent = qn_sequence_extent(gpu->sequence);
    struct contents on_gpu = contents_of(gpu);
    assert_int_equal(cpu.n, on_gpu.n);
    assert_memory_equal(cpu.bytes, on_gpu.bytes, qn_saved_kv_bytes(&((qn_gpu_memory *)gpu)->format->saved, &extent));
    fill(second, &on_gpu, &gpu_extent);
    struct contents again = contents_of(second);
    assert_same(&on_gpu, &again);
    free(cpu.bytes);
    free(on_gpu.bytes);
    free(again.bytes);
    qn_session_free(session);
    free_memory(gpu);
    free_memory(second);
    close_both();
}

TEST(contents_pass_through_the_driver)
{
    check_contents("qwen3.q1_0", 0, "f16");
    check_contents("qwen35-rotated.pq2_0", 4, "aura4");
}

/* ---- Checkpoints ---- */

/* A checkpoint at 70 tokens has the fp16 page that begins at position 64, and the recurrent states. */
TEST(checkpoints)
{
    qn_memory_checkpoint *checkpoint, *copy;
    open_both("qwen35-rotated.pq2_0", 4);
    qn_session *session = session_of("aura4", ids, 70);
    const qn_extent extent = qn_sequence_extent(session->memory->sequence);
    struct contents cpu = contents_of(session->memory);
    qn_memory *memory = memory_of(), *other = memory_of();
    fill(memory, &cpu, &extent);
    struct contents saved = contents_of(memory);
    assert_ok(qn_checkpoint_new(&checkpoint));
    assert_ok(qn_checkpoint_new(&copy));
    assert_ok(qn_checkpoint_save(checkpoint, memory));
    assert_ok(qn_checkpoint_copy(copy, checkpoint));
    assert_int_equal(qn_checkpoint_open_tokens(copy), 6);
    append(memory, 200);
    memset((void *)(uintptr_t)qn_pool_address(memory->sequence->cache->open_chunks, memory->sequence->open_chunk), 1,
           qn_pool_stride(memory->sequence->cache->open_chunks));
    qn_checkpoint_clear(checkpoint);
    assert_ok(qn_checkpoint_restore(copy, other));
    free_memory(memory);
    assert_int_equal(qn_memory_rewind_length(other, 70), 70);
    assert_int_equal(qn_memory_open_tokens(other), 6);
    struct contents restored = contents_of(other);
    assert_same(&saved, &restored);
    qn_checkpoint_free(checkpoint);
    qn_checkpoint_free(copy);
    free_memory(other);
    free(cpu.bytes);
    free(saved.bytes);
    free(restored.bytes);
    qn_session_free(session);
    close_both();
}

/* ---- Limits and failures ---- */

/* Kernels of the GPU read fp16 rows and codes. */
TEST(fp32_caches_are_refused)
{
    set_up("qwen3.q1_0", 0);
    qn_memory_params params = memory_params(&fixture, QN_PAGE, BATCH);
    qn_memory *memory;
    assert_ok(qn_kv_format_named("f32", &params.format));
    assert_int_equal(fixture.device->vtable->memory_new(fixture.device, &params, &memory), QN_ERR_UNSUPPORTED);
    assert_null(memory);
    assert_text("cache format 'f32' is not supported on a GPU, only on the CPU");
    free_device(&fixture);
}

static uint64_t held_by(const qn_memory *memory)
{
    return qn_sequence_bytes(memory->sequence);
}

/* A budget of a few granules: what does not fit changes nothing, and what is given back is there for others. */
TEST(budget)
{
    set_up("qwen3.q1_0", 0);
    ((qn_cuda_model *)fixture.device)->common.memory_limit = 2 * (uint64_t)FAKE_GRANULE;
    const size_t n_ctx = 100 * QN_PAGE;
    const qn_memory_params params = memory_params(&fixture, n_ctx, BATCH);
    qn_memory *memory, *other;
    assert_ok(fixture.device->vtable->memory_new(fixture.device, &params, &memory));
    assert_ok(fixture.device->vtable->memory_new(fixture.device, &params, &other));
    const size_t page = qn_pool_stride(memory->sequence->cache->pages), most = 2 * FAKE_GRANULE / page;
    assert_true(most > 2 && most < n_ctx / QN_PAGE);
    append(memory, most / 2 * QN_PAGE);
    append(other, (most - most / 2) * QN_PAGE);
    const uint64_t held = held_by(memory);
    assert_fails(memory->vtable->prepare(memory, 1), QN_ERR_MEMORY, "page of keys and values on the GPU");
    assert_int_equal(held_by(memory), held);
    qn_memory_truncate(other, QN_PAGE);
    append(memory, 1);
    free_memory(memory);
    free_memory(other);
    tear_down();
}

/* Any call that fails leaves the memory as it was, and it goes on afterwards. */
TEST(failing_steps)
{
    static const char *const calls[] = { "cuMemCreate",     "cuMemMap",          "cuMemSetAccess",
                                         "cuMemsetD8Async", "cuMemcpyHtoDAsync", "cuEventRecord" };
    for (size_t i = 0; i < COUNT(calls); i++)
        for (int after = 0; after < 3; after++) {
            set_up("qwen35-rotated.pq2_0", 4);
            qn_memory *memory = memory_of();
            append(memory, 70);
            label("%s, %d", calls[i], after);
            const uint64_t held = held_by(memory);
            fake.fails = calls[i];
            fake.fails_after = after;
            if (memory->vtable->prepare(memory, 300) != QN_OK) {
                assert_text("made to fail");
                assert_int_equal(held_by(memory), held);
            }
            fake.fails = NULL;
            qn_memory_on_append(memory, 70);
            check_prepared(memory, 300);
            qn_memory_on_append(memory, 370);
            free_memory(memory);
            tear_down();
        }
}

TEST(failing_creation)
{
    static const char *const calls[] = { "cuMemGetAllocationGranularity",
                                         "cuMemGetInfo",
                                         "cuMemAddressReserve",
                                         "cuMemAlloc",
                                         "cuMemHostAlloc",
                                         "cuEventCreate",
                                         "cuMemCreate",
                                         "cuMemsetD8Async",
                                         "cuMemcpyHtoDAsync" };
    qn_memory *memory;
    set_up("qwen35-rotated.pq2_0", 4);
    qn_memory_params params = memory_params(&fixture, (size_t)1 << 60, BATCH);
    assert_int_equal(fixture.device->vtable->memory_new(fixture.device, &params, &memory), QN_ERR_MEMORY);
    assert_null(memory);
    tear_down();
    for (size_t i = 0; i < COUNT(calls); i++)
        for (int after = 0; after < 4; after++) {
            set_up("qwen35-rotated.pq2_0", 4);
            params = memory_params(&fixture, CONTEXT, BATCH);
            label("%s, %d", calls[i], after);
            fake.fails = calls[i];
            fake.fails_after = after;
            if (fixture.device->vtable->memory_new(fixture.device, &params, &memory) != QN_OK) {
                assert_text("made to fail");
                assert_null(memory);
                fake.fails = NULL;
                memory = memory_of();
            }
            fake.fails = NULL;
            append(memory, 100);
            free_memory(memory);
            tear_down();
        }
    set_up("qwen35-rotated.pq2_0", 4);
    assert_int_not_equal(fixture.device->vtable->reserve(fixture.device, (size_t)1 << 50, 64), QN_OK);
    assert_ok(fixture.device->vtable->reserve(fixture.device, 8, 64));
    tear_down();
}

/* ---- Threads ---- */

/* Memories of one model, each used by a thread of its own; the first thread of a format creates it. */
static void *use_memories(void *context)
{
    (void)context;
    for (size_t round = 0; round < 10; round++) {
        qn_memory *memory = memory_of(), *other = memory_of();
        qn_memory_checkpoint *checkpoint;
        append(memory, 70);
        assert_ok(qn_checkpoint_new(&checkpoint));
        assert_ok(qn_checkpoint_save(checkpoint, memory));
        append(memory, 200);
        assert_ok(qn_memory_copy(other, memory));
        append(other, 100);
        assert_ok(qn_checkpoint_restore(checkpoint, memory));
        append(memory, 64);
        qn_checkpoint_free(checkpoint);
        free_memory(memory);
        free_memory(other);
    }
    return NULL;
}

TEST(threads)
{
    enum { THREADS = 4 };
    pthread_t all[THREADS];
    set_up("qwen35-rotated.pq2_0", 4);
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&all[i], NULL, use_memories, NULL), 0);
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(all[i], NULL), 0);
    tear_down();
}
