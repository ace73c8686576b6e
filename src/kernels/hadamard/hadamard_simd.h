/* Block Walsh-Hadamard transform over sixteen-lane vectors; included by one file per instruction set, which defines
 *
 *   PASS_VECTORS              vectors transformed together in registers, 4 or 8
 *   butterfly_lanes(v16, n)   the butterflies inside a vector, with strides 1, 2, ... below n <= 16
 *
 * A plain loop over the stages is bound by loads and stores. A pass over the data therefore does as many stages as fit
 * in registers: the first pass all strides inside PASS_VECTORS contiguous vectors, each later pass log2(PASS_VECTORS)
 * more strides between vectors further apart. */
#ifndef QN_KERNELS_HADAMARD_HADAMARD_SIMD_H
#define QN_KERNELS_HADAMARD_HADAMARD_SIMD_H

#include "kernels/hadamard/hadamard.h"
#include "kernels/vec16.h"

#include <stdbool.h>

/* Factors applied by the first and the last pass. */
struct scaling {
    const float *before, *after; /* [block] signs, or NULL */
    float scale;
    bool last; /* this pass is the last one: apply scale and after */
};

/* Butterflies between n vectors; n and distance are compile-time constants at every call. */
QN_INLINE void butterfly_vectors(v16 *v, size_t n, size_t distance)
{
    QN_UNROLLED
    for (size_t pair = 0; pair < n / 2; pair++) {
        const size_t i = pair / distance * 2 * distance + pair % distance;
        const v16 a = v[i], b = v[i + distance];
        v[i] = v16_add(a, b);
        v[i + distance] = v16_fma(b, v16_set1(-1), a); /* a - b, rounded once */
    }
}

QN_INLINE void multiply_vectors(v16 *v, size_t n, const float *by, size_t stride)
{
    QN_UNROLLED
    for (size_t i = 0; i < n; i++)
        v[i] = v16_mul(v[i], v16_load(by + i * stride));
}

/* Makes one pass over n vectors that are `stride` floats apart; n and first are compile-time constants at every
 * call. */
QN_INLINE void pass(float *x, size_t stride, size_t n, bool first, size_t at, const struct scaling *scaling)
{
    v16 v[PASS_VECTORS];
    QN_UNROLLED
    for (size_t i = 0; i < n; i++)
        v[i] = v16_load(x + at + i * stride);
    if (first && scaling->before)
        multiply_vectors(v, n, scaling->before + at, stride);
    if (first) {
        QN_UNROLLED
        for (size_t i = 0; i < n; i++)
            v[i] = butterfly_lanes(v[i], QN_LANES);
    }
    if (n > 1)
        butterfly_vectors(v, n, 1);
    if (n > 2)
        butterfly_vectors(v, n, 2);
    if (n > 4)
        butterfly_vectors(v, n, 4);
    if (scaling->last) {
        QN_UNROLLED
        for (size_t i = 0; i < n; i++)
            v[i] = v16_mul(v[i], v16_set1(scaling->scale));
    }
    if (scaling->last && scaling->after)
        multiply_vectors(v, n, scaling->after + at, stride);
    QN_UNROLLED
    for (size_t i = 0; i < n; i++)
        v16_store(x + at + i * stride, v[i]);
}

QN_INLINE void pass_dispatch(float *x, size_t stride, size_t n, bool first, size_t at, const struct scaling *scaling)
{
    switch (n) {
    case 1: pass(x, stride, 1, first, at, scaling); break;
    case 2: pass(x, stride, 2, first, at, scaling); break;
#if PASS_VECTORS > 4
    case 4: pass(x, stride, 4, first, at, scaling); break;
#endif
    default: pass(x, stride, PASS_VECTORS, first, at, scaling); break;
    }
}

static void short_block(float *x, size_t n, const float *before, const float *after)
{
    v16 v = v16_load_n(x, n);
    if (before)
        v = v16_mul(v, v16_load_n(before, n));
    v = v16_mul(butterfly_lanes(v, n), v16_set1(qn_hadamard_scale(n)));
    v16_store_n(x, after ? v16_mul(v, v16_load_n(after, n)) : v, n);
}

static void block_simd(float *x, size_t n, const float *signs_before, const float *signs_after)
{
    if (n < QN_LANES) {
        short_block(x, n, signs_before, signs_after);
        return;
    }
    struct scaling scaling = { signs_before, signs_after, qn_hadamard_scale(n), n <= PASS_VECTORS * QN_LANES };
    size_t span = scaling.last ? n : PASS_VECTORS * QN_LANES; /* floats of the sub-transforms completed so far */
    for (size_t at = 0; at < n; at += span)
        pass_dispatch(x, QN_LANES, span / QN_LANES, true, at, &scaling);
    for (size_t radix; span < n; span *= radix) {
        radix = n / span < PASS_VECTORS ? n / span : PASS_VECTORS;
        scaling.last = span * radix == n;
        for (size_t first = 0; first < n; first += span * radix)
            for (size_t at = first; at < first + span; at += QN_LANES)
                pass_dispatch(x, span, radix, false, at, &scaling);
    }
}

QN_INLINE void hadamard_fill(qn_hadamard_kernels *kernels)
{
    *kernels = (qn_hadamard_kernels){ .block = block_simd };
}

#endif
