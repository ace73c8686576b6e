/* quern-check on a GPU: the device under test, its memory with guards, and times by replays of a graph with their share of what
 * the same device reads in the same run. An operation's file (check/cuda_<room>.c) compares kernels with the CPU's reference.
 *
 * What fails for the machine's sake (no memory, a driver's error) ends the program with its text: the checker has nothing to
 * clean up. */
#ifndef QN_CHECK_CUDA_H
#define QN_CHECK_CUDA_H

#include "check/check.h"
#include "device/cuda/cuda.h"

/* qn_check_cuda_open - the device for this run. False, with one line on standard error, where there is none. */
bool qn_check_cuda_open(int ordinal);

/* qn_check_cuda_close - at the end of the run: what kernels were made of is released. */
void qn_check_cuda_close(void);

/* qn_gpu, qn_gpu_stream - the device, and the stream that all below works in. */
qn_cuda *qn_gpu(void);
qn_cuda_stream qn_gpu_stream(void);

/* ---- Memory with guards ---- */

/* `bytes` of device memory at a multiple of 256, filled with poison (all ones: a NaN in every float and half), with guards on
 * both sides. */
typedef struct qn_gpu_guarded {
    uint64_t data;
    size_t bytes;
    qn_cuda_buffer block;
} qn_gpu_guarded;

qn_gpu_guarded qn_gpu_new(size_t bytes);
qn_gpu_guarded qn_gpu_from(const void *data, size_t bytes);

/* qn_gpu_random - bytes that make ordinary numbers, below 2 in magnitude, of every format: constant data would let matrix units
 * run faster. */
void qn_gpu_random(const qn_gpu_guarded *g);

/* qn_gpu_poison - as it was when new. */
void qn_gpu_poison(const qn_gpu_guarded *g);

/* qn_gpu_read - all of it, after what the stream was given. */
void qn_gpu_read(const qn_gpu_guarded *g, void *to);

/* qn_gpu_guards_intact - whether the guards are as they were. */
bool qn_gpu_guards_intact(const qn_gpu_guarded *g);
void qn_gpu_free(qn_gpu_guarded *g);

/* ---- Launches ---- */

/* qn_gpu_launch - into the stream, or into the graph that is being recorded. */
void qn_gpu_launch(const qn_launch *launch, const void *args);

/* qn_gpu_synchronize - until the stream is empty; a kernel's failure ends the program here. */
void qn_gpu_synchronize(void);

/* ---- Speed ---- */

/* qn_gpu_seconds - how long work(context, turn) takes on the device, for turn = 0 to n_iterations-1 in one graph: the median of
 * several replays, divided by n_iterations. Turns take turns with their memory, where it would else stay in the device's cache:
 * qn_gpu_bench_copies(bytes) says how many sets of so many bytes it takes. */
double qn_gpu_seconds(void (*work)(void *context, size_t iteration), void *context, size_t n_iterations);
size_t qn_gpu_bench_copies(size_t bytes_per_iteration);

/* qn_gpu_read_rate - bytes a second that this device reads, measured once in this run. */
double qn_gpu_read_rate(void);

/* qn_gpu_bench - qn_gpu_seconds, printed as a row: time of a turn, rate, and the share of `limit` (in the same units a second)
 * that it is; a limit of 0 leaves the share out. For what is bound by memory, units are bytes and the limit qn_gpu_read_rate.
 */
void qn_gpu_bench(const char *op, const char *variant, const char *shape, double units, const char *unit, double limit,
                  void (*work)(void *context, size_t iteration), void *context, size_t n_iterations);

/* ---- Operations: check, then with `bench` time. A new one is a line in the table of cuda.c. ---- */

typedef struct qn_cuda_operation {
    const char *name;
    void (*check)(bool bench);
} qn_cuda_operation;

extern const qn_cuda_operation qn_cuda_operations[];
extern const size_t qn_n_cuda_operations;

void qn_check_cuda_peak(bool bench);
void qn_check_cuda_hadamard(bool bench);
void qn_check_cuda_attention(bool bench);
void qn_check_cuda_aura(bool bench);
void qn_check_cuda_aura_ops(bool bench);
void qn_check_cuda_rope(bool bench);
void qn_check_cuda_matmul(bool bench);
void qn_check_cuda_deltanet(bool bench);
void qn_check_cuda_rows(bool bench);
void qn_check_cuda_hadamard_quantize(bool bench);
void qn_check_cuda_sample(bool bench);
void qn_check_cuda_persistent_delta(bool bench);
void qn_check_cuda_persistent_attention(bool bench);
void qn_check_cuda_persistent(bool bench);

#endif
