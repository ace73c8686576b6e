/* The operations of attention layers as launches. */
#include "cuda/executor/attention.h"

#include "cuda/kernels/attention/page_rows.h"
#include "cuda/kernels/aura/aura.h"
#include "cuda/kernels/rope/rope.h"

qn_status qn_cuda_run_angles(const qn_cuda_rows_step *s, bool of_drafter)
{
    const qn_plan *plan = s->common->plan;
    const qn_rope_angles_args args = { .positions = qn_cuda_step_positions(s),
                                       .frequencies =
                                           of_drafter ? s->weights->drafter_frequencies : s->weights->frequencies,
                                       .cosines = s->workspace->cosines.address,
                                       .sines = s->workspace->sines.address,
                                       .attn_factor = of_drafter ? plan->head.rope.attn_factor : plan->attn_factor,
                                       .n_rot = (uint32_t)(of_drafter ? plan->head.heads.n_rot : plan->heads.n_rot) };
    qn_launch config;
    QN_TRY(qn_rope_gpu_angles(args.n_rot, s->n, &config));
    return qn_cuda_step_launch(s, &config, &args); /* no PDL: the previous work may be a copy, which cannot trigger it
                                                    */
}

/* ---- Caches ---- */

/* The cache format of the step's sequences. */
static const qn_cuda_format *format_of(const qn_cuda_rows_step *s)
{
    return qn_cuda_format_of(s->pieces->memory);
}

/* Whether a layer is a block drafter's. */
static bool is_of_drafter(const qn_cuda_rows_step *s, int layer)
{
    return s->common->plan->head.block && (size_t)layer >= qn_plan_trunk_layers(s->common->plan);
}

/* Shape and cache of a layer's attention. */
static const qn_attention_gpu *attention_of(const qn_cuda_rows_step *s, int layer)
{
    return is_of_drafter(s, layer) ? &s->common->block_attention : &format_of(s)->attention;
}

/* Sets the arguments of a layer's cache, of all sequences of the step. */
static void cache_of(const qn_cuda_rows_step *s, int layer, qn_attention_gpu_cache *cache,
                     qn_attention_gpu_pages *pages)
{
    qn_cuda_layer_cache(format_of(s), (size_t)layer, cache, pages);
    cache->tables = qn_cuda_step_input(s, s->inputs.kv_tables);
    pages->tables = format_of(s)->attention.pages ? qn_cuda_step_input(s, s->inputs.f16_tables) : 0;
}

/* ---- AURA pages ---- */

/* Whether the pages that the step completes are quantised at its end, in all layers (qn_cuda_quantize_pages). */
static bool quantizes_later(const qn_cuda_rows_step *s)
{
    return s->is_decode || s->verifies;
}

/* The most pages that the sequences complete in this step. In a graph each sequence completes at most one, at any
 * position. */
static size_t completed_pages(const qn_cuda_rows_step *s)
{
    size_t pages = quantizes_later(s) ? s->n_pieces : 0;
    for (size_t i = 0; !quantizes_later(s) && i < s->n_pieces; i++) {
        const qn_gpu_piece *piece = &s->pieces[i];
        pages += (piece->position + piece->n) / QN_PAGE - piece->position / QN_PAGE;
    }
    return pages;
}

/* Quantises completed pages in `layers` attention layers, from `layer` on; `next` is the attention layer after that
 * one, or the same. */
