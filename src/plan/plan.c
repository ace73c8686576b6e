/* Builds plans, and counts the bytes that their operations read. */
#include "plan/plan.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

qn_status qn_plan_buffer_new(qn_plan *plan, size_t width, int *id)
{
    QN_TRY(qn_realloc_array(&plan->buffers, &plan->cap_buffers, plan->n_buffers + 1, sizeof *plan->buffers, "plan"));
    plan->buffers[plan->n_buffers] = (qn_plan_buffer){ .width = width };
    *id = (int)plan->n_buffers++;
    return QN_OK;
}

qn_status qn_plan_alloc_floats(qn_plan *plan, size_t count, float **out)
{
    QN_TRY(qn_realloc_array(&plan->owned_floats, &plan->cap_owned_floats, plan->n_owned_floats + 1,
                            sizeof *plan->owned_floats, "plan"));
    QN_TRY(qn_alloc(out, count, sizeof **out, "plan"));
    plan->owned_floats[plan->n_owned_floats++] = *out;
    return QN_OK;
}

qn_status qn_plan_acts_for(qn_plan *plan, size_t width, bool hilo, qn_plan_rotation rotation, int *id)
{
    for (size_t i = 0; i < plan->n_acts; i++) {
        const qn_plan_acts *acts = &plan->acts[i];
        if (acts->width == width && acts->hilo == hilo && acts->rotation.block == rotation.block) {
            *id = (int)i;
            return QN_OK;
        }
    }
    if (rotation.block && rotation.signs) {
        float *signs;
        QN_TRY(qn_plan_alloc_floats(plan, width, &signs));
        memcpy(signs, rotation.signs, width * sizeof *signs);
        rotation.signs = signs;
    }
    QN_TRY(qn_realloc_array(&plan->acts, &plan->cap_acts, plan->n_acts + 1, sizeof *plan->acts, "plan"));
    plan->acts[plan->n_acts] = (qn_plan_acts){ .width = width, .hilo = hilo, .rotation = rotation };
    *id = (int)plan->n_acts++;
    return QN_OK;
}

qn_status qn_plan_add(qn_plan *plan, const qn_op *op)
{
    QN_TRY(qn_realloc_array(&plan->ops, &plan->cap_ops, plan->n_ops + 1, sizeof *plan->ops, "plan"));
    plan->ops[plan->n_ops++] = *op;
    return QN_OK;
}

qn_status qn_plan_insert(qn_plan *plan, size_t at, const qn_op *op)
{
    QN_TRY(qn_plan_add(plan, op));
    memmove(plan->ops + at + 1, plan->ops + at, (plan->n_ops - 1 - at) * sizeof *plan->ops);
    plan->ops[at] = *op;
    return QN_OK;
}

void qn_plan_drop_after(qn_plan *plan, const qn_plan *before)
{
    while (plan->n_owned_floats > before->n_owned_floats)
        qn_free(plan->owned_floats[--plan->n_owned_floats]);
    plan->n_ops = before->n_ops;
    plan->n_buffers = before->n_buffers;
    plan->n_acts = before->n_acts;
    plan->n_scaled = before->n_scaled;
    plan->n_layers = before->n_layers;
    plan->head = before->head;
}

void qn_plan_free(qn_plan *plan)
{
    free(plan->ops);
    free(plan->buffers);
    free(plan->acts);
    for (size_t i = 0; i < plan->n_owned_floats; i++)
        qn_free(plan->owned_floats[i]);
    free(plan->owned_floats);
    for (size_t i = 0; i < plan->n_scaled; i++)
        qn_free(plan->scaled[i].loaded);
    free(plan->scaled);
    qn_free(plan->frequencies);
    qn_free(plan->head.rope.frequencies);
    qn_free(plan->rope_components);
    qn_free(plan->is_recurrent);
    qn_free(plan->kv_bias);
    *plan = (qn_plan){ 0 };
}

