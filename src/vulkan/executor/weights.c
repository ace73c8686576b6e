/* Allocating weights, and packing their rows. */
#include "vulkan/executor/weights.h"

#include "base/memory.h"
#include "gpu/vectors.h"

enum { WORD = 4, ALIGN = 256, PIECE_BYTES = 16 << 20 /* of rows that are packed before they are copied */ };

/* ---- Matrices ---- */

static uint32_t layout_of(const qn_type_info *type)
{
    const qn_vk_format format = qn_vk_format_of(type);
    return format.bits | format.group_shift << 8;
}

bool qn_vk_embeds(const qn_plan *plan)
{
    const qn_type_info *type = plan->ops[0].embed.table.type;
    const size_t block = plan->ops[0].embed.inverse.block;
    const bool keeps_codes = !qn_vk_is_f16(type) || type->type == QN_TYPE_F16;
    return block <= QN_VK_MAX_PIECE && block % QN_QUANT_GROUP == 0 && (keeps_codes || qn_gpu_output_of_table(plan));
}

static qn_gpu_tiling tiling_of(const qn_plan *plan)
{
    return (qn_gpu_tiling){ .tile_rows = QN_VK_TILE_ROWS, .layout_of = layout_of, .embeds = qn_vk_embeds(plan) };
}

const qn_vk_gemm *qn_vk_table_of(const qn_vk_weights *weights)
{
    const qn_plan *plan = weights->common->plan;
    const qn_op *output = qn_gpu_output_of_table(plan);
    return weights->ops[output ? output - plan->ops : 0].gemms;
}

static qn_status create_gemm(qn_vk_weights *weights, const qn_op_matrices *matrices, qn_vk_gemm *gemm)
{
    const size_t n_cols = gemm->group.n_cols;
    size_t rows, codes, scales, bytes;
    gemm->format = qn_vk_format_of(matrices->at[gemm->group.matrices[0]].weights.type);
    if (!qn_mul_size(gemm->group.n_tiles, QN_VK_TILE_ROWS, &rows) ||
        !qn_mul_size(rows, qn_vk_code_words(&gemm->format, n_cols) * WORD, &codes) ||
        !qn_mul_size(rows, qn_vk_scale_words(&gemm->format, n_cols) * WORD, &scales) ||
        !qn_add_size(codes, ALIGN - 1, &codes) || !qn_add_size(codes / ALIGN * ALIGN, scales, &bytes))
        return qn_fail(QN_ERR_MEMORY, "weights: %zu tiles of rows of %zu do not fit in memory", gemm->group.n_tiles,
                       n_cols);
    gemm->scales_at = codes / ALIGN * ALIGN;
    QN_TRY(qn_vk_alloc(weights->common->vk, bytes, QN_VK_ON_DEVICE, "weights", &gemm->memory));
    weights->bytes += gemm->memory.bytes;
    return QN_OK;
}

static qn_status create_gemms(qn_vk_weights *weights, size_t op)
{
    const qn_plan *plan = weights->common->plan;
    const qn_gpu_tiling tiling = tiling_of(plan);
    const qn_op_matrices matrices = qn_gpu_tiled_matrices(&tiling, plan, &plan->ops[op]);
    qn_gpu_gemm groups[QN_OP_MATRICES];
    qn_vk_op *to = &weights->ops[op];
    const size_t n = qn_gpu_group_matrices(&tiling, &matrices, groups);
    for (size_t i = 0; i < n; i++) {
        to->gemms[to->n_gemms] = (qn_vk_gemm){ .group = groups[i] };
        QN_TRY(create_gemm(weights, &matrices, &to->gemms[to->n_gemms++]));
    }
    return QN_OK;
}

/* ---- Vectors ---- */

static void place_vectors(qn_vk_weights *weights, qn_gpu_vectors *v)
{
    const qn_plan *plan = weights->common->plan;
    uint64_t frequencies; /* the host computes angles */
    v->used = 0;
    for (size_t i = 0; i < plan->n_ops; i++)
        qn_gpu_place_op_vectors(v, plan, &plan->ops[i], &weights->ops[i].vectors);
    qn_gpu_place_plan_vectors(v, plan, weights->signs, &frequencies);
}

static qn_status create_vectors(qn_vk_weights *weights)
{
    qn_gpu_vectors v = { 0 };
    place_vectors(weights, &v);
    QN_TRY(qn_vk_alloc(weights->common->vk, v.used, QN_VK_ON_DEVICE, "vectors", &weights->vectors));
    weights->bytes += weights->vectors.bytes;
    QN_TRY(qn_alloc(&v.host, v.used, 1, "vectors"));
    v.address = weights->vectors.address;
    place_vectors(weights, &v);
    const qn_status status = qn_vk_write(weights->common->vk, &weights->vectors, 0, v.host, v.used);
    qn_free(v.host);
    return status;
}

