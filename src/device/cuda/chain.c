/* Which of a token's operations are chained, and what the stages read and write.
 *
 * Operations are taken in groups that end in a product: what writes activations, with its product; a recurrent layer from its
 * convolution to its output's product; attention over a cache of halves the same. A value of the plan's buffers is then not in
 * its place but in parts, or, the stream of rows, in a place to which parts are still to be added. Where a chain ends, what the
 * launches behind it read is stored in its place. */
#include "device/cuda/chain.h"

#include "base/memory.h"
#include "device/cuda/model.h"
#include "kernels/deltanet/deltanet_cuda.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

enum { ALIGN = 256, GDN_HEAD = 128, MOST_HALF_TILES = 32 };

/* ---- What an operation reads and writes ---- */

static bool reads(const qn_op *op, int buffer)
{
    switch (op->kind) {
    case QN_OP_EMBED:
    case QN_OP_LOGITS: return false;
    case QN_OP_NORM:
    case QN_OP_LOGIT_NORM:
    case QN_OP_ATTENTION: return op->in == buffer;
    case QN_OP_ATTENTION_OUT: return op->in == buffer || (op->heads.gated && op->in2 == buffer);
    case QN_OP_SWIGLU: return op->in == buffer || op->in2 == buffer;
    case QN_OP_HEADS:
    case QN_OP_CONV:
    case QN_OP_DELTA: return op->in == buffer || op->in2 == buffer || op->in3 == buffer;
    case QN_OP_DELTA_OUT:
        return op->in == buffer || op->in2 == buffer || op->in3 == buffer || op->in4 == buffer || op->in5 == buffer;
    case QN_OP_MATMUL: break;
    }
    for (size_t i = 0; i < op->n_matrices; i++)
        if (op->matrices[i].accumulate && op->matrices[i].out == buffer)
            return true;
    return false;
}

static bool writes(const qn_op *op, int buffer)
{
    switch (op->kind) {
    case QN_OP_EMBED:
    case QN_OP_HEADS:
    case QN_OP_ATTENTION:
    case QN_OP_CONV:
    case QN_OP_DELTA: return op->out == buffer;
    case QN_OP_MATMUL: break;
    default: return false;
    }
    for (size_t i = 0; i < op->n_matrices; i++)
        if (op->matrices[i].out == buffer)
            return true;
    return false;
}

/* ---- Products ---- */

/* An operation's product as far as it does not depend on how its columns are made. */
struct product {
    const qn_cuda_product *main, *halves; /* halves may be none */
    qn_chain_product stage;
};

static bool share_product(const qn_cuda_model *model, const qn_matmul_tiles *tiles, struct product *product)
{
    const qn_cuda_product *main = product->main, *halves = product->halves;
    const qn_plan_rotation *rotation = &model->plan->acts[main->acts].rotation;
    if (main->area.n_cols > UINT32_MAX - QN_TILE_COLS || main->area.n_tiles > UINT32_MAX / QN_TILE_ROWS ||
        rotation->block > UINT32_MAX || main->area.n_cols % 32)
        return false;
    product->stage = (qn_chain_product){
        .n_cols = (uint32_t)main->area.n_cols,
        .signs = rotation->block ? model->acts[main->acts].signs : 0,
        .rotation = (uint32_t)rotation->block,
        .weights = main->area.address,
        .n_tiles = (uint32_t)main->area.n_tiles,
        .n_chunks = (uint32_t)((main->area.n_cols + QN_TILE_COLS - 1) / QN_TILE_COLS),
        .halves = halves ? halves->area.address : 0,
        .half_tiles = halves ? (uint32_t)halves->area.n_tiles : 0,
    };
    return qn_chain_gpu_share(&model->chain_gpu, tiles, &product->stage) == QN_OK;
}

