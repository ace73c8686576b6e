/* The tensors of a checkpoint folder: model.safetensors, or the files that model.safetensors.index.json lists. */
#ifndef QN_CONVERT_CHECKPOINT_H
#define QN_CONVERT_CHECKPOINT_H

#include "gguf/safetensors.h"

#include <stdbool.h>

typedef struct qn_source {
    const char *name;
    const qn_safetensors *file;
    const qn_safetensor *tensor;
    bool used; /* set by the caller; qn_checkpoint_first_unused looks at it */
} qn_source;

typedef struct qn_checkpoint {
    const char *folder;
    qn_safetensors **files;
    size_t n_files, files_capacity;
    uint64_t header_bytes;  /* of all files */
    bool has_unlisted_file; /* the folder has model.safetensors, too, which the index does not list */
    qn_source *sources;     /* [n_sources] sorted by name */
    size_t n_sources;
} qn_checkpoint;

enum { QN_CHECKPOINT_PATH_MAX = 4096 };

/* qn_checkpoint_path - the path of a file in a folder. QN_ERR_INVALID if it is too long. */
qn_status qn_checkpoint_path(const char *folder, const char *name, char path[QN_CHECKPOINT_PATH_MAX]);

/* qn_checkpoint_open - open all files and list their tensors.
 *
 *   checkpoint   zeroed; free it with qn_checkpoint_close, whatever the status
 *   folder       stays valid as long as the checkpoint
 *
 * QN_ERR_FORMAT, with the name, for a tensor in two files, in the index and in no file, or in a file and not in the index. */
qn_status qn_checkpoint_open(qn_checkpoint *checkpoint, const char *folder);
void qn_checkpoint_close(qn_checkpoint *checkpoint);

/* qn_checkpoint_check_unchanged - qn_safetensors_check_unchanged of each file. */
qn_status qn_checkpoint_check_unchanged(const qn_checkpoint *checkpoint);

/* qn_checkpoint_find - the tensor with this name, or NULL. */
qn_source *qn_checkpoint_find(const qn_checkpoint *checkpoint, const char *name);

/* qn_checkpoint_has_prefix - whether a tensor's name begins so. */
bool qn_checkpoint_has_prefix(const qn_checkpoint *checkpoint, const char *prefix);

/* qn_checkpoint_first_unused - the first tensor that is not used, or NULL. */
const qn_source *qn_checkpoint_first_unused(const qn_checkpoint *checkpoint);

#endif
