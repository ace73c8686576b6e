/* quern: the CPU kernels, one function per operation, over views of memory that the caller owns.
 *
 * A view is a pointer, a data type and an element count. Arrays are row-major; their alignment is that of their element
 * type. The comments give the shape and type of each argument. A view may have more elements than its shape.
 *
 * Errors: QN_ERR_INVALID for a view that has too few elements, a type that the function does not accept, or a NULL
 * pointer with a count above 0. The text gives the value found and the value expected, and nothing is written. Sizes
 * are computed in size_t and checked for overflow. Empty inputs are allowed. A function that needs workspace allocates
 * it, and may return QN_ERR_MEMORY.
 *
 * Threads: a function runs on the calling thread. Any number of threads may call with distinct outputs. Inputs are not
 * changed.
 *
 * A function uses the best instruction set of the CPU; the environment variable QN_CPU limits it. Results do not depend
 * on how rows are split over calls.
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

/* Data types. The values of GGUF's types are those of GGUF files. */
typedef enum qn_dtype {
    QN_DTYPE_F32 = 0,
    QN_DTYPE_F16 = 1,
    QN_DTYPE_Q4_0 = 2,
    QN_DTYPE_Q4_1 = 3,
    QN_DTYPE_Q5_0 = 6,
    QN_DTYPE_Q5_1 = 7,
    QN_DTYPE_Q8_0 = 8,
    QN_DTYPE_Q2_K = 10,
    QN_DTYPE_Q3_K = 11,
    QN_DTYPE_Q4_K = 12,
    QN_DTYPE_Q5_K = 13,
    QN_DTYPE_Q6_K = 14,
    QN_DTYPE_IQ4_NL = 20,
    QN_DTYPE_IQ4_XS = 23,
    QN_DTYPE_I32 = 26, /* used by quern/cuda.h only, like QN_DTYPE_I64 and QN_DTYPE_F64 */
    QN_DTYPE_I64 = 27,
    QN_DTYPE_F64 = 28,
    QN_DTYPE_BF16 = 30,
    QN_DTYPE_TQ1_0 = 34,
    QN_DTYPE_TQ2_0 = 35,
    QN_DTYPE_MXFP4 = 39,
    QN_DTYPE_NVFP4 = 40, /* without the scale of the tensor */
    QN_DTYPE_Q1_0 = 41,
    QN_DTYPE_Q2_0 = 42,
    QN_DTYPE_PQ2_0 = 142,
    QN_DTYPE_PTQ1_0 = 143,
    QN_DTYPE_U32 = 1000
} qn_dtype;

typedef struct qn_view {
    void *data;
    qn_dtype dtype;
    size_t count; /* elements; for quantised types weights, a multiple of the type's block size */
} qn_view;

/* qn_view_bytes - Computes the size of an array.
 *
 *   dtype   the element type
 *   count   elements, a multiple of the type's block size
 *   bytes   the size in bytes
 *
 * QN_ERR_INVALID for an unknown type, a count that is not a multiple of the block size, or a size that overflows. */
QN_API qn_status qn_view_bytes(qn_dtype dtype, size_t count, size_t *bytes);

/* qn_decode - Converts weights to f32.
 *
 *   in    [n] any type except u32; n is in.count
 *   out   [n] f32 */
QN_API qn_status qn_decode(qn_view in, qn_view out);

/* qn_encode - Converts f32 to a weight type.
 *
 *   in    [n] f32, finite, else QN_ERR_INVALID with the index of the element; n is in.count, a multiple of the block
 *         size
 *   out   [n] of the target type: any except u32, Q5_0, Q5_1 and the k-quants (QN_ERR_UNSUPPORTED) */
QN_API qn_status qn_encode(qn_view in, qn_view out);

/* qn_matmul - out = acts * weights^T.
 *
 *   weights   [n_rows, n_cols] any type except u32; n_cols is a multiple of the type's block size
 *   acts      [n_tokens, n_cols] f32
 *   out       [n_tokens, n_rows] f32, must not overlap acts
 *
 * With quantised weights the activations are quantised to int8, in groups of 32 with one scale each. With f32, f16 and
 * bf16 weights they stay f32. The order of f32 accumulation does not depend on n_tokens. */
QN_API qn_status qn_matmul(qn_view weights, size_t n_rows, size_t n_cols, qn_view acts, size_t n_tokens, qn_view out);