/* Whether operation `at`, a MATMUL, can be a stage over such tiles: one product of them, with a few rows of halves at most. */
static bool find_product(const qn_cuda_model *model, const qn_matmul_tiles *tiles, size_t at, struct product *out)
{
    const qn_op *op = &model->plan->ops[at];
    const qn_cuda_op *beside = &model->ops[at];
    *out = (struct product){ 0 };
    if (op->kind != QN_OP_MATMUL)
        return false;
    for (size_t i = 0; i < beside->n_products; i++) {
        const qn_cuda_product *product = &beside->products[i];
        if (qn_cuda_same_tiles(&product->area.tiles, tiles) && !out->main)
            out->main = product;
        else if (product->area.tiles.bits == 16 && !model->plan->acts[product->acts].rotation.block &&
                 product->area.n_tiles <= MOST_HALF_TILES && !out->halves)
            out->halves = product;
        else
            return false;
    }
    return out->main && share_product(model, tiles, out);
}

/* ---- Room ---- */

/* How much of the model chains over such tiles would read, in tiles' chunks. */
static uint64_t chained_chunks(const qn_cuda_model *model, const qn_matmul_tiles *tiles)
{
    struct product product;
    uint64_t chunks = 0;
    if (!qn_chain_gpu_takes(&model->chain_gpu, tiles))
        return 0;
    for (size_t i = 0; i < model->plan->n_ops; i++)
        if (find_product(model, tiles, i, &product))
            chunks += (uint64_t)product.stage.n_tiles * product.stage.n_chunks;
    return chunks;
}

/* All stages of a chain read weights of one kind: the one that most of the model has. */
static qn_matmul_tiles choose_tiles(const qn_cuda_model *model)
{
    qn_matmul_tiles best = { 0 };
    uint64_t most = 0;
    for (size_t i = 0; i < model->plan->n_ops; i++)
        for (size_t p = 0; model->plan->ops[i].kind == QN_OP_MATMUL && p < model->ops[i].n_products; p++) {
            const qn_matmul_tiles *tiles = &model->ops[i].products[p].area.tiles;
            const uint64_t chunks = qn_cuda_same_tiles(tiles, &best) ? 0 : chained_chunks(model, tiles);
            if (chunks > most) {
                most = chunks;
                best = *tiles;
            }
        }
    return best;
}

/* The most that a product leaves, in floats, and the widest row that is normalised. */
struct sizes {
    size_t parts, halves, x;
};

static struct sizes most_of(const qn_cuda_model *model, const qn_matmul_tiles *tiles)
{
    const qn_plan *plan = model->plan;
    struct sizes most = { 0 };
    for (size_t i = 0; i < plan->n_ops; i++) {
        struct product product;
        if (plan->ops[i].kind == QN_OP_NORM && plan->buffers[plan->ops[i].in].width > most.x)
            most.x = plan->buffers[plan->ops[i].in].width;
        if (!find_product(model, tiles, i, &product))
            continue;
        const size_t parts = (size_t)product.stage.n_slices * product.stage.n_tiles * QN_TILE_ROWS,
                     halves = (size_t)product.stage.n_chunks * product.stage.half_tiles * QN_TILE_ROWS;
        most.parts = parts > most.parts ? parts : most.parts;
        most.halves = halves > most.halves ? halves : most.halves;
    }
    return most;
}

static bool add_floats(uint64_t address, size_t *used, size_t count, uint64_t *at)
{
    size_t bytes;
    *at = address + *used;
    return qn_mul_size(count, sizeof(float), &bytes) && qn_add_size(bytes, ALIGN - 1, &bytes) &&
           qn_add_size(*used, bytes / ALIGN * ALIGN, used);
}

