/* The CUDA device with a fake driver: everything opened is closed, error texts have the failed call's name, uploads are
 * complete, argument structs have the size that the kernel expects. */
#include "helper_cuda.h"

#include "base/memory.h"
#include "cuda/runtime/provoke.h"
#include "cuda/executor/read_rate.h"
#include "cuda/kernels/peak/peak.h"
#include "cuda/kernels/spin/spin.h"

#include <pthread.h>

static const qn_gpu_cubin cubins[] = {
    FAKE_CUBIN("module/a.cu", ""),
    { "module/a.cu", "", "sm_89", fake_image, fake_image + sizeof fake_image },
    FAKE_CUBIN("peak/peak.cu", ""),
    FAKE_CUBIN("spin/spin.cu", ""),
};

static const qn_gpu_code code = { .cubins = cubins, .n_cubins = 4, .compiler = "nvcc of the test" };
static const qn_cuda_tools tools = { .cache_folder = "", .nvcc = "", .nvrtc = "", .code = &code };

static qn_cuda *open_with(const qn_cuda_driver *driver)
{
    qn_cuda *device;
    assert_ok(qn_cuda_open(&(qn_cuda_params){ .driver = driver, .tools = &tools }, &device));
    return device;
}

static const qn_gpu_source source_a = { "module/a.cu", "" }, source_b = { "module/b.cu", "" };
static const qn_launch launch = { .variant.source = &source_a,
                                  .function = "qn_module_a",
                                  .grid = { 7, 2, 1 },
                                  .block = { 128, 1, 1 },
                                  .args_bytes = FAKE_ARGS_BYTES };

TEST(test_open)
{
    qn_cuda *device;
    const qn_cuda_driver *driver = fake_driver();
    int count;
    assert_ok(qn_cuda_count(driver, &count));
    assert_int_equal(count, 2);
    qn_cuda_info unopened;
    assert_ok(qn_cuda_read_info(driver, 1, &unopened));
    assert_int_equal(unopened.ordinal, 1);
    assert_int_equal(qn_cuda_read_info(driver, 2, &unopened), QN_ERR_INVALID);
    fake_expect_empty();
    device = open_with(driver);
    const qn_cuda_info *info = qn_cuda_get_info(device);
    assert_string_equal(info->name, "Fake 1");
    assert_int_equal(info->n_sms, 132);
    assert_int_equal(unopened.n_sms, info->n_sms);
    assert_int_equal(info->l2_bytes, 60 << 20);
    assert_int_equal(info->driver_version, 13000);
    assert_string_equal(qn_cuda_arch(device), "sm_90a");
    assert_null(qn_cuda_cache_folder(device));
    qn_cuda_close(device);
    qn_cuda_close(NULL);
    fake_expect_empty();

    assert_ok(qn_cuda_open(&(qn_cuda_params){ .driver = driver, .tools = &tools, .ordinal = 1 }, &device));
    assert_int_equal(qn_cuda_get_info(device)->ordinal, 1);
    qn_cuda_close(device);
    for (int ordinal = -1; ordinal <= 2; ordinal += 3) {
        assert_fails(qn_cuda_open(&(qn_cuda_params){ .driver = driver, .ordinal = ordinal }, &device), QN_ERR_INVALID,
                     "there are 2");
        assert_null(device);
    }
    fake_expect_empty();
}

TEST(test_no_device)
{
    qn_cuda *device;
    const qn_cuda_driver *driver = fake_driver();
    fake.n_devices = 0;
    assert_fails(qn_cuda_open(&(qn_cuda_params){ .driver = driver }, &device), QN_ERR_UNSUPPORTED, "no device");
    driver = fake_driver();
    fake.major = 7;
    fake.minor = 5;
    assert_fails(qn_cuda_open(&(qn_cuda_params){ .driver = driver }, &device), QN_ERR_UNSUPPORTED, "7.5");
    fake_expect_empty();
}

