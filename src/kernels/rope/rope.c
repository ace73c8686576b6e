/* Rotary position embedding: angles, and the choice of variant. */
#include "kernels/rope/rope.h"

#include "base/cpu.h"

#include <math.h>

void qn_rope_frequencies(double base, double scale, const float *divisors, size_t n_rot, double *frequencies)
{
    for (size_t i = 0; i < n_rot / 2; i++)
        frequencies[i] = scale * pow(base, -2.0 * (double)i / (double)n_rot) / (divisors ? divisors[i] : 1.0);
}

void qn_rope_angles(uint32_t position, const double *frequencies, size_t n_rot, float *cosines, float *sines)
{
    for (size_t i = 0; i < n_rot / 2; i++) {
        const double angle = (double)position * frequencies[i];
        cosines[i] = (float)cos(angle);
        sines[i] = (float)sin(angle);
    }
}

void qn_rope_kernels_init(qn_rope_kernels *kernels, unsigned cpu)
{
    qn_rope_init_ref(kernels);
#if QN_X86
    if (cpu & QN_CPU_AVX2)
        qn_rope_init_avx2(kernels);
    if (cpu & QN_CPU_AVX512)
        qn_rope_init_avx512(kernels);
#elif QN_ARM64
    if (cpu & QN_CPU_NEON)
        qn_rope_init_neon(kernels);
#endif
    (void)cpu;
}