/* qn_rms_norm - out = x * weight / sqrt(mean(x^2) + eps), for each row.
 *
 *   x        [n_rows, n] f32
 *   weight   [n] f32
 *   eps      finite, > 0
 *   out      [n_rows, n] f32; may be x
 *
 * Method: Zhang and Sennrich, Root Mean Square Layer Normalization (2019). */
QN_API qn_status qn_rms_norm(qn_view x, qn_view weight, size_t n_rows, size_t n, float eps, qn_view out);

/* qn_swiglu - out = gate / (1 + e^-gate) * up, elementwise.
 *
 *   gate   [n] f32; n is gate.count
 *   up     [n] f32
 *   out    [n] f32; may be gate or up
 *
 * Method: Shazeer, GLU Variants Improve Transformer (2020). */
QN_API qn_status qn_swiglu(qn_view gate, qn_view up, qn_view out);

/* The pairs of elements that rope rotates: 2i and 2i+1 (INTERLEAVED), or i and i + n_rot/2 (NEOX). */
typedef enum qn_rope_pairing { QN_ROPE_INTERLEAVED, QN_ROPE_NEOX } qn_rope_pairing;

/* qn_rope - rotary position embedding, in place.
 *
 *   x           [n_tokens, n_heads, head_dim] f32, read and written
 *   positions   [n_tokens] u32
 *   n_rot       elements of a head that are rotated, from the first: even, 2 to head_dim
 *   base        finite, > 0; pair i is rotated by position * base^(-2i/n_rot) radians
 *   pairing     the pairs
 *
 * Method: Su et al., RoFormer (2021). */
QN_API qn_status qn_rope(qn_view x, qn_view positions, size_t n_tokens, size_t n_heads, size_t head_dim, size_t n_rot,
                         double base, qn_rope_pairing pairing);

/* The f16 KV cache of one layer.
 *
 *   keys         [n_kv_heads, capacity/16, head_dim, 16] f16: 16 positions are interleaved, in the innermost dimension
 *   values       [n_kv_heads, capacity, head_dim] f16
 *   n_kv_heads   at least 1
 *   capacity     positions, a multiple of 256
 *   head_dim     a multiple of 16, at most 1024 */
typedef struct qn_kv_cache {
    qn_view keys, values;
    size_t n_kv_heads, capacity, head_dim;
} qn_kv_cache;

/* qn_kv_store - Stores keys and values in the cache, rounded to f16.
 *
 *   cache       its arrays are written at `positions`
 *   keys        [n_tokens, n_kv_heads, head_dim] f32
 *   values      [n_tokens, n_kv_heads, head_dim] f32
 *   positions   [n_tokens] u32, less than the capacity */
QN_API qn_status qn_kv_store(const qn_kv_cache *cache, qn_view keys, qn_view values, qn_view positions,
                             size_t n_tokens);

/* qn_attention - causal attention over a KV cache.
 *
 *   cache       positions 0 to the largest of `positions` must have been stored
 *   queries     [n_tokens, n_heads, head_dim] f32
 *   positions   [n_tokens] u32, less than the capacity: a query attends to cache positions 0 to its own
 *   n_heads     a multiple of n_kv_heads; query head h reads KV head h / (n_heads / n_kv_heads)
 *   scale       of the scores, usually head_dim^-1/2
 *   out         [n_tokens, n_heads, head_dim] f32, must not overlap queries
 *
 * Keys are processed in blocks of 256 at fixed positions, and the blocks are combined in order: the result of a query
 * does not depend on the other queries of the call. Method: Dao et al., FlashAttention (2022). */
QN_API qn_status qn_attention(const qn_kv_cache *cache, qn_view queries, qn_view positions, size_t n_tokens,
                              size_t n_heads, float scale, qn_view out);

/* qn_argmax - the index of the largest logit; of equal logits, the lowest index.
 *
 *   logits   [n] f32, n >= 1; n is logits.count. QN_ERR_INVALID for a NaN
 *   index    the result */
QN_API qn_status qn_argmax(qn_view logits, size_t *index);

/* ---- Hadamard transform ---- */

/* The order of signs S and transform H: y = H (S x), for the activations of a matrix stored in a rotated basis; or y =
 * S (H x), its inverse. */
typedef enum qn_hadamard_order { QN_HADAMARD_SIGN_FIRST, QN_HADAMARD_SIGN_LAST } qn_hadamard_order;

