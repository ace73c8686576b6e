/* Packs weights, one matrix at a time on all threads. */
#include "cpu/weights.h"

#include "base/address_space.h"
#include "base/memory.h"
#include "kernels/matmul/packed.h"

#include <stdlib.h>

qn_status qn_cpu_weights_create(const qn_plan *plan, qn_cpu_weights *weights)
{
    *weights = (qn_cpu_weights){ 0 };
    QN_TRY(qn_alloc(&weights->at, plan->n_ops, sizeof *weights->at, "executor"));
    for (size_t i = 0; i < plan->n_ops; i++) {
        const qn_op_matrices *matrices = qn_op_matrices_of(&plan->ops[i]);
        for (size_t m = 0; matrices && m < matrices->n; m++)
            weights->at[i][m].stored = matrices->at[m].weights;
    }
    return QN_OK;
}

void qn_cpu_weights_free(qn_cpu_weights *weights)
{
    for (size_t i = 0; i < weights->n_packed; i++)
        qn_free(weights->packed[i]);
    free(weights->packed);
    qn_free(weights->at);
    *weights = (qn_cpu_weights){ 0 };
}

struct pack {
    const qn_matrix *stored;
    qn_packing packing;
    uint8_t *packed;
};

static void pack_panels(void *context, size_t begin, size_t end, int thread)
{
    const struct pack *pack = context;
    (void)thread;
    qn_matmul_pack(pack->stored, pack->packing, begin, end, pack->packed);
}

/* Returns the kernel that reads the matrix packed, or NULL. */
static const qn_packed_kernel *find_kernel(const qn_matmul_kernels *kernels, const qn_matrix *stored, bool hilo)
{
    const qn_packed_kernel *kernel = qn_matmul_packed(kernels, stored->type);
    return kernel && (!hilo || kernel->hilo) && stored->n_rows >= QN_PANEL_ROWS ? kernel : NULL;
}

static qn_status pack_rows(qn_cpu_weights *weights, const qn_matrix *stored, qn_packing packing, qn_team *team,
                           uint8_t **out)
{
    const size_t bytes = stored->n_rows / QN_PANEL_ROWS * QN_PANEL_ROWS * stored->row_bytes;
    struct pack pack = { .stored = stored, .packing = packing };
    QN_TRY(qn_realloc_array(&weights->packed, &weights->cap_packed, weights->n_packed + 1, sizeof *weights->packed,
                            "packed weights"));
    QN_TRY(qn_alloc(&pack.packed, bytes, 1, "packed weights"));
    *out = weights->packed[weights->n_packed++] = pack.packed;
    qn_advise_huge(pack.packed, bytes);
    qn_team_divide(team, stored->n_rows / QN_PANEL_ROWS, 1, pack_panels, &pack);
    return QN_OK;
}

qn_status qn_cpu_weights_pack(qn_cpu_weights *weights, const qn_plan *plan, const qn_matmul_kernels *kernels,
                              qn_team *team, const uint8_t *data, bool *packed)
{
    uint8_t *rows = NULL;
    for (size_t i = 0; i < plan->n_ops; i++) {
        const qn_op_matrices *matrices = qn_op_matrices_of(&plan->ops[i]);
        for (size_t m = 0; matrices && m < matrices->n; m++) {
            qn_packed_matrix *matrix = &weights->at[i][m];
            const qn_packed_kernel *kernel =
                matrix->stored.data == data
                    ? find_kernel(kernels, &matrix->stored, plan->acts[matrices->at[m].acts].hilo)
                    : NULL;
            if (!kernel)
                continue;
            if (!rows)
                QN_TRY(pack_rows(weights, &matrix->stored, kernel->packing, team, &rows));
            matrix->packed = rows;
        }
    }
    *packed = rows != NULL;
    return QN_OK;
}
