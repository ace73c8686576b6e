/* The GEMM of blocks.h. The including file defines its tile instructions and vectors (gemm_tiles.h), and
 *
 *   block_tiles_begin             before tiles are used: 16 rows of 64 bytes; of tiles of tokens and sums n_tokens rows
 *   BLOCK_LOAD(state, tile, from) tiles 4 to 7, 1 KiB of memory
 *   BLOCK_MULTIPLY(state, c, a, b)  c += a * b: [16][64] by [16 quads][16][4] int8, [16][16] int32
 *   expand_block                  a block of 16 rows, times_base only if has_hi
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

/* Unpacks 16 rows of a block to place `at` of the codes. */
QN_INLINE void expand_tile(const struct block_gemm *g, const qn_block_panel *panel, size_t tile, size_t block,
                           bool has_hi, size_t at)
{
    int8_t *codes = g->memory.codes + at * CODES;
    const qn_block_rows out = { .codes = (int8_t(*)[QN_TILE][4])(void *)codes,
                                .times_base = (int8_t(*)[QN_TILE][4])(void *)(codes + BASE_AT),
                                .scale = g->memory.scales + at * QN_TILE };
    expand_block(panel, tile, block, has_hi, &out);
}

QN_INLINE void expand_chunk(const struct block_gemm *g, const qn_block_panel *panel, const struct block_chunk *chunk,
                            tile_state *state)
{
    (void)state;
    for (size_t i = 0; i < chunk->n; i++) {
        const bool has_hi = any_hi_digits(g, chunk->first + i);
        for (size_t tile = 0; tile < chunk->row_tiles; tile++) {
            BLOCK_KEEP_AWAKE(state, g->memory.sums);
            expand_tile(g, panel, tile, chunk->first + i, has_hi,
                        (tile / AT_ONCE * chunk->n + i) * AT_ONCE + tile % AT_ONCE);
        }
    }
}

/* What the scaling of a step's sums reads and adds to: of the first of two tiles of tokens and of rows. */
struct block_scaling {
    const qn_act_block_tile *acts;
    const float *scale;
    float *elements; /* of the first of the tokens; with ordered activations of the first token of the GEMM */
};

/* Returns the elements, in the first of two tiles of rows, of the token whose activations are in place t of a tile. */
QN_INLINE float *elements_of(struct block_scaling s, int token_tile, int t, bool ordered)
{
    const size_t token = ordered ? s.acts[token_tile].token[t] : (size_t)(token_tile * QN_TILE + t);
    return s.elements + token / QN_TILE * NEXT_TOKENS + token % QN_TILE * QN_TILE;
}

/* Scales part `part` of 8 of a step's sums, four tokens by two tiles of rows, and adds it to the elements. sums_lo: of
 * the lo codes, with the hi/lo split; a constant at the calls, as the part and `ordered`. */