/* Each driver call of opening fails once: the error text has its name, and nothing leaks. */
TEST(test_open_fails)
{
    static const char *const calls[] = { "cuDeviceGetCount",         "cuDeviceGet",      "cuDeviceGetName",
                                         "cuDeviceGetAttribute",     "cuDeviceTotalMem", "cuDriverGetVersion",
                                         "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent" };
    for (size_t i = 0; i < COUNT(calls); i++) {
        qn_cuda *device;
        const qn_cuda_driver *driver = fake_driver();
        fake.fails = calls[i];
        assert_int_equal(qn_cuda_open(&(qn_cuda_params){ .driver = driver, .tools = &tools }, &device), QN_ERR_DEVICE);
        assert_null(device);
        assert_text(calls[i]);
        assert_text("made to fail (CUDA_ERROR_FAKE, 999)");
        fake_expect_empty();
    }
}

TEST(test_memory)
{
    qn_cuda *device = open_with(fake_driver());
    qn_cuda_buffer buffer;
    size_t bytes;
    assert_ok(qn_cuda_available_memory(device, &bytes));
    assert_true(bytes == (size_t)79 << 30);
    assert_fails(qn_cuda_alloc(device, SIZE_MAX / 2, 3, "weights", &buffer), QN_ERR_MEMORY, "weights");
    assert_fails(qn_cuda_alloc(device, (size_t)1 << 40, 1, "weights", &buffer), QN_ERR_MEMORY,
                 "weights: 1099511627776 bytes");
    assert_text("cuMemAlloc");
    assert_true(buffer.address == 0);
    assert_ok(qn_cuda_alloc(device, 0, 4, "nothing", &buffer));
    assert_true(buffer.address != 0 && buffer.bytes == 0);
    qn_cuda_free(device, &buffer);
    qn_cuda_free(device, &buffer); /* freeing twice is allowed */

    uint32_t words[4] = { 1, 2, 3, 4 }, back[4] = { 0 };
    assert_ok(qn_cuda_alloc(device, 4, 4, "words", &buffer));
    assert_ok(qn_cuda_copy_h2d(device, NULL, buffer.address, words, 16));
    assert_ok(qn_cuda_copy_d2d(device, NULL, buffer.address, buffer.address + 8, 8));
    assert_ok(qn_cuda_memset(device, NULL, buffer.address + 12, 0xff, 4));
    assert_ok(qn_cuda_download(device, NULL, back, buffer.address, 16));
    assert_true(back[0] == 3 && back[1] == 4 && back[2] == 3 && back[3] == UINT32_MAX);
    qn_cuda_free(device, &buffer);

    void *host;
    assert_ok(qn_cuda_alloc_host(device, 100, "ring", &host));
    qn_cuda_free_host(device, host);
    fake.fails = "cuMemHostAlloc";
    assert_fails(qn_cuda_alloc_host(device, 100, "ring", &host), QN_ERR_DEVICE, "ring: 100 bytes");
    qn_cuda_close(device);
    fake_expect_empty();
}

struct progress {
    size_t calls, last, stop_at;
};

static bool on_progress(void *user, size_t done)
{
    struct progress *p = user;
    assert_true(done > p->last);
    p->last = done;
    return ++p->calls != p->stop_at;
}

TEST(test_upload)
{
    const size_t piece = 16 << 20, sizes[] = { 0, 1, piece - 1, piece, piece + 1, 3 * piece + 77 };
    qn_cuda *device = open_with(fake_driver());
    uint8_t *from = malloc(4 * piece);
    assert_non_null(from);
    for (size_t i = 0; i < 4 * piece; i++)
        from[i] = (uint8_t)(i * 2654435761u >> 24);
    for (size_t i = 0; i < COUNT(sizes); i++) {
        qn_cuda_buffer to;
        struct progress p = { 0 };
        assert_ok(qn_cuda_alloc(device, sizes[i], 1, "upload", &to));
        assert_ok(qn_cuda_upload(device, to.address, from, sizes[i], on_progress, &p));
        assert_int_equal(p.calls, (sizes[i] + piece - 1) / piece);
        assert_int_equal(p.last, sizes[i]);
        assert_memory_equal((const void *)(uintptr_t)to.address, from, sizes[i]);
        qn_cuda_free(device, &to);
    }
    assert_int_equal(fake.host_allocations, 2); /* independent of the sizes */
    qn_cuda_buffer to;
    assert_ok(qn_cuda_alloc(device, 4 * piece, 1, "upload", &to));
    struct progress p = { .stop_at = 2 };
    assert_int_equal(qn_cuda_upload(device, to.address, from, 4 * piece, on_progress, &p), QN_ERR_CANCELLED);
    assert_int_equal(p.last, 2 * piece);
    static const char *const calls[] = { "cuMemcpyHtoDAsync", "cuEventRecord", "cuEventSynchronize",
                                         "cuStreamSynchronize" };
    for (size_t i = 0; i < COUNT(calls); i++) {
        fake.fails = calls[i];
        fake.fails_after = i < 2 ? 1 : 0;
        assert_fails(qn_cuda_upload(device, to.address, from, 4 * piece, NULL, NULL), QN_ERR_DEVICE, calls[i]);
    }
    fake.fails = NULL;
    assert_ok(qn_cuda_upload(device, to.address, from, 4 * piece, NULL, NULL));
    qn_cuda_free(device, &to);
    qn_cuda_close(device);
    free(from);
    fake_expect_empty();
}

