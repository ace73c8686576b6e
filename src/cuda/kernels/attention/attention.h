/* Attention on the GPU over the caches of cuda/kernels/kv.h: arguments and results of its kernels, and their launches.
 * Shared by C and CUDA.
 *
 * Two kernels: qn_attention_decode for single rows, in KV splits, qn_attention_prefill for many rows of one session. */
#ifndef QN_CUDA_KERNELS_ATTENTION_ATTENTION_H
#define QN_CUDA_KERNELS_ATTENTION_ATTENTION_H

#include "cuda/kernels/attend.h"

/* Visible positions of a query row: positions up to its own if causal, else all n_keys; with a window, of those only t
 * with t + window > position. Positions and sessions are read before the PDL wait: no launch that may still be running
 * writes them. */
typedef struct qn_attention_mask {
    QN_GPU_PTR(const uint32_t) positions; /* [n_rows]. None only if not causal and without a window */
    QN_GPU_PTR(const uint32_t)
    sessions;        /* [n_rows] index of the row's session, or QN_ATTENTION_NO_SESSION. None: 0 for all */
    uint32_t n_keys; /* keys of any session; if causal, the cache's capacity serves */
    uint32_t window, causal;
} qn_attention_mask;

/* The KV splits of a row: of as many tiles of QN_ATTENTION_TILE_KV positions each as make at most n splits of the row,
 * with QN_PAGES together with the split of the fp16 pages. They depend on the row's own position only, and so do the
 * bits of its results. */
typedef struct qn_attention_splits {
    uint32_t n;
    uint32_t tiles; /* the tiles of a split are a multiple of this number, itself one of QN_WARPS of the kernel */
} qn_attention_splits;

/* What qn_attention_decode needs to do the work of qn_rope_qk_norm_store (rope/rope.h) itself, with the same bits:
 * `queries` are then as a matmul has written them, and so are these keys and values, which it stores in the caches at
 * the rows' positions. For causal rows, one a session. Rows at positions from n_keys on are not stored. */
typedef struct qn_attention_new_rows {
    QN_GPU_PTR(const uint8_t) keys;   /* [n_rows][n_kv_heads][head_dim], typed as queries; or 0: the caches have them */
    QN_GPU_PTR(const uint8_t) values; /* the same */
    QN_GPU_PTR(const float) query_bias;   /* [n_heads][head_dim], or 0: none */
    QN_GPU_PTR(const float) key_bias;     /* [n_kv_heads][head_dim], or 0: none */
    QN_GPU_PTR(const float) value_bias;   /* [n_kv_heads][head_dim], or 0: none */
    QN_GPU_PTR(const float) query_weight; /* [head_dim], or 0: no norm */
    QN_GPU_PTR(const float) key_weight;   /* [head_dim], or 0: no norm */
    QN_GPU_PTR(const float) cosines;      /* [n_rows][n_rot/2] */
    QN_GPU_PTR(const float) sines;        /* [n_rows][n_rot/2] */
    uint32_t n_rot, interleaved;
    float eps;
} qn_attention_new_rows;

enum { QN_ATTENTION_NEW_ROWS_DIM = 128 }; /* the largest head_dim: more registers are lacking */

