/* Panels of weights for the GEMM of tiles.h. */
#include "kernels/matmul/blocks.h"
#include "kernels/matmul/tiles.h"

#include "base/memory.h"

#include <string.h>

#define CODES_FIT(ID, weights, bytes, scale, min, codes, zero, max_code)                                               \
    _Static_assert((zero) <= 128 && (max_code) - (zero) <= 127, #ID ": codes without the zero point exceed int8");
QN_BLOCK_LAYOUTS(CODES_FIT)

bool qn_tiles_multiply_type(const qn_type_info *type)
{
    return type->unpack && !type->has_factor && !type->has_half_scale;
}

size_t qn_tile_gemm_scratch(void)
{
    const size_t sums = 4 * QN_TILE * QN_TILE * sizeof(int32_t),
                 partial = QN_TILE_PANEL_ROWS * QN_TILE_MAX_TOKENS * sizeof(float);
    return sums + 5 * partial + sizeof(qn_tile_weights);
}

void qn_block_expand_row(const qn_type_info *type, const uint8_t *stored, size_t row, int8_t (*codes)[QN_TILE][4],
                         float *scale)
{
    uint8_t unpacked[QN_BLOCK];
    int8_t factor[2 * QN_BLOCK_GROUPS];
    float scales[2 * QN_BLOCK_GROUPS], offset[2 * QN_BLOCK_GROUPS];
    type->unpack(stored, 1, unpacked, scales, offset, factor);
    for (size_t k = 0; k < QN_BLOCK; k++)
        codes[k / 4][row][k % 4] = (int8_t)(unpacked[k] - type->zero_point);
    scale[row] = scales[0];
}

void qn_block_expand_stored(const qn_block_panel *panel, size_t row, size_t block, int8_t (*codes)[QN_TILE][4],
                            float *scale)
{
    const size_t left = row < panel->n_rows ? panel->n_rows - row : 0, n_rows = left < QN_TILE ? left : QN_TILE;
    memset(codes, 0, QN_BLOCK * QN_TILE);
    memset(scale, 0, QN_TILE * sizeof *scale);
    for (size_t r = 0; r < n_rows; r++)
        qn_block_expand_row(panel->type,
                            panel->stored + (row + r) * panel->row_bytes + block * panel->type->block_bytes, r, codes,
                            scale);
}

size_t qn_block_gemm_scratch(void)
{
    const size_t sums = 8 * QN_TILE * QN_TILE * sizeof(int32_t),
                 rows = QN_BLOCK_CHUNK * QN_TILE * (QN_BLOCK + sizeof(float)),
                 no_element = 2 * QN_TILE_PANEL_ROWS * QN_TILE * sizeof(float),
                 elements = QN_BLOCK_MAX_PANELS * QN_TILE_PANEL_ROWS * QN_TILE_MAX_TOKENS * sizeof(float);
    return sums + rows + no_element + elements;
}

size_t qn_tile_panel_bytes(size_t n_super)
{
    const size_t groups = n_super * QN_SUPER_GROUPS * QN_TILE_PANEL_ROWS;
    return groups * (QN_QUANT_GROUP + 2 * sizeof(float));
}

void qn_tile_panel_begin(qn_tile_panel *panel, const qn_type_info *type, size_t n_rows, size_t n_cols, void *memory)
{
    const size_t n_super = (n_cols + QN_SUPER - 1) / QN_SUPER;
    const size_t groups = n_super * QN_SUPER_GROUPS * QN_TILE_PANEL_ROWS;
    uint8_t *codes = memory;
    *panel = (qn_tile_panel){ .n_rows = n_rows,
                              .n_super = n_super,
                              .n_groups = n_cols / QN_QUANT_GROUP,
                              .codes = codes,
                              .scale = (float *)(void *)(codes + groups * QN_QUANT_GROUP),
                              .zero_point = type->zero_point };
    if (type->has_offset)
        panel->offset = panel->scale + groups;
    for (size_t i = 0; i < QN_QUANT_GROUP; i++) {
        const size_t at = qn_act_index(qn_act_layout_of(type), i); /* of lane 0: 64 * vector + byte */
        panel->order[i] = (uint8_t)(at / 64 * 4 + at % 64);
    }
    if (n_rows < QN_TILE_PANEL_ROWS)
        memset(memory, 0, qn_tile_panel_bytes(n_super));
}

void qn_tile_put_ref(const qn_tile_panel *panel, size_t row, size_t super, const qn_super_block *block)
{
    for (size_t lane = 0; lane < QN_SUPER_GROUPS; lane++) {
        const size_t at = (super * QN_SUPER_GROUPS + lane) * QN_TILE_PANEL_ROWS + row;
        for (size_t quad = 0; quad < QN_QUANT_GROUP / 4; quad++)
            memcpy(panel->codes + at * QN_QUANT_GROUP + 4 * quad, block->codes + 64 * quad + 4 * lane, 4);
        panel->scale[at] = block->scale[lane];
        if (panel->offset)
            panel->offset[at] = block->offset[lane];
    }
}
