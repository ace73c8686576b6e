/* The CUDA driver API as a table of functions, filled at run time from libcuda.so.1: quern builds without the CUDA
 * toolkit and runs without a driver. The declarations are quern's own; constants and prototypes are those of the CUDA
 * Driver API reference manual (12.0 and later). Tests pass a table of fake functions. */
#ifndef QN_CUDA_RUNTIME_DRIVER_H
#define QN_CUDA_RUNTIME_DRIVER_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef int qn_cu_result; /* 0 is success */
typedef int qn_cu_device;
typedef struct CUctx_st *qn_cu_context;
typedef struct CUmod_st *qn_cu_module;
typedef struct CUfunc_st *qn_cu_function;
typedef struct CUstream_st *qn_cu_stream;
typedef struct CUevent_st *qn_cu_event;
typedef struct CUgraph_st *qn_cu_graph;
typedef struct CUgraphExec_st *qn_cu_graph_exec;

enum { /* results that quern distinguishes */
       QN_CU_SUCCESS = 0,
       QN_CU_OUT_OF_MEMORY = 2,
       QN_CU_NO_DEVICE = 100,
       QN_CU_NOT_FOUND = 500
};

enum { /* attributes of a device */
       QN_CU_DEVICE_MULTIPROCESSORS = 16,
       QN_CU_DEVICE_L2_BYTES = 38,
       QN_CU_DEVICE_MAJOR = 75,
       QN_CU_DEVICE_MINOR = 76,
       QN_CU_DEVICE_COOPERATIVE_LAUNCH = 95,
       QN_CU_DEVICE_SHARED_OPTIN = 97,
       QN_CU_DEVICE_VIRTUAL_MEMORY = 102 /* whether it supports the section "Virtual Memory Management" */
};

enum { /* attributes of a function */
       QN_CU_FUNCTION_MAX_THREADS = 0,
       QN_CU_FUNCTION_SHARED = 1,
       QN_CU_FUNCTION_LOCAL = 3,
       QN_CU_FUNCTION_REGISTERS = 4,
       QN_CU_FUNCTION_MAX_DYNAMIC_SHARED = 8,
       QN_CU_FUNCTION_SHARED_CARVEOUT = 9 /* preferred carveout: shared memory in percent of L1 and shared memory
                                             together */
};

enum { QN_CU_STREAM_NON_BLOCKING = 1, QN_CU_CAPTURE_RELAXED = 2, QN_CU_HOST_PORTABLE = 1 };
enum { QN_CU_LAUNCH_COOPERATIVE = 2, QN_CU_LAUNCH_CLUSTER = 4, QN_CU_LAUNCH_PROGRAMMATIC_SERIALIZATION = 6 };

/* Section "Virtual Memory Management": CUmemLocation, CUmemAllocationProp, CUmemAccessDesc. */
enum {
    QN_CU_MEMORY_PINNED = 1,
    QN_CU_MEMORY_ON_DEVICE = 1,
    QN_CU_MEMORY_READ_WRITE = 3,
    QN_CU_GRANULARITY_MINIMUM = 0
};

typedef struct qn_cu_memory_location {
    int type, id; /* QN_CU_MEMORY_ON_DEVICE, the device's ordinal */
} qn_cu_memory_location;

typedef struct qn_cu_memory_properties {
    int type, handle_types; /* QN_CU_MEMORY_PINNED, 0: not exported */
    qn_cu_memory_location location;
    void *windows_metadata;
    unsigned char flags[8];
} qn_cu_memory_properties;

typedef struct qn_cu_memory_access {
    qn_cu_memory_location location;
    int flags;
} qn_cu_memory_access;

typedef struct qn_cu_launch_attribute {
    int id;
    char pad[4];
    union {
        char pad[64];
        int on;              /* cooperative, programmatic */
        unsigned cluster[3]; /* blocks */
    } value;
} qn_cu_launch_attribute;

typedef struct qn_cu_launch_config {
    unsigned grid[3], block[3], shared_bytes;
    qn_cu_stream stream;
    qn_cu_launch_attribute *attributes;
    unsigned n_attributes;
} qn_cu_launch_config;