/* qn_attention_decode - attention of query rows, each over its session's cache, in KV splits. For each query head of a
 * row and each split, the workspace has:
 *
 *   partials [n_rows][n_heads][splits.n][head_dim]   sums of e^(score - m) times values, in the basis of the codes
 *   maxima   [n_rows][n_heads][splits.n][2]          m, the running maximum in use, and l, the sum of e^(score - m);
 *            scores
 *                                                    are in base 2 here: m * log2(e)
 *
 * The block that writes the last split of a query tile combines all of them in ascending order, normalises, and rotates
 * back to the model's basis. Over fp16 the only split of a row is normalised in place of being written. With gates,
 * each result is multiplied by the sigmoid of its gate. A query without visible keys or without a session gets zeros.
 * Splits without positions are not written. With QN_PAGES the cache is a session's of codes, all rows are causal, and
 * split 0 reads the fp16 pages (page 0 and the open page).
 *
 * The grid has as many blocks as the device runs at a time; each takes its part of the splits of all rows (work.cuh),
 * so that rows of very different lengths share the device evenly. A query tile is QN_ATTENTION_TILE_Q query heads of a
 * key-value head. Two sources: over fp16 (decode.cu) a block has QN_WARPS warps, over codes (decode_codes.cu)
 * qn_attention_gpu_teams times as many. Defines: QN_HEAD_DIM, QN_WARPS (over codes at least 8); over codes also
 * QN_KEY_BITS, QN_VALUE_BITS, QN_PAGES, and QN_WARPS is a multiple of the head's slices of 64 dimensions. */
typedef struct qn_attention_decode_args {
    QN_GPU_PTR(const uint8_t)
    queries;                       /* [n_rows][n_heads][head_dim], typed, query_stride values from a row to the next */
    QN_GPU_PTR(const float) gates; /* [n_rows][n_heads][2][head_dim], the second of each two; or none */
    QN_GPU_PTR(const float) sinks; /* [n_heads] the logit of one more key, with value 0; or none */
    QN_GPU_PTR(uint8_t) out;       /* as queries, out_stride values from a row to the next */
    QN_GPU_PTR(float) partials;
    QN_GPU_PTR(float) maxima;
    QN_GPU_PTR(uint32_t)
    counters; /* [n_rows][query tiles of a row], at most n_heads each: zeros before the launch, and after
                                      it. Not read with splits.n of 1 */
    qn_attention_mask mask;
    qn_attention_gpu_cache cache;
    qn_attention_gpu_pages pages;                  /* with QN_PAGES */
    qn_attention_gpu_codec key_codec, value_codec; /* with codes only */
    qn_aura_gpu_rotation rotation;                 /* of values, with codes only */
    qn_attention_splits splits;
    qn_attention_new_rows new_rows; /* where qn_attention_gpu_prepares_rows */
    uint32_t n_rows, n_heads, n_kv_heads, query_stride, out_stride;
    uint32_t query_head_stride; /* with new_rows: values from a query head to the next; 0: head_dim */
    uint32_t dtype;             /* of queries and out, a qn_dtype, F32, F16 or BF16 */
    float scale;                /* of scores */
    /* Set if launches that may still be running write no rows of the caches but those at the queries' own positions,
     * and the codes of the pages that these complete: all others are then loaded before the PDL wait. Needs causal rows
     * and one row per session. */
    uint32_t pdl_prefetch;
} qn_attention_decode_args;

/* qn_attention_prefill - attention of pieces of rows: each of one session, at consecutive positions, with its keys and
 * values in the cache already; causal, without a window. A piece may have no rows. With QN_PAGES the cache is a
 * session's of codes, and queries are rotated already; else the cache is fp16.
 *
 * A page's queries of a key-value head are processed by B = ceil(QN_ATTENTION_PAGE * group / QN_ATTENTION_PREFILL_ROWS)
 * blocks, where group is n_heads / n_kv_heads.
 *
 * grid (B * pages, n_kv_heads), where pages is at least the number of pages with rows of pieces, each counted for each
 * piece; QN_ATTENTION_PREFILL_ROWS / 16 warps. Defines: QN_HEAD_DIM, QN_KEY_BITS, QN_VALUE_BITS, QN_PAGES. */
enum { QN_ATTENTION_PREFILL_ROWS = 128 };

