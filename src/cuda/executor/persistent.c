/* The decode plan: selects the operations of a decode step that become phases of the persistent decode kernel, and sets
 * the addresses that the phases read and write. Operations are fused in groups that end in a GEMV: NORM, SWIGLU,
 * ATTENTION_COMBINE or GATED_NORM with its MATMUL; a recurrent layer from CONV to the output's MATMUL; attention over
 * an fp16 KV cache from QK_NORM_ROPE_STORE to the output's MATMUL. Consecutive groups form a segment, which is one
 * launch. Within a segment the value of a plan buffer is not in the buffer: it is in split-K partials, or, for the
 * residual stream, in a base buffer plus partials that are still to be added (struct location). At the end of a
 * segment, STORE phases write the values that later launches read to their buffers. Several rows of different sequences
 * have a separate plan, with other partitions, and with a phase before each GEMV that computes its activations. Arrays
 * of the workspace have the rows outermost. */
#include "cuda/executor/persistent.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GDN_HEAD_DIM = 128 };

static bool reads(const qn_op *op, int buffer)
{
    return qn_op_access(op, buffer) & QN_READS;
}

static bool writes(const qn_op *op, int buffer)
{
    return qn_op_access(op, buffer) & QN_WRITES;
}

/* ---- Values ---- */

/* The current location of a plan buffer's value: at `base`, or in split-K partials from element `row` on, or the sum of
 * both. */
struct location {
    uint64_t base;
    qn_persistent_partials gemv_partials;
    uint32_t row;
    size_t slot; /* index of the partials in qn_cuda_persistent_workspace.gemv_partials */
    bool stored; /* a STORE phase has also written it to the plan's buffer */
};

/* How an operation is executed: launched; in a phase; launched without quantisation of its output, which the next GEMV
 * phase does. */
enum exec_mode { LAUNCHED, PERSISTENT, ACTS_PERSISTENT };

struct planner {
    const qn_cuda_workspace *workspace;
    const qn_cuda_format *format;
    const qn_plan *plan;
    uint32_t n_rows;
    qn_cuda_decode_plan *decode_plan; /* NULL in the first pass, which only sets exec_mode */
    enum exec_mode *exec_mode;        /* of each operation of the trunk */
    struct location *locations;       /* [n_buffers] */
    bool open;                        /* a segment of phases is open; it begins at first_op and first_phase */
    size_t first_op, first_phase;
};

static bool is_in_place(const struct planner *p, int buffer)
{
    const struct location *v = &p->locations[buffer];
    return v->stored || (v->base == qn_cuda_rows(p->workspace, buffer) && !v->gemv_partials.n_partials);
}

static void set_in_place(struct planner *p, int buffer)
{
    p->locations[buffer] = (struct location){ .base = qn_cuda_rows(p->workspace, buffer) };
}

/* Whether an operation from `at` on reads the buffer before it is written again. */
static bool is_live(const struct planner *p, int buffer, size_t at)
{
    for (; at < qn_plan_trunk_ops(p->plan); at++) {
        if (reads(&p->plan->ops[at], buffer))
            return true;
        if (writes(&p->plan->ops[at], buffer))
            return false;
    }
    return false;
}

/* Whether one of the launched operations from `at` on, up to the next segment of phases, reads the buffer. */
static bool read_by_launch(const struct planner *p, int buffer, size_t at)
{
    for (; at < qn_plan_trunk_ops(p->plan) && p->exec_mode[at] != PERSISTENT; at++) {
        if (reads(&p->plan->ops[at], buffer))
            return true;
        if (writes(&p->plan->ops[at], buffer) || p->exec_mode[at] == ACTS_PERSISTENT)
            return false;
    }
    return false;
}

/* A partials buffer that no operation from `at` on reads; QN_CUDA_PARTIALS if there is none. */
static size_t find_free_partials(const struct planner *p, size_t at)
{
    for (size_t slot = 0; slot < QN_CUDA_PARTIALS; slot++) {
        bool used = false;
        for (int b = 0; (size_t)b < p->plan->n_buffers && !used; b++)
            used = p->locations[b].gemv_partials.n_partials && p->locations[b].slot == slot && is_live(p, b, at);
        if (!used)
            return slot;
    }
    return QN_CUDA_PARTIALS;
}

