/* The calls of memory on the CPU, each a few of kv.h's and recurrent.h's. */
#include "cache/memory.h"

#include "base/memory.h"
#include "cache/kv.h"
#include "cache/recurrent.h"

typedef struct cpu_memory {
    qn_memory base;
    qn_kv kv;
    qn_recurrent recurrent; /* zeroed where the model has no recurrent layers */
    const qn_plan *plan;
} cpu_memory;

typedef struct cpu_mark {
    qn_recurrent recurrent;
    qn_kv_open kv;
} cpu_mark;

static cpu_memory *mine(qn_memory *memory)
{
    return (cpu_memory *)memory;
}

static const cpu_memory *mine_const(const qn_memory *memory)
{
    return (const cpu_memory *)memory;
}

static void memory_free(qn_memory *memory)
{
    qn_kv_free(&mine(memory)->kv);
    qn_recurrent_free(&mine(memory)->recurrent);
    qn_free(memory);
}

static uint64_t memory_bytes(const qn_memory *memory, size_t length)
{
    return qn_kv_bytes(&mine_const(memory)->kv, length) + mine_const(memory)->recurrent.total_bytes;
}

static void memory_appended(qn_memory *memory, size_t length)
{
    qn_kv_appended(&mine(memory)->kv, length);
}

static size_t memory_reach(const qn_memory *memory, size_t length)
{
    return qn_kv_reach(&mine_const(memory)->kv, length);
}

static void memory_cut(qn_memory *memory, size_t length)
{
    qn_kv_cut(&mine(memory)->kv, length);
}

static qn_status memory_reset(qn_memory *memory)
{
    qn_recurrent_reset(&mine(memory)->recurrent);
    return QN_OK;
}

static qn_status memory_copy(qn_memory *to, const qn_memory *from, size_t length)
{
    qn_kv_copy(&mine(to)->kv, &mine_const(from)->kv, length);
    qn_recurrent_copy(&mine(to)->recurrent, &mine_const(from)->recurrent);
    return QN_OK;
}

/* ---- Marks ---- */

static void mark_free(qn_memory_mark *of)
{
    cpu_mark *mark = (cpu_mark *)of;
    if (!mark)
        return;
    qn_recurrent_free(&mark->recurrent);
    qn_kv_open_free(&mark->kv);
    qn_free(mark);
}

static qn_status mark_new(const qn_memory *memory, qn_memory_mark **out)
{
    const cpu_memory *m = mine_const(memory);
    cpu_mark *mark;
    *out = NULL;
    QN_TRY(qn_alloc(&mark, 1, sizeof *mark, "checkpoint"));
    qn_status status = qn_kv_open_new(&mark->kv, &m->kv);
    if (status == QN_OK)
        status = qn_recurrent_create(&mark->recurrent, &m->recurrent.shape, m->plan->is_recurrent, m->recurrent.n_layers);
    if (status != QN_OK) {
        mark_free((qn_memory_mark *)mark);
        return status;
    }
    *out = (qn_memory_mark *)mark;
    return QN_OK;
}

static qn_status mark_keep(qn_memory_mark *of, const qn_memory *memory, size_t held)
{
    cpu_mark *mark = (cpu_mark *)of;
    qn_recurrent_copy(&mark->recurrent, &mine_const(memory)->recurrent);
    qn_kv_open_keep(&mark->kv, &mine_const(memory)->kv, held);
    return QN_OK;
}

static qn_status mark_take(const qn_memory_mark *of, qn_memory *memory, size_t held)
{
    const cpu_mark *mark = (const cpu_mark *)of;
    qn_recurrent_copy(&mine(memory)->recurrent, &mark->recurrent);
    qn_kv_open_take(&mark->kv, &mine(memory)->kv, held);
    return QN_OK;
}

static qn_status mark_copy(qn_memory_mark *to, const qn_memory_mark *from, const qn_memory *memory)
{
    qn_recurrent_copy(&((cpu_mark *)to)->recurrent, &((const cpu_mark *)from)->recurrent);
    qn_kv_open_copy(&((cpu_mark *)to)->kv, &((const cpu_mark *)from)->kv, &mine_const(memory)->kv);
    return QN_OK;
}

/* ---- Pieces ---- */

static qn_status each_piece(const cpu_memory *m, size_t length, qn_memory_piece_fn piece, void *context)
{
    uint8_t *rows;
    float *floats;
    size_t size, count;
    for (size_t part = 0; qn_kv_part(&m->kv, part, length, &rows, &size); part++)
        QN_TRY(piece(context, rows, size));
    for (size_t layer = 0; layer < m->recurrent.n_layers; layer++)
        for (size_t part = 0; qn_recurrent_part(&m->recurrent, layer, part, &floats, &count); part++)
            QN_TRY(piece(context, floats, count * sizeof *floats));
    return QN_OK;
}

static qn_status memory_read(const qn_memory *memory, size_t length, qn_memory_piece_fn piece, void *context)
{
    qn_kv_trim(&mine_const(memory)->kv, length);
    qn_recurrent_trim(&mine_const(memory)->recurrent, length);
    return each_piece(mine_const(memory), length, piece, context);
}

static qn_status memory_fill(qn_memory *memory, size_t length, qn_memory_piece_fn piece, void *context)
{
    QN_TRY(each_piece(mine(memory), length, piece, context));
    qn_kv_filled(&mine(memory)->kv, length);
    return QN_OK;
}

static qn_status count_piece(void *context, void *data, size_t bytes)
{
    (void)data;
    *(uint64_t *)context += bytes;
    return QN_OK;
}

static uint64_t memory_count(const qn_memory *memory, size_t length)
{
    uint64_t bytes = 0;
    (void)each_piece(mine_const(memory), length, count_piece, &bytes);
    return bytes;
}

static const qn_memory_calls calls = {
    .free = memory_free,
    .bytes = memory_bytes,
    .open = qn_recurrent_open,
    .appended = memory_appended,
    .reach = memory_reach,
    .cut = memory_cut,
    .reset = memory_reset,
    .copy = memory_copy,
    .mark_new = mark_new,
    .mark_free = mark_free,
    .mark_keep = mark_keep,
    .mark_take = mark_take,
    .mark_copy = mark_copy,
    .serialize = memory_read,
    .deserialize = memory_fill,
    .serialized_bytes = memory_count,
};

qn_status qn_cpu_memory_new(const qn_plan *plan, const qn_memory_params *params, qn_memory **out)
{
    const qn_kv_shape shape = { plan->is_recurrent, params->n_layers, plan->heads.n_kv_heads, plan->heads.head_dim };
    const qn_kv_codecs codecs = { params->key_codec, params->value_codec };
    cpu_memory *m;
    *out = NULL;
    QN_TRY(qn_alloc(&m, 1, sizeof *m, "session"));
    *m = (cpu_memory){ .base.calls = &calls, .plan = plan };
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
