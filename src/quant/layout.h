/* Stored blocks of the weight formats: sizes, the offsets of a block's parts, and the code of one weight. Shared by C
 * and CUDA: all code that reads or writes blocks uses these numbers. quant.h defines the weight that a code stands for.
 *
 * In CUDA the including file defines the fixed-width integers (cuda/kernels/cuda.cuh). */
#ifndef QN_QUANT_LAYOUT_H
#define QN_QUANT_LAYOUT_H

#ifdef __CUDACC__
#define QN_LAYOUT_INLINE static __device__ __forceinline__
#else
#define QN_LAYOUT_INLINE static inline
#include <stdint.h>
#endif

/* One line per quantised format: weights and bytes of a block; byte offsets of the fp16 scale (MXFP4 and NVFP4: bytes),
 * of the fp16 minimum (of the scale, if there is no minimum) and of the codes (the low bits, if the others are
 * elsewhere); zero point and largest code. The constants are QN_Q4_0_WEIGHTS, QN_Q4_0_BYTES and so on. */
/* clang-format off */
#define QN_BLOCK_LAYOUTS(X)                                                                                            \
    /*    weights bytes scale min codes zero max_code */                                                               \
    X(Q4_0,    32,  18,    0,   0,   2,   8,  15)                                                                      \
    X(Q4_1,    32,  20,    0,   2,   4,   0,  15)                                                                      \
    X(Q5_0,    32,  22,    0,   0,   6,  16,  31)                                                                      \
    X(Q5_1,    32,  24,    0,   2,   8,   0,  31)                                                                      \
    X(Q8_0,    32,  34,    0,   0,   2, 128, 255)                                                                      \
    X(Q2_K,   256,  84,   80,  82,  16,   0,   3)                                                                      \
    X(Q3_K,   256, 110,  108, 108,  32,   4,   7)                                                                      \
    X(Q4_K,   256, 144,    0,   2,  16,   0,  15)                                                                      \
    X(Q5_K,   256, 176,    0,   2,  48,   0,  31)                                                                      \
    X(Q6_K,   256, 210,  208, 208,   0,  32,  63)                                                                      \
    X(IQ4_NL,  32,  18,    0,   0,   2, 128, 241)                                                                      \
    X(IQ4_XS, 256, 136,    0,   0,   8, 128, 241)                                                                      \
    X(MXFP4,   32,  17,    0,   0,   1,  16,  28)                                                                      \
    X(NVFP4,   64,  36,    0,   0,   4,  16,  28)                                                                      \
    X(NVFP4_L, 64,  40,    0,   0,   8,  16,  28)                                                                      \
    X(TQ1_0,  256,  54,   52,  52,   0,   1,   2)                                                                      \
    X(TQ2_0,  256,  66,   64,  64,   0,   1,   3)                                                                      \
    X(Q1_0,   128,  18,    0,   0,   2,   1,   2)                                                                      \
    X(Q2_0,    64,  18,    0,   0,   2,   1,   3)                                                                      \
    X(PQ2_0,  128,  34,    0,   0,   2,   1,   3)                                                                      \
    X(PTQ1_0, 128,  28,   26,  26,   0,   1,   2)                                                                      \
    X(OX2_0,  128,  34,   32,  32,   0,   1,   3)

#define QN_BLOCK_CONSTANTS(ID, weights, bytes, scale, min, codes, zero, max_code)                                      \
    QN_##ID##_WEIGHTS = weights, QN_##ID##_BYTES = bytes, QN_##ID##_SCALE = scale, QN_##ID##_MIN = min,                \
    QN_##ID##_CODES = codes, QN_##ID##_ZERO = zero, QN_##ID##_MAX_CODE = max_code,
enum {
    QN_BLOCK_LAYOUTS(QN_BLOCK_CONSTANTS)
    QN_Q5_0_HIGH = 2,           /* fifth bits, one per weight */
    QN_Q5_1_HIGH = 4,
    QN_Q2_K_FACTORS = 0,        /* 16 bytes, two per group: scale in the low nibble, minimum in the high one */
    QN_Q3_K_HIGH = 0,           /* third bits: byte j has those of weight j of all eight groups */
    QN_Q5_K_HIGH = 16,          /* fifth bits: byte j has those of weight j of all eight groups */
    QN_Q6_K_HIGH = 128,         /* upper 2-bit fields */
    QN_Q3_K_FACTORS = 96,       /* 12 bytes of 6-bit scales, two per group */
    QN_Q4_K_FACTORS = 4,        /* 12 bytes of 6-bit scales and minima, one of each per group */
    QN_Q5_K_FACTORS = 4,
    QN_Q6_K_FACTORS = 192,      /* int8, two per group */
    QN_IQ4_XS_FACTORS_HIGH = 2, /* upper two bits of eight 6-bit scales, one per group */
    QN_IQ4_XS_FACTORS_LOW = 4,  /* their lower four */
    QN_NVFP4_L_SCALES = 4,      /* four bytes, one for each 16 weights; the f32 scale of the tensor is before them */
    QN_TQ1_0_TRIT_BYTES = 32,   /* n_bytes of qn_trit_place */
    QN_PTQ1_0_TRIT_BYTES = 16
};
/* clang-format on */

/* ---- The code of weight i of a block, from the block's codes ---- */

