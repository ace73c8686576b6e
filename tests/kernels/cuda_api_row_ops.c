/* Operations on rows of quern/cuda.h, and the Hadamard transform, on a GPU against the CPU's functions: all types,
 * widths with tails, rows with any stride, results in place of inputs. */
#include "cuda_api.h"
#include "cuda_views.h"

#include "quern/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const qn_dtype floats[3] = { QN_DTYPE_F32, QN_DTYPE_F16, QN_DTYPE_BF16 };

enum op { RMS_NORM, L2_NORM, GATED_RMS_NORM, SWIGLU, OPS };

static const char *const op_names[OPS] = { "rms norm", "l2 norm", "gated rms norm", "swiglu" };

struct shape {
    enum op op;
    qn_dtype dtype;
    size_t n_rows, n;
    bool is_aligned;
    int in_place; /* 0: no; 1: the first input, 2: the second */
};

/* a is x, or the gate of SwiGLU; b is the gate, or up. */
struct problem {
    const struct shape *s;
    qn_gpu_rows a, b, out;
    float *weight;
    qn_gpu_guarded weight_gpu;
    double *expected, *bound;
};

static qn_view host_view(float *x, size_t n)
{
    return (qn_view){ x, QN_DTYPE_F32, n };
}

/* The CPU's results from the values as rounded to the type, in f32. The bound: sums of n squares in different orders,
 * at most n / 16 additions each, and SiLU with an error of a few ulp that grows with its argument. Rounding to the type
 * comes on top.
 */
static void expect(struct problem *p)
{
    const struct shape *s = p->s;
    const size_t all = s->n_rows * s->n;
    const qn_view a = host_view(p->a.values, all), b = host_view(p->b.values, all), w = host_view(p->weight, s->n);
    float *y = qn_xcalloc(all, sizeof *y);
    const qn_view out = host_view(y, all);
    p->expected = qn_xcalloc(all, sizeof *p->expected);
    p->bound = qn_xcalloc(all, sizeof *p->bound);
    qn_assert_ok(s->op == RMS_NORM         ? qn_rms_norm(a, w, s->n_rows, s->n, 1e-5f, out)
                 : s->op == L2_NORM        ? qn_l2_norm(a, s->n_rows, s->n, 1e-5f, out)
                 : s->op == GATED_RMS_NORM ? qn_gated_rms_norm(a, b, w, s->n_rows, s->n, 1e-5f, out)
                                           : qn_swiglu(a, b, out));
    for (size_t i = 0; i < all; i++) {
        p->expected[i] = (double)y[i];
        p->bound[i] = fabs((double)y[i]) * (double)(s->n / 16 + 64) * 0x1p-24 + 1e-37;
    }
    free(y);
}

static qn_status run(const struct problem *p, qn_cuda_kernels *k)
{
    const struct shape *s = p->s;
    const qn_cuda_view a = qn_gpu_rows_view(&p->a), b = qn_gpu_rows_view(&p->b);
    const qn_cuda_view out = s->in_place == 1 ? a : s->in_place == 2 ? b : qn_gpu_rows_view(&p->out);
    const qn_cuda_view w = qn_array_view(&p->weight_gpu, QN_DTYPE_F32);
    switch (s->op) {
    case RMS_NORM: return qn_cuda_rms_norm(k, a, w, s->n_rows, s->n, 1e-5f, out, qn_gpu_stream());
    case L2_NORM: return qn_cuda_l2_norm(k, a, s->n_rows, s->n, 1e-5f, out, qn_gpu_stream());
    case GATED_RMS_NORM: return qn_cuda_gated_rms_norm(k, a, b, w, s->n_rows, s->n, 1e-5f, out, qn_gpu_stream());
    default: return qn_cuda_swiglu(k, a, b, s->n_rows, s->n, out, qn_gpu_stream());
    }
}

