/* Norms and SwiGLU on the CPU, and the hidden states that memories keep: operations that write activations, slice by
 * slice. */
#include "cpu/acts.h"
#include "cpu/memory.h"

#include <string.h>

/* Every range computes the scale of its rows itself: this is cheaper than a phase for the scales. */
static void norm_slices(const qn_executor *ex, const qn_op *op, const uint32_t *rows, const qn_cpu_range *range)
{
    const qn_op_acts *acts = &op->norm.acts;
    size_t scaled_row = SIZE_MAX;
    float scale = 0;
    for (size_t index = range->begin; index < range->end; index++) {
        const qn_act_slice slice = qn_act_slice_at(ex, acts, index, range->thread);
        const float *x = qn_buffer_row(ex, op->norm.in, rows ? rows[slice.row] : slice.row);
        if (slice.row != scaled_row)
            scale = qn_rms_scale(&ex->kernels->norm, x, ex->plan->buffers[op->norm.in].width, op->norm.eps);
        scaled_row = slice.row;
        ex->kernels->norm.scale(slice.values, x + slice.first, op->norm.weight + slice.first, scale, slice.n);
        qn_act_slice_write(ex, acts, &slice);
    }
}

static void norm_all(const qn_executor *ex, const qn_op *op, const qn_cpu_range *range)
{
    norm_slices(ex, op, NULL, range);
}

static void norm_logit_rows(const qn_executor *ex, const qn_op *op, const qn_cpu_range *range)
{
    norm_slices(ex, op, ex->step->logit_rows, range);
}

size_t qn_executor_norm(const qn_executor *ex, const qn_op *op, qn_cpu_work *works)
{
    works[0] = (qn_cpu_work){ .run = norm_all, .count = qn_act_slices(ex, &op->norm.acts, ex->step->n_rows) };
    return 1;
}

/* Copies the hidden states of the rows that ask for them. */
static void copy_hidden(const qn_executor *ex, const qn_op *op, const qn_cpu_range *range)
{
    const size_t width = ex->plan->buffers[op->norm.in].width;
    for (size_t row = range->begin; row < range->end; row++) {
        const qn_row *r = &ex->step->rows[row];
        const float *x = qn_buffer_row(ex, op->norm.in, row);
        if (r->hidden)
            memcpy(r->hidden, x, width * sizeof *x);
        if (r->normed)
            qn_rms_norm_row(&ex->kernels->norm, r->normed, x, op->norm.weight, width, op->norm.eps);
    }
}

static bool wants_hidden(const qn_step *step)
{
    for (size_t row = 0; row < step->n_rows; row++)
        if (step->rows[row].hidden || step->rows[row].normed)
            return true;
    return false;
}

/* Keeps the hidden states of a draft step, for the next one. */
static void keep_draft(const qn_executor *ex, const qn_op *op, const qn_cpu_range *range)
{
    for (size_t row = range->begin; row < range->end; row++) {
        qn_cpu_hidden *h = qn_cpu_memory_of(&ex->step->rows[row])->hidden;
        qn_rms_norm_row(&ex->kernels->norm, h->draft, qn_buffer_row(ex, op->norm.in, row), op->norm.weight, h->width,
                        op->norm.eps);
        h->draft_position = ex->step->rows[row].position;
    }
}

size_t qn_executor_logit_norm(const qn_executor *ex, const qn_op *op, qn_cpu_work *works)
{
    works[0] =
        (qn_cpu_work){ .run = norm_logit_rows, .count = qn_act_slices(ex, &op->norm.acts, ex->step->n_logit_rows) };
    if (ex->step->is_draft && !ex->plan->head.block) {
        works[1] = (qn_cpu_work){ .run = keep_draft, .count = ex->step->n_rows };
        return 2;
    }
    if (ex->step->is_draft || !wants_hidden(ex->step))
        return 1;
    works[1] = (qn_cpu_work){ .run = copy_hidden, .count = ex->step->n_rows };
    return 2;
}

