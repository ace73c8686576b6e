/* A model's weights on the device: matrices in tiles of rows, and all vectors in one buffer. */
#ifndef QN_VULKAN_EXECUTOR_WEIGHTS_H
#define QN_VULKAN_EXECUTOR_WEIGHTS_H

#include "gpu/tiling.h"
#include "vulkan/executor/internal.h"

/* Matrices of an operation in one buffer, which one launch multiplies: tiles of codes, then their scales. */
typedef struct qn_vk_gemm {
    qn_gpu_gemm group;
    qn_vk_format format;
    qn_vk_buffer memory;
    size_t scales_at;
} qn_vk_gemm;

typedef struct qn_vk_op {
    qn_vk_gemm gemms[QN_OP_MATRICES];
    size_t n_gemms;
    qn_op_addresses vectors;
} qn_vk_op;

typedef struct qn_vk_weights {
    const qn_vk_common *common;
    qn_vk_op *ops; /* [plan->n_ops] */
    qn_vk_buffer vectors;
    uint64_t *signs; /* [plan->n_acts] */
    uint64_t bytes;  /* of all buffers */
} qn_vk_weights;

/* qn_vk_embeds - returns whether the embedding table is on the device: it is the output matrix too, or keeps its codes,
 * and its rotation has a kernel. */
bool qn_vk_embeds(const qn_plan *plan);

/* qn_vk_table_of - returns the rows of the embedding table, where it is on the device: the first matrix. */
const qn_vk_gemm *qn_vk_table_of(const qn_vk_weights *weights);

/* qn_vk_weights_create - allocates the weights of common->plan, without contents, in *weights, which is zeroed. Free
 * with qn_vk_weights_free, also after an error. */
qn_status qn_vk_weights_create(const qn_vk_common *common, qn_vk_weights *weights);
void qn_vk_weights_free(qn_vk_weights *weights);

/* qn_vk_weights_upload - implements qn_device_vtable.upload. */
qn_status qn_vk_weights_upload(qn_vk_weights *weights, const uint8_t *data, bool *uploaded);

#endif