static void check_shape(qn_cuda_kernels *kernels, const struct shape *s)
{
    const size_t gap = s->is_aligned ? (8 - s->n % 8) % 8 + 8 : 1, shift = s->is_aligned ? 8 : 1;
    struct problem p = { .s = s };
    qn_random_seed(s->n * 100 + s->n_rows);
    p.a = qn_gpu_rows_random(s->dtype, s->n_rows, s->n, gap, shift, 2);
    p.b = qn_gpu_rows_random(s->dtype, s->n_rows, s->n, gap, shift, 2);
    p.out = qn_gpu_rows_poison(s->dtype, s->n_rows, s->n, s->is_aligned ? gap + 8 : 0, shift);
    p.weight = qn_floats_of(s->n, 1);
    p.weight_gpu = qn_gpu_from(p.weight, s->n * sizeof *p.weight);
    expect(&p);
    qn_case_begin("api", op_names[s->op], "%zu rows of %zu %s%s%s", s->n_rows, s->n, qn_float_name(s->dtype),
                  s->is_aligned ? "" : ", unaligned",
                  s->in_place == 1 ? ", in place of the first"
                  : s->in_place    ? ", in place of the second"
                                   : "");
    qn_assert_ok(run(&p, kernels));
    qn_gpu_rows_expect(s->in_place == 1 ? &p.a : s->in_place ? &p.b : &p.out, p.expected, p.bound, "out");
    qn_gpu_rows_free(&p.a);
    qn_gpu_rows_free(&p.b);
    qn_gpu_rows_free(&p.out);
    qn_gpu_free(&p.weight_gpu);
    free(p.weight);
    free(p.expected);
    free(p.bound);
}

static void check_ops(qn_cuda_kernels *kernels)
{
    static const size_t widths[] = { 1, 7, 8, 31, 128, 1000, 1024, 1025, 4096, 5121 }, rows[] = { 1, 5, 9 };
    size_t i = 0;
    for (int op = 0; op < OPS; op++)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
            for (size_t d = 0; d < 3; d++)
                for (int is_aligned = 0; is_aligned < 2; is_aligned++, i++) {
                    const bool has_second = op == GATED_RMS_NORM || op == SWIGLU;
                    const struct shape s = { (enum op)op, floats[d],  rows[i % 3],
                                             widths[w],   is_aligned, (int)(i / 2 % (has_second ? 3 : 2)) };
                    check_shape(kernels, &s);
                }
}

/* ---- Argmax ---- */

/* Rows: random values; two equal maxima; all equal; infinities of both signs; the last element; a NaN, which is the
 * largest. */
static void check_argmax(qn_cuda_kernels *kernels, qn_dtype dtype, size_t n, bool is_aligned, bool is_wide)
{
    enum { ROWS = 6 };
    float *x = qn_floats_of(ROWS * n, 3);
    size_t expected[ROWS];
    qn_case_begin("api", "argmax", "rows of %zu %s%s, %d-bit indices", n, qn_float_name(dtype),
                  is_aligned ? "" : ", unaligned", is_wide ? 64 : 32);
    x[n + n / 3] = x[n + n / 2] = 1000;
    for (size_t i = 0; i < n; i++) {
        x[2 * n + i] = -INFINITY;
        x[3 * n + i] = i == n / 2 ? INFINITY : -INFINITY;
    }
    x[5 * n - 1] = 1000;
    const size_t gap = is_aligned ? (8 - n % 8) % 8 + 8 : 1;
    qn_gpu_rows rows = qn_gpu_rows_of(x, dtype, ROWS, n, gap, is_aligned ? 8 : 1);
    for (size_t row = 0; row < ROWS; row++)
        qn_assert_ok(qn_argmax(host_view(rows.values + row * n, n), &expected[row]));
    rows.values[5 * n + n / 2] = NAN;
    expected[5] = n / 2;
    qn_gpu_rows_reset(&rows);
    qn_gpu_guarded index = qn_gpu_new(ROWS * (is_wide ? sizeof(int64_t) : sizeof(int32_t)));
    qn_assert_ok(qn_cuda_argmax(kernels, qn_gpu_rows_view(&rows), ROWS, n,
                                qn_array_view(&index, is_wide ? QN_DTYPE_I64 : QN_DTYPE_I32), qn_gpu_stream()));
    int64_t wide[ROWS];
    int32_t narrow[ROWS];
    qn_gpu_read(&index, is_wide ? (void *)wide : (void *)narrow);
    for (size_t row = 0; row < ROWS; row++) {
        const int64_t found = is_wide ? wide[row] : narrow[row];
        qn_expect(found == (int64_t)expected[row], "row %zu: index %lld, expected %zu", row, (long long)found,
                  expected[row]);
    }
    qn_expect(qn_gpu_guards_intact(&index), "bytes around the indices were written");
    qn_gpu_free(&index);
    qn_gpu_rows_free(&rows);
    free(x);
}

/* ---- Hadamard transform ---- */

