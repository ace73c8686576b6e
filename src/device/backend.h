/* What a backend implements besides the tables of its devices (device/device.h): how many devices there are, what
 * they are, how one is opened; and, where it compiles kernels for a device, which there are. The registry
 * (device/registry.h) has the list of backends, and is the only caller of `count`, `describe` and `open`. */
#ifndef QN_DEVICE_BACKEND_H
#define QN_DEVICE_BACKEND_H

#include "device/device.h"

enum { QN_DEVICE_TEXT_MAX = 256 };

/* ---- Kernels that are compiled for a device ---- */

/* A kernel source with its definitions, and what this program has of it. */
typedef struct qn_built_in_kernel {
    const char *source, *defines;       /* "attention/decode.cu", "-DQN_HEAD_DIM=64"; static */
    char built_for[QN_DEVICE_TEXT_MAX]; /* architectures, separated by spaces; "" for none */
} qn_built_in_kernel;

/* The same on a device. Strings live until `close`. */
typedef struct qn_loaded_kernel {
    const char *source, *defines;
    const char *origin;                /* "built in", "cache", or the compiler's name; "-": not loaded */
    char compiler[QN_DEVICE_TEXT_MAX]; /* with its version */
    const char *failure;               /* error text if it is unavailable, else NULL */
    double seconds;                    /* to find or compile and load it */
    size_t bytes;                      /* of its code */
} qn_loaded_kernel;

typedef struct qn_device_kernels qn_device_kernels; /* the kernels of a device that is open for them alone */

typedef struct qn_backend_kernels {
    const char *devices; /* "NVIDIA GPUs" */

    /* The i-th kernel of this program; false past the last. */
    bool (*built_in)(size_t i, qn_built_in_kernel *kernel);

    /* The architectures that kernels are compiled for in this program, and the compiler: "sm_90a by nvcc 13.0.88"; ""
     * for none. compiler: its name alone. */
    void (*describe_built_in)(char text[QN_DEVICE_TEXT_MAX]);
    const char *(*compiler)(void);

    /* Opens a device; on_log as in qn_device_params. Free with `close`. */
    qn_status (*open)(int ordinal, void (*on_log)(void *user, const char *line), void *user,
                      qn_device_kernels **kernels);
    void (*close)(qn_device_kernels *kernels);

    /* The architecture of the device; the folder in which compiled kernels are cached, NULL for none, and then why. */
    const char *(*arch)(const qn_device_kernels *kernels);
    const char *(*cache_folder)(const qn_device_kernels *kernels, const char **why_none);

    /* Loads all kernels, and compiles those that are missing. All are tried; returns the first failure. */
    qn_status (*load)(qn_device_kernels *kernels);

    /* The i-th kernel that was loaded or tried; false past the last. */
    bool (*loaded)(const qn_device_kernels *kernels, size_t i, qn_loaded_kernel *kernel);

    /* Removes the cached kernels of all devices. The caller free()s *folder, which is NULL if there is no cache. */
    qn_status (*clear_cache)(char **folder, size_t *n_files, uint64_t *bytes);
} qn_backend_kernels;

/* ---- The backend ---- */

typedef struct qn_backend {
    const char *name; /* of its devices: "cuda" */
    bool is_numbered; /* ":N" may follow the name */

    /* The number of devices, at least 1. QN_ERR_UNSUPPORTED, naming what is missing, if there is none. */
    qn_status (*count)(int *count);

    /* One line about a device, which is not opened. */
    qn_status (*describe)(int ordinal, char text[QN_DEVICE_TEXT_MAX]);

    /* Opens a device for a plan. QN_ERR_UNSUPPORTED if it is not there, or its kernels do not support the plan. */
    qn_status (*open)(int ordinal, const qn_device_params *params, qn_device **device);

    const qn_backend_kernels *kernels; /* NULL: none is compiled for a device */
} qn_backend;

#endif
