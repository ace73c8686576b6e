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

#include <stdbool.h>
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

/* qn_dequantize - weights of any type to f32.
 *   in    [n] any type but u32, not changed
 *   out   [n] f32, n = in.count */
QN_API qn_status qn_dequantize(qn_view in, qn_view out);

/* qn_quantize - f32 to a weight type that quern encodes (all but Q5_0, Q5_1 and the k-quants: QN_ERR_UNSUPPORTED).
 *   in    [n] f32, finite (else QN_ERR_INVALID, naming the element), n a multiple of the type's block
 *   out   [n] of the type to encode to */
QN_API qn_status qn_quantize(qn_view in, qn_view out);

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

/* ---- Rotated bases ---- */

/* Where the signs are: y = H (S x), what a matrix stored in a rotated basis reads, or y = S (H x), which undoes it. */
typedef enum qn_hadamard_order { QN_HADAMARD_SIGN_FIRST, QN_HADAMARD_SIGN_LAST } qn_hadamard_order;

/* qn_hadamard - signed Walsh-Hadamard transform of each row in place, in blocks side by side.
 *   x       [n_rows, width] f32
 *   signs   [width] f32, each exactly 1 or -1 (else QN_ERR_INVALID, naming the element), the same for all rows; or an
 *           all-zero view: none
 *   block   n, a power of two of 1 to 65536 that divides width
 *   order   whether the signs multiply before or after
 * H is the normalised Sylvester matrix, H[r][c] = (-1)^popcount(r & c) / sqrt(n), in log2(n) stages of float32 sums. */
QN_API qn_status qn_hadamard(qn_view x, qn_view signs, size_t n_rows, size_t width, size_t block, qn_hadamard_order order);

/* ---- Gated DeltaNet ----
 *
 * A value head keeps a state S [head_v, head_k]. A token with query q, key k, value v, log decay g and strength beta does
 *
 *     S <- e^g S;   v' = beta (v - S k);   S <- S + v' k^T;   o = scale * S q
 *
 * qn_gdn_step does just that; qn_gdn_chunk gives the same by matrix products over chunks of 64 tokens, and the stages from
 * qn_gdn_cumsum to qn_gdn_chunk_output are its parts, in the order in which they are called. Chunks begin at the first token
 * of each sequence, and the last may be short. Yang et al., Gated Delta Networks (2024). */
enum { QN_GDN_CHUNK_SIZE = 64 };

/* Which key head value head h reads: h * k_heads / v_heads, or h mod k_heads. */
typedef enum qn_gdn_mapping { QN_GDN_GROUPED, QN_GDN_TILED } qn_gdn_mapping;

/* The sizes that all functions of this section share, each at least 1; all are checked by each of them.
 *
 * With n_sequences = 0 there are `batch` sequences of `tokens` tokens. Otherwise batch is 1, and sequence i is the tokens from
 * cu_seqlens[i] up to cu_seqlens[i+1] of one row of `tokens`; cu_seqlens [n_sequences+1] u32 begins with 0, never falls and
 * never exceeds `tokens`. A sequence may be empty. Tokens past the last entry belong to none: they are neither read nor
 * written.
 *
 * Below, T stands for batch * tokens, N for the number of sequences, C for their chunks (qn_gdn_chunk_count), and D for one
 * type of f32, f16 and bf16, the same for all arguments of a call that are marked with it. */
typedef struct qn_gdn_shape {
    size_t batch, tokens;
    size_t k_heads, v_heads; /* v_heads a multiple of k_heads */
    size_t head_k, head_v;   /* multiples of 16, at most 256 */
    qn_gdn_mapping mapping;
    float scale;    /* of o, usually head_k^-1/2; finite. Read where there is an o */
    bool normalize; /* q and k through qn_l2_norm with eps 1e-6 first. Read by qn_gdn_chunk and qn_gdn_step */
    size_t n_sequences;
    qn_view cu_seqlens;
} qn_gdn_shape;

