/* What the files that launch a step's operations share: inputs.c, operations.c, attention.c, recurrent.c, graphs.c,
 * executor.c. */
#ifndef QN_CUDA_EXECUTOR_OPERATIONS_H
#define QN_CUDA_EXECUTOR_OPERATIONS_H

#include "cuda/executor/model.h"

#include <stddef.h>

/* A step on the device; for QN_OP_LOGIT_NORM and QN_OP_LOGITS some of its rows.
 *
 * In a decode step each piece is one row, and the logits of all rows are computed. The arguments of its launches then depend
 * on the number of rows, the cache format and buffers alone, so that one graph serves all such steps. */
typedef struct qn_cuda_rows_step {
    qn_cuda_model *model;
    qn_cuda_graphs *graphs;
    const qn_cuda_piece *pieces; /* [n_pieces] of one cache format, by ascending row; those of few rows first */
    size_t n_pieces;
    size_t row, n; /* rows [row, row + n) of the buffers */
    size_t n_few;  /* rows [0, n_few) are of pieces of few rows, whose attention is one launch */
    bool is_decode;
    bool in_phases; /* several rows of a decode step by the persistent decode kernel */
    qn_cuda_inputs inputs;
    size_t n_samples;  /* parameters of sampling that are uploaded with them */
    uint64_t logit_in; /* logit rows: address of the gathered rows; 0: they are rows of the buffer */
} qn_cuda_rows_step;

/* Where the arrays of the inputs are on the device. */
static inline uint64_t qn_cuda_step_input(const qn_cuda_rows_step *s, size_t offset)
{
    return s->model->inputs + offset;
}

