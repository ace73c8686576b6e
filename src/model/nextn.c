/* Builds the draft head from a block for multi-token prediction, and checks such blocks. */
#include "model/nextn.h"

#include "model/mtp_block.h"

/* Tensors that are the block's own. */
struct nextn {
    const float *embedding_norm, *hidden_norm, *head_norm, *attn_norm, *k_norm;
    qn_matrix table; /* of embeddings */
    qn_plan_rotation inverse;
    qn_weight projection, kv[2], output;
};

/* ---- Tensors ---- */

/* Sets what the block has, and leaves out what it takes from the model. */
static qn_status read_block(qn_weights *w, const qn_hparams *h, int block, struct nextn *n)
{
    const size_t e = h->n_embd, kv_width = (size_t)h->n_kv_heads * h->head_dim;
    qn_weight own;
    *n = (struct nextn){ 0 };
    QN_TRY(qn_weights_matrix(w, block, "nextn.eh_proj.weight", 2 * e, e, &n->projection));
    QN_TRY(qn_weights_vector(w, block, "nextn.enorm.weight", e, false, &n->embedding_norm));
    QN_TRY(qn_weights_vector(w, block, "nextn.hnorm.weight", e, false, &n->hidden_norm));
    QN_TRY(qn_weights_vector(w, block, "nextn.shared_head_norm.weight", e, true, &n->head_norm));
    QN_TRY(qn_weights_vector(w, block, "attn_norm.weight", e, false, &n->attn_norm));
    QN_TRY(qn_weights_matrix(w, block, "attn_k.weight", e, kv_width, &n->kv[0]));
    QN_TRY(qn_weights_matrix(w, block, "attn_v.weight", e, kv_width, &n->kv[1]));
    QN_TRY(qn_weights_vector(w, block, "attn_k_norm.weight", h->head_dim, false, &n->k_norm));
    if (qn_weights_has(w, block, "nextn.embed_tokens.weight")) {
        QN_TRY(qn_weights_matrix(w, block, "nextn.embed_tokens.weight", e, h->n_vocab, &own));
        n->table = own.matrix;
    }
    if (qn_weights_has(w, block, "nextn.shared_head_head.weight"))
        QN_TRY(qn_weights_matrix(w, block, "nextn.shared_head_head.weight", e, h->n_vocab, &n->output));
    return QN_OK;
}

/* Finds what the block lacks in the model. */
static qn_status read_model(qn_build *model, struct nextn *n, const float **norm)
{
    QN_TRY(qn_weights_vector(model->weights, -1, "output_norm.weight", model->hparams->n_embd, false, norm));
    if (!n->head_norm)
        n->head_norm = *norm;
    if (!n->table.data)
        QN_TRY(qn_build_embedding(model, &n->table, &n->inverse));
    return n->output.matrix.data ? QN_OK : qn_build_output(model, &n->output);
}

/* ---- Operations ---- */

/* The inputs and their projection, which becomes the head's residual stream build->x, in place of the embeddings.
 * trunk: the residual stream of the model, which stays as it is: devices may read it later. */
static qn_status add_inputs(qn_build *build, const struct nextn *n, const float *norm, int trunk, int hidden)
{
    const float eps = build->hparams->eps;
    const int layer = (int)build->hparams->n_layers;
    QN_TRY(qn_plan_add(build->plan, &(qn_op){ .kind = QN_OP_PAIR,
                                              .layer = layer,
                                              .pair = { .table = n->table,
                                                        .inverse = n->inverse,
                                                        .in = trunk,
                                                        .norm = norm,
                                                        .embedding = build->x,
                                                        .hidden = hidden,
                                                        .eps = eps } }));
    return qn_build_matmuls(build,
                            &(qn_op){ .kind = QN_OP_PAIR_NORM,
                                      .layer = layer,
                                      .pair_norm = { .embedding = build->x,
                                                     .hidden = hidden,
                                                     .in = trunk,
                                                     .embedding_norm = n->embedding_norm,
                                                     .hidden_norm = n->hidden_norm,
                                                     .norm = norm,
                                                     .eps = eps } },
                            layer, &n->projection, &build->x, 1, false);
}

/* The keys and values of a step's rows. */
static qn_status add_kv(qn_build *build, const struct nextn *n)
{
    const float eps = build->hparams->eps;
    const int layer = (int)build->hparams->n_layers;
    QN_TRY(qn_build_matmuls(
        build,
        &(qn_op){ .kind = QN_OP_NORM, .layer = layer, .norm = { .in = build->x, .weight = n->attn_norm, .eps = eps } },
        layer, n->kv, (const int[]){ build->k, build->v }, 2, false));
    return qn_plan_add(
        build->plan,
        &(qn_op){
            .kind = QN_OP_K_NORM_ROPE_STORE,
            .layer = layer,
            .qk_norm_rope_store = {
                .keys = build->k, .values = build->v, .k_norm = n->k_norm, .eps = eps, .shape = build->plan->heads } });
}

