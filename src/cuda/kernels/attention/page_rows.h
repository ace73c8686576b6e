/* Decode attention over codes of several rows of one session, at positions of one page: a step that verifies a draft.
 */
#ifndef QN_CUDA_KERNELS_ATTENTION_PAGE_ROWS_H
#define QN_CUDA_KERNELS_ATTENTION_PAGE_ROWS_H

#include "cuda/kernels/attention/attention.h"

/* qn_attention_gpu_has_page_rows - Returns whether qn_attention_gpu_decode_page supports this cache and number of
 * rows. */
bool qn_attention_gpu_has_page_rows(const qn_attention_gpu *gpu, size_t n_rows);

/* qn_attention_gpu_page_rows_from - Returns the position from which on it is faster than qn_attention_gpu_decode, which
 * has more blocks for a row's splits. */
size_t qn_attention_gpu_page_rows_from(const qn_attention_gpu *gpu);

/* qn_attention_gpu_decode_page - As qn_attention_gpu_decode, for rows of one session at positions of one page, if
 * qn_attention_gpu_has_page_rows: codes are read and dequantised once for some of the rows. Their scores are added up
 * in another order. Each row attends to the rows of the draft up to its own; the values of later ones, at positions of
 * the same tile, are multiplied by weights of 0: a NaN or infinity in one of them makes results of earlier rows NaN. */
qn_status qn_attention_gpu_decode_page(const qn_attention_gpu *gpu, size_t n_rows, const qn_attention_splits *splits,
                                       qn_launch *out);

#endif
