/* Names of the cubins in the cache of compiled kernels (gpu/code_file.h). */
#ifndef QN_CUDA_RUNTIME_CUBIN_KEY_H
#define QN_CUDA_RUNTIME_CUBIN_KEY_H

#include "cuda/runtime/code.h"
#include "gpu/code_file.h"

/* qn_cubin_key_of - Returns the XXH3-128 of quern's version, the architecture, the definitions, and the names and texts
 * of the files in order, the source first. n_files is at most QN_GPU_MAX_FILES. */
qn_code_key qn_cubin_key_of(const char *arch, const char *defines, const qn_gpu_file *const *files, size_t n_files);

#endif
