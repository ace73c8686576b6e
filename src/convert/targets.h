/* The tensors of the GGUF file, and how each is made from the checkpoint. */
#ifndef QN_CONVERT_TARGETS_H
#define QN_CONVERT_TARGETS_H

#include "convert/checkpoint.h"
#include "convert/config.h"
#include "convert/packed.h"
#include "quant/quant.h"

#include <stdbool.h>

/* A transposition of rows or columns. From `first` on they form blocks of outer * inner * unit; unit (a, b) of a
 * block, a < outer and b < inner, becomes unit (b, a). outer = 0: the order stays. */
typedef struct qn_reorder {
    uint32_t first, outer, inner, unit;
} qn_reorder;

/* qn_reorder_source - the source's row or column for place i of the target. */
static inline uint64_t qn_reorder_source(const qn_reorder *r, uint64_t i)
{
    if (!r->outer || i < r->first)
        return i;
    const uint64_t block = (uint64_t)r->outer * r->inner * r->unit, at = (i - r->first) % block;
    const uint64_t b = at / ((uint64_t)r->outer * r->unit), a = at / r->unit % r->outer;
    return i - at + (a * r->inner + b) * r->unit + at % r->unit;
}

typedef enum qn_target_change { QN_TARGET_KEEP, QN_TARGET_ADD_ONE, QN_TARGET_MINUS_EXP } qn_target_change;

/* The values in the groups of 128 weights of a matrix, each kind including the ones before: d and -d; 0; 2d;
 * anything. */
typedef enum qn_weight_kind {
    QN_WEIGHTS_BINARY,
    QN_WEIGHTS_TERNARY,
    QN_WEIGHTS_FOUR,
    QN_WEIGHTS_ORDINARY
} qn_weight_kind;

typedef struct qn_target {
    char name[64];
    uint64_t rows, columns; /* a vector has one column */
    bool is_vector, stays_f32;
    qn_reorder row_order, column_order;
    qn_target_change change;
    const qn_source *source;       /* NULL: the data is in `values` */
    qn_packed *packed;             /* the source is packed, and `from` is f32; or NULL. Owned */
    float *values;                 /* [rows], owned; NULL with a source */
    const qn_type_info *from, *to; /* `to` is set by the caller */
    const qn_type_info *kept;      /* the type that the weights have, or had before they were packed */
    qn_weight_kind kind;           /* of a matrix, set by the caller */
    bool lossless;                 /* stored exactly in a type of 1 or 2 bits */
} qn_target;

typedef struct qn_targets {
    qn_target *at;
    size_t n, capacity;
    bool dropped_output, dropped_mtp; /* dropped_output: the output matrix equals the embedding; dropped_mtp: the MTP
                                         block is not stored */
    bool unnamed_mtp;                 /* the MTP block is not in config.json */
    bool untied_output;               /* config.json says that the output matrix is the embedding, but they differ */
    size_t n_vision;                  /* tensors of the image encoder, which are not converted */
    size_t n_activation;              /* scales of activations and of the KV cache, which are not converted */
} qn_targets;

/* qn_targets_list - lists the tensors of the model and finds the source of each. Every tensor of the checkpoint must
 * have a use.
 *
 *   targets      zeroed; free it with qn_targets_free, even after an error
 *   config       n_mtp becomes 0 if the checkpoint has no MTP block, and the number of its blocks if config.json has no
 *                such key; tied becomes false if the output matrix differs from the embedding
 *   checkpoint   its tensors are marked as used
 *
 * QN_ERR_FORMAT, with the name, for a tensor that is missing, unknown, has another shape, or is neither f32, f16, bf16
 * nor packed in a known way. */
qn_status qn_targets_list(qn_targets *targets, qn_config *config, qn_checkpoint *checkpoint);

/* qn_targets_list_mtp - lists the tensors of the MTP block alone, blk.{n_layers}.*, and finds their sources. Other
 * tensors of the checkpoint are not looked at.
 *
 *   config   its n_mtp, which files of Qwen3.6 leave out, is not read
 *
 * QN_ERR_FORMAT as qn_targets_list, and if the checkpoint has no such block, or more than one. */
qn_status qn_targets_list_mtp(qn_targets *targets, qn_config *config, qn_checkpoint *checkpoint);

/* The names of an MTP block's tensors in checkpoints begin with one of these. */
enum { QN_MTP_PREFIXES = 2 };
extern const char *const qn_mtp_prefixes[QN_MTP_PREFIXES];

void qn_targets_free(qn_targets *targets);

#endif
