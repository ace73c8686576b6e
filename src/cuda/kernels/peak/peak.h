/* Measurement of a GPU's limits: read bandwidth, tensor core throughput, launch cost. No model uses these kernels;
 * benchmarks compare the others with them. */
#ifndef QN_CUDA_KERNELS_PEAK_PEAK_H
#define QN_CUDA_KERNELS_PEAK_PEAK_H

#include "cuda/kernels/launch.h"

enum { QN_PEAK_THREADS = 512 };

/* qn_peak_read_all - reads n_uint4 times 16 bytes. *out is written only if a thread's exclusive or is all ones: the
 * compiler cannot drop the loads, and there are practically no stores. */
typedef struct qn_peak_read_args {
    QN_GPU_PTR(uint32_t) out;
    QN_GPU_PTR(const uint8_t) from;
    uint64_t n_uint4;
} qn_peak_read_args;

/* qn_peak_mma - n_steps steps of QN_PEAK_MMAS independent MMAs in each warp, all in registers. *out is written only for
 * a result that cannot occur, so that the compiler keeps the MMAs. */
typedef struct qn_peak_mma_args {
    QN_GPU_PTR(uint32_t) out;
    uint32_t n_steps;
    uint32_t bf16; /* 1: m16n8k16 of bf16 with f32 accumulators; 0: m16n8k32 of int8 with int32 accumulators */
} qn_peak_mma_args;

/* Independent MMAs per step of a warp, and operations of one MMA (a multiply-add counts as two). */
enum { QN_PEAK_MMAS = 8, QN_PEAK_BF16_OPS = 2 * 16 * 8 * 16, QN_PEAK_INT8_OPS = 2 * 16 * 8 * 32 };

/* qn_peak_empty - a kernel that does nothing but the PDL trigger and wait. */
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

/* qn_peak_read_plan - QN_ERR_INVALID unless bytes and from are multiples of 16. out: one uint32, here and in
 * qn_peak_mma_plan. */
qn_status qn_peak_read_plan(uint64_t out, uint64_t from, size_t bytes, uint32_t n_sms, qn_peak_read *plan);
void qn_peak_mma_plan(uint64_t out, bool bf16, uint32_t n_steps, uint32_t n_sms, qn_peak_mma *plan);
void qn_peak_empty_plan(bool pdl, qn_launch *launch);

#endif
#endif
