/* The arguments of the kernels of recurrent layers. Each sequence has items in the pool, whose addresses the host
 * writes for each step: recorded commands hold for any sequences. */
#include "vulkan/executor/recurrent.h"

#include "vulkan/executor/activations.h"

#include <math.h>
#include <string.h>

qn_status qn_vk_check_recurrent(const qn_plan *plan)
{
    const qn_recurrent_shape *s = &plan->recurrent;
    const size_t n = qn_gpu_recurrent_index(plan, (int)plan->n_layers);
    if (!n)
        return QN_OK;
    if (s->head_k > QN_VK_MAX_RECURRENT_HEAD || s->head_v > QN_VK_MAX_RECURRENT_HEAD || s->head_k % QN_VK_HEAD_UNIT ||
        s->head_v % QN_VK_HEAD_UNIT)
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "Vulkan: recurrent heads of %zu keys and %zu values are not supported: expected multiples of %d "
                       "up to %d",
                       s->head_k, s->head_v, QN_VK_HEAD_UNIT, QN_VK_MAX_RECURRENT_HEAD);
    const qn_gpu_recurrent_layout l = qn_gpu_recurrent_layout_of(s);
    if (s->n_k_heads > UINT16_MAX || s->n_v_heads > UINT16_MAX)
        return qn_fail(QN_ERR_UNSUPPORTED, "Vulkan: %zu and %zu recurrent heads are not supported, only up to %d",
                       s->n_k_heads, s->n_v_heads, UINT16_MAX);
    if (l.state_layer_bytes > UINT32_MAX / n || l.open.bytes > UINT32_MAX / n)
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "Vulkan: states of %zu layers of %zu bytes are not supported, only up to 4 GiB", n,
                       l.state_layer_bytes);
    return QN_OK;
}

static uint64_t item_address(const qn_pool_class *items, uint32_t item)
{
    return item == QN_NO_ITEM ? 0 : qn_pool_address(items, item);
}

void qn_vk_fill_sequences(const qn_gpu_piece *pieces, size_t n, qn_vk_sequence *sequences)
{
    for (size_t i = 0; i < n; i++) {
        const qn_gpu_piece *piece = &pieces[i];
        sequences[i] = (qn_vk_sequence){ .begin = piece->row, .end = piece->row };
        if (!piece->rows)
            continue;
        const qn_sequence *s = piece->memory->base.sequence;
        sequences[i] = (qn_vk_sequence){ .from = item_address(s->cache->states, s->state),
                                         .to = item_address(s->cache->states, s->state_to),
                                         .open = item_address(s->cache->open_chunks, s->open_chunk),
                                         .state_position = s->state_position,
                                         .position = piece->position,
                                         .begin = piece->row,
                                         .end = piece->row + piece->n };
    }
}

/* ---- Dispatches ---- */

static qn_status dispatch(const qn_vk_recording *r, qn_vk_launch launch, const void *args)
{
    return qn_vk_dispatch(r->common->vk, r->commands, &launch, args);
}

static uint64_t sequences_of(const qn_vk_recording *r)
{
    return r->workspace->inputs.address + r->workspace->sequences_at;
}

static uint32_t history_at(const qn_plan *plan, int layer)
{
    return (uint32_t)(qn_gpu_state_offset(plan, layer) + qn_gpu_recurrent_layout_of(&plan->recurrent).history);
}

bool qn_vk_is_convolved_later(const qn_vk_recording *r, size_t at)
{
    const qn_op *op = &r->common->plan->ops[at];
    return r->is_decode && op[0].kind == QN_OP_CONV && op[1].kind == QN_OP_DELTA_RULE && op[2].kind == QN_OP_GATED_NORM;
}

