/* The inputs of a step on the CPU: embeddings of the rows, and the angles of their positions. */
#include "cpu/acts.h"

#include <string.h>

/* Computes the cosines and sines of a row's position. Rows of text have the same offset in all components. */
static void compute_angles(const qn_executor *ex, size_t row)
{
    const qn_plan *plan = ex->plan;
    const qn_row *r = &ex->step->rows[row];
    const uint32_t *offsets = r->rope_offsets;
    const size_t half = plan->heads.n_rot / 2;
    float *cosines = ex->workspace.cosines + row * half, *sines = ex->workspace.sines + row * half;
    uint32_t positions[QN_ROPE_COMPONENTS];
    bool is_equal = true;
    for (size_t c = 0; c < QN_ROPE_COMPONENTS; c++) {
        positions[c] = r->position + offsets[c];
        is_equal = is_equal && offsets[c] == offsets[0];
    }
    if (is_equal || !plan->rope_components)
        qn_rope_angles(positions[0], plan->frequencies, plan->attn_factor, plan->heads.n_rot, cosines, sines);
    else
        qn_rope_angles_of(positions, plan->rope_components, plan->frequencies, plan->attn_factor, plan->heads.n_rot,
                          cosines, sines);
}

static void embed_token(const qn_executor *ex, const qn_op *op, int32_t token, float *x)
{
    const qn_matrix *table = &op->embed.table;
    table->type->to_float(table->data + (size_t)token * table->row_bytes, table->n_cols / table->type->block_weights,
                          x);
    if (op->embed.inverse.block)
        qn_hadamard_blocks(ex, &op->embed.inverse, true, x, 0, table->n_cols);
}

static void embed_rows(const qn_executor *ex, const qn_op *op, const qn_cpu_range *range)
{
    for (size_t row = range->begin; row < range->end; row++) {
        const qn_row *r = &ex->step->rows[row];
        float *x = qn_buffer_row(ex, op->embed.out, row);
        if (r->embedding)
            memcpy(x, r->embedding, op->embed.table.n_cols * sizeof *x);
        else
            embed_token(ex, op, r->token, x);
        compute_angles(ex, row);
    }
}

size_t qn_executor_embed(const qn_executor *ex, const qn_op *op, qn_cpu_work *works)
{
    (void)op;
    works[0] = (qn_cpu_work){ .run = embed_rows, .count = ex->step->n_rows };
    return 1;
}

static void copy_embeddings(const qn_executor *ex, const qn_op *op, const qn_cpu_range *range)
{
    for (size_t row = range->begin; row < range->end; row++) {
        float *x = qn_buffer_row(ex, op->input.out, row);
        memcpy(x, ex->step->rows[row].embedding, op->input.width * sizeof *x);
        compute_angles(ex, row);
    }
}

size_t qn_executor_input(const qn_executor *ex, const qn_op *op, qn_cpu_work *works)
{
    (void)op;
    works[0] = (qn_cpu_work){ .run = copy_embeddings, .count = ex->step->n_rows };
    return 1;
}
