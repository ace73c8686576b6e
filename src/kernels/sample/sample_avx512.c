/* Passes over logits for AVX-512. */
#define QN_V16_AVX512

#include "kernels/sample/sample_simd.h"

void qn_sample_init_avx512(qn_sample_kernels *kernels)
{
    sample_fill(kernels);
}
