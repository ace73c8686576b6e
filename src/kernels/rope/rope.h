/* Rotary position embedding: pairs of a head's values are turned by an angle that grows with the position.
 *
 *   QN_ROPE_PAIRS  values 2i and 2i+1 form pair i     (llama, as GGUF stores its rows)
 *   QN_ROPE_HALVES values i and i + n_rot/2 form it   (NEOX; qwen3)
 *
 * Pair i of position p turns by p * scale * base^(-2i/n_rot) / divisor[i]. Values from n_rot on stay. Su et al., RoFormer
 * (2021). */
#ifndef QN_KERNELS_ROPE_ROPE_H
#define QN_KERNELS_ROPE_ROPE_H

#include <stddef.h>
#include <stdint.h>

typedef enum qn_rope_mode { QN_ROPE_PAIRS, QN_ROPE_HALVES } qn_rope_mode;

typedef struct qn_rope_kernels {
    /* Turn x [n_rot] in place by angles given as cosines and sines [n_rot/2]. n_rot is even. */
    void (*apply)(float *x, const float *cosines, const float *sines, size_t n_rot, qn_rope_mode mode);
} qn_rope_kernels;

void qn_rope_kernels_init(qn_rope_kernels *kernels, unsigned cpu);

/* qn_rope_frequencies - how much pair i turns from one position to the next, for i < n_rot/2. divisors [n_rot/2] may be NULL
 * for ones. */
void qn_rope_frequencies(double base, double scale, const float *divisors, size_t n_rot, double *frequencies);

/* qn_rope_angles - cosines and sines [n_rot/2] of a position, computed in double. */
void qn_rope_angles(uint32_t position, const double *frequencies, size_t n_rot, float *cosines, float *sines);

void qn_rope_init_ref(qn_rope_kernels *kernels);
void qn_rope_init_avx2(qn_rope_kernels *kernels);
void qn_rope_init_avx512(qn_rope_kernels *kernels);
void qn_rope_init_neon(qn_rope_kernels *kernels);

#endif
