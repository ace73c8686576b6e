/* The arithmetic of kernels with block_scales (matmul.h), for types with one scale for each 128 weights that have
 * packed kernels: Q1_0, PQ2_0, PTQ1_0. Only of activations that no matrix of another quantised type reads.
 *
 * A matrix unit adds integers; each addition in float costs it a store of the sums, and three vector instructions for
 * each 16 of them. With a scale for each 32 activations that is most of the time (tiles.h). Here the scales of the four
 * groups of a block of 128 activations are integer multiples of one, so that the sum over a block is an integer:
 *
 *     block_scale = amax / 127                 amax: the largest magnitude of the block, amax_g: of group g
 *     factor_g    = 1                          if amax^2 is at most QN_BLOCK_RATIO times the mean of amax_g^2 over
 *                                            groups that are not all zeros; else
 *     block_scale = amax / (127 * 63)
 *     factor_g    = ceil(63 * amax_g / amax)   at least 1
 *     code        = rint(x / (factor_g * block_scale))
 *     sum_b       = sum over g of factor_g * isum_g
 *     element     = element + sum_b * (weight_scale_b * block_scale_b)    one fused multiply-add, b ascending, from 0
 *
 * Factors are there for blocks in which one group is far larger than the others, which keep their precision. The
 * weights of a block have one scale, so that the errors of its activations count alike: rounding to a step of amax/127
 * has an error of amax^2 in each group, rounding by group one of amax_g^2. So QN_BLOCK_RATIO, which is less than 4, is
 * also the most by which the squared error of a block exceeds that of a scale for each group. sum_b is below 2^24 in
 * magnitude, so that its conversion is exact. With the hi/lo split factors are 1 and block_scale is amax / (127 *
 * QN_HILO_BASE). Errors: docs/accuracy.md.
 *
 * One token: isum_g as for other types, then one multiply-add of 16-bit integers instead of a conversion, a
 * multiplication, a fused multiply-add and the access to one of 16 partial sums.
 *
 * More tokens, on matrix units: factor * code is written in base 63, as digits hi and lo, which have sums of their own,
 * added before they are scaled. Where factors are 1 the lo digit is the code, and the products of the hi digits are
 * left out if no token of the tiles has any.
 *
 * A step is two tiles of tokens by two of rows, so that each load serves two products: for a block 8 products, 8 loads,
 * 4 stores of sums, 192 vector instructions that scale (conversions, multiplications, fused multiply-adds). Measured,
 * in ticks of one thread that has a core (docs/lab/2026-11-cpu.md): the products take 119, and loads and stores nothing
 * if they are between them, but 49 if the stores come after; the vector instructions, on one port while products
 * execute, 175. So stores and scaling of a step are spread between the products of the next one.
 */
#ifndef QN_KERNELS_MATMUL_BLOCKS_H
#define QN_KERNELS_MATMUL_BLOCKS_H

#include "kernels/matmul/tiles.h"

#include <math.h>

enum {
    QN_BLOCK = 128,
    QN_BLOCK_GROUPS = QN_BLOCK / QN_QUANT_GROUP,
    QN_MAX_FACTOR = 63,
    QN_BLOCK_BASE = 63,      /* of the digits of factor * code: hi is at most 127 and lo at most 31 in magnitude */
    QN_BLOCK_CHUNK = 8,      /* blocks of 16 rows that are unpacked at a time, 16 KB, a third of L1 */
    QN_BLOCK_MAX_PANELS = 4, /* panels of a GEMM, which share parts of the activations in L2 */
    QN_BLOCK_PART_BYTES = 512 << 10, /* such a part */
    QN_BLOCK_K = 64                  /* values of a product */
};

/* Of squared magnitudes: the block's largest by the mean of its groups' largest, of those that are not 0. */
#define QN_BLOCK_RATIO 3.6f

/* Activations of 16 tokens in a block. Lo digits of values 0 to 63, then of 64 to 127; with the hi/lo split the codes.
 * In qn_acts: [blocks][tiles of tokens], in the order in which a GEMM reads them: that of tokens. */
typedef struct qn_act_block_tile {
    _Alignas(64) int8_t codes[QN_BLOCK / QN_BLOCK_K][QN_TILE][QN_BLOCK_K];
    float scale[QN_TILE];
    uint8_t has_hi[QN_TILE]; /* 0: the hi digits of the token are 0, as in new memory: they need not be written */
    uint8_t padding[48];
} qn_act_block_tile;

/* The hi digits; with the hi/lo split the lo codes. */
typedef struct qn_act_block_tile_hi {
    _Alignas(64) int8_t codes[QN_BLOCK / QN_BLOCK_K][QN_TILE][QN_BLOCK_K];
} qn_act_block_tile_hi;

/* qn_act_blocks - returns the number of blocks of a row of activations. */
static inline size_t qn_act_blocks(const qn_acts *acts)
{
    return acts->n_super * (QN_SUPER / QN_BLOCK);
}

/* qn_act_token_tiles - returns the number of tiles of tokens. */
static inline size_t qn_act_token_tiles(const qn_acts *acts)
{
    return (acts->max_rows + QN_TILE - 1) / QN_TILE;
}

