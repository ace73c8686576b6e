/* Gated delta rule for NEON. */
#define QN_V16_NEON
enum { ROWS = 6, VECTORS = 1, WIDE = 2 };

#include "kernels/deltanet/deltanet_simd.h"

void qn_deltanet_init_neon(qn_deltanet_kernels *kernels)
{
    deltanet_init_simd(kernels);
}
