/* A recurrent state of the engine on a GPU: S as two planes of fp16, so that kernels that only read S load half of its
 * bytes. The constants, for C and CUDA, and the conversions on the host.
 *
 * A layer's S is hi f16 [v_heads, head_v, head_k], then lo f16 of the same shape: S = hi + lo / QN_GDN_LO_SCALE. hi is
 * S rounded to nearest, lo the scaled rest rounded towards zero; both saturate at +-65504, and NaN stays NaN. The pair
 * has 23 significant bits; below 2^-14 its error is at most 2^-36. f32 holds every pair exactly, and splitting that f32
 * gives the same pair again: a rest rounded towards zero never becomes a tie of hi, which would round to the other
 * side. */
#ifndef QN_GPU_STATE_PLANES_H
#define QN_GPU_STATE_PLANES_H

#define QN_GDN_LO_SCALE 4096.0f
#define QN_GDN_PLANE_MAX 65504.0f

#ifndef __CUDACC__

#include "base/f16.h"

#include <math.h>

static inline float qn_gdn_saturate(float x)
{
    return x > QN_GDN_PLANE_MAX ? QN_GDN_PLANE_MAX : x < -QN_GDN_PLANE_MAX ? -QN_GDN_PLANE_MAX : x;
}

static inline void qn_gdn_split(float x, uint16_t *hi, uint16_t *lo)
{
    *hi = qn_f32_to_f16(qn_gdn_saturate(x));
    const float rest = qn_gdn_saturate((x - qn_f16_to_f32(*hi)) * QN_GDN_LO_SCALE);
    *lo = qn_f32_to_f16(rest);
    if (fabsf(qn_f16_to_f32(*lo)) > fabsf(rest)) /* the next f16 towards zero */
        --*lo;
}

static inline float qn_gdn_join(uint16_t hi, uint16_t lo)
{
    return qn_f16_to_f32(hi) + qn_f16_to_f32(lo) / QN_GDN_LO_SCALE;
}

#endif

#endif
