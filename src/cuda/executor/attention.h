/* The operations of attention layers as launches. The caller of functions that launch holds stream_lock. */
#ifndef QN_CUDA_EXECUTOR_ATTENTION_H
#define QN_CUDA_EXECUTOR_ATTENTION_H

#include "cuda/executor/step.h"

/* Pieces of at least this number of rows use the prefill kernel: one launch for each piece, blocks over its rows.
 * Smaller pieces use the decode kernel: one launch for all pieces, blocks over rows and KV splits. */
enum { QN_CUDA_PREFILL_ROWS = 64 };

/* qn_cuda_run_angles - Launches the computation of rope's cosines and sines for the step's positions. of_drafter: those
 * of a block drafter's rope. */
qn_status qn_cuda_run_angles(const qn_cuda_rows_step *s, bool of_drafter);

/* qn_cuda_run_attention_op - Launches QN_OP_QK_NORM_ROPE_STORE, QN_OP_K_NORM_ROPE_STORE, QN_OP_ATTENTION or
 * QN_OP_ATTENTION_COMBINE, without the quantisation of activations. */
qn_status qn_cuda_run_attention_op(const qn_cuda_rows_step *s, const qn_op *op);

/* qn_cuda_quantize_pages - Quantises into AURA codes, in all layers, the pages that a step completes. Only for steps
 * with one row in each piece, or that verify; in other steps qn_cuda_run_attention_op quantises, layer by layer. */
qn_status qn_cuda_quantize_pages(const qn_cuda_rows_step *s);

/* qn_cuda_has_prefill - Returns whether a piece uses the prefill kernel. */
bool qn_cuda_has_prefill(const qn_gpu_piece *piece);

#endif
