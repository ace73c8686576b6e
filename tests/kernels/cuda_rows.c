/* Norms, those of a draft head, and SwiGLU of f32 rows on the GPU, against float64. The versions fused with a matmul
 * are checked in the matmul's file.
 */
#include "cuda.h"

#include "cuda/kernels/elementwise/elementwise.h"
#include "cuda/kernels/norm/norm.h"

static const size_t widths[] = { 1, 31, 32, 33, 255, 257, 576, 4096, 5121 };
enum { N_WIDTHS = QN_LENGTH(widths), MAX_ROWS = 5 };

/* Two inputs, and the expected result with its error bound. */
struct rows {
    size_t n_rows, n;
    float *a, *b;
    double *expected, *bound;
    uint64_t gpu_a, gpu_b, gpu_y;
};

static struct rows rows_new(size_t n_rows, size_t n, size_t n_b)
{
    struct rows r = { .n_rows = n_rows, .n = n, .expected = qn_doubles(n_rows * n), .bound = qn_doubles(n_rows * n) };
    r.a = qn_floats_of(n_rows * n, 3);
    r.b = qn_floats_of(n_b, 2);
    r.gpu_a = qn_gpu_copy(r.a);
    r.gpu_b = qn_gpu_copy(r.b);
    r.gpu_y = qn_gpu_floats(n_rows * n);
    return r;
}

static void run_and_compare(const struct rows *r, const qn_launch *launch, const void *args)
{
    qn_gpu_launch(launch, args);
    qn_expect_near(qn_gpu_read(r->gpu_y), r->expected, r->bound, r->n_rows * r->n, "value");
    qn_release();
}

static void check_norm(size_t n_rows, size_t n)
{
    const float eps = 1e-5f;
    struct rows r = rows_new(n_rows, n, n);
    qn_launch launch;
    qn_case_begin("norm", "cuda", "%zu rows of %zu", n_rows, n);
    const qn_norm_rows_args args = { .x = r.gpu_a, .weight = r.gpu_b, .y = r.gpu_y, .n = (uint32_t)n, .eps = eps };
    qn_assert_ok(qn_norm_gpu_rows(n, n_rows, &launch));
    for (size_t row = 0; row < n_rows; row++) {
        double sum = 0;
        for (size_t i = 0; i < n; i++)
            sum += (double)r.a[row * n + i] * r.a[row * n + i];
        for (size_t i = 0; i < n; i++) {
            const double y = r.a[row * n + i] / sqrt(sum / (double)n + (double)eps) * r.b[i];
            r.expected[row * n + i] = y;
            /* A sum of n squares by 256 threads, and a few more roundings of 2^-24. */
            r.bound[row * n + i] = fabs(y) * (double)(n / 256 + 16) * 0x1p-24 + 1e-30;
        }
    }
    run_and_compare(&r, &launch, &args);
}

/* y = the norm of a row in double. */
static void norm_of(const double *x, const float *weight, size_t n, float eps, double *y)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] / sqrt(sum / (double)n + (double)eps) * (double)weight[i];
}

static double *doubles_of(const float *x, size_t n)
{
    double *y = qn_doubles(n);
    for (size_t i = 0; i < n; i++)
        y[i] = (double)x[i];
    return y;
}

/* Two norms one after the other, each as in check_norm. */
static void set_bounds(const double *expected, size_t count, size_t n, double *bound)
{
    for (size_t i = 0; i < count; i++)
        bound[i] = fabs(expected[i]) * 2 * (double)(n / 256 + 16) * 0x1p-24 + 1e-30;
}

