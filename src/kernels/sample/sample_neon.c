/* Passes over logits for NEON. */
#define QN_V16_NEON

#include "kernels/sample/sample_simd.h"

void qn_sample_init_neon(qn_sample_kernels *kernels)
{
    sample_fill(kernels);
}
