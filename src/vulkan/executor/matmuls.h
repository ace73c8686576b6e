/* Matmuls, and the activations that they read and write. */
#ifndef QN_VULKAN_EXECUTOR_MATMULS_H
#define QN_VULKAN_EXECUTOR_MATMULS_H

#include "vulkan/executor/record.h"

/* qn_vk_epilogue_of - returns the epilogue of operation `at` of the plan for the rows of the recording: it also
 * computes operation at + 1 then. */
qn_vk_epilogue qn_vk_epilogue_of(const qn_vk_recording *r, size_t at);

/* qn_vk_record_matmul - records a MATMUL of the rows of the recording, with its epilogue, or LOGITS of n rows. */
qn_status qn_vk_record_matmul(const qn_vk_recording *r, const qn_op *op, size_t n);

#endif
