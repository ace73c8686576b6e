/* The plan's operations as launches: which kernels run, and which buffers they read and write. The kernels are in
 * cuda/kernels/; attention.c and recurrent.c have the operations of attention and Gated DeltaNet layers. */
#include "cuda/executor/executor.h"

#include "cuda/executor/attention.h"
#include "cuda/executor/inputs.h"
#include "cuda/executor/poison.h"
#include "cuda/executor/recurrent.h"
#include "cuda/kernels/elementwise/elementwise.h"
#include "cuda/kernels/hadamard/hadamard.h"
#include "cuda/kernels/matmul/hadamard_quantize.h"
#include "cuda/kernels/norm/norm.h"

/* ---- Activations ---- */

/* Float rows to be quantised into activations, and the operation fused into the quantisation. */
struct acts_source {
    int op; /* QN_ACTS_OP_NONE, _RMS_NORM, _SWIGLU */
    uint64_t x, x2, weight;
    float eps;
};

/* Applies the source's operation and the Hadamard transform; the results are floats in s->workspace->scratch. */
static qn_status rotated_floats(const qn_cuda_rows_step *s, const struct acts_source *from, size_t width, size_t block,
                                uint64_t signs)
{
    const uint64_t scratch = s->workspace->scratch.address;
    uint64_t x = scratch;
    qn_launch config;
    if (from->op == QN_ACTS_OP_RMS_NORM) {
        const qn_norm_rows_args args = {
            .x = from->x, .weight = from->weight, .y = scratch, .n = (uint32_t)width, .eps = from->eps
        };
        QN_TRY(qn_norm_gpu_rows(width, s->n, &config));
        QN_TRY(qn_cuda_step_launch_pdl(s, &config, &args));
    } else if (from->op == QN_ACTS_OP_SWIGLU) {
        const qn_elementwise_swiglu_args args = { .gate = from->x, .up = from->x2, .y = scratch, .n = s->n * width };
        QN_TRY(qn_elementwise_gpu_swiglu(s->n * width, &config));
        QN_TRY(qn_cuda_step_launch_pdl(s, &config, &args));
    } else {
        x = from->x;
    }
    qn_hadamard_gpu hadamard;
    QN_TRY(qn_hadamard_gpu_plan(scratch, x, signs, 0, width, block, s->n * width, &hadamard));
    QN_TRY(qn_cuda_step_launch_pdl(s, &hadamard.tiles, &hadamard.tiles_args));
    return hadamard.has_cross ? qn_cuda_step_launch_pdl(s, &hadamard.cross, &hadamard.cross_args) : QN_OK;
}

/* Whether a matmul of few rows reads the float rows that the RMS norm before it reads, and applies the norm itself, so
 * that no activations are made for it (qn_cuda_reads_rows). */
static bool reads_rows(const qn_cuda_rows_step *s, const qn_op *op, const qn_cuda_gemm *gemm)
{
    return s->n > 1 && s->n <= QN_FEW_MAX_TOKENS && qn_cuda_reads_rows(s->weights, op - 1, gemm);
}

/* The layouts in which the matmuls of this operation read these activations, as bits 1 << layout. */
static unsigned layouts_read(const qn_cuda_rows_step *s, const qn_op *reader, int acts)
{
    const qn_cuda_op *op = qn_cuda_step_op(s, reader);
    unsigned layouts = 0;
    for (size_t i = 0; i < op->n_gemms; i++)
        if (op->gemms[i].group.acts == acts && !reads_rows(s, reader, &op->gemms[i]))
            layouts |= 1u << qn_matmul_gpu_acts_layout(&op->gemms[i].tiled_matrix.tiles, s->n);
    return layouts;
}

/* Activations as the matmuls of this operation read them. copy: a layout, or QN_CUDA_ACTS_FUSED. They are bit planes if
 * that is what all of these matmuls can read. */
