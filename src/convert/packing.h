/* How a checkpoint's matrices are packed, as its config.json says. */
#ifndef QN_CONVERT_PACKING_H
#define QN_CONVERT_PACKING_H

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum qn_packing_kind {
    QN_PACKING_NONE, /* or MLX's, which the tensors show */
    QN_PACKING_FP8,
    QN_PACKING_GPTQ,
    QN_PACKING_AWQ
} qn_packing_kind;

typedef struct qn_packing {
    qn_packing_kind kind;
    uint32_t block_rows, block_columns; /* weights for one scale of FP8, where there is one for a block */
    uint32_t group;                     /* weights of a row for one scale of GPTQ and AWQ; 0: all */
    bool zeros_are_less_one;            /* GPTQ's older format stores zero points less 1 */
} qn_packing;

/* qn_packing_read - reads `quantization_config`, or NULL for a checkpoint without.
 *
 * QN_ERR_UNSUPPORTED for another method or format; the text says what to run first. QN_ERR_FORMAT for a wrong value. */
qn_status qn_packing_read(qn_packing *packing, const char *path, const json_t *config);

#endif
