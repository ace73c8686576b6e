/* Memory of a pool on a Vulkan device. Vulkan has no addresses without memory on every device, so the pool's addresses
 * are granule numbers: bits from `shift` on are the index of a granule in a table, from which kernels take the address
 * of its memory. Each granule is an allocation of its own. */
#ifndef QN_VULKAN_RUNTIME_POOL_MEMORY_H
#define QN_VULKAN_RUNTIME_POOL_MEMORY_H

#include "cache/pool.h"
#include "vulkan/runtime/runtime.h"

typedef struct qn_vk_pool_memory {
    qn_vk *vk;
    unsigned shift;
    size_t n_granules, n_reserved; /* of the table; of them, reserved by classes */
    qn_vk_buffer *granules;        /* [n_granules], without memory before they are committed */
    qn_vk_buffer table;            /* [n_granules] u64, what kernels read */
} qn_vk_pool_memory;

/* qn_vk_pool_memory_open - prepares memory for a pool of this budget and n_classes classes. Close with
 * qn_vk_pool_memory_close after the pool was freed, also after an error. */
qn_status qn_vk_pool_memory_open(qn_vk *vk, uint64_t budget, size_t n_classes, qn_vk_pool_memory *context,
                                 qn_pool_memory *memory);
void qn_vk_pool_memory_close(qn_vk_pool_memory *context);

/* qn_vk_pool_read, qn_vk_pool_write, qn_vk_pool_copy - copy bytes of committed granules, to the host, from it, or
 * within the pool, and wait. */
qn_status qn_vk_pool_read(const qn_vk_pool_memory *context, void *to, uint64_t from, size_t bytes);
qn_status qn_vk_pool_write(const qn_vk_pool_memory *context, uint64_t to, const void *from, size_t bytes);
qn_status qn_vk_pool_copy(const qn_vk_pool_memory *context, uint64_t to, uint64_t from, size_t bytes);

#endif