/* qn_gdn_chunk_count - the chunks of all sequences: C. */
QN_API qn_status qn_gdn_chunk_count(const qn_gdn_shape *shape, size_t *count);

/* qn_gdn_cumsum - running sum of log decays from the start of each chunk.
 *   g    [T, v_heads] f32, each finite and <= 0 (else QN_ERR_INVALID, naming the element)
 *   gc   [T, v_heads] f32, summed in double; may be g
 * The stages below take gc: it must be finite and <= 0, too, and where it rises within a chunk it counts as level there, so
 * that no exponent is ever above 0. */
QN_API qn_status qn_gdn_cumsum(const qn_gdn_shape *shape, qn_view g, qn_view gc);

/* qn_gdn_kkt - a[i, j] = beta_i (k_i . k_j) e^(gc_i - gc_j) for tokens j < i of a chunk, zeros elsewhere.
 *   k      [T, k_heads, head_k] D
 *   beta   [T, v_heads] f32
 *   gc     [T, v_heads] f32
 *   a      [T, v_heads, 64] f32: row i, and in it column j of its chunk */
QN_API qn_status qn_gdn_kkt(const qn_gdn_shape *shape, qn_view k, qn_view beta, qn_view gc, qn_view a);

/* qn_gdn_tril_inverse - (I + a)^-1 of each chunk, by forward substitution in float32.
 *   a         [T, v_heads, 64] f32; only what lies below the diagonal is read
 *   inverse   [T, v_heads, 64] f32, zeros above the diagonal; may be a */
QN_API qn_status qn_gdn_tril_inverse(const qn_gdn_shape *shape, qn_view a, qn_view inverse);

/* qn_gdn_recompute_w_u - w = inverse (beta e^gc k), u = inverse (beta v).
 *   k         [T, k_heads, head_k] D
 *   v         [T, v_heads, head_v] D
 *   beta      [T, v_heads] f32
 *   gc        [T, v_heads] f32
 *   inverse   [T, v_heads, 64] f32
 *   w         [T, v_heads, head_k] D
 *   u         [T, v_heads, head_v] D
 *
 * What is in brackets is rounded to D before the product, w and u after it. */
QN_API qn_status qn_gdn_recompute_w_u(const qn_gdn_shape *shape, qn_view k, qn_view v, qn_view beta, qn_view gc,
                                      qn_view inverse, qn_view w, qn_view u);

/* qn_gdn_state_pass - from chunk to chunk: v' = u - w S^T, then S <- e^gc_last S + sum over j of (e^(gc_last - gc_j) v'_j) k_j^T.
 *
 *   k         [T, k_heads, head_k] D
 *   w         [T, v_heads, head_k] D
 *   u         [T, v_heads, head_v] D
 *   gc        [T, v_heads] f32
 *   initial   [N, v_heads, head_v, head_k] f32, or an all-zero view: zeros
 *   h         [C, v_heads, head_v, head_k] D: S at the start of each chunk
 *   v_new     [T, v_heads, head_v] D: v'
 *   final     [N, v_heads, head_v, head_k] f32, or an all-zero view: not wanted; may be initial
 *
 * S stays in float32. v' in brackets is rounded to D once, there. */
QN_API qn_status qn_gdn_state_pass(const qn_gdn_shape *shape, qn_view k, qn_view w, qn_view u, qn_view gc, qn_view initial,
                                   qn_view h, qn_view v_new, qn_view final);

/* qn_gdn_chunk_output - o_i = scale (e^gc_i q_i S^T + sum over j <= i of (e^(gc_i - gc_j) q_i . k_j) v'_j).
 *   q       [T, k_heads, head_k] D
 *   k       [T, k_heads, head_k] D
 *   v_new   [T, v_heads, head_v] D
 *   h       [C, v_heads, head_v, head_k] D
 *   gc      [T, v_heads] f32
 *   o       [T, v_heads, head_v] D
 *
 * What is in brackets is rounded to D before the product, o after scale. */
