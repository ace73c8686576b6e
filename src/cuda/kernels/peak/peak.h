/* Measurement of a GPU's limits: read bandwidth, tensor core throughput, launch cost. No model uses these kernels;
 * benchmarks compare other kernels with them. */
#ifndef QN_CUDA_KERNELS_PEAK_PEAK_H
#define QN_CUDA_KERNELS_PEAK_PEAK_H

#include "cuda/kernels/launch.h"

/* Grids are one block an SM, so that their number is the number of SMs, also under limits (cuda/runtime/limits.h). */
enum { QN_PEAK_THREADS = 1024 };

/* qn_peak_read_all - Reads n_uint4 times 16 bytes. *out is written only if the exclusive or of a thread's data is all
 * ones: the compiler cannot drop the loads, and there are practically no stores. */
typedef struct qn_peak_read_args {
    QN_GPU_PTR(uint32_t) out;
    QN_GPU_PTR(const uint8_t) from;
    uint64_t n_uint4;
} qn_peak_read_args;

/* qn_peak_copy_all - Copies n_uint4 times 16 bytes. */
typedef struct qn_peak_copy_args {
    QN_GPU_PTR(uint8_t) to;
    QN_GPU_PTR(const uint8_t) from;
    uint64_t n_uint4;
} qn_peak_copy_args;

/* qn_peak_mma - Runs n_steps steps of QN_PEAK_MMAS independent MMAs in each warp, all in registers. *out is written
 * only for a result that cannot occur, so that the compiler keeps the MMAs. */
typedef struct qn_peak_mma_args {
    QN_GPU_PTR(uint32_t) out;
    uint32_t n_steps;
    uint32_t bf16; /* 1: m16n8k16 of bf16 with f32 accumulators; 0: m16n8k32 of int8 with int32 accumulators */
} qn_peak_mma_args;

/* Independent MMAs per step of a warp, and operations of one MMA (a multiply-add counts as two). */
enum { QN_PEAK_MMAS = 8, QN_PEAK_BF16_OPS = 2 * 16 * 8 * 16, QN_PEAK_INT8_OPS = 2 * 16 * 8 * 32 };

/* qn_peak_empty - Executes the PDL trigger and wait only. */
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

typedef struct qn_peak_copy {
    qn_launch launch;
    qn_peak_copy_args args;
} qn_peak_copy;

typedef struct qn_peak_mma {
    qn_launch launch;
    qn_peak_mma_args args;
    double ops; /* of one launch */
} qn_peak_mma;

/* qn_peak_read_plan - Plans a read of `bytes` bytes at `from`. out is the address of one uint32. QN_ERR_INVALID unless
 * bytes and from are multiples of 16. */
qn_status qn_peak_read_plan(uint64_t out, uint64_t from, size_t bytes, uint32_t n_sms, qn_peak_read *plan);

/* qn_peak_copy_plan - Plans a copy of `bytes` bytes. QN_ERR_INVALID as for qn_peak_read_plan. */
qn_status qn_peak_copy_plan(uint64_t to, uint64_t from, size_t bytes, uint32_t n_sms, qn_peak_copy *plan);

/* qn_peak_mma_plan - Plans n_steps steps of MMAs, of bf16 or int8. out is the address of one uint32. */
void qn_peak_mma_plan(uint64_t out, bool bf16, uint32_t n_steps, uint32_t n_sms, qn_peak_mma *plan);

/* qn_peak_empty_plan - Fills the launch of qn_peak_empty, with PDL if `pdl`. */
void qn_peak_empty_plan(bool pdl, qn_launch *launch);

#endif
#endif
