/* A matrix of weights as a file stores it, which every device reads. */
#ifndef QN_QUANT_MATRIX_H
#define QN_QUANT_MATRIX_H

#include "quant/quant.h"

#include <stddef.h>
#include <stdint.h>

typedef struct qn_matrix {
    const qn_type_info *type;
    const uint8_t *data; /* [n_rows] rows of row_bytes, any alignment */
    size_t n_rows, n_cols, row_bytes;
    uint32_t scaled; /* of NVFP4, until it is loaded: 1 + its index in qn_plan.scaled; else 0 */
} qn_matrix;

#endif
