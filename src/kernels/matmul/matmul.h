/* Matmul on the CPU: activations [n_tokens, n_cols] times the transpose of weights [n_rows, n_cols], row-major.
 *
 * Quantised weights are multiplied with activations that are quantised to int8, one scale per group of 32 values; F32,
 * F16 and BF16 weights with f32 activations. With isum_r the exact integer dot product of group r of a weight row and
 * of a token,
 *
 *     partial[r mod 16] += isum_r * (weight_scale_r * act_scale_r)        one fused multiply-add, r ascending
 *     partial[r mod 16] += act_sum_r * (weight_offset_r * act_scale_r)    types with an offset, directly after; with
 *                                                                         factors first of the first 16 values of the
 *                                                                         group, then of the last
 *
 * Types with half scales have two such steps, of the first 16 values of a group and then of the last.
 *
 * and the element is the canonical sum of the sixteen partials (kernels/canon.h). Kernels with block_scales have
 * another arithmetic for Q1_0, PQ2_0 and PTQ1_0 (blocks.h). For float weights, term k is one fused
 * multiply-add into partial k mod 16. No kernel uses another order, so the bits of an element depend only on its row
 * and its token.
 *
 * Integer sums are exact in any order. Each type therefore has its own layout of activation codes (qn_act_layout):
 * sixteen groups are a super-block of 512 values, and one 64-byte vector holds four codes of each group.
 *
 * Kernels by number of tokens:
 *
 * With matrix units (tiles.h, blocks.h) matmuls of min_tile_tokens and more, or min_block_tokens, are tile GEMMs. Else:
 *
 *   tokens    rows as stored                                  packed rows (packed.h)
 *   1 to 4    gemv, one token at a time, reads stored codes;  gemm_packed, up to its max_tokens;
 *             gemm if the type has no gemv                    above, rows are unpacked to the stored layout
 *   above     unpack, then gemm on tiles                      and multiplied like rows as stored;
 *                                                             gemm_batch from its min_batch on
 *   any       F32 F16 BF16: gemm_float
 *
 * and by instruction set (the reference has gemm and gemm_float only):
 *
 *                     gemv                                           gemm_packed
 *   AVX2, AVX-VNNI    all quantised types (gemv_avx2.h)              Q1_0 Q2_0 PQ2_0 (packed_avx2.h; gemm_batch:
 *                                                                  tables_avx2.h, with AVX-VNNI Q1_0 alone)
 *   AVX-512           Q1_0 Q2_0 PQ2_0 PTQ1_0 (matmul_avx512.c), all  Q1_0 Q2_0 PQ2_0; PTQ1_0 up to 4 tokens, no hi/lo
 *                     others (gemv_wide_avx512.h)                    (packed_avx512.h; gemm_batch of Q1_0:
 *                                                                  tables_avx512.h)
 *   AMX               as AVX-512; with factors none                  as AVX-512; with factors PTQ1_0 of any number of
 *                                                                  tokens, and no gemm_batch
 *   NEON, dot product all but Q5_0 Q5_1 Q5_K Q6_K (gemv_neon.h)      Q1_0, no hi/lo (packed_neon.h)
 *   i8mm              as dot product; gemm by gemm_i8mm.h            Q1_0 up to 15 tokens, no hi/lo
 *
 * A new format (quant/quant.h) needs no kernels: unpack and gemm read QN_ACT_INTERLEAVED through qn_type_info.unpack.
 * They require a block_weights that divides QN_SUPER and is at most 256 (MAX_BLOCK of quant.c), and codes up to 31, or
 * up to 63 with factors, or up to 255 with zero point 128; the zero point is a power of two, or 0 for types with an
 * offset.
 *
 * A format's own kernels are a line in FORMATS of an instruction set (matmul_simd.h; the lists are in gemm_avx2.h,
 * matmul_avx512.c and gemv_neon.h). The line generates its GEMVs, its unpacking and its row in qn_matmul_kernels. It
 * needs readers of the format's codes and scales in gemv_*.h or matmul_avx512.c; sizes and offsets come from
 * quant/layout.h. A packed kernel is a function of packed_*.h, named in the line. Its blocks are whole words of codes,
 * with the scale before them or in the last word (packed.h). qn_act_layout_of selects the layout of activations for
 * unpack and gemm. */