static qn_status quantize_pages(const qn_cuda_rows_step *s, int layer, int next, uint32_t layers)
{
    const qn_cuda_format *f = format_of(s);
    const size_t n_pages = completed_pages(s);
    qn_attention_gpu_cache cache, next_cache;
    qn_attention_gpu_pages pages, next_pages;
    qn_launch config;
    if (!f->attention.pages || !n_pages)
        return QN_OK;
    cache_of(s, layer, &cache, &pages);
    cache_of(s, next, &next_cache, &next_pages);
    const qn_aura_quantize_page_args args = { .cache = cache,
                                              .pages = pages,
                                              .positions = qn_cuda_step_input(s, s->inputs.first_positions),
                                              .cu_seqlens = qn_cuda_step_input(s, s->inputs.cu_seqlens),
                                              .key_levels = f->codecs[0].levels,
                                              .value_levels = f->codecs[1].levels,
                                              .layer_stride = next_cache.keys - cache.keys,
                                              .f16_layer_stride = next_pages.keys - pages.keys,
                                              .n_pieces = (uint32_t)s->n_pieces };
    QN_TRY(qn_aura_gpu_quantize_page(f->attention.head_dim, f->attention.key_bits, f->attention.value_bits, n_pages,
                                     f->attention.n_kv_heads, layers, &config));
    return qn_cuda_step_launch_pdl(s, &config, &args);
}

qn_status qn_cuda_quantize_pages(const qn_cuda_rows_step *s)
{
    const qn_plan *plan = s->common->plan;
    int first = -1, second = -1;
    uint32_t n_layers = 0;
    for (size_t i = 0; i < qn_plan_step_ops(plan); i++) {
        if (!(qn_op_desc_of(plan->ops[i].kind)->writes & QN_USES_KV))
            continue;
        first = n_layers == 0 ? plan->ops[i].layer : first;
        second = n_layers == 1 ? plan->ops[i].layer : second;
        n_layers++;
    }
    return n_layers ? quantize_pages(s, first, n_layers > 1 ? second : first, n_layers) : QN_OK;
}

/* ---- Launches ---- */

/* Returns the number of values from a query head to the next in the output of the matmul. */
static uint32_t query_stride(const qn_attention_shape *shape)
{
    return (uint32_t)(shape->gated ? 2 * shape->head_dim : shape->head_dim);
}

/* Whether the operation after this QN_OP_QK_NORM_ROPE_STORE does its work (qn_attention_new_rows). In a decode step all
 * rows are for the decode kernel. */
static bool is_prepared_by_attention(const qn_cuda_rows_step *s, const qn_op *op)
{
    const qn_attention_shape *h = &op->qk_norm_rope_store.shape;
    return s->is_decode && !s->in_turn && op[1].kind == QN_OP_ATTENTION &&
           qn_attention_gpu_prepares_rows(&format_of(s)->attention, s->n_few, h->n_rot, h->rope == QN_ROPE_TYPE_NORM);
}

static qn_status run_qk_norm_rope_store(const qn_cuda_rows_step *s, const qn_op *op)
{
    const qn_attention_shape *h = &op->qk_norm_rope_store.shape;
    const qn_op_addresses *vectors = &qn_cuda_step_op(s, op)->vectors;
    const qn_cuda_format *f = format_of(s);
    const uint32_t key_row = (uint32_t)(h->n_kv_heads * h->head_dim);
    if (is_prepared_by_attention(s, op))
        return QN_OK;
    qn_rope_qk_norm_store_args args = { .queries = qn_cuda_step_buffer(s, op->qk_norm_rope_store.queries),
                                        .keys = qn_cuda_step_buffer(s, op->qk_norm_rope_store.keys),
                                        .values = qn_cuda_step_buffer(s, op->qk_norm_rope_store.values),
                                        .out = qn_cuda_step_buffer(s, op->qk_norm_rope_store.out),
                                        .query_bias = vectors->qk_norm_rope_store.q_bias,
                                        .key_bias = vectors->qk_norm_rope_store.k_bias,
                                        .value_bias = vectors->qk_norm_rope_store.v_bias,
                                        .query_weight = vectors->qk_norm_rope_store.q_norm,
                                        .key_weight = vectors->qk_norm_rope_store.k_norm,
                                        .cosines = s->workspace->cosines.address,
                                        .sines = s->workspace->sines.address,
                                        .positions = qn_cuda_step_positions(s),
                                        .sessions = qn_cuda_step_input(s, s->inputs.sequences),
                                        .key_rotation = f->codecs[0].rotation,
                                        .value_rotation = f->codecs[1].rotation,
                                        .n_rows = (uint32_t)s->n,
                                        .n_heads = (uint32_t)h->n_heads,
                                        .n_kv_heads = (uint32_t)h->n_kv_heads,
                                        .n_rot = (uint32_t)h->n_rot,
                                        .query_row_stride = (uint32_t)h->n_heads * query_stride(h),
                                        .key_row_stride = key_row,
                                        .value_row_stride = key_row,
                                        .out_row_stride = (uint32_t)(h->n_heads * h->head_dim),
                                        .capacity = (uint32_t)s->workspace->max_positions,
                                        .query_stride = query_stride(h),
                                        .interleaved = h->rope == QN_ROPE_TYPE_NORM,
                                        .eps = op->qk_norm_rope_store.eps };
    qn_launch config;
    cache_of(s, op->layer, &args.cache, &args.pages);
    QN_TRY(qn_rope_gpu_qk_norm_store(h->head_dim, f->attention.pages, s->n, h->n_heads, h->n_kv_heads, &config));
    QN_TRY(qn_cuda_step_launch_pdl(s, &config, &args));
    /* The last row of a sequence never attends to the codes of the page that it completes: qn_cuda_quantize_pages
     * follows. */
    return quantizes_later(s) ? QN_OK : quantize_pages(s, op->layer, op->layer, 1);
}

