/* IQ4_NL, IQ4_XS, MXFP4, NVFP4: 4-bit codes that select one of sixteen integers. The integer form has these integers
 * plus the zero point as codes, so that kernels need no table. Dequantisation only. The layouts are ggml's
 * (ggml-common.h):
 *
 *   IQ4_NL   32 weights: d, 16 B of nibbles
 *   IQ4_XS   256 weights: d, 2 B and 4 B of 6-bit scales, one per 32 weights, 128 B of nibbles
 *   MXFP4    32 weights: exponent (E8M0), 16 B of nibbles; OCP Microscaling Formats, version 1.0
 *   NVFP4    64 weights: four scales (E4M3 without a sign), 8 B of nibbles for each 16 weights: the low ones are the
 *            first eight. The tensor's scale is the tensor of the same name with "scale" for "weight" (llama-model.cpp)
 *   NVFP4_L  64 weights: the tensor's scale (f32), four scales whose low seven bits are a number, 32 B of nibbles: of
 *            32 weights each, as Q4_0 has them */
#include "quant/families.h"
#include "quant/layout.h"

enum { GROUPS = QN_IQ4_XS_WEIGHTS / QN_QUANT_GROUP };

static const int8_t iq4_values[16] = { QN_IQ4_VALUES }, e2m1_values[16] = { QN_E2M1_VALUES };
_Static_assert(QN_IQ4_NL_ZERO == QN_IQ4_XS_ZERO, "IQ4_NL and IQ4_XS share the codes of the integer form");

/* The largest exponent whose largest weight, 2^(exponent - 128) * 12, is a finite float. */
enum { MXFP4_MAX_EXPONENT = 252 };

static void unpack_iq4_codes(const uint8_t *nibbles, uint8_t *codes)
{
    for (uint32_t i = 0; i < QN_QUANT_GROUP; i++)
        codes[i] = (uint8_t)(iq4_values[qn_code_nibble(nibbles, i)] + QN_IQ4_NL_ZERO);
}

void qn_unpack_iq4_nl(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset,
                      int8_t *factor)
{
    (void)offset, (void)factor;
    for (size_t b = 0; b < n_blocks; b++, blocks += QN_IQ4_NL_BYTES) {
        scale[b] = qn_load_f16(blocks + QN_IQ4_NL_SCALE);
        unpack_iq4_codes(blocks + QN_IQ4_NL_CODES, codes + b * QN_IQ4_NL_WEIGHTS);
    }
}

void qn_unpack_iq4_xs(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset,
                      int8_t *factor)
{
    (void)offset, (void)factor;
    for (size_t b = 0; b < n_blocks; b++, blocks += QN_IQ4_XS_BYTES) {
        const float d = qn_load_f16(blocks + QN_IQ4_XS_SCALE);
        for (uint32_t r = 0; r < GROUPS; r++) {
            scale[b * GROUPS + r] = d * (float)qn_iq4_xs_factor(blocks, r);
            unpack_iq4_codes(blocks + QN_IQ4_XS_CODES + r * QN_QUANT_GROUP / 2,
                             codes + b * QN_IQ4_XS_WEIGHTS + r * QN_QUANT_GROUP);
        }
    }
}

/* Returns 2^(exponent - 128), half the block's scale since the codes are twice the values. */
static float mxfp4_scale(uint8_t exponent)
{
    const uint32_t bits = exponent < 2 ? 0x00200000u << exponent : (uint32_t)(exponent - 1) << 23;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}

void qn_unpack_mxfp4(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset,
                     int8_t *factor)
{
    (void)offset, (void)factor;
    for (size_t b = 0; b < n_blocks; b++, blocks += QN_MXFP4_BYTES) {
        scale[b] = mxfp4_scale(blocks[QN_MXFP4_SCALE]);
        for (uint32_t i = 0; i < QN_MXFP4_WEIGHTS; i++)
            codes[b * QN_MXFP4_WEIGHTS + i] =
                (uint8_t)(e2m1_values[qn_code_nibble(blocks + QN_MXFP4_CODES, i)] + QN_MXFP4_ZERO);
    }
}

