/* The GEMM of blocks.h. The including file defines its tile instructions and vectors (gemm_tiles.h), and
 *
 *   block_tiles_begin             before tiles are used: 16 rows of 64 bytes; of tiles of tokens and sums n_tokens rows
 *   BLOCK_LOAD(state, tile, from, at)  tiles 4 to 7, 1 KiB of memory from byte `at`, a constant
 *   BLOCK_STORE(state, i, sums)   tile i, the i-th KiB of sums
 *   BLOCK_MULTIPLY(state, c, a, b)  c += a * b: [16][64] by [16 quads][16][4] int8, [16][16] int32
 *   expand_block                  a block of 16 rows of a type
 *   v16_of_int32, v16_...         as in gemm_tiles.h */
#ifndef QN_KERNELS_MATMUL_GEMM_BLOCKS_H
#define QN_KERNELS_MATMUL_GEMM_BLOCKS_H

#include "kernels/matmul/blocks.h"

/* Tiles of tokens, and of rows, that are computed at once. */
enum { AT_ONCE = 2, SUMS = AT_ONCE * AT_ONCE * TILE_FLOATS };

/* Where a block of two tiles of rows is unpacked. The scales are at a fixed distance from the codes, so that one
 * pointer leads to both. */
struct block_codes {
    _Alignas(64) int8_t codes[AT_ONCE][QN_BLOCK / 4][QN_TILE][4];
    float scale[AT_ONCE][QN_TILE];
};

/* The elements of the second of two tiles of tokens lie there after the first's. */
enum { NEXT_TOKENS = QN_TILE_PANEL_TILES * TILE_FLOATS };

/* The scratch of a GEMM. The first ones lie next to each other, so that they share few sets of L1. */
struct block_memory {
    int32_t *sums;            /* [2: of the second digits][tiles of tokens][tiles of rows][TILE_FLOATS], each tile
                                 [token][row] */
    struct block_codes *rows; /* [pairs of tiles of rows][blocks] */
    float *no_element;        /* as elements of two tiles by two: where sums go that belong to no element */
    float *elements;          /* [panels][tiles of tokens][tiles of rows][TILE_FLOATS]: their sums over the blocks
                                 before */
};

static struct block_memory block_memory_of(void *scratch)
{
    struct block_memory m = { .sums = scratch };
    m.rows = (struct block_codes *)(void *)(m.sums + 2 * SUMS);
    m.no_element = (float *)(void *)(m.rows + QN_BLOCK_CHUNK / AT_ONCE);
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

/* Returns whether has_hi of any of 16 tokens is set, which may be one of a step before, with more tokens. */
QN_INLINE bool has_flags(const qn_act_block_tile *tile)
{
    uint64_t flags[2];
    memcpy(flags, tile->has_hi, sizeof flags);
    return (flags[0] | flags[1]) != 0;
}

/* Returns whether one of the tile's first n_tokens tokens has hi digits. */
QN_INLINE bool has_hi_digits(const qn_act_block_tile *tile, size_t n_tokens)
{
    static const uint8_t ones[2 * QN_TILE] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 };
    uint64_t flags[2], mask[2];
    memcpy(flags, tile->has_hi, sizeof flags);
    memcpy(mask, ones + QN_TILE - (n_tokens < QN_TILE ? n_tokens : QN_TILE), sizeof mask);
    return ((flags[0] & mask[0]) | (flags[1] & mask[1])) != 0;
}

/* The same of two tiles. */
QN_INLINE bool pair_has_hi_digits(const qn_act_block_tile *tiles, size_t n_tokens)
{
    return has_hi_digits(tiles, n_tokens) || (n_tokens > QN_TILE && has_hi_digits(tiles + 1, n_tokens - QN_TILE));
}