qn_status qn_nextn_missing(const qn_build *build)
{
    return qn_fail(QN_ERR_UNSUPPORTED, "%s: there is no block for multi-token prediction (nextn)",
                   qn_gguf_path(build->weights->file));
}

/* Adds the draft head of a block of the file of `build`, which is the model's or another one. What the block borrows is
 * built with the model's weights, and their rotation. */
static qn_status build_head(qn_build *build, qn_build *model, uint32_t block)
{
    const qn_hparams *h = build->hparams;
    qn_plan *plan = build->plan;
    struct nextn n;
    const float *norm;
    const int trunk = build->x;
    int hidden;
    QN_TRY(read_block(build->weights, h, (int)block, &n));
    const bool has_output = n.output.matrix.data != NULL;
    QN_TRY(read_model(model, &n, &norm));
    QN_TRY(qn_plan_buffer_new(plan, h->n_embd, &build->x));
    QN_TRY(qn_plan_buffer_new(plan, h->n_embd, &hidden));
    plan->n_layers = (size_t)h->n_layers + 1;
    plan->head = (qn_plan_head){ .pairs = plan->n_ops, .n_layers = 1, .heads = plan->heads };
    QN_TRY(add_inputs(build, &n, norm, trunk, hidden));
    QN_TRY(add_kv(build, &n));
    plan->head.draft = plan->n_ops;
    QN_TRY(add_inputs(build, &n, norm, trunk, hidden));
    build->first_position = 1;
    QN_TRY(qn_build_attention(build, block));
    QN_TRY(qn_build_feed_forward(build, block, "post_attention_norm.weight"));
    qn_build of_logits = has_output ? *build : *model;
    of_logits.x = build->x;
    return qn_build_logits(&of_logits, n.head_norm, &n.output);
}

qn_status qn_nextn_build(qn_build *build)
{
    const qn_hparams *h = build->hparams;
    if (h->n_blocks != h->n_layers + 1)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: %u blocks for multi-token prediction, only one is supported",
                       qn_gguf_path(build->weights->file), (unsigned)(h->n_blocks - h->n_layers));
    return build_head(build, build, h->n_layers);
}

qn_status qn_nextn_build_from(qn_build *model, const qn_gguf *file)
{
    const qn_trunk trunk = { model->weights->file, model->hparams };
    qn_weights weights;
    qn_mtp_block block;
    QN_TRY(qn_mtp_block_find(file, &trunk, &block));
    QN_TRY(qn_weights_open_plain(&weights, file, model->plan)); /* the block is not rotated */
    qn_build build = *model;
    build.weights = &weights;
    build.first_layer = model->hparams->n_layers - block.number;
    const qn_status status = build_head(&build, model, block.number);
    qn_weights_close(&weights);
    return status;
}

/* ---- Checks ---- */

/* Checks the tensors that qn_build_attention and qn_build_feed_forward read. */
static qn_status check_layer(qn_weights *w, const qn_hparams *h, int block)
{
    const size_t e = h->n_embd, q_width = (size_t)h->n_heads * h->head_dim;
    qn_weight matrix;
    const float *vector;
    QN_TRY(qn_weights_matrix(w, block, "attn_q.weight", e, 2 * q_width, &matrix));
    QN_TRY(qn_weights_matrix(w, block, "attn_output.weight", q_width, e, &matrix));
    QN_TRY(qn_weights_vector(w, block, "attn_q_norm.weight", h->head_dim, false, &vector));
    QN_TRY(qn_weights_vector(w, block, "post_attention_norm.weight", e, false, &vector));
    QN_TRY(qn_weights_matrix(w, block, "ffn_gate.weight", e, h->n_ff, &matrix));
    QN_TRY(qn_weights_matrix(w, block, "ffn_up.weight", e, h->n_ff, &matrix));
    return qn_weights_matrix(w, block, "ffn_down.weight", h->n_ff, e, &matrix);
}

qn_status qn_nextn_check(const qn_gguf *file, uint32_t block, const qn_hparams *model)
{
    qn_plan plan = { 0 }; /* gets the scales of matrices */
    qn_weights weights;
    struct nextn n;
    QN_TRY(qn_weights_open(&weights, file, &plan));
    qn_status status = read_block(&weights, model, (int)block, &n);
    if (status == QN_OK)
        status = check_layer(&weights, model, (int)block);
    qn_weights_close(&weights);
    qn_plan_free(&plan);
    return status;
}
