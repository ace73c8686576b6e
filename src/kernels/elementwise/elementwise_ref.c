/* Elementwise operations: the reference, plain loops in the canonical order that the variants are held to. */
#include "kernels/elementwise/elementwise.h"

#include "kernels/canon.h"

static void swiglu_ref(float *y, const float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = qn_silu(gate[i]) * up[i];
}

void qn_elementwise_init_ref(qn_elementwise_kernels *kernels)
{
    *kernels = (qn_elementwise_kernels){ .swiglu = swiglu_ref };
}
