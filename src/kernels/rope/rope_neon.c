/* Rotary position embedding for NEON. */
#define QN_V16_NEON

#include "kernels/rope/rope_simd.h"

void qn_rope_init_neon(qn_rope_kernels *kernels)
{
    rope_fill(kernels);
}
