/* An operation may write activations in two bases: each has a dispatch of its own, and none reads another's. */
#include "vulkan/executor/activations.h"

enum { PIECE = 256 /* values of a workgroup, of activations that are not rotated */ };

qn_status qn_vk_check_rotations(const qn_plan *plan)
{
    for (size_t i = 0; i < plan->n_acts; i++)
        if (plan->acts[i].rotation.block > QN_VK_MAX_PIECE || plan->acts[i].rotation.block % QN_QUANT_GROUP)
            return qn_fail(QN_ERR_UNSUPPORTED,
                           "Vulkan: Hadamard transforms of blocks of %zu are not supported, only of %d to %d",
                           plan->acts[i].rotation.block, QN_QUANT_GROUP, QN_VK_MAX_PIECE);
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

static qn_vk_prepare_op kind_of(const qn_op *op)
{
    switch (op->kind) {
    case QN_OP_SWIGLU: return QN_VK_PREPARE_SWIGLU;
    case QN_OP_ATTENTION_COMBINE: return QN_VK_PREPARE_GATE;
    case QN_OP_GATED_NORM: return QN_VK_PREPARE_GATED_NORM;
    default: return QN_VK_PREPARE_NORM;
    }
}

/* Sets what the operation reads, but for x and rows. */
static void fill_args(const qn_vk_recording *r, const qn_op *op, qn_vk_prepare_args *args)
{
    const qn_plan *plan = r->common->plan;
    const uint64_t *buffers = r->workspace->buffers;
    const qn_op_addresses *vectors = &r->weights->ops[op - plan->ops].vectors;
    const qn_recurrent_shape *s = &plan->recurrent;
    switch (op->kind) {
    case QN_OP_SWIGLU: args->x2 = buffers[op->swiglu.up]; break;
    case QN_OP_ATTENTION_COMBINE:
        args->x2 = op->attention_combine.shape.gated ? buffers[op->attention_combine.queries] : 0;
        args->dim = (uint32_t)op->attention_combine.shape.head_dim;
        break;
    case QN_OP_GATED_NORM:
        args->x2 = buffers[op->gated_norm.gate];
        args->weight = vectors->gated_norm.weight;
        args->eps = op->gated_norm.eps;
        args->dim = (uint32_t)s->head_v;
        args->repeats = op->gated_norm.grouped ? (uint32_t)(s->n_v_heads / s->n_k_heads) : 1;
        break;
    default: args->weight = vectors->norm.weight; args->eps = op->norm.eps;
    }
}

/* The floats that a kernel writes; 0: none. */
static uint64_t floats_of(const qn_vk_recording *r, const qn_op *op, int acts)
{
    return qn_vk_is_computed(r->common->plan, op, acts) ? r->workspace->acts[acts] : 0;
}

/* Values of a workgroup: a block of the rotation; without one, of a norm of heads a head. */
static size_t piece_of(const qn_vk_recording *r, const qn_op *op, int acts)
{
    const size_t block = r->common->plan->acts[acts].rotation.block, head = r->common->plan->recurrent.head_v;
    const bool is_head = op->kind == QN_OP_GATED_NORM && head % QN_QUANT_GROUP == 0;
    return block ? block : is_head ? head : PIECE;
}

qn_vk_prepare_args qn_vk_acts_args(const qn_vk_recording *r, const qn_op *op, int acts)
{
    const qn_plan_acts *a = &r->common->plan->acts[acts];
    qn_vk_prepare_args args = { .y = floats_of(r, op, acts),
                                .codes = r->workspace->codes[acts],
                                .width = (uint32_t)a->width,
                                .piece = (uint32_t)piece_of(r, op, acts),
                                .signs = r->weights->signs[acts],
                                .planes = (uint32_t)qn_vk_act_planes(a) };
    fill_args(r, op, &args);
    args.factor = qn_hadamard_scale(args.piece);
    return args;
}

static qn_status record_prepare(const qn_vk_recording *r, const qn_op *op, int acts, uint64_t x, uint64_t rows,
                                size_t n)
{
    qn_vk_prepare_args args = qn_vk_acts_args(r, op, acts);
    args.x = x;
    args.rows = rows;
    const bool is_rotated = r->common->plan->acts[acts].rotation.block != 0;
    return dispatch(r, qn_vk_prepare(kind_of(op), is_rotated, n, args.width, args.piece), &args);
}

qn_status qn_vk_record_acts(const qn_vk_recording *r, const qn_op *op, uint64_t x, uint64_t rows, size_t n)
{
    const qn_op_acts *acts = qn_op_acts_of(op);
    for (size_t i = 0; i < acts->n; i++)
        if (floats_of(r, op, acts->at[i]) || r->workspace->codes[acts->at[i]])
            QN_TRY(record_prepare(r, op, acts->at[i], x, rows, n));
    return QN_OK;
}
