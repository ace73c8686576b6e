/* The plan's operations as launches: which kernels run, and which buffers they read and write. The kernels themselves are in
 * kernels/. */
#include "device/cuda/model.h"

#include "kernels/aura/aura_cuda.h"
#include "kernels/deltanet/deltanet_cuda.h"
#include "kernels/elementwise/elementwise_cuda.h"
#include "kernels/hadamard/hadamard_cuda.h"
#include "kernels/matmul/hadamard_quantize_cuda.h"
#include "kernels/norm/norm_cuda.h"
#include "kernels/rope/rope_cuda.h"

#include <math.h>
#include <stddef.h>

/* A step; for QN_OP_LOGIT_NORM and QN_OP_LOGITS some of its rows. */
struct step {
    qn_cuda_model *model;
    const qn_cuda_memory *memory;
    size_t row, n;  /* rows [row, row + n) of the buffers */
    uint32_t first; /* position of the first row */
};

static qn_status launch(const struct step *s, const qn_launch *what, const void *args)
{
    return qn_cuda_launch(s->model->cuda, s->model->stream, what, args);
}

/* Launches with PDL: the kernel may start before the previous one ends, and waits itself (qn_pdl_wait) before it accesses
 * that one's data. */
static qn_status launch_pdl(const struct step *s, qn_launch *what, const void *args)
{
    what->pdl = true;
    return launch(s, what, args);
}

static uint64_t buffer(const struct step *s, int id)
{
    return qn_cuda_rows(s->model, id) + s->row * s->model->plan->buffers[id].width * sizeof(float);
}

static uint64_t positions(const struct step *s)
{
    return s->model->inputs + offsetof(qn_cuda_inputs, positions);
}

static const qn_cuda_op *cuda_op(const struct step *s, const qn_op *op)
{
    return &s->model->ops[op - s->model->plan->ops];
}

/* ---- Activations ---- */

/* Float rows to be quantised into activations, and the operation fused into the quantisation. */
struct acts_source {
    int op; /* QN_ACTS_OP_NONE, _RMS_NORM, _SWIGLU */
    uint64_t x, x2, weight;
    float eps;
};

/* Applies the source's operation and the Hadamard transform; the results are floats in model->scratch. */
static qn_status rotated_floats(const struct step *s, const struct acts_source *from, size_t width, size_t block,
                                uint64_t signs)
{
    const uint64_t scratch = s->model->scratch.address;
    uint64_t x = scratch;
    qn_launch config;
    if (from->op == QN_ACTS_OP_RMS_NORM) {
        const qn_norm_rows_args args = {
            .x = from->x, .weight = from->weight, .y = scratch, .n = (uint32_t)width, .eps = from->eps
        };
        QN_TRY(qn_norm_gpu_rows(width, s->n, &config));
        QN_TRY(launch_pdl(s, &config, &args));
    } else if (from->op == QN_ACTS_OP_SWIGLU) {
        const qn_elementwise_swiglu_args args = { .gate = from->x, .up = from->x2, .y = scratch, .n = s->n * width };
        QN_TRY(qn_elementwise_gpu_swiglu(s->n * width, &config));
        QN_TRY(launch_pdl(s, &config, &args));
    } else {
        x = from->x;
    }
    qn_hadamard_gpu hadamard;
    QN_TRY(qn_hadamard_gpu_plan(scratch, x, signs, 0, width, block, s->n * width, &hadamard));
    QN_TRY(launch_pdl(s, &hadamard.tiles, &hadamard.tiles_args));
    return hadamard.has_cross ? launch_pdl(s, &hadamard.cross, &hadamard.cross_args) : QN_OK;
}

/* The layouts in which the matmuls of this operation read these activations, as bits 1 << layout. */
static unsigned layouts_read(const struct step *s, const qn_op *reader, int acts)
{
    const qn_cuda_op *op = cuda_op(s, reader);
    unsigned layouts = 0;
    for (size_t i = 0; i < op->n_gemms; i++)
        if (op->gemms[i].acts == acts)
            layouts |= 1u << qn_matmul_gpu_acts_layout(&op->gemms[i].tiled_matrix.tiles, s->n, s->model->plan->acts[acts].hilo);
    return layouts;
}

/* Whether operation, Hadamard transform and quantisation are one launch: for one row read only by int8 GEMVs, and block sizes
 * with a kernel variant. */
