/* Builds the draft head of a DFlash drafter. */
#include "model/dflash.h"

#include "base/memory.h"
#include "model/hparams.h"
#include "model/keys.h"
#include "plan/limits.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const qn_architecture dflash = { .name = "dflash", .rope = QN_ROPE_TYPE_NEOX, .qk_norm = true, .windows = true };

/* The block has a token that is known, and at most as many as a draft (QN_DRAFT_TOKENS). */
enum { MIN_BLOCK = 2, MAX_BLOCK = 16, MAX_LAYERS = 64, MAX_CAPTURED = 32, MAX_RANK = 4096 };

/* What a file says besides qn_hparams. */
struct drafter {
    qn_hparams hparams;
    uint32_t block, mask_token;
    bool is_causal, from_anchor;
    uint32_t rank; /* of the Markov head; 0: there is none */
    uint32_t window;
    bool slides[MAX_LAYERS]; /* layers that attend to the window */
    uint32_t captured[MAX_CAPTURED];
    size_t n_captured;
};

/* Tensors that are the drafter's own, but those of its layers. */
struct tensors {
    qn_weight fuse;
    const float *fused_norm, *output_norm;
    qn_matrix markov_table; /* of the token before */
    qn_weight markov;
};

/* Parts of drafters of other kinds, by a tensor that only they have. */
static const struct other_kind {
    const char *tensor, *kind;
} other_kinds[] = {
    { "selector_hidden.weight", "DFlash 2, with a selector" },
    { "d2t", "of a vocabulary of its own" },
};

/* ---- Keys ---- */

static qn_status check_kind(const qn_gguf *file)
{
    for (size_t i = 0; i < sizeof other_kinds / sizeof *other_kinds; i++)
        if (qn_gguf_find_tensor(file, other_kinds[i].tensor))
            return qn_fail(QN_ERR_UNSUPPORTED, "%s: tensor '%s': a drafter that is %s, which is not supported",
                           qn_gguf_path(file), other_kinds[i].tensor, other_kinds[i].kind);
    return QN_OK;
}

static qn_status read_captured(const qn_gguf *file, const qn_hparams *model, struct drafter *d)
{
    static const char key[] = "dflash.target_layers";
    const qn_gguf_kv *list = qn_gguf_find(file, key);
    if (!list || list->type != QN_GGUF_ARRAY || !list->count || list->count > MAX_CAPTURED)
        return qn_fail(QN_ERR_FORMAT, "%s: key '%s' is no array of 1 to %d layers", qn_gguf_path(file), key,
                       MAX_CAPTURED);
    for (uint64_t i = 0; i < list->count; i++) {
        int32_t layer;
        QN_TRY(qn_gguf_array_i32(file, list, i, &layer));
        if (layer < 1 || layer >= (int32_t)model->n_layers)
            return qn_fail(QN_ERR_FORMAT, "%s: key '%s': element %d is %d, expected 1 to %u, layers of the model",
                           qn_gguf_path(file), key, (int)i, (int)layer, (unsigned)model->n_layers - 1);
        d->captured[d->n_captured++] = (uint32_t)layer;
    }
    return QN_OK;
}

/* Which layers slide: all, or as a list says. */
static qn_status read_window(const qn_gguf *file, struct drafter *d)
{
    static const char key[] = "dflash.attention.sliding_window_pattern";
    const qn_gguf_kv *list = qn_gguf_find(file, key);
    QN_TRY(qn_key_u32(file, dflash.name, "attention.sliding_window", false, &d->window));
    if (!d->window)
        return QN_OK;
    QN_TRY(qn_check_range(file, "attention.sliding_window", d->window, MAX_BLOCK, 1u << 30));
    if (list && (list->type != QN_GGUF_ARRAY || list->count != d->hparams.n_layers))
        return qn_fail(QN_ERR_FORMAT, "%s: key '%s' is no array of %u elements, one per layer", qn_gguf_path(file), key,
                       (unsigned)d->hparams.n_layers);
    for (uint32_t i = 0; i < d->hparams.n_layers; i++) {
        int32_t flag = 1;
        if (list && list->element_type == QN_GGUF_BOOL)
            flag = list->data[i];
        else if (list)
            QN_TRY(qn_gguf_array_i32(file, list, i, &flag));
        d->slides[i] = flag;
    }
    return QN_OK;
}

/* The mask token, which must be one of the model's, as all tokens of the file are. */
static qn_status read_mask(const qn_gguf *file, const qn_hparams *model, struct drafter *d)
{
    const qn_gguf_kv *tokens = qn_gguf_find(file, "tokenizer.ggml.tokens");
    if (tokens && tokens->type == QN_GGUF_ARRAY && tokens->count > model->n_vocab)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: a drafter for a vocabulary of %llu tokens, the model has %u",
                       qn_gguf_path(file), (unsigned long long)tokens->count, (unsigned)model->n_vocab);
    QN_TRY(qn_gguf_get_u32(file, "tokenizer.ggml.mask_token_id", true, &d->mask_token));
    return qn_check_range(file, "tokenizer.ggml.mask_token_id", d->mask_token, 0, model->n_vocab - 1);
}

