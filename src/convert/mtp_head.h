/* The MTP block of a GGUF file or a checkpoint, which is to be joined to another file of the model: found, compared
 * with that model, and its tensors listed. */
#ifndef QN_CONVERT_MTP_HEAD_H
#define QN_CONVERT_MTP_HEAD_H

#include "convert/targets.h"
#include "model/mtp_block.h"

typedef struct qn_head_tensor {
    char name[64]; /* as the joined file has it: "blk.64.attn_q.weight" */
    uint64_t dims[2];
    uint32_t n_dims;
    const qn_gguf_tensor *tensor; /* of a GGUF file, or NULL */
    qn_target *target;            /* of a checkpoint, or NULL */
    const qn_type_info *from, *to;
    size_t bytes; /* as `to` */
    uint64_t source_bytes;
} qn_head_tensor;

typedef struct qn_head {
    const char *path;
    /* A GGUF file, or the rest. */
    qn_gguf *file;
    char folder[QN_CHECKPOINT_PATH_MAX], config_path[QN_CHECKPOINT_PATH_MAX];
    qn_config config;
    qn_checkpoint checkpoint;
    qn_targets targets;
    qn_head_tensor tensors[QN_MTP_MAX_TENSORS];
    size_t n;
} qn_head;

/* qn_head_open - finds the block and compares its model with the trunk.
 *
 *   head    zeroed; free it with qn_head_close, even after an error
 *   path    a GGUF file with the whole model or with the block alone; the folder of a checkpoint, of whose files only
 *           those with the block have to be there; or a safetensors file with a config.json next to it. Stays valid
 *   trunk   has no block yet
 *   type    of matrices; NULL: the one that each has. Vectors become f32
 *
 * Errors are those of qn_mtp_block_find, and QN_ERR_UNSUPPORTED for matrices of a type that cannot be copied. */
qn_status qn_head_open(qn_head *head, const char *path, const qn_trunk *trunk, const qn_type_info *type);
void qn_head_close(qn_head *head);

#endif
