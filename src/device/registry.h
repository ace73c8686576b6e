/* The registry of devices: lists the backends, parses device names, and counts, describes and opens devices. The
 * engine, the program and quern-check reach devices through it; nothing else parses a device name. Any thread may call
 * its functions. */
#ifndef QN_DEVICE_REGISTRY_H
#define QN_DEVICE_REGISTRY_H

#include "device/backend.h"

typedef struct qn_device_name {
    const qn_backend *backend; /* NULL: "auto", the first device that supports the plan, the CPU last; without those of
                                  backends that only their name takes */
    int ordinal;               /* index among the backend's devices */
    const char *text;          /* the name as given; not copied */
    const char *source;        /* where the name came from, for error texts: "--device" */
} qn_device_name;

/* qn_device_backend - returns the i-th backend of this build, the CPU first; NULL after the last. */
const qn_backend *qn_device_backend(size_t i);

/* qn_device_name_parse - parses "cpu", "cuda" (the same as "cuda:0"), "cuda:N", "vulkan", "vulkan:N" or "auto".
 * QN_ERR_INVALID, naming source and text, for any other text. A name may be valid although the device does not exist or
 * this build lacks its backend. */
qn_status qn_device_name_parse(const char *source, const char *text, qn_device_name *name);

/* qn_device_name_select - parses the value of the option --device. If it is NULL, parses the environment variable
 * QN_DEVICE; if that is unset or empty, "auto". */
qn_status qn_device_name_select(const char *option, qn_device_name *name);

/* qn_device_is_cpu - returns whether the name is the CPU's; for "auto", whether there is no other device. */
bool qn_device_is_cpu(const qn_device_name *name);

/* qn_device_drafts - returns whether the name's devices run draft steps (qn_backend.drafts); true for "auto". */
bool qn_device_drafts(const qn_device_name *name);

/* qn_device_count - returns the number of devices of the name's backend in *count, at least 1; for "auto" it is 1.
 * QN_ERR_UNSUPPORTED, naming what is missing, if there is none. */
qn_status qn_device_count(const qn_device_name *name, int *count);

/* qn_device_describe - describes a device in one line, without opening it: "cpu, avx512"; "cuda:0, " and the GPU's
 * name, capability, size and driver. Errors are those of opening it. */
qn_status qn_device_describe(const qn_device_name *name, char text[QN_DEVICE_TEXT_MAX]);

/* qn_device_memory - returns the bytes of a device's memory (qn_backend.memory); of "auto", the first device other than
 * the CPU, if there is one. Errors are those of opening it. */
qn_status qn_device_memory(const qn_device_name *name, uint64_t *bytes);

/* qn_device_open - opens a device for a plan. Free it with device->vtable->free. "auto" tries the first device of each
 * backend; an error of one other than QN_ERR_UNSUPPORTED is returned. */
qn_status qn_device_open(const qn_device_name *name, const qn_device_params *params, qn_device **device);

#endif
