/* Building blocks of architectures: embedding, attention, SwiGLU, the output head. */
#include "model/layers.h"

#include "base/memory.h"
#include "model/kv_bias.h"
#include "plan/limits.h"

#include <math.h>
#include <string.h>

/* Returns whether activations are quantised with the hi/lo int8 split (docs/accuracy.md).
 *
 * It is used in the first block: the output of this block is large compared with the embedding and all later blocks
 * read it, so the block causes about half of the error of int8 activations, at the cost of one block of many. It is
 * also used for weights of more than two bits: their decode is memory-bound, and such weights are selected for
 * accuracy. Float weights read f32 activations and do not count. */
static bool needs_hilo(bool first_block, const qn_weight *weights, size_t n, bool rotated)
{
    bool accurate = true;
    size_t n_integer = 0;
    for (size_t i = 0; i < n; i++) {
        const qn_type_info *type = weights[i].matrix.type;
        if (weights[i].rotated != rotated || !type->unpack)
            continue;
        if (type->has_factor)
            return false;
        n_integer++;
        accurate = accurate && type->max_code > 3;
    }
    return n_integer && (first_block || accurate);
}

qn_status qn_build_matmuls(qn_build *build, qn_op *writer, int layer, const qn_weight *weights, const int *out,
                           size_t n, bool accumulate)
{
    const qn_rotation *rotation = &build->weights->rotation;
    const size_t width = weights[0].matrix.n_cols;
    qn_op op = { .kind = out ? QN_OP_MATMUL : QN_OP_LOGITS, .layer = layer, .matmul.matrices.n = n };
    qn_op_acts *acts = qn_op_acts_of(writer);
    for (int rotated = 0; rotated < 2; rotated++) {
        const qn_plan_rotation acts_rotation =
            rotated ? (qn_plan_rotation){ rotation->block, qn_rotation_signs(rotation, width) }
                    : (qn_plan_rotation){ 0, NULL };
        for (size_t i = 0, first = 1; i < n; i++) {
            if (weights[i].rotated != (bool)rotated)
                continue;
            if (first) {
                QN_TRY(qn_plan_acts_for(build->plan, width, needs_hilo(layer == 0, weights, n, rotated), acts_rotation,
                                        &acts->at[acts->n]));
                acts->n++;
                first = 0;
            }
            op.matmul.matrices.at[i] = (qn_op_matrix){ .weights = weights[i].matrix,
                                                       .acts = acts->at[acts->n - 1],
                                                       .out = out ? out[i] : -1,
                                                       .accumulate = accumulate };
        }
    }
    QN_TRY(qn_plan_add(build->plan, writer));
    return qn_plan_add(build->plan, &op);
}

qn_status qn_build_frequencies(const qn_hparams *h, const float *factors, double **out)
{
    QN_TRY(qn_alloc(out, h->n_rot / 2, sizeof **out, "rope frequencies"));
    qn_rope_frequencies(h->rope_base, &h->rope_scaling, factors, h->n_rot, *out);
    return QN_OK;
}

static qn_status set_rope(qn_build *build)
{
    const qn_hparams *h = build->hparams;
    const float *freq_factors;
    QN_TRY(qn_weights_vector(build->weights, -1, "rope_freqs.weight", h->n_rot / 2, true, &freq_factors));
    for (size_t i = 0; freq_factors && i < h->n_rot / 2; i++)
        if (!(freq_factors[i] > 0))
            return qn_fail(QN_ERR_FORMAT, "%s: tensor 'rope_freqs.weight' is %g at %zu, expected more than 0",
                           qn_gguf_path(build->weights->file), (double)freq_factors[i], i);
    QN_TRY(qn_build_frequencies(h, freq_factors, &build->plan->frequencies));
    build->plan->attn_factor = h->rope_scaling.attn_factor;
    if (!h->has_rope_sections)
        return QN_OK;
    QN_TRY(qn_alloc(&build->plan->rope_components, h->n_rot / 2, sizeof(uint8_t), "rope components"));
    qn_rope_pair_components(&h->rope_sections, h->n_rot, build->plan->rope_components);
    return QN_OK;
}

qn_status qn_build_buffers(qn_build *build)
{
    const qn_hparams *h = build->hparams;
    qn_plan *plan = build->plan;
    const size_t q_width = (size_t)h->n_heads * h->head_dim, kv_width = (size_t)h->n_kv_heads * h->head_dim;
    QN_TRY(qn_plan_buffer_new(plan, h->n_embd, &build->x));
    QN_TRY(qn_plan_buffer_new(plan, q_width, &build->q));
    QN_TRY(qn_plan_buffer_new(plan, kv_width, &build->k));
    QN_TRY(qn_plan_buffer_new(plan, kv_width, &build->v));
    QN_TRY(qn_plan_buffer_new(plan, q_width, &build->attention));
    QN_TRY(qn_plan_buffer_new(plan, h->n_ff, &build->gate));
    QN_TRY(qn_plan_buffer_new(plan, h->n_ff, &build->up));
    build->queries = build->q;
    return build->shape.gated ? qn_plan_buffer_new(plan, 2 * q_width, &build->queries) : QN_OK;
}

