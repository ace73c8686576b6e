/* Norms and SwiGLU on the CPU: operations that write activations, slice by slice. */
#include "cpu/acts.h"

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

size_t qn_executor_logit_norm(const qn_executor *ex, const qn_op *op, qn_cpu_work *works)
{
    works[0] =
        (qn_cpu_work){ .run = norm_logit_rows, .count = qn_act_slices(ex, &op->norm.acts, ex->step->n_logit_rows) };
    if (!wants_hidden(ex->step))
        return 1;
    works[1] = (qn_cpu_work){ .run = copy_hidden, .count = ex->step->n_rows };
    return 2;
}

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
