/* Gated delta rule: selection of the variant, and the gates of a token. */
#include "kernels/deltanet/deltanet.h"

#include "base/cpu.h"
#include "base/real.h"
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
    /* For x > 30, ln(1 + e^x) rounds to x in f32; and exp must not overflow. */
    const double g = (x > 30 ? x : qn_real_log1p(qn_real_exp(x))) * (double)a;
    /* g is clamped to a finite value, so that differences of its sums are not NaN; e^g is 0 either way. */
    return g < -(double)FLT_MAX ? -FLT_MAX : (float)g;
}

float qn_gdn_beta(float x)
{
    return 1.0f / (1.0f + qn_exp(-x));
}
