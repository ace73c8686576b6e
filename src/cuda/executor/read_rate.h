/* Measurement of a device's memory read bandwidth. */
#ifndef QN_CUDA_EXECUTOR_READ_RATE_H
#define QN_CUDA_EXECUTOR_READ_RATE_H

#include "cuda/runtime/runtime.h"

/* qn_cuda_read_rate - Measures the read bandwidth in bytes per second: the best of several passes over 1 GiB of random
 * data, or over a quarter of the free memory if that is less. Frees its memory, and returns when the stream is done.
 * The caller holds stream_lock, so nothing else is queued meanwhile. QN_ERR_MEMORY below 256 KiB of free memory. */
qn_status qn_cuda_read_rate(qn_cuda *cuda, qn_cuda_stream stream, double *rate);

#endif
