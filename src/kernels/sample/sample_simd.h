/* Passes over rows of logits in sixteen-lane vectors; included by one file per instruction set. */
#ifndef QN_KERNELS_SAMPLE_SAMPLE_SIMD_H
#define QN_KERNELS_SAMPLE_SAMPLE_SIMD_H

#include "kernels/sample/sample.h"
#include "kernels/vec16.h"

#include <float.h>

/* Loads the last n < 16 logits; the lanes after them are -inf, whose weight is 0. */
QN_INLINE v16 load_last(const float *logits, size_t n)
{
    float lanes[QN_LANES];
    for (size_t i = 0; i < QN_LANES; i++)
        lanes[i] = i < n ? logits[i] : -INFINITY;
    return v16_load(lanes);
}

static float maximum_simd(const float *logits, size_t n)
{
    v16 largest = v16_set1(-INFINITY), second = largest;
    v16m nan = v16m_none();
    size_t i = 0;
    for (; i + 2 * QN_LANES <= n; i += 2 * QN_LANES) {
        const v16 a = v16_load(logits + i), b = v16_load(logits + i + QN_LANES);
        nan = v16m_or(nan, v16m_or(v16_is_nan(a), v16_is_nan(b)));
        largest = v16_max(largest, a);
        second = v16_max(second, b);
    }
    for (; i < n; i += QN_LANES) {
        const v16 a = i + QN_LANES <= n ? v16_load(logits + i) : load_last(logits + i, n - i);
        nan = v16m_or(nan, v16_is_nan(a));
        largest = v16_max(largest, a);
    }
    return v16m_bits(nan) ? NAN : v16_hmax(v16_max(largest, second));
}

static size_t find_simd(const float *logits, size_t n, float value)
{
    const v16 wanted = v16_set1(value);
    size_t i = 0;
    for (; i + QN_LANES <= n; i += QN_LANES) {
        const uint32_t bits = v16m_bits(v16_equal(v16_load(logits + i), wanted));
        if (bits)
            return i + (size_t)__builtin_ctz(bits);
    }
    while (i < n && logits[i] != value)
        i++;
    return i;
}

struct scale_simd {
    v16 minus_largest, inverse, unit;
};

QN_INLINE struct scale_simd load_scale(const qn_sample_scale *scale)
{
    return (struct scale_simd){ v16_set1(-scale->largest), v16_set1(scale->inverse), v16_set1(scale->unit) };
}

QN_INLINE v16 softmax_weights(const struct scale_simd *s, v16 logits)
{
    return v16_exp(v16_mul(v16_add(logits, s->minus_largest), s->inverse));
}

QN_INLINE v16u fixed_point_weights(const struct scale_simd *s, v16 logits)
{
    return v16_to_u64(v16_mul(softmax_weights(s, logits), s->unit));
}

static void weigh_simd(const qn_sample_scale *scale, const float *logits, size_t n, uint64_t *weights)
{
    const struct scale_simd s = load_scale(scale);
    size_t i = 0;
    for (; i + QN_LANES <= n; i += QN_LANES)
        v16u_store(weights + i, fixed_point_weights(&s, v16_load(logits + i)));
    if (i < n) {
        uint64_t last[QN_LANES];
        v16u_store(last, fixed_point_weights(&s, load_last(logits + i, n - i)));
        memcpy(weights + i, last, (n - i) * sizeof *weights);
    }
}

static uint64_t sum_simd(const qn_sample_scale *scale, const float *logits, size_t n)
{
    const struct scale_simd s = load_scale(scale);
    v16u_sum total = v16u_zero();
    size_t i = 0;
    for (; i + QN_LANES <= n; i += QN_LANES)
        total = v16u_add(total, fixed_point_weights(&s, v16_load(logits + i)));
    if (i < n)
        total = v16u_add(total, fixed_point_weights(&s, load_last(logits + i, n - i)));
    return v16u_total(total);
}

QN_INLINE void add_above(v16u_sum above[QN_SAMPLE_THRESHOLDS], const v16 thresholds[QN_SAMPLE_THRESHOLDS], v16 x,
                         v16u weights)
{
    QN_UNROLLED
    for (int t = 0; t < QN_SAMPLE_THRESHOLDS; t++)
        above[t] = v16u_add_if(above[t], v16_greater(x, thresholds[t]), weights);
}

