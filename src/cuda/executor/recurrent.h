/* The operations of Gated DeltaNet layers as launches. */
#ifndef QN_CUDA_EXECUTOR_RECURRENT_H
#define QN_CUDA_EXECUTOR_RECURRENT_H

#include "cuda/executor/step.h"

/* qn_cuda_run_recurrent_op - everything of QN_OP_CONV, QN_OP_DELTA_RULE and QN_OP_GATED_NORM except quantising
 * activations. Arguments of its launches depend on the number of pieces alone unless one contains a complete chunk. */
qn_status qn_cuda_run_recurrent_op(const qn_cuda_rows_step *s, const qn_op *op);

/* qn_cuda_fold_full_chunks - of a step of one row of each sequence, after its inputs are on the host and before they
 * are uploaded, not in its graph: folds full open chunks in all layers, and gives the rows the folded states. Kernels
 * of single rows do not fold. */
qn_status qn_cuda_fold_full_chunks(const qn_cuda_rows_step *s);

/* qn_cuda_set_recurrent_args - states and open chunks of the persistent decode kernel; nothing without recurrent
 * layers. */
void qn_cuda_set_recurrent_args(const qn_cuda_rows_step *s, qn_persistent_args *args);

#endif
