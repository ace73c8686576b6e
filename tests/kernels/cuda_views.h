/* Rows of any float type at a distance, for checks of quern/cuda.h: what a qn_cuda_view refers to, in guarded memory,
 * and what is expected of it. `what` names the rows in messages. */
#ifndef QN_CHECK_CUDA_VIEWS_H
#define QN_CHECK_CUDA_VIEWS_H

#include "cuda.h"
#include "quern/cuda.h"

/* [n_rows][n] elements, `gap` elements between rows and `shift` before the first, which are poison. */
typedef struct qn_gpu_rows {
    qn_dtype dtype;
    size_t n_rows, n, gap, shift;
    float *values; /* [n_rows][n], rounded to the type; NULL: poison, for outputs */
    qn_gpu_guarded memory;
} qn_gpu_rows;

/* qn_gpu_rows_random - normal values times scale, on the device.
 * qn_gpu_rows_of - copies of x.
 * qn_gpu_rows_poison - all poison. */
qn_gpu_rows qn_gpu_rows_random(qn_dtype dtype, size_t n_rows, size_t n, size_t gap, size_t shift, float scale);
qn_gpu_rows qn_gpu_rows_of(const float *x, qn_dtype dtype, size_t n_rows, size_t n, size_t gap, size_t shift);
qn_gpu_rows qn_gpu_rows_poison(qn_dtype dtype, size_t n_rows, size_t n, size_t gap, size_t shift);

/* qn_gpu_rows_reset - the values, rounded to the type, and poison elsewhere, after the work in the stream. The caller
 * may have changed the values. */
void qn_gpu_rows_reset(const qn_gpu_rows *rows);

void qn_gpu_rows_free(qn_gpu_rows *rows);

/* qn_gpu_rows_view - the view of the rows. */
qn_cuda_view qn_gpu_rows_view(const qn_gpu_rows *rows);

/* qn_gpu_rows_read - the elements on the device, [n_rows][n], which the caller frees. Bytes between and around the rows
 * are unchanged: here and below, the case fails if they are not. */
float *qn_gpu_rows_read(const qn_gpu_rows *rows, const char *what);

/* qn_gpu_rows_expect - each element on the device is within bound[i] of expected[i] after rounding to the type; where
 * bound is negative it is poison: not written. */
void qn_gpu_rows_expect(const qn_gpu_rows *rows, const double *expected, const double *bound, const char *what);

/* qn_gpu_rows_expect_relative - qn_expect_relative of the elements on the device, as rows of n. */
void qn_gpu_rows_expect_relative(const qn_gpu_rows *rows, const float *expected, size_t n, double bound, double worst,
                                 const char *what);

/* qn_gpu_rows_expect_unchanged - the bits on the device are those of qn_gpu_rows_reset. */
void qn_gpu_rows_expect_unchanged(const qn_gpu_rows *rows, const char *what);

/* qn_expect_relative - the error of all rows [n_rows][n], relative to their norm, is at most `bound`, and that of each
 * row `worst`; both plus the rounding to the type. The message has the worst row and its worst element. */
void qn_expect_relative(const float *found, const float *expected, size_t n_rows, size_t n, qn_dtype dtype,
                        double bound, double worst, const char *what);

/* qn_float_name - "f32", "f16" or "bf16".
 * qn_float_rounding - the largest relative error of rounding to the type; 0 for f32. */
const char *qn_float_name(qn_dtype dtype);
double qn_float_rounding(qn_dtype dtype);

/* qn_array_view - all of an array. */
qn_cuda_view qn_array_view(const qn_gpu_guarded *g, qn_dtype dtype);

#endif
