/* Operations on rows of quern/cuda.h, and the Hadamard transform, on a GPU against the CPU's functions: all types,
 * widths with tails, rows with any stride, results in place of inputs. */
#include "cuda_api.h"
#include "cuda_views.h"

#include "quern/kernels.h"

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
    uint64_t gpu_weight;
    double *expected, *bound;
};

/* The CPU's results from the values as rounded to the type, in f32. The bound: sums of n squares in different orders,
 * at most n / 16 additions each, and SiLU with an error of a few ulp that grows with its argument. Rounding to the type
 * comes on top.
 */
static void expect(struct problem *p)
{
    const struct shape *s = p->s;
    const size_t all = s->n_rows * s->n;
    const qn_view a = qn_floats_view(p->a.values, all), b = qn_floats_view(p->b.values, all),
                  w = qn_floats_view(p->weight, s->n);
    float *y = qn_floats(all);
    const qn_view out = qn_floats_view(y, all);
    p->expected = qn_doubles(all);
    p->bound = qn_doubles(all);
    qn_assert_ok(s->op == RMS_NORM         ? qn_rms_norm(a, w, s->n_rows, s->n, 1e-5f, out)
                 : s->op == L2_NORM        ? qn_l2_norm(a, s->n_rows, s->n, 1e-5f, out)
                 : s->op == GATED_RMS_NORM ? qn_gated_rms_norm(a, b, w, s->n_rows, s->n, 1e-5f, out)
                                           : qn_swiglu(a, b, out));
    for (size_t i = 0; i < all; i++) {
        p->expected[i] = (double)y[i];
        p->bound[i] = fabs((double)y[i]) * (double)(s->n / 16 + 64) * 0x1p-24 + 1e-37;
    }
}

static qn_status run(const struct problem *p)
{
    const struct shape *s = p->s;
    const qn_cuda_view a = qn_gpu_rows_view(&p->a), b = qn_gpu_rows_view(&p->b);
    const qn_cuda_view out = s->in_place == 1 ? a : s->in_place == 2 ? b : qn_gpu_rows_view(&p->out);
    const qn_cuda_view w = qn_array_view(p->gpu_weight, QN_DTYPE_F32);
    switch (s->op) {
    case RMS_NORM: return qn_cuda_rms_norm(qn_api(), a, w, s->n_rows, s->n, 1e-5f, out, qn_gpu_stream());
    case L2_NORM: return qn_cuda_l2_norm(qn_api(), a, s->n_rows, s->n, 1e-5f, out, qn_gpu_stream());
    case GATED_RMS_NORM: return qn_cuda_gated_rms_norm(qn_api(), a, b, w, s->n_rows, s->n, 1e-5f, out, qn_gpu_stream());
    default: return qn_cuda_swiglu(qn_api(), a, b, s->n_rows, s->n, out, qn_gpu_stream());
    }
}

static struct problem problem_new(const struct shape *s, size_t gap, size_t out_gap, size_t shift)
{
    struct problem p = { .s = s };
    p.a = qn_gpu_rows_random(s->dtype, s->n_rows, s->n, gap, shift, 2);
    p.b = qn_gpu_rows_random(s->dtype, s->n_rows, s->n, gap, shift, 2);
    p.out = qn_gpu_rows_poison(s->dtype, s->n_rows, s->n, out_gap, s->is_aligned && !out_gap ? 0 : shift);
    p.weight = qn_floats_of(s->n, 1);
    p.gpu_weight = qn_gpu_copy(p.weight);
    expect(&p);
    return p;
}

static void check_shape(const struct shape *s)
{
    const size_t gap = s->is_aligned ? (8 - s->n % 8) % 8 + 8 : 1;
    qn_random_seed(s->n * 100 + s->n_rows);
    const struct problem p = problem_new(s, gap, s->is_aligned ? gap + 8 : 0, s->is_aligned ? 8 : 1);
    qn_case_begin("api", op_names[s->op], "%zu rows of %zu %s%s%s", s->n_rows, s->n, qn_float_name(s->dtype),
                  s->is_aligned ? "" : ", unaligned",
                  s->in_place == 1 ? ", in place of the first"
                  : s->in_place    ? ", in place of the second"
                                   : "");
    qn_assert_ok(run(&p));
    qn_gpu_rows_expect(s->in_place == 1 ? &p.a : s->in_place ? &p.b : &p.out, p.expected, p.bound, "out");
    qn_release();
}

static void check_ops(void)
{
    static const size_t widths[] = { 1, 7, 8, 31, 128, 1000, 1024, 1025, 4096, 5121 }, rows[] = { 1, 5, 9 };
    size_t i = 0;
    for (int op = 0; op < OPS; op++)
        for (size_t w = 0; w < QN_LENGTH(widths); w++)
            for (size_t d = 0; d < 3; d++)
                for (int is_aligned = 0; is_aligned < 2; is_aligned++, i++) {
                    const bool has_second = op == GATED_RMS_NORM || op == SWIGLU;
                    const struct shape s = { (enum op)op, floats[d],  rows[i % 3],
                                             widths[w],   is_aligned, (int)(i / 2 % (has_second ? 3 : 2)) };
                    check_shape(&s);
                }
}

