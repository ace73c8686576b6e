/* Architectures: the weights and hyper-parameters of a file in, a plan out.
 *
 * One file an architecture family; architectures.c holds the table. Building checks every tensor's shape against the
 * hyper-parameters, so that running never has to. */
#ifndef QN_MODEL_MODEL_H
#define QN_MODEL_MODEL_H

#include "device/plan.h"
#include "gguf/gguf.h"

/* What the engine needs to know of an architecture's sizes besides the plan. */
typedef struct qn_hparams {
    const char *architecture; /* constant: an entry of the table */
    uint32_t n_blocks;        /* in the file: n_layers that are run, then those that are ignored */
    uint32_t n_vocab, n_layers, n_embd, n_ff, n_heads, n_kv_heads, head_dim, n_rot, n_ctx_train;
    float eps, rope_base;
    qn_rope_type rope;
    qn_rope_scaling rope_scaling;
    bool qk_norm; /* RMS norm of each query and key head */
} qn_hparams;

/* qn_model_build - read the file's architecture and make its plan, not yet reserved. Weights stay in the file's map, which must
 * outlive the plan. QN_ERR_UNSUPPORTED, naming it, for an architecture or a feature that is not in the table; QN_ERR_FORMAT,
 * naming key or tensor, for what is missing or has the wrong shape. The plan is freed by the caller after QN_OK. */
qn_status qn_model_build(const qn_gguf *file, qn_hparams *hparams, qn_plan *plan);

/* qn_model_architectures - names separated by ", ", for messages. */
const char *qn_model_architectures(void);

#endif
