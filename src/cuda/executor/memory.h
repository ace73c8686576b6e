/* A session's memory on a CUDA device: a sequence of the pool, and its page tables on the device. One thread at a time
 * uses a memory. Steps in flight read its tables and items: neither may be dropped before these have ended
 * (qn_device_vtable.launch). */
#ifndef QN_CUDA_EXECUTOR_MEMORY_H
#define QN_CUDA_EXECUTOR_MEMORY_H

#include "cuda/executor/caches.h"
#include "cuda/executor/page_tables.h"

typedef struct qn_cuda_memory {
    qn_memory base;
    qn_cuda_common *common;
    qn_cuda_caches *caches;
    qn_cuda_kept_tables *kept_tables;
    const qn_cuda_format *format;
    qn_sequence sequence;
    size_t n_ctx;
    qn_cuda_page_tables *tables;
    uint64_t kv_table, f16_table; /* device addresses of the tables; f16_table: 0 if the format has no codes */
} qn_cuda_memory;

/* qn_cuda_memory_create - Implements qn_device_vtable.memory_new, with these caches and kept page tables. */
qn_status qn_cuda_memory_create(qn_cuda_caches *caches, qn_cuda_kept_tables *kept_tables,
                                const qn_memory_params *params, qn_memory **out);

/* qn_cuda_memory_serialize - Implements qn_memory_vtable.serialize; in session_file.c. */
qn_status qn_cuda_memory_serialize(const qn_memory *memory, qn_memory_region_fn region, void *context);

/* qn_cuda_memory_deserialize - Implements qn_memory_vtable.deserialize; in session_file.c. */
qn_status qn_cuda_memory_deserialize(qn_memory *memory, const qn_extent *extent, qn_memory_region_fn region,
                                     void *context);

#endif
