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
    PANEL_PAIRS = QN_TILE_PANEL_ROWS / QN_TILE_PAIR_ROWS,
    BLOCK_TILES = 4 /* a block of 2 x 2 tiles of sums is computed at a time */
};

/* The scratch of a GEMM. The first two are always in L1: they lie next to each other, so that they share no sets. */
struct tile_memory {
    float *sums; /* [QN_TILE_CHUNK][BLOCK_TILES][TILE_FLOATS], each tile [row][token] */
    qn_tile_weights *weights;
    float *partial;  /* [PANEL_PAIRS][tiles of tokens][2][TILE_FLOATS] */
    float *stack[4]; /* intermediate sums, as partial */
};

static struct tile_memory tile_memory_of(void *scratch)
{
    struct tile_memory m;
    float *p = scratch;
    m.sums = p, p += QN_TILE_CHUNK * BLOCK_TILES * TILE_FLOATS;
    m.weights = (qn_tile_weights *)(void *)p, p += sizeof *m.weights / sizeof *p;
    m.partial = p, p += QN_TILE_PANEL_ROWS * QN_TILE_MAX_TOKENS;
    for (int level = 0; level < 4; level++)
        m.stack[level] = p, p += QN_TILE_PANEL_ROWS * QN_TILE_MAX_TOKENS;
    return m;
}

/* The unit sleeps after about 500 ns without a product, and so does the storing of tiles; waking takes about 300 ns.
 * Called in work of other instructions. */
QN_INLINE void keep_awake(tile_state *state, const struct tile_memory *m)
{
    (void)state;
    TILE_ZERO(state, 3);
    TILE_MULTIPLY(state, 3, 4, 6);
    TILE_STORE(state, 3, m->sums);
}

/* Unpacks the groups that w names, of a panel of codes. */
QN_INLINE void expand_codes_of_pair(const qn_tile_panel *panel, qn_tile_weights *w)
{
    const struct code_table table = code_table_of(panel);
    for (size_t i = 0; i < w->n; i++) {
        const size_t group = (w->first + i) * QN_SUPER_GROUPS + w->lane,
                     at = group * QN_TILE_PANEL_ROWS + w->pair * QN_TILE_PAIR_ROWS;
        for (size_t row = 0; row < QN_TILE_PAIR_ROWS; row++)
            expand_codes(&table, panel->codes + (at + row) * QN_QUANT_GROUP, w->codes[i][row]);
        memcpy(w->scale[i], panel->scale + at, sizeof w->scale[i]);
        if (panel->offset)
            memcpy(w->offset[i], panel->offset + at, sizeof w->offset[i]);
    }
}

