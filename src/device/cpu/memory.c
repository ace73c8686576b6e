/* The CPU's qn_memory_vtable, on top of kv.h and recurrent.h. */
#include "device/cpu/memory.h"

#include "base/memory.h"
#include "cache/kv.h"
#include "cache/recurrent.h"

typedef struct cpu_memory {
    qn_memory base;
    qn_kv kv;
    qn_recurrent recurrent; /* zeroed if the model has no recurrent layers */
    const qn_plan *plan;
} cpu_memory;

typedef struct cpu_checkpoint {
    qn_recurrent recurrent;
    qn_kv_checkpoint kv;
} cpu_checkpoint;

static cpu_memory *cpu_of(qn_memory *memory)
{
    return (cpu_memory *)memory;
}

static const cpu_memory *cpu_of_const(const qn_memory *memory)
{
    return (const cpu_memory *)memory;
}

static void memory_free(qn_memory *memory)
{
    qn_kv_free(&cpu_of(memory)->kv);
    qn_recurrent_free(&cpu_of(memory)->recurrent);
    qn_free(memory);
}

static uint64_t memory_bytes(const qn_memory *memory, size_t length)
{
    return qn_kv_bytes(&cpu_of_const(memory)->kv, length) + cpu_of_const(memory)->recurrent.total_bytes;
}

static void memory_on_append(qn_memory *memory, size_t length)
{
    qn_kv_on_append(&cpu_of(memory)->kv, length);
}

static size_t memory_rewind_length(const qn_memory *memory, size_t length)
{
    return qn_kv_rewind_length(&cpu_of_const(memory)->kv, length);
}

static void memory_truncate(qn_memory *memory, size_t length)
{
    qn_kv_truncate(&cpu_of(memory)->kv, length);
}

static qn_status memory_reset(qn_memory *memory)
{
    qn_recurrent_reset(&cpu_of(memory)->recurrent);
    return QN_OK;
}

static qn_status memory_copy(qn_memory *to, const qn_memory *from, size_t length)
{
    qn_kv_copy(&cpu_of(to)->kv, &cpu_of_const(from)->kv, length);
    qn_recurrent_copy(&cpu_of(to)->recurrent, &cpu_of_const(from)->recurrent);
    return QN_OK;
}

/* ---- Checkpoints ---- */

static void checkpoint_free(qn_memory_checkpoint *of)
{
    cpu_checkpoint *checkpoint = (cpu_checkpoint *)of;
    if (!checkpoint)
        return;
    qn_recurrent_free(&checkpoint->recurrent);
    qn_kv_checkpoint_free(&checkpoint->kv);
    qn_free(checkpoint);
}

static qn_status checkpoint_new(const qn_memory *memory, qn_memory_checkpoint **out)
{
    const cpu_memory *m = cpu_of_const(memory);
    cpu_checkpoint *checkpoint;
    *out = NULL;
    QN_TRY(qn_alloc(&checkpoint, 1, sizeof *checkpoint, "checkpoint"));
    qn_status status = qn_kv_checkpoint_new(&checkpoint->kv, &m->kv);
    if (status == QN_OK)
        status = qn_recurrent_create(&checkpoint->recurrent, &m->recurrent.shape, m->plan->is_recurrent, m->recurrent.n_layers);
    if (status != QN_OK) {
        checkpoint_free((qn_memory_checkpoint *)checkpoint);
        return status;
    }
    *out = (qn_memory_checkpoint *)checkpoint;
    return QN_OK;
}

static qn_status checkpoint_save(qn_memory_checkpoint *of, const qn_memory *memory, size_t held)
{
    cpu_checkpoint *checkpoint = (cpu_checkpoint *)of;
    qn_recurrent_copy(&checkpoint->recurrent, &cpu_of_const(memory)->recurrent);
    qn_kv_checkpoint_save(&checkpoint->kv, &cpu_of_const(memory)->kv, held);
    return QN_OK;
}

static qn_status checkpoint_restore(const qn_memory_checkpoint *of, qn_memory *memory, size_t held)
{
    const cpu_checkpoint *checkpoint = (const cpu_checkpoint *)of;
    qn_recurrent_copy(&cpu_of(memory)->recurrent, &checkpoint->recurrent);
    qn_kv_checkpoint_restore(&checkpoint->kv, &cpu_of(memory)->kv, held);
    return QN_OK;
}