/* qn_hadamard - Walsh-Hadamard transform with signs of each row, in place. A row consists of width / block blocks that
 * are transformed independently.
 *
 *   x       [n_rows, width] f32, read and written
 *   signs   [width] f32, each 1 or -1, else QN_ERR_INVALID with the index of the element; the same for all rows. An
 *           all-zero view: no signs
 *   block   n, a power of two from 1 to 65536 that divides width
 *   order   whether the signs are applied before or after the transform
 *
 * H is the normalised Sylvester matrix, H[r][c] = (-1)^popcount(r & c) / sqrt(n), computed in log2(n) butterfly stages
 * in float32. */
QN_API qn_status qn_hadamard(qn_view x, qn_view signs, size_t n_rows, size_t width, size_t block,
                             qn_hadamard_order order);

/* ---- Gated DeltaNet ----
 *
 * Each value head has a state S [head_v, head_k]. A token has a query q, key k, value v, log decay g and beta, and
 * updates
 *
 *     S <- e^g S;   v' = beta (v - S k);   S <- S + v' k^T;   o = scale * S q
 *
 * qn_gdn_step computes this recurrence token by token, for decode. qn_gdn_chunk computes the same for prefill with
 * GEMMs over chunks of 64 tokens. Its stages are also available one by one: qn_gdn_cumsum, qn_gdn_kkt,
 * qn_gdn_tril_inverse, qn_gdn_recompute_w_u, qn_gdn_state_pass and qn_gdn_chunk_output, in this order. Chunks begin at
 * the first token of each sequence; the last chunk of a sequence may be shorter than 64.
 *
 * Method: Yang et al., Gated Delta Networks (2024). */
enum { QN_GDN_CHUNK_SIZE = 64 };

/* The key head of value head h: h * k_heads / v_heads (GROUPED), or h mod k_heads (TILED). */
typedef enum qn_gdn_mapping { QN_GDN_GROUPED, QN_GDN_TILED } qn_gdn_mapping;

/* Sizes and options of all functions of this section. Each function checks all of them; sizes are at least 1.
 *
 * With n_sequences = 0 there are `batch` sequences of `tokens` tokens each. Otherwise the sequences are concatenated:
 * batch is 1, and sequence i has the tokens cu_seqlens[i] to cu_seqlens[i+1] - 1. cu_seqlens begins with 0, does not
 * decrease and does not exceed `tokens`. A sequence may be empty. Tokens after the last entry belong to no sequence:
 * they are neither read nor written.
 *
 * In the shapes below
 *
 *   T   is batch * tokens
 *   N   is the number of sequences
 *   C   is the number of chunks of all sequences (qn_gdn_chunk_count)
 *   D   is f32, f16 or bf16, the same for all arguments of a call that are marked with it */
typedef struct qn_gdn_shape {
    size_t batch, tokens;
    size_t k_heads, v_heads; /* v_heads is a multiple of k_heads */
    size_t head_k, head_v;   /* elements of a key and a value head: multiples of 16, at most 256 */
    qn_gdn_mapping mapping;
    float scale;        /* of o, usually head_k^-1/2; finite. Read only by functions with an output o */
    bool normalize;     /* apply qn_l2_norm with eps 1e-6 to q and k first. Read by qn_gdn_chunk and qn_gdn_step */
    size_t n_sequences; /* 0: no cu_seqlens */
    qn_view cu_seqlens; /* [n_sequences+1] u32 */
} qn_gdn_shape;

/* qn_gdn_chunk_count - Returns C, the number of chunks of all sequences. */
QN_API qn_status qn_gdn_chunk_count(const qn_gdn_shape *shape, size_t *count);

/* qn_gdn_cumsum - cumulative sum of the log decays within each chunk.
 *
 *   g    [T, v_heads] f32, finite and <= 0, else QN_ERR_INVALID with the index of the element
 *   gc   [T, v_heads] f32, accumulated in double; may be g
 *
 * The following stages read gc. It must be finite and <= 0 there too. Where it increases within a chunk, its running
 * minimum is used, so that no exponent is above 0. */
QN_API qn_status qn_gdn_cumsum(const qn_gdn_shape *shape, qn_view g, qn_view gc);