/* ---- The draft head's inputs ---- */

/* Computes values [first, first + n) of the norm of a row; n may be 0. */
static void norm_part(const qn_executor *ex, float *values, int buffer, size_t row, const float *weight, float eps,
                      size_t first, size_t n)
{
    const float *x = qn_buffer_row(ex, buffer, row);
    if (!n)
        return;
    const float scale = qn_rms_scale(&ex->kernels->norm, x, ex->plan->buffers[buffer].width, eps);
    ex->kernels->norm.scale(values, x + first, weight + first, scale, n);
}

static void pair_norm_slices(const qn_executor *ex, const qn_op *op, const qn_cpu_range *range)
{
    const size_t half = ex->plan->buffers[op->pair_norm.embedding].width;
    for (size_t index = range->begin; index < range->end; index++) {
        const qn_act_slice slice = qn_act_slice_at(ex, &op->pair_norm.acts, index, range->thread);
        const size_t end = slice.first + slice.n, n = slice.first >= half ? 0 : (end < half ? end : half) - slice.first,
                     from = slice.first + n - half;
        norm_part(ex, slice.values, op->pair_norm.embedding, slice.row, op->pair_norm.embedding_norm, op->pair_norm.eps,
                  slice.first, n);
        norm_part(ex, slice.values + n, op->pair_norm.hidden, slice.row, op->pair_norm.hidden_norm, op->pair_norm.eps,
                  from, slice.n - n);
        qn_act_slice_write(ex, &op->pair_norm.acts, &slice);
    }
}

/* Keeps the normed hidden states of the last rows of each memory. */
static void keep_hidden(const qn_executor *ex, const qn_op *op, const qn_cpu_range *range)
{
    const qn_step *step = ex->step;
    for (size_t row = range->begin; row < range->end; row++) {
        const qn_row *r = &step->rows[row];
        if (row + QN_CPU_HIDDEN < step->n_rows && r[QN_CPU_HIDDEN].memory == r->memory)
            continue;
        qn_cpu_hidden *h = qn_cpu_memory_of(r)->hidden;
        const size_t slot = r->position % QN_CPU_HIDDEN;
        qn_rms_norm_row(&ex->kernels->norm, h->rows + slot * h->width, qn_buffer_row(ex, op->pair_norm.in, row),
                        op->pair_norm.norm, h->width, op->pair_norm.eps);
        h->positions[slot] = r->position;
    }
}

size_t qn_executor_pair_norm(const qn_executor *ex, const qn_op *op, qn_cpu_work *works)
{
    works[0] =
        (qn_cpu_work){ .run = pair_norm_slices, .count = qn_act_slices(ex, &op->pair_norm.acts, ex->step->n_rows) };
    works[1] = (qn_cpu_work){ .run = keep_hidden, .count = ex->step->n_rows };
    return ex->step->is_draft ? 1 : 2;
}

/* ---- SwiGLU ---- */

static void swiglu_slices(const qn_executor *ex, const qn_op *op, const qn_cpu_range *range)
{
    const qn_op_acts *acts = &op->swiglu.acts;
    for (size_t index = range->begin; index < range->end; index++) {
        const qn_act_slice slice = qn_act_slice_at(ex, acts, index, range->thread);
        ex->kernels->elementwise.swiglu(slice.values, qn_buffer_row(ex, op->swiglu.gate, slice.row) + slice.first,
                                        qn_buffer_row(ex, op->swiglu.up, slice.row) + slice.first, slice.n);
        qn_act_slice_write(ex, acts, &slice);
    }
}

size_t qn_executor_swiglu(const qn_executor *ex, const qn_op *op, qn_cpu_work *works)
{
    works[0] = (qn_cpu_work){ .run = swiglu_slices, .count = qn_act_slices(ex, &op->swiglu.acts, ex->step->n_rows) };
    return 1;
}
