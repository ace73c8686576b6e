/* Opening a device by its name, and the CPU implementation of the device interface. */
#include "engine/internal.h"
#include "engine/read_rate.h"

#include "base/memory.h"
#include "device/cpu/memory.h"
#include "device/cuda/cuda.h"
#include "device/cuda/executor.h"

#include <string.h>

/* ---- The CPU ---- */

typedef struct cpu_device {
    qn_device base;
    qn_model *model;
    qn_executor *executor;
    float *logits; /* [n_vocab] for sampling; allocated when the first token is sampled */
    void *scratch;
} cpu_device;

enum { CPU_BATCH = 128 };

static void cpu_free(qn_device *device)
{
    cpu_device *cpu = (cpu_device *)device;
    qn_executor_free(cpu->executor);
    qn_free(cpu->logits);
    qn_free(cpu->scratch);
    qn_free(cpu);
}

static qn_status cpu_reserve(qn_device *device, size_t max_rows, size_t max_positions)
{
    return qn_executor_reserve(((cpu_device *)device)->executor, max_rows, max_positions);
}

static qn_status cpu_sample(cpu_device *cpu, const qn_step *step)
{
    const size_t n = cpu->model->plan.n_vocab;
    qn_step with_logits = *step;
    if (!cpu->logits)
        QN_TRY(qn_alloc(&cpu->logits, n, sizeof *cpu->logits, "logits"));
    if (!cpu->scratch)
        QN_TRY(qn_alloc(&cpu->scratch, qn_sample_scratch_bytes(n), 1, "sampler"));
    with_logits.logits = cpu->logits;
    qn_executor_run(cpu->executor, &with_logits);
    qn_sample_token(&cpu->model->kernels.sample, step->request, cpu->logits, n, cpu->scratch);
    return QN_OK;
}

static qn_status cpu_run(qn_device *device, const qn_step *step)
{
    cpu_device *cpu = (cpu_device *)device;
    if (step->request)
        return cpu_sample(cpu, step);
    qn_executor_run(cpu->executor, step);
    return QN_OK;
}

static qn_status cpu_memory(qn_device *device, const qn_memory_params *params, qn_memory **out)
{
    return qn_cpu_memory_new(&((cpu_device *)device)->model->plan, params, out);
}

static const qn_device_vtable cpu_calls = {
    .free = cpu_free,
    .reserve = cpu_reserve,
    .run = cpu_run,
    .memory_new = cpu_memory,
};

static qn_status open_cpu(qn_model *model)
{
    cpu_device *device;
    QN_TRY(qn_alloc(&device, 1, sizeof *device, "device"));
    *device = (cpu_device){ .base = { .vtable = &cpu_calls, .layout = "", .name = "cpu", .batch = CPU_BATCH }, .model = model };
    const qn_status status = qn_executor_create(model->team, &model->kernels, &model->plan, &device->executor);
    if (status != QN_OK) {
        cpu_free(&device->base);
        return status;
    }
    model->device = &device->base;
    return QN_OK;
}

/* ---- Opening ---- */

static qn_status open_cuda(qn_model *model, const qn_model_params *params, int ordinal)
{
    const qn_cuda_executor_params cuda = { .ordinal = ordinal,
                                           .plan = &model->plan,
                                           .team = model->team,
                                           .kernels = &model->kernels,
                                           .on_log = params->on_log,
                                           .user = params->user };
    return qn_cuda_executor_create(&cuda, &model->device);
}

qn_status qn_model_open_device(qn_model *model, const qn_model_params *params)
{
    const char *name = params->device ? params->device : "cpu";
    int ordinal = 0;
    if (strcmp(name, "cpu") == 0)
        return open_cpu(model);
    if (qn_cuda_parse_name(name, &ordinal))
        return open_cuda(model, params, ordinal);
    if (strcmp(name, "auto") != 0)
        return qn_fail(QN_ERR_INVALID, "device: '%s' is not one of cpu, cuda, cuda:N, auto", name);
    /* QN_ERR_UNSUPPORTED: there is no GPU, or its kernels do not support the model. */
    const qn_status status = open_cuda(model, params, ordinal);
    return status == QN_ERR_UNSUPPORTED ? open_cpu(model) : status;
}

qn_status qn_model_read_rate(qn_model *model, double *rate)
{
    if (!model->device || !model->device->vtable->read_rate)
        return qn_fail(QN_ERR_UNSUPPORTED, "no read rate: the model does not run on a GPU");
    pthread_mutex_lock(&model->lock);
    const qn_status status = model->device->vtable->read_rate(model->device, rate);
    pthread_mutex_unlock(&model->lock);
    return status;
}
