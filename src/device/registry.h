/* The registry of devices: the list of backends, parsing their names, and counting, describing and opening devices.
 * The engine, the program and quern-check reach devices through it; nothing else parses a device's name. */
#ifndef QN_DEVICE_REGISTRY_H
#define QN_DEVICE_REGISTRY_H

#include "device/backend.h"

typedef struct qn_device_name {
    const qn_backend *backend; /* NULL: "auto", the first device that supports the plan, the CPU last */
    int ordinal;               /* among the devices of the backend, from 0 */
    const char *text;          /* the name as it was given, not copied */
    const char *source;        /* what gave it, for error texts: "--device" */
} qn_device_name;

/* qn_device_backend - the i-th backend that this build has, the CPU first; NULL past the last. */
const qn_backend *qn_device_backend(size_t i);

/* qn_device_name_parse - parse "cpu", "cuda" (which is "cuda:0"), "cuda:N" or "auto". QN_ERR_INVALID, naming source
 * and text, for anything else. A name is valid whether or not the device exists, and whether or not this build has
 * its backend. */
qn_status qn_device_name_parse(const char *source, const char *text, qn_device_name *name);

/* qn_device_name_select - parse the value of the option --device; if that is NULL, the environment variable
 * QN_DEVICE; if that is unset or empty, "auto". */
qn_status qn_device_name_select(const char *option, qn_device_name *name);

/* qn_device_is_cpu - whether the name is the CPU's; of "auto", whether there is no other device. */
bool qn_device_is_cpu(const qn_device_name *name);

/* qn_device_count - the number of devices of a name's backend, at least 1. QN_ERR_UNSUPPORTED, naming what is
 * missing, if there is none. For "auto" it is 1. */
qn_status qn_device_count(const qn_device_name *name, int *count);

/* qn_device_describe - one line about a device: "cpu, avx512"; "cuda:0, " and the GPU's name, capability, size and
 * driver. The device is not opened. Errors as those of opening it. */
qn_status qn_device_describe(const qn_device_name *name, char text[QN_DEVICE_TEXT_MAX]);

/* qn_device_open - open a device for a plan. Release with device->vtable->free. For "auto", an error other than
 * QN_ERR_UNSUPPORTED of the first device of a backend is returned. */
qn_status qn_device_open(const qn_device_name *name, const qn_device_params *params, qn_device **device);

#endif
