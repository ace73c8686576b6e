/* Elementwise operations over sixteen-lane vectors; included by one file per instruction set. */
#ifndef QN_KERNELS_ELEMENTWISE_ELEMENTWISE_SIMD_H
#define QN_KERNELS_ELEMENTWISE_ELEMENTWISE_SIMD_H

#include "kernels/elementwise/elementwise.h"
#include "kernels/vec16.h"

static void swiglu_simd(float *y, const float *gate, const float *up, size_t n)
{
    size_t i = 0;
    for (; i + QN_LANES <= n; i += QN_LANES)
        v16_store(y + i, v16_mul(v16_silu(v16_load(gate + i)), v16_load(up + i)));
    if (i < n)
        v16_store_n(y + i, v16_mul(v16_silu(v16_load_n(gate + i, n - i)), v16_load_n(up + i, n - i)), n - i);
}

QN_INLINE v16 gated(v16 x, v16 gate)
{
    return v16_div(x, v16_add(v16_set1(1.0f), v16_exp(v16_mul(gate, v16_set1(-1.0f)))));
}

static void gate_simd(float *y, const float *x, const float *gate, size_t n)
{
    size_t i = 0;
    for (; i + QN_LANES <= n; i += QN_LANES)
        v16_store(y + i, gated(v16_load(x + i), v16_load(gate + i)));
    if (i < n)
        v16_store_n(y + i, gated(v16_load_n(x + i, n - i), v16_load_n(gate + i, n - i)), n - i);
}

QN_INLINE void elementwise_fill(qn_elementwise_kernels *kernels)
{
    *kernels = (qn_elementwise_kernels){ .swiglu = swiglu_simd, .gate = gate_simd };
}

#endif