typedef struct qn_attention_prefill_args {
    QN_GPU_PTR(const uint8_t)
    queries;                       /* [n_rows][n_heads][head_dim], typed, query_stride values from a row to the next */
    QN_GPU_PTR(const float) gates; /* [n_rows][n_heads][2][head_dim], the second of each two; or none */
    QN_GPU_PTR(uint8_t) out;       /* as queries, out_stride values from a row to the next */
    QN_GPU_PTR(const uint32_t) positions; /* [n_pieces] of the first row of each piece */
    QN_GPU_PTR(const uint32_t)
    cu_seqlens; /* [n_pieces + 1] piece i is rows [cu_seqlens[i], cu_seqlens[i + 1]); none: one */
    QN_GPU_PTR(const uint32_t) sessions; /* [n_pieces] index of the session of each piece; none: the piece's index */
    qn_attention_gpu_cache cache;
    qn_attention_gpu_pages pages;                                                    /* with QN_PAGES */
    qn_attention_gpu_codec key_codec, value_codec;                                   /* with codes only */
    qn_aura_gpu_rotation rotation;                                                   /* of values */
    uint32_t n_rows, n_pieces, n_heads, n_kv_heads, query_stride, out_stride, dtype; /* dtype: of queries and out */
    float scale;                                                                     /* of scores */
} qn_attention_prefill_args;

#ifndef __CUDACC__

#include "base/status.h"

#include <stddef.h>

/* Shape and format of the attention, and the device properties that launches depend on (fields of qn_cuda_info). */
typedef struct qn_attention_gpu {
    size_t head_dim, n_heads, n_kv_heads;
    unsigned key_bits, value_bits; /* 16 and 16: fp16; else codes, 2, 3, 4, 6 or 8 bits each */
    bool pages;                    /* a session's cache of codes, whose page 0 and open page are fp16 */
    bool deterministic;            /* the bits of a row's results do not depend on the number of rows of a launch */
    uint32_t n_sms, max_shared_bytes;
} qn_attention_gpu;

/* qn_attention_gpu_row_bytes - bytes of one position of a head in the cache, without its scale. */
size_t qn_attention_gpu_row_bytes(size_t head_dim, unsigned bits);

/* qn_attention_gpu_check - QN_ERR_UNSUPPORTED, naming the value, for a head size or bits without a kernel variant, or
 * if the device has too little shared memory; QN_ERR_INVALID for inconsistent counts of heads. */
qn_status qn_attention_gpu_check(const qn_attention_gpu *gpu);

/* qn_attention_gpu_splits - the KV splits of rows of sessions with up to max_keys positions: as many as fill the device
 * once with a single row. The bits of a row's results do not depend on max_keys. */
qn_attention_splits qn_attention_gpu_splits(const qn_attention_gpu *gpu, size_t max_keys);

/* qn_attention_gpu_decode - fills a launch; the caller fills its arguments. gpu has passed qn_attention_gpu_check. */
qn_status qn_attention_gpu_decode(const qn_attention_gpu *gpu, size_t n_rows, const qn_attention_splits *splits,
                                  qn_launch *out);

/* qn_attention_gpu_prepares_rows - whether that launch accepts new_rows: over fp16, with heads of up to
 * QN_ATTENTION_NEW_ROWS_DIM, and rope of adjacent pairs or of pairs that are 32 or 64 dimensions apart; with so few
 * rows that a block has more than one warp. One warp lacks registers for it: 128 rows of 8B take 3% longer than with a
 * launch before. */
bool qn_attention_gpu_prepares_rows(const qn_attention_gpu *gpu, size_t n_rows, size_t n_rot, bool interleaved);

/* qn_attention_gpu_has_prefill - whether qn_attention_prefill supports this cache on this device. If not, prefill rows
 * go through the launch above, which accepts any number of rows up to 65535. */
bool qn_attention_gpu_has_prefill(const qn_attention_gpu *gpu);

/* qn_attention_gpu_prefill - fills its launch, for up to n_rows rows in up to n_pieces pieces. */
qn_status qn_attention_gpu_prefill(const qn_attention_gpu *gpu, size_t n_rows, size_t n_pieces, qn_launch *out);

#endif
#endif