qn_status qn_cuda_chain_lay_out(const qn_cuda_model *model, uint64_t address, qn_cuda_chain_room *room, size_t *bytes)
{
    const qn_attention_shape *h = &model->plan->heads;
    const qn_recurrent_shape *r = &model->plan->recurrent;
    *bytes = 0;
    *room = (qn_cuda_chain_room){ .tiles = choose_tiles(model) };
    if (!room->tiles.bits)
        return QN_OK;
    const struct sizes most = most_of(model, &room->tiles);
    const size_t splits = h->n_heads * QN_CHAIN_MOST_SPLITS;
    bool fits = add_floats(address, bytes, 1, &room->meeting) && add_floats(address, bytes, most.x, &room->x) &&
                add_floats(address, bytes, r->n_v_heads * r->head_v, &room->heads) &&
                add_floats(address, bytes, splits * h->head_dim, &room->partials) &&
                add_floats(address, bytes, splits * 2, &room->maxima);
    for (size_t i = 0; i < QN_CUDA_PARTS; i++)
        fits = fits && add_floats(address, bytes, most.parts, &room->parts[i].data) &&
               add_floats(address, bytes, most.halves, &room->parts[i].halves) &&
               add_floats(address, bytes, QN_CHAIN_MOST_SLICES, &room->parts[i].squares);
    return fits ? QN_OK : qn_fail(QN_ERR_MEMORY, "step: sums of %zu rows do not fit in memory", most.parts);
}

/* ---- Values ---- */

/* Where a buffer's value is: at `base`, or in parts, from number `row` on, or the sum of both. */
struct value {
    uint64_t base;
    qn_chain_parts parts;
    uint32_t row;
    size_t kept; /* which of the room's parts */
    bool stored; /* in its place, too */
};

/* How an operation is taken. */
enum taken { LAUNCHED, CHAINED, ACTS_CHAINED };

struct planner {
    const qn_cuda_model *model;
    const qn_cuda_memory *memory;
    const qn_plan *plan;
    qn_cuda_token *token; /* NULL in a first pass, which finds out how operations are taken */
    enum taken *taken;    /* [n_ops] */
    struct value *values; /* [n_buffers] */
    bool open;            /* a chain, since */
    size_t first_op, first_stage;
};

static bool is_home(const struct planner *p, int buffer)
{
    const struct value *v = &p->values[buffer];
    return v->stored || (v->base == qn_cuda_rows(p->model, buffer) && !v->parts.n_parts);
}

static void set_home(struct planner *p, int buffer)
{
    p->values[buffer] = (struct value){ .base = qn_cuda_rows(p->model, buffer) };
}

/* Whether anything from operation `at` on still reads it. */
static bool is_live(const struct planner *p, int buffer, size_t at)
{
    for (; at < p->plan->n_ops; at++) {
        if (reads(&p->plan->ops[at], buffer))
            return true;
        if (writes(&p->plan->ops[at], buffer))
            return false;
    }
    return false;
}

/* Whether one of the launches from operation `at` on, up to the next chain, reads it in its place. */
static bool is_launched_for(const struct planner *p, int buffer, size_t at)
{
    for (; at < p->plan->n_ops && p->taken[at] != CHAINED; at++) {
        if (reads(&p->plan->ops[at], buffer))
            return true;
        if (writes(&p->plan->ops[at], buffer) || p->taken[at] == ACTS_CHAINED)
            return false;
    }
    return false;
}

/* Parts that nobody from operation `at` on reads; QN_CUDA_PARTS where there are none. */
static size_t free_parts(const struct planner *p, size_t at)
{
    for (size_t kept = 0; kept < QN_CUDA_PARTS; kept++) {
        bool used = false;
        for (int b = 0; (size_t)b < p->plan->n_buffers && !used; b++)
            used = p->values[b].parts.n_parts && p->values[b].kept == kept && is_live(p, b, at);
        if (!used)
            return kept;
    }
    return QN_CUDA_PARTS;
}

/* The other place of a stream of rows; 0 where another buffer is there. */
static uint64_t other_place(const struct planner *p, int buffer)
{
    const uint64_t home = qn_cuda_rows(p->model, buffer);
    if (p->values[buffer].base != home)
        return home;
    for (size_t b = 0; b < p->plan->n_buffers; b++)
        if (p->values[b].base == p->model->chains.x)
            return 0;
    return p->model->chains.x;
}

/* Parts as they are, or floats in their place as a single part. */
static bool as_parts(const struct planner *p, int buffer, qn_chain_parts *parts, uint32_t *row)
{
    const struct value *v = &p->values[buffer];
    *row = v->row;
    *parts = v->parts;
    if (v->parts.n_parts)
        return !v->base;
    *parts = (qn_chain_parts){ .data = v->base, .n_parts = 1, .stride = (uint32_t)p->plan->buffers[buffer].width };
    return true;
}

