/* A token's operations, one after another, in one launch: a grid of one block an SM walks an array of stages. Shared by C and
 * CUDA.
 *
 * Launched one by one, the operations of a token spend more time between each other than on their weights. Here weights stream
 * through a ring in shared memory that does not stop between stages: while blocks wait for each other, what the next product
 * reads is on its way. Blocks meet at the end of every stage.
 *
 * A product is shared out by columns and rows: slice s is slice_k_tiles chunks of 256 columns, and its slice_blocks blocks share
 * the tiles of 16 rows. So a block makes the activations of a single slice, itself, from what the stage before has left, and
 * what it leaves are sums over its slice: PARTS, [n_slices][stride] floats, which the stages that read them add up in rising
 * order. What is normalised is divided by its norm only there: a slice's sum of squares is kept beside its parts
 * (qn_persistent_partials.squares), because only all slices together know the norm.
 *
 *   number i of parts p = f * (p.data[i] + p.data[p.stride + i] + ... n_partials of them)
 *   f = 1 where there are no squares, else 1 / sqrt((squares[0] + squares[1] + ... n_sumsq) / n_cols + eps)
 *
 * Which stages follow which is device/cuda/persistent.c's. Data that a stage writes and a later one of the same launch reads is not
 * read through the constant cache (no ld.global.nc, __ldg, or const __restrict__).
 *
 * Sums are in an order that depends on shapes and on the number of blocks alone: the same bits from run to run. */
#ifndef QN_KERNELS_PERSISTENT_PERSISTENT_CUDA_H
#define QN_KERNELS_PERSISTENT_PERSISTENT_CUDA_H

#include "kernels/kv_cuda.h"
#include "kernels/matmul/matmul_cuda.h"

enum {
    QN_PERSISTENT_THREADS = 512,
    QN_PERSISTENT_MAX_SLICES = 64,
    QN_PERSISTENT_MAX_SLICE_COLS = 4096, /* of a slice */
    QN_PERSISTENT_MAX_OUTS = 4,
    /* Shared memory: what the walk keeps, what a stage may use, and weights. */
    QN_PERSISTENT_CONTROL_BYTES = 4096,
    QN_PERSISTENT_SCRATCH_BYTES = 32 << 10,
    QN_PERSISTENT_MAX_SPLITS = 32, /* of a key-value head's positions */
    QN_PERSISTENT_MAX_GROUP = 8    /* query heads of a key-value head */
};

/* Bytes of a chunk's activations, as planes of bits (bit_planes.cuh), for weights with so many scales in a chunk. */
#define QN_PERSISTENT_K_TILE_BYTES(n_scales) (520 * (n_scales))

typedef struct qn_persistent_partials {
    QN_GPU_PTR(const float) data;  /* [n_partials][stride] */
    QN_GPU_PTR(const float) sumsq; /* [n_sumsq], or none */
    uint32_t n_partials, stride, n_sumsq, n_cols;
    float eps;
} qn_persistent_partials;

/* ---- Products ---- */

/* What the columns of a product are. Column c of:
 *
 *   PLAIN   x[c]
 *   NORM    (x[c] + from[c]) * weight[c], not yet divided by the norm: x[c] + from[c] goes to x_out and its square, over a
 *           slice, to squares (the first block of each slice writes both)
 *   SWIGLU  silu(from[row + c]) * from[row2 + c]
 *   GATED   a Gated DeltaNet layer's heads: x[i] / sqrt(mean of the head's x^2 + eps) * weight[i % head] * silu(from[row + i]),
 *           heads of `head` values; i = c, or with `grouped` head k*rep + r of the columns is head r*n_k_heads + k
 *   MERGED  attention's parts (x: partials, maxima), merged, and with `gated` times the sigmoid of
 *           from[row + 2*h*head + head + d] for value d of head h
 *
 * then, where `rotation` is not 0, times signs[c] (if there are any) and through a normalised Walsh-Hadamard transform in
 * blocks of `rotation` columns; then whole numbers, 32767 (with weights of two bits 16383) for the largest magnitude of each
 * 128. Columns beyond n_cols are zeros. */
