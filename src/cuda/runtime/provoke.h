/* Two development instruments that make ordering faults reproducible. Each does nothing without its environment
 * variable, which is read when a device is opened.
 *
 * QN_CUDA_POISON=1: memory that nothing may read until it is written is filled with unusable values, so that a read of
 * unwritten memory fails each time. The values are NaN as a float of any width, and out of range as an index or an
 * address. In caches, whose unused rows are multiplied by zero, they are 1e36 as f32 and 60,000 as fp16. Launches do
 * not overlap (programmatic dependent launch, PDL), because memsets are between them.
 *
 * QN_CUDA_DELAY=US: before each launch and copy of every stream, in graphs too, the device waits for a random time of
 * up to US microseconds, 1 to 100000. A missing wait, of a write for a reader or of the host for the device, then
 * causes an error. */
#ifndef QN_CUDA_RUNTIME_PROVOKE_H
#define QN_CUDA_RUNTIME_PROVOKE_H

#include "cuda/runtime/runtime.h"

typedef struct qn_cuda_provoke {
    bool poisons;
    uint32_t delay_us; /* 0: none */
} qn_cuda_provoke;

/* qn_cuda_provoke_read - Reads both variables. QN_ERR_INVALID for other values. */
qn_status qn_cuda_provoke_read(qn_cuda_provoke *provoke);

/* qn_cuda_poisons - Returns whether poisoning is enabled. */
bool qn_cuda_poisons(const qn_cuda *device);

/* qn_cuda_delay - Queues a random delay before the next work of the stream.
 *
 *   pdl   the next work is a kernel launched with PDL after another kernel */
qn_status qn_cuda_delay(qn_cuda *device, qn_cuda_stream stream, bool pdl);

/* qn_cuda_poison - Poisons device memory, in stream order. Does nothing unless poisoning is enabled. */
qn_status qn_cuda_poison(qn_cuda *device, qn_cuda_stream stream, uint64_t address, size_t bytes);

/* qn_cuda_poison_now - Poisons device memory that no queued work accesses, and waits until it is done. Does nothing
 * unless poisoning is enabled. */
qn_status qn_cuda_poison_now(qn_cuda *device, uint64_t address, size_t bytes);

/* qn_cuda_poison_cache - Poisons device memory of a cache in the stream, and waits until it is done. Does nothing
 * unless poisoning is enabled. */
qn_status qn_cuda_poison_cache(qn_cuda *device, qn_cuda_stream stream, uint64_t address, size_t bytes);

/* qn_cuda_poison_host - Poisons host memory. Does nothing unless poisoning is enabled. */
void qn_cuda_poison_host(const qn_cuda *device, void *memory, size_t bytes);

#endif