static bool same_parts(const qn_chain_parts *a, const qn_chain_parts *b)
{
    return a->data == b->data && a->squares == b->squares;
}

/* ---- Stages ---- */

static qn_status add_stage(struct planner *p, size_t op, const qn_chain_stage *stage)
{
    qn_cuda_token *token = p->token;
    if (!token)
        return QN_OK;
    if (!p->open) {
        p->open = true;
        p->first_op = op;
        p->first_stage = token->n_stages;
    }
    QN_TRY(qn_realloc_array(&token->stages, &token->cap_stages, token->n_stages + 1, sizeof *token->stages, "stages"));
    token->stages[token->n_stages++] = *stage;
    return QN_OK;
}

static qn_status add_segment(struct planner *p, const qn_cuda_segment *segment)
{
    qn_cuda_token *token = p->token;
    if (!token)
        return QN_OK;
    QN_TRY(
        qn_realloc_array(&token->segments, &token->cap_segments, token->n_segments + 1, sizeof *token->segments, "segments"));
    token->segments[token->n_segments++] = *segment;
    return QN_OK;
}

/* The product of operation at+1, whose columns are made as `product` says, from what is live at operation `at`. */
static qn_status add_product(struct planner *p, size_t at, const struct product *product, qn_chain_product stage)
{
    const qn_op *op = &p->plan->ops[at + 1];
    const size_t kept = free_parts(p, at);
    const bool norm = stage.make == QN_CHAIN_NORM;
    const qn_cuda_chain_room *room = &p->model->chains;
    stage.out = room->parts[kept].data;
    stage.squares = norm ? room->parts[kept].squares : 0;
    stage.half_out = product->halves ? room->parts[kept].halves : 0;
    QN_TRY(add_stage(p, at, &(qn_chain_stage){ .kind = QN_CHAIN_PRODUCT, .u.product = stage }));
    for (int b = 0; (size_t)b < p->plan->n_buffers; b++)
        if (p->values[b].parts.n_parts && p->values[b].kept == kept)
            set_home(p, b); /* nobody reads it any more */
    if (norm)
        p->values[p->plan->ops[at].in] = (struct value){ .base = stage.x_out };
    for (size_t half = 0; half < 2; half++) {
        const qn_cuda_product *of = half ? product->halves : product->main;
        const qn_chain_parts parts = { .data = half ? stage.half_out : stage.out,
                                       .squares = stage.squares,
                                       .n_parts = half ? stage.n_chunks : stage.n_slices,
                                       .stride = (half ? stage.half_tiles : stage.n_tiles) * QN_TILE_ROWS,
                                       .n_squares = norm ? stage.n_slices : 0,
                                       .n_cols = stage.n_cols,
                                       .eps = norm ? p->plan->ops[at].eps : 0 };
        for (size_t i = 0; of && i < of->area.n_outs; i++) {
            const int out = op->matrices[of->matrices[i]].out;
            p->values[out] = (struct value){ .base = of->area.outs[i].accumulate ? p->values[out].base : 0,
                                             .parts = parts,
                                             .row = of->area.outs[i].first_tile * QN_TILE_ROWS,
                                             .kept = kept };
        }
    }
    return QN_OK;
}

/* Whether the product of operation at+1 can be a stage now. What it adds to is in one place, and is not what its own input
 * depends on being normalised. */
static bool product_fits(const struct planner *p, size_t at, bool norm, struct product *product)
{
    if (at + 1 >= p->plan->n_ops || !find_product(p->model, &p->model->chains.tiles, at + 1, product) ||
        free_parts(p, at) == QN_CUDA_PARTS)
        return false;
    const qn_op *op = &p->plan->ops[at + 1];
    for (size_t i = 0; i < op->n_matrices; i++)
        if (op->matrices[i].accumulate && (norm || p->values[op->matrices[i].out].parts.n_parts))
            return false;
    return norm || !product->halves;
}

