/* Matmul on the GPU: layouts of weights and activations, kernels and their arguments, launches. Shared by C and CUDA.
 *
 *   out[token][row] = (or +=) sum over k of weight[row][k] * x[token][k]
 *
 * Weights. qn_matmul_pack rearranges them once, at upload, into tiles of 16 rows by 256 columns (a k-tile), in the
 * order of the tensor cores' A fragments. A type with b bits per weight is stored as
 *
 *   codes  [n_k_tiles][n_tiles][b fragments][32 lanes][16 bytes]
 *   scales [n_k_tiles][n_tiles][QN_SCALES][16 rows] fp16, then offsets in the same form if the type has them; directly
 *          after all codes
 *
 * A group is 32 columns; a k-tile has 8 groups (QN_TILE_GROUPS). Lane 4g+t (g 0-7, t 0-3) of a fragment has four 32-bit
 * words, as mma.m16n8k32 expects them: row g and row g+8 of the first 16 columns of the groups, then of the last 16. A
 * word has columns 4t to 4t+3 of its 16 columns, column 4t+i in byte i:
 *
 *   b = 1       bit j of the byte is group j of the k-tile
 *   b = 2, 4    field j of fragment q is group j + q*8/b
 *   b = 8       the byte is group q
 *   b = 16      fp16: fragment 2r+p is group r, columns 4t+p in the low and 4t+p+2 in the high half of the word
 *
 * Scales are in the row order 0, 8, 1, 9, ...; one scale covers 8/QN_SCALES groups. Rows and columns beyond the matrix
 * are zeros, with scale 0. Matrices that share activations may share one tiled matrix, each starting at a tile
 * boundary.
 *
 *   type                     b   QN_SCALES   weight
 *   Q1_0                     1   2           (2 code - 1) scale
 *   Q2_0                     2   4           (code - 1) scale
 *   PQ2_0 OX2_0 PTQ1_0 TQ*   2   2           (code - 1) scale         TQ*: the scale of a block of 256, twice
 *   Q4_0 Q4_1                4   8           code scale + offset      Q4_0: offset is -8 scale
 *   Q8_0                     8   8           (code - 128) scale
 *   F16, all others          16              the fp16 value           all others: rounded to nearest, saturated
 *
 * Activations. qn_matmul_quantize_acts writes one of three layouts (QN_ACTS_LAYOUT):
 *
 * QN_ACTS_HILO_N1: one token as integers of 16 bits, 256 hi + lo with hi and lo in int8, with a scale for each 128
 * columns: values times QN_HILO_MAX / amax, rounded; all zeros if amax < 1e-30. [n_k_tiles][528 bytes]: hi of the 256
 * columns in order, then lo of these columns, two float scales, and 8 bytes that are neither written nor read.
 *
 * QN_ACTS_F16: any number of tokens in fp16, each token divided by the power of two that scales its amax into [0.5, 1):
 * [K/64][capacity/8][8 tokens][64 columns]. A token's 128 bytes are eight pieces of 16 bytes; piece i is stored at i ^
 * (token % 8), the 128-byte swizzle of wgmma. Within a group, value 16h + 4t + p + 2e is at 16p + 8h + 2t + e, which is
 * the column order of the fp16 weight fragments. token_scale [capacity]: the factor of each token's results. fp16 is
 * far more accurate than int8 (2^-11 of each value).
 *
 * QN_ACTS_HILO: up to QN_FEW_MAX_TOKENS tokens as integers of 16 bits, 256 hi + lo with hi and lo in int8: each token's
 * values times QN_HILO_MAX / amax of a block of 128 columns, rounded; all zeros if amax < 1e-30.
 * [K/128][capacity/8][hi, lo][8 tokens][128 bytes]: a token's columns in order, piece i of 16 bytes stored at
 * i ^ (token % 8), the 128-byte swizzle of wgmma. scale [K/128][capacity]: the factor of the sums of a token and a
 * block by codes times 64. After an RMS norm the values lack the norm's division; the matmul multiplies its results by
 * the norm's factor instead, so that every block can be quantised by itself. For this the sums of squares of each token
 * and block, [K/128][capacity] floats, follow the scales.
 *
 * The same integers of up to QN_PLANES_MAX_TOKENS tokens as bit planes, for weights of b bits on compute capability
 * 9.0, in the same memory: [K/128][QN_PLANES_BLOCK_BYTES(T)], T QN_PLANES_BLOCK_TOKENS of the tokens. First three
 * operands B of binary wgmma, [N/8][2][8][16 bytes]: 8 columns by twice 128 bits of K. The position of a bit is that of
 * the weight in its fragment: byte 4t + i, bit b j of half p is column 4t + i of half p of group j; for b = 1 groups of
 * the other 128 columns of the k-tile are zeros. The integers are taken as unsigned: column c of a token is plane c of
 * 16, at the low bits of codes; for b = 2 it has plane c - 1 at the high bits, which count double. Columns 2i are 32
 * (token / 4) + 8 (i / 2) + 2 (token % 4) + i % 2 of the first operand, 2i + 1 the same of the second one, at
 * QN_PLANES_UPPER. Of the third one, at QN_PLANES_NEGATIVE, column 2 (token % 4) + token / 4 has the bits of all codes
 * of negative integers, and counts -65536.
 *
 * Then, for each token, 16 bytes: 64 scale, the sums of the integers of the first 64 columns, of the others, and of
 * all.
 *
 * A token with an infinity or NaN gets NaN in the elements that it affects; other tokens are not affected.
 *
 * Kernels by weights, number of tokens and activations (qn_matmul_gpu_acts_layout, qn_matmul_gpu_matmul):
 *
 *   b        tokens           layout            kernel
 *   1, 2     1                QN_ACTS_HILO_N1   qn_matmul_gemv
 *   1, 2     2 to 64          QN_ACTS_HILO      qn_matmul_gemm_few, of bit planes to QN_PLANES_MAX_TOKENS with wgmma
 *   1, 2     more than 64     QN_ACTS_F16       qn_matmul_gemm
 *   4, 8     1 to 8           QN_ACTS_F16       qn_matmul_gemv
 *   16       1 to 8           QN_ACTS_F16       qn_matmul_gemv; qn_matmul_gemm if n_tiles >= 2 n_sms
 *   4 to 16  more than 8      QN_ACTS_F16       qn_matmul_gemm
 *   16       2 to 64          rows of floats    qn_matmul_gemv_norm, up to QN_GEMV_NORM_MAX_ROWS rows of weights
 *
 * Accumulators are float32, added in an order that depends only on the shapes and on the number of SMs: results are
 * bit-identical from run to run.
 *
 * Adding a format. In models a new format works without changes here, as fp16 tiles (as_f16: the host dequantises rows
 * to F16 at upload). quern/cuda.h packs rows as they are stored: there the format needs a line in QN_DEQUANTIZED_TYPES
 * and a case in matmul_pack.cu. To keep its codes packed, it needs a line in QN_TILED_TYPES, whose code is a function
 * of quant/layout.h. b must divide 8, and the zero point follows from b (QN_TILE_ZERO): a 3-bit format is stored as
 * 4-bit tiles with an offset. If no row of the table of types above has its bits, scales and offset, it also needs rows
 * of gemv, gemm and, with 1 or 2 bits, few in variants.def, and cases in dequantize_fragment (tiles.cuh), dequantize_8
 * (embed.cu), gemv.cu, gemv_acts.cuh and gemm.cu. The persistent decode kernel supports tiles of 1 and 2 bits without
 * offset; it needs a row of persistent/variants.def, and plane_acts.cuh. */
