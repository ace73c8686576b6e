/* quern-check on a GPU: the device under test, guarded device memory, and timing by replays of a CUDA graph, with rates
 * as a fraction of the read bandwidth measured in the same run. The file of an operation
 * (tests/kernels/cuda_<operation>.c) compares kernels with the CPU's reference.
 *
 * A failed allocation or a driver error ends the program with its error text. */
#ifndef QN_CHECK_CUDA_H
#define QN_CHECK_CUDA_H

#include "check.h"
#include "cuda/runtime/runtime.h"

/* qn_gpu - Returns the device under test. */
qn_cuda *qn_gpu(void);

/* qn_gpu_stream - Returns the stream of all functions below. */
qn_cuda_stream qn_gpu_stream(void);

/* ---- Memory with guards ---- */

/* `bytes` of device memory at a multiple of 256, filled with poison (all ones: NaN as f32 and f16), with guard bytes on
 * both sides. */
typedef struct qn_gpu_guarded {
    uint64_t data;
    size_t bytes;
    qn_cuda_buffer block;
} qn_gpu_guarded;

/* qn_gpu_new - Allocates guarded device memory, filled with poison. Free with qn_gpu_free. */
qn_gpu_guarded qn_gpu_new(size_t bytes);

/* qn_gpu_from - As qn_gpu_new, with a copy of `data`. */
qn_gpu_guarded qn_gpu_from(const void *data, size_t bytes);

/* qn_gpu_random - Fills memory with random bytes that are finite numbers below 2 in magnitude in every float format:
 * on constant data tensor cores would run faster. */
void qn_gpu_random(const qn_gpu_guarded *g);

/* qn_gpu_poison - Fills memory and guards with poison again. */
void qn_gpu_poison(const qn_gpu_guarded *g);

/* qn_gpu_read - Copies all bytes to the host, after the work queued in the stream. */
void qn_gpu_read(const qn_gpu_guarded *g, void *to);

/* qn_gpu_guards_intact - Returns whether the guards are unchanged. */
bool qn_gpu_guards_intact(const qn_gpu_guarded *g);
void qn_gpu_free(qn_gpu_guarded *g);

/* ---- Launches ---- */

/* qn_gpu_launch - Queues a launch in the stream, or records it in the graph that is being captured. */
void qn_gpu_launch(const qn_launch *launch, const void *args);

/* qn_gpu_synchronize - Waits until the stream is idle; a kernel's failure ends the program here. */
void qn_gpu_synchronize(void);

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
