/* A model's weights on the device: matrices are packed into tiles as they are uploaded (cuda/kernels/matmul/matmul.h),
 * each once; all vectors are in one buffer. */
#include "cuda/executor/weights.h"

#include "base/memory.h"
#include "cuda/kernels/matmul/embed.h"
#include "gpu/f16_rows.h"
#include "gpu/vectors.h"

_Static_assert((int)QN_OP_MATRICES == (int)QN_MATMUL_OUTS, "the matrices of an operation can be one GEMM");

/* ---- Tiled matrices ---- */

static uint32_t layout_of(const qn_type_info *type)
{
    const qn_tile_layout tiles = qn_matmul_gpu_tile_layout(type);
    return qn_cuda_tiles_key(&tiles);
}

static qn_gpu_tiling tiling_of(const qn_plan *plan)
{
    const qn_op *embed = &plan->ops[0];
    return (qn_gpu_tiling){ .tile_rows = QN_TILE_ROWS,
                            .layout_of = layout_of,
                            .embeds = qn_matmul_gpu_can_embed(embed->embed.table.type, embed->embed.inverse.block) };
}

/* Returns the tiled matrix of a GEMM, without its address. */
static qn_tiled_matrix tiled_matrix_of(const qn_gpu_gemm *group, const qn_op_matrices *matrices)
{
    const qn_matrix *first = &matrices->at[group->matrices[0]].weights;
    qn_tiled_matrix m = { .tiles = qn_matmul_gpu_tile_layout(first->type),
                          .n_tiles = group->n_tiles,
                          .n_cols = group->n_cols,
                          .n_outs = group->n_matrices };
    for (size_t i = 0; i < m.n_outs; i++)
        m.outs[i] = (qn_matmul_out){ .first_tile = (uint32_t)group->first_tiles[i],
                                     .n_rows = (uint32_t)matrices->at[group->matrices[i]].weights.n_rows,
                                     .accumulate = matrices->at[group->matrices[i]].accumulate };
    return m;
}

/* The operation of the trunk whose output matrix a draft head has, too; NULL if it has its own. */
static const qn_cuda_op *find_output(const qn_cuda_weights *weights, const qn_op *op)
{
    const qn_plan *plan = weights->common->plan;
    for (size_t i = 0; op->kind == QN_OP_LOGITS && i < qn_plan_trunk_ops(plan); i++)
        if (plan->ops[i].kind == QN_OP_LOGITS && &plan->ops[i] != op &&
            plan->ops[i].matmul.matrices.at[0].weights.data == op->matmul.matrices.at[0].weights.data)
            return &weights->ops[i];
    return NULL;
}

static qn_status create_tiled_matrices(qn_cuda_weights *weights, const qn_gpu_tiling *tiling,
                                       const qn_op_matrices *matrices, const qn_cuda_op *output, qn_cuda_op *to)
{
    qn_gpu_gemm groups[QN_OP_MATRICES];
    to->n_gemms = qn_gpu_group_matrices(tiling, matrices, groups);
    for (size_t i = 0; i < to->n_gemms; i++) {
        qn_cuda_gemm *gemm = &to->gemms[i];
        size_t bytes;
        *gemm = (qn_cuda_gemm){ .group = groups[i], .tiled_matrix = tiled_matrix_of(&groups[i], matrices) };
        if (output) {
            gemm->tiled_matrix.address = output->gemms[i].tiled_matrix.address;
            continue;
        }
        QN_TRY(qn_matmul_gpu_bytes(&gemm->tiled_matrix.tiles, gemm->tiled_matrix.n_tiles, gemm->tiled_matrix.n_cols,
                                   &bytes));
        QN_TRY(qn_cuda_alloc(weights->common->cuda, bytes, 1, "weights on the GPU", &gemm->memory));
        gemm->tiled_matrix.address = gemm->memory.address;
    }
    return QN_OK;
}

/* ---- Fusion ---- */

/* Returns the operation on the floats from which the activations of a NORM or a SWIGLU are quantised. */
static int fused_op(const qn_op *writer)
{
    return writer->kind == QN_OP_NORM ? QN_ACTS_OP_RMS_NORM : QN_ACTS_OP_SWIGLU;
}

bool qn_cuda_reads_rows(const qn_cuda_weights *weights, const qn_op *writer, const qn_cuda_gemm *gemm)
{
    return writer->kind == QN_OP_NORM && !weights->common->plan->acts[gemm->group.acts].rotation.block &&
           qn_matmul_gpu_has_gemv_norm(&weights->common->matmul, &gemm->tiled_matrix);
}

/* The activations that an operation's matmuls of 2 to QN_FEW_MAX_TOKENS rows read, if these are their only activations
 * and in QN_ACTS_HILO; else -1. */
