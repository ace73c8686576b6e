/* What sessions' memories (gpu/memory.h) need of a CUDA device: memory of page tables, and copies of items. */
#ifndef QN_CUDA_EXECUTOR_MEMORY_H
#define QN_CUDA_EXECUTOR_MEMORY_H

#include "cuda/executor/caches.h"
#include "gpu/memory.h"

/* qn_cuda_kept_tables_init - Initialises an empty list of kept page tables in memory of the device. Free with
 * qn_gpu_kept_tables_free. */
qn_status qn_cuda_kept_tables_init(qn_cuda_common *common, qn_gpu_kept_tables *kept);

/* qn_cuda_memory_create - Implements qn_device_vtable.memory_new, with these caches and kept page tables. */
qn_status qn_cuda_memory_create(qn_cuda_caches *caches, qn_gpu_kept_tables *kept_tables, const qn_memory_params *params,
                                qn_memory **out);

#endif
