/* A model's weights on the device: matrices are packed into tiles as they are uploaded (cuda/kernels/matmul/matmul.h),
 * each once; all vectors are in one buffer. */
#include "cuda/executor/weights.h"

#include "base/memory.h"
#include "cuda/kernels/matmul/embed.h"

#include <stdlib.h>
#include <string.h>

enum { VECTOR_UNIT = 64 }; /* floats: a vector begins at a multiple of 256 bytes */

/* ---- Tiled matrices ---- */

/* With tied embeddings, the operation whose matrix is the embedding table; else NULL. */
static const qn_op *output_of_table(const qn_plan *plan)
{
    for (size_t i = 0; i < plan->n_ops; i++)
        if (plan->ops[i].kind == QN_OP_LOGITS &&
            plan->ops[i].matmul.matrices.at[0].weights.data == plan->ops[0].embed.table.data)
            return &plan->ops[i];
    return NULL;
}

static bool embeds_on_gpu(const qn_plan *plan)
{
    return qn_matmul_gpu_can_embed(plan->ops[0].embed.table.type, plan->ops[0].embed.inverse.block);
}

/* The matrices that are packed into tiles for this operation. */
static qn_op_matrices tiled_matrices(const qn_plan *plan, const qn_op *op)
{
    const qn_op_matrices *matrices = qn_op_matrices_of(op);
    const qn_matrix *table = qn_op_table_of(op);
    if (matrices)
        return *matrices;
    if (table && embeds_on_gpu(plan) && !output_of_table(plan))
        return (qn_op_matrices){ .at[0] = { .weights = *table, .out = -1 }, .n = 1 };
    return (qn_op_matrices){ 0 };
}

/* The operation's GEMM with these activations and this tile layout, or a new one. */
static qn_cuda_gemm *gemm_for(qn_cuda_op *op, int acts, const qn_tile_layout *tiles)
{
    for (size_t i = 0; i < op->n_gemms; i++)
        if (op->gemms[i].acts == acts && qn_cuda_same_tiles(&op->gemms[i].tiled_matrix.tiles, tiles))
            return &op->gemms[i];
    qn_cuda_gemm *gemm = &op->gemms[op->n_gemms++];
    *gemm = (qn_cuda_gemm){ .tiled_matrix.tiles = *tiles, .acts = acts };
    return gemm;
}

static qn_status create_tiled_matrices(qn_cuda_weights *weights, const qn_op_matrices *matrices, qn_cuda_op *to)
{
    for (size_t i = 0; i < matrices->n; i++) {
        const qn_matrix *matrix = &matrices->at[i].weights;
        const qn_tile_layout tiles = qn_matmul_gpu_tile_layout(matrix->type);
        qn_cuda_gemm *gemm = gemm_for(to, matrices->at[i].acts, &tiles);
        qn_tiled_matrix *tiled_matrix = &gemm->tiled_matrix;
        tiled_matrix->n_cols = matrix->n_cols;
        gemm->matrices[tiled_matrix->n_outs] = i;
        tiled_matrix->outs[tiled_matrix->n_outs++] = (qn_matmul_out){ .first_tile = (uint32_t)tiled_matrix->n_tiles,
                                                                      .n_rows = (uint32_t)matrix->n_rows,
                                                                      .accumulate = matrices->at[i].accumulate };
        tiled_matrix->n_tiles += qn_matmul_gpu_tile_count(matrix->n_rows);
    }
    for (size_t i = 0; i < to->n_gemms; i++) {
        qn_cuda_gemm *gemm = &to->gemms[i];
        size_t bytes;
        QN_TRY(qn_matmul_gpu_bytes(&gemm->tiled_matrix.tiles, gemm->tiled_matrix.n_tiles, gemm->tiled_matrix.n_cols,
                                   &bytes));
        QN_TRY(qn_cuda_alloc(weights->common->cuda, bytes, 1, "weights on the GPU", &gemm->memory));
        gemm->tiled_matrix.address = gemm->memory.address;
    }
    return QN_OK;
}

/* ---- Fusion ---- */

/* The operation on the floats from which these activations are quantised, if an earlier GEMM can compute it. */
static int fused_op(const qn_op *writer)
{
    return writer->kind == QN_OP_NORM     ? QN_ACTS_OP_RMS_NORM
           : writer->kind == QN_OP_SWIGLU ? QN_ACTS_OP_SWIGLU
                                          : QN_ACTS_OP_NONE;
}

/* Whether the GEMM computes the writer's input. Gate and up are not stored then: no other kind of operation reads them.
 * */
