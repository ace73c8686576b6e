/* The operations of Gated DeltaNet layers as launches. The caller of functions that launch holds stream_lock. */
#ifndef QN_CUDA_EXECUTOR_RECURRENT_H
#define QN_CUDA_EXECUTOR_RECURRENT_H

#include "cuda/executor/step.h"

/* qn_cuda_run_recurrent_op - Launches QN_OP_CONV, QN_OP_DELTA_RULE or QN_OP_GATED_NORM, without the quantisation of
 * activations. Unless a piece contains a complete chunk, the arguments of the launches depend only on the number of
 * pieces. */
qn_status qn_cuda_run_recurrent_op(const qn_cuda_rows_step *s, const qn_op *op);

/* qn_cuda_fold_full_chunks - Folds full open chunks into their states in all layers, and points the rows' inputs to the
 * folded states. For steps of few rows of each sequence, whose kernels do not fold. Call it outside the step's graph,
 * after the inputs are filled on the host and before they are uploaded. */
qn_status qn_cuda_fold_full_chunks(const qn_cuda_rows_step *s);

/* qn_cuda_set_recurrent_args - Sets the states and open chunks in the arguments of the persistent decode kernel. Does
 * nothing without recurrent layers. */
void qn_cuda_set_recurrent_args(const qn_cuda_rows_step *s, qn_persistent_args *args);

#endif
