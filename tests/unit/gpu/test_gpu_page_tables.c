/* Page tables of the GPU backends, in memory of the process: which entries are copied, when their host copies may
 * change, and which tables are kept. */
#include "helper_gpu.h"

enum { CONTEXT = 512, PAGES = CONTEXT / QN_PAGE, SEQUENCES = 5 };

static const char *format_of(bool has_codes)
{
    return has_codes ? "aura4" : "f16";
}

static void check_table(uint64_t table, const qn_pool_class *class, const uint32_t *items, size_t n, size_t n_entries)
{
    const uint64_t *entries = (const uint64_t *)(uintptr_t)table;
    for (size_t i = 0; i < n_entries; i++)
        assert_int_equal(entries[i], i < n && items[i] != QN_NO_ITEM ? qn_pool_address(class, items[i]) : 0);
}

/* The device's tables after all copies. */
static void check_tables(const qn_gpu_memory *m, size_t n_pages)
{
    const qn_sequence *s = &m->sequence;
    gpu_run_queue(NULL);
    check_table(m->kv_table, s->cache->pages, s->pages, n_pages, m->tables->n_pages);
    if (s->cache->f16_pages)
        check_table(m->f16_table, s->cache->f16_pages, s->f16_pages, n_pages, m->tables->n_pages);
    else
        assert_int_equal(m->f16_table, 0);
}

/* Reserves n rows; the tables then have the pages of the sequence, and nothing of another. Returns the bytes copied. */
static size_t prepare(qn_gpu_memory *m, size_t n)
{
    const size_t before = fake_gpu.n_copied_bytes;
    assert_ok(m->base.vtable->prepare(&m->base, n));
    assert_false(fake_gpu.is_locked);
    check_tables(m, (m->sequence.length + n + QN_PAGE - 1) / QN_PAGE);
    return fake_gpu.n_copied_bytes - before;
}

static void append(qn_gpu_memory *m, size_t n)
{
    const size_t length = m->sequence.length;
    (void)prepare(m, n);
    qn_memory_on_append(&m->base, length + n);
}

static void check_growth(bool has_codes)
{
    label("%s", format_of(has_codes));
    open_gpu_of("qwen3.q1_0", false);
    qn_gpu_memory *m = gpu_memory(format_of(has_codes), CONTEXT), *other = gpu_memory(format_of(has_codes), CONTEXT);
    assert_int_equal(prepare(m, 200), (has_codes ? 4 + 2 : 4) * 8); /* codes of pages 1 and 2 */
    qn_memory_on_append(&m->base, 200);
    assert_int_equal(prepare(m, 1), has_codes ? 2 * 8 : 0); /* fp16 pages 1 and 2 were dropped */
    qn_memory_on_append(&m->base, 201);
    assert_int_equal(prepare(m, 1), 0);
    qn_memory_on_append(&m->base, 202);
    assert_ok(qn_memory_copy(&other->base, &m->base)); /* shares complete pages: the open one is its own */
    (void)prepare(other, 10);
    qn_memory_on_append(&other->base, 212);
    assert_int_equal(prepare(m, 1), 0);
    qn_memory_on_append(&m->base, 202);
    qn_memory_truncate(&m->base, 0);
    (void)prepare(m, 5);
    qn_memory_on_append(&m->base, 0);
    free_gpu_memory(m);
    (void)prepare(other, 300);
    qn_memory_on_append(&other->base, 512);
    assert_int_equal(other->base.vtable->bytes(&other->base, 512), qn_gpu_format_bytes(other->format, 512));
    free_gpu_memory(other);
    close_gpu();
}

TEST(entries_follow_the_sequence)
{
    check_growth(false);
    check_growth(true);
}

/* Sequences of several lengths and formats at once, all of which end: in every round tables go to others. */
static void run_sequences(size_t round)
{
    qn_gpu_memory *all[SEQUENCES];
    for (size_t i = 0; i < SEQUENCES; i++) {
        all[i] = gpu_memory(format_of(i % 2), CONTEXT);
        append(all[i], 30 + 90 * ((i + round) % SEQUENCES));
        append(all[i], 1);
    }
    for (size_t i = 0; i < SEQUENCES; i++)
        free_gpu_memory(all[(i + 2 * round) % SEQUENCES]);
}

/* After as many sequences as there are at once, none allocates or drains. */
static void check_reuse(bool poisons)
{
    open_gpu_of("qwen35-rotated.pq2_0", poisons);
    run_sequences(0);
    for (size_t round = 0; round < 20; round++) {
        label("round %zu", round);
        run_sequences(round);
        assert_int_equal(fake_gpu.n_allocations, SEQUENCES);
    }
    assert_int_equal(fake_gpu.n_drains, poisons ? 21 * SEQUENCES : 0);
    assert_int_equal(fake_gpu.n_poisoned, fake_gpu.n_drains);
    close_gpu();
}

TEST(tables_are_reused)
{
    check_reuse(false);
}

