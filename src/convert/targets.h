/* The tensors of the GGUF file, and how each is made from a tensor of the checkpoint. */
#ifndef QN_CONVERT_TARGETS_H
#define QN_CONVERT_TARGETS_H

#include "convert/checkpoint.h"
#include "convert/config.h"
#include "quant/quant.h"

#include <stdbool.h>

/* A transposition of rows or columns: those from `first` on are blocks of outer * inner * unit, and the unit (a, b) of the
 * source, a < outer and b < inner, becomes unit (b, a). outer = 0: the order stays. */
typedef struct qn_reorder {
    uint32_t first, outer, inner, unit;
} qn_reorder;

/* qn_reorder_source - the row or column of the source that comes to place i. */
static inline uint64_t qn_reorder_source(const qn_reorder *r, uint64_t i)
{
    if (!r->outer || i < r->first)
        return i;
    const uint64_t block = (uint64_t)r->outer * r->inner * r->unit, at = (i - r->first) % block;
    const uint64_t b = at / ((uint64_t)r->outer * r->unit), a = at / r->unit % r->outer;
    return i - at + (a * r->inner + b) * r->unit + at % r->unit;
}

typedef enum qn_target_change { QN_TARGET_KEEP, QN_TARGET_ADD_ONE, QN_TARGET_MINUS_EXP } qn_target_change;

/* What the groups of 128 weights of a matrix hold, from few values to many: d and -d; also 0; also 2d; anything. */
typedef enum qn_weight_kind { QN_WEIGHTS_BINARY, QN_WEIGHTS_TERNARY, QN_WEIGHTS_FOUR, QN_WEIGHTS_ORDINARY } qn_weight_kind;

typedef struct qn_target {
    char name[64];
    uint64_t rows, columns; /* a vector has one column */
    bool is_vector, stays_f32;
    qn_reorder row_order, column_order;
    qn_target_change change;
    const qn_source *source;       /* NULL: the values are `values` */
    float *values;                 /* [rows], owned; NULL with a source */
    const qn_type_info *from, *to; /* `to` is set by the caller */
    qn_weight_kind kind;           /* of a matrix, set by the caller */
    bool lossless;                 /* stored in a type of 1 or 2 bits that has exactly its values */
} qn_target;

typedef struct qn_targets {
    qn_target *at;
    size_t n, capacity;
    bool dropped_output, dropped_mtp; /* an output matrix that is the embedding once more; an MTP block that is not stored */
    bool untied_output;               /* an output matrix that config.json says is the embedding, and which it is not */
    size_t n_vision;                  /* tensors of the image encoder, which are left out */
} qn_targets;

/* qn_targets_list - list the tensors of the model and find the source of each. All sources are accounted for.
 *
 *   targets      zeroed; free it with qn_targets_free, whatever the status
 *   config       n_mtp becomes 0 if the checkpoint has no tensor of the MTP block, tied false if the output matrix has other values
 *   checkpoint   its tensors become used
 *
 * QN_ERR_FORMAT, with the name, for a tensor that is missing, unknown, of another shape, or not of f32, f16 or bf16. */
qn_status qn_targets_list(qn_targets *targets, qn_config *config, qn_checkpoint *checkpoint);
void qn_targets_free(qn_targets *targets);

#endif