#ifndef QN_CUDA_KERNELS_MATMUL_MATMUL_H
#define QN_CUDA_KERNELS_MATMUL_MATMUL_H

#include "cuda/kernels/hilo.h"

#define QN_ACTS_HILO_N1 0
#define QN_ACTS_F16 1
#define QN_ACTS_HILO 2
#define QN_ACTS_HILO_F16 3 /* qn_matmul_quantize_acts only: writes both QN_ACTS_HILO and QN_ACTS_F16 */

/* Operation on a row before it is quantised (QN_OP). */
#define QN_ACTS_OP_NONE 0     /* x */
#define QN_ACTS_OP_RMS_NORM 1 /* x * weight / sqrt(mean(x^2) + eps) */
#define QN_ACTS_OP_SWIGLU 2   /* silu(x) * x2 */

enum {
    QN_TILE_ROWS = 16,
    QN_TILE_COLS = 256,
    QN_TILE_GROUPS = 8,
    QN_FRAGMENT_BYTES = 512,     /* 32 lanes of 16 bytes */
    QN_ACTS_N1_TILE_BYTES = 528, /* per k-tile */
    QN_GEMV_N1_TILE_BYTES = 544, /* per k-tile of the operands that qn_matmul_gemv makes in shared memory */
    QN_MATMUL_OUTS = 4,
    QN_GEMV_MAX_WARPS = 16, /* upper bound per block of qn_matmul_gemv */
    QN_MATMUL_MAX_HADAMARD = 1024,
    QN_FEW_MAX_TOKENS = 64,     /* above, qn_matmul_gemm is faster than qn_matmul_gemm_few */
    QN_GEMV_F16_MAX_TOKENS = 8, /* above, qn_matmul_gemm is faster */
    QN_GEMM_TILE_N = 128,
    QN_GEMM_MAX_CLUSTER = 8 /* blocks; every device with clusters supports this size */
};

/* Threads of a block of qn_matmul_gemm by its rows of weights, 256 or 192. */
#define QN_GEMM_THREADS(tile_m) ((tile_m) == 192 ? 512 : 384)

