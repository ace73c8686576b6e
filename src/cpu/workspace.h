/* The CPU's working memory for a plan: its buffers and activations, rope's sines and cosines, split-KV partials
 * (attention split over blocks of keys). It is overwritten by every step. */
#ifndef QN_CPU_WORKSPACE_H
#define QN_CPU_WORKSPACE_H

#include "cpu/weights.h"

typedef struct qn_cpu_workspace {
    float **buffers;                        /* [n_buffers] of the plan: [max_rows, width] */
    qn_acts *acts;                          /* [n_acts] of the plan */
    float *cosines, *sines;                 /* [max_rows, n_rot/2] for the step's rows */
    float *partial, *partial_m, *partial_l; /* split-KV partials: outputs [max_splits, n_heads, head_dim], max and sum
                                               [max_splits, n_heads] */
    size_t max_splits;
    size_t max_rows;      /* 0 until reserved */
    size_t max_positions; /* limit of a session's positions */
} qn_cpu_workspace;

/* qn_cpu_workspace_create - creates a workspace without memory for rows; qn_cpu_workspace_reserve allocates that. Free
 * with qn_cpu_workspace_free, for the same plan, which accepts a zeroed struct. */
qn_status qn_cpu_workspace_create(const qn_plan *plan, qn_cpu_workspace *workspace);
void qn_cpu_workspace_free(const qn_plan *plan, qn_cpu_workspace *workspace);

/* qn_cpu_workspace_reserve - allocates all memory for steps of up to max_rows rows over sessions of up to max_positions
 * positions. Activations get the layouts that `kernels` need for `weights`; every call must pass the same ones. Sizes
 * only grow; a call that needs no growth costs nothing. After QN_ERR_MEMORY there is no memory, so the caller must
 * reserve again before it runs a step. */
qn_status qn_cpu_workspace_reserve(const qn_plan *plan, const qn_matmul_kernels *kernels, const qn_cpu_weights *weights,
                                   size_t max_rows, size_t max_positions, qn_cpu_workspace *workspace);

#endif
