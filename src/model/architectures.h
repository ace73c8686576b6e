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

/* qn_key_u32, qn_key_f32 - the value of the key "{architecture}.{name}", as qn_gguf_get_u32 and qn_gguf_get_f32. */
qn_status qn_key_u32(const qn_gguf *file, const char *architecture, const char *name, bool required, uint32_t *out);
qn_status qn_key_f32(const qn_gguf *file, const char *architecture, const char *name, bool required, float *out);

/* qn_check_range - QN_ERR_FORMAT, with `what` as the name, for a value outside [low, high]. */
qn_status qn_check_range(const qn_gguf *file, const char *what, uint32_t value, uint32_t low, uint32_t high);

#endif
