/* Rotary position embedding: angles, and selection of the variant. */
#include "kernels/rope/rope.h"

#include "base/cpu.h"
#include "base/real.h"

static void set_angle(uint32_t position, double frequency, double attn_factor, float *cosine, float *sine)
{
    const double angle = (double)position * frequency;
    *cosine = (float)(attn_factor * qn_real_cos(angle));
    *sine = (float)(attn_factor * qn_real_sin(angle));
}

void qn_rope_angles(uint32_t position, const double *frequencies, double attn_factor, size_t n_rot, float *cosines,
                    float *sines)
{
    for (size_t i = 0; i < n_rot / 2; i++)
        set_angle(position, frequencies[i], attn_factor, &cosines[i], &sines[i]);
}

void qn_rope_angles_of(const uint32_t *positions, const uint8_t *components, const double *frequencies,
                       double attn_factor, size_t n_rot, float *cosines, float *sines)
{
    for (size_t i = 0; i < n_rot / 2; i++)
        set_angle(positions[components[i]], frequencies[i], attn_factor, &cosines[i], &sines[i]);
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
