/* The part of the exponential that every device computes with the same bits, in C and in CUDA. qn_exp of canon.h and
 * the GPU samplers use it. In CUDA it includes no other header. */
#ifndef QN_KERNELS_EXP_H
#define QN_KERNELS_EXP_H

#ifdef __CUDACC__
#define QN_HOST_DEVICE static __device__ __forceinline__
#define QN_FMAF fmaf
#else
#include "base/fmaf.h"
#include <math.h>
#define QN_HOST_DEVICE static inline
#define QN_FMAF qn_fmaf
#endif

/* Bounds between which 2^n stays a normal number. */
#define QN_EXP_MIN (-86.0f)
#define QN_EXP_MAX 88.0f

/* qn_exp_series - returns y in about [0.7, 1.42] and an integer *n with e^x = y 2^n, for x within the bounds. Method: x
 * = n ln 2 + r with |r| <= ln 2 / 2, Taylor series to r^7 (the next term is below 6e-9), ln 2 as the sum of two floats,
 * so that n ln 2 is exact. */
QN_HOST_DEVICE float qn_exp_series(float x, float *n)
{
    *n = rintf(x * 1.44269504f);
    float r = QN_FMAF(*n, -0.693359375f, x);
    r = QN_FMAF(*n, 2.12194440e-4f, r);
    float y = 1.0f / 5040;
    y = QN_FMAF(y, r, 1.0f / 720);
    y = QN_FMAF(y, r, 1.0f / 120);
    y = QN_FMAF(y, r, 1.0f / 24);
    y = QN_FMAF(y, r, 1.0f / 6);
    y = QN_FMAF(y, r, 0.5f);
    y = QN_FMAF(y, r, 1.0f);
    return QN_FMAF(y, r, 1.0f);
}

#endif