/* The other of the two buffers of a residual stream; 0 if another value occupies it. */
static uint64_t other_buffer(const struct planner *p, int buffer)
{
    const uint64_t own_buffer = qn_cuda_rows(p->workspace, buffer);
    if (p->locations[buffer].base != own_buffer)
        return own_buffer;
    for (size_t b = 0; b < p->plan->n_buffers; b++)
        if (p->locations[b].base == p->workspace->persistent.x)
            return 0;
    return p->workspace->persistent.x;
}

/* Describes the buffer's value as partials; a value in the plan's buffer is one partial. False if it is a base plus
 * partials. */
static bool as_partials(const struct planner *p, int buffer, qn_persistent_partials *gemv_partials, uint32_t *row)
{
    const struct location *v = &p->locations[buffer];
    *row = v->row;
    *gemv_partials = v->gemv_partials;
    if (v->gemv_partials.n_partials)
        return !v->base;
    *gemv_partials = (qn_persistent_partials){ .data = v->base,
                                               .n_partials = 1,
                                               .stride = (uint32_t)p->plan->buffers[buffer].width };
    return true;
}

static bool same_partials(const qn_persistent_partials *a, const qn_persistent_partials *b)
{
    return a->data == b->data && a->sumsq == b->sumsq;
}

/* ---- Phases ---- */

static qn_status add_phase(struct planner *p, size_t op, const qn_persistent_phase *phase)
{
    qn_cuda_decode_plan *decode_plan = p->decode_plan;
    if (!decode_plan)
        return QN_OK;
    if (!p->open) {
        p->open = true;
        p->first_op = op;
        p->first_phase = decode_plan->n_phases;
    }
    QN_TRY(qn_realloc_array(&decode_plan->phases, &decode_plan->cap_phases, decode_plan->n_phases + 1,
                            sizeof *decode_plan->phases, "phases"));
    decode_plan->phases[decode_plan->n_phases++] = *phase;
    return QN_OK;
}

static qn_status add_segment(struct planner *p, const qn_cuda_segment *segment)
{
    qn_cuda_decode_plan *decode_plan = p->decode_plan;
    if (!decode_plan)
        return QN_OK;
    QN_TRY(qn_realloc_array(&decode_plan->segments, &decode_plan->cap_segments, decode_plan->n_segments + 1,
                            sizeof *decode_plan->segments, "segments"));
    decode_plan->segments[decode_plan->n_segments++] = *segment;
    return QN_OK;
}

/* The number of sums of squares of a GEMV with RMS norm. */
static uint32_t n_sumsq(const struct planner *p, const qn_persistent_gemv *phase)
{
    return p->n_rows > 1 ? QN_PERSISTENT_ROWS_SUMSQ(phase->n_cols) : phase->n_slices;
}

/* Adds the GEMV phase of operation at+1 with the prologue of `phase`, which includes operation `at`. The partials go to
 * a buffer that is free at operation `at`. */
