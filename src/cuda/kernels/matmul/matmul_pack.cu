// Packs weights from their stored layouts into tiles. Done once per matrix: every code is loaded separately, and the
// caches make that fast enough.
#include "cuda/kernels/matmul/tiles.cuh"
#include "quant/layout.h"

QN_DEVICE uint32_t load_f16(const uint8_t *at)
{
    return at[0] | (uint32_t)at[1] << 8; // unaligned
}

// -zero d, saturated.
QN_DEVICE uint32_t minus_zero_point(uint32_t d, int zero)
{
    return qn_f32_to_f16(fminf(fmaxf((float)-zero * qn_f16_to_f32((uint16_t)d), -65504.0f), 65504.0f));
}

// ---- Types without tiles of their own, dequantised: d factor (code - zero) + minimum, rounded as quant/quant.c does
// ----

// The 6-bit scale or minimum of group r of a Q4_K or Q5_K block (quant/kquants.c).
QN_DEVICE uint32_t k_factor(const uint8_t *bytes, uint32_t r, bool minimum)
{
    const uint32_t at = r % 4 + 4 * minimum;
    return r < 4 ? bytes[at] & 63u : (bytes[8 + r % 4] >> 4 * minimum & 15u) | (uint32_t)(bytes[at] >> 6) << 4;
}

QN_DEVICE float dequantize_k(const uint8_t *block, const uint8_t *nibbles, const uint8_t *fifth, uint32_t i)
{
    const uint32_t r = i / 32, j = i % 32;
    const uint32_t code = (nibbles[r / 2 * 32 + j] >> r % 2 * 4 & 15u) | (fifth ? (fifth[j] >> r & 1u) << 4 : 0);
    const uint8_t *factors = block + QN_Q4_K_FACTORS; // as in Q5_K
    const float scale = __fmul_rn(qn_f16_to_f32(load_f16(block + QN_Q4_K_SCALE)), (float)k_factor(factors, r, false));
    const float minimum = __fmul_rn(qn_f16_to_f32(load_f16(block + QN_Q4_K_MIN)), (float)k_factor(factors, r, true));
    return __fadd_rn(__fmul_rn(scale, (float)code), -minimum);
}

QN_DEVICE float dequantize_q5(const uint8_t *block, const uint8_t *minimum, const uint8_t *codes, const uint8_t *high, int zero,
                              uint32_t i)
{
    const uint32_t code = qn_code_nibble(codes, i) | (high[i / 8] >> i % 8 & 1u) << 4;
    const float product = __fmul_rn(qn_f16_to_f32(load_f16(block)), (float)((int)code - zero));
    return minimum ? __fadd_rn(product, qn_f16_to_f32(load_f16(minimum))) : product;
}

QN_DEVICE float dequantize_q6_k(const uint8_t *block, uint32_t i)
{
    const uint32_t r = i / 32, j = i % 32;
    const uint32_t low = block[QN_Q6_K_CODES + r / 4 * 64 + r % 2 * 32 + j] >> r % 4 / 2 * 4 & 15u;
    const uint32_t high = block[QN_Q6_K_HIGH + r / 4 * 32 + j] >> r % 4 * 2 & 3u;
    const float scale =
        __fmul_rn(qn_f16_to_f32(load_f16(block + QN_Q6_K_SCALE)), (float)(int8_t)block[QN_Q6_K_FACTORS + i / 16]);
    return __fmul_rn(scale, (float)((int)(low | high << 4) - QN_Q6_K_ZERO));
}

QN_DEVICE float dequantize_q2_k(const uint8_t *block, uint32_t i)
{
    const uint32_t both = block[QN_Q2_K_FACTORS + i / 16];
    const float scale = __fmul_rn(qn_f16_to_f32(load_f16(block + QN_Q2_K_SCALE)), (float)(both & 15u));
    const float minimum = __fmul_rn(qn_f16_to_f32(load_f16(block + QN_Q2_K_MIN)), (float)(both >> 4));
    return __fadd_rn(__fmul_rn(scale, (float)qn_code_tq2_0(block + QN_Q2_K_CODES, i)), -minimum);
}

