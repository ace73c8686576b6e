/* quern: the GPU kernels, one function per operation, over views of device memory, on a stream of the caller.
 *
 * A function checks its arguments and queues kernels in the stream. It does not allocate, does not synchronise and
 * reads no device memory, so calls can be captured in CUDA graphs. Functions that need scratch memory take a workspace,
 * whose size another function returns. Results are the same from run to run. quern/kernels.h has the same operations on
 * the CPU and is the reference; its shapes apply here.
 *
 * Context: a function uses the CUDA context that is current to the calling thread, as the runtime API and other
 * libraries do, and leaves it current. It must be a context of the handle's device.
 *
 * Views: a pointer to device memory, a data type, the number of elements that may be accessed, and the distance of
 * rows. A row is all elements of one token: all of its heads, without gaps. The distance applies to per-token arrays
 * only. Addresses are multiples of 16 bytes, and distances of 16-bit types are multiples of 8 elements. For arrays with
 * one element for each head or sequence (g, beta, gc, gate_factor, gate_bias, sinks, cu_seqlens, state_indices)
 * multiples of one element are enough. An output that may be an input then has the input's address, type and distance.
 *
 * Errors: QN_ERR_INVALID for an argument that is not as described, QN_ERR_UNSUPPORTED for one that the GPU kernels do
 * not support and for code that cannot be loaded; the text gives the value found and the value expected, and nothing is
 * queued. Errors of the driver are QN_ERR_DEVICE, or QN_ERR_MEMORY if it is out of memory. Values in device memory are
 * not checked, including those of cu_seqlens and indices.
 *
 * Threads: any number of threads may call, with the same handle and the same or different streams. The order of calls
 * in a stream is the order of execution.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUERN_CUDA_H
#define QUERN_CUDA_H

#include "quern/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The kernels of a device: the code loaded in each context, and the source of the code (docs/gpu.md). */
typedef struct qn_cuda_kernels qn_cuda_kernels;

/* A CUstream or cudaStream_t; NULL is the legacy default stream. Kernels are launched with programmatic dependent
 * launch and wait for the previous kernel in the stream: a kernel that the caller launches that way must wait too. */
typedef void *qn_stream;

/* qn_cuda_kernels_open - Opens the kernels of a device.
 *
 *   kernels   the handle, NULL on failure; free it with qn_cuda_kernels_close
 *   ordinal   index among the visible devices, from 0
 *
 * Loads libcuda, creates no context and allocates no device memory. QN_ERR_UNSUPPORTED without a driver or a device,
 * and below compute capability 8.0; QN_ERR_INVALID for an ordinal out of range. */
QN_API qn_status qn_cuda_kernels_open(qn_cuda_kernels **kernels, int ordinal);

/* qn_cuda_kernels_close - Frees the handle, waits for the work of all contexts that still exist and unloads its code
 * from them. No other thread may use the handle any more. Does nothing in a forked child. Drivers before CUDA 12 cannot
 * tell contexts apart: with them all contexts must still exist. NULL is allowed. */
QN_API void qn_cuda_kernels_close(qn_cuda_kernels *kernels);

/* A view of device memory. */
typedef struct qn_cuda_view {
    void *data;
    qn_dtype dtype;
    size_t count;  /* elements that may be accessed, from data on */
    size_t stride; /* elements from one row to the next, at least the elements of a row; 0: rows are contiguous */
} qn_cuda_view;

/* ---- Capture ----
 *
 * The first call of a function with a shape loads its code, and may compile it. This is not possible while any stream
 * of the context is captured; if the call's own stream is captured, the call fails with QN_ERR_INVALID. So before the
 * capture, make a call with the same shape and types, or call the _prepare function of the section: it loads the code
 * of such a call and queues nothing. */

/* ---- Gated DeltaNet ---- */

/* Sizes and options, as in qn_gdn_shape. States are a pool of S states, S >= N without state_indices. cu_seqlens is in
 * device memory, [n_sequences + 1] of type QN_DTYPE_U32, QN_DTYPE_I32 or QN_DTYPE_I64, begins with 0, does not decrease
 * and does not exceed `tokens`. At most 65535 sequences, 16383 value heads and 2^30 tokens in all. */
typedef struct qn_cuda_gdn_shape {
    size_t batch, tokens;
    size_t k_heads, v_heads;
    size_t head_k, head_v;
    qn_gdn_mapping mapping;
    float scale;
    bool normalize;
    size_t n_sequences; /* 0: no cu_seqlens */
    qn_cuda_view cu_seqlens;
    size_t max_tokens; /* upper bound of the tokens of a sequence, affects speed only; 0: unknown */
    /* [N] QN_DTYPE_I32: sequence i has state state_indices[i]; -1: the sequence is skipped, and none of its data is
     * read or written. No state may occur twice. An all-zero view: sequence i has state i. */
    qn_cuda_view state_indices;
    bool transposed_states; /* states are [S, v_heads, head_k, head_v] */
    /* [v_heads] f32. If gate_factor is given, the log decay is gate_factor * softplus(g + gate_bias); with all-zero
     * views of both it is g. Qwen3.5's layers have gate_factor = -e^A_log and gate_bias = dt_bias. */
    qn_cuda_view gate_factor, gate_bias;
    bool sigmoid_beta; /* apply the sigmoid to beta first */
} qn_cuda_gdn_shape;