/* Unpacks 16 rows of a block as tile `at % 2` of pair `at / 2`. */
QN_INLINE void expand_tile(const struct block_gemm *g, qn_type type, const qn_block_panel *panel, size_t tile,
                           size_t block, size_t at)
{
    struct block_codes *to = g->memory.rows + at / AT_ONCE;
    expand_block(type, panel, tile, block, to->codes[at % AT_ONCE], to->scale[at % AT_ONCE]);
}

QN_INLINE void expand_chunk(const struct block_gemm *g, const qn_block_panel *panel, const struct block_chunk *chunk,
                            tile_state *state)
{
    (void)state;
    for (size_t i = 0; i < chunk->n; i++)
        for (size_t tile = 0; tile < chunk->row_tiles; tile++) {
            BLOCK_KEEP_AWAKE(state, g->memory.sums);
            expand_tile(g, panel->type->type, panel, tile, chunk->first + i,
                        (tile / AT_ONCE * chunk->n + i) * AT_ONCE + tile % AT_ONCE);
        }
}

/* What the scaling of a step's sums reads and adds to: of the first of two tiles of tokens and of rows. */
struct block_scaling {
    const qn_act_block_tile *acts;
    const struct block_codes *rows;
    float *elements;
};

/* Scales part `part` of 8 of a step's sums, four tokens by two tiles of rows, and adds it to the elements. sums_lo: of
 * the second digits, if there are any: those before count base times then. The part, sums_lo and base are constants at
 * the calls. */
QN_INLINE void scale_part(struct block_scaling s, const int32_t *sums, const int32_t *sums_lo, float base, int part)
{
    enum { TOKENS = QN_TILE / 4 };
    const int token_tile = part / 4, first = part % 4 * TOKENS;
    const v16 scale[AT_ONCE] = { v16_load(s.rows->scale[0]), v16_load(s.rows->scale[1]) };
    QN_UNROLLED
    for (int t = first; t < first + TOKENS; t++) {
        const v16 act_scale = v16_set1(s.acts[token_tile].scale[t]);
        QN_UNROLLED
        for (int tile = 0; tile < AT_ONCE; tile++) {
            const int from = (token_tile * AT_ONCE + tile) * TILE_FLOATS + t * QN_TILE;
            float *element = s.elements + token_tile * NEXT_TOKENS + tile * TILE_FLOATS + t * QN_TILE;
            v16 x = v16_of_int32(sums + from);
            if (sums_lo)
                x = v16_fma(x, v16_set1(base), v16_of_int32(sums_lo + from));
            v16_store(element, v16_fma(x, v16_mul(scale[tile], act_scale), v16_load(element)));
        }
    }
}

QN_INLINE void scale_step(struct block_scaling s, const int32_t *sums, const int32_t *sums_lo, float base)
{
    QN_UNROLLED
    for (int part = 0; part < 8; part++)
        scale_part(s, sums, sums_lo, base, part);
}

/* Where 64 values of a tile begin, in bytes. */
enum { HALF = QN_BLOCK_K * QN_TILE };

/* Multiplies 64 values, the first or second half of a block, of two tiles of tokens by two of rows; AFTER(i) is done
 * after the products of sums i. acts: of codes or of second digits. */
#define MULTIPLY_HALF(state, acts, rows, half, BEFORE, AFTER)                                                          \
    do {                                                                                                               \
        BEFORE(0);                                                                                                     \
        BLOCK_LOAD(state, 4, acts, (half)*HALF);                                                                       \
        BLOCK_LOAD(state, 6, rows, (half)*HALF);                                                                       \
        BLOCK_MULTIPLY(state, 0, 4, 6);                                                                                \
        AFTER(0);                                                                                                      \
        BEFORE(1);                                                                                                     \
        BLOCK_LOAD(state, 7, rows, (2 + (half)) * HALF);                                                               \
        BLOCK_MULTIPLY(state, 1, 4, 7);                                                                                \
        AFTER(1);                                                                                                      \
        BEFORE(2);                                                                                                     \
        BLOCK_LOAD(state, 5, acts, (half)*HALF + (int)sizeof *(acts));                                                 \
        BLOCK_MULTIPLY(state, 2, 5, 6);                                                                                \
        AFTER(2);                                                                                                      \
        BEFORE(3);                                                                                                     \
        BLOCK_MULTIPLY(state, 3, 5, 7);                                                                                \
        AFTER(3);                                                                                                      \
    } while (0)
