/* The GEMM of blocks.h. The including file defines its tile instructions and vectors (gemm_tiles.h), and
 *
 *   block_tiles_begin, _end       before and after tiles are used: all tiles are 16 rows of 64 bytes
 *   BLOCK_LOAD(state, tile, from) tiles 4 to 7, 1 KiB of memory
 *   BLOCK_MULTIPLY(state, c, a, b)  c += a * b: [16][64] by [16 quads][16][4] int8, [16][16] int32
 *   expand_packed_block           a block of 16 packed rows to qn_block_weights
 *   v16_of_int32, v16_...         as in gemm_tiles.h */
#ifndef QN_KERNELS_MATMUL_GEMM_BLOCKS_H
#define QN_KERNELS_MATMUL_GEMM_BLOCKS_H

#include "kernels/matmul/blocks.h"

/* The scratch of a GEMM. The first two lie next to each other, so that they share no sets of L1. */
struct block_memory {
    int32_t *sums; /* [even and odd steps][2: lo codes][TILE_FLOATS], each tile [token][row] */
    qn_block_weights *weights;
    float *elements; /* [tiles of tokens][tiles of rows][TILE_FLOATS]: their sums over the blocks before */
};

static struct block_memory block_memory_of(void *scratch)
{
    struct block_memory m = { .sums = scratch };
    m.weights = (qn_block_weights *)(void *)(m.sums + 4 * TILE_FLOATS);
    m.elements = (float *)(void *)(m.weights + QN_TILE_PANEL_TILES * QN_BLOCK_CHUNK);
    return m;
}

/* Unpacks blocks [first, first + n) of a panel. */
QN_INLINE void expand_blocks(const qn_block_panel *panel, size_t first, size_t n, tile_state *state,
                             const struct block_memory *m)
{
    (void)state;
    for (size_t tile = 0; tile * QN_TILE < panel->n_rows; tile++)
        for (size_t i = 0; i < n; i++) {
            qn_block_weights *out = &m->weights[tile * QN_BLOCK_CHUNK + i];
            BLOCK_KEEP_AWAKE(state, m->sums);
            if (panel->packed)
                expand_packed_block(panel, tile, first + i, out);
            else
                qn_block_expand_stored(panel, tile * QN_TILE, first + i, out);
        }
}

/* Begins the products of a block. c and c_lo: tiles of sums; hilo is a constant at the calls. */
#define MULTIPLY_BLOCK(state, c, c_lo, w, acts, hilo)                                                                  \
    do {                                                                                                               \
        const void *hi_weights = (hilo) ? (w)->codes : (w)->times_base;                                                \
        const char *hi = hi_weights, *lo = (const char *)(w)->codes;                                                   \
        TILE_ZERO(state, c);                                                                                           \
        if (hilo)                                                                                                      \
            TILE_ZERO(state, c_lo);                                                                                    \
        BLOCK_LOAD(state, 4, (acts)->codes[0]);                                                                        \
        BLOCK_LOAD(state, 6, hi);                                                                                      \
        BLOCK_MULTIPLY(state, c, 4, 6);                                                                                \
        BLOCK_LOAD(state, 5, (acts)->codes[1]);                                                                        \
        BLOCK_LOAD(state, 7, hi + QN_TILE * QN_BLOCK_K);                                                               \
        BLOCK_MULTIPLY(state, c, 5, 7);                                                                                \
        BLOCK_LOAD(state, 4, (acts)->codes[2]);                                                                        \
        BLOCK_LOAD(state, 5, (acts)->codes[3]);                                                                        \
        if (!(hilo)) {                                                                                                 \
            BLOCK_LOAD(state, 6, lo);                                                                                  \
            BLOCK_MULTIPLY(state, c, 4, 6);                                                                            \
            BLOCK_LOAD(state, 7, lo + QN_TILE * QN_BLOCK_K);                                                           \
            BLOCK_MULTIPLY(state, c, 5, 7);                                                                            \
        } else {                                                                                                       \
            BLOCK_MULTIPLY(state, c_lo, 4, 6);                                                                         \
            BLOCK_MULTIPLY(state, c_lo, 5, 7);                                                                         \
        }                                                                                                              \
    } while (0)

/* Scales the sums of a block and adds them to the elements. hilo is a constant at the calls. */
QN_INLINE void scale_block(v16 *acc, const int32_t *sums, const qn_block_weights *w, const qn_act_block_tile *acts,
                           bool hilo)
{
    const v16 scale = v16_load(w->scale);
    QN_UNROLLED
    for (int t = 0; t < QN_TILE; t++) {
        v16 x = v16_of_int32(sums + t * QN_TILE);
        if (hilo)
            x = v16_fma(x, v16_set1(QN_HILO_BASE), v16_of_int32(sums + TILE_FLOATS + t * QN_TILE));
        acc[t] = v16_fma(x, v16_mul(scale, v16_set1(acts->scale[t])), acc[t]);
    }
}

