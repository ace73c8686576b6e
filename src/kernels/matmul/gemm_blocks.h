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

/* The scratch of a GEMM. The first ones lie next to each other, so that they share few sets of L1. */
struct block_memory {
    int32_t *sums;     /* [2: lo codes][tiles of tokens][tiles of rows][TILE_FLOATS], each tile [token][row] */
    int8_t *codes;     /* [tiles of rows][blocks][CODES] */
    float *scales;     /* [tiles of rows][blocks][QN_TILE] */
    int8_t *base;      /* as codes: times QN_BLOCK_BASE */
    float *no_element; /* [tiles of rows][TILE_FLOATS]: where sums go that belong to no element */
    float *elements;   /* [panels][tiles of tokens][tiles of rows][TILE_FLOATS]: their sums over the blocks before */
};

static struct block_memory block_memory_of(void *scratch)
{
    struct block_memory m = { .sums = scratch };
    m.codes = (int8_t *)(m.sums + 2 * SUMS);
    m.scales = (float *)(void *)(m.codes + QN_BLOCK_CHUNK * CODES);
    m.base = (int8_t *)(m.scales + QN_BLOCK_CHUNK * QN_TILE);
    m.no_element = (float *)(void *)(m.base + QN_BLOCK_CHUNK * CODES);
    m.elements = m.no_element + AT_ONCE * TILE_FLOATS;
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
    size_t most;                /* blocks that are unpacked at a time */
};

