/* Dense transformers: llama and qwen3. Every layer is attention and SwiGLU, each after an RMS norm and added to the stream. */
#include "model/architectures.h"
#include "model/weights.h"

#include "base/memory.h"

#include <math.h>

/* Buffers that all layers share. */
struct stream {
    int x, q, k, v, attention, gate, up;
};

/* Where activations get two int8 terms (docs/accuracy.md). In the first block: it alone brings in about half of the error of
 * int8 activations, since all later blocks read what it adds to a small embedding, and it is one block of many. And wherever
 * weights of more than two bits read them: there the memory limits decoding long before the arithmetic does, and such weights
 * are chosen for their accuracy. */
static bool wants_fine(bool first_block, const qn_matrix *matrices, size_t n)
{
    bool fine = true;
    for (size_t i = 0; i < n; i++) {
        if (!matrices[i].type->unpack || matrices[i].type->has_factor)
            return false;
        fine = fine && matrices[i].type->max_code > 3;
    }
    return fine || first_block;
}

static qn_status add_norm(qn_plan *plan, int in, const float *weight, float eps, int acts)
{
    return qn_plan_add(plan, &(qn_op){ .kind = QN_OP_NORM, .in = in, .weight = weight, .eps = eps, .acts = acts });
}

static qn_status add_matmul(qn_plan *plan, int acts, const qn_matrix *matrices, const int *out, size_t n, bool accumulate)
{
    qn_op op = { .kind = QN_OP_MATMUL, .acts = acts, .n_matrices = n };
    for (size_t i = 0; i < n; i++)
        op.matrices[i] = (struct qn_op_matrix){ .weights = matrices[i], .out = out[i], .accumulate = accumulate };
    return qn_plan_add(plan, &op);
}

static qn_status add_attention(const qn_gguf *file, const qn_hparams *h, qn_plan *plan, const struct stream *s, uint32_t layer)
{
    const int n = (int)layer;
    const size_t q_width = (size_t)h->n_heads * h->head_dim, kv_width = (size_t)h->n_kv_heads * h->head_dim;
    const float *norm, *q_norm = NULL, *k_norm = NULL;
    qn_matrix qkv[3], output;
    int acts, out_acts;
    QN_TRY(qn_weights_vector(file, n, "attn_norm.weight", h->n_embd, false, &norm));
    QN_TRY(qn_weights_matrix(file, n, "attn_q.weight", h->n_embd, q_width, &qkv[0]));
    QN_TRY(qn_weights_matrix(file, n, "attn_k.weight", h->n_embd, kv_width, &qkv[1]));
    QN_TRY(qn_weights_matrix(file, n, "attn_v.weight", h->n_embd, kv_width, &qkv[2]));
    QN_TRY(qn_weights_matrix(file, n, "attn_output.weight", q_width, h->n_embd, &output));
    if (h->qk_norm) {
        QN_TRY(qn_weights_vector(file, n, "attn_q_norm.weight", h->head_dim, false, &q_norm));
        QN_TRY(qn_weights_vector(file, n, "attn_k_norm.weight", h->head_dim, false, &k_norm));
    }
    QN_TRY(qn_plan_acts_for(plan, h->n_embd, wants_fine(layer == 0, qkv, 3), &acts));
    QN_TRY(qn_plan_acts_for(plan, q_width, wants_fine(layer == 0, &output, 1), &out_acts));
    QN_TRY(add_norm(plan, s->x, norm, h->eps, acts));
    QN_TRY(add_matmul(plan, acts, qkv, (const int[]){ s->q, s->k, s->v }, 3, false));
    QN_TRY(qn_plan_add(plan, &(qn_op){ .kind = QN_OP_HEADS,
                                       .layer = n,
                                       .in = s->q,
                                       .in2 = s->k,
                                       .in3 = s->v,
                                       .weight = q_norm,
                                       .weight2 = k_norm,
                                       .eps = h->eps,
                                       .heads = plan->heads }));
    QN_TRY(qn_plan_add(plan,
                       &(qn_op){ .kind = QN_OP_ATTENTION, .layer = n, .in = s->q, .out = s->attention, .heads = plan->heads }));
    QN_TRY(qn_plan_add(
        plan, &(qn_op){ .kind = QN_OP_ATTENTION_OUT, .layer = n, .in = s->attention, .acts = out_acts, .heads = plan->heads }));
    return add_matmul(plan, out_acts, &output, &s->x, 1, true);
}