typedef struct qn_cu_update_info {
    int result;
    void *error_node, *error_from_node;
} qn_cu_update_info;

/* X(name, symbol that libcuda exports for this prototype, prototype) */
#define QN_CU_FUNCTIONS(X)                                                                                             \
    X(cuInit, "cuInit", (unsigned flags))                                                                              \
    X(cuDriverGetVersion, "cuDriverGetVersion", (int *version))                                                        \
    X(cuGetErrorName, "cuGetErrorName", (qn_cu_result code, const char **name))                                        \
    X(cuGetErrorString, "cuGetErrorString", (qn_cu_result code, const char **text))                                    \
    X(cuDeviceGetCount, "cuDeviceGetCount", (int *count))                                                              \
    X(cuDeviceGet, "cuDeviceGet", (qn_cu_device * device, int ordinal))                                                \
    X(cuDeviceGetName, "cuDeviceGetName", (char *name, int bytes, qn_cu_device device))                                \
    X(cuDeviceTotalMem, "cuDeviceTotalMem_v2", (size_t * bytes, qn_cu_device device))                                  \
    X(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int *value, int attribute, qn_cu_device device))                  \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (qn_cu_context * context, qn_cu_device device))            \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (qn_cu_device device))                                \
    X(cuCtxSetCurrent, "cuCtxSetCurrent", (qn_cu_context context))                                                     \
    X(cuCtxGetCurrent, "cuCtxGetCurrent", (qn_cu_context * context))                                                   \
    X(cuCtxGetDevice, "cuCtxGetDevice", (qn_cu_device * device))                                                       \
    X(cuCtxSynchronize, "cuCtxSynchronize", (void))                                                                    \
    X(cuMemGetInfo, "cuMemGetInfo_v2", (size_t * available, size_t * total))                                           \
    X(cuMemAlloc, "cuMemAlloc_v2", (uint64_t * address, size_t bytes))                                                 \
    X(cuMemFree, "cuMemFree_v2", (uint64_t address))                                                                   \
    X(cuMemAddressReserve, "cuMemAddressReserve",                                                                      \
      (uint64_t * address, size_t bytes, size_t alignment, uint64_t wanted, unsigned long long flags))                 \
    X(cuMemAddressFree, "cuMemAddressFree", (uint64_t address, size_t bytes))                                          \
    X(cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity",                                                  \
      (size_t * bytes, const qn_cu_memory_properties *properties, int option))                                         \
    X(cuMemCreate, "cuMemCreate",                                                                                      \
      (unsigned long long *handle, size_t bytes, const qn_cu_memory_properties *properties, unsigned long long flags)) \
    X(cuMemRelease, "cuMemRelease", (unsigned long long handle))                                                       \
    X(cuMemMap, "cuMemMap",                                                                                            \
      (uint64_t address, size_t bytes, size_t offset, unsigned long long handle, unsigned long long flags))            \
    X(cuMemUnmap, "cuMemUnmap", (uint64_t address, size_t bytes))                                                      \
    X(cuMemSetAccess, "cuMemSetAccess",                                                                                \
      (uint64_t address, size_t bytes, const qn_cu_memory_access *access, size_t count))                               \
    X(cuMemHostAlloc, "cuMemHostAlloc", (void **memory, size_t bytes, unsigned flags))                                 \
    X(cuMemFreeHost, "cuMemFreeHost", (void *memory))                                                                  \
    X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (uint64_t to, const void *from, size_t bytes, qn_cu_stream stream))   \
    X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void *to, uint64_t from, size_t bytes, qn_cu_stream stream))         \
    X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", (uint64_t to, uint64_t from, size_t bytes, qn_cu_stream stream))      \
    X(cuMemsetD8Async, "cuMemsetD8Async", (uint64_t to, unsigned char value, size_t bytes, qn_cu_stream stream))       \
    X(cuStreamCreate, "cuStreamCreate", (qn_cu_stream * stream, unsigned flags))                                       \
    X(cuStreamDestroy, "cuStreamDestroy_v2", (qn_cu_stream stream))                                                    \
    X(cuStreamSynchronize, "cuStreamSynchronize", (qn_cu_stream stream))                                               \
    X(cuStreamWaitEvent, "cuStreamWaitEvent", (qn_cu_stream stream, qn_cu_event event, unsigned flags))                \
    X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", (qn_cu_stream stream, int mode))                                \
    X(cuStreamIsCapturing, "cuStreamIsCapturing", (qn_cu_stream stream, int *status))                                  \
    X(cuStreamEndCapture, "cuStreamEndCapture", (qn_cu_stream stream, qn_cu_graph * graph))                            \
    X(cuEventCreate, "cuEventCreate", (qn_cu_event * event, unsigned flags))                                           \
    X(cuEventDestroy, "cuEventDestroy_v2", (qn_cu_event event))                                                        \
    X(cuEventRecord, "cuEventRecord", (qn_cu_event event, qn_cu_stream stream))                                        \
    X(cuEventSynchronize, "cuEventSynchronize", (qn_cu_event event))                                                   \
    X(cuEventElapsedTime, "cuEventElapsedTime", (float *milliseconds, qn_cu_event begin, qn_cu_event end))             \
    X(cuGraphDestroy, "cuGraphDestroy", (qn_cu_graph graph))                                                           \
    X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags",                                                      \
      (qn_cu_graph_exec * exec, qn_cu_graph graph, unsigned long long flags))                                          \
    X(cuGraphExecUpdate, "cuGraphExecUpdate_v2", (qn_cu_graph_exec exec, qn_cu_graph graph, qn_cu_update_info * info)) \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", (qn_cu_graph_exec exec))                                               \
    X(cuGraphLaunch, "cuGraphLaunch", (qn_cu_graph_exec exec, qn_cu_stream stream))                                    \
    X(cuModuleLoadData, "cuModuleLoadData", (qn_cu_module * module, const void *image))                                \
    X(cuModuleUnload, "cuModuleUnload", (qn_cu_module module))                                                         \
    X(cuModuleGetFunction, "cuModuleGetFunction", (qn_cu_function * function, qn_cu_module module, const char *name))  \
    X(cuFuncGetAttribute, "cuFuncGetAttribute", (int *value, int attribute, qn_cu_function function))                  \
    X(cuFuncSetAttribute, "cuFuncSetAttribute", (qn_cu_function function, int attribute, int value))                   \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor, "cuOccupancyMaxActiveBlocksPerMultiprocessor",                      \
      (int *blocks, qn_cu_function function, int block_size, size_t dynamic_shared_bytes))                             \
    X(cuLaunchKernelEx, "cuLaunchKernelEx",                                                                            \
      (const qn_cu_launch_config *config, qn_cu_function function, void **parameters, void **extra))

