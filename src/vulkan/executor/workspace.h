/* Buffers of a step: the plan's buffers and activations on the device, inputs that the host writes, logits that it
 * reads. Used by the thread that runs steps. */
#ifndef QN_VULKAN_EXECUTOR_WORKSPACE_H
#define QN_VULKAN_EXECUTOR_WORKSPACE_H

#include "gpu/inputs.h"
#include "vulkan/executor/internal.h"

enum { QN_VK_LOGIT_ROWS = 64 /* the most rows of one pass of the logits */, QN_VK_MAX_ROWS = 65535 };

typedef struct qn_vk_workspace {
    const qn_vk_common *common;
    bool embeds_on_host;
    size_t max_rows;
    qn_vk_buffer rows;   /* backs `buffers`, `acts`, `codes`, `next` and `row_scores` */
    uint64_t *buffers;   /* [plan->n_buffers] addresses of rows of floats */
    uint64_t *acts;      /* [plan->n_acts] rows of floats, for fp16 weights; 0: none */
    uint64_t *codes;     /* [plan->n_acts] rows of integers, for other weights; 0: none */
    uint64_t *next;      /* [plan->n_acts] likewise, of few rows: written by a matmul that may read `codes` */
    uint64_t row_scores; /* of the delta rule (qn_vk_delta_args) */
    /* Mapped, of each block: the inputs of a step (gpu/inputs.h), then angles [max_rows][n_rot], qn_vk_sequence of each
     * piece, and embeddings [max_rows][width] if the table is not on the device; and arguments of kernels that are more
     * than push constants hold, written when commands are recorded: qn_vk_delta_layer of each recurrent layer,
     * qn_vk_heads and qn_vk_combination of each layer, qn_vk_rotated of each operation. `inputs` is that of the current
     * block. */
    qn_vk_buffer inputs, block_inputs[QN_VK_BLOCKS];
    size_t angles_at, embeddings_at, sequences_at, layers_at, heads_at, combinations_at, rotated_at;
    qn_vk_buffer unrotated; /* a row of activations before a Hadamard transform, between workgroups of a kernel */
    qn_vk_buffer arrived;   /* u32 counters of workgroups, which are 0 between kernels */
    qn_vk_buffer tokens;    /* [max_rows] i32: of the last step that sampled */
    /* Of attention in splits: [partial_rows][n_heads][n_splits], for sessions of up to max_positions positions. */
    qn_vk_buffer partials;
    size_t max_positions, partial_rows, n_splits;
    qn_vk_buffer logits, host_logits; /* [logit_rows][n_vocab]; host_logits: mapped, copies */
    size_t logit_rows;
} qn_vk_workspace;

/* qn_vk_workspace_select - makes a block the current one. */
void qn_vk_workspace_select(qn_vk_workspace *workspace, size_t block);

/* qn_vk_act_planes - returns the planes of the integers of activations (kernels/acts.glsl). */
static inline uint32_t qn_vk_act_planes(const qn_plan_acts *acts)
{
    return acts->hilo ? 2 : 1;
}

/* qn_vk_workspace_init - initialises *workspace, which is zeroed, without memory on the device. Free with
 * qn_vk_workspace_free, also after an error. */
qn_status qn_vk_workspace_init(const qn_vk_common *common, bool embeds_on_host, qn_vk_workspace *workspace);
void qn_vk_workspace_free(qn_vk_workspace *workspace);

/* qn_vk_workspace_reserve - replaces the memory by that for steps of max_rows rows, at most QN_VK_MAX_ROWS, of sessions
 * of max_positions positions. After an error there is none. */
qn_status qn_vk_workspace_reserve(qn_vk_workspace *workspace, size_t max_rows, size_t max_positions);

#endif
