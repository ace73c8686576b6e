/* The operations of attention layers as launches. */
#include "device/cuda/operations.h"

#include "kernels/aura/aura_cuda.h"
#include "kernels/rope/rope_cuda.h"

qn_status qn_cuda_run_angles(const qn_cuda_rows_step *s)
{
    const qn_rope_angles_args args = { .positions = qn_cuda_step_positions(s),
                                       .frequencies = s->model->frequencies,
                                       .cosines = s->model->cosines.address,
                                       .sines = s->model->sines.address,
                                       .attn_factor = s->model->plan->attn_factor,
                                       .n_rot = (uint32_t)s->model->plan->heads.n_rot };
    qn_launch config;
    QN_TRY(qn_rope_gpu_angles(args.n_rot, s->n, &config));
    return qn_cuda_step_launch(s, &config, &args); /* no PDL: the previous work may be a copy, which cannot trigger it */
}

/* Quantises the pages of a layer's AURA cache that the step has completed. */
qn_status qn_cuda_quantize_layer_pages(const qn_cuda_rows_step *s, int layer)
{
    const qn_cuda_memory *m = s->memory;
    const uint32_t before = s->first / QN_ATTENTION_PAGE, after = (uint32_t)((s->first + s->n) / QN_ATTENTION_PAGE);
    qn_attention_gpu_cache cache;
    qn_attention_gpu_pages pages;
    qn_launch config;
    if (!m->attention.pages || before == after)
        return QN_OK;
    qn_cuda_session_cache(m, (size_t)layer, &cache, &pages);
    const qn_aura_quantize_page_args args = { .cache = cache,
                                              .pages = pages,
                                              .key_levels = m->codecs[0].levels,
                                              .value_levels = m->codecs[1].levels,
                                              .first_page = before };
    QN_TRY(qn_aura_gpu_quantize_page(m->attention.head_dim, m->attention.key_bits, m->attention.value_bits, after - before,
                                     m->attention.n_kv_heads, 1, &config));
    return qn_cuda_step_launch_pdl(s, &config, &args);
}

