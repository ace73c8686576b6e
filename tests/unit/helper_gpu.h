/* A GPU backend without a GPU, for the parts that all backends share: its device is memory of the process. Copies of
 * page tables are queued, and executed when the test or a wait says so: entries that change before their copy has read
 * them fail a test. */
#ifndef QN_TESTS_HELPER_GPU_H
#define QN_TESTS_HELPER_GPU_H

#include "helper_assert.h"

#include "base/memory.h"
#include "device/memory.h"
#include "gguf/gguf.h"
#include "gpu/memory.h"
#include "model/model.h"

enum { GPU_GRANULE = 4096, GPU_BUDGET = 64 << 20, GPU_FORMATS = 2, GPU_QUEUE = 256 };

struct gpu_copy {
    qn_gpu_table_buffers at;
    size_t offset, bytes;
    uint64_t entries[64]; /* as they were when the copy was queued; of longer copies the first */
};

struct gpu {
    qn_gguf *file;
    qn_hparams hparams;
    qn_plan plan;
    uint32_t *slots;
    qn_pool *pool;
    qn_pool_class *states, *open_chunks;
    qn_gpu_format formats[GPU_FORMATS];
    size_t n_formats;
    qn_gpu_kept_tables kept;
    struct gpu_copy queue[GPU_QUEUE];
    size_t n_queued;
    bool is_locked;
    /* What happened: */
    size_t n_allocations, n_live, n_copies, n_copied_bytes, n_waits, n_drains, n_poisoned;
    size_t n_reads, n_writes; /* of parts of items */
    /* The next call of one of these functions but for the first n fails, if not NULL: "allocate", "copy", "end_copies",
     * "wait", "read", "write". */
    const char *fails;
    size_t fails_after;
};

static struct gpu fake_gpu; /* of the current test */

static inline qn_status gpu_result(const char *call)
{
    if (!fake_gpu.fails || strcmp(fake_gpu.fails, call) != 0 || fake_gpu.fails_after-- > 0)
        return QN_OK;
    fake_gpu.fails = NULL;
    return qn_fail(QN_ERR_DEVICE, "%s: made to fail", call);
}

/* ---- The pool's memory ---- */

static inline qn_status gpu_reserve(void *context, size_t bytes, uint64_t *address)
{
    (void)context;
    void *at = calloc(1, bytes);
    assert_non_null(at);
    *address = (uint64_t)(uintptr_t)at;
    return QN_OK;
}

static inline void gpu_unreserve(void *context, uint64_t address, size_t bytes)
{
    (void)context;
    (void)bytes;
    free((void *)(uintptr_t)address);
}

static inline qn_status gpu_commit(void *context, uint64_t address)
{
    (void)context;
    memset((void *)(uintptr_t)address, 0, GPU_GRANULE);
    return QN_OK;
}

static inline void gpu_release(void *context, uint64_t address)
{
    (void)context;
    memset((void *)(uintptr_t)address, 0xee, GPU_GRANULE);
}

static inline qn_status gpu_copy_item(void *context, uint64_t to, uint64_t from, size_t bytes)
{
    (void)context;
    memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes);
    return QN_OK;
}

static inline qn_status gpu_read(void *context, void *to, uint64_t from, size_t bytes)
{
    assert_ptr_equal(context, &fake_gpu);
    fake_gpu.n_reads++;
    QN_TRY(gpu_result("read"));
    memcpy(to, (void *)(uintptr_t)from, bytes);
    return QN_OK;
}

static inline qn_status gpu_write(void *context, uint64_t to, const void *from, size_t bytes)
{
    assert_ptr_equal(context, &fake_gpu);
    fake_gpu.n_writes++;
    QN_TRY(gpu_result("write"));
    memcpy((void *)(uintptr_t)to, from, bytes);
    return QN_OK;
}

/* ---- The memory of page tables ---- */

