/* The operations of attention layers as launches. */
#ifndef QN_CUDA_EXECUTOR_ATTENTION_H
#define QN_CUDA_EXECUTOR_ATTENTION_H

#include "cuda/executor/step.h"

/* From this number of rows on, blocks of attention are distributed over a piece's rows (prefill kernel, a launch for
 * each piece); below, over KV splits too (decode kernel, one launch for all pieces). */
enum { QN_CUDA_PREFILL_ROWS = 64 };

/* qn_cuda_run_angles - the cosines and sines of the step's positions. */
qn_status qn_cuda_run_angles(const qn_cuda_rows_step *s);

/* qn_cuda_run_attention_op - everything of QN_OP_QK_NORM_ROPE_STORE, QN_OP_ATTENTION and QN_OP_ATTENTION_COMBINE
 * except quantising activations. */
qn_status qn_cuda_run_attention_op(const qn_cuda_rows_step *s, const qn_op *op);

/* qn_cuda_quantize_pages - AURA: quantises, in all layers, the pages that a step completes whose pieces are all of
 * one row. In other steps qn_cuda_run_attention_op does so, layer by layer. */
qn_status qn_cuda_quantize_pages(const qn_cuda_rows_step *s);

/* qn_cuda_has_prefill - whether a piece is for the prefill kernel. */
bool qn_cuda_has_prefill(const qn_cuda_piece *piece);

#endif