size_t qn_find_nonfinite_mxfp4(const uint8_t *blocks, size_t n_blocks)
{
    size_t b = 0;
    while (b < n_blocks && blocks[b * QN_MXFP4_BYTES + QN_MXFP4_SCALE] <= MXFP4_MAX_EXPONENT)
        b++;
    return b;
}

/* An E4M3 number with bits 0 to 6, all of which are numbers here: fp16 has the same digits with another bias. */
static float e4m3_value(uint8_t bits)
{
    return qn_f16_to_f32((uint16_t)((bits & 0x7f) << 7)) * 256;
}

/* The bits of an NVFP4 scale in NVFP4_L. ggml's reader ignores the sign, and takes 0x7f, which is no number, for 0
 * (ggml_ue4m3_to_fp32), but not 0xff. */
static uint8_t e4m3_bits(uint8_t scale)
{
    return scale == 0x7f ? 0 : scale & 0x7f;
}

void qn_unpack_nvfp4(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset,
                     int8_t *factor)
{
    for (size_t b = 0; b < n_blocks; b++) {
        uint8_t loaded[QN_NVFP4_L_BYTES];
        qn_nvfp4_load(blocks + b * QN_NVFP4_BYTES, 1, 1, loaded);
        qn_unpack_nvfp4_l(loaded, 1, codes + b * QN_NVFP4_WEIGHTS, scale + b * 4, offset, factor);
    }
}

void qn_unpack_nvfp4_l(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset,
                       int8_t *factor)
{
    (void)offset, (void)factor;
    for (size_t b = 0; b < n_blocks; b++, blocks += QN_NVFP4_L_BYTES) {
        float d;
        memcpy(&d, blocks + QN_NVFP4_L_SCALE, sizeof d);
        for (size_t k = 0; k < 4; k++) /* half of the scale, since the codes are twice the values */
            scale[b * 4 + k] = e4m3_value(blocks[QN_NVFP4_L_SCALES + k]) * (d / 2);
        for (uint32_t i = 0; i < QN_NVFP4_L_WEIGHTS; i++)
            codes[b * QN_NVFP4_L_WEIGHTS + i] =
                (uint8_t)(e2m1_values[qn_code_nibble(blocks + QN_NVFP4_L_CODES + i / 32 * 16, i % 32)] +
                          QN_NVFP4_L_ZERO);
    }
}

void qn_nvfp4_load(const uint8_t *blocks, size_t n_blocks, float scale, uint8_t *loaded)
{
    for (; n_blocks > 0; n_blocks--, blocks += QN_NVFP4_BYTES, loaded += QN_NVFP4_L_BYTES) {
        memcpy(loaded + QN_NVFP4_L_SCALE, &scale, sizeof scale);
        for (size_t k = 0; k < 4; k++)
            loaded[QN_NVFP4_L_SCALES + k] = e4m3_bits(blocks[QN_NVFP4_SCALE + k]);
        for (size_t half = 0; half < 2; half++) {
            /* Nibbles of two runs of eight bytes, each 16 weights, become those of the first and the last 16. */
            const uint64_t low = 0x0f0f0f0f0f0f0f0f;
            uint64_t runs[2], merged[2];
            memcpy(runs, blocks + QN_NVFP4_CODES + 16 * half, sizeof runs);
            merged[0] = (runs[0] & low) | (runs[1] & low) << 4;
            merged[1] = (runs[0] >> 4 & low) | (runs[1] & ~low);
            memcpy(loaded + QN_NVFP4_L_CODES + 16 * half, merged, sizeof merged);
        }
    }
}

/* Every byte is a finite scale. */
size_t qn_find_nonfinite_nvfp4(const uint8_t *blocks, size_t n_blocks)
{
    (void)blocks;
    return n_blocks;
}

size_t qn_find_nonfinite_nvfp4_l(const uint8_t *blocks, size_t n_blocks)
{
    for (size_t b = 0; b < n_blocks; b++) {
        float d;
        memcpy(&d, blocks + b * QN_NVFP4_L_BYTES + QN_NVFP4_L_SCALE, sizeof d);
        /* The largest weight is 480 * 6 times the scale. */
        if (!(d <= QN_NVFP4_MAX_SCALE && d >= -QN_NVFP4_MAX_SCALE))
            return b;
    }
    return n_blocks;
}