/* The same of packed Q1_0. */
QN_INLINE void expand_words_of_pair(const qn_tile_panel *panel, qn_tile_weights *w)
{
    enum { BLOCK_GROUPS = QN_Q1_0_WEIGHTS / QN_QUANT_GROUP, BLOCK_BYTES = QN_Q1_0_BYTES * QN_PANEL_ROWS };
    for (size_t i = 0; i < w->n; i++) {
        const size_t group = (w->first + i) * QN_SUPER_GROUPS + w->lane;
        const uint8_t *block = panel->words + group / BLOCK_GROUPS * BLOCK_BYTES;
        const uint8_t *words = block + 4 * (group % BLOCK_GROUPS * QN_PANEL_ROWS + w->pair * QN_TILE_PAIR_ROWS);
        const uint16_t *d = (const uint16_t *)(const void *)(block + BLOCK_GROUPS * 4 * QN_PANEL_ROWS);
        for (size_t row = 0; row < QN_TILE_PAIR_ROWS; row++)
            expand_bits(words + 4 * row, w->codes[i][row]);
        for (size_t row = 0; row < QN_TILE_PAIR_ROWS; row += QN_LANES)
            v16_store(&w->scale[i][row], v16_load_f16(d + w->pair * QN_TILE_PAIR_ROWS + row));
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

/* Lines that are prefetched per group of a tile: a block of four tiles of sums prefetches the two tiles of activations
 * of the next block. */
enum { PREFETCH_LINES = (int)sizeof(qn_act_tile) / 64 / 2 };

/* Scales the sums of n groups of one tile, and adds them to its partial sums, which are 0 if the tile begins. hilo and
 * has_offset are constants at the calls. Prefetches n * PREFETCH_LINES lines from `next` on. */
QN_INLINE void scale_groups(const float *sums, const float *sums_lo, const float *scale, const float *offset,
                            const qn_act_tile *acts, size_t n, bool begins, bool hilo, bool has_offset,
                            const uint8_t *next, float *partial)
{
    v16 acc[QN_TILE];
    QN_UNROLLED
    for (int r = 0; r < QN_TILE; r++)
        acc[r] = begins ? v16_set1(0) : v16_load(partial + r * QN_TILE);
    for (size_t s = 0; s < n; s++) {
        const v16 act_scale = v16_load(acts[s].scale), act_sum = v16_load(acts[s].sum);
        const float *sum = sums + s * BLOCK_TILES * TILE_FLOATS, *sum_lo = sums_lo + s * BLOCK_TILES * TILE_FLOATS;
        const float *w = scale + s * QN_TILE_PAIR_ROWS, *o = offset + s * QN_TILE_PAIR_ROWS;
        for (int line = 0; line < PREFETCH_LINES; line++)
            __builtin_prefetch(next + 64 * (s * PREFETCH_LINES + line));
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

/* Adds unpacked groups to the partial sums of 1 or 2 tiles of tokens, and prefetches the tiles that are needed next.
 * hilo, has_offset and n_token_tiles are constants at the calls. */
QN_INLINE void add_groups(const struct tile_gemm *g, tile_state *state, const struct tile_memory *m,
                          const qn_tile_weights *w, size_t token_tile, size_t n_token_tiles, const void *next,
                          bool hilo, bool has_offset)
{
    enum { HALF = QN_TILE_CHUNK / 2 };
    const size_t at = qn_act_tile_at(g->acts, g->first + token_tile * QN_TILE, w->first, w->lane),
                 second = qn_act_tile_at(g->acts, QN_TILE, w->first, 0) - qn_act_tile_at(g->acts, 0, w->first, 0);
    float *sums_lo = m->sums + HALF * BLOCK_TILES * TILE_FLOATS;
    for (size_t i = 0, n; i < w->n; i += n) { /* with the hi/lo split, the sums of half the groups are of the lo codes
                                               */
        const qn_act_tile *acts = g->acts->tiles + at + i;
        const uint8_t *next_here = (const uint8_t *)next + i * 4 * PREFETCH_LINES * 64;
        n = hilo && w->n - i > HALF ? HALF : w->n - i;
        multiply_groups(state, w->codes[i][0], (const uint8_t *)acts->codes, sizeof *acts, second * sizeof *acts, n,
                        n_token_tiles, m->sums);
        if (hilo) {
            const qn_act_tile_lo *lo = g->acts->tiles_lo + at + i;
            multiply_groups(state, w->codes[i][0], (const uint8_t *)lo->codes, sizeof *lo, second * sizeof *lo, n,
                            n_token_tiles, sums_lo);
        }
        for (size_t k = 0; k < 2 * n_token_tiles; k++)
            scale_groups(m->sums + k * TILE_FLOATS, sums_lo + k * TILE_FLOATS, &w->scale[i][k % 2 * QN_TILE],
                         &w->offset[i][k % 2 * QN_TILE], acts + k / 2 * second, n, w->first + i == 0, hilo, has_offset,
                         next_here + k * n * PREFETCH_LINES * 64,
                         m->partial + tile_at(w->pair, token_tile) + k * TILE_FLOATS);
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

/* Joins a tile of partial sums, the index-th in the order of lanes, with those before it; `at` is its place. With an
 * even index there are none: they were written to the stack. */
QN_INLINE void join_partial(const struct tile_gemm *g, const struct tile_memory *m, size_t index, size_t at, size_t row,
                            size_t token)
{
    int levels = 0;
    while (index >> levels & 1)
        levels++;
    float *to = index + 1 < QN_SUPER_GROUPS ? m->stack[levels] + at : m->partial + at;
    v16 sum[QN_TILE];
    QN_UNROLLED
    for (int r = 0; r < QN_TILE; r++)
        sum[r] = v16_load(m->partial + at + r * QN_TILE);
    for (int level = 0; level < levels; level++) {
        QN_UNROLLED
        for (int r = 0; r < QN_TILE; r++)
            sum[r] = v16_add(v16_load(m->stack[level] + at + r * QN_TILE), sum[r]);
    }
    QN_UNROLLED
    for (int r = 0; r < QN_TILE; r++)
        v16_store(to + r * QN_TILE, sum[r]);
    if (index + 1 == QN_SUPER_GROUPS)
        store_results(g, to, row, token);
}

/* Returns the number of groups of a lane. */
QN_INLINE size_t groups_of_lane(const qn_tile_panel *panel, size_t lane)
{
    return (panel->n_groups + QN_SUPER_GROUPS - 1 - lane) / QN_SUPER_GROUPS;
}

/* Returns the lane that is the index-th in the order of lanes. */
QN_INLINE size_t lane_at(size_t index)
{
    return (index & 1) << 3 | (index & 2) << 1 | (index & 4) >> 1 | (index >> 3 & 1);
}

/* Returns the first tile of activations that is read after those of w, for which it is the index-th lane. */
QN_INLINE const qn_act_tile *tiles_after(const struct tile_gemm *g, const qn_tile_weights *w, size_t index)
{
    size_t lane = w->lane, first = w->first;
    if ((w->pair + 1) * QN_TILE_PAIR_ROWS >= g->panel->n_rows) {
        first += QN_TILE_CHUNK;
        if (first >= groups_of_lane(g->panel, lane))
            lane = lane_at(index + 1), first = 0;
    }
    return g->acts->tiles + qn_act_tile_at(g->acts, g->first, first, lane);
}

/* Computes one partial sum of all elements, the index-th in the order of lanes. */
QN_INLINE void compute_lane(const struct tile_gemm *g, tile_state *state, const struct tile_memory *memory,
                            size_t index, bool hilo, bool has_offset)
{
    struct tile_memory lane_memory = *memory, *m = &lane_memory;
    const size_t lane = lane_at(index);
    const size_t n = groups_of_lane(g->panel, lane), n_token_tiles = (g->n_tokens + QN_TILE - 1) / QN_TILE;
    qn_tile_weights *w = m->weights;
    w->lane = lane;
    if (index % 2 == 0)
        m->partial = m->stack[0];
    if (!n)
        memset(m->partial, 0, QN_TILE_PANEL_ROWS * QN_TILE_MAX_TOKENS * sizeof *m->partial);
    for (w->first = 0; w->first < n; w->first += QN_TILE_CHUNK) {
        w->n = n - w->first < QN_TILE_CHUNK ? n - w->first : QN_TILE_CHUNK;
        for (w->pair = 0; w->pair * QN_TILE_PAIR_ROWS < g->panel->n_rows; w->pair++) {
            keep_awake(state, m);
            (g->panel->words ? expand_words_of_pair : expand_codes_of_pair)(g->panel, w);
            const qn_act_tile *after = tiles_after(g, w, index);
            for (size_t t = 0; t + 2 <= n_token_tiles; t += 2) {
                const size_t at = qn_act_tile_at(g->acts, g->first + (t + 2) * QN_TILE, w->first, lane);
                add_groups(g, state, m, w, t, 2, t + 2 < n_token_tiles ? g->acts->tiles + at : after, hilo, has_offset);
            }
            if (n_token_tiles % 2)
                add_groups(g, state, m, w, n_token_tiles - 1, 1, after, hilo, has_offset);
        }
    }
    for (size_t row = 0; index % 2 && row < g->panel->n_rows; row += QN_TILE)
        for (size_t t = 0; t < n_token_tiles; t++) {
            if (t % 4 == 0)
                keep_awake(state, m);
            join_partial(g, m, index, tile_at(row / QN_TILE_PAIR_ROWS, t) + row / QN_TILE % 2 * TILE_FLOATS, row,
                         t * QN_TILE);
        }
}

#define TILE_VARIANT(name, hilo, has_offset)                                                                           \
    static void name(const struct tile_gemm *g, tile_state *state, const struct tile_memory *memory)                   \
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
