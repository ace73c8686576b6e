/* Rotary position embedding for AVX-512. */
#define QN_V16_AVX512

#include "kernels/rope/rope_simd.h"

void qn_rope_init_avx512(qn_rope_kernels *kernels)
{
    rope_fill(kernels);
}
