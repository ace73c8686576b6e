/* The GEMM of tiles.h. The including file defines its tile instructions and vectors:
 *
 *   tile_state                    the tile registers, if they are not the processor's
 *   tile_begin, tile_end          before and after tiles are used: all are 16 rows of 64 bytes
 *   TILE_ZERO(state, tile)        TILE_LOAD, TILE_STORE(state, tile, 1 KiB of memory)
 *   TILE_MULTIPLY(state, c, a, b) c += a * b, with a [16][32] bf16, b [16][16][2] bf16 pairs, c [16][16] f32
 *   expand_codes, expand_bits     codes of a row and group to 32 bf16
 *   tile_transpose                16 x 16 floats
 *   v16_...                       as kernels/vec16.h */
#ifndef QN_KERNELS_MATMUL_GEMM_TILES_H
#define QN_KERNELS_MATMUL_GEMM_TILES_H

#include "kernels/matmul/packed.h"
#include "kernels/matmul/tiles.h"

#include <string.h>

enum {
    TILE_FLOATS = QN_TILE * QN_TILE,
    GROUP_CODES = QN_TILE * QN_QUANT_GROUP, /* codes of a tile of weights */
    PAIR_ROWS = 2 * QN_TILE,
    PANEL_PAIRS = QN_TILE_PANEL_ROWS / PAIR_ROWS,
    BLOCK_TILES = 4 /* a block of 2 x 2 tiles of sums is computed at a time */
};

/* The scratch of a GEMM. A pair is two tiles of rows. */
struct tile_memory {
    uint16_t *weights;     /* [QN_TILE_CHUNK][PAIR_ROWS][32] bf16: some groups of a lane */
    float *scale, *offset; /* [QN_TILE_CHUNK][PAIR_ROWS] */
    float *sums, *sums_lo; /* [QN_TILE_CHUNK][BLOCK_TILES][TILE_FLOATS], each tile [row][token] */
    float *partial;        /* [PANEL_PAIRS][tiles of tokens][2][TILE_FLOATS] */
    float *stack[4];       /* intermediate sums, as partial */
};

static struct tile_memory tile_memory_of(void *scratch)
{
    struct tile_memory m;
    float *p = scratch;
    m.weights = (uint16_t *)scratch, p += QN_TILE_CHUNK * PAIR_ROWS * QN_QUANT_GROUP / 2;
    m.scale = p, p += QN_TILE_CHUNK * PAIR_ROWS;
    m.offset = p, p += QN_TILE_CHUNK * PAIR_ROWS;
    m.sums = p, p += QN_TILE_CHUNK * BLOCK_TILES * TILE_FLOATS;
    m.sums_lo = p, p += QN_TILE_CHUNK * BLOCK_TILES * TILE_FLOATS;
    m.partial = p, p += QN_TILE_PANEL_ROWS * QN_TILE_MAX_TOKENS;
    for (int level = 0; level < 4; level++)
        m.stack[level] = p, p += QN_TILE_PANEL_ROWS * QN_TILE_MAX_TOKENS;
    return m;
}

/* Unpacks groups [s, s + n) of a lane of a panel of codes, for a pair of tiles. */
QN_INLINE void expand_pair_of_codes(const qn_tile_panel *panel, size_t lane, size_t s, size_t n, size_t pair,
                                    const struct tile_memory *m)
{
    const struct code_table table = code_table_of(panel);
    for (size_t i = 0; i < n; i++) {
        const size_t at = (lane * panel->n_super + s + i) * QN_TILE_PANEL_ROWS + pair * PAIR_ROWS;
        for (size_t row = 0; row < PAIR_ROWS; row++)
            expand_codes(&table, panel->codes + (at + row) * QN_QUANT_GROUP,
                         m->weights + (i * PAIR_ROWS + row) * QN_QUANT_GROUP);
        memcpy(m->scale + i * PAIR_ROWS, panel->scale + at, PAIR_ROWS * sizeof(float));
        if (panel->offset)
            memcpy(m->offset + i * PAIR_ROWS, panel->offset + at, PAIR_ROWS * sizeof(float));
    }
}