/* Threads of a block of qn_matmul_quantize_acts by layout. */
#define QN_QUANTIZE_ACTS_THREADS(layout) ((layout) == QN_ACTS_HILO_N1 || (layout) == QN_ACTS_HILO ? 256 : 1024)

/* Pipeline stages of qn_matmul_gemm (64 columns of activations each) by tokens per block. */
#define QN_GEMM_STAGES(tokens) ((tokens) == QN_GEMM_TILE_N ? 6 : 12)

/* Shared memory of qn_matmul_gemm's mbarriers, before the stages, which begin at a multiple of 1024 bytes. Split-K
 * partials reuse the memory of the stages, never the memory of the mbarriers, which must not be used otherwise
 * (cuda/kernels/mbarrier.cuh). */
enum { QN_GEMM_BARRIER_BYTES = 1024 };

/* qn_matmul_gemm_few: rows of weights and most tokens of a block, most blocks, threads; by tokens of a block, the
 * number of stages of activations (QN_ACTS_HILO_COLS columns each); bytes of a stage of activations with its scales,
 * and of a stage of weights (QN_TILE_COLS columns). */
enum { QN_FEW_TILE_M = 256, QN_FEW_TILE_N = 32, QN_FEW_MAX_BLOCKS = 192, QN_FEW_THREADS = 640 };
#define QN_FEW_EMPTY 0xffffffffu /* of a word that has no sum yet; operations return another NaN, 0x7fffffff */
#define QN_FEW_ACTS_STAGES(tokens) ((tokens) == QN_FEW_TILE_N ? 6 : 8)
#define QN_FEW_ACTS_STAGE_BYTES(tokens) ((tokens) / QN_MMA_N * QN_ACTS_HILO_BYTES + (tokens)*4)
#define QN_FEW_WEIGHT_STAGE_BYTES(bits, scales)                                                                        \
    (QN_FEW_TILE_M / QN_TILE_ROWS * ((bits)*QN_FRAGMENT_BYTES + (scales)*2 * QN_TILE_ROWS))

/* Shared memory of qn_matmul_gemm_few's outputs: a factor for each token; what all threads share; the results of
 * up to 16 tokens in f32, with padding against bank conflicts. */
#define QN_FEW_ROUND_TOKENS(tokens) ((tokens) < 16 ? (tokens) : 16)
#define QN_FEW_RESULT_STRIDE (QN_FEW_TILE_M + 4)
#define QN_FEW_OUTPUT_BYTES(tokens) ((tokens)*4 + 32 + QN_FEW_ROUND_TOKENS(tokens) * QN_FEW_RESULT_STRIDE * 4)

/* Of bit planes: a stage has a unit's weights and planes; where the stages begin, after the outputs. */
#define QN_FEW_PLANES_STAGE_BYTES(bits, scales, tokens)                                                                \
    (QN_FEW_WEIGHT_STAGE_BYTES(bits, scales) + QN_TILE_COLS / QN_ACTS_HILO_COLS * QN_PLANES_BLOCK_BYTES(tokens))
#define QN_FEW_PLANES_STAGES_AT(tokens) ((QN_FEW_OUTPUT_BYTES(tokens) + 127) / 128 * 128)

/* Output of one matrix: n_rows rows from row first_tile*16 of the tiled matrix on. */
typedef struct qn_matmul_out {
    QN_GPU_PTR(void) data; /* [n_tokens][stride] of the type of all outputs */
    uint32_t first_tile, n_rows, stride;
    uint32_t accumulate; /* 1: added to data, 0: stored */
} qn_matmul_out;

/* qn_matmul_gemv - One token in hi/lo int8, or up to 8 in fp16; bound by reading the weights.
 *
 * grid (blocks). A block computes tiles [n_tiles * x / blocks, n_tiles * (x+1) / blocks). Its warps are split over K
 * and M: warp w processes the k-tiles c with c mod n_k_warps = w mod n_k_warps, and every (warps / n_k_warps)-th step
 * of QN_STEP_TILES tiles, starting at step w / n_k_warps. Defines: QN_ACTS_LAYOUT, QN_BITS,
 * QN_SCALES, QN_OFFSET, QN_STEP_TILES, QN_STAGES (steps of weights in flight per warp). Hi/lo int8 is for 1 and 2 bits,
 * fp16 for more. */
typedef struct qn_matmul_gemv_args {
    QN_GPU_PTR(const uint8_t) weights;
    QN_GPU_PTR(const uint8_t) acts;
    QN_GPU_PTR(const float) token_scale; /* QN_ACTS_F16 only */
    uint32_t n_tiles, n_k_tiles, n_tokens;
    uint32_t capacity; /* tokens allocated in acts */
    uint32_t n_k_warps;
    uint32_t reduce_tiles; /* tiles per reduction over the warps; a multiple of QN_STEP_TILES * warps / n_k_warps */
    uint32_t n_outs;
    uint32_t out_dtype; /* qn_dtype of all outputs: f32, f16 or bf16. Sums are f32 and rounded when they are stored */
    qn_matmul_out outs[QN_MATMUL_OUTS]; /* first_tile ascending */
} qn_matmul_gemv_args;