/* The inputs of a draft head, and what is kept for it: rows from memory, from the row before, and without any. */
static void check_pair(size_t n_rows, size_t n, bool is_draft)
{
    const float eps = 1e-5f;
    struct rows r = rows_new(n_rows, 2 * n, 3 * n); /* b: weights of embeddings, of h, of x */
    const float *weights[] = { r.b, r.b + n, r.b + 2 * n }, *kept = qn_floats_of(n_rows * n, 1);
    const uint64_t gpu_kept = qn_gpu_copy(kept), gpu_to = qn_gpu_floats(n_rows * n), x = r.gpu_a + n_rows * n * 4;
    uint64_t *from = qn_new(n_rows, sizeof *from), *to = qn_new(n_rows, sizeof *to);
    double *expected_to = qn_doubles(n_rows * n), *bound_to = qn_doubles(n_rows * n), *h = qn_doubles(n);
    qn_launch launch;
    qn_gpu_fill(gpu_to, 0x3c); /* small floats: rows that are not kept stay as they are */
    const float *before = qn_gpu_read(gpu_to);
    qn_case_begin("pair", "cuda", "%zu rows of %zu%s", n_rows, n, is_draft ? ", a draft" : "");
    for (size_t row = 0; row < n_rows; row++) {
        const size_t kind = row && !is_draft ? qn_random_below(3) : qn_random_below(2);
        from[row] = kind == 2 ? QN_NORM_ROW_BEFORE : kind ? gpu_kept + row * n * sizeof(float) : 0;
        to[row] = qn_random_below(2) ? gpu_to + row * n * sizeof(float) : 0;
        norm_of(doubles_of(r.a + row * n, n), weights[0], n, eps, r.expected + row * 2 * n);
        if (kind == 2)
            norm_of(doubles_of(r.a + (n_rows + row - 1) * n, n), weights[2], n, eps, h);
        if (kind)
            norm_of(kind == 2 ? h : doubles_of(kept + row * n, n), weights[1], n, eps, r.expected + row * 2 * n + n);
        for (size_t i = 0; i < n && !kind; i++)
            r.expected[row * 2 * n + n + i] = 0;
        if (to[row] && !is_draft)
            norm_of(doubles_of(r.a + (n_rows + row) * n, n), weights[2], n, eps, expected_to + row * n);
        for (size_t i = 0; i < n && (!to[row] || is_draft); i++)
            expected_to[row * n + i] = (double)before[row * n + i];
    }
    set_bounds(r.expected, n_rows * 2 * n, n, r.bound);
    set_bounds(expected_to, n_rows * n, n, bound_to);
    const qn_norm_pair_args args = { .embedding = r.gpu_a,
                                     .x = is_draft ? 0 : x,
                                     .from = qn_gpu_copy(from),
                                     .to = qn_gpu_copy(to),
                                     .embedding_weight = r.gpu_b,
                                     .hidden_weight = r.gpu_b + n * sizeof(float),
                                     .weight = r.gpu_b + 2 * n * sizeof(float),
                                     .y = r.gpu_y,
                                     .n = (uint32_t)n,
                                     .eps = eps };
    qn_assert_ok(qn_norm_gpu_pair(n, n_rows, &launch));
    qn_gpu_launch(&launch, &args);
    qn_expect_near(qn_gpu_read(r.gpu_y), r.expected, r.bound, n_rows * 2 * n, "value");
    qn_expect_near(qn_gpu_read(gpu_to), expected_to, bound_to, n_rows * n, "kept value");
    qn_release();
}

/* The rows that a draft step keeps. */
static void check_keep(size_t n_rows, size_t n)
{
    const float eps = 1e-5f;
    struct rows r = rows_new(n_rows, n, n);
    uint64_t *to = qn_new(n_rows, sizeof *to);
    qn_launch launch;
    qn_gpu_fill(r.gpu_y, 0x3c);
    const float *before = qn_gpu_read(r.gpu_y);
    qn_case_begin("keep", "cuda", "%zu rows of %zu", n_rows, n);
    for (size_t row = 0; row < n_rows; row++) {
        to[row] = row % 3 == 1 ? 0 : r.gpu_y + row * n * sizeof(float);
        norm_of(doubles_of(r.a + row * n, n), r.b, n, eps, r.expected + row * n);
        for (size_t i = 0; i < n && !to[row]; i++)
            r.expected[row * n + i] = (double)before[row * n + i];
    }
    set_bounds(r.expected, n_rows * n, n, r.bound);
    const qn_norm_keep_args args = {
        .x = r.gpu_a, .weight = r.gpu_b, .to = qn_gpu_copy(to), .n = (uint32_t)n, .eps = eps
    };
    qn_assert_ok(qn_norm_gpu_keep(n, n_rows, &launch));
    run_and_compare(&r, &launch, &args);
}

static void check_swiglu(size_t n_rows, size_t n)
{
    struct rows r = rows_new(n_rows, n, n_rows * n);
    qn_launch launch;
    qn_case_begin("swiglu", "cuda", "%zu rows of %zu", n_rows, n);
    const qn_elementwise_swiglu_args args = { .gate = r.gpu_a, .up = r.gpu_b, .y = r.gpu_y, .n = n_rows * n };
    qn_assert_ok(qn_elementwise_gpu_swiglu(n_rows * n, &launch));
    for (size_t i = 0; i < n_rows * n; i++) {
        const double gate = r.a[i], y = gate / (1 + exp(-gate)) * r.b[i];
        r.expected[i] = y;
        r.bound[i] = fabs(y) * 8 * 0x1p-24 + 1e-30; /* expf within 2 ulp, and four operations */
    }
    run_and_compare(&r, &launch, &args);
}