static int only_hilo_acts(const qn_cuda_weights *weights, const qn_op *writer, const qn_cuda_op *reader)
{
    int acts = -1;
    for (size_t i = 0; i < reader->n_gemms; i++) {
        const qn_cuda_gemm *gemm = &reader->gemms[i];
        if (qn_cuda_reads_rows(weights, writer, gemm))
            continue;
        if (gemm->tiled_matrix.tiles.bits > 2 || (acts >= 0 && acts != gemm->group.acts))
            return -1;
        acts = gemm->group.acts;
    }
    return acts;
}

/* Sets fuses_next of operation i, a matmul: whether operation i + 2 is a matmul too and reads the output of operation i
 * + 1 in QN_ACTS_HILO only. */
static void decide_fusion(qn_cuda_weights *weights, size_t i)
{
    const qn_plan *plan = weights->common->plan;
    const qn_op *writer = &plan->ops[i + 1];
    qn_cuda_op *cuda_op = &weights->ops[i];
    if (cuda_op->n_gemms != 1 || !qn_gpu_may_fuse(plan, i, &cuda_op->gemms[0].group))
        return;
    const int acts = only_hilo_acts(weights, writer, &cuda_op[2]);
    /* Whether the GEMM does not overwrite its own input. */
    const bool overwrites = i >= 2 && cuda_op[-2].fuses_next && cuda_op->gemms[0].group.acts == acts;
    cuda_op->next_acts = acts;
    cuda_op->fuses_next =
        acts >= 0 && !overwrites &&
        qn_matmul_gpu_can_fuse(&cuda_op->gemms[0].tiled_matrix, fused_op(writer), plan->acts[acts].rotation.block);
}

/* ---- Vectors ---- */

static void place_vectors(qn_cuda_weights *weights, qn_gpu_vectors *v)
{
    const qn_plan *plan = weights->common->plan;
    v->used = 0;
    for (size_t i = 0; i < plan->n_ops; i++)
        qn_gpu_place_op_vectors(v, plan, &plan->ops[i], &weights->ops[i].vectors);
    qn_gpu_place_plan_vectors(v, plan, weights->signs, &weights->frequencies);
    qn_gpu_place_drafter_rope(v, plan, &weights->drafter_frequencies);
}

static qn_status create_vectors(qn_cuda_weights *weights)
{
    qn_gpu_vectors v = { 0 };
    place_vectors(weights, &v);
    QN_TRY(qn_cuda_alloc(weights->common->cuda, v.used, 1, "vectors on the GPU", &weights->vectors));
    QN_TRY(qn_alloc(&v.host, v.used, 1, "vectors"));
    v.address = weights->vectors.address;
    place_vectors(weights, &v);
    const qn_status status = qn_cuda_upload(weights->common->cuda, v.address, v.host, v.used, NULL, NULL);
    qn_free(v.host);
    return status;
}

/* Sets weights->table; operation 0 of a plan is QN_OP_EMBED. */
static void find_table(qn_cuda_weights *weights, const qn_gpu_tiling *tiling)
{
    const qn_op *output = qn_gpu_output_of_table(weights->common->plan);
    const qn_cuda_op *op = &weights->ops[output ? output - weights->common->plan->ops : 0];
    if (!tiling->embeds)
        return;
    weights->table = (qn_cuda_table){ .tiled_matrix = &op->gemms[0].tiled_matrix,
                                      .first_tile = op->gemms[0].tiled_matrix.outs[0].first_tile,
                                      .signs = weights->ops[0].vectors.embed.inverse };
}

/* The most rows of a pass in which the matmuls of the trunk compute each row by the same operations. */
static size_t same_rows(const qn_cuda_weights *weights)
{
    size_t least = QN_FEW_MAX_TOKENS;
    for (size_t i = 1; i < qn_plan_trunk_ops(weights->common->plan); i++)
        for (size_t g = 0; g < weights->ops[i].n_gemms; g++) {
            const qn_cuda_gemm *gemm = &weights->ops[i].gemms[g];
            const size_t rows = qn_matmul_gpu_same_tokens(&weights->common->matmul, &gemm->tiled_matrix);
            if (rows < least && !qn_cuda_reads_rows(weights, &weights->common->plan->ops[i - 1], gemm))
                least = rows;
        }
    return least;
}

