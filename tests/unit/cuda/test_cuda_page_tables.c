/* Page tables on a CUDA device, with a fake driver: sequences take over those of ended ones, without a call that
 * allocates or frees memory; copies have events. test_gpu_page_tables has what is the same on all GPUs,
 * test_cuda_memory compares tables with the pages of a sequence as it grows. */
#include "helper_cuda_model.h"

#include "cuda/executor/model.h"

enum { CONTEXT = 512, BATCH = 100, SEQUENCES = 5 };

static struct cuda_fixture x;

static void set_up(unsigned bits)
{
    read_golden(&x, "qwen35-rotated.pq2_0");
    create_device(&x, bits);
}

static qn_gpu_memory *create(size_t n_ctx, bool has_codes)
{
    const qn_memory_params params = has_codes ? memory_params(&x, n_ctx, BATCH) : f16_params(&x, n_ctx, BATCH);
    qn_memory *memory;
    assert_ok(x.device->vtable->memory_new(x.device, &params, &memory));
    return (qn_gpu_memory *)memory;
}

static void end(qn_gpu_memory *m)
{
    m->base.vtable->free(&m->base);
}

static void check_table(uint64_t table, const qn_pool_class *class, const uint32_t *items, size_t n, size_t n_entries)
{
    const uint64_t *entries = (const uint64_t *)(uintptr_t)table;
    for (size_t i = 0; i < n_entries; i++)
        assert_int_equal(entries[i], i < n && items[i] != QN_NO_ITEM ? qn_pool_address(class, items[i]) : 0);
}

/* Appends n rows; the device's tables then have the pages of the sequence, and nothing of another. */
static void append(qn_gpu_memory *m, size_t n)
{
    const qn_sequence *s = &m->sequence;
    const size_t length = s->length, n_pages = (length + n + QN_PAGE - 1) / QN_PAGE, n_entries = m->tables->n_pages;
    assert_ok(m->base.vtable->prepare(&m->base, n));
    check_table(m->kv_table, s->cache->pages, s->pages, n_pages, n_entries);
    if (s->cache->f16_pages)
        check_table(m->f16_table, s->cache->f16_pages, s->f16_pages, n_pages, n_entries);
    qn_memory_on_append(&m->base, length + n);
}

/* Sequences of several lengths and formats at once, all of which end: in every round tables go to others. */
static void run_sequences(size_t round)
{
    qn_gpu_memory *all[SEQUENCES];
    for (size_t i = 0; i < SEQUENCES; i++) {
        all[i] = create(CONTEXT, i % 2);
        append(all[i], 30 + 90 * ((i + round) % SEQUENCES));
        append(all[i], 1);
    }
    for (size_t i = 0; i < SEQUENCES; i++)
        end(all[(i + 2 * round) % SEQUENCES]);
}

/* After as many sequences as there are at once, none allocates, frees, or creates an event. */
TEST(tables_are_reused)
{
    set_up(4);
    run_sequences(0);
    const int calls = fake.memory_calls, synchronizations = fake.synchronizations;
    for (size_t round = 0; round < 20; round++) {
        label("round %zu", round);
        run_sequences(round);
        assert_int_equal(fake.memory_calls, calls);
        assert_int_equal(fake.synchronizations, synchronizations);
    }
    free_device(&x);
}

static qn_gpu_memory *waiting;
static uint64_t host_before[2 * CONTEXT / QN_PAGE];
static int waits;

/* The copy that the event follows reads the host's entries: they are as they were. */
static void expect_unchanged(qn_cu_event event)
{
    if (!waiting || event != waiting->tables->buffers.copied)
        return;
    waits++;
    assert_memory_equal(waiting->tables->buffers.host, host_before, sizeof host_before);
}

/* The next sequence changes entries only when the copy of the one before is complete. */
TEST(entries_wait_for_their_copy)
{
    set_up(4);
    qn_gpu_memory *first = create(CONTEXT, true);
    append(first, 300);
    const qn_gpu_page_tables *tables = first->tables;
    assert_true(tables->has_copied);
    memcpy(host_before, tables->buffers.host, sizeof host_before);
    qn_gpu_memory *holder = create(CONTEXT, true); /* the next sequence gets other pages */
    append(holder, 64);
    end(first);
    fake.on_event_wait = expect_unchanged;
    waiting = create(CONTEXT, true);
    assert_ptr_equal(waiting->tables, tables);
    assert_int_equal(waits, 0); /* taking the tables waits for nothing */
    append(waiting, 100);
    assert_int_equal(waits, 1);
    fake.on_event_wait = NULL;
    end(waiting);
    end(holder);
    free_device(&x);
}

/* What a failed copy left is not relied upon by the next sequence. */
TEST(entries_after_a_failure)
{
    set_up(4);
    qn_gpu_memory *m = create(CONTEXT, true);
    append(m, 300);
    fake.fails = "cuEventRecord";
    qn_memory_truncate(&m->base, 0);
    assert_int_equal(m->base.vtable->prepare(&m->base, 1), QN_ERR_DEVICE);
    fake.fails = NULL;
    memset((void *)(uintptr_t)m->kv_table, 0x55, m->tables->buffers.bytes);
    end(m);
    m = create(CONTEXT, true);
    append(m, 100);
    end(m);
    free_device(&x);
}