static qn_matmul_acts acts_of(const qn_cuda_rows_step *s, const qn_op *reader, int id, int copy)
{
    const qn_cuda_op *op = qn_cuda_step_op(s, reader);
    qn_matmul_acts acts = s->workspace->acts[id].layouts[copy];
    bool first = true;
    for (size_t i = 0; acts.layout == QN_ACTS_HILO && i < op->n_gemms; i++) {
        const qn_tile_layout *tiles = &op->gemms[i].tiled_matrix.tiles;
        if (op->gemms[i].group.acts != id || reads_rows(s, reader, &op->gemms[i]) ||
            qn_matmul_gpu_acts_layout(tiles, s->n) != QN_ACTS_HILO)
            continue;
        const uint32_t planes = qn_matmul_gpu_planes(&s->common->matmul, tiles, s->n);
        acts.planes = first || planes == acts.planes ? planes : 0;
        first = false;
        if (!planes)
            break;
    }
    return acts;
}

/* Whether operation, Hadamard transform and quantisation are one launch: for one row read only by GEMVs of 1 and 2
 * bits, and block sizes with a kernel variant. */
static bool fuses_hadamard(const qn_cuda_rows_step *s, const qn_plan_rotation *rotation, unsigned layouts)
{
    return s->n == 1 && layouts == 1u << QN_ACTS_HILO_N1 && qn_matmul_gpu_has_hadamard_quantize(rotation->block);
}

static qn_status hadamard_quantize(const qn_cuda_rows_step *s, const struct acts_source *from, const qn_cuda_acts *acts,
                                   size_t block)
{
    qn_launch config;
    qn_hadamard_quantize_args args;
    QN_TRY(qn_matmul_gpu_hadamard_quantize(&acts->layouts[QN_ACTS_HILO_N1], from->op, from->x, from->x2, from->weight,
                                           from->eps, acts->signs, block, &config, &args));
    return qn_cuda_step_launch(s, &config, &args);
}

/* Returns the float rows from which an operation computes its activations. */
static struct acts_source acts_source_of(const qn_cuda_rows_step *s, const qn_op *op)
{
    int x = -1;
    switch (op->kind) {
    case QN_OP_NORM:
    case QN_OP_LOGIT_NORM:
        return (struct acts_source){ .op = QN_ACTS_OP_RMS_NORM,
                                     .x = s->logit_in ? s->logit_in : qn_cuda_step_buffer(s, op->norm.in),
                                     .weight = qn_cuda_step_op(s, op)->vectors.norm.weight,
                                     .eps = op->norm.eps };
    case QN_OP_SWIGLU:
        return (struct acts_source){ .op = QN_ACTS_OP_SWIGLU,
                                     .x = qn_cuda_step_buffer(s, op->swiglu.gate),
                                     .x2 = qn_cuda_step_buffer(s, op->swiglu.up) };
    case QN_OP_FUSE: x = op->fuse.in; break;
    case QN_OP_PAIR_NORM: /* run_pair_norm has written them to scratch */
        return (struct acts_source){ .op = QN_ACTS_OP_NONE, .x = s->workspace->scratch.address };
    case QN_OP_GATED_NORM: /* more than one row: qn_cuda_run_recurrent_op has written them to scratch */
        if (s->n > 1)
            return (struct acts_source){ .op = QN_ACTS_OP_NONE, .x = s->workspace->scratch.address };
        x = op->gated_norm.in;
        break;
    case QN_OP_ATTENTION_COMBINE: x = op->attention_combine.in; break;
    case QN_OP_EMBED:
    case QN_OP_INPUT:
    case QN_OP_MATMUL:
    case QN_OP_QK_NORM_ROPE_STORE:
    case QN_OP_K_NORM_ROPE_STORE:
    case QN_OP_PAIR:
    case QN_OP_CAPTURE:
    case QN_OP_ATTENTION:
    case QN_OP_CONV:
    case QN_OP_DELTA_RULE:
    case QN_OP_LOGITS: break; /* these operations write no activations */
    }
    return (struct acts_source){ .op = QN_ACTS_OP_NONE, .x = x < 0 ? 0 : qn_cuda_step_buffer(s, x) };
}

/* Whether quantising rows into these layouts transforms them too. */
static bool quantizes_rotated(const qn_plan_rotation *rotation, unsigned layouts)
{
    return layouts == 1u << QN_ACTS_HILO && rotation->block <= QN_MATMUL_MAX_HADAMARD;
}

