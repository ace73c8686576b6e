/* What sessions keep on the CPU: sequences of a pool that all sessions of a device share, and the CPU's views of them. */
#ifndef QN_DEVICE_CPU_MEMORY_H
#define QN_DEVICE_CPU_MEMORY_H

#include "cache/kv.h"
#include "cache/recurrent.h"
#include "cache/sequence.h"
#include "device/device.h"

typedef struct qn_cpu_caches qn_cpu_caches;

/* A session's memory. The views are those of the rows of its next step, after qn_memory_vtable.prepare. */
typedef struct qn_cpu_memory {
    qn_memory base;
    const qn_kv_layout *layout;
    qn_sequence sequence;
    qn_kv_view kv;
    qn_recurrent_view recurrent;
} qn_cpu_memory;

/* qn_cpu_caches_create - the pool for a plan, which outlives it. budget: bytes, 0: half of what is available besides weights.
 * Free with qn_cpu_caches_free, which accepts NULL, after all memories. */
qn_status qn_cpu_caches_create(const qn_plan *plan, uint64_t budget, qn_cpu_caches **out);
void qn_cpu_caches_free(qn_cpu_caches *caches);

/* qn_cpu_memory_new - qn_device_vtable.memory_new. From any thread. */
qn_status qn_cpu_memory_new(qn_cpu_caches *caches, const qn_memory_params *params, qn_memory **out);

#endif
