/* Matrix products on the GPU: how weights and activations lie there, and what the kernels compute. Shared by C and CUDA.
 *
 *   out[token][row] = (or +=) sum over k of weight[row][k] * x[token][k]
 *
 * Weights are rearranged once, when they are uploaded (qn_matmul_pack), into tiles of 16 rows by 256 columns, as the matrix
 * units take them: a type with b bits a weight has
 *
 *   codes  [n_k_tiles][n_tiles][b * 512]   a chunk is 256 columns; b sets of 512 bytes, each 32 lanes of 16 bytes
 *   scales [n_k_tiles][n_tiles][QN_SCALES][16] halves, then as many offsets where the type has them; right behind all codes
 *
 * Lane 4g+t of a set has four words: rows g and g+8 of the first half of each run of 32 columns, then of the second half. A
 * word holds columns 4t to 4t+3 of that half, column 4t+i in its byte i: bit j of the byte (1 bit a weight) is run j of the
 * chunk, field j (2 or 4 bits) of set q is run j + q*8/b, the whole byte is run q. Halves: set 2r+p is run r, columns 4t+p in
 * the low and 4t+p+2 in the high half of the word. Scales stand as rows 0, 8, 1, 9, ...; one covers 8/QN_SCALES runs. Rows and
 * columns beyond the matrix are zeros, and so is their scale. Matrices that share activations may share one such area, each
 * from a tile of its own on.
 *
 *   type                    b   QN_SCALES   weight
 *   Q1_0                    1   2           (2 code - 1) scale
 *   Q2_0                    2   4           (code - 1) scale
 *   PQ2_0, PTQ1_0, TQ*_0    2   2           (code - 1) scale         TQ*_0's scale, one a block of 256, twice
 *   Q4_0, Q4_1              4   8           code scale + offset      Q4_0's offset is -8 scale
 *   Q8_0                    8   8           (code - 128) scale
 *   F16, and all others     16              the half                 of other types rounded to nearest, finite
 *
 * Activations have three forms, written by qn_matmul_acts:
 *
 *   QN_ACTS_INT8_N1       one token in int8 with a scale for each run of 32 (matmul.h has the rule), [n_k_tiles][576]: run r's words
 *                     t and t+4 (columns 4t.., 16+4t..) at byte 64r + 16t + 8(r odd), the 8 bytes beside them zeros; from byte
 *                     512 on for each pair of runs 2p, 2p+1 four floats: both scales, minus the sum of both runs' values, 0
 *   QN_ACTS_INT8_N8   up to 8 tokens a group, [n_groups][n_k_tiles][2432]: for each pair of runs p 32 lanes of 16 bytes, lane
 *                     4*token + t: words t, t+4 of run 2p, of run 2p+1; from byte 2048 on [pair][token/2][run of pair][token of
 *                     the two] scales; from byte 2304 on [pair][token] minus the sum of both runs' values
 *   QN_ACTS_F16    any number of tokens in halves, each token divided by a power of two that brings its largest magnitude
 *                     into [0.5, 1): [K/64][capacity/8][8 tokens][64 columns], 128 bytes a token in eight pieces of 16, piece i
 *                     in place i ^ (token % 8), which is how matrix units like to find them; within a run of 32 columns value
 *                     16h + 4t + p + 2e is at 16p + 8h + 2t + e. And scale [capacity]: what products are multiplied by
 *
 * Halves are far more accurate than int8 (2^-11 of each value), and stand in for the two-term batches of the CPU. A token with
 * an infinity or NaN gets NaN in the elements that it touches, and no other token's.
 *
 * Sums are float32 in an order that depends on the shapes and on the number of multiprocessors alone: the same bits from run to
 * run. */
#ifndef QN_KERNELS_MATMUL_MATMUL_CUDA_H
#define QN_KERNELS_MATMUL_MATMUL_CUDA_H

#include "kernels/launch.h"

#define QN_ACTS_INT8_N1 0
#define QN_ACTS_INT8_N8 1
#define QN_ACTS_F16 2

/* What becomes of a row before it is quantised (qn_matmul_acts). */
#define QN_ACTS_OP_NONE 0     /* x */
#define QN_ACTS_OP_RMS_NORM 1 /* x * weight / sqrt(mean(x^2) + eps) */
#define QN_ACTS_OP_SWIGLU 2   /* silu(x) * x2 */

enum {
    QN_TILE_ROWS = 16,
    QN_TILE_COLS = 256,
    QN_TILE_GROUPS = 8,
    QN_FRAGMENT_BYTES = 512,     /* bytes of a set of codes */
    QN_ACTS_N1_TILE_BYTES = 576, /* bytes of a chunk */
    QN_ACTS_N8_TILE_BYTES = 2432,
    QN_MMA_N = 8, /* tokens that are columns together */
    QN_MATMUL_OUTS = 4,
    QN_GEMV_MAX_WARPS = 16,         /* of a block of qn_matmul_gemv, at most */
    QN_MATMUL_INT8_MAX_TOKENS = 16, /* with more, halves and qn_matmul_gemm are faster than int8 columns */
    QN_GEMV_F16_MAX_TOKENS = 8,     /* with more, qn_matmul_gemm is faster */
    QN_QUANTIZE_ACTS_THREADS = 256,
    QN_GEMM_TILE_M = 256, /* of weights, that a block of qn_matmul_gemm takes */
    QN_GEMM_TILE_N = 128,
    QN_GEMM_MAX_CLUSTER = 8, /* blocks, at most: as many as every device has that has clusters */
    QN_GEMM_THREADS = 384
};