/* DSpark: a drafter with a Markov head. Each row of its blocks proposes the token after it, the first one too, unless
 * the file says otherwise, as llama.cpp reads it (src/models/dflash.cpp). */
static qn_status read_markov(const qn_gguf *file, struct drafter *d)
{
    const qn_gguf_tensor *table = qn_gguf_find_tensor(file, "markov_w1.weight");
    if (!table)
        return QN_OK;
    if (!table->dims[0] || table->dims[0] > MAX_RANK)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: tensor 'markov_w1.weight' has rows of %llu elements, expected 1 to %d",
                       qn_gguf_path(file), (unsigned long long)table->dims[0], MAX_RANK);
    d->rank = (uint32_t)table->dims[0];
    d->from_anchor = true;
    return qn_gguf_get_bool(file, "dflash.sample_from_anchor", false, &d->from_anchor);
}

static qn_status read_drafter(const qn_gguf *file, const qn_hparams *model, struct drafter *d)
{
    *d = (struct drafter){ 0 };
    QN_TRY(check_kind(file));
    QN_TRY(qn_hparams_read(file, &dflash, &d->hparams));
    d->hparams.n_vocab = model->n_vocab;
    if (d->hparams.n_embd != model->n_embd)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: a drafter for hidden states of %u elements, those of the model have %u",
                       qn_gguf_path(file), (unsigned)d->hparams.n_embd, (unsigned)model->n_embd);
    QN_TRY(qn_check_range(file, "block_count", d->hparams.n_layers, 1, MAX_LAYERS));
    QN_TRY(qn_key_u32(file, dflash.name, "block_size", true, &d->block));
    QN_TRY(qn_check_range(file, "dflash.block_size", d->block, MIN_BLOCK, MAX_BLOCK));
    QN_TRY(read_captured(file, model, d));
    QN_TRY(read_window(file, d));
    QN_TRY(qn_gguf_get_bool(file, "dflash.attention.causal", false, &d->is_causal));
    QN_TRY(read_markov(file, d));
    return read_mask(file, model, d);
}

bool qn_dflash_is_drafter(const qn_gguf *file)
{
    const qn_gguf_kv *kv = qn_gguf_find(file, "general.architecture");
    qn_string name;
    return kv && kv->type == QN_GGUF_STRING && qn_gguf_get_string(file, "general.architecture", true, &name) == QN_OK &&
           qn_string_equals(name, dflash.name);
}

/* ---- Operations ---- */

/* Captures the input of each listed layer, before the first operation of the layer. */
static qn_status add_captures(qn_plan *plan, const struct drafter *d, int x, int captured)
{
    for (size_t i = 0; i < d->n_captured; i++) {
        size_t at = 0;
        while (plan->ops[at].layer != (int)d->captured[i])
            at++;
        QN_TRY(qn_plan_insert(plan, at,
                              &(qn_op){ .kind = QN_OP_CAPTURE,
                                        .layer = (int)d->captured[i] - 1,
                                        .capture = { .in = x,
                                                     .out = captured,
                                                     .width = plan->buffers[x].width,
                                                     .part = i,
                                                     .n_parts = d->n_captured } }));
    }
    return QN_OK;
}

/* Layers whose keys and values one operation computes. */
enum { PAIR_LAYERS = QN_OP_MATRICES / 2 };

static qn_status add_store(qn_build *build, uint32_t layer, int keys, int values)
{
    const qn_hparams *h = build->hparams;
    const float *k_norm;
    QN_TRY(qn_weights_vector(build->weights, (int)layer, "attn_k_norm.weight", h->head_dim, false, &k_norm));
    return qn_plan_add(
        build->plan,
        &(qn_op){ .kind = QN_OP_K_NORM_ROPE_STORE,
                  .layer = (int)(build->first_layer + layer),
                  .qk_norm_rope_store = {
                      .keys = keys, .values = values, .k_norm = k_norm, .eps = h->eps, .shape = build->shape } });
}

