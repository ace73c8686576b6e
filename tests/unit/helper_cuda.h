/* A fake CUDA driver: device memory is host memory, work in streams is executed at once, any data with an ELF header
 * is a module, and calls and live objects are counted. */
#ifndef QN_TESTS_HELPER_CUDA_H
#define QN_TESTS_HELPER_CUDA_H

#include "helper_assert.h"

#include "cuda/runtime/runtime.h"
#include "cuda/runtime/driver.h"
#include "cuda/runtime/pipeline.h"

enum { FAKE_GRANULE = 2 << 20 };
enum {
    FAKE_ERROR = 999,
    FAKE_ARGS_BYTES = 24,
    FAKE_STATIC_SHARED = 40,
    FAKE_FUNCTIONS = 64,
    FAKE_LAUNCHES = 512,
    FAKE_MAX_ARGS = 1024
};

/* A launch of the log. */
struct fake_launch {
    const char *function;
    unsigned grid[3];
    bool pdl;
    _Alignas(8) unsigned char args[FAKE_MAX_ARGS];
};

extern struct fake_cuda {
    /* Configuration, set by the test: */
    int n_devices, major, minor;
    const char *refuses; /* modules that contain this text are rejected; NULL: none */
    const char *fails;   /* calls of this driver function fail; NULL: none */
    int fails_after;     /* number of calls that succeed first */
    bool no_param_info, no_virtual_memory;
    int physical_limit;                         /* granules of physical memory; 0: no limit */
    bool update_fails;                          /* cuGraphExecUpdate fails */
    size_t available;                           /* free bytes of memory; 0: 79 GiB */
    bool capturing;                             /* result of cuStreamIsCapturing */
    size_t (*args_bytes)(const char *function); /* size of a function's arguments, for the log; NULL: FAKE_ARGS_BYTES */
    void (*on_event_wait)(qn_cu_event event);   /* called before cuEventSynchronize returns; may be NULL */
    qn_cu_context current;
    unsigned long long context_id; /* id of every context */
    qn_cu_module last_module;      /* the last module loaded */
    /* Counters of live objects and calls, and data of the last call: */
    int contexts, modules, loads, allocations, host_allocations, streams, events, graphs, execs, updates, launches;
    size_t allocated; /* total bytes of all calls of cuMemAlloc */
    int memory_calls; /* calls of cuMemAlloc, cuMemFree, cuMemHostAlloc, cuMemFreeHost, cuEventCreate, cuEventDestroy */
    int reservations, handles, mappings, copies_in, copies, copied_in_bytes;
    int records, graph_launches, synchronizations, event_synchronizations; /* synchronizations: of streams */
    int shared_set, last_shared, carveouts_set;
    bool last_pdl, last_cooperative;
    unsigned char last_args[FAKE_ARGS_BYTES];
    unsigned last_grid[3], last_cluster; /* last_cluster: blocks of a cluster in z; 0: no cluster */
    char image[512];                     /* text of the last module, without the 64-byte header */
    char functions[FAKE_FUNCTIONS][48];  /* names; a function is its address here */
    int n_functions;
    struct fake_launch log[FAKE_LAUNCHES]; /* the last launches: launch i is at i % FAKE_LAUNCHES */
} fake;

/* Adds to a counter of `fake`, from any thread. */
void fake_count(int *counter, int by);

/* A driver with two devices of compute capability 9.0 and all counters zero. */
const qn_cuda_driver *fake_driver(void);

/* Ends all contexts and their module; later ones have another id. */
void fake_end_contexts(void);

/* Asserts that all objects and allocations have been freed. */
void fake_expect_empty(void);

/* The fake driver takes any data with an ELF header for a module. */
static const uint8_t fake_image[128] = { 0x7f, 'E', 'L', 'F' };
#define FAKE_CUBIN(source, defines)                                                                                    \
    {                                                                                                                  \
        source, defines, "sm_90a", fake_image, fake_image + sizeof fake_image                                          \
    }

#endif
