/* GEMV for AVX2 and AVX-VNNI: stored blocks are read into 256-bit registers and multiplied without unpacking to memory.
 * Included by matmul_avx2.c and matmul_avxvnni.c after matmul_simd.h; gemm_avx2.h unpacks for GEMM tiles with the same
 * readers.
 *
 * A super-block is processed in halves of eight groups, one per 32-bit lane. Types come in three kinds: Q1_0 and the
 * 2-bit types, whose stored bytes are masked in place against activations in the matching layout (QN_ACT_1BIT,
 * QN_ACT_2BIT); PTQ1_0, digits of two blocks at a time (QN_ACT_TERNARY); and all others, unpacked one group per vector
 * in ascending order (QN_ACT_PLAIN). */
#ifndef QN_KERNELS_MATMUL_GEMV_AVX2_H
#define QN_KERNELS_MATMUL_GEMV_AVX2_H

#include "kernels/matmul/matmul_simd.h"

/* Prefetch distance of the GEMV in bytes: about a thousand cycles of work, and farther than the hardware prefetches. */
enum { GEMV_PREFETCH_BYTES = 8192 };

/* Rows computed together: the end of one row overlaps with work on others. */
enum { GEMV_ROWS = 4 };

/* ---- Arithmetic ---- */

/* Dot products of bytes, by adjacent bytes: four per 32-bit lane with dpbusd, otherwise two per 16-bit lane with
 * maddubs. 16 bits hold eight such products of codes up to 15 (8 * 2 * 15 * 127 = 30480). reduce_acc() returns the sum
 * of each 32-bit lane times a factor. */
#ifdef QN_V16_AVXVNNI
QN_INLINE __m256i multiply_add(__m256i sum, __m256i codes, __m256i acts)
{
    return _mm256_dpbusd_avx_epi32(sum, codes, acts);
}
QN_INLINE __m256i add_acc(__m256i a, __m256i b)
{
    return _mm256_add_epi32(a, b);
}
QN_INLINE __m256i shift_acc(__m256i sum, int bits)
{
    return _mm256_srai_epi32(sum, bits);
}
QN_INLINE __m256i reduce_acc(__m256i sum, int factor)
{
    return factor == 1 ? sum : _mm256_mullo_epi32(sum, _mm256_set1_epi32(factor));
}
#else
QN_INLINE __m256i multiply_add(__m256i sum, __m256i codes, __m256i acts)
{
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, acts));
}
QN_INLINE __m256i add_acc(__m256i a, __m256i b)
{
    return _mm256_add_epi16(a, b);
}
QN_INLINE __m256i shift_acc(__m256i sum, int bits)
{
    return _mm256_srai_epi16(sum, bits);
}
QN_INLINE __m256i reduce_acc(__m256i sum, int factor)
{
    return _mm256_madd_epi16(sum, _mm256_set1_epi16((int16_t)factor));
}
#endif

/* Joins two vectors into eight groups: each 128-bit half holds partial sums of four groups, and the halves of a vector
 * are added. */
QN_INLINE __m256i join_halves(__m256i first, __m256i second)
{
    return _mm256_add_epi32(_mm256_permute2x128_si256(first, second, 0x20),
                            _mm256_permute2x128_si256(first, second, 0x31));
}

/* Sums the words of four vectors of eight 16-bit words per half: interleaves words of the four, each the sum of four
 * words (even ones, then odd). */
QN_INLINE __m256i sum_words(const __m256i p[4])
{
    const __m256i a = _mm256_add_epi16(_mm256_unpacklo_epi16(p[0], p[1]), _mm256_unpackhi_epi16(p[0], p[1]));
    const __m256i b = _mm256_add_epi16(_mm256_unpacklo_epi16(p[2], p[3]), _mm256_unpackhi_epi16(p[2], p[3]));
    return _mm256_add_epi16(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
}

/* Reduces sum_words to one 32-bit sum per vector and half, times a factor. Four words must fit in 16 bits: 4 * 2 * 31 *
 * 127 = 31496. */
QN_INLINE __m256i reduce_4_i16(const __m256i p[4], int factor)
{
    const __m256i pair = _mm256_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15, 0, 1, 8, 9, 2, 3, 10,
                                          11, 4, 5, 12, 13, 6, 7, 14, 15);
    return _mm256_madd_epi16(_mm256_shuffle_epi8(sum_words(p), pair), _mm256_set1_epi16((int16_t)factor));
}

/* Sums four vectors of four 32-bit integers per half: the four sums, in each half. */
QN_INLINE __m256i reduce_4_i32(const __m256i p[4])
{
    const __m256i a = _mm256_add_epi32(_mm256_unpacklo_epi32(p[0], p[1]), _mm256_unpackhi_epi32(p[0], p[1]));
    const __m256i b = _mm256_add_epi32(_mm256_unpacklo_epi32(p[2], p[3]), _mm256_unpackhi_epi32(p[2], p[3]));
    return _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}

/* ---- Reading ---- */

QN_INLINE __m256i load32(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

QN_INLINE __m128i load16(const void *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

QN_INLINE __m256i load_2x16(const void *low, const void *high)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load16(low)), load16(high), 1);
}