/* Rows in any order, some of them twice. */
static void check_gather(size_t n_rows, size_t n)
{
    struct rows r = rows_new(n_rows, n, 1);
    qn_launch launch;
    uint32_t *order = qn_new(n_rows, sizeof *order);
    qn_case_begin("gather", "cuda", "%zu rows of %zu", n_rows, n);
    for (size_t row = 0; row < n_rows; row++) {
        order[row] = (uint32_t)qn_random_below(n_rows);
        for (size_t i = 0; i < n; i++) {
            r.expected[row * n + i] = (double)r.a[order[row] * n + i];
            r.bound[row * n + i] = 0;
        }
    }
    const qn_elementwise_gather_args args = {
        .x = r.gpu_a, .rows = qn_gpu_copy(order), .y = r.gpu_y, .n = (uint32_t)n
    };
    qn_assert_ok(qn_elementwise_gpu_gather(n, n_rows, &launch));
    run_and_compare(&r, &launch, &args);
}

/* Rows in the middle of rows three times as wide; what is beside them stays. */
static void check_place(size_t n_rows, size_t n)
{
    struct rows r = rows_new(n_rows, 3 * n, 1);
    qn_launch launch;
    qn_case_begin("place", "cuda", "%zu rows of %zu", n_rows, n);
    r.gpu_y = qn_gpu_copy(r.a);
    for (size_t row = 0; row < n_rows; row++)
        for (size_t i = 0; i < 3 * n; i++) {
            const size_t at = row * 3 * n + i;
            r.expected[at] = (double)r.a[i >= n && i < 2 * n ? row * n + i - n : at];
            r.bound[at] = 0;
        }
    const qn_elementwise_place_args args = {
        .x = r.gpu_a, .y = r.gpu_y + n * sizeof(float), .n = (uint32_t)n, .stride = (uint32_t)(3 * n)
    };
    qn_assert_ok(qn_elementwise_gpu_place(n, n_rows, &launch));
    run_and_compare(&r, &launch, &args);
}

/* The rows of one token stay in L2, as in decode: the time is mostly that of a launch. */
static void bench_rows(size_t width, size_t inner)
{
    enum { REPEATS = 64 };
    const uint64_t memory = qn_gpu_floats(3 * width + 3 * inner), next = width * sizeof(float),
                   behind = memory + 3 * next, step = inner * sizeof(float);
    const qn_norm_rows_args norm = {
        .x = memory, .weight = memory + next, .y = memory + 2 * next, .n = (uint32_t)width, .eps = 1e-6f
    };
    const qn_elementwise_swiglu_args swiglu = {
        .gate = behind, .up = behind + step, .y = behind + 2 * step, .n = inner
    };
    qn_gpu_timed t[2] = { { .args = &norm }, { .args = &swiglu } };
    qn_gpu_fill(memory, 0x3c); /* small floats, no NaN */
    qn_assert_ok(qn_norm_gpu_rows(width, 1, &t[0].launch));
    qn_assert_ok(qn_elementwise_gpu_swiglu(inner, &t[1].launch));
    qn_gpu_bench_launches("norm", "cuda", qn_text("a row of %zu", width), (double)width, "value", 0, &t[0], 1, REPEATS);
    qn_gpu_bench_launches("swiglu", "cuda", qn_text("a row of %zu", inner), (double)inner, "value", 0, &t[1], 1,
                          REPEATS);
    qn_release();
}

void qn_check_cuda_rows(bool bench)
{
    for (size_t w = 0; w < N_WIDTHS; w++) {
        qn_random_seed(w);
        const size_t n_rows = 1 + qn_random_below(MAX_ROWS);
        check_norm(n_rows, widths[w]);
        check_pair(n_rows, widths[w], false);
        check_pair(n_rows, widths[w], true);
        check_keep(n_rows, widths[w]);
        check_swiglu(n_rows, widths[w]);
        check_gather(n_rows, widths[w]);
        check_place(n_rows, widths[w]);
    }
    if (bench)
        bench_rows(5120, 17408);
}