QN_INLINE void scale_part(struct block_scaling s, const int32_t *sums, const int32_t *sums_lo, int part, bool ordered)
{
    enum { TOKENS = QN_TILE / 4 };
    const int token_tile = part / 4, first = part % 4 * TOKENS;
    const v16 scale[AT_ONCE] = { v16_load(s.scale), v16_load(s.scale + QN_TILE) };
    QN_UNROLLED
    for (int t = first; t < first + TOKENS; t++) {
        const v16 act_scale = v16_set1(s.acts[token_tile].scale[t]);
        float *elements = elements_of(s, token_tile, t, ordered);
        QN_UNROLLED
        for (int tile = 0; tile < AT_ONCE; tile++) {
            const size_t from = (size_t)(token_tile * AT_ONCE + tile) * TILE_FLOATS + (size_t)t * QN_TILE;
            float *element = elements + tile * TILE_FLOATS;
            v16 x = v16_of_int32(sums + from);
            if (sums_lo)
                x = v16_fma(x, v16_set1(QN_HILO_BASE), v16_of_int32(sums_lo + from));
            v16_store(element, v16_fma(x, v16_mul(scale[tile], act_scale), v16_load(element)));
        }
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
            scale_part(before, sums, NULL, (i)-2, ordered);                                                            \
    } while (0)
#define SCALE_REST(i)                                                                                                  \
    do {                                                                                                               \
        scale_part(before, sums, NULL, (i) ? 2 * (i) + 1 : 2, ordered);                                                \
        if ((i) == 1 || (i) == 2)                                                                                      \
            scale_part(before, sums, NULL, 2 * (i) + 2, ordered);                                                      \
    } while (0)
#define SCALE_TWO(i, first)                                                                                            \
    do {                                                                                                               \
        if ((i) % 2 == 0)                                                                                              \
            scale_part(before, sums, NULL, (first) + (i) / 2, ordered);                                                \
    } while (0)
#define SCALE_2_3(i) SCALE_TWO(i, 2)
#define SCALE_4_5(i) SCALE_TWO(i, 4)
#define SCALE_6_7(i) SCALE_TWO(i, 6)

/* The products of a step, a block of two tiles of tokens by two of rows, and between them the storing and scaling of
 * the sums of the step before: vector instructions execute next to products, but few of them fit between two of these
 * in the processor's queues. All pointers are in registers: with those of tiles in memory one thread took twice as
 * long, probably because loads whose last 12 address bits are those of a row of sums wait until that is stored. */
QN_INLINE void multiply_step(tile_state *state, int32_t *sums, const qn_act_block_tile *acts,
                             const qn_act_block_tile_hi *hi, const int8_t *codes, struct block_scaling before,
                             bool ordered)
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

QN_INLINE void scale_step(struct block_scaling s, const int32_t *sums, const int32_t *sums_lo, bool ordered)
{
    QN_UNROLLED
    for (int part = 0; part < 8; part++)
        scale_part(s, sums, sums_lo, part, ordered);
}

#define STORE(i) TILE_STORE(state, i, sums + (i)*TILE_FLOATS)
#define ZERO(i) TILE_ZERO(state, i)

/* Adds a chunk to the elements of all tokens. With an odd number of tiles of tokens the last one is computed with one
 * after it that means nothing. ordered: a constant at the calls; a chunk is of one block then, so that blocks are added
 * in ascending order whichever place a token has in them. */
QN_INLINE void add_tokens(const struct block_gemm *g, const struct block_chunk *chunk, bool ordered, float *elements,
                          tile_state *state)
{
    static const qn_act_block_tile no_acts[AT_ONCE];
    int32_t *sums = g->memory.sums;
    const size_t row_tiles = chunk->row_tiles, act_tiles = qn_act_token_tiles(g->acts), n = chunk->n;
    const size_t first = qn_act_block_at(g->acts, g->first, chunk->first);
    struct block_scaling before = { no_acts, g->memory.scales, g->memory.no_element };
    (void)state;
    for (size_t token = 0; token < g->token_tiles; token += AT_ONCE) {
        const qn_act_block_tile *acts = g->acts->block_tiles + first + token;
        const qn_act_block_tile_hi *hi = g->acts->block_tiles_hi + first + token;
        const int8_t *codes = g->memory.codes;
        const float *scale = g->memory.scales;
        float *to = elements + token * NEXT_TOKENS, *end = to + row_tiles * TILE_FLOATS;
        for (; to < end; to += AT_ONCE * TILE_FLOATS, acts -= n * act_tiles, hi -= n * act_tiles)
            for (const int8_t *last = codes + n * AT_ONCE * CODES; codes < last;) {
                multiply_step(state, sums, acts, hi, codes, before, ordered);
                before.acts = acts;
                before.scale = scale;
                before.elements = ordered ? to - token * NEXT_TOKENS : to;
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
    scale_step(before, sums, NULL, ordered);
}

QN_INLINE void add_chunk(const struct block_gemm *g, const struct block_chunk *chunk, float *elements,
                         tile_state *state)
{
    if (g->acts->is_ordered)
        add_tokens(g, chunk, true, elements, state);
    else
        add_tokens(g, chunk, false, elements, state);
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
                scale_step(scaling, g->memory.sums, sums, false);
            }
}

/* ---- Few tokens: unpacking the next rows executes next to products, too ---- */

/* Two tiles of tokens: as add_tokens, but a step's rows are unpacked after the step before. */
static void add_blocks_of_two(const struct block_gemm *g, size_t panel_at, size_t begin, size_t end, tile_state *state)
{
    const qn_block_panel *panel = &g->panels[panel_at];
    const size_t row_tiles = panel->n_rows <= AT_ONCE * QN_TILE ? AT_ONCE : QN_TILE_PANEL_TILES,
                 first = qn_act_block_at(g->acts, g->first, begin), act_tiles = qn_act_token_tiles(g->acts),
                 n_steps = (end - begin) * row_tiles / AT_ONCE;
    float *elements = g->memory.elements + panel_at * QN_TILE_PANEL_ROWS * QN_TILE_MAX_TOKENS;
    int32_t *sums = g->memory.sums;
    static const qn_act_block_tile no_acts[AT_ONCE];
    struct block_scaling before = { no_acts, g->memory.scales, g->memory.no_element };
    (void)state;
    for (size_t step = 0, block = 0, tile = 0; step <= n_steps; step++) {
        if (step) {
            const qn_act_block_tile *acts = g->acts->block_tiles + first + block * act_tiles;
            const size_t at = (step - 1) % 2 * AT_ONCE;
            multiply_step(state, sums, acts, g->acts->block_tiles_hi + first + block * act_tiles,
                          g->memory.codes + at * CODES, before, false);
            before = (struct block_scaling){ acts, g->memory.scales + at * QN_TILE, elements + tile * TILE_FLOATS };
            tile += AT_ONCE;
            block += tile / row_tiles;
            tile %= row_tiles;
        }
        const bool has_hi = step < n_steps && any_hi_digits(g, begin + block);
        for (size_t i = 0; step < n_steps && i < AT_ONCE; i++)
            expand_tile(g, panel, tile + i, begin + block, has_hi, step % 2 * AT_ONCE + i);
    }
    STORE(0);
    STORE(1);
    STORE(2);
    STORE(3);
    scale_step(before, sums, NULL, false);
}

/* What the scaling of the sums of one tile of tokens by those of rows reads and adds to. */
struct few_scaling {
    const float *act_scale, *scale;
    float *elements;
};

/* Scales the sums of a tile of rows. sums_hi: of the hi digits, or NULL; a constant at the calls. */
QN_INLINE void scale_few(const struct few_scaling *s, size_t tile, const int32_t *sums, const int32_t *sums_hi,
                         size_t n_tokens)
{
    const v16 scale = v16_load(s->scale + tile * QN_TILE);
    for (size_t t = 0; t < n_tokens; t++) {
        float *element = s->elements + tile * TILE_FLOATS + t * QN_TILE;
        v16 x = v16_of_int32(sums + t * QN_TILE);
        if (sums_hi)
            x = v16_fma(v16_of_int32(sums_hi + t * QN_TILE), v16_set1(QN_BLOCK_BASE), x);
        v16_store(element, v16_fma(x, v16_mul(scale, v16_set1(s->act_scale[t])), v16_load(element)));
    }
}

/* A block of tile i of rows, whose accumulator has the sums of the block before until then. The activations are in tiles
 * 4 and 5. */
#define FEW_STEP(i)                                                                                                    \
    do {                                                                                                               \
        const int8_t *codes = g->memory.codes + (at + (i)) * CODES;                                                    \
        STORE(i);                                                                                                      \
        ZERO(i);                                                                                                       \
        BLOCK_LOAD(state, 6, codes);                                                                                   \
        BLOCK_MULTIPLY(state, i, 4, 6);                                                                                \
        BLOCK_LOAD(state, 7, codes + CODES / 2);                                                                       \
        BLOCK_MULTIPLY(state, i, 5, 7);                                                                                \
        scale_few(&before, i, sums + (i)*TILE_FLOATS, NULL, g->n_tokens);                                              \
        if (block + 1 < end)                                                                                           \
            expand_tile(g, panel, i, block + 1, false, next + (i));                                                    \
    } while (0)

/* The hi digits of a block of tile i of rows, whose accumulator has the sums of the lo digits and is empty then. They
 * have sums of their own, so that their weights need not be unpacked: scaling few tokens costs less. */
#define FEW_HI_STEP(i)                                                                                                 \
    do {                                                                                                               \
        const int8_t *codes = g->memory.codes + (at + (i)) * CODES;                                                    \
        STORE(i);                                                                                                      \
        ZERO(i);                                                                                                       \
        BLOCK_LOAD(state, 6, codes);                                                                                   \
        BLOCK_MULTIPLY(state, i, 4, 6);                                                                                \
        BLOCK_LOAD(state, 7, codes + CODES / 2);                                                                       \
        BLOCK_MULTIPLY(state, i, 5, 7);                                                                                \
        TILE_STORE(state, i, sums + SUMS + (i)*TILE_FLOATS);                                                           \
        scale_few(&before, i, sums + (i)*TILE_FLOATS, sums + SUMS + (i)*TILE_FLOATS, g->n_tokens);                     \
    } while (0)

/* One tile of tokens: each tile of rows of a panel has an accumulator, so that the activations are loaded once. */
static void add_blocks_of_one(const struct block_gemm *g, size_t panel_at, size_t begin, size_t end, tile_state *state)
{
    const qn_block_panel *panel = &g->panels[panel_at];
    const size_t row_tiles = panel->n_rows <= AT_ONCE * QN_TILE ? AT_ONCE : QN_TILE_PANEL_TILES,
                 act_tiles = qn_act_token_tiles(g->acts), first = qn_act_block_at(g->acts, g->first, begin);
    const qn_act_block_tile *acts = g->acts->block_tiles + first;
    const qn_act_block_tile_hi *hi = g->acts->block_tiles_hi + first;
    float *elements = g->memory.elements + panel_at * QN_TILE_PANEL_ROWS * QN_TILE_MAX_TOKENS;
    int32_t *sums = g->memory.sums;
    const struct few_scaling none = { acts->scale, g->memory.scales, g->memory.no_element };
    struct few_scaling before = none;
    (void)state;
    for (size_t tile = 0; tile < row_tiles; tile++)
        expand_tile(g, panel, tile, begin, false, tile);
    for (size_t block = begin; block < end; block++, acts += act_tiles, hi += act_tiles) {
        const size_t at = (block - begin) % 2 * QN_TILE_PANEL_TILES, next = QN_TILE_PANEL_TILES - at;
        BLOCK_LOAD(state, 4, acts->codes[0]);
        BLOCK_LOAD(state, 5, acts->codes[1]);
        FEW_STEP(0);
        FEW_STEP(1);
        if (row_tiles > AT_ONCE) {
            FEW_STEP(2);
            FEW_STEP(3);
        }
        before = (struct few_scaling){ acts->scale, g->memory.scales + at * QN_TILE, elements };
        if (!has_hi_digits(acts))
            continue;
        BLOCK_LOAD(state, 4, hi->codes[0]);
        BLOCK_LOAD(state, 5, hi->codes[1]);
        FEW_HI_STEP(0);
        FEW_HI_STEP(1);
        if (row_tiles > AT_ONCE) {
            FEW_HI_STEP(2);
            FEW_HI_STEP(3);
        }
        before = none;
    }
    STORE(0);
    STORE(1);
    STORE(2);
    STORE(3);
    for (size_t tile = 0; tile < row_tiles; tile++)
        scale_few(&before, tile, sums + tile * TILE_FLOATS, NULL, g->n_tokens);
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
                         left = end - chunk.first, n = g->acts->is_ordered ? 1 : most / row_tiles;                     \
            chunk.n = left < n ? left : n;                                                                             \
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

typedef void (*block_variant)(const struct block_gemm *g, size_t panel, size_t begin, size_t end, tile_state *state);

static block_variant variant_of(const struct block_gemm *g)
{
    return g->acts->hilo                                 ? add_blocks_hilo
           : g->token_tiles == 1                         ? add_blocks_of_one
           : g->token_tiles == 2 && !g->acts->is_ordered ? add_blocks_of_two
                                                         : add_blocks;
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
    const block_variant add = variant_of(&g);
    tile_state state;
    for (size_t p = 0; p < n_panels; p++)
        memset(g.memory.elements + p * panel_floats, 0,
               (g.token_tiles + g.token_tiles % AT_ONCE) * NEXT_TOKENS * sizeof(float));
    block_tiles_begin(&state, add == add_blocks_of_one ? n_tokens : QN_TILE);
    for (size_t begin = 0, end; begin < n_blocks; begin = end) {
        end = n_blocks - begin < part ? n_blocks : begin + part;
        for (size_t p = 0; p < n_panels; p++)
            add(&g, p, begin, end, &state);
    }
    tile_end(&state);
    for (size_t p = 0; p < n_panels; out += panels[p++].n_rows)
        for (size_t token = 0; token < g.token_tiles; token++)
            store_block_results(&g, panels[p].n_rows,
                                g.memory.elements + p * panel_floats + token * QN_TILE_PANEL_TILES * TILE_FLOATS,
                                token * QN_TILE, out);
}

#endif
