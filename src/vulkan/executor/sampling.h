/* Sampling at the end of a step: the tokens of rows from their logits in the workspace. Rows that only the host samples
 * (qn_vk_sample_kind_of) need a copy of the logits on the host. Used by the thread that runs steps. */
#ifndef QN_VULKAN_EXECUTOR_SAMPLING_H
#define QN_VULKAN_EXECUTOR_SAMPLING_H

#include "gpu/buckets.h"
#include "vulkan/executor/workspace.h"
#include "vulkan/kernels/sample.h"

/* Of the step of a block. */
typedef struct qn_vk_sampler_block {
    qn_vk_buffer params;  /* mapped: [max_rows] */
    qn_vk_buffer results; /* mapped: [max_rows] */
    uint8_t *lists;       /* masks of rows that have one, then entries of all rows; and mapped copies for the device */
    qn_vk_buffer device_lists;
    qn_vk_buffer raw; /* mapped: the logits of the entries before they change */
    size_t list_bytes;
    qn_vk_sample_params *rows; /* [max_rows] as in `params` */
    /* Commands for all rows of a bucket, without and with draws, recorded when they are first needed; and for others.
     */
    qn_vk_commands recorded[QN_GPU_N_BUCKETS][2], other;
    bool is_recorded[QN_GPU_N_BUCKETS][2];
} qn_vk_sampler_block;

typedef struct qn_vk_sampler {
    const qn_vk_common *common;
    const qn_vk_workspace *workspace;
    qn_vk_buffer states; /* [logit_rows] */
    uint32_t *slots;     /* [n_vocab] zero between calls */
    qn_vk_sampler_block blocks[QN_VK_BLOCKS];
} qn_vk_sampler;

/* Rows of a step that are sampled together. */
typedef struct qn_vk_sampling {
    size_t block, first, n; /* rows [first, first + n) of the step's logit rows, whose logits are in the workspace */
    bool has_draws;
} qn_vk_sampling;

/* qn_vk_sampler_init - initialises *sampler, which is zeroed. Free with qn_vk_sampler_free, also after an error.
 * qn_vk_sampler_reserve - replaces its memory by that for the workspace, which has new sizes. No step is in flight. */
qn_status qn_vk_sampler_init(const qn_vk_common *common, const qn_vk_workspace *workspace, qn_vk_sampler *sampler);
qn_status qn_vk_sampler_reserve(qn_vk_sampler *sampler);
void qn_vk_sampler_free(qn_vk_sampler *sampler);

/* qn_vk_sampling_needs_host - returns whether any of n requests is sampled on the host. */
bool qn_vk_sampling_needs_host(const qn_sample_request *requests, size_t n);

/* qn_vk_sampling_fill - writes the parameters of a step's requests [n], masks, bias and penalties to the memory of
 * what->block, and sets what->has_draws. */
qn_status qn_vk_sampling_fill(qn_vk_sampler *sampler, const qn_sample_request *requests, size_t n,
                              qn_vk_sampling *what);

/* qn_vk_sampling_commands - returns commands that sample rows [what->first, what->first + what->n). They change their
 * logits. */
qn_status qn_vk_sampling_commands(qn_vk_sampler *sampler, const qn_vk_sampling *what, const qn_vk_commands **commands);

/* qn_vk_sampler_forget - drops recorded commands. No step is in flight. */
void qn_vk_sampler_forget(qn_vk_sampler *sampler);

/* qn_vk_sampling_finish - sets the results of requests [what->n] when the commands have run, and calls `check`. Rows
 * that the host samples have their logits in workspace->host_logits; the next step finds their tokens, too. */
qn_status qn_vk_sampling_finish(qn_vk_sampler *sampler, const qn_vk_sampling *what, qn_sample_request *requests);

#endif
