/* Running steps: batches of rows, their inputs, commands, logits and sampling. */
#ifndef QN_VULKAN_EXECUTOR_STEPS_H
#define QN_VULKAN_EXECUTOR_STEPS_H

#include "gpu/buckets.h"
#include "vulkan/executor/record.h"

/* A model on the device: the struct that owns all parts of the executor. */
typedef struct qn_vk_model {
    qn_device base;
    qn_vk_common common;
    qn_vk_weights weights;
    qn_vk_workspace workspace;
    qn_vk_caches caches;
    bool *barriers;       /* [plan->n_ops] */
    qn_gpu_piece *pieces; /* [QN_GPU_MAX_SEQUENCES] of the current batch */
    qn_vk_commands commands;
    /* Commands of decode steps, recorded once for each bucket and the workspace; and the format of the caches that they
     * were recorded for, NULL: none. */
    qn_vk_commands decode[QN_GPU_N_BUCKETS];
    const qn_vk_cache_format *recorded[QN_GPU_N_BUCKETS];
} qn_vk_model;

/* qn_vk_run_step - implements qn_device_vtable.run. */
qn_status qn_vk_run_step(qn_device *device, const qn_step *step);

#endif
