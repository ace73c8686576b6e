/* Speed of the functions of quern/cuda.h that are bound by memory: bytes that must be read and written, against the
 * read bandwidth of the device. Matmuls are timed with their kernels (cuda_matmul.c). */
#include "cuda_api.h"
#include "cuda_views.h"

/* bf16 rows, enough of them to exceed L2. */
enum { ROWS = 16384, WIDTH = 8192, TAPS = 4, STEPS = 256 };

struct bench {
    qn_cuda_view x, y, z, vector; /* three arrays of rows, and f32 weights */
    qn_cuda_conv_shape scan, step;
};

static void scan(void *context, size_t iteration)
{
    const struct bench *b = context;
    const qn_cuda_view none = { 0 };
    (void)iteration;
    qn_assert_ok(qn_cuda_conv_scan(qn_api(), &b->scan, b->x, b->vector, none, none, none, b->y, qn_gpu_stream()));
}

static void step(void *context, size_t iteration)
{
    const struct bench *b = context;
    (void)iteration;
    qn_assert_ok(
        qn_cuda_conv_step(qn_api(), &b->step, b->x, b->vector, (qn_cuda_view){ 0 }, b->z, b->y, qn_gpu_stream()));
}

static void rms_norm(void *context, size_t iteration)
{
    const struct bench *b = context;
    (void)iteration;
    qn_assert_ok(qn_cuda_rms_norm(qn_api(), b->x, b->vector, ROWS, WIDTH, 1e-5f, b->y, qn_gpu_stream()));
}

/* Heads of 128. */
static void gated_rms_norm(void *context, size_t iteration)
{
    enum { HEAD = 128 };
    const struct bench *b = context;
    (void)iteration;
    qn_assert_ok(qn_cuda_gated_rms_norm(qn_api(), b->x, b->z, b->vector, (size_t)ROWS * WIDTH / HEAD, HEAD, 1e-5f, b->y,
                                        qn_gpu_stream()));
}

static void swiglu(void *context, size_t iteration)
{
    const struct bench *b = context;
    (void)iteration;
    qn_assert_ok(qn_cuda_swiglu(qn_api(), b->x, b->z, ROWS, WIDTH, b->y, qn_gpu_stream()));
}

void qn_bench_api(void)
{
    const size_t bytes = (size_t)ROWS * WIDTH * 2;
    const double limit = qn_gpu_read_rate(), once = (double)bytes;
    struct bench b = { .x = qn_array_view(qn_gpu_random(bytes), QN_DTYPE_BF16),
                       .scan = { .batch = 1, .tokens = ROWS, .channels = WIDTH, .taps = TAPS },
                       .step = { .batch = STEPS, .tokens = 1, .channels = WIDTH, .taps = TAPS } };
    b.y = qn_array_view(qn_gpu_random(bytes), QN_DTYPE_BF16);
    b.z = qn_array_view(qn_gpu_random(bytes), QN_DTYPE_BF16);
    b.vector = qn_array_view(qn_gpu_random((size_t)WIDTH * TAPS * sizeof(float)), QN_DTYPE_F32);
    const char *shape = qn_text("%d x %d bf16", (int)ROWS, (int)WIDTH);
    qn_gpu_bench("api", "scan", shape, 2 * once, "B", limit, scan, &b, 1);
    qn_gpu_bench("api", "norm", shape, 2 * once, "B", limit, rms_norm, &b, 1);
    qn_gpu_bench("api", "gated", shape, 3 * once, "B", limit, gated_rms_norm, &b, 1);
    qn_gpu_bench("api", "swiglu", shape, 3 * once, "B", limit, swiglu, &b, 1);
    /* In L2: x, y, and states that are read and written. */
    qn_gpu_bench("api", "step", qn_text("%d x %d bf16", (int)STEPS, (int)WIDTH),
                 (double)STEPS * WIDTH * 2 * (2 + 2 * (TAPS - 1)), "B", 0, step, &b, 16);
    qn_release();
}
