/* Matrices of NVFP4: their blocks do not hold the scale of the tensor, so loading converts them to blocks that do. */
#include "plan/plan.h"

#include "base/memory.h"

qn_status qn_plan_add_scaled(qn_plan *plan, const void *tensor, float scale, qn_matrix *matrix)
{
    size_t i = 0;
    while (i < plan->n_scaled && plan->scaled[i].tensor != tensor)
        i++;
    if (i == plan->n_scaled) {
        QN_TRY(qn_realloc_array(&plan->scaled, &plan->cap_scaled, i + 1, sizeof *plan->scaled, "plan"));
        plan->scaled[plan->n_scaled++] = (qn_scaled_matrix){
            .tensor = tensor, .stored = matrix->data, .n_rows = matrix->n_rows, .n_cols = matrix->n_cols, .scale = scale
        };
    }
    matrix->scaled = (uint32_t)i + 1;
    return QN_OK;
}

float qn_plan_scale_of(const qn_plan *plan, const qn_matrix *matrix)
{
    return matrix->scaled ? plan->scaled[matrix->scaled - 1].scale : 1;
}

struct loading {
    const qn_scaled_matrix *matrix;
    const qn_type_info *from, *to;
};

/* Converts rows [begin, end). */
static void load_rows(void *context, size_t begin, size_t end, int thread)
{
    const struct loading *loading = context;
    const qn_scaled_matrix *m = loading->matrix;
    const size_t per_row = m->n_cols / loading->from->block_weights;
    (void)thread;
    qn_nvfp4_load(m->stored + begin * per_row * loading->from->block_bytes, (end - begin) * per_row, m->scale,
                  m->loaded + begin * per_row * loading->to->block_bytes);
}

static void point_to_loaded(const qn_plan *plan, const qn_type_info *type, qn_matrix *matrix)
{
    if (!matrix || !matrix->scaled)
        return;
    matrix->data = plan->scaled[matrix->scaled - 1].loaded;
    matrix->scaled = 0;
    matrix->type = type;
    matrix->row_bytes = matrix->n_cols / type->block_weights * type->block_bytes;
}

qn_status qn_plan_load_scaled(qn_plan *plan, qn_team *team)
{
    const qn_type_info *from = qn_type_find(QN_TYPE_NVFP4), *to = qn_type_find(QN_TYPE_NVFP4_L);
    for (size_t i = 0; i < plan->n_scaled; i++) {
        qn_scaled_matrix *m = &plan->scaled[i];
        struct loading loading = { m, from, to };
        size_t row_bytes;
        if (!qn_row_bytes(to, m->n_cols, &row_bytes))
            return qn_fail(QN_ERR_MEMORY, "weights: a row of %zu does not fit in memory", m->n_cols);
        QN_TRY(qn_alloc(&m->loaded, m->n_rows, row_bytes, "weights"));
        qn_team_divide(team, m->n_rows, 1, load_rows, &loading);
    }
    for (size_t i = 0; i < plan->n_ops && plan->n_scaled; i++) {
        qn_op_matrices *matrices = qn_op_matrices_of(&plan->ops[i]);
        for (size_t m = 0; matrices && m < matrices->n; m++)
            point_to_loaded(plan, to, &matrices->at[m].weights);
        point_to_loaded(plan, to, (qn_matrix *)qn_op_table_of(&plan->ops[i]));
    }
    return QN_OK;
}
