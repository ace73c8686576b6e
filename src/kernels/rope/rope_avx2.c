/* Rotary position embedding for AVX2. */
#define QN_V16_AVX2

#include "kernels/rope/rope_simd.h"

void qn_rope_init_avx2(qn_rope_kernels *kernels)
{
    rope_fill(kernels);
}