static bool fuses_hadamard(const struct step *s, const qn_plan_rotation *rotation, unsigned layouts)
{
    return s->n == 1 && layouts == 1u << QN_ACTS_INT8_N1 && qn_matmul_gpu_has_hadamard_quantize(rotation->block);
}

static qn_status hadamard_quantize(const struct step *s, const struct acts_source *from, const qn_cuda_acts *acts, size_t block)
{
    qn_launch config;
    qn_hadamard_quantize_args args;
    QN_TRY(qn_matmul_gpu_hadamard_quantize(&acts->layouts[QN_ACTS_INT8_N1], from->op, from->x, from->x2, from->weight,
                                           from->eps, acts->signs, block, &config, &args));
    return launch(s, &config, &args);
}

/* The float rows from which an operation computes its activations. */
static struct acts_source acts_source_of(const struct step *s, const qn_op *op)
{
    int x = -1;
    switch (op->kind) {
    case QN_OP_NORM:
    case QN_OP_LOGIT_NORM:
        return (struct acts_source){ .op = QN_ACTS_OP_RMS_NORM,
                                     .x = buffer(s, op->norm.in),
                                     .weight = cuda_op(s, op)->vectors.norm.weight,
                                     .eps = op->norm.eps };
    case QN_OP_SWIGLU:
        return (struct acts_source){ .op = QN_ACTS_OP_SWIGLU, .x = buffer(s, op->swiglu.gate), .x2 = buffer(s, op->swiglu.up) };
    case QN_OP_GATED_NORM: /* more than one row: run_gated_norm has written them to scratch */
        if (s->n > 1)
            return (struct acts_source){ .op = QN_ACTS_OP_NONE, .x = s->model->scratch.address };
        x = op->gated_norm.in;
        break;
    case QN_OP_ATTENTION_COMBINE: x = op->attention_combine.in; break;
    case QN_OP_EMBED:
    case QN_OP_MATMUL:
    case QN_OP_QK_NORM_ROPE_STORE:
    case QN_OP_ATTENTION:
    case QN_OP_CONV:
    case QN_OP_DELTA_RULE:
    case QN_OP_LOGITS: break; /* they write no activations */
    }
    return (struct acts_source){ .op = QN_ACTS_OP_NONE, .x = x < 0 ? 0 : buffer(s, x) };
}

/* Writes the operation's activations, in the layouts that the next operation reads. */
static qn_status quantize_acts(const struct step *s, const qn_op *op)
{
    const struct acts_source from = acts_source_of(s, op);
    const qn_op_acts *outs = qn_op_acts_of(op);
    for (size_t a = 0; outs && a < outs->n; a++) {
        const qn_plan_acts *plan = &s->model->plan->acts[outs->at[a]];
        const qn_cuda_acts *acts = &s->model->acts[outs->at[a]];
        const unsigned layouts = layouts_read(s, op + 1, outs->at[a]);
        struct acts_source x = from;
        if (fuses_hadamard(s, &plan->rotation, layouts)) {
            QN_TRY(hadamard_quantize(s, &from, acts, plan->rotation.block));
            continue;
        }
        if (plan->rotation.block) {
            QN_TRY(rotated_floats(s, &from, plan->width, plan->rotation.block, acts->signs));
            x = (struct acts_source){ .op = QN_ACTS_OP_NONE, .x = s->model->scratch.address };
        }
        for (int layout = 0; layout < QN_CUDA_ACTS_LAYOUTS; layout++) {
            qn_matmul_launch config;
            if (!(layouts & 1u << layout))
                continue;
            QN_TRY(
                qn_matmul_gpu_quantize(&acts->layouts[layout], x.op, x.x, x.x2, x.weight, x.eps, plan->width, s->n, &config));
            QN_TRY(launch(s, &config.launch, &config.args));
        }
    }
    return QN_OK;
}

