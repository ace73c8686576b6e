/* What is known of an architecture, and the hyperparameters of its files. */
#ifndef QN_MODEL_HPARAMS_H
#define QN_MODEL_HPARAMS_H

#include "model/layers.h"

typedef struct qn_architecture {
    const char *name;
    qn_rope_type rope;
    bool qk_norm, qkv_bias; /* values for qn_hparams */
    bool recurrent;         /* some layers are recurrent: they have no attention heads */
    bool mtp_blocks;        /* the file's last blocks may be for multi-token prediction (nextn.h) */
    bool rank_head;         /* files may have a head that ranks documents (rank.h) */
    bool rope_sections;     /* files state the components of positions (rope.dimension_sections), interleaved */
    bool windows;           /* keys of windows and causality are the architecture's own to read */
    /* Adds buffers and operations to an empty plan. The caller frees the plan on failure. */
    qn_status (*build)(qn_build *build);
} qn_architecture;

/* qn_hparams_read - reads the hyperparameters of an architecture but n_vocab, and rejects keys of what is not
 * implemented. */
qn_status qn_hparams_read(const qn_gguf *file, const qn_architecture *architecture, qn_hparams *hparams);

#endif
