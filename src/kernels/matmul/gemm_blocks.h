/* The GEMM of blocks.h. The including file defines its tile instructions and vectors (gemm_tiles.h), and
 *
 *   block_tiles_begin, _end       before and after tiles are used: all tiles are 16 rows of 64 bytes
 *   BLOCK_LOAD(state, tile, from) tiles 4 to 7, 1 KiB of memory
 *   BLOCK_MULTIPLY(state, c, a, b)  c += a * b: [16][64] by [16 quads][16][4] int8, [16][16] int32
 *   expand_packed_block           a block of 16 packed rows to qn_block_weights, times_base only if has_hi
 *   v16_of_int32, v16_...         as in gemm_tiles.h */
#ifndef QN_KERNELS_MATMUL_GEMM_BLOCKS_H
#define QN_KERNELS_MATMUL_GEMM_BLOCKS_H

#include "kernels/matmul/blocks.h"

/* Tiles of tokens, and of rows, that are computed at once. */
enum { AT_ONCE = 2, SUMS = AT_ONCE * AT_ONCE * TILE_FLOATS };

/* The scratch of a GEMM. The first two lie next to each other, so that they share no sets of L1. */
struct block_memory {
    int32_t *sums; /* [even and odd blocks][tiles of tokens][tiles of rows][TILE_FLOATS], each tile [token][row] */
    qn_block_weights *weights; /* [tiles of rows][blocks] */
    float *elements;           /* [tiles of tokens][tiles of rows][TILE_FLOATS]: their sums over the blocks before */
};

static struct block_memory block_memory_of(void *scratch)
{
    struct block_memory m = { .sums = scratch };
    m.weights = (qn_block_weights *)(void *)(m.sums + 2 * SUMS);
    m.elements = (float *)(void *)(m.weights + QN_BLOCK_CHUNK);
    return m;
}

/* The operands of a GEMM. */
struct block_gemm {
    const qn_block_panel *panel;
    const qn_acts *acts;
    size_t first, n_tokens;
    bool accumulate;
    float *out;
    size_t out_stride;
    size_t row_tiles, chunk; /* tiles of rows, an even number; blocks that are unpacked at a time */
};

/* Two tiles of tokens by two of rows: the activations and weights of the chunk's first block. With one tile of tokens
 * left, both are that one. */
struct block_place {
    const qn_act_block_tile *acts[AT_ONCE]; /* of the next block: `stride` later */
    const qn_act_block_tile_hi *acts_hi[AT_ONCE];
    size_t stride;
    const qn_block_weights *weights[AT_ONCE];
    float *elements[AT_ONCE]; /* of each tile of tokens: AT_ONCE tiles of rows */
    size_t token_tiles;       /* 1 or 2 */
};

/* Returns whether a token of the tile has hi digits. */
QN_INLINE bool has_hi_digits(const qn_act_block_tile *tile)
{
    uint64_t flags[2];
    memcpy(flags, tile->has_hi, sizeof flags);
    return (flags[0] | flags[1]) != 0;
}

/* Returns whether a token of the GEMM has hi digits in blocks [first, first + n). */
QN_INLINE bool any_hi_digits(const struct block_gemm *g, size_t first, size_t n)
{
    for (size_t token = 0; token * QN_TILE < g->n_tokens; token++)
        for (size_t i = 0; i < n; i++)
            if (has_hi_digits(&g->acts->block_tiles[qn_act_block_at(g->acts, g->first + token * QN_TILE, first + i)]))
                return true;
    return false;
}

/* Unpacks blocks [first, first + n) of a panel. */
QN_INLINE void expand_blocks(const struct block_gemm *g, size_t first, size_t n, tile_state *state,
                             const struct block_memory *m)
{
    const bool has_hi = any_hi_digits(g, first, n);
    (void)state;
    for (size_t tile = 0; tile < g->row_tiles; tile++)
        for (size_t i = 0; i < n; i++) {
            qn_block_weights *out = &m->weights[tile * g->chunk + i];
            BLOCK_KEEP_AWAKE(state, m->sums);
            if (g->panel->packed)
                expand_packed_block(g->panel, tile, first + i, has_hi, out);
            else
                qn_block_expand_stored(g->panel, tile * QN_TILE, first + i, out);
        }
}

/* Multiplies 64 values of two tiles of tokens by two of rows. */
#define MULTIPLY_64(state, tokens_0, tokens_1, rows_0, rows_1)                                                         \
    do {                                                                                                               \
        BLOCK_LOAD(state, 4, tokens_0);                                                                                \
        BLOCK_LOAD(state, 6, rows_0);                                                                                  \
        BLOCK_MULTIPLY(state, 0, 4, 6);                                                                                \
        BLOCK_LOAD(state, 7, rows_1);                                                                                  \
        BLOCK_MULTIPLY(state, 1, 4, 7);                                                                                \
        BLOCK_LOAD(state, 5, tokens_1);                                                                                \
        BLOCK_MULTIPLY(state, 2, 5, 6);                                                                                \
        BLOCK_MULTIPLY(state, 3, 5, 7);                                                                                \
    } while (0)

