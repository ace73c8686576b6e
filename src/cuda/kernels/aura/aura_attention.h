/* Attention over a cache of AURA codes on the GPU, as the operations of include/quern/kernels.h: scores, values, flash
 * decoding in two passes, attention in one pass. Arguments and results of the kernels, and their launches; shared by C
 * and CUDA. The fused attention of sessions, with fp16 pages, is in cuda/kernels/attention/.
 *
 * Below, Q is n_tokens * n_heads, in that order; typed rows are fp32, fp16 or bf16 (a qn_dtype); query head h reads
 * key-value head h / (n_heads / n_kv_heads). Sums are float32 in an order that the launch fixes: repeated runs give the
 * same bits. Keys, values, queries and weights are multiplied as fp16, scaled by separate powers of two: results are
 * within 2e-3 of the reference (norm of the difference over norm of the reference, over all rows). */
#ifndef QN_CUDA_KERNELS_AURA_AURA_ATTENTION_H
#define QN_CUDA_KERNELS_AURA_AURA_ATTENTION_H

#include "cuda/kernels/attend.h"

/* Warps of a block: the most that registers allow. */
#define QN_AURA_SCORE_WARPS 16
#define QN_AURA_VALUE_WARPS(dim) ((dim) <= 128 ? 16 : (dim) <= 256 ? 12 : 8)
#define QN_AURA_FLASH_WARPS(dim) ((dim) <= 128 ? 12 : 8)

/* Space for the reduction over the warps of qn_aura_value on devices with little shared memory. */
enum { QN_AURA_VALUE_REDUCE_BYTES = 32 << 10 };

/* The cache of one layer, as qn_aura_cache. Session strides are not read; heads begin at multiples of 16 bytes. */
typedef struct qn_aura_gpu_cache {
    qn_attention_gpu_cache rows;
    qn_attention_gpu_codec key_codec, value_codec; /* a codec that the operation does not read may be unset */
    uint32_t n_kv_heads, n_keys;
} qn_aura_gpu_cache;

/* Queries and their masks, as qn_aura_queries. If the key codec has no signs, queries are already rotated
 * (qn_aura_rotate). */
typedef struct qn_aura_gpu_queries {
    QN_GPU_PTR(const uint8_t) queries; /* [n_tokens][n_heads][dim], typed, `stride` values from a token to the next */
    QN_GPU_PTR(const uint32_t) positions; /* [n_tokens]; read only if causal or with a window */
    uint64_t window;
    uint32_t n_tokens, n_heads, stride, dtype, causal;
    float scale;
} qn_aura_gpu_queries;

/* qn_aura_rotate - Rotates typed rows [tokens][n_heads][dim] to the basis of the codes, as contiguous float32: by
 * rotation.signs if set and dim is a power of two, else by rotation.forward. grid: tokens * n_heads,
 * QN_AURA_ROTATE_THREADS threads. Defines: QN_HEAD_DIM. */
enum { QN_AURA_ROTATE_THREADS = 256 };

typedef struct qn_aura_rotate_args {
    QN_GPU_PTR(const uint8_t) rows;
    QN_GPU_PTR(float) out;
    qn_aura_gpu_rotation rotation;
    uint32_t n_heads, stride, dtype; /* stride: values from a token to the next */
} qn_aura_rotate_args;

/* qn_aura_score - Computes scores [Q][n_keys] of all keys, masked or not. A block processes QN_ATTENTION_TILE_Q queries
 * of a key-value head and one split of the keys. grid (query tiles, splits). Defines: QN_HEAD_DIM, QN_BITS of keys. */
typedef struct qn_aura_score_args {
    qn_aura_gpu_cache cache;
    qn_aura_gpu_queries queries;
    QN_GPU_PTR(float) scores;
} qn_aura_score_args;

/* qn_aura_value - Sums values weighted with weights [Q][n_keys]. Writes each split's sums to partials [Q][splits][dim],
 * in the basis of the codes; qn_aura_flash_pass2 without m and l adds them and rotates them back. Weights below `skip`
 * count as 0; a value is not read if its weights of all queries of a block are below `skip`. grid (query tiles,
 * splits). Defines: QN_HEAD_DIM, QN_BITS of values. */
typedef struct qn_aura_value_args {
    qn_aura_gpu_cache cache;
    QN_GPU_PTR(const float) weights;
    QN_GPU_PTR(float) partials;
    uint32_t n_tokens, n_heads;
    float skip; /* >= 0 */
} qn_aura_value_args;

/* qn_aura_flash_pass1 - Attention within each block of `block` keys, as qn_aura_flash_pass1 of include/quern/kernels.h:
 *
 *   partials [Q][n_blocks][dim]   sums of e^(score - m) times values, neither normalised nor rotated back
 *   m, l     [Q][n_blocks]        the largest score, and the sum of e^(score - m)
 *
 * If no key of a block is visible to a query, l is 0, and partials and m are not written. Sinks are not read.
 * warps_per_block is the number of warps that share a block of keys: all warps of a thread block, or 1. grid (query
 * tiles, splits of the blocks). Defines: QN_HEAD_DIM, QN_KEY_BITS, QN_VALUE_BITS. */
