/* Executes a plan on the CPU: a fixed thread team runs the operations in order, each thread its part of the work, with a
 * barrier where the next operation depends on it. */
#ifndef QN_CPU_EXECUTOR_H
#define QN_CPU_EXECUTOR_H

#include "cpu/workspace.h"
#include "device/device.h"
#include "kernels/kernels.h"

#include <stdatomic.h>

typedef struct qn_executor {
    qn_team *team;
    const qn_kernels *kernels;
    const qn_plan *plan;
    qn_cpu_weights weights;
    qn_cpu_workspace workspace;
    const qn_step *step;
    bool split_kv; /* this step's attention is split-KV: distributed over blocks of keys too */
    size_t scratch_bytes;
    unsigned char *scratch;      /* [n_threads, scratch_bytes] */
    float *zeros;                /* convolution inputs of a position before 0; NULL without recurrent layers */
    bool *barriers;              /* [n_ops] of the plan: whether a barrier follows the operation */
    atomic_uint *chunk_counters; /* [n_ops] chunks of matrix rows claimed by threads in this step */
} qn_executor;

/* qn_executor_create - an executor of one plan. Plan, kernels and team outlive it; several executors may share a team.
 * QN_ERR_MEMORY; free with qn_executor_free, which accepts NULL. */
qn_status qn_executor_create(qn_team *team, const qn_kernels *kernels, const qn_plan *plan, qn_executor **out);
void qn_executor_free(qn_executor *executor);

/* qn_executor_pack - qn_cpu_weights_pack of the plan's matrices. Before the first qn_executor_reserve. */
qn_status qn_executor_pack(qn_executor *executor, const uint8_t *data, bool *packed);

/* qn_executor_reserve - allocate the workspace for steps of up to max_rows rows over sessions of up to max_positions
 * positions. Sizes only grow; a call that needs no growth costs nothing. After QN_ERR_MEMORY there is no workspace, and the
 * caller reserves again before it runs a step. */
qn_status qn_executor_reserve(qn_executor *executor, size_t max_rows, size_t max_positions);

/* qn_executor_run - execute one step: stores the rows' keys and values in the caches, updates recurrent state, writes
 * step->logits. The workspace is reserved for at least step->n_rows rows and every row's position + 1. One caller at a
 * time. */
void qn_executor_run(qn_executor *executor, const qn_step *step);

/* ---- Operations ---- */

static inline float *qn_buffer_row(const qn_executor *ex, int id, size_t row)
{
    return ex->workspace.buffers[id] + row * ex->plan->buffers[id].width;
}

static inline unsigned char *qn_thread_scratch(const qn_executor *ex, int thread)
{
    return ex->scratch + (size_t)thread * ex->scratch_bytes;
}

/* qn_executor_NAME - one thread's part of an operation. */
#define OP(KIND, name, rows, order, reads, writes, phase, fields)                                                              \
    void qn_executor_##name(const qn_executor *ex, const qn_op *op, int thread);
#include "plan/operations.def"

/* matmul.c: prefetch of the weights of an operation that the thread reads first. */
void qn_executor_prefetch_weights(const qn_executor *ex, const qn_op *op, int thread);

/* attention.c: whether this step's attention is split-KV; scratch bytes of a thread. */
bool qn_executor_split_kv(const qn_executor *ex);
size_t qn_attention_scratch(size_t head_dim);

#endif
