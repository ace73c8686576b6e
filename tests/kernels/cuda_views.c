/* Rows of any float type with a stride, in guarded memory. */
#include "cuda_views.h"

#include "base/f16.h"
#include "quant/quant.h"

static size_t size_of(qn_dtype dtype)
{
    return dtype == QN_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t);
}

double qn_float_rounding(qn_dtype dtype)
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
    uint8_t *image = qn_new(qn_gpu_bytes(rows->memory), 1);
    memset(image, 0xff, qn_gpu_bytes(rows->memory));
    for (size_t row = 0; rows->values && row < rows->n_rows; row++)
        for (size_t i = 0; i < rows->n; i++) {
            const float x = rows->values[row * rows->n + i];
            const uint16_t h = rounded(x, rows->dtype);
            memcpy(image + (row_at(rows, row) + i) * size, size == sizeof x ? (const void *)&x : (const void *)&h,
                   size);
        }
    return image;
}

void qn_gpu_rows_reset(const qn_gpu_rows *rows)
{
    for (size_t i = 0; rows->values && rows->dtype != QN_DTYPE_F32 && i < rows->n_rows * rows->n; i++)
        rows->values[i] = widened(rounded(rows->values[i], rows->dtype), rows->dtype);
    const size_t mark = qn_mark();
    qn_gpu_poison(rows->memory);
    qn_gpu_write(rows->memory, image_of(rows), qn_gpu_bytes(rows->memory));
    qn_release_to(mark);
}

void qn_gpu_rows_draw(const qn_gpu_rows *rows, float scale)
{
    qn_random_floats(rows->values, rows->n_rows * rows->n, scale);
    qn_gpu_rows_reset(rows);
}

/* Takes the values. */
static qn_gpu_rows rows_of(float *values, qn_dtype dtype, size_t n_rows, size_t n, size_t gap, size_t shift)
{
    qn_gpu_rows rows = { .dtype = dtype, .n_rows = n_rows, .n = n, .gap = gap, .shift = shift, .values = values };
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
    float *values = qn_floats(n_rows * n + 1);
    memcpy(values, x, n_rows * n * sizeof *values);
    return rows_of(values, dtype, n_rows, n, gap, shift);
}

qn_gpu_rows qn_gpu_rows_poison(qn_dtype dtype, size_t n_rows, size_t n, size_t gap, size_t shift)
{
    return rows_of(NULL, dtype, n_rows, n, gap, shift);
}

qn_cuda_view qn_gpu_rows_view(const qn_gpu_rows *rows)
{
    return (qn_cuda_view){ (void *)(uintptr_t)(rows->memory + rows->shift * size_of(rows->dtype)), rows->dtype,
                           elements(rows) - rows->shift, rows->gap ? rows->n + rows->gap : 0 };
}

qn_cuda_view qn_array_view(uint64_t g, qn_dtype dtype)
{
    const qn_type_info *type = qn_type_find((uint32_t)dtype); /* NULL: integers and f64 */
    const size_t size = dtype == QN_DTYPE_I64 || dtype == QN_DTYPE_F64 ? 8 : 4;
    const size_t count = type ? qn_gpu_bytes(g) / type->block_bytes * type->block_weights : qn_gpu_bytes(g) / size;
    return (qn_cuda_view){ (void *)(uintptr_t)g, dtype, count, 0 };
}