/* Steps of 64 columns of activations that are under way at most, by a block's tokens. */
#define QN_GEMM_STAGES(tokens) ((tokens) == QN_GEMM_TILE_N ? 6 : 12)

/* Where the product of one matrix goes: rows first_tile*16 on of the area, n_rows of them. */
typedef struct qn_matmul_out {
    QN_GPU_PTR(float) data; /* [n_tokens][stride] */
    uint32_t first_tile, n_rows, stride;
    uint32_t accumulate; /* added to what is there */
} qn_matmul_out;

/* qn_matmul_gemv - few tokens, bound by the reading of weights.
 *
 * grid (blocks, groups of 8 tokens); a block takes tiles [n_tiles * x / blocks, n_tiles * (x+1) / blocks). Its warps share the
 * chunks: warp w takes those with c mod n_k_warps = w mod n_k_warps, and of the tiles, QN_STEP_TILES at a time, those of its
 * number w / n_k_warps. Defines: QN_ACTS_LAYOUT (of the activations), QN_BITS, QN_SCALES, QN_OFFSET, QN_STEP_TILES, QN_STAGES (steps of
 * weights in flight for each warp). int8 forms: 1 and 2 bits alone. */
typedef struct qn_matmul_gemv_args {
    QN_GPU_PTR(const uint8_t) weights;
    QN_GPU_PTR(const uint8_t) acts;
    QN_GPU_PTR(const float) token_scale; /* of halves */
    uint32_t n_tiles, n_k_tiles, n_tokens;
    uint32_t capacity; /* tokens that the activations have room for */
    uint32_t n_k_warps;
    uint32_t reduce_tiles; /* tiles after which the warps' sums meet; a multiple of QN_STEP_TILES * warps / n_k_warps */
    uint32_t n_outs;
    qn_matmul_out outs[QN_MATMUL_OUTS]; /* first_tile rising */
} qn_matmul_gemv_args;

/* qn_matmul_gemm - any number of tokens, in halves, bound by the matrix units.
 *
 * grid (ceil(n_tokens / QN_TILE_N), clusters, blocks of a cluster, up to 8), QN_GEMM_THREADS threads. Blocks of rows are
 * QN_GEMM_TILE_M. Each block of the first n_unsplit clusters takes one; the blocks of each further cluster share one: block z
 * takes chunks [n_k_tiles * z / blocks, n_k_tiles * (z+1) / blocks), at least one, and their sums are added in the order of z.
 * The activations' capacity is a multiple of QN_GEMM_TILE_N. Defines: QN_BITS, QN_SCALES, QN_OFFSET, QN_TILE_N (of a block:
 * 32, 64 or QN_GEMM_TILE_N). */
typedef struct qn_matmul_gemm_args {
    QN_GPU_PTR(const uint8_t) weights;
    QN_GPU_PTR(const uint8_t) acts;
    QN_GPU_PTR(const float) token_scale;
    uint32_t n_tiles, n_k_tiles, n_tokens, capacity;
    uint32_t n_unsplit;
    uint32_t n_outs;
    qn_matmul_out outs[QN_MATMUL_OUTS];
} qn_matmul_gemm_args;

/* qn_matmul_acts - rows of floats into one of the forms. grid (parts of a row, tokens, rounded up to whole groups for columns),
 * QN_QUANTIZE_ACTS_THREADS threads; the more parts the sooner, since each reads the whole row and writes its share of it. Columns beyond
 * n_cols become zeros, and so do tokens that are missing in a group of columns. Defines: QN_ACTS_LAYOUT, QN_OP. */
typedef struct qn_matmul_quantize_acts_args {
    QN_GPU_PTR(const float) x;
    QN_GPU_PTR(const float) x2;     /* QN_ACTS_OP_SWIGLU: the other factor */
    QN_GPU_PTR(const float) weight; /* QN_ACTS_OP_RMS_NORM: [n_cols] */
    QN_GPU_PTR(uint8_t) out;
    QN_GPU_PTR(float) token_scale; /* of halves */
    uint32_t n_cols, n_k_tiles, n_tokens, capacity;
    uint32_t stride; /* of x and x2, floats from one token to the next */
    float eps;
} qn_matmul_quantize_acts_args;

/* qn_matmul_pack - rows as a file stores them into tiles. A warp a tile and chunk: grid (chunks, tiles of these rows), 32
 * threads. `stored` says how to read them. */