/* qn_cuda_gdn_chunk_workspace - Returns the bytes of the workspace of qn_cuda_gdn_chunk; 0 is possible.
 *
 *   dtype   of q */
QN_API qn_status qn_cuda_gdn_chunk_workspace(const qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape,
                                             qn_dtype dtype, size_t *bytes);

/* qn_cuda_gdn_chunk - qn_gdn_chunk on the GPU, for prefill.
 *
 *   q, k        [T, k_heads, head_k] D
 *   v           [T, v_heads, head_v] D
 *   g           [T, v_heads] f32, f16 or bf16: log decays; values outside of -256 to 0 are clamped, NaN stays NaN
 *   beta        [T, v_heads] f32, f16 or bf16
 *   initial     [S, v_heads, head_v, head_k] f32 or bf16: the state before the first token; an all-zero view: zeros
 *   final       [S, v_heads, head_v, head_k] of the type of initial: the state after the last token; an all-zero view:
 *               not written; may be initial
 *   o           [T, v_heads, head_v] D; tokens outside of all sequences are not written
 *   workspace   [bytes] of device memory, at a multiple of 16; any content
 *
 * D is bf16 or f16 on tensor cores: the error against the recurrence in float64 is at most 1e-2 in bf16, and 3e-3 to
 * 5e-3 for random inputs; at most 2e-3 in f16, whose values must stay below 65504. Keys and values are padded to
 * multiples of 64 elements, so these sizes are the fastest. Keys of more than 128 elements need 130 KiB of shared
 * memory per block; on GPUs with 99 KiB they are QN_ERR_UNSUPPORTED. With f32 the recurrence is computed token by
 * token, which is exact to 1e-6 and many times slower; its workspace is empty. */
QN_API qn_status qn_cuda_gdn_chunk(qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_cuda_view q,
                                   qn_cuda_view k, qn_cuda_view v, qn_cuda_view g, qn_cuda_view beta,
                                   qn_cuda_view initial, qn_cuda_view final, qn_cuda_view o, void *workspace,
                                   size_t bytes, qn_stream stream);

/* qn_cuda_gdn_step - qn_gdn_step on the GPU: the recurrence token by token, for decode.
 *
 *   q, k, v, g, beta, o   as for qn_cuda_gdn_chunk, of the same types
 *   state                 [S, v_heads, head_v, head_k] f32 or bf16, read and written
 *
 * D and head sizes as for qn_cuda_gdn_chunk. Arithmetic is float32; only o is rounded to D. */
QN_API qn_status qn_cuda_gdn_step(qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_cuda_view q,
                                  qn_cuda_view k, qn_cuda_view v, qn_cuda_view g, qn_cuda_view beta, qn_cuda_view state,
                                  qn_cuda_view o, qn_stream stream);

/* qn_cuda_gdn_prepare - Loads the code of qn_cuda_gdn_chunk and qn_cuda_gdn_step for a shape and type in the current
 * context.
 */
QN_API qn_status qn_cuda_gdn_prepare(qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_dtype dtype);

/* ---- Gated DeltaNet, stage by stage ----
 *
 * The stages of quern/kernels.h with its shapes, layouts and formulas, for D of f16 or bf16 (QN_ERR_UNSUPPORTED for
 * f32, whose recurrence qn_cuda_gdn_chunk computes without stages). Sums are float32. qn_cuda_gdn_chunk takes a third
 * of the time of all stages together, because it does not write intermediate results to memory.
 *
 * Of the shape, scale is read by qn_cuda_gdn_chunk_output, transposed_states by qn_cuda_gdn_state_pass, gate_factor and
 * gate_bias by qn_cuda_gdn_cumsum, sigmoid_beta where beta is read; normalize and max_tokens are not read. Rows of
 * tokens may have a distance; for [T, v_heads, 64] arrays it is a multiple of 4. */

/* qn_cuda_gdn_cumsum - cumulative sum of the log decays within each chunk.
 *
 *   g    [T, v_heads] f32, f16 or bf16, as for qn_cuda_gdn_chunk
 *   gc   [T, v_heads] f32, accumulated in double; may be g of f32 */
QN_API qn_status qn_cuda_gdn_cumsum(qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_cuda_view g,
                                    qn_cuda_view gc, qn_stream stream);

/* qn_cuda_gdn_kkt - a[i, j] = beta_i (k_i . k_j) e^(gc_i - gc_j) for j < i of a chunk, else 0.
 *
 *   k      [T, k_heads, head_k] D
 *   beta   [T, v_heads] f32, f16 or bf16
 *   gc     [T, v_heads] f32
 *   a      [T, v_heads, 64] f32 */
QN_API qn_status qn_cuda_gdn_kkt(qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_cuda_view k,
                                 qn_cuda_view beta, qn_cuda_view gc, qn_cuda_view a, qn_stream stream);

/* qn_cuda_gdn_tril_inverse - (I + a)^-1 of each chunk, by forward substitution in float32.
 *
 *   a         [T, v_heads, 64] f32; only elements below the diagonal are read
 *   inverse   [T, v_heads, 64] f32; may be a */