/* qn_matmul_gemm - Any number of tokens, QN_ACTS_F16; bound by the tensor cores.
 *
 * grid (ceil(n_tokens / QN_TILE_N), clusters, blocks of a cluster, up to 8), QN_GEMM_THREADS threads. A block of rows
 * is QN_TILE_M. In the first n_unsplit clusters each block computes its own block of rows. In each further cluster
 * all blocks compute one block of rows by split-K: block z processes k-tiles [n_k_tiles * z / blocks, n_k_tiles * (z+1)
 * / blocks), at least one, and the partials are added in the order of z. capacity is a multiple of QN_GEMM_TILE_N.
 * Defines: QN_BITS, QN_SCALES, QN_OFFSET, QN_TILE_N (tokens per block: 32, 64 or QN_GEMM_TILE_N), QN_TILE_M
 * (256, or 192 with QN_GEMM_TILE_N tokens). */
typedef struct qn_matmul_gemm_args {
    QN_GPU_PTR(const uint8_t) weights;
    QN_GPU_PTR(const uint8_t) acts;
    QN_GPU_PTR(const float) token_scale;
    uint32_t n_tiles, n_k_tiles, n_tokens, capacity;
    uint32_t n_unsplit;
    uint32_t n_outs, out_dtype; /* as in qn_matmul_gemv_args */
    qn_matmul_out outs[QN_MATMUL_OUTS];
} qn_matmul_gemm_args;

/* Activations of QN_ACTS_HILO that the epilogue of qn_matmul_gemm_few writes for the next matmul. */
typedef struct qn_matmul_few_next {
    QN_GPU_PTR(uint8_t) acts;
    QN_GPU_PTR(float) scale;
    QN_GPU_PTR(float) sumsq;        /* QN_ACTS_OP_RMS_NORM */
    QN_GPU_PTR(const float) weight; /* of the norm */
    qn_hilo_hadamard hadamard;      /* of up to QN_ACTS_HILO_COLS columns */
    uint32_t capacity;
    uint32_t planes; /* bits of the weights that read bit planes; 0: hi/lo */
    uint32_t op;     /* QN_ACTS_OP_*; QN_ACTS_OP_NONE: the epilogue writes no activations */
} qn_matmul_few_next;

/* qn_matmul_gemm_few - Few tokens, QN_ACTS_HILO, by weights of 1 and 2 bits; bound by the tensor cores, int8 or, of bit
 * planes, binary ones.
 *
 * grid (blocks, ceil(n_tokens / QN_TILE_N)), QN_FEW_THREADS threads. A unit is QN_FEW_TILE_M rows by one k-tile. The
 * U = n_row_blocks * n_k_tiles units are numbered along the columns of one row block after another. Part p has the
 * units [U * p / n_parts, U * (p+1) / n_parts), at least one; block x has part x, or with block_parts 2 the parts 2x
 * and 2x + 1, if that exists. If several blocks share a row block, the first of them waits for the sums of the others
 * and adds them, in an order that depends on U and n_parts only: results of a token do not depend on block_parts,
 * QN_TILE_N or other tokens. capacity is a multiple of QN_GEMM_TILE_N. Defines: QN_BITS, QN_SCALES, QN_PLANES (1:
 * activations are bit planes), QN_TILE_N (tokens of a block: 4 or 8 of bit planes, else 8, 16 or QN_FEW_TILE_N).
 *
 * Outputs by next.op:
 *
 *   QN_ACTS_OP_NONE       outs
 *   QN_ACTS_OP_RMS_NORM   the results are added to outs[0], the only output, of f32; next is the norm of its values,
 *                         without the division
 *   QN_ACTS_OP_SWIGLU     outs[0] is gate and outs[1] is up, with the same number of rows; only next is stored:
 *                         silu(gate) * up. A row block is QN_FEW_TILE_M / 2 rows of each, and n_row_blocks is even
 *
 * Columns of next up to the end of its last k-tile are written, as zeros beyond the rows. */
typedef struct qn_matmul_few_args {
    QN_GPU_PTR(const uint8_t) weights;
    QN_GPU_PTR(const uint8_t) acts;
    QN_GPU_PTR(const float) acts_scale;
    QN_GPU_PTR(const float) sumsq; /* of the activations, after an RMS norm; 0: none */
    QN_GPU_PTR(void) slots; /* [grid.y][grid.x][QN_FEW_TILE_M][QN_TILE_N], QN_FEW_EMPTY before and after the launch */
    QN_GPU_PTR(void) first_parts; /* the same, of any contents */
    uint32_t n_tiles, n_k_tiles, n_tokens, capacity;
    uint32_t n_row_blocks, n_parts, block_parts;
    uint32_t up_tile; /* SwiGLU: the first tile of up; 0: none */
    uint32_t n_cols;  /* of the RMS norm of the activations, with its eps */
    float eps;
    uint32_t weight_stages;     /* sm_90a only: stages of the ring buffer of weights */
    uint32_t n_outs, out_dtype; /* as in qn_matmul_gemv_args */
    qn_matmul_out outs[QN_MATMUL_OUTS];
    qn_matmul_few_next next;
} qn_matmul_few_args;