#define MULTIPLY_BLOCK(state, acts, rows)                                                                              \
    do {                                                                                                               \
        MULTIPLY_HALF(state, acts, rows, 0, ZERO, NOTHING);                                                            \
        MULTIPLY_HALF(state, acts, rows, 1, NOTHING, NOTHING);                                                         \
    } while (0)

#define NOTHING(i) (void)0
#define ZERO(i) TILE_ZERO(state, i)
#define STORE(i) BLOCK_STORE(state, i, sums)
#define STORE_AND_ZERO(i)                                                                                              \
    do {                                                                                                               \
        STORE(i);                                                                                                      \
        ZERO(i);                                                                                                       \
    } while (0)
#define STORE_ALL()                                                                                                    \
    do {                                                                                                               \
        STORE(0);                                                                                                      \
        STORE(1);                                                                                                      \
        STORE(2);                                                                                                      \
        STORE(3);                                                                                                      \
    } while (0)

/* The scaling of the sums of the step before, after products 2 and 3 of the first 64 values, when sums are stored; then
 * as it is spread over the next four products. */
#define SCALE_FIRST(i)                                                                                                 \
    do {                                                                                                               \
        if ((i) >= 2)                                                                                                  \
            scale_part(before, sums, NULL, 0, (i)-2);                                                                  \
    } while (0)
#define SCALE_REST(i)                                                                                                  \
    do {                                                                                                               \
        scale_part(before, sums, NULL, 0, (i) ? 2 * (i) + 1 : 2);                                                      \
        if ((i) == 1 || (i) == 2)                                                                                      \
            scale_part(before, sums, NULL, 0, 2 * (i) + 2);                                                            \
    } while (0)

/* Multiplies the hi digits of a step, after its lo digits, and scales the sums of both. */
QN_INLINE void add_hi_digits(const struct block_gemm *g, tile_state *state, struct block_scaling step)
{
    const qn_act_block_tile_hi *hi = g->acts->block_tiles_hi + (step.acts - g->acts->block_tiles);
    int32_t *sums = g->memory.sums;
    (void)state;
    STORE_ALL();
    MULTIPLY_BLOCK(state, hi, step.rows);
    sums += SUMS;
    STORE_ALL();
    scale_step(step, sums, sums - SUMS, QN_BLOCK_BASE);
}

/* The products of a step, a block of two tiles of tokens by two of rows, and between them the storing and scaling of
 * the sums of the step before: vector instructions execute next to products, but few of them fit between two of these
 * in the processor's queues. All pointers are in registers: with those of tiles in memory one thread took twice as
 * long, probably because loads whose last 12 address bits are those of a row of sums wait until that is stored. Hi
 * digits are rare: what is needed for them is computed there, also whether they are of a token that is there.
 * token: the first of the step, of n_tokens. Returns which sums are to be scaled in the next step. */
QN_INLINE struct block_scaling multiply_step(const struct block_gemm *g, tile_state *state, int32_t *sums, size_t token,
                                             struct block_scaling step, struct block_scaling before)
{
    (void)state;
    MULTIPLY_HALF(state, step.acts, step.rows, 0, STORE_AND_ZERO, SCALE_FIRST);
    MULTIPLY_HALF(state, step.acts, step.rows, 1, NOTHING, SCALE_REST);
    if (__builtin_expect(has_flags(step.acts) || has_flags(step.acts + 1), false) &&
        pair_has_hi_digits(step.acts, g->n_tokens - token)) {
        add_hi_digits(g, state, step);
        step.elements = g->memory.no_element;
    }
    return step;
}

