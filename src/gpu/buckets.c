/* The buckets: powers of two, and from 16 on also one number between each two of them. */
#include "gpu/buckets.h"

static const size_t buckets[] = { 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, QN_GPU_MAX_SEQUENCES };
_Static_assert(sizeof buckets / sizeof *buckets == QN_GPU_N_BUCKETS, "as many as there are");

size_t qn_gpu_bucket_index(size_t n)
{
    size_t i = 0;
    while (i < QN_GPU_N_BUCKETS && buckets[i] < n)
        i++;
    return i;
}

size_t qn_gpu_bucket(size_t n)
{
    const size_t i = qn_gpu_bucket_index(n);
    return i < QN_GPU_N_BUCKETS ? buckets[i] : n;
}
