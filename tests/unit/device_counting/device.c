/* The vtables of the device and of its memories. Operations and the layout of memories are the CPU's, with the
 * reference kernels. */
#include "counting.h"

#include "base/memory.h"
#include "cpu/executor.h"
#include "cpu/memory.h"

#include <stdio.h>
#include <stdlib.h>

counting_calls counting_calls_of;

typedef struct counting_device {
    qn_device base;
    const qn_plan *plan;
    qn_kernels kernels;
    qn_executor *executor;
    qn_cpu_caches *caches;
    qn_memory_vtable memory_vtable; /* counts, and calls that of the CPU: */
    const qn_memory_vtable *memory_below;
} counting_device;

static counting_device *only; /* one at a time: a memory does not say of which device it is */

/* ---- Memories ---- */

static void memory_free(qn_memory *memory)
{
    counting_calls_of.memory_frees++;
    only->memory_below->free(memory);
}

static uint64_t memory_bytes(const qn_memory *memory, size_t length)
{
    return only->memory_below->bytes(memory, length);
}

static qn_status memory_prepare(qn_memory *memory, size_t n)
{
    counting_calls_of.prepares++;
    return only->memory_below->prepare(memory, n);
}

static qn_status memory_serialize(const qn_memory *memory, qn_memory_region_fn region, void *context)
{
    counting_calls_of.serializes++;
    return only->memory_below->serialize(memory, region, context);
}

static qn_status memory_deserialize(qn_memory *memory, const qn_extent *extent, qn_memory_region_fn region,
                                    void *context)
{
    counting_calls_of.deserializes++;
    return only->memory_below->deserialize(memory, extent, region, context);
}

static const qn_memory_vtable memory_vtable = { .free = memory_free,
                                                .bytes = memory_bytes,
                                                .prepare = memory_prepare,
                                                .serialize = memory_serialize,
                                                .deserialize = memory_deserialize };

static qn_status device_memory_new(qn_device *device, const qn_memory_params *params, qn_memory **out)
{
    counting_device *d = (counting_device *)device;
    counting_calls_of.memories++;
    QN_TRY(qn_cpu_memory_new(d->caches, params, out));
    d->memory_below = (*out)->vtable;
    (*out)->vtable = &memory_vtable;
    return QN_OK;
}

/* ---- Steps ---- */

static qn_status device_upload(qn_device *device, const uint8_t *data, bool *uploaded)
{
    (void)device, (void)data;
    counting_calls_of.uploads++;
    *uploaded = false; /* rows are read where they are */
    return QN_OK;
}

static qn_status device_reserve(qn_device *device, size_t max_rows, size_t max_positions)
{
    counting_calls_of.reserves++;
    return qn_executor_reserve(((counting_device *)device)->executor, max_rows, max_positions);
}

static qn_status sample(const counting_device *d, const qn_step *step, const float *logits)
{
    const size_t n = d->plan->n_vocab;
    void *scratch;
    QN_TRY(qn_alloc(&scratch, qn_sample_scratch_bytes(n), 1, "sampler"));
    for (size_t i = 0; i < step->n_logit_rows; i++) {
        qn_sample_request *request = &step->requests[i];
        if (request->prepare)
            request->prepare(request->user, request);
        qn_sample_token(&d->kernels.sample, request, logits + i * n, n, scratch);
        float *copy = request->check && request->token >= 0 ? request->check(request->user, request->token) : NULL;
        for (size_t k = 0; copy && k < n; k++)
            copy[k] = logits[i * n + k];
        counting_calls_of.sampled++;
    }
    qn_free(scratch);
    return QN_OK;
}

static qn_status device_run(qn_device *device, const qn_step *step)
{
    const counting_device *d = (const counting_device *)device;
    qn_step with_logits = *step;
    float *logits = NULL;
    counting_calls_of.runs++;
    counting_calls_of.rows += step->n_rows;
    counting_calls_of.logit_rows += step->n_logit_rows;
    if (!step->logits && step->n_logit_rows)
        QN_TRY(qn_alloc(&logits, step->n_logit_rows * d->plan->n_vocab, sizeof *logits, "logits"));
    if (logits)
        with_logits.logits = logits;
    qn_executor_run(d->executor, &with_logits);
    const qn_status status = step->requests ? sample(d, step, with_logits.logits) : QN_OK;
    qn_free(logits);
    return status;
}

/* ---- The device ---- */

static void device_free(qn_device *device)
{
    counting_device *d = (counting_device *)device;
    counting_calls_of.frees++;
    qn_executor_free(d->executor);
    qn_cpu_caches_free(d->caches);
    qn_free(d);
    only = NULL;
}

static const qn_device_vtable vtable = { .free = device_free,
                                         .reserve = device_reserve,
                                         .run = device_run,
                                         .memory_new = device_memory_new,
                                         .upload = device_upload };

qn_status counting_device_create(const qn_device_params *params, qn_device **out)
{
    counting_device *d;
    *out = NULL;
    QN_TRY(qn_alloc(&d, 1, sizeof *d, "device"));
    *d = (counting_device){ .base = { .vtable = &vtable, .name = "counting", .batch = 16 }, .plan = params->plan };
    counting_calls_of.creations++;
    only = d;
    qn_kernels_init(&d->kernels, 0);
    qn_status status = qn_executor_create(params->team, &d->kernels, params->plan, &d->executor);
    if (status == QN_OK)
        status = qn_cpu_caches_create(params->plan, params->memory, 0, &d->caches);
    if (status != QN_OK)
        device_free(&d->base);
    else
        *out = &d->base;
    return status;
}
