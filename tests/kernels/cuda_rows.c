/* Norm and SwiGLU of f32 rows on the GPU, against float64. The versions fused with a matmul are checked in the matmul's
 * file.
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
        check_swiglu(n_rows, widths[w]);
        check_gather(n_rows, widths[w]);
    }
    if (bench)
        bench_rows(5120, 17408);
}