QN_INLINE uint64_t load_4_f16(const uint8_t *p, size_t stride)
{
    uint16_t d[4];
    for (size_t i = 0; i < 4; i++)
        memcpy(&d[i], p + i * stride, sizeof d[i]);
    return d[0] | (uint64_t)d[1] << 16 | (uint64_t)d[2] << 32 | (uint64_t)d[3] << 48;
}

QN_INLINE __m256 load_8_f16(const uint8_t *p, size_t stride)
{
    return _mm256_cvtph_ps(_mm_set_epi64x((int64_t)load_4_f16(p + 4 * stride, stride), (int64_t)load_4_f16(p, stride)));
}

QN_INLINE __m256 broadcast_f16(const uint8_t *p)
{
    uint16_t d;
    memcpy(&d, p, sizeof d);
    return _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(d)));
}

/* Reads Q4_K's and Q5_K's 6-bit scales and minima (layout: unpack_scales in quant/kquants.c). */
QN_INLINE void read_k_scales(const uint8_t *block, __m256 *scale, __m256 *offset)
{
    const uint8_t *factors = block + QN_Q4_K_FACTORS;
    uint32_t a, b, c;
    memcpy(&a, factors, 4);
    memcpy(&b, factors + 4, 4);
    memcpy(&c, factors + 8, 4);
    const uint32_t low = 0x3f3f3f3f, top = 0x30303030, nibble = 0x0f0f0f0f;
    const uint64_t scales = (a & low) | (uint64_t)((c & nibble) | (a >> 2 & top)) << 32;
    const uint64_t mins = (b & low) | (uint64_t)((c >> 4 & nibble) | (b >> 2 & top)) << 32;
    const __m256 s = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)scales)));
    const __m256 m = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)mins)));
    *scale = _mm256_mul_ps(broadcast_f16(block + QN_Q4_K_SCALE), s);
    *offset = _mm256_xor_ps(_mm256_mul_ps(broadcast_f16(block + QN_Q4_K_MIN), m), _mm256_set1_ps(-0.0f));
}

/* Reads the scales of IQ4_XS: qn_iq4_xs_factor of layout.h, of all eight groups. */
QN_INLINE __m256 read_iq4_xs_scales(const uint8_t *block)
{
    uint32_t low;
    uint16_t high;
    memcpy(&low, block + QN_IQ4_XS_FACTORS_LOW, sizeof low);
    memcpy(&high, block + QN_IQ4_XS_FACTORS_HIGH, sizeof high);
    const __m256i fields =
        _mm256_srlv_epi32(_mm256_set1_epi32((int32_t)low), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    const __m256i tops = _mm256_srlv_epi32(_mm256_set1_epi32(high << 4), _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
    const __m256i factor =
        _mm256_or_si256(_mm256_and_si256(fields, _mm256_set1_epi32(15)), _mm256_and_si256(tops, _mm256_set1_epi32(48)));
    return _mm256_mul_ps(broadcast_f16(block + QN_IQ4_XS_SCALE),
                         _mm256_cvtepi32_ps(_mm256_sub_epi32(factor, _mm256_set1_epi32(32))));
}

/* Returns half of the scales of eight blocks of MXFP4, 2^(exponent - 127), since the codes are twice the values. */
QN_INLINE __m256 read_exponents(const uint8_t *p)
{
    uint64_t bytes = 0;
    for (size_t r = 0; r < 8; r++)
        bytes |= (uint64_t)p[r * QN_MXFP4_BYTES + QN_MXFP4_SCALE] << 8 * r;
    const __m256i exponent = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)bytes)), one = _mm256_set1_epi32(1);
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(exponent, one), 23);
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), exponent);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(small, normal, _mm256_cmpgt_epi32(exponent, one)));
}

/* Returns scales of NVFP4_L: e4m3_value of quant/codebook.c of byte `first` of the scales of four blocks, and of the
 * byte two after it. heads: the first 8 bytes of the blocks. */
QN_INLINE __m256 read_e4m3(__m256i heads, int first, __m256 half_d)
{
    const int none = (int)0x80808000 + QN_NVFP4_L_SCALES + first;
    const __m256i from = _mm256_broadcastsi128_si256(_mm_set_epi32(none + 10, none + 8, none + 2, none));
    const __m256i f16 =
        _mm256_slli_epi32(_mm256_and_si256(_mm256_shuffle_epi8(heads, from), _mm256_set1_epi32(0x7f)), 7);
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(f16), _mm256_extracti128_si256(f16, 1));
    return _mm256_mul_ps(_mm256_mul_ps(_mm256_cvtph_ps(words), _mm256_set1_ps(256)), half_d);
}

/* Reads the scales of the first 16 values of eight groups, and of the last. */
QN_INLINE void read_nvfp4_scales(const uint8_t *p, __m256 *lower, __m256 *upper)
{
    int64_t head[4];
    for (size_t b = 0; b < 4; b++)
        memcpy(&head[b], p + b * QN_NVFP4_L_BYTES, sizeof head[b]);
    const __m256i heads = load32(head);
    const __m256 d = _mm256_castsi256_ps(_mm256_shuffle_epi32(heads, 0xa0));
    const __m256 half_d = _mm256_mul_ps(d, _mm256_set1_ps(0.5f));
    *lower = read_e4m3(heads, 0, half_d);
    *upper = read_e4m3(heads, 1, half_d);
}