static qn_status quantize_rotated(const qn_cuda_rows_step *s, const struct acts_source *x, const qn_cuda_acts *acts,
                                  const qn_plan_acts *plan)
{
    const qn_matmul_rotation rotation = { acts->signs, plan->rotation.block };
    qn_matmul_launch config;
    QN_TRY(qn_matmul_gpu_quantize(&acts->layouts[QN_ACTS_HILO], x->op, x->x, x->x2, x->weight, x->eps, plan->width,
                                  s->n, &config));
    QN_TRY(qn_matmul_gpu_quantize_rotated(&config, &rotation));
    return qn_cuda_step_launch(s, &config.launch, &config.args);
}

/* Quantises rows into these layouts, hi/lo int8 and fp16 in one launch. */
static qn_status quantize(const qn_cuda_rows_step *s, const struct acts_source *x, const qn_cuda_acts *acts,
                          size_t width, unsigned layouts)
{
    const bool both = layouts >> QN_ACTS_HILO & layouts >> QN_ACTS_F16 & 1;
    for (int layout = 0; layout < QN_CUDA_ACTS_LAYOUTS; layout++) {
        qn_matmul_launch config;
        if (!(layouts & 1u << layout) || (both && layout == QN_ACTS_F16))
            continue;
        QN_TRY(qn_matmul_gpu_quantize(&acts->layouts[layout], x->op, x->x, x->x2, x->weight, x->eps, width, s->n,
                                      &config));
        if (both && layout == QN_ACTS_HILO)
            qn_matmul_gpu_quantize_f16_too(&config, &acts->layouts[QN_ACTS_F16]);
        QN_TRY(qn_cuda_step_launch(s, &config.launch, &config.args));
    }
    return QN_OK;
}

/* Whether the operation before, a matmul, computes this operation's activations. */
static bool is_fused(const qn_cuda_rows_step *s, const qn_op *op)
{
    return s->n > 1 && s->n <= QN_FEW_MAX_TOKENS && !s->in_phases && op > s->common->plan->ops &&
           qn_cuda_step_op(s, op - 1)->fuses_next;
}

/* Writes the operation's activations, in the layouts that the next operation reads. */
static qn_status quantize_acts(const qn_cuda_rows_step *s, const qn_op *op)
{
    const struct acts_source from = acts_source_of(s, op);
    const qn_op_acts *outs = qn_op_acts_of(op);
    for (size_t a = 0; outs && !is_fused(s, op) && a < outs->n; a++) {
        const qn_plan_acts *plan = &s->common->plan->acts[outs->at[a]];
        const unsigned layouts = layouts_read(s, op + 1, outs->at[a]);
        qn_cuda_acts acts = s->workspace->acts[outs->at[a]];
        struct acts_source x = from;
        acts.layouts[QN_ACTS_HILO] = acts_of(s, op + 1, outs->at[a], QN_ACTS_HILO);
        if (fuses_hadamard(s, &plan->rotation, layouts)) {
            QN_TRY(hadamard_quantize(s, &from, &acts, plan->rotation.block));
            continue;
        }
        if (plan->rotation.block && quantizes_rotated(&plan->rotation, layouts)) {
            QN_TRY(quantize_rotated(s, &from, &acts, plan));
            continue;
        }
        if (plan->rotation.block) {
            QN_TRY(rotated_floats(s, &from, plan->width, plan->rotation.block, acts.signs));
            x = (struct acts_source){ .op = QN_ACTS_OP_NONE, .x = s->workspace->scratch.address };
        }
        QN_TRY(quantize(s, &x, &acts, plan->width, layouts));
    }
    return QN_OK;
}

/* Whether the matmul of these activations does the division of their RMS norm: if they are hi/lo int8, quantised from
 * the norm's input. */