static qn_status run_qk_norm_rope_store(const qn_cuda_rows_step *s, const qn_op *op)
{
    const qn_attention_shape *h = &op->qk_norm_rope_store.shape;
    const qn_op_addresses *vectors = &qn_cuda_step_op(s, op)->vectors;
    const qn_cuda_memory *m = s->memory;
    const uint32_t head = (uint32_t)(h->gated ? 2 * h->head_dim : h->head_dim),
                   key_row = (uint32_t)(h->n_kv_heads * h->head_dim);
    qn_rope_qk_norm_store_args args = { .queries = qn_cuda_step_buffer(s, op->qk_norm_rope_store.queries),
                                        .keys = qn_cuda_step_buffer(s, op->qk_norm_rope_store.keys),
                                        .values = qn_cuda_step_buffer(s, op->qk_norm_rope_store.values),
                                        .out = qn_cuda_step_buffer(s, op->qk_norm_rope_store.out),
                                        .query_bias = vectors->qk_norm_rope_store.q_bias,
                                        .key_bias = vectors->qk_norm_rope_store.k_bias,
                                        .value_bias = vectors->qk_norm_rope_store.v_bias,
                                        .query_weight = vectors->qk_norm_rope_store.q_norm,
                                        .key_weight = vectors->qk_norm_rope_store.k_norm,
                                        .cosines = s->model->cosines.address,
                                        .sines = s->model->sines.address,
                                        .positions = qn_cuda_step_positions(s),
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
    QN_TRY(qn_cuda_step_launch_pdl(s, &config, &args));
    /* A single row never attends to the codes of the page that it completes, and its graph must not depend on the
     * position: the caller quantises the page after the graph. */
    return s->n > 1 ? qn_cuda_quantize_layer_pages(s, op->layer) : QN_OK;
}

static qn_attention_splits splits(const qn_cuda_rows_step *s)
{
    return qn_attention_gpu_splits(&s->memory->attention, s->memory->n_ctx);
}

static qn_attention_mask mask(const qn_cuda_rows_step *s)
{
    return (qn_attention_mask){ .positions = qn_cuda_step_positions(s) + s->row * sizeof(uint32_t),
                                .n_keys = (uint32_t)s->memory->n_ctx,
                                .causal = 1 };
}

/* From this number of rows, blocks are distributed over rows (prefill kernel); below, over KV splits too (decode kernel). */
enum { PREFILL_ROWS = 64 };

static bool is_prefill(const qn_cuda_rows_step *s)
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
static qn_status run_attention_prefill(const qn_cuda_rows_step *s, const qn_op *op)
{
    const qn_cuda_memory *m = s->memory;
    qn_attention_prefill_args args = { .queries = qn_cuda_step_buffer(s, op->attention.queries),
                                       .gates = op->attention.shape.gated
                                                    ? qn_cuda_step_buffer(s, op[1].attention_combine.queries)
                                                    : 0,
                                       .out = qn_cuda_step_buffer(s, op->attention.out),
                                       .positions = qn_cuda_step_positions(s),
                                       .key_codec = codec_of(&m->codecs[0]),
                                       .value_codec = codec_of(&m->codecs[1]),
                                       .rotation = m->codecs[1].rotation,
                                       .n_rows = (uint32_t)s->n,
                                       .n_pieces = 1,
                                       .n_heads = (uint32_t)op->attention.shape.n_heads,
                                       .n_kv_heads = (uint32_t)op->attention.shape.n_kv_heads,
                                       .query_stride = row_of(&op->attention.shape),
                                       .out_stride = row_of(&op->attention.shape),
                                       .scale = op->attention.shape.scale };
    qn_launch config;
    qn_cuda_session_cache(m, (size_t)op->layer, &args.cache, &args.pages);
    QN_TRY(qn_attention_gpu_prefill(&m->attention, s->n, 1, &config));
    return qn_cuda_step_launch_pdl(s, &config, &args);
}

static qn_status run_decode(const qn_cuda_rows_step *s, const qn_op *op)
{
    const qn_cuda_memory *m = s->memory;
    qn_attention_decode_args args = {
        .queries = qn_cuda_step_buffer(s, op->attention.queries),
        .partials = s->model->partials.address,
        .maxima = s->model->maxima.address,
        .mask = mask(s),
        .key_codec = codec_of(&m->codecs[0]),
        .value_codec = codec_of(&m->codecs[1]),
        .splits = splits(s),
        .n_rows = (uint32_t)s->n,
        .n_heads = (uint32_t)op->attention.shape.n_heads,
        .n_kv_heads = (uint32_t)op->attention.shape.n_kv_heads,
        .query_stride = row_of(&op->attention.shape),
        .scale = op->attention.shape.scale,
        .pdl_prefetch = s->n == 1, /* with several rows, the previous launch may have quantised pages */
    };
    qn_launch config;
    qn_cuda_session_cache(m, (size_t)op->layer, &args.cache, &args.pages);
    QN_TRY(qn_attention_gpu_decode(&m->attention, s->n, &args.splits, &config));
    return qn_cuda_step_launch_pdl(s, &config, &args);
}

static qn_status run_combine(const qn_cuda_rows_step *s, const qn_op *op)
{
    const qn_cuda_memory *m = s->memory;
    const qn_attention_combine_args args = { .partials = s->model->partials.address,
                                             .maxima = s->model->maxima.address,
                                             .gates = op->attention_combine.shape.gated
                                                          ? qn_cuda_step_buffer(s, op->attention_combine.queries)
                                                          : 0,
                                             .out = qn_cuda_step_buffer(s, op->attention_combine.in),
                                             .rotation = m->codecs[1].rotation,
                                             .mask = mask(s),
                                             .splits = splits(s),
                                             .n_heads = (uint32_t)op->attention_combine.shape.n_heads,
                                             .out_stride = row_of(&op->attention_combine.shape),
                                             .gain = m->codecs[1].gain };
    qn_launch config;
    QN_TRY(qn_attention_gpu_combine(&m->attention, s->n, &config));
    return qn_cuda_step_launch_pdl(s, &config, &args);
}

/* Rows whose partials do not fit at the same time: heads without a prefill kernel. */
static bool in_groups(const qn_cuda_rows_step *s)
{
    return s->n > QN_CUDA_ATTENTION_ROWS;
}

static qn_status run_attention(const qn_cuda_rows_step *s, const qn_op *op)
{
    if (is_prefill(s))
        return run_attention_prefill(s, op);
    if (!in_groups(s))
        return run_decode(s, op);
    for (size_t i = 0; i < s->n; i += QN_CUDA_ATTENTION_ROWS) {
        qn_cuda_rows_step group = *s;
        group.row += i;
        group.n = s->n - i < QN_CUDA_ATTENTION_ROWS ? s->n - i : QN_CUDA_ATTENTION_ROWS;
        QN_TRY(run_decode(&group, op));
        QN_TRY(run_combine(&group, op + 1));
    }
    return QN_OK;
}

qn_status qn_cuda_run_attention_op(const qn_cuda_rows_step *s, const qn_op *op)
{
    if (op->kind == QN_OP_QK_NORM_ROPE_STORE)
        return run_qk_norm_rope_store(s, op);
    if (op->kind == QN_OP_ATTENTION)
        return run_attention(s, op);
    return is_prefill(s) || in_groups(s) ? QN_OK : run_combine(s, op);
}
