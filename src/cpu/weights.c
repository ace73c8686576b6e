/* Packs weights, one matrix at a time on all threads. */
#include "cpu/weights.h"

#include "base/address_space.h"
#include "base/memory.h"
#include "kernels/matmul/packed.h"

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
    if (weights->packed)
        qn_address_space_free(weights->packed, weights->reserved);
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

static size_t packed_bytes(const qn_matrix *stored)
{
    return qn_round_up(stored->n_rows / QN_PANEL_ROWS * QN_PANEL_ROWS * stored->row_bytes, QN_ALIGN);
}

/* Reserves addresses for all matrices that can be packed. */
static qn_status reserve(qn_cpu_weights *weights, const qn_plan *plan, const qn_matmul_kernels *kernels)
{
    size_t bytes = 0;
    void *address;
    for (size_t i = 0; i < plan->n_ops; i++) {
        const qn_op_matrices *matrices = qn_op_matrices_of(&plan->ops[i]);
        for (size_t m = 0; matrices && m < matrices->n; m++) {
            const qn_matrix *stored = &weights->at[i][m].stored;
            if (find_kernel(kernels, stored, plan->acts[matrices->at[m].acts].hilo) &&
                !qn_add_size(bytes, packed_bytes(stored), &bytes))
                return qn_fail(QN_ERR_MEMORY, "packed weights: they do not fit in memory");
        }
    }
    bytes = qn_round_up(bytes, QN_COMMIT_GRANULE);
    QN_TRY(qn_address_space_reserve(bytes, &address));
    weights->packed = address;
    weights->reserved = bytes;
    return QN_OK;
}

static qn_status pack_rows(qn_cpu_weights *weights, const qn_matrix *stored, qn_packing packing, qn_team *team,
                           uint8_t **out)
{
    struct pack pack = { .stored = stored, .packing = packing, .packed = weights->packed + weights->used };
    const size_t end = weights->used + packed_bytes(stored);
    for (; weights->committed < end; weights->committed += QN_COMMIT_GRANULE)
        QN_TRY(qn_address_space_commit(weights->packed + weights->committed));
    *out = pack.packed;
    weights->used = end;
    weights->n_packed++;
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
            if (!weights->packed)
                QN_TRY(reserve(weights, plan, kernels));
            if (!rows)
                QN_TRY(pack_rows(weights, &matrix->stored, kernel->packing, team, &rows));
            matrix->packed = rows;
        }
    }
    *packed = rows != NULL;
    return QN_OK;
}