static qn_vk_conv_args conv_args(const qn_vk_recording *r, const qn_op *op)
{
    const qn_plan *plan = r->common->plan;
    const qn_recurrent_shape *s = &plan->recurrent;
    const uint64_t *buffers = r->workspace->buffers;
    const qn_op_addresses *vectors = &r->weights->ops[op - plan->ops].vectors;
    return (qn_vk_conv_args){ .qkv = buffers[op->conv.qkv],
                              .y = buffers[op->conv.out],
                              .alpha = buffers[op->conv.alpha],
                              .beta = buffers[op->conv.beta],
                              .weights = vectors->conv.taps,
                              .bias = vectors->conv.bias,
                              .factor = vectors->conv.factor,
                              .sequence_of = r->workspace->inputs.address + r->inputs.sequences,
                              .sequences = sequences_of(r),
                              .granules = r->caches->memory.table.address,
                              .shift = r->caches->memory.shift,
                              .history_at = history_at(plan, op->layer),
                              .inputs_at = (uint32_t)qn_gpu_open_layout(plan, op->layer).inputs,
                              .k_heads = (uint32_t)s->n_k_heads,
                              .v_heads = (uint32_t)s->n_v_heads,
                              .head_k = (uint32_t)s->head_k,
                              .head_v = (uint32_t)s->head_v };
}

qn_status qn_vk_record_conv(const qn_vk_recording *r, const qn_op *op)
{
    const qn_recurrent_shape *s = &r->common->plan->recurrent;
    const qn_vk_conv_args args = conv_args(r, op);
    return dispatch(r, qn_vk_conv(r->n, s->n_k_heads, s->n_v_heads, s->taps), &args);
}

static bool has_single_rows(const qn_vk_recording *r)
{
    for (size_t i = 0; i < r->n_sequences; i++)
        if (r->pieces[i].n == 1)
            return true;
    return false;
}

bool qn_vk_is_normed_with(const qn_vk_recording *r, size_t at)
{
    const qn_plan *plan = r->common->plan;
    if (!at || plan->ops[at].kind != QN_OP_DELTA_RULE || !qn_vk_is_convolved_later(r, at - 1) ||
        plan->recurrent.head_v % QN_QUANT_GROUP)
        return false;
    if (at + 2 >= plan->n_ops || plan->ops[at + 2].kind != QN_OP_MATMUL) /* which appends what the norm would */
        return false;
    const qn_op_acts *acts = qn_op_acts_of(&plan->ops[at + 1]);
    const size_t block = plan->acts[acts->at[0]].rotation.block;
    return acts->n == 1 && r->workspace->codes[acts->at[0]] && !r->workspace->acts[acts->at[0]] &&
           (!block || block == plan->recurrent.head_v);
}

/* Records the delta rule of single rows. */
static qn_status record_rows(const qn_vk_recording *r, const qn_op *op, const qn_vk_delta_args *delta)
{
    const qn_recurrent_shape *s = &r->common->plan->recurrent;
    const qn_vk_workspace *w = r->workspace;
    const size_t at = (size_t)(op - r->common->plan->ops);
    const bool convolves = qn_vk_is_convolved_later(r, at - 1), has_norm = qn_vk_is_normed_with(r, at);
    const qn_vk_conv_args conv = convolves ? conv_args(r, op - 1) : (qn_vk_conv_args){ 0 };
    qn_vk_prepare_args norm = { 0 };
    bool is_rotated = false;
    if (has_norm) {
        const int acts = qn_op_acts_of(op + 1)->at[0];
        norm = qn_vk_acts_args(r, op + 1, acts);
        is_rotated = r->common->plan->acts[acts].rotation.block != 0;
    }
    qn_vk_delta_row_args args = qn_vk_delta_row_args_of(convolves ? &conv : NULL, delta, has_norm ? &norm : NULL);
    if (convolves) {
        const size_t to = w->layers_at + qn_gpu_recurrent_index(r->common->plan, op->layer) * sizeof(qn_vk_delta_layer);
        qn_vk_delta_layer layer = qn_vk_delta_layer_of(&conv, has_norm ? &norm : NULL, is_rotated);
        layer.arrived = w->arrived.address;
        memcpy(w->inputs.host + to, &layer, sizeof layer);
        args.layer = w->inputs.address + to;
    }
    return dispatch(r, qn_vk_delta_row(r->n_sequences, s->n_v_heads, s->head_v, s->taps), &args);
}

