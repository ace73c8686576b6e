/* The block for multi-token prediction of Qwen3.5 and Qwen3.8 files ("nextn"): an attention block with its own inputs,
 * which predicts the token after the next one. It is the draft head of a plan (plan/plan.h).
 *
 *   x        eh_proj (enorm (embedding of token q), hnorm (h of token q - 1))
 *   x        attention and SwiGLU of the block, as in a layer of the model
 *   h        shared_head_norm (x); for the next token of a chain of drafts, the h of this one
 *   logits   of token q + 1: output matrix times h
 *
 * h of the model is the hidden state after the output norm. Both, and the order of the concatenation, are those of
 * llama.cpp (src/models/qwen35.cpp: h_nextn, mtp_concat) and vLLM (models/qwen3_5_mtp.py). The block may have an
 * embedding table (embed_tokens) and an output matrix (shared_head_head) of its own, and lack shared_head_norm: then
 * it is the output norm. */
#ifndef QN_MODEL_NEXTN_H
#define QN_MODEL_NEXTN_H

#include "model/layers.h"

/* qn_nextn_build - adds the draft head to a plan that has the model's layers, from the block after them. After an error
 * the plan has a part of it (qn_plan_drop_after). QN_ERR_FORMAT or QN_ERR_UNSUPPORTED, naming the tensor, if one is
 * missing or has another shape; QN_ERR_UNSUPPORTED if there is more than one block. */
qn_status qn_nextn_build(qn_build *build);

/* qn_nextn_build_from - does the same with the block of a file that has it alone (mtp_block.h), of any number of block,
 * as if it had been joined to the model's file. The file must outlive the plan. Also returns the errors of
 * qn_mtp_block_find. */
qn_status qn_nextn_build_from(qn_build *model, const qn_gguf *file);

/* qn_nextn_missing - fails with a text that says that the file has no such block. */
qn_status qn_nextn_missing(const qn_build *build);

/* qn_nextn_check - checks that the tensors blk.BLOCK.* of a file are a block that serves a model: all are there, with
 * the shapes that the model's hyperparameters demand, and in types that quern computes with.
 *
 *   file    of the block; may be another than the model's
 *   model   the hyperparameters of the model (qn_model_build)
 *
 * Errors are those of qn_nextn_build. Any thread. */
qn_status qn_nextn_check(const qn_gguf *file, uint32_t block, const qn_hparams *model);

#endif
