/* Rows of weights in fp16, for types that a backend's kernels do not read. */
#ifndef QN_GPU_F16_ROWS_H
#define QN_GPU_F16_ROWS_H

#include "base/status.h"
#include "base/team.h"
#include "quant/matrix.h"

/* qn_gpu_f16_row - dequantises one row of n_cols weights to fp16, rounded to nearest and saturated at 65504. scratch is
 * [n_cols]. */
void qn_gpu_f16_row(const qn_type_info *type, const uint8_t *row, size_t n_cols, float *scratch, uint16_t *f16);

/* qn_gpu_f16_rows - converts all rows of a matrix with the team's threads: *f16_rows [n_rows][n_cols], which the caller
 * frees with qn_free. QN_ERR_MEMORY leaves *f16_rows NULL. */
qn_status qn_gpu_f16_rows(const qn_matrix *matrix, qn_team *team, uint16_t **f16_rows);

#endif
