/* RMS normalisation over sixteen-lane vectors; included by one file per instruction set. */
#ifndef QN_KERNELS_NORM_NORM_SIMD_H
#define QN_KERNELS_NORM_NORM_SIMD_H

#include "kernels/norm/norm.h"
#include "kernels/vec16.h"

static float sum_squares_simd(const float *x, size_t n)
{
    v16 partial = v16_set1(0);
    size_t i = 0;
    for (; i + QN_LANES <= n; i += QN_LANES) {
        const v16 a = v16_load(x + i);
        partial = v16_fma(a, a, partial);
    }
    if (i < n) {
        const v16 a = v16_load_n(x + i, n - i);
        partial = v16_fma(a, a, partial);
    }
    return v16_sum(partial);
}

static void scale_simd(float *y, const float *x, const float *weight, float scale, size_t n)
{
    const v16 s = v16_set1(scale);
    size_t i = 0;
    for (; i + QN_LANES <= n; i += QN_LANES)
        v16_store(y + i, v16_mul(v16_mul(v16_load(x + i), s), v16_load(weight + i)));
    if (i < n)
        v16_store_n(y + i, v16_mul(v16_mul(v16_load_n(x + i, n - i), s), v16_load_n(weight + i, n - i)), n - i);
}

QN_INLINE void norm_fill(qn_norm_kernels *kernels)
{
    *kernels = (qn_norm_kernels){ .sum_squares = sum_squares_simd, .scale = scale_simd };
}

#endif
