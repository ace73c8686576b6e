/* What a session remembers on the CPU: its key-value cache and its recurrent layers as one (device/device.h). */
#ifndef QN_CACHE_MEMORY_H
#define QN_CACHE_MEMORY_H

#include "device/device.h"

/* qn_cpu_memory_new - for sessions of the model that has this plan. */
qn_status qn_cpu_memory_new(const qn_plan *plan, const qn_memory_params *params, qn_memory **out);

#endif
