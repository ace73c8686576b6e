/* Attention on the GPU over the caches of cuda/kernels/kv.h: arguments and results of its kernels, and their launches.
 * Shared by C and CUDA.
 *
 * qn_attention_decode is the kernel for single rows, in KV splits; qn_attention_prefill is the kernel for many rows of
 * one session. */
#ifndef QN_CUDA_KERNELS_ATTENTION_ATTENTION_H
#define QN_CUDA_KERNELS_ATTENTION_ATTENTION_H

#include "cuda/kernels/attend.h"

/* Visible positions of a query row: positions up to its end if causal, else all n_keys; with a window, only positions t
 * with t + window > position; none before `first`. Positions, ends and sessions are read before the PDL wait: no launch
 * that may still be running may write them. */
typedef struct qn_attention_mask {
    QN_GPU_PTR(const uint32_t) positions; /* [n_rows]; may be 0 if not causal and without a window */
    QN_GPU_PTR(const uint32_t) ends;      /* [n_rows]; 0: a row's end is its position. Not with QN_PAGES */
    QN_GPU_PTR(const uint32_t)
    sessions;        /* [n_rows] index of the row's session, or QN_ATTENTION_NO_SESSION; 0: session 0 for all rows */
    uint32_t n_keys; /* keys of each session; if causal, may be the cache's capacity */
    uint32_t window, causal;
    uint32_t first; /* 0, or up to 15 of causal rows without a window */
} qn_attention_mask;

/* The KV splits of a row. A split has the smallest number of tiles of QN_ATTENTION_TILE_KV positions that gives at most
 * n splits, with QN_PAGES including the split of the fp16 pages. Splits, and therefore the bits of a row's results,
 * depend on the row's own position only. */
typedef struct qn_attention_splits {
    uint32_t n;
    uint32_t tiles; /* the tiles of a split are a multiple of this number, itself one of QN_WARPS of the kernel */
} qn_attention_splits;

/* Arguments with which qn_attention_decode does the work of qn_rope_qk_norm_store (rope/rope.h) itself, with the same
 * bits. `queries`, keys and values are then as a matmul has written them; the kernel stores keys and values in the
 * caches at the rows' positions. For causal rows, one a session. Rows at positions from n_keys on are not stored. */
typedef struct qn_attention_new_rows {
    QN_GPU_PTR(const uint8_t) keys;     /* [n_rows][n_kv_heads][head_dim], typed as queries; 0: already in the caches */
    QN_GPU_PTR(const uint8_t) values;   /* the same */
    QN_GPU_PTR(const float) query_bias; /* [n_heads][head_dim], or 0: none */
    QN_GPU_PTR(const float) key_bias;   /* [n_kv_heads][head_dim], or 0: none */
    QN_GPU_PTR(const float) value_bias; /* [n_kv_heads][head_dim], or 0: none */
    QN_GPU_PTR(const float) query_weight; /* [head_dim], or 0: no norm */
    QN_GPU_PTR(const float) key_weight;   /* [head_dim], or 0: no norm */
    QN_GPU_PTR(const float) cosines;      /* [n_rows][n_rot/2] */
    QN_GPU_PTR(const float) sines;        /* [n_rows][n_rot/2] */
    uint32_t n_rot, interleaved;
    float eps;
} qn_attention_new_rows;

enum { QN_ATTENTION_NEW_ROWS_DIM = 128 }; /* the largest head_dim: larger heads exceed the register budget */

/* qn_attention_decode - Attention of query rows, each over its session's cache, in KV splits. For each query head of a
 * row and each split, the workspace has:
 *
 *   partials [n_rows][n_heads][splits.n][head_dim]   sums of e^(score - m) times values, in the basis of the codes
 *   maxima   [n_rows][n_heads][splits.n][2]          m, the running maximum in use, and l, the sum of e^(score - m);
 *                                                    scores are in base 2 here: m * log2(e)
 *
 * The block that writes the last split of a query tile combines all splits in ascending order, normalises, and rotates
 * back to the model's basis. Over fp16, a row with a single split is normalised directly and not written to the
 * workspace. With gates, each result is multiplied by the sigmoid of its gate. A query without visible keys or without
 * a session gets zeros. Splits without positions are not written. With QN_PAGES the cache holds a session's codes, all
 * rows are causal, and split 0 reads the fp16 pages (page 0 and the open page).
 *
 * The grid is the number of blocks that the device runs at a time. Each block takes its part of the splits of all rows
 * (work.cuh), so that rows of very different lengths share the device evenly. A query tile is QN_ATTENTION_TILE_Q query
 * heads of a key-value head. A block has QN_WARPS warps over fp16 (decode.cu), and qn_attention_gpu_teams times
 * QN_WARPS over codes (decode_codes.cu). Defines: QN_HEAD_DIM, QN_WARPS (over codes at least 8); over codes also
 * QN_KEY_BITS, QN_VALUE_BITS, QN_PAGES, QN_TILES, and QN_WARPS is a multiple of the head's slices of 64 dimensions.
 * With QN_TILES > 1 (page_rows.h) a block has one team, and a piece of work has that many query tiles, of the query
 * heads of all rows after each other. */
