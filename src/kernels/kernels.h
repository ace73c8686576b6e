/* All CPU kernel tables, filled for a set of CPU features. A table is constant once it is filled; its functions have no
 * state, and any number of threads may call them with distinct outputs. */
#ifndef QN_KERNELS_KERNELS_H
#define QN_KERNELS_KERNELS_H

#include "kernels/attention/attention.h"
#include "kernels/aura/aura.h"
#include "kernels/deltanet/deltanet.h"
#include "kernels/deltanet/row_kernels.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/hadamard/hadamard.h"
#include "kernels/matmul/matmul.h"
#include "kernels/norm/norm.h"
#include "kernels/rope/rope.h"
#include "kernels/sample/sample.h"

typedef struct qn_kernels {
    qn_matmul_kernels matmul;
    qn_norm_kernels norm;
    qn_rope_kernels rope;
    qn_attention_kernels attention;
    qn_elementwise_kernels elementwise;
    qn_deltanet_kernels deltanet;
    qn_gdn_row_kernels gdn_rows;
    qn_hadamard_kernels hadamard;
    qn_sample_kernels sample;
    qn_aura_kernels aura;
} qn_kernels;

/* qn_kernels_init - fills the tables with the fastest variant of each operation for `cpu` (QN_CPU_* bits); 0: the
 * reference implementations. */
void qn_kernels_init(qn_kernels *kernels, unsigned cpu);

#endif
