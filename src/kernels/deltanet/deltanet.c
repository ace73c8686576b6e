/* Gated delta rule: the choice of variant, and the gates of a token. */
#include "kernels/deltanet/deltanet.h"

#include "base/cpu.h"
#include "kernels/canon.h"

#include <float.h>

void qn_deltanet_kernels_init(qn_deltanet_kernels *kernels, unsigned cpu)
{
    qn_deltanet_init_ref(kernels);
#if QN_X86
    if (cpu & QN_CPU_AVX2)
        qn_deltanet_init_avx2(kernels);
    if (cpu & QN_CPU_AVX512)
        qn_deltanet_init_avx512(kernels);
#elif QN_ARM64
    if (cpu & QN_CPU_NEON)
        qn_deltanet_init_neon(kernels);
#endif
    (void)cpu;
}

float qn_gdn_log_decay(float alpha, float bias, float a)
{
    const double x = (double)alpha + (double)bias;
    /* From 30 on, ln(1 + e^x) is x in any float; and e^x stays finite. */
    const double g = (x > 30 ? x : log1p(exp(x))) * (double)a;
    /* A decay stays finite, so that differences of its sums are numbers: to any state it is the same zero. */
    return g < -(double)FLT_MAX ? -FLT_MAX : (float)g;
}

float qn_gdn_beta(float x)
{
    return 1.0f / (1.0f + qn_exp(-x));
}