/* The device's tables of ended sequences hold no addresses; the next sequence copies every entry that it has. */
TEST(tables_are_poisoned)
{
    check_reuse(true);
    open_gpu_of("qwen3.q1_0", true);
    qn_gpu_memory *m = gpu_memory("f16", CONTEXT);
    append(m, 10);
    const uint64_t *entries = (const uint64_t *)(uintptr_t)m->kv_table;
    free_gpu_memory(m);
    for (size_t i = 0; i < 2 * PAGES; i++)
        assert_true(entries[i] == UINT64_MAX);
    close_gpu();
}

/* The next sequence changes entries only when the copy of the one before has read them. */
TEST(entries_wait_for_their_copy)
{
    open_gpu_of("qwen35-rotated.pq2_0", false);
    qn_gpu_memory *first = gpu_memory("aura4", CONTEXT);
    assert_ok(first->base.vtable->prepare(&first->base, 300));
    qn_memory_on_append(&first->base, 300);
    const qn_gpu_page_tables *tables = first->tables;
    assert_true(fake_gpu.n_queued > 0);
    qn_gpu_memory *holder = gpu_memory("aura4", CONTEXT); /* the next sequence gets other pages */
    assert_ok(holder->base.vtable->prepare(&holder->base, 64));
    qn_memory_on_append(&holder->base, 64);
    free_gpu_memory(first);
    qn_gpu_memory *next = gpu_memory("aura4", CONTEXT);
    assert_ptr_equal(next->tables, tables);
    assert_int_equal(fake_gpu.n_waits, 0); /* taking the tables waits for nothing */
    append(next, 100);
    assert_int_equal(fake_gpu.n_waits, 1);
    append(next, 1);
    assert_int_equal(fake_gpu.n_waits, 1); /* no entry changed */
    free_gpu_memory(next);
    free_gpu_memory(holder);
    close_gpu();
}

/* After a failure at each call the sequence is as before, and the next update does not rely on what the failed one
 * left. */
TEST(entries_after_a_failure)
{
    static const char *const calls[] = { "copy", "end_copies", "wait" };
    for (size_t i = 0; i < COUNT(calls); i++)
        for (size_t after = 0; after < 2; after++) {
            label("%s %zu", calls[i], after);
            open_gpu_of("qwen35-rotated.pq2_0", false);
            qn_gpu_memory *m = gpu_memory("aura4", CONTEXT), *holder = gpu_memory("aura4", CONTEXT);
            append(m, 300);
            append(holder, 100);
            qn_memory_truncate(&m->base, 0);
            append(holder, 200); /* takes the pages */
            fake_gpu.fails = calls[i];
            fake_gpu.fails_after = after;
            const qn_status status = m->base.vtable->prepare(&m->base, 300);
            if (!fake_gpu.fails) {
                assert_int_equal(status, QN_ERR_DEVICE);
                assert_text("made to fail");
                assert_false(fake_gpu.is_locked);
                assert_int_equal(m->sequence.reserved, 0);
                assert_int_equal(fake_gpu.n_drains, 1);
                memset((void *)(uintptr_t)m->kv_table, 0x55, m->tables->buffers.bytes);
            }
            fake_gpu.fails = NULL;
            qn_memory_on_append(&m->base, 0);
            append(m, 100);
            free_gpu_memory(m);
            m = gpu_memory("f16", CONTEXT);
            append(m, 200);
            free_gpu_memory(m);
            free_gpu_memory(holder);
            close_gpu();
        }
}

/* Memory that a failed allocation has left is freed. */
TEST(allocations_fail)
{
    qn_memory *memory;
    open_gpu_of("qwen3.q1_0", false);
    fake_gpu.fails = "allocate";
    assert_fails(try_gpu_memory("f16", CONTEXT, &memory), QN_ERR_DEVICE, "allocate: made to fail");
    assert_null(memory);
    assert_int_equal(fake_gpu.n_live, 0);
    assert_fails(try_gpu_memory("f16", SIZE_MAX, &memory), QN_ERR_MEMORY, "page tables: ");
    assert_null(memory);
    close_gpu();
}

/* Tables are of the size that a sequence needs, and what is kept is bounded: the longest unused are freed first. */
TEST(kept_tables_are_bounded)
{
    enum { LARGE = 1 << 26 }; /* positions: 16 MiB of tables */
    open_gpu_of("qwen3.q1_0", false);
    qn_gpu_memory *small = gpu_memory("f16", CONTEXT), *all[6];
    const qn_gpu_page_tables *tables = small->tables;
    free_gpu_memory(small);
    for (size_t i = 0; i < 6; i++)
        all[i] = gpu_memory("f16", LARGE);
    assert_ptr_not_equal(all[0]->tables, tables);
    const size_t live = fake_gpu.n_live;
    small = gpu_memory("f16", CONTEXT);
    assert_ptr_equal(small->tables, tables);
    free_gpu_memory(small);
    for (size_t i = 0; i < 4; i++)
        free_gpu_memory(all[i]);
    assert_int_equal(fake_gpu.n_live, live - 1); /* the small ones, which were given back first */
    assert_int_equal(fake_gpu.kept.bytes, 64 << 20);
    free_gpu_memory(all[4]);
    free_gpu_memory(all[5]);
    assert_int_equal(fake_gpu.n_live, live - 3);
    assert_int_equal(fake_gpu.kept.bytes, 64 << 20);
    close_gpu();
}