QN_API qn_status qn_cuda_gdn_tril_inverse(qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_cuda_view a,
                                          qn_cuda_view inverse, qn_stream stream);

/* qn_cuda_gdn_recompute_w_u - w = inverse (beta e^gc k), u = inverse (beta v).
 *
 *   k         [T, k_heads, head_k] D
 *   v         [T, v_heads, head_v] D
 *   beta      [T, v_heads] f32, f16 or bf16
 *   gc        [T, v_heads] f32
 *   inverse   [T, v_heads, 64] f32; only elements on and below the diagonal are read
 *   w         [T, v_heads, head_k] D
 *   u         [T, v_heads, head_v] D
 *
 * The inverse times beta e^gc or beta is rounded to D before the GEMM, w and u after it. */
QN_API qn_status qn_cuda_gdn_recompute_w_u(qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_cuda_view k,
                                           qn_cuda_view v, qn_cuda_view beta, qn_cuda_view gc, qn_cuda_view inverse,
                                           qn_cuda_view w, qn_cuda_view u, qn_stream stream);

/* qn_cuda_gdn_state_pass - the recurrence over chunks: v' = u - w S^T, then S <- e^gc_last S + sum over j of
 * (e^(gc_last - gc_j) v'_j) k_j^T.
 *
 *   k         [T, k_heads, head_k] D
 *   w         [T, v_heads, head_k] D
 *   u         [T, v_heads, head_v] D
 *   gc        [T, v_heads] f32
 *   initial   [S, v_heads, head_v, head_k] f32 or bf16, as for qn_cuda_gdn_chunk
 *   h         [C, v_heads, head_v, head_k] D: S at the start of each chunk. With cu_seqlens C is not checked
 *   v_new     [T, v_heads, head_v] D: v'
 *   final     as for qn_cuda_gdn_chunk
 *
 * S is rounded to D for w S^T; the expression in parentheses is rounded to D before its GEMM. */
QN_API qn_status qn_cuda_gdn_state_pass(qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_cuda_view k,
                                        qn_cuda_view w, qn_cuda_view u, qn_cuda_view gc, qn_cuda_view initial,
                                        qn_cuda_view h, qn_cuda_view v_new, qn_cuda_view final, qn_stream stream);

/* qn_cuda_gdn_chunk_output - o_i = scale (e^gc_i (q_i S^T) + sum of (e^(gc_i - gc_j) (q_i . k_j)) v'_j over all j <= i
 * of the chunk).
 *
 *   q       [T, k_heads, head_k] D
 *   k       [T, k_heads, head_k] D
 *   v_new   [T, v_heads, head_v] D
 *   h       [C, v_heads, head_v, head_k] D
 *   gc      [T, v_heads] f32
 *   o       [T, v_heads, head_v] D
 *
 * The factor e^(gc_i - gc_j) (q_i . k_j) of v'_j is rounded to D before it is multiplied by v'_j. */
QN_API qn_status qn_cuda_gdn_chunk_output(qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_cuda_view q,
                                          qn_cuda_view k, qn_cuda_view v_new, qn_cuda_view h, qn_cuda_view gc,
                                          qn_cuda_view o, qn_stream stream);

/* qn_cuda_gdn_stages_prepare - Loads the code of all stages for a shape and D in the current context. On GPUs with 99
 * KiB of shared memory per block, keys of more than 128 elements are not supported by qn_cuda_gdn_chunk_output, and
 * keys of more than 192 elements not by qn_cuda_gdn_state_pass. */
QN_API qn_status qn_cuda_gdn_stages_prepare(qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_dtype dtype);

/* ---- AURA ----
 *
 * The AURA operations of quern/kernels.h, which describes codes, scales, masks and sinks. D is f32, f16 or bf16, and
 * each argument may have a different type; only arrays marked with D may have a distance of rows. u32 arrays may also
 * be of type QN_DTYPE_I32. Empty inputs are allowed; nothing is queued for an empty output. At most 2^31 - 1 rows,
 * queries and keys, and 65535 query heads.
 *
 * Keys, values, queries and weights are multiplied as fp16, each scaled by a power of two: scores and results are
 * within 2e-3 of those of the CPU (norm of the difference over norm of the result). The order of summation depends only
 * on sizes and device.
 *
 * Code for dims of 128 and 256 with 4 bits is built in; other code is compiled on first use (docs/gpu.md). */

/* A codec and its tables in device memory. Functions read the codec during the call, kernels read the tables. */
typedef struct qn_cuda_aura_codec {
    const qn_aura_codec *codec;
    qn_cuda_view tables; /* [qn_cuda_aura_table_size] f32: a copy of what qn_cuda_aura_tables writes */
} qn_cuda_aura_codec;

/* qn_cuda_aura_table_size - Returns the number of f32 elements of the tables of a codec; 0 for NULL. */
QN_API size_t qn_cuda_aura_table_size(const qn_aura_codec *codec);

/* qn_cuda_aura_tables - Writes codebook, boundaries and rotation of a codec to host memory. The caller copies them to
 * device memory once.
 *
 *   tables   [qn_cuda_aura_table_size] f32, in host memory */
QN_API qn_status qn_cuda_aura_tables(const qn_aura_codec *codec, qn_view tables);