/* qn_matmul_gemv_norm - Few rows of fp16 weights by the RMS norm of up to QN_FEW_MAX_TOKENS rows of floats, without
 * activations in between; bound by latency.
 *
 * grid (k-tiles, groups of QN_GEMV_NORM_TILES tiles, octets of tokens), QN_GEMV_NORM_THREADS threads. The grid may have
 * fewer blocks in z than octets: each block then has several octets. For each octet and group of tiles, the last block
 * to store its partials adds the partials of all k-tiles in order. */
enum {
    QN_GEMV_NORM_THREADS = 256,
    QN_GEMV_NORM_TILES = 2,
    QN_GEMV_NORM_MAX_ROWS = 256,
    QN_GEMV_NORM_PARTIALS = QN_GEMV_NORM_TILES * QN_TILE_ROWS * QN_MMA_N + QN_MMA_N /* floats of a block */
};

typedef struct qn_matmul_gemv_norm_args {
    QN_GPU_PTR(const uint8_t) weights;
    QN_GPU_PTR(const float) x;     /* [n_tokens][stride] */
    QN_GPU_PTR(const float) norm;  /* [n_cols] */
    QN_GPU_PTR(uint32_t) counters; /* [octets][grid.y]: zeros before and after the launch */
    QN_GPU_PTR(float) partials;    /* [octets][grid.y][n_k_tiles][QN_GEMV_NORM_PARTIALS] */
    uint32_t n_tiles, n_k_tiles, n_tokens, n_cols, stride;
    float eps;
    uint32_t n_outs;
    qn_matmul_out outs[QN_MATMUL_OUTS]; /* f32; first_tile ascending */
} qn_matmul_gemv_norm_args;

/* The second result of qn_matmul_quantize_acts with QN_ACTS_HILO_F16. */
typedef struct qn_matmul_f16_acts {
    QN_GPU_PTR(uint8_t) out;
    QN_GPU_PTR(float) token_scale;
    uint32_t capacity;
} qn_matmul_f16_acts;

/* qn_matmul_quantize_acts - Applies QN_OP to rows of floats and converts them to one of the layouts. grid (splits of a
 * row, tokens), QN_QUANTIZE_ACTS_THREADS threads. Only QN_ACTS_HILO_N1 and QN_ACTS_HILO have more than one split; for
 * the RMS norm each split of QN_ACTS_HILO_N1 reads the whole row. Columns beyond n_cols are written as zeros. Defines:
 * QN_ACTS_LAYOUT, QN_OP; QN_16BIT: x and x2 are fp16 or bf16 instead of f32. */
typedef struct qn_matmul_quantize_acts_args {
    QN_GPU_PTR(const void) x;
    QN_GPU_PTR(const void) x2;      /* QN_ACTS_OP_SWIGLU: the second factor */
    QN_GPU_PTR(const float) weight; /* QN_ACTS_OP_RMS_NORM: [n_cols] */
    QN_GPU_PTR(uint8_t) out;
    QN_GPU_PTR(float) scale; /* of the layout; QN_ACTS_HILO_N1 has none */
    QN_GPU_PTR(void) slots;  /* with QN_ACTS_HILO: of qn_matmul_gemm_few, slot_bytes of them become QN_FEW_EMPTY */
    uint32_t n_cols, n_k_tiles, n_tokens, capacity;
    uint32_t stride; /* of x and x2, in elements */
    float eps;
    uint32_t slot_bytes;       /* a multiple of 16 */
    uint32_t planes;           /* with QN_ACTS_HILO: bits of the weights that read bit planes; 0: hi/lo */
    uint32_t is_bf16;          /* with QN_16BIT: 1 for bf16, 0 for fp16 */
    qn_hilo_hadamard hadamard; /* QN_ACTS_HILO: of up to QN_MATMUL_MAX_HADAMARD columns */
    qn_matmul_f16_acts f16;    /* QN_ACTS_HILO_F16: the second result, with the same columns */
} qn_matmul_quantize_acts_args;

/* One line per type whose codes stay packed in tiles: b, QN_SCALES and QN_OFFSET of its tiles, and an expression for
 * the code of weight i (quant/layout.h) of the block whose codes are at `codes`. */