typedef enum qn_matmul_stored {
    QN_STORED_Q1_0,
    QN_STORED_Q2_0,
    QN_STORED_PQ2_0,
    QN_STORED_OX2_0,
    QN_STORED_PTQ1_0,
    QN_STORED_TQ1_0,
    QN_STORED_TQ2_0,
    QN_STORED_Q4_0,
    QN_STORED_Q4_1,
    QN_STORED_Q8_0,
    QN_STORED_F16,
    QN_STORED_BF16
} qn_matmul_stored;

typedef struct qn_matmul_pack_args {
    QN_GPU_PTR(const uint8_t) rows; /* [n_rows] of row_bytes */
    QN_GPU_PTR(uint8_t) tiles;      /* the area */
    uint64_t row_bytes;
    uint32_t n_rows, n_cols;
    uint32_t n_tiles, n_k_tiles; /* of the area */
    uint32_t first_tile;
    uint32_t stored; /* qn_matmul_stored */
    uint32_t bits, n_scales, has_offset;
} qn_matmul_pack_args;

#ifndef __CUDACC__

#include "kernels/matmul/matmul.h"

/* How a type lies in tiles. */
typedef struct qn_tile_layout {
    qn_matmul_stored stored;
    uint32_t bits, n_scales, has_offset;
    bool as_f16; /* the kernels do not read this type's rows: the caller decodes them to F16 (qn_matmul_gpu_f16_row) */
} qn_tile_layout;

qn_tile_layout qn_matmul_gpu_tile_layout(const qn_type_info *type);

/* qn_matmul_gpu_f16_row - one row of n_cols weights as F16, finite: for types whose tiles are as_f16. scratch [n_cols]. */
void qn_matmul_gpu_f16_row(const qn_type_info *type, const uint8_t *row, size_t n_cols, float *scratch, uint16_t *f16);

/* qn_matmul_gpu_tile_count, _bytes - tiles of a matrix's rows; bytes of an area of so many tiles and columns. QN_ERR_INVALID
 * when it does not fit a size_t, or 32-bit counts. */
size_t qn_matmul_gpu_tile_count(size_t n_rows);
qn_status qn_matmul_gpu_bytes(const qn_tile_layout *tiles, size_t n_tiles, size_t n_cols, size_t *bytes);

/* The device, as far as launches depend on it: fields of qn_cuda_info. */
typedef struct qn_matmul_gpu {
    uint32_t n_sms, max_shared_bytes;
    bool clusters; /* compute capability 9.0 and later */
} qn_matmul_gpu;

/* An area of tiles that shares activations, and where its parts' products go. */
typedef struct qn_tiled_matrix {
    qn_tile_layout tiles;
    uint64_t address; /* a multiple of 128 */
    size_t n_tiles, n_cols;
    size_t n_outs;
    qn_matmul_out outs[QN_MATMUL_OUTS];
} qn_tiled_matrix;

/* Activations of a step. */
typedef struct qn_matmul_acts {
    int layout;                    /* QN_ACTS_* */
    uint64_t address, token_scale; /* address a multiple of 1024 */
    size_t n_cols, capacity;       /* capacity: tokens, a multiple of QN_GEMM_TILE_N for halves */
} qn_matmul_acts;

/* qn_matmul_gpu_acts_layout - the form for n_tokens tokens against such tiles. `fine` asks for more than int8. */
int qn_matmul_gpu_acts_layout(const qn_tile_layout *tiles, size_t n_tokens, bool hilo);

/* qn_matmul_gpu_acts_bytes - bytes of activations of a form. QN_ERR_INVALID for a capacity that the form does not have. */
qn_status qn_matmul_gpu_acts_bytes(int layout, size_t n_cols, size_t capacity, size_t *bytes);

/* A launch with its arguments. */
typedef struct qn_matmul_launch {
    qn_launch launch;
    union {
        qn_matmul_gemv_args gemv;
        qn_matmul_gemm_args gemm;
        qn_matmul_quantize_acts_args acts;
        qn_matmul_pack_args pack;
    } args;
} qn_matmul_launch;

/* qn_matmul_gpu_pack - rows [n_rows] at `rows`, any alignment that the type's floats have, to tiles first_tile on of the area.
 */
qn_status qn_matmul_gpu_pack(const qn_tiled_matrix *matrix, uint64_t rows, size_t row_bytes, size_t n_rows, size_t first_tile,
                             qn_matmul_launch *out);

/* qn_matmul_gpu_quantize - op is QN_ACTS_OP_NONE, _NORM (with weight and eps) or _SWIGLU (with x2). */
qn_status qn_matmul_gpu_quantize(const qn_matmul_acts *acts, int op, uint64_t x, uint64_t x2, uint64_t weight, float eps,
                                 size_t stride, size_t n_tokens, qn_matmul_launch *out);

/* qn_matmul_gpu_matmul - the product of an area and activations of its width: one launch. QN_ERR_INVALID for a form that the
 * tiles do not take, widths that differ, more tokens than there is room for, or shared memory that the device does not have. */
qn_status qn_matmul_gpu_matmul(const qn_matmul_gpu *gpu, const qn_tiled_matrix *matrix, const qn_matmul_acts *acts,
                               size_t n_tokens, qn_matmul_launch *out);

#endif
#endif