/* Reads the factors of a block, int8, two for each group. */
QN_INLINE __m128i read_factors(qn_type type, const uint8_t *block)
{
    if (type == QN_TYPE_Q6_K)
        return load16(block + QN_Q6_K_FACTORS);
    if (type == QN_TYPE_Q2_K)
        return _mm_and_si128(load16(block + QN_Q2_K_FACTORS), _mm_set1_epi8(15));
    /* Q3_K: qn_q3_k_factor of layout.h, of all sixteen. */
    uint64_t low;
    uint32_t top;
    memcpy(&low, block + QN_Q3_K_FACTORS, sizeof low);
    memcpy(&top, block + QN_Q3_K_FACTORS + 8, sizeof top);
    const __m128i lows = _mm_and_si128(_mm_set_epi64x((int64_t)(low >> 4), (int64_t)low), _mm_set1_epi8(15));
    const __m128i tops = _mm_set_epi32((int32_t)(top >> 2), (int32_t)top, (int32_t)(top << 2), (int32_t)(top << 4));
    return _mm_sub_epi8(_mm_or_si128(lows, _mm_and_si128(tops, _mm_set1_epi8(48))), _mm_set1_epi8(32));
}

/* Reads the offsets of Q2_K, of the first 16 values of each group and of the last. */
QN_INLINE void read_half_offsets(const uint8_t *block, __m256 *lower, __m256 *upper)
{
    const __m256i both = _mm256_cvtepu16_epi32(load16(block + QN_Q2_K_FACTORS)), nibble = _mm256_set1_epi32(15);
    const __m256 minus_dmin = _mm256_xor_ps(broadcast_f16(block + QN_Q2_K_MIN), _mm256_set1_ps(-0.0f));
    *lower = _mm256_mul_ps(minus_dmin, _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(both, 4), nibble)));
    *upper = _mm256_mul_ps(minus_dmin, _mm256_cvtepi32_ps(_mm256_srli_epi32(both, 12)));
}

/* Reads the scale of each group of a super-block, and the offset for types with one for each group; of NVFP4_L the
 * scales of the first 16 values, and in `offset` those of the last. type is a constant at the calls, here and below. */
QN_INLINE void read_scales(qn_type type, const uint8_t *p, __m256 scale[2], __m256 offset[2])
{
    const struct block_layout b = block_of(type);
    if (b.weights == 128) {
        const uint64_t f16 = load_4_f16(p + b.scale, b.bytes);
        const __m256 d = _mm256_castps128_ps256(_mm_cvtph_ps(_mm_cvtsi64_si128((int64_t)f16)));
        scale[0] = _mm256_permutevar8x32_ps(d, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
        scale[1] = _mm256_permutevar8x32_ps(d, _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3));
        return;
    }
    if (type == QN_TYPE_NVFP4_L) {
        read_nvfp4_scales(p, &scale[0], &offset[0]);
        read_nvfp4_scales(p + super_bytes(type) / 2, &scale[1], &offset[1]);
        return;
    }
    if (b.weights == 64) {
        const __m256 d = load_8_f16(p + b.scale, b.bytes);
        scale[0] = _mm256_permutevar8x32_ps(d, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
        scale[1] = _mm256_permutevar8x32_ps(d, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7));
        return;
    }
    for (size_t half = 0; half < 2; half++) {
        const uint8_t *q = p + half * (super_bytes(type) / 2);
        if (type == QN_TYPE_Q4_K || type == QN_TYPE_Q5_K)
            read_k_scales(q, &scale[half], &offset[half]);
        else if (type == QN_TYPE_IQ4_XS)
            scale[half] = read_iq4_xs_scales(q);
        else if (type == QN_TYPE_MXFP4)
            scale[half] = read_exponents(q);
        else if (b.weights == 256)
            scale[half] = broadcast_f16(q + b.scale);
        else
            scale[half] = load_8_f16(q + b.scale, b.bytes);
        if (b.weights == 32 && has_offset(type))
            offset[half] = load_8_f16(q + b.min, b.bytes);
    }
}

/* Reads the bytes of two blocks of Q1_0: four for each group. */
QN_INLINE __m256i read_1bit(const uint8_t *p, size_t half)
{
    p += 2 * QN_Q1_0_BYTES * half + QN_Q1_0_CODES;
    return load_2x16(p, p + QN_Q1_0_BYTES);
}

/* Reads the bytes of eight groups of 2-bit codes: first and last four bytes of each group. */
QN_INLINE void read_2bit(qn_type type, const uint8_t *p, size_t half, __m256i *first, __m256i *last)
{
    /* Sixteen bytes are two groups; they are loaded so that shuffles within 128 bits order them. */
    const struct block_layout block = block_of(type);
    const size_t step = block.weights == 64 ? block.bytes : 16, skip = 128 / block.weights * block.bytes;
    p += 2 * skip * half + block.codes;
    const __m256 a = _mm256_castsi256_ps(load_2x16(p, p + skip));
    const __m256 b = _mm256_castsi256_ps(load_2x16(p + step, p + skip + step));
    *first = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
    *last = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd));
}