size_t qn_plan_width(const qn_plan *plan, const qn_op *op, qn_op_width width)
{
    const qn_attention_shape *h = qn_op_shape_of(op);
    const qn_recurrent_shape *r = &plan->recurrent;
    switch (width) {
    case QN_WIDTH_ACTS: return plan->acts[qn_op_acts_of(op)->at[0]].width;
    case QN_WIDTH_HALF: return plan->acts[qn_op_acts_of(op)->at[0]].width / 2;
    case QN_WIDTH_TABLE: return qn_op_table_of(op)->n_cols;
    case QN_WIDTH_INPUT: return op->input.width;
    case QN_WIDTH_PART: return op->capture.width;
    case QN_WIDTH_PARTS: return op->capture.width * op->capture.n_parts;
    case QN_WIDTH_HEADS: return h->n_heads * h->head_dim;
    case QN_WIDTH_QUERIES: return h->n_heads * h->head_dim * (h->gated ? 2 : 1);
    case QN_WIDTH_KV_HEADS: return h->n_kv_heads * h->head_dim;
    case QN_WIDTH_HEAD_DIM: return h->head_dim;
    case QN_WIDTH_QKV: return qn_recurrent_width(r);
    case QN_WIDTH_TAPS: return r->taps * qn_recurrent_width(r);
    case QN_WIDTH_V_HEADS: return r->n_v_heads;
    case QN_WIDTH_VALUES: return r->n_v_heads * r->head_v;
    case QN_WIDTH_HEAD_V: return r->head_v;
    }
    return 0;
}

static uint64_t field_bytes(const qn_plan *plan, const qn_op *op, const qn_op_field *field)
{
    const void *at = (const char *)op + field->offset;
    uint64_t bytes = 0;
    switch (field->kind) {
    case QN_FIELD_TABLE: return ((const qn_matrix *)at)->row_bytes;
    case QN_FIELD_VECTOR: return *(const float *const *)at ? qn_plan_width(plan, op, field->width) * sizeof(float) : 0;
    case QN_FIELD_MATRICES:
        for (size_t i = 0; i < ((const qn_op_matrices *)at)->n; i++) {
            const qn_matrix *weights = &((const qn_op_matrices *)at)->at[i].weights;
            bytes += (uint64_t)weights->n_rows * weights->row_bytes;
        }
        return bytes;
    case QN_FIELD_BUFFER:
    case QN_FIELD_GATES:
    case QN_FIELD_ACTS:
    case QN_FIELD_ROTATION:
    case QN_FIELD_SHAPE:
    case QN_FIELD_END: break;
    }
    return 0;
}

uint64_t qn_plan_op_bytes(const qn_plan *plan, const qn_op *op)
{
    const qn_op_desc *desc = qn_op_desc_of(op->kind);
    uint64_t bytes = 0;
    for (size_t i = 0; i < QN_OP_FIELDS && desc->fields[i].kind; i++)
        bytes += field_bytes(plan, op, &desc->fields[i]);
    return bytes;
}

/* The bytes of operations [first, end). */
static uint64_t ops_bytes(const qn_plan *plan, size_t first, size_t end)
{
    uint64_t bytes = 0;
    for (size_t i = first; i < end; i++)
        bytes += qn_plan_op_bytes(plan, &plan->ops[i]);
    return bytes;
}

uint64_t qn_plan_weight_bytes(const qn_plan *plan)
{
    return ops_bytes(plan, 0, qn_plan_step_ops(plan));
}

uint64_t qn_plan_pair_bytes(const qn_plan *plan)
{
    return plan->head.draft ? ops_bytes(plan, plan->head.pairs, plan->head.draft) : 0;
}

uint64_t qn_plan_draft_bytes(const qn_plan *plan)
{
    return ops_bytes(plan, qn_plan_step_ops(plan), plan->head.chain ? plan->head.chain : plan->n_ops);
}

static size_t count_recurrent(const qn_plan *plan)
{
    size_t n = 0;
    for (size_t i = 0; plan->is_recurrent && i < plan->n_layers; i++)
        n += plan->is_recurrent[i];
    return n;
}

uint64_t qn_plan_position_bytes(const qn_plan *plan)
{
    uint64_t elements = 0;
    for (size_t layer = 0; layer < plan->n_layers; layer++)
        if (!plan->is_recurrent || !plan->is_recurrent[layer])
            elements += (uint64_t)2 * qn_plan_heads(plan, layer)->n_kv_heads * qn_plan_heads(plan, layer)->head_dim;
    return elements * sizeof(uint16_t);
}

uint64_t qn_plan_state_bytes(const qn_plan *plan)
{
    const qn_recurrent_shape *r = &plan->recurrent;
    return (uint64_t)count_recurrent(plan) * r->n_v_heads * r->head_v * r->head_k * sizeof(float);
}
