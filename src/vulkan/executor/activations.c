/* An operation may write activations in two bases: each has a dispatch of its own, and none reads another's. */
#include "vulkan/executor/activations.h"

enum { PIECE = 256 /* values of a workgroup, of activations that are not rotated */ };

qn_status qn_vk_check_rotations(const qn_plan *plan)
{
    for (size_t i = 0; i < plan->n_acts; i++)
        if (plan->acts[i].rotation.block > QN_VK_MAX_PIECE)
            return qn_fail(QN_ERR_UNSUPPORTED,
                           "Vulkan: Hadamard transforms of blocks of %zu are not supported, only up "
                           "to %d",
                           plan->acts[i].rotation.block, QN_VK_MAX_PIECE);
    return QN_OK;
}

bool qn_vk_is_computed(const qn_plan *plan, const qn_op *op, int acts)
{
    return op->kind != QN_OP_ATTENTION_COMBINE || op->attention_combine.shape.gated || plan->acts[acts].rotation.block;
}

static qn_status dispatch(const qn_vk_recording *r, qn_vk_launch launch, const void *args)
{
    return qn_vk_dispatch(r->common->vk, r->commands, &launch, args);
}

/* Sets what the operation reads, but for x and rows, and returns what the kernel computes. */
static qn_vk_prepare_op fill_args(const qn_vk_recording *r, const qn_op *op, qn_vk_prepare_args *args)
{
    const qn_plan *plan = r->common->plan;
    const uint64_t *buffers = r->workspace->buffers;
    const qn_op_addresses *vectors = &r->weights->ops[op - plan->ops].vectors;
    const qn_recurrent_shape *s = &plan->recurrent;
    switch (op->kind) {
    case QN_OP_SWIGLU: args->x2 = buffers[op->swiglu.up]; return QN_VK_PREPARE_SWIGLU;
    case QN_OP_ATTENTION_COMBINE:
        args->x2 = op->attention_combine.shape.gated ? buffers[op->attention_combine.queries] : 0;
        args->dim = (uint32_t)op->attention_combine.shape.head_dim;
        return QN_VK_PREPARE_GATE;
    case QN_OP_GATED_NORM:
        args->x2 = buffers[op->gated_norm.gate];
        args->weight = vectors->gated_norm.weight;
        args->eps = op->gated_norm.eps;
        args->dim = (uint32_t)s->head_v;
        args->repeats = op->gated_norm.grouped ? (uint32_t)(s->n_v_heads / s->n_k_heads) : 1;
        return QN_VK_PREPARE_GATED_NORM;
    default:
        args->weight = vectors->norm.weight;
        args->eps = op->norm.eps;
        return QN_VK_PREPARE_NORM;
    }
}

static qn_status record_prepare(const qn_vk_recording *r, const qn_op *op, int acts, uint64_t x, uint64_t rows,
                                size_t n)
{
    const qn_plan_acts *a = &r->common->plan->acts[acts];
    qn_vk_prepare_args args = { .x = x,
                                .y = r->workspace->acts[acts],
                                .rows = rows,
                                .width = (uint32_t)a->width,
                                .piece = a->rotation.block ? (uint32_t)a->rotation.block : PIECE,
                                .signs = r->weights->signs[acts] };
    const qn_vk_prepare_op kind = fill_args(r, op, &args);
    args.factor = qn_hadamard_scale(args.piece);
    return dispatch(r, qn_vk_prepare(kind, a->rotation.block != 0, n, args.width, args.piece), &args);
}

static qn_status record_norm(const qn_vk_recording *r, const qn_op *op, int acts, uint64_t x, uint64_t rows, size_t n)
{
    const qn_vk_norm_args args = { .x = x,
                                   .weight = r->weights->ops[op - r->common->plan->ops].vectors.norm.weight,
                                   .y = r->workspace->acts[acts],
                                   .rows = rows,
                                   .n = (uint32_t)r->common->plan->acts[acts].width,
                                   .eps = op->norm.eps };
    return dispatch(r, qn_vk_norm(n), &args);
}

static qn_status record_swiglu(const qn_vk_recording *r, const qn_op *op, int acts, uint64_t x, size_t n)
{
    const size_t width = r->common->plan->acts[acts].width;
    const qn_vk_swiglu_args args = { .gate = x,
                                     .up = r->workspace->buffers[op->swiglu.up],
                                     .y = r->workspace->acts[acts],
                                     .n = (uint32_t)n,
                                     .width = (uint32_t)width };
    return dispatch(r, qn_vk_swiglu(n, width), &args);
}

qn_status qn_vk_record_acts(const qn_vk_recording *r, const qn_op *op, uint64_t x, uint64_t rows, size_t n)
{
    const qn_plan *plan = r->common->plan;
    const qn_op_acts *acts = qn_op_acts_of(op);
    for (size_t i = 0; i < acts->n; i++) {
        const int id = acts->at[i];
        const bool is_rotated = plan->acts[id].rotation.block != 0;
        if (!qn_vk_is_computed(plan, op, id))
            continue;
        if (!is_rotated && (op->kind == QN_OP_NORM || op->kind == QN_OP_LOGIT_NORM))
            QN_TRY(record_norm(r, op, id, x, rows, n));
        else if (!is_rotated && op->kind == QN_OP_SWIGLU)
            QN_TRY(record_swiglu(r, op, id, x, n));
        else
            QN_TRY(record_prepare(r, op, id, x, rows, n));
    }
    return QN_OK;
}
