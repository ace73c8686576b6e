/* IQ4_NL, IQ4_XS, MXFP4: 4-bit codes that select one of sixteen integers. The integer form has these integers plus the
 * zero point as codes, so that kernels need no table. Dequantisation only. The layouts are ggml's (ggml-common.h):
 *
 *   IQ4_NL   32 weights: d, 16 B of nibbles
 *   IQ4_XS   256 weights: d, 2 B and 4 B of 6-bit scales, one per 32 weights, 128 B of nibbles
 *   MXFP4    32 weights: exponent (E8M0), 16 B of nibbles; OCP Microscaling Formats, version 1.0 */
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

/* 2^(exponent - 128), half the block's scale since the codes are twice the values. */
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
