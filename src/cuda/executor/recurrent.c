/* The operations of Gated DeltaNet layers as launches, all of them at QN_OP_GATED_NORM. Rows go through the open chunk
 * of their sequence, in one launch for all pieces; complete chunks of 64 rows go through the chunk kernels, piece by
 * piece. All launches have PDL (programmatic dependent launch). Kernels over open chunks load states and open chunks
 * before they wait for the previous kernel. This is safe because the data was written in an earlier step, or by a
 * kernel before the previous one: after each kernel that writes states or open chunks comes a kernel that waits for it
 * before it triggers the next. */
#include "cuda/executor/recurrent.h"

#include "cache/sequence.h"
#include "cuda/kernels/deltanet/open_few.h"

#include <math.h>

enum { CHUNK = QN_GDN_CHUNK };

/* The operations of a recurrent layer are consecutive: QN_OP_CONV, QN_OP_DELTA_RULE, QN_OP_GATED_NORM. */
struct delta {
    const qn_op *conv, *delta, *out;
    const qn_recurrent_shape *shape;
    const qn_cache *cache;
    uint32_t width, inner; /* row widths: of q k v, of the output */
    uint64_t result;       /* rows of the output, in f32 */
    size_t layer;          /* index among the recurrent layers */
    bool has_chunks;       /* the chunk kernels support these heads */
};

static const qn_sequence *sequence_of(const qn_gpu_piece *piece)
{
    return piece->memory->base.sequence;
}

/* Returns the data of a recurrent layer in a step. op: the layer's QN_OP_GATED_NORM. Its input is a buffer of rows in
 * f32; of several rows, scratch, because the chunk kernels write that buffer too. */
static struct delta delta_of(const qn_cuda_rows_step *s, const qn_op *op)
{
    const qn_recurrent_shape *shape = &s->common->plan->recurrent;
    return (struct delta){ .conv = op - 2,
                           .delta = op - 1,
                           .out = op,
                           .shape = shape,
                           .cache = sequence_of(s->pieces)->cache,
                           .width = (uint32_t)qn_recurrent_width(shape),
                           .inner = (uint32_t)(shape->n_v_heads * shape->head_v),
                           .result =
                               s->n == 1 ? qn_cuda_step_buffer(s, op->gated_norm.in) : s->workspace->scratch.address,
                           .layer = qn_gpu_recurrent_index(s->common->plan, op->layer),
                           .has_chunks = qn_gdn_gpu_has_chunks(shape->head_k, shape->head_v, &s->common->gdn) };
}

static float delta_scale(const struct delta *d)
{
    return (float)(1 / sqrt((double)d->shape->head_k));
}

/* The address of a row of a buffer. */
static uint64_t row_of(const qn_cuda_rows_step *s, int buffer, size_t row)
{
    return qn_cuda_step_buffer(s, buffer) + row * s->common->plan->buffers[buffer].width * sizeof(float);
}

/* ---- Open chunks ---- */

/* Returns the arguments of the kernels of open chunks, without the fields of sequences. */
static qn_gdn_open_args open_args(const qn_cuda_rows_step *s, const struct delta *d)
{
    return (qn_gdn_open_args){ .qkv = qn_cuda_step_buffer(s, d->conv->conv.qkv),
                               .alpha = qn_cuda_step_buffer(s, d->conv->conv.alpha),
                               .beta = qn_cuda_step_buffer(s, d->conv->conv.beta),
                               .gate = qn_cuda_step_buffer(s, d->out->gated_norm.gate),
                               .conv = qn_cuda_step_op(s, d->conv)->vectors.conv.taps,
                               .bias = qn_cuda_step_op(s, d->conv)->vectors.conv.bias,
                               .factor = qn_cuda_step_op(s, d->conv)->vectors.conv.factor,
                               .norm = qn_cuda_step_op(s, d->out)->vectors.gated_norm.weight,
                               .out = d->result,
                               .arrivals = s->workspace->arrivals.address,
                               .states = qn_pool_base(d->cache->states),
                               .open = qn_pool_base(d->cache->open_chunks),
                               .state_stride = qn_pool_stride(d->cache->states),
                               .state_offset = qn_gpu_state_offset(s->common->plan, d->out->layer),
                               .open_stride = qn_pool_stride(d->cache->open_chunks),
                               .open_offset = d->layer * qn_gpu_open_layout(s->common->plan, 0).bytes,
                               .layers = 1,
                               .k_heads = (uint32_t)d->shape->n_k_heads,
                               .v_heads = (uint32_t)d->shape->n_v_heads,
                               .taps = (uint32_t)d->shape->taps,
                               .qkv_stride = d->width,
                               .alpha_stride = (uint32_t)d->shape->n_v_heads,
                               .beta_stride = (uint32_t)d->shape->n_v_heads,
                               .gate_stride = d->inner,
                               .out_stride = d->inner,
                               .grouped = d->out->gated_norm.grouped,
                               .scale = delta_scale(d),
                               .eps = d->out->gated_norm.eps };
}