struct upload {
    qn_cuda *device;
    uint8_t *from;
    size_t bytes;
    bool ok;
};

static void *upload_thread(void *context)
{
    struct upload *u = context;
    qn_cuda_buffer to;
    u->ok = qn_cuda_alloc(u->device, u->bytes, 1, "upload", &to) == QN_OK &&
            qn_cuda_upload(u->device, to.address, u->from, u->bytes, NULL, NULL) == QN_OK &&
            memcmp((const void *)(uintptr_t)to.address, u->from, u->bytes) == 0;
    qn_cuda_free(u->device, &to);
    return NULL;
}

/* More threads than sets of staging buffers. */
TEST(test_uploads_at_once)
{
    qn_cuda *device = open_with(fake_driver());
    struct upload uploads[7];
    pthread_t threads[7];
    for (size_t i = 0; i < 7; i++) {
        uploads[i] = (struct upload){ device, malloc(((size_t)33 << 20) + i), ((size_t)33 << 20) + i, false };
        assert_non_null(uploads[i].from);
        memset(uploads[i].from, (int)i + 1, uploads[i].bytes);
    }
    for (size_t i = 0; i < 7; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, upload_thread, &uploads[i]), 0);
    for (size_t i = 0; i < 7; i++) {
        pthread_join(threads[i], NULL);
        assert_true(uploads[i].ok);
        free(uploads[i].from);
    }
    assert_in_range(fake.host_allocations, 2, 8);
    qn_cuda_close(device);
    fake_expect_empty();
}

TEST(test_streams)
{
    qn_cuda *device = open_with(fake_driver());
    qn_cuda_stream stream;
    qn_cuda_event a, b;
    double seconds;
    assert_ok(qn_cuda_stream_create(device, &stream));
    assert_ok(qn_cuda_event_create(device, &a));
    assert_ok(qn_cuda_event_create(device, &b));
    assert_ok(qn_cuda_event_record(device, a, stream));
    assert_ok(qn_cuda_stream_wait_event(device, stream, a));
    assert_ok(qn_cuda_event_synchronize(device, a));
    assert_ok(qn_cuda_event_seconds(device, a, b, &seconds));
    assert_true(seconds == 0.25);
    fake.fails = "cuStreamSynchronize"; /* reports kernel failures */
    assert_int_equal(qn_cuda_stream_synchronize(device, stream), QN_ERR_DEVICE);
    fake.fails = NULL;
    qn_cuda_event_free(device, a);
    qn_cuda_event_free(device, b);
    qn_cuda_stream_free(device, stream);
    qn_cuda_stream_free(device, NULL);
    qn_cuda_close(device);
    fake_expect_empty();
}

