/* Reductions over a row of logits: the reference and the choice of variant. */
#include "kernels/sample/sample.h"

#include "base/cpu.h"
#include "kernels/canon.h"

static float maximum_ref(const float *logits, size_t n)
{
    float largest = logits[0];
    for (size_t i = 1; i < n; i++)
        largest = logits[i] > largest ? logits[i] : largest;
    return largest;
}

static float sum_exp_ref(const float *logits, size_t n, float maximum)
{
    float partial[QN_LANES] = { 0 };
    for (size_t i = 0; i < n; i++)
        partial[i % QN_LANES] += qn_exp(logits[i] - maximum);
    return qn_sum16(partial);
}

void qn_sample_kernels_init(qn_sample_kernels *kernels, unsigned cpu)
{
    *kernels = (qn_sample_kernels){ .name = "ref", .maximum = maximum_ref, .sum_exp = sum_exp_ref };
#if QN_X86
    if (cpu & QN_CPU_AVX2)
        qn_sample_init_avx2(kernels);
    if (cpu & QN_CPU_AVX512)
        qn_sample_init_avx512(kernels);
#elif QN_ARM64
    if (cpu & QN_CPU_NEON)
        qn_sample_init_neon(kernels);
#endif
    (void)cpu;
}

size_t qn_argmax_row(const qn_sample_kernels *kernels, const float *logits, size_t n)
{
    const float largest = kernels->maximum(logits, n);
    for (size_t i = 0; i < n; i++)
        if (logits[i] == largest)
            return i;
    return 0;
}
