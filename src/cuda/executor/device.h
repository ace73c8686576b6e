/* The CUDA device (device/device.h): executes a model's plan on a GPU. Weights are packed into tiles when they are
 * uploaded; sessions are in device memory. A step computes rows of any sequences together. It copies only its inputs
 * and its logits or sampled tokens over the bus, and embeddings if no kernel reads the table's type. A decode step is
 * one CUDA graph, captured once for each cache format and bucket (numbers of rows are padded to a bucket). The same
 * steps give the same bits from run to run. */
#ifndef QN_CUDA_EXECUTOR_DEVICE_H
#define QN_CUDA_EXECUTOR_DEVICE_H

#include "device/device.h"

typedef struct qn_cuda_executor_params {
    qn_device_params base;
    int ordinal;                         /* of the device, from 0 */
    const struct qn_cuda_driver *driver; /* driver and tools as in qn_cuda_params; NULL except in tests */
    const struct qn_cuda_tools *tools;
} qn_cuda_executor_params;

/* qn_cuda_executor_create - Creates a device that executes params->base.plan, which must outlive it. The caller then
 * uploads the weights (qn_device_vtable.upload). QN_ERR_UNSUPPORTED without a GPU, or if no kernel supports a shape;
 * the message names the missing part. */
qn_status qn_cuda_executor_create(const qn_cuda_executor_params *params, qn_device **out);

#endif