/* Executes the copies in the queue; of only these buffers if not NULL, as far as the last of them. */
static inline void gpu_run_queue(const qn_gpu_table_buffers *only)
{
    size_t n = only ? 0 : fake_gpu.n_queued;
    for (size_t i = 0; only && i < fake_gpu.n_queued; i++)
        if (fake_gpu.queue[i].at.address == only->address)
            n = i + 1;
    for (size_t i = 0; i < n; i++) {
        const struct gpu_copy *c = &fake_gpu.queue[i];
        const uint8_t *host = (const uint8_t *)c->at.host + c->offset;
        const size_t kept = c->bytes < sizeof c->entries ? c->bytes : sizeof c->entries;
        assert_memory_equal(host, c->entries, kept);
        memcpy((void *)(uintptr_t)(c->at.address + c->offset), host, c->bytes);
    }
    fake_gpu.n_queued -= n;
    memmove(fake_gpu.queue, fake_gpu.queue + n, fake_gpu.n_queued * sizeof *fake_gpu.queue);
}

static inline qn_status gpu_allocate(void *context, size_t bytes, qn_gpu_table_buffers *buffers)
{
    assert_ptr_equal(context, &fake_gpu);
    assert_false(fake_gpu.is_locked);
    fake_gpu.n_allocations++;
    if (bytes > (size_t)1 << 32)
        return qn_fail(QN_ERR_MEMORY, "page tables: %zu bytes", bytes);
    buffers->host = calloc(1, bytes);
    assert_non_null(buffers->host);
    fake_gpu.n_live++;
    QN_TRY(gpu_result("allocate")); /* with a part of the memory */
    void *device = calloc(1, bytes);
    assert_non_null(device);
    buffers->address = (uint64_t)(uintptr_t)device;
    buffers->bytes = bytes;
    buffers->copied = device;
    return QN_OK;
}

static inline void gpu_free(void *context, qn_gpu_table_buffers *buffers)
{
    assert_ptr_equal(context, &fake_gpu);
    assert_false(fake_gpu.is_locked);
    for (size_t i = 0; i < fake_gpu.n_queued; i++)
        assert_int_not_equal(fake_gpu.queue[i].at.address, buffers->address);
    fake_gpu.n_live -= buffers->host != NULL;
    free(buffers->host);
    free((void *)(uintptr_t)buffers->address);
}

static inline void gpu_lock(void *context)
{
    assert_ptr_equal(context, &fake_gpu);
    assert_false(fake_gpu.is_locked);
    fake_gpu.is_locked = true;
}

static inline void gpu_unlock(void *context)
{
    assert_ptr_equal(context, &fake_gpu);
    assert_true(fake_gpu.is_locked);
    fake_gpu.is_locked = false;
}

static inline qn_status gpu_copy(void *context, const qn_gpu_table_buffers *buffers, size_t offset, size_t bytes)
{
    assert_ptr_equal(context, &fake_gpu);
    assert_true(fake_gpu.is_locked && bytes && offset % 8 == 0 && bytes % 8 == 0 && offset + bytes <= buffers->bytes);
    QN_TRY(gpu_result("copy"));
    assert_in_range(fake_gpu.n_queued, 0, GPU_QUEUE - 1);
    struct gpu_copy *c = &fake_gpu.queue[fake_gpu.n_queued++];
    *c = (struct gpu_copy){ .at = *buffers, .offset = offset, .bytes = bytes };
    memcpy(c->entries, (const uint8_t *)buffers->host + offset, bytes < sizeof c->entries ? bytes : sizeof c->entries);
    fake_gpu.n_copies++;
    fake_gpu.n_copied_bytes += bytes;
    return QN_OK;
}

static inline qn_status gpu_end_copies(void *context, const qn_gpu_table_buffers *buffers)
{
    assert_ptr_equal(context, &fake_gpu);
    assert_true(fake_gpu.is_locked && fake_gpu.n_queued &&
                fake_gpu.queue[fake_gpu.n_queued - 1].at.copied == buffers->copied);
    return gpu_result("end_copies");
}

static inline qn_status gpu_wait(void *context, const qn_gpu_table_buffers *buffers)
{
    assert_ptr_equal(context, &fake_gpu);
    fake_gpu.n_waits++;
    QN_TRY(gpu_result("wait"));
    gpu_run_queue(buffers);
    return QN_OK;
}

static inline void gpu_drain(void *context)
{
    assert_ptr_equal(context, &fake_gpu);
    assert_true(fake_gpu.is_locked);
    fake_gpu.n_drains++;
    gpu_run_queue(NULL);
}

static inline void gpu_poison(void *context, const qn_gpu_table_buffers *buffers)
{
    assert_ptr_equal(context, &fake_gpu);
    assert_true(fake_gpu.is_locked && !fake_gpu.n_queued);
    fake_gpu.n_poisoned++;
    memset((void *)(uintptr_t)buffers->address, 0xff, buffers->bytes);
}

