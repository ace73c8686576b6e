/* Speed of the functions of quern/cuda.h that are bound by memory: bytes that must be read and written, against the
 * read bandwidth of the device. Matmuls are timed with their kernels (cuda_matmul.c). */
#include "cuda_api.h"
#include "cuda_views.h"

#include <stdio.h>

/* bf16 rows, enough of them to exceed L2. */
enum { ROWS = 16384, WIDTH = 8192, TAPS = 4, STEPS = 256 };

struct bench {
    qn_cuda_kernels *kernels;
    qn_gpu_guarded x, y, z, vector; /* three arrays of rows, and f32 weights */
    qn_cuda_conv_shape scan, step;
};

static qn_cuda_view rows_of(const qn_gpu_guarded *g)
{
    return qn_array_view(g, QN_DTYPE_BF16);
}

static qn_cuda_view vector_of(const struct bench *b)
{
    return qn_array_view(&b->vector, QN_DTYPE_F32);
}

static void scan(void *context, size_t iteration)
{
    const struct bench *b = context;
    const qn_cuda_view none = { 0 };
    (void)iteration;
    qn_assert_ok(qn_cuda_conv_scan(b->kernels, &b->scan, rows_of(&b->x), vector_of(b), none, none, none, rows_of(&b->y),
                                   qn_gpu_stream()));
}

static void step(void *context, size_t iteration)
{
    const struct bench *b = context;
    (void)iteration;
    qn_assert_ok(qn_cuda_conv_step(b->kernels, &b->step, rows_of(&b->x), vector_of(b), (qn_cuda_view){ 0 },
                                   rows_of(&b->z), rows_of(&b->y), qn_gpu_stream()));
}

static void rms_norm(void *context, size_t iteration)
{
    const struct bench *b = context;
    (void)iteration;
    qn_assert_ok(qn_cuda_rms_norm(b->kernels, rows_of(&b->x), vector_of(b), ROWS, WIDTH, 1e-5f, rows_of(&b->y),
                                  qn_gpu_stream()));
}

/* Heads of 128. */
static void gated_rms_norm(void *context, size_t iteration)
{
    enum { HEAD = 128 };
    const struct bench *b = context;
    (void)iteration;
    qn_assert_ok(qn_cuda_gated_rms_norm(b->kernels, rows_of(&b->x), rows_of(&b->z), vector_of(b),
                                        (size_t)ROWS * WIDTH / HEAD, HEAD, 1e-5f, rows_of(&b->y), qn_gpu_stream()));
}

static void swiglu(void *context, size_t iteration)
{
    const struct bench *b = context;
    (void)iteration;
    qn_assert_ok(
        qn_cuda_swiglu(b->kernels, rows_of(&b->x), rows_of(&b->z), ROWS, WIDTH, rows_of(&b->y), qn_gpu_stream()));
}

void qn_bench_api(qn_cuda_kernels *kernels)
{
    const size_t bytes = (size_t)ROWS * WIDTH * 2;
    const double limit = qn_gpu_read_rate(), once = (double)bytes;
    struct bench b = { .kernels = kernels,
                       .x = qn_gpu_new(bytes),
                       .y = qn_gpu_new(bytes),
                       .z = qn_gpu_new(bytes),
                       .vector = qn_gpu_new((size_t)WIDTH * TAPS * sizeof(float)),
                       .scan = { .batch = 1, .tokens = ROWS, .channels = WIDTH, .taps = TAPS },
                       .step = { .batch = STEPS, .tokens = 1, .channels = WIDTH, .taps = TAPS } };
    qn_gpu_guarded *const all[] = { &b.x, &b.y, &b.z, &b.vector };
    char shape[64];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        qn_gpu_random(all[i]);
    snprintf(shape, sizeof shape, "%d x %d bf16", (int)ROWS, (int)WIDTH);
    qn_gpu_bench("api", "scan", shape, 2 * once, "B", limit, scan, &b, 1);
    qn_gpu_bench("api", "norm", shape, 2 * once, "B", limit, rms_norm, &b, 1);
    qn_gpu_bench("api", "gated", shape, 3 * once, "B", limit, gated_rms_norm, &b, 1);
    qn_gpu_bench("api", "swiglu", shape, 3 * once, "B", limit, swiglu, &b, 1);
    /* In L2: x, y, and states that are read and written. */
    snprintf(shape, sizeof shape, "%d x %d bf16", (int)STEPS, (int)WIDTH);
    qn_gpu_bench("api", "step", shape, (double)STEPS * WIDTH * 2 * (2 + 2 * (TAPS - 1)), "B", 0, step, &b, 16);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        qn_gpu_free(all[i]);
}
