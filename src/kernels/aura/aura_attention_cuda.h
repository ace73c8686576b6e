/* Attention over a cache of AURA codes on the GPU, as the operations of include/quern/kernels.h have it: scores, values, flash
 * decoding in two passes, and in one. What kernels take and compute; shared by C and CUDA. A session's own attention, fused and
 * with halves at the ends of its cache, is kernels/attention/'s.
 *
 * Below, Q stands for n_tokens * n_heads, in that order; rows of a type are float32, float16 or bfloat16 (a qn_dtype), and a
 * query head h reads key-value head h / (n_heads / n_kv_heads). Sums are float32 in an order that the launch fixes: the same
 * bits from run to run. Keys, values, queries and weights are multiplied as halves with powers of two of their own: results are
 * within 2e-3 of the reference (|difference| / |all of it|). */
#ifndef QN_KERNELS_AURA_AURA_ATTENTION_CUDA_H
#define QN_KERNELS_AURA_AURA_ATTENTION_CUDA_H

#include "kernels/attend_cuda.h"

/* Warps of a block, as many as registers allow. */
#define QN_AURA_SCORE_WARPS 16
#define QN_AURA_VALUE_WARPS(dim) ((dim) <= 128 ? 16 : (dim) <= 256 ? 12 : 8)
#define QN_AURA_FLASH_WARPS(dim) ((dim) <= 128 ? 12 : 8)

/* Dimensions of a column whose sums over the warps of a block are made at once, 16 times this, and the floats of shared memory
 * that a warp's take: with room to have them next to tables that are in use. */
#define QN_AURA_REDUCE_TILES(warps, far_tables)                                                                                \
    ((warps) <= ((far_tables) ? 12 : 8) ? ((far_tables) ? 8 : 4) : (far_tables) ? 4 : 2)
#define QN_AURA_REDUCE_STRIDE(warps, far_tables) (8 * (2 * QN_AURA_REDUCE_TILES(warps, far_tables) + 1) + 4)

/* The cache of one layer: qn_aura_cache. Sessions' strides are not read; heads begin at multiples of 16 bytes. */
typedef struct qn_aura_gpu_cache {
    qn_attention_gpu_cache rows;
    qn_attention_gpu_codec key_codec, value_codec; /* what an operation does not read may be left out */
    uint32_t n_kv_heads, n_keys;
} qn_aura_gpu_cache;

/* Queries, and what each sees: qn_aura_queries. Where the key codec has no signs, queries are rotated already: qn_aura_rotate.
 */
typedef struct qn_aura_gpu_queries {
    QN_GPU_PTR(const uint8_t) queries;    /* [n_tokens][n_heads][dim] of a type */
    QN_GPU_PTR(const uint32_t) positions; /* [n_tokens]; read where causal is set or there is a window */
    uint64_t window;
    uint32_t n_tokens, n_heads, dtype, causal;
    float scale;
} qn_aura_gpu_queries;

/* qn_aura_rotate - rows of a type [n_rows][dim], to float32 rows in the basis of the codes: rotation.forward, or its signs.
 * grid: n_rows, QN_AURA_ROTATE_THREADS threads. Defines: QN_HEAD_DIM. */
enum { QN_AURA_ROTATE_THREADS = 256 };

typedef struct qn_aura_rotate_args {
    QN_GPU_PTR(const uint8_t) rows;
    QN_GPU_PTR(float) out;
    qn_aura_gpu_rotation rotation;
    uint32_t n_rows, dtype;
} qn_aura_rotate_args;

/* qn_aura_score - scores [Q][n_keys], seen or not. Blocks take QN_ATTENTION_TILE_Q queries of a key-value head, and of keys a
 * part. grid (column tiles, parts). Defines: QN_HEAD_DIM, QN_BITS of keys. */
typedef struct qn_aura_score_args {
    qn_aura_gpu_cache cache;
    qn_aura_gpu_queries queries;
    QN_GPU_PTR(float) scores;
} qn_aura_score_args;

/* qn_aura_value - sums of values by weights [Q][n_keys], each part's into partials [Q][parts][dim], in the basis of the codes:
 * qn_aura_flash_pass2 without m and l adds them up and rotates them back. A weight below skip counts for nothing, and a value
 * that only has such weights, among the queries of a block, is not read. grid (column tiles, parts). Defines: QN_HEAD_DIM,
 * QN_BITS of values. */
typedef struct qn_aura_value_args {
    qn_aura_gpu_cache cache;
    QN_GPU_PTR(const float) weights;
    QN_GPU_PTR(float) partials;
    uint32_t n_tokens, n_heads;
    float skip; /* >= 0 */
} qn_aura_value_args;

