/* Elementwise operations: the reference, plain loops. The SIMD variants must give the same bits. */
#include "kernels/elementwise/elementwise.h"

#include "kernels/canon.h"

static void swiglu_ref(float *y, const float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = qn_silu(gate[i]) * up[i];
}

static void gate_ref(float *y, const float *x, const float *gate, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] / (1.0f + qn_exp(-gate[i]));
}

void qn_elementwise_init_ref(qn_elementwise_kernels *kernels)
{
    *kernels = (qn_elementwise_kernels){ .swiglu = swiglu_ref, .gate = gate_ref };
}
