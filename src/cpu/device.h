/* The CPU device (device/device.h): executes a model's plan with a thread team. cpu/memory.h has the sessions'
 * memory. */
#ifndef QN_CPU_DEVICE_H
#define QN_CPU_DEVICE_H

#include "cpu/executor.h"
#include "cpu/memory.h"

/* Used by one thread at a time (the model's lock), but `caches` by any. */
typedef struct qn_cpu_device {
    qn_device base;
    const qn_plan *plan;
    qn_kernels kernels;
    qn_executor *executor;
    qn_cpu_caches *caches;
    qn_team *team;
    float *logits;    /* [max_sampled, n_vocab] for sampling */
    uint8_t *scratch; /* [n_threads, scratch_bytes] for sampling. Both are allocated when first needed */
    size_t max_sampled, scratch_bytes;
    qn_cpu_profile *profile; /* NULL: off. The executor has it too */
} qn_cpu_device;

/* qn_cpu_device_create - creates a device that executes params->plan. QN_ERR_MEMORY. Free with vtable->free. */
qn_status qn_cpu_device_create(const qn_device_params *params, qn_device **out);

#endif
