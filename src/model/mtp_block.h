/* The block for multi-token prediction (MTP) of a file other than the model's: found, and compared with the model. A
 * block is joined to the model's file (convert/graft.c), or becomes the draft head of its plan (nextn.h). */
#ifndef QN_MODEL_MTP_BLOCK_H
#define QN_MODEL_MTP_BLOCK_H

#include "model/model.h"

enum { QN_MTP_MAX_TENSORS = 20 };

/* The model that a block is for. */
typedef struct qn_trunk {
    const qn_gguf *file;
    const qn_hparams *hparams;
} qn_trunk;

typedef struct qn_mtp_tensor {
    const char *name; /* without the block: "attn_q.weight"; static */
    const qn_gguf_tensor *tensor;
    bool is_vector;
} qn_mtp_tensor;

typedef struct qn_mtp_block {
    uint32_t number; /* in its file: that of the model's layers, or 0 */
    qn_mtp_tensor tensors[QN_MTP_MAX_TENSORS];
    size_t n;
} qn_mtp_block;

/* qn_mtp_block_find - finds the one block of a GGUF file, with the whole model or alone, and compares its model with
 * the trunk. Keys that the file lacks are not compared. Any thread.
 *
 * QN_ERR_INVALID       it has no block, or more than one, or another shape, vocabulary or rope than the trunk: the text
 *                      names what differs, with both values
 * QN_ERR_FORMAT        a tensor of the block is missing, unknown or has another shape, with its name
 * QN_ERR_UNSUPPORTED   its matrices are rotated */
qn_status qn_mtp_block_find(const qn_gguf *file, const qn_trunk *trunk, qn_mtp_block *block);

/* The comparisons, of a block from any source: QN_ERR_INVALID names `path`, what differs, and both values.
 *
 * qn_mtp_compare              shapes, epsilon and rope of the block's model, which are in h
 * qn_mtp_compare_vocabulary   the lists of tokens, or if one of the two has none, the sizes. tokens [n]: NULL for none
 * qn_mtp_compare_integer      a of the block with b of the trunk */
qn_status qn_mtp_compare(const char *path, const qn_trunk *trunk, const qn_hparams *h);
qn_status qn_mtp_compare_vocabulary(const char *path, const qn_trunk *trunk, const qn_string *tokens, size_t n,
                                    uint32_t n_vocab);
qn_status qn_mtp_compare_integer(const char *path, const qn_trunk *trunk, const char *what, uint64_t a, uint64_t b);

#endif