#define QN_TILED_TYPES(X)                                                                                              \
    X(Q1_0, 1, 2, 0, qn_code_1bit(codes, i))                                                                           \
    X(Q2_0, 2, 4, 0, qn_code_2bit(codes, i))                                                                           \
    X(PQ2_0, 2, 2, 0, qn_code_2bit(codes, i))                                                                          \
    X(OX2_0, 2, 2, 0, qn_code_2bit(codes, i))                                                                          \
    X(PTQ1_0, 2, 2, 0, qn_code_trit(codes, i, QN_PTQ1_0_TRIT_BYTES))                                                   \
    X(TQ1_0, 2, 2, 0, qn_code_trit(codes, i, QN_TQ1_0_TRIT_BYTES))                                                     \
    X(TQ2_0, 2, 2, 0, qn_code_tq2_0(codes, i))                                                                         \
    X(Q4_0, 4, 8, 1, qn_code_nibble(codes, i))                                                                         \
    X(Q4_1, 4, 8, 1, qn_code_nibble(codes, i))                                                                         \
    X(Q8_0, 8, 8, 0, qn_code_int8(codes, i))

/* One line per other type that qn_matmul_pack reads: it dequantises them to fp16, with the same bits as
 * qn_gpu_f16_row (gpu/f16_rows.h). */
#define QN_DEQUANTIZED_TYPES(X)                                                                                        \
    X(F32) X(Q5_0) X(Q5_1) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_NL) X(IQ4_XS) X(MXFP4) X(NVFP4) X(NVFP4_L)

/* Zero point of the codes of tiles without offset. With 1 bit the code is doubled first. */
#define QN_TILE_ZERO(bits) ((bits) <= 2 ? 1 : (bits) == 8 ? 128 : 0)

/* qn_matmul_pack - Packs rows in the stored layout into tiles. One warp per tile and k-tile: grid (k-tiles, tiles of
 * these rows), 32 threads. `stored` is the layout of the rows. */
/* clang-format off */
typedef enum qn_matmul_stored {
#define QN_STORED_ENTRY(ID, bits, n_scales, has_offset, code) QN_STORED_##ID,
    QN_TILED_TYPES(QN_STORED_ENTRY)
#undef QN_STORED_ENTRY
    QN_STORED_F16,
    QN_STORED_BF16,
#define QN_STORED_ENTRY(ID) QN_STORED_##ID,
    QN_DEQUANTIZED_TYPES(QN_STORED_ENTRY)
#undef QN_STORED_ENTRY
} qn_matmul_stored;
/* clang-format on */

typedef struct qn_matmul_pack_args {
    QN_GPU_PTR(const uint8_t) rows; /* [n_rows] of row_bytes */
    QN_GPU_PTR(uint8_t) tiles;      /* the tiled matrix */
    uint64_t row_bytes;
    uint32_t n_rows, n_cols;
    uint32_t n_tiles, n_k_tiles; /* of the tiled matrix */
    uint32_t first_tile;
    uint32_t stored; /* qn_matmul_stored */
    uint32_t bits, n_scales, has_offset;
} qn_matmul_pack_args;

#ifndef __CUDACC__

#include "base/status.h"
#include "quant/quant.h"

/* The tile layout of a type. */
typedef struct qn_tile_layout {
    qn_matmul_stored stored;
    uint32_t bits, n_scales, has_offset;
    bool as_f16; /* rows are fp16, not of this type: the caller converts them with qn_gpu_f16_row (gpu/f16_rows.h) */
} qn_tile_layout;

/* qn_matmul_gpu_tile_layout - Returns the tile layout of a type; as_f16 is set if its codes do not stay packed. */
qn_tile_layout qn_matmul_gpu_tile_layout(const qn_type_info *type);

/* qn_matmul_gpu_stored_layout - As qn_matmul_gpu_tile_layout, for rows as the type stores them: as_f16 is not set, and
 * qn_matmul_pack dequantises. Returns false for a type that qn_matmul_pack cannot read. */
bool qn_matmul_gpu_stored_layout(const qn_type_info *type, qn_tile_layout *tiles);

/* qn_matmul_gpu_tile_count - Returns the number of tiles of n_rows rows. */
size_t qn_matmul_gpu_tile_count(size_t n_rows);

/* qn_matmul_gpu_bytes - Computes the bytes of a tiled matrix. QN_ERR_INVALID if the size exceeds size_t, or the counts
 * exceed 32 bits. */
qn_status qn_matmul_gpu_bytes(const qn_tile_layout *tiles, size_t n_tiles, size_t n_cols, size_t *bytes);

/* The properties of the device that launches depend on: fields of qn_cuda_info. */
typedef struct qn_matmul_gpu {
    uint32_t n_sms, max_shared_bytes;
    bool clusters; /* compute capability 9.0 and later */
    bool wgmma;    /* compute capability 9.0 */
} qn_matmul_gpu;

/* A tiled matrix: one or more matrices that share activations, and the outputs of each. */
typedef struct qn_tiled_matrix {
    qn_tile_layout tiles;
    uint64_t address; /* a multiple of 128 */
    size_t n_tiles, n_cols;
    size_t n_outs;
    uint32_t out_dtype; /* of all outputs; 0 is f32 */
    qn_matmul_out outs[QN_MATMUL_OUTS];
} qn_tiled_matrix;

