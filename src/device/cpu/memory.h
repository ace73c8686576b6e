/* The qn_memory of the CPU device (device/device.h): the KV cache and the recurrent state of a session. */
#ifndef QN_DEVICE_CPU_MEMORY_H
#define QN_DEVICE_CPU_MEMORY_H

#include "device/device.h"

/* qn_cpu_memory_new - allocate the memory of a session of the plan's model; the plan outlives it. */
qn_status qn_cpu_memory_new(const qn_plan *plan, const qn_memory_params *params, qn_memory **out);

#endif