/* Takes the first two base-3 digits of fractions of 16 bits: returns 3 times the first one plus the second; the rest is
 * the next fraction. A byte b of five digits is the fraction b / 256, so digits 0 and 1 are floor(9 b / 256), and what
 * is left is 9 b modulo 256. Two products give two digits, where bytes need two additions and two comparisons for each.
 */
QN_INLINE __m256i take_two_digits(__m256i *fraction)
{
    __m256i nine = _mm256_set1_epi16(9);
    __asm__("" : "+x"(nine)); /* gcc would shift and add instead of the second product */
    const __m256i digits = _mm256_mulhi_epu16(*fraction, nine);
    *fraction = _mm256_mullo_epi16(*fraction, nine);
    return digits;
}

QN_INLINE __m256i take_last_digit(__m256i fraction)
{
    return _mm256_mulhi_epu16(fraction, _mm256_set1_epi16(3));
}

/* The first and the second digit of what take_two_digits returns, as bytes. */
QN_INLINE __m256i first_digit(__m256i two)
{
    const __m128i digits = _mm_setr_epi8(0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(digits), two);
}
QN_INLINE __m256i second_digit(__m256i two)
{
    const __m128i digits = _mm_setr_epi8(0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(digits), two);
}

/* Vector n has digit n of each byte. */
QN_INLINE void five_digits(__m256i bytes, __m256i digit[5])
{
    const __m256i zero = _mm256_setzero_si256();
    __m256i low = _mm256_unpacklo_epi8(zero, bytes), high = _mm256_unpackhi_epi8(zero, bytes);
    for (int n = 0; n < 4; n += 2) {
        const __m256i low_digits = take_two_digits(&low), high_digits = take_two_digits(&high);
        const __m256i two = _mm256_packus_epi16(low_digits, high_digits);
        digit[n] = first_digit(two);
        digit[n + 1] = second_digit(two);
    }
    digit[4] = _mm256_packus_epi16(take_last_digit(low), take_last_digit(high));
}

/* Reads two blocks of PTQ1_0, one per 128-bit half: vector e / 16 has code e of each. */
QN_INLINE void read_ptq1_0(const uint8_t *p, size_t half, __m256i code[8])
{
    p += 2 * QN_PTQ1_0_BYTES * half;
    five_digits(load_2x16(p, p + QN_PTQ1_0_BYTES), code);
    /* Bytes 12 to 27: from 4 on bytes 16 to 23, then 24 and 25, which have four digits: the fractions of all four. */
    const __m256i rest = load_2x16(p + QN_PTQ1_0_BYTES - 16, p + 2 * QN_PTQ1_0_BYTES - 16);
    const __m256i spread_eight =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(-1, 4, -1, 5, -1, 6, -1, 7, -1, 8, -1, 9, -1, 10, -1, 11));
    const __m256i spread_last =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(-1, 12, -1, 13, -1, 12, -1, 13, -1, 12, -1, 13, -1, 12, -1, 13));
    const __m256i powers = _mm256_broadcastsi128_si256(_mm_setr_epi16(1, 1, 3, 3, 9, 9, 27, 27));
    __m256i eight = _mm256_shuffle_epi8(rest, spread_eight);
    const __m256i last = _mm256_mullo_epi16(_mm256_shuffle_epi8(rest, spread_last), powers);
    const __m256i digits_01 = take_two_digits(&eight), digits_23 = take_two_digits(&eight);
    const __m256i two = _mm256_packus_epi16(digits_01, digits_23);
    code[5] = _mm256_unpacklo_epi64(first_digit(two), second_digit(two));
    code[6] = _mm256_unpackhi_epi64(first_digit(two), second_digit(two));
    code[7] = _mm256_packus_epi16(take_last_digit(eight), take_last_digit(last));
}

/* Reads the 32 nibbles of a group of Q4_0, Q4_1, Q5_0, Q5_1: low nibbles of 16 bytes, then high nibbles. */
QN_INLINE __m256i read_nibbles(const uint8_t *p)
{
    const __m256i twice = _mm256_broadcastsi128_si256(load16(p));
    return _mm256_and_si256(_mm256_srlv_epi32(twice, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4)), _mm256_set1_epi8(15));
}

/* Returns bytes: byte i is 16 if bit i of 32 is set, else 0. */
QN_INLINE __m256i read_fifth_bits(const uint8_t *p)
{
    uint32_t bits;
    memcpy(&bits, p, sizeof bits);
    const __m256i bytes = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3,
                                           3, 3, 3, 3, 3, 3);
    const __m256i masks = _mm256_set1_epi64x((int64_t)0x8040201008040201);
    const __m256i spread = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int32_t)bits), bytes), masks);
    return _mm256_and_si256(_mm256_cmpeq_epi8(spread, masks), _mm256_set1_epi8(16));
}

