/* The Vulkan device (device/device.h): executes a model's plan. Weights keep their codes and are arranged in words when
 * they are uploaded; sessions are in the device's memory, in pages of fp16. The host dequantises embeddings, computes
 * the angles of positions and samples. A row's results do not depend on the other rows of a step. */
#ifndef QN_VULKAN_EXECUTOR_DEVICE_H
#define QN_VULKAN_EXECUTOR_DEVICE_H

#include "device/device.h"

/* qn_vk_device_create - creates a device that executes params->plan, which must outlive it. QN_ERR_UNSUPPORTED, naming
 * what is missing, without device `ordinal`, or if no kernel supports a part of the plan. */
qn_status qn_vk_device_create(int ordinal, const qn_device_params *params, qn_device **out);

#endif
