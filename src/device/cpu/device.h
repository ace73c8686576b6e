/* The CPU device (device/device.h): executes a model's plan with a thread team. Sessions are in device/cpu/memory.h. */
#ifndef QN_DEVICE_CPU_DEVICE_H
#define QN_DEVICE_CPU_DEVICE_H

#include "device/device.h"

/* qn_cpu_device_create - a device that executes params->plan. QN_ERR_MEMORY; release with vtable->free. */
qn_status qn_cpu_device_create(const qn_device_params *params, qn_device **out);

#endif
