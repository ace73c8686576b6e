/* Rows of any float type with a stride, for checks of quern/cuda.h: the data of a qn_cuda_view in guarded memory, and
 * assertions about it. `what` names the rows in messages. */
#ifndef QN_CHECK_CUDA_VIEWS_H
#define QN_CHECK_CUDA_VIEWS_H

#include "cuda.h"
#include "quern/cuda.h"

/* [n_rows][n] elements, with `gap` elements of poison between rows and `shift` before the first row. */
typedef struct qn_gpu_rows {
    qn_dtype dtype;
    size_t n_rows, n, gap, shift;
    float *values; /* [n_rows][n], rounded to the type; NULL: poison, for outputs */
    qn_gpu_guarded memory;
} qn_gpu_rows;

/* qn_gpu_rows_random - Creates rows of normally distributed values times `scale`, on the device. Free with
 * qn_gpu_rows_free. */
qn_gpu_rows qn_gpu_rows_random(qn_dtype dtype, size_t n_rows, size_t n, size_t gap, size_t shift, float scale);

/* qn_gpu_rows_of - Creates rows with a copy of x. */
qn_gpu_rows qn_gpu_rows_of(const float *x, qn_dtype dtype, size_t n_rows, size_t n, size_t gap, size_t shift);

/* qn_gpu_rows_poison - Creates rows of poison, for outputs. */
qn_gpu_rows qn_gpu_rows_poison(qn_dtype dtype, size_t n_rows, size_t n, size_t gap, size_t shift);

/* qn_gpu_rows_reset - Writes the values, rounded to the type, and poison elsewhere, after the work in the stream. The
 * caller may have changed the values. */
void qn_gpu_rows_reset(const qn_gpu_rows *rows);

void qn_gpu_rows_free(qn_gpu_rows *rows);

/* qn_gpu_rows_view - Returns the view of the rows. */
qn_cuda_view qn_gpu_rows_view(const qn_gpu_rows *rows);

/* qn_gpu_rows_read - Returns the elements on the device, [n_rows][n]; the caller frees them. Here and below, the case
 * fails if bytes between or around the rows have changed. */
float *qn_gpu_rows_read(const qn_gpu_rows *rows, const char *what);

/* qn_gpu_rows_expect - Asserts that each element on the device is within bound[i] of expected[i] after rounding to the
 * type, or, if bound[i] is negative, that it was not written. */
void qn_gpu_rows_expect(const qn_gpu_rows *rows, const double *expected, const double *bound, const char *what);

/* qn_gpu_rows_expect_relative - Asserts qn_expect_relative of the elements on the device, as rows of n. */
void qn_gpu_rows_expect_relative(const qn_gpu_rows *rows, const float *expected, size_t n, double bound, double worst,
                                 const char *what);

/* qn_gpu_rows_expect_unchanged - Asserts that the bits on the device are as qn_gpu_rows_reset has written them. */
void qn_gpu_rows_expect_unchanged(const qn_gpu_rows *rows, const char *what);

/* qn_expect_relative - Asserts that the error of all rows [n_rows][n], relative to their norm, is at most `bound`, and
 * the error of each row at most `worst`; both plus the rounding to the type. The message has the worst row and its
 * worst element. */
void qn_expect_relative(const float *found, const float *expected, size_t n_rows, size_t n, qn_dtype dtype,
                        double bound, double worst, const char *what);

/* qn_float_name - Returns "f32", "f16" or "bf16". */
const char *qn_float_name(qn_dtype dtype);

/* qn_float_rounding - Returns the largest relative error of rounding to the type; 0 for f32. */
double qn_float_rounding(qn_dtype dtype);

/* qn_array_view - Returns the view of a whole array. */
qn_cuda_view qn_array_view(const qn_gpu_guarded *g, qn_dtype dtype);

#endif
