/* The GEMM of blocks.h. The including file defines its tile instructions and vectors (gemm_tiles.h), and
 *
 *   block_tiles_begin, _end       before and after tiles are used: all tiles are 16 rows of 64 bytes
 *   BLOCK_LOAD(state, tile, from) tiles 4 to 7, 1 KiB of memory
 *   BLOCK_MULTIPLY(state, c, a, b)  c += a * b: [16][64] by [16 quads][16][4] int8, [16][16] int32
 *   expand_packed_block           a block of 16 packed rows, times_base only if has_hi
 *   v16_of_int32, v16_...         as in gemm_tiles.h */
#ifndef QN_KERNELS_MATMUL_GEMM_BLOCKS_H
#define QN_KERNELS_MATMUL_GEMM_BLOCKS_H

#include "kernels/matmul/blocks.h"

/* Tiles of tokens, and of rows, that are computed at once. */
enum { AT_ONCE = 2, SUMS = AT_ONCE * AT_ONCE * TILE_FLOATS, CODES = QN_BLOCK * QN_TILE };

/* The elements of the second of two tiles of tokens lie there after the first's. */
enum { NEXT_TOKENS = QN_TILE_PANEL_TILES * TILE_FLOATS };

/* The scratch of a GEMM. The first ones lie next to each other, so that they share few sets of L1. */
struct block_memory {
    int32_t *sums;     /* [2: lo codes][tiles of tokens][tiles of rows][TILE_FLOATS], each tile [token][row] */
    int8_t *codes;     /* [pairs of tiles of rows][blocks][2][CODES], then times QN_BLOCK_BASE: BASE_AT after */
    float *scales;     /* [pairs of tiles of rows][blocks][2][QN_TILE] */
    float *no_element; /* as elements of two tiles by two: where sums go that belong to no element */
    float *elements;   /* [panels][tiles of tokens][tiles of rows][TILE_FLOATS]: their sums over the blocks before */
};

enum { BASE_AT = QN_BLOCK_CHUNK * CODES };

static struct block_memory block_memory_of(void *scratch)
{
    struct block_memory m = { .sums = scratch };
    m.codes = (int8_t *)(m.sums + 2 * SUMS);
    m.scales = (float *)(void *)(m.codes + 2 * BASE_AT);
    m.no_element = m.scales + QN_BLOCK_CHUNK * QN_TILE;
    m.elements = m.no_element + 2 * NEXT_TOKENS;
    return m;
}

/* The operands of a GEMM. */
struct block_gemm {
    const qn_block_panel *panels;
    size_t n_panels;
    const qn_acts *acts;
    size_t first, n_tokens, token_tiles;
    bool accumulate;
    float *out;
    size_t out_stride;
    struct block_memory memory;
};

/* Blocks [first, first + n) of a panel, unpacked. */
struct block_chunk {
    size_t row_tiles, first, n; /* row_tiles: an even number */
};

/* Returns whether a token of the tile has hi digits. */
QN_INLINE bool has_hi_digits(const qn_act_block_tile *tile)
{
    uint64_t flags[2];
    memcpy(flags, tile->has_hi, sizeof flags);
    return (flags[0] | flags[1]) != 0;
}

/* Returns whether a token of the GEMM has hi digits in the block. */
QN_INLINE bool any_hi_digits(const struct block_gemm *g, size_t block)
{
    const qn_act_block_tile *tiles = g->acts->block_tiles + qn_act_block_at(g->acts, g->first, block);
    for (size_t token = 0; token < g->token_tiles; token++)
        if (has_hi_digits(&tiles[token]))
            return true;
    return false;
}

QN_INLINE void expand_chunk(const struct block_gemm *g, const qn_block_panel *panel, const struct block_chunk *chunk,
                            tile_state *state)
{
    (void)state;
    for (size_t i = 0; i < chunk->n; i++) {
        const bool has_hi = any_hi_digits(g, chunk->first + i);
        for (size_t tile = 0; tile < chunk->row_tiles; tile++) {
            const size_t at = (tile / AT_ONCE * chunk->n + i) * AT_ONCE + tile % AT_ONCE;
            int8_t *codes = g->memory.codes + at * CODES;
            const qn_block_rows out = { .codes = (int8_t(*)[QN_TILE][4])(void *)codes,
                                        .times_base = (int8_t(*)[QN_TILE][4])(void *)(codes + BASE_AT),
                                        .scale = g->memory.scales + at * QN_TILE };
            BLOCK_KEEP_AWAKE(state, g->memory.sums);
            if (panel->packed)
                expand_packed_block(panel, tile, chunk->first + i, has_hi, &out);
            else
                qn_block_expand_stored(panel, tile * QN_TILE, chunk->first + i, &out);
        }
    }
}

