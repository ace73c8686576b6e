/* Conversion of rows of weights to fp16. */
#include "gpu/f16_rows.h"

#include "base/f16.h"
#include "base/memory.h"

void qn_gpu_f16_row(const qn_type_info *type, const uint8_t *row, size_t n_cols, float *scratch, uint16_t *f16)
{
    type->to_float(row, n_cols / type->block_weights, scratch);
    for (size_t i = 0; i < n_cols; i++) {
        const uint16_t h = qn_f32_to_f16(scratch[i]);
        f16[i] = (h & 0x7fffu) == 0x7c00u ? h - 1 : h; /* saturate to 65504 */
    }
}

struct conversion {
    const qn_matrix *matrix;
    uint16_t *f16_rows;
    float *scratch; /* [threads][n_cols] */
};

static void convert_range(void *context, size_t begin, size_t end, int thread)
{
    const struct conversion *c = context;
    const size_t n = c->matrix->n_cols;
    for (size_t row = begin; row < end; row++)
        qn_gpu_f16_row(c->matrix->type, c->matrix->data + row * c->matrix->row_bytes, n,
                       c->scratch + (size_t)thread * n, c->f16_rows + row * n);
}

qn_status qn_gpu_f16_rows(const qn_matrix *matrix, qn_team *team, uint16_t **f16_rows)
{
    struct conversion c = { .matrix = matrix };
    size_t row, scratch;
    *f16_rows = NULL;
    if (!qn_mul_size(matrix->n_cols, sizeof *c.f16_rows, &row) ||
        !qn_mul_size(matrix->n_cols, sizeof *c.scratch, &scratch))
        return qn_fail(QN_ERR_MEMORY, "weights: rows of %zu do not fit in memory", matrix->n_cols);
    QN_TRY(qn_alloc(&c.scratch, (size_t)qn_team_size(team), scratch, "weights"));
    const qn_status status = qn_alloc(&c.f16_rows, matrix->n_rows, row, "weights");
    if (status == QN_OK)
        qn_team_divide(team, matrix->n_rows, 1, convert_range, &c);
    qn_free(c.scratch);
    *f16_rows = c.f16_rows;
    return status;
}
