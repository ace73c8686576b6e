/* The operations of Gated DeltaNet layers as launches. */
#include "device/cuda/operations.h"

#include "kernels/deltanet/deltanet_cuda.h"

#include <math.h>

/* The operations of a recurrent layer are consecutive: QN_OP_CONV, QN_OP_DELTA_RULE, QN_OP_GATED_NORM. */
struct delta {
    const qn_op *conv, *delta, *out;
    const qn_recurrent_shape *shape;
    uint32_t width, inner; /* row widths: of q k v, of the output */
    uint64_t state_offset, inputs_offset;
    uint64_t sessions, cu_seqlens; /* addresses of qn_cuda_inputs' memory and cu_seqlens */
    bool chunked;                  /* chunked kernels: bf16 on tensor cores; else recurrent, in fp32 */
};

static struct delta delta_of(const qn_cuda_rows_step *s, const qn_op *op)
{
    const qn_op *conv = op - (op->kind == QN_OP_CONV ? 0 : op->kind == QN_OP_DELTA_RULE ? 1 : 2);
    const qn_recurrent_shape *shape = &s->model->plan->recurrent;
    const uint64_t at = (uint64_t)s->memory->format->slots[op->layer] * s->memory->format->recurrent.state_layer_bytes;
    return (struct delta){ .conv = conv,
                           .delta = conv + 1,
                           .out = conv + 2,
                           .shape = shape,
                           .width = (uint32_t)qn_recurrent_width(shape),
                           .inner = (uint32_t)(shape->n_v_heads * shape->head_v),
                           .state_offset = at,
                           .inputs_offset = at + s->memory->format->recurrent.history,
                           .sessions = s->model->inputs + offsetof(qn_cuda_inputs, memory),
                           .cu_seqlens = s->model->inputs + offsetof(qn_cuda_inputs, cu_seqlens),
                           .chunked = qn_gdn_gpu_has_chunks(shape->head_k, shape->head_v, &s->model->gdn) };
}

static float delta_scale(const struct delta *d)
{
    return (float)(1 / sqrt((double)d->shape->head_k));
}

/* One row: all of the layer between its matmuls in one launch. */
static qn_status run_delta_step(const qn_cuda_rows_step *s, const qn_op *op)
{
    const struct delta d = delta_of(s, op);
    const qn_gdn_step_args args = { .qkv = qn_cuda_step_buffer(s, d.conv->conv.qkv),
                                    .alpha = qn_cuda_step_buffer(s, d.conv->conv.alpha),
                                    .beta = qn_cuda_step_buffer(s, d.conv->conv.beta),
                                    .gate = qn_cuda_step_buffer(s, d.out->gated_norm.gate),
                                    .conv = qn_cuda_step_op(s, d.conv)->vectors.conv.taps,
                                    .bias = qn_cuda_step_op(s, d.conv)->vectors.conv.bias,
                                    .factor = qn_cuda_step_op(s, d.conv)->vectors.conv.factor,
                                    .norm = qn_cuda_step_op(s, d.out)->vectors.gated_norm.weight,
                                    .out = qn_cuda_step_buffer(s, d.out->gated_norm.in),
                                    .memory = d.sessions,
                                    .positions = qn_cuda_step_positions(s),
                                    .state_offset = d.state_offset,
                                    .inputs_offset = d.inputs_offset,
                                    .rows = 1,
                                    .k_heads = (uint32_t)d.shape->n_k_heads,
                                    .v_heads = (uint32_t)d.shape->n_v_heads,
                                    .taps = (uint32_t)d.shape->taps,
                                    .qkv_stride = d.width,
                                    .alpha_stride = (uint32_t)d.shape->n_v_heads,
                                    .beta_stride = (uint32_t)d.shape->n_v_heads,
                                    .gate_stride = d.inner,
                                    .out_stride = d.inner,
                                    .grouped = d.out->gated_norm.grouped,
                                    .scale = delta_scale(&d),
                                    .eps = d.out->gated_norm.eps };
    qn_launch config;
    QN_TRY(qn_gdn_gpu_step(&args, d.shape->head_k, d.shape->head_v, &config));
    return qn_cuda_step_launch_pdl(s, &config, &args);
}

