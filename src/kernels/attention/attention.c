/* Attention over a KV cache of fp16 or fp32 elements: selection of the SIMD variant. */
#include "kernels/attention/attention.h"

#include "base/cpu.h"

void qn_attention_kernels_init(qn_attention_kernels *kernels, unsigned cpu)
{
    qn_attention_init_ref(kernels);
#if QN_X86
    if (cpu & QN_CPU_AVX2)
        qn_attention_init_avx2(kernels);
    if (cpu & QN_CPU_AVX512)
        qn_attention_init_avx512(kernels);
#elif QN_ARM64
    if (cpu & QN_CPU_NEON)
        qn_attention_init_neon(kernels);
#endif
    (void)cpu;
}
