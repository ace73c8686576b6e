/* The GEMM of tiles.h. The including file defines its tile instructions and vectors:
 *
 *   tile_state                    the tile registers, if they are not the processor's
 *   tile_begin, tile_end          before and after tiles are used
 *   TILE_ZERO(state, tile)        TILE_STORE(state, tile, 1 KiB of memory): tiles 0 to 3, sums
 *   TILE_LOAD_WEIGHTS, ..._ACTS   (state, tile, memory): tile 4, [16][32] int8; tiles 5 to 7, [8][16][4] int8
 *   TILE_MULTIPLY(state, c, a, b) c += a * b, [16][16] int32
 *   expand_codes                  codes of a row and group to 32 int8
 *   v16_of_int32                  16 int32 to floats
 *   tile_transpose                16 x 16 floats
 *   v16_...                       as kernels/vec16.h */
#ifndef QN_KERNELS_MATMUL_GEMM_TILES_H
#define QN_KERNELS_MATMUL_GEMM_TILES_H

#include "kernels/matmul/packed.h"
#include "kernels/matmul/tiles.h"

#include <string.h>

enum {
    TILE_FLOATS = QN_TILE * QN_TILE,
    TOKEN_TILES = QN_TILE_MAX_TOKENS / QN_TILE,
    PARTIAL_FLOATS = QN_TILE_PANEL_ROWS * QN_TILE_MAX_TOKENS
};

/* The scratch of a GEMM. The first two lie next to each other, so that they share no sets of L1. */
struct tile_memory {
    int32_t *sums; /* [even and odd steps][2: lo codes][TILE_FLOATS], each tile [row][token] */
    qn_tile_weights *weights;
    float *partial;  /* [tiles of tokens][tiles of rows][TILE_FLOATS] */
    float *stack[4]; /* intermediate sums, as partial */
};

