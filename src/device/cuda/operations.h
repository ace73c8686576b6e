/* What the files that launch a step's operations share: operations.c, attention.c, recurrent.c. */
#ifndef QN_DEVICE_CUDA_OPERATIONS_H
#define QN_DEVICE_CUDA_OPERATIONS_H

#include "device/cuda/model.h"

#include <stddef.h>

/* A step; for QN_OP_LOGIT_NORM and QN_OP_LOGITS some of its rows. */
typedef struct qn_cuda_rows_step {
    qn_cuda_model *model;
    const qn_cuda_piece *pieces; /* [n_pieces] by ascending row */
    size_t n_pieces;
    struct {
        size_t cu_seqlens, first_positions, state_from, state_to, open_chunks, state_positions;
    } inputs; /* offsets of arrays in qn_cuda_inputs */
    const qn_cuda_memory *memory;
    size_t row, n;  /* rows [row, row + n) of the buffers */
    uint32_t first; /* position of the first row */
} qn_cuda_rows_step;

static inline qn_cuda_rows_step qn_cuda_step_of(qn_cuda_model *model, const qn_cuda_piece *piece)
{
    return (qn_cuda_rows_step){ .model = model,
                                .pieces = piece,
                                .n_pieces = 1,
                                .inputs = { .cu_seqlens = offsetof(qn_cuda_inputs, cu_seqlens),
                                            .first_positions = offsetof(qn_cuda_inputs, first_positions),
                                            .state_from = offsetof(qn_cuda_inputs, state_from),
                                            .state_to = offsetof(qn_cuda_inputs, state_to),
                                            .open_chunks = offsetof(qn_cuda_inputs, open_chunks),
                                            .state_positions = offsetof(qn_cuda_inputs, state_positions) },
                                .memory = piece->memory,
                                .n = piece->n,
                                .first = piece->position };
}

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

/* Where the arrays of the inputs are on the device, and on the host. */
static inline uint64_t qn_cuda_step_input(const qn_cuda_rows_step *s, size_t offset)
{
    return s->model->inputs + offset;
}

static inline uint32_t *qn_cuda_host_input(const qn_cuda_rows_step *s, size_t offset)
{
    return (uint32_t *)(void *)(s->model->host_inputs + offset);
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

/* recurrent.c:
 *   qn_cuda_run_recurrent_op    the same for QN_OP_CONV, QN_OP_DELTA_RULE and QN_OP_GATED_NORM. Arguments of its launches depend on
 *                               the number of pieces alone unless one contains a complete chunk
 *   qn_cuda_fold_full_chunk     of a step of one row, after its inputs are in host_inputs and before they are uploaded, not in its
 *                               graph: folds a full open chunk in all layers, and gives the row the folded state. The delta phase
 *                               of the persistent decode kernel does not fold
 *   qn_cuda_set_recurrent_args  states and open chunks of the persistent decode kernel; nothing without recurrent layers
 *   qn_cuda_state_offset        of a layer's part of a state
 *   qn_cuda_open_layout         of a layer's part of an open chunk, from the start of the item */
qn_status qn_cuda_run_recurrent_op(const qn_cuda_rows_step *s, const qn_op *op);
qn_status qn_cuda_fold_full_chunk(const qn_cuda_rows_step *s);
void qn_cuda_set_recurrent_args(const qn_cuda_rows_step *s, qn_persistent_args *args);
uint64_t qn_cuda_state_offset(const qn_plan *plan, int layer);
qn_gdn_open_layout qn_cuda_open_layout(const qn_plan *plan, int layer);

#endif