qn_status qn_vk_record_delta(const qn_vk_recording *r, const qn_op *op)
{
    const qn_plan *plan = r->common->plan;
    const qn_recurrent_shape *s = &plan->recurrent;
    const uint64_t *buffers = r->workspace->buffers;
    const qn_gdn_open_layout open = qn_gpu_open_layout(plan, op->layer);
    const qn_vk_delta_args args = { .qkv = buffers[op->delta_rule.qkv],
                                    .decays = buffers[op->delta_rule.g],
                                    .betas = buffers[op->delta_rule.beta],
                                    .y = buffers[op->delta_rule.out],
                                    .row_scores = r->workspace->row_scores,
                                    .sequences = sequences_of(r),
                                    .granules = r->caches->memory.table.address,
                                    .shift = r->caches->memory.shift,
                                    .state_at = (uint32_t)qn_gpu_state_offset(plan, op->layer),
                                    .keys_at = (uint32_t)open.keys,
                                    .values_at = (uint32_t)open.values,
                                    .scales_at = (uint32_t)open.scales,
                                    .decays_at = (uint32_t)open.decays,
                                    .k_heads = (uint32_t)s->n_k_heads,
                                    .v_heads = (uint32_t)s->n_v_heads,
                                    .head_k = (uint32_t)s->head_k,
                                    .head_v = (uint32_t)s->head_v,
                                    .scale = (float)(1 / sqrt((double)s->head_k)) };
    if (r->is_decode || has_single_rows(r))
        QN_TRY(record_rows(r, op, &args));
    if (r->n == r->n_sequences)
        return QN_OK;
    const qn_vk_features *features = &qn_vk_get_info(r->common->vk)->features;
    QN_TRY(dispatch(r, qn_vk_delta_scores(r->n, r->n_sequences, s->n_k_heads, features), &args));
    qn_vk_barrier(r->common->vk, r->commands);
    return dispatch(r, qn_vk_delta(r->n_sequences, s->n_v_heads, s->head_v, features), &args);
}

qn_status qn_vk_record_append(const qn_vk_recording *r, const qn_op *op)
{
    const qn_plan *plan = r->common->plan;
    const qn_recurrent_shape *s = &plan->recurrent;
    const uint64_t *buffers = r->workspace->buffers;
    const qn_gdn_open_layout open = qn_gpu_open_layout(plan, op->layer);
    const bool convolves = qn_vk_is_convolved_later(r, (size_t)(op - 2 - plan->ops));
    const qn_vk_conv_args conv = convolves ? conv_args(r, op - 2) : (qn_vk_conv_args){ 0 };
    const qn_vk_append_args args = { .qkv = buffers[op->gated_norm.conv_in],
                                     .convolved = buffers[op->gated_norm.conv_out],
                                     .decays = convolves ? conv.alpha : buffers[op->gated_norm.g],
                                     .bias = conv.bias,
                                     .factor = conv.factor,
                                     .sequences = sequences_of(r),
                                     .granules = r->caches->memory.table.address,
                                     .shift = r->caches->memory.shift,
                                     .history_at = history_at(plan, op->layer),
                                     .keys_at = (uint32_t)open.keys,
                                     .decays_at = (uint32_t)open.decays,
                                     .inputs_at = (uint32_t)open.inputs,
                                     .k_heads = (uint32_t)s->n_k_heads,
                                     .v_heads = (uint32_t)s->n_v_heads,
                                     .head_k = (uint32_t)s->head_k,
                                     .head_v = (uint32_t)s->head_v,
                                     .taps = (uint32_t)s->taps };
    return dispatch(r, qn_vk_append(r->n_sequences, qn_recurrent_width(s), s->n_k_heads, s->n_v_heads), &args);
}
