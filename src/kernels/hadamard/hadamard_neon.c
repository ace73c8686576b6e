/* Block Walsh-Hadamard transform for NEON: a pass holds four vectors in sixteen of the thirty-two registers, four per
 * vector. */
#define QN_V16_NEON
#define PASS_VECTORS 4

#include "kernels/vec16.h"

/* Computes a butterfly stage within a vector: each lane becomes its partner's value plus or minus its own: one shuffle
 * and one fused multiply-add, which rounds once like an addition. */
QN_INLINE float32x4_t butterfly_quarter(float32x4_t a, size_t n)
{
    static const float odd[4] = { 1, -1, 1, -1 }, upper[4] = { 1, 1, -1, -1 };
    if (n > 1)
        a = vfmaq_f32(vrev64q_f32(a), a, vld1q_f32(odd));
    if (n > 2)
        a = vfmaq_f32(vextq_f32(a, a, 2), a, vld1q_f32(upper));
    return a;
}

QN_INLINE v16 butterfly_lanes(v16 a, size_t n)
{
    QN_EACH(a, butterfly_quarter(a.q[i], n));
    if (n > 4)
        a = (v16){ { vaddq_f32(a.q[0], a.q[1]), vsubq_f32(a.q[0], a.q[1]), vaddq_f32(a.q[2], a.q[3]),
                     vsubq_f32(a.q[2], a.q[3]) } };
    if (n > 8)
        a = (v16){ { vaddq_f32(a.q[0], a.q[2]), vaddq_f32(a.q[1], a.q[3]), vsubq_f32(a.q[0], a.q[2]),
                     vsubq_f32(a.q[1], a.q[3]) } };
    return a;
}

#include "kernels/hadamard/hadamard_simd.h"

void qn_hadamard_init_neon(qn_hadamard_kernels *kernels)
{
    hadamard_fill(kernels);
}
