/* Dense transformers: llama, qwen2 and qwen3. Every layer has attention and SwiGLU, each with an RMS norm before it and
 * a residual connection. */
#include "model/architectures.h"

qn_status qn_dense_build(qn_build *build)
{
    QN_TRY(qn_build_begin(build, false));
    for (uint32_t layer = 0; layer < build->hparams->n_layers; layer++) {
        QN_TRY(qn_build_attention(build, layer));
        QN_TRY(qn_build_feed_forward(build, layer, "ffn_norm.weight"));
    }
    return qn_build_head(build);
}
