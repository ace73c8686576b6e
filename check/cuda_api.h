/* Checks of quern/cuda.h on a GPU, a file a section of that header; and rows of tokens for them: values of any float type with
 * a distance of rows, in guarded device memory. */
#ifndef QN_CHECK_CUDA_API_H
#define QN_CHECK_CUDA_API_H

#include "check/cuda.h"
#include "quern/cuda.h"

/* qn_check_api_* - the sections AURA; attention with rope; matmul; rows; convolution and Hadamard transform. */
void qn_check_api_aura(qn_cuda_kernels *kernels);
void qn_check_api_attention(qn_cuda_kernels *kernels);
void qn_check_api_matmul(qn_cuda_kernels *kernels);
void qn_check_api_rows(qn_cuda_kernels *kernels);
void qn_check_api_conv(qn_cuda_kernels *kernels);

/* qn_bench_api - time the functions that are bound by memory. */
void qn_bench_api(qn_cuda_kernels *kernels);

/* [n][row] values, `stride` elements from a row to the next. Elements between rows are NaN and must stay so. */
typedef struct qn_api_rows {
    qn_dtype dtype;
    size_t n, row, stride;
    float *x; /* [n][row]: the values as rounded to the type; of an output, what was read */
    qn_gpu_guarded gpu;
} qn_api_rows;

/* qn_api_rows_of - copies of x [n][row], rounded; gap: elements between rows, a multiple of 8.
 * qn_api_rows_new - poison, for an output. */
qn_api_rows qn_api_rows_of(const float *x, qn_dtype dtype, size_t n, size_t row, size_t gap);
qn_api_rows qn_api_rows_new(qn_dtype dtype, size_t n, size_t row, size_t gap);

/* qn_api_rows_set - other values for the rows, uploaded when the stream is idle. */
void qn_api_rows_set(qn_api_rows *rows, const float *x);

/* qn_api_rows_read - read the values into x. The case fails, naming `name`, if bytes outside of the rows were written. */
void qn_api_rows_read(qn_api_rows *rows, const char *name);
void qn_api_rows_free(qn_api_rows *rows);

/* qn_api_rows_view - the rows as an argument. */
qn_cuda_view qn_api_rows_view(const qn_api_rows *rows);

/* qn_api_view - all of an array. */
qn_cuda_view qn_api_view(const qn_gpu_guarded *g, qn_dtype dtype);

/* qn_api_rounding - relative error of rounding to a type; 0 for f32. */
double qn_api_rounding(qn_dtype dtype);

/* qn_api_expect_rows - the error of all rows [n][row], relative to their norm, is at most `bound`, and that of each row
 * `worst`; both plus the rounding to the type. The message has the worst row and its worst element. */
void qn_api_expect_rows(const char *name, const float *found, const float *expected, size_t n, size_t row, qn_dtype dtype,
                        double bound, double worst);

#endif
