/* Attention on the GPU over the caches of kernels/kv_cuda.h: what its kernels take and compute. Shared by C and CUDA. */
#ifndef QN_KERNELS_ATTENTION_ATTENTION_CUDA_H
#define QN_KERNELS_ATTENTION_ATTENTION_CUDA_H

#include "kernels/attend_cuda.h"

/* What a query row sees: positions up to its own, or all n_keys where it is not causal, and of those t with t + window >
 * position where window is not 0. */
typedef struct qn_attention_mask {
    QN_GPU_PTR(const uint32_t)
    positions;       /* [n_rows], which no launch that may still run writes; none only where nothing depends on
                        them */
    uint32_t n_keys; /* of any session: the cache's capacity will do where all is causal */
    uint32_t window, causal;
} qn_attention_mask;

/* QN_ATTENTION_TILE_KV positions times this are the least that a block takes, where there are. */
enum { QN_ATTENTION_MIN_TILES = 8 };

/* qn_attention_decode - one query row each of some sessions over their caches, in n_splits parts: for each query head of a row
 * and each part
 *
 *   partials [n_rows][n_heads][n_splits][head_dim]   sums of e^(score - m) times values, in the basis of the codes
 *   maxima   [n_rows][n_heads][n_splits][2]          m, the largest score or what stood in for it, and the sum of
 *                                                    e^(score - m); scores are in powers of two here: m * log2(e)
 *
 * of which qn_attention_combine makes results. Parts of a row whose positions are too few for all are not written. With QN_PAGES
 * the cache is a session's of codes, all is causal, and part 0 is the halves.
 *
 * grid (n_splits, key-value heads * column tiles, n_rows), QN_WARPS warps; a column tile is QN_ATTENTION_TILE_Q query heads of
 * a key-value head. Defines: QN_HEAD_DIM, QN_KEY_BITS, QN_VALUE_BITS, QN_WARPS (at least 8), QN_PAGES. */
typedef struct qn_attention_decode_args {
    QN_GPU_PTR(const float) queries;     /* [n_rows][n_heads][head_dim] */
    QN_GPU_PTR(const uint32_t) sessions; /* [n_rows] whose cache, written as early as positions; none: 0 for all */
    QN_GPU_PTR(float) partials;
    QN_GPU_PTR(float) maxima;
    qn_attention_mask mask;
    qn_attention_gpu_cache cache;
    qn_attention_gpu_pages pages;                  /* with QN_PAGES */
    qn_attention_gpu_codec key_codec, value_codec; /* with codes only */
    uint32_t n_heads, n_kv_heads;
    float scale;           /* of scores */
    uint32_t pdl_prefetch; /* of the cache, the launch ahead writes rows at the queries' own positions at most: others are read
                         before it has ended. Where all is causal and each session has one row */
} qn_attention_decode_args;

/* qn_attention_combine - the parts that qn_attention_decode left, merged in rising order, normalised and rotated back.
 *
 * A query that sees nothing gets zeros. With gates each result is multiplied by the sigmoid of its gate.
 *
 * grid (n_heads, n_rows), QN_ATTENTION_COMBINE_THREADS threads. Defines: QN_HEAD_DIM, QN_PAGES. */
enum { QN_ATTENTION_COMBINE_THREADS = 256 };

typedef struct qn_attention_combine_args {
    QN_GPU_PTR(const float) partials;
    QN_GPU_PTR(const float) maxima;
    QN_GPU_PTR(const float) sinks; /* [n_heads] the logit of one more key, with value 0; or none */
    QN_GPU_PTR(const float) gates; /* [n_rows][n_heads][2][head_dim], the second of each two; or none */
    QN_GPU_PTR(float) out;         /* [n_rows][n_heads][head_dim] */
    qn_aura_gpu_rotation rotation; /* of values */
    qn_attention_mask mask;
    uint32_t n_heads, n_splits;
    float gain; /* of the value codec; 1 for halves */
} qn_attention_combine_args;