/* qn_gdn_kkt - a[i, j] = beta_i (k_i . k_j) e^(gc_i - gc_j) for tokens j < i of a chunk, 0 for j >= i.
 *
 *   k      [T, k_heads, head_k] D
 *   beta   [T, v_heads] f32
 *   gc     [T, v_heads] f32
 *   a      [T, v_heads, 64] f32: row i of the chunk's matrix is at token i; the last dimension is j */
QN_API qn_status qn_gdn_kkt(const qn_gdn_shape *shape, qn_view k, qn_view beta, qn_view gc, qn_view a);

/* qn_gdn_tril_inverse - (I + a)^-1 of each chunk, by forward substitution in float32.
 *
 *   a         [T, v_heads, 64] f32; only elements below the diagonal are read
 *   inverse   [T, v_heads, 64] f32, 0 above the diagonal; may be a */
QN_API qn_status qn_gdn_tril_inverse(const qn_gdn_shape *shape, qn_view a, qn_view inverse);

/* qn_gdn_recompute_w_u - w = inverse (beta e^gc k), u = inverse (beta v).
 *
 *   k         [T, k_heads, head_k] D
 *   v         [T, v_heads, head_v] D
 *   beta      [T, v_heads] f32
 *   gc        [T, v_heads] f32
 *   inverse   [T, v_heads, 64] f32
 *   w         [T, v_heads, head_k] D
 *   u         [T, v_heads, head_v] D
 *
 * The expressions in parentheses are rounded to D before the GEMM, w and u after it. */
QN_API qn_status qn_gdn_recompute_w_u(const qn_gdn_shape *shape, qn_view k, qn_view v, qn_view beta, qn_view gc,
                                      qn_view inverse, qn_view w, qn_view u);

/* qn_gdn_state_pass - the recurrence over chunks: v' = u - w S^T, then
 * S <- e^gc_last S + sum over j of (e^(gc_last - gc_j) v'_j) k_j^T.
 *
 *   k         [T, k_heads, head_k] D
 *   w         [T, v_heads, head_k] D
 *   u         [T, v_heads, head_v] D
 *   gc        [T, v_heads] f32
 *   initial   [N, v_heads, head_v, head_k] f32: S before the first token; an all-zero view: zeros
 *   h         [C, v_heads, head_v, head_k] D: S at the start of each chunk
 *   v_new     [T, v_heads, head_v] D: v'
 *   final     [N, v_heads, head_v, head_k] f32: S after the last token; an all-zero view: not written; may be initial
 *
 * S is float32. The expression in parentheses is rounded to D; the v' in it has not been rounded before. */
QN_API qn_status qn_gdn_state_pass(const qn_gdn_shape *shape, qn_view k, qn_view w, qn_view u, qn_view gc,
                                   qn_view initial, qn_view h, qn_view v_new, qn_view final);

/* qn_gdn_chunk_output - o_i = scale ((e^gc_i q_i) S^T + sum of (e^(gc_i - gc_j) (q_i . k_j)) v'_j over all j <= i of
 * the chunk).
 *
 *   q       [T, k_heads, head_k] D
 *   k       [T, k_heads, head_k] D
 *   v_new   [T, v_heads, head_v] D
 *   h       [C, v_heads, head_v, head_k] D
 *   gc      [T, v_heads] f32
 *   o       [T, v_heads, head_v] D
 *
 * The factors e^gc_i q_i and e^(gc_i - gc_j) (q_i . k_j) are rounded to D before the GEMM, o after multiplication by
 * scale. */
QN_API qn_status qn_gdn_chunk_output(const qn_gdn_shape *shape, qn_view q, qn_view k, qn_view v_new, qn_view h,
                                     qn_view gc, qn_view o);

/* qn_gdn_chunk - all stages above in one call, for prefill.
 *
 *   q         [T, k_heads, head_k] D
 *   k         [T, k_heads, head_k] D
 *   v         [T, v_heads, head_v] D
 *   g         [T, v_heads] f32, as for qn_gdn_cumsum
 *   beta      [T, v_heads] f32
 *   initial   as for qn_gdn_state_pass
 *   final     as for qn_gdn_state_pass
 *   o         [T, v_heads, head_v] D
 *
 * With f32, the error against the recurrence in float64 is at most 1e-5 for all decays: the norm of the difference over
 * the norm of o, and the same for the state, with q and k l2-normalised. f16 and bf16 are rounded where the stages
 * round. Sums and differences of decays are computed in double. */
