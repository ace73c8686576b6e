/* Compiling a kernel source on the user's machine, by nvcc or by NVRTC. Both compile the texts that the binary carries, with
 * the same options as the build did. */
#ifndef QN_DEVICE_CUDA_COMPILE_H
#define QN_DEVICE_CUDA_COMPILE_H

#include "base/status.h"
#include "device/cuda/code.h"
#include "device/cuda/cubin_file.h"

enum { QN_GPU_MAX_DEFINES = 24 };

/* What to compile: files[0] is the source, the others are what it includes. */
typedef struct qn_gpu_unit {
    const qn_gpu_file *const *files;
    size_t n_files;
    const char *defines, *arch;
} qn_gpu_unit;

/* qn_nvcc_find - the nvcc of this machine: $QN_NVCC, $CUDA_HOME/bin, $CUDA_PATH/bin, $PATH, /usr/local/cuda/bin; free() it.
 * NULL where there is none, and QN_OK. */
qn_status qn_nvcc_find(char **path);

/* qn_nvcc_compile - run that nvcc, without a shell, in a folder of its own that is gone afterwards, for at most `seconds`.
 * *cubin is free()d by the caller. QN_ERR_UNSUPPORTED with the compiler's first words where it fails or takes too long. */
qn_status qn_nvcc_compile(const char *nvcc, unsigned seconds, const qn_gpu_unit *unit, void **cubin, size_t *bytes,
                          char compiler[QN_COMPILER_MAX]);

/* qn_nvrtc_compile - compile in this process, with the library of that name, or the usual ones for NULL. QN_ERR_UNSUPPORTED
 * where there is none, or where it fails. */
qn_status qn_nvrtc_compile(const char *library, const qn_gpu_unit *unit, void **cubin, size_t *bytes,
                           char compiler[QN_COMPILER_MAX]);

/* qn_gpu_options - split definitions at blanks: pointers into `copy`, which the caller free()s, after `out` has been used. */
qn_status qn_gpu_options(const char *defines, char **copy, const char **out, size_t max, size_t *n);

#endif
