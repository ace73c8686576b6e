/* The GEMM of tiles.h in plain C: tile registers are memory. */
#include "base/fmaf.h"
#include "kernels/canon.h"
#include "kernels/matmul/blocks.h"

#include <string.h>

#define QN_INLINE static inline
#define QN_UNROLLED

typedef struct tile_state {
    _Alignas(64) unsigned char tiles[8][QN_TILE * 64];
} tile_state;

static void tile_begin(tile_state *state)
{
    memset(state, 0xa5, sizeof *state); /* until a tile is loaded */
}

static void tile_end(tile_state *state)
{
    (void)state;
}

enum { HALF_TILE = QN_TILE * QN_QUANT_GROUP };

#define TILE_ZERO(state, tile) memset((state)->tiles[tile], 0, sizeof(state)->tiles[tile])
#define TILE_LOAD_WEIGHTS(state, tile, from) memcpy((state)->tiles[tile], from, HALF_TILE)
#define TILE_LOAD_ACTS(state, tile, from) memcpy((state)->tiles[tile], from, HALF_TILE)
#define TILE_STORE(state, tile, to) memcpy(to, (state)->tiles[tile], sizeof(state)->tiles[tile])
#define TILE_MULTIPLY(state, c, a, b) tile_multiply((state)->tiles[c], (state)->tiles[a], (state)->tiles[b])

static void tile_multiply(void *c, const void *a, const void *b)
{
    int32_t(*sums)[QN_TILE] = c;
    const int8_t(*rows)[QN_QUANT_GROUP] = a, (*quads)[QN_TILE][4] = b;
    for (size_t row = 0; row < QN_TILE; row++)
        for (size_t k = 0; k < QN_QUANT_GROUP; k++)
            for (size_t token = 0; token < QN_TILE; token++)
                sums[row][token] += rows[row][k] * quads[k / 4][token][k % 4];
}

typedef struct v16 {
    float x[QN_LANES];
} v16;

static v16 v16_load(const float *p)
{
    v16 a;
    memcpy(a.x, p, sizeof a.x);
    return a;
}

static void v16_store(float *p, v16 a)
{
    memcpy(p, a.x, sizeof a.x);
}

static v16 v16_of_int32(const int32_t *p)
{
    v16 a;
    for (int i = 0; i < QN_LANES; i++)
        a.x[i] = (float)p[i];
    return a;
}

static v16 v16_set1(float x)
{
    v16 a;
    for (int i = 0; i < QN_LANES; i++)
        a.x[i] = x;
    return a;
}

static v16 v16_add(v16 a, v16 b)
{
    for (int i = 0; i < QN_LANES; i++)
        a.x[i] += b.x[i];
    return a;
}

static v16 v16_mul(v16 a, v16 b)
{
    for (int i = 0; i < QN_LANES; i++)
        a.x[i] *= b.x[i];
    return a;
}

static v16 v16_fma(v16 a, v16 b, v16 c)
{
    for (int i = 0; i < QN_LANES; i++)
        a.x[i] = qn_fmaf(a.x[i], b.x[i], c.x[i]);
    return a;
}

struct code_table {
    const uint8_t *order;
    int zero_point;
};

static struct code_table code_table_of(const qn_tile_panel *panel)
{
    return (struct code_table){ panel->order, panel->zero_point };
}

static void expand_codes(const struct code_table *table, const uint8_t *codes, int8_t *out)
{
    for (size_t i = 0; i < QN_QUANT_GROUP; i++)
        out[i] = (int8_t)(codes[table->order[i]] - table->zero_point);
}

static void tile_transpose(const float *in, float *out)
{
    for (size_t i = 0; i < QN_TILE * QN_TILE; i++)
        out[i % QN_TILE * QN_TILE + i / QN_TILE] = in[i];
}

#include "kernels/matmul/gemm_tiles.h"

static void block_tiles_begin(tile_state *state, size_t n_tokens)
{
    (void)n_tokens;
    tile_begin(state);
}

#define BLOCK_LOAD(state, tile, from, at)                                                                              \
    memcpy((state)->tiles[tile], (const char *)(from) + (at), sizeof(state)->tiles[tile])
#define BLOCK_STORE(state, tile, to) TILE_STORE(state, tile, (to) + (tile)*QN_TILE * QN_TILE)
#define BLOCK_MULTIPLY(state, c, a, b) block_multiply((state)->tiles[c], (state)->tiles[a], (state)->tiles[b])
#define BLOCK_KEEP_AWAKE(state, sums) ((void)(state), (void)(sums))

static void block_multiply(void *c, const void *a, const void *b)
{
    int32_t(*sums)[QN_TILE] = c;
    const int8_t(*tokens)[QN_BLOCK_K] = a, (*quads)[QN_TILE][4] = b;
    for (size_t token = 0; token < QN_TILE; token++)
        for (size_t k = 0; k < QN_BLOCK_K; k++)
            for (size_t row = 0; row < QN_TILE; row++)
                sums[token][row] += tokens[token][k] * quads[k / 4][row][k % 4];
}

static void expand_packed(const qn_block_panel *panel, size_t tile, size_t block, int8_t (*codes)[QN_TILE][4],
                          float *scale)
{
    const qn_type_info *type = panel->type;
    const size_t n_words = (type->block_bytes - type->codes_at) / 4;
    const uint8_t *words = panel->packed + block * type->block_bytes * QN_PANEL_ROWS;
    for (size_t r = 0; r < QN_TILE; r++) {
        const size_t row = panel->packed_row + tile * QN_TILE + r;
        uint8_t stored[QN_MAX_SUPER_BYTES];
        for (size_t word = 0; word < n_words; word++)
            memcpy(stored + type->codes_at + 4 * word, words + 4 * (word * QN_PANEL_ROWS + row), 4);
        memcpy(stored, words + 4 * n_words * QN_PANEL_ROWS + 2 * row, type->codes_at);
        qn_block_expand_row(type, stored, r, codes, scale);
    }
}

static void expand_block(qn_type type, const qn_block_panel *panel, size_t tile, size_t block,
                         int8_t (*codes)[QN_TILE][4], float *scale)
{
    (void)type; /* the panel's */
    if (panel->packed)
        expand_packed(panel, tile, block, codes, scale);
    else
        qn_block_expand_stored(panel, tile * QN_TILE, block, codes, scale);
}

#include "kernels/matmul/gemm_blocks.h"

void qn_block_gemm_ref(const qn_block_panel *panels, size_t n_panels, const qn_acts *acts, size_t first,
                       size_t n_tokens, bool accumulate, float *out, size_t out_stride, void *scratch)
{
    gemm_blocks(panels, n_panels, acts, first, n_tokens, accumulate, out, out_stride, scratch);
}

void qn_tile_gemm_ref(const qn_tile_panel *panel, const qn_acts *acts, size_t first, size_t n_tokens, bool accumulate,
                      float *out, size_t out_stride, void *scratch)
{
    gemm_tiles(panel, acts, first, n_tokens, accumulate, out, out_stride, scratch);
}