#ifndef QN_KERNELS_MATMUL_MATMUL_H
#define QN_KERNELS_MATMUL_MATMUL_H

#include "quant/layout.h"
#include "quant/matrix.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct qn_act_tile;
struct qn_act_tile_lo;
struct qn_tile_panel;
struct qn_act_block_tile;
struct qn_act_block_tile_hi;
struct qn_block_panel;

enum {
    QN_SUPER = 512,
    QN_SUPER_GROUPS = QN_SUPER / QN_QUANT_GROUP,
    QN_MAX_SUPER_BYTES = QN_SUPER / QN_Q8_0_WEIGHTS * QN_Q8_0_BYTES /* bytes of a stored super-block; Q8_0's is the
                                                                       largest */
};

/* Layouts of a super-block's activation codes. Byte offset of value i (0 to 31) of group `lane` (0 to 15), with the
 * first three: 64 * vector + 4 * lane + byte.
 *
 *   QN_ACT_INTERLEAVED   vector i/4, byte i%4                types unpacked value by value
 *   QN_ACT_1BIT          vector i%8, byte i/8                Q1_0: bit v of a stored byte is in vector v
 *   QN_ACT_2BIT          vector 4*(i/16) + i%4, byte i%16/4  Q2_0 PQ2_0 OX2_0: 2-bit field j of a byte is in vector j
 *                        or 4+j
 *   QN_ACT_TERNARY       by blocks of 128 values: value e of block b is at 64*(e/16) + 16*b + e%16; gemv of PTQ1_0
 *   QN_ACT_PLAIN         ascending
 *   QN_ACT_F32           no codes: the f32 values            F32, F16, BF16
 *   QN_ACT_LUT           no codes: tables of the sums of all subsets of four values (packed.h); packed Q1_0
 *   QN_ACT_TILES         int8 codes, scales and sums of 16 tokens (tiles.h); not with factors or half scales
 *   QN_ACT_BLOCKS        no codes: groups have scales that are multiples of their block's (blocks.h)
 *   QN_ACT_BLOCK_TILES   int8 codes and block scales of 16 tokens (blocks.h) */
typedef enum qn_act_layout {
    QN_ACT_INTERLEAVED,
    QN_ACT_1BIT,
    QN_ACT_2BIT,
    QN_ACT_TERNARY,
    QN_ACT_PLAIN,
    QN_ACT_F32,
    QN_ACT_LUT,
    QN_ACT_TILES,
    QN_ACT_BLOCKS,
    QN_ACT_BLOCK_TILES
} qn_act_layout;
enum { QN_ACT_INT8_LAYOUTS = 5 };

/* qn_act_index - returns the byte offset of value i (0..511) of a super-block in an int8 layout. */
size_t qn_act_index(qn_act_layout layout, size_t i);

/* qn_act_layout_of - returns the layout that unpack and gemm use for this type. */
qn_act_layout qn_act_layout_of(const qn_type_info *type);

/* A batch of activation rows, in every layout that its matmuls read. Rows of codes are n_super*512 bytes, rows of
 * scale, sum and sum_upper are n_super*16 elements, all padded with zeros. A group of 32 values: code = rint(x * (127 /
 * amax)), scale = amax / 127; with factors: blocks.h. sum is the sum of a group's codes, sum_upper the sum of its
 * last 16.
 *
 * Hi/lo int8 split (hilo): activations as the sum of two int8 rows at one scale, value = scale * (QN_HILO_BASE * codes
 * + codes_lo). That is nearly 16 bits, for twice the integer work. sum and sum_upper are sums of the combined codes.
 * 254 is twice 127: codes_lo holds the rounding error of codes, at most half a step, in steps of 1/254. Types with
 * factors do not support the split: 32-bit sums would overflow. */
enum { QN_HILO_BASE = 254 };

