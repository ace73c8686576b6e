/* Rows of any float type with a stride, for checks of quern/cuda.h: the data of a qn_cuda_view in an array with guards,
 * and assertions about it. `what` names the rows in messages. */
#ifndef QN_CHECK_CUDA_VIEWS_H
#define QN_CHECK_CUDA_VIEWS_H

#include "cuda.h"
#include "quern/cuda.h"

/* [n_rows][n] elements, with `gap` elements of poison between rows and `shift` before the first row. */
typedef struct qn_gpu_rows {
    qn_dtype dtype;
    size_t n_rows, n, gap, shift;
    float *values; /* [n_rows][n], rounded to the type; NULL: poison, for outputs */
    uint64_t memory;
} qn_gpu_rows;

/* qn_gpu_rows_random - Creates rows of normally distributed values times `scale`, on the device. */
qn_gpu_rows qn_gpu_rows_random(qn_dtype dtype, size_t n_rows, size_t n, size_t gap, size_t shift, float scale);

/* qn_gpu_rows_of - Creates rows with a copy of x. */
qn_gpu_rows qn_gpu_rows_of(const float *x, qn_dtype dtype, size_t n_rows, size_t n, size_t gap, size_t shift);

/* qn_gpu_rows_poison - Creates rows of poison, for outputs. */
qn_gpu_rows qn_gpu_rows_poison(qn_dtype dtype, size_t n_rows, size_t n, size_t gap, size_t shift);

/* qn_gpu_rows_reset - Writes the values, rounded to the type, and poison elsewhere, after the work in the stream. The
 * caller may have changed the values. */
void qn_gpu_rows_reset(const qn_gpu_rows *rows);

/* qn_gpu_rows_draw - Replaces the values by normally distributed ones, and resets the rows. */
void qn_gpu_rows_draw(const qn_gpu_rows *rows, float scale);

/* qn_gpu_rows_view - Returns the view of the rows. */
qn_cuda_view qn_gpu_rows_view(const qn_gpu_rows *rows);

/* qn_gpu_rows_read - Returns the elements on the device, [n_rows][n]; they belong to the case. Here and below, the case
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

/* qn_seqlens_view - Returns the view of an array of the ends of n sequences, the first 0, as I64 or as integers of 32
 * bits. */
qn_cuda_view qn_seqlens_view(const uint32_t *ends, size_t n_sequences, qn_dtype dtype);

/* qn_float_name - Returns "f32", "f16" or "bf16". */
const char *qn_float_name(qn_dtype dtype);

/* qn_float_rounding - Returns the largest relative error of rounding to the type; 0 for f32. */
double qn_float_rounding(qn_dtype dtype);

/* qn_floats_view - Returns a view of n floats. */
static inline qn_view qn_floats_view(void *data, size_t n)
{
    return (qn_view){ data, QN_DTYPE_F32, n };
}

/* qn_array_view - Returns the view of a whole array; of 0, of none. */
qn_cuda_view qn_array_view(uint64_t g, qn_dtype dtype);

#endif