/* The same without queries, for the draft head. */
static qn_status run_k_norm_rope_store(const qn_cuda_rows_step *s, const qn_op *op)
{
    const qn_attention_shape *h = &op->qk_norm_rope_store.shape;
    const qn_op_addresses *vectors = &qn_cuda_step_op(s, op)->vectors;
    const qn_cuda_format *f = format_of(s);
    const uint32_t key_row = (uint32_t)(h->n_kv_heads * h->head_dim);
    qn_rope_qk_norm_store_args args = { .keys = qn_cuda_step_buffer(s, op->qk_norm_rope_store.keys),
                                        .values = qn_cuda_step_buffer(s, op->qk_norm_rope_store.values),
                                        .key_bias = vectors->k_norm_rope_store.k_bias,
                                        .value_bias = vectors->k_norm_rope_store.v_bias,
                                        .key_weight = vectors->k_norm_rope_store.k_norm,
                                        .cosines = s->workspace->cosines.address,
                                        .sines = s->workspace->sines.address,
                                        .positions = qn_cuda_step_positions(s),
                                        .sessions = qn_cuda_step_input(s, s->inputs.sequences),
                                        .key_rotation = f->codecs[0].rotation,
                                        .value_rotation = f->codecs[1].rotation,
                                        .n_rows = (uint32_t)s->n,
                                        .n_kv_heads = (uint32_t)h->n_kv_heads,
                                        .n_rot = (uint32_t)h->n_rot,
                                        .key_row_stride = key_row,
                                        .value_row_stride = key_row,
                                        .capacity = (uint32_t)s->workspace->max_positions,
                                        .interleaved = h->rope == QN_ROPE_TYPE_NORM,
                                        .eps = op->qk_norm_rope_store.eps };
    qn_launch config;
    cache_of(s, op->layer, &args.cache, &args.pages);
    QN_TRY(qn_rope_gpu_qk_norm_store(h->head_dim, f->attention.pages, s->n, 0, h->n_kv_heads, &config));
    QN_TRY(qn_cuda_step_launch_pdl(s, &config, &args));
    return quantizes_later(s) ? QN_OK : quantize_pages(s, op->layer, op->layer, 1);
}

/* The rows of a block attend to later ones, too. */
static qn_attention_mask mask(const qn_cuda_rows_step *s, const qn_op *op)
{
    const uint64_t first = s->row * sizeof(uint32_t);
    return (qn_attention_mask){ .positions = qn_cuda_step_positions(s) + first,
                                .ends = is_of_drafter(s, op->layer) ? qn_cuda_step_input(s, s->inputs.ends) + first : 0,
                                .sessions = qn_cuda_step_input(s, s->inputs.sequences) + first,
                                .n_keys = (uint32_t)s->workspace->max_positions,
                                .window = (uint32_t)op->attention.shape.window,
                                .causal = 1,
                                .first = op->attention.first };
}