struct block_gemm {
    const qn_block_panel *panel;
    const qn_acts *acts;
    size_t first, n_tokens;
    bool accumulate;
    float *out;
    size_t out_stride;
};

/* Stores a tile of results. */
static void store_block_results(const struct block_gemm *g, const v16 *acc, size_t row, size_t token)
{
    const size_t n_rows = g->panel->n_rows - row < QN_TILE ? g->panel->n_rows - row : QN_TILE;
    for (size_t t = 0; t < QN_TILE && token + t < g->n_tokens; t++) {
        float *to = g->out + (g->first + token + t) * g->out_stride + row;
        if (n_rows == QN_TILE) {
            v16_store(to, g->accumulate ? v16_add(v16_load(to), acc[t]) : acc[t]);
            continue;
        }
        _Alignas(64) float from[QN_TILE];
        v16_store(from, acc[t]);
        for (size_t r = 0; r < n_rows; r++)
            to[r] = g->accumulate ? to[r] + from[r] : from[r];
    }
}

/* Adds the n unpacked blocks from `first` on to a tile of elements. A step begins the products of a block, stores the
 * sums of the block before and scales those of the block before that. hilo is a constant at the calls. */
QN_INLINE void add_blocks(const struct block_gemm *g, tile_state *state, const struct block_memory *m, size_t row_tile,
                          size_t token_tile, size_t first, size_t n, bool hilo)
{
    (void)state;
    const qn_block_weights *w = m->weights + row_tile * QN_BLOCK_CHUNK;
    const qn_act_block_tile *acts =
        g->acts->block_tiles + (g->first / QN_TILE + token_tile) * qn_act_blocks(g->acts) + first;
    float *elements = m->elements + (token_tile * QN_TILE_PANEL_TILES + row_tile) * TILE_FLOATS;
    v16 acc[QN_TILE];
    QN_UNROLLED
    for (int t = 0; t < QN_TILE; t++)
        acc[t] = first ? v16_load(elements + t * QN_TILE) : v16_set1(0);
    for (size_t step = 0; step < n + 2; step += 2) {
        if (step < n)
            MULTIPLY_BLOCK(state, 0, 1, &w[step], &acts[step], hilo);
        if (step >= 1 && step <= n) {
            TILE_STORE(state, 2, m->sums + 2 * TILE_FLOATS);
            if (hilo)
                TILE_STORE(state, 3, m->sums + 3 * TILE_FLOATS);
        }
        if (step >= 2)
            scale_block(acc, m->sums, &w[step - 2], &acts[step - 2], hilo);
        if (step + 1 < n)
            MULTIPLY_BLOCK(state, 2, 3, &w[step + 1], &acts[step + 1], hilo);
        if (step < n) {
            TILE_STORE(state, 0, m->sums);
            if (hilo)
                TILE_STORE(state, 1, m->sums + TILE_FLOATS);
        }
        if (step >= 1 && step < n + 1)
            scale_block(acc, m->sums + 2 * TILE_FLOATS, &w[step - 1], &acts[step - 1], hilo);
    }
    if (first + n == g->panel->n_blocks) {
        store_block_results(g, acc, row_tile * QN_TILE, token_tile * QN_TILE);
        return;
    }
    QN_UNROLLED
    for (int t = 0; t < QN_TILE; t++)
        v16_store(elements + t * QN_TILE, acc[t]);
}

#define BLOCK_VARIANT(name, hilo)                                                                                      \
    static void name(const struct block_gemm *g, tile_state *state, const struct block_memory *m)                      \
    {                                                                                                                  \
        for (size_t first = 0, n; first < g->panel->n_blocks; first += n) {                                            \
            n = g->panel->n_blocks - first < QN_BLOCK_CHUNK ? g->panel->n_blocks - first : QN_BLOCK_CHUNK;             \
            expand_blocks(g->panel, first, n, state, m);                                                               \
            for (size_t token = 0; token * QN_TILE < g->n_tokens; token++)                                             \
                for (size_t row = 0; row * QN_TILE < g->panel->n_rows; row++)                                          \
                    add_blocks(g, state, m, row, token, first, n, hilo);                                               \
        }                                                                                                              \
    }
BLOCK_VARIANT(gemm_blocks_plain, false)
BLOCK_VARIANT(gemm_blocks_hilo, true)

static void gemm_blocks(const qn_block_panel *panel, const qn_acts *acts, size_t first, size_t n_tokens,
                        bool accumulate, float *out, size_t out_stride, void *scratch)
{
    const struct block_gemm g = { panel, acts, first, n_tokens, accumulate, out, out_stride };
    const struct block_memory m = block_memory_of(scratch);
    tile_state state;
    block_tiles_begin(&state);
    (acts->hilo ? gemm_blocks_hilo : gemm_blocks_plain)(&g, &state, &m);
    tile_end(&state);
}

#endif