/* Reads eight groups of TQ1_0: one block. */
QN_INLINE void read_tq1_0(const uint8_t *p, __m256i group[8])
{
    five_digits(load32(p), group);
    int32_t four;
    memcpy(&four, p + QN_TQ1_0_TRIT_BYTES * 3 / 2, sizeof four);
    const __m256i powers = _mm256_setr_epi16(1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 27, 27, 27, 27);
    __m256i sixteen = _mm256_slli_epi16(_mm256_cvtepu8_epi16(load16(p + QN_TQ1_0_TRIT_BYTES)), 8);
    const __m256i last = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_set1_epi32(four)), 8);
    const __m256i digits_01 = take_two_digits(&sixteen), digits_23 = take_two_digits(&sixteen);
    const __m256i two = _mm256_permute4x64_epi64(_mm256_packus_epi16(digits_01, digits_23), 0xd8);
    group[5] = _mm256_permute2x128_si256(first_digit(two), second_digit(two), 0x20);
    group[6] = _mm256_permute2x128_si256(first_digit(two), second_digit(two), 0x31);
    group[7] = _mm256_permute4x64_epi64(
        _mm256_packus_epi16(take_last_digit(sixteen), take_last_digit(_mm256_mullo_epi16(last, powers))), 0xd8);
}

/* Types whose codes are read signed, without their zero point. */
QN_INLINE bool is_read_signed(qn_type type)
{
    return type == QN_TYPE_Q8_0 || type == QN_TYPE_IQ4_NL || type == QN_TYPE_IQ4_XS;
}

/* Returns what nibbles stand for: signed values of IQ4, codes of MXFP4 and NVFP4. */
QN_INLINE __m256i look_up_values(qn_type type, __m256i nibbles)
{
    const __m256i values = _mm256_broadcastsi128_si256(load16(is_read_signed(type) ? iq4_values : e2m1_values));
    const int zero = is_read_signed(type) ? 0 : block_of(type).zero;
    return _mm256_shuffle_epi8(_mm256_add_epi8(values, _mm256_set1_epi8((char)zero)), nibbles);
}

/* Reads the codes of eight groups in ascending order, one group per vector; signed ones if is_read_signed. */
QN_INLINE void read_groups(qn_type type, const uint8_t *p, size_t half, __m256i group[8])
{
    const struct block_layout b = block_of(type);
    const __m256i nibble = _mm256_set1_epi8(15), three = _mm256_set1_epi8(3);
    p += half * (super_bytes(type) / 2);
    switch (type) {
    case QN_TYPE_TQ1_0: read_tq1_0(p, group); break;
    case QN_TYPE_TQ2_0:
    case QN_TYPE_Q2_K:
    case QN_TYPE_Q3_K:
        for (int r = 0; r < 8; r++) {
            group[r] = _mm256_and_si256(_mm256_srli_epi16(load32(p + b.codes + r / 4 * 32), r % 4 * 2), three);
            if (type == QN_TYPE_Q3_K) {
                const __m256i third = load32(p + QN_Q3_K_HIGH), bit = _mm256_set1_epi8(4);
                const __m256i moved = r < 2 ? _mm256_slli_epi16(third, 2 - r) : _mm256_srli_epi16(third, r - 2);
                group[r] = _mm256_or_si256(group[r], _mm256_and_si256(moved, bit));
            }
        }
        break;
    case QN_TYPE_IQ4_XS:
        for (size_t r = 0; r < 8; r++)
            group[r] = look_up_values(type, read_nibbles(p + b.codes + 16 * r));
        break;
    case QN_TYPE_NVFP4_L:
        for (size_t r = 0; r < 8; r++)
            group[r] = look_up_values(type, read_nibbles(p + r / 2 * b.bytes + b.codes + r % 2 * 16));
        break;
    case QN_TYPE_Q4_K:
    case QN_TYPE_Q5_K:
        for (int r = 0; r < 8; r++) {
            const __m256i bytes = load32(p + b.codes + r / 2 * 32);
            group[r] = _mm256_and_si256(_mm256_srli_epi16(bytes, r % 2 * 4), nibble);
            if (type == QN_TYPE_Q5_K) {
                const __m256i fifth = load32(p + QN_Q5_K_HIGH), bit = _mm256_set1_epi8(16);
                const __m256i moved = r < 4 ? _mm256_slli_epi16(fifth, 4 - r) : _mm256_srli_epi16(fifth, r - 4);
                group[r] = _mm256_or_si256(group[r], _mm256_and_si256(moved, bit));
            }
        }
        break;
    case QN_TYPE_Q6_K:
        for (int r = 0; r < 8; r++) {
            const __m256i low = _mm256_srli_epi16(load32(p + b.codes + r / 4 * 64 + r % 2 * 32), r % 4 / 2 * 4);
            const __m256i high = load32(p + QN_Q6_K_HIGH + r / 4 * 32), top = _mm256_set1_epi8(0x30);
            const int up = 4 - r % 4 * 2;
            const __m256i moved = up >= 0 ? _mm256_slli_epi16(high, up) : _mm256_srli_epi16(high, -up);
            group[r] = _mm256_or_si256(_mm256_and_si256(low, nibble), _mm256_and_si256(moved, top));
        }
        break;
    case QN_TYPE_Q8_0:
        for (int r = 0; r < 8; r++)
            group[r] = load32(p + b.bytes * (size_t)r + b.codes);
        break;
    default:
        for (size_t r = 0; r < 8; r++) {
            group[r] = read_nibbles(p + b.bytes * r + b.codes);
            if (has_values(type))
                group[r] = look_up_values(type, group[r]);
            if (type == QN_TYPE_Q5_0)
                group[r] = _mm256_or_si256(group[r], read_fifth_bits(p + b.bytes * r + QN_Q5_0_HIGH));
            if (type == QN_TYPE_Q5_1)
                group[r] = _mm256_or_si256(group[r], read_fifth_bits(p + b.bytes * r + QN_Q5_1_HIGH));
        }
    }
}