/* The activations of a step. */
typedef struct qn_matmul_acts {
    int layout;              /* QN_ACTS_* */
    uint64_t address, scale; /* multiples of 1024 and 16. scale: qn_matmul_gpu_scale_bytes bytes */
    bool rms_norm;           /* QN_ACTS_HILO, as input of a matmul: written by QN_ACTS_OP_RMS_NORM with this eps */
    float eps;
    uint64_t workspace;      /* QN_ACTS_HILO: qn_matmul_gpu_workspace_bytes bytes at a multiple of 256; activations that
                                are used one after another may share it */
    uint32_t prepares_slots; /* the blocks (qn_matmul_gpu_few_blocks) whose slots in the workspace each launch of
                                qn_matmul_gpu_quantize prepares; 0: they have been prepared */
    uint32_t planes;         /* QN_ACTS_HILO: qn_matmul_gpu_planes of the tiles that read them */
    size_t n_cols, capacity; /* capacity: tokens, a multiple of QN_GEMM_TILE_N except for QN_ACTS_HILO_N1 */
} qn_matmul_acts;

enum { QN_MATMUL_COUNTERS_BYTES = 1024, QN_MATMUL_EMPTY_BYTE = 0xff /* QN_FEW_EMPTY */ };

/* qn_matmul_gpu_workspace_bytes - Returns the size of the workspace of matmuls by activations in QN_ACTS_HILO and of
 * qn_matmul_gpu_gemv_norm. Before the first launch its first QN_MATMUL_COUNTERS_BYTES are zeros, for the latter, and
 * the next qn_matmul_gpu_slot_bytes have the value QN_MATMUL_EMPTY_BYTE, unless the activations' launches prepare them.
 * Launches leave them so. The rest is arbitrary. */
size_t qn_matmul_gpu_workspace_bytes(const qn_matmul_gpu *gpu);
size_t qn_matmul_gpu_slot_bytes(const qn_matmul_gpu *gpu);

/* qn_matmul_gpu_few_blocks - Returns the most blocks of a launch of qn_matmul_gemm_few. */
uint32_t qn_matmul_gpu_few_blocks(const qn_matmul_gpu *gpu);

/* qn_matmul_gpu_same_tokens - Returns the largest number of tokens, at most QN_FEW_MAX_TOKENS, for which each token is
 * computed by the same operations as with two tokens. */
size_t qn_matmul_gpu_same_tokens(const qn_matmul_gpu *gpu, const qn_tiled_matrix *matrix);

/* qn_matmul_gpu_acts_layout - Returns the layout of activations for n_tokens tokens by such tiles. */
int qn_matmul_gpu_acts_layout(const qn_tile_layout *tiles, size_t n_tokens);

/* qn_matmul_gpu_planes - Returns the bits of the tiles if these tokens are multiplied in QN_ACTS_HILO as bit planes,
 * else 0. */
uint32_t qn_matmul_gpu_planes(const qn_matmul_gpu *gpu, const qn_tile_layout *tiles, size_t n_tokens);

/* qn_matmul_gpu_acts_bytes - Computes the bytes of activations in a layout. QN_ERR_INVALID for a capacity that the
 * layout does not allow. */
qn_status qn_matmul_gpu_acts_bytes(int layout, size_t n_cols, size_t capacity, size_t *bytes);

/* qn_matmul_gpu_scale_bytes - Returns the bytes of the scales of activations, with sums of squares if the layout has
 * them; 0 for QN_ACTS_HILO_N1. Only for arguments that qn_matmul_gpu_acts_bytes accepts. */
size_t qn_matmul_gpu_scale_bytes(int layout, size_t n_cols, size_t capacity);

/* A launch with its arguments. */
typedef struct qn_matmul_launch {
    qn_launch launch;
    union {
        qn_matmul_gemv_args gemv;
        qn_matmul_gemm_args gemm;
        qn_matmul_few_args few;
        qn_matmul_gemv_norm_args gemv_norm;
        qn_matmul_quantize_acts_args acts;
        qn_matmul_pack_args pack;
    } args;
} qn_matmul_launch;

/* qn_matmul_gpu_pack - Fills a launch that packs n_rows rows at the device address `rows` (aligned as the type's
 * floats) into the tiles from first_tile on. */
qn_status qn_matmul_gpu_pack(const qn_tiled_matrix *matrix, uint64_t rows, size_t row_bytes, size_t n_rows,
                             size_t first_tile, qn_matmul_launch *out);

/* qn_matmul_gpu_quantize - Fills a launch that converts activations.
 *
 *   op       QN_ACTS_OP_NONE, QN_ACTS_OP_RMS_NORM (with weight and eps) or QN_ACTS_OP_SWIGLU (with x2)
 *   stride   floats from one token to the next */
qn_status qn_matmul_gpu_quantize(const qn_matmul_acts *acts, int op, uint64_t x, uint64_t x2, uint64_t weight,
                                 float eps, size_t stride, size_t n_tokens, qn_matmul_launch *out);