static qn_status run_gemm(const struct step *s, const qn_op *op, const qn_cuda_gemm *gemm)
{
    const qn_plan_acts *plan = &s->model->plan->acts[gemm->acts];
    qn_tiled_matrix tiled_matrix = gemm->tiled_matrix;
    qn_matmul_launch config;
    for (size_t i = 0; i < tiled_matrix.n_outs; i++) {
        const bool logits = qn_op_is_logits(op);
        const int out = op->matmul.matrices.at[gemm->matrices[i]].out;
        tiled_matrix.outs[i].data = logits ? s->model->logits.address : buffer(s, out);
        tiled_matrix.outs[i].stride = (uint32_t)(logits ? s->model->plan->n_vocab : s->model->plan->buffers[out].width);
    }
    const int layout = qn_matmul_gpu_acts_layout(&tiled_matrix.tiles, s->n, plan->hilo);
    QN_TRY(qn_matmul_gpu_matmul(&s->model->matmul, &tiled_matrix, &s->model->acts[gemm->acts].layouts[layout], s->n, &config));
    return launch(s, &config.launch, &config.args);
}

static qn_status run_matmul(const struct step *s, const qn_op *op)
{
    for (size_t p = 0; p < cuda_op(s, op)->n_gemms; p++)
        QN_TRY(run_gemm(s, op, &cuda_op(s, op)->gemms[p]));
    return QN_OK;
}

/* ---- Attention ---- */

static qn_status run_angles(const struct step *s)
{
    const qn_rope_angles_args args = { .positions = positions(s),
                                       .frequencies = s->model->frequencies,
                                       .cosines = s->model->cosines.address,
                                       .sines = s->model->sines.address,
                                       .attn_factor = s->model->plan->attn_factor,
                                       .n_rot = (uint32_t)s->model->plan->heads.n_rot };
    qn_launch config;
    QN_TRY(qn_rope_gpu_angles(args.n_rot, s->n, &config));
    return launch(s, &config, &args); /* no PDL: the previous work may be a copy, which cannot trigger it */
}

/* Quantises the pages of a layer's AURA cache that the step has completed. */
static qn_status run_quantize_pages(const struct step *s, int layer)
{
    const qn_cuda_memory *m = s->memory;
    const uint32_t before = s->first / QN_ATTENTION_PAGE, after = (uint32_t)((s->first + s->n) / QN_ATTENTION_PAGE);
    qn_attention_gpu_cache cache;
    qn_attention_gpu_pages pages;
    qn_launch config;
    if (!m->attention.pages || before == after)
        return QN_OK;
    qn_cuda_session_cache(m, (size_t)layer, &cache, &pages);
    const qn_aura_quantize_page_args args = { .f16_keys = pages.keys,
                                              .f16_values = pages.values,
                                              .keys = cache.keys,
                                              .values = cache.values,
                                              .key_scales = cache.key_scales,
                                              .value_scales = cache.value_scales,
                                              .means = pages.means,
                                              .f16_head = pages.head,
                                              .key_head_stride = cache.key_head_stride,
                                              .value_head_stride = cache.value_head_stride,
                                              .scale_head_stride = cache.scale_head_stride,
                                              .key_levels = m->codecs[0].levels,
                                              .value_levels = m->codecs[1].levels,
                                              .first_page = before,
                                              .n_open_pages = pages.n_open_pages };
    QN_TRY(qn_aura_gpu_quantize_page(m->attention.head_dim, m->attention.key_bits, m->attention.value_bits, after - before,
                                     m->attention.n_kv_heads, &config));
    return launch_pdl(s, &config, &args);
}

