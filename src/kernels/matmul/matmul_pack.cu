// Packs weights from their stored layouts into tiles. Done once per matrix: every code is loaded separately, and the
// caches make that fast enough.
#include "kernels/matmul/tiles.cuh"

QN_DEVICE uint32_t load_f16(const uint8_t *at)
{
    return at[0] | (uint32_t)at[1] << 8; // unaligned
}

// Base-3 digit of weight e of a block: n_bytes bytes of five digits, then half as many, then n_bytes / 8 of four
// digits. Digit n of all bytes of each of these ranges encodes consecutive weights.
QN_DEVICE uint32_t stored_ternary(const uint8_t *block, uint32_t e, uint32_t n_bytes)
{
    uint32_t width = n_bytes, first = 0;
    if (e >= 5 * n_bytes) {
        e -= 5 * n_bytes;
        first = n_bytes;
        width = n_bytes / 2;
        if (e >= 5 * width) {
            e -= 5 * width;
            first += width;
            width = n_bytes / 8;
        }
    }
    uint32_t x = block[first + e % width];
    for (uint32_t n = e / width; n > 0; n--)
        x = x * 3 & 255;
    return x * 3 >> 8;
}

// The code of a column, with as many bits as the tiles have.
QN_DEVICE uint32_t stored_code(uint32_t stored, const uint8_t *row, uint32_t col)
{
    switch (stored) {
    case QN_STORED_Q1_0: return row[col / 128 * 18 + 2 + col % 128 / 8] >> col % 8 & 1;
    case QN_STORED_Q2_0: return row[col / 64 * 18 + 2 + col % 64 / 4] >> 2 * (col % 4) & 3;
    case QN_STORED_PQ2_0: return row[col / 128 * 34 + 2 + col % 128 / 4] >> 2 * (col % 4) & 3;
    case QN_STORED_OX2_0: return row[col / 128 * 34 + col % 128 / 4] >> 2 * (col % 4) & 3;
    case QN_STORED_PTQ1_0: return stored_ternary(row + col / 128 * 28, col % 128, 16);
    case QN_STORED_TQ1_0: return stored_ternary(row + col / 256 * 54, col % 256, 32);
    case QN_STORED_TQ2_0: return row[col / 256 * 66 + col % 256 / 128 * 32 + col % 32] >> 2 * (col % 128 / 32) & 3;
    case QN_STORED_Q4_0: return row[col / 32 * 18 + 2 + col % 16] >> 4 * (col % 32 / 16) & 15;
    case QN_STORED_Q4_1: return row[col / 32 * 20 + 4 + col % 16] >> 4 * (col % 32 / 16) & 15;
    case QN_STORED_Q8_0: return row[col / 32 * 34 + 2 + col % 32] ^ 0x80u; // signed + 128
    case QN_STORED_F16: return load_f16(row + 2 * col);
    default: { // bf16, saturated
        const float x = qn_bf16_to_f32((uint16_t)load_f16(row + 2 * col));
        return qn_f32_to_f16(fminf(fmaxf(x, -65504.0f), 65504.0f));
    }
    }
}

// The scale of a column, or its offset.
QN_DEVICE uint32_t stored_scale(uint32_t stored, const uint8_t *row, uint32_t col, bool offset)
{
    switch (stored) {
    case QN_STORED_Q1_0: return load_f16(row + col / 128 * 18);
    case QN_STORED_Q2_0: return load_f16(row + col / 64 * 18);
    case QN_STORED_PQ2_0: return load_f16(row + col / 128 * 34);
    case QN_STORED_OX2_0: return load_f16(row + col / 128 * 34 + 32);
    case QN_STORED_PTQ1_0: return load_f16(row + col / 128 * 28 + 26);
    case QN_STORED_TQ1_0: return load_f16(row + col / 256 * 54 + 52);
    case QN_STORED_TQ2_0: return load_f16(row + col / 256 * 66 + 64);
    case QN_STORED_Q4_0: {
        const uint32_t scale = load_f16(row + col / 32 * 18);
        return offset ? qn_f32_to_f16(fminf(fmaxf(-8 * qn_f16_to_f32((uint16_t)scale), -65504.0f), 65504.0f)) : scale;
    }
    case QN_STORED_Q4_1: return load_f16(row + col / 32 * 20 + (offset ? 2 : 0));
    default: return load_f16(row + col / 32 * 34);
    }
}

extern "C" __global__ void __launch_bounds__(QN_WARP_SIZE) qn_matmul_pack(const __grid_constant__ qn_matmul_pack_args a)
{
    const uint32_t lane = threadIdx.x, g = lane / 4, t = lane % 4, k_tile = blockIdx.x, first_row = blockIdx.y * QN_TILE_ROWS;
    const uint64_t tile = (uint64_t)k_tile * a.n_tiles + a.first_tile + blockIdx.y;
    const uint32_t codes_per_word = a.bits == 16 ? 2 : 32 / a.bits; // codes per word
    uint32_t *codes = (uint32_t *)(a.tiles + tile * a.bits * QN_FRAGMENT_BYTES);
    for (uint32_t fragment = 0; fragment < a.bits; fragment++)
        for (uint32_t k = 0; k < 4; k++) {
            const uint32_t row = first_row + g + 8 * (k % 2), half = k / 2;
            uint32_t word = 0;
            for (uint32_t i = 0; i < codes_per_word && row < a.n_rows; i++) {
                uint32_t group, column, shift;
                if (a.bits == 16) {
                    group = fragment / 2;
                    column = fragment % 2 + 2 * i;
                    shift = 16 * i;
                } else { // field i/4 of byte i%4
                    group = fragment * (8 / a.bits) + i / 4;
                    column = i % 4;
                    shift = 8 * (i % 4) + i / 4 * a.bits;
                }
                const uint32_t col = k_tile * QN_TILE_COLS + group * 32 + 16 * half + 4 * t + column;
                if (col < a.n_cols)
                    word |= stored_code(a.stored, a.rows + row * a.row_bytes, col) << shift;
            }
            codes[fragment * (QN_FRAGMENT_BYTES / 4) + 4 * lane + k] = word;
        }
    if (a.bits == 16)
        return;
    const uint32_t n_scales = a.n_scales * (1 + a.has_offset);
    uint16_t *scales =
        (uint16_t *)(a.tiles + (uint64_t)a.n_k_tiles * a.n_tiles * a.bits * QN_FRAGMENT_BYTES) + tile * n_scales * QN_TILE_ROWS;
    for (uint32_t i = lane; i < n_scales * QN_TILE_ROWS; i += QN_WARP_SIZE) {
        const uint32_t row = first_row + i % QN_TILE_ROWS / 2 + i % 2 * 8, scale_index = i / QN_TILE_ROWS;
        const uint32_t col = k_tile * QN_TILE_COLS + scale_index % a.n_scales * (QN_TILE_COLS / a.n_scales);
        const bool there = row < a.n_rows && col < a.n_cols;
        scales[i] = (uint16_t)(there ? stored_scale(a.stored, a.rows + row * a.row_bytes, col, scale_index >= a.n_scales) : 0);
    }
}
