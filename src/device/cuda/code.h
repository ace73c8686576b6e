/* What a binary of quern carries of its GPU kernels: the texts of their sources, the list of pipelines, and the cubins that
 * nvcc made when quern was built, if it was there. cmake/cuda.cmake writes the tables (built_in.c); tests have tables of their
 * own.
 *
 * A pipeline is one source compiled with one set of definitions. Sources include "kernels/cuda.cuh" and headers of their own
 * room by these names and nothing else, so that a binary can compile them without its source tree. */
#ifndef QN_DEVICE_CUDA_CODE_H
#define QN_DEVICE_CUDA_CODE_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct qn_gpu_file {
    const char *name;       /* "kernels/hadamard/hadamard.cu" */
    const char *text, *end; /* a zero stands at the end */
} qn_gpu_file;

typedef struct qn_gpu_pipeline {
    const char *source;  /* "hadamard/hadamard.cu" */
    const char *defines; /* "-DQN_HEAD_DIM=128", or "" */
} qn_gpu_pipeline;

typedef struct qn_gpu_cubin {
    const char *source, *defines, *arch;
    const uint8_t *data, *end;
} qn_gpu_cubin;

typedef struct qn_gpu_code {
    const qn_gpu_file *files;
    size_t n_files;
    const qn_gpu_pipeline *pipelines;
    size_t n_pipelines;
    const qn_gpu_cubin *cubins;
    size_t n_cubins;
    const char *compiler; /* what made the cubins: "nvcc 13.0.88"; "" where there are none */
} qn_gpu_code;

static inline size_t qn_gpu_file_bytes(const qn_gpu_file *file)
{
    return (size_t)(file->end - file->text);
}

/* qn_gpu_code_built_in - the tables of this binary. */
const qn_gpu_code *qn_gpu_code_built_in(void);

/* qn_gpu_arch - the architecture that a device of this compute capability is given code for ("sm_90a"), into a buffer of at
 * least 16 bytes. Where a family shares an instruction set it is the family's first member, so that one cubin serves all. */
void qn_gpu_arch(int major, int minor, char arch[16]);

/* qn_gpu_code_cubin - the built-in cubin, or NULL. */
const qn_gpu_cubin *qn_gpu_code_cubin(const qn_gpu_code *code, const char *source, const char *defines, const char *arch);

enum { QN_GPU_MAX_FILES = 32 };

/* qn_gpu_code_files - a source and all that it includes, itself first, each once. QN_ERR_INVALID where a name is in no table.
 */
qn_status qn_gpu_code_files(const qn_gpu_code *code, const char *source, const qn_gpu_file *files[QN_GPU_MAX_FILES],
                            size_t *n_files);

#endif