qn_status qn_cuda_weights_create(const qn_cuda_common *common, qn_cuda_weights *weights)
{
    const qn_gpu_tiling tiling = tiling_of(common->plan);
    weights->common = common;
    QN_TRY(qn_alloc(&weights->ops, common->plan->n_ops, sizeof *weights->ops, "plan"));
    QN_TRY(qn_alloc(&weights->signs, common->plan->n_acts, sizeof *weights->signs, "plan"));
    for (size_t i = 0; i < weights->common->plan->n_ops; i++) {
        const qn_op_matrices matrices = qn_gpu_tiled_matrices(&tiling, common->plan, &common->plan->ops[i]);
        QN_TRY(create_tiled_matrices(weights, &tiling, &matrices, find_output(weights, &common->plan->ops[i]),
                                     &weights->ops[i]));
    }
    for (size_t i = 0; i < weights->common->plan->n_ops; i++)
        decide_fusion(weights, i);
    weights->same_rows = same_rows(weights);
    QN_TRY(create_vectors(weights));
    find_table(weights, &tiling);
    return QN_OK;
}

void qn_cuda_weights_free(qn_cuda_weights *weights)
{
    if (!weights->common)
        return;
    for (size_t i = 0; weights->ops && i < weights->common->plan->n_ops; i++)
        for (size_t p = 0; p < weights->ops[i].n_gemms; p++)
            qn_cuda_free(weights->common->cuda, &weights->ops[i].gemms[p].memory);
    qn_cuda_free(weights->common->cuda, &weights->vectors);
    qn_cuda_free(weights->common->cuda, &weights->staging);
    qn_free(weights->ops);
    qn_free(weights->signs);
}

void qn_cuda_weights_end_upload(qn_cuda_weights *weights)
{
    qn_cuda_free(weights->common->cuda, &weights->staging);
}

/* ---- Uploads ---- */

static qn_status reserve_staging(qn_cuda_weights *weights, size_t bytes)
{
    if (bytes <= weights->staging.bytes && weights->staging.address)
        return QN_OK;
    qn_cuda_free(weights->common->cuda, &weights->staging);
    return qn_cuda_alloc(weights->common->cuda, bytes, 1, "staging buffer for weights", &weights->staging);
}

static qn_status upload_rows(qn_cuda_weights *weights, const qn_cuda_gemm *gemm, size_t out, const void *rows,
                             size_t n_rows, size_t row_bytes)
{
    qn_matmul_launch pack;
    QN_TRY(reserve_staging(weights, n_rows * row_bytes));
    QN_TRY(qn_cuda_upload(weights->common->cuda, weights->staging.address, rows, n_rows * row_bytes, NULL, NULL));
    QN_TRY(qn_matmul_gpu_pack(&gemm->tiled_matrix, weights->staging.address, row_bytes, n_rows,
                              gemm->tiled_matrix.outs[out].first_tile, &pack));
    QN_TRY(qn_cuda_launch(weights->common->cuda, weights->common->stream, &pack.launch, &pack.args));
    return qn_cuda_stream_synchronize(weights->common->cuda, weights->common->stream); /* the next call reuses the
                                                                                          staging buffer */
}

static qn_status upload_matrix(qn_cuda_weights *weights, qn_cuda_gemm *gemm, size_t out, const qn_matrix *matrix)
{
    qn_cuda_gemm as = *gemm; /* matrices of one layout may be stored differently */
    as.tiled_matrix.tiles = qn_matmul_gpu_tile_layout(matrix->type);
    if (!as.tiled_matrix.tiles.as_f16)
        return upload_rows(weights, &as, out, matrix->data, matrix->n_rows, matrix->row_bytes);
    uint16_t *f16_rows;
    qn_status status = qn_gpu_f16_rows(matrix, weights->common->team, &f16_rows);
    if (status == QN_OK)
        status = upload_rows(weights, &as, out, f16_rows, matrix->n_rows, matrix->n_cols * sizeof *f16_rows);
    qn_free(f16_rows);
    return status;
}

qn_status qn_cuda_weights_upload(qn_cuda_weights *weights, const uint8_t *data, bool *taken)
{
    const qn_gpu_tiling tiling = tiling_of(weights->common->plan);
    *taken = false;
    for (size_t i = 0; i < weights->common->plan->n_ops; i++) {
        const qn_op_matrices matrices =
            qn_gpu_tiled_matrices(&tiling, weights->common->plan, &weights->common->plan->ops[i]);
        for (size_t p = 0; p < weights->ops[i].n_gemms; p++) {
            qn_cuda_gemm *gemm = &weights->ops[i].gemms[p];
            for (size_t out = 0; out < gemm->tiled_matrix.n_outs; out++) {
                const qn_matrix *matrix = &matrices.at[gemm->group.matrices[out]].weights;
                if (matrix->data != data || !gemm->memory.address)
                    continue;
                QN_TRY(upload_matrix(weights, gemm, out, matrix));
                *taken = true;
            }
        }
    }
    return QN_OK;
}