bool qn_cuda_has_prefill(const qn_gpu_piece *piece)
{
    return piece->n >= QN_CUDA_PREFILL_ROWS &&
           qn_attention_gpu_has_prefill(&qn_cuda_format_of(piece->memory)->attention);
}

static qn_attention_gpu_codec codec_of(const qn_cuda_codec *codec)
{
    return (qn_attention_gpu_codec){ .codebook = codec->levels.codebook, .gain = codec->gain };
}

/* Returns the number of values of a row of queries, or of results. */
static uint32_t row_of(const qn_attention_shape *shape)
{
    return (uint32_t)(shape->n_heads * shape->head_dim);
}

/* Launches attention of the pieces of many rows, the last ones of the step. Writes final outputs, gates applied:
 * QN_OP_ATTENTION_COMBINE only quantises them. */
static qn_status run_prefill(const qn_cuda_rows_step *s, const qn_op *op)
{
    const qn_cuda_format *f = format_of(s);
    const qn_attention_shape *shape = &op->attention.shape;
    size_t first = 0;
    while (s->pieces[first].row < s->n_few)
        first++;
    const size_t n_rows = s->n - s->n_few, n_pieces = s->n_pieces - first, words = first * sizeof(uint32_t);
    qn_attention_prefill_args args = { .queries = qn_cuda_step_buffer(s, op->attention.queries),
                                       .gates =
                                           shape->gated ? qn_cuda_step_buffer(s, op[1].attention_combine.queries) : 0,
                                       .out = qn_cuda_step_buffer(s, op->attention.out),
                                       .positions = qn_cuda_step_input(s, s->inputs.first_positions) + words,
                                       .cu_seqlens = qn_cuda_step_input(s, s->inputs.cu_seqlens) + words,
                                       .key_codec = codec_of(&f->codecs[0]),
                                       .value_codec = codec_of(&f->codecs[1]),
                                       .rotation = f->codecs[1].rotation,
                                       .n_rows = (uint32_t)n_rows,
                                       .n_pieces = (uint32_t)n_pieces,
                                       .n_heads = (uint32_t)shape->n_heads,
                                       .n_kv_heads = (uint32_t)shape->n_kv_heads,
                                       .query_stride = row_of(shape),
                                       .out_stride = row_of(shape),
                                       .scale = shape->scale };
    qn_launch config;
    cache_of(s, op->layer, &args.cache, &args.pages);
    args.cache.tables += first * sizeof(uint64_t);
    args.pages.tables += args.pages.tables ? first * sizeof(uint64_t) : 0;
    QN_TRY(qn_attention_gpu_prefill(&f->attention, n_rows, n_pieces, &config));
    return qn_cuda_step_launch_pdl(s, &config, &args);
}

/* Adds the work of a QN_OP_QK_NORM_ROPE_STORE to the launch of the attention after it. */
static void add_new_rows(const qn_cuda_rows_step *s, const qn_op *op, qn_attention_decode_args *args)
{
    const qn_attention_shape *h = &op->qk_norm_rope_store.shape;
    const qn_op_addresses *vectors = &qn_cuda_step_op(s, op)->vectors;
    const uint64_t angles = s->row * (h->n_rot / 2) * sizeof(float);
    args->queries = qn_cuda_step_buffer(s, op->qk_norm_rope_store.queries);
    args->query_head_stride = query_stride(h);
    args->query_stride = (uint32_t)h->n_heads * query_stride(h);
    args->new_rows = (qn_attention_new_rows){ .keys = qn_cuda_step_buffer(s, op->qk_norm_rope_store.keys),
                                              .values = qn_cuda_step_buffer(s, op->qk_norm_rope_store.values),
                                              .query_bias = vectors->qk_norm_rope_store.q_bias,
                                              .key_bias = vectors->qk_norm_rope_store.k_bias,
                                              .value_bias = vectors->qk_norm_rope_store.v_bias,
                                              .query_weight = vectors->qk_norm_rope_store.q_norm,
                                              .key_weight = vectors->qk_norm_rope_store.k_norm,
                                              .cosines = s->workspace->cosines.address + angles,
                                              .sines = s->workspace->sines.address + angles,
                                              .n_rot = (uint32_t)h->n_rot,
                                              .interleaved = h->rope == QN_ROPE_TYPE_NORM,
                                              .eps = op->qk_norm_rope_store.eps };
}

