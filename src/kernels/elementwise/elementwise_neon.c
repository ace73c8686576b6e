/* Elementwise operations for NEON. */
#define QN_V16_NEON

#include "kernels/elementwise/elementwise_simd.h"

void qn_elementwise_init_neon(qn_elementwise_kernels *kernels)
{
    elementwise_fill(kernels);
}
