/* quern: the GPU kernels, one function per operation, over views of device memory, on a stream of the caller.
 *
 * A function checks its arguments and queues kernels in the stream. It does not allocate, does not synchronise and reads no
 * device memory, so calls can be captured in CUDA graphs; what a function needs beside its arguments is a workspace whose size
 * another function gives. Results are the same from run to run. quern/kernels.h has the same operations on the CPU and is the
 * reference; the shapes there hold here.
 *
 * Context: a function uses the CUDA context that is current to the calling thread, as the runtime API and other libraries do,
 * and leaves it current. It must be a context of the handle's device.
 *
 * Views: a pointer to device memory, a data type, the number of elements that may be accessed, and the distance of rows. A row
 * is what one token has: all heads of it, without gaps. Arrays that are not of tokens ignore the distance. Addresses are
 * multiples of 16 bytes, but for arrays with one f32 for each head (g, beta); distances of 16-bit types are multiples of 8.
 *
 * Errors: QN_ERR_INVALID for an argument that is not as described, QN_ERR_UNSUPPORTED for one that the GPU kernels do not have
 * and for code that cannot be loaded; the text gives the value found and the value expected, and nothing is queued. Errors of
 * the driver are QN_ERR_IO, and QN_ERR_MEMORY where it has no memory. What only the device can see is not checked: values of
 * arrays, among them those of cu_seqlens and indices.
 *
 * Threads: any number of threads may call, with the same handle and the same or different streams. The order of calls in a
 * stream is the order of execution.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUERN_CUDA_H
#define QUERN_CUDA_H

#include "quern/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The kernels of a device: what has been loaded in each context, and where code comes from (docs/gpu.md). */
typedef struct qn_cuda_kernels qn_cuda_kernels;

/* A CUstream or cudaStream_t; NULL is the legacy default stream. Kernels wait for the kernel before them in the stream with
 * programmatic dependent launch: a kernel of the caller's that is launched with it must do so too. */
typedef void *qn_stream;

/* qn_cuda_kernels_open - the kernels of a device.
 *
 *   kernels   the handle, NULL on failure; free it with qn_cuda_kernels_close
 *   ordinal   index among the visible devices, from 0
 *
 * Loads libcuda, creates no context and allocates no device memory. QN_ERR_UNSUPPORTED without a driver or a device, and below
 * compute capability 8.0; QN_ERR_INVALID for an ordinal out of range. */
QN_API qn_status qn_cuda_kernels_open(qn_cuda_kernels **kernels, int ordinal);

/* qn_cuda_kernels_close - free the handle and unload its code from all contexts that still exist. With drivers before CUDA 12,
 * which do not tell contexts apart, all must exist. NULL is allowed. */
QN_API void qn_cuda_kernels_close(qn_cuda_kernels *kernels);

/* A view of device memory. */
typedef struct qn_cuda_view {
    void *data;
    qn_dtype dtype;
    size_t count;  /* elements that may be accessed, from data on */
    size_t stride; /* elements from a row to the next, at least the elements of a row; 0: rows follow each other */
} qn_cuda_view;

/* ---- Capture ----
 *
 * The first call of a function with a shape loads its code, and may compile it. This is not possible while the stream is
 * captured: such a call fails with QN_ERR_INVALID. Either a call with the same shape and types precedes the capture, or the
 * functions of a family that end in _prepare do, which load what such a call needs and queue nothing; they must not be called
 * while any stream is captured. */

/* ---- Gated DeltaNet ---- */

/* Sizes and options, as in qn_gdn_shape. States are a pool of S states, S >= N without state_indices. cu_seqlens is in device
 * memory, [n_sequences + 1] of type QN_DTYPE_U32, QN_DTYPE_I32 or QN_DTYPE_I64, begins with 0, does not decrease and does not
 * exceed `tokens`. At most 65535 sequences, 16383 value heads and 2^30 tokens in all. */