typedef struct qn_acts {
    size_t n_cols, n_super, max_rows;
    int8_t *codes[QN_ACT_INT8_LAYOUTS];    /* NULL for layouts that are not read */
    int8_t *codes_lo[QN_ACT_INT8_LAYOUTS]; /* NULL also without hi/lo split */
    bool hilo;
    float *scale;
    int32_t *sum, *sum_upper;
    int32_t *factor;                 /* of each group (blocks.h); NULL: its scale depends on the group alone */
    float *block_scale;              /* with factors: [max_rows, n_super*4], scale = factor * block_scale */
    int32_t *block_sum;              /* with factors: of each block, its groups' sums times their factors */
    float *values;                   /* [max_rows, n_cols], or NULL */
    uint8_t *lut, *lut_lo;           /* [max_rows, n_super*16][QN_GROUP_LUT_BYTES], or NULL; lut_lo: hi/lo split only */
    struct qn_act_tile *tiles;       /* [ceil(max_rows / 16)][16][n_super], or NULL */
    struct qn_act_tile_lo *tiles_lo; /* the same; hi/lo split only */
    struct qn_act_block_tile *block_tiles; /* [n_super*4][ceil(max_rows / 16)], or NULL */
    struct qn_act_block_tile_hi *block_tiles_hi;
    bool only_tiles;             /* of the caller: all matmuls that read them multiply tiles of many tokens */
    bool skip_codes, skip_tiles; /* layouts that quantize leaves as they are: qn_acts_select */
} qn_acts;

/* A group with a smaller amax is quantised as zeros, because 127 / amax would overflow. A group with an infinity or NaN
 * gets codes and sums of zero and a scale of NaN, so that every dot product with it is NaN; with factors so do all four
 * groups of its block. */
#define QN_MIN_GROUP_ABSMAX 1e-30f

/* qn_acts_create - allocates max_rows rows of n_cols in the layouts whose bits (1 << layout) are set. After
 * QN_ERR_MEMORY nothing is allocated. Free with qn_acts_free, which also accepts a zeroed struct. */
qn_status qn_acts_create(qn_acts *acts, size_t max_rows, size_t n_cols, unsigned layouts, bool hilo);
void qn_acts_free(qn_acts *acts);

/* qn_acts_select - lets `quantize` fill what a matmul of n_tokens tokens reads, and no more: tiles, or all other
 * layouts. Without it, quantize fills all. No quantize may be in progress. */
struct qn_matmul_kernels;
void qn_acts_select(qn_acts *acts, const struct qn_matmul_kernels *kernels, size_t n_tokens);

/* One super-block of one weight row, unpacked: codes in the layout of qn_act_layout_of. offset, factor_* and
 * scale_upper are valid only for types that have them; of types with both of the first, offset is that of the first 16
 * values of a group, and of those with the last, scale. */
typedef struct qn_super_block {
    _Alignas(64) uint8_t codes[QN_SUPER];
    union {
        struct {
            float scale[QN_SUPER_GROUPS], scale_upper[QN_SUPER_GROUPS], offset[QN_SUPER_GROUPS],
                offset_upper[QN_SUPER_GROUPS];
        };
        float pair[QN_SUPER_GROUPS][4]; /* after pair_rows of qn_matmul_kernels (gemm_i8mm.h) */
    };
    int32_t factor_lower[QN_SUPER_GROUPS], factor_upper[QN_SUPER_GROUPS];
} qn_super_block;

/* A matrix as the matmuls read it. */
typedef struct qn_packed_matrix {
    qn_matrix stored;
    const uint8_t *packed; /* the same rows, packed by qn_matmul_pack for these kernels; NULL: not packed */
} qn_packed_matrix;

/* GEMV: one token by rows [row_begin, row_end), from codes as stored. out[row] is overwritten, or added to with
 * `accumulate`. */
typedef void (*qn_gemv_fn)(const qn_matrix *weights, size_t row_begin, size_t row_end, const qn_acts *acts,
                           size_t token, bool accumulate, float *out);

/* GEMM of packed rows [row, row + n_rows), both multiples of QN_PANEL_ROWS, by tokens [first, first + n_tokens): writes
 * out[token*out_stride + row]. acts have the hi/lo split only if the kernel's `hilo` is set. */