static uint64_t sum_above_simd(const qn_sample_scale *scale, const float *logits, size_t n,
                               const float thresholds[QN_SAMPLE_THRESHOLDS], uint64_t sums[QN_SAMPLE_THRESHOLDS])
{
    const struct scale_simd s = load_scale(scale);
    v16 bounds[QN_SAMPLE_THRESHOLDS];
    v16u_sum total = v16u_zero(), above[QN_SAMPLE_THRESHOLDS];
    QN_UNROLLED
    for (int t = 0; t < QN_SAMPLE_THRESHOLDS; t++) {
        bounds[t] = v16_set1(thresholds[t]);
        above[t] = v16u_zero();
    }
    size_t i = 0;
    for (; i + QN_LANES <= n; i += QN_LANES) {
        const v16 x = v16_load(logits + i);
        const v16u weights = fixed_point_weights(&s, x);
        total = v16u_add(total, weights);
        add_above(above, bounds, x, weights);
    }
    if (i < n) {
        const v16 x = load_last(logits + i, n - i);
        const v16u weights = fixed_point_weights(&s, x);
        total = v16u_add(total, weights);
        add_above(above, bounds, x, weights);
    }
    QN_UNROLLED
    for (int t = 0; t < QN_SAMPLE_THRESHOLDS; t++)
        sums[t] = v16u_total(above[t]);
    return v16u_total(total);
}

static uint64_t count_above_simd(const float *logits, size_t n, const float thresholds[QN_SAMPLE_THRESHOLDS],
                                 uint64_t counts[QN_SAMPLE_THRESHOLDS])
{
    const v16 lowest = v16_set1(-INFINITY);
    v16 bounds[QN_SAMPLE_THRESHOLDS];
    uint64_t total = 0;
    QN_UNROLLED
    for (int t = 0; t < QN_SAMPLE_THRESHOLDS; t++) {
        bounds[t] = v16_set1(thresholds[t]);
        counts[t] = 0;
    }
    for (size_t i = 0; i < n; i += QN_LANES) {
        const v16 x = i + QN_LANES <= n ? v16_load(logits + i) : load_last(logits + i, n - i);
        total += (uint64_t)__builtin_popcount(v16m_bits(v16_greater(x, lowest)));
        QN_UNROLLED
        for (int t = 0; t < QN_SAMPLE_THRESHOLDS; t++)
            counts[t] += (uint64_t)__builtin_popcount(v16m_bits(v16_greater(x, bounds[t])));
    }
    return total;
}

static float largest_below_simd(const qn_sample_scale *scale, const float *logits, size_t n, float weight)
{
    const struct scale_simd s = load_scale(scale);
    const v16 bound = v16_set1(weight), none = v16_set1(-INFINITY);
    v16 largest = none;
    for (size_t i = 0; i < n; i += QN_LANES) {
        const v16 x = i + QN_LANES <= n ? v16_load(logits + i) : load_last(logits + i, n - i);
        largest = v16_max(largest, v16_select(v16_greater(bound, softmax_weights(&s, x)), x, none));
    }
    return v16_hmax(largest);
}

static float least_simd(const float *logits, size_t n)
{
    const v16 excluded = v16_set1(-INFINITY), none = v16_set1(INFINITY), negative = v16_set1(-1);
    v16 least = none;
    for (size_t i = 0; i < n; i += QN_LANES) {
        const v16 x = i + QN_LANES <= n ? v16_load(logits + i) : load_last(logits + i, n - i);
        least = v16_min(least, v16_select(v16_greater(x, excluded), x, none));
    }
    return -v16_hmax(v16_mul(least, negative));
}

static qn_sample_moments moments_simd(const float *logits, size_t n, float largest, float inverse)
{
    const v16 from = v16_set1(largest), most = v16_set1(FLT_MAX), excluded = v16_set1(-INFINITY),
              negative = v16_set1(-1), scale = v16_set1(inverse);
    v16u_sum sum = v16u_zero(), squares = v16u_zero();
    uint64_t n_finite = 0;
    for (size_t i = 0; i < n; i += QN_LANES) {
        const v16 x = i + QN_LANES <= n ? v16_load(logits + i) : load_last(logits + i, n - i);
        const v16m finite = v16_greater(x, excluded);
        const v16u d = v16_to_u64(v16_mul(v16_min(v16_add(from, v16_mul(x, negative)), most), scale));
        sum = v16u_add_if(sum, finite, d);
        squares = v16u_add_if(squares, finite, v16u_mul(d, d));
        n_finite += (uint64_t)__builtin_popcount(v16m_bits(finite));
    }
    return (qn_sample_moments){ n_finite, v16u_total(sum), v16u_total(squares) };
}