typedef struct qn_cuda_gdn_shape {
    size_t batch, tokens;
    size_t k_heads, v_heads;
    size_t head_k, head_v;
    qn_gdn_mapping mapping;
    float scale;
    bool normalize;
    size_t n_sequences; /* 0: no cu_seqlens */
    qn_cuda_view cu_seqlens;
    size_t max_tokens; /* a bound of the tokens of a sequence, for speed alone; 0: unknown */
    /* [N] QN_DTYPE_I32: sequence i has state state_indices[i]; -1: it is skipped, and nothing of it is read or written. No
     * state twice. An all-zero view: sequence i has state i. */
    qn_cuda_view state_indices;
} qn_cuda_gdn_shape;

/* qn_cuda_gdn_chunk_workspace - bytes of the workspace of qn_cuda_gdn_chunk; 0 is possible.
 *
 *   dtype   of q */
QN_API qn_status qn_cuda_gdn_chunk_workspace(const qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_dtype dtype,
                                             size_t *bytes);

/* qn_cuda_gdn_chunk - qn_gdn_chunk on the GPU, for prefill.
 *
 *   q, k        [T, k_heads, head_k] D
 *   v           [T, v_heads, head_v] D
 *   g           [T, v_heads] f32; values outside of -256 to 0 are clamped
 *   beta        [T, v_heads] f32, with the rows as far apart as those of g
 *   initial     [S, v_heads, head_v, head_k] f32 or bf16: the state before the first token; an all-zero view: zeros
 *   final       [S, v_heads, head_v, head_k] of the type of initial: the state after the last token; an all-zero view: not
 *               written; may be initial
 *   o           [T, v_heads, head_v] D; tokens outside of all sequences are not written
 *   workspace   [bytes] of device memory, at a multiple of 16; any content
 *
 * D is bf16 with head_k 128 and head_v a multiple of 64, on tensor cores: the error against the recurrence in float64 is at
 * most 1e-2, and 3e-3 to 5e-3 for random inputs. With f32 and any head sizes of qn_gdn_shape the recurrence is computed token
 * by token, which is exact to 1e-6 and many times slower; its workspace is empty. Other types are QN_ERR_UNSUPPORTED. */
QN_API qn_status qn_cuda_gdn_chunk(qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_cuda_view q, qn_cuda_view k,
                                   qn_cuda_view v, qn_cuda_view g, qn_cuda_view beta, qn_cuda_view initial, qn_cuda_view final,
                                   qn_cuda_view o, void *workspace, size_t bytes, qn_stream stream);

/* qn_cuda_gdn_step - qn_gdn_step on the GPU: the recurrence token by token, for decode.
 *
 *   q, k, v, g, beta, o   as for qn_cuda_gdn_chunk, of the same types
 *   state                 [S, v_heads, head_v, head_k] f32 or bf16, read and written
 *
 * D and head sizes as for qn_cuda_gdn_chunk. Arithmetic is float32; only o is rounded to D. */
QN_API qn_status qn_cuda_gdn_step(qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_cuda_view q, qn_cuda_view k,
                                  qn_cuda_view v, qn_cuda_view g, qn_cuda_view beta, qn_cuda_view state, qn_cuda_view o,
                                  qn_stream stream);

/* qn_cuda_gdn_prepare - load the code of qn_cuda_gdn_chunk and qn_cuda_gdn_step for a shape and type in the current context.
 */
QN_API qn_status qn_cuda_gdn_prepare(qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_dtype dtype);

/* ---- Matmul ----
 *
 * Weights are packed once, on the device: from the layout of GGUF files to one that only quern reads, as large as the weights
 * and up to a few percent more; weights of f32, Q5_0, Q5_1 and the k-quants become fp16, and bf16 is converted to it. Matrices
 * of one type that share activations (q, k and v; gate and up) are packed and multiplied together.
 *
 * In this section and those below, D is f32, f16 or bf16, and addresses and distances of arrays that are marked with D are
 * multiples of their elements alone; with multiples of 16 bytes functions are faster. Arithmetic is float32, and results are
 * rounded to D when they are stored. Counts of tokens and rows may be 0. */
