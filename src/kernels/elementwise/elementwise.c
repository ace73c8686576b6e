/* Elementwise operations: the reference and the choice of variant. */
#include "kernels/elementwise/elementwise.h"

#include "base/cpu.h"
#include "kernels/canon.h"

static void swiglu_ref(float *y, const float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = qn_silu(gate[i]) * up[i];
}

static void add_ref(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] += x[i];
}

void qn_elementwise_kernels_init(qn_elementwise_kernels *kernels, unsigned cpu)
{
    *kernels = (qn_elementwise_kernels){ .name = "ref", .swiglu = swiglu_ref, .add = add_ref };
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
