/* Compiles a kernel source at run time with nvcc or NVRTC, from the sources embedded in the binary, with the build's
 * options. */
#ifndef QN_CUDA_RUNTIME_COMPILE_H
#define QN_CUDA_RUNTIME_COMPILE_H

#include "base/status.h"
#include "cuda/runtime/code.h"
#include "cuda/runtime/cubin_key.h"

/* A compilation: files[0] is the source, the others are the files that it includes. */
typedef struct qn_gpu_unit {
    const qn_gpu_file *const *files;
    size_t n_files;
    /* arch: "sm_90a"; "compute_89/sm_90": for sm_90, from the instructions of compute_89; "compute_90/sm_90/1200": with
     * QN_CUDA_ARCH defined as 1200. The latter two are for nvcc alone. */
    const char *defines, *arch;
} qn_gpu_unit;

/* qn_nvcc_find - Finds the path of the installed nvcc: the first of $QN_NVCC, $CUDA_HOME/bin, $CUDA_PATH/bin, $PATH and
 * /usr/local/cuda/bin. The caller free()s *path. *path is NULL, and the status QN_OK, if there is no nvcc.
 * QN_ERR_INVALID if $QN_NVCC is not an executable file. */
qn_status qn_nvcc_find(char **path);

/* qn_nvcc_compile - Runs this nvcc, without a shell, in a temporary directory, for at most `seconds`. The caller
 * free()s *cubin. QN_ERR_UNSUPPORTED, with the compiler's first error line, if compilation fails; also if it exceeds
 * the time limit. */
qn_status qn_nvcc_compile(const char *nvcc, unsigned seconds, const qn_gpu_unit *unit, void **cubin, size_t *bytes,
                          char compiler[QN_COMPILER_MAX]);

/* qn_nvrtc_compile - Compiles in this process with this NVRTC library (NULL: the usual names). The caller free()s
 * *cubin. QN_ERR_UNSUPPORTED if the library is missing or compilation fails. */
qn_status qn_nvrtc_compile(const char *library, const qn_gpu_unit *unit, void **cubin, size_t *bytes,
                           char compiler[QN_COMPILER_MAX]);

#endif
