/* Packing weights at load time: matrices with a kernel for interleaved rows (kernels/matmul/packed.h) are copied to that
 * layout. The pages of the file are then released, so that each weight is in memory once. */
#include "engine/internal.h"

#include "base/memory.h"
#include "kernels/matmul/packed.h"

struct pack {
    const qn_matrix *weights;
    qn_packing packing;
    uint8_t *packed;
    qn_team *team;
};

static void pack_worker(void *context, int thread)
{
    const struct pack *pack = context;
    size_t begin, end;
    qn_team_range(pack->weights->n_rows / QN_PANEL_ROWS, 1, thread, qn_team_size(pack->team), &begin, &end);
    qn_matmul_pack(pack->weights, pack->packing, begin, end, pack->packed);
}

static bool select_packing(const qn_model *model, const qn_op_matrix *matrix, qn_packing *packing)
{
    const qn_matmul_kernels *kernels = &model->kernels.matmul;
    const qn_packed_kernel *kind = qn_matmul_packed(kernels, matrix->weights.type);
    if (!kind || (model->plan.acts[matrix->acts].hilo && !kind->hilo) || matrix->weights.n_rows < QN_PANEL_ROWS)
        return false;
    *packing = kind->packing;
    return true;
}

static qn_status pack_matrix(qn_model *model, qn_matrix *weights, qn_packing packing)
{
    const size_t bytes = weights->n_rows / QN_PANEL_ROWS * QN_PANEL_ROWS * weights->row_bytes;
    struct pack pack = { .weights = weights, .packing = packing, .team = model->team };
    QN_TRY(qn_realloc_array(&model->packed, &model->cap_packed, model->n_packed + 1, sizeof *model->packed, "packed weights"));
    QN_TRY(qn_alloc(&pack.packed, bytes, 1, "packed weights"));
    model->packed[model->n_packed++] = pack.packed;
    qn_advise_huge(pack.packed, bytes);
    qn_team_run(model->team, pack_worker, &pack);
    weights->packed = pack.packed;
    return QN_OK;
}

qn_status qn_pack_tensor(qn_model *model, const qn_gguf_tensor *tensor)
{
    const uint8_t *packed = NULL;
    for (size_t i = 0; i < model->plan.n_ops; i++) {
        qn_op_matrices *matrices = qn_op_matrices_of(&model->plan.ops[i]);
        for (size_t m = 0; matrices && m < matrices->n; m++) {
            qn_packing packing;
            qn_matrix *weights = &matrices->at[m].weights;
            if (weights->data != tensor->data || !select_packing(model, &matrices->at[m], &packing))
                continue;
            if (!packed)
                QN_TRY(pack_matrix(model, weights, packing));
            packed = weights->packed = packed ? packed : weights->packed;
        }
    }
    if (packed)
        qn_gguf_drop_pages(model->file, tensor);
    return QN_OK;
}
