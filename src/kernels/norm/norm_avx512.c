/* RMS normalisation for AVX-512. */
#define QN_V16_AVX512

#include "kernels/norm/norm_simd.h"

void qn_norm_init_avx512(qn_norm_kernels *kernels)
{
    norm_fill(kernels);
}