/* ---- Dot products ---- */

/* Returns the integer dot product of 1-bit codes and activations. Bit planes are masked in place, after at most one
 * shift by four, and the sums are shifted instead: the sum of bit k is a multiple of 2^k. Codes are 0 and 2, hence the
 * doubled factor. The sums are added as a tree: serially dependent additions would fill the scheduler. */
QN_INLINE __m256i dot_1bit(const uint8_t *p, size_t half, const int8_t *acts, int factor)
{
    const __m256i bits = read_1bit(p, half), high = _mm256_srli_epi16(bits, 4), zero = _mm256_setzero_si256();
    __m256i sum[4];
    for (int k = 0; k < 4; k++) {
        const __m256i mask = _mm256_set1_epi8((int8_t)(1 << k));
        sum[k] = multiply_add(zero, _mm256_and_si256(bits, mask), load32(acts + 64 * k));
        sum[k] = shift_acc(multiply_add(sum[k], _mm256_and_si256(high, mask), load32(acts + 64 * (k + 4))), k);
    }
    return reduce_acc(add_acc(add_acc(sum[0], sum[1]), add_acc(sum[2], sum[3])), 2 * factor);
}

QN_INLINE __m256i dot_2bit(qn_type type, const uint8_t *p, size_t half, const int8_t *acts, int factor)
{
    __m256i bytes[2], one[2], four[2];
    read_2bit(type, p, half, &bytes[0], &bytes[1]);
    for (int i = 0; i < 2; i++) {
        one[i] = four[i] = _mm256_setzero_si256();
        for (int j = 0; j < 4; j += 2) {
            const __m256i x = _mm256_srli_epi16(bytes[i], 2 * j);
            one[i] = multiply_add(one[i], _mm256_and_si256(x, _mm256_set1_epi8(3)), load32(acts + 64 * (4 * i + j)));
            four[i] =
                multiply_add(four[i], _mm256_and_si256(x, _mm256_set1_epi8(12)), load32(acts + 64 * (4 * i + j + 1)));
        }
    }
    return reduce_acc(add_acc(add_acc(one[0], one[1]), shift_acc(add_acc(four[0], four[1]), 2)), factor);
}

/* Returns the integer dot product of PTQ1_0 codes and activations. Lanes are the four groups of one block, then of the
 * other. */
QN_INLINE __m256i dot_ptq1_0(const uint8_t *p, size_t half, const int8_t *acts, int factor)
{
    __m256i code[8], group[4];
    read_ptq1_0(p, half, code);
    for (int r = 0; r < 4; r++) {
        group[r] = multiply_add(_mm256_setzero_si256(), code[2 * r], load32(acts + 128 * r));
        group[r] = multiply_add(group[r], code[2 * r + 1], load32(acts + 128 * r + 64));
    }
#ifdef QN_V16_AVXVNNI
    return reduce_acc(reduce_4_i32(group), factor);
#else
    return reduce_4_i16(group, factor);
#endif
}

/* Multiplies signed bytes by signed bytes: the magnitude of the weight by the activation with the weight's sign. A
 * weight's magnitude may be 128. */
QN_INLINE __m256i multiply_signed(__m256i weights, __m256i acts)
{
    const __m256i magnitude = _mm256_abs_epi8(weights), moved = _mm256_sign_epi8(acts, weights);
#ifdef QN_V16_AVXVNNI
    return _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), magnitude, moved);
#else
    return _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, moved), _mm256_set1_epi16(1));
#endif
}

/* Returns the integer dot product of activations and codes of a type with factors. Each half of a group has its own, by
 * which 16-bit words are multiplied as they are widened. The largest sum of a lane, 4 * 32 * 127 * 128, is far below
 * 2^31. */
