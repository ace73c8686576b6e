/* The functions of the fake CUDA driver. */
#include "helper_cuda.h"

#include <pthread.h>
#include <sys/mman.h>

struct fake_cuda fake;

static pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;

/* FAKE_ERROR if this call is configured to fail. */
static qn_cu_result fake_result(const char *call)
{
    if (fake.fails && !strcmp(fake.fails, call) && fake.fails_after-- <= 0)
        return FAKE_ERROR;
    return QN_CU_SUCCESS;
}

#define FAKE_TRY(call)                                                                                                 \
    do {                                                                                                               \
        pthread_mutex_lock(&fake_lock);                                                                                \
        const qn_cu_result fake_code = fake_result(call);                                                              \
        pthread_mutex_unlock(&fake_lock);                                                                              \
        if (fake_code)                                                                                                 \
            return fake_code;                                                                                          \
    } while (0)

void fake_count(int *counter, int by)
{
    pthread_mutex_lock(&fake_lock);
    *counter += by;
    pthread_mutex_unlock(&fake_lock);
}

static qn_cu_result fake_init(unsigned flags)
{
    (void)flags;
    FAKE_TRY("cuInit");
    return 0;
}

static qn_cu_result fake_version(int *version)
{
    *version = 13000;
    FAKE_TRY("cuDriverGetVersion");
    return 0;
}

static qn_cu_result fake_error_name(qn_cu_result code, const char **name)
{
    *name = code == FAKE_ERROR ? "CUDA_ERROR_FAKE" : code == QN_CU_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : NULL;
    return *name ? 0 : 1;
}

static qn_cu_result fake_error_string(qn_cu_result code, const char **text)
{
    *text = code == FAKE_ERROR ? "made to fail" : code == QN_CU_OUT_OF_MEMORY ? "out of memory" : NULL;
    return *text ? 0 : 1;
}

static qn_cu_result fake_device_count(int *count)
{
    FAKE_TRY("cuDeviceGetCount");
    *count = fake.n_devices;
    return 0;
}

static qn_cu_result fake_device_get(qn_cu_device *device, int ordinal)
{
    FAKE_TRY("cuDeviceGet");
    *device = 100 + ordinal;
    return 0;
}

static qn_cu_result fake_device_name(char *name, int bytes, qn_cu_device device)
{
    FAKE_TRY("cuDeviceGetName");
    assert_in_range(device, 100, 100 + fake.n_devices - 1);
    strncpy(name, "Fake 1", (size_t)bytes);
    return 0;
}

static qn_cu_result fake_total_memory(size_t *bytes, qn_cu_device device)
{
    (void)device;
    FAKE_TRY("cuDeviceTotalMem");
    *bytes = (size_t)80 << 30;
    return 0;
}

static qn_cu_result fake_attribute(int *value, int attribute, qn_cu_device device)
{
    (void)device;
    FAKE_TRY("cuDeviceGetAttribute");
    switch (attribute) {
    case QN_CU_DEVICE_MULTIPROCESSORS: *value = 132; return 0;
    case QN_CU_DEVICE_L2_BYTES: *value = 60 << 20; return 0;
    case QN_CU_DEVICE_MAJOR: *value = fake.major; return 0;
    case QN_CU_DEVICE_MINOR: *value = fake.minor; return 0;
    case QN_CU_DEVICE_COOPERATIVE_LAUNCH: *value = 1; return 0;
    case QN_CU_DEVICE_SHARED_OPTIN: *value = 227 << 10; return 0;
    case QN_CU_DEVICE_VIRTUAL_MEMORY: *value = !fake.no_virtual_memory; return 0;
    }
    return 1;
}

static qn_cu_result fake_retain(qn_cu_context *context, qn_cu_device device)
{
    (void)device;
    FAKE_TRY("cuDevicePrimaryCtxRetain");
    *context = (qn_cu_context)&fake;
    fake_count(&fake.contexts, 1);
    return 0;
}

static qn_cu_result fake_release(qn_cu_device device)
{
    (void)device;
    fake_count(&fake.contexts, -1);
    return 0;
}

static qn_cu_result fake_set_current(qn_cu_context context)
{
    FAKE_TRY("cuCtxSetCurrent");
    pthread_mutex_lock(&fake_lock);
    fake.current = context;
    pthread_mutex_unlock(&fake_lock);
    return 0;
}