static qn_status checkpoint_copy(qn_memory_checkpoint *to, const qn_memory_checkpoint *from, const qn_memory *memory)
{
    qn_recurrent_copy(&((cpu_checkpoint *)to)->recurrent, &((const cpu_checkpoint *)from)->recurrent);
    qn_kv_checkpoint_copy(&((cpu_checkpoint *)to)->kv, &((const cpu_checkpoint *)from)->kv, &cpu_of_const(memory)->kv);
    return QN_OK;
}

/* ---- Serialisation ---- */

static qn_status for_each_region(const cpu_memory *m, size_t length, qn_memory_region_fn on_region, void *context)
{
    uint8_t *rows;
    float *array;
    size_t size, count;
    for (size_t region = 0; qn_kv_region(&m->kv, region, length, &rows, &size); region++)
        QN_TRY(on_region(context, rows, size));
    for (size_t layer = 0; layer < m->recurrent.n_layers; layer++)
        for (size_t region = 0; qn_recurrent_array(&m->recurrent, layer, region, &array, &count); region++)
            QN_TRY(on_region(context, array, count * sizeof *array));
    return QN_OK;
}

static qn_status memory_serialize(const qn_memory *memory, size_t length, qn_memory_region_fn on_region, void *context)
{
    qn_kv_zero_tail(&cpu_of_const(memory)->kv, length);
    qn_recurrent_zero_tail(&cpu_of_const(memory)->recurrent, length);
    return for_each_region(cpu_of_const(memory), length, on_region, context);
}

static qn_status memory_deserialize(qn_memory *memory, size_t length, qn_memory_region_fn on_region, void *context)
{
    QN_TRY(for_each_region(cpu_of(memory), length, on_region, context));
    qn_kv_on_deserialize(&cpu_of(memory)->kv, length);
    return QN_OK;
}

static qn_status count_bytes(void *context, void *data, size_t bytes)
{
    (void)data;
    *(uint64_t *)context += bytes;
    return QN_OK;
}

static uint64_t memory_serialized_bytes(const qn_memory *memory, size_t length)
{
    uint64_t bytes = 0;
    (void)for_each_region(cpu_of_const(memory), length, count_bytes, &bytes);
    return bytes;
}

static const qn_memory_vtable vtable = {
    .free = memory_free,
    .bytes = memory_bytes,
    .open_tokens = qn_recurrent_open_tokens,
    .on_append = memory_on_append,
    .rewind_length = memory_rewind_length,
    .truncate = memory_truncate,
    .reset = memory_reset,
    .copy = memory_copy,
    .checkpoint_new = checkpoint_new,
    .checkpoint_free = checkpoint_free,
    .checkpoint_save = checkpoint_save,
    .checkpoint_restore = checkpoint_restore,
    .checkpoint_copy = checkpoint_copy,
    .serialize = memory_serialize,
    .deserialize = memory_deserialize,
    .serialized_bytes = memory_serialized_bytes,
};

qn_status qn_cpu_memory_new(const qn_plan *plan, const qn_memory_params *params, qn_memory **out)
{
    const qn_kv_shape shape = { plan->is_recurrent, params->n_layers, plan->heads.n_kv_heads, plan->heads.head_dim };
    const qn_kv_codecs codecs = { params->key_codec, params->value_codec };
    cpu_memory *m;
    *out = NULL;
    QN_TRY(qn_alloc(&m, 1, sizeof *m, "session"));
    *m = (cpu_memory){ .base.vtable = &vtable, .plan = plan };
    qn_status status = qn_kv_create(&m->kv, &shape, params->n_ctx, params->n_batch, codecs);
    if (status == QN_OK && plan->recurrent.n_v_heads)
        status = qn_recurrent_create(&m->recurrent, &plan->recurrent, plan->is_recurrent, params->n_layers);
    if (status != QN_OK) {
        memory_free(&m->base);
        return status;
    }
    m->base.cache = &m->kv.view;
    m->base.recurrent = m->recurrent.layers;
    *out = &m->base;
    return QN_OK;
}