QN_API qn_status qn_gdn_chunk_output(const qn_gdn_shape *shape, qn_view q, qn_view k, qn_view v_new, qn_view h, qn_view gc,
                                     qn_view o);

/* qn_gdn_chunk - all of the above in one call, for prompts.
 *   q         [T, k_heads, head_k] D
 *   k         [T, k_heads, head_k] D
 *   v         [T, v_heads, head_v] D
 *   g         [T, v_heads] f32, as for qn_gdn_cumsum
 *   beta      [T, v_heads] f32
 *   initial   as for qn_gdn_state_pass
 *   final     as for qn_gdn_state_pass
 *   o         [T, v_heads, head_v] D
 *
 * f32 is within 1e-5 of the recurrence in float64 (|difference| / |all of o|, and of the state, with q and k l2-normalised)
 * whatever the decays. f16 and bf16 round where the stages do; decays are summed and differenced in double. */
QN_API qn_status qn_gdn_chunk(const qn_gdn_shape *shape, qn_view q, qn_view k, qn_view v, qn_view g, qn_view beta,
                              qn_view initial, qn_view final, qn_view o);

/* qn_gdn_step - token by token, for decoding: any number of sequences with a token or a few each.
 *   q       [T, k_heads, head_k] D
 *   k       [T, k_heads, head_k] D
 *   v       [T, v_heads, head_v] D
 *   g       [T, v_heads] f32, as for qn_gdn_cumsum
 *   beta    [T, v_heads] f32
 *   state   [N, v_heads, head_v, head_k] f32, brought up to date
 *   o       [T, v_heads, head_v] D
 *
 * Only o is rounded to D. */
QN_API qn_status qn_gdn_step(const qn_gdn_shape *shape, qn_view q, qn_view k, qn_view v, qn_view g, qn_view beta, qn_view state,
                             qn_view o);

/* qn_l2_norm - out = x / sqrt(sum(x^2) + eps), row by row, in float32.
 *   x, out   [n_rows, n] D; out may be x
 *   eps      finite, > 0 */
QN_API qn_status qn_l2_norm(qn_view x, size_t n_rows, size_t n, float eps, qn_view out);

/* qn_gated_rms_norm - out = x * weight / sqrt(mean(x^2) + eps) * gate / (1 + e^-gate), row by row, in float32.
 *   x, gate, out   [n_rows, n] D; out may be x or gate
 *   weight         [n] f32
 *   eps            finite, > 0 */
QN_API qn_status qn_gated_rms_norm(qn_view x, qn_view gate, qn_view weight, size_t n_rows, size_t n, float eps, qn_view out);

/* The sizes of a causal convolution over time, a filter of its own for each channel; sequences as in qn_gdn_shape, but batch and
 * tokens may be 0. */
typedef struct qn_conv_shape {
    size_t batch, tokens, channels;
    size_t taps; /* 1 to 8; to 7 with a bias */
    size_t n_sequences;
    qn_view cu_seqlens;
} qn_conv_shape;

/* qn_conv_scan - y_t = silu(bias + sum over i of weights[:, i] x_(t - taps + 1 + i)), so that the last tap meets the current
 * token. A sequence without tokens leaves its initial state as its final one.
 *
 *   x         [T, channels] D
 *   weights   [channels, taps] f32
 *   bias      [channels] f32, or an all-zero view: none
 *   initial   [N, taps-1, channels] D: inputs before the first, oldest first; an all-zero view: zeros
 *   final     [N, taps-1, channels] D: the same for what follows; an all-zero view: not wanted; may be initial
 *   y         [T, channels] D */
QN_API qn_status qn_conv_scan(const qn_conv_shape *shape, qn_view x, qn_view weights, qn_view bias, qn_view initial,
                              qn_view final, qn_view y);

/* qn_conv_step - the same for one token of each of `batch` sequences, its state brought up to date.
 *
 *   x         [batch, channels] D
 *   weights   as for qn_conv_scan
 *   bias      as for qn_conv_scan
 *   state     [batch, taps-1, channels] D
 *   y         [batch, channels] D
 *
 * shape->tokens is 1 and shape->n_sequences 0. */
