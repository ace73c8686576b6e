/* The operations of attention layers as dispatches: rope and caches, pages of codes, attention in splits and of many
 * rows. */
#ifndef QN_VULKAN_EXECUTOR_ATTENTION_H
#define QN_VULKAN_EXECUTOR_ATTENTION_H

#include "vulkan/executor/record.h"

/* qn_vk_record_store, qn_vk_record_attention - record QN_OP_QK_NORM_ROPE_STORE and QN_OP_ATTENTION. */
qn_status qn_vk_record_store(const qn_vk_recording *r, const qn_op *op);
qn_status qn_vk_record_attention(const qn_vk_recording *r, const qn_op *op);

/* qn_vk_write_heads - writes qn_vk_heads of a QN_OP_QK_NORM_ROPE_STORE among the inputs, and returns its address. */
uint64_t qn_vk_write_heads(const qn_vk_recording *r, const qn_op *op);

/* qn_vk_is_combined - returns whether operation `at` is an ATTENTION whose kernels also compute the ATTENTION_COMBINE
 * after it: all rows are in pieces of few rows. */
bool qn_vk_is_combined(const qn_vk_recording *r, size_t at);

/* qn_vk_record_quantize - records the quantisation of the pages that a decode step completes, in all layers, after
 * their rows: no row attends to codes of its own page. Other steps have quantised theirs. */
qn_status qn_vk_record_quantize(const qn_vk_recording *r);

#endif
