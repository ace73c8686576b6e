/* Qwen3.5: layers of Gated DeltaNet, by default every fourth of gated attention, all with SwiGLU. Yang et al., Gated
 * Delta Networks (2024). */
#include "model/architectures.h"

#include "base/memory.h"
#include "model/keys.h"
#include "plan/limits.h"

#include <math.h>
#include <stdio.h>

/* Buffers shared by the recurrent layers. */
struct delta {
    int qkv, conv, z, alpha, beta, o;
};

static qn_status check_head(const qn_gguf *file, const char *what, uint32_t dim)
{
    if (!dim || dim % QN_PLAN_DELTA_UNIT || dim > QN_PLAN_DELTA_DIM)
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "%s: %s of recurrent layers have %u elements, expected a multiple of %d up to %d",
                       qn_gguf_path(file), what, (unsigned)dim, QN_PLAN_DELTA_UNIT, QN_PLAN_DELTA_DIM);
    return QN_OK;
}

static qn_status read_shape(const qn_gguf *file, const char *a, qn_recurrent_shape *shape)
{
    uint32_t taps, inner, head_k, n_v_heads, n_k_heads;
    QN_TRY(qn_key_u32(file, a, "ssm.conv_kernel", true, &taps));
    QN_TRY(qn_key_u32(file, a, "ssm.inner_size", true, &inner));
    QN_TRY(qn_key_u32(file, a, "ssm.state_size", true, &head_k));
    QN_TRY(qn_key_u32(file, a, "ssm.time_step_rank", true, &n_v_heads));
    QN_TRY(qn_key_u32(file, a, "ssm.group_count", true, &n_k_heads));
    QN_TRY(qn_check_range(file, "ssm.conv_kernel", taps, 2, QN_PLAN_CONV_TAPS));
    QN_TRY(qn_check_range(file, "ssm.time_step_rank", n_v_heads, 1, 4096));
    QN_TRY(qn_check_range(file, "ssm.group_count", n_k_heads, 1, n_v_heads));
    if (n_v_heads % n_k_heads)
        return qn_fail(QN_ERR_FORMAT, "%s: ssm.time_step_rank %u is not a multiple of ssm.group_count %u",
                       qn_gguf_path(file), (unsigned)n_v_heads, (unsigned)n_k_heads);
    if (inner % n_v_heads)
        return qn_fail(QN_ERR_FORMAT, "%s: ssm.inner_size %u is not a multiple of ssm.time_step_rank %u",
                       qn_gguf_path(file), (unsigned)inner, (unsigned)n_v_heads);
    QN_TRY(check_head(file, "key heads", head_k));
    QN_TRY(check_head(file, "value heads", inner / n_v_heads));
    *shape = (qn_recurrent_shape){
        .n_k_heads = n_k_heads, .n_v_heads = n_v_heads, .head_k = head_k, .head_v = inner / n_v_heads, .taps = taps
    };
    return QN_OK;
}

/* Sets is_recurrent from the file's list of layers. Without a list, every full_attention_interval-th layer is
 * attention. The list may include the ignored blocks after the layers. */
static qn_status read_layer_kinds(const qn_gguf *file, const qn_hparams *h, bool *is_recurrent)
{
    uint32_t interval = 4;
    char key[128];
    QN_TRY(qn_key_u32(file, h->architecture, "full_attention_interval", false, &interval));
    QN_TRY(qn_check_range(file, "full_attention_interval", interval, 1, UINT32_MAX));
    snprintf(key, sizeof key, "%s.attention.recurrent_layers", h->architecture);
    const qn_gguf_kv *list = qn_gguf_find(file, key);
    if (list && (list->type != QN_GGUF_ARRAY || (list->count != h->n_layers && list->count != h->n_blocks)))
        return qn_fail(QN_ERR_FORMAT, "%s: key '%s' is not an array of %u elements, one per layer", qn_gguf_path(file),
                       key, (unsigned)h->n_layers);
    for (uint32_t i = 0; i < h->n_layers; i++) {
        int32_t flag = (i + 1) % interval != 0;
        if (list && list->element_type == QN_GGUF_BOOL)
            flag = list->data[i];
        else if (list)
            QN_TRY(qn_gguf_array_i32(file, list, i, &flag));
        if (flag != 0 && flag != 1)
            return qn_fail(QN_ERR_FORMAT, "%s: key '%s': element %u is %d, expected 0 or 1", qn_gguf_path(file), key,
                           (unsigned)i, (int)flag);
        is_recurrent[i] = flag;
    }
    return QN_OK;
}