static bool computes_input(const qn_plan *plan, const qn_op *matmul, const qn_cuda_gemm *gemm, const qn_op *writer)
{
    const qn_op_matrix *first = &matmul->matmul.matrices.at[gemm->matrices[0]];
    if (writer->kind == QN_OP_NORM)
        return first->out == writer->norm.in;
    for (size_t i = 0; i < plan->n_ops; i++)
        if (plan->ops[i].kind != QN_OP_SWIGLU &&
            ((qn_op_access(&plan->ops[i], writer->swiglu.gate) | qn_op_access(&plan->ops[i], writer->swiglu.up)) &
             QN_READS))
            return false;
    return first->out == writer->swiglu.gate && matmul->matmul.matrices.at[gemm->matrices[1]].out == writer->swiglu.up;
}

bool qn_cuda_reads_rows(const qn_cuda_weights *weights, const qn_op *writer, const qn_cuda_gemm *gemm)
{
    return writer->kind == QN_OP_NORM && !weights->common->plan->acts[gemm->acts].rotation.block &&
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
        if (gemm->tiled_matrix.tiles.bits > 2 || (acts >= 0 && acts != gemm->acts))
            return -1;
        acts = gemm->acts;
    }
    return acts;
}

/* Sets fuses_next of operation i, a matmul: whether operation i + 2 is a matmul too and reads the output of operation i
 * + 1 in QN_ACTS_HILO only. */
static void decide_fusion(qn_cuda_weights *weights, size_t i)
{
    const qn_plan *plan = weights->common->plan;
    const qn_op *op = &plan->ops[i], *writer = op + 1;
    qn_cuda_op *cuda_op = &weights->ops[i];
    if (op->kind != QN_OP_MATMUL || i + 2 >= plan->n_ops || writer[1].kind != QN_OP_MATMUL || cuda_op->n_gemms != 1 ||
        !fused_op(writer) || !computes_input(plan, op, &cuda_op->gemms[0], writer))
        return;
    const int acts = only_hilo_acts(weights, writer, &cuda_op[2]);
    /* Whether the GEMM does not overwrite its own input. */
    const bool overwrites = i >= 2 && cuda_op[-2].fuses_next && cuda_op->gemms[0].acts == acts;
    cuda_op->next_acts = acts;
    cuda_op->fuses_next =
        acts >= 0 && !overwrites &&
        qn_matmul_gpu_can_fuse(&cuda_op->gemms[0].tiled_matrix, fused_op(writer), plan->acts[acts].rotation.block);
}

/* ---- Vectors ---- */

/* Vectors are counted in a first pass, copied to a host buffer in a second, and uploaded together. */
struct vectors {
    uint8_t *host; /* NULL while counting */
    uint64_t address;
    size_t used;
};

static void add_vector(struct vectors *v, const void *data, size_t count, size_t size, uint64_t *address)
{
    *address = 0;
    if (!data)
        return;
    if (v->host)
        memcpy(v->host + v->used, data, count * size);
    *address = v->address + v->used;
    v->used += qn_round_up(count * size, VECTOR_UNIT * sizeof(float));
}

static void add_op_vectors(const qn_plan *plan, const qn_op *op, qn_cuda_op *to, struct vectors *v)
{
    const qn_op_desc *desc = qn_op_desc_of(op->kind);
    size_t n = 0;
    for (size_t i = 0; i < QN_OP_FIELDS && desc->fields[i].kind; i++) {
        const qn_op_field *field = &desc->fields[i];
        const void *at = (const char *)op + field->offset;
        const qn_plan_rotation *rotation = at;
        if (field->kind == QN_FIELD_VECTOR)
            add_vector(v, *(const float *const *)at, qn_plan_width(plan, op, field->width), sizeof(float),
                       &to->vectors.at[n++]);
        else if (field->kind == QN_FIELD_ROTATION)
            add_vector(v, rotation->signs, rotation->block ? qn_plan_width(plan, op, field->width) : 0, sizeof(float),
                       &to->vectors.at[n++]);
    }
}

static void add_vectors(qn_cuda_weights *weights, struct vectors *v)
{
    const qn_plan *plan = weights->common->plan;
    v->used = 0;
    for (size_t i = 0; i < plan->n_ops; i++)
        add_op_vectors(plan, &plan->ops[i], &weights->ops[i], v);
    for (size_t i = 0; i < plan->n_acts; i++)
        add_vector(v, plan->acts[i].rotation.block ? plan->acts[i].rotation.signs : NULL, plan->acts[i].width,
                   sizeof(float), &weights->signs[i]);
    add_vector(v, plan->frequencies, plan->heads.n_rot / 2, sizeof(double), &weights->frequencies);
}