static qn_status add_gemv(struct planner *p, size_t at, const qn_cuda_gemv_phase *gemv, qn_persistent_gemv phase)
{
    const qn_op *op = &p->plan->ops[at + 1];
    const size_t slot = find_free_partials(p, at);
    const bool norm = phase.prologue == QN_PROLOGUE_RMS_NORM;
    const qn_cuda_persistent_workspace *workspace = &p->workspace->persistent;
    phase.out = workspace->gemv_partials[slot].data;
    phase.sumsq = norm ? workspace->gemv_partials[slot].sumsq : 0;
    phase.f16_out = gemv->f16_rows ? workspace->gemv_partials[slot].f16_rows : 0;
    if (p->n_rows > 1)
        QN_TRY(add_phase(p, at, &(qn_persistent_phase){ .kind = QN_PHASE_ACTS, .u.gemv = phase }));
    QN_TRY(add_phase(p, at, &(qn_persistent_phase){ .kind = QN_PHASE_GEMV, .u.gemv = phase }));
    for (int b = 0; (size_t)b < p->plan->n_buffers; b++)
        if (p->locations[b].gemv_partials.n_partials && p->locations[b].slot == slot)
            set_in_place(p, b); /* no later operation reads it */
    if (norm)
        p->locations[p->plan->ops[at].norm.in] = (struct location){ .base = phase.x_out };
    for (size_t is_f16 = 0; is_f16 < 2; is_f16++) {
        const qn_cuda_gemm *of = is_f16 ? gemv->f16_rows : gemv->main;
        const qn_persistent_partials gemv_partials = { .data = is_f16 ? phase.f16_out : phase.out,
                                                       .sumsq = phase.sumsq,
                                                       .n_partials = is_f16 ? phase.n_k_tiles : phase.n_slices,
                                                       .stride =
                                                           (is_f16 ? phase.n_f16_tiles : phase.n_tiles) * QN_TILE_ROWS,
                                                       .n_sumsq = norm ? n_sumsq(p, &phase) : 0,
                                                       .n_cols = phase.n_cols,
                                                       .eps = norm ? p->plan->ops[at].norm.eps : 0 };
        for (size_t i = 0; of && i < of->tiled_matrix.n_outs; i++) {
            const int out = op->matmul.matrices.at[of->group.matrices[i]].out;
            p->locations[out] =
                (struct location){ .base = of->tiled_matrix.outs[i].accumulate ? p->locations[out].base : 0,
                                   .gemv_partials = gemv_partials,
                                   .row = of->tiled_matrix.outs[i].first_tile * QN_TILE_ROWS,
                                   .slot = slot };
        }
    }
    return QN_OK;
}

/* Whether the MATMUL of operation at+1 can be a GEMV phase now. A buffer that it accumulates to must be without pending
 * partials, and with an RMS norm it must not accumulate: its partials lack the norm's factor. fp16 rows need an RMS
 * norm. */
static bool gemv_fits(const struct planner *p, size_t at, bool norm, qn_cuda_gemv_phase *gemv)
{
    if (at + 1 >= qn_plan_trunk_ops(p->plan) ||
        !qn_cuda_find_gemv(p->workspace->weights, &p->workspace->persistent.tiles, p->n_rows, at + 1, gemv) ||
        find_free_partials(p, at) == QN_CUDA_PARTIALS || (norm && n_sumsq(p, &gemv->phase) > QN_PERSISTENT_MAX_SLICES))
        return false;
    const qn_op *op = &p->plan->ops[at + 1];
    for (size_t i = 0; i < op->matmul.matrices.n; i++)
        if (op->matmul.matrices.at[i].accumulate &&
            (norm || p->locations[op->matmul.matrices.at[i].out].gemv_partials.n_partials))
            return false;
    return norm || !gemv->f16_rows;
}

static void mark_fused(struct planner *p, size_t at, size_t n, size_t *n_fused)
{
    for (size_t i = at; i < at + n; i++)
        p->exec_mode[i] = PERSISTENT;
    *n_fused = n;
}

/* ---- The end of a segment ---- */

/* Adds one STORE phase for `buffer` and the other buffers in the same partials that a launch reads. */
static qn_status add_store(struct planner *p, int buffer, size_t at)
{
    qn_persistent_phase phase = { .kind = QN_PHASE_STORE, .u.store.from = p->locations[buffer].gemv_partials };
    qn_persistent_store *store = &phase.u.store;
    for (int b = buffer; (size_t)b < p->plan->n_buffers && store->n_outs < QN_PERSISTENT_MAX_OUTS; b++) {
        struct location *v = &p->locations[b];
        if (is_in_place(p, b) || !read_by_launch(p, b, at) || !same_partials(&v->gemv_partials, &store->from))
            continue;
        store->outs[store->n_outs].out = qn_cuda_rows(p->workspace, b);
        store->outs[store->n_outs].x = v->base;
        store->outs[store->n_outs].row = v->row;
        store->outs[store->n_outs++].n_rows = (uint32_t)p->plan->buffers[b].width;
        if (v->base)
            set_in_place(p, b);
        else
            v->stored = true;
    }
    return add_phase(p, at, &phase);
}

