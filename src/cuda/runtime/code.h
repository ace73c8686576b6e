/* The GPU code embedded in a binary of quern: kernel sources, the list of pipelines, and the cubins that nvcc compiled
 * when quern was built, if nvcc was available. cmake/cuda.cmake generates the tables (built_in.c); tests have their own
 * tables. All of them are constant.
 *
 * A pipeline is one source compiled with one set of definitions: a qn_gpu_variant (cuda/kernels/launch.h), as text.
 * Kernel sources include only files of these tables, by their names there ("cuda/kernels/cuda.cuh"), so that the binary
 * can compile them without a source tree. */
#ifndef QN_CUDA_RUNTIME_CODE_H
#define QN_CUDA_RUNTIME_CODE_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct qn_gpu_file {
    const char *name;       /* "cuda/kernels/hadamard/hadamard.cu" */
    const char *text, *end; /* *end is 0 */
} qn_gpu_file;

typedef struct qn_gpu_pipeline {
    const char *source;  /* "hadamard/hadamard.cu" */
    const char *defines; /* "-DQN_HEAD_DIM=128", or "" */
} qn_gpu_pipeline;

typedef struct qn_gpu_cubin {
    const char *source, *defines, *arch;
    const uint8_t *data, *end; /* a cubin, or a fatbin with it compressed */
} qn_gpu_cubin;

typedef struct qn_gpu_code {
    const qn_gpu_file *files;
    size_t n_files;
    const qn_gpu_pipeline *pipelines;
    size_t n_pipelines;
    const qn_gpu_cubin *cubins;
    size_t n_cubins;
    const char *compiler; /* of the cubins: "nvcc 13.0.88"; "" without cubins */
} qn_gpu_code;

static inline size_t qn_gpu_file_bytes(const qn_gpu_file *file)
{
    return (size_t)(file->end - file->text);
}

/* qn_gpu_code_built_in - Returns the tables of this binary. */
const qn_gpu_code *qn_gpu_code_built_in(void);

enum { QN_GPU_ARCH_MAX = 32 };

/* qn_gpu_arch - Writes the architecture to compile for ("sm_90a") on a device of this compute capability. Devices that
 * share an instruction set map to the first of their family, so that one cubin serves all of them. */
void qn_gpu_arch(int major, int minor, char arch[QN_GPU_ARCH_MAX]);

/* qn_gpu_code_cubin - Returns the built-in cubin of this source, definitions and architecture, or NULL. */
const qn_gpu_cubin *qn_gpu_code_cubin(const qn_gpu_code *code, const char *source, const char *defines,
                                      const char *arch);

enum { QN_GPU_MAX_FILES = 48 };

/* qn_gpu_code_files - Lists a source and all files that it includes, directly or indirectly: the source first, each
 * file once. QN_ERR_INVALID if the source is not in the table, or for more than QN_GPU_MAX_FILES files. */
qn_status qn_gpu_code_files(const qn_gpu_code *code, const char *source, const qn_gpu_file *files[QN_GPU_MAX_FILES],
                            size_t *n_files);

enum { QN_GPU_MAX_DEFINES = 24 };

/* qn_gpu_options - Splits definitions at spaces into *n strings in `out`, which point into *copy. The caller free()s
 * *copy when it no longer needs the strings. QN_ERR_INVALID for more than `max` strings. */
qn_status qn_gpu_options(const char *defines, char **copy, const char **out, size_t max, size_t *n);

#endif
