/* The canonical order of float arithmetic, in scalar form.
 *
 * Every sum over a row is kept in sixteen partial sums: term i goes to partial i mod 16, terms of one partial in rising order,
 * each by one fused multiply-add; then partials 8 apart are added, 4 apart, 2, 1. Sixteen is the width of the widest register
 * in use, and narrower ones hold the sixteen in two or four pieces. Because thread count, batch size and position never enter
 * the order, a result does not depend on them; and since it is the same in all instruction sets, neither on those.
 * kernels/vec16.h is the same in vector registers. */
#ifndef QN_KERNELS_CANON_H
#define QN_KERNELS_CANON_H

#include "base/f16.h"
#include "kernels/exp_cuda.h"

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

/* qn_exp - e^x with a relative error below 2e-7, the same bits as v16_exp. Arguments are clamped to [QN_EXP_MIN, QN_EXP_MAX]:
 * below, the result is 4.5e-38, which no sum with a 1 in it can see. NaN stays NaN. */
static inline float qn_exp(float x)
{
    if (isnan(x))
        return x;
    x = x < QN_EXP_MIN ? QN_EXP_MIN : x > QN_EXP_MAX ? QN_EXP_MAX : x;
    float n;
    const float y = qn_exp_series(x, &n);
    return qn_bits_f32(qn_f32_bits(y) + ((uint32_t)(int32_t)n << 23));
}

/* qn_silu - x / (1 + e^-x), the same bits as v16_silu. */
static inline float qn_silu(float x)
{
    return x / (1.0f + qn_exp(-x));
}

#endif