QN_DEVICE float dequantize_q3_k(const uint8_t *block, uint32_t i)
{
    const float scale = __fmul_rn(qn_f16_to_f32(load_f16(block + QN_Q3_K_SCALE)), (float)qn_q3_k_factor(block, i / 16));
    return __fmul_rn(scale, (float)((int)qn_code_q3_k(block, i) - QN_Q3_K_ZERO));
}

static __device__ const int8_t iq4_values[16] = { QN_IQ4_VALUES }, e2m1_values[16] = { QN_E2M1_VALUES };

QN_DEVICE float dequantize_iq4(const uint8_t *block, int factor, const uint8_t *nibbles, uint32_t i)
{
    const float scale = __fmul_rn(qn_f16_to_f32(load_f16(block)), (float)factor);
    return __fmul_rn(scale, (float)iq4_values[qn_code_nibble(nibbles, i)]);
}

// 2^(exponent - 128) times twice the value of the code. Below 2^-126 the scale is subnormal.
QN_DEVICE float dequantize_mxfp4(const uint8_t *block, uint32_t i)
{
    const uint32_t exponent = block[QN_MXFP4_SCALE];
    const float scale = __uint_as_float(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
    return __fmul_rn(scale, (float)e2m1_values[qn_code_nibble(block + QN_MXFP4_CODES, i)]);
}

// A scale of NVFP4, a float of 8 bits without a sign: fp16 has the same digits with another bias. Half of it, as the codes are
// twice the values.
QN_DEVICE float half_e4m3(uint32_t bits)
{
    return __fmul_rn(qn_f16_to_f32((uint16_t)((bits & 0x7fu) << 7)), 128.0f);
}

QN_DEVICE float dequantize_nvfp4(const uint8_t *block, uint32_t i)
{
    const uint32_t scale = block[QN_NVFP4_SCALE + i / 16], byte = block[QN_NVFP4_CODES + i / 16 * 8 + i % 8];
    return __fmul_rn(scale == 0x7f ? 0.0f : half_e4m3(scale), (float)e2m1_values[byte >> i / 8 % 2 * 4 & 15u]);
}

QN_DEVICE float dequantize_nvfp4_l(const uint8_t *block, uint32_t i)
{
    const uint32_t d = load_f16(block) | load_f16(block + 2) << 16;
    const float scale = __fmul_rn(__fmul_rn(half_e4m3(block[QN_NVFP4_L_SCALES + i / 16]), 2.0f),
                                  __fmul_rn(__uint_as_float(d), 0.5f));
    return __fmul_rn(scale, (float)e2m1_values[qn_code_nibble(block + QN_NVFP4_L_CODES + i / 32 * 16, i % 32)]);
}

QN_DEVICE float dequantize(uint32_t stored, const uint8_t *row, uint32_t col)
{
    switch (stored) {
    case QN_STORED_Q5_0: {
        const uint8_t *block = row + col / QN_Q5_0_WEIGHTS * QN_Q5_0_BYTES;
        return dequantize_q5(block, nullptr, block + QN_Q5_0_CODES, block + QN_Q5_0_HIGH, QN_Q5_0_ZERO, col % QN_Q5_0_WEIGHTS);
    }
    case QN_STORED_Q5_1: {
        const uint8_t *block = row + col / QN_Q5_1_WEIGHTS * QN_Q5_1_BYTES;
        return dequantize_q5(block, block + QN_Q5_1_MIN, block + QN_Q5_1_CODES, block + QN_Q5_1_HIGH, QN_Q5_1_ZERO,
                             col % QN_Q5_1_WEIGHTS);
    }
    case QN_STORED_Q2_K: return dequantize_q2_k(row + col / QN_Q2_K_WEIGHTS * QN_Q2_K_BYTES, col % QN_Q2_K_WEIGHTS);
    case QN_STORED_Q3_K: return dequantize_q3_k(row + col / QN_Q3_K_WEIGHTS * QN_Q3_K_BYTES, col % QN_Q3_K_WEIGHTS);
    case QN_STORED_Q4_K: {
        const uint8_t *block = row + col / QN_Q4_K_WEIGHTS * QN_Q4_K_BYTES;
        return dequantize_k(block, block + QN_Q4_K_CODES, nullptr, col % QN_Q4_K_WEIGHTS);
    }
    case QN_STORED_Q5_K: {
        const uint8_t *block = row + col / QN_Q5_K_WEIGHTS * QN_Q5_K_BYTES;
        return dequantize_k(block, block + QN_Q5_K_CODES, block + QN_Q5_K_HIGH, col % QN_Q5_K_WEIGHTS);
    }
    case QN_STORED_Q6_K: return dequantize_q6_k(row + col / QN_Q6_K_WEIGHTS * QN_Q6_K_BYTES, col % QN_Q6_K_WEIGHTS);
    case QN_STORED_IQ4_NL: {
        const uint8_t *block = row + col / QN_IQ4_NL_WEIGHTS * QN_IQ4_NL_BYTES;
        return dequantize_iq4(block, 1, block + QN_IQ4_NL_CODES, col % QN_IQ4_NL_WEIGHTS);
    }
    case QN_STORED_IQ4_XS: {
        const uint8_t *block = row + col / QN_IQ4_XS_WEIGHTS * QN_IQ4_XS_BYTES;
        const uint32_t r = col % QN_IQ4_XS_WEIGHTS / 32;
        return dequantize_iq4(block, qn_iq4_xs_factor(block, r), block + QN_IQ4_XS_CODES + 16 * r, col % 32);
    }
    case QN_STORED_MXFP4: return dequantize_mxfp4(row + col / QN_MXFP4_WEIGHTS * QN_MXFP4_BYTES, col % QN_MXFP4_WEIGHTS);
    case QN_STORED_NVFP4: return dequantize_nvfp4(row + col / QN_NVFP4_WEIGHTS * QN_NVFP4_BYTES, col % QN_NVFP4_WEIGHTS);
    case QN_STORED_NVFP4_L:
        return dequantize_nvfp4_l(row + col / QN_NVFP4_L_WEIGHTS * QN_NVFP4_L_BYTES, col % QN_NVFP4_L_WEIGHTS);
    default: return __uint_as_float(load_f16(row + 4 * (uint64_t)col) | load_f16(row + 4 * (uint64_t)col + 2) << 16);
    }
}

// Rounded to fp16; infinities become 65504.
QN_DEVICE uint32_t saturated_f16(float x)
{
    const uint32_t h = qn_f32_to_f16(x);
    return (h & 0x7fffu) == 0x7c00u ? h - 1 : h;
}

// The code of a column, in the number of bits of the tiles.
QN_DEVICE uint32_t stored_code(uint32_t stored, const uint8_t *row, uint32_t col)
{
    switch (stored) {
#define CODE(ID, bits, n_scales, has_offset, code)                                                                             \
    case QN_STORED_##ID: {                                                                                                     \
        const uint8_t *codes = row + col / QN_##ID##_WEIGHTS * QN_##ID##_BYTES + QN_##ID##_CODES;                              \
        const uint32_t i = col % QN_##ID##_WEIGHTS;                                                                            \
        return code;                                                                                                           \
    }
        QN_TILED_TYPES(CODE)
    case QN_STORED_F16: return load_f16(row + 2 * col);
    case QN_STORED_BF16: { // saturated
        const float x = qn_bf16_to_f32((uint16_t)load_f16(row + 2 * col));
        return qn_f32_to_f16(fminf(fmaxf(x, -65504.0f), 65504.0f));
    }
    default: return saturated_f16(dequantize(stored, row, col));
    }
}

// The scale of a column, or its offset: the minimum, or minus the zero point for types without one.
QN_DEVICE uint32_t stored_scale(uint32_t stored, const uint8_t *row, uint32_t col, bool offset)
{
    switch (stored) {
#define SCALE(ID, bits, n_scales, has_offset, code)                                                                            \
    case QN_STORED_##ID: {                                                                                                     \
        const uint8_t *block = row + col / QN_##ID##_WEIGHTS * QN_##ID##_BYTES;                                                \
        const uint32_t d = load_f16(block + (has_offset && offset ? QN_##ID##_MIN : QN_##ID##_SCALE));                         \
        return has_offset && offset && QN_##ID##_MIN == QN_##ID##_SCALE ? minus_zero_point(d, QN_##ID##_ZERO) : d;             \
    }
        QN_TILED_TYPES(SCALE)
    default: return 0; // fp16 tiles have no scales
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
