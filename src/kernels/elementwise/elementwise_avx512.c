/* Elementwise operations for AVX-512. */
#define QN_V16_AVX512

#include "kernels/elementwise/elementwise_simd.h"

void qn_elementwise_init_avx512(qn_elementwise_kernels *kernels)
{
    elementwise_fill(kernels);
}