/* Checks the arrays of head counts: they may be 0 where a layer has no attention, and only there. */
static qn_status check_attention_heads(const qn_gguf *file, const qn_hparams *h, const bool *is_recurrent)
{
    static const char *const names[] = { "attention.head_count", "attention.head_count_kv" };
    for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
        char key[128];
        snprintf(key, sizeof key, "%s.%s", h->architecture, names[n]);
        const qn_gguf_kv *list = qn_gguf_find(file, key);
        for (uint32_t i = 0; list && list->type == QN_GGUF_ARRAY && i < h->n_layers; i++) {
            int32_t heads;
            QN_TRY(qn_gguf_array_i32(file, list, i, &heads));
            if (!heads && !is_recurrent[i])
                return qn_fail(QN_ERR_FORMAT, "%s: key '%s' is 0 in layer %u, which has attention", qn_gguf_path(file),
                               key, (unsigned)i);
        }
    }
    return QN_OK;
}

static qn_status add_buffers(qn_plan *plan, struct delta *d)
{
    const qn_recurrent_shape *shape = &plan->recurrent;
    const size_t inner = shape->n_v_heads * shape->head_v;
    QN_TRY(qn_plan_buffer_new(plan, qn_recurrent_width(shape), &d->qkv));
    QN_TRY(qn_plan_buffer_new(plan, qn_recurrent_width(shape), &d->conv));
    QN_TRY(qn_plan_buffer_new(plan, inner, &d->z));
    QN_TRY(qn_plan_buffer_new(plan, shape->n_v_heads, &d->alpha));
    QN_TRY(qn_plan_buffer_new(plan, shape->n_v_heads, &d->beta));
    return qn_plan_buffer_new(plan, inner, &d->o);
}

/* Transposes the convolution weights from the file's [channels][taps] to the kernel's [taps][channels]. */
static qn_status read_conv(qn_build *build, int layer, const float **out)
{
    const qn_recurrent_shape *shape = &build->plan->recurrent;
    const size_t width = qn_recurrent_width(shape), taps = shape->taps;
    const float *stored;
    float *transposed;
    QN_TRY(qn_weights_floats(build->weights, layer, "ssm_conv1d.weight", taps, width, &stored));
    QN_TRY(qn_plan_alloc_floats(build->plan, taps * width, &transposed));
    for (size_t x = 0; x < width; x++)
        for (size_t t = 0; t < taps; t++)
            transposed[t * width + x] = stored[x * taps + t];
    *out = transposed;
    return QN_OK;
}

/* Reads the factors of the log decay, -e^A. A positive factor would let the state grow without bound. */
static qn_status read_decay_factors(qn_build *build, int layer, const float **out)
{
    const size_t n = build->plan->recurrent.n_v_heads;
    QN_TRY(qn_weights_vector(build->weights, layer, "ssm_a", n, false, out));
    for (size_t i = 0; i < n; i++)
        if (!((*out)[i] <= 0) || !isfinite((*out)[i]))
            return qn_fail(QN_ERR_FORMAT, "%s: tensor 'blk.%d.ssm_a' is %g at %zu, expected finite and at most 0",
                           qn_gguf_path(build->weights->file), layer, (double)(*out)[i], i);
    return QN_OK;
}

