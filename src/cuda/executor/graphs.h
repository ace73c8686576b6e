/* Decode plans and CUDA graphs, shared by all steps of one cache format. A graph is captured when first needed, by
 * decode.c, and again when the workspace has moved. Used by the thread that queues steps. */
#ifndef QN_CUDA_EXECUTOR_GRAPHS_H
#define QN_CUDA_EXECUTOR_GRAPHS_H

#include "cuda/executor/persistent.h"
#include "cuda/executor/step.h"
#include "gpu/buckets.h"

/* A graph, and qn_cuda_workspace.generation when it was captured. */
typedef struct qn_cuda_captured {
    qn_cuda_graph *graph;
    uint32_t generation;
} qn_cuda_captured;

enum { QN_CUDA_ONE_ROW_GRAPHS = QN_SAMPLE_MODES + 2 };

/* Decode plans and graphs of one cache format. */
typedef struct qn_cuda_graphs {
    struct qn_cuda_graphs *next;
    unsigned key_bits, value_bits;
    qn_cuda_decode_plan decode_plan, rows_plan; /* of one row; of 2 to QN_PERSISTENT_MAX_ROWS in phases */
    /* For each block, whose addresses the graphs contain: */
    qn_cuda_captured one_row[QN_CUDA_BLOCKS][QN_CUDA_ONE_ROW_GRAPHS]; /* by sampler; then without one; then with the
                                                                         copy of the logits */
    qn_cuda_captured buckets[QN_CUDA_BLOCKS][QN_GPU_N_BUCKETS];       /* without a sampler; the first is not used */
    qn_cuda_captured verified[QN_CUDA_BLOCKS][2][QN_CUDA_VERIFIED_ROWS + 1]; /* by attends_together; by rows, of which
                                                                                the first two are not used */
    qn_cuda_captured drafts[QN_CUDA_BLOCKS][QN_GPU_N_BUCKETS];               /* draft steps, without a sampler */
    qn_cuda_captured sampled_drafts[QN_CUDA_BLOCKS][QN_SAMPLE_MODES];        /* those of one row, by sampler */
    qn_cuda_captured drafted_blocks[QN_CUDA_BLOCKS][QN_CUDA_VERIFIED_ROWS + 1]; /* of a block drafter, by rows */
} qn_cuda_graphs;

/* qn_cuda_graphs_of - Finds a cache format's graphs in the list *first; adds an empty entry if there is none. Free the
 * list with qn_cuda_graphs_free. */
qn_status qn_cuda_graphs_of(qn_cuda_graphs **first, const qn_cuda_format *format, qn_cuda_graphs **out);

/* qn_cuda_graphs_free - Frees all entries of the list, with their graphs and plans. Accepts NULL. */
void qn_cuda_graphs_free(qn_cuda *cuda, qn_cuda_graphs *first);

#endif