/* ---- Argmax ---- */

/* Rows: random values; two equal maxima; all equal; infinities of both signs; the last element; a NaN, which is the
 * largest. */
static void check_argmax(qn_dtype dtype, size_t n, bool is_aligned, bool is_wide)
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
        qn_assert_ok(qn_argmax(qn_floats_view(rows.values + row * n, n), &expected[row]));
    rows.values[5 * n + n / 2] = NAN;
    expected[5] = n / 2;
    qn_gpu_rows_reset(&rows);
    const uint64_t index = qn_gpu_new(ROWS * (is_wide ? sizeof(int64_t) : sizeof(int32_t)));
    qn_assert_ok(qn_cuda_argmax(qn_api(), qn_gpu_rows_view(&rows), ROWS, n,
                                qn_array_view(index, is_wide ? QN_DTYPE_I64 : QN_DTYPE_I32), qn_gpu_stream()));
    const void *indices = qn_gpu_read(index);
    for (size_t row = 0; row < ROWS; row++) {
        const int64_t found = is_wide ? ((const int64_t *)indices)[row] : ((const int32_t *)indices)[row];
        qn_expect(found == (int64_t)expected[row], "row %zu: index %lld, expected %zu", row, (long long)found,
                  expected[row]);
    }
    qn_release();
}

/* ---- Hadamard transform ---- */

static void check_hadamard(size_t n_rows, size_t width, size_t block, qn_hadamard_order order, bool has_signs)
{
    const size_t n = n_rows * width, gap = has_signs ? (4 - width % 4) % 4 + 4 : 0;
    const qn_gpu_rows x = qn_gpu_rows_random(QN_DTYPE_F32, n_rows, width, gap, 0, 1);
    float *y = qn_floats(n), *signs = qn_signs_of(width);
    double *expected = qn_doubles(n), *bound = qn_doubles(n);
    memcpy(y, x.values, n * sizeof *y);
    qn_case_begin("api", "hadamard", "%zu rows of %zu in blocks of %zu, %zu apart, signs %s", n_rows, width, block,
                  width + gap,
                  !has_signs                        ? "none"
                  : order == QN_HADAMARD_SIGN_FIRST ? "first"
                                                    : "last");
    qn_assert_ok(qn_hadamard(qn_floats_view(y, n), has_signs ? qn_floats_view(signs, width) : (qn_view){ 0 }, n_rows,
                             width, block, order));
    qn_assert_ok(qn_cuda_hadamard(qn_api(), qn_gpu_rows_view(&x),
                                  has_signs ? qn_array_view(qn_gpu_copy(signs), QN_DTYPE_F32) : (qn_cuda_view){ 0 },
                                  n_rows, width, block, order, qn_gpu_stream()));
    for (size_t i = 0; i < n; i++)
        expected[i] = (double)y[i]; /* and a bound of 0: the same bits */
    qn_gpu_rows_expect(&x, expected, bound, "x");
    qn_release();
}

/* ---- Graphs ---- */

static void check_capture(void)
{
    static const struct shape s = { GATED_RMS_NORM, QN_DTYPE_BF16, 5, 128, true, 0 };
    const struct problem p = problem_new(&s, 8, 0, 8);
    qn_assert_ok(qn_cuda_rows_prepare(qn_api()));
    qn_gpu_capture_begin();
    qn_assert_ok(run(&p));
    qn_cuda_graph *graph = qn_gpu_capture_end();
    for (int turn = 0; turn < 2; turn++) {
        qn_case_begin("api", "graph", "gated rms norm, run %d", turn);
        qn_gpu_rows_reset(&p.out);
        qn_gpu_graph_launch(graph);
        qn_gpu_rows_expect(&p.out, p.expected, p.bound, "out");
    }
    qn_release();
}

void qn_check_api_rows(void)
{
    static const size_t widths[] = { 1, 9, 1023, 8193, 151936 };
    static const struct {
        size_t rows, width, block;
    } transforms[] = { { 3, 96, 32 },     { 1, 1, 1 },        { 5, 1024, 128 },
                       { 3, 2048, 2048 }, { 2, 12288, 4096 }, { 1, 65536, 65536 } };
    check_ops();
    for (size_t w = 0; w < QN_LENGTH(widths); w++)
        for (size_t d = 0; d < 3; d++)
            check_argmax(floats[d], widths[w], (w + d) % 2, d != 1);
    for (size_t i = 0; i < QN_LENGTH(transforms); i++)
        for (int signs = 0; signs < 3; signs++)
            check_hadamard(transforms[i].rows, transforms[i].width, transforms[i].block,
                           signs == 1 ? QN_HADAMARD_SIGN_FIRST : QN_HADAMARD_SIGN_LAST, signs != 0);
    check_capture();
}