QN_API qn_status qn_gdn_chunk(const qn_gdn_shape *shape, qn_view q, qn_view k, qn_view v, qn_view g, qn_view beta,
                              qn_view initial, qn_view final, qn_view o);

/* qn_gdn_step - the recurrence token by token, for decode: any number of sequences, usually of one or few tokens.
 *
 *   q       [T, k_heads, head_k] D
 *   k       [T, k_heads, head_k] D
 *   v       [T, v_heads, head_v] D
 *   g       [T, v_heads] f32, as for qn_gdn_cumsum
 *   beta    [T, v_heads] f32
 *   state   [N, v_heads, head_v, head_k] f32, read and written
 *   o       [T, v_heads, head_v] D
 *
 * Arithmetic is float32; only o is rounded to D. */
QN_API qn_status qn_gdn_step(const qn_gdn_shape *shape, qn_view q, qn_view k, qn_view v, qn_view g, qn_view beta,
                             qn_view state, qn_view o);

/* qn_l2_norm - out = x / sqrt(sum(x^2) + eps), for each row, in float32.
 *
 *   x     [n_rows, n] D
 *   eps   finite, > 0
 *   out   [n_rows, n] D; may be x */
QN_API qn_status qn_l2_norm(qn_view x, size_t n_rows, size_t n, float eps, qn_view out);

/* qn_gated_rms_norm - out = x * weight / sqrt(mean(x^2) + eps) * gate / (1 + e^-gate), for each row, in float32.
 *
 *   x        [n_rows, n] D
 *   gate     [n_rows, n] D
 *   weight   [n] f32
 *   eps      finite, > 0
 *   out      [n_rows, n] D; may be x or gate */
QN_API qn_status qn_gated_rms_norm(qn_view x, qn_view gate, qn_view weight, size_t n_rows, size_t n, float eps,
                                   qn_view out);

/* The sizes of a causal depthwise convolution over time. Sequences are as in qn_gdn_shape, but batch and tokens may be
 * 0. */
typedef struct qn_conv_shape {
    size_t batch, tokens, channels; /* channels is at least 1 */
    size_t taps;                    /* 1 to 8; with a bias 1 to 7 */
    size_t n_sequences;             /* 0: no cu_seqlens */
    qn_view cu_seqlens;             /* [n_sequences+1] u32 */
} qn_conv_shape;

/* qn_conv_scan - y_t = silu(bias + sum over i of weights[:, i] x_(t - taps + 1 + i)): the last tap multiplies the
 * current token.
 *
 *   x         [T, channels] D
 *   weights   [channels, taps] f32
 *   bias      [channels] f32; an all-zero view: no bias
 *   initial   [N, taps-1, channels] D: the inputs before the first token, oldest first; an all-zero view: zeros
 *   final     [N, taps-1, channels] D: the last inputs, the initial state of the next tokens; an all-zero view: not
 *             written; may be initial
 *   y         [T, channels] D
 *
 * The final state of a sequence without tokens is its initial state. */
QN_API qn_status qn_conv_scan(const qn_conv_shape *shape, qn_view x, qn_view weights, qn_view bias, qn_view initial,
                              qn_view final, qn_view y);

/* qn_conv_step - qn_conv_scan for one token of each of `batch` sequences, with the state updated in place.
 *
 *   x         [batch, channels] D
 *   weights   as for qn_conv_scan
 *   bias      as for qn_conv_scan
 *   state     [batch, taps-1, channels] D, read and written
 *   y         [batch, channels] D
 *
 * shape->tokens must be 1 and shape->n_sequences 0. */
QN_API qn_status qn_conv_step(const qn_conv_shape *shape, qn_view x, qn_view weights, qn_view bias, qn_view state,
                              qn_view y);

/* ---- AURA: a KV cache of 2 to 8 bits per element ----
 *
 * Encoding of a row x [dim]: with n = |x| and an orthogonal matrix P, y = P x / n is in the rotated basis, and the code
 * of element d is the number of boundaries below y_d. The codes of a row are a little-endian bit stream of u32 words:
 * code d is at bits [d*bits, (d+1)*bits), a row has ceil(dim*bits/32) words, and unused bits are 0. The scale of the
 * row is n / |codebook[codes]|, so that the decoded row has the norm of x. A row with n <= 1e-8 is encoded as y = 0.
 *
 * Attention is computed in the rotated basis: Queries are rotated, and results are rotated back. Keys and values are
 * not rotated back.
 *
 * Method: Zandieh et al., TurboQuant (2025), MSE variant, with norm correction. */