/* What the scaling of a step's sums reads and adds to: of the first of two tiles of tokens and of rows. */
struct block_scaling {
    const qn_act_block_tile *acts;
    const float *scale;
    float *elements;
};

/* Scales part `part` of 8 of a step's sums, which is half a tile, and adds it to the elements. sums_lo: of the lo
 * codes, with the hi/lo split; a constant at the calls, as the part. */
QN_INLINE void scale_part(struct block_scaling s, const int32_t *sums, const int32_t *sums_lo, int part)
{
    enum { HALF = QN_TILE / 2 };
    const int tile = part / 2, token_tile = tile / AT_ONCE, row_tile = tile % AT_ONCE, first = part % 2 * HALF;
    const v16 scale = v16_load(s.scale + row_tile * QN_TILE);
    const float *act_scale = s.acts[token_tile].scale;
    float *elements = s.elements + token_tile * NEXT_TOKENS + row_tile * TILE_FLOATS;
    QN_UNROLLED
    for (int t = first; t < first + HALF; t++) {
        const size_t from = (size_t)tile * TILE_FLOATS + (size_t)t * QN_TILE;
        v16 x = v16_of_int32(sums + from);
        if (sums_lo)
            x = v16_fma(x, v16_set1(QN_HILO_BASE), v16_of_int32(sums_lo + from));
        float *element = elements + t * QN_TILE;
        v16_store(element, v16_fma(x, v16_mul(scale, v16_set1(act_scale[t])), v16_load(element)));
    }
}

/* Multiplies 64 values of two tiles of tokens by two of rows; AFTER(i) is done after the products of sums i. */
#define MULTIPLY_64(state, tokens_0, tokens_1, rows_0, rows_1, BEFORE, AFTER)                                          \
    do {                                                                                                               \
        BEFORE(0);                                                                                                     \
        BLOCK_LOAD(state, 4, tokens_0);                                                                                \
        BLOCK_LOAD(state, 6, rows_0);                                                                                  \
        BLOCK_MULTIPLY(state, 0, 4, 6);                                                                                \
        AFTER(0);                                                                                                      \
        BEFORE(1);                                                                                                     \
        BLOCK_LOAD(state, 7, rows_1);                                                                                  \
        BLOCK_MULTIPLY(state, 1, 4, 7);                                                                                \
        AFTER(1);                                                                                                      \
        BEFORE(2);                                                                                                     \
        BLOCK_LOAD(state, 5, tokens_1);                                                                                \
        BLOCK_MULTIPLY(state, 2, 5, 6);                                                                                \
        AFTER(2);                                                                                                      \
        BEFORE(3);                                                                                                     \
        BLOCK_MULTIPLY(state, 3, 5, 7);                                                                                \
        AFTER(3);                                                                                                      \
    } while (0)

#define NOTHING(i) (void)0

/* Stores the sums of the step before and begins new ones. */
#define STORE_AND_ZERO(i)                                                                                              \
    do {                                                                                                               \
        TILE_STORE(state, i, sums + (i)*TILE_FLOATS);                                                                  \
        TILE_ZERO(state, i);                                                                                           \
    } while (0)

/* The scaling of the sums of the step before, after products 2 and 3 of the first 64 values, when sums are stored; then
 * as it is spread over the next four products, or over the next twelve where there are hi digits. */
#define SCALE_FIRST(i)                                                                                                 \
    do {                                                                                                               \
        if ((i) >= 2)                                                                                                  \
            scale_part(before, sums, NULL, (i)-2);                                                                     \
    } while (0)
#define SCALE_REST(i)                                                                                                  \
    do {                                                                                                               \
        scale_part(before, sums, NULL, (i) ? 2 * (i) + 1 : 2);                                                         \
        if ((i) == 1 || (i) == 2)                                                                                      \
            scale_part(before, sums, NULL, 2 * (i) + 2);                                                               \
    } while (0)
#define SCALE_TWO(i, first)                                                                                            \
    do {                                                                                                               \
        if ((i) % 2 == 0)                                                                                              \
            scale_part(before, sums, NULL, (first) + (i) / 2);                                                         \
    } while (0)
#define SCALE_2_3(i) SCALE_TWO(i, 2)
#define SCALE_4_5(i) SCALE_TWO(i, 4)
#define SCALE_6_7(i) SCALE_TWO(i, 6)

/* The products of a step, a block of two tiles of tokens by two of rows, and between them the storing and scaling of
 * the sums of the step before: vector instructions execute next to products, but few of them fit between two of these
 * in the processor's queues. All pointers are in registers: with those of tiles in memory one thread took twice as
 * long, probably because loads whose last 12 address bits are those of a row of sums wait until that is stored. */
