/* The matrices of a plan as the CPU reads them: those with a kernel for interleaved rows (kernels/matmul/packed.h) are
 * copied to that layout, so that the pages of the file can be released and each weight is in memory once. */
#ifndef QN_CPU_WEIGHTS_H
#define QN_CPU_WEIGHTS_H

#include "base/team.h"
#include "kernels/matmul/matmul.h"
#include "plan/plan.h"

typedef struct qn_cpu_weights {
    qn_packed_matrix (*at)[QN_OP_MATRICES]; /* [n_ops] of the plan: the matrices of each operation */
    uint8_t **packed;                       /* [n_packed] packed rows, to which matrices point */
    size_t n_packed, cap_packed;
} qn_cpu_weights;

/* qn_cpu_weights_create - the matrices as stored. QN_ERR_MEMORY leaves a struct to free. Free with qn_cpu_weights_free,
 * which accepts a zeroed struct. */
qn_status qn_cpu_weights_create(const qn_plan *plan, qn_cpu_weights *weights);
void qn_cpu_weights_free(qn_cpu_weights *weights);

/* qn_cpu_weights_pack - pack the matrices whose rows begin at `data`, if a kernel for packed rows exists for them.
 * *packed: whether it does. */
qn_status qn_cpu_weights_pack(qn_cpu_weights *weights, const qn_plan *plan, const qn_matmul_kernels *kernels,
                              qn_team *team, const uint8_t *data, bool *packed);

#endif