/* A codec: dim, bits, rotation, boundaries and codebook. Immutable; any number of threads may use it. */
typedef struct qn_aura_codec qn_aura_codec;

/* qn_aura_codec_create - Creates a codec with the Lloyd-Max codebook for one coordinate of a uniformly random unit
 * vector.
 *
 *   codec   the codec, NULL on failure; free it with qn_aura_codec_free
 *   dim     elements of a row: 64, 80, 96, 128, 192, 256 or 512
 *   bits    2, 3, 4, 6 or 8
 *   seed    of the rotation: random signs and a Walsh-Hadamard transform if dim is a power of two, else a random
 *           orthogonal matrix. Codes of different seeds are not compatible
 *
 * Takes some milliseconds. */
QN_API qn_status qn_aura_codec_create(qn_aura_codec **codec, size_t dim, unsigned bits, uint64_t seed);

/* qn_aura_codec_create_with - Creates a codec from tables, which are copied.
 *
 *   codec        as for qn_aura_codec_create
 *   dim          as for qn_aura_codec_create
 *   bits         as for qn_aura_codec_create
 *   rotation     [dim, dim] f32, P: finite, orthogonal (not checked)
 *   boundaries   [2^bits - 1] f32, finite, ascending; equal ones are allowed
 *   codebook     [2^bits] f32, finite */
QN_API qn_status qn_aura_codec_create_with(qn_aura_codec **codec, size_t dim, unsigned bits, qn_view rotation,
                                           qn_view boundaries, qn_view codebook);

/* qn_aura_codec_free - Frees a codec. NULL is allowed. */
QN_API void qn_aura_codec_free(qn_aura_codec *codec);

/* qn_aura_words - Returns the number of u32 words in a row of codes, ceil(dim*bits/32); 0 for NULL. */
QN_API size_t qn_aura_words(const qn_aura_codec *codec);

/* qn_aura_codec_tables - Copies the tables of a codec, for a decoder outside of quern.
 *
 *   rotation     [dim, dim] f32, written; an all-zero view: not written
 *   boundaries   [2^bits - 1] f32, written; an all-zero view: not written
 *   codebook     [2^bits] f32, written; an all-zero view: not written */
QN_API qn_status qn_aura_codec_tables(const qn_aura_codec *codec, qn_view rotation, qn_view boundaries,
                                      qn_view codebook);

/* qn_aura_encode - Encodes rows.
 *
 *   rows     [n_rows, dim] D
 *   codes    [n_rows, qn_aura_words] u32
 *   scales   [n_rows] f32
 *
 * QN_ERR_INVALID, with the index of the row, for a row with a NaN or an infinity or whose norm overflows float32; the
 * rows before it are written. */
QN_API qn_status qn_aura_encode(const qn_aura_codec *codec, qn_view rows, size_t n_rows, qn_view codes, qn_view scales);

/* qn_aura_decode - Decodes rows: scale * codebook[codes].
 *
 *   codes         [n_rows, qn_aura_words] u32
 *   scales        [n_rows] f32
 *   rotate_back   true: return rows in their original basis; false: in the rotated basis
 *   rows          [n_rows, dim] D */
QN_API qn_status qn_aura_decode(const qn_aura_codec *codec, qn_view codes, qn_view scales, size_t n_rows,
                                bool rotate_back, qn_view rows);

/* A KV cache of AURA codes, for one layer.
 *
 *   key_codec      of the keys
 *   value_codec    of the values: the same dim as key_codec, any bits
 *   key_codes      [n_kv_heads, capacity, qn_aura_words of key_codec] u32
 *   value_codes    [n_kv_heads, capacity, qn_aura_words of value_codec] u32
 *   key_scales     [n_kv_heads, capacity] f32
 *   value_scales   [n_kv_heads, capacity] f32
 *   n_kv_heads     at least 1
 *   capacity       positions allocated
 *   n_keys         positions in use, from 0: at most the capacity */
typedef struct qn_aura_cache {
    const qn_aura_codec *key_codec, *value_codec;
    qn_view key_codes, value_codes;
    qn_view key_scales, value_scales;
    size_t n_kv_heads, capacity, n_keys;
} qn_aura_cache;

