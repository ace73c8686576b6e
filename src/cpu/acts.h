/* Activations of an operation on the CPU: threads compute, rotate and quantise them in slices of rows. */
#ifndef QN_CPU_ACTS_H
#define QN_CPU_ACTS_H

#include "cpu/operations.h"

/* A slice of a row of activations, computed and quantised by one thread. It has whole super-blocks and whole rotation
 * blocks. */
typedef struct qn_act_slice {
    size_t row, first, n;
    float *values; /* [n] in the thread's scratch */
} qn_act_slice;

/* qn_act_slice_width - returns the number of values of a slice of activations. The last slice of a row may be
 * shorter. */
size_t qn_act_slice_width(const qn_plan *plan, const qn_op_acts *acts);

/* qn_act_slices - returns the number of slices in n_rows rows of the activations that an operation writes, and selects
 * the layouts that matmuls of so many rows read. Called when the operation's phase is opened. */
size_t qn_act_slices(const qn_executor *ex, const qn_op_acts *acts, size_t n_rows);

/* qn_act_slice_at - returns slice `index`, with the thread's scratch for its values. */
qn_act_slice qn_act_slice_at(const qn_executor *ex, const qn_op_acts *acts, size_t index, int thread);

/* qn_act_slice_write - rotates and quantises the slice's values into all activations that the operation writes.
 * Overwrites the values. */
void qn_act_slice_write(const qn_executor *ex, const qn_op_acts *acts, const qn_act_slice *slice);

/* qn_hadamard_blocks - applies Hadamard transforms, in place, to the blocks in values [first, first + n) of a row. */
void qn_hadamard_blocks(const qn_executor *ex, const qn_plan_rotation *rotation, bool inverse, float *values,
                        size_t first, size_t n);

#endif