static qn_status add_feed_forward(const qn_gguf *file, const qn_hparams *h, qn_plan *plan, const struct stream *s,
                                  uint32_t layer)
{
    const int n = (int)layer;
    const float *norm;
    qn_matrix gate_up[2], down;
    int acts, down_acts;
    QN_TRY(qn_weights_vector(file, n, "ffn_norm.weight", h->n_embd, false, &norm));
    QN_TRY(qn_weights_matrix(file, n, "ffn_gate.weight", h->n_embd, h->n_ff, &gate_up[0]));
    QN_TRY(qn_weights_matrix(file, n, "ffn_up.weight", h->n_embd, h->n_ff, &gate_up[1]));
    QN_TRY(qn_weights_matrix(file, n, "ffn_down.weight", h->n_ff, h->n_embd, &down));
    QN_TRY(qn_plan_acts_for(plan, h->n_embd, wants_fine(layer == 0, gate_up, 2), &acts));
    QN_TRY(qn_plan_acts_for(plan, h->n_ff, wants_fine(layer == 0, &down, 1), &down_acts));
    QN_TRY(add_norm(plan, s->x, norm, h->eps, acts));
    QN_TRY(add_matmul(plan, acts, gate_up, (const int[]){ s->gate, s->up }, 2, false));
    QN_TRY(qn_plan_add(plan, &(qn_op){ .kind = QN_OP_SWIGLU, .in = s->gate, .in2 = s->up, .acts = down_acts }));
    return add_matmul(plan, down_acts, &down, &s->x, 1, true);
}

static qn_status add_head(const qn_gguf *file, const qn_hparams *h, qn_plan *plan, const struct stream *s,
                          const qn_matrix *embedding)
{
    const float *norm;
    qn_matrix output = *embedding; /* tied, unless there is a matrix of its own */
    int acts;
    QN_TRY(qn_weights_vector(file, -1, "output_norm.weight", h->n_embd, false, &norm));
    if (qn_weights_has(file, -1, "output.weight"))
        QN_TRY(qn_weights_matrix(file, -1, "output.weight", h->n_embd, h->n_vocab, &output));
    QN_TRY(qn_plan_acts_for(plan, h->n_embd, wants_fine(false, &output, 1), &acts));
    QN_TRY(qn_plan_add(plan, &(qn_op){ .kind = QN_OP_LOGIT_NORM, .in = s->x, .weight = norm, .eps = h->eps, .acts = acts }));
    return qn_plan_add(plan, &(qn_op){ .kind = QN_OP_LOGITS, .acts = acts, .matrices[0].weights = output, .n_matrices = 1 });
}

static qn_status set_rope(const qn_gguf *file, const qn_hparams *h, qn_plan *plan)
{
    const float *divisors;
    QN_TRY(qn_weights_vector(file, -1, "rope_freqs.weight", h->n_rot / 2, true, &divisors));
    QN_TRY(qn_alloc(&plan->frequencies, h->n_rot / 2, sizeof(double), "rope frequencies"));
    for (size_t i = 0; divisors && i < h->n_rot / 2; i++)
        if (!(divisors[i] > 0))
            return qn_fail(QN_ERR_FORMAT, "%s: tensor 'rope_freqs.weight' holds %g at %zu, expected more than 0",
                           qn_gguf_path(file), (double)divisors[i], i);
    qn_rope_frequencies(h->rope_base, h->rope_scale, divisors, h->n_rot, plan->frequencies);
    return QN_OK;
}

static qn_status add_buffers(const qn_hparams *h, qn_plan *plan, struct stream *s)
{
    const size_t q_width = (size_t)h->n_heads * h->head_dim, kv_width = (size_t)h->n_kv_heads * h->head_dim;
    QN_TRY(qn_plan_buffer_new(plan, h->n_embd, &s->x));
    QN_TRY(qn_plan_buffer_new(plan, q_width, &s->q));
    QN_TRY(qn_plan_buffer_new(plan, kv_width, &s->k));
    QN_TRY(qn_plan_buffer_new(plan, kv_width, &s->v));
    QN_TRY(qn_plan_buffer_new(plan, q_width, &s->attention));
    QN_TRY(qn_plan_buffer_new(plan, h->n_ff, &s->gate));
    return qn_plan_buffer_new(plan, h->n_ff, &s->up);
}

qn_status qn_dense_build(const qn_gguf *file, const qn_hparams *h, qn_plan *plan)
{
    struct stream s;
    qn_matrix embedding;
    plan->n_vocab = h->n_vocab;
    plan->heads = (qn_attention_shape){ .n_heads = h->n_heads,
                                        .n_kv_heads = h->n_kv_heads,
                                        .head_dim = h->head_dim,
                                        .n_rot = h->n_rot,
                                        .rope = h->rope,
                                        .scale = (float)(1 / sqrt((double)h->head_dim)) };
    QN_TRY(set_rope(file, h, plan));
    QN_TRY(add_buffers(h, plan, &s));
    QN_TRY(qn_weights_matrix(file, -1, "token_embd.weight", h->n_embd, h->n_vocab, &embedding));
    QN_TRY(qn_plan_add(plan, &(qn_op){ .kind = QN_OP_EMBED, .out = s.x, .matrices[0].weights = embedding, .n_matrices = 1 }));
    for (uint32_t layer = 0; layer < h->n_layers; layer++) {
        QN_TRY(add_attention(file, h, plan, &s, layer));
        QN_TRY(add_feed_forward(file, h, plan, &s, layer));
    }
    return add_head(file, h, plan, &s, &embedding);
}
