/* What a GGUF file is for: a model that answers by itself, or something that only serves next to one. */
#ifndef QN_MODEL_ROLE_H
#define QN_MODEL_ROLE_H

#include "gguf/gguf.h"

typedef enum qn_file_role {
    QN_FILE_MODEL,
    QN_FILE_DRAFTER,   /* drafts tokens for a model: DFlash, EAGLE, or an MTP block without the layers before it */
    QN_FILE_PROJECTOR, /* turns images or sounds into rows of a model (mmproj) */
    QN_FILE_IMATRIX    /* statistics for a quantiser */
} qn_file_role;

/* qn_file_role_of - decides by the architecture, general.type and the tensors. A file that only names an architecture
 * that quern does not have is a model. A file of a split model that was opened alone is a model, too: it may lack the
 * tensors that would tell. */
qn_file_role qn_file_role_of(const qn_gguf *file);

/* qn_file_is_mtp_block - returns whether the file has a block for multi-token prediction and not the model's first
 * layer, by which llama.cpp tells such files, too; or tensors of such a block, of any number, and of no other, whether
 * or not a key counts it. */
bool qn_file_is_mtp_block(const qn_gguf *file);

/* qn_file_role_read - the same as qn_file_role_of for a path, of a split model any of its files. False if it cannot be
 * opened. */
bool qn_file_role_read(const char *path, qn_file_role *role);

#endif