/* Adds the products of the first (digit = 0) or second (1) tiles of activations of a block, with the weights or with
 * the weights times QN_BLOCK_BASE. digit and times_base are constants at the calls. */
QN_INLINE void multiply_digit(tile_state *state, const struct block_place *at, size_t block, int digit, bool times_base)
{
    const size_t acts = block * at->stride;
    const int8_t(*a0)[QN_TILE][QN_BLOCK_K] = digit ? at->acts_hi[0][acts].codes : at->acts[0][acts].codes,
          (*a1)[QN_TILE][QN_BLOCK_K] = digit ? at->acts_hi[1][acts].codes : at->acts[1][acts].codes;
    const qn_block_weights *w0 = at->weights[0] + block, *w1 = at->weights[1] + block;
    enum { QUADS = QN_BLOCK_K / 4 };
    (void)state;
    QN_UNROLLED
    for (int half = 0; half < 2; half++)
        MULTIPLY_64(state, a0[half], a1[half], times_base ? w0->times_base[half * QUADS] : w0->codes[half * QUADS],
                    times_base ? w1->times_base[half * QUADS] : w1->codes[half * QUADS]);
}

QN_INLINE void zero_sums(tile_state *state)
{
    (void)state;
    TILE_ZERO(state, 0);
    TILE_ZERO(state, 1);
    TILE_ZERO(state, 2);
    TILE_ZERO(state, 3);
}

QN_INLINE void store_tile_sums(tile_state *state, int32_t *sums)
{
    (void)state;
    TILE_STORE(state, 0, sums);
    TILE_STORE(state, 1, sums + TILE_FLOATS);
    TILE_STORE(state, 2, sums + 2 * TILE_FLOATS);
    TILE_STORE(state, 3, sums + 3 * TILE_FLOATS);
}

/* Scales the sums of a block and adds them to the elements; `begins`: the elements are 0. sums_lo: of the lo codes,
 * with the hi/lo split; a constant at the calls, as begins. */
QN_INLINE void scale_tile(float *elements, const int32_t *sums, const int32_t *sums_lo, const qn_block_weights *w,
                          const qn_act_block_tile *acts, bool begins)
{
    const v16 scale = v16_load(w->scale);
    QN_UNROLLED
    for (int t = 0; t < QN_TILE; t++) {
        v16 x = v16_of_int32(sums + t * QN_TILE);
        if (sums_lo)
            x = v16_fma(x, v16_set1(QN_HILO_BASE), v16_of_int32(sums_lo + t * QN_TILE));
        const v16 before = begins ? v16_set1(0) : v16_load(elements + t * QN_TILE);
        v16_store(elements + t * QN_TILE, v16_fma(x, v16_mul(scale, v16_set1(acts->scale[t])), before));
    }
}

QN_INLINE void scale_tiles(const struct block_place *at, const int32_t *sums, const int32_t *sums_lo, size_t block,
                           bool begins)
{
    for (size_t t = 0; t < at->token_tiles; t++)
        for (size_t r = 0; r < AT_ONCE; r++) {
            const size_t from = (t * AT_ONCE + r) * TILE_FLOATS;
            float *elements = at->elements[t] + r * TILE_FLOATS;
            if (begins)
                scale_tile(elements, sums + from, sums_lo ? sums_lo + from : NULL, at->weights[r] + block,
                           at->acts[t] + block * at->stride, true);
            else
                scale_tile(elements, sums + from, sums_lo ? sums_lo + from : NULL, at->weights[r] + block,
                           at->acts[t] + block * at->stride, false);
        }
}

/* Adds the n unpacked blocks from `first` on: the products of a block, then, while they are computed, the scaling of
 * the sums of the block before. */
QN_INLINE void add_blocks(tile_state *state, const struct block_memory *m, const struct block_place *at, size_t first,
                          size_t n)
{
    for (size_t block = 0; block < n; block++) {
        zero_sums(state);
        multiply_digit(state, at, block, 0, false);
        if (has_hi_digits(at->acts[0] + block * at->stride) || has_hi_digits(at->acts[1] + block * at->stride))
            multiply_digit(state, at, block, 1, true);
        if (block)
            scale_tiles(at, m->sums + (block - 1) % 2 * SUMS, NULL, block - 1, first + block == 1);
        store_tile_sums(state, m->sums + block % 2 * SUMS);
    }
    scale_tiles(at, m->sums + (n - 1) % 2 * SUMS, NULL, n - 1, first + n == 1);
}