/* Ends the open segment of phases, if any, before operation `at`. */
static qn_status end_segment(struct planner *p, size_t at)
{
    qn_cuda_decode_plan *decode_plan = p->decode_plan;
    if (!p->open)
        return QN_OK;
    for (int b = 0; (size_t)b < p->plan->n_buffers; b++)
        if (!is_in_place(p, b) && read_by_launch(p, b, at))
            QN_TRY(add_store(p, b, at));
    p->open = false;
    qn_persistent_phase *phases = decode_plan->phases + p->first_phase;
    const size_t n = decode_plan->n_phases - p->first_phase;
    uint32_t next = (uint32_t)n;
    for (size_t i = n; i-- > 0;) {
        phases[i].next_gemv = next;
        if (phases[i].kind == QN_PHASE_GEMV)
            next = (uint32_t)i;
    }
    return add_segment(
        p, &(qn_cuda_segment){ .op = p->first_op, .n_ops = at - p->first_op, .phase = p->first_phase, .n_phases = n });
}

/* ---- Fused groups: each adds its phases and sets *n_fused, or leaves *n_fused at 0 if it does not fit ---- */

static qn_status add_norm(struct planner *p, size_t at, size_t *n_fused)
{
    const qn_op *op = &p->plan->ops[at];
    const struct location *x = &p->locations[op->norm.in];
    qn_cuda_gemv_phase gemv;
    const uint64_t x_out = other_buffer(p, op->norm.in);
    if (!gemv_fits(p, at, true, &gemv) || !x->base || x->row || !x_out)
        return QN_OK;
    qn_persistent_gemv phase = gemv.phase;
    phase.prologue = QN_PROLOGUE_RMS_NORM;
    phase.x = x->base;
    phase.x_out = x_out;
    phase.weight = p->workspace->weights->ops[at].vectors.norm.weight;
    phase.from = x->gemv_partials;
    mark_fused(p, at, 2, n_fused);
    return add_gemv(p, at, &gemv, phase);
}

static qn_status add_swiglu(struct planner *p, size_t at, size_t *n_fused)
{
    const qn_op *op = &p->plan->ops[at];
    const struct location *gate = &p->locations[op->swiglu.gate], *up = &p->locations[op->swiglu.up];
    qn_cuda_gemv_phase gemv;
    if (!gemv_fits(p, at, false, &gemv) || gate->base || up->base ||
        !same_partials(&gate->gemv_partials, &up->gemv_partials))
        return QN_OK;
    qn_persistent_gemv phase = gemv.phase;
    phase.prologue = QN_PROLOGUE_SWIGLU;
    phase.from = gate->gemv_partials;
    phase.row = gate->row;
    phase.row2 = up->row;
    mark_fused(p, at, 2, n_fused);
    return add_gemv(p, at, &gemv, phase);
}

/* Adds the phases of CONV, DELTA_RULE, GATED_NORM and the output's MATMUL. *n_fused: the number of operations; 0: they
 * cannot be phases. */
