/* What an architecture family gives to the table, and what the table gives to it. */
#ifndef QN_MODEL_ARCHITECTURES_H
#define QN_MODEL_ARCHITECTURES_H

#include "model/model.h"

typedef struct qn_architecture {
    const char *name;
    qn_rope_mode rope;
    bool qk_norm;
    /* Adds buffers and operations to an empty plan; the caller frees the plan on failure. */
    qn_status (*build)(const qn_gguf *file, const qn_hparams *hparams, qn_plan *plan);
} qn_architecture;

/* dense.c: attention and SwiGLU in every layer. */
qn_status qn_dense_build(const qn_gguf *file, const qn_hparams *hparams, qn_plan *plan);

/* Keys below the architecture's name: "{architecture}.{name}". As qn_gguf_get_u32 and qn_gguf_get_f32. */
qn_status qn_key_u32(const qn_gguf *file, const char *architecture, const char *name, bool required, uint32_t *out);
qn_status qn_key_f32(const qn_gguf *file, const char *architecture, const char *name, bool required, float *out);

#endif
