/* Gated delta rule for AVX2. */
#define QN_V16_AVX2
enum { ROWS = 6, VECTORS = 1, WIDE = 2 };

#include "kernels/deltanet/deltanet_simd.h"

void qn_deltanet_init_avx2(qn_deltanet_kernels *kernels)
{
    deltanet_init_simd(kernels);
}
