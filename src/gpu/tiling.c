/* Groups of matrices that are stored in tiles together. */
#include "gpu/tiling.h"

const qn_op *qn_gpu_output_of_table(const qn_plan *plan)
{
    for (size_t i = 0; i < plan->n_ops; i++)
        if (plan->ops[i].kind == QN_OP_LOGITS &&
            plan->ops[i].matmul.matrices.at[0].weights.data == plan->ops[0].embed.table.data)
            return &plan->ops[i];
    return NULL;
}

qn_op_matrices qn_gpu_tiled_matrices(const qn_gpu_tiling *tiling, const qn_plan *plan, const qn_op *op)
{
    const qn_op_matrices *matrices = qn_op_matrices_of(op);
    const qn_matrix *table = qn_op_table_of(op);
    if (matrices)
        return *matrices;
    if (table && op == plan->ops && tiling->embeds && !qn_gpu_output_of_table(plan))
        return (qn_op_matrices){ .at[0] = { .weights = *table, .out = -1 }, .n = 1 };
    return (qn_op_matrices){ 0 };
}

/* Returns the GEMM with these activations and this tile layout among *n, or adds one. */
static qn_gpu_gemm *gemm_for(qn_gpu_gemm *gemms, size_t *n, int acts, uint32_t layout)
{
    for (size_t i = 0; i < *n; i++)
        if (gemms[i].acts == acts && gemms[i].layout == layout)
            return &gemms[i];
    gemms[*n] = (qn_gpu_gemm){ .acts = acts, .layout = layout };
    return &gemms[(*n)++];
}

size_t qn_gpu_group_matrices(const qn_gpu_tiling *tiling, const qn_op_matrices *matrices,
                             qn_gpu_gemm gemms[QN_OP_MATRICES])
{
    size_t n = 0;
    for (size_t i = 0; i < matrices->n; i++) {
        const qn_matrix *matrix = &matrices->at[i].weights;
        qn_gpu_gemm *gemm = gemm_for(gemms, &n, matrices->at[i].acts, tiling->layout_of(matrix->type));
        gemm->n_cols = matrix->n_cols;
        gemm->matrices[gemm->n_matrices] = i;
        gemm->first_tiles[gemm->n_matrices++] = gemm->n_tiles;
        gemm->n_tiles += matrix->n_rows / tiling->tile_rows + (matrix->n_rows % tiling->tile_rows != 0);
    }
    return n;
}

/* ---- Fusion ---- */

static bool computes_gate_and_up(const qn_plan *plan, const qn_op *matmul, const qn_gpu_gemm *gemm, const qn_op *swiglu)
{
    for (size_t i = 0; i < plan->n_ops; i++)
        if (plan->ops[i].kind != QN_OP_SWIGLU &&
            ((qn_op_access(&plan->ops[i], swiglu->swiglu.gate) | qn_op_access(&plan->ops[i], swiglu->swiglu.up)) &
             QN_READS))
            return false;
    return gemm->n_matrices > 1 && matmul->matmul.matrices.at[gemm->matrices[0]].out == swiglu->swiglu.gate &&
           matmul->matmul.matrices.at[gemm->matrices[1]].out == swiglu->swiglu.up;
}

bool qn_gpu_may_fuse(const qn_plan *plan, size_t at, const qn_gpu_gemm *gemm)
{
    const qn_op *op = &plan->ops[at], *writer = op + 1;
    if (op->kind != QN_OP_MATMUL || at + 2 >= plan->n_ops || writer[1].kind != QN_OP_MATMUL)
        return false;
    if (writer->kind == QN_OP_NORM)
        return op->matmul.matrices.at[gemm->matrices[0]].out == writer->norm.in;
    return writer->kind == QN_OP_SWIGLU && computes_gate_and_up(plan, op, gemm, writer);
}
