/* DFlash, a drafter that proposes a block of tokens in one step: a file of its own, of architecture `dflash`, whose
 * layers are Qwen3's. It is the draft head of the plan of the model that it was trained for (plan/plan.h).
 *
 *   g        hidden_norm (fc (hidden states of the listed layers of the model))
 *   k, v     of a position before the block: the layer's projections of g, without a norm before them
 *   x        embeddings of the last token and of mask tokens, at the positions that follow
 *   x        attention and SwiGLU of each layer; rows of the block attend to k and v of all positions before it, and to
 *            their own, before and after them
 *   logits   of the token at a mask token's position: output matrix times output_norm (x)
 *
 * The embedding table and the output matrix are the model's unless the file has its own. A listed layer L stands for
 * the hidden state that is the input of the model's layer L, from 0. Sliding layers attend to the last `window`
 * positions. The block may be causal (dflash.attention.causal).
 *
 * After the reference (z-lab/dflash, dflash/model.py) and llama.cpp (src/models/dflash.cpp; conversion/qwen.py, which
 * writes target_layers with 1 added to the reference's indices of outputs). */
#ifndef QN_MODEL_DFLASH_H
#define QN_MODEL_DFLASH_H

#include "model/layers.h"

/* qn_dflash_is_drafter - returns whether a file is of architecture dflash. */
bool qn_dflash_is_drafter(const qn_gguf *file);

/* qn_dflash_build - adds the drafter to a plan that has the model's layers and no draft head. After an error the caller
 * frees the plan. QN_ERR_FORMAT or QN_ERR_UNSUPPORTED, naming key or tensor, if the file is no sound drafter, or not
 * for this model. */
qn_status qn_dflash_build(qn_build *model, const qn_gguf *drafter);

#endif
