/* Elementwise operations over sixteen-lane vectors; included by one file an instruction set. */
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

QN_INLINE void elementwise_fill(qn_elementwise_kernels *kernels)
{
    *kernels = (qn_elementwise_kernels){ .swiglu = swiglu_simd };
}

#endif
