/* The interface between GPU kernels and the C code that launches them: pointers to device memory in argument structs,
 * and the description of a launch.
 *
 * <name>.h in a kernel directory declares the argument structs; C and CUDA include it, and it includes this file.
 * <name>.c computes launch geometry: it fills a qn_launch and calls no driver; its functions have no state and may be
 * called by any thread. The device memory that arguments point to must stay valid until the launch has ended.
 * cuda/runtime/ finds the code and launches it. variants.def lists the directory's sources, their parameters, and the
 * variants that are compiled when quern is built (cuda/kernels/variants.h); others are compiled at first use. */
#ifndef QN_CUDA_KERNELS_LAUNCH_H
#define QN_CUDA_KERNELS_LAUNCH_H

#ifdef __CUDACC__

#include "cuda/kernels/cuda.cuh"

/* A field of an argument struct that points into device memory: a pointer in CUDA, an address of the same size in C. */
#define QN_GPU_PTR(type) type *

#else

#include <stdbool.h>
#include <stdint.h>

#define QN_GPU_PTR(type) uint64_t

enum { QN_GPU_PARAMETERS = 6, QN_GPU_DEFINES_MAX = 256 };

/* A kernel source: a row of a variants.def, in static memory. */
typedef struct qn_gpu_source {
    const char *file;       /* "hadamard/hadamard.cu", a path below src/cuda/kernels/ */
    const char *parameters; /* names, "head_dim, bits"; "" for none */
} qn_gpu_source;

/* A source compiled for values of its parameters. */
typedef struct qn_gpu_variant {
    const qn_gpu_source *source;
    uint32_t values[QN_GPU_PARAMETERS]; /* in the order of the parameters; 0 after the last */
} qn_gpu_variant;

/* qn_gpu_defines - Writes the compiler's options for a variant, "-DQN_HEAD_DIM=128 -DQN_BITS=4"; "" without
 * parameters. */
void qn_gpu_defines(const qn_gpu_variant *variant, char out[QN_GPU_DEFINES_MAX]);

/* One launch of a kernel `extern "C" __global__ void function(const __grid_constant__ function_args a)`: one argument
 * struct, by value. */
typedef struct qn_launch {
    qn_gpu_variant variant;
    const char *function; /* "qn_hadamard_blocks" */
    uint32_t grid[3], block[3];
    uint32_t shared_bytes; /* dynamic shared memory, up to the limit of the device (also beyond 48 KiB) */
    uint32_t args_bytes;   /* sizeof the argument struct */
    uint32_t cluster; /* cluster size in z, or if grid[2] is 1 in x: a divisor of that number of blocks, up to 8; 0 or 1:
                         no clusters. From compute capability 9.0 on */
    bool pdl;         /* programmatic dependent launch: may start before the previous kernel of the stream has ended.
                         The kernel calls qn_pdl_wait before it reads that kernel's output or overwrites its input */
    bool cooperative; /* blocks wait for each other; the launch fails if they cannot all be resident at the same time */
} qn_launch;

#endif
#endif
