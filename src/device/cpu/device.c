/* The CPU's implementation of the device interface: the executor's steps, and sampling from their logits. */
#include "device/cpu/device.h"

#include "base/memory.h"
#include "device/cpu/executor.h"
#include "device/cpu/memory.h"

typedef struct cpu_device {
    qn_device base;
    const qn_plan *plan;
    const qn_kernels *kernels;
    qn_executor *executor;
    qn_cpu_caches *caches;
    float *logits; /* [n_vocab] for sampling; allocated when the first token is sampled */
    void *scratch;
} cpu_device;

enum { BATCH = 128 };

static void device_free(qn_device *device)
{
    cpu_device *cpu = (cpu_device *)device;
    qn_executor_free(cpu->executor);
    qn_cpu_caches_free(cpu->caches);
    qn_free(cpu->logits);
    qn_free(cpu->scratch);
    qn_free(cpu);
}

static qn_status device_reserve(qn_device *device, size_t max_rows, size_t max_positions)
{
    return qn_executor_reserve(((cpu_device *)device)->executor, max_rows, max_positions);
}

static qn_status sample(cpu_device *cpu, const qn_step *step)
{
    const size_t n = cpu->plan->n_vocab;
    qn_step with_logits = *step;
    if (!cpu->logits)
        QN_TRY(qn_alloc(&cpu->logits, n, sizeof *cpu->logits, "logits"));
    if (!cpu->scratch)
        QN_TRY(qn_alloc(&cpu->scratch, qn_sample_scratch_bytes(n), 1, "sampler"));
    with_logits.logits = cpu->logits;
    qn_executor_run(cpu->executor, &with_logits);
    qn_sample_token(&cpu->kernels->sample, step->requests, cpu->logits, n, cpu->scratch);
    return QN_OK;
}

static qn_status device_run(qn_device *device, const qn_step *step)
{
    cpu_device *cpu = (cpu_device *)device;
    if (step->requests)
        return sample(cpu, step);
    qn_executor_run(cpu->executor, step);
    return QN_OK;
}

static qn_status device_memory(qn_device *device, const qn_memory_params *params, qn_memory **out)
{
    return qn_cpu_memory_new(((cpu_device *)device)->caches, params, out);
}

static const qn_device_vtable vtable = {
    .free = device_free,
    .reserve = device_reserve,
    .run = device_run,
    .memory_new = device_memory,
};

qn_status qn_cpu_device_create(const qn_device_params *params, qn_device **out)
{
    cpu_device *cpu;
    *out = NULL;
    QN_TRY(qn_alloc(&cpu, 1, sizeof *cpu, "device"));
    *cpu = (cpu_device){ .base = { .vtable = &vtable, .name = "cpu", .batch = BATCH },
                         .plan = params->plan,
                         .kernels = params->kernels };
    qn_status status = qn_executor_create(params->team, params->kernels, params->plan, &cpu->executor);
    if (status == QN_OK)
        status = qn_cpu_caches_create(params->plan, params->memory, &cpu->caches);
    if (status != QN_OK)
        device_free(&cpu->base);
    else
        *out = &cpu->base;
    return status;
}
