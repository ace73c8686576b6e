/* Activations of an operation on the CPU: slices of rows, which threads compute, rotate and quantise. */
#ifndef QN_CPU_ACTS_H
#define QN_CPU_ACTS_H

#include "cpu/operations.h"

/* A slice of a row of activations, computed and quantised by one thread: full super-blocks and full blocks of a
 * rotation. */
typedef struct qn_act_slice {
    size_t row, first, n;
    float *values; /* [n] of the thread's scratch */
} qn_act_slice;

/* qn_act_slice_width - values of a slice of activations, except the last one of a row, which may be shorter. */
size_t qn_act_slice_width(const qn_plan *plan, const qn_op_acts *acts);

/* qn_act_slices - number of slices in n_rows rows of the activations that an operation writes.
 * qn_act_slice_at - slice number `index`, with the thread's scratch as its values. */
size_t qn_act_slices(const qn_executor *ex, const qn_op_acts *acts, size_t n_rows);
qn_act_slice qn_act_slice_at(const qn_executor *ex, const qn_op_acts *acts, size_t index, int thread);

/* qn_act_slice_write - rotate and quantise the slice's values into all activations that the operation writes; the
 * values are overwritten. */
void qn_act_slice_write(const qn_executor *ex, const qn_op_acts *acts, const qn_act_slice *slice);

/* qn_hadamard_blocks - Hadamard transforms, in place, of the blocks in values [first, first + n) of a row. */
void qn_hadamard_blocks(const qn_executor *ex, const qn_plan_rotation *rotation, bool inverse, float *values,
                        size_t first, size_t n);

#endif
