/* A CUDA device: memory, streams, events, graphs, and launches of quern's kernels, through the driver API, which is
 * loaded at run time. The same binary runs with and without a GPU; without one qn_cuda_open reports what is missing.
 *
 * Device addresses are uint64_t. The error text of a failed driver call has the call's name and the driver's error
 * string. Threads: any thread may call; a stream is used by one thread at a time, and a device is closed when no other
 * thread uses it. Functions make the device's context current to the calling thread. cuda/runtime/pipeline.h describes
 * the origins of kernel code. */
#ifndef QN_CUDA_RUNTIME_RUNTIME_H
#define QN_CUDA_RUNTIME_RUNTIME_H

#include "base/status.h"
#include "cuda/kernels/launch.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct qn_cuda qn_cuda;
typedef struct CUstream_st *qn_cuda_stream;
typedef struct CUevent_st *qn_cuda_event;
typedef struct qn_cuda_graph qn_cuda_graph;

typedef struct qn_cuda_info {
    int ordinal;
    char name[128];
    int major, minor; /* compute capability */
    uint32_t n_sms;
    size_t memory_bytes, l2_bytes;
    uint32_t max_shared_bytes; /* the most dynamic shared memory of a block (opt-in limit) */
    int driver_version;        /* 13000 is 13.0 */
    bool cooperative;          /* whether it has cooperative launches */
} qn_cuda_info;

typedef struct qn_cuda_params {
    int ordinal;                         /* index among the visible devices, from 0 */
    struct CUctx_st *context;            /* of this device, must outlive the qn_cuda; NULL: the primary context */
    const struct qn_cuda_driver *driver; /* cuda/runtime/driver.h; NULL loads libcuda.so.1 */
    const struct qn_cuda_tools *tools;   /* cuda/runtime/pipeline.h: cache directory, compilers; NULL: the user's */
    /* Gets a line for each kernel compiled and each cache file replaced; may be NULL. Called on any thread that uses
     * the device, by one thread at a time. Must not call functions of this header. */
    void (*on_log)(void *user, const char *line);
    void *user;
} qn_cuda_params;

/* ---- The device ---- */

/* qn_cuda_count - Counts the visible devices. QN_ERR_UNSUPPORTED without a driver or a device; the message names the
 * missing part. */
qn_status qn_cuda_count(const struct qn_cuda_driver *driver, int *count);

/* qn_cuda_read_info - Reads the properties of a device without opening it. Errors as for qn_cuda_open. */
qn_status qn_cuda_read_info(const struct qn_cuda_driver *driver, int ordinal, qn_cuda_info *info);

/* qn_cuda_open - Opens a device, and retains its primary context unless another is given. params may be NULL.
 * QN_ERR_UNSUPPORTED without driver or device, and below compute capability 8.0; QN_ERR_INVALID for an ordinal out of
 * range. Free with qn_cuda_close. */
qn_status qn_cuda_open(const qn_cuda_params *params, qn_cuda **device);

/* qn_cuda_close - Waits for the device, frees its modules and staging buffers, and releases the context if it was
 * retained. Does not change the thread's current context. Accepts NULL. */
void qn_cuda_close(qn_cuda *device);

/* qn_cuda_abandon - Frees a device whose context no longer exists: frees its host memory without calling the driver. */
void qn_cuda_abandon(qn_cuda *device);

/* qn_cuda_get_info - Returns the device's properties, valid until qn_cuda_close. */
const qn_cuda_info *qn_cuda_get_info(const qn_cuda *device);

/* qn_cuda_available_memory - Reads the bytes of device memory that are free now, with the allocations of all processes
 * counted, and under QN_CUDA_LIMITS (limits.h) of its memory. */
qn_status qn_cuda_available_memory(qn_cuda *device, size_t *bytes);

/* ---- Memory: any thread; copies and memsets in a stream by the thread that uses the stream ---- */

typedef struct qn_cuda_buffer {
    uint64_t address; /* a multiple of 256; 0 for none */
    size_t bytes;
} qn_cuda_buffer;

