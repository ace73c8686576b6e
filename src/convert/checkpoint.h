/* The tensors of a checkpoint folder: model.safetensors, or the files that model.safetensors.index.json lists. */
#ifndef QN_CONVERT_CHECKPOINT_H
#define QN_CONVERT_CHECKPOINT_H

#include "gguf/safetensors.h"

#include <stdbool.h>

typedef struct qn_source {
    const char *name;
    const qn_safetensors *file;
    const qn_safetensor *tensor;
    bool used; /* set by the caller, read by qn_checkpoint_first_unused */
} qn_source;

typedef struct qn_checkpoint {
    const char *folder;
    qn_safetensors **files;
    size_t n_files, files_capacity;
    uint64_t header_bytes;  /* of all files together */
    bool has_unlisted_file; /* the folder also has model.safetensors, which the index does not list */
    qn_source *sources;     /* [n_sources] sorted by name */
    size_t n_sources;
} qn_checkpoint;

enum { QN_CHECKPOINT_PATH_MAX = 4096 };

/* qn_checkpoint_path - joins a folder and a file's name. QN_ERR_INVALID if the path is too long. */
qn_status qn_checkpoint_path(const char *folder, const char *name, char path[QN_CHECKPOINT_PATH_MAX]);

/* qn_checkpoint_open - opens all files and lists their tensors.
 *
 *   checkpoint   zeroed; free it with qn_checkpoint_close, even after an error
 *   folder       must stay valid as long as the checkpoint
 *
 * QN_ERR_FORMAT, with its name, for a tensor that is in two files, or in the index but in no file, or in a file but
 * not in the index. */
qn_status qn_checkpoint_open(qn_checkpoint *checkpoint, const char *folder);

/* qn_checkpoint_open_part - as qn_checkpoint_open, but of the files that an index lists only those with a tensor whose
 * name begins with one of the prefixes [n] are opened, and have to be there. */
qn_status qn_checkpoint_open_part(qn_checkpoint *checkpoint, const char *folder, const char *const *prefixes, size_t n);

/* qn_checkpoint_open_file - opens one file of the folder, without an index. */
qn_status qn_checkpoint_open_file(qn_checkpoint *checkpoint, const char *folder, const char *name);

void qn_checkpoint_close(qn_checkpoint *checkpoint);

/* qn_checkpoint_check_unchanged - calls qn_safetensors_check_unchanged for each file. */
qn_status qn_checkpoint_check_unchanged(const qn_checkpoint *checkpoint);

/* qn_checkpoint_find - the tensor with a name, or NULL. */
qn_source *qn_checkpoint_find(const qn_checkpoint *checkpoint, const char *name);

/* qn_checkpoint_has_prefix - whether any tensor's name begins with a prefix. */
bool qn_checkpoint_has_prefix(const qn_checkpoint *checkpoint, const char *prefix);

/* qn_checkpoint_first_unused - the first tensor that is not marked as used, or NULL. */
const qn_source *qn_checkpoint_first_unused(const qn_checkpoint *checkpoint);

#endif
