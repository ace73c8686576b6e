/* The memory of a pool (cache/pool.h) on a GPU: reserved addresses, to which physical memory is mapped in granules.
 * Functions and structs are those of the CUDA Driver API reference manual, section "Virtual Memory Management". */
#ifndef QN_CUDA_RUNTIME_POOL_MEMORY_H
#define QN_CUDA_RUNTIME_POOL_MEMORY_H

#include "cache/pool.h"
#include "cuda/runtime/runtime.h"

#include <pthread.h>

/* The stream whose work accesses the pool's memory. The lock is held while work is queued in it. */
typedef struct qn_cuda_work_stream {
    qn_cuda_stream stream;
    pthread_mutex_t *lock;
} qn_cuda_work_stream;

/* The context of the qn_pool_memory, constant after it was opened. The pool calls its functions one at a time, from any
 * thread that does not hold the lock of the work stream: `commit` takes it. `commit` zeroes the granule in `stream` and
 * does not wait. Work queued in the work stream after `commit` waits until the granule is zeroed. */
typedef struct qn_cuda_pool_memory {
    qn_cuda *cuda;
    qn_cuda_work_stream work;
    qn_cuda_stream stream;
    qn_cuda_event zeroed; /* the last granule */
    size_t granule;
} qn_cuda_pool_memory;

/* qn_cuda_pool_memory_open - Fills *context, and *memory, which refers to it. Granules have 2 to 32 MiB: at most 1/1024
 * of the budget, but at least the device's smallest mapping. QN_ERR_UNSUPPORTED if the device has no virtual memory
 * management. Close with qn_cuda_pool_memory_close. */
qn_status qn_cuda_pool_memory_open(qn_cuda *cuda, const qn_cuda_work_stream *work, uint64_t budget,
                                   qn_cuda_pool_memory *context, qn_pool_memory *memory);

/* qn_cuda_pool_memory_wait - Waits until all committed granules are zeroed. Call it before writing to them from a
 * stream other than the work stream. From any thread. */
qn_status qn_cuda_pool_memory_wait(const qn_cuda_pool_memory *context);

/* qn_cuda_pool_memory_close - Frees the stream and the event, after the pool. Accepts a zeroed struct. */
void qn_cuda_pool_memory_close(qn_cuda_pool_memory *context);

#endif