/* The keys and values of layers [first, first + n) to buffers [2 n]. */
static qn_status add_layers_of_pairs(qn_build *build, const struct tensors *t, int fused, uint32_t first, uint32_t n,
                                     const int *outs)
{
    const qn_hparams *h = build->hparams;
    const size_t kv_width = (size_t)h->n_kv_heads * h->head_dim;
    const int layer = (int)(build->first_layer + first);
    qn_weight kv[2 * PAIR_LAYERS];
    for (uint32_t i = 0; i < n; i++) {
        QN_TRY(qn_weights_matrix(build->weights, (int)(first + i), "attn_k.weight", h->n_embd, kv_width, &kv[2 * i]));
        QN_TRY(
            qn_weights_matrix(build->weights, (int)(first + i), "attn_v.weight", h->n_embd, kv_width, &kv[2 * i + 1]));
    }
    QN_TRY(qn_build_matmuls(
        build,
        &(qn_op){ .kind = QN_OP_NORM, .layer = layer, .norm = { .in = fused, .weight = t->fused_norm, .eps = h->eps } },
        layer, kv, outs, 2 * n, false));
    for (uint32_t i = 0; i < n; i++)
        QN_TRY(add_store(build, first + i, outs[2 * i], outs[2 * i + 1]));
    return QN_OK;
}

/* The keys and values of a step's rows in all layers. */
static qn_status add_pairs(qn_build *build, const struct tensors *t, int captured)
{
    const qn_hparams *h = build->hparams;
    const size_t kv_width = (size_t)h->n_kv_heads * h->head_dim;
    int fused, outs[2 * PAIR_LAYERS] = { build->k, build->v };
    QN_TRY(qn_plan_buffer_new(build->plan, h->n_embd, &fused));
    for (size_t i = 2; i < 2 * PAIR_LAYERS; i++)
        QN_TRY(qn_plan_buffer_new(build->plan, kv_width, &outs[i]));
    QN_TRY(qn_build_matmuls(build, &(qn_op){ .kind = QN_OP_FUSE, .layer = -1, .fuse.in = captured }, -1, &t->fuse,
                            &fused, 1, false));
    for (uint32_t i = 0; i < h->n_layers; i += PAIR_LAYERS) {
        const uint32_t n = h->n_layers - i < PAIR_LAYERS ? h->n_layers - i : PAIR_LAYERS;
        QN_TRY(add_layers_of_pairs(build, t, fused, i, n, outs));
    }
    return QN_OK;
}

static bool has(const qn_build *build, const char *name)
{
    return qn_weights_has(build->weights, -1, name);
}

/* The draft step. What it borrows is built with the model's weights, and their rotation. */
static qn_status add_draft(qn_build *build, const qn_build *model, const struct drafter *d, const struct tensors *t)
{
    qn_op embed = { .kind = QN_OP_EMBED, .layer = -1, .embed.out = build->x };
    qn_build table = has(build, "token_embd.weight") ? *build : *model,
             output = has(build, "output.weight") ? *build : *model;
    qn_weight matrix;
    QN_TRY(qn_build_embedding(&table, &embed.embed.table, &embed.embed.inverse));
    QN_TRY(qn_plan_add(build->plan, &embed));
    for (uint32_t i = 0; i < d->hparams.n_layers; i++) {
        build->shape.window = d->slides[i] ? d->window : 0;
        QN_TRY(qn_build_attention(build, i));
        QN_TRY(qn_build_feed_forward(build, i, "ffn_norm.weight"));
    }
    QN_TRY(qn_build_output(&output, &matrix));
    output.x = build->x;
    output.hparams = build->hparams;
    return qn_build_logits(&output, t->output_norm, &matrix);
}

/* The chain: a vector of a token times a matrix. */
static qn_status add_chain(qn_build *build, const struct drafter *d, const struct tensors *t)
{
    int vector;
    if (!d->rank)
        return QN_OK;
    build->plan->head.chain = build->plan->n_ops;
    QN_TRY(qn_plan_buffer_new(build->plan, d->rank, &vector));
    QN_TRY(qn_plan_add(
        build->plan,
        &(qn_op){ .kind = QN_OP_EMBED, .layer = -1, .embed = { .table = t->markov_table, .out = vector } }));
    return qn_build_matmuls(build, &(qn_op){ .kind = QN_OP_FUSE, .layer = -1, .fuse.in = vector }, -1, &t->markov, NULL,
                            1, false);
}

/* ---- The drafter ---- */

/* Appends n elements to an array of the plan that has one for each layer. */
static qn_status grow_layers(const qn_plan *plan, void **array, size_t n, size_t bytes)
{
    void *grown;
    if (!*array)
        return QN_OK;
    QN_TRY(qn_alloc(&grown, plan->n_layers + n, bytes, "list of layers"));
    memcpy(grown, *array, plan->n_layers * bytes);
    qn_free(*array);
    *array = grown;
    return QN_OK;
}

