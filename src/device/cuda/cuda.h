/* A CUDA device: its memory, streams, events, graphs, and launches of quern's kernels, through the driver API that is loaded at
 * run time. One binary runs with and without a GPU; without one qn_cuda_open says what is missing.
 *
 * Device addresses are plain uint64_t. Every failure is a status whose text has the driver call's name and the driver's own
 * text. Any thread may call; a stream belongs to one thread at a
 * time. Where the code of a kernel comes from is
 * device/cuda/pipeline.h. */
#ifndef QN_DEVICE_CUDA_CUDA_H
#define QN_DEVICE_CUDA_CUDA_H

#include "base/status.h"
#include "kernels/launch.h"

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
    uint32_t max_shared_bytes; /* dynamic shared memory that a block may ask for */
    int driver_version;        /* 13000 is 13.0 */
} qn_cuda_info;

typedef struct qn_cuda_params {
    int ordinal;                         /* which of the visible devices; 0 is the first */
    const struct qn_cuda_driver *driver; /* device/cuda/driver.h; NULL loads libcuda.so.1 */
    const struct qn_cuda_tools *tools;   /* device/cuda/pipeline.h: cache folder, compilers; NULL takes the user's */
    /* Kernels that were compiled, cache files that were replaced; may be NULL. It calls nothing of this header. */
    void (*on_log)(void *user, const char *line);
    void *user;
} qn_cuda_params;

/* ---- The device ---- */

/* qn_cuda_count - visible devices. QN_ERR_UNSUPPORTED, saying what is missing, without a driver or a device. */
qn_status qn_cuda_count(const struct qn_cuda_driver *driver, int *count);

/* qn_cuda_parse_name - whether a text names a CUDA device: "cuda", which is device 0, or "cuda:N". */
bool qn_cuda_parse_name(const char *text, int *ordinal);

/* qn_cuda_open - a device with its primary context. params may be NULL. QN_ERR_UNSUPPORTED without driver or device, and for
 * devices before compute capability 8.0; QN_ERR_INVALID for an ordinal that is not there. Free with qn_cuda_close. */
qn_status qn_cuda_open(const qn_cuda_params *params, qn_cuda **device);

/* qn_cuda_close - everything the device still holds is gone with it; NULL is allowed. */
void qn_cuda_close(qn_cuda *device);

const qn_cuda_info *qn_cuda_get_info(const qn_cuda *device);

/* qn_cuda_available_memory - bytes that are free now, of all that share the device. */
qn_status qn_cuda_available_memory(qn_cuda *device, size_t *bytes);

/* ---- Memory ---- */

typedef struct qn_cuda_buffer {
    uint64_t address; /* a multiple of 256; 0 for none */
    size_t bytes;
} qn_cuda_buffer;

/* qn_cuda_alloc - count objects of `size` bytes of device memory, not initialised. QN_ERR_MEMORY, with `what`, when the product
 * overflows or memory is short. A count of 0 gives a valid address. Release with qn_cuda_free. */
qn_status qn_cuda_alloc(qn_cuda *device, size_t count, size_t size, const char *what, qn_cuda_buffer *buffer);
void qn_cuda_free(qn_cuda *device, qn_cuda_buffer *buffer);

/* qn_cuda_alloc_host - page-locked host memory, to and from which copies are asynchronous; visible to the device at the same
 * address. Release with qn_cuda_free_host. */
qn_status qn_cuda_alloc_host(qn_cuda *device, size_t bytes, const char *what, void **memory);
void qn_cuda_free_host(qn_cuda *device, void *memory);

/* qn_cuda_upload - from any host memory, through two page-locked pieces of 16 MiB, so that host memory stays bounded and a
 * mapped file's pages are touched once. Returns when all is there. on_progress (may be NULL) gets the bytes done, after every
 * piece; false from it cancels: QN_ERR_CANCELLED. Up to four threads upload at the same time, each through pieces of its own;
 * one alone is as fast as it can copy in memory, which is less than the bus takes. */
qn_status qn_cuda_upload(qn_cuda *device, uint64_t to, const void *from, size_t bytes,
                         bool (*on_progress)(void *user, size_t done), void *user);