QN_INLINE void multiply_step(tile_state *state, int32_t *sums, const qn_act_block_tile *acts,
                             const qn_act_block_tile_hi *hi, const int8_t *codes, struct block_scaling before)
{
    const bool has_hi = has_hi_digits(acts) || has_hi_digits(acts + 1);
    enum { NEXT = CODES, SECOND = CODES / 2 };
    (void)state;
    MULTIPLY_64(state, acts[0].codes[0], acts[1].codes[0], codes, codes + NEXT, STORE_AND_ZERO, SCALE_FIRST);
    if (!has_hi) {
        MULTIPLY_64(state, acts[0].codes[1], acts[1].codes[1], codes + SECOND, codes + NEXT + SECOND, NOTHING,
                    SCALE_REST);
        return;
    }
    MULTIPLY_64(state, acts[0].codes[1], acts[1].codes[1], codes + SECOND, codes + NEXT + SECOND, NOTHING, SCALE_2_3);
    codes += BASE_AT;
    MULTIPLY_64(state, hi[0].codes[0], hi[1].codes[0], codes, codes + NEXT, NOTHING, SCALE_4_5);
    MULTIPLY_64(state, hi[0].codes[1], hi[1].codes[1], codes + SECOND, codes + NEXT + SECOND, NOTHING, SCALE_6_7);
}

QN_INLINE void scale_step(struct block_scaling s, const int32_t *sums, const int32_t *sums_lo)
{
    QN_UNROLLED
    for (int part = 0; part < 8; part++)
        scale_part(s, sums, sums_lo, part);
}

#define STORE(i) TILE_STORE(state, i, sums + (i)*TILE_FLOATS)
#define ZERO(i) TILE_ZERO(state, i)

/* Adds a chunk to the elements of all tokens. With an odd number of tiles of tokens the last one is computed with one
 * after it that means nothing. */
QN_INLINE void add_chunk(const struct block_gemm *g, const struct block_chunk *chunk, float *elements,
                         tile_state *state)
{
    int32_t *sums = g->memory.sums;
    const size_t row_tiles = chunk->row_tiles, act_tiles = qn_act_token_tiles(g->acts), n = chunk->n;
    const size_t first = qn_act_block_at(g->acts, g->first, chunk->first);
    struct block_scaling before = { g->acts->block_tiles + first, g->memory.scales, g->memory.no_element };
    (void)state;
    for (size_t token = 0; token < g->token_tiles; token += AT_ONCE) {
        const qn_act_block_tile *acts = g->acts->block_tiles + first + token;
        const qn_act_block_tile_hi *hi = g->acts->block_tiles_hi + first + token;
        const int8_t *codes = g->memory.codes;
        const float *scale = g->memory.scales;
        float *to = elements + token * NEXT_TOKENS, *end = to + row_tiles * TILE_FLOATS;
        for (; to < end; to += AT_ONCE * TILE_FLOATS, acts -= n * act_tiles, hi -= n * act_tiles)
            for (const int8_t *last = codes + n * AT_ONCE * CODES; codes < last;) {
                multiply_step(state, sums, acts, hi, codes, before);
                before.acts = acts;
                before.scale = scale;
                before.elements = to;
                acts += act_tiles;
                hi += act_tiles;
                codes += AT_ONCE * CODES;
                scale += AT_ONCE * QN_TILE;
            }
    }
    STORE(0);
    STORE(1);
    STORE(2);
    STORE(3);
    scale_step(before, sums, NULL);
}

/* The same with the hi/lo split. */
QN_INLINE void add_chunk_hilo(const struct block_gemm *g, const struct block_chunk *chunk, float *elements,
                              tile_state *state)
{
    enum { NEXT = CODES, SECOND = CODES / 2 };
    (void)state;
    for (size_t token = 0; token < g->token_tiles; token += AT_ONCE)
        for (size_t row = 0; row < chunk->row_tiles; row += AT_ONCE)
            for (size_t i = 0; i < chunk->n; i++) {
                const size_t tile = qn_act_block_at(g->acts, g->first, chunk->first + i) + token,
                             at = row * chunk->n + i * AT_ONCE;
                const qn_act_block_tile *acts = g->acts->block_tiles + tile;
                const qn_act_block_tile_hi *acts_lo = g->acts->block_tiles_hi + tile;
                const int8_t *codes = g->memory.codes + at * CODES;
                int32_t *sums = g->memory.sums;
                MULTIPLY_64(state, acts[0].codes[0], acts[1].codes[0], codes, codes + NEXT, ZERO, NOTHING);
                MULTIPLY_64(state, acts[0].codes[1], acts[1].codes[1], codes + SECOND, codes + NEXT + SECOND, NOTHING,
                            STORE);
                sums += SUMS;
                MULTIPLY_64(state, acts_lo[0].codes[0], acts_lo[1].codes[0], codes, codes + NEXT, ZERO, NOTHING);
                MULTIPLY_64(state, acts_lo[0].codes[1], acts_lo[1].codes[1], codes + SECOND, codes + NEXT + SECOND,
                            NOTHING, STORE);
                const struct block_scaling scaling = { acts, g->memory.scales + at * QN_TILE,
                                                       elements + token * NEXT_TOKENS + row * TILE_FLOATS };
                scale_step(scaling, g->memory.sums, sums);
            }
}

