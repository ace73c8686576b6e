/* RMS normalisation: selection of the variant, and the norm of a row from its two parts. */
#include "kernels/norm/norm.h"

#include "base/cpu.h"
#include "kernels/canon.h"

void qn_norm_kernels_init(qn_norm_kernels *kernels, unsigned cpu)
{
    qn_norm_init_ref(kernels);
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