/* qn_cuda_aura_encode - qn_aura_encode on the GPU.
 *
 *   rows     [n_rows, dim] D; its stride is the distance of two rows
 *   codes    [n_rows, qn_aura_words] u32
 *   scales   [n_rows] f32
 *
 * A row with a NaN or an infinity, or whose norm overflows float32, gets the codes of zeros and a scale of NaN. A code
 * may differ by 1 from the CPU's where the rotated value is within rounding of a boundary. */
QN_API qn_status qn_cuda_aura_encode(qn_cuda_kernels *kernels, const qn_cuda_aura_codec *codec, qn_cuda_view rows,
                                     size_t n_rows, qn_cuda_view codes, qn_cuda_view scales, qn_stream stream);

/* qn_cuda_aura_decode - qn_aura_decode on the GPU. Arrays as for qn_cuda_aura_encode. */
QN_API qn_status qn_cuda_aura_decode(qn_cuda_kernels *kernels, const qn_cuda_aura_codec *codec, qn_cuda_view codes,
                                     qn_cuda_view scales, size_t n_rows, bool rotate_back, qn_cuda_view rows,
                                     qn_stream stream);

/* A KV cache of AURA codes, as qn_aura_cache. A captured call keeps its n_keys. With a causal mask n_keys may be the
 * capacity, if the scales of positions that have not been stored are finite (zeros).
 *
 *   key_codes, value_codes     [n_kv_heads, capacity, qn_aura_words] u32; not read with a page table
 *   key_scales, value_scales   [n_kv_heads, capacity] f32; not read with a page table
 *   tables                     [1] i64: the device address of a page table; an all-zero view: none, the cache is
 *                              contiguous
 *   page_key_codes, ...        with a page table: byte offsets in a page, multiples of 16, of codes [n_kv_heads, 64,
 *                              qn_aura_words] u32 and of scales [n_kv_heads, 64] f32
 *
 * Page tables are as in qn_cuda_kv_cache; capacity is then a multiple of 64, and all pages below n_keys must exist. */
typedef struct qn_cuda_aura_cache {
    qn_cuda_aura_codec key_codec, value_codec;
    qn_cuda_view key_codes, value_codes;
    qn_cuda_view key_scales, value_scales;
    size_t n_kv_heads, capacity, n_keys;
    qn_cuda_view tables;
    size_t page_key_codes, page_value_codes, page_key_scales, page_value_scales;
} qn_cuda_aura_cache;

/* qn_cuda_aura_store - qn_aura_store on the GPU, in one kernel.
 *
 *   keys        [n_tokens, n_kv_heads, dim] D
 *   values      [n_tokens, n_kv_heads, dim] D
 *   positions   [n_tokens] u32, each at most once
 *
 * Only the device reads positions: a token whose position is not below the capacity (-1 as i32, too) is not stored.
 * Rows that the CPU rejects are stored as by qn_cuda_aura_encode. */
QN_API qn_status qn_cuda_aura_store(qn_cuda_kernels *kernels, const qn_cuda_aura_cache *cache, qn_cuda_view keys,
                                    qn_cuda_view values, qn_cuda_view positions, size_t n_tokens, qn_stream stream);

/* Queries and their mask, as qn_aura_queries. */
typedef struct qn_cuda_aura_queries {
    qn_cuda_view queries; /* [n_tokens, n_heads, dim] D */
    size_t n_tokens, n_heads;
    float scale;
    bool causal;
    size_t window;
    qn_cuda_view positions; /* [n_tokens] u32; read if causal or window is set */
    qn_cuda_view sinks;     /* [n_heads] f32; an all-zero view: none */
} qn_cuda_aura_queries;

/* qn_cuda_aura_queries_workspace - Returns the bytes of the workspace of qn_cuda_aura_score, qn_cuda_aura_flash_pass1
 * and qn_cuda_aura_attention: 0 if the rotation of the keys is a Walsh-Hadamard transform, that is, for codecs of
 * qn_aura_codec_create with a power of two as dim. */
QN_API qn_status qn_cuda_aura_queries_workspace(const qn_cuda_kernels *kernels, const qn_cuda_aura_cache *cache,
                                                size_t n_tokens, size_t n_heads, size_t *bytes);

/* qn_cuda_aura_score - qn_aura_score on the GPU.
 *
 *   scores      [n_tokens, n_heads, n_keys] f32
 *   workspace   [bytes] of device memory, at a multiple of 16; any content */
QN_API qn_status qn_cuda_aura_score(qn_cuda_kernels *kernels, const qn_cuda_aura_cache *cache,
                                    const qn_cuda_aura_queries *queries, qn_cuda_view scores, void *workspace,
                                    size_t bytes, qn_stream stream);

/* qn_cuda_aura_value_workspace - Returns the bytes of the workspace of qn_cuda_aura_value. */
QN_API qn_status qn_cuda_aura_value_workspace(const qn_cuda_kernels *kernels, const qn_cuda_aura_cache *cache,
                                              size_t n_tokens, size_t n_heads, size_t *bytes);

/* qn_cuda_aura_value - qn_aura_value on the GPU.
 *
 *   weights     [n_tokens, n_heads, n_keys] f32
 *   skip        >= 0: weights less than this count as 0
 *   out         [n_tokens, n_heads, dim] D
 *   workspace   as for qn_cuda_aura_score */