static void take(struct planner *p, size_t at, size_t n, size_t *n_fused)
{
    for (size_t i = at; i < at + n; i++)
        p->taken[i] = CHAINED;
    *n_fused = n;
}

/* ---- Where a chain ends ---- */

/* One stage for what is in the same parts as `buffer`, which then is in its place. */
static qn_status add_store(struct planner *p, int buffer, size_t at)
{
    qn_chain_stage stage = { .kind = QN_CHAIN_STORE, .u.store.from = p->values[buffer].parts };
    qn_chain_store *store = &stage.u.store;
    for (int b = buffer; (size_t)b < p->plan->n_buffers && store->n_outs < QN_CHAIN_OUTS; b++) {
        struct value *v = &p->values[b];
        if (is_home(p, b) || !is_launched_for(p, b, at) || !same_parts(&v->parts, &store->from))
            continue;
        store->outs[store->n_outs].out = qn_cuda_rows(p->model, b);
        store->outs[store->n_outs].x = v->base;
        store->outs[store->n_outs].row = v->row;
        store->outs[store->n_outs++].n_rows = (uint32_t)p->plan->buffers[b].width;
        if (v->base)
            set_home(p, b);
        else
            v->stored = true;
    }
    return add_stage(p, at, &stage);
}

/* The chain that is open ends before operation `at`. */
static qn_status end_chain(struct planner *p, size_t at)
{
    qn_cuda_token *token = p->token;
    if (!p->open)
        return QN_OK;
    for (int b = 0; (size_t)b < p->plan->n_buffers; b++)
        if (!is_home(p, b) && is_launched_for(p, b, at))
            QN_TRY(add_store(p, b, at));
    p->open = false;
    qn_chain_stage *stages = token->stages + p->first_stage;
    const size_t n = token->n_stages - p->first_stage;
    uint32_t next = (uint32_t)n;
    for (size_t i = n; i-- > 0;) {
        stages[i].next_product = next;
        if (stages[i].kind == QN_CHAIN_PRODUCT)
            next = (uint32_t)i;
    }
    return add_segment(
        p, &(qn_cuda_segment){ .op = p->first_op, .n_ops = at - p->first_op, .stage = p->first_stage, .n_stages = n });
}

/* ---- Groups: each looks whether it fits, and adds its stages, or takes nothing ---- */

static qn_status add_norm(struct planner *p, size_t at, size_t *n_fused)
{
    const qn_op *op = &p->plan->ops[at];
    const struct value *x = &p->values[op->in];
    struct product product;
    const uint64_t x_out = other_place(p, op->in);
    if (!product_fits(p, at, true, &product) || !x->base || x->row || !x_out)
        return QN_OK;
    qn_chain_product stage = product.stage;
    stage.make = QN_CHAIN_NORM;
    stage.x = x->base;
    stage.x_out = x_out;
    stage.weight = p->model->ops[at].weight;
    stage.from = x->parts;
    take(p, at, 2, n_fused);
    return add_product(p, at, &product, stage);
}

static qn_status add_swiglu(struct planner *p, size_t at, size_t *n_fused)
{
    const qn_op *op = &p->plan->ops[at];
    const struct value *gate = &p->values[op->in], *up = &p->values[op->in2];
    struct product product;
    if (!product_fits(p, at, false, &product) || gate->base || up->base || !same_parts(&gate->parts, &up->parts))
        return QN_OK;
    qn_chain_product stage = product.stage;
    stage.make = QN_CHAIN_SWIGLU;
    stage.from = gate->parts;
    stage.row = gate->row;
    stage.row2 = up->row;
    take(p, at, 2, n_fused);
    return add_product(p, at, &product, stage);
}

