/* Two instruments that make a fault of order certain which otherwise needs luck, for development. Without their
 * variables they do nothing.
 *
 * QN_CUDA_POISON=1: memory gets values that no computation can use, as soon as nobody may read it any more and before
 * somebody writes it: NaN as a float of any width, as an index or an address one out of range; in caches, whose unused
 * rows are multiplied by zero, numbers of 1e36 as f32 and 60,000 as fp16. So a read of what nothing has written fails
 * each time. No launch is programmatic then, because memsets are between them.
 *
 * QN_CUDA_DELAY=US: before each launch and copy of every stream, in graphs too, the device waits for a random time of
 * up to US microseconds, 1 to 100000. So a write that should wait for a reader, or a host that should wait for the
 * device, comes too early. */
#ifndef QN_CUDA_RUNTIME_PROVOKE_H
#define QN_CUDA_RUNTIME_PROVOKE_H

#include "cuda/runtime/runtime.h"

typedef struct qn_cuda_provoke {
    bool poisons;
    uint32_t delay_us; /* 0: none */
} qn_cuda_provoke;

/* qn_cuda_provoke_read - both variables. QN_ERR_INVALID for other values. */
qn_status qn_cuda_provoke_read(qn_cuda_provoke *provoke);

/* qn_cuda_poisons - whether memory is poisoned. */
bool qn_cuda_poisons(const qn_cuda *device);

/* qn_cuda_delay - queues a random delay before what comes next in the stream; pdl: that is a kernel that is launched
 * so, behind another kernel. */
qn_status qn_cuda_delay(qn_cuda *device, qn_cuda_stream stream, bool pdl);

/* Each does nothing unless memory is poisoned.
 *
 *   qn_cuda_poison        in the order of the stream
 *   qn_cuda_poison_now    memory that no work is queued for; returns when it is done
 *   qn_cuda_poison_cache  likewise, a cache
 *   qn_cuda_poison_host   host memory */
qn_status qn_cuda_poison(qn_cuda *device, qn_cuda_stream stream, uint64_t address, size_t bytes);
qn_status qn_cuda_poison_now(qn_cuda *device, uint64_t address, size_t bytes);
qn_status qn_cuda_poison_cache(qn_cuda *device, qn_cuda_stream stream, uint64_t address, size_t bytes);
void qn_cuda_poison_host(const qn_cuda *device, void *memory, size_t bytes);

#endif