enum { QN_CUDA_MATMUL_MATRICES = 4 };

/* Matrices that share activations. */
typedef struct qn_cuda_matmul_weights {
    qn_dtype dtype;                         /* as they are before packing: a type of qn_matmul */
    size_t n_cols;                          /* a multiple of the type's block size, at least 1 */
    size_t n_matrices;                      /* 1 to QN_CUDA_MATMUL_MATRICES */
    size_t n_rows[QN_CUDA_MATMUL_MATRICES]; /* at least 1 each */
    void *packed;                           /* device memory at a multiple of 128 */
    size_t bytes;                           /* that may be accessed there */
} qn_cuda_matmul_weights;

/* What is multiplied: x, or one of two operations on it, which is fused. */
typedef enum qn_cuda_matmul_op {
    QN_CUDA_MATMUL_X,        /* x */
    QN_CUDA_MATMUL_RMS_NORM, /* qn_rms_norm of x */
    QN_CUDA_MATMUL_SWIGLU    /* qn_swiglu of x, the gate, and up */
} qn_cuda_matmul_op;

typedef struct qn_cuda_matmul_acts {
    qn_cuda_matmul_op op;
    size_t n_tokens;     /* at most 2^30 */
    qn_cuda_view x;      /* [n_tokens, n_cols] D */
    qn_cuda_view up;     /* [n_tokens, n_cols], type and distance of rows as x; read with QN_CUDA_MATMUL_SWIGLU */
    qn_cuda_view weight; /* [n_cols] f32; read with QN_CUDA_MATMUL_RMS_NORM, as eps: finite, > 0 */
    float eps;
    bool f16; /* activations in fp16 also where they would be int8 */
} qn_cuda_matmul_acts;

typedef struct qn_cuda_matmul_out {
    qn_cuda_view y;  /* [n_tokens, n_rows] D, one type for all matrices; must not overlap x and up */
    bool accumulate; /* the result is added to y, and replaces it if false */
} qn_cuda_matmul_out;

/* qn_cuda_matmul_packed_bytes - bytes of packed weights; weights->packed and weights->bytes are not read. */
QN_API qn_status qn_cuda_matmul_packed_bytes(const qn_cuda_matmul_weights *weights, size_t *bytes);

/* qn_cuda_matmul_pack - pack one matrix. All must be packed before the first qn_cuda_matmul.
 *
 *   weights   packed: where to
 *   matrix    index of the matrix, below n_matrices
 *   rows      [n_rows[matrix], n_cols] of the type of the weights, without gaps between rows, as in a GGUF file; at most
 *             1048560 rows
 *
 * Values beyond fp16 that become fp16 are saturated to 65504. */
QN_API qn_status qn_cuda_matmul_pack(qn_cuda_kernels *kernels, const qn_cuda_matmul_weights *weights, size_t matrix,
                                     qn_cuda_view rows, qn_stream stream);

/* qn_cuda_matmul_workspace - bytes of the workspace of qn_cuda_matmul; 0 is possible. Of acts, n_tokens and f16 are read. It
 * grows with the tokens, up to 32768 of them. */
QN_API qn_status qn_cuda_matmul_workspace(const qn_cuda_kernels *kernels, const qn_cuda_matmul_weights *weights,
                                          const qn_cuda_matmul_acts *acts, size_t *bytes);