/* CONV, DELTA, DELTA_OUT and the output's product. */
static qn_status add_delta(struct planner *p, size_t at, size_t *n_fused)
{
    const qn_op *conv = &p->plan->ops[at], *out = conv + 2;
    const qn_recurrent_shape *r = &p->plan->recurrent;
    const uint64_t state = (uint64_t)p->memory->slots[conv->layer] * p->memory->layer_bytes;
    struct product product;
    if (at + 3 >= p->plan->n_ops || conv[1].kind != QN_OP_DELTA || out->kind != QN_OP_DELTA_OUT || r->head_k != GDN_HEAD ||
        r->head_v != GDN_HEAD || r->taps > QN_GDN_MAX_TAPS || !product_fits(p, at + 2, false, &product))
        return QN_OK;
    qn_chain_product stage = product.stage;
    qn_chain_delta delta = { .conv = p->model->ops[at].weight,
                             .bias = p->model->ops[at].weight2,
                             .factor = p->model->ops[at].weight3,
                             .out = p->model->chains.heads,
                             .state_offset = state,
                             .inputs_offset = state + p->memory->state_bytes,
                             .k_heads = (uint32_t)r->n_k_heads,
                             .v_heads = (uint32_t)r->n_v_heads,
                             .taps = (uint32_t)r->taps,
                             .scale = (float)(1 / sqrt((double)r->head_k)) };
    if (!as_parts(p, conv->in, &delta.qkv, &delta.qkv_row) || !as_parts(p, conv->in2, &delta.alpha, &delta.alpha_row) ||
        !as_parts(p, conv->in3, &delta.beta, &delta.beta_row) || !as_parts(p, out->in2, &stage.from, &stage.row))
        return QN_OK;
    stage.make = QN_CHAIN_GATED;
    stage.x = p->model->chains.heads;
    stage.weight = p->model->ops[at + 2].weight;
    stage.head = (uint32_t)r->head_v;
    stage.n_heads = (uint32_t)r->n_v_heads;
    stage.n_k_heads = (uint32_t)r->n_k_heads;
    stage.grouped = out->grouped;
    stage.eps = out->eps;
    take(p, at, 4, n_fused);
    QN_TRY(add_stage(p, at, &(qn_chain_stage){ .kind = QN_CHAIN_DELTA, .u.delta = delta }));
    return add_product(p, at + 2, &product, stage);
}

/* HEADS, ATTENTION, ATTENTION_OUT and the output's product, over a cache of halves. */
static qn_status add_attention(struct planner *p, size_t at, size_t *n_fused)
{
    const qn_op *heads = &p->plan->ops[at];
    const qn_attention_shape *h = &heads->heads;
    const struct value *q = &p->values[heads->in], *k = &p->values[heads->in2], *v = &p->values[heads->in3];
    const uint32_t splits = qn_chain_gpu_splits(&p->model->chain_gpu, h->head_dim, h->n_heads, h->n_kv_heads, h->n_rot);
    struct product product;
    if (at + 3 >= p->plan->n_ops || heads[1].kind != QN_OP_ATTENTION || heads[2].kind != QN_OP_ATTENTION_OUT ||
        p->memory->attention.runs || !splits || q->base || k->base || v->base || !same_parts(&q->parts, &k->parts) ||
        !same_parts(&q->parts, &v->parts) || !product_fits(p, at + 2, false, &product))
        return QN_OK;
    qn_attention_gpu_runs none;
    qn_chain_attention attention = { .qkv = q->parts,
                                     .q_row = q->row,
                                     .k_row = k->row,
                                     .v_row = v->row,
                                     .query_stride = (uint32_t)(h->gated ? 2 * h->head_dim : h->head_dim),
                                     .head_dim = (uint32_t)h->head_dim,
                                     .n_heads = (uint32_t)h->n_heads,
                                     .n_kv_heads = (uint32_t)h->n_kv_heads,
                                     .n_rot = (uint32_t)h->n_rot,
                                     .interleaved = h->rope == QN_ROPE_PAIRS,
                                     .n_splits = splits,
                                     .query_weight = p->model->ops[at].weight,
                                     .key_weight = p->model->ops[at].weight2,
                                     .cosines = p->model->cosines.address,
                                     .sines = p->model->sines.address,
                                     .partials = p->model->chains.partials,
                                     .maxima = p->model->chains.maxima,
                                     .eps = heads->eps,
                                     .scale = h->scale };
    qn_cuda_session_cache(p->memory, (size_t)heads->layer, &attention.cache, &none);
    qn_chain_product stage = product.stage;
    stage.make = QN_CHAIN_MERGED;
    stage.x = attention.partials;
    stage.maxima = attention.maxima;
    stage.head = attention.head_dim;
    stage.n_heads = attention.n_heads;
    stage.n_splits = attention.n_splits;
    stage.gated = h->gated;
    if (h->gated) {
        stage.from = q->parts;
        stage.row = q->row;
    }
    take(p, at, 4, n_fused);
    QN_TRY(add_stage(p, at, &(qn_chain_stage){ .kind = QN_CHAIN_ATTENTION, .u.attention = attention }));
    return add_product(p, at + 2, &product, stage);
}