static qn_cu_result fake_get_current(qn_cu_context *context)
{
    FAKE_TRY("cuCtxGetCurrent");
    *context = fake.current;
    return 0;
}

/* Contexts of tests are addresses of characters: 'a' is of the first device, any other of the second. */
static qn_cu_result fake_context_device(qn_cu_device *device)
{
    FAKE_TRY("cuCtxGetDevice");
    *device = 100 + (*(const char *)fake.current != 'a');
    return 0;
}

static qn_cu_result fake_context_id(qn_cu_context context, unsigned long long *id)
{
    (void)context;
    *id = fake.context_id;
    return 0;
}

static qn_cu_result fake_is_capturing(qn_cu_stream stream, int *status)
{
    (void)stream;
    FAKE_TRY("cuStreamIsCapturing");
    *status = fake.capturing;
    return 0;
}

static qn_cu_result fake_synchronize(void)
{
    return 0;
}

static qn_cu_result fake_memory_info(size_t *available, size_t *total)
{
    FAKE_TRY("cuMemGetInfo");
    *available = fake.available ? fake.available : (size_t)79 << 30;
    *total = (size_t)80 << 30;
    return 0;
}

static qn_cu_result fake_alloc(uint64_t *address, size_t bytes)
{
    FAKE_TRY("cuMemAlloc");
    fake_count(&fake.memory_calls, 1);
    void *memory; /* aligned as the driver's */
    if (bytes >= (size_t)1 << 32 || posix_memalign(&memory, 256, bytes))
        return QN_CU_OUT_OF_MEMORY;
    *address = (uint64_t)(uintptr_t)memory;
    fake_count(&fake.allocations, 1);
    __atomic_fetch_add(&fake.allocated, bytes, __ATOMIC_SEQ_CST);
    return 0;
}

static qn_cu_result fake_free(uint64_t address)
{
    fake_count(&fake.memory_calls, 1);
    free((void *)(uintptr_t)address);
    fake_count(&fake.allocations, -1);
    return 0;
}

/* ---- Virtual memory: pages of the process, accessible where physical memory is mapped ---- */

