/* GEMM on matrix units that multiply tiles (Intel AMX), and the same in plain C (amx-ref), which checks its logic on
 * every machine.
 *
 * A tile product multiplies 16 weight rows by 16 tokens over one group of 32 values. Codes are bf16 and sums f32: codes
 * are integers of at most 8 bits, and a sum of a group stays below 2^24, so both are exact, and the sums need no
 * conversion before the scaling. That is why bf16 tiles are used and not int8 tiles, which hold 64 values of K: a scale
 * covers 32 values, so both multiply 16*16*32 values in 16 cycles, and the scaling is what takes longest (below).
 *
 * Cycles of a core for 16 rows, 16 tokens and one group, measured on a Xeon (family 6, model 207):
 *
 *   tile product     16
 *   loading tiles    8 for each KiB; one for each product with 2 x 2 products from two tiles of each operand
 *   storing sums     16, overlaps with products if the sums of an earlier product are stored
 *   scaling          32 f32 instructions (16 times multiply, fused multiply-add). They execute on two ports, but on one
 *                    of them only while tile instructions are in flight (and about 130 cycles after)
 *
 * So products and scaling take 32 cycles one after the other, or one during the other: 256 of the 1024
 * multiply-adds per cycle of int8 tiles without scales. int8 tiles would need 48 instructions: a conversion each. The
 * kernel takes two to four times as long, probably for loads and stores that miss L1 (docs/lab/2026-11-cpu.md), so it
 * is used only if QN_CPU names it.
 *
 * Order of the computation. Partial sum i of an element (matmul.h) has the groups i, i + 16, ... of the row. The kernel
 * computes one partial sum (a lane) of all elements after the other: it unpacks the lane's groups of 64 rows, computes
 * products of several groups, then scales these, with the partial sums of 16 rows by 16 tokens in registers. Lanes come
 * in the order 0 8 4 12 2 10 6 14 1 9 ..., in which the canonical sum of sixteen (kernels/canon.h) needs four
 * intermediate sums. */
#ifndef QN_KERNELS_MATMUL_TILES_H
#define QN_KERNELS_MATMUL_TILES_H

#include "kernels/matmul/matmul.h"

enum {
    QN_TILE = 16,             /* rows, and tokens, of a tile */
    QN_TILE_PAIR_ROWS = 32,   /* rows of two tiles */
    QN_TILE_PANEL_ROWS = 64,  /* rows of a panel */
    QN_TILE_MAX_TOKENS = 256, /* tokens of a call of the GEMM */
    QN_TILE_CHUNK = 2         /* groups of a lane that are multiplied before they are scaled; their sums stay in L1 */
};

/* Activations of 16 tokens in a group: codes as bf16, [pair of values][token][2], scales and sums. In
 * qn_acts, tiles are in the order in which the GEMM reads them, which is one stream for a prefetcher: [16 lanes][chunks
 * of QN_TILE_CHUNK super-blocks, the last one may be shorter][blocks of 16 tokens][super-blocks of the chunk]. */
typedef struct qn_act_tile {
    _Alignas(64) uint16_t codes[QN_QUANT_GROUP / 2][QN_TILE][2];
    float scale[QN_TILE], sum[QN_TILE]; /* sum: of the codes, as in qn_acts */
} qn_act_tile;

/* The lo codes of the hi/lo split. */
typedef struct qn_act_tile_lo {
    _Alignas(64) uint16_t codes[QN_QUANT_GROUP / 2][QN_TILE][2];
} qn_act_tile_lo;

/* qn_act_tile_at - returns the index of the tile with the token and group `lane` of super-block `super`. */
static inline size_t qn_act_tile_at(const qn_acts *acts, size_t token, size_t super, size_t lane)
{
    const size_t token_tiles = (acts->max_rows + QN_TILE - 1) / QN_TILE, first = super / QN_TILE_CHUNK * QN_TILE_CHUNK,
                 left = acts->n_super - first, in_chunk = left < QN_TILE_CHUNK ? left : QN_TILE_CHUNK;
    return (lane * acts->n_super + first) * token_tiles + token / QN_TILE * in_chunk + super - first;
}

/* Up to 64 rows of weights for the GEMM: Q1_0 as packed, all other types as codes. Rows up to QN_TILE_PANEL_ROWS that
 * do not exist have codes and scales that are finite; their results are not stored. */
typedef struct qn_tile_panel {
    size_t n_rows, n_super, n_groups;
    const uint8_t *words;          /* Q1_0: a panel of QN_PACKING_WORDS (packed.h); NULL: codes */
    uint8_t *codes;                /* [n_super][16 lanes][64 rows][32], in the order of `order` */
    float *scale, *offset;         /* [n_super][16 lanes][64 rows]; offset is NULL for types without one */
    uint8_t order[QN_QUANT_GROUP]; /* value i of a group is code order[i] */
    int zero_point, max_code;
} qn_tile_panel;

/* Groups [first, first + n) of a lane of two tiles of a panel, unpacked. */
typedef struct qn_tile_weights {
    _Alignas(64) uint16_t codes[QN_TILE_CHUNK][QN_TILE_PAIR_ROWS][QN_QUANT_GROUP]; /* bf16 */
    float scale[QN_TILE_CHUNK][QN_TILE_PAIR_ROWS], offset[QN_TILE_CHUNK][QN_TILE_PAIR_ROWS];
    size_t lane, first, n, pair;
} qn_tile_weights;

/* qn_tiles_multiply_type - returns whether the GEMM multiplies weights of this type: quantised types with one scale and
 * no factors in a group. */
bool qn_tiles_multiply_type(const qn_type_info *type);

/* qn_tile_gemm_scratch - returns the bytes of scratch of a GEMM. */
size_t qn_tile_gemm_scratch(void);

/* qn_tile_panel_bytes - returns the bytes of the arrays of a panel of codes. */
size_t qn_tile_panel_bytes(size_t n_super);

/* qn_tile_panel_begin - lays out a panel of codes for n_rows rows in memory [qn_tile_panel_bytes], 64-aligned. Its rows
 * are then filled by qn_tile_put_amx or qn_tile_put_ref. */
void qn_tile_panel_begin(qn_tile_panel *panel, const qn_type_info *type, size_t n_rows, size_t n_cols, void *memory);

/* qn_tile_put_amx, qn_tile_put_ref - store super-block `super` of a row of a panel of codes. */
void qn_tile_put_amx(const qn_tile_panel *panel, size_t row, size_t super, const qn_super_block *block);
void qn_tile_put_ref(const qn_tile_panel *panel, size_t row, size_t super, const qn_super_block *block);

/* qn_tile_gemm_amx, qn_tile_gemm_ref - multiply a panel by tokens [first, first + n_tokens) of acts, which have tiles.
 *
 *   first, n_tokens   a multiple of 16; at most QN_TILE_MAX_TOKENS
 *   out               out[token*out_stride + row] is overwritten, or added to with `accumulate`; row 0 is the panel's
 *   scratch           qn_tile_gemm_scratch bytes */
void qn_tile_gemm_amx(const qn_tile_panel *panel, const qn_acts *acts, size_t first, size_t n_tokens, bool accumulate,
                      float *out, size_t out_stride, void *scratch);
void qn_tile_gemm_ref(const qn_tile_panel *panel, const qn_acts *acts, size_t first, size_t n_tokens, bool accumulate,
                      float *out, size_t out_stride, void *scratch);

#endif
