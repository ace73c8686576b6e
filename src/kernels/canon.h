/* The canonical order of float arithmetic, in scalar form.
 *
 * Every sum over a row is kept in sixteen partial sums: term i goes to partial i mod 16, terms of one partial in rising order,
 * each by one fused multiply-add; then partials 8 apart are added, 4 apart, 2, 1. Sixteen is the width of the widest register
 * in use, and narrower ones hold the sixteen in two or four pieces. Because thread count, batch size and position never enter
 * the order, a result does not depend on them; and since it is the same in all instruction sets, neither on those.
 * kernels/vec16.h is the same in vector registers. */
#ifndef QN_KERNELS_CANON_H
#define QN_KERNELS_CANON_H

#include "base/half.h"

#include <math.h>
#include <stddef.h>

enum { QN_LANES = 16 };

static inline float qn_sum16(const float partial[QN_LANES])
{
    float p[QN_LANES / 2];
    for (int i = 0; i < 8; i++)
        p[i] = partial[i] + partial[i + 8];
    for (int width = 4; width; width /= 2)
        for (int i = 0; i < width; i++)
            p[i] += p[i + width];
    return p[0];
}

/* Bounds between which 2^n of qn_exp stays a normal number. */
#define QN_EXP_MIN (-86.0f)
#define QN_EXP_MAX 88.0f

/* qn_exp - e^x with a relative error below 2e-7, the same bits as v16_exp. Arguments are clamped to [QN_EXP_MIN, QN_EXP_MAX]:
 * below, the result is 4.5e-38, which no sum with a 1 in it can see. NaN stays NaN. Method: x = n ln 2 + r with |r| <= ln 2 /
 * 2, Taylor series to r^7 (its next term is below 6e-9), ln 2 in two parts so that n ln 2 is exact. */
static inline float qn_exp(float x)
{
    if (isnan(x))
        return x;
    x = x < QN_EXP_MIN ? QN_EXP_MIN : x > QN_EXP_MAX ? QN_EXP_MAX : x;
    const float n = rintf(x * 1.44269504f);
    float r = fmaf(n, -0.693359375f, x);
    r = fmaf(n, 2.12194440e-4f, r);
    float y = 1.0f / 5040;
    y = fmaf(y, r, 1.0f / 720);
    y = fmaf(y, r, 1.0f / 120);
    y = fmaf(y, r, 1.0f / 24);
    y = fmaf(y, r, 1.0f / 6);
    y = fmaf(y, r, 0.5f);
    y = fmaf(y, r, 1.0f);
    y = fmaf(y, r, 1.0f);
    return qn_bits_f32(qn_f32_bits(y) + ((uint32_t)(int32_t)n << 23));
}

/* qn_silu - x / (1 + e^-x), the same bits as v16_silu. */
static inline float qn_silu(float x)
{
    return x / (1.0f + qn_exp(-x));
}

#endif
