/* Measurement of a device's memory read bandwidth. */
#ifndef QN_DEVICE_CUDA_READ_RATE_H
#define QN_DEVICE_CUDA_READ_RATE_H

#include "device/cuda/cuda.h"

/* qn_cuda_read_rate - read bandwidth in bytes per second: the best of several passes over 1 GiB of random data, or over a
 * quarter of the free memory if that is less. Frees the memory; returns when the stream is done. QN_ERR_MEMORY below 256
 * KiB of free memory. */
qn_status qn_cuda_read_rate(qn_cuda *cuda, qn_cuda_stream stream, double *rate);

#endif