/* The same of packed Q1_0. */
QN_INLINE void expand_pair_of_words(const qn_tile_panel *panel, size_t lane, size_t s, size_t n, size_t pair,
                                    const struct tile_memory *m)
{
    enum { BLOCK_GROUPS = QN_Q1_0_WEIGHTS / QN_QUANT_GROUP, BLOCK_BYTES = QN_Q1_0_BYTES * QN_PANEL_ROWS };
    for (size_t i = 0; i < n; i++) {
        const size_t group = (s + i) * QN_SUPER_GROUPS + lane;
        const uint8_t *block = panel->words + group / BLOCK_GROUPS * BLOCK_BYTES;
        const uint8_t *words = block + 4 * (group % BLOCK_GROUPS * QN_PANEL_ROWS + pair * PAIR_ROWS);
        const uint16_t *d = (const uint16_t *)(const void *)(block + BLOCK_GROUPS * 4 * QN_PANEL_ROWS);
        for (size_t row = 0; row < PAIR_ROWS; row++)
            expand_bits(words + 4 * row, m->weights + (i * PAIR_ROWS + row) * QN_QUANT_GROUP);
        for (size_t row = 0; row < PAIR_ROWS; row += QN_LANES)
            v16_store(m->scale + i * PAIR_ROWS + row, v16_load_f16(d + pair * PAIR_ROWS + row));
    }
}

/* Computes sums of n groups of a lane: 2 tiles of rows by 1 or 2 tiles of tokens. Sums of a tile are stored after the
 * next three products have begun. n_token_tiles is a constant at the calls. */
QN_INLINE void multiply_groups(tile_state *state, const uint16_t *weights, const uint8_t *acts, size_t act_bytes,
                               size_t second_token_tile, size_t n, size_t n_token_tiles, float *sums)
{
    (void)state;
    for (size_t s = 0; s < n; s++) {
        const uint16_t *a = weights + s * 2 * GROUP_CODES;
        const uint8_t *b = acts + s * act_bytes;
        float *to = sums + s * BLOCK_TILES * TILE_FLOATS, *before = to - BLOCK_TILES * TILE_FLOATS;
        TILE_LOAD(state, 4, a);
        TILE_LOAD(state, 6, b);
        TILE_ZERO(state, 0);
        TILE_MULTIPLY(state, 0, 4, 6);
        if (s)
            TILE_STORE(state, 1, before + TILE_FLOATS);
        TILE_LOAD(state, 5, a + GROUP_CODES);
        TILE_ZERO(state, 1);
        TILE_MULTIPLY(state, 1, 5, 6);
        if (n_token_tiles == 2) {
            if (s)
                TILE_STORE(state, 2, before + 2 * TILE_FLOATS);
            TILE_LOAD(state, 7, b + second_token_tile);
            TILE_ZERO(state, 2);
            TILE_MULTIPLY(state, 2, 4, 7);
            if (s)
                TILE_STORE(state, 3, before + 3 * TILE_FLOATS);
            TILE_ZERO(state, 3);
            TILE_MULTIPLY(state, 3, 5, 7);
        }
        TILE_STORE(state, 0, to);
    }
    float *last = sums + (n - 1) * BLOCK_TILES * TILE_FLOATS;
    TILE_STORE(state, 1, last + TILE_FLOATS);
    if (n_token_tiles == 2) {
        TILE_STORE(state, 2, last + 2 * TILE_FLOATS);
        TILE_STORE(state, 3, last + 3 * TILE_FLOATS);
    }
}

/* Scales the sums of n groups of one tile, and adds them to its partial sums, which are 0 if the tile begins. hilo and
 * has_offset are constants at the calls. */
