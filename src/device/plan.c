/* Building a plan and allocating its buffers. */
#include "device/plan.h"

#include "base/memory.h"
#include "kernels/attention/attention.h"

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
    QN_TRY(qn_realloc_array(&plan->owned_floats, &plan->cap_owned_floats, plan->n_owned_floats + 1, sizeof *plan->owned_floats,
                            "plan"));
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

static void free_buffers(qn_plan *plan)
{
    for (size_t i = 0; i < plan->n_buffers; i++) {
        qn_free(plan->buffers[i].data);
        plan->buffers[i].data = NULL;
    }
    for (size_t i = 0; i < plan->n_acts; i++)
        qn_acts_free(&plan->acts[i].acts);
    float **const owned[] = { &plan->cosines, &plan->sines, &plan->partial, &plan->partial_m, &plan->partial_l };
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++) {
        qn_free(*owned[i]);
        *owned[i] = NULL;
    }
    plan->max_rows = plan->max_positions = plan->n_partials = 0;
}

/* The layouts in which the matmuls read activations `id`, as bits 1 << layout. */
static unsigned forms_needed(const qn_plan *plan, const qn_matmul_kernels *kernels, size_t id)
{
    unsigned layouts = 0;
    for (size_t i = 0; i < plan->n_ops; i++) {
        const qn_op *op = &plan->ops[i];
        for (size_t m = 0; (op->kind == QN_OP_MATMUL || op->kind == QN_OP_LOGITS) && m < op->n_matrices; m++)
            if ((size_t)op->matrices[m].acts == id)
                layouts |= qn_matmul_act_layouts(kernels, &op->matrices[m].weights);
    }
    return layouts;
}

static qn_status alloc_buffers(qn_plan *plan, const qn_matmul_kernels *kernels, size_t max_rows, size_t max_positions)
{
    for (size_t i = 0; i < plan->n_buffers; i++) {
        size_t count;
        if (!qn_mul_size(max_rows, plan->buffers[i].width, &count))
            return qn_fail(QN_ERR_MEMORY, "plan: %zu rows of %zu do not fit in memory", max_rows, plan->buffers[i].width);
        QN_TRY(qn_alloc(&plan->buffers[i].data, count, sizeof(float), "step buffer"));
    }
    for (size_t i = 0; i < plan->n_acts; i++)
        QN_TRY(qn_acts_create(&plan->acts[i].acts, max_rows, plan->acts[i].width, forms_needed(plan, kernels, i),
                              plan->acts[i].hilo));
    const size_t angles = max_rows * (plan->heads.n_rot / 2);
    QN_TRY(qn_alloc(&plan->cosines, angles, sizeof(float), "rope angles"));
    QN_TRY(qn_alloc(&plan->sines, angles, sizeof(float), "rope angles"));
    /* Split-KV partials: key blocks, and two fp16 pages of an AURA cache. */
    const size_t n_splits = (max_positions + QN_KEY_BLOCK - 1) / QN_KEY_BLOCK + 2;
    plan->n_partials = plan->heads.n_heads * n_splits;
    QN_TRY(qn_alloc(&plan->partial, plan->n_partials, plan->heads.head_dim * sizeof(float), "attention partials"));
    QN_TRY(qn_alloc(&plan->partial_m, plan->n_partials, sizeof(float), "attention partials"));
    return qn_alloc(&plan->partial_l, plan->n_partials, sizeof(float), "attention partials");
}

qn_status qn_plan_reserve(qn_plan *plan, const qn_matmul_kernels *kernels, size_t max_rows, size_t max_positions)
{
    if (max_rows <= plan->max_rows && max_positions <= plan->max_positions)
        return QN_OK;
    max_rows = max_rows > plan->max_rows ? max_rows : plan->max_rows;
    max_positions = max_positions > plan->max_positions ? max_positions : plan->max_positions;
    free_buffers(plan);
    const qn_status status = alloc_buffers(plan, kernels, max_rows, max_positions);
    if (status != QN_OK) {
        free_buffers(plan);
        return status;
    }
    plan->max_rows = max_rows;
    plan->max_positions = max_positions;
    return QN_OK;
}

void qn_plan_free(qn_plan *plan)
{
    free_buffers(plan);
    free(plan->ops);
    free(plan->buffers);
    free(plan->acts);
    for (size_t i = 0; i < plan->n_owned_floats; i++)
        qn_free(plan->owned_floats[i]);
    free(plan->owned_floats);
    qn_free(plan->frequencies);
    qn_free(plan->is_recurrent);
    *plan = (qn_plan){ 0 };
}

uint64_t qn_plan_weight_bytes(const qn_plan *plan)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < plan->n_ops; i++) {
        const qn_op *op = &plan->ops[i];
        if (op->kind == QN_OP_EMBED)
            bytes += op->matrices[0].weights.row_bytes;
        if (op->kind == QN_OP_MATMUL || op->kind == QN_OP_LOGITS)
            for (size_t m = 0; m < op->n_matrices; m++)
                bytes += (uint64_t)op->matrices[m].weights.n_rows * op->matrices[m].weights.row_bytes;
        if (op->kind == QN_OP_NORM || op->kind == QN_OP_LOGIT_NORM)
            bytes += plan->buffers[op->in].width * sizeof(float);
        if (op->kind == QN_OP_QK_NORM_ROPE_STORE)
            bytes += ((op->weight != NULL) + (op->weight2 != NULL)) * op->heads.head_dim * sizeof(float);
        if (op->kind == QN_OP_CONV)
            bytes +=
                (plan->recurrent.taps * qn_recurrent_width(&plan->recurrent) + 2 * plan->recurrent.n_v_heads) * sizeof(float);
        if (op->kind == QN_OP_GATED_NORM)
            bytes += plan->recurrent.head_v * sizeof(float);
    }
    return bytes;
}