/* qn_act_block_at - returns the index of the tile with a block of a token. */
static inline size_t qn_act_block_at(const qn_acts *acts, size_t token, size_t block)
{
    return block * qn_act_token_tiles(acts) + token / QN_TILE;
}

/* qn_type_has_blocks - returns whether kernels with block_scales multiply weights of this type so. Not OX2_0: as
 * stored, its GEMV is faster. */
static inline bool qn_type_has_blocks(const qn_type_info *type)
{
    return type->type == QN_TYPE_Q1_0 || type->type == QN_TYPE_PQ2_0 || type->type == QN_TYPE_PTQ1_0;
}

/* How a group is quantised: code = rint(x * inverse), scale = step, which is a multiple of the block's scale. */
typedef struct qn_group_scale {
    float inverse, step;
    int32_t factor;
} qn_group_scale;

/* qn_block_is_uneven - returns whether the groups of a block need factors. most: the largest magnitude, not 0. Groups
 * of zeros have no error, whatever the step. */
static inline bool qn_block_is_uneven(const float amax[QN_BLOCK_GROUPS], float most)
{
    const float inverse = 1 / most;
    float sum = 0, n = 0;
    for (size_t g = 0; g < QN_BLOCK_GROUPS; g++) {
        const float part = amax[g] * inverse;
        sum += part * part;
        n += amax[g] > 0;
    }
    return n > QN_BLOCK_RATIO * sum;
}

/* qn_block_scales - computes the scales of a block's groups from their largest magnitudes. Returns the scale of the
 * block. amax: finite; hilo: factors are 1, and the block's scale is the step. */
static inline float qn_block_scales(const float amax[QN_BLOCK_GROUPS], bool hilo, qn_group_scale out[QN_BLOCK_GROUPS])
{
    float most = 0;
    for (size_t g = 0; g < QN_BLOCK_GROUPS; g++)
        most = amax[g] > most ? amax[g] : most;
    const bool zero = most < QN_MIN_GROUP_ABSMAX, one = zero || hilo || !qn_block_is_uneven(amax, most);
    const float scale = zero ? 0 : most * (one ? 1.0f / 127 : 1.0f / (127 * QN_MAX_FACTOR)),
                up = one ? 0 : QN_MAX_FACTOR / most;
    for (size_t g = 0; g < QN_BLOCK_GROUPS; g++) {
        const float factor = ceilf(amax[g] * up);
        out[g].factor = factor < 1 ? 1 : factor > QN_MAX_FACTOR ? QN_MAX_FACTOR : (int32_t)factor;
        out[g].step = scale * (float)out[g].factor;
        out[g].inverse = zero ? 0 : one ? 127.0f / most : 1.0f / out[g].step;
    }
    return scale;
}

/* qn_block_has_hi - returns whether a block with these factors has hi digits. */
static inline bool qn_block_has_hi(const int32_t factor[QN_BLOCK_GROUPS])
{
    for (size_t g = 0; g < QN_BLOCK_GROUPS; g++)
        if (factor[g] != 1)
            return true;
    return false;
}

/* Up to 64 rows of weights for the GEMM. */
typedef struct qn_block_panel {
    const qn_type_info *type;
    size_t n_rows, n_blocks;
    const uint8_t *packed; /* a panel of QN_PACKING_WORDS (packed.h); NULL: stored */
    size_t packed_row;     /* the first of the rows in the packed panel, a multiple of 16 */
    const uint8_t *stored; /* its first row */
    size_t row_bytes;
} qn_block_panel;

/* qn_block_expand_stored - unpacks block `block` of rows [row, row + 16), as far as the panel has them, to weights
 * without the zero point and scales; zeros for rows that it does not have. Any type. For amx-ref.
 *
 *   codes   [QN_BLOCK / 4][QN_TILE][4]
 *   scale   [QN_TILE] */
void qn_block_expand_stored(const qn_block_panel *panel, size_t row, size_t block, int8_t (*codes)[QN_TILE][4],
                            float *scale);

/* qn_block_expand_row - unpacks one stored block as row `row` of 16. */
void qn_block_expand_row(const qn_type_info *type, const uint8_t *stored, size_t row, int8_t (*codes)[QN_TILE][4],
                         float *scale);

/* qn_block_gemm_scratch - returns the bytes of scratch of a GEMM. */
size_t qn_block_gemm_scratch(void);

/* qn_block_gemm_amx, qn_block_gemm_ref - multiply panels by tokens [first, first + n_tokens) of acts, which have block
 * tiles.
 *
 *   panels            [n_panels], 1 to QN_BLOCK_MAX_PANELS: consecutive rows of a matrix
 *   first, n_tokens   a multiple of 16; at most QN_TILE_MAX_TOKENS
 *   out               out[token*out_stride + row] is overwritten, or added to with `accumulate`; row 0 is the first
 *                     panel's
 *   scratch           qn_block_gemm_scratch bytes, 64-aligned */
void qn_block_gemm_amx(const qn_block_panel *panels, size_t n_panels, const qn_acts *acts, size_t first,
                       size_t n_tokens, bool accumulate, float *out, size_t out_stride, void *scratch);
void qn_block_gemm_ref(const qn_block_panel *panels, size_t n_panels, const qn_acts *acts, size_t first,
                       size_t n_tokens, bool accumulate, float *out, size_t out_stride, void *scratch);

#endif