static qn_status add_delta(qn_build *build, const struct delta *d, uint32_t layer)
{
    const qn_hparams *h = build->hparams;
    const qn_recurrent_shape *shape = &build->plan->recurrent;
    qn_weights *w = build->weights;
    const int n = (int)layer;
    const size_t inner = shape->n_v_heads * shape->head_v;
    const float *norm, *conv, *bias, *factor, *out_norm;
    qn_weight inputs[4], output;
    QN_TRY(qn_weights_vector(w, n, "attn_norm.weight", h->n_embd, false, &norm));
    QN_TRY(qn_weights_matrix(w, n, "attn_qkv.weight", h->n_embd, qn_recurrent_width(shape), &inputs[0]));
    QN_TRY(qn_weights_matrix(w, n, "attn_gate.weight", h->n_embd, inner, &inputs[1]));
    QN_TRY(qn_weights_matrix(w, n, "ssm_alpha.weight", h->n_embd, shape->n_v_heads, &inputs[2]));
    QN_TRY(qn_weights_matrix(w, n, "ssm_beta.weight", h->n_embd, shape->n_v_heads, &inputs[3]));
    QN_TRY(read_conv(build, n, &conv));
    QN_TRY(qn_weights_vector(w, n, "ssm_dt.bias", shape->n_v_heads, false, &bias));
    QN_TRY(read_decay_factors(build, n, &factor));
    QN_TRY(qn_weights_vector(w, n, "ssm_norm.weight", shape->head_v, false, &out_norm));
    QN_TRY(qn_weights_matrix(w, n, "ssm_out.weight", inner, h->n_embd, &output));
    QN_TRY(qn_build_matmuls(
        build, &(qn_op){ .kind = QN_OP_NORM, .layer = n, .norm = { .in = build->x, .weight = norm, .eps = h->eps } }, n,
        inputs, (const int[]){ d->qkv, d->z, d->alpha, d->beta }, 4, false));
    QN_TRY(qn_plan_add(build->plan, &(qn_op){ .kind = QN_OP_CONV,
                                              .layer = n,
                                              .conv = { .qkv = d->qkv,
                                                        .alpha = d->alpha,
                                                        .beta = d->beta,
                                                        .out = d->conv,
                                                        .taps = conv,
                                                        .bias = bias,
                                                        .factor = factor } }));
    QN_TRY(qn_plan_add(build->plan,
                       &(qn_op){ .kind = QN_OP_DELTA_RULE,
                                 .layer = n,
                                 .delta_rule = { .qkv = d->conv, .g = d->alpha, .beta = d->beta, .out = d->o } }));
    return qn_build_matmuls(build,
                            &(qn_op){ .kind = QN_OP_GATED_NORM,
                                      .layer = n,
                                      .gated_norm = { .in = d->o,
                                                      .gate = d->z,
                                                      .conv_in = d->qkv,
                                                      .conv_out = d->conv,
                                                      .g = d->alpha,
                                                      .weight = out_norm,
                                                      .eps = h->eps,
                                                      .grouped = output.rotated && w->rotation.gdn_v_grouped } },
                            n, &output, &build->x, 1, true);
}

qn_status qn_qwen35_build(qn_build *build)
{
    const qn_gguf *file = build->weights->file;
    const qn_hparams *h = build->hparams;
    qn_plan *plan = build->plan;
    bool any = false;
    struct delta d;
    /* The draft head may follow (nextn.h). */
    QN_TRY(qn_alloc(&plan->is_recurrent, (size_t)h->n_layers + 1, sizeof *plan->is_recurrent, "list of layers"));
    QN_TRY(read_layer_kinds(file, h, plan->is_recurrent));
    QN_TRY(check_attention_heads(file, h, plan->is_recurrent));
    for (uint32_t layer = 0; layer < h->n_layers; layer++)
        any = any || plan->is_recurrent[layer];
    QN_TRY(qn_build_begin(build, true));
    if (any) {
        QN_TRY(read_shape(file, h->architecture, &plan->recurrent));
        QN_TRY(add_buffers(plan, &d));
    }
    for (uint32_t layer = 0; layer < h->n_layers; layer++) {
        if (plan->is_recurrent[layer])
            QN_TRY(add_delta(build, &d, layer));
        else
            QN_TRY(qn_build_attention(build, layer));
        QN_TRY(qn_build_feed_forward(build, layer, "post_attention_norm.weight"));
    }
    return qn_build_head(build);
}