qn_cuda_view qn_seqlens_view(const uint32_t *ends, size_t n_sequences, qn_dtype dtype)
{
    int64_t *wide = qn_new(n_sequences + 1, sizeof *wide);
    for (size_t i = 0; i <= n_sequences; i++)
        wide[i] = ends[i];
    return qn_array_view(
        dtype == QN_DTYPE_I64 ? qn_gpu_copy(wide) : qn_gpu_from(ends, (n_sequences + 1) * sizeof *ends), dtype);
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

/* Offset of the first byte that is not poison; `end` if all are. */
static size_t first_written(const uint8_t *found, size_t first, size_t end)
{
    while (first < end && found[first] == 0xff)
        first++;
    return first;
}

/* The bytes of the memory on the device. Those between and around the rows are poison. */
static uint8_t *read_image(const qn_gpu_rows *rows, const char *what)
{
    const size_t size = size_of(rows->dtype), before = rows->shift * size;
    uint8_t *found = qn_gpu_read(rows->memory);
    const size_t shift_written = first_written(found, 0, before);
    qn_expect(shift_written == before, "%s: element %zu of %zu before the rows was written", what, shift_written / size,
              rows->shift);
    for (size_t row = 0; row + 1 < rows->n_rows; row++) {
        const size_t first = (row_at(rows, row) + rows->n) * size, end = row_at(rows, row + 1) * size;
        const size_t written = first_written(found, first, end);
        qn_expect(written == end, "%s: element %zu after row %zu was written", what, (written - first) / size, row);
    }
    return found;
}

float *qn_gpu_rows_read(const qn_gpu_rows *rows, const char *what)
{
    uint8_t *found = read_image(rows, what);
    float *x = qn_floats(rows->n_rows * rows->n + 1);
    for (size_t row = 0; row < rows->n_rows; row++)
        for (size_t i = 0; i < rows->n; i++)
            x[row * rows->n + i] = element(rows, found, row_at(rows, row) + i);
    return x;
}

void qn_gpu_rows_expect(const qn_gpu_rows *rows, const double *expected, const double *bound, const char *what)
{
    const size_t size = size_of(rows->dtype);
    /* Besides the relative error of rounding, the absolute one of subnormal numbers. */
    const double rounding = qn_float_rounding(rows->dtype), smallest = rows->dtype == QN_DTYPE_F16 ? 0x1p-25 : 0x1p-134;
    uint8_t *found = read_image(rows, what);
    for (size_t row = 0; row < rows->n_rows; row++)
        for (size_t i = 0; i < rows->n; i++) {
            const size_t at = row_at(rows, row) + i;
            const double x = (double)element(rows, found, at), e = expected[row * rows->n + i],
                         b = bound[row * rows->n + i];
            if (b < 0) {
                qn_expect(first_written(found, at * size, (at + 1) * size) == (at + 1) * size,
                          "%s: row %zu, element %zu was written: %.9g", what, row, i, x);
                continue;
            }
            const double allowed = b + (fabs(e) + b) * rounding + smallest;
            qn_expect(fabs(x - e) <= allowed, "%s %s: row %zu, element %zu: %.9g, expected %.9g, within %.3g",
                      qn_float_name(rows->dtype), what, row, i, x, e, allowed);
        }
}

void qn_gpu_rows_expect_unchanged(const qn_gpu_rows *rows, const char *what)
{
    const size_t size = size_of(rows->dtype);
    uint8_t *found = read_image(rows, what), *expected = image_of(rows);
    for (size_t row = 0; row < rows->n_rows; row++)
        for (size_t i = 0; i < rows->n; i++) {
            const size_t at = row_at(rows, row) + i;
            qn_expect(!memcmp(found + at * size, expected + at * size, size),
                      "%s: row %zu, element %zu was changed to %.9g, expected %.9g", what, row, i,
                      (double)element(rows, found, at), (double)element(rows, expected, at));
        }
}

/* ---- Relative errors ---- */

static double relative(double error, double square)
{
    return square > 0 ? sqrt(error / square) : sqrt(error);
}

void qn_expect_relative(const float *found, const float *expected, size_t n_rows, size_t n, qn_dtype dtype,
                        double bound, double worst, const char *what)
{
    const double rounding = qn_float_rounding(dtype);
    double all_error = 0, all_square = 0, worst_error = 0;
    size_t worst_row = 0, worst_at = 0;
    for (size_t i = 0; i < n_rows; i++) {
        double error = 0, square = 0, largest = -1;
        size_t largest_at = i * n;
        for (size_t j = i * n; j < (i + 1) * n; j++) {
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
    qn_expect(all <= bound + rounding && worst_error <= worst + rounding,
              "%s: error %.2e, expected at most %.1e; of row %zu %.2e, expected at most %.1e, where element %zu is %g, "
              "expected %g",
              what, all, bound + rounding, worst_row, worst_error, worst + rounding, worst_at - worst_row * n,
              (double)found[worst_at], (double)expected[worst_at]);
}

void qn_gpu_rows_expect_relative(const qn_gpu_rows *rows, const float *expected, size_t n, double bound, double worst,
                                 const char *what)
{
    float *found = qn_gpu_rows_read(rows, what);
    qn_expect_relative(found, expected, rows->n_rows * rows->n / n, n, rows->dtype, bound, worst, what);
}