QN_API qn_status qn_cuda_aura_value(qn_cuda_kernels *kernels, const qn_cuda_aura_cache *cache, qn_cuda_view weights,
                                    size_t n_tokens, size_t n_heads, float skip, qn_cuda_view out, void *workspace,
                                    size_t bytes, qn_stream stream);

/* qn_cuda_aura_flash_block - Returns the number of keys per block for which the thread blocks of
 * qn_cuda_aura_flash_pass1 fill the device exactly once. */
QN_API qn_status qn_cuda_aura_flash_block(const qn_cuda_kernels *kernels, const qn_cuda_aura_cache *cache,
                                          size_t n_tokens, size_t n_heads, size_t *block);

/* qn_cuda_aura_flash_pass1 - qn_aura_flash_pass1 on the GPU.
 *
 *   block       keys per block, at least 1; n_blocks is ceil(n_keys / block)
 *   partials    [n_tokens, n_heads, n_blocks, dim] f32
 *   m           [n_tokens, n_heads, n_blocks] f32
 *   l           [n_tokens, n_heads, n_blocks] f32
 *   workspace   as for qn_cuda_aura_score */
QN_API qn_status qn_cuda_aura_flash_pass1(qn_cuda_kernels *kernels, const qn_cuda_aura_cache *cache,
                                          const qn_cuda_aura_queries *queries, size_t block, qn_cuda_view partials,
                                          qn_cuda_view m, qn_cuda_view l, void *workspace, size_t bytes,
                                          qn_stream stream);

/* qn_cuda_aura_flash_pass2 - qn_aura_flash_pass2 on the GPU.
 *
 *   partials, m, l   as for qn_cuda_aura_flash_pass1
 *   sinks            [n_heads] f32; an all-zero view: none
 *   out              [n_tokens, n_heads, dim] D */
QN_API qn_status qn_cuda_aura_flash_pass2(qn_cuda_kernels *kernels, const qn_cuda_aura_codec *value_codec,
                                          size_t n_tokens, size_t n_heads, size_t n_blocks, qn_cuda_view partials,
                                          qn_cuda_view m, qn_cuda_view l, qn_cuda_view sinks, qn_cuda_view out,
                                          qn_stream stream);

/* qn_cuda_aura_attention - qn_aura_attention on the GPU, without partial results in memory. A thread block processes
 * all keys of 8 queries of a key-value head: for few queries and many keys, the two passes are faster.
 *
 *   out         [n_tokens, n_heads, dim] D
 *   workspace   as for qn_cuda_aura_score */
QN_API qn_status qn_cuda_aura_attention(qn_cuda_kernels *kernels, const qn_cuda_aura_cache *cache,
                                        const qn_cuda_aura_queries *queries, qn_cuda_view out, void *workspace,
                                        size_t bytes, qn_stream stream);

/* qn_cuda_aura_prepare - Loads the code of all functions of this section for two codecs in the current context. */
QN_API qn_status qn_cuda_aura_prepare(qn_cuda_kernels *kernels, const qn_aura_codec *key_codec,
                                      const qn_aura_codec *value_codec);

/* ---- Attention over an fp16 KV cache ----
 *
 * D is f32, f16 or bf16, the same for all arguments of a call that are marked with it; only these may have a distance
 * of rows. u32 arrays may also be of type QN_DTYPE_I32. At most 65535 tokens and 65535 query heads; n_tokens may be
 * 0. */

/* The f16 KV cache of one layer, of one or several sequences. Keys are in the layout of values, unlike those of
 * qn_kv_cache.
 *
 *   keys          [n_sequences, n_kv_heads, capacity, head_dim] f16; not read with page tables
 *   values        [n_sequences, n_kv_heads, capacity, head_dim] f16; not read with page tables
 *   n_sequences   at least 1
 *   n_kv_heads    at least 1
 *   capacity      positions of a sequence, at most 2^31 - 64: a multiple of 16, or of 64 with page tables
 *   head_dim      16 to 128 by 16, 160, 192, 224, 256 or 512
 *   tables        [n_sequences] i64: the device address of each sequence's page table; an all-zero view: none, the
 *                 cache is contiguous
 *   page_keys     with page tables: byte offset of keys [n_kv_heads, 64, head_dim] f16 in a page, a multiple of 16
 *   page_values   with page tables: byte offset of values in a page, of the same shape and alignment
 *
 * A page table is i64 [capacity / 64] in device memory: the device address of each page, a multiple of 16. A page holds
 * 64 positions of all heads; position p is in page p / 64. Sequences may share pages. Only the device reads tables.
 * Entries of pages without a stored or attended position may have any value. */
typedef struct qn_cuda_kv_cache {
    qn_cuda_view keys, values;
    size_t n_sequences, n_kv_heads, capacity, head_dim;
    qn_cuda_view tables;
    size_t page_keys, page_values;
} qn_cuda_kv_cache;

/* Positions and sequences of tokens in a cache. Only the device reads them. */
typedef struct qn_cuda_kv_tokens {
    size_t n_tokens;
    qn_cuda_view positions; /* [n_tokens] u32 */
    qn_cuda_view sequences; /* [n_tokens] u32, less than n_sequences; an all-zero view: sequence 0 for all */
    /* All tokens belong to one sequence, at consecutive positions below the capacity, as in a prefill step. With 64 or
     * more such tokens qn_cuda_attention distributes queries over the device, otherwise keys. */
    bool consecutive;
} qn_cuda_kv_tokens;

