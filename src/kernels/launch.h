/* What a kernel of the GPU and the C that launches it both know: how an argument struct names device memory, and what a launch
 * is.
 *
 * A room's <room>_cuda.h is included by C and by CUDA alike and includes this file. Launch geometry is C (<room>_cuda.c), which
 * knows no driver: it fills a qn_launch, and device/cuda/ finds the code and launches it. Sources are compiled when quern is
 * built, for the definitions that the room's pipelines.txt lists, or when they are first needed. */
#ifndef QN_KERNELS_LAUNCH_H
#define QN_KERNELS_LAUNCH_H

#ifdef __CUDACC__

#include "kernels/cuda.cuh"

/* A field of an argument struct that points into device memory: a pointer in CUDA, an address of the same size in C. */
#define QN_GPU_PTR(type) type *

#else

#include <stdbool.h>
#include <stdint.h>

#define QN_GPU_PTR(type) uint64_t

/* One launch of a kernel, which is `extern "C" __global__ void function(const __grid_constant__ function_args a)`, one struct
 * by value. */
typedef struct qn_launch {
    const char *source;   /* "hadamard/hadamard.cu", a path below src/kernels/ */
    const char *defines;  /* "-DQN_HEAD_DIM=128 -DQN_BITS=4": a variant of the source; "" for none */
    const char *function; /* "qn_hadamard_blocks" */
    uint32_t grid[3], block[3];
    uint32_t shared_bytes; /* dynamic shared memory; beyond 48 KiB, too, as far as the device has it */
    uint32_t args_bytes;   /* sizeof the argument struct */
    uint32_t cluster; /* blocks in z that can read each other's shared memory and run at the same time; a divisor of grid[2],
                         up to 8; 0 or 1: none. From compute capability 9.0 on */
    bool pdl;         /* may begin before the kernel ahead of it in the stream has ended; then the kernel itself waits
                         (qn_pdl_wait) before it reads what that one writes, or writes what that one reads */
    bool cooperative; /* blocks wait for each other: refused where the device cannot hold all of them at the same time */
} qn_launch;

#endif
#endif
