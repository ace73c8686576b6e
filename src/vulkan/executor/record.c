/* Dispatches of each operation. */
#include "vulkan/executor/record.h"

#include "vulkan/executor/activations.h"
#include "vulkan/executor/attention.h"
#include "vulkan/executor/recurrent.h"

/* ---- What is supported ---- */

static qn_status check_shape(const qn_attention_shape *h)
{
    if (h->head_dim > QN_VK_MAX_HEAD || h->head_dim % QN_VK_HEAD_UNIT || h->n_heads % h->n_kv_heads)
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "Vulkan: heads of %zu values, %zu of queries for %zu of keys, are not supported: expected a "
                       "multiple of %d up to %d",
                       h->head_dim, h->n_heads, h->n_kv_heads, QN_VK_HEAD_UNIT, QN_VK_MAX_HEAD);
    return QN_OK;
}

static qn_status check_op(const qn_plan *plan, size_t i)
{
    const qn_op *op = &plan->ops[i];
    const qn_attention_shape *shape = qn_op_shape_of(op);
    switch (op->kind) {
    case QN_OP_CAPTURE:
    case QN_OP_FUSE:
    case QN_OP_PAIR:
    case QN_OP_PAIR_NORM:
    case QN_OP_K_NORM_ROPE_STORE:
        return qn_fail(QN_ERR_UNSUPPORTED, "Vulkan: draft heads are not supported (operation %s)",
                       qn_op_desc_of(op->kind)->name);
    case QN_OP_INPUT: return qn_fail(QN_ERR_UNSUPPORTED, "Vulkan: a plan whose rows have no tokens is not supported");
    case QN_OP_EMBED:
        return i == 0 ? QN_OK : qn_fail(QN_ERR_UNSUPPORTED, "Vulkan: operation %zu of the plan is embed", i);
    case QN_OP_NORM:
    case QN_OP_MATMUL:
    case QN_OP_QK_NORM_ROPE_STORE:
    case QN_OP_ATTENTION:
    case QN_OP_ATTENTION_COMBINE:
    case QN_OP_SWIGLU:
    case QN_OP_CONV:
    case QN_OP_DELTA_RULE:
    case QN_OP_GATED_NORM:
    case QN_OP_LOGIT_NORM:
    case QN_OP_LOGITS: break;
    }
    return shape ? check_shape(shape) : QN_OK;
}

qn_status qn_vk_check_plan(const qn_plan *plan)
{
    for (size_t i = 0; i < plan->n_ops; i++)
        QN_TRY(check_op(plan, i));
    QN_TRY(qn_vk_check_recurrent(plan));
    return qn_vk_check_rotations(plan);
}

/* ---- Operations ---- */

static qn_status dispatch(const qn_vk_recording *r, qn_vk_launch launch, const void *args)
{
    return qn_vk_dispatch(r->common->vk, r->commands, &launch, args);
}

static uint64_t input(const qn_vk_recording *r, size_t offset)
{
    return r->workspace->inputs.address + offset;
}

static uint64_t buffer(const qn_vk_recording *r, int id)
{
    return r->workspace->buffers[id];
}

static const qn_vk_op *op_of(const qn_vk_recording *r, const qn_op *op)
{
    return &r->weights->ops[op - r->common->plan->ops];
}

/* The address of the activations that a GEMM of operation `op` reads. */
static uint64_t acts_of(const qn_vk_recording *r, const qn_op *op, const qn_vk_gemm *gemm)
{
    const qn_op *writer = op - 1;
    const int acts = gemm->group.acts;
    if (!qn_vk_is_f16(op->matmul.matrices.at[gemm->group.matrices[0]].weights.type))
        return r->workspace->codes[acts];
    return qn_vk_is_computed(r->common->plan, writer, acts) ? r->workspace->acts[acts]
                                                             : buffer(r, writer->attention_combine.in);
}

static void record_embeddings(const qn_vk_recording *r, const qn_op *op)
{
    const qn_vk_workspace *w = r->workspace;
    const size_t bytes = r->n * r->common->plan->buffers[op->embed.out].width * sizeof(float);
    qn_vk_copy(r->common->vk, r->commands, &w->rows, (size_t)(buffer(r, op->embed.out) - w->rows.address), &w->inputs,
               w->embeddings_at, bytes);
}