static qn_status add_delta(struct planner *p, size_t at, size_t *n_fused)
{
    const qn_op *conv = &p->plan->ops[at], *out = conv + 2;
    const qn_recurrent_shape *r = &p->plan->recurrent;
    qn_cuda_gemv_phase gemv;
    if (at + 3 >= qn_plan_trunk_ops(p->plan) || conv[1].kind != QN_OP_DELTA_RULE || out->kind != QN_OP_GATED_NORM ||
        r->head_k != GDN_HEAD_DIM || r->head_v != GDN_HEAD_DIM || r->taps > QN_GDN_MAX_TAPS ||
        !gemv_fits(p, at + 2, false, &gemv))
        return QN_OK;
    qn_persistent_gemv phase = gemv.phase;
    qn_persistent_delta delta = { .conv = p->workspace->weights->ops[at].vectors.conv.taps,
                                  .bias = p->workspace->weights->ops[at].vectors.conv.bias,
                                  .factor = p->workspace->weights->ops[at].vectors.conv.factor,
                                  .out = p->workspace->persistent.heads,
                                  .state_offset = qn_gpu_state_offset(p->plan, conv->layer),
                                  .open = qn_gpu_open_layout(p->plan, conv->layer),
                                  .k_heads = (uint32_t)r->n_k_heads,
                                  .v_heads = (uint32_t)r->n_v_heads,
                                  .taps = (uint32_t)r->taps,
                                  .scale = (float)(1 / sqrt((double)r->head_k)) };
    if (!as_partials(p, conv->conv.qkv, &delta.qkv, &delta.qkv_row) ||
        !as_partials(p, conv->conv.alpha, &delta.alpha, &delta.alpha_row) ||
        !as_partials(p, conv->conv.beta, &delta.beta, &delta.beta_row) ||
        !as_partials(p, out->gated_norm.gate, &phase.from, &phase.row))
        return QN_OK;
    phase.prologue = QN_PROLOGUE_GATED_NORM;
    phase.x = p->workspace->persistent.heads;
    phase.weight = p->workspace->weights->ops[at + 2].vectors.gated_norm.weight;
    phase.head = (uint32_t)r->head_v;
    phase.n_heads = (uint32_t)r->n_v_heads;
    phase.n_k_heads = (uint32_t)r->n_k_heads;
    phase.grouped = out->gated_norm.grouped;
    phase.eps = out->gated_norm.eps;
    mark_fused(p, at, 4, n_fused);
    QN_TRY(add_phase(p, at, &(qn_persistent_phase){ .kind = QN_PHASE_DELTA, .u.delta = delta }));
    return add_gemv(p, at + 2, &gemv, phase);
}

bool qn_cuda_has_code_phases(const qn_cuda_workspace *workspace, const qn_cuda_format *format)
{
    const qn_attention_gpu *a = &format->attention;
    return a->pages && workspace->persistent.tiles.bits && format->codecs[0].rotation.signs &&
           format->codecs[1].rotation.signs &&
           qn_persistent_gpu_supports_codes(&workspace->common->persistent_gpu, &workspace->persistent.tiles,
                                            a->head_dim, a->key_bits, a->value_bits);
}

/* Whether attention over the format's cache can be a phase with this number of splits. */
static bool supports_cache(const struct planner *p, uint32_t splits)
{
    return p->format->attention.pages ? p->n_rows == 1 && splits > 1 && qn_cuda_has_code_phases(p->workspace, p->format)
                                      : splits > 0;
}

static void set_layer_cache(const struct planner *p, size_t layer, qn_persistent_attention *attention)
{
    qn_attention_gpu_cache cache;
    qn_attention_gpu_pages pages;
    qn_cuda_layer_cache(p->format, layer, &cache, &pages);
    attention->cache = (qn_persistent_cache){ .keys = cache.keys,
                                              .values = cache.values,
                                              .key_scales = cache.key_scales,
                                              .value_scales = cache.value_scales,
                                              .key_head_stride = cache.key_head_stride,
                                              .value_head_stride = cache.value_head_stride,
                                              .scale_head_stride = cache.scale_head_stride,
                                              .tables = p->workspace->inputs + qn_gpu_inputs_of(1, 1, 0, 0).kv_tables };
    attention->f16_keys = pages.keys;
    attention->f16_values = pages.values;
    attention->means = pages.means;
}

qn_persistent_codes qn_cuda_persistent_codes(const qn_cuda_workspace *workspace, const qn_cuda_format *format)
{
    const qn_cuda_codec *c = format->codecs;
    qn_attention_gpu_cache cache;
    qn_attention_gpu_pages pages;
    qn_cuda_layer_cache(format, 0, &cache, &pages); /* the strides of all layers are equal */
    qn_persistent_codes codes;
    memset(&codes, 0, sizeof codes); /* padding too: equal steps have equal arguments */
    codes.keys.codebook = c[0].levels.codebook;
    codes.keys.signs = c[0].rotation.signs;
    codes.keys.gain = c[0].gain;
    codes.values.codebook = c[1].levels.codebook;
    codes.values.signs = c[1].rotation.signs;
    codes.values.gain = c[1].gain;
    codes.tables = workspace->inputs + qn_gpu_inputs_of(1, 1, 0, 0).f16_tables;
    codes.f16_head = pages.head;
    return codes;
}

