/* Reductions over a row of logits in sixteen-lane vectors; included by one file per instruction set. */
#ifndef QN_KERNELS_SAMPLE_SAMPLE_SIMD_H
#define QN_KERNELS_SAMPLE_SAMPLE_SIMD_H

#include "kernels/sample/sample.h"
#include "kernels/vec16.h"

static float maximum_simd(const float *logits, size_t n)
{
    v16 largest = v16_set1(logits[0]);
    size_t i = 0;
    for (; i + QN_LANES <= n; i += QN_LANES)
        largest = v16_max(largest, v16_load(logits + i));
    float result = v16_hmax(largest);
    for (; i < n; i++)
        result = logits[i] > result ? logits[i] : result;
    return result;
}

QN_INLINE void sample_fill(qn_sample_kernels *kernels)
{
    *kernels = (qn_sample_kernels){ .maximum = maximum_simd };
}

#endif
