/* Passes over logits for AVX2. */
#define QN_V16_AVX2

#include "kernels/sample/sample_simd.h"

void qn_sample_init_avx2(qn_sample_kernels *kernels)
{
    sample_fill(kernels);
}
