/* The CUDA device (device/device.h): executes a model's plan on a GPU. Weights are packed into tiles when they are
 * uploaded; sessions are in device memory. A step computes rows of any sequences together; it copies only its inputs,
 * logits or the sampled tokens over the bus, and embeddings if no kernel reads their type. A decode step is one CUDA
 * graph, captured once for each number of rows that others are padded to, and each cache format. The same steps give
 * the same bits from run to run. */
#ifndef QN_CUDA_EXECUTOR_DEVICE_H
#define QN_CUDA_EXECUTOR_DEVICE_H

#include "device/device.h"

typedef struct qn_cuda_executor_params {
    qn_device_params base;
    int ordinal;                         /* of the device, from 0 */
    const struct qn_cuda_driver *driver; /* driver and tools as in qn_cuda_params; NULL except in tests */
    const struct qn_cuda_tools *tools;
} qn_cuda_executor_params;

/* qn_cuda_executor_create - a device that executes this plan, which outlives it. The caller then uploads the weights
 * (qn_device_vtable.upload). QN_ERR_UNSUPPORTED, naming what is missing, without a GPU and for shapes that no kernel
 * supports. */
qn_status qn_cuda_executor_create(const qn_cuda_executor_params *params, qn_device **out);

#endif