/* Pieces in turn read what the previous launch writes, before they would wait for it. */
static qn_status launch_open(const qn_cuda_rows_step *s, qn_launch *config, const qn_gdn_open_args *args)
{
    config->pdl = !s->in_turn;
    return qn_cuda_step_launch(s, config, args);
}

/* Launches all rows of pieces [first, first + n), with indices from the step's inputs. */
static qn_status run_open_pieces(const qn_cuda_rows_step *s, const struct delta *d, size_t first, size_t n)
{
    const size_t at = first * sizeof(uint32_t);
    qn_gdn_open_args args = open_args(s, d);
    args.cu_seqlens = qn_cuda_step_input(s, s->inputs.cu_seqlens) + at;
    args.positions = qn_cuda_step_input(s, s->inputs.first_positions) + at;
    args.state_positions = qn_cuda_step_input(s, s->inputs.state_positions) + at;
    args.state_from = qn_cuda_step_input(s, s->inputs.state_from) + at;
    args.state_to = qn_cuda_step_input(s, s->inputs.state_to) + at;
    args.open_slots = qn_cuda_step_input(s, s->inputs.open_chunks) + at;
    args.sequences = (uint32_t)n;
    qn_launch config;
    if (s->is_decode && qn_gdn_gpu_has_open_row(d->shape->head_k, d->shape->head_v, &s->common->gdn))
        QN_TRY(qn_gdn_gpu_open_row(&args, &s->common->gdn, &config));
    else if (s->fits_open_chunks)
        QN_TRY(qn_gdn_gpu_open_few(&args, &s->common->gdn, &config));
    else
        QN_TRY(qn_gdn_gpu_open_step(&args, d->shape->head_k, d->shape->head_v, &s->common->gdn, &config));
    return launch_open(s, &config, &args);
}

/* Launches rows of one sequence; without rows there is no launch. */
static qn_status run_open_rows(const qn_cuda_rows_step *s, const struct delta *d, const qn_gdn_open_sequence *rows)
{
    qn_gdn_open_args args = open_args(s, d);
    qn_launch config;
    if (rows->begin == rows->end)
        return QN_OK;
    args.sequence = *rows;
    args.sequences = 1;
    QN_TRY(qn_gdn_gpu_open_step(&args, d->shape->head_k, d->shape->head_v, &s->common->gdn, &config));
    return launch_open(s, &config, &args);
}

static qn_status launch_fold(const qn_cuda_rows_step *s, qn_gdn_open_args *args, const qn_gdn_open_sequence *sequence)
{
    const qn_recurrent_shape *r = &s->common->plan->recurrent;
    qn_launch config;
    args->sequence = *sequence;
    args->sequences = 1;
    QN_TRY(qn_gdn_gpu_open_fold(args, r->head_k, r->head_v, &s->common->gdn, &config));
    return qn_cuda_step_launch_pdl(s, &config, args);
}

/* ---- Complete chunks ---- */

/* n rows from `row` on of one sequence. Addresses of the layer's part of a state: `from` before them, 0 at position 0;
 * `to` after them, which may be the same. */
struct chunks {
    size_t row, n;
    uint64_t from, to;
};

static qn_status run_conv(const qn_cuda_rows_step *s, const struct delta *d, const struct chunks *c)
{
    const qn_recurrent_shape *r = d->shape;
    const uint64_t gates = s->workspace->gates.address, history = qn_gpu_recurrent_layout_of(r).history;
    const qn_gdn_conv_args args = { .qkv = row_of(s, d->conv->conv.qkv, c->row),
                                    .alpha = row_of(s, d->conv->conv.alpha, c->row),
                                    .beta_in = row_of(s, d->conv->conv.beta, c->row),
                                    .conv = qn_cuda_step_op(s, d->conv)->vectors.conv.taps,
                                    .bias = qn_cuda_step_op(s, d->conv)->vectors.conv.bias,
                                    .factor = qn_cuda_step_op(s, d->conv)->vectors.conv.factor,
                                    .out = row_of(s, d->conv->conv.out, c->row),
                                    .g = gates,
                                    .beta = gates + c->n * r->n_v_heads * sizeof(float),
                                    .history = c->from ? c->from + history : 0,
                                    .last = c->to + history,
                                    .rows = (uint32_t)c->n,
                                    .k_heads = (uint32_t)r->n_k_heads,
                                    .v_heads = (uint32_t)r->n_v_heads,
                                    .taps = (uint32_t)r->taps,
                                    .qkv_stride = d->width,
                                    .alpha_stride = (uint32_t)r->n_v_heads,
                                    .beta_stride = (uint32_t)r->n_v_heads,
                                    .out_stride = d->width };
    qn_launch config;
    QN_TRY(qn_gdn_gpu_conv(&args, r->head_k, r->head_v, &config));
    return qn_cuda_step_launch_pdl(s, &config, &args);
}