static qn_status run_qk_norm_rope_store(const struct step *s, const qn_op *op)
{
    const qn_attention_shape *h = &op->qk_norm_rope_store.shape;
    const qn_op_addresses *vectors = &cuda_op(s, op)->vectors;
    const qn_cuda_memory *m = s->memory;
    const uint32_t head = (uint32_t)(h->gated ? 2 * h->head_dim : h->head_dim),
                   key_row = (uint32_t)(h->n_kv_heads * h->head_dim);
    qn_rope_qk_norm_store_args args = { .queries = buffer(s, op->qk_norm_rope_store.queries),
                                        .keys = buffer(s, op->qk_norm_rope_store.keys),
                                        .values = buffer(s, op->qk_norm_rope_store.values),
                                        .out = buffer(s, op->qk_norm_rope_store.out),
                                        .query_bias = vectors->qk_norm_rope_store.q_bias,
                                        .key_bias = vectors->qk_norm_rope_store.k_bias,
                                        .value_bias = vectors->qk_norm_rope_store.v_bias,
                                        .query_weight = vectors->qk_norm_rope_store.q_norm,
                                        .key_weight = vectors->qk_norm_rope_store.k_norm,
                                        .cosines = s->model->cosines.address,
                                        .sines = s->model->sines.address,
                                        .positions = positions(s),
                                        .key_rotation = m->codecs[0].rotation,
                                        .value_rotation = m->codecs[1].rotation,
                                        .n_rows = (uint32_t)s->n,
                                        .n_heads = (uint32_t)h->n_heads,
                                        .n_kv_heads = (uint32_t)h->n_kv_heads,
                                        .n_rot = (uint32_t)h->n_rot,
                                        .query_row_stride = (uint32_t)h->n_heads * head,
                                        .key_row_stride = key_row,
                                        .value_row_stride = key_row,
                                        .out_row_stride = (uint32_t)(h->n_heads * h->head_dim),
                                        .capacity = (uint32_t)m->n_ctx,
                                        .query_stride = head,
                                        .interleaved = h->rope == QN_ROPE_TYPE_NORM,
                                        .eps = op->qk_norm_rope_store.eps };
    qn_launch config;
    qn_cuda_session_cache(m, (size_t)op->layer, &args.cache, &args.pages);
    QN_TRY(qn_rope_gpu_qk_norm_store(h->head_dim, m->attention.pages, s->n, h->n_heads, h->n_kv_heads, &config));
    QN_TRY(launch_pdl(s, &config, &args));
    /* A single row never attends to the codes of the page that it completes, and its graph must not depend on the
     * position: the caller quantises the page after the graph. */
    return s->n > 1 ? run_quantize_pages(s, op->layer) : QN_OK;
}

static uint32_t splits(const struct step *s)
{
    return qn_attention_gpu_splits(&s->memory->attention, s->n, s->memory->n_ctx);
}

static qn_attention_mask mask(const struct step *s)
{
    return (qn_attention_mask){ .positions = positions(s), .n_keys = (uint32_t)s->memory->n_ctx, .causal = 1 };
}

/* From this number of rows, blocks are distributed over rows (prefill kernel); below, over KV splits too (decode kernel). */
enum { PREFILL_ROWS = 64 };

static bool is_prefill(const struct step *s)
{
    return s->n >= PREFILL_ROWS && qn_attention_gpu_has_prefill(&s->memory->attention);
}

static qn_attention_gpu_codec codec_of(const qn_cuda_codec *codec)
{
    return (qn_attention_gpu_codec){ .codebook = codec->levels.codebook, .gain = codec->gain };
}

/* Values of a row of queries, or of results. */
static uint32_t row_of(const qn_attention_shape *shape)
{
    return (uint32_t)(shape->n_heads * shape->head_dim);
}

/* Writes final outputs, gates applied: QN_OP_ATTENTION_COMBINE only quantises them. */
static qn_status run_attention_prefill(const struct step *s, const qn_op *op)
{
    const qn_cuda_memory *m = s->memory;
    qn_attention_prefill_args args = { .queries = buffer(s, op->attention.queries),
                                       .gates = op->attention.shape.gated ? buffer(s, op[1].attention_combine.queries) : 0,
                                       .out = buffer(s, op->attention.out),
                                       .positions = positions(s),
                                       .key_codec = codec_of(&m->codecs[0]),
                                       .value_codec = codec_of(&m->codecs[1]),
                                       .rotation = m->codecs[1].rotation,
                                       .n_rows = (uint32_t)s->n,
                                       .n_heads = (uint32_t)op->attention.shape.n_heads,
                                       .n_kv_heads = (uint32_t)op->attention.shape.n_kv_heads,
                                       .query_stride = row_of(&op->attention.shape),
                                       .out_stride = row_of(&op->attention.shape),
                                       .scale = op->attention.shape.scale };
    qn_launch config;
    qn_cuda_session_cache(m, (size_t)op->layer, &args.cache, &args.pages);
    QN_TRY(qn_attention_gpu_prefill(&m->attention, s->n, &config));
    return launch_pdl(s, &config, &args);
}