/* qn_aura_store - Encodes keys and values and stores them in the cache.
 *
 *   cache       its arrays are written at `positions`; n_keys is not read
 *   keys        [n_tokens, n_kv_heads, dim] f32, f16 or bf16
 *   values      [n_tokens, n_kv_heads, dim] f32, f16 or bf16
 *   positions   [n_tokens] u32, less than the capacity
 *
 * QN_ERR_INVALID, with token and head, for rows that qn_aura_encode rejects; the heads before it are written. */
QN_API qn_status qn_aura_store(const qn_aura_cache *cache, qn_view keys, qn_view values, qn_view positions,
                               size_t n_tokens);

/* Queries and their mask. Query head h reads KV head h / (n_heads / n_kv_heads). */
typedef struct qn_aura_queries {
    qn_view queries;          /* [n_tokens, n_heads, dim] D */
    size_t n_tokens, n_heads; /* n_heads is a multiple of n_kv_heads, at least 1 */
    float scale;              /* of the scores, usually dim^-1/2; finite */
    bool causal;              /* true: a token at position i attends to keys 0 to i; false: to all n_keys */
    size_t window;            /* sliding window: only keys t with t + window > i are attended to; 0: none */
    qn_view positions;        /* [n_tokens] u32; read if causal or window is set */
    qn_view sinks; /* [n_heads] f32, finite: attention sinks, scores of a key whose value is 0; an all-zero view:
                      none */
} qn_aura_queries;

/* In the shapes below, Q is n_tokens * n_heads, row-major in this order. Arithmetic is float32; blocks of keys are
 * combined in ascending order. */

/* qn_aura_score - the scores scale * (q . k) of each query with each of the n_keys keys. The mask is not applied.
 *
 *   scores   [Q, n_keys] f32 */
QN_API qn_status qn_aura_score(const qn_aura_cache *cache, const qn_aura_queries *queries, qn_view scores);

/* qn_aura_value - weighted sums of the values, in the original basis.
 *
 *   weights   [n_tokens, n_heads, n_keys] f32, usually the softmax of scores
 *   skip      >= 0: values with a weight less than this are skipped
 *   out       [n_tokens, n_heads, dim] D */
QN_API qn_status qn_aura_value(const qn_aura_cache *cache, qn_view weights, size_t n_tokens, size_t n_heads, float skip,
                               qn_view out);

/* qn_aura_flash_pass1 - split-KV attention, first pass: partial results for each block of keys.
 *
 *   block      keys per block, at least 1; n_blocks is ceil(n_keys / block)
 *   partials   [Q, n_blocks, dim] f32: the sum of e^(score - m) times value, not normalised, in the rotated basis
 *   m          [Q, n_blocks] f32: the largest score
 *   l          [Q, n_blocks] f32: the sum of e^(score - m)
 *
 * Where a query attends to no key of a block, l is 0, and partials and m are not written. Sinks are not read. */
QN_API qn_status qn_aura_flash_pass1(const qn_aura_cache *cache, const qn_aura_queries *queries, size_t block,
                                     qn_view partials, qn_view m, qn_view l);

/* qn_aura_flash_pass2 - split-KV attention, second pass: combine the blocks, normalise and rotate back.
 *
 *   value_codec   the value codec of the cache
 *   n_queries     a multiple of n_heads
 *   n_heads       query heads, at least 1; query q has head q mod n_heads
 *   n_blocks      as for pass 1
 *   partials      [n_queries, n_blocks, dim] f32, from pass 1; not read where l is 0
 *   m             [n_queries, n_blocks] f32, from pass 1; not read where l is 0
 *   l             [n_queries, n_blocks] f32, from pass 1
 *   sinks         [n_heads] f32, finite; an all-zero view: none
 *   out           [n_queries, dim] D; 0 for a query that attends to no key */
QN_API qn_status qn_aura_flash_pass2(const qn_aura_codec *value_codec, size_t n_queries, size_t n_heads,
                                     size_t n_blocks, qn_view partials, qn_view m, qn_view l, qn_view sinks,
                                     qn_view out);

/* qn_aura_attention - attention in one pass, without partial results in memory. Sinks are read.
 *
 *   out   [n_tokens, n_heads, dim] D; 0 for a query that attends to no key */
QN_API qn_status qn_aura_attention(const qn_aura_cache *cache, const qn_aura_queries *queries, qn_view out);

#ifdef __cplusplus
}
#endif
#endif
