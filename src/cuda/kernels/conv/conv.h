/* Causal depthwise convolution on the GPU, for quern/cuda.h: qn_conv_scan and qn_conv_step of quern/kernels.h. The
 * convolution of models is part of the delta rule (cuda/kernels/deltanet/). Shared by C and CUDA.
 *
 * A thread computes QN_CHANNELS channels, eight if rows and states allow loads of 16 bytes, else one, and keeps their
 * filters and windows in registers. Blocks of a scan divide the tokens into groups. Each group reads the taps-1 inputs
 * before it again. */
#ifndef QN_CUDA_KERNELS_CONV_CONV_H
#define QN_CUDA_KERNELS_CONV_CONV_H

#include "cuda/kernels/launch.h"

enum {
    QN_CONV_GPU_THREADS = 128,
    QN_CONV_GPU_CHANNELS = 8, /* of a thread, if all rows are aligned */
    QN_CONV_GPU_FEW_TAPS = 4, /* kernels for more taps need more registers */
    QN_CONV_GPU_MAX_TAPS = 8,
    QN_CONV_GPU_MAX_BLOCK_TOKENS = 64
};

/* Arguments of all kernels. Blocks of channels are in y of the grid:
 *
 *   qn_conv_scan, qn_conv_scan_long   x: groups of `block_tokens` tokens; writes y
 *   qn_conv_final                     x: sequences; writes final, after the scan: it may be initial
 *   qn_conv_step, qn_conv_step_long   x: sequences, each of one token; updates initial in place, writes y
 *
 * Kernels without _long have up to QN_CONV_GPU_FEW_TAPS taps, kernels with _long up to QN_CONV_GPU_MAX_TAPS. Defines:
 * QN_CHANNELS. */
typedef struct qn_conv_args {
    QN_GPU_PTR(const void) x;        /* [rows][channels], x_stride elements apart */
    QN_GPU_PTR(void) y;              /* [rows][channels], y_stride; does not overlap x in a scan */
    QN_GPU_PTR(const float) weights; /* [channels][taps], at a multiple of 16 bytes */
    QN_GPU_PTR(const float) bias;    /* [channels], at a multiple of 16 bytes; or 0 */
    QN_GPU_PTR(void) initial;        /* [states][taps-1][channels], states initial_stride elements apart; or 0: zeros */
    QN_GPU_PTR(void) final;          /* the same, final_stride */
    QN_GPU_PTR(const uint32_t) cu_seqlens;   /* [sequences + 1], or 0: sequences of `tokens` rows one after the other */
    QN_GPU_PTR(const int32_t) state_indices; /* [sequences]; -1: the sequence is skipped; or 0: state i */
    uint64_t initial_stride, final_stride;
    uint32_t x_stride, y_stride;
    uint32_t rows, tokens, sequences, channels, taps, block_tokens;
    uint32_t wide_seqlens; /* cu_seqlens are 64-bit integers */
    uint32_t dtype;        /* qn_dtype of x, y and states: f32, f16 or bf16 */
    uint32_t silu;
} qn_conv_args;

#ifndef __CUDACC__

#include "base/status.h"

#include <stddef.h>

/* The functions below read rows, sequences, channels and taps of the arguments. is_aligned: all rows of x, y and states
 * begin at multiples of 16 bytes, and channels are a multiple of QN_CONV_GPU_CHANNELS. QN_ERR_INVALID for sizes beyond
 * the limits of a grid. */

/* qn_conv_gpu_scan - Fills the launch of a scan, and sets args->block_tokens. rows is at least 1. */
qn_status qn_conv_gpu_scan(qn_conv_args *args, bool is_aligned, uint32_t n_sms, qn_launch *out);

/* qn_conv_gpu_final - Fills a launch of qn_conv_final. sequences is at least 1. */
qn_status qn_conv_gpu_final(const qn_conv_args *args, bool is_aligned, qn_launch *out);

/* qn_conv_gpu_step - Fills the launch of a step. sequences is at least 1. */
qn_status qn_conv_gpu_step(const qn_conv_args *args, bool is_aligned, qn_launch *out);

#endif
#endif