TEST(test_launch)
{
    const unsigned char args[FAKE_ARGS_BYTES] = "twenty-four bytes of it";
    qn_cuda *device = open_with(fake_driver());
    assert_ok(qn_cuda_launch(device, NULL, &launch, args));
    assert_memory_equal(fake.last_args, args, sizeof args);
    assert_int_equal(fake.last_grid[0], 7);
    assert_int_equal(fake.last_grid[1], 2);
    assert_false(fake.last_pdl);
    assert_int_equal(fake.loads, 1);
    assert_int_equal(fake.carveouts_set, 1);
    qn_launch other = launch;
    other.pdl = true;
    other.shared_bytes = (48 << 10) - FAKE_STATIC_SHARED;
    assert_ok(qn_cuda_launch(device, NULL, &other, args));
    assert_true(fake.last_pdl);
    assert_false(fake.last_cooperative);
    other.cooperative = true;
    assert_ok(qn_cuda_launch(device, NULL, &other, args));
    assert_true(fake.last_pdl && fake.last_cooperative);
    other.cooperative = false;
    assert_int_equal(fake.last_cluster, 0);
    other.grid[2] = other.cluster = 4;
    assert_ok(qn_cuda_launch(device, NULL, &other, args));
    assert_true(fake.last_pdl && fake.last_cluster == 4);
    other.grid[2] = other.cluster = 1;
    assert_ok(qn_cuda_launch(device, NULL, &other, args));
    assert_int_equal(fake.last_cluster, 0);
    assert_int_equal(fake.loads, 1);
    assert_int_equal(fake.shared_set, 0); /* 48 KiB with the static memory need no opt-in */
    other.shared_bytes++;
    assert_ok(qn_cuda_launch(device, NULL, &other, args));
    assert_int_equal(fake.shared_set, 1);
    for (int i = 0; i < 2; i++) {
        other.shared_bytes = 100 << 10;
        assert_ok(qn_cuda_launch(device, NULL, &other, args));
        assert_int_equal(fake.shared_set, 2);
        assert_int_equal(fake.last_shared, 100 << 10);
    }
    other.shared_bytes = 228 << 10;
    assert_fails(qn_cuda_launch(device, NULL, &other, args), QN_ERR_UNSUPPORTED, "this device has 232448");
    other = launch;
    other.args_bytes = FAKE_ARGS_BYTES - 8;
    assert_fails(qn_cuda_launch(device, NULL, &other, args), QN_ERR_INVALID,
                 "qn_module_a (module/a.cu): its arguments have 24 bytes, the launch has 16");
    other = launch;
    other.function = "missing";
    assert_fails(qn_cuda_prepare(device, &other), QN_ERR_DEVICE, "missing (module/a.cu): cuModuleGetFunction");
    other = launch;
    other.variant.source = &source_b;
    assert_fails(qn_cuda_prepare_all(device, (const qn_launch[]){ launch, other, launch }, 3), QN_ERR_INVALID,
                 "'module/b.cu' is not among the kernel sources");
    assert_ok(qn_cuda_prepare_all(device, (const qn_launch[]){ launch, launch }, 2));
    fake.fails = "cuLaunchKernelEx";
    assert_fails(qn_cuda_launch(device, NULL, &launch, args), QN_ERR_DEVICE,
                 "qn_module_a (module/a.cu): cuLaunchKernelEx: made to fail");
    fake.fails = NULL;
    qn_cuda_kernel_info info;
    assert_ok(qn_cuda_kernel_get_info(device, &launch, &info));
    assert_int_equal(info.registers, 40);
    assert_int_equal(info.blocks_per_sm, 16);
    qn_cuda_close(device);
    fake_expect_empty();
}

/* No PDL before Hopper; the size of the argument struct is checked only if the driver reports it. */
TEST(test_older)
{
    const unsigned char args[FAKE_ARGS_BYTES] = { 0 };
    fake.no_param_info = true;
    const qn_cuda_driver *driver = fake_driver();
    fake.major = 8;
    fake.minor = 9;
    qn_cuda *device = open_with(driver);
    assert_string_equal(qn_cuda_arch(device), "sm_89");
    qn_launch other = launch;
    other.pdl = true;
    other.args_bytes = 1;
    assert_ok(qn_cuda_launch(device, NULL, &other, args));
    assert_false(fake.last_pdl);
    assert_int_equal(fake.carveouts_set, 0);
    qn_cuda_close(device);
    fake_expect_empty();
}