/* qn_matmul_gpu_quantize_16bit - Makes a launch of qn_matmul_gpu_quantize read x and x2 as bf16 or fp16. */
void qn_matmul_gpu_quantize_16bit(qn_matmul_launch *quantize, bool is_bf16);

/* qn_matmul_gpu_quantize_f16_too - Makes a launch of qn_matmul_gpu_quantize for QN_ACTS_HILO write `f16`, activations
 * in QN_ACTS_F16, as well. */
void qn_matmul_gpu_quantize_f16_too(qn_matmul_launch *quantize, const qn_matmul_acts *f16);

/* The Hadamard transform of activations that are quantised to QN_ACTS_HILO. */
typedef struct qn_matmul_rotation {
    uint64_t signs; /* [n_cols] of +-1 at a multiple of 16, or 0 */
    size_t block;   /* 0: no transform */
} qn_matmul_rotation;

/* qn_matmul_gpu_quantize_rotated - Makes a launch of qn_matmul_gpu_quantize for QN_ACTS_HILO transform the rows after
 * its operation. QN_ERR_INVALID unless the block is a power of two up to QN_MATMUL_MAX_HADAMARD that divides n_cols,
 * and n_cols is a multiple of 4. */
qn_status qn_matmul_gpu_quantize_rotated(qn_matmul_launch *quantize, const qn_matmul_rotation *rotation);

/* qn_matmul_gpu_matmul - Fills the launch of the GEMV or GEMM of a tiled matrix by activations. QN_ERR_INVALID for a
 * layout that the tiles do not support, for widths that differ, or for more tokens than the activations hold;
 * QN_ERR_UNSUPPORTED if the device has too little shared memory. */
qn_status qn_matmul_gpu_matmul(const qn_matmul_gpu *gpu, const qn_tiled_matrix *matrix, const qn_matmul_acts *acts,
                               size_t n_tokens, qn_matmul_launch *out);

/* The activations of the next matmul, computed in a matmul's epilogue. */
typedef struct qn_matmul_next {
    int op;                     /* QN_ACTS_OP_RMS_NORM, QN_ACTS_OP_SWIGLU */
    const qn_matmul_acts *acts; /* QN_ACTS_HILO, other memory than the activations that are read */
    uint64_t weight;            /* of the norm */
    qn_matmul_rotation rotation;
} qn_matmul_next;

/* qn_matmul_gpu_can_fuse - Returns whether a matmul by QN_ACTS_HILO can compute activations with this operation: RMS
 * norm of the only output, to which it adds, or SwiGLU of its two outputs; weights of 1 and 2 bits; rows a multiple of
 * 4; Hadamard blocks, 0 for none, of up to QN_ACTS_HILO_COLS. */
bool qn_matmul_gpu_can_fuse(const qn_tiled_matrix *matrix, int op, size_t hadamard_block);

/* qn_matmul_gpu_matmul_fused - As qn_matmul_gpu_matmul, with the activations of the next matmul. With an RMS norm they
 * have the bits that qn_matmul_gpu_quantize gives; with SwiGLU the matmul divides K in other places, and sums may
 * differ in their last bits. QN_ERR_INVALID if qn_matmul_gpu_can_fuse is false. */
qn_status qn_matmul_gpu_matmul_fused(const qn_matmul_gpu *gpu, const qn_tiled_matrix *matrix,
                                     const qn_matmul_acts *acts, size_t n_tokens, const qn_matmul_next *next,
                                     qn_matmul_launch *out);

/* Rows of floats, and their RMS norm. */
typedef struct qn_matmul_norm_rows {
    uint64_t x, weight; /* multiples of 16 */
    size_t stride;      /* floats from one row to the next, a multiple of 4 */
    float eps;
} qn_matmul_norm_rows;

/* qn_matmul_gpu_has_gemv_norm - Returns whether a matmul of 2 to QN_FEW_MAX_TOKENS tokens can read rows of floats. It
 * can with fp16 weights, f32 outputs, up to QN_GEMV_NORM_MAX_ROWS rows in all tiles and a multiple of 4 columns, if the
 * partials fit the workspace. */
bool qn_matmul_gpu_has_gemv_norm(const qn_matmul_gpu *gpu, const qn_tiled_matrix *matrix);

/* qn_matmul_gpu_gemv_norm - Fills a launch of qn_matmul_gemv_norm, if qn_matmul_gpu_has_gemv_norm. workspace has
 * qn_matmul_gpu_workspace_bytes bytes, not in use by another launch that runs at the same time. */
qn_status qn_matmul_gpu_gemv_norm(const qn_matmul_gpu *gpu, const qn_tiled_matrix *matrix,
                                  const qn_matmul_norm_rows *rows, uint64_t workspace, size_t n_tokens,
                                  qn_matmul_launch *out);

#endif
#endif