/* One block of two tiles of tokens by two of rows. */
struct block_step {
    const qn_act_block_tile *acts[AT_ONCE];
    const qn_act_block_tile_hi *acts_hi[AT_ONCE];
    qn_block_rows rows[AT_ONCE];
    float *elements[AT_ONCE]; /* of each tile of tokens: AT_ONCE tiles of rows */
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

/* Returns where block `i` of a chunk is unpacked. */
QN_INLINE qn_block_rows rows_at(const struct block_memory *m, const struct block_chunk *chunk, size_t row_tile,
                                size_t i)
{
    const size_t at = row_tile * chunk->most + i;
    return (qn_block_rows){ .codes = (int8_t(*)[QN_TILE][4])(void *)(m->codes + at * CODES),
                            .times_base = (int8_t(*)[QN_TILE][4])(void *)(m->base + at * CODES),
                            .scale = m->scales + at * QN_TILE };
}

QN_INLINE void expand_chunk(const struct block_gemm *g, const qn_block_panel *panel, const struct block_chunk *chunk,
                            tile_state *state)
{
    (void)state;
    for (size_t i = 0; i < chunk->n; i++) {
        const bool has_hi = any_hi_digits(g, chunk->first + i);
        for (size_t tile = 0; tile < chunk->row_tiles; tile++) {
            const qn_block_rows out = rows_at(&g->memory, chunk, tile, i);
            BLOCK_KEEP_AWAKE(state, g->memory.sums);
            if (panel->packed)
                expand_packed_block(panel, tile, chunk->first + i, has_hi, &out);
            else
                qn_block_expand_stored(panel, tile * QN_TILE, chunk->first + i, &out);
        }
    }
}

QN_INLINE struct block_step step_at(const struct block_gemm *g, const struct block_chunk *chunk, float *elements,
                                    size_t token, size_t row_tile, size_t i)
{
    struct block_step s;
    const size_t acts = qn_act_block_at(g->acts, g->first, chunk->first + i) + token;
    for (size_t t = 0; t < AT_ONCE; t++) {
        const bool exists = token + t < g->token_tiles; /* else the last one, computed twice */
        const size_t at = exists ? t : 0;
        s.acts[t] = g->acts->block_tiles + acts + at;
        s.acts_hi[t] = g->acts->block_tiles_hi + acts + at;
        s.rows[t] = rows_at(&g->memory, chunk, row_tile + t, i);
        s.elements[t] = exists ? elements + ((token + t) * QN_TILE_PANEL_TILES + row_tile) * TILE_FLOATS
                               : g->memory.no_element;
    }
    return s;
}

/* Scales 8 tokens' sums of a tile and adds them to the elements. sums_lo: of the lo codes, with the hi/lo split; a
 * constant at the calls. */
QN_INLINE void scale_half(const struct block_step *s, const int32_t *sums, const int32_t *sums_lo, int token_tile,
                          int row_tile, int half)
{
    const v16 scale = v16_load(s->rows[row_tile].scale);
    const float *act_scale = s->acts[token_tile]->scale;
    float *elements = s->elements[token_tile] + row_tile * TILE_FLOATS;
    const size_t from = (size_t)(token_tile * AT_ONCE + row_tile) * TILE_FLOATS;
    enum { HALF = QN_TILE / 2 };
    QN_UNROLLED
    for (int t = half * HALF; t < half * HALF + HALF; t++) {
        v16 x = v16_of_int32(sums + from + t * QN_TILE);
        if (sums_lo)
            x = v16_fma(x, v16_set1(QN_HILO_BASE), v16_of_int32(sums_lo + from + t * QN_TILE));
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

/* The second 64 values of a block of codes begin there. */
enum { SECOND = QN_BLOCK_K / 4 };

#define NOTHING(i) (void)0

/* Stores the sums of the step before and begins new ones. */
#define STORE_AND_ZERO(i)                                                                                              \
    do {                                                                                                               \
        TILE_STORE(state, i, sums + (i)*TILE_FLOATS);                                                                  \
        TILE_ZERO(state, i);                                                                                           \
    } while (0)

/* Scale the sums of the step before: halves of their four tiles. */
#define SCALE_FIRST(i)                                                                                                 \
    do {                                                                                                               \
        if ((i) >= 2)                                                                                                  \
            scale_half(before, sums, NULL, 0, 0, (i)-2);                                                               \
    } while (0)
#define SCALE_NEXT(i)                                                                                                  \
    do {                                                                                                               \
        if ((i) == 0)                                                                                                  \
            scale_half(before, sums, NULL, 0, 1, 0);                                                                   \
        if ((i) == 1) {                                                                                                \
            scale_half(before, sums, NULL, 0, 1, 1);                                                                   \
            scale_half(before, sums, NULL, 1, 0, 0);                                                                   \
        }                                                                                                              \
        if ((i) == 2) {                                                                                                \
            scale_half(before, sums, NULL, 1, 0, 1);                                                                   \
            scale_half(before, sums, NULL, 1, 1, 0);                                                                   \
        }                                                                                                              \
        if ((i) == 3)                                                                                                  \
            scale_half(before, sums, NULL, 1, 1, 1);                                                                   \
    } while (0)

/* The products of a step, and between them the storing and scaling of the sums of the step before. */
QN_INLINE void multiply_step(tile_state *state, int32_t *sums, const struct block_step *s,
                             const struct block_step *before)
{
    const bool has_hi = has_hi_digits(s->acts[0]) || has_hi_digits(s->acts[1]);
    (void)state;
    MULTIPLY_64(state, s->acts[0]->codes[0], s->acts[1]->codes[0], s->rows[0].codes, s->rows[1].codes, STORE_AND_ZERO,
                SCALE_FIRST);
    MULTIPLY_64(state, s->acts[0]->codes[1], s->acts[1]->codes[1], s->rows[0].codes + SECOND, s->rows[1].codes + SECOND,
                NOTHING, SCALE_NEXT);
    if (!has_hi)
        return;
    QN_UNROLLED
    for (int half = 0; half < 2; half++)
        MULTIPLY_64(state, s->acts_hi[0]->codes[half], s->acts_hi[1]->codes[half], s->rows[0].times_base + half * SECOND,
                    s->rows[1].times_base + half * SECOND, NOTHING, NOTHING);
}

QN_INLINE void scale_step(const struct block_step *s, const int32_t *sums, const int32_t *sums_lo)
{
    QN_UNROLLED
    for (int i = 0; i < 8; i++)
        scale_half(s, sums, sums_lo, i / 4, i / 2 % 2, i % 2);
}

#define STORE(i) TILE_STORE(state, i, sums + (i)*TILE_FLOATS)
#define ZERO(i) TILE_ZERO(state, i)

QN_INLINE void add_chunk(const struct block_gemm *g, const struct block_chunk *chunk, float *elements,
                         tile_state *state)
{
    int32_t *sums = g->memory.sums;
    (void)state;
    struct block_step before = step_at(g, chunk, elements, 0, 0, 0);
    before.elements[0] = before.elements[1] = g->memory.no_element;
    for (size_t token = 0; token < g->token_tiles; token += AT_ONCE)
        for (size_t row = 0; row < chunk->row_tiles; row += AT_ONCE)
            for (size_t i = 0; i < chunk->n; i++) {
                const struct block_step step = step_at(g, chunk, elements, token, row, i);
                multiply_step(state, sums, &step, &before);
                before = step;
            }
    STORE(0);
    STORE(1);
    STORE(2);
    STORE(3);
    scale_step(&before, sums, NULL);
}

/* The same with the hi/lo split. */
QN_INLINE void add_chunk_hilo(const struct block_gemm *g, const struct block_chunk *chunk, float *elements,
                              tile_state *state)
{
    (void)state;
    for (size_t token = 0; token < g->token_tiles; token += AT_ONCE)
        for (size_t row = 0; row < chunk->row_tiles; row += AT_ONCE)
            for (size_t i = 0; i < chunk->n; i++) {
                const struct block_step s = step_at(g, chunk, elements, token, row, i);
                for (int lo = 0; lo < 2; lo++) {
                    int32_t *sums = g->memory.sums + lo * SUMS;
                    const int8_t(*tokens_0)[QN_TILE][QN_BLOCK_K] = lo ? s.acts_hi[0]->codes : s.acts[0]->codes,
                               (*tokens_1)[QN_TILE][QN_BLOCK_K] = lo ? s.acts_hi[1]->codes : s.acts[1]->codes;
                    MULTIPLY_64(state, tokens_0[0], tokens_1[0], s.rows[0].codes, s.rows[1].codes, ZERO, NOTHING);
                    MULTIPLY_64(state, tokens_0[1], tokens_1[1], s.rows[0].codes + SECOND, s.rows[1].codes + SECOND,
                                NOTHING, STORE);
                }
                scale_step(&s, g->memory.sums, g->memory.sums + SUMS);
            }
}

/* Adds blocks [begin, end) of a panel to its elements. */
#define BLOCK_VARIANT(name, add)                                                                                       \
    static void name(const struct block_gemm *g, size_t panel, size_t begin, size_t end, tile_state *state)            \
    {                                                                                                                  \
        const size_t row_tiles =                                                                                       \
            (g->panels[panel].n_rows + AT_ONCE * QN_TILE - 1) / (AT_ONCE * QN_TILE) * AT_ONCE;                         \
        struct block_chunk chunk = { .row_tiles = row_tiles, .most = QN_BLOCK_CHUNK / row_tiles };                     \
        float *elements = g->memory.elements + panel * QN_TILE_PANEL_ROWS * QN_TILE_MAX_TOKENS;                        \
        for (chunk.first = begin; chunk.first < end; chunk.first += chunk.n) {                                         \
            chunk.n = end - chunk.first < chunk.most ? end - chunk.first : chunk.most;                                 \
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
        memset(g.memory.elements + p * panel_floats, 0, g.token_tiles * QN_TILE * QN_TILE_PANEL_ROWS * sizeof(float));
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