/* qn_aura_flash_pass1 - attention within each block of `block` keys, as qn_aura_flash_pass1 of include/quern/kernels.h has it:
 *
 *   partials [Q][n_blocks][dim]   sums of e^(score - m) times values, neither normalised nor rotated back
 *   m, l     [Q][n_blocks]        the largest score, and the sum of e^(score - m)
 *
 * For a block of which a query sees nothing, l is 0, and partials and m are left as they are. Sinks are not read. `team` warps
 * share a block of keys: all of a thread block, or each has its own. grid (column tiles, parts). Defines: QN_HEAD_DIM,
 * QN_KEY_BITS, QN_VALUE_BITS. */
typedef struct qn_aura_flash_pass1_args {
    qn_aura_gpu_cache cache;
    qn_aura_gpu_queries queries;
    QN_GPU_PTR(float) partials;
    QN_GPU_PTR(float) m;
    QN_GPU_PTR(float) l;
    uint32_t block, n_blocks, warps_per_block;
} qn_aura_flash_pass1_args;

/* qn_aura_flash_pass2 - the blocks of each query merged in rising order, normalised and rotated back, to rows of a type. What
 * has l = 0 is left out, whatever else it holds; a query that sees nothing gets zeros. Without m and l, partials are only added
 * up and rotated back. grid: n_queries, QN_AURA_PASS2_THREADS threads. Defines: QN_HEAD_DIM. */
enum { QN_AURA_PASS2_THREADS = 256 };

typedef struct qn_aura_flash_pass2_args {
    QN_GPU_PTR(const float) partials; /* [n_queries][n_blocks][dim] */
    QN_GPU_PTR(const float) m;        /* [n_queries][n_blocks] */
    QN_GPU_PTR(const float) l;
    QN_GPU_PTR(const float) sinks; /* [n_heads] the logit of one more key, with value 0; or none */
    QN_GPU_PTR(uint8_t) out;       /* [n_queries][dim] */
    qn_aura_gpu_rotation rotation;
    uint32_t n_heads, n_blocks, dtype;
} qn_aura_flash_pass2_args;

/* qn_aura_attention - both passes in one, with nothing in between kept: a thread block takes all keys for its queries, so that
 * it is for short caches or many queries. out [Q][dim] of a type. grid: column tiles. Defines as qn_aura_flash_pass1. */
typedef struct qn_aura_attention_args {
    qn_aura_gpu_cache cache;
    qn_aura_gpu_queries queries;
    QN_GPU_PTR(const float) sinks; /* [n_heads], or none */
    QN_GPU_PTR(uint8_t) out;
    qn_aura_gpu_rotation rotation; /* of values */
    uint32_t dtype;                /* of out */
} qn_aura_attention_args;

#ifndef __CUDACC__

#include "base/status.h"

/* What is attended to, and the device as far as launches depend on it (fields of qn_cuda_info). */
typedef struct qn_aura_gpu {
    size_t head_dim, n_heads, n_kv_heads;
    unsigned key_bits, value_bits;
    uint32_t n_sms, max_shared_bytes;
} qn_aura_gpu;

/* qn_aura_gpu_check - QN_ERR_UNSUPPORTED, naming it, for sizes or bits that AURA does not have, or where the device has too
 * little shared memory; QN_ERR_INVALID for counts of heads that do not fit. The launches below are for what has been checked.
 */
qn_status qn_aura_gpu_check(const qn_aura_gpu *gpu);

/* qn_aura_gpu_splits - into how many parts keys are best shared out by qn_aura_score and qn_aura_value, which fill the device
 * once.
 */
uint32_t qn_aura_gpu_splits(const qn_aura_gpu *gpu, size_t n_tokens, size_t n_keys);

/* qn_aura_gpu_flash_block - the block of keys, a multiple of QN_ATTENTION_TILE_KV, with which pass 1 fills the device once. */
size_t qn_aura_gpu_flash_block(const qn_aura_gpu *gpu, size_t n_tokens, size_t n_keys);

/* The launches; arguments are the caller's to fill, and `team` is for those of pass 1. n_keys and block are at least 1 and at
 * most 2^31 - 1. */
qn_status qn_aura_gpu_rotate(size_t head_dim, size_t n_rows, qn_launch *out);
qn_status qn_aura_gpu_score(const qn_aura_gpu *gpu, size_t n_tokens, uint32_t n_splits, qn_launch *out);
qn_status qn_aura_gpu_value(const qn_aura_gpu *gpu, size_t n_tokens, uint32_t n_splits, qn_launch *out);
qn_status qn_aura_gpu_flash_pass1(const qn_aura_gpu *gpu, size_t n_tokens, size_t n_keys, size_t block,
                                  uint32_t *warps_per_block, qn_launch *out);
qn_status qn_aura_gpu_flash_pass2(size_t head_dim, size_t n_queries, qn_launch *out);
qn_status qn_aura_gpu_attention(const qn_aura_gpu *gpu, size_t n_tokens, qn_launch *out);

#endif
#endif