static bool has_rms(const qn_cuda_rows_step *s, const qn_op *op, int acts)
{
    const qn_plan_rotation *rotation = &s->common->plan->acts[acts].rotation;
    const qn_op *writer = op - 1;
    return (writer->kind == QN_OP_NORM || writer->kind == QN_OP_LOGIT_NORM) &&
           (!rotation->block || is_fused(s, writer) || quantizes_rotated(rotation, layouts_read(s, op, acts)));
}

/* Fills the launch of a GEMM with these outputs. Its epilogue computes the next operation's activations if they are
 * fused. */
static qn_status gemm_launch(const qn_cuda_rows_step *s, const qn_op *op, const qn_cuda_gemm *gemm,
                             const qn_tiled_matrix *tiled_matrix, qn_matmul_launch *launch)
{
    const int layout = qn_matmul_gpu_acts_layout(&tiled_matrix->tiles, s->n);
    qn_matmul_acts acts = acts_of(s, op, gemm->group.acts, is_fused(s, op - 1) ? QN_CUDA_ACTS_FUSED : layout);
    if (reads_rows(s, op, gemm)) {
        const struct acts_source source = acts_source_of(s, op - 1);
        const qn_matmul_norm_rows rows = {
            .x = source.x, .weight = source.weight, .stride = tiled_matrix->n_cols, .eps = source.eps
        };
        return qn_matmul_gpu_gemv_norm(&s->common->matmul, tiled_matrix, &rows, acts.workspace, s->n, launch);
    }
    acts.rms_norm = has_rms(s, op, gemm->group.acts);
    acts.eps = acts.rms_norm ? op[-1].norm.eps : 0;
    if (!is_fused(s, op + 1))
        return qn_matmul_gpu_matmul(&s->common->matmul, tiled_matrix, &acts, s->n, launch);
    const struct acts_source source = acts_source_of(s, op + 1);
    const int id = qn_cuda_step_op(s, op)->next_acts;
    const qn_matmul_acts next_acts = acts_of(s, op + 2, id, QN_CUDA_ACTS_FUSED);
    const qn_matmul_next next = { .op = source.op,
                                  .acts = &next_acts,
                                  .weight = source.weight,
                                  .rotation = { s->weights->signs[id], s->common->plan->acts[id].rotation.block } };
    return qn_matmul_gpu_matmul_fused(&s->common->matmul, tiled_matrix, &acts, s->n, &next, launch);
}

/* Outputs of layers are in buffers from row 0 on, and logits have a separate buffer: the launch depends only on the
 * number of rows. */
static qn_status plan_gemm(const qn_cuda_rows_step *s, const qn_op *op, qn_cuda_gemm *gemm)
{
    qn_tiled_matrix tiled_matrix = gemm->tiled_matrix;
    if (gemm->launch_rows == s->n && gemm->launch_in_phases == s->in_phases &&
        gemm->launch_generation == s->workspace->generation)
        return QN_OK;
    for (size_t i = 0; i < tiled_matrix.n_outs; i++) {
        const bool logits = qn_op_is_logits(op);
        const int out = op->matmul.matrices.at[gemm->group.matrices[i]].out;
        tiled_matrix.outs[i].data = logits ? s->workspace->logits.address : qn_cuda_rows(s->workspace, out);
        tiled_matrix.outs[i].stride =
            (uint32_t)(logits ? s->common->plan->n_vocab : s->common->plan->buffers[out].width);
    }
    gemm->launch_rows = 0;
    QN_TRY(gemm_launch(s, op, gemm, &tiled_matrix, &gemm->launch));
    gemm->launch_rows = s->n;
    gemm->launch_in_phases = s->in_phases;
    gemm->launch_generation = s->workspace->generation;
    return QN_OK;
}

/* Launches the GEMMs of a matmul. GEMMs that read rows come first: they occupy few SMs; on the other SMs the next GEMM
 * loads its first weights at the same time. */
static qn_status run_matmul(const qn_cuda_rows_step *s, const qn_op *op)
{
    qn_cuda_op *cuda_op = &s->weights->ops[op - s->common->plan->ops];
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < cuda_op->n_gemms; i++) {
            qn_cuda_gemm *gemm = &cuda_op->gemms[i];
            if (reads_rows(s, op, gemm) != (pass == 0))
                continue;
            QN_TRY(plan_gemm(s, op, gemm));
            QN_TRY(qn_cuda_step_launch(s, &gemm->launch.launch, &gemm->launch.args));
        }
    return QN_OK;
}

