/* The inputs of a step on the CPU, of the model and of its draft head: embeddings of the rows, hidden states of the
 * rows before them, and the angles of their positions. */
#include "cpu/acts.h"
#include "cpu/memory.h"

#include <string.h>

/* Computes the cosines and sines of a row's position for the rope of a block drafter: positions have one component. */
static void compute_drafter_angles(const qn_executor *ex, size_t row)
{
    const qn_plan_head *head = &ex->plan->head;
    const size_t n_rot = head->heads.n_rot;
    const qn_row *r = &ex->step->rows[row];
    qn_rope_angles(r->position + r->rope_offsets[0], head->rope.frequencies, head->rope.attn_factor, n_rot,
                   ex->workspace.cosines + row * (n_rot / 2), ex->workspace.sines + row * (n_rot / 2));
}

/* The same for the rope of the step's section. Rows of text have the same offset in all components. */
static void compute_angles(const qn_executor *ex, size_t row)
{
    if (ex->step->is_draft && ex->plan->head.block) {
        compute_drafter_angles(ex, row);
        return;
    }
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

/* Writes a row's own embedding, or that of its token. */
static void embed_row(const qn_executor *ex, const qn_matrix *table, const qn_plan_rotation *inverse, const qn_row *row,
                      float *x)
{
    if (row->embedding) {
        memcpy(x, row->embedding, table->n_cols * sizeof *x);
        return;
    }
    table->type->to_float(table->data + (size_t)row->token * table->row_bytes,
                          table->n_cols / table->type->block_weights, x);
    if (inverse->block)
        qn_hadamard_blocks(ex, inverse, true, x, 0, table->n_cols);
}

static void embed_rows(const qn_executor *ex, const qn_op *op, const qn_cpu_range *range)
{
    for (size_t row = range->begin; row < range->end; row++) {
        embed_row(ex, &op->embed.table, &op->embed.inverse, &ex->step->rows[row],
                  qn_buffer_row(ex, op->embed.out, row));
        compute_angles(ex, row);
    }
}

size_t qn_executor_embed(const qn_executor *ex, const qn_op *op, qn_cpu_work *works)
{
    (void)op;
    works[0] = (qn_cpu_work){ .run = embed_rows, .count = ex->step->n_rows };
    return 1;
}

/* Writes the normed hidden state of the row before this one in its sequence. */
static void pair_hidden(const qn_executor *ex, const qn_op *op, size_t row, float *hidden)
{
    const qn_row *r = &ex->step->rows[row];
    const size_t width = op->pair.table.n_cols;
    if (!ex->step->is_draft && row && r[-1].memory == r->memory) {
        qn_rms_norm_row(&ex->kernels->norm, hidden, qn_buffer_row(ex, op->pair.in, row - 1), op->pair.norm, width,
                        op->pair.eps);
        return;
    }
    const float *kept =
        r->position ? qn_cpu_hidden_row(qn_cpu_memory_of(r), r->position - 1, ex->step->is_draft) : NULL;
    if (kept)
        memcpy(hidden, kept, width * sizeof *hidden);
    else
        memset(hidden, 0, width * sizeof *hidden);
}

static void pair_rows(const qn_executor *ex, const qn_op *op, const qn_cpu_range *range)
{
    for (size_t row = range->begin; row < range->end; row++) {
        embed_row(ex, &op->pair.table, &op->pair.inverse, &ex->step->rows[row],
                  qn_buffer_row(ex, op->pair.embedding, row));
        pair_hidden(ex, op, row, qn_buffer_row(ex, op->pair.hidden, row));
        compute_angles(ex, row);
    }
}

size_t qn_executor_pair(const qn_executor *ex, const qn_op *op, qn_cpu_work *works)
{
    (void)op;
    works[0] = (qn_cpu_work){ .run = pair_rows, .count = ex->step->n_rows };
    return 1;
}

/* ---- A block drafter's inputs ---- */

static void capture_rows(const qn_executor *ex, const qn_op *op, const qn_cpu_range *range)
{
    const size_t width = op->capture.width;
    for (size_t row = range->begin; row < range->end; row++)
        memcpy(qn_buffer_row(ex, op->capture.out, row) + op->capture.part * width,
               qn_buffer_row(ex, op->capture.in, row), width * sizeof(float));
}

size_t qn_executor_capture(const qn_executor *ex, const qn_op *op, qn_cpu_work *works)
{
    (void)op;
    works[0] = (qn_cpu_work){ .run = capture_rows, .count = ex->step->n_rows };
    return 1;
}

static void fuse_slices(const qn_executor *ex, const qn_op *op, const qn_cpu_range *range)
{
    for (size_t index = range->begin; index < range->end; index++) {
        const qn_act_slice slice = qn_act_slice_at(ex, &op->fuse.acts, index, range->thread);
        memcpy(slice.values, qn_buffer_row(ex, op->fuse.in, slice.row) + slice.first, slice.n * sizeof(float));
        qn_act_slice_write(ex, &op->fuse.acts, &slice);
    }
}

static void drafter_angles(const qn_executor *ex, const qn_op *op, const qn_cpu_range *range)
{
    (void)op;
    for (size_t row = range->begin; row < range->end; row++)
        compute_drafter_angles(ex, row);
}

size_t qn_executor_fuse(const qn_executor *ex, const qn_op *op, qn_cpu_work *works)
{
    works[0] = (qn_cpu_work){ .run = fuse_slices, .count = qn_act_slices(ex, &op->fuse.acts, ex->step->n_rows) };
    works[1] = (qn_cpu_work){ .run = drafter_angles, .count = ex->step->n_rows };
    return 2;
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
