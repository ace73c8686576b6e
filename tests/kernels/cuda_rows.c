/* Norm and SwiGLU of f32 rows on the GPU, against float64. The versions fused with a matmul are checked in the matmul's
 * file.
 */
#include "cuda.h"

#include "base/memory.h"
#include "problem.h"
#include "cuda/kernels/elementwise/elementwise.h"
#include "cuda/kernels/norm/norm.h"

#include <math.h>
#include <stdio.h>

static const size_t widths[] = { 1, 31, 32, 33, 255, 257, 576, 4096, 5121 };
enum { N_WIDTHS = sizeof widths / sizeof *widths, MAX_ROWS = 5 };

static void *floats(size_t count, size_t size)
{
    void *p;
    qn_assert_ok(qn_alloc(&p, count, size, "check"));
    return p;
}

/* Two inputs, the result, and the expected result with its error bound. */
struct rows {
    size_t n_rows, n;
    float *a, *b, *found;
    double *expected, *bound;
    qn_gpu_guarded gpu_a, gpu_b, gpu_y;
};

static struct rows rows_new(size_t n_rows, size_t n, size_t n_b)
{
    struct rows r = { .n_rows = n_rows, .n = n };
    r.a = floats(n_rows * n, sizeof *r.a);
    r.b = floats(n_b, sizeof *r.b);
    r.found = floats(n_rows * n, sizeof *r.found);
    r.expected = floats(n_rows * n, sizeof *r.expected);
    r.bound = floats(n_rows * n, sizeof *r.bound);
    qn_random_floats(r.a, n_rows * n, 3);
    qn_random_floats(r.b, n_b, 2);
    r.gpu_a = qn_gpu_from(r.a, n_rows * n * sizeof *r.a);
    r.gpu_b = qn_gpu_from(r.b, n_b * sizeof *r.b);
    r.gpu_y = qn_gpu_new(n_rows * n * sizeof *r.a);
    return r;
}

static void compare_and_free(struct rows *r)
{
    qn_gpu_read(&r->gpu_y, r->found);
    qn_expect_near(r->found, r->expected, r->bound, r->n_rows * r->n, "value");
    qn_expect(qn_gpu_guards_intact(&r->gpu_a) && qn_gpu_guards_intact(&r->gpu_b) && qn_gpu_guards_intact(&r->gpu_y),
              "bytes outside the rows were written");
    qn_gpu_free(&r->gpu_a);
    qn_gpu_free(&r->gpu_b);
    qn_gpu_free(&r->gpu_y);
    qn_free(r->a);
    qn_free(r->b);
    qn_free(r->found);
    qn_free(r->expected);
    qn_free(r->bound);
}

static void check_norm(size_t n_rows, size_t n)
{
    const float eps = 1e-5f;
    struct rows r = rows_new(n_rows, n, n);
    qn_launch launch;
    qn_case_begin("norm", "cuda", "%zu rows of %zu", n_rows, n);
    const qn_norm_rows_args args = {
        .x = r.gpu_a.data, .weight = r.gpu_b.data, .y = r.gpu_y.data, .n = (uint32_t)n, .eps = eps
    };
    qn_assert_ok(qn_norm_gpu_rows(n, n_rows, &launch));
    qn_gpu_launch(&launch, &args);
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
    compare_and_free(&r);
}

static void check_swiglu(size_t n_rows, size_t n)
{
    struct rows r = rows_new(n_rows, n, n_rows * n);
    qn_launch launch;
    qn_case_begin("swiglu", "cuda", "%zu rows of %zu", n_rows, n);
    const qn_elementwise_swiglu_args args = {
        .gate = r.gpu_a.data, .up = r.gpu_b.data, .y = r.gpu_y.data, .n = n_rows * n
    };
    qn_assert_ok(qn_elementwise_gpu_swiglu(n_rows * n, &launch));
    qn_gpu_launch(&launch, &args);
    for (size_t i = 0; i < n_rows * n; i++) {
        const double gate = r.a[i], y = gate / (1 + exp(-gate)) * r.b[i];
        r.expected[i] = y;
        r.bound[i] = fabs(y) * 8 * 0x1p-24 + 1e-30; /* expf within 2 ulp, and four operations */
    }
    compare_and_free(&r);
}

/* Rows in any order, some of them twice. */
static void check_gather(size_t n_rows, size_t n)
{
    struct rows r = rows_new(n_rows, n, 1);
    qn_launch launch;
    uint32_t *order = floats(n_rows, sizeof *order);
    qn_case_begin("gather", "cuda", "%zu rows of %zu", n_rows, n);
    for (size_t row = 0; row < n_rows; row++) {
        order[row] = (uint32_t)qn_random_below(n_rows);
        for (size_t i = 0; i < n; i++) {
            r.expected[row * n + i] = (double)r.a[order[row] * n + i];
            r.bound[row * n + i] = 0;
        }
    }
    qn_gpu_guarded rows = qn_gpu_from(order, n_rows * sizeof *order);
    const qn_elementwise_gather_args args = {
        .x = r.gpu_a.data, .rows = rows.data, .y = r.gpu_y.data, .n = (uint32_t)n
    };
    qn_assert_ok(qn_elementwise_gpu_gather(n, n_rows, &launch));
    qn_gpu_launch(&launch, &args);
    compare_and_free(&r);
    qn_gpu_free(&rows);
    qn_free(order);
}

struct timed {
    qn_launch norm, swiglu;
    qn_norm_rows_args norm_args;
    qn_elementwise_swiglu_args swiglu_args;
};

static void timed_norm(void *context, size_t turn)
{
    const struct timed *t = context;
    (void)turn;
    qn_gpu_launch(&t->norm, &t->norm_args);
}

static void timed_swiglu(void *context, size_t turn)
{
    const struct timed *t = context;
    (void)turn;
    qn_gpu_launch(&t->swiglu, &t->swiglu_args);
}

/* The rows of one token stay in L2, as in decode: the time is mostly that of a launch. */
static void bench_rows(size_t width, size_t inner)
{
    enum { REPEATS = 64 };
    struct timed t;
    char shape[64];
    qn_gpu_guarded memory = qn_gpu_new((3 * width + 3 * inner) * sizeof(float));
    qn_assert_ok(qn_cuda_memset(qn_gpu(), qn_gpu_stream(), memory.data, 0x3c, memory.bytes)); /* small floats, no NaN */
    const uint64_t next = width * sizeof(float), behind = memory.data + 3 * next, step = inner * sizeof(float);
    t.norm_args = (qn_norm_rows_args){
        .x = memory.data, .weight = memory.data + next, .y = memory.data + 2 * next, .n = (uint32_t)width, .eps = 1e-6f
    };
    t.swiglu_args =
        (qn_elementwise_swiglu_args){ .gate = behind, .up = behind + step, .y = behind + 2 * step, .n = inner };
    qn_assert_ok(qn_norm_gpu_rows(width, 1, &t.norm));
    qn_assert_ok(qn_elementwise_gpu_swiglu(inner, &t.swiglu));
    snprintf(shape, sizeof shape, "a row of %zu", width);
    qn_gpu_bench("norm", "cuda", shape, (double)width, "value", 0, timed_norm, &t, REPEATS);
    snprintf(shape, sizeof shape, "a row of %zu", inner);
    qn_gpu_bench("swiglu", "cuda", shape, (double)inner, "value", 0, timed_swiglu, &t, REPEATS);
    qn_gpu_free(&memory);
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