/* Within the limits of another card: properties, and what kernels are compiled for. */
TEST(test_limits)
{
    static const struct {
        const char *limits, *arch;
        int major, minor;
        uint32_t n_sms, shared_bytes;
    } cards[] = { { "8.9,sms=128,shared=99,memory=24", "compute_89/sm_90", 8, 9, 128, 99 << 10 },
                  { "8.0", "compute_80/sm_90", 8, 0, 132, 227 << 10 },
                  { "9.0,shared=163,sms=4096", NULL, 0, 0, 0, 0 },
                  { "9.0,shared=163,sms=1000", "compute_90/sm_90", 9, 0, 132, 163 << 10 },
                  { "12.0,sms=36", "compute_90/sm_90/1200", 12, 0, 36, 227 << 10 } };
    static const char *const wrong[] = { "8",         "7.5",        "8.9,",        "8.9,sms",    "8.9,sms=0",
                                         "8.9 sms=1", "8.9,sms=-1", "8.9,cores=2", "8.9,sms=1x", "sms=1" };
    const qn_cuda_driver *driver = fake_driver();
    qn_cuda_info info;
    for (size_t i = 0; i < COUNT(cards); i++) {
        label("%s", cards[i].limits);
        setenv("QN_CUDA_LIMITS", cards[i].limits, 1);
        if (!cards[i].arch) {
            assert_int_equal(qn_cuda_read_info(driver, 0, &info), QN_ERR_INVALID);
            continue;
        }
        qn_cuda *device = open_with(driver);
        assert_string_equal(qn_cuda_arch(device), cards[i].arch);
        assert_ok(qn_cuda_read_info(driver, 0, &info));
        assert_int_equal(info.major, cards[i].major);
        assert_int_equal(info.minor, cards[i].minor);
        assert_int_equal(info.n_sms, cards[i].n_sms);
        assert_int_equal(info.max_shared_bytes, cards[i].shared_bytes);
        assert_int_equal(qn_cuda_get_info(device)->n_sms, cards[i].n_sms);
        qn_cuda_close(device);
    }
    for (size_t i = 0; i < COUNT(wrong); i++) {
        label("%s", wrong[i]);
        setenv("QN_CUDA_LIMITS", wrong[i], 1);
        assert_int_equal(qn_cuda_read_info(driver, 0, &info), QN_ERR_INVALID);
        assert_non_null(strstr(qn_error_text(), "expected a compute capability"));
    }
    setenv("QN_CUDA_LIMITS", "9.0,memory=3", 1);
    qn_cuda *device = open_with(driver);
    size_t bytes;
    assert_ok(qn_cuda_available_memory(device, &bytes));
    assert_true(bytes == (size_t)2 << 30); /* of 80, 1 is used */
    qn_cuda_close(device);
    unsetenv("QN_CUDA_LIMITS");
    fake_expect_empty();
}

TEST(test_archs)
{
    static const struct {
        int major, minor;
        const char *arch;
    } known[] = { { 8, 0, "sm_80" },   { 8, 6, "sm_86" },   { 8, 7, "sm_80" },   { 8, 9, "sm_89" },
                  { 9, 0, "sm_90a" },  { 10, 0, "sm_100" }, { 10, 3, "sm_100" }, { 11, 0, "sm_110" },
                  { 12, 0, "sm_120" }, { 12, 1, "sm_120" } };
    for (size_t i = 0; i < COUNT(known); i++) {
        char arch[QN_GPU_ARCH_MAX];
        qn_gpu_arch(known[i].major, known[i].minor, arch);
        assert_string_equal(arch, known[i].arch);
    }
}

TEST(test_graphs)
{
    qn_cuda *device = open_with(fake_driver());
    qn_cuda_graph *graph = NULL;
    qn_cuda_stream stream;
    assert_ok(qn_cuda_stream_create(device, &stream));
    for (int i = 0; i < 3; i++) {
        fake.update_fails = i == 2; /* another topology: instantiated again */
        assert_ok(qn_cuda_capture_begin(device, stream));
        assert_ok(qn_cuda_capture_end(device, stream, &graph));
        assert_ok(qn_cuda_graph_launch(device, graph, stream));
        assert_int_equal(fake.updates, i);
        assert_int_equal(fake.execs, 1);
        assert_int_equal(fake.graphs, 0);
    }
    assert_ok(qn_cuda_capture_begin(device, stream));
    assert_ok(qn_cuda_capture_end(device, stream, NULL));
    static const char *const calls[] = { "cuStreamEndCapture", "cuGraphInstantiateWithFlags" };
    for (size_t i = 0; i < 2; i++) {
        qn_cuda_graph *none = NULL;
        fake.fails = calls[i];
        assert_int_equal(qn_cuda_capture_end(device, stream, &none), QN_ERR_DEVICE);
        assert_null(none);
    }
    fake.fails = NULL;
    qn_cuda_graph_free(device, graph);
    qn_cuda_graph_free(device, NULL);
    qn_cuda_stream_free(device, stream);
    qn_cuda_close(device);
    fake_expect_empty();
}

