/* Which weights of a file are stored in a rotated basis (keys prism.hadamard.*).
 *
 * A model that is rotated in part speaks fluent nonsense, so everything that the keys say must be known, complete and agree
 * with the tensors; running it is left to the plan. */
#ifndef QN_MODEL_HADAMARD_H
#define QN_MODEL_HADAMARD_H

#include "gguf/gguf.h"

#include <stdbool.h>

typedef struct qn_rotation {
    size_t block;           /* 0: the file has no rotated weights, and nothing below is set */
    bool tied_output;       /* version 2: logits = z . H(S x) with the table's stored rows z */
    bool gdn_v_grouped;     /* ssm_out reads its value heads in grouped order */
    bool inverse_embedding; /* token_embd is stored rotated: h = S (H z) */
    size_t n_widths;
    size_t *widths; /* [n_widths] rising */
    float **signs;  /* [n_widths], each [width] of +-1; NULL with sign_mode "identity" */
    const qn_gguf *file;
    qn_string *names; /* [n_names] of weight_names, sorted by bytes; the strings lie in the file */
    size_t n_names;
} qn_rotation;

/* qn_rotation_read - all keys read and checked: version and what it asks for, transform, axis, sign_mode, block size against
 * every listed matrix's width, signs for every width, names against the file's tensors. QN_ERR_UNSUPPORTED for a value that is
 * not known, QN_ERR_FORMAT for what is inconsistent, both naming key, found and expected. A file without any such key gives a
 * block of 0. The file must outlive the struct. Free with qn_rotation_free, which takes a zeroed struct too; after a failure
 * there is nothing to free. */
qn_status qn_rotation_read(const qn_gguf *file, qn_rotation *rotation);
void qn_rotation_free(qn_rotation *rotation);

/* qn_rotation_applies - whether the matrix of this full tensor name ("blk.3.ssm_out.weight") expects a rotated input. */
bool qn_rotation_applies(const qn_rotation *rotation, const char *name);

/* qn_rotation_signs - the signs [width] of this input width, or NULL where all are +1. */
const float *qn_rotation_signs(const qn_rotation *rotation, size_t width);

#endif