/* Adds blocks [begin, end) of a panel to its elements. */
#define BLOCK_VARIANT(name, add)                                                                                       \
    static void name(const struct block_gemm *g, size_t panel, size_t begin, size_t end, tile_state *state)            \
    {                                                                                                                  \
        const size_t row_tiles = (g->panels[panel].n_rows + AT_ONCE * QN_TILE - 1) / (AT_ONCE * QN_TILE) * AT_ONCE;    \
        struct block_chunk chunk = { .row_tiles = row_tiles };                                                         \
        float *elements = g->memory.elements + panel * QN_TILE_PANEL_ROWS * QN_TILE_MAX_TOKENS;                        \
        for (chunk.first = begin; chunk.first < end; chunk.first += chunk.n) {                                         \
            const size_t most = any_hi_digits(g, chunk.first) ? QN_BLOCK_CHUNK_HI : QN_BLOCK_CHUNK,                    \
                         left = end - chunk.first;                                                                     \
            chunk.n = left < most / row_tiles ? left : most / row_tiles;                                               \
            expand_chunk(g, &g->panels[panel], &chunk, state);                                                         \
            add(g, &chunk, elements, state);                                                                           \
        }                                                                                                              \
    }
BLOCK_VARIANT(add_blocks, add_chunk)
BLOCK_VARIANT(add_blocks_hilo, add_chunk_hilo)

/* Stores the elements of a tile of tokens and all rows of a panel as results. */
static void store_block_results(const struct block_gemm *g, size_t n_rows, const float *elements, size_t token,
                                float *out)
{
    for (size_t tile = 0; tile * QN_TILE < n_rows; tile++) {
        const size_t row = tile * QN_TILE, left = n_rows - row;
        for (size_t t = 0; t < QN_TILE && token + t < g->n_tokens; t++) {
            float *to = out + (g->first + token + t) * g->out_stride + row;
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

/* Returns the number of blocks whose activations fit QN_BLOCK_PART_BYTES, which all panels are multiplied with before
 * the blocks after them. */
static size_t blocks_of_part(const struct block_gemm *g)
{
    const size_t bytes = g->token_tiles * (sizeof(qn_act_block_tile) + sizeof(qn_act_block_tile_hi)),
                 n = QN_BLOCK_PART_BYTES / bytes / QN_BLOCK_CHUNK * QN_BLOCK_CHUNK;
    return g->n_panels == 1 ? SIZE_MAX : n ? n : QN_BLOCK_CHUNK;
}

static void gemm_blocks(const qn_block_panel *panels, size_t n_panels, const qn_acts *acts, size_t first,
                        size_t n_tokens, bool accumulate, float *out, size_t out_stride, void *scratch)
{
    const struct block_gemm g = { .panels = panels,
                                  .n_panels = n_panels,
                                  .acts = acts,
                                  .first = first,
                                  .n_tokens = n_tokens,
                                  .token_tiles = (n_tokens + QN_TILE - 1) / QN_TILE,
                                  .accumulate = accumulate,
                                  .out = out,
                                  .out_stride = out_stride,
                                  .memory = block_memory_of(scratch) };
    const size_t n_blocks = panels->n_blocks, part = blocks_of_part(&g),
                 panel_floats = QN_TILE_PANEL_ROWS * QN_TILE_MAX_TOKENS;
    tile_state state;
    for (size_t p = 0; p < n_panels; p++)
        memset(g.memory.elements + p * panel_floats, 0,
               (g.token_tiles + g.token_tiles % AT_ONCE) * NEXT_TOKENS * sizeof(float));
    block_tiles_begin(&state);
    for (size_t begin = 0, end; begin < n_blocks; begin = end) {
        end = n_blocks - begin < part ? n_blocks : begin + part;
        for (size_t p = 0; p < n_panels; p++)
            (acts->hilo ? add_blocks_hilo : add_blocks)(&g, p, begin, end, &state);
    }
    tile_end(&state);
    for (size_t p = 0; p < n_panels; out += panels[p++].n_rows)
        for (size_t token = 0; token < g.token_tiles; token++)
            store_block_results(&g, panels[p].n_rows,
                                g.memory.elements + p * panel_floats + token * QN_TILE_PANEL_TILES * TILE_FLOATS,
                                token * QN_TILE, out);
}

#endif
