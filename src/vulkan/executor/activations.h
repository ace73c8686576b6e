/* The activations of matmuls that a kernel computes from an operation's buffers, rotated or not. */
#ifndef QN_VULKAN_EXECUTOR_ACTIVATIONS_H
#define QN_VULKAN_EXECUTOR_ACTIVATIONS_H

#include "vulkan/executor/record.h"

/* qn_vk_check_rotations - QN_ERR_UNSUPPORTED if a block of a Hadamard transform is larger than the kernel's. */
qn_status qn_vk_check_rotations(const qn_plan *plan);

/* qn_vk_is_computed - returns whether a kernel computes the floats of the activations that an operation writes: for an
 * ATTENTION_COMBINE without output gates and rotation they are the buffer that it reads. */
bool qn_vk_is_computed(const qn_plan *plan, const qn_op *op, int acts);

/* qn_vk_acts_args - returns the arguments of the kernel that computes the activations `acts` of an operation, but for x
 * and rows. */
qn_vk_prepare_args qn_vk_acts_args(const qn_vk_recording *r, const qn_op *op, int acts);

/* qn_vk_record_acts - records the kernels that compute an operation's activations, of n rows. x: its first buffer;
 * rows: address of the indices of the rows of x to read, 0: all. */
qn_status qn_vk_record_acts(const qn_vk_recording *r, const qn_op *op, uint64_t x, uint64_t rows, size_t n);

#endif
