/* Rotary position embedding: the reference, plain loops in the canonical order. The SIMD variants must give the same
 * bits. */
#include "base/fmaf.h"
#include "kernels/rope/rope.h"

/* Rotates the pairs of a head. The product with the sine is rounded, the one with the cosine is fused into the sum, as
 * in the SIMD variants. */
static void apply_ref(float *x, const float *cosines, const float *sines, size_t n_rot, qn_rope_type mode)
{
    for (size_t i = 0; i < n_rot / 2; i++) {
        float *a = mode == QN_ROPE_TYPE_NORM ? x + 2 * i : x + i;
        float *b = mode == QN_ROPE_TYPE_NORM ? x + 2 * i + 1 : x + i + n_rot / 2;
        const float rotated = qn_fmaf(*a, cosines[i], -*b * sines[i]);
        *b = qn_fmaf(*b, cosines[i], *a * sines[i]);
        *a = rotated;
    }
}

void qn_rope_init_ref(qn_rope_kernels *kernels)
{
    *kernels = (qn_rope_kernels){ .apply = apply_ref };
}
