/* The pool of a model on a Vulkan device, its cache format, which is fp16, and the memories of sessions. */
#ifndef QN_VULKAN_EXECUTOR_CACHES_H
#define QN_VULKAN_EXECUTOR_CACHES_H

#include "gpu/memory.h"
#include "vulkan/executor/weights.h"
#include "vulkan/runtime/pool_memory.h"

#include <pthread.h>

typedef struct qn_vk_caches {
    const qn_vk_common *common;
    const qn_vk_weights *weights;
    qn_vk_pool_memory memory;
    qn_pool *pool; /* NULL until the first memory is created, when the weights are on the device */
    uint32_t *slots;
    qn_gpu_format f16;
    qn_gpu_kept_tables kept_tables;
    pthread_mutex_t lock;        /* protects pool and f16 */
    pthread_mutex_t tables_lock; /* of qn_gpu_table_memory */
    bool has_locks;
} qn_vk_caches;

/* qn_vk_caches_create - creates caches without a pool in *caches, which is zeroed. Free with qn_vk_caches_free, also
 * after an error, after all memories. */
qn_status qn_vk_caches_create(const qn_vk_common *common, const qn_vk_weights *weights, qn_vk_caches *caches);
void qn_vk_caches_free(qn_vk_caches *caches);

/* qn_vk_memory_create - implements qn_device_vtable.memory_new. QN_ERR_UNSUPPORTED for formats other than fp16. */
qn_status qn_vk_memory_create(qn_vk_caches *caches, const qn_memory_params *params, qn_memory **out);

#endif