typedef void (*qn_packed_gemm_fn)(const qn_packed_matrix *weights, size_t row, size_t n_rows, const qn_acts *acts,
                                  size_t first, size_t n_tokens, bool accumulate, float *out, size_t out_stride);

/* The same for many tokens. Activations are read in QN_ACT_PLAIN. scratch: QN_BATCH_SCRATCH
 * bytes (64-aligned), one per thread. */
typedef void (*qn_batch_gemm_fn)(const qn_packed_matrix *weights, size_t row, size_t n_rows, const qn_acts *acts,
                                 size_t first, size_t n_tokens, bool accumulate, float *out, size_t out_stride,
                                 void *scratch);
enum { QN_BATCH_SCRATCH = 400 << 10, QN_BATCH_ROWS = 512 /* rows that share what such a kernel computes of tokens */ };

/* A packed layout (packed.h) and its GEMMs. */
typedef enum qn_packing { QN_PACKING_WORDS, QN_PACKING_BYTES } qn_packing;
typedef struct qn_packed_kernel {
    qn_packing packing;
    qn_act_layout layout;
    qn_packed_gemm_fn gemm_packed;
    size_t max_tokens; /* with more tokens, rows are unpacked to the stored layout for gemm; not with factors */
    bool hilo;         /* whether the GEMMs support the hi/lo split */
    /* Instead of gemm_packed from min_batch tokens on; NULL for none. Not for activations with factors (blocks.h). */
    qn_batch_gemm_fn gemm_batch;
    size_t min_batch;
} qn_packed_kernel;

/* The kernels of an instruction set for one type. */
typedef struct qn_matmul_format {
    qn_type type;
    qn_act_layout layout;       /* layout of activations that both GEMVs read */
    qn_gemv_fn gemv, gemv_hilo; /* without and with the hi/lo split; NULL for none */
    /* Unpacks one super-block of stored blocks. Scale and offset of blocks of zero bytes, which stand for missing ones,
     * are finite: their activations are 0. */
    void (*unpack)(const uint8_t *blocks, qn_super_block *out);
    qn_packed_kernel packed; /* gemm_packed is NULL for types that are faster as stored */
} qn_matmul_format;

/* Table of kernels, one per instruction set. A kernel writes only the outputs named. */
typedef struct qn_matmul_kernels {
    size_t tile_rows, tile_tokens; /* the largest tile that gemm and gemm_float accept */
    /* Quantises values [n], n <= 512, of super-block `super` of row `row` into every layout that acts holds. */
    void (*quantize)(qn_acts *acts, size_t row, size_t super, const float *values, size_t n);
    /* Unpacks n_blocks blocks of any quantised type, at most a super-block. Scale and offset of missing blocks are
     * 0. */
    void (*unpack)(const qn_type_info *type, const uint8_t *blocks, size_t n_blocks, qn_super_block *out);
    /* Rearranges the unpacked rows of a tile, [tile_rows][n_super] of which n_rows are there, for gemm; NULL for
     * kernels that read them as unpacked. */
    void (*pair_rows)(const qn_type_info *type, qn_super_block *rows, size_t n_rows, size_t n_super);
    /* Computes one tile: out[t*tile_rows + r] for n_rows unpacked rows of acts->n_super super-blocks each, by tokens
     * [first, first + n_tokens). */
    void (*gemm)(const qn_type_info *type, const qn_super_block *rows, size_t n_rows, const qn_acts *acts, size_t first,
                 size_t n_tokens, float *out);
    /* Computes one tile of outputs as gemm does, from rows [row, row + n_rows) of float weights as stored. */
    void (*gemm_float)(const qn_matrix *weights, size_t row, size_t n_rows, const qn_acts *acts, size_t first,
                       size_t n_tokens, float *out);
    /* The types with their own kernels; other types use unpack and gemm. */
    const qn_matmul_format *formats;
    size_t n_formats;
    /* The GEMM on matrix units and what fills its panels (tiles.h), for that many tokens and more; NULL for none. */
    void (*gemm_tiles)(const struct qn_tile_panel *panel, const qn_acts *acts, size_t first, size_t n_tokens,
                       bool accumulate, float *out, size_t out_stride, void *scratch);
    void (*put_tile)(const struct qn_tile_panel *panel, size_t row, size_t super, const qn_super_block *block);
    size_t min_tile_tokens;
    /* Whether types that have blocks are multiplied by the arithmetic of blocks.h, and their GEMM on
     * matrix units, for min_block_tokens and more, of activations that only PTQ1_0 reads for min_ternary_tokens; NULL
     * for none. */
    bool block_scales;
    size_t min_block_tokens, min_ternary_tokens;
    void (*gemm_blocks)(const struct qn_block_panel *panels, size_t n_panels, const qn_acts *acts, size_t first,
                        size_t n_tokens, bool accumulate, float *out, size_t out_stride, void *scratch);
} qn_matmul_kernels;