static qn_status run_rule(const qn_cuda_rows_step *s, const struct delta *d, const struct chunks *c)
{
    const qn_recurrent_shape *r = d->shape;
    const uint64_t gates = s->workspace->gates.address, q = row_of(s, d->delta->delta_rule.qkv, c->row),
                   keys = r->n_k_heads * r->head_k * sizeof(uint16_t);
    qn_gdn_chunk_args args = { .q = q,
                               .k = q + keys,
                               .v = q + 2 * keys,
                               .g = gates,
                               .beta = gates + c->n * r->n_v_heads * sizeof(float),
                               .initial = c->from,
                               .final = c->to,
                               .state_type = QN_GDN_STATE_PLANES,
                               .o = row_of(s, d->delta->delta_rule.out, c->row),
                               .tokens = (uint32_t)c->n,
                               .sequences = 1,
                               .k_heads = (uint32_t)r->n_k_heads,
                               .v_heads = (uint32_t)r->n_v_heads,
                               .head_k = (uint32_t)r->head_k,
                               .head_v = (uint32_t)r->head_v,
                               .dtype = QN_DTYPE_BF16,
                               .g_dtype = QN_DTYPE_F32,
                               .beta_dtype = QN_DTYPE_F32,
                               .q_stride = d->width,
                               .k_stride = d->width,
                               .v_stride = d->width,
                               .o_stride = d->inner,
                               .g_stride = (uint32_t)r->n_v_heads,
                               .beta_stride = (uint32_t)r->n_v_heads,
                               .tiled = 1,
                               .normalize = 1,
                               .scale = delta_scale(d) };
    const qn_gdn_division division = qn_gdn_gpu_divide(&args, c->n, &s->common->gdn);
    qn_gdn_chunk_launches chunk;
    QN_TRY(qn_gdn_gpu_chunk(&args, &division, s->common->gdn.max_shared_bytes, s->workspace->delta_workspace.address,
                            &chunk));
    for (size_t i = 0; i < chunk.n; i++)
        QN_TRY(qn_cuda_step_launch(s, &chunk.launches[i], &args));
    return QN_OK;
}

static qn_status run_norm(const qn_cuda_rows_step *s, const struct delta *d, const struct chunks *c)
{
    const qn_gdn_norm_args args = { .o = row_of(s, d->delta->delta_rule.out, c->row),
                                    .gate = row_of(s, d->out->gated_norm.gate, c->row),
                                    .norm = qn_cuda_step_op(s, d->out)->vectors.gated_norm.weight,
                                    .out = d->result + c->row * d->inner * sizeof(float),
                                    .rows = (uint32_t)c->n,
                                    .k_heads = (uint32_t)d->shape->n_k_heads,
                                    .v_heads = (uint32_t)d->shape->n_v_heads,
                                    .o_stride = d->inner,
                                    .gate_stride = d->inner,
                                    .out_stride = d->inner,
                                    .grouped = d->out->gated_norm.grouped,
                                    .eps = d->out->gated_norm.eps };
    qn_launch config;
    QN_TRY(qn_gdn_gpu_norm(&args, d->shape->head_k, d->shape->head_v, &config));
    return qn_cuda_step_launch_pdl(s, &config, &args);
}

/* ---- Pieces ---- */

/* Returns the number of rows of a piece up to the first multiple of 64. */
static uint32_t rows_before_chunks(const qn_gpu_piece *piece)
{
    return (CHUNK - piece->position % CHUNK) % CHUNK;
}

static bool has_complete_chunk(const struct delta *d, const qn_gpu_piece *piece)
{
    return d->has_chunks && piece->n >= rows_before_chunks(piece) + CHUNK;
}

/* Launches a piece with complete chunks: rows that fill the open chunk, which is folded; chunks; rows of the next open
 * chunk. */