/* qn_cuda_kv_store - qn_kv_store on the GPU.
 *
 *   keys     [n_tokens, n_kv_heads, head_dim] D
 *   values   [n_tokens, n_kv_heads, head_dim] D
 *
 * Values beyond the range of f16 are stored as +-65504. For a NaN in a value, the whole key is stored as NaN and the
 * NaN as 0. A token whose position is not below the capacity (-1 as i32, too) is not stored. */
QN_API qn_status qn_cuda_kv_store(qn_cuda_kernels *kernels, const qn_cuda_kv_cache *cache,
                                  const qn_cuda_kv_tokens *tokens, qn_cuda_view keys, qn_cuda_view values,
                                  qn_stream stream);

/* qn_cuda_attention_workspace - Returns the bytes of the workspace of qn_cuda_attention; 0 is possible. The contents of
 * tokens' views do not matter. */
QN_API qn_status qn_cuda_attention_workspace(const qn_cuda_kernels *kernels, const qn_cuda_kv_cache *cache,
                                             const qn_cuda_kv_tokens *tokens, size_t n_heads, size_t *bytes);

/* qn_cuda_attention - qn_attention on the GPU: a query attends to its sequence's positions from 0 to its own.
 *
 *   queries     [n_tokens, n_heads, head_dim] D
 *   n_heads     a multiple of n_kv_heads
 *   scale       of the scores; finite
 *   out         [n_tokens, n_heads, head_dim] D, must not overlap queries
 *   workspace   [bytes] of device memory, at a multiple of 16; any content
 *
 * Queries and weights are multiplied as fp16, scaled by powers of two: results are within 2e-3 of the CPU's (norm of
 * the difference over norm of the result). A query whose position is not below the capacity attends to the whole
 * capacity. */
QN_API qn_status qn_cuda_attention(qn_cuda_kernels *kernels, const qn_cuda_kv_cache *cache,
                                   const qn_cuda_kv_tokens *tokens, qn_cuda_view queries, size_t n_heads, float scale,
                                   qn_cuda_view out, void *workspace, size_t bytes, qn_stream stream);

/* ---- Rope ----
 *
 * D, distances and u32 as in the section before. */

/* qn_cuda_rope_angles - Computes cosines and sines of position * frequency, in double, for the functions below.
 *
 *   positions     [n_tokens] u32
 *   frequencies   [n_rot/2] f64, radians per position: base^(-2i/n_rot) as in qn_rope, or scaled frequencies
 *   n_tokens      at most 65535
 *   n_rot         even, 2 to 65536
 *   attn_factor   multiplies cosines and sines, usually 1; finite
 *   cosines       [n_tokens, n_rot/2] f32
 *   sines         [n_tokens, n_rot/2] f32 */
QN_API qn_status qn_cuda_rope_angles(qn_cuda_kernels *kernels, qn_cuda_view positions, qn_cuda_view frequencies,
                                     size_t n_tokens, size_t n_rot, double attn_factor, qn_cuda_view cosines,
                                     qn_cuda_view sines, qn_stream stream);

/* The angles of a call and the elements of a head that they rotate. */
typedef struct qn_cuda_rope_shape {
    size_t n_heads, head_dim; /* head_dim as in qn_cuda_kv_cache */
    size_t n_rot;             /* even, 2 to head_dim */
    qn_rope_pairing pairing;
    qn_cuda_view cosines, sines; /* [n_tokens, n_rot/2] f32 */
} qn_cuda_rope_shape;

/* qn_cuda_rope - qn_rope on the GPU, in place.
 *
 *   x   [n_tokens, n_heads, head_dim] f32, f16 or bf16, read and written. Arithmetic is float32 */
QN_API qn_status qn_cuda_rope(qn_cuda_kernels *kernels, const qn_cuda_rope_shape *shape, qn_cuda_view x,
                              size_t n_tokens, qn_stream stream);

/* Biases and norms of heads, f32; an all-zero view: none. */
typedef struct qn_cuda_qk_norm {
    qn_cuda_view query_bias;           /* [n_heads, head_dim] */
    qn_cuda_view key_bias, value_bias; /* [n_kv_heads, head_dim] */
    qn_cuda_view query_weight;         /* [head_dim]: x * weight / sqrt(mean(x^2) + eps) of each head, after the bias */
    qn_cuda_view key_weight;           /* [head_dim] */
    float eps;                         /* finite, > 0; read if there is a weight */
} qn_cuda_qk_norm;

/* qn_cuda_qk_norm_rope_store - biases, norms, rope and qn_cuda_kv_store of a layer's queries, keys and values, in one
 * kernel.
 *
 *   shape     n_heads is that of the queries
 *   norm      may be NULL: none
 *   queries   [n_tokens, n_heads, head_dim] D
 *   keys      [n_tokens, n_kv_heads, head_dim] D
 *   values    [n_tokens, n_kv_heads, head_dim] D
 *   out       [n_tokens, n_heads, head_dim] D: the queries; may be queries with the same stride
 *
 * Arithmetic is float32; keys and values are rounded to f16 only, as by qn_cuda_kv_store. */
