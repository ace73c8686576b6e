/* The device under test: guarded memory, launches that end the program on failure, timing. */
#include "cuda.h"

#include "cuda/executor/read_rate.h"

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
    qn_cuda_kernels *api;
    double read_rate;
} gpu;

static void print_log(void *unused, const char *line)
{
    (void)unused;
    fprintf(stderr, "quern-check: %s\n", line);
}

static void close_device(void)
{
    qn_cuda_kernels_close(gpu.api);
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

const qn_cuda_info *qn_gpu_info(void)
{
    return qn_cuda_get_info(gpu.device);
}

qn_cuda_kernels *qn_api(void)
{
    if (!gpu.api)
        qn_assert_ok(qn_cuda_kernels_open(&gpu.api, qn_gpu_info()->ordinal));
    return gpu.api;
}

qn_cuda_stream qn_gpu_stream(void)
{
    return gpu.stream;
}

/* ---- Arrays ---- */

struct array {
    uint64_t data;
    size_t bytes;
    qn_cuda_buffer block;
    struct array *before; /* in the list of all */
};

static struct array *last;

static struct array *find(uint64_t data)
{
    struct array *a = last;
    while (a && a->data != data)
        a = a->before;
    if (a)
        return a;
    fprintf(stderr, "quern-check: no array begins at 0x%llx\n", (unsigned long long)data);
    exit(1);
}

static bool is_intact(const void *object)
{
    const struct array *a = object;
    uint8_t guards[2][GUARD];
    qn_assert_ok(qn_cuda_download(gpu.device, gpu.stream, guards[0], a->block.address, GUARD));
    qn_assert_ok(qn_cuda_download(gpu.device, gpu.stream, guards[1], a->data + a->bytes, GUARD));
    for (size_t i = 0; i < GUARD; i++)
        if (guards[0][i] != 0xff || guards[1][i] != 0xff)
            return false;
    return true;
}

/* Arrays are released from the last one on. */
static void release(void *object)
{
    struct array *a = object;
    last = a->before;
    qn_cuda_free(gpu.device, &a->block);
    free(a);
}

static void poison(const struct array *a)
{
    qn_assert_ok(qn_cuda_memset(gpu.device, gpu.stream, a->block.address, 0xff, a->block.bytes));
}

uint64_t qn_gpu_new(size_t bytes)
{
    struct array *a = calloc(1, sizeof *a);
    if (!a)
        qn_assert_ok(qn_fail(QN_ERR_MEMORY, "no memory for an array's properties"));
    qn_assert_ok(qn_cuda_alloc(gpu.device, bytes + 2 * GUARD, 1, "quern-check", &a->block));
    a->data = a->block.address + GUARD;
    a->bytes = bytes;
    a->before = last;
    last = a;
    qn_own(a, bytes, is_intact, release);
    poison(a);
    return a->data;
}

uint64_t qn_gpu_floats(size_t n)
{
    return qn_gpu_new(n * sizeof(float));
}

uint64_t qn_gpu_from(const void *data, size_t bytes)
{
    const uint64_t array = qn_gpu_new(bytes);
    qn_gpu_write(array, data, bytes);
    return array;
}

uint64_t qn_gpu_copy(const void *x)
{
    return qn_gpu_from(x, qn_bytes_of(x));
}

uint64_t qn_gpu_zeros(size_t bytes)
{
    const uint64_t array = qn_gpu_new(bytes);
    qn_gpu_fill(array, 0);
    return array;
}

uint64_t qn_gpu_floats_of(size_t n, float scale)
{
    return qn_gpu_copy(qn_floats_of(n, scale));
}

uint64_t qn_gpu_random(size_t bytes)
{
    enum { PIECE = 4 << 20 };
    static uint8_t piece[PIECE];
    const uint64_t array = qn_gpu_new(bytes);
    for (size_t i = 0; i < PIECE; i++)
        piece[i] = (uint8_t)(qn_random() & 0xbf);
    for (size_t at = 0; at < bytes; at += PIECE)
        qn_gpu_write(array + at, piece, bytes - at < PIECE ? bytes - at : PIECE);
    return array;
}

size_t qn_gpu_bytes(uint64_t array)
{
    return find(array)->bytes;
}

void qn_gpu_poison_all(const uint64_t *arrays, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (arrays[i])
            poison(find(arrays[i]));
}

void qn_gpu_fill(uint64_t array, uint8_t byte)
{
    qn_assert_ok(qn_cuda_memset(gpu.device, gpu.stream, array, byte, qn_gpu_bytes(array)));
}

/* Uploads run in another stream: what the stream has queued for the memory, its poison for one, is to be done before.
 */
void qn_gpu_write(uint64_t to, const void *from, size_t bytes)
{
    qn_gpu_synchronize();
    qn_assert_ok(qn_cuda_upload(gpu.device, to, from, bytes, NULL, NULL));
}

void *qn_gpu_read(uint64_t array)
{
    const size_t bytes = qn_gpu_bytes(array);
    void *copy = qn_new(bytes, 1);
    qn_assert_ok(qn_cuda_download(gpu.device, gpu.stream, copy, array, bytes));
    return copy;
}

bool qn_gpu_guards_intact(uint64_t array)
{
    return is_intact(find(array));
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

static void release_graph(void *graph)
{
    qn_cuda_graph_free(gpu.device, graph);
}

void qn_gpu_capture_begin(void)
{
    qn_assert_ok(qn_cuda_capture_begin(gpu.device, gpu.stream));
}

qn_cuda_graph *qn_gpu_capture_end(void)
{
    qn_cuda_graph *graph = NULL;
    qn_assert_ok(qn_cuda_capture_end(gpu.device, gpu.stream, &graph));
    qn_own(graph, 0, NULL, release_graph);
    return graph;
}

void qn_gpu_graph_launch(qn_cuda_graph *graph)
{
    qn_assert_ok(qn_cuda_graph_launch(gpu.device, graph, gpu.stream));
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

struct timed {
    const qn_gpu_timed *launches;
    size_t n;
};

static void launch_timed(void *context, size_t iteration)
{
    const struct timed *t = context;
    for (size_t i = 0; i < t->n; i++)
        qn_gpu_launch(&t->launches[i].launch, (const char *)t->launches[i].args + iteration * t->launches[i].stride);
}

double qn_gpu_seconds_of(const qn_gpu_timed *launches, size_t n, size_t n_iterations)
{
    return qn_gpu_seconds(launch_timed, &(struct timed){ launches, n }, n_iterations);
}

void qn_gpu_bench_launches(const char *op, const char *variant, const char *shape, double units, const char *unit,
                           double limit, const qn_gpu_timed *launches, size_t n, size_t n_iterations)
{
    qn_gpu_bench(op, variant, shape, units, unit, limit, launch_timed, &(struct timed){ launches, n }, n_iterations);
}