void qn_matmul_kernels_init(qn_matmul_kernels *kernels, unsigned cpu);

/* qn_matmul_packed - returns how matrices of this type are packed; NULL for types that are faster as stored. */
const qn_packed_kernel *qn_matmul_packed(const qn_matmul_kernels *kernels, const qn_type_info *type);

/* qn_matmul_act_layouts - returns all layouts that matmuls with this matrix read, as bits 1 << layout: the argument of
 * qn_acts_create.
 *
 *   weights   if packed, by a kernel that has the hi/lo split if the activations have it
 *   blocks    whether every quantised matrix that reads the activations has blocks (qn_type_has_blocks): with
 * block_scales they get factors; else results have the same bits as without block_scales */
unsigned qn_matmul_act_layouts(const qn_matmul_kernels *kernels, const qn_packed_matrix *weights, bool blocks);

/* qn_matmul_scratch - returns the bytes of scratch (64-aligned) that one thread needs for rows of n_cols. */
size_t qn_matmul_scratch(const qn_matmul_kernels *kernels, size_t n_cols);

/* qn_matmul_rows - computes rows [row_begin, row_end) of the matmul for tokens [0, n_tokens) of acts.
 *
 *   row_begin, row_end   for a packed matrix multiples of QN_PANEL_ROWS, or where qn_matmul_uses_tiles of
 *                        QN_PANEL_ROWS / 2; row_end may also be n_rows
 *   acts                 hold the layouts of qn_matmul_act_layouts
 *   out                  out[token*out_stride + row] is overwritten, or added to with `accumulate`
 *   scratch              qn_matmul_scratch bytes, one per thread
 *
 * Threads: safe on distinct rows with distinct scratch. */
void qn_matmul_rows(const qn_matmul_kernels *kernels, const qn_packed_matrix *weights, const qn_acts *acts,
                    size_t n_tokens, size_t row_begin, size_t row_end, bool accumulate, float *out, size_t out_stride,
                    void *scratch);

/* qn_matmul_panels_together - returns the number of panels of a matrix (packed.h) that matmuls of n_tokens tokens
 * compute best in one call: with fewer, they do the same work for each call. At least 2. */
size_t qn_matmul_panels_together(const qn_matmul_kernels *kernels, const qn_packed_matrix *weights, const qn_acts *acts,
                                 size_t n_tokens);

/* qn_matmul_uses_tiles - returns whether qn_matmul_rows multiplies n_tokens tokens on matrix units. */
bool qn_matmul_uses_tiles(const qn_matmul_kernels *kernels, const qn_packed_matrix *weights, const qn_acts *acts,
                          size_t n_tokens);

/* Filled in by the instruction-set files. */
void qn_matmul_init_avx2(qn_matmul_kernels *kernels);
void qn_matmul_init_avxvnni(qn_matmul_kernels *kernels);
void qn_matmul_init_avx512(qn_matmul_kernels *kernels);
void qn_matmul_init_neon(qn_matmul_kernels *kernels);
void qn_matmul_init_neondot(qn_matmul_kernels *kernels);
void qn_matmul_init_i8mm(qn_matmul_kernels *kernels);
void qn_matmul_init_ref(qn_matmul_kernels *kernels);

/* Add the GEMM on matrix units to filled tables. */
void qn_matmul_init_amx(qn_matmul_kernels *kernels);
void qn_matmul_init_amx_ref(qn_matmul_kernels *kernels);

#endif