/* Launches attention of the rows of pieces of few rows. Writes final outputs, as run_prefill does. */
static qn_status run_decode(const qn_cuda_rows_step *s, const qn_op *op)
{
    const qn_cuda_format *f = format_of(s);
    const qn_attention_gpu *attention = attention_of(s, op->layer);
    qn_attention_decode_args args = {
        .queries = qn_cuda_step_buffer(s, op->attention.queries),
        .gates = op->attention.shape.gated ? qn_cuda_step_buffer(s, op[1].attention_combine.queries) : 0,
        .out = qn_cuda_step_buffer(s, op->attention.out),
        .partials = s->workspace->partials.address,
        .maxima = s->workspace->maxima.address,
        .counters = s->workspace->attention_counters.address,
        .mask = mask(s, op),
        .key_codec = codec_of(&f->codecs[0]),
        .value_codec = codec_of(&f->codecs[1]),
        .rotation = f->codecs[1].rotation,
        .splits = qn_attention_gpu_splits(attention, s->workspace->max_positions),
        .n_rows = (uint32_t)s->n_few,
        .n_heads = (uint32_t)op->attention.shape.n_heads,
        .n_kv_heads = (uint32_t)op->attention.shape.n_kv_heads,
        .query_stride = row_of(&op->attention.shape),
        .out_stride = row_of(&op->attention.shape),
        .scale = op->attention.shape.scale,
        /* Other rows of a step attend to rows that the previous launch writes. */
        .pdl_prefetch = (s->is_decode && !s->in_turn) || s->attends_together,
    };
    qn_launch config;
    if (op[-1].kind == QN_OP_QK_NORM_ROPE_STORE && is_prepared_by_attention(s, &op[-1]))
        add_new_rows(s, &op[-1], &args);
    cache_of(s, op->layer, &args.cache, &args.pages);
    QN_TRY(s->attends_together ? qn_attention_gpu_decode_page(attention, s->n_few, &args.splits, &config)
                               : qn_attention_gpu_decode(attention, s->n_few, &args.splits, &config));
    return qn_cuda_step_launch_pdl(s, &config, &args);
}

static qn_status run_attention(const qn_cuda_rows_step *s, const qn_op *op)
{
    if (s->n_few < s->n)
        QN_TRY(run_prefill(s, op));
    /* Many rows of heads without a prefill kernel: the partials of all rows do not fit at the same time. */
    for (size_t i = 0; i < s->n_few; i += QN_CUDA_ATTENTION_ROWS) {
        qn_cuda_rows_step group = *s;
        group.row += i;
        group.n_few = s->n_few - i < QN_CUDA_ATTENTION_ROWS ? s->n_few - i : QN_CUDA_ATTENTION_ROWS;
        QN_TRY(run_decode(&group, op));
    }
    return QN_OK;
}

qn_status qn_cuda_run_attention_op(const qn_cuda_rows_step *s, const qn_op *op)
{
    if (op->kind == QN_OP_QK_NORM_ROPE_STORE)
        return run_qk_norm_rope_store(s, op);
    if (op->kind == QN_OP_K_NORM_ROPE_STORE)
        return run_k_norm_rope_store(s, op);
    if (op->kind == QN_OP_ATTENTION)
        return run_attention(s, op);
    return QN_OK; /* QN_OP_ATTENTION_COMBINE: QN_OP_ATTENTION has combined the splits */
}
