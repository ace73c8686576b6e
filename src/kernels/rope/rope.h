/* Rotary position embedding: pairs of a head's values are turned by an angle that grows with the position.
 *
 *   QN_ROPE_TYPE_NORM  values 2i and 2i+1 form pair i     (llama, as GGUF stores its rows)
 *   QN_ROPE_TYPE_NEOX values i and i + n_rot/2 form it   (NEOX; qwen3)
 *
 * Pair i of position p turns by p * base^(-2i/n_rot) / divisor[i], less where positions are scaled. Values from n_rot on stay.
 * Su et al., RoFormer (2021). */
#ifndef QN_KERNELS_ROPE_ROPE_H
#define QN_KERNELS_ROPE_ROPE_H

#include <stddef.h>
#include <stdint.h>

typedef enum qn_rope_type { QN_ROPE_TYPE_NORM, QN_ROPE_TYPE_NEOX } qn_rope_type;

typedef struct qn_rope_kernels {
    /* Turn x [n_rot] in place by angles given as cosines and sines [n_rot/2]. n_rot is even. */
    void (*apply)(float *x, const float *cosines, const float *sines, size_t n_rot, qn_rope_type mode);
} qn_rope_kernels;

void qn_rope_kernels_init(qn_rope_kernels *kernels, unsigned cpu);

/* Scaling of positions, which a model needs beyond the context of its training. Linear scaling divides all frequencies by the
 * factor. YaRN divides those of slow pairs alone, with a linear ramp over the pairs between. Peng et al., YaRN (2023). */
typedef struct qn_rope_scaling {
    double factor;                  /* 1: none */
    double attn_factor;             /* cosines and sines are multiplied by it; 1: none */
    double ext_factor;              /* 0: linear; 1: YaRN, whose fast pairs keep their frequency; between, a mix of the two */
    double ramp_begin, ramp_length; /* in pairs; before it a pair keeps its frequency, after it the frequency is divided */
} qn_rope_scaling;

#define QN_ROPE_UNSCALED ((qn_rope_scaling){ .factor = 1, .attn_factor = 1 })

/* qn_rope_yarn_ramp - fill in the ramp: from the pair that turns beta_fast times over the context of the training, rounded
 * down, to the one that turns beta_slow times, rounded up. base > 1, original_ctx > 0, beta_fast >= beta_slow > 0. */
void qn_rope_yarn_ramp(qn_rope_scaling *scaling, double base, size_t n_rot, double original_ctx, double beta_fast,
                       double beta_slow);

/* qn_rope_frequencies - how much pair i turns from one position to the next, for i < n_rot/2. scaling and divisors [n_rot/2]
 * may be NULL for none. */
void qn_rope_frequencies(double base, const qn_rope_scaling *scaling, const float *freq_factors, size_t n_rot,
                         double *frequencies);

/* qn_rope_angles - cosines and sines [n_rot/2] of a position times attn_factor, computed in double. */
void qn_rope_angles(uint32_t position, const double *frequencies, double attn_factor, size_t n_rot, float *cosines,
                    float *sines);

void qn_rope_init_ref(qn_rope_kernels *kernels);
void qn_rope_init_avx2(qn_rope_kernels *kernels);
void qn_rope_init_avx512(qn_rope_kernels *kernels);
void qn_rope_init_neon(qn_rope_kernels *kernels);

#endif