QN_API qn_status qn_conv_step(const qn_conv_shape *shape, qn_view x, qn_view weights, qn_view bias, qn_view state, qn_view y);

/* ---- AURA: keys and values in a few bits ----
 *
 * A row x [dim] is encoded as n = |x|, y = P x / n with P orthogonal, and for each dimension the number of boundaries below y_d
 * as its code. Codes form a little-endian stream of u32 words: code d is at bits [d*bits, (d+1)*bits) of its row, a row takes
 * ceil(dim*bits/32) words, and bits past its end are 0. Its scale is n / |codebook[codes]|, so that what is decoded has the
 * norm of x. A row with n <= 1e-8 is encoded as y = 0. Attention never decodes rows to their own basis: queries are rotated
 * instead, and results rotated back. Zandieh et al., TurboQuant (2025), MSE variant, with norm correction. */

/* How rows become codes: immutable, and usable from any number of threads. */
typedef struct qn_aura_codec qn_aura_codec;

/* qn_aura_codec_create - a codec with the Lloyd-Max codebook of one coordinate of a uniform unit vector.
 *   dim    64, 80, 96, 128, 192, 256 or 512
 *   bits   2, 3, 4, 6 or 8
 *   seed   of the rotation: a Walsh-Hadamard transform with random signs first where dim is a power of two, a random orthogonal
 *          matrix otherwise. Codes of different seeds are different
 * Takes some milliseconds. Free with qn_aura_codec_free. *codec is NULL on failure. */
QN_API qn_status qn_aura_codec_create(qn_aura_codec **codec, size_t dim, unsigned bits, uint64_t seed);

/* qn_aura_codec_create_with - a codec with everything given; copied.
 *   rotation     [dim, dim] f32, orthogonal (which is not checked), finite
 *   boundaries   [2^bits - 1] f32, finite, never falling
 *   codebook     [2^bits] f32, finite */
QN_API qn_status qn_aura_codec_create_with(qn_aura_codec **codec, size_t dim, unsigned bits, qn_view rotation,
                                           qn_view boundaries, qn_view codebook);

/* qn_aura_codec_free - NULL is allowed. */
QN_API void qn_aura_codec_free(qn_aura_codec *codec);

/* qn_aura_words - u32 words of a row: ceil(dim*bits/32); 0 for NULL. */
QN_API size_t qn_aura_words(const qn_aura_codec *codec);

/* qn_aura_codec_tables - what a decoder elsewhere needs; any view may be all-zero: not wanted.
 *   rotation     [dim, dim] f32, written
 *   boundaries   [2^bits - 1] f32, written
 *   codebook     [2^bits] f32, written */
QN_API qn_status qn_aura_codec_tables(const qn_aura_codec *codec, qn_view rotation, qn_view boundaries, qn_view codebook);

/* qn_aura_encode - rows to codes.
 *   rows     [n_rows, dim] D
 *   codes    [n_rows, words] u32
 *   scales   [n_rows] f32
 * A row with a NaN or an infinity, or whose norm float32 does not hold, is QN_ERR_INVALID, naming the row; rows before it are
 * written, it and those after it are not. */
QN_API qn_status qn_aura_encode(const qn_aura_codec *codec, qn_view rows, size_t n_rows, qn_view codes, qn_view scales);

/* qn_aura_decode - codes to rows: scale * codebook[codes], rotated back where `rotate_back` is set.
 *   codes    [n_rows, words] u32
 *   scales   [n_rows] f32
 *   rows     [n_rows, dim] D */
QN_API qn_status qn_aura_decode(const qn_aura_codec *codec, qn_view codes, qn_view scales, size_t n_rows, bool rotate_back,
                                qn_view rows);

/* A cache of one layer: `capacity` positions for each key-value head, of which the first n_keys hold something. Keys and values
 * may have different bits; both codecs have the same dim. */
