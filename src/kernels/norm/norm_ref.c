/* RMS normalisation: the reference, plain loops in the canonical order. The SIMD variants must give the same bits. */
#include "base/fmaf.h"
#include "kernels/norm/norm.h"

#include "kernels/canon.h"

static float sum_squares_ref(const float *x, size_t n)
{
    float partial[QN_LANES] = { 0 };
    for (size_t i = 0; i < n; i++)
        partial[i % QN_LANES] = qn_fmaf(x[i], x[i], partial[i % QN_LANES]);
    return qn_sum16(partial);
}

static void scale_ref(float *y, const float *x, const float *weight, float scale, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * scale * weight[i];
}

void qn_norm_init_ref(qn_norm_kernels *kernels)
{
    *kernels = (qn_norm_kernels){ .sum_squares = sum_squares_ref, .scale = scale_ref };
}
