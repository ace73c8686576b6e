/* Numbers of rows that decode steps are padded to, so that few graphs or command buffers serve all steps. Pure
 * functions. */
#ifndef QN_GPU_BUCKETS_H
#define QN_GPU_BUCKETS_H

#include <stddef.h>

/* Limit of sequences in a step on the device, which is the largest bucket; and the number of buckets. */
enum { QN_GPU_MAX_SEQUENCES = 256, QN_GPU_N_BUCKETS = 13 };

/* qn_gpu_bucket_index - returns the index of the bucket for n rows; QN_GPU_N_BUCKETS if n is above the largest
 * bucket. */
size_t qn_gpu_bucket_index(size_t n);

/* qn_gpu_bucket - returns the number of rows to which a decode step of n rows is padded; n if it is above
 * QN_GPU_MAX_SEQUENCES. */
size_t qn_gpu_bucket(size_t n);

#endif
