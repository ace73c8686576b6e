/* Block Walsh-Hadamard transform: selection of the variant, and the normalisation factor of all variants. */
#include "kernels/hadamard/hadamard.h"

#include "base/cpu.h"

void qn_hadamard_kernels_init(qn_hadamard_kernels *kernels, unsigned cpu)
{
    qn_hadamard_init_ref(kernels);
#if QN_X86
    if (cpu & QN_CPU_AVX2)
        qn_hadamard_init_avx2(kernels);
    if (cpu & QN_CPU_AVX512)
        qn_hadamard_init_avx512(kernels);
#elif QN_ARM64
    if (cpu & QN_CPU_NEON)
        qn_hadamard_init_neon(kernels);
#endif
    (void)cpu;
}