/* ---- The draft head ---- */

/* Copies rows to their part of wider rows, for a block drafter. */
static qn_status run_capture(const qn_cuda_rows_step *s, const qn_op *op)
{
    const size_t width = op->capture.width;
    const qn_elementwise_place_args args = { .x = qn_cuda_step_buffer(s, op->capture.in),
                                             .y = qn_cuda_step_buffer(s, op->capture.out) +
                                                  op->capture.part * width * sizeof(float),
                                             .n = (uint32_t)width,
                                             .stride = (uint32_t)(op->capture.n_parts * width) };
    qn_launch config;
    QN_TRY(qn_elementwise_gpu_place(width, s->n, &config));
    return qn_cuda_step_launch_pdl(s, &config, &args);
}

_Static_assert((int)QN_NORM_ROW_BEFORE == (int)QN_GPU_ROW_BEFORE, "the kernel reads the inputs");

/* A draft step has begun with the embeddings. */
static qn_status run_pair(const qn_cuda_rows_step *s, const qn_op *op)
{
    return s->is_draft ? qn_cuda_run_angles(s, false) : qn_cuda_embed_again(s, op->pair.embedding);
}

/* Writes both norms to scratch, and keeps the hidden states of the trunk's last rows. */
static qn_status run_pair_norm(const qn_cuda_rows_step *s, const qn_op *op)
{
    const qn_op_addresses *vectors = &qn_cuda_step_op(s, op)->vectors;
    const qn_norm_pair_args args = { .embedding = qn_cuda_step_buffer(s, op->pair_norm.embedding),
                                     .x = s->is_draft ? 0 : qn_cuda_step_buffer(s, op->pair_norm.in),
                                     .from = qn_cuda_step_input(s, s->inputs.hidden_from),
                                     .to = qn_cuda_step_input(s, s->inputs.hidden_to),
                                     .embedding_weight = vectors->pair_norm.embedding_norm,
                                     .hidden_weight = vectors->pair_norm.hidden_norm,
                                     .weight = vectors->pair_norm.norm,
                                     .y = s->workspace->scratch.address,
                                     .n = (uint32_t)s->common->plan->buffers[op->pair_norm.embedding].width,
                                     .eps = op->pair_norm.eps };
    qn_launch config;
    QN_TRY(qn_norm_gpu_pair(args.n, s->n, &config));
    return qn_cuda_step_launch(s, &config, &args); /* no PDL: the embeddings may be a copy */
}

/* Keeps the normed hidden states of a draft step for the next one. */
static qn_status keep_draft(const qn_cuda_rows_step *s, const qn_op *op)
{
    const qn_norm_keep_args args = { .x = qn_cuda_step_buffer(s, op->norm.in),
                                     .weight = qn_cuda_step_op(s, op)->vectors.logit_norm.weight,
                                     .to = qn_cuda_step_input(s, s->inputs.hidden_to),
                                     .n = (uint32_t)s->common->plan->buffers[op->norm.in].width,
                                     .eps = op->norm.eps };
    qn_launch config;
    QN_TRY(qn_norm_gpu_keep(args.n, s->n, &config));
    return qn_cuda_step_launch_pdl(s, &config, &args);
}

/* ---- Steps ---- */