typedef struct qn_aura_flash_pass1_args {
    qn_aura_gpu_cache cache;
    qn_aura_gpu_queries queries;
    QN_GPU_PTR(float) partials;
    QN_GPU_PTR(float) m;
    QN_GPU_PTR(float) l;
    uint32_t block, n_blocks, warps_per_block;
} qn_aura_flash_pass1_args;

/* qn_aura_flash_pass2 - Combines the blocks of each query in ascending order, normalises, rotates back, and writes
 * typed rows. Blocks with l = 0 are skipped, and their other contents ignored; a query without visible keys gets zeros.
 * Without m and l, partials are only added and rotated back. grid: n_queries, QN_AURA_PASS2_THREADS threads. Defines:
 * QN_HEAD_DIM. */
enum { QN_AURA_PASS2_THREADS = 256 };

typedef struct qn_aura_flash_pass2_args {
    QN_GPU_PTR(const float) partials; /* [n_queries][n_blocks][dim] */
    QN_GPU_PTR(const float) m;        /* [n_queries][n_blocks] */
    QN_GPU_PTR(const float) l;
    QN_GPU_PTR(const float) sinks; /* [n_heads] the logit of one more key, with value 0; or none */
    QN_GPU_PTR(uint8_t) out;       /* [n_queries / n_heads][n_heads][dim], out_stride values from a token to the next */
    qn_aura_gpu_rotation rotation;
    uint32_t n_heads, n_blocks, out_stride, dtype;
} qn_aura_flash_pass2_args;

/* qn_aura_attention - Attention in one pass, without intermediate results in memory: a thread block processes all keys
 * of its queries, which suits short caches or many queries. out is [Q][dim], typed. grid: query tiles. Defines as for
 * qn_aura_flash_pass1. */
typedef struct qn_aura_attention_args {
    qn_aura_gpu_cache cache;
    qn_aura_gpu_queries queries;
    QN_GPU_PTR(const float) sinks; /* [n_heads], or none */
    QN_GPU_PTR(uint8_t) out;
    qn_aura_gpu_rotation rotation; /* of values */
    uint32_t out_stride, dtype;    /* of out: values from a token to the next */
} qn_aura_attention_args;

#ifndef __CUDACC__

#include "base/status.h"

/* Shape and format of the attention, and the device properties that launches depend on (fields of qn_cuda_info). */
typedef struct qn_aura_gpu {
    size_t head_dim, n_heads, n_kv_heads;
    unsigned key_bits, value_bits;
    uint32_t n_sms, max_shared_bytes;
} qn_aura_gpu;

/* qn_aura_gpu_check - Checks shape and device; the launch functions below require that it succeeded.
 * QN_ERR_UNSUPPORTED, naming the value, for sizes or bits that AURA does not have, or if the device has too little
 * shared memory; QN_ERR_INVALID for inconsistent counts of heads. */
qn_status qn_aura_gpu_check(const qn_aura_gpu *gpu);

/* qn_aura_gpu_splits - Returns the number of splits of the keys for qn_aura_score and qn_aura_value that fills the
 * device once. */
uint32_t qn_aura_gpu_splits(const qn_aura_gpu *gpu, size_t n_tokens, size_t n_keys);

/* qn_aura_gpu_flash_block - Returns the block size of keys, a multiple of QN_ATTENTION_TILE_KV, with which pass 1 fills
 * the device once. */
size_t qn_aura_gpu_flash_block(const qn_aura_gpu *gpu, size_t n_tokens, size_t n_keys);

/* qn_aura_gpu_rotate - Fills a launch of qn_aura_rotate; the caller fills its arguments, here and below. */
qn_status qn_aura_gpu_rotate(size_t head_dim, size_t n_rows, qn_launch *out);

/* qn_aura_gpu_score - Fills a launch of qn_aura_score. */
qn_status qn_aura_gpu_score(const qn_aura_gpu *gpu, size_t n_tokens, uint32_t n_splits, qn_launch *out);

/* qn_aura_gpu_value - Fills a launch of qn_aura_value. */
qn_status qn_aura_gpu_value(const qn_aura_gpu *gpu, size_t n_tokens, uint32_t n_splits, qn_launch *out);

/* qn_aura_gpu_flash_pass1 - Fills a launch of qn_aura_flash_pass1. n_keys and block are 1 to 2^31 - 1. *warps_per_block
 * is the value for the arguments. */
qn_status qn_aura_gpu_flash_pass1(const qn_aura_gpu *gpu, size_t n_tokens, size_t n_keys, size_t block,
                                  uint32_t *warps_per_block, qn_launch *out);

/* qn_aura_gpu_flash_pass2 - Fills a launch of qn_aura_flash_pass2. */
qn_status qn_aura_gpu_flash_pass2(size_t head_dim, size_t n_queries, qn_launch *out);

/* qn_aura_gpu_attention - Fills a launch of qn_aura_attention. */
qn_status qn_aura_gpu_attention(const qn_aura_gpu *gpu, size_t n_tokens, qn_launch *out);

#endif
#endif