QN_INLINE void scale_groups(const float *sums, const float *sums_lo, const float *scale, const float *offset,
                            const qn_act_tile *acts, size_t n, bool begins, bool hilo, bool has_offset, float *partial)
{
    v16 acc[QN_TILE];
    QN_UNROLLED
    for (int r = 0; r < QN_TILE; r++)
        acc[r] = begins ? v16_set1(0) : v16_load(partial + r * QN_TILE);
    for (size_t s = 0; s < n; s++) {
        const v16 act_scale = v16_load(acts[s].scale), act_sum = v16_load(acts[s].sum);
        const float *sum = sums + s * BLOCK_TILES * TILE_FLOATS, *sum_lo = sums_lo + s * BLOCK_TILES * TILE_FLOATS;
        const float *w = scale + s * PAIR_ROWS, *o = offset + s * PAIR_ROWS;
        QN_UNROLLED
        for (int r = 0; r < QN_TILE; r++) {
            v16 x = v16_load(sum + r * QN_TILE);
            if (hilo)
                x = v16_fma(x, v16_set1(QN_HILO_BASE), v16_load(sum_lo + r * QN_TILE));
            acc[r] = v16_fma(x, v16_mul(act_scale, v16_set1(w[r])), acc[r]);
            if (has_offset)
                acc[r] = v16_fma(act_sum, v16_mul(act_scale, v16_set1(o[r])), acc[r]);
        }
    }
    QN_UNROLLED
    for (int r = 0; r < QN_TILE; r++)
        v16_store(partial + r * QN_TILE, acc[r]);
}

/* The operands of a GEMM. */
struct tile_gemm {
    const qn_tile_panel *panel;
    const qn_acts *acts;
    size_t first, n_tokens;
    bool accumulate;
    float *out;
    size_t out_stride;
};

/* Returns the place of the sums of a pair of tiles by a tile of tokens, in partial and stack. */
QN_INLINE size_t tile_at(size_t pair, size_t token_tile)
{
    return (pair * (QN_TILE_MAX_TOKENS / QN_TILE) + token_tile) * 2 * TILE_FLOATS;
}

/* Adds groups [s, s + n) of a lane, which are unpacked, to the partial sums of a pair of tiles of rows and 1 or 2 tiles
 * of tokens. hilo, has_offset and n_token_tiles are constants at the calls. */
QN_INLINE void add_groups(const struct tile_gemm *g, tile_state *state, const struct tile_memory *m, size_t lane,
                          size_t s, size_t n, size_t pair, size_t token_tile, size_t n_token_tiles, bool hilo,
                          bool has_offset)
{
    const size_t token = g->first + token_tile * QN_TILE, at = qn_act_tile_at(g->acts, token, s, lane),
                 second = qn_act_tile_at(g->acts, QN_TILE, s, lane) - qn_act_tile_at(g->acts, 0, s, lane);
    const qn_act_tile *acts = g->acts->tiles + at;
    multiply_groups(state, m->weights, (const uint8_t *)acts->codes, sizeof *acts, second * sizeof *acts, n,
                    n_token_tiles, m->sums);
    if (hilo) {
        const qn_act_tile_lo *lo = g->acts->tiles_lo + at;
        multiply_groups(state, m->weights, (const uint8_t *)lo->codes, sizeof *lo, second * sizeof *lo, n,
                        n_token_tiles, m->sums_lo);
    }
    for (size_t k = 0; k < 2 * n_token_tiles; k++) {
        const float *scale = m->scale + k % 2 * QN_TILE, *offset = m->offset + k % 2 * QN_TILE;
        scale_groups(m->sums + k * TILE_FLOATS, m->sums_lo + k * TILE_FLOATS, scale, offset, acts + k / 2 * second, n,
                     s == 0, hilo, has_offset, m->partial + tile_at(pair, token_tile) + k * TILE_FLOATS);
    }
}

/* Stores a tile of results [row][token]. */
static void store_results(const struct tile_gemm *g, const float *results, size_t row, size_t token)
{
    const size_t n_rows = g->panel->n_rows - row < QN_TILE ? g->panel->n_rows - row : QN_TILE;
    _Alignas(64) float by_token[TILE_FLOATS];
    tile_transpose(results, by_token);
    for (size_t t = 0; t < QN_TILE && token + t < g->n_tokens; t++) {
        float *to = g->out + (g->first + token + t) * g->out_stride + row;
        const float *from = by_token + t * QN_TILE;
        if (n_rows == QN_TILE) {
            v16_store(to, g->accumulate ? v16_add(v16_load(to), v16_load(from)) : v16_load(from));
            continue;
        }
        for (size_t r = 0; r < n_rows; r++)
            to[r] = g->accumulate ? to[r] + from[r] : from[r];
    }
}