static qn_status create_vectors(qn_cuda_weights *weights)
{
    struct vectors v = { 0 };
    add_vectors(weights, &v);
    QN_TRY(qn_cuda_alloc(weights->common->cuda, v.used, 1, "vectors on the GPU", &weights->vectors));
    QN_TRY(qn_alloc(&v.host, v.used, 1, "vectors"));
    v.address = weights->vectors.address;
    add_vectors(weights, &v);
    const qn_status status = qn_cuda_upload(weights->common->cuda, v.address, v.host, v.used, NULL, NULL);
    qn_free(v.host);
    return status;
}

/* Sets weights->table; operation 0 of a plan is QN_OP_EMBED. */
static void find_table(qn_cuda_weights *weights)
{
    const qn_op *output = output_of_table(weights->common->plan);
    const qn_cuda_op *op = &weights->ops[output ? output - weights->common->plan->ops : 0];
    if (!embeds_on_gpu(weights->common->plan))
        return;
    weights->table = (qn_cuda_table){ .tiled_matrix = &op->gemms[0].tiled_matrix,
                                      .first_tile = op->gemms[0].tiled_matrix.outs[0].first_tile,
                                      .signs = weights->ops[0].vectors.embed.inverse };
}

/* The most rows of a pass in which the matmuls compute each row by the same operations. */
static size_t same_rows(const qn_cuda_weights *weights)
{
    size_t least = QN_FEW_MAX_TOKENS;
    for (size_t i = 1; i < weights->common->plan->n_ops; i++)
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
    weights->common = common;
    QN_TRY(qn_alloc(&weights->ops, common->plan->n_ops, sizeof *weights->ops, "plan"));
    QN_TRY(qn_alloc(&weights->signs, common->plan->n_acts, sizeof *weights->signs, "plan"));
    for (size_t i = 0; i < weights->common->plan->n_ops; i++) {
        const qn_op_matrices matrices = tiled_matrices(weights->common->plan, &weights->common->plan->ops[i]);
        QN_TRY(create_tiled_matrices(weights, &matrices, &weights->ops[i]));
    }
    for (size_t i = 0; i < weights->common->plan->n_ops; i++)
        decide_fusion(weights, i);
    weights->same_rows = same_rows(weights);
    QN_TRY(create_vectors(weights));
    find_table(weights);
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

/* Conversion to fp16 of the rows of a type that no kernel reads. */
struct conversion {
    const qn_matrix *weights;
    uint16_t *f16_rows;
    float *scratch; /* [threads][n_cols] */
};

static void convert_range(void *context, size_t begin, size_t end, int thread)
{
    const struct conversion *c = context;
    const size_t n = c->weights->n_cols;
    for (size_t row = begin; row < end; row++)
        qn_matmul_gpu_f16_row(c->weights->type, c->weights->data + row * c->weights->row_bytes, n,
                              c->scratch + (size_t)thread * n, c->f16_rows + row * n);
}

static qn_status convert(const qn_cuda_weights *weights, const qn_matrix *matrix, uint16_t **f16_rows)
{
    struct conversion c = { .weights = matrix };
    size_t row;
    *f16_rows = NULL;
    if (!qn_mul_size(matrix->n_cols, sizeof *c.f16_rows, &row))
        return qn_fail(QN_ERR_MEMORY, "weights: rows of %zu do not fit in memory", matrix->n_cols);
    QN_TRY(qn_alloc(&c.scratch, (size_t)qn_team_size(weights->common->team), matrix->n_cols * sizeof *c.scratch,
                    "weights"));
    const qn_status status = qn_alloc(&c.f16_rows, matrix->n_rows, row, "weights");
    if (status == QN_OK)
        qn_team_divide(weights->common->team, matrix->n_rows, 1, convert_range, &c);
    qn_free(c.scratch);
    *f16_rows = c.f16_rows;
    return status;
}

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
    qn_status status = convert(weights, matrix, &f16_rows);
    if (status == QN_OK)
        status = upload_rows(weights, &as, out, f16_rows, matrix->n_rows, matrix->n_cols * sizeof *f16_rows);
    qn_free(f16_rows);
    return status;
}

qn_status qn_cuda_weights_upload(qn_cuda_weights *weights, const uint8_t *data, bool *taken)
{
    *taken = false;
    for (size_t i = 0; i < weights->common->plan->n_ops; i++) {
        const qn_op_matrices matrices = tiled_matrices(weights->common->plan, &weights->common->plan->ops[i]);
        for (size_t p = 0; p < weights->ops[i].n_gemms; p++) {
            qn_cuda_gemm *gemm = &weights->ops[i].gemms[p];
            for (size_t out = 0; out < gemm->tiled_matrix.n_outs; out++) {
                const qn_matrix *matrix = &matrices.at[gemm->matrices[out]].weights;
                if (matrix->data != data)
                    continue;
                QN_TRY(upload_matrix(weights, gemm, out, matrix));
                *taken = true;
            }
        }
    }
    return QN_OK;
}