/* ---- A model's caches ---- */

/* The pool and kept tables of fake_gpu.plan. poisons: tables that are given back are poisoned. */
static inline void open_gpu(bool poisons)
{
    const qn_pool_memory memory = { NULL, GPU_GRANULE, gpu_reserve, gpu_unreserve, gpu_commit, gpu_release, NULL };
    const qn_gpu_table_memory tables = { .context = &fake_gpu,
                                         .allocate = gpu_allocate,
                                         .free = gpu_free,
                                         .lock = gpu_lock,
                                         .unlock = gpu_unlock,
                                         .copy = gpu_copy,
                                         .end_copies = gpu_end_copies,
                                         .wait = gpu_wait,
                                         .drain = gpu_drain,
                                         .poison = poisons ? gpu_poison : NULL };
    assert_ok(qn_gpu_layer_slots(&fake_gpu.plan, &fake_gpu.slots));
    assert_ok(qn_pool_create(&memory, GPU_BUDGET, 0, &fake_gpu.pool));
    assert_ok(qn_gpu_add_states(fake_gpu.pool, &fake_gpu.plan, &fake_gpu.states, &fake_gpu.open_chunks));
    assert_ok(qn_gpu_kept_tables_init(&tables, &fake_gpu.kept));
}

/* The same for the plan of a golden model. */
static inline void open_gpu_of(const char *golden, bool poisons)
{
    char path[512];
    fake_gpu = (struct gpu){ 0 };
    snprintf(path, sizeof path, "%s/tests/golden/%s.gguf", QN_SOURCE_DIR, golden);
    assert_ok(qn_gguf_open(path, &fake_gpu.file));
    assert_ok(qn_model_build(fake_gpu.file, &fake_gpu.hparams, &fake_gpu.plan));
    open_gpu(poisons);
}

/* The format with this name, which is created if there is none yet. */
static inline qn_gpu_format *gpu_format(const char *name)
{
    const qn_kv_format *format;
    assert_ok(qn_kv_format_named(name, &format));
    for (size_t i = 0; i < fake_gpu.n_formats; i++)
        if (fake_gpu.formats[i].format == format)
            return &fake_gpu.formats[i];
    assert_in_range(fake_gpu.n_formats, 0, GPU_FORMATS - 1);
    qn_gpu_format *f = &fake_gpu.formats[fake_gpu.n_formats++];
    assert_ok(qn_gpu_format_init(&fake_gpu.plan, format, fake_gpu.slots, f));
    f->cache = (qn_cache){ .states = fake_gpu.states,
                           .open_chunks = fake_gpu.open_chunks,
                           .folds_whole_chunks = fake_gpu.states != NULL,
                           .max_dropped = QN_GDN_DROPPED_ROWS,
                           .copy = gpu_copy_item };
    assert_ok(qn_gpu_format_add_pages(fake_gpu.pool, f));
    return f;
}

static inline qn_status try_gpu_memory(const char *format, size_t n_ctx, qn_memory **out)
{
    const qn_gpu_copies copies = { .context = &fake_gpu, .read = gpu_read, .write = gpu_write };
    return qn_gpu_memory_create(gpu_format(format), &fake_gpu.kept, &copies, n_ctx, out);
}

static inline qn_gpu_memory *gpu_memory(const char *format, size_t n_ctx)
{
    qn_memory *memory;
    assert_ok(try_gpu_memory(format, n_ctx, &memory));
    return (qn_gpu_memory *)memory;
}

static inline void free_gpu_memory(qn_gpu_memory *m)
{
    m->base.vtable->free(&m->base);
}

static inline void close_gpu(void)
{
    qn_gpu_kept_tables_free(&fake_gpu.kept);
    assert_int_equal(fake_gpu.n_live, 0);
    assert_int_equal(qn_pool_get_usage(fake_gpu.pool).held, 0);
    qn_pool_free(fake_gpu.pool);
    for (size_t i = 0; i < fake_gpu.n_formats; i++)
        qn_gpu_format_free(&fake_gpu.formats[i]);
    qn_free(fake_gpu.slots);
    qn_plan_free(&fake_gpu.plan);
    qn_gguf_close(fake_gpu.file);
}

#endif
