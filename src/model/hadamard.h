/* The keys prism.hadamard.*: they say which weights of a file are stored in a rotated basis (Hadamard transform of
 * their input).
 *
 * A model whose rotation is applied only partly generates fluent but wrong text. So all keys must be known, complete
 * and consistent with the tensors; otherwise the file is rejected. */
#ifndef QN_MODEL_HADAMARD_H
#define QN_MODEL_HADAMARD_H

#include "gguf/gguf.h"

#include <stdbool.h>

/* The rotation that the keys describe. Constant after qn_rotation_read. */
typedef struct qn_rotation {
    size_t block;           /* block size of the transform; 0: no rotated weights, and no other member is set */
    bool tied_output;       /* version 2: logits = z . H(S x), with z the stored rows of token_embd */
    bool gdn_v_grouped;     /* the columns of ssm_out have the value heads in grouped order */
    bool inverse_embedding; /* token_embd is stored rotated: the embedding of a stored row z is S (H z) */
    size_t n_widths;
    size_t *widths; /* [n_widths] input widths, ascending */
    float **signs;  /* [n_widths], each [width] of +-1; NULL with sign_mode "identity" */
    const qn_gguf *file;
    qn_string *names; /* [n_names] weight_names, sorted by bytes; the strings are in the file's map */
    size_t n_names;
} qn_rotation;

/* qn_rotation_read - reads and checks all keys: the version and its requirements, transform, axis, sign_mode, the block
 * size against the width of every listed matrix, signs for every width, names against the file's tensors.
 *
 *   file       must outlive the rotation
 *   rotation   free it with qn_rotation_free, which also accepts a zeroed struct; on failure there is nothing to free.
 *              If the file has no such keys, block is 0
 *
 * QN_ERR_UNSUPPORTED: a key or value is not known. QN_ERR_FORMAT: a value is missing or inconsistent. The texts have
 * the key, the value found and the value expected. */
qn_status qn_rotation_read(const qn_gguf *file, qn_rotation *rotation);
void qn_rotation_free(qn_rotation *rotation);

/* qn_rotation_applies - returns whether the matrix with this full tensor name ("blk.3.ssm_out.weight") requires a
 * rotated input. */
bool qn_rotation_applies(const qn_rotation *rotation, const char *name);

/* qn_rotation_signs - returns the signs [width] for this input width, or NULL if all are +1. */
const float *qn_rotation_signs(const qn_rotation *rotation, size_t width);

#endif
