/* The plan's operations as launches. What is computed, and how, is for the kernels' rooms; here only what reads and writes
 * what. */
#include "device/cuda/model.h"

#include "kernels/aura/aura_cuda.h"
#include "kernels/deltanet/deltanet_cuda.h"
#include "kernels/elementwise/elementwise_cuda.h"
#include "kernels/hadamard/hadamard_cuda.h"
#include "kernels/matmul/turned_cuda.h"
#include "kernels/norm/norm_cuda.h"
#include "kernels/rope/rope_cuda.h"

#include <math.h>
#include <stddef.h>

/* A step, or for LOGIT_NORM and LOGITS some rows of it. */
struct step {
    qn_cuda_model *model;
    const qn_cuda_memory *memory;
    size_t row, n;  /* of the buffers */
    uint32_t first; /* position */
};

static qn_status launch(const struct step *s, const qn_launch *what, const void *args)
{
    return qn_cuda_launch(s->model->cuda, s->model->stream, what, args);
}

/* As soon as the kernel before it lets it: every kernel of a step waits by itself for what it reads. */
static qn_status launch_early(const struct step *s, qn_launch *what, const void *args)
{
    what->dependent = true;
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

static const qn_cuda_op *beside(const struct step *s, const qn_op *op)
{
    return &s->model->ops[op - s->model->plan->ops];
}

/* ---- Activations ---- */

/* What becomes of rows of floats on their way into activations. */
struct source {
    int op; /* QN_ACTS_PLAIN, _NORM, _SWIGLU */
    uint64_t x, x2, weight;
    float eps;
};

/* As floats, rotated, in scratch. */
static qn_status rotated_floats(const struct step *s, const struct source *from, size_t width, size_t block, uint64_t signs)
{
    const uint64_t scratch = s->model->scratch.address;
    uint64_t x = scratch;
    qn_launch made;
    if (from->op == QN_ACTS_NORM) {
        const qn_norm_rows_args args = {
            .x = from->x, .weight = from->weight, .y = scratch, .n = (uint32_t)width, .eps = from->eps
        };
        QN_TRY(qn_norm_gpu_rows(width, s->n, &made));
        QN_TRY(launch_early(s, &made, &args));
    } else if (from->op == QN_ACTS_SWIGLU) {
        const qn_elementwise_swiglu_args args = { .gate = from->x, .up = from->x2, .y = scratch, .n = s->n * width };
        QN_TRY(qn_elementwise_gpu_swiglu(s->n * width, &made));
        QN_TRY(launch_early(s, &made, &args));
    } else {
        x = from->x;
    }
    qn_hadamard_gpu turn;
    QN_TRY(qn_hadamard_gpu_plan(scratch, x, signs, 0, width, block, s->n * width, &turn));
    QN_TRY(launch_early(s, &turn.tiles, &turn.tiles_args));
    return turn.has_far ? launch_early(s, &turn.far, &turn.far_args) : QN_OK;
}

/* Which forms the products of this operation read of these activations, as bits. */
static unsigned forms_read(const struct step *s, const qn_op *reader, int acts)
{
    const qn_cuda_op *op = beside(s, reader);
    unsigned forms = 0;
    for (size_t i = 0; i < op->n_products; i++)
        if (op->products[i].acts == acts)
            forms |= 1u << qn_matmul_gpu_form(&op->products[i].area.tiles, s->n, s->model->plan->acts[acts].fine);
    return forms;
}

/* One row for int8 products alone: all of it in one launch, where the rotation's blocks are of a usual size. */
static bool turns_at_once(const struct step *s, const qn_plan_rotation *rotation, unsigned forms)
{
    return s->n == 1 && forms == 1u << QN_ACTS_ROW && qn_matmul_gpu_turns(rotation->block);
}

static qn_status turn_at_once(const struct step *s, const struct source *from, const qn_cuda_acts *acts, size_t block)
{
    qn_launch made;
    qn_matmul_turned_args args;
    QN_TRY(qn_matmul_gpu_turned(&acts->forms[QN_ACTS_ROW], from->op, from->x, from->x2, from->weight, from->eps, acts->signs,
                                block, &made, &args));
    return launch(s, &made, &args);
}

/* What an operation that writes activations makes them of. */
static struct source source_of(const struct step *s, const qn_op *op)
{
    switch (op->kind) {
    case QN_OP_NORM:
    case QN_OP_LOGIT_NORM:
        return (struct source){ .op = QN_ACTS_NORM, .x = buffer(s, op->in), .weight = beside(s, op)->weight, .eps = op->eps };
    case QN_OP_SWIGLU: return (struct source){ .op = QN_ACTS_SWIGLU, .x = buffer(s, op->in), .x2 = buffer(s, op->in2) };
    case QN_OP_DELTA_OUT: /* of many rows in scratch, where the gated norm leaves them */
        return (struct source){ .op = QN_ACTS_PLAIN, .x = s->n > 1 ? s->model->scratch.address : buffer(s, op->in) };
    default: return (struct source){ .op = QN_ACTS_PLAIN, .x = buffer(s, op->in) };
    }
}

/* The products that read them are the next operation's. */
static qn_status write_acts(const struct step *s, const qn_op *op)
{
    const struct source from = source_of(s, op);
    for (size_t a = 0; a < op->n_acts; a++) {
        const qn_plan_acts *plan = &s->model->plan->acts[op->acts[a]];
        const qn_cuda_acts *acts = &s->model->acts[op->acts[a]];
        const unsigned forms = forms_read(s, op + 1, op->acts[a]);
        struct source x = from;
        if (turns_at_once(s, &plan->rotation, forms)) {
            QN_TRY(turn_at_once(s, &from, acts, plan->rotation.block));
            continue;
        }
        if (plan->rotation.block) {
            QN_TRY(rotated_floats(s, &from, plan->width, plan->rotation.block, acts->signs));
            x = (struct source){ .op = QN_ACTS_PLAIN, .x = s->model->scratch.address };
        }
        for (int form = 0; form < QN_CUDA_FORMS; form++) {
            qn_matmul_launch made;
            if (!(forms & 1u << form))
                continue;
            QN_TRY(qn_matmul_gpu_quantize(&acts->forms[form], x.op, x.x, x.x2, x.weight, x.eps, plan->width, s->n, &made));
            QN_TRY(launch(s, &made.launch, &made.args));
        }
    }
    return QN_OK;
}

static qn_status run_product(const struct step *s, const qn_op *op, const qn_cuda_product *product)
{
    const qn_plan_acts *plan = &s->model->plan->acts[product->acts];
    qn_matmul_area area = product->area;
    qn_matmul_launch made;
    for (size_t i = 0; i < area.n_outs; i++) {
        const bool logits = op->kind == QN_OP_LOGITS;
        const int out = op->matrices[product->matrices[i]].out;
        area.outs[i].data = logits ? s->model->logits.address : buffer(s, out);
        area.outs[i].stride = (uint32_t)(logits ? s->model->plan->n_vocab : s->model->plan->buffers[out].width);
    }
    const int form = qn_matmul_gpu_form(&area.tiles, s->n, plan->fine);
    QN_TRY(qn_matmul_gpu_product(&s->model->matmul, &area, &s->model->acts[product->acts].forms[form], s->n, &made));
    return launch(s, &made.launch, &made.args);
}

static qn_status run_matmul(const struct step *s, const qn_op *op)
{
    for (size_t p = 0; p < beside(s, op)->n_products; p++)
        QN_TRY(run_product(s, op, &beside(s, op)->products[p]));
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
    qn_launch made;
    QN_TRY(qn_rope_gpu_angles(args.n_rot, s->n, &made));
    return launch(s, &made, &args); /* after a copy, which lets nobody begin */
}

/* Runs of a layer's cache of codes that the step has completed become codes. */
static qn_status run_seal(const struct step *s, int layer)
{
    const qn_cuda_memory *m = s->memory;
    const uint32_t before = s->first / QN_ATTENTION_RUN, after = (uint32_t)((s->first + s->n) / QN_ATTENTION_RUN);
    qn_attention_gpu_cache cache;
    qn_attention_gpu_runs runs;
    qn_launch made;
    if (!m->attention.runs || before == after)
        return QN_OK;
    qn_cuda_session_cache(m, (size_t)layer, &cache, &runs);
    const qn_aura_seal_args args = { .half_keys = runs.keys,
                                     .half_values = runs.values,
                                     .keys = cache.keys,
                                     .values = cache.values,
                                     .key_scales = cache.key_scales,
                                     .value_scales = cache.value_scales,
                                     .means = runs.means,
                                     .half_head = runs.head,
                                     .key_head = cache.key_head,
                                     .value_head = cache.value_head,
                                     .scale_head = cache.scale_head,
                                     .key_levels = m->codecs[0].levels,
                                     .value_levels = m->codecs[1].levels,
                                     .first_run = before,
                                     .n_open = runs.n_open };
    QN_TRY(qn_aura_gpu_seal(m->attention.head_dim, m->attention.key_bits, m->attention.value_bits, after - before,
                            m->attention.n_kv_heads, &made));
    return launch_early(s, &made, &args);
}

static qn_status run_heads(const struct step *s, const qn_op *op)
{
    const qn_attention_shape *h = &op->heads;
    const qn_cuda_memory *m = s->memory;
    qn_rope_heads_args args = { .queries = buffer(s, op->in),
                                .keys = buffer(s, op->in2),
                                .values = buffer(s, op->in3),
                                .out = buffer(s, op->out),
                                .query_weight = beside(s, op)->weight,
                                .key_weight = beside(s, op)->weight2,
                                .cosines = s->model->cosines.address,
                                .sines = s->model->sines.address,
                                .positions = positions(s),
                                .key_rotation = m->codecs[0].rotation,
                                .value_rotation = m->codecs[1].rotation,
                                .n_rows = (uint32_t)s->n,
                                .n_heads = (uint32_t)h->n_heads,
                                .n_kv_heads = (uint32_t)h->n_kv_heads,
                                .n_rot = (uint32_t)h->n_rot,
                                .query_stride = (uint32_t)(h->gated ? 2 * h->head_dim : h->head_dim),
                                .interleaved = h->rope == QN_ROPE_PAIRS,
                                .eps = op->eps };
    qn_launch made;
    qn_cuda_session_cache(m, (size_t)op->layer, &args.cache, &args.runs);
    QN_TRY(qn_rope_gpu_heads(h->head_dim, m->attention.runs, s->n, h->n_heads, h->n_kv_heads, &made));
    QN_TRY(launch_early(s, &made, &args));
    /* A single row completes a run for those after it alone, and is the same launches every time: the caller seals. */
    return s->n > 1 ? run_seal(s, op->layer) : QN_OK;
}

static uint32_t splits(const struct step *s)
{
    return qn_attention_gpu_splits(&s->memory->attention, s->n, s->memory->n_ctx);
}

static qn_attention_visible visible(const struct step *s)
{
    return (qn_attention_visible){ .positions = positions(s), .n_keys = (uint32_t)s->memory->n_ctx, .causal = 1 };
}

/* Few rows are shared out by keys, many by rows. */
enum { PROMPT_ROWS = 64 };

static bool is_prompt(const struct step *s)
{
    return s->n >= PROMPT_ROWS && qn_attention_gpu_has_prompt(&s->memory->attention);
}

static qn_attention_gpu_codec codec_of(const qn_cuda_codec *codec)
{
    return (qn_attention_gpu_codec){ .codebook = codec->levels.codebook, .gain = codec->gain };
}

/* Whole results, with gates: all that is left to ATTENTION_OUT is to make activations of them. */
static qn_status run_attention_prompt(const struct step *s, const qn_op *op)
{
    const qn_cuda_memory *m = s->memory;
    qn_attention_prompt_args args = { .queries = buffer(s, op->in),
                                      .gates = op->heads.gated ? buffer(s, op[1].in2) : 0,
                                      .out = buffer(s, op->out),
                                      .positions = positions(s),
                                      .key_codec = codec_of(&m->codecs[0]),
                                      .value_codec = codec_of(&m->codecs[1]),
                                      .rotation = m->codecs[1].rotation,
                                      .n_rows = (uint32_t)s->n,
                                      .n_heads = (uint32_t)op->heads.n_heads,
                                      .n_kv_heads = (uint32_t)op->heads.n_kv_heads,
                                      .scale = op->heads.scale };
    qn_launch made;
    qn_cuda_session_cache(m, (size_t)op->layer, &args.cache, &args.runs);
    QN_TRY(qn_attention_gpu_prompt(&m->attention, s->n, &made));
    return launch_early(s, &made, &args);
}

static qn_status run_attention(const struct step *s, const qn_op *op)
{
    const qn_cuda_memory *m = s->memory;
    if (is_prompt(s))
        return run_attention_prompt(s, op);
    qn_attention_decode_args args = {
        .queries = buffer(s, op->in),
        .partials = s->model->partials.address,
        .maxima = s->model->maxima.address,
        .visible = visible(s),
        .key_codec = codec_of(&m->codecs[0]),
        .value_codec = codec_of(&m->codecs[1]),
        .n_heads = (uint32_t)op->heads.n_heads,
        .n_kv_heads = (uint32_t)op->heads.n_kv_heads,
        .scale = op->heads.scale,
        .settled = s->n == 1, /* several rows seal runs just before this */
    };
    qn_launch made;
    qn_cuda_session_cache(m, (size_t)op->layer, &args.cache, &args.runs);
    QN_TRY(qn_attention_gpu_decode(&m->attention, s->n, splits(s), &made));
    return launch_early(s, &made, &args);
}

static qn_status run_merge(const struct step *s, const qn_op *op)
{
    const qn_cuda_memory *m = s->memory;
    const qn_attention_merge_args args = { .partials = s->model->partials.address,
                                           .maxima = s->model->maxima.address,
                                           .gates = op->heads.gated ? buffer(s, op->in2) : 0,
                                           .out = buffer(s, op->in),
                                           .rotation = m->codecs[1].rotation,
                                           .visible = visible(s),
                                           .n_heads = (uint32_t)op->heads.n_heads,
                                           .n_splits = splits(s),
                                           .gain = m->codecs[1].gain };
    qn_launch made;
    QN_TRY(qn_attention_gpu_merge(&m->attention, s->n, &made));
    return launch_early(s, &made, &args);
}

/* ---- Gated DeltaNet ---- */

/* The operations of a recurrent layer stand together: CONV, DELTA, DELTA_OUT. */
struct delta {
    const qn_op *conv, *delta, *out;
    const qn_recurrent_shape *shape;
    uint32_t width, inner; /* of q k v, of the result */
    uint64_t state_offset, inputs_offset;
    uint64_t sessions, cu_seqlens; /* addresses of qn_cuda_inputs' memory and cu_seqlens */
    bool chunks;                   /* of bfloat16, on matrix units */
};

static struct delta delta_of(const struct step *s, const qn_op *op)
{
    const qn_op *conv = op - (op->kind == QN_OP_CONV ? 0 : op->kind == QN_OP_DELTA ? 1 : 2);
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
                           .chunks = shape->head_k == QN_GDN_HEAD_K && shape->head_v % QN_GDN_SLICE == 0 };
}