/* qn_attention_prefill - rows of one session at consecutive positions, which are in its cache already, over the cache: causal,
 * with no window. With QN_PAGES the cache is a session's of codes, and queries are rotated already; else it is of halves.
 *
 * grid (ceil((n_rows - 1) / QN_ATTENTION_PAGE + 1) * blocks of a run, n_kv_heads), where a run's queries of a key-value head are
 * ceil(QN_ATTENTION_PAGE * group / QN_ATTENTION_PREFILL_ROWS) blocks. Defines: QN_HEAD_DIM, QN_KEY_BITS, QN_VALUE_BITS, QN_PAGES.
 */
enum { QN_ATTENTION_PREFILL_ROWS = 128 };

typedef struct qn_attention_prefill_args {
    QN_GPU_PTR(const float) queries;      /* [n_rows][n_heads][head_dim] */
    QN_GPU_PTR(const float) gates;        /* [n_rows][n_heads][2][head_dim], the second of each two; or none */
    QN_GPU_PTR(float) out;                /* [n_rows][n_heads][head_dim] */
    QN_GPU_PTR(const uint32_t) positions; /* of which the first is read */
    QN_GPU_PTR(const uint32_t) sessions;  /* the first is read; none: 0 */
    qn_attention_gpu_cache cache;
    qn_attention_gpu_pages pages;                  /* with QN_PAGES */
    qn_attention_gpu_codec key_codec, value_codec; /* with codes only */
    qn_aura_gpu_rotation rotation;                 /* of values */
    uint32_t n_rows, n_heads, n_kv_heads;
    float scale; /* of scores */
} qn_attention_prefill_args;

#ifndef __CUDACC__

#include "base/status.h"

#include <stddef.h>

/* What attention is over, and the device as far as launches depend on it (fields of qn_cuda_info). */
typedef struct qn_attention_gpu {
    size_t head_dim, n_heads, n_kv_heads;
    unsigned key_bits, value_bits; /* 16 and 16: halves; else codes, 2, 3, 4, 6 or 8 bits each */
    bool pages;                    /* codes of a session, with halves at its ends */
    uint32_t n_sms, max_shared_bytes;
} qn_attention_gpu;

/* qn_attention_gpu_row_bytes - of one position of a head in the cache. */
size_t qn_attention_gpu_row_bytes(size_t head_dim, unsigned bits);

/* qn_attention_gpu_check - QN_ERR_UNSUPPORTED, naming it, for a head size or bits that the kernels do not have, or where the
 * device has too little shared memory; QN_ERR_INVALID for counts of heads that do not fit. */
qn_status qn_attention_gpu_check(const qn_attention_gpu *gpu);

/* qn_attention_gpu_splits - into how many parts n_rows rows' positions are best shared out, for sessions of up to max_keys:
 * what fills the device once. Results depend on it in their last bits. */
uint32_t qn_attention_gpu_splits(const qn_attention_gpu *gpu, size_t n_rows, size_t max_keys);

/* qn_attention_gpu_decode, qn_attention_gpu_combine - the two launches; arguments are the caller's to fill. gpu has been checked.
 */
qn_status qn_attention_gpu_decode(const qn_attention_gpu *gpu, size_t n_rows, uint32_t n_splits, qn_launch *out);
qn_status qn_attention_gpu_combine(const qn_attention_gpu *gpu, size_t n_rows, qn_launch *out);

/* qn_attention_gpu_has_prefill - whether qn_attention_prefill takes such a cache, on such a device. Where not, rows of a prompt
 * go through the two launches above, which take any number of them. */
bool qn_attention_gpu_has_prefill(const qn_attention_gpu *gpu);

/* qn_attention_gpu_prefill - its launch. */
qn_status qn_attention_gpu_prefill(const qn_attention_gpu *gpu, size_t n_rows, qn_launch *out);

#endif
#endif