qn_status qn_build_embedding(qn_build *build, qn_matrix *table, qn_plan_rotation *inverse)
{
    const qn_hparams *h = build->hparams;
    const qn_rotation *rotation = &build->weights->rotation;
    *inverse = (qn_plan_rotation){ 0, NULL };
    QN_TRY(qn_weights_table(build->weights, "token_embd.weight", h->n_embd, h->n_vocab, table));
    if (!rotation->block || !rotation->inverse_embedding)
        return QN_OK;
    const float *signs = qn_rotation_signs(rotation, h->n_embd);
    float *copy = NULL;
    if (signs) {
        QN_TRY(qn_plan_alloc_floats(build->plan, h->n_embd, &copy));
        memcpy(copy, signs, h->n_embd * sizeof *copy);
    }
    *inverse = (qn_plan_rotation){ rotation->block, copy };
    return QN_OK;
}

static qn_status add_embedding(qn_build *build)
{
    qn_op op = { .kind = QN_OP_EMBED, .layer = -1, .embed.out = build->x };
    QN_TRY(qn_build_embedding(build, &op.embed.table, &op.embed.inverse));
    return qn_plan_add(build->plan, &op);
}

qn_status qn_build_begin(qn_build *build, bool gated_attention)
{
    const qn_hparams *h = build->hparams;
    build->plan->n_vocab = h->n_vocab;
    build->plan->n_layers = h->n_layers;
    build->plan->heads = (qn_attention_shape){ .n_heads = h->n_heads,
                                               .n_kv_heads = h->n_kv_heads,
                                               .head_dim = h->head_dim,
                                               .n_rot = h->n_rot,
                                               .rope = h->rope,
                                               .scale = (float)(1 / sqrt((double)h->head_dim)),
                                               .gated = gated_attention };
    build->shape = build->plan->heads;
    QN_TRY(set_rope(build));
    QN_TRY(qn_build_buffers(build));
    return add_embedding(build);
}

/* Sets the plan's kv_bias of a layer. Does nothing for head sizes without AURA codes. */
static qn_status find_kv_bias(const qn_build *build, uint32_t layer, const qn_weight qkv[3], const float *norm,
                              const float *const biases[3])
{
    const qn_hparams *h = build->hparams;
    qn_plan *plan = build->plan;
    qn_biased_projection projections[3];
    if (!qn_aura_has_dim(h->head_dim))
        return QN_OK;
    if (!plan->kv_bias)
        QN_TRY(qn_alloc(&plan->kv_bias, h->n_layers, sizeof *plan->kv_bias, "norms of biases"));
    for (size_t i = 0; i < 3; i++)
        projections[i] = (qn_biased_projection){ .weights = &qkv[i].matrix,
                                                 .norm = norm,
                                                 .rotated = qkv[i].rotated,
                                                 .bias = biases[i],
                                                 .n_heads = i ? h->n_kv_heads : h->n_heads };
    return qn_kv_bias_find(plan, projections, h->n_ctx_train, &plan->kv_bias[layer]);
}