static inline uint64_t qn_cuda_step_positions(const qn_cuda_rows_step *s)
{
    return qn_cuda_step_input(s, s->inputs.positions);
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

static inline const qn_cuda_op *qn_cuda_step_op(const qn_cuda_rows_step *s, const qn_op *op)
{
    return &s->model->ops[op - s->model->plan->ops];
}

/* The array of 32-bit inputs at an offset, on the host. */
static inline uint32_t *qn_cuda_host_input(const qn_cuda_rows_step *s, size_t offset)
{
    return (uint32_t *)(void *)(s->model->host_inputs + offset);
}

/* inputs.c:
 *   qn_cuda_inputs_of      where the inputs of so many rows, pieces and logit rows are
 *   qn_cuda_fill_inputs    all but logit_rows, which are the caller's, into host_inputs
 *   qn_cuda_upload_inputs  to the device, and embeddings from the host or from the table on the device */
qn_cuda_inputs qn_cuda_inputs_of(size_t n_rows, size_t n_pieces, size_t n_logits);
void qn_cuda_fill_inputs(const qn_cuda_rows_step *s);
qn_status qn_cuda_upload_inputs(const qn_cuda_rows_step *s);

/* operations.c: launches in the model's stream.
 *   qn_cuda_run_trunk       all operations before the logits. With a decode plan: after qn_cuda_prepare_decode
 *   qn_cuda_run_logits      logits of rows [row, row + n), n <= QN_CUDA_LOGIT_ROWS, into model->logits
 *   qn_cuda_gather_rows     into model->gathered: the n <= QN_CUDA_LOGIT_ROWS rows of the inputs' logit_rows from `first` on
 *   qn_cuda_prepare_decode  plan the launches of a step of one row, or in phases, and upload its phases, if that is not done
 *                           yet for the buffers of now; nothing for other steps
 *   qn_cuda_has_phases      whether a decode step of n rows, several, is executed by the persistent decode kernel */
qn_status qn_cuda_run_trunk(const qn_cuda_rows_step *s);
qn_status qn_cuda_run_logits(const qn_cuda_rows_step *s);
qn_status qn_cuda_gather_rows(const qn_cuda_rows_step *s, size_t first, size_t n);
qn_status qn_cuda_prepare_decode(const qn_cuda_rows_step *s);
bool qn_cuda_has_phases(const qn_cuda_model *model, size_t n);

/* poison.c, nothing unless memory is poisoned:
 *   qn_cuda_poison_step   before the inputs of a step are uploaded: the workspace on the device
 *   qn_cuda_poison_part   before the norm with which a part of a layer begins: what the part before it has left
 *   qn_cuda_poison_block  after the results of a step were read: what the host writes and reads of the current block */
qn_status qn_cuda_poison_step(const qn_cuda_rows_step *s);
qn_status qn_cuda_poison_part(const qn_cuda_rows_step *s);
void qn_cuda_poison_block(const qn_cuda_model *model);

/* From this number of rows on, blocks of attention are distributed over a piece's rows (prefill kernel, a launch for each
 * piece); below, over KV splits too (decode kernel, one launch for all pieces). */
enum { QN_CUDA_PREFILL_ROWS = 64 };

/* attention.c:
 *   qn_cuda_run_attention_op      everything of QN_OP_QK_NORM_ROPE_STORE, QN_OP_ATTENTION and QN_OP_ATTENTION_COMBINE except
 *                                 quantising activations
 *   qn_cuda_quantize_pages        AURA: quantises, in all layers, the pages that a step completes whose pieces are all of one
 *                                 row. In other steps qn_cuda_run_attention_op does so, layer by layer
 *   qn_cuda_has_prefill           whether a piece is for the prefill kernel */
qn_status qn_cuda_run_angles(const qn_cuda_rows_step *s);
qn_status qn_cuda_run_attention_op(const qn_cuda_rows_step *s, const qn_op *op);
qn_status qn_cuda_quantize_pages(const qn_cuda_rows_step *s);
bool qn_cuda_has_prefill(const qn_cuda_piece *piece);

/* recurrent.c:
 *   qn_cuda_run_recurrent_op    the same for QN_OP_CONV, QN_OP_DELTA_RULE and QN_OP_GATED_NORM. Arguments of its launches
 *                               depend on the number of pieces alone unless one contains a complete chunk
 *   qn_cuda_fold_full_chunks    of a step of one row of each sequence, after its inputs are in host_inputs and before they are
 *                               uploaded, not in its graph: folds full open chunks in all layers, and gives the rows the folded
 *                               states. Kernels of single rows do not fold
 *   qn_cuda_set_recurrent_args  states and open chunks of the persistent decode kernel; nothing without recurrent layers
 *   qn_cuda_state_offset        of a layer's part of a state
 *   qn_cuda_open_layout         of a layer's part of an open chunk, from the start of the item */
qn_status qn_cuda_run_recurrent_op(const qn_cuda_rows_step *s, const qn_op *op);
qn_status qn_cuda_fold_full_chunks(const qn_cuda_rows_step *s);
void qn_cuda_set_recurrent_args(const qn_cuda_rows_step *s, qn_persistent_args *args);
uint64_t qn_cuda_state_offset(const qn_plan *plan, int layer);
qn_gdn_open_layout qn_cuda_open_layout(const qn_plan *plan, int layer);

/* ---- Graphs: graphs.c ---- */

/* Rows of decode steps that have graphs. Steps of other numbers are padded. */
#define QN_CUDA_BUCKETS 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, QN_CUDA_MAX_SEQUENCES
enum { QN_CUDA_N_BUCKETS = 13 };

/* A graph, and qn_cuda_model.generation when it was captured. */
typedef struct qn_cuda_captured {
    qn_cuda_graph *graph;
    uint32_t generation;
} qn_cuda_captured;

enum { QN_CUDA_ONE_ROW_GRAPHS = QN_SAMPLE_MODES + 2 };

/* What the steps of one cache format share. */
struct qn_cuda_graphs {
    qn_cuda_graphs *next;
    unsigned key_bits, value_bits;
    qn_cuda_decode_plan decode_plan, rows_plan; /* of one row; of 2 to QN_PERSISTENT_MAX_ROWS in phases */
    /* Of each block, whose addresses they have: */
    qn_cuda_captured one_row[QN_CUDA_BLOCKS][QN_CUDA_ONE_ROW_GRAPHS]; /* by the sampler; then without one, and with the copy */
    qn_cuda_captured buckets[QN_CUDA_BLOCKS][QN_CUDA_N_BUCKETS];      /* without a sampler; the first is not used */
};

/* qn_cuda_bucket - the number of rows that a decode step of n rows is padded to; n above QN_CUDA_MAX_SEQUENCES itself. */
size_t qn_cuda_bucket(size_t n);

/* qn_cuda_graphs_of - those of a memory's cache format. qn_cuda_same_format - whether two memories can be in one step. */
qn_status qn_cuda_graphs_of(qn_cuda_model *model, const qn_cuda_memory *memory, qn_cuda_graphs **out);
bool qn_cuda_same_format(const qn_cuda_memory *a, const qn_cuda_memory *b);
void qn_cuda_graphs_free(qn_cuda_model *model);

/* qn_cuda_launch_decode - queue a decode step, of a number of rows that is a bucket, as a graph, which is captured if that
 * was not done yet. The inputs are in host_inputs. It leaves the logits in model->logits. For one row, the graph may end with
 * the sampler (not NULL), or with the copy of the logits to host_logits. */
qn_status qn_cuda_launch_decode(const qn_cuda_rows_step *s, const qn_cuda_sampling *sampling, bool copies_logits);

#endif
