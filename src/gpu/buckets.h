/* Numbers of rows that decode steps are padded to, so that few graphs or command buffers serve all steps. */
#ifndef QN_GPU_BUCKETS_H
#define QN_GPU_BUCKETS_H

#include <stddef.h>

/* The most sequences of a step on the device; the largest bucket. */
enum { QN_GPU_MAX_SEQUENCES = 256, QN_GPU_N_BUCKETS = 13 };

/* qn_gpu_bucket_index - the index of the bucket for n rows; QN_GPU_N_BUCKETS above the largest. */
size_t qn_gpu_bucket_index(size_t n);

/* qn_gpu_bucket - the number of rows that a decode step of n rows is padded to; n above QN_GPU_MAX_SEQUENCES itself. */
size_t qn_gpu_bucket(size_t n);

#endif
