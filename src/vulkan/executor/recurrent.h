/* Operations of Gated DeltaNet layers as dispatches: the convolution; the delta rule over open chunks, chunk by chunk;
 * what rows leave in the open chunk. */
#ifndef QN_VULKAN_EXECUTOR_RECURRENT_H
#define QN_VULKAN_EXECUTOR_RECURRENT_H

#include "vulkan/executor/record.h"

/* qn_vk_check_recurrent - QN_ERR_UNSUPPORTED if the kernels do not support the plan's recurrent layers. */
qn_status qn_vk_check_recurrent(const qn_plan *plan);

/* qn_vk_fill_sequences - writes what kernels read about the sequences of pieces [n] (qn_vk_sequence). */
void qn_vk_fill_sequences(const qn_gpu_piece *pieces, size_t n, qn_vk_sequence *sequences);

/* qn_vk_is_convolved_later - returns whether operation `at` is a convolution that the kernels of the delta rule and of
 * the gated norm compute: in decode steps. */
bool qn_vk_is_convolved_later(const qn_vk_recording *r, size_t at);

/* qn_vk_is_normed_with - returns whether operation `at` is a delta rule whose kernel computes the gated norm, too. What
 * that appends is then recorded with the operation after it. */
bool qn_vk_is_normed_with(const qn_vk_recording *r, size_t at);

/* qn_vk_record_conv, qn_vk_record_delta, qn_vk_record_append - record QN_OP_CONV, QN_OP_DELTA_RULE, and what
 * QN_OP_GATED_NORM appends to open chunks. */
qn_status qn_vk_record_conv(const qn_vk_recording *r, const qn_op *op);
qn_status qn_vk_record_delta(const qn_vk_recording *r, const qn_op *op);
qn_status qn_vk_record_append(const qn_vk_recording *r, const qn_op *op);

#endif