typedef struct qn_aura_cache {
    const qn_aura_codec *key_codec, *value_codec;
    qn_view key_codes, value_codes;   /* [n_kv_heads, capacity, words of the codec] u32 */
    qn_view key_scales, value_scales; /* [n_kv_heads, capacity] f32 */
    size_t n_kv_heads, capacity, n_keys;
} qn_aura_cache;

/* qn_aura_store - keys and values of some tokens into the cache.
 *   keys, values   [n_tokens, n_kv_heads, dim] D
 *   positions      [n_tokens] u32, below the capacity
 * Rows that qn_aura_encode would refuse are refused here, naming token and head; tokens before that one are written. n_keys is
 * not read. */
QN_API qn_status qn_aura_store(const qn_aura_cache *cache, qn_view keys, qn_view values, qn_view positions, size_t n_tokens);

/* Queries, and what each sees. Query head h reads key-value head h / (n_heads / n_kv_heads). */
typedef struct qn_aura_queries {
    qn_view queries;          /* [n_tokens, n_heads, dim] D */
    size_t n_tokens, n_heads; /* n_heads a multiple of n_kv_heads */
    float scale;              /* of the scores, usually dim^-1/2; finite */
    bool causal;              /* a token at position i sees keys 0 to i, otherwise all n_keys */
    size_t window;            /* and of those keys t with t + window > i; 0: no window */
    qn_view positions;        /* [n_tokens] u32; read where causal is set or there is a window */
    qn_view sinks;            /* [n_heads] f32, the logit of one more key, with value 0; an all-zero view: none */
} qn_aura_queries;

/* Below, Q stands for n_tokens * n_heads, in that order. Arithmetic is float32; blocks are merged in rising order. */

/* qn_aura_score - scale * (q . k) of each query with each of n_keys keys, seen or not.
 *   scores   [Q, n_keys] f32 */
QN_API qn_status qn_aura_score(const qn_aura_cache *cache, const qn_aura_queries *queries, qn_view scores);

/* qn_aura_value - sums of values by weights, such as softmax leaves them.
 *   weights   [n_tokens, n_heads, n_keys] f32
 *   skip      values whose weight is below it are not read; >= 0. With 0 all are
 *   out       [n_tokens, n_heads, dim] D */
QN_API qn_status qn_aura_value(const qn_aura_cache *cache, qn_view weights, size_t n_tokens, size_t n_heads, float skip,
                               qn_view out);

/* qn_aura_flash_pass1 - attention within each block of `block` keys, beginning at multiples of it.
 *   partials   [Q, n_blocks, dim] f32, sums of e^(score - m) times values, not normalised and not rotated back
 *   m, l       [Q, n_blocks] f32, the largest score and the sum of e^(score - m)
 * n_blocks is ceil(n_keys / block). For a block of which a query sees nothing, l is 0 and partials and m are left as they
 * are. Sinks are not read. */
QN_API qn_status qn_aura_flash_pass1(const qn_aura_cache *cache, const qn_aura_queries *queries, size_t block, qn_view partials,
                                     qn_view m, qn_view l);

/* qn_aura_flash_pass2 - the blocks of a query merged, normalised and rotated back.
 *   value_codec      the one of the cache
 *   partials, m, l   as pass 1 leaves them; where l is 0, whatever else there is does not matter
 *   sinks            [n_heads] f32 or an all-zero view; query q is of head q mod n_heads
 *   out              [n_queries, dim] D; zeros for a query that sees nothing */
QN_API qn_status qn_aura_flash_pass2(const qn_aura_codec *value_codec, size_t n_queries, size_t n_heads, size_t n_blocks,
                                     qn_view partials, qn_view m, qn_view l, qn_view sinks, qn_view out);

/* qn_aura_attention - both passes in one, with nothing in between kept.
 *   out   [n_tokens, n_heads, dim] D */
QN_API qn_status qn_aura_attention(const qn_aura_cache *cache, const qn_aura_queries *queries, qn_view out);

#ifdef __cplusplus
}
#endif
#endif
