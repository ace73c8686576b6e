/* How fast a device reads its memory. */
#ifndef QN_DEVICE_CUDA_READ_RATE_H
#define QN_DEVICE_CUDA_READ_RATE_H

#include "device/cuda/cuda.h"

/* qn_cuda_read_rate - bytes a second, the best of a few passes over 1 GiB of noise, or over a quarter of what is free where
 * that is less; the memory is given back. Returns when the stream is done with it. */
qn_status qn_cuda_read_rate(qn_cuda *cuda, qn_cuda_stream stream, double *rate);

#endif