QN_INLINE __m256i dot_factors(qn_type type, const uint8_t *p, size_t half, const int8_t *acts)
{
    const struct block_layout b = block_of(type);
    __m256i group[8];
    read_groups(type, p, half, group);
    const __m256i factors = _mm256_cvtepi8_epi16(read_factors(type, p + b.bytes * half));
    for (int r = 0; r < 8; r++) {
        const __m256i weights = _mm256_sub_epi8(group[r], _mm256_set1_epi8((char)b.zero));
        const __m256i a = load32(acts + QN_QUANT_GROUP * r);
        const __m256i words = b.zero ? _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(a, weights))
                                     : _mm256_maddubs_epi16(weights, a);
        const __m256i four = r < 4 ? _mm256_permute4x64_epi64(factors, 0x44) : _mm256_permute4x64_epi64(factors, 0xee);
        const __m256i pick = _mm256_add_epi8(_mm256_set1_epi16((int16_t)(0x0100 + 0x0404 * (r % 4))),
                                             _mm256_setr_epi64x(0, 0, 0x0202020202020202, 0x0202020202020202));
        group[r] = _mm256_madd_epi16(words, _mm256_shuffle_epi8(four, pick));
    }
    return join_halves(reduce_4_i32(group), reduce_4_i32(group + 4));
}

QN_INLINE __m256i dot_groups(qn_type type, const uint8_t *p, size_t half, const int8_t *acts, int factor)
{
    __m256i group[8];
    read_groups(type, p, half, group);
    for (int r = 0; r < 8; r++) {
        const __m256i a = load32(acts + QN_QUANT_GROUP * r);
        group[r] =
            is_read_signed(type) ? multiply_signed(group[r], a) : multiply_add(_mm256_setzero_si256(), group[r], a);
    }
#ifndef QN_V16_AVXVNNI
    if (!is_read_signed(type))
        return join_halves(reduce_4_i16(group, factor), reduce_4_i16(group + 4, factor));
#endif
    const __m256i sum = join_halves(reduce_4_i32(group), reduce_4_i32(group + 4));
    return factor == 1 ? sum : _mm256_mullo_epi32(sum, _mm256_set1_epi32(factor));
}

/* Computes the sums of the first 16 values of eight groups, and of the last; codes up to 31. */
QN_INLINE void dot_halves(qn_type type, const uint8_t *p, size_t half, const int8_t *acts, int factor, __m256i *lower,
                          __m256i *upper)
{
    __m256i group[8];
    read_groups(type, p, half, group);
    for (int r = 0; r < 8; r++)
        group[r] = multiply_add(_mm256_setzero_si256(), group[r], load32(acts + QN_QUANT_GROUP * r));
#ifdef QN_V16_AVXVNNI
    const __m256i by = _mm256_set1_epi32(factor);
    const __m256i first = factor == 1 ? reduce_4_i32(group) : _mm256_mullo_epi32(reduce_4_i32(group), by);
    const __m256i second = factor == 1 ? reduce_4_i32(group + 4) : _mm256_mullo_epi32(reduce_4_i32(group + 4), by);
#else
    const __m256i first = reduce_4_i16(group, factor), second = reduce_4_i16(group + 4, factor);
#endif
    *lower = _mm256_permute2x128_si256(first, second, 0x20);
    *upper = _mm256_permute2x128_si256(first, second, 0x31);
}

/* Adds half a super-block of a type with half scales. */
QN_INLINE __m256 add_halves(qn_type type, bool hilo, const uint8_t *p, size_t half, const qn_acts *acts, size_t super,
                            __m256 scale, __m256 scale_upper, __m256 partial)
{
    const size_t group = super * QN_SUPER_GROUPS + 8 * half, at = super * QN_SUPER + 256 * half;
    const int zero_bits = __builtin_ctz((unsigned)block_of(type).zero);
    const __m256i sum_upper = load32(acts->sum_upper + group);
    const __m256i sum_lower = _mm256_sub_epi32(load32(acts->sum + group), sum_upper);
    const __m256 act_scale = _mm256_loadu_ps(acts->scale + group);
    __m256i lower, upper, lo_lower, lo_upper;
    dot_halves(type, p, half, acts->codes[QN_ACT_PLAIN] + at, hilo ? QN_HILO_BASE : 1, &lower, &upper);
    if (hilo) {
        dot_halves(type, p, half, acts->codes_lo[QN_ACT_PLAIN] + at, 1, &lo_lower, &lo_upper);
        lower = _mm256_add_epi32(lower, lo_lower);
        upper = _mm256_add_epi32(upper, lo_upper);
    }
    lower = _mm256_sub_epi32(lower, _mm256_slli_epi32(sum_lower, zero_bits));
    upper = _mm256_sub_epi32(upper, _mm256_slli_epi32(sum_upper, zero_bits));
    partial = _mm256_fmadd_ps(_mm256_cvtepi32_ps(lower), _mm256_mul_ps(scale, act_scale), partial);
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(upper), _mm256_mul_ps(scale_upper, act_scale), partial);
}

QN_INLINE __m256i dot(qn_type type, qn_act_layout layout, const uint8_t *p, size_t half, const int8_t *acts, int factor)
{
    switch (layout) {
    case QN_ACT_1BIT: return dot_1bit(p, half, acts + 32 * half, factor);
    case QN_ACT_2BIT: return dot_2bit(type, p, half, acts + 32 * half, factor);
    case QN_ACT_TERNARY: return dot_ptq1_0(p, half, acts + 32 * half, factor);
    default:
        return has_factors(type) ? dot_factors(type, p, half, acts + 256 * half)
                                 : dot_groups(type, p, half, acts + 256 * half, factor);
    }
}

