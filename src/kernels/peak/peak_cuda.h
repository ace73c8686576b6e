/* What a GPU can do at best, measured: how fast it reads, how fast its matrix units multiply, what a launch costs. Kernels of
 * no model: the limits that others are held to. */
#ifndef QN_KERNELS_PEAK_PEAK_CUDA_H
#define QN_KERNELS_PEAK_PEAK_CUDA_H

#include "kernels/launch.h"

enum { QN_PEAK_THREADS = 512 };

/* qn_peak_read_all - reads n_uint4 times 16 bytes; *out is written only where their exclusive or is all ones, so that nothing
 * is left out and nothing is written. */
typedef struct qn_peak_read_args {
    QN_GPU_PTR(uint32_t) out;
    QN_GPU_PTR(const uint8_t) from;
    uint64_t n_uint4;
} qn_peak_read_args;

/* qn_peak_mma - n_steps products on matrix units in each warp, all in registers; *out is written only where they come to
 * what they cannot. */
typedef struct qn_peak_mma_args {
    QN_GPU_PTR(uint32_t) out;
    uint32_t n_steps;
    uint32_t bf16; /* m16n8k16 of bfloat16 into floats, else m16n8k32 of int8 into int32 */
} qn_peak_mma_args;

/* Products of one warp's step, side by side, and operations (a multiplication and an addition are two) in each. */
enum { QN_PEAK_MMAS = 8, QN_PEAK_BF16_OPS = 2 * 16 * 8 * 16, QN_PEAK_INT8_OPS = 2 * 16 * 8 * 32 };

/* qn_peak_empty - a launch that does nothing but begin and end. */
typedef struct qn_peak_empty_args {
    uint32_t unused;
} qn_peak_empty_args;

#ifndef __CUDACC__

#include "base/status.h"

#include <stddef.h>

typedef struct qn_peak_read {
    qn_launch launch;
    qn_peak_read_args args;
} qn_peak_read;

typedef struct qn_peak_mma {
    qn_launch launch;
    qn_peak_mma_args args;
    double ops; /* of one launch */
} qn_peak_mma;

/* `bytes` a multiple of 16, `from` at one; `out` of one uint32. */
qn_status qn_peak_read_plan(uint64_t out, uint64_t from, size_t bytes, uint32_t n_sms, qn_peak_read *plan);
void qn_peak_mma_plan(uint64_t out, bool bf16, uint32_t n_steps, uint32_t n_sms, qn_peak_mma *plan);
void qn_peak_empty_plan(bool pdl, qn_launch *launch);

#endif
#endif
