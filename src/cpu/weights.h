/* The matrices of a plan as the CPU reads them. Matrices with a kernel for interleaved rows (kernels/matmul/packed.h)
 * are copied to that layout, so that the file's pages can be released and each weight is in memory once. */
#ifndef QN_CPU_WEIGHTS_H
#define QN_CPU_WEIGHTS_H

#include "base/team.h"
#include "kernels/matmul/matmul.h"
#include "plan/plan.h"

/* Constant after the last qn_cpu_weights_pack. Matrices that are not packed point into the file's map. */
typedef struct qn_cpu_weights {
    qn_packed_matrix (*at)[QN_OP_MATRICES]; /* [n_ops] of the plan: the matrices of each operation */
    /* Packed rows that matrices point to, of one matrix after the other. They share huge pages: most matrices are
     * smaller than a few of those. */
    uint8_t *packed;
    size_t reserved, committed, used; /* bytes: addresses, memory, rows */
    size_t n_packed;                  /* matrices */
} qn_cpu_weights;

/* qn_cpu_weights_create - refers to the matrices as stored in the file. After QN_ERR_MEMORY the struct must be freed
 * too. Free with qn_cpu_weights_free, which accepts a zeroed struct. */
qn_status qn_cpu_weights_create(const qn_plan *plan, qn_cpu_weights *weights);
void qn_cpu_weights_free(qn_cpu_weights *weights);

/* qn_cpu_weights_pack - packs the matrices whose rows begin at `data`, if there is a kernel for their packed rows.
 * *packed: whether there is. */
qn_status qn_cpu_weights_pack(qn_cpu_weights *weights, const qn_plan *plan, const qn_matmul_kernels *kernels,
                              qn_team *team, const uint8_t *data, bool *packed);

#endif