/* Returns zero point * sums; zero for types whose zero points are already subtracted from the codes. */
QN_INLINE __m256i times_zero_point(qn_type type, __m256i sums)
{
    const int zero = is_read_signed(type) || has_factors(type) ? 0 : block_of(type).zero;
    return zero == 0   ? _mm256_setzero_si256()
           : zero == 1 ? sums
                       : _mm256_slli_epi32(sums, __builtin_ctz((unsigned)zero));
}

QN_INLINE void add_super(qn_type type, qn_act_layout layout, bool hilo, const uint8_t *p, const qn_acts *acts,
                         size_t super, __m256 partial[2])
{
    const int8_t *codes = acts->codes[layout] + super * QN_SUPER;
    __m256 scale[2], offset[2];
    read_scales(type, p, scale, offset);
    for (size_t half = 0; half < 2; half++) {
        if (type == QN_TYPE_NVFP4_L) {
            partial[half] = add_halves(type, hilo, p, half, acts, super, scale[half], offset[half], partial[half]);
            continue;
        }
        const size_t group = super * QN_SUPER_GROUPS + 8 * half;
        const __m256i sums = load32(acts->sum + group);
        const __m256 act_scale = _mm256_loadu_ps(acts->scale + group);
        __m256i isum = dot(type, layout, p, half, codes, hilo ? QN_HILO_BASE : 1);
        if (hilo)
            isum = _mm256_add_epi32(isum, dot(type, layout, p, half, acts->codes_lo[layout] + super * QN_SUPER, 1));
        isum = _mm256_sub_epi32(isum, times_zero_point(type, sums));
        partial[half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum), _mm256_mul_ps(scale[half], act_scale), partial[half]);
        if (type == QN_TYPE_Q2_K) {
            const __m256i upper = load32(acts->sum_upper + group), lower = _mm256_sub_epi32(sums, upper);
            __m256 of_lower, of_upper;
            read_half_offsets(p + half * QN_Q2_K_BYTES, &of_lower, &of_upper);
            partial[half] =
                _mm256_fmadd_ps(_mm256_cvtepi32_ps(lower), _mm256_mul_ps(of_lower, act_scale), partial[half]);
            partial[half] =
                _mm256_fmadd_ps(_mm256_cvtepi32_ps(upper), _mm256_mul_ps(of_upper, act_scale), partial[half]);
        } else if (has_offset(type)) {
            partial[half] =
                _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), _mm256_mul_ps(offset[half], act_scale), partial[half]);
        }
    }
}

/* Multiplies n_rows rows by one token. n_rows is a constant at the calls. */
QN_INLINE void gemv_rows(qn_type type, qn_act_layout layout, bool hilo, const qn_matrix *weights, size_t row,
                         size_t n_rows, const qn_acts *acts, size_t token, bool accumulate, float *out)
{
    const size_t n_full = weights->n_cols / QN_SUPER, bytes = super_bytes(type), row_bytes = weights->row_bytes;
    const uint8_t *p = weights->data + row * row_bytes;
    __m256 partial[GEMV_ROWS][2];
    for (size_t r = 0; r < n_rows; r++)
        partial[r][0] = partial[r][1] = _mm256_setzero_ps();
    for (size_t s = 0; s < n_full; s++, p += bytes)
        for (size_t r = 0; r < n_rows; r++) {
            const uint8_t *q = p + r * row_bytes;
            /* One prefetch per line of the super-block, and one for its last byte. */
            for (size_t line = 0; line + 8 < bytes; line += 64)
                _mm_prefetch((const char *)q + GEMV_PREFETCH_BYTES + line, _MM_HINT_T0);
            _mm_prefetch((const char *)q + GEMV_PREFETCH_BYTES + bytes - 1, _MM_HINT_T0);
            add_super(type, layout, hilo, q, acts, token * acts->n_super + s, partial[r]);
        }
    for (size_t r = 0; r < n_rows; r++) {
        if (n_full < acts->n_super) {
            /* Blocks of zero bytes have a scale of zero. */
            uint8_t last[QN_MAX_SUPER_BYTES] = { 0 };
            memcpy(last, p + r * row_bytes, row_bytes - n_full * bytes);
            add_super(type, layout, hilo, last, acts, token * acts->n_super + n_full, partial[r]);
        }
        const float sum = v16_sum((v16){ partial[r][0], partial[r][1] });
        out[row + r] = accumulate ? out[row + r] + sum : sum;
    }
}

QN_INLINE void gemv_format(qn_type type, qn_act_layout layout, bool hilo, const qn_matrix *weights, size_t row_begin,
                           size_t row_end, const qn_acts *acts, size_t token, bool accumulate, float *out)
{
    size_t row = row_begin;
    for (; row + GEMV_ROWS <= row_end; row += GEMV_ROWS)
        gemv_rows(type, layout, hilo, weights, row, GEMV_ROWS, acts, token, accumulate, out);
    for (; row < row_end; row++)
        gemv_rows(type, layout, hilo, weights, row, 1, acts, token, accumulate, out);
}

#endif
