/* A device that counts its calls: what a backend has to implement, and nothing else. It computes with the reference
 * kernels. */
#ifndef QN_TESTS_COUNTING_H
#define QN_TESTS_COUNTING_H

#include "device/device.h"

/* Calls of the vtables, and what they amount to. */
typedef struct counting_calls {
    size_t creations, frees, uploads, reserves, runs, memories, memory_frees, prepares, serializes, deserializes;
    size_t rows, logit_rows, sampled;
} counting_calls;

extern counting_calls counting_calls_of;

/* counting_device_create - qn_device_open for "counting". */
qn_status counting_device_create(const qn_device_params *params, qn_device **out);

#endif
