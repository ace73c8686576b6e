/* The canonical order of float arithmetic, in scalar form.
 *
 * Every sum over a row has sixteen partial sums. Term i is added to partial sum i mod 16, in ascending order, by one
 * fused multiply-add each; then partial sums 8 apart are added, then 4, 2 and 1 apart. Sixteen is the width of the
 * widest register in use; narrower instruction sets use two or four registers. The order does not depend on thread
 * count, batch size, position or instruction set, so neither do results. The exception is the arithmetic of
 * kernels/matmul/blocks.h, which one level has for three types. kernels/vec16.h implements the same order in vector
 * registers. */
#ifndef QN_KERNELS_CANON_H
#define QN_KERNELS_CANON_H

#include "base/f16.h"
#include "kernels/exp.h"

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

/* qn_exp - returns e^x with a relative error below 2e-7; v16_exp gives the same bits. Arguments are clamped to
 * [QN_EXP_MIN, QN_EXP_MAX]: below QN_EXP_MIN the result is 4.5e-38, which does not change a sum with a term of 1. NaN
 * stays NaN. */
static inline float qn_exp(float x)
{
    if (isnan(x))
        return x;
    x = x < QN_EXP_MIN ? QN_EXP_MIN : x > QN_EXP_MAX ? QN_EXP_MAX : x;
    float n;
    const float y = qn_exp_series(x, &n);
    return qn_bits_f32(qn_f32_bits(y) + ((uint32_t)(int32_t)n << 23));
}

/* qn_silu - returns x / (1 + e^-x); v16_silu gives the same bits. */
static inline float qn_silu(float x)
{
    return x / (1.0f + qn_exp(-x));
}

#endif
