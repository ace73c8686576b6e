/* The workspace of steps: the plan's buffers and activations on the device, attention partials, and pinned buffers for
 * inputs and logits. Reserving more frees and reallocates all of it. Used by the thread that runs steps (internal.h);
 * no step may be in flight when it is reserved or freed. */
#ifndef QN_CUDA_EXECUTOR_WORKSPACE_H
#define QN_CUDA_EXECUTOR_WORKSPACE_H

#include "cuda/executor/gemv_phases.h"
#include "cuda/executor/weights.h"

/* Activations are in one of three layouts. Activations written by a GEMM's epilogue are in a fourth copy, in
 * QN_ACTS_HILO, because the GEMM that writes them may read activations of the same width. */
enum { QN_CUDA_ACTS_LAYOUTS = 3, QN_CUDA_ACTS_FUSED = QN_CUDA_ACTS_LAYOUTS, QN_CUDA_ACTS_COPIES };

/* A qn_plan_acts on the device, in every layout that its matmuls read for some number of rows. */
typedef struct qn_cuda_acts {
    qn_matmul_acts layouts[QN_CUDA_ACTS_COPIES];
    qn_cuda_buffer memory[QN_CUDA_ACTS_COPIES], scale[QN_CUDA_ACTS_COPIES];
    uint64_t signs; /* address of its rotation's signs, among the weights; 0: none */
} qn_cuda_acts;

typedef struct qn_cuda_workspace {
    qn_cuda_common *common;
    qn_cuda_weights *weights;
    uint32_t generation; /* incremented by every reallocation: graphs and phases of older generations hold stale
                            addresses */
    size_t max_rows, max_positions;
    size_t input_bytes;      /* of the inputs of the largest step */
    qn_cuda_buffer *buffers; /* [plan->n_buffers] */
    uint64_t inputs;         /* on the device: at the start of the embedding buffer, before its rows */
    qn_cuda_acts *acts;      /* [plan->n_acts] */
    qn_cuda_buffer scratch;  /* [max_rows][widest acts] floats, to be quantised into activations */
    qn_cuda_buffer cosines, sines, matmul_workspace;
    /* `shared` and `kept` back most of `buffers` and the members below. In `shared`, the buffers of one part of a layer
     * overlap those of another part, and the logits. */
    qn_cuda_buffer shared, kept;
    qn_cuda_buffer partials, maxima, gates, delta_workspace;
    qn_cuda_buffer gathered, logits;   /* [logit_rows]: rows of the last layer's output; logits */
    size_t logit_rows;                 /* up to QN_CUDA_LOGIT_ROWS */
    qn_cuda_buffer attention_counters; /* of qn_attention_decode: zeros between launches */
    qn_cuda_buffer arrivals;           /* [max_rows][n_k_heads] of recurrent layers: zeros between launches */
    qn_cuda_buffer persistent_memory;  /* backs `persistent` */
    qn_cuda_persistent_workspace persistent;
    /* Pinned, of each block: input_bytes, and max_rows embeddings if the host dequantises. */
    uint8_t *block_inputs[QN_CUDA_BLOCKS];
    float *host_logits; /* pinned: [n_vocab], of a step after which no other is launched */
} qn_cuda_workspace;

/* qn_cuda_rows - Returns the address of the first row of a buffer of the plan. */
static inline uint64_t qn_cuda_rows(const qn_cuda_workspace *workspace, int buffer)
{
    return workspace->buffers[buffer].address +
           (buffer == workspace->common->plan->ops[0].embed.out ? workspace->input_bytes : 0);
}

/* qn_cuda_workspace_init - Initialises *workspace, which is zeroed, with these parts and no device memory. Free with
 * qn_cuda_workspace_free, also after an error. */
qn_status qn_cuda_workspace_init(qn_cuda_common *common, qn_cuda_weights *weights, qn_cuda_workspace *workspace);

/* qn_cuda_workspace_free - Frees the workspace and its memory. Accepts a zeroed struct. */
void qn_cuda_workspace_free(qn_cuda_workspace *workspace);

/* qn_cuda_workspace_reserve - Frees the memory and reallocates all of it, for steps of max_rows rows over sessions of
 * max_positions positions. After an error there is no memory. */
qn_status qn_cuda_workspace_reserve(qn_cuda_workspace *workspace, size_t max_rows, size_t max_positions);

/* qn_cuda_workspace_release - Frees the memory; the workspace can be reserved again. */
void qn_cuda_workspace_release(qn_cuda_workspace *workspace);

#endif