/* Functions of later drivers: NULL if the driver lacks them. */
#define QN_CU_OPTIONAL_FUNCTIONS(X)                                                                                    \
    X(cuCtxGetId, "cuCtxGetId", (qn_cu_context context, unsigned long long *id))                                       \
    X(cuFuncGetParamInfo, "cuFuncGetParamInfo",                                                                        \
      (qn_cu_function function, size_t index, size_t * offset, size_t * bytes))

typedef struct qn_cuda_driver {
#define QN_CU_MEMBER(name, symbol, prototype) qn_cu_result(*name) prototype;
    QN_CU_FUNCTIONS(QN_CU_MEMBER)
    QN_CU_OPTIONAL_FUNCTIONS(QN_CU_MEMBER)
#undef QN_CU_MEMBER
} qn_cuda_driver;

/* qn_cuda_driver_load - Loads and initialises the installed driver, once per process, which never unloads it: *driver
 * stays valid. Any thread; later calls return the first result. QN_ERR_UNSUPPORTED if something is missing, which the
 * message names: the library, a function that drivers before 12.0 lack, or a device. */
qn_status qn_cuda_driver_load(const qn_cuda_driver **driver);

/* qn_cu_check - Turns the result of a driver call into a status, with the error text "call: text (NAME, code)". */
qn_status qn_cu_check(const qn_cuda_driver *driver, qn_cu_result code, const char *call);

/* QN_CU - Calls a function of the table and checks its result. */
#define QN_CU(driver, call, ...) qn_cu_check((driver), (driver)->call(__VA_ARGS__), #call)

#endif