/* Adds the phases of QK_NORM_ROPE_STORE, ATTENTION, ATTENTION_COMBINE and the output's MATMUL. *n_fused: the number of
 * operations; 0: they cannot be phases. */
static qn_status add_attention(struct planner *p, size_t at, size_t *n_fused)
{
    const qn_op *heads = &p->plan->ops[at];
    const qn_attention_shape *h = &heads->qk_norm_rope_store.shape;
    const qn_op_addresses *vectors = &p->workspace->weights->ops[at].vectors;
    const struct location *q = &p->locations[heads->qk_norm_rope_store.queries],
                          *k = &p->locations[heads->qk_norm_rope_store.keys],
                          *v = &p->locations[heads->qk_norm_rope_store.values];
    const uint32_t splits = qn_persistent_gpu_splits(&p->workspace->common->persistent_gpu, h->head_dim, h->n_heads,
                                                     h->n_kv_heads, h->n_rot);
    qn_cuda_gemv_phase gemv;
    if (at + 3 >= qn_plan_trunk_ops(p->plan) || heads[1].kind != QN_OP_ATTENTION ||
        heads[2].kind != QN_OP_ATTENTION_COMBINE || !supports_cache(p, splits) || q->base || k->base || v->base ||
        !same_partials(&q->gemv_partials, &k->gemv_partials) || !same_partials(&q->gemv_partials, &v->gemv_partials) ||
        !gemv_fits(p, at + 2, false, &gemv))
        return QN_OK;
    qn_persistent_attention attention = { .qkv = q->gemv_partials,
                                          .q_row = q->row,
                                          .k_row = k->row,
                                          .v_row = v->row,
                                          .query_stride = (uint32_t)(h->gated ? 2 * h->head_dim : h->head_dim),
                                          .head_dim = (uint32_t)h->head_dim,
                                          .n_heads = (uint32_t)h->n_heads,
                                          .n_kv_heads = (uint32_t)h->n_kv_heads,
                                          .n_rot = (uint32_t)h->n_rot,
                                          .interleaved = h->rope == QN_ROPE_TYPE_NORM,
                                          .n_splits = splits,
                                          .query_bias = vectors->qk_norm_rope_store.q_bias,
                                          .key_bias = vectors->qk_norm_rope_store.k_bias,
                                          .value_bias = vectors->qk_norm_rope_store.v_bias,
                                          .query_weight = vectors->qk_norm_rope_store.q_norm,
                                          .key_weight = vectors->qk_norm_rope_store.k_norm,
                                          .cosines = p->workspace->cosines.address,
                                          .sines = p->workspace->sines.address,
                                          .partials = p->workspace->persistent.partials,
                                          .maxima = p->workspace->persistent.maxima,
                                          .eps = heads->qk_norm_rope_store.eps,
                                          .scale = h->scale };
    set_layer_cache(p, (size_t)heads->layer, &attention);
    qn_persistent_gemv phase = gemv.phase;
    phase.prologue = QN_PROLOGUE_ATTENTION_COMBINE;
    phase.x = attention.partials;
    phase.maxima = attention.maxima;
    phase.head = attention.head_dim;
    phase.n_heads = attention.n_heads;
    phase.n_splits = attention.n_splits;
    phase.gated = h->gated;
    if (h->gated) {
        phase.from = q->gemv_partials;
        phase.row = q->row;
    }
    mark_fused(p, at, 4, n_fused);
    QN_TRY(add_phase(p, at, &(qn_persistent_phase){ .kind = QN_PHASE_ATTENTION, .u.attention = attention }));
    return add_gemv(p, at + 2, &gemv, phase);
}

/* Plans ATTENTION_COMBINE or GATED_NORM as a launch that writes f32, then the MATMUL as a GEMV phase. `in` is the
 * buffer that the launch writes to. GATED_NORM of several rows writes to scratch, where its activations are
 * quantised. */
