/* The device under test: guarded memory, launches that end the program on failure, timing. */
#include "cuda.h"

#include "cuda/executor/read_rate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const qn_checked_operation operations[] = {
    { "peak", qn_check_cuda_peak },
    { "hadamard", qn_check_cuda_hadamard },
    { "attention", qn_check_cuda_attention },
    { "pages", qn_check_cuda_pages },
    { "aura", qn_check_cuda_aura },
    { "aura-ops", qn_check_cuda_aura_ops },
    { "rope", qn_check_cuda_rope },
    { "matmul", qn_check_cuda_matmul },
    { "precision", qn_check_cuda_precision },
    { "deltanet", qn_check_cuda_deltanet },
    { "api", qn_check_cuda_api },
    { "api-stages", qn_check_cuda_api_stages },
    { "rows", qn_check_cuda_rows },
    { "hadamard-quantize", qn_check_cuda_hadamard_quantize },
    { "persistent", qn_check_cuda_persistent },
    { "persistent-delta", qn_check_cuda_persistent_delta },
    { "persistent-attention", qn_check_cuda_persistent_attention },
    { "persistent-rows", qn_check_cuda_persistent_rows },
    { "sample", qn_check_cuda_sample },
};

enum { GUARD = 256, REPLAYS = 11 };

static struct {
    qn_cuda *device;
    qn_cuda_stream stream;
    double read_rate;
} gpu;

static void print_log(void *unused, const char *line)
{
    (void)unused;
    fprintf(stderr, "quern-check: %s\n", line);
}

static void close_device(void)
{
    if (gpu.device)
        qn_cuda_stream_free(gpu.device, gpu.stream);
    qn_cuda_close(gpu.device);
    gpu.device = NULL;
}

static bool open_device(int ordinal)
{
    const qn_cuda_params params = { .ordinal = ordinal, .on_log = print_log };
    if (qn_cuda_open(&params, &gpu.device) || qn_cuda_stream_create(gpu.device, &gpu.stream)) {
        fprintf(stderr, "quern-check: --device cuda: %s\n", qn_error_text());
        close_device();
        return false;
    }
    return true;
}

const qn_checked_backend qn_checked_cuda = { .name = "cuda",
                                             .open = open_device,
                                             .close = close_device,
                                             .operations = operations,
                                             .n_operations = sizeof operations / sizeof *operations };

qn_cuda *qn_gpu(void)
{
    return gpu.device;
}

qn_cuda_stream qn_gpu_stream(void)
{
    return gpu.stream;
}

/* ---- Memory ---- */

qn_gpu_guarded qn_gpu_new(size_t bytes)
{
    qn_gpu_guarded g = { .bytes = bytes };
    qn_assert_ok(qn_cuda_alloc(gpu.device, bytes + 2 * GUARD, 1, "quern-check", &g.block));
    g.data = g.block.address + GUARD;
    qn_gpu_poison(&g);
    return g;
}

qn_gpu_guarded qn_gpu_from(const void *data, size_t bytes)
{
    qn_gpu_guarded g = qn_gpu_new(bytes);
    qn_gpu_synchronize(); /* the poison must be written first: uploads run in another stream */
    qn_assert_ok(qn_cuda_upload(gpu.device, g.data, data, bytes, NULL, NULL));
    return g;
}

void qn_gpu_random(const qn_gpu_guarded *g)
{
    enum { PIECE = 4 << 20 };
    static uint8_t piece[PIECE];
    for (size_t i = 0; i < PIECE; i++)
        piece[i] = (uint8_t)(qn_random() & 0xbf);
    for (size_t at = 0; at < g->bytes; at += PIECE)
        qn_assert_ok(
            qn_cuda_upload(qn_gpu(), g->data + at, piece, g->bytes - at < PIECE ? g->bytes - at : PIECE, NULL, NULL));
}

void qn_gpu_poison(const qn_gpu_guarded *g)
{
    qn_assert_ok(qn_cuda_memset(gpu.device, gpu.stream, g->block.address, 0xff, g->block.bytes));
}

void qn_gpu_read(const qn_gpu_guarded *g, void *to)
{
    qn_assert_ok(qn_cuda_download(gpu.device, gpu.stream, to, g->data, g->bytes));
}