/* qn_cuda_matmul - outs[i].y = acts * matrix_i^T for all matrices, on tensor cores.
 *
 *   outs        [n_matrices]
 *   workspace   [bytes] of device memory, at a multiple of 16; any content
 *
 * Activations are converted once for all matrices: to int8 in groups of 32 with one scale each, as by qn_matmul, for weights
 * of 1 or 2 bits (Q1_0, Q2_0, PQ2_0, PTQ1_0, TQ1_0, TQ2_0) and up to 16 tokens; else to fp16, each token scaled by a power of
 * two. A token with an infinity or a NaN gets NaN in results that it affects; other tokens are not affected. Sums are float32.
 * More than 32768 tokens are computed in as many passes. One token of int8 needs shared memory for all of its columns: about
 * 90000 with 227 KiB a block, and more are QN_ERR_UNSUPPORTED; f16 allows them. */
QN_API qn_status qn_cuda_matmul(qn_cuda_kernels *kernels, const qn_cuda_matmul_weights *weights,
                                const qn_cuda_matmul_acts *acts, const qn_cuda_matmul_out *outs, void *workspace, size_t bytes,
                                qn_stream stream);

/* qn_cuda_matmul_prepare - load the code of qn_cuda_matmul_pack for these weights, and of qn_cuda_matmul for these activations
 * too, in the current context. Of acts, op, n_tokens, f16 and the type of x are read. */
QN_API qn_status qn_cuda_matmul_prepare(qn_cuda_kernels *kernels, const qn_cuda_matmul_weights *weights,
                                        const qn_cuda_matmul_acts *acts);

/* ---- Rows ----
 *
 * Rows have at most 2^31 - 1 elements, and at most 2^31 - 1 rows are allowed. All arrays of a call that are marked with D have
 * one type. */

/* qn_cuda_rms_norm - qn_rms_norm on the GPU.
 *
 *   x        [n_rows, n] D
 *   weight   [n] f32
 *   eps      finite, > 0
 *   out      [n_rows, n] D; may be x */
QN_API qn_status qn_cuda_rms_norm(qn_cuda_kernels *kernels, qn_cuda_view x, qn_cuda_view weight, size_t n_rows, size_t n,
                                  float eps, qn_cuda_view out, qn_stream stream);

/* qn_cuda_l2_norm - qn_l2_norm on the GPU.
 *
 *   x     [n_rows, n] D
 *   eps   finite, > 0
 *   out   [n_rows, n] D; may be x */
QN_API qn_status qn_cuda_l2_norm(qn_cuda_kernels *kernels, qn_cuda_view x, size_t n_rows, size_t n, float eps, qn_cuda_view out,
                                 qn_stream stream);

/* qn_cuda_gated_rms_norm - qn_gated_rms_norm on the GPU.
 *
 *   x        [n_rows, n] D
 *   gate     [n_rows, n] D
 *   weight   [n] f32
 *   eps      finite, > 0
 *   out      [n_rows, n] D; may be x or gate */
QN_API qn_status qn_cuda_gated_rms_norm(qn_cuda_kernels *kernels, qn_cuda_view x, qn_cuda_view gate, qn_cuda_view weight,
                                        size_t n_rows, size_t n, float eps, qn_cuda_view out, qn_stream stream);

/* qn_cuda_swiglu - qn_swiglu of rows on the GPU; rows have at most 134215680 elements.
 *
 *   gate   [n_rows, n] D
 *   up     [n_rows, n] D
 *   out    [n_rows, n] D; may be gate or up */
QN_API qn_status qn_cuda_swiglu(qn_cuda_kernels *kernels, qn_cuda_view gate, qn_cuda_view up, size_t n_rows, size_t n,
                                qn_cuda_view out, qn_stream stream);

/* qn_cuda_argmax - qn_argmax of each row on the GPU; the lowest index of equal logits. A NaN counts as the largest.
 *
 *   logits   [n_rows, n] D; n is at least 1 if n_rows is
 *   index    [n_rows] QN_DTYPE_I32 or QN_DTYPE_I64 */
QN_API qn_status qn_cuda_argmax(qn_cuda_kernels *kernels, qn_cuda_view logits, size_t n_rows, size_t n, qn_cuda_view index,
                                qn_stream stream);