static qn_status run_conv(const qn_cuda_rows_step *s, const qn_op *op)
{
    const struct delta d = delta_of(s, op);
    const uint64_t gates = s->model->gates.address;
    const qn_gdn_conv_args args = { .qkv = qn_cuda_step_buffer(s, op->conv.qkv),
                                    .alpha = qn_cuda_step_buffer(s, op->conv.alpha),
                                    .beta_in = qn_cuda_step_buffer(s, op->conv.beta),
                                    .conv = qn_cuda_step_op(s, op)->vectors.conv.taps,
                                    .bias = qn_cuda_step_op(s, op)->vectors.conv.bias,
                                    .factor = qn_cuda_step_op(s, op)->vectors.conv.factor,
                                    .out = qn_cuda_step_buffer(s, op->conv.out),
                                    .g = gates,
                                    .beta = gates + s->n * d.shape->n_v_heads * sizeof(float),
                                    .memory = d.sessions,
                                    .positions = qn_cuda_step_input(s, s->inputs.first_positions),
                                    .cu_seqlens = d.cu_seqlens,
                                    .inputs_offset = d.inputs_offset,
                                    .sequences = (uint32_t)s->n_pieces,
                                    .k_heads = (uint32_t)d.shape->n_k_heads,
                                    .v_heads = (uint32_t)d.shape->n_v_heads,
                                    .taps = (uint32_t)d.shape->taps,
                                    .qkv_stride = d.width,
                                    .alpha_stride = (uint32_t)d.shape->n_v_heads,
                                    .beta_stride = (uint32_t)d.shape->n_v_heads,
                                    .out_stride = d.width };
    qn_launch config;
    QN_TRY(qn_gdn_gpu_conv(&args, d.shape->head_k, d.shape->head_v, s->n, d.chunked, &config));
    return qn_cuda_step_launch_pdl(s, &config, &args);
}

static qn_status run_delta(const qn_cuda_rows_step *s, const qn_op *op)
{
    const struct delta d = delta_of(s, op);
    const uint64_t gates = s->model->gates.address, q = qn_cuda_step_buffer(s, op->delta_rule.qkv), element = d.chunked ? 2 : 4;
    qn_gdn_chunk_args args = { .q = q,
                               .k = q + d.shape->n_k_heads * d.shape->head_k * element,
                               .v = q + 2 * d.shape->n_k_heads * d.shape->head_k * element,
                               .g = gates,
                               .beta = gates + s->n * d.shape->n_v_heads * sizeof(float),
                               .memory = d.sessions,
                               .positions = qn_cuda_step_input(s, s->inputs.first_positions),
                               .state_offset = d.state_offset,
                               .o = qn_cuda_step_buffer(s, op->delta_rule.out),
                               .cu_seqlens = d.cu_seqlens,
                               .tokens = (uint32_t)s->n,
                               .sequences = (uint32_t)s->n_pieces,
                               .k_heads = (uint32_t)d.shape->n_k_heads,
                               .v_heads = (uint32_t)d.shape->n_v_heads,
                               .head_k = (uint32_t)d.shape->head_k,
                               .head_v = (uint32_t)d.shape->head_v,
                               .dtype = d.chunked ? QN_DTYPE_BF16 : QN_DTYPE_F32,
                               .g_dtype = QN_DTYPE_F32,
                               .beta_dtype = QN_DTYPE_F32,
                               .q_stride = d.width,
                               .k_stride = d.width,
                               .v_stride = d.width,
                               .o_stride = d.inner,
                               .g_stride = (uint32_t)d.shape->n_v_heads,
                               .beta_stride = (uint32_t)d.shape->n_v_heads,
                               .tiled = 1,
                               .normalize = 1,
                               .scale = delta_scale(&d) };
    if (!d.chunked) {
        qn_launch config;
        QN_TRY(qn_gdn_gpu_recurrent(&args, &config));
        return qn_cuda_step_launch(s, &config, &args);
    }
    const qn_gdn_division division = qn_gdn_gpu_divide(&args, s->n, &s->model->gdn);
    qn_gdn_chunk_launches chunk;
    QN_TRY(qn_gdn_gpu_chunk(&args, &division, s->model->gdn.max_shared_bytes, s->model->delta_workspace.address, &chunk));
    for (size_t i = 0; i < chunk.n; i++)
        QN_TRY(qn_cuda_step_launch(s, &chunk.launches[i], &args));
    return QN_OK;
}

static qn_status run_gated_norm(const qn_cuda_rows_step *s, const qn_op *op)
{
    const struct delta d = delta_of(s, op);
    const qn_gdn_norm_args args = { .o = qn_cuda_step_buffer(s, op->gated_norm.in),
                                    .gate = qn_cuda_step_buffer(s, op->gated_norm.gate),
                                    .norm = qn_cuda_step_op(s, op)->vectors.gated_norm.weight,
                                    .out = s->model->scratch.address,
                                    .rows = (uint32_t)s->n,
                                    .k_heads = (uint32_t)d.shape->n_k_heads,
                                    .v_heads = (uint32_t)d.shape->n_v_heads,
                                    .o_stride = d.inner,
                                    .gate_stride = d.inner,
                                    .out_stride = d.inner,
                                    .grouped = op->gated_norm.grouped,
                                    .eps = op->gated_norm.eps };
    qn_launch config;
    QN_TRY(qn_gdn_gpu_norm(&args, d.shape->head_k, d.shape->head_v, d.chunked, &config));
    return qn_cuda_step_launch_pdl(s, &config, &args);
}

qn_status qn_cuda_run_recurrent_op(const qn_cuda_rows_step *s, const qn_op *op)
{
    if (op->kind == QN_OP_CONV)
        return s->n > 1 ? run_conv(s, op) : QN_OK;
    if (op->kind == QN_OP_DELTA_RULE)
        return s->n > 1 ? run_delta(s, op) : QN_OK;
    return s->n > 1 ? run_gated_norm(s, op) : run_delta_step(s, op);
}
