/* Computes the slices of activations, and rotates and quantises them. */
#include "cpu/acts.h"

void qn_hadamard_blocks(const qn_executor *ex, const qn_plan_rotation *rotation, bool inverse, float *values,
                        size_t first, size_t n)
{
    for (size_t i = 0; i < n; i += rotation->block) {
        const float *signs = rotation->signs ? rotation->signs + first + i : NULL;
        ex->kernels->hadamard.block(values + i, rotation->block, inverse ? NULL : signs, inverse ? signs : NULL);
    }
}

size_t qn_act_slice_width(const qn_plan *plan, const qn_op_acts *acts)
{
    size_t values = QN_SUPER;
    for (size_t i = 0; i < acts->n; i++) {
        const size_t block = plan->acts[acts->at[i]].rotation.block;
        values = block > values ? block : values;
    }
    return values;
}

static size_t slices_per_row(const qn_executor *ex, const qn_op_acts *acts)
{
    const size_t values = qn_act_slice_width(ex->plan, acts);
    return (ex->plan->acts[acts->at[0]].width + values - 1) / values;
}

size_t qn_act_slices(const qn_executor *ex, const qn_op_acts *acts, size_t n_rows)
{
    for (size_t a = 0; a < acts->n; a++)
        qn_acts_select(&ex->workspace.acts[acts->at[a]], &ex->kernels->matmul, n_rows);
    return n_rows * slices_per_row(ex, acts);
}

qn_act_slice qn_act_slice_at(const qn_executor *ex, const qn_op_acts *acts, size_t index, int thread)
{
    const size_t values = qn_act_slice_width(ex->plan, acts), per_row = slices_per_row(ex, acts),
                 first = index % per_row * values;
    const size_t left = ex->plan->acts[acts->at[0]].width - first;
    return (qn_act_slice){ .row = index / per_row,
                           .first = first,
                           .n = left < values ? left : values,
                           .values = (float *)qn_thread_scratch(ex, thread) };
}

void qn_act_slice_write(const qn_executor *ex, const qn_op_acts *acts, const qn_act_slice *slice)
{
    for (size_t a = 0; a < acts->n; a++) {
        const qn_plan_rotation *rotation = &ex->plan->acts[acts->at[a]].rotation;
        if (rotation->block)
            qn_hadamard_blocks(ex, rotation, false, slice->values, slice->first, slice->n);
        for (size_t i = 0; i < slice->n; i += QN_SUPER)
            ex->kernels->matmul.quantize(&ex->workspace.acts[acts->at[a]], slice->row, (slice->first + i) / QN_SUPER,
                                         slice->values + i, slice->n - i < QN_SUPER ? slice->n - i : QN_SUPER);
    }
}
