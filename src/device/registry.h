/* The registry of devices: parses their names, and counts, describes and opens them. The engine, the program and quern-check
 * reach devices through it; nothing else parses a device's name. */
#ifndef QN_DEVICE_REGISTRY_H
#define QN_DEVICE_REGISTRY_H

#include "device/device.h"

typedef enum qn_device_kind {
    QN_DEVICE_CPU,
    QN_DEVICE_CUDA,
    QN_DEVICE_AUTO /* the first CUDA device if it supports the plan, else the CPU */
} qn_device_kind;

typedef struct qn_device_name {
    qn_device_kind kind;
    int ordinal;        /* among the devices of the kind, from 0 */
    const char *text;   /* the name as it was given, not copied */
    const char *source; /* what gave it, for error texts: "--device" */
} qn_device_name;

enum { QN_DEVICE_TEXT_MAX = 256 };

/* qn_device_name_parse - parse "cpu", "cuda" (which is "cuda:0"), "cuda:N" or "auto". QN_ERR_INVALID, naming source and text,
 * for anything else. A name is valid whether or not the device exists. */
qn_status qn_device_name_parse(const char *source, const char *text, qn_device_name *name);

/* qn_device_name_select - parse the value of the option --device; if that is NULL, the environment variable QN_DEVICE; if that
 * is unset or empty, "auto". */
qn_status qn_device_name_select(const char *option, qn_device_name *name);

/* qn_device_count - the number of devices of a kind, at least 1. QN_ERR_UNSUPPORTED, naming what is missing, if there is
 * none. For QN_DEVICE_AUTO it is 1. */
qn_status qn_device_count(qn_device_kind kind, int *count);

/* qn_device_describe - one line about a CPU or CUDA device: "cpu, avx512"; "cuda:0, " and the GPU's name, capability, size and
 * driver. The device is not opened. Errors as those of opening it. */
qn_status qn_device_describe(const qn_device_name *name, char text[QN_DEVICE_TEXT_MAX]);

/* qn_device_open - open a device for a plan. Release with device->vtable->free. For "auto", an error of the first CUDA device
 * other than QN_ERR_UNSUPPORTED is returned. */
qn_status qn_device_open(const qn_device_name *name, const qn_device_params *params, qn_device **device);

#endif