static qn_status add_layers(qn_plan *plan, const struct drafter *d, const qn_attention_shape *shape)
{
    const size_t n = d->hparams.n_layers;
    void *is_recurrent = plan->is_recurrent, *kv_bias = plan->kv_bias;
    qn_status status = grow_layers(plan, &is_recurrent, n, sizeof *plan->is_recurrent);
    plan->is_recurrent = is_recurrent;
    if (status == QN_OK)
        status = grow_layers(plan, &kv_bias, n, sizeof *plan->kv_bias);
    plan->kv_bias = kv_bias;
    if (status != QN_OK)
        return status;
    plan->n_layers += n;
    plan->head = (qn_plan_head){ .n_layers = n,
                                 .heads = *shape,
                                 .block = d->block,
                                 .mask_token = (int32_t)d->mask_token,
                                 .is_causal = d->is_causal,
                                 .from_anchor = d->from_anchor,
                                 .rope.attn_factor = d->hparams.rope_scaling.attn_factor };
    return qn_build_frequencies(&d->hparams, NULL, &plan->head.rope.frequencies);
}

/* Caches of codes, if the model has them, need codes for the drafter's heads, too. */
static qn_status check_heads(const qn_gguf *file, size_t head_dim, size_t of_model)
{
    if (qn_aura_has_dim(head_dim) || !qn_aura_has_dim(of_model))
        return QN_OK;
    return qn_fail(QN_ERR_UNSUPPORTED,
                   "%s: heads of %zu elements, for which caches have no codes; those of the model have %zu",
                   qn_gguf_path(file), head_dim, of_model);
}

/* The confidence head is not used: how often tokens are accepted is measured. */
static qn_status read_markov_tensors(qn_weights *w, const struct drafter *d, struct tensors *t)
{
    const size_t rank = d->rank, n_vocab = d->hparams.n_vocab;
    const float *bias;
    qn_matrix unused;
    if (!rank)
        return QN_OK;
    QN_TRY(qn_weights_table(w, "markov_w1.weight", rank, n_vocab, &t->markov_table));
    QN_TRY(qn_weights_matrix(w, -1, "markov_w2.weight", rank, n_vocab, &t->markov));
    if (qn_weights_has(w, -1, "conf_proj.weight"))
        QN_TRY(qn_weights_table(w, "conf_proj.weight", d->hparams.n_embd + rank, 1, &unused));
    return qn_weights_vector(w, -1, "conf_proj.bias", 1, true, &bias);
}

static qn_status read_tensors(qn_weights *w, const struct drafter *d, struct tensors *t)
{
    const size_t e = d->hparams.n_embd;
    if (w->rotation.block)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: a drafter with rotated weights is not supported",
                       qn_gguf_path(w->file));
    QN_TRY(qn_weights_matrix(w, -1, "fc.weight", d->n_captured * e, e, &t->fuse));
    QN_TRY(qn_weights_vector(w, -1, "enc.output_norm.weight", e, false, &t->fused_norm));
    QN_TRY(qn_weights_vector(w, -1, "output_norm.weight", e, false, &t->output_norm));
    return read_markov_tensors(w, d, t);
}

static qn_status build_with(qn_build *model, qn_weights *weights, const struct drafter *d)
{
    const qn_hparams *h = &d->hparams;
    qn_plan *plan = model->plan;
    qn_build build = { .weights = weights,
                       .hparams = h,
                       .plan = plan,
                       .first_layer = (uint32_t)plan->n_layers,
                       .shape = { .n_heads = h->n_heads,
                                  .n_kv_heads = h->n_kv_heads,
                                  .head_dim = h->head_dim,
                                  .n_rot = h->n_rot,
                                  .rope = h->rope,
                                  .scale = (float)(1 / sqrt((double)h->head_dim)) } };
    struct tensors t;
    int captured;
    QN_TRY(check_heads(weights->file, h->head_dim, plan->heads.head_dim));
    QN_TRY(read_tensors(weights, d, &t));
    QN_TRY(add_layers(plan, d, &build.shape));
    QN_TRY(qn_build_buffers(&build));
    QN_TRY(qn_plan_buffer_new(plan, d->n_captured * h->n_embd, &captured));
    QN_TRY(add_captures(plan, d, model->x, captured));
    plan->head.pairs = plan->n_ops;
    QN_TRY(add_pairs(&build, &t, captured));
    plan->head.draft = plan->n_ops;
    QN_TRY(add_draft(&build, model, d, &t));
    QN_TRY(add_chain(&build, d, &t));
    return qn_weights_check_all_used(weights, dflash.name, h->n_layers, h->n_layers);
}

qn_status qn_dflash_build(qn_build *model, const qn_gguf *file)
{
    struct drafter d;
    qn_weights weights;
    if (!qn_dflash_is_drafter(file))
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: architecture other than 'dflash'", qn_gguf_path(file));
    QN_TRY(read_drafter(file, model->hparams, &d));
    QN_TRY(qn_weights_open(&weights, file, model->plan));
    const qn_status status = build_with(model, &weights, &d);
    qn_weights_close(&weights);
    return status;
}
