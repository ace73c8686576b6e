/* A kernel that does nothing for a while: what follows it in a stream comes late. Shared by C and CUDA. */
#ifndef QN_CUDA_KERNELS_SPIN_SPIN_H
#define QN_CUDA_KERNELS_SPIN_SPIN_H

#include "cuda/kernels/launch.h"

/* qn_spin - a thread that waits for a random time of up to max_ns, another one in each launch, also of a graph that is
 * launched again. */
typedef struct qn_spin_args {
    uint64_t seed;
    uint32_t max_ns;
    uint32_t pad;
} qn_spin_args;

#ifndef __CUDACC__

/* qn_spin_plan - pdl: after a kernel, and the one after it may begin before it has ended, as if it were not there. */
void qn_spin_plan(bool pdl, qn_launch *launch);

#endif
#endif
