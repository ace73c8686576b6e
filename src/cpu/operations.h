/* The operations of a plan on the CPU: the executor's data that they share, and the function for one thread's part of
 * each. executor.h runs them on a team.
 *
 * Threads. During a step all threads of the team read the executor. Each writes only its part of an operation's
 * results, its own scratch, and by atomic additions chunk_counters; a barrier comes before an operation that reads
 * them. */
#ifndef QN_CPU_OPERATIONS_H
#define QN_CPU_OPERATIONS_H

#include "cpu/workspace.h"
#include "device/device.h"
#include "kernels/kernels.h"

#include <stdatomic.h>

/* Members do not change during a step, only what `workspace`, `scratch` and chunk_counters point to. The thread that
 * runs the step sets `step` and split_kv before it. */
typedef struct qn_executor {
    qn_team *team;
    const qn_kernels *kernels;
    const qn_plan *plan;
    qn_cpu_weights weights;
    qn_cpu_workspace workspace;
    const qn_step *step; /* of the caller; NULL between steps */
    bool split_kv;       /* this step's attention is split-KV: distributed over blocks of keys too */
    size_t scratch_bytes;
    unsigned char *scratch; /* [n_threads, scratch_bytes] */
    float *zeros;   /* convolution inputs at positions before 0, and rows of a missing state; NULL without recurrent
                       layers */
    bool *barriers; /* [n_ops] of the plan: whether a barrier follows the operation */
    atomic_uint *chunk_counters; /* [n_ops] chunks of matrix rows claimed by threads in this step */
} qn_executor;

/* Returns the address of a row in a buffer of the plan. */
static inline float *qn_buffer_row(const qn_executor *ex, int id, size_t row)
{
    return ex->workspace.buffers[id] + row * ex->plan->buffers[id].width;
}

/* Returns a thread's scratch, [scratch_bytes]: contents are kept only until the end of an operation. */
static inline unsigned char *qn_thread_scratch(const qn_executor *ex, int thread)
{
    return ex->scratch + (size_t)thread * ex->scratch_bytes;
}

/* qn_executor_NAME - computes one thread's part of an operation. Called by each thread of the team with its own number,
 * from 0. */
#define OP(KIND, name, rows, order, reads, writes, phase, fields)                                                      \
    void qn_executor_##name(const qn_executor *ex, const qn_op *op, int thread);
#include "plan/operations.def"

/* qn_executor_prefetch_weights - prefetches the weights that the thread reads first in an operation (matmul.c). */
void qn_executor_prefetch_weights(const qn_executor *ex, const qn_op *op, int thread);

/* qn_executor_split_kv - returns whether this step's attention is split-KV (attention.c). */
bool qn_executor_split_kv(const qn_executor *ex);

/* qn_attention_scratch - returns the scratch bytes that a thread needs for attention (attention.c). */
size_t qn_attention_scratch(size_t head_dim);

#endif
