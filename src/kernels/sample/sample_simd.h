/* Reductions over a row of logits in sixteen-lane vectors; included by one file an instruction set, which defines VARIANT. */
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

static float sum_exp_simd(const float *logits, size_t n, float maximum)
{
    v16 partial = v16_set1(0);
    const v16 minus = v16_set1(-maximum);
    size_t i = 0;
    for (; i + QN_LANES <= n; i += QN_LANES)
        partial = v16_add(partial, v16_exp(v16_add(v16_load(logits + i), minus)));
    if (i < n) {
        float tail[QN_LANES] = { 0 };
        v16_store_n(tail, v16_exp(v16_add(v16_load_n(logits + i, n - i), minus)), n - i);
        partial = v16_add(partial, v16_load(tail));
    }
    return v16_sum(partial);
}

QN_INLINE void sample_fill(qn_sample_kernels *kernels)
{
    *kernels = (qn_sample_kernels){ .name = VARIANT, .maximum = maximum_simd, .sum_exp = sum_exp_simd };
}

#endif