qn_status qn_build_attention(qn_build *build, uint32_t block)
{
    const qn_hparams *h = build->hparams;
    qn_weights *w = build->weights;
    qn_plan *plan = build->plan;
    const int n = (int)block, layer = (int)(build->first_layer + block);
    const size_t q_width = (size_t)h->n_heads * h->head_dim, kv_width = (size_t)h->n_kv_heads * h->head_dim;
    const float *norm, *q_norm = NULL, *k_norm = NULL, *q_bias = NULL, *k_bias = NULL, *v_bias = NULL;
    qn_weight qkv[3], output;
    QN_TRY(qn_weights_vector(w, n, "attn_norm.weight", h->n_embd, false, &norm));
    QN_TRY(qn_weights_matrix(w, n, "attn_q.weight", h->n_embd, build->shape.gated ? 2 * q_width : q_width, &qkv[0]));
    QN_TRY(qn_weights_matrix(w, n, "attn_k.weight", h->n_embd, kv_width, &qkv[1]));
    QN_TRY(qn_weights_matrix(w, n, "attn_v.weight", h->n_embd, kv_width, &qkv[2]));
    QN_TRY(qn_weights_matrix(w, n, "attn_output.weight", q_width, h->n_embd, &output));
    if (h->qkv_bias) {
        QN_TRY(qn_weights_vector(w, n, "attn_q.bias", q_width, false, &q_bias));
        QN_TRY(qn_weights_vector(w, n, "attn_k.bias", kv_width, false, &k_bias));
        QN_TRY(qn_weights_vector(w, n, "attn_v.bias", kv_width, false, &v_bias));
        QN_TRY(find_kv_bias(build, block, qkv, norm, (const float *const[]){ q_bias, k_bias, v_bias }));
    }
    if (h->qk_norm) {
        QN_TRY(qn_weights_vector(w, n, "attn_q_norm.weight", h->head_dim, false, &q_norm));
        QN_TRY(qn_weights_vector(w, n, "attn_k_norm.weight", h->head_dim, false, &k_norm));
    }
    QN_TRY(qn_build_matmuls(
        build,
        &(qn_op){ .kind = QN_OP_NORM, .layer = layer, .norm = { .in = build->x, .weight = norm, .eps = h->eps } },
        layer, qkv, (const int[]){ build->queries, build->k, build->v }, 3, false));
    QN_TRY(qn_plan_add(plan, &(qn_op){ .kind = QN_OP_QK_NORM_ROPE_STORE,
                                       .layer = layer,
                                       .qk_norm_rope_store = { .queries = build->queries,
                                                               .keys = build->k,
                                                               .values = build->v,
                                                               .out = build->q,
                                                               .q_bias = q_bias,
                                                               .k_bias = k_bias,
                                                               .v_bias = v_bias,
                                                               .q_norm = q_norm,
                                                               .k_norm = k_norm,
                                                               .eps = h->eps,
                                                               .shape = build->shape } }));
    QN_TRY(qn_plan_add(plan, &(qn_op){ .kind = QN_OP_ATTENTION,
                                       .layer = layer,
                                       .attention = { .queries = build->q,
                                                      .out = build->attention,
                                                      .shape = build->shape,
                                                      .first = build->first_position } }));
    return qn_build_matmuls(
        build,
        &(qn_op){ .kind = QN_OP_ATTENTION_COMBINE,
                  .layer = layer,
                  .attention_combine = { .in = build->attention, .queries = build->queries, .shape = build->shape } },
        layer, &output, &build->x, 1, true);
}

qn_status qn_build_feed_forward(qn_build *build, uint32_t block, const char *norm_name)
{
    const qn_hparams *h = build->hparams;
    qn_weights *w = build->weights;
    const int n = (int)block, layer = (int)(build->first_layer + block);
    const float *norm;
    qn_weight gate_up[2], down;
    QN_TRY(qn_weights_vector(w, n, norm_name, h->n_embd, false, &norm));
    QN_TRY(qn_weights_matrix(w, n, "ffn_gate.weight", h->n_embd, h->n_ff, &gate_up[0]));
    QN_TRY(qn_weights_matrix(w, n, "ffn_up.weight", h->n_embd, h->n_ff, &gate_up[1]));
    QN_TRY(qn_weights_matrix(w, n, "ffn_down.weight", h->n_ff, h->n_embd, &down));
    QN_TRY(qn_build_matmuls(
        build,
        &(qn_op){ .kind = QN_OP_NORM, .layer = layer, .norm = { .in = build->x, .weight = norm, .eps = h->eps } },
        layer, gate_up, (const int[]){ build->gate, build->up }, 2, false));
    return qn_build_matmuls(
        build, &(qn_op){ .kind = QN_OP_SWIGLU, .layer = layer, .swiglu = { .gate = build->gate, .up = build->up } },
        layer, &down, &build->x, 1, true);
}

qn_status qn_build_output(qn_build *build, qn_weight *output)
{
    const qn_hparams *h = build->hparams;
    qn_weights *w = build->weights;
    if (qn_weights_has(w, -1, "output.weight"))
        return qn_weights_matrix(w, -1, "output.weight", h->n_embd, h->n_vocab, output);
    QN_TRY(qn_weights_matrix(w, -1, "token_embd.weight", h->n_embd, h->n_vocab, output));
    output->rotated = w->rotation.block && w->rotation.tied_output;
    return QN_OK;
}

qn_status qn_build_logits(qn_build *build, const float *norm, const qn_weight *output)
{
    return qn_build_matmuls(build,
                            &(qn_op){ .kind = QN_OP_LOGIT_NORM,
                                      .layer = -1,
                                      .norm = { .in = build->x, .weight = norm, .eps = build->hparams->eps } },
                            -1, output, NULL, 1, false);
}

qn_status qn_build_head(qn_build *build)
{
    const float *norm;
    qn_weight output;
    QN_TRY(qn_weights_vector(build->weights, -1, "output_norm.weight", build->hparams->n_embd, false, &norm));
    QN_TRY(qn_build_output(build, &output));
    return qn_build_logits(build, norm, &output);
}
