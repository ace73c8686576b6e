/* What the files that launch a step's operations share: operations.c, attention.c, recurrent.c. */
#ifndef QN_DEVICE_CUDA_OPERATIONS_H
#define QN_DEVICE_CUDA_OPERATIONS_H

#include "device/cuda/model.h"

#include <stddef.h>

/* A step; for QN_OP_LOGIT_NORM and QN_OP_LOGITS some of its rows. */
typedef struct qn_cuda_rows_step {
    qn_cuda_model *model;
    const qn_cuda_memory *memory;
    size_t row, n;  /* rows [row, row + n) of the buffers */
    uint32_t first; /* position of the first row */
} qn_cuda_rows_step;

static inline qn_status qn_cuda_step_launch(const qn_cuda_rows_step *s, const qn_launch *what, const void *args)
{
    return qn_cuda_launch(s->model->cuda, s->model->stream, what, args);
}

/* Launches with PDL: the kernel may start before the previous one ends, and waits itself (qn_pdl_wait) before it accesses
 * that one's data. */
static inline qn_status qn_cuda_step_launch_pdl(const qn_cuda_rows_step *s, qn_launch *what, const void *args)
{
    what->pdl = true;
    return qn_cuda_step_launch(s, what, args);
}

/* The address of the step's first row in a buffer of the plan. */
static inline uint64_t qn_cuda_step_buffer(const qn_cuda_rows_step *s, int id)
{
    return qn_cuda_rows(s->model, id) + s->row * s->model->plan->buffers[id].width * sizeof(float);
}

static inline uint64_t qn_cuda_step_positions(const qn_cuda_rows_step *s)
{
    return s->model->inputs + offsetof(qn_cuda_inputs, positions);
}

static inline const qn_cuda_op *qn_cuda_step_op(const qn_cuda_rows_step *s, const qn_op *op)
{
    return &s->model->ops[op - s->model->plan->ops];
}

/* attention.c. qn_cuda_run_attention_op - everything of QN_OP_QK_NORM_ROPE_STORE, QN_OP_ATTENTION and QN_OP_ATTENTION_COMBINE except
 * quantising activations. */
qn_status qn_cuda_run_angles(const qn_cuda_rows_step *s);
qn_status qn_cuda_run_attention_op(const qn_cuda_rows_step *s, const qn_op *op);
qn_status qn_cuda_quantize_layer_pages(const qn_cuda_rows_step *s, int layer);

/* recurrent.c. qn_cuda_run_recurrent_op - the same for QN_OP_CONV, QN_OP_DELTA_RULE and QN_OP_GATED_NORM. */
qn_status qn_cuda_run_recurrent_op(const qn_cuda_rows_step *s, const qn_op *op);

#endif
