/* quern: the kernels, one function an operation, over views of memory that the caller owns.
 *
 * A view carries a pointer, a data type and an element count. Arrays are row-major and need no more alignment than their type.
 * A view that is too small, of a type that the function does not take, or NULL with a count is QN_ERR_INVALID, with what was
 * found and what was expected in the text, and nothing is written. Counts are computed in size_t with overflow checked. Empty
 * inputs are allowed.
 *
 * Functions use the best instruction set of the machine (the environment variable QN_CPU caps it), run on the calling thread,
 * and are safe on distinct outputs from any number of threads. Results do not depend on how rows are split over calls. Those
 * that need working memory allocate it and may return QN_ERR_MEMORY.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUERN_KERNELS_H
#define QUERN_KERNELS_H

#include "quern/status.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Data types, with the numbers that GGUF files use where they have one. */
typedef enum qn_dtype {
    QN_DTYPE_F32 = 0,
    QN_DTYPE_F16 = 1,
    QN_DTYPE_Q4_0 = 2,
    QN_DTYPE_Q4_1 = 3,
    QN_DTYPE_Q5_0 = 6,
    QN_DTYPE_Q5_1 = 7,
    QN_DTYPE_Q8_0 = 8,
    QN_DTYPE_Q4_K = 12,
    QN_DTYPE_Q5_K = 13,
    QN_DTYPE_Q6_K = 14,
    QN_DTYPE_BF16 = 30,
    QN_DTYPE_TQ1_0 = 34,
    QN_DTYPE_TQ2_0 = 35,
    QN_DTYPE_Q1_0 = 41,
    QN_DTYPE_Q2_0 = 42,
    QN_DTYPE_PQ2_0 = 142,
    QN_DTYPE_PTQ1_0 = 143,
    QN_DTYPE_U32 = 1000
} qn_dtype;

typedef struct qn_view {
    void *data;
    qn_dtype dtype;
    size_t count; /* elements: weights for quantised types, whose count is a multiple of their block */
} qn_view;

/* qn_view_bytes - the bytes that `count` elements of a type take. QN_ERR_INVALID for an unknown type, a count that is no
 * multiple of its block, or one whose bytes overflow. */
QN_API qn_status qn_view_bytes(qn_dtype dtype, size_t count, size_t *bytes);

/* qn_decode - weights of any type to f32.
 *   in    [n] any type but u32, not changed
 *   out   [n] f32, n = in.count */
QN_API qn_status qn_decode(qn_view in, qn_view out);

/* qn_encode - f32 to a weight type that quern encodes (all but Q5_0, Q5_1 and the k-quants: QN_ERR_UNSUPPORTED).
 *   in    [n] f32, finite (else QN_ERR_INVALID, naming the element), n a multiple of the type's block
 *   out   [n] of the type to encode to */
QN_API qn_status qn_encode(qn_view in, qn_view out);

/* qn_matmul - out = acts * weights^T.
 *   weights  [n_rows, n_cols] any type but u32; n_cols a multiple of the type's block
 *   acts     [n_tokens, n_cols] f32
 *   out      [n_tokens, n_rows] f32, must not overlap acts
 * For quantised weights each run of 32 activations is rounded to int8 with one scale; F32, F16 and BF16 weights meet them as
 * they are. Sums keep one order of float32 accumulation, whatever n_tokens is. */
QN_API qn_status qn_matmul(qn_view weights, size_t n_rows, size_t n_cols, qn_view acts, size_t n_tokens, qn_view out);

/* qn_rms_norm - out = x * weight / sqrt(mean(x^2) + eps), row by row.
 *   x, out   [n_rows, n] f32; out may be x
 *   weight   [n] f32
 *   eps      finite, > 0
 * Zhang and Sennrich, Root Mean Square Layer Normalization (2019). */
QN_API qn_status qn_rms_norm(qn_view x, qn_view weight, size_t n_rows, size_t n, float eps, qn_view out);

/* qn_swiglu - out = gate / (1 + e^-gate) * up, element by element; all [n] f32; out may be either input.
 * Shazeer, GLU Variants Improve Transformer (2020). */
QN_API qn_status qn_swiglu(qn_view gate, qn_view up, qn_view out);

/* Which values of a head form a pair that rope turns: 2i and 2i+1, or i and i + n_rot/2 (NEOX). */
typedef enum qn_rope_pairing { QN_ROPE_INTERLEAVED, QN_ROPE_NEOX } qn_rope_pairing;

/* qn_rope - rotary position embedding in place.
 *   x          [n_tokens, n_heads, head_dim] f32
 *   positions  [n_tokens] u32
 *   n_rot      how many values of a head are turned: even, 2 to head_dim
 *   base       finite, > 0; pair i turns by position * base^(-2i/n_rot)
 * Su et al., RoFormer (2021). */
QN_API qn_status qn_rope(qn_view x, qn_view positions, size_t n_tokens, size_t n_heads, size_t head_dim, size_t n_rot,
                         double base, qn_rope_pairing pairing);

/* The f16 key-value cache of one layer, `capacity` positions, a multiple of 256:
 *   keys     [n_kv_heads, capacity/16, head_dim, 16] f16: sixteen positions side by side
 *   values   [n_kv_heads, capacity, head_dim] f16 */
typedef struct qn_kv_cache {
    qn_view keys, values;
    size_t n_kv_heads, capacity, head_dim; /* head_dim a multiple of 16, at most 1024 */
} qn_kv_cache;

/* qn_kv_store - keys and values of some tokens into the cache, rounded to halves.
 *   keys, values  [n_tokens, n_kv_heads, head_dim] f32
 *   positions     [n_tokens] u32, below the capacity */
QN_API qn_status qn_kv_store(const qn_kv_cache *cache, qn_view keys, qn_view values, qn_view positions, size_t n_tokens);

/* qn_attention - causal attention of queries over a cache.
 *   queries    [n_tokens, n_heads, head_dim] f32; n_heads a multiple of n_kv_heads, query head h reads key-value head
 *              h / (n_heads / n_kv_heads)
 *   positions  [n_tokens] u32: a query sees cache positions 0 to its own, all of which have been stored
 *   scale      of the scores, usually head_dim^-1/2
 *   out        [n_tokens, n_heads, head_dim] f32, must not overlap queries
 * Keys are taken in blocks of 256 at fixed positions and merged in order, so a query's result depends on nothing but its
 * position. Dao et al., FlashAttention (2022). */
QN_API qn_status qn_attention(const qn_kv_cache *cache, qn_view queries, qn_view positions, size_t n_tokens, size_t n_heads,
                              float scale, qn_view out);

/* qn_argmax - index of the largest of logits [n] f32, n >= 1, the lowest of equals. NaN is QN_ERR_INVALID. */
QN_API qn_status qn_argmax(qn_view logits, size_t *index);

#ifdef __cplusplus
}
#endif
#endif
