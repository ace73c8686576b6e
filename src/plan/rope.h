/* Rotary position embedding: which values of a head are rotated, and by which angles.
 *
 *   QN_ROPE_TYPE_NORM   values 2i and 2i+1 form pair i (interleaved; llama, as GGUF stores its rows)
 *   QN_ROPE_TYPE_NEOX   values i and i + n_rot/2 form pair i (NEOX; qwen2, qwen3)
 *
 * Pair i at position p is rotated by p * base^(-2i/n_rot) / freq_factors[i], reduced by position scaling if there is
 * any. Values with index >= n_rot do not change. Su et al., RoFormer (2021). */
#ifndef QN_PLAN_ROPE_H
#define QN_PLAN_ROPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum qn_rope_type { QN_ROPE_TYPE_NORM, QN_ROPE_TYPE_NEOX } qn_rope_type;

/* Position scaling, for context lengths beyond the training's. Linear scaling divides all frequencies by the factor.
 * YaRN divides only the frequencies of low-frequency pairs, with a linear ramp in between. Peng et al., YaRN (2023). */
typedef struct qn_rope_scaling {
    double factor;      /* 1: none */
    double attn_factor; /* factor of cosines and sines; 1: none */
    double ext_factor;  /* 0: linear; 1: YaRN, high-frequency pairs are not scaled; between: a mix of the two */
    double ramp_begin, ramp_length; /* in pairs: pairs before the ramp are not scaled, frequencies of pairs after it are
                                       divided by factor */
} qn_rope_scaling;

#define QN_ROPE_UNSCALED ((qn_rope_scaling){ .factor = 1, .attn_factor = 1 })

/* qn_rope_yarn_ramp - sets the ramp of a scaling: from the pair with beta_fast rotations over original_ctx positions,
 * rounded down, to the pair with beta_slow rotations, rounded up.
 *
 *   base                   > 1
 *   original_ctx           context length of the training, > 0
 *   beta_fast, beta_slow   beta_fast >= beta_slow > 0 */
void qn_rope_yarn_ramp(qn_rope_scaling *scaling, double base, size_t n_rot, double original_ctx, double beta_fast,
                       double beta_slow);

/* Most components of a position. Text has the same number in all of them; rows of an image have a temporal, a vertical
 * and a horizontal one (M-RoPE). */
enum { QN_ROPE_COMPONENTS = 4 };

/* Which component of a position rotates each pair, as files state it: the number of pairs of each component.
 *
 *   contiguous    pairs [0, pairs[0]) have component 0, the next pairs[1] component 1, and so on (Qwen2-VL)
 *   interleaved   pairs 1, 4, 7, ... below 3 * pairs[1] have component 1, pairs 2, 5, 8, ... below 3 * pairs[2] have
 *                 component 2 (Qwen3-VL, Qwen3.5); pairs[0] and pairs[3] are not read
 *
 * All other pairs have component 0. */
typedef struct qn_rope_sections {
    uint32_t pairs[QN_ROPE_COMPONENTS];
    bool interleaved;
} qn_rope_sections;

/* qn_rope_pair_components - sets components [n_rot/2] to the component of each pair. */
void qn_rope_pair_components(const qn_rope_sections *sections, size_t n_rot, uint8_t *components);

/* qn_rope_frequencies - computes frequencies [n_rot/2]: the angle of pair i between adjacent positions, in radians.
 * scaling and freq_factors [n_rot/2] may each be NULL for none. */
void qn_rope_frequencies(double base, const qn_rope_scaling *scaling, const float *freq_factors, size_t n_rot,
                         double *frequencies);

#endif
