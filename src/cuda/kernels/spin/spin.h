/* A kernel that waits, to delay later work of a stream. Shared by C and CUDA. */
#ifndef QN_CUDA_KERNELS_SPIN_SPIN_H
#define QN_CUDA_KERNELS_SPIN_SPIN_H

#include "cuda/kernels/launch.h"

/* qn_spin - One thread waits for a random time of up to max_ns nanoseconds. Each launch has another time, also if a
 * graph is launched again. */
typedef struct qn_spin_args {
    uint64_t seed;
    uint32_t max_ns;
    uint32_t pad;
} qn_spin_args;

#ifndef __CUDACC__

/* qn_spin_plan - Fills the launch of qn_spin; the caller adds the arguments.
 *
 *   pdl   the kernels before and after it may overlap, as if qn_spin were not between them */
void qn_spin_plan(bool pdl, qn_launch *launch);

#endif
#endif
