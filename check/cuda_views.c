/* Rows of any float type at a distance, in guarded memory. */
#include "check/cuda_views.h"

#include "base/f16.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t size_of(qn_dtype dtype)
{
    return dtype == QN_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t);
}

/* Largest relative error of rounding to the type, and the absolute one of its subnormal numbers. */
static double unit_of(qn_dtype dtype)
{
    return dtype == QN_DTYPE_F32 ? 0 : dtype == QN_DTYPE_F16 ? 0x1p-11 : 0x1p-8;
}

static uint16_t rounded(float x, qn_dtype dtype)
{
    return dtype == QN_DTYPE_F16 ? qn_f32_to_f16(x) : qn_f32_to_bf16(x);
}

static float widened(uint16_t x, qn_dtype dtype)
{
    return dtype == QN_DTYPE_F16 ? qn_f16_to_f32(x) : qn_bf16_to_f32(x);
}

static size_t row_at(const qn_gpu_rows *rows, size_t row)
{
    return rows->shift + row * (rows->n + rows->gap);
}

static size_t elements(const qn_gpu_rows *rows)
{
    return rows->n_rows ? row_at(rows, rows->n_rows - 1) + rows->n : rows->shift;
}

/* The bytes of the memory: poison, and the values, if there are any. */
static uint8_t *image_of(const qn_gpu_rows *rows)
{
    const size_t size = size_of(rows->dtype);
    uint8_t *image = qn_xcalloc(rows->memory.bytes, 1);
    memset(image, 0xff, rows->memory.bytes);
    for (size_t row = 0; rows->values && row < rows->n_rows; row++)
        for (size_t i = 0; i < rows->n; i++) {
            const float x = rows->values[row * rows->n + i];
            const uint16_t h = rounded(x, rows->dtype);
            memcpy(image + (row_at(rows, row) + i) * size, size == sizeof x ? (const void *)&x : (const void *)&h, size);
        }
    return image;
}

void qn_gpu_rows_reset(const qn_gpu_rows *rows)
{
    uint8_t *image = image_of(rows);
    qn_gpu_poison(&rows->memory);
    qn_gpu_synchronize();
    qn_assert_ok(qn_cuda_upload(qn_gpu(), rows->memory.data, image, rows->memory.bytes, NULL, NULL));
    free(image);
}

/* Takes the values. */
static qn_gpu_rows rows_of(float *values, qn_dtype dtype, size_t n_rows, size_t n, size_t gap, size_t shift)
{
    qn_gpu_rows rows = { .dtype = dtype, .n_rows = n_rows, .n = n, .gap = gap, .shift = shift, .values = values };
    for (size_t i = 0; values && dtype != QN_DTYPE_F32 && i < n_rows * n; i++)
        values[i] = widened(rounded(values[i], dtype), dtype);
    const size_t bytes = elements(&rows) * size_of(dtype);
    rows.memory = qn_gpu_new(bytes ? bytes : 1);
    qn_gpu_rows_reset(&rows);
    return rows;
}

qn_gpu_rows qn_gpu_rows_random(qn_dtype dtype, size_t n_rows, size_t n, size_t gap, size_t shift, float scale)
{
    return rows_of(qn_floats_of(n_rows * n, scale), dtype, n_rows, n, gap, shift);
}

qn_gpu_rows qn_gpu_rows_of(const float *x, qn_dtype dtype, size_t n_rows, size_t n, size_t gap, size_t shift)
{
    float *values = qn_xcalloc(n_rows * n + 1, sizeof *values);
    memcpy(values, x, n_rows * n * sizeof *values);
    return rows_of(values, dtype, n_rows, n, gap, shift);
}

qn_gpu_rows qn_gpu_rows_poison(qn_dtype dtype, size_t n_rows, size_t n, size_t gap, size_t shift)
{
    return rows_of(NULL, dtype, n_rows, n, gap, shift);
}

void qn_gpu_rows_free(qn_gpu_rows *rows)
{
    qn_gpu_free(&rows->memory);
    free(rows->values);
}

qn_cuda_view qn_gpu_rows_view(const qn_gpu_rows *rows)
{
    return (qn_cuda_view){ (void *)(uintptr_t)(rows->memory.data + rows->shift * size_of(rows->dtype)), rows->dtype,
                           elements(rows) - rows->shift, rows->gap ? rows->n + rows->gap : 0 };
}

qn_cuda_view qn_array_view(const qn_gpu_guarded *g, qn_dtype dtype, size_t count)
{
    return (qn_cuda_view){ (void *)(uintptr_t)g->data, dtype, count, 0 };
}

const char *qn_float_name(qn_dtype dtype)
{
    return dtype == QN_DTYPE_F32 ? "f32" : dtype == QN_DTYPE_F16 ? "f16" : "bf16";
}

static float element(const qn_gpu_rows *rows, const uint8_t *found, size_t at)
{
    float x;
    uint16_t h;
    if (rows->dtype != QN_DTYPE_F32) {
        memcpy(&h, found + at * sizeof h, sizeof h);
        return widened(h, rows->dtype);
    }
    memcpy(&x, found + at * sizeof x, sizeof x);
    return x;
}

static bool is_poison(const uint8_t *found, size_t first, size_t end)
{
    while (first < end && found[first] == 0xff)
        first++;
    return first == end;
}

void qn_gpu_rows_expect(const qn_gpu_rows *rows, const double *expected, const double *bound, const char *what)
{
    const size_t size = size_of(rows->dtype);
    const double unit = unit_of(rows->dtype), smallest = rows->dtype == QN_DTYPE_F16 ? 0x1p-25 : 0x1p-134;
    uint8_t *found = qn_xcalloc(rows->memory.bytes, 1);
    qn_gpu_read(&rows->memory, found);
    for (size_t row = 0; row < rows->n_rows; row++) {
        const size_t at = row_at(rows, row), end = row + 1 < rows->n_rows ? row_at(rows, row + 1) : elements(rows);
        for (size_t i = 0; i < rows->n; i++) {
            const double e = expected[row * rows->n + i], b = bound[row * rows->n + i];
            if (b < 0) {
                qn_expect(is_poison(found, (at + i) * size, (at + i + 1) * size), "%s: row %zu, element %zu was written: %.9g",
                          what, row, i, (double)element(rows, found, at + i));
                continue;
            }
            const double x = (double)element(rows, found, at + i), allowed = b + (fabs(e) + b) * unit + smallest;
            qn_expect(fabs(x - e) <= allowed, "%s %s: row %zu, element %zu: %.9g, expected %.9g, within %.3g",
                      qn_float_name(rows->dtype), what, row, i, x, e, allowed);
        }
        qn_expect(is_poison(found, (at + rows->n) * size, end * size), "%s: bytes behind row %zu were written", what, row);
    }
    qn_expect(is_poison(found, 0, rows->shift * size) && qn_gpu_guards_intact(&rows->memory),
              "%s: bytes around the rows were written", what);
    free(found);
}
