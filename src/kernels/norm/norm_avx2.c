/* RMS normalisation for AVX2. */
#define QN_V16_AVX2

#include "kernels/norm/norm_simd.h"

void qn_norm_init_avx2(qn_norm_kernels *kernels)
{
    norm_fill(kernels);
}
