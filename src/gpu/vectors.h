/* All vectors of a plan in one buffer on a GPU: norm weights, convolution taps, biases, signs of rotations, and the
 * frequencies of rope. They are counted in a first pass, and placed in host memory and at their addresses in a
 * second. */
#ifndef QN_GPU_VECTORS_H
#define QN_GPU_VECTORS_H

#include "plan/plan.h"

typedef struct qn_gpu_vectors {
    uint8_t *host;    /* [used of the first pass] written; NULL: count only */
    uint64_t address; /* of the buffer, a multiple of 256, as are those of all vectors */
    size_t used;      /* bytes placed so far */
} qn_gpu_vectors;

/* qn_gpu_place_op_vectors - places the vectors of an operation, by its row in the table of operations. */
void qn_gpu_place_op_vectors(qn_gpu_vectors *vectors, const qn_plan *plan, const qn_op *op, qn_op_addresses *addresses);

/* qn_gpu_place_plan_vectors - places the others: signs [plan->n_acts] of the activations' rotations, 0 for none, and
 * the frequencies of rope, f64. */
void qn_gpu_place_plan_vectors(qn_gpu_vectors *vectors, const qn_plan *plan, uint64_t *signs, uint64_t *frequencies);

/* qn_gpu_place_drafter_rope - places the frequencies of a block drafter's rope; 0 without one. */
void qn_gpu_place_drafter_rope(qn_gpu_vectors *vectors, const qn_plan *plan, uint64_t *frequencies);

#endif
