/* quern-check on a GPU: the device under test, guarded device memory, and timing by replays of a CUDA graph, with rates
 * as a fraction of the read bandwidth measured in the same run. The file of an operation
 * (tests/kernels/cuda_<operation>.c) compares kernels with the CPU's reference.
 *
 * A failed allocation or a driver error ends the program with its error text. */
#ifndef QN_CHECK_CUDA_H
#define QN_CHECK_CUDA_H

#include "check.h"
#include "cuda/runtime/runtime.h"
#include "quern/cuda.h"

/* qn_gpu - Returns the device under test. */
qn_cuda *qn_gpu(void);

/* qn_gpu_info - Returns its properties. */
const qn_cuda_info *qn_gpu_info(void);

/* qn_gpu_stream - Returns the stream of all functions below. */
qn_cuda_stream qn_gpu_stream(void);

/* qn_api - Returns quern/cuda.h on the device under test, opened at the first call. */
qn_cuda_kernels *qn_api(void);

/* ---- Arrays ----
 *
 * An array in device memory is its address, a multiple of 256. It begins filled with poison (all ones: NaN as f32 and
 * f16), with guard bytes on both sides, and belongs to the case: qn_release compares its guards and frees it. */

/* qn_gpu_new - Allocates an array of poison; qn_gpu_floats: of n floats. */
uint64_t qn_gpu_new(size_t bytes);
uint64_t qn_gpu_floats(size_t n);

/* qn_gpu_from - As qn_gpu_new, with a copy of `data`; qn_gpu_copy: of all of x, memory of the case. */
uint64_t qn_gpu_from(const void *data, size_t bytes);
uint64_t qn_gpu_copy(const void *x);

/* qn_gpu_zeros - As qn_gpu_new, with zeros. */
uint64_t qn_gpu_zeros(size_t bytes);

/* qn_gpu_floats_of - Returns an array of n values of qn_random_floats. */
uint64_t qn_gpu_floats_of(size_t n, float scale);

/* qn_gpu_random - Returns an array of random bytes that are finite numbers below 2 in magnitude in every float format:
 * on constant data tensor cores would run faster. */
uint64_t qn_gpu_random(size_t bytes);

/* qn_gpu_bytes - Returns the size of an array. */
size_t qn_gpu_bytes(uint64_t array);

/* qn_gpu_poison - Fills arrays and their guards with poison again; 0 is no array. */
#define qn_gpu_poison(...)                                                                                             \
    qn_gpu_poison_all((const uint64_t[]){ __VA_ARGS__ }, QN_LENGTH(((const uint64_t[]){ __VA_ARGS__ })))
void qn_gpu_poison_all(const uint64_t *arrays, size_t n);

/* qn_gpu_fill - Sets all bytes of an array. */
void qn_gpu_fill(uint64_t array, uint8_t byte);

/* qn_gpu_write - Copies bytes from the host to any address, after the work queued in the stream. */
void qn_gpu_write(uint64_t to, const void *from, size_t bytes);

/* qn_gpu_read - Returns a copy of an array on the host, after the work queued in the stream. */
void *qn_gpu_read(uint64_t array);

/* qn_gpu_guards_intact - Returns whether the guards of an array are unchanged. */
bool qn_gpu_guards_intact(uint64_t array);

/* ---- Launches ---- */

/* qn_gpu_launch - Queues a launch in the stream, or records it in the graph that is being captured. */
void qn_gpu_launch(const qn_launch *launch, const void *args);

/* qn_gpu_synchronize - Waits until the stream is idle; a kernel's failure ends the program here. */
void qn_gpu_synchronize(void);

/* qn_gpu_capture_begin, qn_gpu_capture_end - What is queued between them is recorded in a graph of the case. */
void qn_gpu_capture_begin(void);
qn_cuda_graph *qn_gpu_capture_end(void);
void qn_gpu_graph_launch(qn_cuda_graph *graph);

/* ---- Speed ---- */

/* qn_gpu_seconds - Measures the device time of work(context, iteration), iteration = 0 to n_iterations-1 in one graph:
 * the median of several replays, divided by n_iterations. To measure reads from HBM, each iteration uses another set of
 * buffers (qn_gpu_bench_copies). */
double qn_gpu_seconds(void (*work)(void *context, size_t iteration), void *context, size_t n_iterations);

/* qn_gpu_bench_copies - Returns the number of sets of buffers of this size that exceeds L2. */
size_t qn_gpu_bench_copies(size_t bytes_per_iteration);

/* qn_gpu_read_rate - Returns the read bandwidth of this device in bytes per second, measured once per run. */
double qn_gpu_read_rate(void);

/* qn_gpu_bench - Prints qn_gpu_seconds as a row: time of an iteration, rate, and the rate as a percentage of `limit`
 * (in units per second), omitted if limit is 0. For memory-bound kernels, units are bytes and the limit is
 * qn_gpu_read_rate(). */
void qn_gpu_bench(const char *op, const char *variant, const char *shape, double units, const char *unit, double limit,
                  void (*work)(void *context, size_t iteration), void *context, size_t n_iterations);

/* A launch to be timed. Iteration i has the arguments at args + i * stride. */
typedef struct qn_gpu_timed {
    qn_launch launch;
    const void *args;
    size_t stride;
} qn_gpu_timed;

/* qn_gpu_seconds_of - As qn_gpu_seconds, with n launches as the work of an iteration. */
double qn_gpu_seconds_of(const qn_gpu_timed *launches, size_t n, size_t n_iterations);

/* qn_gpu_bench_launches - As qn_gpu_bench, with n launches as the work of an iteration. */
void qn_gpu_bench_launches(const char *op, const char *variant, const char *shape, double units, const char *unit,
                           double limit, const qn_gpu_timed *launches, size_t n, size_t n_iterations);

/* ---- Operations: check, then with `bench` time. A new one is a line in the table of cuda.c. ---- */

extern const qn_checked_backend qn_checked_cuda;

void qn_check_cuda_peak(bool bench);
void qn_check_cuda_hadamard(bool bench);
void qn_check_cuda_attention(bool bench);
void qn_check_cuda_pages(bool bench);
void qn_check_cuda_aura(bool bench);
void qn_check_cuda_aura_ops(bool bench);
void qn_check_cuda_rope(bool bench);
void qn_check_cuda_matmul(bool bench);
void qn_check_cuda_precision(bool bench);
void qn_check_cuda_deltanet(bool bench);
void qn_check_cuda_api(bool bench);
void qn_check_cuda_api_stages(bool bench);
void qn_check_cuda_rows(bool bench);
void qn_check_cuda_hadamard_quantize(bool bench);
void qn_check_cuda_sample(bool bench);
void qn_check_cuda_persistent_delta(bool bench);
void qn_check_cuda_persistent_attention(bool bench);
void qn_check_cuda_persistent_rows(bool bench);
void qn_check_cuda_persistent(bool bench);

#endif