typedef struct qn_attention_decode_args {
    QN_GPU_PTR(const uint8_t)
    queries;                       /* [n_rows][n_heads][head_dim], typed, query_stride values from a row to the next */
    QN_GPU_PTR(const float) gates; /* [n_rows][n_heads][2][head_dim], the second of each two; or none */
    QN_GPU_PTR(const float) sinks; /* [n_heads] the logit of one more key, with value 0; or none */
    QN_GPU_PTR(uint8_t) out;       /* as queries, out_stride values from a row to the next */
    QN_GPU_PTR(float) partials;
    QN_GPU_PTR(float) maxima;
    QN_GPU_PTR(uint32_t)
    counters; /* [n_rows][query tiles of a row], at most n_heads each: zeros before and after the launch. Not read if
                 splits.n is 1 */
    qn_attention_mask mask;
    qn_attention_gpu_cache cache;
    qn_attention_gpu_pages pages;                  /* with QN_PAGES */
    qn_attention_gpu_codec key_codec, value_codec; /* with codes only */
    qn_aura_gpu_rotation rotation;                 /* of values, with codes only */
    qn_attention_splits splits;
    qn_attention_new_rows new_rows; /* only if qn_attention_gpu_prepares_rows */
    uint32_t n_rows, n_heads, n_kv_heads, query_stride, out_stride;
    uint32_t query_head_stride; /* with new_rows: values from a query head to the next; 0: head_dim */
    uint32_t dtype;             /* of queries and out, a qn_dtype, F32, F16 or BF16 */
    float scale;                /* of scores */
    /* Set if launches that may still be running write only the cache rows at the queries' own positions, and the codes
     * of the pages that these rows complete: all other rows are then loaded before the PDL wait. Needs causal rows and
     * one row per session, or qn_attention_gpu_decode_page (page_rows.h). */
    uint32_t pdl_prefetch;
} qn_attention_decode_args;

/* qn_attention_prefill - Causal attention of pieces of rows, without a window. A piece is rows of one session at
 * consecutive positions, whose keys and values are already in the cache; it may have no rows. With QN_PAGES the cache
 * holds a session's codes, and queries are already rotated; else the cache is fp16.
 *
 * B = ceil(QN_PAGE * group / QN_ATTENTION_PREFILL_ROWS) blocks process a page's queries of a key-value head,
 * where group is n_heads / n_kv_heads.
 *
 * grid (B * pages, n_kv_heads), where pages is at least the sum, over the pieces, of the pages that contain rows of the
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

/* qn_attention_gpu_check - Checks shape and device. QN_ERR_UNSUPPORTED, naming the value, for a head size or bits
 * without a kernel variant, or if the device has too little shared memory; QN_ERR_INVALID for inconsistent counts of
 * heads. */
qn_status qn_attention_gpu_check(const qn_attention_gpu *gpu);

/* qn_attention_gpu_splits - Returns the KV splits of rows of sessions with up to max_keys positions: enough for a
 * single row to fill the device once. The bits of a row's results do not depend on max_keys. */
qn_attention_splits qn_attention_gpu_splits(const qn_attention_gpu *gpu, size_t max_keys);

/* qn_attention_gpu_decode - Fills a launch of qn_attention_decode; the caller fills its arguments. gpu has passed
 * qn_attention_gpu_check. */
qn_status qn_attention_gpu_decode(const qn_attention_gpu *gpu, size_t n_rows, const qn_attention_splits *splits,
                                  qn_launch *out);

/* qn_attention_gpu_prepares_rows - Returns whether a launch of qn_attention_decode accepts new_rows: over fp16, with
 * heads of up to QN_ATTENTION_NEW_ROWS_DIM, with rope of adjacent pairs or of pairs that are 32 or 64 dimensions apart,
 * and with few enough rows that a block has more than one warp. With one warp, registers are short: 128 rows of an 8B
 * model would take 3% longer than with a separate launch. */
bool qn_attention_gpu_prepares_rows(const qn_attention_gpu *gpu, size_t n_rows, size_t n_rot, bool interleaved);

/* qn_attention_gpu_has_prefill - Returns whether qn_attention_prefill supports this cache on this device. If not, use
 * qn_attention_decode for prefill rows; it accepts up to 65535 rows. */
bool qn_attention_gpu_has_prefill(const qn_attention_gpu *gpu);

/* qn_attention_gpu_prefill - Fills a launch of qn_attention_prefill, for up to n_rows rows in up to n_pieces pieces. */
qn_status qn_attention_gpu_prefill(const qn_attention_gpu *gpu, size_t n_rows, size_t n_pieces, qn_launch *out);

#endif
#endif
