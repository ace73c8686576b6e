/* Rows of pieces of few rows are computed in splits, whose partials are then combined; those of pieces of many rows in
 * tiles that share keys. */
#include "vulkan/executor/attention.h"

#include "plan/page.h"
#include "vulkan/executor/activations.h"

#include <string.h>

static qn_status dispatch(const qn_vk_recording *r, qn_vk_launch launch, const void *args)
{
    return qn_vk_dispatch(r->common->vk, r->commands, &launch, args);
}

static uint64_t input(const qn_vk_recording *r, size_t offset)
{
    return r->workspace->inputs.address + offset;
}

static uint64_t buffer(const qn_vk_recording *r, int id)
{
    return r->workspace->buffers[id];
}

/* ---- A layer's cache ---- */

/* Where a layer's rows of fp16 are, and the tables of their pages: those of fp16 pages in a cache of codes. */
typedef struct fp16_rows {
    uint64_t tables;
    uint32_t key_at, value_at;
} fp16_rows;

static fp16_rows fp16_rows_of(const qn_vk_recording *r, const qn_gpu_layer_cache *c)
{
    return qn_gpu_has_codes(&r->format->base)
               ? (fp16_rows){ input(r, r->inputs.f16_tables), (uint32_t)c->f16_keys, (uint32_t)c->f16_values }
               : (fp16_rows){ input(r, r->inputs.kv_tables), (uint32_t)c->keys, (uint32_t)c->values };
}

/* ---- Rope and storing ---- */

/* Sets the arguments of queries, keys and values. */
static void fill_heads(const qn_vk_recording *r, const qn_op *op, qn_vk_rope_args *of)
{
    const qn_attention_shape *h = &op->qk_norm_rope_store.shape;
    const qn_op_addresses *vectors = &r->weights->ops[op - r->common->plan->ops].vectors;
    const qn_gpu_layer_cache cache = qn_gpu_layer_cache_of(&r->format->base, (size_t)op->layer);
    const fp16_rows rows = fp16_rows_of(r, &cache);
    const qn_vk_rotation *rotation = &r->format->key_rotation;
    qn_vk_rope_args args = { .x = buffer(r, op->qk_norm_rope_store.queries),
                             .y = buffer(r, op->qk_norm_rope_store.out),
                             .bias = vectors->qk_norm_rope_store.q_bias,
                             .weight = vectors->qk_norm_rope_store.q_norm,
                             .angles = input(r, r->workspace->angles_at),
                             .signs = rotation->signs,
                             .matrix = rotation->forward,
                             .tables = rows.tables,
                             .positions = input(r, r->inputs.positions),
                             .sequences = input(r, r->inputs.sequences),
                             .granules = r->caches->memory.table.address,
                             .shift = r->caches->memory.shift,
                             .at = rows.key_at,
                             .stride = (uint32_t)(h->gated ? 2 * h->head_dim : h->head_dim),
                             .dim = (uint32_t)h->head_dim,
                             .n_rot = (uint32_t)h->n_rot,
                             .is_interleaved = h->rope == QN_ROPE_TYPE_NORM,
                             .eps = op->qk_norm_rope_store.eps,
                             .scale = h->scale,
                             .factor = rotation->factor };
    of[0] = args;
    args.x = buffer(r, op->qk_norm_rope_store.keys);
    args.y = 0;
    args.bias = vectors->qk_norm_rope_store.k_bias;
    args.weight = vectors->qk_norm_rope_store.k_norm;
    args.stride = args.dim;
    args.scale = 1;
    of[1] = args;
    rotation = &r->format->value_rotation;
    args.x = buffer(r, op->qk_norm_rope_store.values);
    args.bias = vectors->qk_norm_rope_store.v_bias;
    args.weight = 0;
    args.signs = rotation->signs;
    args.matrix = rotation->forward;
    args.at = rows.value_at;
    args.n_rot = 0;
    args.factor = rotation->factor;
    of[2] = args;
}

/* Records the kernels of queries, keys and values, none of which reads what another writes. */
static qn_status record_heads(const qn_vk_recording *r, const qn_op *op)
{
    const qn_attention_shape *h = &op->qk_norm_rope_store.shape;
    qn_vk_rope_args of[3];
    fill_heads(r, op, of);
    QN_TRY(dispatch(r, qn_vk_rope(r->n, h->n_heads), &of[0]));
    QN_TRY(dispatch(r, qn_vk_rope(r->n, h->n_kv_heads), &of[1]));
    return dispatch(r, qn_vk_rope(r->n, h->n_kv_heads), &of[2]);
}

uint64_t qn_vk_write_heads(const qn_vk_recording *r, const qn_op *op)
{
    const size_t at = r->workspace->heads_at + (size_t)op->layer * sizeof(qn_vk_heads);
    qn_vk_heads heads = { .arrived = r->workspace->arrived.address };
    fill_heads(r, op, heads.of);
    memcpy(r->workspace->inputs.host + at, &heads, sizeof heads);
    return input(r, at);
}

