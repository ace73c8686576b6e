/* Passes over rows of logits: the reference, plain loops. The SIMD variants must give the same result. */
#include "kernels/sample/sample.h"

#include "kernels/canon.h"

#include <float.h>

static float maximum_ref(const float *logits, size_t n)
{
    float largest = logits[0];
    for (size_t i = 0; i < n; i++) {
        if (isnan(logits[i]))
            return NAN;
        largest = logits[i] > largest ? logits[i] : largest;
    }
    return largest;
}

static size_t find_ref(const float *logits, size_t n, float value)
{
    size_t i = 0;
    while (i < n && logits[i] != value)
        i++;
    return i;
}

static float softmax_weight(const qn_sample_scale *scale, float logit)
{
    return qn_exp((logit - scale->largest) * scale->inverse);
}

static uint64_t fixed_point_weight(const qn_sample_scale *scale, float logit)
{
    return (uint64_t)(softmax_weight(scale, logit) * scale->unit);
}

static void weigh_ref(const qn_sample_scale *scale, const float *logits, size_t n, uint64_t *weights)
{
    for (size_t i = 0; i < n; i++)
        weights[i] = fixed_point_weight(scale, logits[i]);
}

static uint64_t sum_ref(const qn_sample_scale *scale, const float *logits, size_t n)
{
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += fixed_point_weight(scale, logits[i]);
    return total;
}

static uint64_t sum_above_ref(const qn_sample_scale *scale, const float *logits, size_t n,
                              const float thresholds[QN_SAMPLE_THRESHOLDS], uint64_t sums[QN_SAMPLE_THRESHOLDS])
{
    uint64_t total = 0;
    for (int t = 0; t < QN_SAMPLE_THRESHOLDS; t++)
        sums[t] = 0;
    for (size_t i = 0; i < n; i++) {
        const uint64_t weight = fixed_point_weight(scale, logits[i]);
        total += weight;
        for (int t = 0; t < QN_SAMPLE_THRESHOLDS; t++)
            sums[t] += logits[i] > thresholds[t] ? weight : 0;
    }
    return total;
}

static uint64_t count_above_ref(const float *logits, size_t n, const float thresholds[QN_SAMPLE_THRESHOLDS],
                                uint64_t counts[QN_SAMPLE_THRESHOLDS])
{
    uint64_t total = 0;
    for (int t = 0; t < QN_SAMPLE_THRESHOLDS; t++)
        counts[t] = 0;
    for (size_t i = 0; i < n; i++) {
        total += logits[i] > -INFINITY;
        for (int t = 0; t < QN_SAMPLE_THRESHOLDS; t++)
            counts[t] += logits[i] > thresholds[t];
    }
    return total;
}

static float largest_below_ref(const qn_sample_scale *scale, const float *logits, size_t n, float weight)
{
    float largest = -INFINITY;
    for (size_t i = 0; i < n; i++)
        if (logits[i] > largest && softmax_weight(scale, logits[i]) < weight)
            largest = logits[i];
    return largest;
}

static float least_ref(const float *logits, size_t n)
{
    float least = INFINITY;
    for (size_t i = 0; i < n; i++)
        if (logits[i] > -INFINITY && logits[i] < least)
            least = logits[i];
    return least;
}

static qn_sample_moments moments_ref(const float *logits, size_t n, float largest, float inverse)
{
    qn_sample_moments moments = { 0, 0, 0 };
    for (size_t i = 0; i < n; i++) {
        if (!(logits[i] > -INFINITY))
            continue;
        const uint64_t d = (uint64_t)(fminf(largest - logits[i], FLT_MAX) * inverse);
        moments.n++;
        moments.sum += d;
        moments.squares += d * d;
    }
    return moments;
}

static uint64_t sum_surprisals_ref(const qn_sample_scale *scale, const float *logits, size_t n, uint64_t *total)
{
    uint64_t sum = 0;
    *total = 0;
    for (size_t i = 0; i < n; i++) {
        const uint64_t weight = fixed_point_weight(scale, logits[i]);
        sum += weight * qn_sample_surprisal(scale, logits[i]);
        *total += weight;
    }
    return sum;
}

static size_t select_ref(const float *logits, const uint32_t *ids, size_t n, float above, float up_to, float *out,
                         uint32_t *out_ids)
{
    size_t n_out = 0;
    for (size_t i = 0; i < n; i++)
        if (logits[i] > above && !(logits[i] > up_to)) {
            out[n_out] = logits[i];
            out_ids[n_out++] = ids ? ids[i] : (uint32_t)i;
        }
    return n_out;
}

static size_t select_allowed_ref(const float *logits, const uint32_t *allowed, size_t n, float *out, uint32_t *out_ids)
{
    size_t n_out = 0;
    for (size_t i = 0; i < n; i++)
        if (allowed[i / 32] >> i % 32 & 1) {
            out[n_out] = logits[i];
            out_ids[n_out++] = (uint32_t)i;
        }
    return n_out;
}

void qn_sample_init_ref(qn_sample_kernels *kernels)
{
    *kernels = (qn_sample_kernels){ .maximum = maximum_ref,
                                    .find = find_ref,
                                    .weigh = weigh_ref,
                                    .sum = sum_ref,
                                    .sum_above = sum_above_ref,
                                    .count_above = count_above_ref,
                                    .largest_below = largest_below_ref,
                                    .least = least_ref,
                                    .moments = moments_ref,
                                    .sum_surprisals = sum_surprisals_ref,
                                    .select = select_ref,
                                    .select_allowed = select_allowed_ref };
}