static float delta_scale(const struct delta *d)
{
    return (float)(1 / sqrt((double)d->shape->head_k));
}

/* One row: the whole layer between its products. */
static qn_status run_delta_step(const struct step *s, const qn_op *op)
{
    const struct delta d = delta_of(s, op);
    const qn_gdn_step_args args = { .qkv = buffer(s, d.conv->in),
                                    .alpha = buffer(s, d.conv->in2),
                                    .beta = buffer(s, d.conv->in3),
                                    .gate = buffer(s, d.out->in2),
                                    .conv = beside(s, d.conv)->weight,
                                    .bias = beside(s, d.conv)->weight2,
                                    .factor = beside(s, d.conv)->weight3,
                                    .norm = beside(s, d.out)->weight,
                                    .out = buffer(s, d.out->in),
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
                                    .grouped = d.out->grouped,
                                    .scale = delta_scale(&d),
                                    .eps = d.out->eps };
    qn_launch made;
    QN_TRY(qn_gdn_gpu_step(&args, d.shape->head_k, d.shape->head_v, &made));
    return launch_early(s, &made, &args);
}

static qn_status run_conv(const struct step *s, const qn_op *op)
{
    const struct delta d = delta_of(s, op);
    const uint64_t gates = s->model->gates.address;
    const qn_gdn_conv_args args = { .qkv = buffer(s, op->in),
                                    .alpha = buffer(s, op->in2),
                                    .strength = buffer(s, op->in3),
                                    .conv = beside(s, op)->weight,
                                    .bias = beside(s, op)->weight2,
                                    .factor = beside(s, op)->weight3,
                                    .out = buffer(s, op->out),
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
    qn_launch made;
    QN_TRY(qn_gdn_gpu_conv(&args, d.shape->head_k, d.shape->head_v, s->n, d.chunks, &made));
    return launch_early(s, &made, &args);
}

static qn_status run_delta(const struct step *s, const qn_op *op)
{
    const struct delta d = delta_of(s, op);
    const uint64_t gates = s->model->gates.address, q = buffer(s, op->in), element = d.chunks ? 2 : 4;
    const qn_gdn_chunk_args args = { .q = q,
                                     .k = q + d.shape->n_k_heads * d.shape->head_k * element,
                                     .v = q + 2 * d.shape->n_k_heads * d.shape->head_k * element,
                                     .g = gates,
                                     .beta = gates + s->n * d.shape->n_v_heads * sizeof(float),
                                     .memory = d.sessions,
                                     .positions = positions(s),
                                     .state_offset = d.state_offset,
                                     .o = buffer(s, op->out),
                                     .records = s->model->records.address,
                                     .cu_seqlens = d.cu_seqlens,
                                     .tokens = (uint32_t)s->n,
                                     .sequences = 1,
                                     .k_heads = (uint32_t)d.shape->n_k_heads,
                                     .v_heads = (uint32_t)d.shape->n_v_heads,
                                     .head_v = (uint32_t)d.shape->head_v,
                                     .q_stride = d.width,
                                     .k_stride = d.width,
                                     .v_stride = d.width,
                                     .o_stride = d.inner,
                                     .gate_stride = (uint32_t)d.shape->n_v_heads,
                                     .tiled = 1,
                                     .normalize = 1,
                                     .scale = delta_scale(&d) };
    qn_launch made[2];
    if (!d.chunks) {
        QN_TRY(qn_gdn_gpu_recurrent(&args, d.shape->head_k, false, &made[0]));
        return launch(s, &made[0], &args);
    }
    QN_TRY(qn_gdn_gpu_chunk(&args, s->n, s->model->matmul.max_shared_bytes, made));
    QN_TRY(launch(s, &made[0], &args));
    return launch(s, &made[1], &args);
}

static qn_status run_delta_out(const struct step *s, const qn_op *op)
{
    const struct delta d = delta_of(s, op);
    const qn_gdn_norm_args args = { .o = buffer(s, op->in),
                                    .gate = buffer(s, op->in2),
                                    .norm = beside(s, op)->weight,
                                    .out = s->model->scratch.address,
                                    .rows = (uint32_t)s->n,
                                    .k_heads = (uint32_t)d.shape->n_k_heads,
                                    .v_heads = (uint32_t)d.shape->n_v_heads,
                                    .o_stride = d.inner,
                                    .gate_stride = d.inner,
                                    .out_stride = d.inner,
                                    .grouped = op->grouped,
                                    .eps = op->eps };
    qn_launch made;
    QN_TRY(qn_gdn_gpu_norm(&args, d.shape->head_k, d.shape->head_v, d.chunks, &made));
    return launch_early(s, &made, &args);
}

/* ---- Steps ---- */

/* All of an operation but the activations that it may write. */
static qn_status run_before_acts(const struct step *s, const qn_op *op)
{
    switch (op->kind) {
    case QN_OP_EMBED: return run_angles(s);
    case QN_OP_MATMUL:
    case QN_OP_LOGITS: return run_matmul(s, op);
    case QN_OP_HEADS: return run_heads(s, op);
    case QN_OP_ATTENTION: return run_attention(s, op);
    case QN_OP_ATTENTION_OUT: return is_prompt(s) ? QN_OK : run_merge(s, op);
    case QN_OP_CONV: return s->n > 1 ? run_conv(s, op) : QN_OK;
    case QN_OP_DELTA: return s->n > 1 ? run_delta(s, op) : QN_OK;
    case QN_OP_DELTA_OUT: return s->n > 1 ? run_delta_out(s, op) : run_delta_step(s, op);
    case QN_OP_NORM:
    case QN_OP_LOGIT_NORM:
    case QN_OP_SWIGLU: break;
    }
    return QN_OK;
}

static qn_status run_op(const struct step *s, const qn_op *op)
{
    QN_TRY(run_before_acts(s, op));
    return write_acts(s, op);
}

static qn_status run_chain(const struct step *s, const qn_cuda_segment *segment)
{
    const qn_chain_args args = { .stages = s->memory->token.memory.address + segment->stage * sizeof(qn_chain_stage),
                                 .meeting = s->model->chains.meeting,
                                 .positions = positions(s),
                                 .memory = s->model->inputs + offsetof(qn_cuda_inputs, memory),
                                 .n_stages = (uint32_t)segment->n_stages };
    qn_launch made;
    QN_TRY(qn_chain_gpu_launch(&s->model->chain_gpu, &s->model->chains.tiles, &made));
    return launch(s, &made, &args);
}

static qn_status run_segment(const struct step *s, const qn_cuda_segment *segment)
{
    const qn_op *op = &s->model->plan->ops[segment->op];
    if (segment->n_stages)
        return run_chain(s, segment);
    return segment->without_acts ? run_before_acts(s, op) : run_op(s, op);
}

qn_status qn_cuda_ready_token(qn_cuda_model *model, qn_cuda_memory *memory)
{
    qn_cuda_token *token = &memory->token;
    if (token->generation == model->generation)
        return QN_OK;
    QN_TRY(qn_cuda_chain_plan(model, memory, token));
    const size_t bytes = token->n_stages * sizeof *token->stages;
    if (bytes > token->memory.bytes) {
        qn_cuda_release(model->cuda, &token->memory);
        QN_TRY(qn_cuda_alloc(model->cuda, token->n_stages, sizeof *token->stages, "stages on the GPU", &token->memory));
    }
    if (bytes)
        QN_TRY(qn_cuda_upload(model->cuda, token->memory.address, token->stages, bytes, NULL, NULL));
    token->generation = model->generation;
    return QN_OK;
}

qn_status qn_cuda_run_trunk(qn_cuda_model *model, const qn_cuda_memory *memory, size_t n, uint32_t first)
{
    const struct step s = { .model = model, .memory = memory, .n = n, .first = first };
    for (size_t i = 0; n == 1 && i < memory->token.n_segments; i++)
        QN_TRY(run_segment(&s, &memory->token.segments[i]));
    for (size_t i = 0; n > 1 && i < model->plan->n_ops; i++)
        if (!qn_cuda_is_logits(&model->plan->ops[i]))
            QN_TRY(run_op(&s, &model->plan->ops[i]));
    return QN_OK;
}

qn_status qn_cuda_run_logits(qn_cuda_model *model, size_t row, size_t n)
{
    const struct step s = { .model = model, .row = row, .n = n };
    for (size_t i = 0; i < model->plan->n_ops; i++)
        if (qn_cuda_is_logits(&model->plan->ops[i]))
            QN_TRY(run_op(&s, &model->plan->ops[i]));
    return QN_OK;
}

qn_status qn_cuda_run_seals(qn_cuda_model *model, const qn_cuda_memory *memory, size_t n, uint32_t first)
{
    const struct step s = { .model = model, .memory = memory, .n = n, .first = first };
    for (size_t i = 0; i < model->plan->n_ops; i++)
        if (model->plan->ops[i].kind == QN_OP_HEADS)
            QN_TRY(run_seal(&s, model->plan->ops[i].layer));
    return QN_OK;
}
