/* The data that all parts of the executor share. A part refers to the parts before it:
 *
 *   weights     matrices in tiles, and vectors                        weights.h
 *   caches      the pool, cache formats, memories of sessions         caches.h
 *   workspace   buffers of a step, on the device and mapped           workspace.h
 *   record      the plan's operations as dispatches                   record.h
 *   sampling    tokens from a step's logits                           sampling.h
 *   steps       batches of rows: inputs, commands, logits, sampling   steps.h
 *
 * Threads. One thread at a time makes the calls of qn_device_vtable (the model's lock). Up to two steps are in flight
 * between them, each with a block: inputs, page tables and commands of its own. The device runs them one after the
 * other, so all other buffers are shared. Memories are used by other threads meanwhile. */
#ifndef QN_VULKAN_EXECUTOR_INTERNAL_H
#define QN_VULKAN_EXECUTOR_INTERNAL_H

#include "device/device.h"
#include "kernels/hadamard/hadamard.h"
#include "kernels/sample/sample.h"
#include "vulkan/kernels/kernels.h"

enum { QN_VK_BLOCKS = 2 };

/* Constant after the device was created. */
typedef struct qn_vk_common {
    const qn_plan *plan;
    qn_team *team;
    qn_hadamard_kernels hadamard; /* of the host, as is `sample` */
    qn_sample_kernels sample;
    qn_vk *vk;
    uint64_t memory_limit; /* most bytes that memories may take; 0: most of what the device has left */
} qn_vk_common;

#endif