/* Adds a chunk to the elements of all tokens. With an odd number of tiles of tokens the last one is computed with one
 * after it that means nothing. */
QN_INLINE void add_chunk(const struct block_gemm *g, const struct block_chunk *chunk, float *elements,
                         tile_state *state)
{
    static const qn_act_block_tile no_acts[AT_ONCE];
    int32_t *sums = g->memory.sums;
    const size_t act_tiles = qn_act_token_tiles(g->acts), n = chunk->n;
    const qn_act_block_tile *first = g->acts->block_tiles + qn_act_block_at(g->acts, g->first, chunk->first);
    struct block_scaling before = { no_acts, g->memory.rows, g->memory.no_element };
    (void)state;
    for (size_t token = 0; token < g->token_tiles; token += AT_ONCE, first += AT_ONCE) {
        struct block_scaling step = { first, g->memory.rows, elements + token * NEXT_TOKENS };
        float *end = step.elements + chunk->row_tiles * TILE_FLOATS;
        for (; step.elements < end; step.elements += AT_ONCE * TILE_FLOATS, step.acts = first)
            for (const struct block_codes *last = step.rows + n; step.rows < last; step.rows++, step.acts += act_tiles)
                before = multiply_step(g, state, sums, token * QN_TILE, step, before);
    }
    STORE_ALL();
    scale_step(before, sums, NULL, 0);
}

/* The same with the hi/lo split. */
QN_INLINE void add_chunk_hilo(const struct block_gemm *g, const struct block_chunk *chunk, float *elements,
                              tile_state *state)
{
    (void)state;
    for (size_t token = 0; token < g->token_tiles; token += AT_ONCE)
        for (size_t row = 0; row < chunk->row_tiles; row += AT_ONCE)
            for (size_t i = 0; i < chunk->n; i++) {
                const size_t tile = qn_act_block_at(g->acts, g->first, chunk->first + i) + token;
                const struct block_scaling step = { g->acts->block_tiles + tile,
                                                    g->memory.rows + row / AT_ONCE * chunk->n + i,
                                                    elements + token * NEXT_TOKENS + row * TILE_FLOATS };
                const qn_act_block_tile_hi *lo = g->acts->block_tiles_hi + tile;
                int32_t *sums = g->memory.sums;
                MULTIPLY_BLOCK(state, step.acts, step.rows);
                STORE_ALL();
                sums += SUMS;
                MULTIPLY_BLOCK(state, lo, step.rows);
                STORE_ALL();
                scale_step(step, g->memory.sums, sums, QN_HILO_BASE);
            }
}

/* ---- Few tokens: unpacking the next rows executes next to products, too. The type is a constant at the calls ---- */

/* Two tiles of tokens: as add_chunk, but a step's rows are unpacked after the step before. */
QN_INLINE void add_blocks_of_two(const struct block_gemm *g, qn_type type, size_t panel_at, size_t begin, size_t end,
                                 tile_state *state)
{
    const qn_block_panel *panel = &g->panels[panel_at];
    const size_t row_tiles = panel->n_rows <= AT_ONCE * QN_TILE ? AT_ONCE : QN_TILE_PANEL_TILES,
                 first = qn_act_block_at(g->acts, g->first, begin), act_tiles = qn_act_token_tiles(g->acts),
                 n_steps = (end - begin) * row_tiles / AT_ONCE;
    float *elements = g->memory.elements + panel_at * QN_TILE_PANEL_ROWS * QN_TILE_MAX_TOKENS;
    int32_t *sums = g->memory.sums;
    static const qn_act_block_tile no_acts[AT_ONCE];
    struct block_scaling before = { no_acts, g->memory.rows, g->memory.no_element };
    (void)state;
    for (size_t step = 0, block = 0, tile = 0; step <= n_steps; step++) {
        if (step) {
            const struct block_scaling now = { g->acts->block_tiles + first + block * act_tiles,
                                               g->memory.rows + (step - 1) % 2, elements + tile * TILE_FLOATS };
            before = multiply_step(g, state, sums, 0, now, before);
            tile = tile + AT_ONCE < row_tiles ? tile + AT_ONCE : 0;
            block += !tile;
        }
        for (size_t i = 0; step < n_steps && i < AT_ONCE; i++)
            expand_tile(g, type, panel, tile + i, begin + block, step % 2 * AT_ONCE + i);
    }
    STORE_ALL();
    scale_step(before, sums, NULL, 0);
}

