/* Rotary position embedding over sixteen-lane vectors; included by one file per instruction set. */
#ifndef QN_KERNELS_ROPE_ROPE_SIMD_H
#define QN_KERNELS_ROPE_ROPE_SIMD_H

#include "kernels/rope/rope.h"
#include "kernels/vec16.h"

QN_INLINE void rotate_pair(v16 *a, v16 *b, v16 c, v16 s)
{
    const v16 minus = v16_set1(-1);
    const v16 rotated = v16_fma(*a, c, v16_mul(v16_mul(*b, s), minus));
    *b = v16_fma(*b, c, v16_mul(*a, s));
    *a = rotated;
}

static void apply_simd(float *x, const float *cosines, const float *sines, size_t n_rot, qn_rope_type mode)
{
    const size_t half = n_rot / 2;
    for (size_t i = 0; i < half; i += QN_LANES) {
        const size_t n = half - i < QN_LANES ? half - i : QN_LANES;
        const v16 c = v16_load_n(cosines + i, n), s = v16_load_n(sines + i, n);
        if (mode == QN_ROPE_TYPE_NEOX) {
            v16 a = v16_load_n(x + i, n), b = v16_load_n(x + half + i, n);
            rotate_pair(&a, &b, c, s);
            v16_store_n(x + i, a, n);
            v16_store_n(x + half + i, b, n);
            continue;
        }
        float even[QN_LANES] = { 0 }, odd[QN_LANES] = { 0 };
        for (size_t k = 0; k < n; k++) {
            even[k] = x[2 * (i + k)];
            odd[k] = x[2 * (i + k) + 1];
        }
        v16 a = v16_load(even), b = v16_load(odd);
        rotate_pair(&a, &b, c, s);
        v16_store(even, a);
        v16_store(odd, b);
        for (size_t k = 0; k < n; k++) {
            x[2 * (i + k)] = even[k];
            x[2 * (i + k) + 1] = odd[k];
        }
    }
}

QN_INLINE void rope_fill(qn_rope_kernels *kernels)
{
    *kernels = (qn_rope_kernels){ .apply = apply_simd };
}

#endif