/* qn_cuda_download - into any host memory; after everything that `stream` was given, and returns when all is there. */
qn_status qn_cuda_download(qn_cuda *device, qn_cuda_stream stream, void *to, uint64_t from, size_t bytes);

/* In the order of the stream, without waiting. Host memory must be page-locked (or the call waits) and stay until the copy is
 * done. */
qn_status qn_cuda_copy_h2d(qn_cuda *device, qn_cuda_stream stream, uint64_t to, const void *from, size_t bytes);
qn_status qn_cuda_copy_d2h(qn_cuda *device, qn_cuda_stream stream, void *to, uint64_t from, size_t bytes);
qn_status qn_cuda_copy_d2d(qn_cuda *device, qn_cuda_stream stream, uint64_t to, uint64_t from, size_t bytes);
qn_status qn_cuda_memset(qn_cuda *device, qn_cuda_stream stream, uint64_t to, uint8_t value, size_t bytes);

/* ---- Streams and events ---- */

/* A stream of its own that does not wait for the default one. */
qn_status qn_cuda_stream_create(qn_cuda *device, qn_cuda_stream *stream);
void qn_cuda_stream_free(qn_cuda *device, qn_cuda_stream stream);
/* qn_cuda_stream_synchronize - until everything in it is done; failures of kernels come out here. */
qn_status qn_cuda_stream_synchronize(qn_cuda *device, qn_cuda_stream stream);

qn_status qn_cuda_event_create(qn_cuda *device, qn_cuda_event *event);
void qn_cuda_event_free(qn_cuda *device, qn_cuda_event event);
qn_status qn_cuda_event_record(qn_cuda *device, qn_cuda_event event, qn_cuda_stream stream);
qn_status qn_cuda_event_synchronize(qn_cuda *device, qn_cuda_event event);
/* qn_cuda_stream_wait_event - what the stream is given from now on waits for the event. */
qn_status qn_cuda_stream_wait_event(qn_cuda *device, qn_cuda_stream stream, qn_cuda_event event);
/* qn_cuda_event_seconds - between two recorded events that are done. */
qn_status qn_cuda_event_seconds(qn_cuda *device, qn_cuda_event begin, qn_cuda_event end, double *seconds);

/* ---- Launches ---- */

/* qn_cuda_prepare - find, compile or load the code of a launch now, and set its limits; else its first launch does. */
qn_status qn_cuda_prepare(qn_cuda *device, const qn_launch *launch);

/* qn_cuda_prepare_all - the same for many; what has to be compiled is compiled several at a time. */
qn_status qn_cuda_prepare_all(qn_cuda *device, const qn_launch *launches, size_t n);

/* qn_cuda_launch - args is copied: args_bytes of it, which must be the size that the kernel takes. */
qn_status qn_cuda_launch(qn_cuda *device, qn_cuda_stream stream, const qn_launch *launch, const void *args);

/* What the compiler made of a kernel, and how many of its blocks an SM holds with the launch's block size and shared memory. */
typedef struct qn_cuda_kernel_info {
    int registers, static_shared_bytes, local_bytes, max_threads;
    int blocks_per_sm;
} qn_cuda_kernel_info;

qn_status qn_cuda_kernel_get_info(qn_cuda *device, const qn_launch *launch, qn_cuda_kernel_info *info);

/* ---- Graphs ---- */

/* qn_cuda_capture_begin, qn_cuda_capture_end - what the stream is given between them becomes a graph and is not run. *graph is
 * NULL at first; a graph that is passed in again is updated in place where its shape allows, else made anew. Launches that were
 * not prepared before may compile while capturing. A failure in between still needs qn_cuda_capture_end (graph NULL: dropped).
 */
qn_status qn_cuda_capture_begin(qn_cuda *device, qn_cuda_stream stream);
qn_status qn_cuda_capture_end(qn_cuda *device, qn_cuda_stream stream, qn_cuda_graph **graph);
qn_status qn_cuda_graph_launch(qn_cuda *device, qn_cuda_graph *graph, qn_cuda_stream stream);
void qn_cuda_graph_free(qn_cuda *device, qn_cuda_graph *graph);

#endif
