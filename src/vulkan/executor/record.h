/* The plan's operations as dispatches: which kernels run, and which buffers they read and write. */
#ifndef QN_VULKAN_EXECUTOR_RECORD_H
#define QN_VULKAN_EXECUTOR_RECORD_H

#include "vulkan/executor/caches.h"
#include "vulkan/executor/workspace.h"

/* A step's rows, and the parts of the executor that its dispatches read. What is recorded depends on the number of
 * rows, the offsets of the inputs and the buffers alone. */
typedef struct qn_vk_recording {
    const qn_vk_common *common;
    const qn_vk_weights *weights;
    const qn_vk_caches *caches;
    const qn_vk_workspace *workspace;
    const qn_vk_commands *commands;
    const bool *barriers; /* [n_ops], of qn_plan_find_barriers */
    qn_gpu_inputs inputs;
    const qn_vk_cache_format *format; /* of all sequences */
    const qn_gpu_piece *pieces;       /* [n_sequences] */
    bool is_decode;        /* each piece is one row: what is recorded depends neither on positions nor on sequences */
    size_t n, n_sequences; /* rows; pieces, padding included */
    size_t n_few;          /* rows [0, n_few) are of pieces of few rows, each computed by itself */
} qn_vk_recording;

/* qn_vk_check_plan - QN_ERR_UNSUPPORTED, naming it, if a plan has something for which there is no kernel. */
qn_status qn_vk_check_plan(const qn_plan *plan);

/* qn_vk_check_shared - the same, if a kernel of the plan needs more shared memory than the device has. */
qn_status qn_vk_check_shared(const qn_plan *plan, const qn_vk_info *info);

/* qn_vk_record_trunk - records all operations before the logits. */
qn_status qn_vk_record_trunk(const qn_vk_recording *r);

/* qn_vk_record_logits - records the logits of n rows into workspace->logits, n <= its logit_rows: rows [first,
 * first + n) of the step; if is_listed, those that the inputs list as logit rows [first, first + n). */
qn_status qn_vk_record_logits(const qn_vk_recording *r, bool is_listed, size_t first, size_t n);

#endif
