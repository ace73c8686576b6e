/* Scalar conversions between f32 and fp16 or bf16, which are stored as uint16_t. Conversion to f32 is exact; from
 * f32 it rounds to nearest even. A NaN becomes a quiet NaN. */
#ifndef QN_BASE_F16_H
#define QN_BASE_F16_H

#include <stdint.h>
#include <string.h>

#define QN_F16_MAX 65504.0f           /* the largest finite fp16 value */
#define QN_F16_NAN ((uint16_t)0x7e00) /* a quiet NaN */

static inline uint32_t qn_f32_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float qn_bits_f32(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float qn_f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) /* infinity and NaN: the exponent is all ones */
        return qn_bits_f32(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13 | (magnitude > 0x7c00u ? 0x400000u : 0));
    if (magnitude < 0x400u) { /* zero and subnormals are integers times 2^-24: exact in f32 */
        const float x = (float)magnitude * 0x1p-24f;
        return qn_bits_f32(sign | qn_f32_bits(x));
    }
    return qn_bits_f32(sign | ((magnitude << 13) + (112u << 23)));
}

static inline uint16_t qn_f32_to_f16(float x)
{
    const uint32_t bits = qn_f32_bits(x);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x1ffu));
    if (magnitude >= 0x477ff000u) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) { /* below 2^-14: after adding 0.5 the low bits are the rounded multiple of 2^-24 */
        const float shifted = qn_bits_f32(magnitude) + 0.5f;
        return (uint16_t)(sign | (qn_f32_bits(shifted) - 0x3f000000u));
    }
    const uint32_t rounded = magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u);
    return (uint16_t)(sign | rounded >> 13);
}

static inline float qn_bf16_to_f32(uint16_t h)
{
    return qn_bits_f32((uint32_t)h << 16);
}

static inline uint16_t qn_f32_to_bf16(float x)
{
    const uint32_t bits = qn_f32_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

#endif