/* Launches all of an operation except the quantisation of its activations. */
static qn_status run_before_acts(const qn_cuda_rows_step *s, const qn_op *op)
{
    switch (op->kind) {
    case QN_OP_EMBED: return qn_cuda_run_angles(s, s->is_draft);
    case QN_OP_FUSE: return qn_cuda_run_angles(s, true);
    case QN_OP_CAPTURE: return run_capture(s, op);
    case QN_OP_MATMUL:
    case QN_OP_LOGITS: return run_matmul(s, op);
    case QN_OP_PAIR: return run_pair(s, op);
    case QN_OP_PAIR_NORM: return run_pair_norm(s, op);
    case QN_OP_LOGIT_NORM: return s->is_draft && !s->common->plan->head.block ? keep_draft(s, op) : QN_OK;
    case QN_OP_QK_NORM_ROPE_STORE:
    case QN_OP_K_NORM_ROPE_STORE:
    case QN_OP_ATTENTION:
    case QN_OP_ATTENTION_COMBINE: return qn_cuda_run_attention_op(s, op);
    case QN_OP_CONV:
    case QN_OP_DELTA_RULE:
    case QN_OP_GATED_NORM: return qn_cuda_run_recurrent_op(s, op);
    case QN_OP_INPUT: /* not in plans of a GPU (device.c) */
    case QN_OP_NORM:
    case QN_OP_SWIGLU: break;
    }
    return QN_OK;
}

static qn_status run_op(const qn_cuda_rows_step *s, const qn_op *op)
{
    if (op->kind == QN_OP_NORM)
        QN_TRY(qn_cuda_poison_part(s));
    QN_TRY(run_before_acts(s, op));
    return quantize_acts(s, op);
}

/* Returns the most rows of a decode step that runs in phases of the persistent decode kernel. Where launches multiply
 * bit planes, they are faster for any number of rows. On an H200, tok/s of 4 sequences in phases and in launches: 27B
 * Q1_0 886 and 1248, 27B PTQ1_0 836 and 983, 8B Q1_0 2227 and 2837. Without bit planes the launches of recurrent models
 * are faster from 5 rows on. QN_CUDA=persistent asks for phases where there are any. */
static size_t most_rows_in_phases(const qn_cuda_workspace *workspace)
{
    enum { MOST_RECURRENT = 4 };
    const qn_cuda_common *common = workspace->common;
    if (common->matmul.wgmma && !common->in_phases)
        return 1;
    return common->plan->recurrent.n_v_heads ? MOST_RECURRENT : QN_PERSISTENT_MAX_ROWS;
}

bool qn_cuda_has_phases(const qn_cuda_workspace *workspace, size_t n)
{
    return n > 1 && n <= most_rows_in_phases(workspace) && !workspace->common->deterministic &&
           qn_persistent_gpu_supports(&workspace->common->persistent_gpu, &workspace->persistent.tiles, (uint32_t)n);
}

/* Returns the decode plan of a step; NULL: every operation is launched, without a plan. */
static qn_cuda_decode_plan *decode_plan_of(const qn_cuda_rows_step *s)
{
    if (s->is_draft)
        return NULL;
    return s->n == 1 ? &s->graphs->decode_plan : s->in_phases ? &s->graphs->rows_plan : NULL;
}

static qn_status run_persistent(const qn_cuda_rows_step *s, const qn_cuda_segment *segment)
{
    const qn_cuda_persistent_workspace *workspace = &s->workspace->persistent;
    qn_persistent_args args = { .phases =
                                    decode_plan_of(s)->memory.address + segment->phase * sizeof(qn_persistent_phase),
                                .barrier = workspace->barrier,
                                .positions = qn_cuda_step_positions(s),
                                .n_phases = (uint32_t)segment->n_phases,
                                .n_rows = (uint32_t)s->n,
                                .sequences = qn_cuda_step_input(s, s->inputs.sequences),
                                .acts = workspace->acts,
                                .acts_scale = workspace->acts_scale,
                                .acts_f32 = workspace->acts_f32 };
    const qn_cuda_format *format = qn_cuda_format_of(s->pieces->memory);
    const qn_attention_gpu *a = &format->attention;
    qn_launch config;
    qn_cuda_set_recurrent_args(s, &args);
    if (s->n == 1 && qn_cuda_has_code_phases(s->workspace, format)) {
        args.codes = qn_cuda_persistent_codes(s->workspace, format);
        QN_TRY(qn_persistent_gpu_launch_codes(&s->common->persistent_gpu, &workspace->tiles, a->head_dim, a->key_bits,
                                              a->value_bits, &config));
    } else {
        QN_TRY(qn_persistent_gpu_launch(&s->common->persistent_gpu, &workspace->tiles, (uint32_t)s->n, &config));
    }
    return qn_cuda_step_launch(s, &config, &args);
}