static qn_status run_attention(const struct step *s, const qn_op *op)
{
    const qn_cuda_memory *m = s->memory;
    if (is_prefill(s))
        return run_attention_prefill(s, op);
    qn_attention_decode_args args = {
        .queries = buffer(s, op->attention.queries),
        .partials = s->model->partials.address,
        .maxima = s->model->maxima.address,
        .mask = mask(s),
        .key_codec = codec_of(&m->codecs[0]),
        .value_codec = codec_of(&m->codecs[1]),
        .n_heads = (uint32_t)op->attention.shape.n_heads,
        .n_kv_heads = (uint32_t)op->attention.shape.n_kv_heads,
        .query_stride = row_of(&op->attention.shape),
        .scale = op->attention.shape.scale,
        .pdl_prefetch = s->n == 1, /* with several rows, the previous launch may have quantised pages */
    };
    qn_launch config;
    qn_cuda_session_cache(m, (size_t)op->layer, &args.cache, &args.pages);
    QN_TRY(qn_attention_gpu_decode(&m->attention, s->n, splits(s), &config));
    return launch_pdl(s, &config, &args);
}

static qn_status run_combine(const struct step *s, const qn_op *op)
{
    const qn_cuda_memory *m = s->memory;
    const qn_attention_combine_args args = { .partials = s->model->partials.address,
                                             .maxima = s->model->maxima.address,
                                             .gates = op->attention_combine.shape.gated
                                                          ? buffer(s, op->attention_combine.queries)
                                                          : 0,
                                             .out = buffer(s, op->attention_combine.in),
                                             .rotation = m->codecs[1].rotation,
                                             .mask = mask(s),
                                             .n_heads = (uint32_t)op->attention_combine.shape.n_heads,
                                             .n_splits = splits(s),
                                             .out_stride = row_of(&op->attention_combine.shape),
                                             .gain = m->codecs[1].gain };
    qn_launch config;
    QN_TRY(qn_attention_gpu_combine(&m->attention, s->n, &config));
    return launch_pdl(s, &config, &args);
}

/* ---- Gated DeltaNet ---- */

/* The operations of a recurrent layer are consecutive: QN_OP_CONV, QN_OP_DELTA_RULE, QN_OP_GATED_NORM. */
struct delta {
    const qn_op *conv, *delta, *out;
    const qn_recurrent_shape *shape;
    uint32_t width, inner; /* row widths: of q k v, of the output */
    uint64_t state_offset, inputs_offset;
    uint64_t sessions, cu_seqlens; /* addresses of qn_cuda_inputs' memory and cu_seqlens */
    bool chunked;                  /* chunked kernels: bf16 on tensor cores; else recurrent, in fp32 */
};

static struct delta delta_of(const struct step *s, const qn_op *op)
{
    const qn_op *conv = op - (op->kind == QN_OP_CONV ? 0 : op->kind == QN_OP_DELTA_RULE ? 1 : 2);
    const qn_recurrent_shape *shape = &s->model->plan->recurrent;
    const uint64_t at = (uint64_t)s->memory->slots[op->layer] * s->memory->layer_bytes;
    return (struct delta){ .conv = conv,
                           .delta = conv + 1,
                           .out = conv + 2,
                           .shape = shape,
                           .width = (uint32_t)qn_recurrent_width(shape),
                           .inner = (uint32_t)(shape->n_v_heads * shape->head_v),
                           .state_offset = at,
                           .inputs_offset = at + s->memory->state_bytes,
                           .sessions = s->model->inputs + offsetof(qn_cuda_inputs, memory),
                           .cu_seqlens = s->model->inputs + offsetof(qn_cuda_inputs, cu_seqlens),
                           .chunked = qn_gdn_gpu_has_chunks(shape->head_k, shape->head_v, &s->model->gdn) };
}

static float delta_scale(const struct delta *d)
{
    return (float)(1 / sqrt((double)d->shape->head_k));
}

