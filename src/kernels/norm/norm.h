/* RMS normalisation: y = x * weight / sqrt(mean(x^2) + eps).
 *
 * It is split into two parts, so that several threads can work on a row: the scale, a reduction over the whole row, and
 * its application to any slice. The sum of squares is in canonical order (kernels/canon.h). Zhang and Sennrich, Root
 * Mean Square Layer Normalization (2019). */
#ifndef QN_KERNELS_NORM_NORM_H
#define QN_KERNELS_NORM_NORM_H

#include <stddef.h>

typedef struct qn_norm_kernels {
    /* Returns the sum of squares of x [n]. */
    float (*sum_squares)(const float *x, size_t n);
    /* y[i] = x[i] * scale * weight[i] for i < n; y may be x. */
    void (*scale)(float *y, const float *x, const float *weight, float scale, size_t n);
} qn_norm_kernels;

void qn_norm_kernels_init(qn_norm_kernels *kernels, unsigned cpu);

/* qn_rms_scale - returns 1 / sqrt(mean(x^2) + eps) for x [n], n >= 1. */
float qn_rms_scale(const qn_norm_kernels *kernels, const float *x, size_t n, float eps);

/* qn_rms_norm_row - computes the RMS norm of a whole row, n >= 1; y may be x. */
void qn_rms_norm_row(const qn_norm_kernels *kernels, float *y, const float *x, const float *weight, size_t n,
                     float eps);

void qn_norm_init_ref(qn_norm_kernels *kernels);
void qn_norm_init_avx2(qn_norm_kernels *kernels);
void qn_norm_init_avx512(qn_norm_kernels *kernels);
void qn_norm_init_neon(qn_norm_kernels *kernels);

#endif