/* ATTENTION_OUT and DELTA_OUT whose floats are launched; the product of them. */
static qn_status add_plain(struct planner *p, size_t at, size_t *n_fused)
{
    const qn_op *op = &p->plan->ops[at];
    struct product product;
    if (!product_fits(p, at, false, &product))
        return QN_OK;
    QN_TRY(end_chain(p, at));
    QN_TRY(add_segment(p, &(qn_cuda_segment){ .op = at, .n_ops = 1, .without_acts = true }));
    set_home(p, op->in);
    qn_chain_product stage = product.stage;
    stage.make = QN_CHAIN_PLAIN;
    stage.x = qn_cuda_rows(p->model, op->in);
    take(p, at, 2, n_fused);
    p->taken[at] = ACTS_CHAINED;
    return add_product(p, at, &product, stage);
}

static qn_status add_group(struct planner *p, size_t at, size_t *n_fused)
{
    *n_fused = 0;
    if (!p->model->chains.tiles.bits || (p->token && p->taken[at] == LAUNCHED))
        return QN_OK;
    switch (p->plan->ops[at].kind) {
    case QN_OP_NORM: return add_norm(p, at, n_fused);
    case QN_OP_SWIGLU: return add_swiglu(p, at, n_fused);
    case QN_OP_CONV: return add_delta(p, at, n_fused);
    case QN_OP_HEADS: return add_attention(p, at, n_fused);
    case QN_OP_ATTENTION_OUT:
    case QN_OP_DELTA_OUT: return add_plain(p, at, n_fused);
    default: return QN_OK;
    }
}

/* ---- A token ---- */

static qn_status add_launch(struct planner *p, size_t at)
{
    const qn_op *op = &p->plan->ops[at];
    QN_TRY(end_chain(p, at));
    for (int b = 0; (size_t)b < p->plan->n_buffers; b++)
        if (writes(op, b))
            set_home(p, b);
    return qn_cuda_is_logits(op) ? QN_OK : add_segment(p, &(qn_cuda_segment){ .op = at, .n_ops = 1 });
}

static qn_status walk(struct planner *p)
{
    for (int b = 0; (size_t)b < p->plan->n_buffers; b++)
        set_home(p, b);
    for (size_t at = 0, n_fused; at < p->plan->n_ops; at += n_fused) {
        QN_TRY(add_group(p, at, &n_fused));
        if (!n_fused) {
            QN_TRY(add_launch(p, at));
            n_fused = 1;
        }
    }
    return end_chain(p, p->plan->n_ops);
}

qn_status qn_cuda_chain_plan(const qn_cuda_model *model, const qn_cuda_memory *memory, qn_cuda_token *token)
{
    struct planner p = { .model = model, .memory = memory, .plan = model->plan };
    token->n_segments = token->n_stages = 0;
    QN_TRY(qn_alloc(&p.taken, p.plan->n_ops, sizeof *p.taken, "plan"));
    qn_status status = qn_alloc(&p.values, p.plan->n_buffers, sizeof *p.values, "plan");
    if (status == QN_OK)
        status = walk(&p);
    p.token = token;
    if (status == QN_OK)
        status = walk(&p);
    qn_free(p.taken);
    qn_free(p.values);
    return status;
}
