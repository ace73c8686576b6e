/* The pool of a model on a Vulkan device, its cache formats with the tables of their codecs, and the memories of
 * sessions. */
#ifndef QN_VULKAN_EXECUTOR_CACHES_H
#define QN_VULKAN_EXECUTOR_CACHES_H

#include "gpu/memory.h"
#include "vulkan/executor/weights.h"
#include "vulkan/runtime/pool_memory.h"

#include <pthread.h>

/* A cache format: shared by all memories with these codecs. */
typedef struct qn_vk_cache_format {
    qn_gpu_format base;
    qn_vk_codes codes;
    qn_vk_buffer tables;                         /* of the codecs; none of fp16 */
    uint64_t levels;                             /* qn_vk_levels */
    qn_vk_rotation key_rotation, value_rotation; /* without codes, zeros */
    struct qn_vk_cache_format *next;
} qn_vk_cache_format;

typedef struct qn_vk_caches {
    const qn_vk_common *common;
    const qn_vk_weights *weights;
    qn_vk_pool_memory memory;
    qn_pool *pool; /* NULL until the first memory is created, when the weights are on the device */
    qn_pool_class *states, *open_chunks; /* NULL without recurrent layers */
    uint32_t *slots;
    qn_vk_cache_format *formats;
    qn_gpu_kept_tables kept_tables;
    pthread_mutex_t lock;        /* protects pool and formats */
    pthread_mutex_t tables_lock; /* of qn_gpu_table_memory */
    bool has_locks;
} qn_vk_caches;

/* qn_vk_caches_create - creates caches without a pool in *caches, which is zeroed. Free with qn_vk_caches_free, also
 * after an error, after all memories. */
qn_status qn_vk_caches_create(const qn_vk_common *common, const qn_vk_weights *weights, qn_vk_caches *caches);
void qn_vk_caches_free(qn_vk_caches *caches);

/* qn_vk_refresh_tables - writes the page tables of a memory that a step of a block reads, and returns their offset from
 * the memory's tables. No step of the block is in flight. */
size_t qn_vk_refresh_tables(const qn_gpu_memory *memory, size_t block);

/* qn_vk_format_of_memory - returns the format of a memory on a Vulkan device. */
static inline const qn_vk_cache_format *qn_vk_format_of_memory(const qn_gpu_memory *memory)
{
    return (const qn_vk_cache_format *)memory->format;
}

/* qn_vk_memory_create - implements qn_device_vtable.memory_new. QN_ERR_UNSUPPORTED for caches of f32. */
qn_status qn_vk_memory_create(qn_vk_caches *caches, const qn_memory_params *params, qn_memory **out);

#endif