/* The same with the hi/lo split. */
QN_INLINE void add_blocks_hilo(tile_state *state, const struct block_memory *m, const struct block_place *at,
                               size_t first, size_t n)
{
    for (size_t block = 0; block < n; block++) {
        zero_sums(state);
        multiply_digit(state, at, block, 0, false);
        store_tile_sums(state, m->sums);
        zero_sums(state);
        multiply_digit(state, at, block, 1, false);
        store_tile_sums(state, m->sums + SUMS);
        scale_tiles(at, m->sums, m->sums + SUMS, block, first + block == 0);
    }
}

/* Stores the elements of a tile of tokens and all rows as results. */
static void store_block_results(const struct block_gemm *g, const float *elements, size_t token)
{
    for (size_t tile = 0; tile * QN_TILE < g->panel->n_rows; tile++) {
        const size_t row = tile * QN_TILE, left = g->panel->n_rows - row;
        for (size_t t = 0; t < QN_TILE && token + t < g->n_tokens; t++) {
            float *to = g->out + (g->first + token + t) * g->out_stride + row;
            const float *from = elements + tile * TILE_FLOATS + t * QN_TILE;
            if (left >= QN_TILE) {
                v16_store(to, g->accumulate ? v16_add(v16_load(to), v16_load(from)) : v16_load(from));
                continue;
            }
            for (size_t r = 0; r < left; r++)
                to[r] = g->accumulate ? to[r] + from[r] : from[r];
        }
    }
}

/* The place of tiles `token` and token + 1 of tokens, and row_tile and row_tile + 1 of rows. */
QN_INLINE struct block_place place_of(const struct block_gemm *g, const struct block_memory *m, size_t token,
                                      size_t row_tile, size_t first)
{
    const size_t left = (g->n_tokens + QN_TILE - 1) / QN_TILE - token, n = left < AT_ONCE ? left : AT_ONCE;
    struct block_place at = { .stride = qn_act_token_tiles(g->acts), .token_tiles = n };
    for (size_t i = 0; i < AT_ONCE; i++) {
        const size_t tile = token + (i < n ? i : 0);
        const size_t acts = qn_act_block_at(g->acts, g->first + tile * QN_TILE, first);
        at.acts[i] = g->acts->block_tiles + acts;
        at.acts_hi[i] = g->acts->block_tiles_hi + acts;
        at.weights[i] = m->weights + (row_tile + i) * g->chunk;
        at.elements[i] = m->elements + (tile * QN_TILE_PANEL_TILES + row_tile) * TILE_FLOATS;
    }
    return at;
}

#define BLOCK_VARIANT(name, add)                                                                                       \
    static void name(const struct block_gemm *g, tile_state *state, const struct block_memory *m)                      \
    {                                                                                                                  \
        for (size_t first = 0, n; first < g->panel->n_blocks; first += n) {                                            \
            n = g->panel->n_blocks - first < g->chunk ? g->panel->n_blocks - first : g->chunk;                         \
            expand_blocks(g, first, n, state, m);                                                                      \
            for (size_t token = 0; token * QN_TILE < g->n_tokens; token += AT_ONCE)                                    \
                for (size_t row = 0; row < g->row_tiles; row += AT_ONCE) {                                             \
                    const struct block_place at = place_of(g, m, token, row, first);                                   \
                    add(state, m, &at, first, n);                                                                      \
                }                                                                                                      \
        }                                                                                                              \
        for (size_t token = 0; token * QN_TILE < g->n_tokens; token++)                                                 \
            store_block_results(g, m->elements + token * QN_TILE_PANEL_TILES * TILE_FLOATS, token * QN_TILE);          \
    }
BLOCK_VARIANT(gemm_blocks_plain, add_blocks)
BLOCK_VARIANT(gemm_blocks_hilo, add_blocks_hilo)

static void gemm_blocks(const qn_block_panel *panel, const qn_acts *acts, size_t first, size_t n_tokens,
                        bool accumulate, float *out, size_t out_stride, void *scratch)
{
    const size_t row_tiles = (panel->n_rows + AT_ONCE * QN_TILE - 1) / (AT_ONCE * QN_TILE) * AT_ONCE;
    const struct block_gemm g = { .panel = panel,
                                  .acts = acts,
                                  .first = first,
                                  .n_tokens = n_tokens,
                                  .accumulate = accumulate,
                                  .out = out,
                                  .out_stride = out_stride,
                                  .row_tiles = row_tiles,
                                  .chunk = QN_BLOCK_CHUNK / row_tiles };
    const struct block_memory m = block_memory_of(scratch);
    tile_state state;
    block_tiles_begin(&state);
    (acts->hilo ? gemm_blocks_hilo : gemm_blocks_plain)(&g, &state, &m);
    tile_end(&state);
}

#endif
