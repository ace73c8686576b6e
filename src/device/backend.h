/* What a backend implements besides the tables of its devices (device/device.h): functions that count, describe and
 * open devices and, if it compiles kernels for a device, functions that list and load these. The registry
 * (device/registry.h) has the list of backends, and is the only caller of `count`, `describe`, `memory` and `open`.
 * These and the functions without a qn_device_kernels may be called from any thread; one thread at a time may use a
 * qn_device_kernels. */
#ifndef QN_DEVICE_BACKEND_H
#define QN_DEVICE_BACKEND_H

#include "device/device.h"

enum { QN_DEVICE_TEXT_MAX = 256 };

/* ---- Kernels that are compiled for a device ---- */

/* A kernel source with its definitions, and its builds in this program. */
typedef struct qn_built_in_kernel {
    const char *source, *defines;       /* "attention/decode.cu", "-DQN_HEAD_DIM=64"; static */
    char built_for[QN_DEVICE_TEXT_MAX]; /* architectures, separated by spaces; "" for none */
} qn_built_in_kernel;

/* A kernel on a device. Strings live until `close`. */
typedef struct qn_loaded_kernel {
    const char *source, *defines;
    const char *origin;                /* "built in", "cache", or the compiler's name; "-": not loaded */
    char compiler[QN_DEVICE_TEXT_MAX]; /* name and version */
    const char *failure;               /* error text if the kernel is unavailable, else NULL */
    double seconds;                    /* time to find or compile, and to load it */
    size_t bytes;                      /* size of its code */
} qn_loaded_kernel;

typedef struct qn_device_kernels qn_device_kernels; /* the kernels of a device that was opened only for them */

typedef struct qn_backend_kernels {
    const char *devices; /* "NVIDIA GPUs" */

    /* Returns the i-th kernel of this program; false after the last. */
    bool (*built_in)(size_t i, qn_built_in_kernel *kernel);

    /* describe_built_in: the architectures that this program's kernels were compiled for, and the compiler: "sm_90a by
     * nvcc 13.0.88"; "" for none. compiler: only its name. */
    void (*describe_built_in)(char text[QN_DEVICE_TEXT_MAX]);
    const char *(*compiler)(void);

    /* Opens a device; on_log as in qn_device_params. Close it with `close`. */
    qn_status (*open)(int ordinal, void (*on_log)(void *user, const char *line), void *user,
                      qn_device_kernels **kernels);
    void (*close)(qn_device_kernels *kernels);

    /* arch: the device's architecture. cache_folder: the folder of cached compiled kernels; NULL if there is none, with
     * the reason in *why_none. */
    const char *(*arch)(const qn_device_kernels *kernels);
    const char *(*cache_folder)(const qn_device_kernels *kernels, const char **why_none);

    /* Loads all kernels, compiling missing ones. Tries all of them; returns the first failure. */
    qn_status (*load)(qn_device_kernels *kernels);

    /* Returns the i-th kernel that was loaded or tried; false after the last. */
    bool (*loaded)(const qn_device_kernels *kernels, size_t i, qn_loaded_kernel *kernel);

    /* Removes the cached kernels of all devices. The caller free()s *folder, which is NULL if there is no cache. */
    qn_status (*clear_cache)(char **folder, size_t *n_files, uint64_t *bytes);
} qn_backend_kernels;

/* ---- The backend ---- */

typedef struct qn_backend {
    const char *name; /* prefix of its devices' names: "cuda" */
    bool is_numbered; /* ":N" may follow the name */
    /* NULL, or returns whether "auto" takes device 0. If opening it then fails for any reason, "auto" takes the next
     * backend's. */
    bool (*is_automatic)(void);
    bool drafts; /* its devices run the draft steps of a block for multi-token prediction */

    /* The number of devices, at least 1. QN_ERR_UNSUPPORTED, naming what is missing, if there is none. */
    qn_status (*count)(int *count);

    /* Describes a device in one line, without opening it. */
    qn_status (*describe)(int ordinal, char text[QN_DEVICE_TEXT_MAX]);

    /* Returns the bytes of memory for models, without opening the device: on the CPU what is available now, UINT64_MAX
     * if that is unknown; on a GPU all that it has. */
    qn_status (*memory)(int ordinal, uint64_t *bytes);

    /* Opens a device for a plan. QN_ERR_UNSUPPORTED if the device does not exist or its kernels do not support the
     * plan. */
    qn_status (*open)(int ordinal, const qn_device_params *params, qn_device **device);

    const qn_backend_kernels *kernels; /* NULL: the backend compiles no kernels for a device */
} qn_backend;

#endif