static struct tile_memory tile_memory_of(void *scratch)
{
    struct tile_memory m = { .sums = scratch };
    m.weights = (qn_tile_weights *)(void *)(m.sums + 4 * TILE_FLOATS);
    m.partial = (float *)(void *)(m.weights + 1);
    for (int level = 0; level < 4; level++)
        m.stack[level] = m.partial + (level + 1) * PARTIAL_FLOATS;
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

enum { AWAKE_GROUPS = 4 }; /* groups of a panel that are unpacked in less than 500 ns */

/* Unpacks the groups that w names, of a panel of codes. */
QN_INLINE void expand_codes_of_lane(const qn_tile_panel *panel, tile_state *state, const struct tile_memory *m)
{
    const struct code_table table = code_table_of(panel);
    qn_tile_weights *w = m->weights;
    for (size_t i = 0; i < w->n; i++) {
        if (i % AWAKE_GROUPS == 0)
            keep_awake(state, m);
        for (size_t tile = 0; tile * QN_TILE < panel->n_rows; tile++) {
            const size_t group = (w->first + i) * QN_SUPER_GROUPS + w->lane,
                         at = group * QN_TILE_PANEL_ROWS + tile * QN_TILE;
            for (size_t row = 0; row < QN_TILE; row++)
                expand_codes(&table, panel->codes + (at + row) * QN_QUANT_GROUP, w->codes[tile][i][row]);
            memcpy(w->scale[tile][i], panel->scale + at, sizeof w->scale[tile][i]);
            if (panel->offset)
                memcpy(w->offset[tile][i], panel->offset + at, sizeof w->offset[tile][i]);
        }
    }
}

/* Begins the product of a group, and with the hi/lo split that of the lo codes. Even and odd steps have tiles of their
 * own. `odd` and hilo are constants at the calls. */
QN_INLINE void multiply_group(tile_state *state, const void *weights, const void *acts, const void *acts_lo, bool odd,
                              bool hilo)
{
    (void)state;
    TILE_LOAD_WEIGHTS(state, 4, weights);
    TILE_LOAD_ACTS(state, 6, acts);
    if (hilo)
        TILE_LOAD_ACTS(state, 7, acts_lo);
    if (odd) {
        TILE_ZERO(state, 2);
        TILE_MULTIPLY(state, 2, 4, 6);
    } else {
        TILE_ZERO(state, 0);
        TILE_MULTIPLY(state, 0, 4, 6);
    }
    if (hilo && odd) {
        TILE_ZERO(state, 3);
        TILE_MULTIPLY(state, 3, 4, 7);
    } else if (hilo) {
        TILE_ZERO(state, 1);
        TILE_MULTIPLY(state, 1, 4, 7);
    }
}

/* Stores the sums of an even or odd step. */
QN_INLINE void store_sums(tile_state *state, int32_t *sums, bool odd, bool hilo)
{
    (void)state;
    if (odd)
        TILE_STORE(state, 2, sums + 2 * TILE_FLOATS);
    else
        TILE_STORE(state, 0, sums);
    if (hilo && odd)
        TILE_STORE(state, 3, sums + 3 * TILE_FLOATS);
    else if (hilo)
        TILE_STORE(state, 1, sums + TILE_FLOATS);
}

/* Scales the sums of a group and adds them to the partial sums. hilo is a constant at the calls; offset is NULL for
 * types without one. */
QN_INLINE void scale_group(v16 *acc, const int32_t *sums, const float *scale, const float *offset,
                           const qn_act_tile *acts, bool hilo, bool has_offset)
{
    const v16 act_scale = v16_load(acts->scale), act_sum = v16_load(acts->sum);
    QN_UNROLLED
    for (int r = 0; r < QN_TILE; r++) {
        v16 x = v16_of_int32(sums + r * QN_TILE);
        if (hilo)
            x = v16_fma(x, v16_set1(QN_HILO_BASE), v16_of_int32(sums + TILE_FLOATS + r * QN_TILE));
        acc[r] = v16_fma(x, v16_mul(act_scale, v16_set1(scale[r])), acc[r]);
        if (has_offset)
            acc[r] = v16_fma(act_sum, v16_mul(act_scale, v16_set1(offset[r])), acc[r]);
    }
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

/* A tile of partial sums. */
struct tile_place {
    size_t row_tile, token_tile;
    size_t index; /* of its lane in the order of lanes */
};

/* Returns the tile's place in partial and stack. */
QN_INLINE size_t tile_at(const struct tile_place *tile)
{
    return (tile->token_tile * QN_TILE_PANEL_TILES + tile->row_tile) * TILE_FLOATS;
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

/* Adds the intermediate sums of the lanes before to a tile of partial sums, which are complete, and stores the sums for
 * the next lanes or, after the last lane, as results. */
QN_INLINE void join_lanes(const struct tile_gemm *g, const struct tile_memory *m, const struct tile_place *tile,
                          v16 *acc)
{
    _Alignas(64) float results[TILE_FLOATS];
    const size_t at = tile_at(tile);
    int level = 0;
    for (; tile->index >> level & 1; level++) {
        const float *before = m->stack[level] + at;
        QN_UNROLLED
        for (int r = 0; r < QN_TILE; r++)
            acc[r] = v16_add(v16_load(before + r * QN_TILE), acc[r]);
    }
    const bool last = tile->index + 1 == QN_SUPER_GROUPS;
    float *to = last ? results : m->stack[level] + at;
    QN_UNROLLED
    for (int r = 0; r < QN_TILE; r++)
        v16_store(to + r * QN_TILE, acc[r]);
    if (last)
        store_results(g, results, tile->row_tile * QN_TILE, tile->token_tile * QN_TILE);
}

/* Adds the unpacked groups to a tile of partial sums. A step begins a product, stores the sums of the step before and
 * scales those of the step before that. hilo and has_offset are constants at the calls. */
QN_INLINE void add_groups(const struct tile_gemm *g, tile_state *state, const struct tile_memory *m,
                          const struct tile_place *tile, bool begins, bool ends, bool hilo, bool has_offset)
{
    const qn_tile_weights *w = m->weights;
    const size_t n = w->n,
                 at = n ? qn_act_tile_at(g->acts, g->first + tile->token_tile * QN_TILE, w->first, w->lane) : 0;
    const qn_act_tile *acts = g->acts->tiles + at;
    const qn_act_tile_lo *lo = hilo ? g->acts->tiles_lo + at : NULL;
    float *partial = m->partial + tile_at(tile);
    v16 acc[QN_TILE];
    QN_UNROLLED
    for (int r = 0; r < QN_TILE; r++)
        acc[r] = begins ? v16_set1(0) : v16_load(partial + r * QN_TILE);
    for (size_t step = 0; step < n + 2; step += 2) {
        QN_UNROLLED
        for (int odd = 0; odd < 2; odd++) {
            const size_t s = step + (size_t)odd;
            if (s < n)
                multiply_group(state, w->codes[tile->row_tile][s], acts[s].codes, hilo ? lo[s].codes : NULL, odd, hilo);
            if (s >= 1 && s <= n)
                store_sums(state, m->sums, !odd, hilo);
            if (s >= 2 && s < n + 2)
                scale_group(acc, m->sums + 2 * odd * TILE_FLOATS, w->scale[tile->row_tile][s - 2],
                            w->offset[tile->row_tile][s - 2], acts + s - 2, hilo, has_offset);
        }
    }
    if (ends) {
        join_lanes(g, m, tile, acc);
        return;
    }
    QN_UNROLLED
    for (int r = 0; r < QN_TILE; r++)
        v16_store(partial + r * QN_TILE, acc[r]);
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

/* Computes one partial sum of all elements, the index-th in the order of lanes. */
QN_INLINE void compute_lane(const struct tile_gemm *g, tile_state *state, const struct tile_memory *m, size_t index,
                            bool hilo, bool has_offset)
{
    const size_t n = groups_of_lane(g->panel, lane_at(index)), chunk = qn_tile_chunk(g->panel->n_super);
    qn_tile_weights *w = m->weights;
    struct tile_place tile = { .index = index };
    w->lane = lane_at(index);
    w->first = 0;
    do { /* once also without groups: the partial sums are 0 then */
        w->n = n - w->first < chunk ? n - w->first : chunk;
        expand_codes_of_lane(g->panel, state, m);
        const bool ends = w->first + w->n == n;
        for (tile.token_tile = 0; tile.token_tile * QN_TILE < g->n_tokens; tile.token_tile++)
            for (tile.row_tile = 0; tile.row_tile * QN_TILE < g->panel->n_rows; tile.row_tile++)
                add_groups(g, state, m, &tile, w->first == 0, ends, hilo, has_offset);
        w->first += w->n;
    } while (w->first < n);
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
