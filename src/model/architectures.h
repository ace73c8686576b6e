/* The entries of the table of architectures, and helpers for the files that build them. */
#ifndef QN_MODEL_ARCHITECTURES_H
#define QN_MODEL_ARCHITECTURES_H

#include "model/layers.h"

typedef struct qn_architecture {
    const char *name;
    qn_rope_type rope;
    bool qk_norm, qkv_bias; /* of qn_hparams */
    bool mtp_blocks;        /* the last blocks may be multi-token prediction (nextn_predict_layers): they are ignored */
    /* Adds buffers and operations to an empty plan. The caller frees the plan on failure. */
    qn_status (*build)(qn_build *build);
} qn_architecture;

/* qn_dense_build - attention and SwiGLU in every layer (dense.c). */
qn_status qn_dense_build(qn_build *build);

/* qn_qwen35_build - Gated DeltaNet or gated attention, and SwiGLU, in every layer (qwen35.c). */
qn_status qn_qwen35_build(qn_build *build);

#endif