static void check_hadamard(qn_cuda_kernels *kernels, size_t n_rows, size_t width, size_t block, qn_hadamard_order order,
                           bool has_signs)
{
    const size_t n = n_rows * width, gap = has_signs ? (4 - width % 4) % 4 + 4 : 0;
    qn_gpu_rows x = qn_gpu_rows_random(QN_DTYPE_F32, n_rows, width, gap, 0, 1);
    float *y = qn_xcalloc(n, sizeof *y), *signs = qn_xcalloc(width, sizeof *signs);
    double *expected = qn_xcalloc(n, sizeof *expected), *bound = qn_xcalloc(n, sizeof *bound);
    for (size_t i = 0; i < width; i++)
        signs[i] = qn_random() & 1 ? 1 : -1;
    qn_gpu_guarded signs_gpu = qn_gpu_from(signs, width * sizeof *signs);
    memcpy(y, x.values, n * sizeof *y);
    qn_case_begin("api", "hadamard", "%zu rows of %zu in blocks of %zu, %zu apart, signs %s", n_rows, width, block,
                  width + gap,
                  !has_signs                        ? "none"
                  : order == QN_HADAMARD_SIGN_FIRST ? "first"
                                                    : "last");
    qn_assert_ok(qn_hadamard(host_view(y, n), has_signs ? host_view(signs, width) : (qn_view){ 0 }, n_rows, width,
                             block, order));
    qn_assert_ok(qn_cuda_hadamard(kernels, qn_gpu_rows_view(&x),
                                  has_signs ? qn_array_view(&signs_gpu, QN_DTYPE_F32) : (qn_cuda_view){ 0 }, n_rows,
                                  width, block, order, qn_gpu_stream()));
    for (size_t i = 0; i < n; i++)
        expected[i] = (double)y[i]; /* and a bound of 0: the same bits */
    qn_gpu_rows_expect(&x, expected, bound, "x");
    qn_gpu_rows_free(&x);
    qn_gpu_free(&signs_gpu);
    free(y);
    free(signs);
    free(expected);
    free(bound);
}

/* ---- Graphs ---- */

static void check_capture(qn_cuda_kernels *kernels)
{
    static const struct shape s = { GATED_RMS_NORM, QN_DTYPE_BF16, 5, 128, true, 0 };
    struct problem p = { .s = &s };
    qn_cuda_graph *graph = NULL;
    p.a = qn_gpu_rows_random(s.dtype, s.n_rows, s.n, 8, 8, 2);
    p.b = qn_gpu_rows_random(s.dtype, s.n_rows, s.n, 8, 8, 2);
    p.out = qn_gpu_rows_poison(s.dtype, s.n_rows, s.n, 0, 0);
    p.weight = qn_floats_of(s.n, 1);
    p.weight_gpu = qn_gpu_from(p.weight, s.n * sizeof *p.weight);
    expect(&p);
    qn_assert_ok(qn_cuda_rows_prepare(kernels));
    qn_assert_ok(qn_cuda_capture_begin(qn_gpu(), qn_gpu_stream()));
    qn_assert_ok(run(&p, kernels));
    qn_assert_ok(qn_cuda_capture_end(qn_gpu(), qn_gpu_stream(), &graph));
    for (int turn = 0; turn < 2; turn++) {
        qn_case_begin("api", "graph", "gated rms norm, run %d", turn);
        qn_gpu_rows_reset(&p.out);
        qn_assert_ok(qn_cuda_graph_launch(qn_gpu(), graph, qn_gpu_stream()));
        qn_gpu_rows_expect(&p.out, p.expected, p.bound, "out");
    }
    qn_cuda_graph_free(qn_gpu(), graph);
    qn_gpu_rows_free(&p.a);
    qn_gpu_rows_free(&p.b);
    qn_gpu_rows_free(&p.out);
    qn_gpu_free(&p.weight_gpu);
    free(p.weight);
    free(p.expected);
    free(p.bound);
}

void qn_check_api_rows(qn_cuda_kernels *kernels)
{
    static const size_t widths[] = { 1, 9, 1023, 8193, 151936 };
    static const struct {
        size_t rows, width, block;
    } transforms[] = { { 3, 96, 32 },     { 1, 1, 1 },        { 5, 1024, 128 },
                       { 3, 2048, 2048 }, { 2, 12288, 4096 }, { 1, 65536, 65536 } };
    check_ops(kernels);
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (size_t d = 0; d < 3; d++)
            check_argmax(kernels, floats[d], widths[w], (w + d) % 2, d != 1);
    for (size_t i = 0; i < sizeof transforms / sizeof *transforms; i++)
        for (int signs = 0; signs < 3; signs++)
            check_hadamard(kernels, transforms[i].rows, transforms[i].width, transforms[i].block,
                           signs == 1 ? QN_HADAMARD_SIGN_FIRST : QN_HADAMARD_SIGN_LAST, signs != 0);
    check_capture(kernels);
}