QN_API qn_status qn_cuda_qk_norm_rope_store(qn_cuda_kernels *kernels, const qn_cuda_kv_cache *cache,
                                            const qn_cuda_kv_tokens *tokens, const qn_cuda_rope_shape *shape,
                                            const qn_cuda_qk_norm *norm, qn_cuda_view queries, qn_cuda_view keys,
                                            qn_cuda_view values, qn_cuda_view out, qn_stream stream);

/* qn_cuda_kv_prepare - Loads the code of all functions of this section and the one before for a head size in the
 * current context. */
QN_API qn_status qn_cuda_kv_prepare(qn_cuda_kernels *kernels, size_t head_dim);

/* ---- Matmul ----
 *
 * Weights are packed once, on the device, from the layout of GGUF files to a layout that only quern reads. Packed
 * weights are up to a few percent larger; f32, bf16, Q5_0, Q5_1 and the k-quants become fp16. Matrices of one type that
 * share activations (q, k and v; gate and up) are packed and multiplied together.
 *
 * In this section and those below, D is f32, f16 or bf16, and addresses and distances of arrays marked with D need only
 * be multiples of their element; multiples of 16 bytes are faster. Arithmetic is float32, and results are rounded to D
 * when they are stored. Counts of tokens and rows may be 0. */
enum { QN_CUDA_MATMUL_MATRICES = 4 };

/* Matrices that share activations. */
typedef struct qn_cuda_matmul_weights {
    qn_dtype dtype;                         /* before packing: a type of qn_matmul */
    size_t n_cols;                          /* a multiple of the type's block size, at least 1 */
    size_t n_matrices;                      /* 1 to QN_CUDA_MATMUL_MATRICES */
    size_t n_rows[QN_CUDA_MATMUL_MATRICES]; /* at least 1 each */
    void *packed;                           /* device memory at a multiple of 128 */
    size_t bytes;                           /* of `packed` that may be accessed */
} qn_cuda_matmul_weights;

/* The activations: x, or the result of one of two fused operations on x. */
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
} qn_cuda_matmul_acts;

typedef struct qn_cuda_matmul_out {
    qn_cuda_view y;  /* [n_tokens, n_rows] D, one type for all matrices; must not overlap x and up */
    bool accumulate; /* true: add the result to y; false: replace y */
} qn_cuda_matmul_out;

/* qn_cuda_matmul_packed_bytes - Returns the bytes of packed weights; weights->packed and weights->bytes are not
 * read. */
QN_API qn_status qn_cuda_matmul_packed_bytes(const qn_cuda_matmul_weights *weights, size_t *bytes);

/* qn_cuda_matmul_pack - Packs one matrix. All must be packed before the first qn_cuda_matmul.
 *
 *   weights   the packed matrix is written to weights->packed
 *   matrix    index of the matrix, below n_matrices
 *   rows      [n_rows[matrix], n_cols] of the type of the weights, without gaps between rows, as in a GGUF file; at
 *             most 1048560 rows
 *
 * Values beyond fp16 that become fp16 are saturated to 65504. */
QN_API qn_status qn_cuda_matmul_pack(qn_cuda_kernels *kernels, const qn_cuda_matmul_weights *weights, size_t matrix,
                                     qn_cuda_view rows, qn_stream stream);

/* qn_cuda_matmul_workspace - Returns the bytes of the workspace of qn_cuda_matmul; 0 is possible. It grows with
 * n_tokens, up to 32768 tokens. Of acts, only n_tokens is read. */
QN_API qn_status qn_cuda_matmul_workspace(const qn_cuda_kernels *kernels, const qn_cuda_matmul_weights *weights,
                                          const qn_cuda_matmul_acts *acts, size_t *bytes);

/* qn_cuda_matmul - outs[i].y = acts * matrix_i^T for all matrices, on tensor cores.
 *
 *   outs        [n_matrices]
 *   workspace   [bytes] of device memory, at a multiple of 16; any content
 *
 * Activations are converted once for all matrices. With weights of 1 or 2 bits (Q1_0, Q2_0, PQ2_0, PTQ1_0, TQ1_0,
 * TQ2_0) and up to 64 tokens, to 16-bit integers with a scale of amax / 32639 for each token, or for each 128 columns
 * if there is only one token. Otherwise to fp16, each token scaled by a power of two. Results that depend on an
 * infinity or a NaN are NaN; other tokens are not affected. Sums are float32. More than 32768 tokens are computed in
 * several passes. With weights of 1 or 2 bits, a single token needs shared memory for all of its columns: about 90000
 * columns fit in 227 KiB per block, and more are QN_ERR_UNSUPPORTED. */
QN_API qn_status qn_cuda_matmul(qn_cuda_kernels *kernels, const qn_cuda_matmul_weights *weights,
                                const qn_cuda_matmul_acts *acts, const qn_cuda_matmul_out *outs, void *workspace,
                                size_t bytes, qn_stream stream);

/* qn_cuda_matmul_prepare - Loads the code of qn_cuda_matmul_pack for these weights, and of qn_cuda_matmul for these
 * activations too, in the current context. Of acts, only op, n_tokens and the type of x are read. */