/* One row: all of the layer between its matmuls in one launch. */
static qn_status run_delta_step(const struct step *s, const qn_op *op)
{
    const struct delta d = delta_of(s, op);
    const qn_gdn_step_args args = { .qkv = buffer(s, d.conv->conv.qkv),
                                    .alpha = buffer(s, d.conv->conv.alpha),
                                    .beta = buffer(s, d.conv->conv.beta),
                                    .gate = buffer(s, d.out->gated_norm.gate),
                                    .conv = cuda_op(s, d.conv)->vectors.conv.taps,
                                    .bias = cuda_op(s, d.conv)->vectors.conv.bias,
                                    .factor = cuda_op(s, d.conv)->vectors.conv.factor,
                                    .norm = cuda_op(s, d.out)->vectors.gated_norm.weight,
                                    .out = buffer(s, d.out->gated_norm.in),
                                    .memory = d.sessions,
                                    .positions = positions(s),
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
    return launch_pdl(s, &config, &args);
}

static qn_status run_conv(const struct step *s, const qn_op *op)
{
    const struct delta d = delta_of(s, op);
    const uint64_t gates = s->model->gates.address;
    const qn_gdn_conv_args args = { .qkv = buffer(s, op->conv.qkv),
                                    .alpha = buffer(s, op->conv.alpha),
                                    .beta_in = buffer(s, op->conv.beta),
                                    .conv = cuda_op(s, op)->vectors.conv.taps,
                                    .bias = cuda_op(s, op)->vectors.conv.bias,
                                    .factor = cuda_op(s, op)->vectors.conv.factor,
                                    .out = buffer(s, op->conv.out),
                                    .g = gates,
                                    .beta = gates + s->n * d.shape->n_v_heads * sizeof(float),
                                    .memory = d.sessions,
                                    .positions = positions(s),
                                    .cu_seqlens = d.cu_seqlens,
                                    .inputs_offset = d.inputs_offset,
                                    .sequences = 1,
                                    .k_heads = (uint32_t)d.shape->n_k_heads,
                                    .v_heads = (uint32_t)d.shape->n_v_heads,
                                    .taps = (uint32_t)d.shape->taps,
                                    .qkv_stride = d.width,
                                    .alpha_stride = (uint32_t)d.shape->n_v_heads,
                                    .beta_stride = (uint32_t)d.shape->n_v_heads,
                                    .out_stride = d.width };
    qn_launch config;
    QN_TRY(qn_gdn_gpu_conv(&args, d.shape->head_k, d.shape->head_v, s->n, d.chunked, &config));
    return launch_pdl(s, &config, &args);
}

static qn_status run_delta(const struct step *s, const qn_op *op)
{
    const struct delta d = delta_of(s, op);
    const uint64_t gates = s->model->gates.address, q = buffer(s, op->delta_rule.qkv), element = d.chunked ? 2 : 4;
    qn_gdn_chunk_args args = { .q = q,
                               .k = q + d.shape->n_k_heads * d.shape->head_k * element,
                               .v = q + 2 * d.shape->n_k_heads * d.shape->head_k * element,
                               .g = gates,
                               .beta = gates + s->n * d.shape->n_v_heads * sizeof(float),
                               .memory = d.sessions,
                               .positions = positions(s),
                               .state_offset = d.state_offset,
                               .o = buffer(s, op->delta_rule.out),
                               .cu_seqlens = d.cu_seqlens,
                               .tokens = (uint32_t)s->n,
                               .sequences = 1,
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
        return launch(s, &config, &args);
    }
    const qn_gdn_division division = qn_gdn_gpu_divide(&args, s->n, &s->model->gdn);
    qn_gdn_chunk_launches chunk;
    QN_TRY(qn_gdn_gpu_chunk(&args, &division, s->model->gdn.max_shared_bytes, s->model->delta_workspace.address, &chunk));
    for (size_t i = 0; i < chunk.n; i++)
        QN_TRY(launch(s, &chunk.launches[i], &args));
    return QN_OK;
}

static qn_status run_gated_norm(const struct step *s, const qn_op *op)
{
    const struct delta d = delta_of(s, op);
    const qn_gdn_norm_args args = { .o = buffer(s, op->gated_norm.in),
                                    .gate = buffer(s, op->gated_norm.gate),
                                    .norm = cuda_op(s, op)->vectors.gated_norm.weight,
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
    return launch_pdl(s, &config, &args);
}

/* ---- Steps ---- */

/* Everything of an operation except quantising its activations. */
static qn_status run_before_acts(const struct step *s, const qn_op *op)
{
    switch (op->kind) {
    case QN_OP_EMBED: return run_angles(s);
    case QN_OP_MATMUL:
    case QN_OP_LOGITS: return run_matmul(s, op);
    case QN_OP_QK_NORM_ROPE_STORE: return run_qk_norm_rope_store(s, op);
    case QN_OP_ATTENTION: return run_attention(s, op);
    case QN_OP_ATTENTION_COMBINE: return is_prefill(s) ? QN_OK : run_combine(s, op);
    case QN_OP_CONV: return s->n > 1 ? run_conv(s, op) : QN_OK;
    case QN_OP_DELTA_RULE: return s->n > 1 ? run_delta(s, op) : QN_OK;
    case QN_OP_GATED_NORM: return s->n > 1 ? run_gated_norm(s, op) : run_delta_step(s, op);
    case QN_OP_NORM:
    case QN_OP_LOGIT_NORM:
    case QN_OP_SWIGLU: break;
    }
    return QN_OK;
}

static qn_status run_op(const struct step *s, const qn_op *op)
{
    QN_TRY(run_before_acts(s, op));
    return quantize_acts(s, op);
}

static qn_status run_persistent(const struct step *s, const qn_cuda_segment *segment)
{
    const qn_persistent_args args = { .phases =
                                          s->memory->decode_plan.memory.address + segment->phase * sizeof(qn_persistent_phase),
                                      .barrier = s->model->persistent.barrier,
                                      .positions = positions(s),
                                      .memory = s->model->inputs + offsetof(qn_cuda_inputs, memory),
                                      .n_phases = (uint32_t)segment->n_phases };
    qn_launch config;
    QN_TRY(qn_persistent_gpu_launch(&s->model->persistent_gpu, &s->model->persistent.tiles, &config));
    return launch(s, &config, &args);
}

static qn_status run_segment(const struct step *s, const qn_cuda_segment *segment)
{
    const qn_op *op = &s->model->plan->ops[segment->op];
    if (segment->n_phases)
        return run_persistent(s, segment);
    return segment->skip_acts ? run_before_acts(s, op) : run_op(s, op);
}

qn_status qn_cuda_prepare_decode(qn_cuda_model *model, qn_cuda_memory *memory)
{
    qn_cuda_decode_plan *decode_plan = &memory->decode_plan;
    if (decode_plan->generation == model->generation)
        return QN_OK;
    QN_TRY(qn_cuda_plan_decode(model, memory, decode_plan));
    const size_t bytes = decode_plan->n_phases * sizeof *decode_plan->phases;
    if (bytes > decode_plan->memory.bytes) {
        qn_cuda_free(model->cuda, &decode_plan->memory);
        QN_TRY(qn_cuda_alloc(model->cuda, decode_plan->n_phases, sizeof *decode_plan->phases, "phases on the GPU",
                             &decode_plan->memory));
    }
    if (bytes)
        QN_TRY(qn_cuda_upload(model->cuda, decode_plan->memory.address, decode_plan->phases, bytes, NULL, NULL));
    decode_plan->generation = model->generation;
    return QN_OK;
}

qn_status qn_cuda_run_trunk(qn_cuda_model *model, const qn_cuda_memory *memory, size_t n, uint32_t first)
{
    const struct step s = { .model = model, .memory = memory, .n = n, .first = first };
    for (size_t i = 0; n == 1 && i < memory->decode_plan.n_segments; i++)
        QN_TRY(run_segment(&s, &memory->decode_plan.segments[i]));
    for (size_t i = 0; n > 1 && i < model->plan->n_ops; i++)
        if (!qn_op_is_logits(&model->plan->ops[i]))
            QN_TRY(run_op(&s, &model->plan->ops[i]));
    return QN_OK;
}

qn_status qn_cuda_run_logits(qn_cuda_model *model, size_t row, size_t n)
{
    const struct step s = { .model = model, .row = row, .n = n };
    for (size_t i = 0; i < model->plan->n_ops; i++)
        if (qn_op_is_logits(&model->plan->ops[i]))
            QN_TRY(run_op(&s, &model->plan->ops[i]));
    return QN_OK;
}

qn_status qn_cuda_quantize_pages(qn_cuda_model *model, const qn_cuda_memory *memory, size_t n, uint32_t first)
{
    const struct step s = { .model = model, .memory = memory, .n = n, .first = first };
    for (size_t i = 0; i < model->plan->n_ops; i++)
        if (qn_op_desc_of(model->plan->ops[i].kind)->writes & QN_USES_KV)
            QN_TRY(run_quantize_pages(&s, model->plan->ops[i].layer));
    return QN_OK;
}