/* Joins a tile of partial sums, the index-th in the order of lanes, with those before it; `at` is its place. */
QN_INLINE void join_partial(const struct tile_gemm *g, const struct tile_memory *m, size_t index, size_t at, size_t row,
                            size_t token)
{
    float *partial = m->partial + at;
    int level = 0;
    for (; index >> level & 1; level++) {
        const float *earlier = m->stack[level] + at;
        QN_UNROLLED
        for (int r = 0; r < QN_TILE; r++)
            v16_store(partial + r * QN_TILE, v16_add(v16_load(earlier + r * QN_TILE), v16_load(partial + r * QN_TILE)));
    }
    if (index + 1 == QN_SUPER_GROUPS)
        store_results(g, partial, row, token);
    else
        memcpy(m->stack[level] + at, partial, TILE_FLOATS * sizeof *partial);
}

/* Computes one partial sum of all elements, the index-th in the order of lanes. */
QN_INLINE void compute_lane(const struct tile_gemm *g, tile_state *state, const struct tile_memory *m, size_t index,
                            bool hilo, bool has_offset)
{
    const size_t lane = (index & 1) << 3 | (index & 2) << 1 | (index & 4) >> 1 | index >> 3;
    const size_t n = (g->panel->n_groups + QN_SUPER_GROUPS - 1 - lane) / QN_SUPER_GROUPS;
    const size_t n_token_tiles = (g->n_tokens + QN_TILE - 1) / QN_TILE;
    const size_t n_pairs = (g->panel->n_rows + PAIR_ROWS - 1) / PAIR_ROWS;
    if (!n)
        memset(m->partial, 0, QN_TILE_PANEL_ROWS * QN_TILE_MAX_TOKENS * sizeof *m->partial);
    for (size_t s = 0; s < n; s += QN_TILE_CHUNK) {
        const size_t count = n - s < QN_TILE_CHUNK ? n - s : QN_TILE_CHUNK;
        for (size_t pair = 0; pair < n_pairs; pair++) {
            (g->panel->words ? expand_pair_of_words : expand_pair_of_codes)(g->panel, lane, s, count, pair, m);
            for (size_t t = 0; t + 2 <= n_token_tiles; t += 2)
                add_groups(g, state, m, lane, s, count, pair, t, 2, hilo, has_offset);
            if (n_token_tiles % 2)
                add_groups(g, state, m, lane, s, count, pair, n_token_tiles - 1, 1, hilo, has_offset);
        }
    }
    for (size_t pair = 0; pair < n_pairs; pair++)
        for (size_t k = 0; k < 2 * n_token_tiles; k++)
            if (pair * PAIR_ROWS + k % 2 * QN_TILE < g->panel->n_rows)
                join_partial(g, m, index, tile_at(pair, 0) + k * TILE_FLOATS, pair * PAIR_ROWS + k % 2 * QN_TILE,
                             k / 2 * QN_TILE);
}

#define TILE_VARIANT(name, hilo, has_offset)                                                                           \
    static void name(const struct tile_gemm *g, tile_state *state, const struct tile_memory *memory)                  \
    {                                                                                                                  \
        for (size_t index = 0; index < QN_SUPER_GROUPS; index++)                                                       \
            compute_lane(g, state, memory, index, hilo, has_offset);                                                   \
    }
TILE_VARIANT(gemm_plain, false, false)
TILE_VARIANT(gemm_offset, false, true)
TILE_VARIANT(gemm_hilo, true, false)
TILE_VARIANT(gemm_hilo_offset, true, true)

static void gemm_tiles(const qn_tile_panel *panel, const qn_acts *acts, size_t first, size_t n_tokens, bool accumulate,
                       float *out, size_t out_stride, void *scratch)
{
    const struct tile_gemm g = { panel, acts, first, n_tokens, accumulate, out, out_stride };
    const struct tile_memory m = tile_memory_of(scratch);
    tile_state state;
    tile_begin(&state);
    if (acts->hilo)
        (panel->offset ? gemm_hilo_offset : gemm_hilo)(&g, &state, &m);
    else
        (panel->offset ? gemm_offset : gemm_plain)(&g, &state, &m);
    tile_end(&state);
}

#endif
