/* The memory of a pool (cache/pool.h) on a GPU: reserved addresses, to which physical memory is mapped in granules. Functions
 * and structs are those of the CUDA Driver API reference manual, section "Virtual Memory Management". */
#ifndef QN_DEVICE_CUDA_POOL_MEMORY_H
#define QN_DEVICE_CUDA_POOL_MEMORY_H

#include "cache/pool.h"
#include "device/cuda/cuda.h"

/* The context of the qn_pool_memory. The pool calls its functions one at a time, from any thread. */
typedef struct qn_cuda_pool_memory {
    qn_cuda *cuda;
    qn_cuda_stream stream; /* in which granules are zeroed */
    size_t granule;
} qn_cuda_pool_memory;

/* qn_cuda_pool_memory_open - fill *context, and *memory, which refers to it. Granules have 2 to 32 MiB, at most 1/1024 of the
 * budget if that is more than the least that the device maps. QN_ERR_UNSUPPORTED if the device has no virtual memory
 * management. Close with qn_cuda_pool_memory_close, after the pool; it accepts a zeroed struct. */
qn_status qn_cuda_pool_memory_open(qn_cuda *cuda, uint64_t budget, qn_cuda_pool_memory *context, qn_pool_memory *memory);
void qn_cuda_pool_memory_close(qn_cuda_pool_memory *context);

#endif
