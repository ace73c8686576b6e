/* Rotary position embedding on the CPU: pairs of a head's values (plan/rope.h) are rotated by the angles of a
 * position. */
#ifndef QN_KERNELS_ROPE_ROPE_H
#define QN_KERNELS_ROPE_ROPE_H

#include "plan/rope.h"

#include <stddef.h>
#include <stdint.h>

typedef struct qn_rope_kernels {
    /* Rotates x [n_rot] in place by angles given as cosines and sines [n_rot/2]. n_rot is even. */
    void (*apply)(float *x, const float *cosines, const float *sines, size_t n_rot, qn_rope_type mode);
} qn_rope_kernels;

void qn_rope_kernels_init(qn_rope_kernels *kernels, unsigned cpu);

/* qn_rope_angles - computes cosines and sines [n_rot/2] of a position's angles, times attn_factor, in double. */
void qn_rope_angles(uint32_t position, const double *frequencies, double attn_factor, size_t n_rot, float *cosines,
                    float *sines);

/* qn_rope_angles_of - does what qn_rope_angles does for a position of several components: pair i has the angle of
 * positions[components[i]]. With equal components the bits are those of qn_rope_angles. */
void qn_rope_angles_of(const uint32_t *positions, const uint8_t *components, const double *frequencies,
                       double attn_factor, size_t n_rot, float *cosines, float *sines);

void qn_rope_init_ref(qn_rope_kernels *kernels);
void qn_rope_init_avx2(qn_rope_kernels *kernels);
void qn_rope_init_avx512(qn_rope_kernels *kernels);
void qn_rope_init_neon(qn_rope_kernels *kernels);

#endif