static qn_status add_plain(struct planner *p, size_t at, int in, size_t *n_fused)
{
    qn_cuda_gemv_phase gemv;
    if (!gemv_fits(p, at, false, &gemv) || (p->n_rows > 1 && p->plan->ops[at].kind == QN_OP_GATED_NORM))
        return QN_OK;
    QN_TRY(end_segment(p, at));
    QN_TRY(add_segment(p, &(qn_cuda_segment){ .op = at, .n_ops = 1, .skip_acts = true }));
    set_in_place(p, in);
    qn_persistent_gemv phase = gemv.phase;
    phase.prologue = QN_PROLOGUE_PLAIN;
    phase.x = qn_cuda_rows(p->workspace, in);
    mark_fused(p, at, 2, n_fused);
    p->exec_mode[at] = ACTS_PERSISTENT;
    return add_gemv(p, at, &gemv, phase);
}

static qn_status add_fused(struct planner *p, size_t at, size_t *n_fused)
{
    const qn_op *op = &p->plan->ops[at];
    *n_fused = 0;
    if (!p->workspace->persistent.tiles.bits || (p->decode_plan && p->exec_mode[at] == LAUNCHED))
        return QN_OK;
    switch (op->kind) {
    case QN_OP_NORM: return add_norm(p, at, n_fused);
    case QN_OP_SWIGLU: return add_swiglu(p, at, n_fused);
    case QN_OP_CONV: return add_delta(p, at, n_fused);
    case QN_OP_QK_NORM_ROPE_STORE: return add_attention(p, at, n_fused);
    case QN_OP_ATTENTION_COMBINE: return add_plain(p, at, op->attention_combine.in, n_fused);
    case QN_OP_GATED_NORM: return add_plain(p, at, op->gated_norm.in, n_fused);
    case QN_OP_MATMUL:
    case QN_OP_ATTENTION:
    case QN_OP_DELTA_RULE: /* inside or at the end of a group */
    case QN_OP_EMBED:
    case QN_OP_INPUT:
    case QN_OP_K_NORM_ROPE_STORE:
    case QN_OP_PAIR:
    case QN_OP_PAIR_NORM:
    case QN_OP_CAPTURE:
    case QN_OP_FUSE:
    case QN_OP_LOGIT_NORM:
    case QN_OP_LOGITS: break;
    }
    return QN_OK;
}

/* ---- The plan ---- */

static qn_status add_launch(struct planner *p, size_t at)
{
    const qn_op *op = &p->plan->ops[at];
    QN_TRY(end_segment(p, at));
    for (int b = 0; (size_t)b < p->plan->n_buffers; b++)
        if (writes(op, b))
            set_in_place(p, b);
    return qn_op_is_logits(op) ? QN_OK : add_segment(p, &(qn_cuda_segment){ .op = at, .n_ops = 1 });
}

static qn_status plan_ops(struct planner *p)
{
    for (int b = 0; (size_t)b < p->plan->n_buffers; b++)
        set_in_place(p, b);
    for (size_t at = 0, n_fused; at < qn_plan_trunk_ops(p->plan); at += n_fused) {
        QN_TRY(add_fused(p, at, &n_fused));
        if (!n_fused) {
            QN_TRY(add_launch(p, at));
            n_fused = 1;
        }
    }
    return end_segment(p, qn_plan_trunk_ops(p->plan));
}

qn_status qn_cuda_plan_decode(const qn_cuda_workspace *workspace, const qn_cuda_format *format, uint32_t n_rows,
                              qn_cuda_decode_plan *decode_plan)
{
    struct planner p = { .workspace = workspace, .format = format, .plan = workspace->common->plan, .n_rows = n_rows };
    decode_plan->n_segments = decode_plan->n_phases = 0;
    QN_TRY(qn_alloc(&p.exec_mode, qn_plan_trunk_ops(p.plan), sizeof *p.exec_mode, "plan"));
    qn_status status = qn_alloc(&p.locations, p.plan->n_buffers, sizeof *p.locations, "plan");
    if (status == QN_OK)
        status = plan_ops(&p);
    p.decode_plan = decode_plan;
    if (status == QN_OK)
        status = plan_ops(&p);
    qn_free(p.exec_mode);
    qn_free(p.locations);
    return status;
}