static qn_status record_gemm(const qn_vk_recording *r, const qn_op *op, const qn_vk_gemm *gemm, size_t n)
{
    qn_vk_matmul_args args = { .codes = gemm->memory.address,
                               .scales = gemm->memory.address + gemm->scales_at,
                               .acts = acts_of(r, op, gemm),
                               .n_cols = (uint32_t)gemm->group.n_cols,
                               .n_tokens = (uint32_t)n,
                               .n_tiles = (uint32_t)gemm->group.n_tiles };
    for (size_t i = 0; i < QN_VK_MATMUL_OUTS; i++) {
        args.first_tiles[i] = UINT32_MAX;
        if (i >= gemm->group.n_matrices)
            continue;
        const qn_op_matrix *matrix = &op->matmul.matrices.at[gemm->group.matrices[i]];
        const bool is_logits = matrix->out < 0;
        args.outs[i] = is_logits ? r->workspace->logits.address : buffer(r, matrix->out);
        args.first_tiles[i] = (uint32_t)gemm->group.first_tiles[i];
        args.n_rows[i] = (uint32_t)matrix->weights.n_rows;
        args.strides[i] =
            (uint32_t)(is_logits ? r->common->plan->n_vocab : r->common->plan->buffers[matrix->out].width);
        args.accumulate |= (uint32_t)matrix->accumulate << i;
    }
    return dispatch(r,
                    qn_vk_matmul(&gemm->format, &qn_vk_get_info(r->common->vk)->features,
                                 qn_vk_act_planes(&r->common->plan->acts[gemm->group.acts]), gemm->group.n_cols,
                                 gemm->group.n_tiles, n),
                    &args);
}

/* Different matrices of an operation have different outputs: their dispatches need no barrier. */
static qn_status record_matmul(const qn_vk_recording *r, const qn_op *op, size_t n)
{
    const qn_vk_op *vk_op = op_of(r, op);
    for (size_t i = 0; i < vk_op->n_gemms; i++)
        QN_TRY(record_gemm(r, op, &vk_op->gemms[i], n));
    return QN_OK;
}

static qn_status record_gated_norm(const qn_vk_recording *r, const qn_op *op)
{
    QN_TRY(qn_vk_record_append(r, op));
    return qn_vk_record_acts(r, op, buffer(r, op->gated_norm.in), 0, r->n);
}

static qn_status record_op(const qn_vk_recording *r, const qn_op *op)
{
    switch (op->kind) {
    case QN_OP_EMBED: record_embeddings(r, op); break;
    case QN_OP_NORM: return qn_vk_record_acts(r, op, buffer(r, op->norm.in), 0, r->n);
    case QN_OP_MATMUL: return record_matmul(r, op, r->n);
    case QN_OP_QK_NORM_ROPE_STORE: return qn_vk_record_store(r, op);
    case QN_OP_ATTENTION: return qn_vk_record_attention(r, op);
    case QN_OP_ATTENTION_COMBINE: return qn_vk_record_acts(r, op, buffer(r, op->attention_combine.in), 0, r->n);
    case QN_OP_SWIGLU: return qn_vk_record_acts(r, op, buffer(r, op->swiglu.gate), 0, r->n);
    case QN_OP_CONV: return qn_vk_record_conv(r, op);
    case QN_OP_DELTA_RULE: return qn_vk_record_delta(r, op);
    case QN_OP_GATED_NORM: return record_gated_norm(r, op);
    case QN_OP_LOGIT_NORM: /* qn_vk_record_logits */
    case QN_OP_LOGITS:
    case QN_OP_INPUT: /* not in plans of this device */
    case QN_OP_CAPTURE:
    case QN_OP_FUSE:
    case QN_OP_PAIR:
    case QN_OP_PAIR_NORM:
    case QN_OP_K_NORM_ROPE_STORE: break;
    }
    return QN_OK;
}

/* ---- Steps ---- */

qn_status qn_vk_record_trunk(const qn_vk_recording *r)
{
    const qn_plan *plan = r->common->plan;
    for (size_t i = 0; i < plan->n_ops && !qn_op_is_logits(&plan->ops[i]); i++) {
        QN_TRY(record_op(r, &plan->ops[i]));
        if (r->barriers[i])
            qn_vk_barrier(r->common->vk, r->commands);
    }
    return qn_vk_record_quantize(r);
}

qn_status qn_vk_record_logits(const qn_vk_recording *r, bool is_listed, size_t first, size_t n)
{
    const qn_plan *plan = r->common->plan;
    for (size_t i = 0; i < plan->n_ops; i++) {
        const qn_op *op = &plan->ops[i];
        if (op->kind == QN_OP_LOGIT_NORM) {
            const size_t row = plan->buffers[op->norm.in].width * sizeof(float);
            QN_TRY(qn_vk_record_acts(r, op, buffer(r, op->norm.in) + (is_listed ? 0 : first * row),
                                     is_listed ? input(r, r->inputs.logit_rows) + first * sizeof(uint32_t) : 0, n));
        } else if (op->kind == QN_OP_LOGITS) {
            QN_TRY(record_matmul(r, op, n));
        }
        if (qn_op_is_logits(op) && r->barriers[i])
            qn_vk_barrier(r->common->vk, r->commands);
    }
    return QN_OK;
}
