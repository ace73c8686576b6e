/* What the device can do at best, measured: the limits that shares are given of. Nothing is compared. */
#include "check/cuda.h"

#include "kernels/peak/peak_cuda.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LAUNCHES = 1000, STEPS = 2000, COPY_BYTES = 1 << 30 };

static void read_copy(void *context, size_t turn)
{
    const qn_gpu_guarded *buffers = context;
    (void)turn;
    if (qn_cuda_copy(qn_gpu(), qn_gpu_stream(), buffers[1].data, buffers[0].data, buffers[0].bytes))
        qn_expect(false, "%s", qn_error_text());
}

static void multiply(void *context, size_t turn)
{
    const qn_peak_multiply *m = context;
    (void)turn;
    qn_gpu_launch(&m->launch, &m->args);
}

static void launch_nothing(void *context, size_t turn)
{
    const qn_peak_nothing_args args = { 0 };
    (void)turn;
    qn_gpu_launch(context, &args);
}

static void bench_multiply(bool bf16, const char *shape)
{
    const qn_cuda_info *info = qn_cuda_get_info(qn_gpu());
    qn_gpu_guarded out = qn_gpu_new(sizeof(uint32_t));
    qn_peak_multiply plan;
    qn_peak_multiply_plan(out.data, bf16, STEPS, info->n_sms, &plan);
    qn_gpu_bench("peak", "cuda", shape, plan.ops, "op", 0, multiply, &plan, 1);
    qn_gpu_free(&out);
}

static void bench_copies(void)
{
    qn_gpu_guarded buffers[2] = { qn_gpu_new(COPY_BYTES), qn_gpu_new(COPY_BYTES) };
    qn_gpu_bench("peak", "cuda", "copy 1 GiB, both ways counted", 2.0 * COPY_BYTES, "B", 0, read_copy, buffers, 1);
    qn_gpu_free(&buffers[0]);
    qn_gpu_free(&buffers[1]);
}

/* From memory that has been written, as a mapped file's pages are once they are read. */
static void bench_upload(void)
{
    enum { REPEATS = 3 };
    qn_gpu_guarded to = qn_gpu_new(COPY_BYTES);
    uint8_t *from = malloc(COPY_BYTES);
    double best = 0;
    qn_expect(from != NULL, "no memory to upload from");
    if (from)
        memset(from, 1, COPY_BYTES);
    for (int i = 0; from && i < REPEATS; i++) {
        struct timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        qn_expect(qn_cuda_upload(qn_gpu(), to.data, from, COPY_BYTES, NULL, NULL) == QN_OK, "%s", qn_error_text());
        clock_gettime(CLOCK_MONOTONIC, &b);
        const double seconds = (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9;
        best = i == 0 || seconds < best ? seconds : best;
    }
    if (from)
        qn_report_rate("peak", "cuda", "upload 1 GiB, best of 3", best, COPY_BYTES / best, "B", 0);
    free(from);
    qn_gpu_free(&to);
}

void qn_check_cuda_peak(bool bench)
{
    const qn_cuda_info *info = qn_cuda_get_info(qn_gpu());
    qn_case_begin("peak", "cuda", "%s", info->name);
    qn_expect(info->n_sms > 0 && info->memory_bytes > 0, "the device has no multiprocessors or no memory");
    if (!bench)
        return;
    qn_launch launch;
    qn_report_rate("peak", "cuda", "read 1 GiB", (1 << 30) / qn_gpu_read_rate(), qn_gpu_read_rate(), "B", 0);
    bench_copies();
    bench_upload();
    bench_multiply(false, "int8 products, mma.sync");
    bench_multiply(true, "bfloat16 products, mma.sync");
    qn_peak_nothing_plan(false, &launch);
    qn_gpu_bench("peak", "cuda", "a launch in a graph", 1, "launch", 0, launch_nothing, &launch, LAUNCHES);
    qn_peak_nothing_plan(true, &launch);
    qn_gpu_bench("peak", "cuda", "a dependent launch in a graph", 1, "launch", 0, launch_nothing, &launch, LAUNCHES);
}
