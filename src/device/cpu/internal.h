/* Types and functions shared by the files of the CPU device. */
#ifndef QN_DEVICE_CPU_INTERNAL_H
#define QN_DEVICE_CPU_INTERNAL_H

#include "device/cpu/executor.h"
#include "device/cpu/memory.h"
#include "device/cpu/weights.h"
#include "device/cpu/workspace.h"

#include <stdatomic.h>

struct qn_executor {
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
};

typedef struct qn_cpu_device {
    qn_device base;
    const qn_plan *plan;
    const qn_kernels *kernels;
    qn_executor *executor;
    qn_cpu_caches *caches;
    qn_team *team;
    float *logits;    /* [max_sampled, n_vocab] for sampling */
    uint8_t *scratch; /* [n_threads, scratch_bytes] for sampling; both are allocated when they are first needed */
    size_t max_sampled, scratch_bytes;
} qn_cpu_device;

/* A slice of a row of activations, computed and quantised by one thread: full super-blocks and full blocks of a rotation. */
typedef struct qn_act_slice {
    size_t row, first, n;
    float *values; /* [n] of the thread's scratch */
} qn_act_slice;

/* qn_act_slice_width - values of a slice of activations, except the last one of a row, which may be shorter. */
size_t qn_act_slice_width(const qn_plan *plan, const qn_op_acts *acts);

/* qn_act_slices - number of slices in n_rows rows of the activations that an operation writes.
 * qn_act_slice_at - slice number `index`, with the thread's scratch as its values. */
size_t qn_act_slices(const qn_executor *ex, const qn_op_acts *acts, size_t n_rows);
qn_act_slice qn_act_slice_at(const qn_executor *ex, const qn_op_acts *acts, size_t index, int thread);

/* qn_act_slice_write - rotate and quantise the slice's values into all activations that the operation writes; the values are
 * overwritten. */
void qn_act_slice_write(const qn_executor *ex, const qn_op_acts *acts, const qn_act_slice *slice);

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