/* qn_cuda_alloc - Allocates uninitialised device memory for `count` objects of `size` bytes. QN_ERR_MEMORY, naming
 * `what`, if count * size overflows or memory is short. A count of 0 gives a valid address. Free with qn_cuda_free. */
qn_status qn_cuda_alloc(qn_cuda *device, size_t count, size_t size, const char *what, qn_cuda_buffer *buffer);

/* qn_cuda_free - Frees device memory and zeroes *buffer. Accepts a zeroed struct. */
void qn_cuda_free(qn_cuda *device, qn_cuda_buffer *buffer);

/* qn_cuda_alloc_host - Allocates pinned host memory: copies from and to it are asynchronous, and the device can access
 * it at the same address. QN_ERR_MEMORY names `what`. Free with qn_cuda_free_host. */
qn_status qn_cuda_alloc_host(qn_cuda *device, size_t bytes, const char *what, void **memory);

/* qn_cuda_free_host - Frees pinned host memory. Accepts NULL. */
void qn_cuda_free_host(qn_cuda *device, void *memory);

/* qn_cuda_upload - Copies from any host memory through two pinned staging buffers of 16 MiB: host memory is bounded,
 * and each page of a mapped file is read once. Returns when the copy is complete. on_progress (may be NULL) gets the
 * number of bytes copied, after every staging buffer; if it returns false, the upload ends with QN_ERR_CANCELLED. Up to
 * four threads upload concurrently, each with its own staging buffers, and more threads wait; a single thread is
 * limited by memcpy, which is slower than the bus. Not ordered with the work of any stream: no queued work may access
 * the device memory. */
qn_status qn_cuda_upload(qn_cuda *device, uint64_t to, const void *from, size_t bytes,
                         bool (*on_progress)(void *user, size_t done), void *user);

/* qn_cuda_download_staged - Copies to any host memory through the staging buffers of qn_cuda_upload, after all work on
 * the device memory. For large copies to memory that is not pinned. Returns when the copy is complete. */
qn_status qn_cuda_download_staged(qn_cuda *device, void *to, uint64_t from, size_t bytes);

/* qn_cuda_download - Copies to any host memory, in stream order. Returns when the copy is complete. */
qn_status qn_cuda_download(qn_cuda *device, qn_cuda_stream stream, void *to, uint64_t from, size_t bytes);

/* qn_cuda_copy_h2d - Queues a copy to the device in the stream. Host memory must be pinned (otherwise the call blocks)
 * and stay valid until the copy is complete. */
qn_status qn_cuda_copy_h2d(qn_cuda *device, qn_cuda_stream stream, uint64_t to, const void *from, size_t bytes);

/* qn_cuda_copy_d2h - Queues a copy to host memory in the stream. Host memory as for qn_cuda_copy_h2d. */
qn_status qn_cuda_copy_d2h(qn_cuda *device, qn_cuda_stream stream, void *to, uint64_t from, size_t bytes);

/* qn_cuda_copy_d2d - Queues a copy within device memory in the stream. */
qn_status qn_cuda_copy_d2d(qn_cuda *device, qn_cuda_stream stream, uint64_t to, uint64_t from, size_t bytes);

/* qn_cuda_memset - Queues setting `bytes` bytes to `value` in the stream. */
qn_status qn_cuda_memset(qn_cuda *device, qn_cuda_stream stream, uint64_t to, uint8_t value, size_t bytes);

/* ---- Streams and events: one thread at a time for each ---- */

/* qn_cuda_stream_create - Creates a stream that does not synchronise with the default stream. Free with
 * qn_cuda_stream_free. */
qn_status qn_cuda_stream_create(qn_cuda *device, qn_cuda_stream *stream);

/* qn_cuda_stream_free - Frees a stream. Accepts NULL. */
void qn_cuda_stream_free(qn_cuda *device, qn_cuda_stream stream);

/* qn_cuda_stream_synchronize - Waits until all work of the stream is complete. Reports failures of kernels. */
qn_status qn_cuda_stream_synchronize(qn_cuda *device, qn_cuda_stream stream);