/* What the scaling of the sums of one tile of tokens by those of rows reads and adds to. */
struct few_scaling {
    const float *act_scale;
    const struct block_codes *rows; /* two pairs of tiles */
    float *elements;
};

/* Scales the sums of a tile of rows. sums_hi: of the hi digits, or NULL; a constant at the calls. */
QN_INLINE void scale_few(const struct few_scaling *s, size_t tile, const int32_t *sums, const int32_t *sums_hi,
                         size_t n_tokens)
{
    const v16 scale = v16_load(s->rows[tile / AT_ONCE].scale[tile % AT_ONCE]);
    for (size_t t = 0; t < n_tokens; t++) {
        float *element = s->elements + tile * TILE_FLOATS + t * QN_TILE;
        v16 x = v16_of_int32(sums + t * QN_TILE);
        if (sums_hi)
            x = v16_fma(v16_of_int32(sums_hi + t * QN_TILE), v16_set1(QN_BLOCK_BASE), x);
        v16_store(element, v16_fma(x, v16_mul(scale, v16_set1(s->act_scale[t])), v16_load(element)));
    }
}

/* Where tile i of rows begins, in bytes. */
#define ROWS_AT(i) ((i) / AT_ONCE * (int)sizeof(struct block_codes) + (i) % AT_ONCE * 2 * HALF)

/* A block of tile i of rows, whose accumulator has the sums of the block before until then. The activations are in
 * tiles 4 and 5. */
#define FEW_STEP(i)                                                                                                    \
    do {                                                                                                               \
        STORE(i);                                                                                                      \
        ZERO(i);                                                                                                       \
        BLOCK_LOAD(state, 6, rows, ROWS_AT(i));                                                                        \
        BLOCK_MULTIPLY(state, i, 4, 6);                                                                                \
        BLOCK_LOAD(state, 7, rows, ROWS_AT(i) + HALF);                                                                 \
        BLOCK_MULTIPLY(state, i, 5, 7);                                                                                \
        scale_few(&before, i, sums + (i)*TILE_FLOATS, NULL, g->n_tokens);                                              \
        if (block + 1 < end)                                                                                           \
            expand_tile(g, type, panel, i, block + 1, next + (i));                                                     \
    } while (0)

/* The hi digits of a block of tile i of rows, whose accumulator has the sums of the lo digits and is empty then. */
#define FEW_HI_STEP(i)                                                                                                 \
    do {                                                                                                               \
        STORE(i);                                                                                                      \
        ZERO(i);                                                                                                       \
        BLOCK_LOAD(state, 6, rows, ROWS_AT(i));                                                                        \
        BLOCK_MULTIPLY(state, i, 4, 6);                                                                                \
        BLOCK_LOAD(state, 7, rows, ROWS_AT(i) + HALF);                                                                 \
        BLOCK_MULTIPLY(state, i, 5, 7);                                                                                \
        BLOCK_STORE(state, i, sums + SUMS);                                                                            \
        scale_few(&before, i, sums + (i)*TILE_FLOATS, sums + SUMS + (i)*TILE_FLOATS, g->n_tokens);                     \
    } while (0)

