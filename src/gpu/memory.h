/* A session's memory on a GPU: a sequence of the pool, and its page tables on the device. One thread at a time uses a
 * memory. Steps in flight read its tables and items: neither may be dropped before these have ended
 * (qn_device_vtable.launch). */
#ifndef QN_GPU_MEMORY_H
#define QN_GPU_MEMORY_H

#include "gpu/head_rows.h"
#include "gpu/page_tables.h"
#include "gpu/session_file.h"

typedef struct qn_gpu_memory {
    qn_memory base;
    const qn_gpu_format *format;
    qn_gpu_kept_tables *kept_tables;
    qn_gpu_copies copies;
    qn_sequence sequence;
    qn_gpu_page_tables *tables;
    uint64_t kv_table, f16_table; /* device addresses of the tables; f16_table: 0 if the format has no codes */
    uint32_t head_item;           /* of the pool, for head_rows; QN_NO_ITEM before the first step, or without a head */
    qn_gpu_head_rows head_rows;
} qn_gpu_memory;

/* qn_gpu_memory_create - implements qn_device_vtable.memory_new for a limit of n_ctx positions, with these kept page
 * tables. format and kept_tables must outlive the memory; *copies is copied. From any thread. */
qn_status qn_gpu_memory_create(const qn_gpu_format *format, qn_gpu_kept_tables *kept_tables,
                               const qn_gpu_copies *copies, size_t n_ctx, qn_memory **out);

#endif
