/* RMS normalisation for NEON. */
#define QN_V16_NEON

#include "kernels/norm/norm_simd.h"

void qn_norm_init_neon(qn_norm_kernels *kernels)
{
    norm_fill(kernels);
}
