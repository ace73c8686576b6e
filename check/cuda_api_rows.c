/* Rows of tokens for the checks of quern/cuda.h, and their comparison. */
#include "check/cuda_api.h"

#include "base/f16.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t bytes_of(qn_dtype dtype)
{
    return dtype == QN_DTYPE_F32 || dtype == QN_DTYPE_U32 ? 4 : dtype == QN_DTYPE_F64 ? 8 : 2;
}

static size_t elements(const qn_api_rows *r)
{
    return (r->n - 1) * r->stride + r->row;
}

/* Element i of typed data. */
static float load(const void *data, qn_dtype dtype, size_t i)
{
    if (dtype == QN_DTYPE_F32)
        return ((const float *)data)[i];
    const uint16_t x = ((const uint16_t *)data)[i];
    return dtype == QN_DTYPE_F16 ? qn_f16_to_f32(x) : qn_bf16_to_f32(x);
}

static void store(void *data, qn_dtype dtype, size_t i, float x)
{
    if (dtype == QN_DTYPE_F32)
        ((float *)data)[i] = x;
    else
        ((uint16_t *)data)[i] = dtype == QN_DTYPE_F16 ? qn_f32_to_f16(x) : qn_f32_to_bf16(x);
}

void qn_api_rows_set(qn_api_rows *r, const float *x)
{
    const size_t bytes = elements(r) * bytes_of(r->dtype);
    void *data = qn_xcalloc(bytes, 1);
    memset(data, 0xff, bytes);
    for (size_t i = 0; i < r->n * r->row; i++) {
        const size_t at = i / r->row * r->stride + i % r->row;
        store(data, r->dtype, at, x[i]);
        r->x[i] = load(data, r->dtype, at);
    }
    qn_gpu_synchronize();
    qn_assert_ok(qn_cuda_upload(qn_gpu(), r->gpu.data, data, bytes, NULL, NULL));
    free(data);
}

qn_api_rows qn_api_rows_new(qn_dtype dtype, size_t n, size_t row, size_t gap)
{
    qn_api_rows r = { .dtype = dtype, .n = n, .row = row, .stride = row + gap, .x = qn_xcalloc(n * row, sizeof(float)) };
    r.gpu = qn_gpu_new(elements(&r) * bytes_of(dtype));
    return r;
}

qn_api_rows qn_api_rows_of(const float *x, qn_dtype dtype, size_t n, size_t row, size_t gap)
{
    qn_api_rows r = qn_api_rows_new(dtype, n, row, gap);
    qn_api_rows_set(&r, x);
    return r;
}

void qn_api_rows_read(qn_api_rows *r, const char *name)
{
    const size_t size = bytes_of(r->dtype);
    unsigned char *data = qn_xcalloc(r->gpu.bytes, 1);
    qn_gpu_read(&r->gpu, data);
    for (size_t i = 0; i < elements(r); i++) {
        const size_t row = i / r->stride, column = i % r->stride;
        if (column < r->row) {
            r->x[row * r->row + column] = load(data, r->dtype, i);
            continue;
        }
        for (size_t b = 0; b < size; b++)
            qn_expect(data[i * size + b] == 0xff, "%s: element %zu after row %zu was written", name, column - r->row, row);
    }
    qn_expect(qn_gpu_guards_intact(&r->gpu), "%s: bytes outside the array were written", name);
    free(data);
}

void qn_api_rows_free(qn_api_rows *r)
{
    qn_gpu_free(&r->gpu);
    free(r->x);
    r->x = NULL;
}

qn_cuda_view qn_api_rows_view(const qn_api_rows *r)
{
    return (qn_cuda_view){ (void *)(uintptr_t)r->gpu.data, r->dtype, elements(r), r->stride == r->row ? 0 : r->stride };
}

qn_cuda_view qn_api_view(const qn_gpu_guarded *g, qn_dtype dtype)
{
    return (qn_cuda_view){ (void *)(uintptr_t)g->data, dtype, g->bytes / bytes_of(dtype), 0 };
}

double qn_api_rounding(qn_dtype dtype)
{
    return dtype == QN_DTYPE_F32 ? 0 : dtype == QN_DTYPE_F16 ? 0x1p-11 : 0x1p-8;
}

static double relative(double error, double square)
{
    return square > 0 ? sqrt(error / square) : sqrt(error);
}

void qn_api_expect_rows(const char *name, const float *found, const float *expected, size_t n, size_t row, qn_dtype dtype,
                        double bound, double worst)
{
    const double rounding = qn_api_rounding(dtype);
    double all_error = 0, all_square = 0, worst_error = 0;
    size_t worst_row = 0, worst_at = 0;
    for (size_t i = 0; i < n; i++) {
        double error = 0, square = 0, largest = -1;
        size_t largest_at = i * row;
        for (size_t j = i * row; j < (i + 1) * row; j++) {
            const double x = (double)expected[j], difference = fabs((double)found[j] - x);
            error += difference * difference;
            square += x * x;
            if (!(difference <= largest)) { /* NaN counts as largest */
                largest = difference;
                largest_at = j;
            }
        }
        if (!(relative(error, square) <= worst_error)) {
            worst_error = relative(error, square);
            worst_row = i;
            worst_at = largest_at;
        }
        all_error += error;
        all_square += square;
    }
    const double all = relative(all_error, all_square);
    qn_expect(
        all <= bound + rounding && worst_error <= worst + rounding,
        "%s: error %.2e, expected at most %.1e; of row %zu %.2e, expected at most %.1e, where element %zu is %g, expected %g",
        name, all, bound + rounding, worst_row, worst_error, worst + rounding, worst_at - worst_row * row,
        (double)found[worst_at], (double)expected[worst_at]);
}
