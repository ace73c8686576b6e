/* Passes over a row of logits: selection of the variant, and argmax. */
#include "kernels/sample/sample.h"

#include "base/cpu.h"

void qn_sample_kernels_init(qn_sample_kernels *kernels, unsigned cpu)
{
    qn_sample_init_ref(kernels);
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
    const size_t at = kernels->find(logits, n, kernels->maximum(logits, n));
    return at < n ? at : 0;
}
