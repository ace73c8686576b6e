/* A step: rows that are executed together, and the parts of the executor that their launches read. */
#ifndef QN_CUDA_EXECUTOR_STEP_H
#define QN_CUDA_EXECUTOR_STEP_H

#include "cuda/executor/memory.h"
#include "cuda/executor/sampling.h"
#include "gpu/inputs.h"

#include <stddef.h>

/* A step on the device; for QN_OP_LOGIT_NORM and QN_OP_LOGITS, some of a step's rows. Its pointers are valid while the
 * step is being queued. Used by the thread that queues it, which holds stream_lock.
 *
 * In a decode step each piece is one row, and the logits of all rows are computed. Its launch arguments depend only on
 * the number of rows, the cache format and the buffers, so that one graph serves all such steps. */
typedef struct qn_cuda_rows_step {
    qn_cuda_common *common;
    qn_cuda_weights *weights;
    const qn_cuda_workspace *workspace;
    qn_cuda_sampler *sampler;
    struct qn_cuda_graphs *graphs;
    size_t block;               /* of the host's part of the inputs, and of the results */
    const qn_gpu_piece *pieces; /* [n_pieces] of one cache format, by ascending row; pieces of few rows first */
    size_t n_pieces;
    size_t row, n; /* rows [row, row + n) of the buffers */
    size_t n_few;  /* rows [0, n_few) belong to pieces of few rows, whose attention is one launch */
    bool is_decode;
    bool is_draft; /* decode step of the draft head */
    bool verifies; /* 2 to QN_CUDA_VERIFIED_ROWS rows of one sequence, up to the end of its page, each with its logits:
                      as in a decode step, one graph serves all such steps of n rows */
    bool attends_together; /* verifies, with attention to the same codes for all rows (page_rows.h) */
    bool is_block;  /* the same of a block drafter: the block of one sequence, of whose rows the first may have no
                       logits */
    size_t n_known; /* rows before those with logits, if is_block */
    bool in_turn;   /* decode step with several pieces of a sequence: what depends on their order is launched piece by
                       piece, without a graph */
    bool in_phases; /* decode step of several rows, executed by the persistent decode kernel */
    bool fits_open_chunks; /* the rows of each piece go to its open chunk, which is folded before the step if it is
                              full: at most QN_GDN_DROPPED_ROWS rows of each sequence, of one page */
    qn_gpu_inputs inputs;
    size_t n_samples;  /* sampling parameters uploaded with the inputs */
    uint64_t logit_in; /* for logits: address of the gathered rows; 0: the rows are in the plan's buffer */
} qn_cuda_rows_step;

/* Returns the device address of the input array at `offset`. */
static inline uint64_t qn_cuda_step_input(const qn_cuda_rows_step *s, size_t offset)
{
    return s->workspace->inputs + offset;
}

static inline uint64_t qn_cuda_step_positions(const qn_cuda_rows_step *s)
{
    return qn_cuda_step_input(s, s->inputs.positions);
}

static inline qn_status qn_cuda_step_launch(const qn_cuda_rows_step *s, const qn_launch *what, const void *args)
{
    return qn_cuda_launch(s->common->cuda, s->common->stream, what, args);
}

/* Launches with PDL (programmatic dependent launch): the kernel may start before the previous one ends, and calls
 * qn_pdl_wait before it accesses the previous kernel's data. */
static inline qn_status qn_cuda_step_launch_pdl(const qn_cuda_rows_step *s, qn_launch *what, const void *args)
{
    what->pdl = true;
    return qn_cuda_step_launch(s, what, args);
}

/* Returns the address of the step's first row in a buffer of the plan. */
static inline uint64_t qn_cuda_step_buffer(const qn_cuda_rows_step *s, int id)
{
    return qn_cuda_rows(s->workspace, id) + s->row * s->common->plan->buffers[id].width * sizeof(float);
}

static inline const qn_cuda_op *qn_cuda_step_op(const qn_cuda_rows_step *s, const qn_op *op)
{
    return &s->weights->ops[op - s->common->plan->ops];
}

/* Returns the array of 32-bit inputs at `offset`, on the host. The device reads it until the step has ended. */
static inline uint32_t *qn_cuda_host_input(const qn_cuda_rows_step *s, size_t offset)
{
    return (uint32_t *)(void *)(s->workspace->block_inputs[s->block] + offset);
}

#endif