static bool is_filled(const void *memory, size_t bytes, uint8_t value)
{
    size_t n = 0;
    while (n < bytes && ((const uint8_t *)memory)[n] == value)
        n++;
    return n == bytes;
}

/* Memory that nothing has written is poisoned, and only with the variable. */
TEST(test_poison)
{
    const unsigned char args[FAKE_ARGS_BYTES] = { 0 };
    for (int poisons = 0; poisons < 2; poisons++) {
        assert_int_equal(setenv("QN_CUDA_POISON", poisons ? "1" : "0", 1), 0);
        qn_cuda *device = open_with(fake_driver());
        qn_cuda_buffer buffer;
        void *host;
        assert_int_equal(qn_cuda_poisons(device), poisons);
        assert_ok(qn_cuda_alloc(device, 1000, 1, "words", &buffer));
        assert_int_equal(is_filled((void *)(uintptr_t)buffer.address, 1000, 0xff), poisons);
        assert_ok(qn_cuda_memset(device, NULL, buffer.address, 1, 1000));
        assert_ok(qn_cuda_poison(device, NULL, buffer.address, 10));
        assert_true(is_filled((void *)(uintptr_t)buffer.address, 10, poisons ? 0xff : 1));
        assert_true(is_filled((uint8_t *)(uintptr_t)buffer.address + 10, 990, 1));
        assert_ok(qn_cuda_alloc_host(device, 1000, "words", &host));
        memset(host, 1, 1000);
        qn_cuda_poison_host(device, host, 1000);
        assert_true(is_filled(host, 1000, poisons ? 0xff : 1));
        qn_launch programmatic = launch;
        programmatic.pdl = true;
        assert_ok(qn_cuda_launch(device, NULL, &programmatic, args));
        assert_int_equal(fake.last_pdl, !poisons);
        qn_cuda_free_host(device, host);
        qn_cuda_free(device, &buffer);
        qn_cuda_close(device);
        fake_expect_empty();
    }
    assert_int_equal(unsetenv("QN_CUDA_POISON"), 0);
}

static size_t args_bytes(const char *function)
{
    return strcmp(function, "qn_spin") == 0 ? sizeof(qn_spin_args) : FAKE_ARGS_BYTES;
}

/* Something waits before each launch, copy, memset and graph. */
TEST(test_delay)
{
    unsigned char args[FAKE_ARGS_BYTES] = { 0 };
    qn_cuda_buffer buffer;
    qn_cuda_graph *graph = NULL;
    qn_cuda_stream stream;
    assert_int_equal(setenv("QN_CUDA_DELAY", "50", 1), 0);
    fake.no_param_info = true;
    const qn_cuda_driver *driver = fake_driver();
    fake.args_bytes = args_bytes;
    qn_cuda *device = open_with(driver);
    assert_ok(qn_cuda_stream_create(device, &stream));
    assert_ok(qn_cuda_alloc(device, 16, 1, "words", &buffer));
    assert_int_equal(fake.launches, 0);
    for (int pdl = 0; pdl < 2; pdl++) {
        qn_launch one = launch;
        one.pdl = pdl;
        assert_ok(qn_cuda_launch(device, stream, &one, args));
        const struct fake_launch *spin = &fake.log[fake.launches - 2], *after = &fake.log[fake.launches - 1];
        const qn_spin_args *found = (const qn_spin_args *)spin->args;
        assert_string_equal(spin->function, "qn_spin");
        assert_string_equal(after->function, "qn_module_a");
        assert_int_equal(found->max_ns, 50000);
        assert_int_equal(spin->pdl, pdl);
    }
    assert_ok(qn_cuda_copy_h2d(device, stream, buffer.address, args, 16));
    assert_int_equal(fake.launches, 5);
    assert_ok(qn_cuda_copy_d2h(device, stream, args, buffer.address, 16));
    assert_ok(qn_cuda_copy_d2d(device, stream, buffer.address, buffer.address + 8, 8));
    assert_ok(qn_cuda_memset(device, stream, buffer.address, 0, 16));
    assert_int_equal(fake.launches, 8);
    assert_ok(qn_cuda_capture_begin(device, stream));
    assert_ok(qn_cuda_capture_end(device, stream, &graph));
    assert_ok(qn_cuda_graph_launch(device, graph, stream));
    assert_int_equal(fake.launches, 9);
    qn_cuda_graph_free(device, graph);
    qn_cuda_free(device, &buffer);
    qn_cuda_stream_free(device, stream);
    qn_cuda_close(device);
    fake_expect_empty();
    assert_int_equal(unsetenv("QN_CUDA_DELAY"), 0);
}

