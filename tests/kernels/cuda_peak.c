/* The device's measured limits; other benchmarks print their rate as a percentage of them. No results are checked. */
#include "cuda.h"

#include "cuda/kernels/peak/peak.h"

#include <pthread.h>
#include <time.h>

enum { LAUNCHES = 1000, STEPS = 2000, COPY_BYTES = 1 << 30 };

static void read_copy(void *context, size_t turn)
{
    const uint64_t *buffers = context;
    (void)turn;
    if (qn_cuda_copy_d2d(qn_gpu(), qn_gpu_stream(), buffers[1], buffers[0], qn_gpu_bytes(buffers[0])))
        qn_expect(false, "%s", qn_error_text());
}

static void bench_mma(bool bf16, const char *shape)
{
    qn_peak_mma plan;
    qn_peak_mma_plan(qn_gpu_new(sizeof(uint32_t)), bf16, STEPS, qn_gpu_info()->n_sms, &plan);
    const qn_gpu_timed timed = { .launch = plan.launch, .args = &plan.args };
    qn_gpu_bench_launches("peak", "cuda", shape, plan.ops, "op", 0, &timed, 1, 1);
    qn_release();
}

static void bench_empty(bool pdl, const char *shape)
{
    const qn_peak_empty_args args = { 0 };
    qn_gpu_timed timed = { .args = &args };
    qn_peak_empty_plan(pdl, &timed.launch);
    qn_gpu_bench_launches("peak", "cuda", shape, 1, "launch", 0, &timed, 1, LAUNCHES);
}

static void bench_copies(void)
{
    uint64_t buffers[2] = { qn_gpu_new(COPY_BYTES), qn_gpu_new(COPY_BYTES) };
    qn_peak_copy plan;
    qn_gpu_bench("peak", "cuda", "driver's D2D copy, read and write", 2.0 * COPY_BYTES, "B", 0, read_copy, buffers, 1);
    qn_assert_ok(qn_peak_copy_plan(buffers[1], buffers[0], COPY_BYTES, qn_gpu_info()->n_sms, &plan));
    const qn_gpu_timed timed = { .launch = plan.launch, .args = &plan.args };
    qn_gpu_bench_launches("peak", "cuda", "copy by a kernel, read", COPY_BYTES, "B", 0, &timed, 1, 1);
    qn_release();
}

struct upload_slice {
    uint64_t to;
    const uint8_t *from;
    size_t bytes;
    bool ok;
};

static void *upload_thread(void *context)
{
    struct upload_slice *p = context;
    p->ok = qn_cuda_upload(qn_gpu(), p->to, p->from, p->bytes, NULL, NULL) == QN_OK;
    return NULL;
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* From memory that is already mapped, like the pages of a mapped file after they have been read. */
static void bench_upload(size_t n_threads, const char *shape)
{
    enum { REPEATS = 3, MAX_THREADS = 4 };
    uint64_t to = qn_gpu_new(COPY_BYTES);
    uint8_t *from = qn_new(COPY_BYTES, 1);
    double best = 0;
    memset(from, 1, COPY_BYTES);
    for (int i = 0; i < REPEATS; i++) {
        struct upload_slice slices[MAX_THREADS];
        pthread_t threads[MAX_THREADS];
        const double begin = seconds_now();
        for (size_t t = 0; t < n_threads; t++) {
            const size_t at = t * (COPY_BYTES / n_threads);
            slices[t] = (struct upload_slice){ to + at, from + at, COPY_BYTES / n_threads, false };
            if (t > 0 && pthread_create(&threads[t], NULL, upload_thread, &slices[t]) != 0) {
                qn_expect(false, "no thread to upload from");
                n_threads = t;
            }
        }
        upload_thread(&slices[0]);
        for (size_t t = 0; t < n_threads; t++) {
            if (t > 0)
                pthread_join(threads[t], NULL);
            qn_expect(slices[t].ok, "an upload failed");
        }
        const double seconds = seconds_now() - begin;
        best = i == 0 || seconds < best ? seconds : best;
    }
    qn_report_rate("peak", "cuda", shape, best, COPY_BYTES / best, "B", 0);
    qn_release();
}

void qn_check_cuda_peak(bool bench)
{
    const qn_cuda_info *info = qn_gpu_info();
    qn_case_begin("peak", "cuda", "%s", info->name);
    qn_expect(info->n_sms > 0 && info->memory_bytes > 0, "the device has no SMs or no memory");
    if (!bench)
        return;
    qn_report_rate("peak", "cuda", "read 1 GiB", (1 << 30) / qn_gpu_read_rate(), qn_gpu_read_rate(), "B", 0);
    bench_copies();
    bench_upload(1, "upload 1 GiB");
    bench_upload(4, "upload 1 GiB by 4 threads");
    bench_mma(false, "int8, mma.sync");
    bench_mma(true, "bf16, mma.sync");
    bench_empty(false, "a launch in a graph");
    bench_empty(true, "a launch with PDL in a graph");
}