/* Quantises completed pages of n_layers attention layers, from `layer` on. */
static qn_status quantize_pages(const qn_vk_recording *r, int layer, size_t n_layers, size_t n_pages)
{
    const qn_gpu_format *f = &r->format->base;
    const qn_gpu_layer_cache c = qn_gpu_layer_cache_of(f, (size_t)layer);
    const qn_vk_quantize_args args = { .tables = input(r, r->inputs.kv_tables),
                                       .f16_tables = input(r, r->inputs.f16_tables),
                                       .first_positions = input(r, r->inputs.first_positions),
                                       .row_begins = input(r, r->inputs.cu_seqlens),
                                       .granules = r->caches->memory.table.address,
                                       .levels = r->format->levels,
                                       .shift = r->caches->memory.shift,
                                       .dim = (uint32_t)f->saved.head_dim,
                                       .key_at = (uint32_t)c.keys,
                                       .value_at = (uint32_t)c.values,
                                       .key_scales_at = (uint32_t)c.key_scales,
                                       .value_scales_at = (uint32_t)c.value_scales,
                                       .f16_key_at = (uint32_t)c.f16_keys,
                                       .f16_value_at = (uint32_t)c.f16_values,
                                       .means_at = (uint32_t)c.means,
                                       .layer_bytes = (uint32_t)f->kv.layer_bytes,
                                       .f16_layer_bytes = (uint32_t)f->kv.f16_layer_bytes,
                                       .n_pieces = r->is_decode ? 0 : (uint32_t)r->n_sequences };
    return dispatch(r, qn_vk_quantize(&r->format->codes, n_pages, f->saved.n_heads, n_layers), &args);
}

qn_status qn_vk_record_quantize(const qn_vk_recording *r)
{
    const qn_plan *plan = r->common->plan;
    const qn_gpu_format *f = &r->format->base;
    if (!r->is_decode || !qn_gpu_has_codes(f) || !f->saved.n_attention)
        return QN_OK;
    size_t first = 0;
    while (!(qn_op_desc_of(plan->ops[first].kind)->writes & QN_USES_KV))
        first++;
    return quantize_pages(r, plan->ops[first].layer, f->saved.n_attention, r->n_sequences);
}

static size_t completed_pages(const qn_vk_recording *r)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n_sequences; i++)
        n += (r->pieces[i].position + r->pieces[i].n) / QN_PAGE - r->pieces[i].position / QN_PAGE;
    return n;
}

qn_status qn_vk_record_store(const qn_vk_recording *r, const qn_op *op)
{
    QN_TRY(record_heads(r, op));
    const size_t n_pages = r->is_decode || !qn_gpu_has_codes(&r->format->base) ? 0 : completed_pages(r);
    if (!n_pages)
        return QN_OK;
    qn_vk_barrier(r->common->vk, r->commands);
    return quantize_pages(r, op->layer, 1, n_pages);
}

/* ---- Attention ---- */

static qn_vk_attention_args attention_args(const qn_vk_recording *r, const qn_op *op)
{
    const qn_attention_shape *h = &op->attention.shape;
    const qn_gpu_layer_cache c = qn_gpu_layer_cache_of(&r->format->base, (size_t)op->layer);
    const fp16_rows rows = fp16_rows_of(r, &c);
    return (qn_vk_attention_args){ .queries = buffer(r, op->attention.queries),
                                   .y = buffer(r, op->attention.out),
                                   .tables = input(r, r->inputs.kv_tables),
                                   .f16_tables = rows.tables,
                                   .positions = input(r, r->inputs.positions),
                                   .sequences = input(r, r->inputs.sequences),
                                   .granules = r->caches->memory.table.address,
                                   .levels = r->format->levels,
                                   .shift = r->caches->memory.shift,
                                   .heads_per_kv = (uint32_t)(h->n_heads / h->n_kv_heads),
                                   .n_heads = (uint32_t)h->n_heads,
                                   .key_at = (uint32_t)c.keys,
                                   .value_at = (uint32_t)c.values,
                                   .key_scales_at = (uint32_t)c.key_scales,
                                   .value_scales_at = (uint32_t)c.value_scales,
                                   .f16_key_at = rows.key_at,
                                   .f16_value_at = rows.value_at,
                                   .means_at = (uint32_t)c.means,
                                   .n_splits = (uint32_t)r->workspace->n_splits };
}

/* Records the pieces of many rows. */
static qn_status record_pieces(const qn_vk_recording *r, const qn_op *op)
{
    const qn_attention_shape *h = &op->attention.shape;
    qn_vk_attention_args args = attention_args(r, op);
    for (size_t i = 0; i < r->n_sequences; i++) {
        const qn_gpu_piece *piece = &r->pieces[i];
        if (piece->row < r->n_few)
            continue;
        args.row = piece->row;
        args.n_rows = piece->n;
        args.position = piece->position;
        args.sequence = (uint32_t)i;
        QN_TRY(dispatch(
            r,
            qn_vk_attention_rows(&r->format->codes, h->head_dim, piece->position, piece->n, h->n_heads, h->n_kv_heads),
            &args));
    }
    return QN_OK;
}

