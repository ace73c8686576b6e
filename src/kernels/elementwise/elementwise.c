/* Elementwise operations: selection of the variant. */
#include "kernels/elementwise/elementwise.h"

#include "base/cpu.h"

void qn_elementwise_kernels_init(qn_elementwise_kernels *kernels, unsigned cpu)
{
    qn_elementwise_init_ref(kernels);
#if QN_X86
    if (cpu & QN_CPU_AVX2)
        qn_elementwise_init_avx2(kernels);
    if (cpu & QN_CPU_AVX512)
        qn_elementwise_init_avx512(kernels);
#elif QN_ARM64
    if (cpu & QN_CPU_NEON)
        qn_elementwise_init_neon(kernels);
#endif
    (void)cpu;
}
