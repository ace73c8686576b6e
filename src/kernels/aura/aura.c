/* AURA: selection of the SIMD variant. */
#include "kernels/aura/aura.h"

#include "base/cpu.h"

void qn_aura_kernels_init(qn_aura_kernels *kernels, unsigned cpu)
{
    qn_aura_init_ref(kernels);
#if QN_X86
    if (cpu & QN_CPU_AVX2)
        qn_aura_init_avx2(kernels);
    if (cpu & QN_CPU_AVX512)
        qn_aura_init_avx512(kernels);
#elif QN_ARM64
    if (cpu & QN_CPU_NEON)
        qn_aura_init_neon(kernels);
#endif
    (void)cpu;
}