static qn_cu_result fake_reserve_addresses(uint64_t *address, size_t bytes, size_t alignment, uint64_t wanted,
                                           unsigned long long flags)
{
    FAKE_TRY("cuMemAddressReserve");
    assert_true(bytes && bytes % FAKE_GRANULE == 0 && !alignment && !wanted && !flags);
    void *at = mmap(NULL, bytes + FAKE_GRANULE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(at != MAP_FAILED);
    *address = ((uint64_t)(uintptr_t)at + FAKE_GRANULE - 1) / FAKE_GRANULE * FAKE_GRANULE;
    fake_count(&fake.reservations, 1);
    return 0;
}

static qn_cu_result fake_free_addresses(uint64_t address, size_t bytes)
{
    assert_int_equal(munmap((void *)(uintptr_t)address, bytes), 0);
    fake_count(&fake.reservations, -1);
    return 0;
}

static void check_properties(const qn_cu_memory_properties *properties)
{
    assert_int_equal(properties->type, QN_CU_MEMORY_PINNED);
    assert_int_equal(properties->handle_types, 0);
    assert_int_equal(properties->location.type, QN_CU_MEMORY_ON_DEVICE);
    assert_in_range(properties->location.id, 0, fake.n_devices - 1);
}

static qn_cu_result fake_granularity(size_t *bytes, const qn_cu_memory_properties *properties, int option)
{
    FAKE_TRY("cuMemGetAllocationGranularity");
    check_properties(properties);
    assert_int_equal(option, QN_CU_GRANULARITY_MINIMUM);
    *bytes = FAKE_GRANULE;
    return 0;
}

static qn_cu_result fake_create_memory(unsigned long long *handle, size_t bytes,
                                       const qn_cu_memory_properties *properties, unsigned long long flags)
{
    FAKE_TRY("cuMemCreate");
    check_properties(properties);
    assert_true(bytes && bytes % FAKE_GRANULE == 0 && !flags);
    if (fake.physical_limit && fake.handles + fake.mappings >= fake.physical_limit)
        return QN_CU_OUT_OF_MEMORY;
    *handle = 77;
    fake_count(&fake.handles, 1);
    return 0;
}

static qn_cu_result fake_release_memory(unsigned long long handle)
{
    assert_int_equal(handle, 77);
    fake_count(&fake.handles, -1);
    return 0;
}

static qn_cu_result fake_map(uint64_t address, size_t bytes, size_t offset, unsigned long long handle,
                             unsigned long long flags)
{
    FAKE_TRY("cuMemMap");
    assert_true(address % FAKE_GRANULE == 0 && bytes && bytes % FAKE_GRANULE == 0 && !offset && handle == 77 && !flags);
    fake_count(&fake.mappings, 1);
    return 0;
}

static qn_cu_result fake_set_access(uint64_t address, size_t bytes, const qn_cu_memory_access *access, size_t count)
{
    FAKE_TRY("cuMemSetAccess");
    assert_true(count == 1 && access->flags == QN_CU_MEMORY_READ_WRITE &&
                access->location.type == QN_CU_MEMORY_ON_DEVICE);
    assert_int_equal(mprotect((void *)(uintptr_t)address, bytes, PROT_READ | PROT_WRITE), 0);
    (void)madvise((void *)(uintptr_t)address, bytes, MADV_HUGEPAGE); /* page faults are most of the tests' time */
    memset((void *)(uintptr_t)address, 0xcd, bytes);
    return 0;
}

static qn_cu_result fake_unmap(uint64_t address, size_t bytes)
{
    assert_true(mmap((void *)(uintptr_t)address, bytes, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED);
    fake_count(&fake.mappings, -1);
    return 0;
}

static qn_cu_result fake_host_alloc(void **memory, size_t bytes, unsigned flags)
{
    (void)flags;
    FAKE_TRY("cuMemHostAlloc");
    fake_count(&fake.memory_calls, 1);
    *memory = malloc(bytes);
    if (!*memory)
        return QN_CU_OUT_OF_MEMORY;
    fake_count(&fake.host_allocations, 1);
    return 0;
}

static qn_cu_result fake_host_free(void *memory)
{
    fake_count(&fake.memory_calls, 1);
    free(memory);
    fake_count(&fake.host_allocations, -1);
    return 0;
}

static qn_cu_result fake_copy_in(uint64_t to, const void *from, size_t bytes, qn_cu_stream stream)
{
    (void)stream;
    FAKE_TRY("cuMemcpyHtoDAsync");
    fake_count(&fake.copies_in, 1);
    fake_count(&fake.copied_in_bytes, (int)bytes);
    memcpy((void *)(uintptr_t)to, from, bytes);
    return 0;
}

static qn_cu_result fake_copy_out(void *to, uint64_t from, size_t bytes, qn_cu_stream stream)
{
    (void)stream;
    FAKE_TRY("cuMemcpyDtoHAsync");
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return 0;
}

static qn_cu_result fake_copy(uint64_t to, uint64_t from, size_t bytes, qn_cu_stream stream)
{
    (void)stream;
    FAKE_TRY("cuMemcpyDtoDAsync");
    fake_count(&fake.copies, 1);
    memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    return 0;
}

static qn_cu_result fake_fill(uint64_t to, unsigned char value, size_t bytes, qn_cu_stream stream)
{
    (void)stream;
    FAKE_TRY("cuMemsetD8Async");
    memset((void *)(uintptr_t)to, value, bytes);
    return 0;
}

static qn_cu_result fake_stream_create(qn_cu_stream *stream, unsigned flags)
{
    assert_int_equal(flags, QN_CU_STREAM_NON_BLOCKING);
    FAKE_TRY("cuStreamCreate");
    *stream = (qn_cu_stream)malloc(1);
    fake_count(&fake.streams, 1);
    return 0;
}

static qn_cu_result fake_stream_destroy(qn_cu_stream stream)
{
    free(stream);
    fake_count(&fake.streams, -1);
    return 0;
}

static qn_cu_result fake_stream_synchronize(qn_cu_stream stream)
{
    (void)stream;
    FAKE_TRY("cuStreamSynchronize");
    fake_count(&fake.synchronizations, 1);
    return 0;
}

static qn_cu_result fake_stream_wait(qn_cu_stream stream, qn_cu_event event, unsigned flags)
{
    (void)stream;
    (void)event;
    (void)flags;
    FAKE_TRY("cuStreamWaitEvent");
    return 0;
}

static qn_cu_result fake_begin_capture(qn_cu_stream stream, int mode)
{
    (void)stream;
    (void)mode;
    FAKE_TRY("cuStreamBeginCapture");
    return 0;
}

static qn_cu_result fake_end_capture(qn_cu_stream stream, qn_cu_graph *graph)
{
    (void)stream;
    FAKE_TRY("cuStreamEndCapture");
    *graph = (qn_cu_graph)malloc(1);
    fake_count(&fake.graphs, 1);
    return 0;
}

static qn_cu_result fake_event_create(qn_cu_event *event, unsigned flags)
{
    (void)flags;
    FAKE_TRY("cuEventCreate");
    fake_count(&fake.memory_calls, 1);
    *event = (qn_cu_event)calloc(1, sizeof(int)); /* its number among all that were recorded */
    fake_count(&fake.events, 1);
    return 0;
}

static qn_cu_result fake_event_destroy(qn_cu_event event)
{
    fake_count(&fake.memory_calls, 1);
    free(event);
    fake_count(&fake.events, -1);
    return 0;
}

static qn_cu_result fake_event_record(qn_cu_event event, qn_cu_stream stream)
{
    (void)stream;
    FAKE_TRY("cuEventRecord");
    pthread_mutex_lock(&fake_lock);
    *(int *)(void *)event = ++fake.records;
    pthread_mutex_unlock(&fake_lock);
    return 0;
}

static qn_cu_result fake_event_synchronize(qn_cu_event event)
{
    FAKE_TRY("cuEventSynchronize");
    if (fake.on_event_wait)
        fake.on_event_wait(event);
    fake_count(&fake.event_synchronizations, 1);
    return 0;
}

static qn_cu_result fake_elapsed(float *milliseconds, qn_cu_event begin, qn_cu_event end)
{
    FAKE_TRY("cuEventElapsedTime");
    assert_in_range(*(int *)(void *)begin, 1, *(int *)(void *)end - 1);
    *milliseconds = 250;
    return 0;
}

static qn_cu_result fake_graph_destroy(qn_cu_graph graph)
{
    free(graph);
    fake_count(&fake.graphs, -1);
    return 0;
}

static qn_cu_result fake_instantiate(qn_cu_graph_exec *exec, qn_cu_graph graph, unsigned long long flags)
{
    (void)graph;
    (void)flags;
    FAKE_TRY("cuGraphInstantiateWithFlags");
    *exec = (qn_cu_graph_exec)malloc(1);
    fake_count(&fake.execs, 1);
    return 0;
}

static qn_cu_result fake_update(qn_cu_graph_exec exec, qn_cu_graph graph, qn_cu_update_info *info)
{
    (void)exec;
    (void)graph;
    (void)info;
    fake_count(&fake.updates, 1);
    return fake.update_fails ? FAKE_ERROR : 0;
}

static qn_cu_result fake_exec_destroy(qn_cu_graph_exec exec)
{
    free(exec);
    fake_count(&fake.execs, -1);
    return 0;
}

static qn_cu_result fake_graph_launch(qn_cu_graph_exec exec, qn_cu_stream stream)
{
    (void)stream;
    FAKE_TRY("cuGraphLaunch");
    fake_count(&fake.graph_launches, 1);
    assert_non_null(exec);
    return 0;
}

/* The tests' images are a 64-byte header that starts like an ELF file or a fatbin, followed by a zero-terminated text.
 */
static qn_cu_result fake_module_load(qn_cu_module *module, const void *image)
{
    FAKE_TRY("cuModuleLoadData");
    assert_true(!memcmp(image, "\177ELF", 4) || !memcmp(image, "\x50\xed\x55\xba", 4));
    const char *text = (const char *)image + 64;
    if (fake.refuses && strstr(text, fake.refuses))
        return FAKE_ERROR;
    *module = (qn_cu_module)malloc(1);
    fake_count(&fake.modules, 1);
    fake_count(&fake.loads, 1);
    pthread_mutex_lock(&fake_lock);
    strncpy(fake.image, text, sizeof fake.image - 1);
    fake.last_module = *module;
    pthread_mutex_unlock(&fake_lock);
    return 0;
}

void fake_end_contexts(void)
{
    assert_int_equal(fake.modules, 1);
    free(fake.last_module);
    fake.modules = 0;
    fake.context_id++;
}

static qn_cu_result fake_module_unload(qn_cu_module module)
{
    free(module);
    fake_count(&fake.modules, -1);
    return 0;
}

static qn_cu_result fake_function(qn_cu_function *function, qn_cu_module module, const char *name)
{
    FAKE_TRY("cuModuleGetFunction");
    (void)module;
    if (!strcmp(name, "missing"))
        return QN_CU_NOT_FOUND;
    pthread_mutex_lock(&fake_lock);
    int i = 0;
    while (i < fake.n_functions && strcmp(fake.functions[i], name))
        i++;
    assert_in_range(i, 0, FAKE_FUNCTIONS - 1);
    strncpy(fake.functions[i], name, sizeof fake.functions[i] - 1);
    fake.n_functions += i == fake.n_functions;
    pthread_mutex_unlock(&fake_lock);
    *function = (qn_cu_function)(void *)fake.functions[i];
    return 0;
}

static qn_cu_result fake_function_get(int *value, int attribute, qn_cu_function function)
{
    (void)function;
    FAKE_TRY("cuFuncGetAttribute");
    *value = attribute == QN_CU_FUNCTION_MAX_THREADS ? 1024 : FAKE_STATIC_SHARED;
    return 0;
}

static qn_cu_result fake_function_set(qn_cu_function function, int attribute, int value)
{
    (void)function;
    FAKE_TRY("cuFuncSetAttribute");
    if (attribute == QN_CU_FUNCTION_SHARED_CARVEOUT) {
        assert_int_equal(value, 100);
        fake_count(&fake.carveouts_set, 1);
        return 0;
    }
    assert_int_equal(attribute, QN_CU_FUNCTION_MAX_DYNAMIC_SHARED);
    fake_count(&fake.shared_set, 1);
    fake.last_shared = value;
    return 0;
}

static qn_cu_result fake_occupancy(int *blocks, qn_cu_function function, int block_size, size_t shared)
{
    (void)function;
    (void)shared;
    FAKE_TRY("cuOccupancyMaxActiveBlocksPerMultiprocessor");
    *blocks = 2048 / block_size;
    return 0;
}

static qn_cu_result fake_launch(const qn_cu_launch_config *config, qn_cu_function function, void **parameters,
                                void **extra)
{
    FAKE_TRY("cuLaunchKernelEx");
    assert_null(extra);
    struct fake_launch *log = &fake.log[fake.launches % FAKE_LAUNCHES];
    fake_count(&fake.launches, 1);
    fake.last_pdl = fake.last_cooperative = false;
    fake.last_cluster = 0;
    for (unsigned i = 0; i < config->n_attributes; i++) {
        const qn_cu_launch_attribute *attribute = &config->attributes[i];
        fake.last_pdl |= attribute->id == QN_CU_LAUNCH_PROGRAMMATIC_SERIALIZATION && attribute->value.on == 1;
        fake.last_cooperative |= attribute->id == QN_CU_LAUNCH_COOPERATIVE && attribute->value.on == 1;
        if (attribute->id == QN_CU_LAUNCH_CLUSTER) {
            assert_true(attribute->value.cluster[0] == 1 && attribute->value.cluster[1] == 1);
            fake.last_cluster = attribute->value.cluster[2];
        }
    }
    memcpy(fake.last_grid, config->grid, sizeof fake.last_grid);
    log->function = (const char *)(void *)function;
    log->pdl = fake.last_pdl;
    memcpy(log->grid, config->grid, sizeof log->grid);
    memcpy(log->args, parameters[0], fake.args_bytes ? fake.args_bytes(log->function) : FAKE_ARGS_BYTES);
    memcpy(fake.last_args, log->args, sizeof fake.last_args);
    return 0;
}

static qn_cu_result fake_param_info(qn_cu_function function, size_t index, size_t *offset, size_t *bytes)
{
    (void)function;
    assert_int_equal(index, 0);
    *offset = 0;
    *bytes = FAKE_ARGS_BYTES;
    return 0;
}

const qn_cuda_driver *fake_driver(void)
{
    static const qn_cuda_driver driver = {
        .cuInit = fake_init,
        .cuDriverGetVersion = fake_version,
        .cuGetErrorName = fake_error_name,
        .cuGetErrorString = fake_error_string,
        .cuDeviceGetCount = fake_device_count,
        .cuDeviceGet = fake_device_get,
        .cuDeviceGetName = fake_device_name,
        .cuDeviceTotalMem = fake_total_memory,
        .cuDeviceGetAttribute = fake_attribute,
        .cuDevicePrimaryCtxRetain = fake_retain,
        .cuDevicePrimaryCtxRelease = fake_release,
        .cuCtxSetCurrent = fake_set_current,
        .cuCtxGetCurrent = fake_get_current,
        .cuCtxGetDevice = fake_context_device,
        .cuCtxGetId = fake_context_id,
        .cuCtxSynchronize = fake_synchronize,
        .cuMemGetInfo = fake_memory_info,
        .cuMemAlloc = fake_alloc,
        .cuMemFree = fake_free,
        .cuMemAddressReserve = fake_reserve_addresses,
        .cuMemAddressFree = fake_free_addresses,
        .cuMemGetAllocationGranularity = fake_granularity,
        .cuMemCreate = fake_create_memory,
        .cuMemRelease = fake_release_memory,
        .cuMemMap = fake_map,
        .cuMemUnmap = fake_unmap,
        .cuMemSetAccess = fake_set_access,
        .cuMemHostAlloc = fake_host_alloc,
        .cuMemFreeHost = fake_host_free,
        .cuMemcpyHtoDAsync = fake_copy_in,
        .cuMemcpyDtoHAsync = fake_copy_out,
        .cuMemcpyDtoDAsync = fake_copy,
        .cuMemsetD8Async = fake_fill,
        .cuStreamCreate = fake_stream_create,
        .cuStreamDestroy = fake_stream_destroy,
        .cuStreamSynchronize = fake_stream_synchronize,
        .cuStreamWaitEvent = fake_stream_wait,
        .cuStreamBeginCapture = fake_begin_capture,
        .cuStreamIsCapturing = fake_is_capturing,
        .cuStreamEndCapture = fake_end_capture,
        .cuEventCreate = fake_event_create,
        .cuEventDestroy = fake_event_destroy,
        .cuEventRecord = fake_event_record,
        .cuEventSynchronize = fake_event_synchronize,
        .cuEventElapsedTime = fake_elapsed,
        .cuGraphDestroy = fake_graph_destroy,
        .cuGraphInstantiateWithFlags = fake_instantiate,
        .cuGraphExecUpdate = fake_update,
        .cuGraphExecDestroy = fake_exec_destroy,
        .cuGraphLaunch = fake_graph_launch,
        .cuModuleLoadData = fake_module_load,
        .cuModuleUnload = fake_module_unload,
        .cuModuleGetFunction = fake_function,
        .cuFuncGetAttribute = fake_function_get,
        .cuFuncSetAttribute = fake_function_set,
        .cuOccupancyMaxActiveBlocksPerMultiprocessor = fake_occupancy,
        .cuLaunchKernelEx = fake_launch,
        .cuFuncGetParamInfo = fake_param_info,
    };
    static qn_cuda_driver without;
    const bool no_param_info = fake.no_param_info;
    memset(&fake, 0, sizeof fake);
    fake.n_devices = 2;
    fake.major = 9;
    if (!no_param_info)
        return &driver;
    without = driver;
    without.cuFuncGetParamInfo = NULL;
    return &without;
}

void fake_expect_empty(void)
{
    assert_int_equal(fake.contexts, 0);
    assert_int_equal(fake.modules, 0);
    assert_int_equal(fake.allocations, 0);
    assert_int_equal(fake.host_allocations, 0);
    assert_int_equal(fake.reservations, 0);
    assert_int_equal(fake.handles, 0);
    assert_int_equal(fake.mappings, 0);
    assert_int_equal(fake.streams, 0);
    assert_int_equal(fake.events, 0);
    assert_int_equal(fake.graphs, 0);
    assert_int_equal(fake.execs, 0);
}
