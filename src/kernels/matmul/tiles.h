/* GEMM on matrix units that multiply tiles (Intel AMX), and the same in plain C (amx-ref), which checks its logic on
 * every machine.
 *
 * A tile product multiplies 16 weight rows by 16 tokens over one group of 32 values, of int8 codes with int32 sums. A
 * tile could hold 64 values of K, but a scale covers 32, and what follows a product is the same for both.
 *
 * Ticks of the TSC (2.1 GHz; 1.2 cycles each) for 16 rows, 16 tokens and one group, measured on a Xeon (family 6, model
 * 207) with operands in L1 and all threads computing (docs/lab/2026-11-cpu.md):
 *
 *   tile product         16
 *   loading both tiles   18
 *   storing sums         20
 *   scaling              18: 16 conversions, multiplications and fused multiply-adds. They execute on two ports, but on
 *                        one of them only while tile instructions are in flight (and about 130 cycles after)
 *   product, loads and storing together 63, with scaling of the sums of the step before 80
 *
 * So moving operands and sums to and from the tile registers takes longest: 16384 operations in 80 ticks are 17% of the
 * int8 rate. bf16 tiles, whose sums need no conversion, have operands twice as large and take 86 ticks.
 *
 * Order of the computation. Partial sum i of an element (matmul.h) has the groups i, i + 16, ... of the row. The kernel
 * computes one partial sum (a lane) of all elements after the other. It unpacks a chunk of the lane's groups of 64
 * rows. Then, for 16 rows by 16 tokens, it steps through the chunk with the partial sums in vector registers: a step
 * begins a product, stores the sums of the product before and scales those stored a step earlier, so that no
 * instruction waits for the one before it. Lanes come in the order 0 8 4 12 2 10 6 14 1 9 ..., in which the canonical
 * sum of sixteen (kernels/canon.h) needs four intermediate sums. */
#ifndef QN_KERNELS_MATMUL_TILES_H
#define QN_KERNELS_MATMUL_TILES_H

#include "kernels/matmul/matmul.h"

enum {
    QN_TILE = 16,            /* rows, and tokens, of a tile */
    QN_TILE_PANEL_ROWS = 64, /* rows of a panel */
    QN_TILE_PANEL_TILES = QN_TILE_PANEL_ROWS / QN_TILE,
    QN_TILE_MAX_TOKENS = 256, /* tokens of a call of the GEMM */
    QN_TILE_MAX_CHUNK = 12    /* groups of a lane that are unpacked at a time: 24 KB of codes */
};

/* Activations of 16 tokens in a group: int8 codes, [quad of values][token][4], scales and sums. In qn_acts, tiles are
 * in the order in which the GEMM reads them, which is one stream for a prefetcher: [16 lanes][chunks of
 * super-blocks][blocks of 16 tokens][super-blocks of the chunk]. */
typedef struct qn_act_tile {
    _Alignas(64) int8_t codes[QN_QUANT_GROUP / 4][QN_TILE][4];
    float scale[QN_TILE], sum[QN_TILE]; /* sum: of the codes, as in qn_acts */
} qn_act_tile;

/* The lo codes of the hi/lo split. */
typedef struct qn_act_tile_lo {
    _Alignas(64) int8_t codes[QN_QUANT_GROUP / 4][QN_TILE][4];
} qn_act_tile_lo;

/* qn_tile_chunk - returns the number of super-blocks of a chunk: the fewest chunks, nearly equal. */
static inline size_t qn_tile_chunk(size_t n_super)
{
    const size_t n_chunks = (n_super + QN_TILE_MAX_CHUNK - 1) / QN_TILE_MAX_CHUNK;
    return (n_super + n_chunks - 1) / n_chunks;
}

/* qn_act_lane_tiles - returns the number of tiles of a lane. */
static inline size_t qn_act_lane_tiles(const qn_acts *acts)
{
    return acts->n_super * ((acts->max_rows + QN_TILE - 1) / QN_TILE);
}

/* qn_act_tile_at - returns the index of the tile with the token and group `lane` of super-block `super`. */
static inline size_t qn_act_tile_at(const qn_acts *acts, size_t token, size_t super, size_t lane)
{
    const size_t chunk = qn_tile_chunk(acts->n_super), first = super / chunk * chunk, left = acts->n_super - first,
                 in_chunk = left < chunk ? left : chunk, token_tiles = (acts->max_rows + QN_TILE - 1) / QN_TILE;
    return lane * qn_act_lane_tiles(acts) + first * token_tiles + token / QN_TILE * in_chunk + super - first;
}

/* Up to 64 rows of weights for the GEMM. Rows up to QN_TILE_PANEL_ROWS that do not exist have codes and scales that are
 * finite; their results are not stored. */
typedef struct qn_tile_panel {
    size_t n_rows, n_super, n_groups;
    uint8_t *codes;                /* [n_super][16 lanes][64 rows][32], in the order of `order` */
    float *scale, *offset;         /* [n_super][16 lanes][64 rows]; offset is NULL for types without one */
    uint8_t order[QN_QUANT_GROUP]; /* value i of a group is code order[i] */
    int zero_point;
} qn_tile_panel;

/* Groups [first, first + n) of a lane of a panel, unpacked: codes without the zero point. */
typedef struct qn_tile_weights {
    _Alignas(64) int8_t codes[QN_TILE_PANEL_TILES][QN_TILE_MAX_CHUNK][QN_TILE][QN_QUANT_GROUP];
    float scale[QN_TILE_PANEL_TILES][QN_TILE_MAX_CHUNK][QN_TILE],
        offset[QN_TILE_PANEL_TILES][QN_TILE_MAX_CHUNK][QN_TILE];
    size_t lane, first, n;
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