QN_API qn_status qn_cuda_matmul_prepare(qn_cuda_kernels *kernels, const qn_cuda_matmul_weights *weights,
                                        const qn_cuda_matmul_acts *acts);

/* ---- Rows ----
 *
 * Rows have at most 2^31 - 1 elements, and at most 2^31 - 1 rows are allowed. All arrays of a call that are marked with
 * D have the same type. */

/* qn_cuda_rms_norm - qn_rms_norm on the GPU.
 *
 *   x        [n_rows, n] D
 *   weight   [n] f32
 *   eps      finite, > 0
 *   out      [n_rows, n] D; may be x */
QN_API qn_status qn_cuda_rms_norm(qn_cuda_kernels *kernels, qn_cuda_view x, qn_cuda_view weight, size_t n_rows,
                                  size_t n, float eps, qn_cuda_view out, qn_stream stream);

/* qn_cuda_l2_norm - qn_l2_norm on the GPU.
 *
 *   x     [n_rows, n] D
 *   eps   finite, > 0
 *   out   [n_rows, n] D; may be x */
QN_API qn_status qn_cuda_l2_norm(qn_cuda_kernels *kernels, qn_cuda_view x, size_t n_rows, size_t n, float eps,
                                 qn_cuda_view out, qn_stream stream);

/* qn_cuda_gated_rms_norm - qn_gated_rms_norm on the GPU.
 *
 *   x        [n_rows, n] D
 *   gate     [n_rows, n] D
 *   weight   [n] f32
 *   eps      finite, > 0
 *   out      [n_rows, n] D; may be x or gate */
QN_API qn_status qn_cuda_gated_rms_norm(qn_cuda_kernels *kernels, qn_cuda_view x, qn_cuda_view gate,
                                        qn_cuda_view weight, size_t n_rows, size_t n, float eps, qn_cuda_view out,
                                        qn_stream stream);

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
QN_API qn_status qn_cuda_argmax(qn_cuda_kernels *kernels, qn_cuda_view logits, size_t n_rows, size_t n,
                                qn_cuda_view index, qn_stream stream);

/* qn_cuda_rows_prepare - Loads the code of all functions of this section in the current context. */
QN_API qn_status qn_cuda_rows_prepare(qn_cuda_kernels *kernels);

/* ---- Convolution ---- */

/* Sizes and options, as in qn_conv_shape. States are a pool of S states, S >= N without state_indices; the stride of a
 * view of states is the distance of states in elements, at least (taps-1) * channels. cu_seqlens and state_indices are
 * as in qn_cuda_gdn_shape. At most 2^31 - 2 sequences and 2^30 tokens in all. */
typedef struct qn_cuda_conv_shape {
    size_t batch, tokens, channels; /* channels is 1 to 8388480 */
    size_t taps;                    /* 1 to 8; with a bias 1 to 7 */
    bool linear;                    /* y without SiLU */
    size_t n_sequences;             /* 0: no cu_seqlens */
    qn_cuda_view cu_seqlens;        /* [n_sequences + 1] */
    qn_cuda_view state_indices;     /* [N]; an all-zero view: sequence i has state i */
} qn_cuda_conv_shape;

/* qn_cuda_conv_scan - qn_conv_scan on the GPU, for prefill. Fastest if channels and all distances are multiples of 8
 * elements and addresses multiples of 16 bytes.
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

/* qn_cuda_conv_step - qn_conv_step on the GPU: one token of each of `batch` sequences, for decode. shape->tokens must
 * be 1 and shape->n_sequences 0.
 *
 *   x         [batch, channels] D
 *   weights   as for qn_cuda_conv_scan
 *   bias      as for qn_cuda_conv_scan
 *   state     [S, taps-1, channels] D, read and written
 *   y         [batch, channels] D; may be x */
QN_API qn_status qn_cuda_conv_step(qn_cuda_kernels *kernels, const qn_cuda_conv_shape *shape, qn_cuda_view x,
                                   qn_cuda_view weights, qn_cuda_view bias, qn_cuda_view state, qn_cuda_view y,
                                   qn_stream stream);

/* qn_cuda_conv_prepare - Loads the code of this section in the current context, for all shapes. */
QN_API qn_status qn_cuda_conv_prepare(qn_cuda_kernels *kernels);

/* ---- Hadamard transform ---- */

/* qn_cuda_hadamard - qn_hadamard on the GPU, with bit-identical results.
 *
 *   x       [n_rows, width] f32, read and written. With gaps between rows, their distance is a multiple of 4 elements,
 *           and there are at most 65535 rows
 *   signs   [width] f32, each 1 or -1 (not checked); an all-zero view: no signs
 *   block   a power of two from 1 to 65536 that divides width. Above 2048, at most 65535 blocks in all, or in a row if
 *           there are gaps between rows
 *   order   whether the signs are applied before or after the transform */
QN_API qn_status qn_cuda_hadamard(qn_cuda_kernels *kernels, qn_cuda_view x, qn_cuda_view signs, size_t n_rows,
                                  size_t width, size_t block, qn_hadamard_order order, qn_stream stream);

/* qn_cuda_hadamard_prepare - Loads the code of qn_cuda_hadamard in the current context. */
QN_API qn_status qn_cuda_hadamard_prepare(qn_cuda_kernels *kernels);

#ifdef __cplusplus
}
#endif
#endif
