/* Pool memory on a CUDA device, with a fake driver whose memory faults where none is mapped: commit, release,
 * failures. */
#include "helper_cuda.h"

#include "cuda/runtime/pool_memory.h"

static qn_cuda *cuda;
static qn_cuda_pool_memory context;
static qn_pool_memory memory;
static pthread_mutex_t work_lock = PTHREAD_MUTEX_INITIALIZER;
static qn_cuda_work_stream work = { .lock = &work_lock };

static void open_cuda(void)
{
    static const qn_gpu_code no_code;
    static const qn_cuda_tools tools = { .cache_folder = "", .nvcc = "", .nvrtc = "", .code = &no_code };
    const qn_cuda_params params = { .ordinal = 1, .driver = fake_driver(), .tools = &tools };
    assert_ok(qn_cuda_open(&params, &cuda));
    assert_ok(qn_cuda_stream_create(cuda, &work.stream));
}

static void close_cuda(void)
{
    qn_cuda_stream_free(cuda, work.stream);
    qn_cuda_close(cuda);
    fake_expect_empty();
}

TEST(granules_are_zeroed)
{
    uint64_t address;
    open_cuda();
    assert_ok(qn_cuda_pool_memory_open(cuda, &work, 0, &context, &memory));
    assert_int_equal(memory.granule, FAKE_GRANULE);
    assert_ok(memory.reserve(memory.context, 8 * (size_t)FAKE_GRANULE, &address));
    for (size_t round = 0; round < 2; round++) {
        uint8_t *bytes = (uint8_t *)(uintptr_t)address + 3 * FAKE_GRANULE;
        assert_ok(memory.commit(memory.context, address + 3 * FAKE_GRANULE));
        assert_int_equal(fake.handles, 0);
        assert_int_equal(fake.mappings, 1);
        for (size_t i = 0; i < FAKE_GRANULE; i += 111)
            assert_int_equal(bytes[i], 0);
        memset(bytes, 1, FAKE_GRANULE);
        memory.release(memory.context, address + 3 * FAKE_GRANULE);
        assert_int_equal(fake.mappings, 0);
    }
    memory.unreserve(memory.context, address, 8 * (size_t)FAKE_GRANULE);
    qn_cuda_pool_memory_close(&context);
    close_cuda();
}

/* Large budgets have large granules. */
TEST(granules_follow_the_budget)
{
    static const struct {
        uint64_t budget;
        size_t granules; /* of FAKE_GRANULE */
    } cases[] = { { (uint64_t)FAKE_GRANULE * 2047, 1 },
                  { (uint64_t)FAKE_GRANULE * 2048, 2 },
                  { (uint64_t)FAKE_GRANULE * 8192, 8 } };
    open_cuda();
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_ok(qn_cuda_pool_memory_open(cuda, &work, cases[i].budget, &context, &memory));
        assert_int_equal(memory.granule, cases[i].granules * FAKE_GRANULE);
        qn_cuda_pool_memory_close(&context);
    }
    assert_ok(qn_cuda_pool_memory_open(cuda, &work, UINT64_MAX, &context, &memory));
    assert_int_equal(memory.granule, 32 << 20);
    qn_cuda_pool_memory_close(&context);
    close_cuda();
}

TEST(failures)
{
    static const char *const opening[] = { "cuDeviceGetAttribute", "cuMemGetAllocationGranularity", "cuStreamCreate",
                                           "cuEventCreate" };
    static const char *const committing[] = { "cuMemCreate",     "cuMemMap",      "cuMemSetAccess",
                                              "cuMemsetD8Async", "cuEventRecord", "cuStreamWaitEvent" };
    uint64_t address;
    open_cuda();
    for (size_t i = 0; i < COUNT(opening); i++) {
        label("%s", opening[i]);
        fake.fails = opening[i];
        assert_int_equal(qn_cuda_pool_memory_open(cuda, &work, 0, &context, &memory), QN_ERR_DEVICE);
        qn_cuda_pool_memory_close(&context);
        assert_int_equal(fake.streams, 1);
    }
    fake.fails = NULL;
    fake.no_virtual_memory = true;
    assert_fails(qn_cuda_pool_memory_open(cuda, &work, 0, &context, &memory), QN_ERR_UNSUPPORTED,
                 "Fake 1: has no virtual memory management");
    fake.no_virtual_memory = false;
    assert_ok(qn_cuda_pool_memory_open(cuda, &work, 0, &context, &memory));
    fake.fails = "cuMemAddressReserve";
    assert_int_equal(memory.reserve(memory.context, FAKE_GRANULE, &address), QN_ERR_DEVICE);
    fake.fails = NULL;
    assert_ok(memory.reserve(memory.context, FAKE_GRANULE, &address));
    for (size_t i = 0; i < COUNT(committing); i++) {
        label("%s", committing[i]);
        fake.fails = committing[i];
        fake.fails_after = 0;
        assert_fails(memory.commit(memory.context, address), QN_ERR_DEVICE, committing[i]);
        assert_int_equal(fake.handles, 0);
        assert_int_equal(fake.mappings, 0);
    }
    fake.fails = NULL;
    assert_ok(memory.commit(memory.context, address));
    memory.release(memory.context, address);
    memory.unreserve(memory.context, address, FAKE_GRANULE);
    qn_cuda_pool_memory_close(&context);
    close_cuda();
}

/* A device that has less memory than the budget: what a class keeps for reuse goes to another. */
TEST(memory_runs_out)
{
    qn_pool *pool;
    qn_pool_class *class, *other;
    uint32_t items[3], more;
    open_cuda();
    assert_ok(qn_cuda_pool_memory_open(cuda, &work, 0, &context, &memory));
    assert_ok(qn_pool_create(&memory, 100 * (uint64_t)FAKE_GRANULE, FAKE_GRANULE, &pool));
    assert_ok(qn_pool_add_class(pool, "item", FAKE_GRANULE, &class));
    assert_ok(qn_pool_add_class(pool, "item", FAKE_GRANULE, &other));
    fake.physical_limit = 3;
    for (size_t i = 0; i < 3; i++)
        assert_ok(qn_pool_take(class, &items[i]));
    assert_fails(qn_pool_take(class, &more), QN_ERR_MEMORY, "cuMemCreate: out of memory");
    assert_int_equal(qn_pool_count(class), 3);
    assert_int_equal(fake.mappings, 3);
    qn_pool_drop(class, items[2]);
    assert_int_equal(fake.mappings, 3);
    assert_ok(qn_pool_take(other, &items[2]));
    assert_int_equal(fake.mappings, 3);
    qn_pool_drop(other, items[2]);
    for (size_t i = 0; i < 2; i++)
        qn_pool_drop(class, items[i]);
    qn_pool_free(pool);
    qn_cuda_pool_memory_close(&context);
    close_cuda();
}
