/* What the files of the CPU executor share. */
#ifndef QN_DEVICE_CPU_INTERNAL_H
#define QN_DEVICE_CPU_INTERNAL_H

#include "device/cpu/executor.h"

#include <stdatomic.h>

struct qn_executor {
    qn_team *team;
    const qn_kernels *kernels;
    const qn_plan *plan;
    const qn_step *step;
    bool split_kv; /* this step's attention is spread over blocks of keys too */
    size_t scratch_bytes;
    unsigned char *scratch;      /* [n_threads, scratch_bytes] */
    float *zeros;                /* a row of the convolution's inputs before position 0; NULL without recurrent layers */
    atomic_uint *chunk_counters; /* [n_ops] chunks of matrices' rows that threads have taken this step */
};

/* The piece of a row that one thread makes and puts into activations: whole super-blocks and whole blocks of a rotation. */
typedef struct qn_act_slice {
    size_t row, first, n;
    float *values; /* [n] of the thread's scratch */
} qn_act_slice;

/* qn_act_slice_width - the size of a unit that is not a row's last. */
size_t qn_act_slice_width(const qn_plan *plan, const qn_op *op);

/* qn_act_slices - how many units n_rows rows of the activations that an operation writes have; qn_act_slice_at - one of them. */
size_t qn_act_slices(const qn_executor *ex, const qn_op *op, size_t n_rows);
qn_act_slice qn_act_slice_at(const qn_executor *ex, const qn_op *op, size_t index, int thread);

/* qn_act_slice_write - the values, which are changed, into all activations that an operation writes. */
void qn_act_slice_write(const qn_executor *ex, const qn_op *op, const qn_act_slice *unit);

static inline float *qn_buffer_row(const qn_executor *ex, int id, size_t row)
{
    return ex->plan->buffers[id].data + row * ex->plan->buffers[id].width;
}

static inline unsigned char *qn_thread_scratch(const qn_executor *ex, int thread)
{
    return ex->scratch + (size_t)thread * ex->scratch_bytes;
}

/* matmul.c: each thread's share of a product; and what the first of it reads asked for, while other things are done. */
void qn_executor_matmul(const qn_executor *ex, const qn_op *op, int thread);
void qn_executor_prefetch_weights(const qn_executor *ex, const qn_op *op, int thread);

/* attention.c: each thread's share of an operation; whether this step's attention is spread over blocks of keys too; and what
 * a thread needs of scratch. */
void qn_executor_qk_norm_rope_store(const qn_executor *ex, const qn_op *op, int thread);
void qn_executor_attention(const qn_executor *ex, const qn_op *op, int thread);
void qn_executor_attention_combine(const qn_executor *ex, const qn_op *op, int thread);
bool qn_executor_split_kv(const qn_executor *ex);
size_t qn_attention_scratch(size_t head_dim);

/* recurrent.c: each thread's share of an operation. */
void qn_executor_conv(const qn_executor *ex, const qn_op *op, int thread);
void qn_executor_delta_rule(const qn_executor *ex, const qn_op *op, int thread);
void qn_executor_gated_norm(const qn_executor *ex, const qn_op *op, int thread);

#endif