typedef enum qn_persistent_prologue {
    QN_PROLOGUE_PLAIN,
    QN_PROLOGUE_RMS_NORM,
    QN_PROLOGUE_SWIGLU,
    QN_PROLOGUE_GATED_NORM,
    QN_PROLOGUE_ATTENTION_COMBINE
} qn_persistent_prologue;

typedef struct qn_persistent_gemv {
    uint32_t prologue; /* qn_persistent_prologue */
    uint32_t n_cols;   /* a multiple of 32; with a rotation, of it */
    QN_GPU_PTR(const float) x;
    QN_GPU_PTR(float) x_out;
    QN_GPU_PTR(float) sumsq; /* [n_slices] */
    QN_GPU_PTR(const float) weight;
    QN_GPU_PTR(const float) signs;
    QN_GPU_PTR(const float) maxima; /* MERGED */
    qn_persistent_partials from;    /* n_partials 0: nothing is added, gated, or gates */
    uint32_t row, row2;             /* in `from` */
    uint32_t rotation;              /* 0, or a power of two from 32 to 1024; a slice has whole blocks of it */
    uint32_t head, n_heads, n_k_heads, grouped, gated, n_splits;
    float eps; /* GATED */
    /* Weights: an area of tiles of QN_BITS and QN_SCALES (matmul_cuda.h). */
    QN_GPU_PTR(const uint8_t) weights;
    uint32_t n_tiles, n_k_tiles;
    uint32_t slice_k_tiles, n_slices, slice_blocks; /* n_slices * slice_blocks is at most the number of blocks */
    QN_GPU_PTR(float) out;                          /* [n_slices][n_tiles * 16] */
    /* A few more rows of the same columns, whose weights are halves (tiles of 16 bits). The columns that they meet are floats,
     * neither rotated nor quantised. A slice's blocks share out its chunks one by one, so there is a part for each chunk
     * (qn_persistent_partials.n_partials is n_k_tiles for whoever reads them). n_f16_tiles 0: none. */
    QN_GPU_PTR(const uint8_t) f16_rows;
    QN_GPU_PTR(float) f16_out; /* [n_k_tiles][n_f16_tiles * 16] */
    uint32_t n_f16_tiles;
} qn_persistent_gemv;

/* ---- Gated DeltaNet: convolution, norms of keys and queries, gates, delta rule (deltanet_cuda.h: qn_gdn_step) ---- */

/* Heads of 128 by 128. A unit is 64 values of a value head; unit u is for block u modulo the number of blocks. */
typedef struct qn_persistent_delta {
    qn_persistent_partials qkv, alpha, beta; /* alpha, beta: number `row` + head */
    uint32_t qkv_row, alpha_row, beta_row;   /* in them */
    QN_GPU_PTR(const float) conv;            /* [taps][width] */
    QN_GPU_PTR(const float) bias;            /* [v_heads] */
    QN_GPU_PTR(const float) factor;          /* [v_heads] */
    QN_GPU_PTR(float) out;                   /* [v_heads][128]: of each value head, not normalised, not gated */
    uint64_t state_offset, inputs_offset;    /* in the session's memory, as of qn_gdn_step */
    uint32_t k_heads, v_heads, taps;
    float scale;
} qn_persistent_delta;

/* ---- Attention of one row over a cache of halves ---- */

/* Queries and keys are normalised, where there are weights for it, and turned; key and value go into the cache at the row's
 * position, as qn_rope_qk_norm_store puts them there; then scores and sums over all positions up to it, as qn_attention_decode leaves
 * them (attention_cuda.h). Positions are shared out to the splits in tiles of 16, so that few of them go to few splits; those
 * without any leave nothing.
 *
 * A unit is a split of a key-value head; unit u is for block u. n_kv_heads * n_splits is at most the number of blocks. The unit
 * that has the row's position computes key and value itself, and every unit its queries. */
