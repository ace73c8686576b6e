/* Gated delta rule for AVX-512. */
#define QN_V16_AVX512
enum { ROWS = 4, VECTORS = 4, WIDE = 8 };

#include "kernels/deltanet/deltanet_simd.h"

void qn_deltanet_init_avx512(qn_deltanet_kernels *kernels)
{
    deltanet_init_simd(kernels);
}
