/* RMS normalisation: the reference, the choice of variant, and the composition of the two parts. */
#include "kernels/norm/norm.h"

#include "base/cpu.h"
#include "kernels/canon.h"

static float sum_squares_ref(const float *x, size_t n)
{
    float partial[QN_LANES] = { 0 };
    for (size_t i = 0; i < n; i++)
        partial[i % QN_LANES] = fmaf(x[i], x[i], partial[i % QN_LANES]);
    return qn_sum16(partial);
}

static void scale_ref(float *y, const float *x, const float *weight, float scale, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * scale * weight[i];
}

void qn_norm_kernels_init(qn_norm_kernels *kernels, unsigned cpu)
{
    *kernels = (qn_norm_kernels){ .name = "ref", .sum_squares = sum_squares_ref, .scale = scale_ref };
#if QN_X86
    if (cpu & QN_CPU_AVX2)
        qn_norm_init_avx2(kernels);
    if (cpu & QN_CPU_AVX512)
        qn_norm_init_avx512(kernels);
#elif QN_ARM64
    if (cpu & QN_CPU_NEON)
        qn_norm_init_neon(kernels);
#endif
    (void)cpu;
}

float qn_rms_scale(const qn_norm_kernels *kernels, const float *x, size_t n, float eps)
{
    return 1.0f / sqrtf(kernels->sum_squares(x, n) / (float)n + eps);
}

void qn_rms_norm_row(const qn_norm_kernels *kernels, float *y, const float *x, const float *weight, size_t n, float eps)
{
    kernels->scale(y, x, weight, qn_rms_scale(kernels, x, n, eps), n);
}