static qn_status run_segment(const qn_cuda_rows_step *s, const qn_cuda_segment *segment)
{
    const qn_op *op = &s->common->plan->ops[segment->op];
    if (segment->n_phases)
        return run_persistent(s, segment);
    return segment->skip_acts ? run_before_acts(s, op) : run_op(s, op);
}

qn_status qn_cuda_prepare_decode(const qn_cuda_rows_step *s)
{
    qn_cuda_decode_plan *decode_plan = decode_plan_of(s);
    if (!decode_plan || decode_plan->generation == s->workspace->generation)
        return QN_OK;
    QN_TRY(qn_cuda_plan_decode(s->workspace, qn_cuda_format_of(s->pieces->memory), (uint32_t)s->n, decode_plan));
    const size_t bytes = decode_plan->n_phases * sizeof *decode_plan->phases;
    if (bytes > decode_plan->memory.bytes) {
        qn_cuda_free(s->common->cuda, &decode_plan->memory);
        QN_TRY(qn_cuda_alloc(s->common->cuda, decode_plan->n_phases, sizeof *decode_plan->phases, "phases on the GPU",
                             &decode_plan->memory));
    }
    if (bytes)
        QN_TRY(qn_cuda_upload(s->common->cuda, decode_plan->memory.address, decode_plan->phases, bytes, NULL, NULL));
    decode_plan->generation = s->workspace->generation;
    return QN_OK;
}

/* Launches operations [first, end) but those of the logits. */
static qn_status run_ops(const qn_cuda_rows_step *s, size_t first, size_t end)
{
    const qn_op *ops = s->common->plan->ops;
    for (size_t i = first; i < end; i++)
        if (!qn_op_is_logits(&ops[i]))
            QN_TRY(run_op(s, &ops[i]));
    return QN_OK;
}

qn_status qn_cuda_run_trunk(const qn_cuda_rows_step *s)
{
    const qn_plan *plan = s->common->plan;
    const qn_cuda_decode_plan *decode_plan = decode_plan_of(s);
    qn_cuda_rows_step pairs = *s;
    pairs.in_phases = false;
    for (size_t i = 0; decode_plan && i < decode_plan->n_segments; i++)
        QN_TRY(run_segment(s, &decode_plan->segments[i]));
    if (!decode_plan)
        QN_TRY(run_ops(s, 0, qn_plan_trunk_ops(plan)));
    return plan->head.draft ? run_ops(&pairs, plan->head.pairs, plan->head.draft) : QN_OK;
}

qn_status qn_cuda_run_draft(const qn_cuda_rows_step *s)
{
    return run_ops(s, s->common->plan->head.draft, s->common->plan->n_ops);
}

qn_status qn_cuda_gather_rows(const qn_cuda_rows_step *s, size_t first, size_t n)
{
    const qn_plan *plan = s->common->plan;
    const qn_op *norm = plan->ops + (s->is_draft ? plan->head.draft : 0);
    while (norm->kind != QN_OP_LOGIT_NORM)
        norm++;
    const int x = norm->norm.in;
    const qn_elementwise_gather_args args = { .x = qn_cuda_rows(s->workspace, x),
                                              .rows = qn_cuda_step_input(s, s->inputs.logit_rows) +
                                                      first * sizeof(uint32_t),
                                              .y = s->workspace->gathered.address,
                                              .n = (uint32_t)plan->buffers[x].width };
    qn_launch config;
    QN_TRY(qn_elementwise_gpu_gather(args.n, n, &config));
    return qn_cuda_step_launch(s, &config, &args);
}

qn_status qn_cuda_run_logits(const qn_cuda_rows_step *s)
{
    const qn_plan *plan = s->common->plan;
    const size_t end = s->is_draft ? plan->n_ops : qn_plan_trunk_ops(plan);
    for (size_t i = s->is_draft ? plan->head.draft : 0; i < end; i++)
        if (qn_op_is_logits(&plan->ops[i]))
            QN_TRY(run_op(s, &plan->ops[i]));
    return QN_OK;
}
