/* Dispatches of each operation. */
#include "vulkan/executor/record.h"

#include "vulkan/executor/activations.h"
#include "vulkan/executor/attention.h"
#include "vulkan/executor/matmuls.h"
#include "vulkan/executor/recurrent.h"

/* ---- What is supported ---- */

/* The workspace has the plan's number of heads. */
static qn_status check_shape(const qn_plan *plan, const qn_attention_shape *h)
{
    if (h->n_heads != plan->heads.n_heads)
        return qn_fail(QN_ERR_UNSUPPORTED, "Vulkan: layers of %zu and of %zu heads in one plan are not supported",
                       plan->heads.n_heads, h->n_heads);
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
    return shape ? check_shape(plan, shape) : QN_OK;
}

qn_status qn_vk_check_plan(const qn_plan *plan)
{
    for (size_t i = 0; i < plan->n_ops; i++)
        QN_TRY(check_op(plan, i));
    QN_TRY(qn_vk_check_recurrent(plan));
    return qn_vk_check_rotations(plan);
}

qn_status qn_vk_check_shared(const qn_plan *plan, const qn_vk_info *info)
{
    size_t most = 0;
    const char *what = "";
    for (size_t i = 0; i < plan->n_acts; i++) {
        const size_t bytes = qn_vk_prepare_shared(plan->acts[i].rotation.block);
        if (bytes > most) {
            most = bytes;
            what = "Hadamard transforms";
        }
    }
    for (size_t i = 0; i < plan->n_ops; i++) {
        const qn_attention_shape *shape = qn_op_shape_of(&plan->ops[i]);
        const size_t bytes = shape ? qn_vk_attention_shared(shape->head_dim) : 0;
        if (bytes > most) {
            most = bytes;
            what = "heads";
        }
    }
    if (plan->recurrent.n_v_heads && QN_VK_DELTA_SHARED > most) {
        most = QN_VK_DELTA_SHARED;
        what = "recurrent layers";
    }
    if (most > info->features.shared_bytes)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: %s need %zu bytes of shared memory in a workgroup, the device has %u",
                       info->name, what, most, info->features.shared_bytes);
    return QN_OK;
}

/* ---- Operations ---- */

static uint64_t input(const qn_vk_recording *r, size_t offset)
{
    return r->workspace->inputs.address + offset;
}

static uint64_t buffer(const qn_vk_recording *r, int id)
{
    return r->workspace->buffers[id];
}

static void copy_embeddings(const qn_vk_recording *r, const qn_op *op)
{
    const qn_vk_workspace *w = r->workspace;
    const size_t bytes = r->n * r->common->plan->buffers[op->embed.out].width * sizeof(float);
    qn_vk_copy(r->common->vk, r->commands, &w->rows, (size_t)(buffer(r, op->embed.out) - w->rows.address), &w->inputs,
               w->embeddings_at, bytes);
    qn_vk_barrier_of_copies(r->common->vk, r->commands);
}

static qn_status record_embeddings(const qn_vk_recording *r, const qn_op *op)
{
    enum { PIECE = 256 /* values of a workgroup, of a table that is not rotated */ };
    const qn_vk_gemm *table = qn_vk_table_of(r->weights);
    const size_t block = op->embed.inverse.block, piece = block ? block : PIECE, width = table->group.n_cols;
    const qn_vk_embed_args args = { .codes = table->memory.address,
                                    .scales = table->memory.address + table->scales_at,
                                    .y = buffer(r, op->embed.out),
                                    .inputs = input(r, r->inputs.tokens),
                                    .sources = input(r, r->inputs.sources),
                                    .sampled = r->workspace->tokens.address,
                                    .signs = r->weights->ops[0].vectors.embed.inverse,
                                    .width = (uint32_t)width,
                                    .piece = (uint32_t)piece,
                                    .factor = qn_hadamard_scale(piece) };
    const qn_vk_launch launch = qn_vk_embed(&table->format, block != 0, r->n, width, piece);
    return qn_vk_dispatch(r->common->vk, r->commands, &launch, &args);
}

static qn_status record_gated_norm(const qn_vk_recording *r, const qn_op *op)
{
    QN_TRY(qn_vk_record_append(r, op));
    return qn_vk_record_acts(r, op, buffer(r, op->gated_norm.in), 0, r->n);
}

/* A kernel of the operation before has computed the gated norm: what that appends is left. */
static qn_status record_matmul(const qn_vk_recording *r, const qn_op *op)
{
    const size_t at = (size_t)(op - r->common->plan->ops);
    if (at >= 2 && qn_vk_is_normed_with(r, at - 2))
        QN_TRY(qn_vk_record_append(r, op - 1));
    return qn_vk_record_matmul(r, op, r->n);
}

static qn_status record_op(const qn_vk_recording *r, const qn_op *op)
{
    switch (op->kind) {
    case QN_OP_EMBED:
        if (!r->workspace->embeds_on_host)
            return record_embeddings(r, op);
        copy_embeddings(r, op);
        break;
    case QN_OP_NORM: return qn_vk_record_acts(r, op, buffer(r, op->norm.in), 0, r->n);
    case QN_OP_MATMUL: return record_matmul(r, op);
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
        const size_t label = i;
        if (qn_vk_is_convolved_later(r, i))
            continue;
        QN_TRY(record_op(r, &plan->ops[i]));
        if (qn_vk_epilogue_of(r, i) != QN_VK_EPILOGUE_NONE || qn_vk_is_combined(r, i) || qn_vk_is_normed_with(r, i))
            i++; /* its kernels computed the next operation, too */
        if (r->barriers[i] && (plan->ops[i].kind != QN_OP_EMBED || !r->workspace->embeds_on_host))
            qn_vk_barrier(r->common->vk, r->commands);
        qn_vk_mark(r->common->vk, r->commands, label);
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
            QN_TRY(qn_vk_record_matmul(r, op, n));
        }
        if (!qn_op_is_logits(op))
            continue;
        if (r->barriers[i])
            qn_vk_barrier(r->common->vk, r->commands);
        qn_vk_mark(r->common->vk, r->commands, i);
    }
    return QN_OK;
}