typedef struct qn_persistent_attention {
    qn_persistent_partials qkv;
    uint32_t q_row, k_row, v_row; /* in qkv: query head h at q_row + h * query_stride */
    uint32_t query_stride;        /* head_dim, or 2 * head_dim where gates follow */
    uint32_t head_dim;            /* 64, 128 or 256 */
    uint32_t n_heads, n_kv_heads; /* at most QN_PERSISTENT_MAX_GROUP query heads a key-value head */
    uint32_t n_rot;               /* a multiple of 8 */
    uint32_t interleaved;
    uint32_t n_splits;                    /* a power of two, at most QN_PERSISTENT_MAX_SPLITS */
    QN_GPU_PTR(const float) query_weight; /* [head_dim], or none */
    QN_GPU_PTR(const float) key_weight;
    QN_GPU_PTR(const float) cosines; /* [n_rot/2] of the row */
    QN_GPU_PTR(const float) sines;
    qn_attention_gpu_cache cache;
    QN_GPU_PTR(float) partials; /* [n_heads][n_splits][head_dim] */
    QN_GPU_PTR(float) maxima;   /* [n_heads][n_splits][2] */
    float eps, scale;
} qn_persistent_attention;

/* ---- Floats for whatever follows the launch ---- */

/* out[i] = from[row + i], with `x`, x[i] + from[row + i], for i below n_rows. */
typedef struct qn_persistent_store {
    qn_persistent_partials from;
    struct {
        QN_GPU_PTR(float) out;
        QN_GPU_PTR(const float) x; /* or none; not a buffer that is written here at other places */
        uint32_t row, n_rows;
    } outs[QN_PERSISTENT_MAX_OUTS];
    uint32_t n_outs;
} qn_persistent_store;

typedef enum qn_persistent_phase_kind {
    QN_PHASE_GEMV,
    QN_PHASE_DELTA,
    QN_PHASE_ATTENTION,
    QN_PHASE_STORE
} qn_persistent_phase_kind;

typedef struct qn_persistent_phase {
    uint32_t kind;      /* qn_persistent_phase_kind */
    uint32_t next_gemv; /* index of the first product after this stage; n_phases: none */
    union {
        qn_persistent_gemv gemv;
        qn_persistent_delta delta;
        qn_persistent_attention attention;
        qn_persistent_store store;
    } u;
} qn_persistent_phase;

/* qn_persistent_decode - grid n_blocks, QN_PERSISTENT_THREADS threads. Defines: QN_BITS, QN_SCALES (of all products' tiles), QN_STAGES (steps of
 * weights in flight for each warp). */
typedef struct qn_persistent_args {
    QN_GPU_PTR(const qn_persistent_phase) phases; /* [n_phases] */
    QN_GPU_PTR(uint32_t) barrier;                 /* a counter, 0 before the first launch; each leaves 0 */
    QN_GPU_PTR(const uint32_t) positions;         /* the row's */
    QN_GPU_PTR(const uint64_t) memory;            /* address of the session's recurrent layers */
    uint32_t n_phases;
} qn_persistent_args;

#ifndef __CUDACC__

#include "base/status.h"

/* The device, as far as launches depend on it (fields of qn_cuda_info). */
typedef struct qn_persistent_gpu {
    uint32_t n_sms, max_shared_bytes;
    int major; /* of the compute capability */
} qn_persistent_gpu;

/* qn_persistent_gpu_supports - whether such tiles can be a chain's, on such a device. */
bool qn_persistent_gpu_supports(const qn_persistent_gpu *gpu, const qn_tile_layout *tiles);

/* qn_persistent_gpu_partition - how an area's product is shared out: sets slice_k_tiles, n_slices and slice_blocks of `product`, whose
 * n_tiles, n_k_tiles, n_cols, rotation and n_f16_tiles are set. QN_ERR_UNSUPPORTED where no way fits (a rotation that is no power
 * of two from 32 to 1024, sums that do not fit in shared memory). */
qn_status qn_persistent_gpu_partition(const qn_persistent_gpu *gpu, const qn_tile_layout *tiles, qn_persistent_gemv *gemv);

/* qn_persistent_gpu_splits - into how many splits the positions of an attention stage of such heads are shared out; 0 where it does
 * not take them. */
uint32_t qn_persistent_gpu_splits(const qn_persistent_gpu *gpu, size_t head_dim, size_t n_heads, size_t n_kv_heads,
                                  size_t n_rot);

/* qn_persistent_gpu_launch - its launch. */
qn_status qn_persistent_gpu_launch(const qn_persistent_gpu *gpu, const qn_tile_layout *tiles, qn_launch *out);

#endif
#endif