/* qn_cuda_event_create - Creates an event with timing. Free with qn_cuda_event_free. */
qn_status qn_cuda_event_create(qn_cuda *device, qn_cuda_event *event);

/* qn_cuda_event_free - Frees an event. Accepts NULL. */
void qn_cuda_event_free(qn_cuda *device, qn_cuda_event event);

/* qn_cuda_event_record - Queues the event in the stream: it completes after all work queued before it. */
qn_status qn_cuda_event_record(qn_cuda *device, qn_cuda_event event, qn_cuda_stream stream);

/* qn_cuda_event_synchronize - Waits until the event is complete. */
qn_status qn_cuda_event_synchronize(qn_cuda *device, qn_cuda_event event);

/* qn_cuda_stream_wait_event - Makes all work queued in the stream after this call wait for the event. */
qn_status qn_cuda_stream_wait_event(qn_cuda *device, qn_cuda_stream stream, qn_cuda_event event);

/* qn_cuda_event_seconds - Measures the time between two recorded and completed events. */
qn_status qn_cuda_event_seconds(qn_cuda *device, qn_cuda_event begin, qn_cuda_event end, double *seconds);

/* ---- Launches: any thread, those in a stream by the thread that uses the stream ---- */

/* qn_cuda_prepare - Loads the code of a launch, compiling it if necessary, and sets its shared memory limit. Optional:
 * the first qn_cuda_launch does the same. */
qn_status qn_cuda_prepare(qn_cuda *device, const qn_launch *launch);

/* qn_cuda_prepare_all - As qn_cuda_prepare, for n launches; compiles several pipelines concurrently. */
qn_status qn_cuda_prepare_all(qn_cuda *device, const qn_launch *launches, size_t n);

/* qn_cuda_launch - Queues a launch in the stream. Copies launch->args_bytes bytes of `args` before it returns;
 * QN_ERR_INVALID if that is not the size of the kernel's argument struct. */
qn_status qn_cuda_launch(qn_cuda *device, qn_cuda_stream stream, const qn_launch *launch, const void *args);

/* qn_cuda_is_prepared - Returns whether the code of a launch is loaded. */
bool qn_cuda_is_prepared(qn_cuda *device, const qn_launch *launch);

/* A compiled kernel's resources, and its occupancy in blocks per SM with the launch's block size and shared memory. */
typedef struct qn_cuda_kernel_info {
    int registers, static_shared_bytes, local_bytes, max_threads;
    int blocks_per_sm;
} qn_cuda_kernel_info;

/* qn_cuda_kernel_get_info - Reads the resources of a launch's kernel; loads its code if necessary. */
qn_status qn_cuda_kernel_get_info(qn_cuda *device, const qn_launch *launch, qn_cuda_kernel_info *info);

/* ---- Graphs: one thread at a time for each graph and stream ---- */

/* qn_cuda_capture_begin - Begins to capture the stream's work into a graph, without executing it. Launches that were
 * not prepared may compile during the capture. End with qn_cuda_capture_end, also after an error in between. */
qn_status qn_cuda_capture_begin(qn_cuda *device, qn_cuda_stream stream);

/* qn_cuda_capture_end - Ends a capture and makes a graph of it. Free with qn_cuda_graph_free.
 *
 *   graph   *graph is NULL, or an existing graph, which is updated in place if its topology allows, else instantiated
 *           again; NULL: the capture is dropped */
qn_status qn_cuda_capture_end(qn_cuda *device, qn_cuda_stream stream, qn_cuda_graph **graph);

/* qn_cuda_graph_launch - Queues the graph's work in the stream. */
qn_status qn_cuda_graph_launch(qn_cuda *device, qn_cuda_graph *graph, qn_cuda_stream stream);

/* qn_cuda_graph_free - Frees a graph. Accepts NULL. */
void qn_cuda_graph_free(qn_cuda *device, qn_cuda_graph *graph);

#endif