/* Returns code i of Q1_0: 1 is +d, 0 is -d. The integer form doubles it. */
QN_LAYOUT_INLINE uint32_t qn_code_1bit(const uint8_t *codes, uint32_t i)
{
    return codes[i / 8] >> i % 8 & 1;
}

/* Returns code i of Q2_0, PQ2_0 and OX2_0. */
QN_LAYOUT_INLINE uint32_t qn_code_2bit(const uint8_t *codes, uint32_t i)
{
    return codes[i / 4] >> 2 * (i % 4) & 3;
}

/* Returns code i of TQ2_0 and Q2_K: two halves of 128 weights, 32 bytes each; weight 32l + j of a half is in bits 2l
 * and 2l+1 of byte j. */
QN_LAYOUT_INLINE uint32_t qn_code_tq2_0(const uint8_t *codes, uint32_t i)
{
    return codes[i / 128 * 32 + i % 32] >> 2 * (i % 128 / 32) & 3;
}

/* Returns code i of Q4_0 and Q4_1, and the low bits of Q5_0 and Q5_1: the low nibbles of 16 bytes are weights 0 to 15,
 * the high ones 16 to 31. */
QN_LAYOUT_INLINE uint32_t qn_code_nibble(const uint8_t *codes, uint32_t i)
{
    return codes[i % 16] >> 4 * (i / 16) & 15;
}

/* Returns code i of Q8_0, which is stored signed. */
QN_LAYOUT_INLINE uint32_t qn_code_int8(const uint8_t *codes, uint32_t i)
{
    return codes[i] ^ 0x80u;
}

/* IQ4_NL, IQ4_XS: the values of codes 0 to 15, of which a weight is a multiple. */
#define QN_IQ4_VALUES -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113

/* MXFP4, NVFP4: twice the values of the E2M1 codes 0 to 15 (a sign, two bits of exponent, one of mantissa), integers.
 */
#define QN_E2M1_VALUES 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12

/* Q3_K: scale k of sixteen. Its low four bits are nibble k / 8 of byte k % 8, the top two are field k / 4 of byte
 * 8 + k % 4. */
QN_LAYOUT_INLINE int32_t qn_q3_k_factor(const uint8_t *block, uint32_t k)
{
    const uint8_t *bytes = block + QN_Q3_K_FACTORS;
    return (bytes[k % 8] >> k / 8 * 4 & 15) + (bytes[8 + k % 4] >> k / 4 * 2 & 3) * 16 - 32;
}

/* IQ4_XS: the scale of group r. */
QN_LAYOUT_INLINE int32_t qn_iq4_xs_factor(const uint8_t *block, uint32_t r)
{
    const uint32_t low = block[QN_IQ4_XS_FACTORS_LOW + r / 2] >> r % 2 * 4 & 15;
    return (int32_t)(low + (block[QN_IQ4_XS_FACTORS_HIGH + r / 4] >> r % 4 * 2 & 3) * 16) - 32;
}

/* Q3_K: the low two bits of weight j of group r are field r % 4 of byte j of the 32 of its half of the block, the third
 * bit is bit r of byte j of 32 further bytes. */
QN_LAYOUT_INLINE uint32_t qn_code_q3_k(const uint8_t *block, uint32_t i)
{
    const uint32_t r = i / 32, j = i % 32;
    const uint32_t low = block[QN_Q3_K_CODES + r / 4 * 32 + j] >> r % 4 * 2 & 3;
    return low + (block[QN_Q3_K_HIGH + j] >> r & 1) * 4u;
}

/* TQ1_0, PTQ1_0: a byte stores five base-3 digits v as ceil(256 v / 243), a fraction of 256: multiplying the byte by
 * 3 carries the next digit out at the top. Gives digit n of a byte, with power = 3^n. It is a macro, for tables of
 * constants. */
#define QN_TRIT(byte, power) ((((byte) * (power)&255) * 3) >> 8)

/* The byte and digit of weight i: n_bytes bytes of five digits, then n_bytes / 2 bytes of five, then n_bytes / 8
 * bytes of four. In each of these ranges, digit n of all bytes encodes consecutive weights, followed by digit n + 1
 * of the same bytes. width: number of bytes of the range. */
typedef struct qn_trit {
    uint32_t byte, digit, width;
} qn_trit;

QN_LAYOUT_INLINE qn_trit qn_trit_place(uint32_t i, uint32_t n_bytes)
{
    uint32_t width = n_bytes, first = 0;
    if (i >= 5 * n_bytes) {
        i -= 5 * n_bytes;
        first = n_bytes;
        width = n_bytes / 2;
        if (i >= 5 * width) {
            i -= 5 * width;
            first += width;
            width = n_bytes / 8;
        }
    }
    const qn_trit place = { first + i % width, i / width, width };
    return place;
}

/* Returns 3^n, n up to 4. */
QN_LAYOUT_INLINE uint32_t qn_power_of_3(uint32_t n)
{
    uint32_t power = 1;
    for (; n > 0; n--)
        power *= 3;
    return power;
}

QN_LAYOUT_INLINE uint32_t qn_code_trit(const uint8_t *codes, uint32_t i, uint32_t n_bytes)
{
    const qn_trit place = qn_trit_place(i, n_bytes);
    return QN_TRIT(codes[place.byte], qn_power_of_3(place.digit));
}

#endif
