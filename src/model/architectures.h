/* What an architecture family gives to the table, and what the table gives to it. */
#ifndef QN_MODEL_ARCHITECTURES_H
#define QN_MODEL_ARCHITECTURES_H

#include "model/layers.h"

typedef struct qn_architecture {
    const char *name;
    qn_rope_type rope;
    bool qk_norm;
    bool mtp_blocks; /* blocks after the trunk may predict further tokens (nextn_predict_layers): ignored whole */
    /* Adds buffers and operations to an empty plan; the caller frees the plan on failure. */
    qn_status (*build)(qn_build *build);
} qn_architecture;

/* dense.c: attention and SwiGLU in every layer. */
qn_status qn_dense_build(qn_build *build);

/* qwen35.c: Gated DeltaNet, or attention with gates; and SwiGLU in every layer. */
qn_status qn_qwen35_build(qn_build *build);

/* Keys below the architecture's name: "{architecture}.{name}". As qn_gguf_get_u32 and qn_gguf_get_f32. */
qn_status qn_key_u32(const qn_gguf *file, const char *architecture, const char *name, bool required, uint32_t *out);
qn_status qn_key_f32(const qn_gguf *file, const char *architecture, const char *name, bool required, float *out);

/* qn_check_range - QN_ERR_FORMAT, naming `what`, for a value outside [low, high]. */
qn_status qn_check_range(const qn_gguf *file, const char *what, uint32_t value, uint32_t low, uint32_t high);

#endif