bool qn_gpu_guards_intact(const qn_gpu_guarded *g)
{
    uint8_t guards[2][GUARD];
    qn_assert_ok(qn_cuda_download(gpu.device, gpu.stream, guards[0], g->block.address, GUARD));
    qn_assert_ok(qn_cuda_download(gpu.device, gpu.stream, guards[1], g->data + g->bytes, GUARD));
    for (size_t i = 0; i < GUARD; i++)
        if (guards[0][i] != 0xff || guards[1][i] != 0xff)
            return false;
    return true;
}

void qn_gpu_free(qn_gpu_guarded *g)
{
    qn_cuda_free(gpu.device, &g->block);
}

/* ---- Launches ---- */

void qn_gpu_launch(const qn_launch *launch, const void *args)
{
    qn_assert_ok(qn_cuda_launch(gpu.device, gpu.stream, launch, args));
}

void qn_gpu_synchronize(void)
{
    qn_assert_ok(qn_cuda_stream_synchronize(gpu.device, gpu.stream));
}

/* ---- Speed ---- */

/* One replay of the graph repeats the iterations for at least half a millisecond, so that the graph launch is
 * negligible. */
double qn_gpu_seconds(void (*work)(void *context, size_t iteration), void *context, size_t n_iterations)
{
    qn_cuda_event begin, end;
    double seconds[REPLAYS], once = 0;
    qn_assert_ok(qn_cuda_event_create(gpu.device, &begin));
    qn_assert_ok(qn_cuda_event_create(gpu.device, &end));
    for (size_t iteration = 0; iteration < n_iterations; iteration++)
        work(context, iteration); /* compile, load and warm up */
    qn_gpu_synchronize();
    size_t rounds = 1;
    for (;;) {
        qn_cuda_graph *graph = NULL;
        qn_assert_ok(qn_cuda_capture_begin(gpu.device, gpu.stream));
        for (size_t round = 0; round < rounds; round++)
            for (size_t iteration = 0; iteration < n_iterations; iteration++)
                work(context, iteration);
        qn_assert_ok(qn_cuda_capture_end(gpu.device, gpu.stream, &graph));
        for (int run = -1; run < REPLAYS; run++) { /* run -1 uploads the graph */
            qn_assert_ok(qn_cuda_event_record(gpu.device, begin, gpu.stream));
            qn_assert_ok(qn_cuda_graph_launch(gpu.device, graph, gpu.stream));
            qn_assert_ok(qn_cuda_event_record(gpu.device, end, gpu.stream));
            qn_assert_ok(qn_cuda_event_synchronize(gpu.device, end));
            if (run >= 0)
                qn_assert_ok(qn_cuda_event_seconds(gpu.device, begin, end, &seconds[run]));
        }
        qn_cuda_graph_free(gpu.device, graph);
        const double median = qn_median(seconds, REPLAYS);
        once = median / (double)(rounds * n_iterations);
        if (rounds > 1 || median > 0.5e-3)
            break;
        rounds = (size_t)(0.5e-3 / median) + 2;
        if (rounds * n_iterations > 2000)
            rounds = 2000 / n_iterations + 2;
    }
    qn_cuda_event_free(gpu.device, begin);
    qn_cuda_event_free(gpu.device, end);
    return once;
}

size_t qn_gpu_bench_copies(size_t bytes_per_iteration)
{
    const size_t cache = qn_cuda_get_info(gpu.device)->l2_bytes;
    return bytes_per_iteration ? 2 * cache / bytes_per_iteration + 2 : 1; /* twice L2: an LRU cache has evicted each set
                                                                           */
}

double qn_gpu_read_rate(void)
{
    if (gpu.read_rate == 0)
        qn_assert_ok(qn_cuda_read_rate(gpu.device, gpu.stream, &gpu.read_rate));
    return gpu.read_rate;
}

void qn_gpu_bench(const char *op, const char *variant, const char *shape, double units, const char *unit, double limit,
                  void (*work)(void *context, size_t iteration), void *context, size_t n_iterations)
{
    if (!qn_bench_selected(shape))
        return;
    const double seconds = qn_gpu_seconds(work, context, n_iterations);
    qn_report_rate(op, variant, shape, seconds, units / seconds, unit, limit);
}