static qn_status run_chunk_piece(const qn_cuda_rows_step *s, const struct delta *d, const qn_gpu_piece *piece)
{
    const qn_sequence *sequence = sequence_of(piece);
    const uint32_t before = rows_before_chunks(piece), n = (piece->n - before) / CHUNK * CHUNK;
    const uint32_t begin = piece->position + before, end = begin + n; /* positions of the chunks */
    qn_gdn_open_args fold = open_args(s, d);
    qn_gdn_open_sequence at = { .position = piece->position,
                                .state_position = sequence->state_position,
                                .state_from = sequence->state,
                                .state_to = sequence->state_to,
                                .open_slot = sequence->open_chunk,
                                .begin = piece->row,
                                .end = piece->row + before };
    QN_TRY(run_open_rows(s, d, &at));
    at.position = begin;
    if (begin > at.state_position) {
        QN_TRY(launch_fold(s, &fold, &at));
        at.state_from = at.state_to;
    }
    const struct chunks chunks = { .row = piece->row + before,
                                   .n = n,
                                   .from =
                                       begin ? fold.states + at.state_from * fold.state_stride + fold.state_offset : 0,
                                   .to = fold.states + at.state_to * fold.state_stride + fold.state_offset };
    QN_TRY(run_conv(s, d, &chunks));
    QN_TRY(run_rule(s, d, &chunks));
    QN_TRY(run_norm(s, d, &chunks));
    at.position = at.state_position = end;
    at.state_from = at.state_to;
    at.begin = piece->row + before + n;
    at.end = piece->row + piece->n;
    return run_open_rows(s, d, &at);
}

qn_status qn_cuda_run_recurrent_op(const qn_cuda_rows_step *s, const qn_op *op)
{
    if (op->kind != QN_OP_GATED_NORM)
        return QN_OK;
    const struct delta d = delta_of(s, op);
    for (size_t i = 0, n; i < s->n_pieces; i += n) {
        for (n = 0; i + n < s->n_pieces && (!n || !s->in_turn) && !has_complete_chunk(&d, &s->pieces[i + n]);)
            n++;
        if (n) {
            QN_TRY(run_open_pieces(s, &d, i, n));
        } else {
            QN_TRY(run_chunk_piece(s, &d, &s->pieces[i]));
            n = 1;
        }
    }
    return QN_OK;
}

/* ---- Steps of one row of each sequence ---- */

/* Folds the full open chunk of a piece in all layers. */
static qn_status fold_piece(const qn_cuda_rows_step *s, const qn_gpu_piece *piece)
{
    const qn_plan *plan = s->common->plan;
    const qn_recurrent_shape *r = &plan->recurrent;
    const qn_sequence *sequence = sequence_of(piece);
    qn_gdn_open_args args = { .states = qn_pool_base(sequence->cache->states),
                              .open = qn_pool_base(sequence->cache->open_chunks),
                              .state_stride = qn_pool_stride(sequence->cache->states),
                              .open_stride = qn_pool_stride(sequence->cache->open_chunks),
                              .layers = (uint32_t)qn_gpu_recurrent_index(plan, (int)plan->n_layers),
                              .k_heads = (uint32_t)r->n_k_heads,
                              .v_heads = (uint32_t)r->n_v_heads,
                              .taps = (uint32_t)r->taps };
    const qn_gdn_open_sequence at = { .position = piece->position,
                                      .state_position = sequence->state_position,
                                      .state_from = sequence->state,
                                      .state_to = sequence->state_to,
                                      .open_slot = sequence->open_chunk };
    return launch_fold(s, &args, &at);
}

qn_status qn_cuda_fold_full_chunks(const qn_cuda_rows_step *s)
{
    for (size_t i = 0; s->common->plan->recurrent.n_v_heads && i < s->n_pieces && s->pieces[i].rows; i++) {
        const qn_gpu_piece *piece = &s->pieces[i];
        const uint32_t begin = sequence_of(piece)->state_position + CHUNK;
        if (piece->position < begin)
            continue;
        if (piece->position == begin) /* pieces in turn may follow */
            QN_TRY(fold_piece(s, piece));
        qn_cuda_host_input(s, s->inputs.state_from)[i] = sequence_of(piece)->state_to;
        qn_cuda_host_input(s, s->inputs.state_positions)[i] = begin;
    }
    return QN_OK;
}

void qn_cuda_set_recurrent_args(const qn_cuda_rows_step *s, qn_persistent_args *args)
{
    if (!s->common->plan->recurrent.n_v_heads)
        return;
    const qn_cache *cache = sequence_of(s->pieces)->cache;
    args->states = qn_pool_base(cache->states);
    args->open = qn_pool_base(cache->open_chunks);
    args->state_positions = qn_cuda_step_input(s, s->inputs.state_positions);
    args->state_from = qn_cuda_step_input(s, s->inputs.state_from);
    args->open_slots = qn_cuda_step_input(s, s->inputs.open_chunks);
    args->state_stride = qn_pool_stride(cache->states);
    args->open_stride = qn_pool_stride(cache->open_chunks);
}