qn_status qn_vk_weights_create(const qn_vk_common *common, qn_vk_weights *weights)
{
    weights->common = common;
    QN_TRY(qn_alloc(&weights->ops, common->plan->n_ops, sizeof *weights->ops, "plan"));
    QN_TRY(qn_alloc(&weights->signs, common->plan->n_acts, sizeof *weights->signs, "plan"));
    for (size_t i = 0; i < common->plan->n_ops; i++)
        QN_TRY(create_gemms(weights, i));
    return create_vectors(weights);
}

void qn_vk_weights_free(qn_vk_weights *weights)
{
    if (!weights->common)
        return;
    for (size_t i = 0; weights->ops && i < weights->common->plan->n_ops; i++)
        for (size_t g = 0; g < weights->ops[i].n_gemms; g++)
            qn_vk_free(weights->common->vk, &weights->ops[i].gemms[g].memory);
    qn_vk_free(weights->common->vk, &weights->vectors);
    qn_free(weights->ops);
    qn_free(weights->signs);
}

/* ---- Uploads ---- */

/* Rows that are packed by all threads. */
struct packing {
    const qn_matrix *matrix;
    size_t first; /* row */
    size_t code_words, scale_words;
    uint32_t *codes, *scales; /* of the rows from `first` on */
    float *scratch;           /* [threads][n_cols] */
};

static void pack_range(void *context, size_t begin, size_t end, int thread)
{
    const struct packing *p = context;
    const qn_matrix *m = p->matrix;
    for (size_t row = begin; row < end; row++)
        qn_vk_pack_row(m->type, m->data + (p->first + row) * m->row_bytes, m->n_cols,
                       p->scratch + (size_t)thread * m->n_cols, p->codes + row * p->code_words,
                       p->scales + row * p->scale_words);
}

/* Packs and copies rows in pieces. */
static qn_status upload_rows(const qn_vk_weights *weights, const qn_vk_gemm *gemm, size_t first_row, struct packing *p,
                             size_t piece)
{
    const qn_matrix *m = p->matrix;
    for (size_t n; p->first < m->n_rows; p->first += n) {
        n = m->n_rows - p->first < piece ? m->n_rows - p->first : piece;
        const size_t to = first_row + p->first;
        qn_team_divide(weights->common->team, n, 1, pack_range, p);
        QN_TRY(qn_vk_write(weights->common->vk, &gemm->memory, to * p->code_words * WORD, p->codes,
                           n * p->code_words * WORD));
        QN_TRY(qn_vk_write(weights->common->vk, &gemm->memory, gemm->scales_at + to * p->scale_words * WORD, p->scales,
                           n * p->scale_words * WORD));
    }
    return QN_OK;
}

static qn_status upload_matrix(const qn_vk_weights *weights, const qn_vk_gemm *gemm, size_t first_row,
                               const qn_matrix *matrix)
{
    struct packing p = { .matrix = matrix,
                         .code_words = qn_vk_code_words(&gemm->format, matrix->n_cols),
                         .scale_words = qn_vk_scale_words(&gemm->format, matrix->n_cols) };
    const size_t fitting = PIECE_BYTES / (p.code_words * WORD), piece = fitting ? fitting : 1;
    qn_status status = qn_alloc(&p.codes, piece, p.code_words * WORD, "weights");
    if (status == QN_OK)
        status = qn_alloc(&p.scales, piece, p.scale_words * WORD, "weights");
    if (status == QN_OK)
        status = qn_alloc(&p.scratch, (size_t)qn_team_size(weights->common->team), matrix->n_cols * sizeof *p.scratch,
                          "weights");
    if (status == QN_OK)
        status = upload_rows(weights, gemm, first_row, &p, piece);
    qn_free(p.codes);
    qn_free(p.scales);
    qn_free(p.scratch);
    return status;
}

qn_status qn_vk_weights_upload(qn_vk_weights *weights, const uint8_t *data, bool *uploaded)
{
    const qn_plan *plan = weights->common->plan;
    const qn_gpu_tiling tiling = tiling_of(plan);
    *uploaded = false;
    for (size_t i = 0; i < plan->n_ops; i++) {
        const qn_op_matrices matrices = qn_gpu_tiled_matrices(&tiling, plan, &plan->ops[i]);
        for (size_t g = 0; g < weights->ops[i].n_gemms; g++) {
            const qn_vk_gemm *gemm = &weights->ops[i].gemms[g];
            for (size_t m = 0; m < gemm->group.n_matrices; m++) {
                const qn_matrix *matrix = &matrices.at[gemm->group.matrices[m]].weights;
                if (matrix->data != data)
                    continue;
                QN_TRY(upload_matrix(weights, gemm, gemm->group.first_tiles[m] * QN_VK_TILE_ROWS, matrix));
                *uploaded = true;
            }
        }
    }
    return QN_OK;
}