TEST(test_provoke_variables)
{
    static const char *const wrong[][2] = { { "QN_CUDA_POISON", "2" },  { "QN_CUDA_POISON", "yes" },
                                            { "QN_CUDA_DELAY", "-1" },  { "QN_CUDA_DELAY", "100001" },
                                            { "QN_CUDA_DELAY", "1ms" }, { "QN_CUDA_DELAY", " " } };
    for (size_t i = 0; i < COUNT(wrong); i++) {
        qn_cuda *device;
        assert_int_equal(setenv(wrong[i][0], wrong[i][1], 1), 0);
        assert_fails(qn_cuda_open(&(qn_cuda_params){ .driver = fake_driver(), .tools = &tools }, &device),
                     QN_ERR_INVALID, wrong[i][0]);
        assert_int_equal(unsetenv(wrong[i][0]), 0);
        fake_expect_empty();
    }
}

/* The installed driver, if any: a device, or an error that names what is missing. */
TEST(test_real_driver)
{
    qn_cuda *device;
    for (int i = 0; i < 2; i++) { /* the second time the driver is already loaded */
        const qn_status status = qn_cuda_open(NULL, &device);
        if (status) {
            assert_null(device);
            assert_true(strlen(qn_error_text()) > 10);
        } else {
            assert_true(qn_cuda_get_info(device)->n_sms > 0);
        }
        qn_cuda_close(device);
    }
}

/* A quarter of the free memory is read eight times in 0.25 s, the time between any two events of the fake driver. No
 * failed call leaks anything. */
TEST(test_read_rate)
{
    enum { MIB = 1 << 20 };
    static const char *const calls[] = {
        "cuMemGetInfo",  "cuMemAlloc",       "cuEventCreate",      "cuMemcpyDtoDAsync",
        "cuEventRecord", "cuLaunchKernelEx", "cuEventSynchronize", "cuEventElapsedTime"
    };
    qn_cuda *device = open_with(fake_driver());
    double rate = 0;
    fake.available = 4 * MIB + 12345;
    assert_ok(qn_cuda_read_rate(device, NULL, &rate));
    assert_true(rate == 8.0 * MIB / 0.25);
    qn_peak_read_args args;
    memcpy(&args, fake.last_args, sizeof args);
    assert_int_equal(args.n_uint4, MIB / 16);
    fake.available = 1000;
    assert_int_equal(qn_cuda_read_rate(device, NULL, &rate), QN_ERR_MEMORY);
    qn_cuda_close(device);
    fake_expect_empty();
    for (size_t i = 0; i < COUNT(calls); i++)
        for (int after = 0; after < 2; after++) {
            label("%s fails after %d calls", calls[i], after);
            device = open_with(fake_driver());
            fake.available = 4 * MIB;
            fake.fails = calls[i];
            fake.fails_after = after && strcmp(calls[i], "cuMemGetInfo") != 0;
            assert_fails(qn_cuda_read_rate(device, NULL, &rate), QN_ERR_DEVICE, calls[i]);
            qn_cuda_close(device);
            fake_expect_empty();
        }
}