static uint64_t sum_surprisals_simd(const qn_sample_scale *scale, const float *logits, size_t n, uint64_t *total)
{
    const struct scale_simd s = load_scale(scale);
    const v16 units = v16_set1(-1024.0f), most = v16_set1((float)QN_SAMPLE_SURPRISALS);
    v16u_sum sum = v16u_zero(), all = v16u_zero();
    for (size_t i = 0; i < n; i += QN_LANES) {
        const v16 x = i + QN_LANES <= n ? v16_load(logits + i) : load_last(logits + i, n - i);
        const v16 surprisals = v16_mul(v16_mul(v16_add(x, s.minus_largest), s.inverse), units);
        const v16u weights = fixed_point_weights(&s, x);
        sum = v16u_add(sum, v16u_mul(weights, v16_to_u64(v16_min(surprisals, most))));
        all = v16u_add(all, weights);
    }
    *total = v16u_total(all);
    return v16u_total(sum);
}

static const int32_t first_indices[QN_LANES] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };

/* Selects in order. Each vector is loaded before a result is stored at its place, and the number stored never exceeds
 * the number loaded, so the result may overwrite the logits. */
static size_t select_simd(const float *logits, const uint32_t *ids, size_t n, float above, float up_to, float *out,
                          uint32_t *out_ids)
{
    const v16 low = v16_set1(above), high = v16_set1(up_to);
    const v16i step = v16i_set1(QN_LANES);
    v16i indices = v16i_load(first_indices);
    size_t n_out = 0, i = 0;
    for (; i + QN_LANES <= n; i += QN_LANES, indices = v16i_add(indices, step)) {
        const v16 x = v16_load(logits + i);
        const uint32_t bits = v16m_bits(v16_greater(x, low)) & ~v16m_bits(v16_greater(x, high));
        if (!bits)
            continue;
        const v16i own = ids ? v16i_load((const int32_t *)(const void *)(ids + i)) : indices;
        v16_pack(out + n_out, x, bits);
        v16i_pack((int32_t *)(void *)(out_ids + n_out), own, bits);
        n_out += (size_t)__builtin_popcount(bits);
    }
    for (; i < n; i++)
        if (logits[i] > above && !(logits[i] > up_to)) {
            out[n_out] = logits[i];
            out_ids[n_out++] = ids ? ids[i] : (uint32_t)i;
        }
    return n_out;
}

static size_t select_allowed_simd(const float *logits, const uint32_t *allowed, size_t n, float *out, uint32_t *out_ids)
{
    const v16i first = v16i_load(first_indices);
    size_t n_out = 0, i = 0;
    for (; i + 32 <= n; i += 32) {
        const uint32_t word = allowed[i / 32];
        if (!word)
            continue;
        for (uint32_t half = 0; half < 32; half += QN_LANES) {
            const uint32_t bits = word >> half & 0xffff;
            v16_pack(out + n_out, v16_load(logits + i + half), bits);
            v16i_pack((int32_t *)(void *)(out_ids + n_out), v16i_add(first, v16i_set1((int32_t)(i + half))), bits);
            n_out += (size_t)__builtin_popcount(bits);
        }
    }
    for (; i < n; i++)
        if (allowed[i / 32] >> i % 32 & 1) {
            out[n_out] = logits[i];
            out_ids[n_out++] = (uint32_t)i;
        }
    return n_out;
}

QN_INLINE void sample_fill(qn_sample_kernels *kernels)
{
    *kernels = (qn_sample_kernels){ .maximum = maximum_simd,
                                    .find = find_simd,
                                    .weigh = weigh_simd,
                                    .sum = sum_simd,
                                    .sum_above = sum_above_simd,
                                    .count_above = count_above_simd,
                                    .largest_below = largest_below_simd,
                                    .least = least_simd,
                                    .moments = moments_simd,
                                    .sum_surprisals = sum_surprisals_simd,
                                    .select = select_simd,
                                    .select_allowed = select_allowed_simd };
}

#endif
