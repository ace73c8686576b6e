/* Builds a plan from the hyperparameters and weights of a file.
 *
 * Each architecture family has a source file; architectures.c has the table. Building checks the shape of every tensor
 * against the hyperparameters, so devices need no checks. One thread builds a plan, while the model is loaded. */
#ifndef QN_MODEL_MODEL_H
#define QN_MODEL_MODEL_H

#include "plan/plan.h"
#include "gguf/gguf.h"

/* The hyperparameters of a model. Constant after qn_model_build. */
typedef struct qn_hparams {
    const char *architecture; /* name of a table entry; static */
    uint32_t n_blocks;        /* blocks in the file: n_layers blocks of the model, then those of nextn.h */
    uint32_t n_vocab, n_layers, n_embd, n_ff, n_heads, n_kv_heads, head_dim, n_rot, n_ctx_train;
    float eps, rope_base;
    qn_rope_type rope;
    qn_rope_scaling rope_scaling;
    bool has_rope_sections; /* positions of rows may have several components */
    qn_rope_sections rope_sections;
    bool qk_norm;  /* RMS norm of each query and key head before rope */
    bool qkv_bias; /* the q, k and v projections have biases */
} qn_hparams;

/* qn_model_build - reads the hyperparameters of a file and builds its plan. It allocates no buffers of steps.
 *
 *   file      must outlive the plan, whose matrices point into the mapped file
 *   hparams   output: the hyperparameters
 *   plan      output: the plan; after QN_OK free it with qn_plan_free
 *
 * QN_ERR_UNSUPPORTED: an architecture or a feature is not supported. QN_ERR_FORMAT: a key or tensor is missing, out of
 * range or has the wrong shape. The text names it. */
qn_status qn_model_build(const qn_gguf *file, qn_hparams *hparams, qn_plan *plan);

/* Whether a plan has a draft head (plan/plan.h), and if not, why. */
typedef struct qn_model_head {
    bool is_there, is_broken; /* is_broken: the file has a block for it that cannot be used */
    char why[QN_ERROR_TEXT_MAX];
} qn_model_head;

/* qn_model_build_with_head - does what qn_model_build does, and adds the draft head if the file has one that fits. */
qn_status qn_model_build_with_head(const qn_gguf *file, qn_hparams *hparams, qn_plan *plan, qn_model_head *head);

/* qn_model_build_with_drafter - does what qn_model_build does, and adds the draft head of a drafter's file, which must
 * outlive the plan, too: a block drafter (dflash.h), or a block for multi-token prediction alone (nextn.h), which takes
 * the place of the model's own. Errors also say why the drafter cannot serve the model. */
qn_status qn_model_build_with_drafter(const qn_gguf *file, const qn_gguf *drafter, qn_hparams *hparams, qn_plan *plan);

#endif
