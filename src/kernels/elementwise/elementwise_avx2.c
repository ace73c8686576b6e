/* Elementwise operations for AVX2. */
#define QN_V16_AVX2

#include "kernels/elementwise/elementwise_simd.h"

void qn_elementwise_init_avx2(qn_elementwise_kernels *kernels)
{
    elementwise_fill(kernels);
}
