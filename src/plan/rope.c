/* Frequencies of rotary position embedding, and the components of positions. */
#include "plan/rope.h"

#include "base/real.h"

#include <math.h>

/* The (fractional) index of the pair that makes `turns` full rotations over n_ctx positions. */
static double pair_of_turns(double turns, double base, size_t n_rot, double n_ctx)
{
    const double two_pi = 6.283185307179586;
    return (double)n_rot * qn_real_log(n_ctx / (turns * two_pi)) / (2 * qn_real_log(base));
}

void qn_rope_yarn_ramp(qn_rope_scaling *scaling, double base, size_t n_rot, double original_ctx, double beta_fast,
                       double beta_slow)
{
    const double last = (double)n_rot - 1;
    const double begin = fmin(fmax(floor(pair_of_turns(beta_fast, base, n_rot, original_ctx)), 0), last);
    const double end = fmin(ceil(pair_of_turns(beta_slow, base, n_rot, original_ctx)), last);
    scaling->ramp_begin = begin;
    scaling->ramp_length = fmax(end - begin, 0.001);
}

void qn_rope_pair_components(const qn_rope_sections *sections, size_t n_rot, uint8_t *components)
{
    size_t end = 0;
    for (size_t i = 0; i < n_rot / 2; i++)
        components[i] = (uint8_t)(sections->interleaved && i < 3 * (size_t)sections->pairs[i % 3] ? i % 3 : 0);
    for (size_t c = 0; !sections->interleaved && c < QN_ROPE_COMPONENTS; c++) {
        const size_t begin = end;
        end = begin + sections->pairs[c];
        for (size_t i = begin; i < end && i < n_rot / 2; i++)
            components[i] = (uint8_t)c;
    }
}

void qn_rope_frequencies(double base, const qn_rope_scaling *scaling, const float *freq_factors, size_t n_rot,
                         double *frequencies)
{
    const qn_rope_scaling s = scaling ? *scaling : QN_ROPE_UNSCALED;
    for (size_t i = 0; i < n_rot / 2; i++) {
        const double frequency =
            qn_real_pow(base, -2.0 * (double)i / (double)n_rot) / (freq_factors ? freq_factors[i] : 1.0);
        const double ramp = s.ext_factor > 0 ? fmin(fmax(((double)i - s.ramp_begin) / s.ramp_length, 0), 1) : 1;
        const double kept = s.ext_factor * (1 - ramp);
        frequencies[i] = frequency * (kept + (1 - kept) / s.factor);
    }
}