/* qn_cuda_rows_prepare - load the code of all functions of this section in the current context. */
QN_API qn_status qn_cuda_rows_prepare(qn_cuda_kernels *kernels);

/* ---- Convolution ---- */

/* Sizes and options, as in qn_conv_shape. States are a pool of S states, S >= N without state_indices; the stride of a view of
 * states is the distance of states in elements, at least (taps-1) * channels. cu_seqlens and state_indices are as in
 * qn_cuda_gdn_shape. At most 2^31 - 1 sequences and 2^30 tokens in all. */
typedef struct qn_cuda_conv_shape {
    size_t batch, tokens, channels; /* channels is 1 to 8388480 */
    size_t taps;                    /* 1 to 8; with a bias 1 to 7 */
    bool linear;                    /* y without SiLU */
    size_t n_sequences;             /* 0: no cu_seqlens */
    qn_cuda_view cu_seqlens;        /* [n_sequences + 1] */
    qn_cuda_view state_indices;     /* [N]; an all-zero view: sequence i has state i */
} qn_cuda_conv_shape;

/* qn_cuda_conv_scan - qn_conv_scan on the GPU, for prefill. Fastest where channels and all distances are multiples of 8 and
 * addresses multiples of 16.
 *
 *   x         [T, channels] D
 *   weights   [channels, taps] f32
 *   bias      [channels] f32; an all-zero view: no bias
 *   initial   [S, taps-1, channels] D: the inputs before the first token, oldest first; an all-zero view: zeros
 *   final     [S, taps-1, channels] D: the last inputs; an all-zero view: not written; may be initial
 *   y         [T, channels] D; must not overlap x. Tokens outside of all sequences are not written */
QN_API qn_status qn_cuda_conv_scan(qn_cuda_kernels *kernels, const qn_cuda_conv_shape *shape, qn_cuda_view x,
                                   qn_cuda_view weights, qn_cuda_view bias, qn_cuda_view initial, qn_cuda_view final,
                                   qn_cuda_view y, qn_stream stream);

/* qn_cuda_conv_step - qn_conv_step on the GPU: one token of each of `batch` sequences, for decode. shape->tokens must be 1 and
 * shape->n_sequences 0.
 *
 *   x         [batch, channels] D
 *   weights   as for qn_cuda_conv_scan
 *   bias      as for qn_cuda_conv_scan
 *   state     [S, taps-1, channels] D, read and written
 *   y         [batch, channels] D; may be x */
QN_API qn_status qn_cuda_conv_step(qn_cuda_kernels *kernels, const qn_cuda_conv_shape *shape, qn_cuda_view x,
                                   qn_cuda_view weights, qn_cuda_view bias, qn_cuda_view state, qn_cuda_view y,
                                   qn_stream stream);

/* qn_cuda_conv_prepare - load the code of this section in the current context, for all shapes. */
QN_API qn_status qn_cuda_conv_prepare(qn_cuda_kernels *kernels);

/* ---- Hadamard transform ---- */

/* qn_cuda_hadamard - qn_hadamard on the GPU, to the same bits.
 *
 *   x       [n_rows, width] f32, read and written. With gaps between rows their distance is a multiple of 4, and there are at
 *           most 65535
 *   signs   [width] f32, each 1 or -1: other values are not seen; an all-zero view: no signs
 *   block   a power of two from 1 to 65536 that divides width; of more than 2048, 65535 blocks at most in
 *           all, or with gaps in a row
 *   order   whether the signs are applied before or after the transform */
QN_API qn_status qn_cuda_hadamard(qn_cuda_kernels *kernels, qn_cuda_view x, qn_cuda_view signs, size_t n_rows, size_t width,
                                  size_t block, qn_hadamard_order order, qn_stream stream);

/* qn_cuda_hadamard_prepare - load the code of qn_cuda_hadamard in the current context. */
QN_API qn_status qn_cuda_hadamard_prepare(qn_cuda_kernels *kernels);

#ifdef __cplusplus
}
#endif
#endif