/* Records splits of n rows from `row` on; combination: qn_vk_combination of a single row, 0: none. */
static qn_status record_splits(const qn_vk_recording *r, const qn_op *op, size_t row, size_t n, uint64_t combination)
{
    const qn_attention_shape *h = &op->attention.shape;
    qn_vk_attention_args args = attention_args(r, op);
    args.y = r->workspace->partials.address;
    args.row = (uint32_t)row;
    args.position = (uint32_t)combination;
    args.sequence = (uint32_t)(combination >> 32);
    return dispatch(r,
                    qn_vk_attention_splits(&r->format->codes, h->head_dim, n, h->n_heads, h->n_kv_heads, args.n_splits,
                                           combination != 0),
                    &args);
}

/* The activations of the ATTENTION_COMBINE that follows, which the kernel that combines writes; -1: none. */
static int combined_acts(const qn_vk_recording *r, const qn_op *op)
{
    const qn_plan *plan = r->common->plan;
    if (op->kind != QN_OP_ATTENTION || r->n_few != r->n || op[1].kind != QN_OP_ATTENTION_COMBINE ||
        op->attention.shape.head_dim % QN_QUANT_GROUP)
        return -1;
    const qn_op_acts *acts = qn_op_acts_of(&op[1]);
    const int id = acts->at[0];
    const bool has_floats = r->workspace->acts[id] && qn_vk_is_computed(plan, &op[1], id);
    return acts->n == 1 && r->workspace->codes[id] && !has_floats && !plan->acts[id].rotation.block ? id : -1;
}

bool qn_vk_is_combined(const qn_vk_recording *r, size_t at)
{
    return combined_acts(r, &r->common->plan->ops[at]) >= 0;
}

/* Writes qn_vk_combination among the inputs, for a decode step of a single row, and returns its address; 0: splits are
 * combined by a kernel of their own. */
static uint64_t write_combination(const qn_vk_recording *r, const qn_op *op)
{
    const int acts = combined_acts(r, op);
    if (acts < 0 || !r->is_decode || r->n != 1)
        return 0;
    const qn_vk_rotation *rotation = &r->format->value_rotation;
    const bool is_gated = op[1].attention_combine.shape.gated;
    const qn_vk_combination c = { .arrived = r->workspace->arrived.address,
                                  .signs = rotation->signs,
                                  .matrix = rotation->inverse,
                                  .codes = r->workspace->codes[acts],
                                  .gates = is_gated ? buffer(r, op[1].attention_combine.queries) : 0,
                                  .planes = qn_vk_act_planes(&r->common->plan->acts[acts]),
                                  .factor = rotation->factor };
    const size_t at = r->workspace->combinations_at + (size_t)op->layer * sizeof c;
    memcpy(r->workspace->inputs.host + at, &c, sizeof c);
    return input(r, at);
}

static qn_status record_combine(const qn_vk_recording *r, const qn_op *op, bool has_partials, size_t row, size_t n)
{
    const qn_attention_shape *h = &op->attention.shape;
    const qn_vk_rotation *rotation = &r->format->value_rotation;
    const int acts = combined_acts(r, op);
    const bool is_gated = acts >= 0 && op[1].attention_combine.shape.gated;
    const qn_vk_combine_args args = { .partials = has_partials ? r->workspace->partials.address : 0,
                                      .y = buffer(r, op->attention.out),
                                      .positions = input(r, r->inputs.positions),
                                      .sequences = input(r, r->inputs.sequences),
                                      .signs = rotation->signs,
                                      .matrix = rotation->inverse,
                                      .codes = acts >= 0 ? r->workspace->codes[acts] : 0,
                                      .gates = is_gated ? buffer(r, op[1].attention_combine.queries) : 0,
                                      .planes = acts >= 0 ? qn_vk_act_planes(&r->common->plan->acts[acts]) : 0,
                                      .row = (uint32_t)row,
                                      .dim = (uint32_t)h->head_dim,
                                      .n_splits = (uint32_t)r->workspace->n_splits,
                                      .factor = rotation->factor };
    return dispatch(r, qn_vk_combine(n, h->n_heads), &args);
}

/* Groups of rows use the same partials. */
qn_status qn_vk_record_attention(const qn_vk_recording *r, const qn_op *op)
{
    const size_t n_many = r->n - r->n_few;
    bool rotates = n_many && qn_gpu_has_codes(&r->format->base);
    const uint64_t combination = write_combination(r, op);
    if (combination)
        return record_splits(r, op, 0, 1, combination);
    QN_TRY(record_pieces(r, op));
    for (size_t row = 0, n; row < r->n_few; row += n) {
        n = r->n_few - row < r->workspace->partial_rows ? r->n_few - row : r->workspace->partial_rows;
        if (row)
            qn_vk_barrier(r->common->vk, r->commands);
        QN_TRY(record_splits(r, op, row, n, 0));
        qn_vk_barrier(r->common->vk, r->commands);
        QN_TRY(record_combine(r, op, true, row, n));
        if (rotates)
            QN_TRY(record_combine(r, op, false, r->n_few, n_many));
        rotates = false;
    }
    if (!rotates)
        return QN_OK;
    qn_vk_barrier(r->common->vk, r->commands);
    return record_combine(r, op, false, r->n_few, n_many);
}