/* One tile of tokens: each tile of rows of a panel has an accumulator, so that the activations are loaded once. */
QN_INLINE void add_blocks_of_one(const struct block_gemm *g, qn_type type, size_t panel_at, size_t begin, size_t end,
                                 tile_state *state)
{
    const qn_block_panel *panel = &g->panels[panel_at];
    const size_t row_tiles = panel->n_rows <= AT_ONCE * QN_TILE ? AT_ONCE : QN_TILE_PANEL_TILES,
                 act_tiles = qn_act_token_tiles(g->acts), first = qn_act_block_at(g->acts, g->first, begin);
    const qn_act_block_tile *acts = g->acts->block_tiles + first;
    const qn_act_block_tile_hi *hi = g->acts->block_tiles_hi + first;
    float *elements = g->memory.elements + panel_at * QN_TILE_PANEL_ROWS * QN_TILE_MAX_TOKENS;
    int32_t *sums = g->memory.sums;
    const struct few_scaling none = { acts->scale, g->memory.rows, g->memory.no_element };
    struct few_scaling before = none;
    (void)state;
    for (size_t tile = 0; tile < row_tiles; tile++)
        expand_tile(g, type, panel, tile, begin, tile);
    for (size_t block = begin; block < end; block++, acts += act_tiles, hi += act_tiles) {
        const size_t at = (block - begin) % 2 * QN_TILE_PANEL_TILES, next = QN_TILE_PANEL_TILES - at;
        const struct block_codes *rows = g->memory.rows + at / AT_ONCE;
        BLOCK_LOAD(state, 4, acts, 0);
        BLOCK_LOAD(state, 5, acts, HALF);
        FEW_STEP(0);
        FEW_STEP(1);
        if (row_tiles > AT_ONCE) {
            FEW_STEP(2);
            FEW_STEP(3);
        }
        before = (struct few_scaling){ acts->scale, rows, elements };
        if (!has_hi_digits(acts, g->n_tokens))
            continue;
        BLOCK_LOAD(state, 4, hi, 0);
        BLOCK_LOAD(state, 5, hi, HALF);
        FEW_HI_STEP(0);
        FEW_HI_STEP(1);
        if (row_tiles > AT_ONCE) {
            FEW_HI_STEP(2);
            FEW_HI_STEP(3);
        }
        before = none;
    }
    STORE_ALL();
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
            const size_t left = end - chunk.first, n = QN_BLOCK_CHUNK / row_tiles;                                     \
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

#define FEW_VARIANTS(ID)                                                                                               \
    static void one_##ID(const struct block_gemm *g, size_t panel, size_t begin, size_t end, tile_state *state)        \
    {                                                                                                                  \
        add_blocks_of_one(g, QN_TYPE_##ID, panel, begin, end, state);                                                  \
    }                                                                                                                  \
    static void two_##ID(const struct block_gemm *g, size_t panel, size_t begin, size_t end, tile_state *state)        \
    {                                                                                                                  \
        add_blocks_of_two(g, QN_TYPE_##ID, panel, begin, end, state);                                                  \
    }
FEW_VARIANTS(Q1_0)
FEW_VARIANTS(PQ2_0)
FEW_VARIANTS(PTQ1_0)

static block_variant few_variant_of(qn_type type, size_t token_tiles)
{
    switch (type) {
    case QN_TYPE_Q1_0: return token_tiles == 1 ? one_Q1_0 : two_Q1_0;
    case QN_TYPE_PQ2_0: return token_tiles == 1 ? one_PQ2_0 : two_PQ2_0;
    default: return token_tiles == 1 ? one_PTQ1_0 : two_PTQ1_0;
    }
}

static block_variant variant_of(const struct block_gemm *g)
{
    return g->acts->hilo         ? add_blocks_hilo
           : g->token_tiles <= 2 ? few_variant_of(g->panels->type->type, g->token_tiles)
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
    block_tiles_begin(&state, g.token_tiles == 1 && !acts->hilo ? n_tokens : QN_TILE);
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
