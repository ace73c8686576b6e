/* Part of matmul_avx512.c: products of one token with codes as they are stored, and unpacking for tiles, for the types that are
 * best read in pieces of sixteen bytes: all but Q1_0, Q2_0, PQ2_0 and PTQ1_0, which have a way of their own there. And what
 * both ways share.
 *
 * Everything works on a quarter of a super-block, 128 values or four runs, of four rows at a time. In a vector of codes, lane k
 * of 128 bits belongs to row k; in one of sums or scales, lane 4k + q of 32 bits to run q of row k. So the sums of runs need
 * no vector that crosses rows, four rows share their activations by broadcast, rows of any width leave at most three runs of a
 * quarter idle, and unpacking is the same reading with the four quarters of one super-block in place of four rows. */
#ifndef QN_KERNELS_MATMUL_GEMV_WIDE_AVX512_H
#define QN_KERNELS_MATMUL_GEMV_WIDE_AVX512_H

#include "kernels/matmul/matmul_simd.h"

enum { QUARTER_RUNS = 4, QUARTER = QUARTER_RUNS * QN_QUANT_GROUP, PIECES = QUARTER / 16 };

/* Bytes ahead that products of these types ask for, at least. */
enum { WIDE_PREFETCH_BYTES = 4096 };

/* Byte tables for shuffles and word tables for vpermw, filled by the compiler. In each, entry i says which byte (word) of what
 * was loaded goes to place i. */
#define X4(f, i) f(i), f((i) + 1), f((i) + 2), f((i) + 3)
#define X16(f, i) X4(f, i), X4(f, (i) + 4), X4(f, (i) + 8), X4(f, (i) + 12)
#define X64(f) X16(f, 0), X16(f, 16), X16(f, 32), X16(f, 48)
#define X128(f, i)                                                                                                             \
    X16(f, i), X16(f, (i) + 16), X16(f, (i) + 32), X16(f, (i) + 48), X16(f, (i) + 64), X16(f, (i) + 80), X16(f, (i) + 96),     \
        X16(f, (i) + 112)

/* Digit n of byte b, and digits 0 to 3 as 2-bit fields. */
#define TRIT(b, power) ((((b) * (power)&255) * 3) >> 8)
#define TRITS_0123(b) (TRIT(b, 1) | TRIT(b, 3) << 2 | TRIT(b, 9) << 4 | TRIT(b, 27) << 6)
#define TRIT_4(b) TRIT(b, 81)
static const _Alignas(64) uint8_t trits_0123[256] = { X128(TRITS_0123, 0), X128(TRITS_0123, 128) }, trits_4[256] = {
    X128(TRIT_4, 0), X128(TRIT_4, 128)
};

QN_INLINE __m512i load(const void *p)
{
    return _mm512_loadu_si512(p);
}

/* Entries of a table of 256 bytes. */
QN_INLINE __m512i look_up_256(const uint8_t *table, __m512i index)
{
    const __m512i low = _mm512_permutex2var_epi8(load(table), index, load(table + 64));
    const __m512i high = _mm512_permutex2var_epi8(load(table + 128), index, load(table + 192));
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), low, high);
}

/* Sums of four neighbouring lanes of four vectors: lane 4k+j of the result is the sum of lanes 4k..4k+3 of vector j. */
QN_INLINE __m512i sum_fours(__m512i a, __m512i b, __m512i c, __m512i d)
{
    const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
}

/* The same quarter of four rows. The blocks of types with 32 weights lie one after another from `row`, and where a matrix ends
 * within the quarter only n_groups of them are there; blocks of 128 are the quarter; of blocks of 256 it is the half `half`. */
struct quarter {
    const uint8_t *row[4];
    size_t n_groups, half;
};

QN_INLINE size_t wide_block_weights(qn_type type)
{
    switch (type) {
    case QN_TYPE_Q4_K:
    case QN_TYPE_Q5_K:
    case QN_TYPE_Q6_K:
    case QN_TYPE_TQ1_0:
    case QN_TYPE_TQ2_0: return 256;
    case QN_TYPE_OX2_0: return 128;
    default: return 32;
    }
}

QN_INLINE size_t wide_block_bytes(qn_type type)
{
    switch (type) {
    case QN_TYPE_Q4_0: return 18;
    case QN_TYPE_Q4_1: return 20;
    case QN_TYPE_Q5_0: return 22;
    case QN_TYPE_Q5_1: return 24;
    case QN_TYPE_Q4_K: return 144;
    case QN_TYPE_Q5_K: return 176;
    case QN_TYPE_Q6_K: return 210;
    case QN_TYPE_TQ1_0: return 54;
    case QN_TYPE_TQ2_0: return 66;
    default: return 34; /* Q8_0, OX2_0 */
    }
}

QN_INLINE bool wide_has_offset(qn_type type)
{
    return type == QN_TYPE_Q4_1 || type == QN_TYPE_Q5_1 || type == QN_TYPE_Q4_K || type == QN_TYPE_Q5_K;
}

/* Where run q's block begins; that of a run that is not there is any other's. */
QN_INLINE size_t wide_group_offset(qn_type type, const struct quarter *at, size_t q)
{
    return (q < at->n_groups ? q : 0) * wide_block_bytes(type);
}

/* Sixteen bytes of each row, side by side. */
QN_INLINE __m512i load_4_rows(const struct quarter *at, size_t offset)
{
    __m128i row128[4];
    for (int k = 0; k < 4; k++)
        row128[k] = _mm_loadu_si128((const __m128i *)(const void *)(at->row[k] + offset));
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(row128[0]), row128[1], 1);
    const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(row128[2]), row128[3], 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/* The same sixteen bytes for every row. */
QN_INLINE __m512i broadcast_128(const void *p)
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)p));
}

QN_INLINE __m512i low_nibbles(__m512i x)
{
    return _mm512_and_si512(x, _mm512_set1_epi8(15));
}

QN_INLINE __m512i high_nibbles(__m512i x)
{
    return low_nibbles(_mm512_srli_epi16(x, 4));
}

/* Field n, of two bits, of every byte; whatever else is in the byte goes. */
QN_INLINE __m512i two_bits(__m512i x, int n)
{
    return _mm512_and_si512(n ? _mm512_srli_epi16(x, 2 * n) : x, _mm512_set1_epi8(3));
}

/* a | (b & c) */
QN_INLINE __m512i or_and(__m512i a, __m512i b, __m512i c)
{
    return _mm512_ternarylogic_epi32(a, b, c, 0xf8);
}

/* Byte i of each row becomes field n(i) of byte from(i): a shuffle, then a shift of its own for every byte. */
#define FIELD_SHIFT(i, n) ((i) % 8 * 8 + 2 * (n))
QN_INLINE __m512i extract_fields(__m512i x, const uint8_t *from, const uint8_t *shift)
{
    return two_bits(_mm512_multishift_epi64_epi8(broadcast_128(shift), _mm512_shuffle_epi8(x, broadcast_128(from))), 0);
}

/* TQ1_0: 32 bytes of five digits (runs 0 to 4), 16 of five (runs 5, 6 and half of 7), 4 of four. */
#define TQ1_TAIL_FROM(i) (10 + (i) % 4)
#define TQ1_TAIL_SHIFT(i) FIELD_SHIFT(i, (i) / 4)
static const _Alignas(16) uint8_t tq1_tail_from[16] = { X16(TQ1_TAIL_FROM, 0) }, tq1_tail_shift[16] = { X16(TQ1_TAIL_SHIFT,
                                                                                                            0) };

QN_INLINE void read_tq1(const struct quarter *at, __m512i code[PIECES])
{
    const __m512i main[2] = { load_4_rows(at, 0), load_4_rows(at, 16) };
    if (!at->half) {
        for (int h = 0; h < 2; h++) {
            const __m512i four = look_up_256(trits_0123, main[h]);
            for (int q = 0; q < 4; q++)
                code[2 * q + h] = two_bits(four, q);
        }
        return;
    }
    const __m512i rest = load_4_rows(at, 32), four = look_up_256(trits_0123, rest);
    code[0] = look_up_256(trits_4, main[0]);
    code[1] = look_up_256(trits_4, main[1]);
    for (int n = 0; n < 4; n++)
        code[2 + n] = two_bits(four, n);
    code[6] = look_up_256(trits_4, rest);
    /* The last four bytes end two before the block does. */
    code[7] = extract_fields(look_up_256(trits_0123, load_4_rows(at, 38)), tq1_tail_from, tq1_tail_shift);
}

/* OX2_0: two bits each, in the order of the weights: piece i is fields 0..3 of four bytes. */
#define OX2_FROM(i) ((i) / 4)
#define OX2_FROM_4(i) (4 + (i) / 4)
#define OX2_FROM_8(i) (8 + (i) / 4)
#define OX2_FROM_12(i) (12 + (i) / 4)
#define OX2_SHIFT(i) FIELD_SHIFT(i, (i) % 4)
static const _Alignas(16) uint8_t ox2_from[4][16] = { { X16(OX2_FROM, 0) },
                                                      { X16(OX2_FROM_4, 0) },
                                                      { X16(OX2_FROM_8, 0) },
                                                      { X16(OX2_FROM_12, 0) } },
                                  ox2_shift[16] = { X16(OX2_SHIFT, 0) };

QN_INLINE void read_ox2(const struct quarter *at, __m512i code[PIECES])
{
    for (int i = 0; i < PIECES; i++)
        code[i] = extract_fields(load_4_rows(at, (size_t)i / 4 * 16), ox2_from[i % 4], ox2_shift);
}

/* Fifth bits of types with 32 weights: bit i of sixteen, which are bytes `from` and the next of `bits`, to 16 in byte i. */
#define BIT_OF_BYTE(i) (uint8_t)(1 << (i) % 8)
static const _Alignas(16) uint8_t bit_of_byte[16] = { X16(BIT_OF_BYTE, 0) };

QN_INLINE __m512i add_fifth_bits(__m512i nibbles, __m512i bits, int from)
{
    const __m512i index = _mm512_set_epi64(from * 0x0101010101010101 + 0x0101010101010101, from * 0x0101010101010101,
                                           from * 0x0101010101010101 + 0x0101010101010101, from * 0x0101010101010101,
                                           from * 0x0101010101010101 + 0x0101010101010101, from * 0x0101010101010101,
                                           from * 0x0101010101010101 + 0x0101010101010101, from * 0x0101010101010101);
    const __mmask64 set = _mm512_test_epi8_mask(_mm512_shuffle_epi8(bits, index), broadcast_128(bit_of_byte));
    return _mm512_mask_add_epi8(nibbles, set, nibbles, _mm512_set1_epi8(16));
}

/* Code i holds values 16i .. 16i+15 of the quarter, of every row. */
QN_INLINE void read_codes(qn_type type, const struct quarter *at, __m512i code[PIECES])
{
    const __m512i sixteen = _mm512_set1_epi8(16), high_two = _mm512_set1_epi8(48);
    __m512i x[4], more[2];
    switch (type) {
    case QN_TYPE_Q4_0:
    case QN_TYPE_Q4_1:
    case QN_TYPE_Q5_0:
    case QN_TYPE_Q5_1:
        for (size_t q = 0; q < QUARTER_RUNS; q++) {
            const size_t begin = wide_group_offset(type, at, q);
            const __m512i nibbles = load_4_rows(at, begin + wide_block_bytes(type) - 16);
            code[2 * q] = low_nibbles(nibbles);
            code[2 * q + 1] = high_nibbles(nibbles);
            if (type == QN_TYPE_Q5_0 || type == QN_TYPE_Q5_1) {
                const __m512i head = load_4_rows(at, begin);
                const int from = type == QN_TYPE_Q5_0 ? 2 : 4;
                code[2 * q] = add_fifth_bits(code[2 * q], head, from);
                code[2 * q + 1] = add_fifth_bits(code[2 * q + 1], head, from + 2);
            }
        }
        break;
    case QN_TYPE_Q8_0:
        for (size_t i = 0; i < PIECES; i++)
            code[i] =
                _mm512_xor_si512(load_4_rows(at, wide_group_offset(type, at, i / 2) + 2 + i % 2 * 16), _mm512_set1_epi8(-128));
        break;
    case QN_TYPE_Q4_K:
    case QN_TYPE_Q5_K:
        for (size_t i = 0; i < 4; i++)
            x[i] = load_4_rows(at, wide_block_bytes(type) - 128 + 64 * at->half + 16 * i);
        for (size_t i = 0; i < PIECES; i++) /* run q is half q % 2 of the bytes of its pair */
            code[i] = i / 2 % 2 ? high_nibbles(x[i / 4 * 2 + i % 2]) : low_nibbles(x[i / 4 * 2 + i % 2]);
        if (type == QN_TYPE_Q4_K)
            break;
        for (size_t h = 0; h < 2; h++) { /* the bit of run q to bit 4 + q */
            more[h] = load_4_rows(at, 16 + 16 * h);
            more[h] = at->half ? more[h] : _mm512_slli_epi16(more[h], 4);
        }
        for (size_t i = 0; i < PIECES; i++)
            code[i] = or_and(code[i], i < 2 ? more[i] : _mm512_srli_epi16(more[i % 2], (unsigned)i / 2), sixteen);
        break;
    case QN_TYPE_Q6_K:
        for (size_t i = 0; i < 4; i++)
            x[i] = load_4_rows(at, 64 * at->half + 16 * i);
        for (size_t h = 0; h < 2; h++)
            more[h] = load_4_rows(at, 128 + 32 * at->half + 16 * h);
        for (size_t h = 0; h < 2; h++) {
            code[h] = or_and(low_nibbles(x[h]), _mm512_slli_epi16(more[h], 4), high_two);
            code[2 + h] = or_and(low_nibbles(x[2 + h]), _mm512_slli_epi16(more[h], 2), high_two);
            code[4 + h] = or_and(high_nibbles(x[h]), more[h], high_two);
            code[6 + h] = or_and(high_nibbles(x[2 + h]), _mm512_srli_epi16(more[h], 2), high_two);
        }
        break;
    case QN_TYPE_TQ2_0:
        for (size_t i = 0; i < PIECES; i++)
            code[i] = two_bits(load_4_rows(at, 32 * at->half + i % 2 * 16), (int)i / 2);
        break;
    case QN_TYPE_TQ1_0: read_tq1(at, code); break;
    default: read_ox2(at, code); break;
    }
}

/* Halves in the lower (upper) words of 32-bit lanes. */
QN_INLINE __m512 low_f16_to_f32(__m512i x)
{
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x));
}

QN_INLINE __m512 high_f16_to_f32(__m512i x)
{
    return low_f16_to_f32(_mm512_srli_epi32(x, 16));
}

/* A half at offset + 14 of every row, for all its runs. */
QN_INLINE __m512 broadcast_last_f16(const struct quarter *at, size_t offset)
{
    return high_f16_to_f32(_mm512_shuffle_epi32(load_4_rows(at, offset), _MM_PERM_DDDD));
}

/* The first four bytes of every block of 32. */
QN_INLINE __m512i load_block_heads(qn_type type, const struct quarter *at)
{
    __m512i row[4];
    for (int k = 0; k < 4; k++) {
        uint32_t head[QUARTER_RUNS];
        for (size_t q = 0; q < QUARTER_RUNS; q++)
            memcpy(&head[q], at->row[k] + wide_group_offset(type, at, q), sizeof head[q]);
        row[k] = _mm512_castsi128_si512(_mm_set_epi32((int)head[3], (int)head[2], (int)head[1], (int)head[0]));
    }
    const __m256i low = _mm256_inserti128_si256(_mm512_castsi512_si256(row[0]), _mm512_castsi512_si128(row[1]), 1);
    const __m256i high = _mm256_inserti128_si256(_mm512_castsi512_si256(row[2]), _mm512_castsi512_si128(row[3]), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/* Byte `first` + q of every row, in the lane of run q. */
QN_INLINE __m512i bytes_to_groups(__m512i x, int first)
{
    const int none = (int)0x80808000;
    return _mm512_shuffle_epi8(
        x, _mm512_broadcast_i32x4(_mm_set_epi32(none + first + 3, none + first + 2, none + first + 1, none + first)));
}

/* Q4_K and Q5_K: as unpack_scales in quant/kquants.c. */
QN_INLINE void read_k_scales(const struct quarter *at, __m512 *scale, __m512 *offset)
{
    const __m512i head = load_4_rows(at, 0), d_dmin = _mm512_shuffle_epi32(head, _MM_PERM_AAAA);
    __m512i scales = bytes_to_groups(head, 4), mins = bytes_to_groups(head, 8);
    if (!at->half) {
        scales = _mm512_and_si512(scales, _mm512_set1_epi32(63));
        mins = _mm512_and_si512(mins, _mm512_set1_epi32(63));
    } else {
        const __m512i low = bytes_to_groups(head, 12), top = _mm512_set1_epi32(48);
        scales = or_and(low_nibbles(low), _mm512_srli_epi32(scales, 2), top);
        mins = or_and(_mm512_srli_epi32(low, 4), _mm512_srli_epi32(mins, 2), top);
    }
    *scale = _mm512_mul_ps(low_f16_to_f32(d_dmin), _mm512_cvtepi32_ps(scales));
    *offset = _mm512_mul_ps(_mm512_xor_ps(high_f16_to_f32(d_dmin), _mm512_set1_ps(-0.0f)), _mm512_cvtepi32_ps(mins));
}

/* Scale of every run; offset only where the type has one. Runs that are not there get zeros. */
QN_INLINE void read_scales(qn_type type, const struct quarter *at, __m512 *scale, __m512 *offset)
{
    switch (type) {
    case QN_TYPE_Q4_K:
    case QN_TYPE_Q5_K: read_k_scales(at, scale, offset); break;
    case QN_TYPE_Q6_K: *scale = broadcast_last_f16(at, 194); break;
    case QN_TYPE_TQ2_0: *scale = broadcast_last_f16(at, 50); break;
    case QN_TYPE_TQ1_0: *scale = broadcast_last_f16(at, 38); break;
    case QN_TYPE_OX2_0: *scale = broadcast_last_f16(at, 18); break;
    default: {
        const __m512i heads = load_block_heads(type, at);
        const __mmask16 there = (__mmask16)(((1u << at->n_groups) - 1) * 0x1111u);
        *scale = _mm512_maskz_mov_ps(there, low_f16_to_f32(heads));
        if (wide_has_offset(type))
            *offset = _mm512_maskz_mov_ps(there, high_f16_to_f32(heads));
    }
    }
}

/* Q6_K: the factors of both halves of every run. */
QN_INLINE void read_factors(const struct quarter *at, __m512i *lo, __m512i *hi)
{
    const __m512i both = _mm512_shuffle_epi8(
        load_4_rows(at, 192), _mm512_broadcast_i32x4(at->half ? _mm_set_epi32(0x0f0e8080, 0x0d0c8080, 0x0b0a8080, 0x09088080)
                                                              : _mm_set_epi32(0x07068080, 0x05048080, 0x03028080, 0x01008080)));
    *lo = _mm512_srai_epi32(_mm512_slli_epi32(both, 8), 24);
    *hi = _mm512_srai_epi32(both, 24);
}

/* One quarter of four rows: the canonical steps of its four runs. type, fine and at->half are constants where this is called,
 * and at->n_groups but for the last quarter of a row. */
QN_INLINE __m512 accumulate_quarter(qn_type type, bool hilo, const struct quarter *at, const qn_acts *acts, size_t group0,
                                    __m512i zero, __m512 partial)
{
    const int8_t *codes = acts->codes[QN_ACT_PLAIN] + group0 * QN_QUANT_GROUP;
    const __m512 act_scale = _mm512_broadcast_f32x4(_mm_loadu_ps(acts->scale + group0));
    const __m512i act_sum = broadcast_128(acts->sum + group0);
    __m512i code[PIECES], sum[QUARTER_RUNS], sum_upper[QUARTER_RUNS], isum;
    __m512 scale, offset;
    read_codes(type, at, code);
    for (int q = 0; q < QUARTER_RUNS; q++) {
        sum[q] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), code[2 * q], broadcast_128(codes + 32 * q));
        sum_upper[q] = type == QN_TYPE_Q6_K ? _mm512_setzero_si512() : sum[q];
        sum_upper[q] = _mm512_dpbusd_epi32(sum_upper[q], code[2 * q + 1], broadcast_128(codes + 32 * q + 16));
    }
    if (hilo) {
        /* Codes below 32 give eight products whose sum stays within 31 * 127 * 8 = 31496: one multiply-add of words brings the
         * first term in, where a product of 32 bits is two shifts or takes a second pass. */
        const int8_t *codes_lo = acts->codes_lo[QN_ACT_PLAIN] + group0 * QN_QUANT_GROUP;
        const bool words = type != QN_TYPE_Q8_0;
        for (int q = 0; q < QUARTER_RUNS; q++) {
            const __m512i first = sum_upper[q], by = _mm512_set1_epi32(QN_HILO_BASE);
            sum_upper[q] = words ? _mm512_setzero_si512() : _mm512_mullo_epi32(first, by);
            sum_upper[q] = _mm512_dpbusd_epi32(sum_upper[q], code[2 * q], broadcast_128(codes_lo + 32 * q));
            sum_upper[q] = _mm512_dpbusd_epi32(sum_upper[q], code[2 * q + 1], broadcast_128(codes_lo + 32 * q + 16));
            if (words)
                sum_upper[q] = _mm512_dpwssd_epi32(sum_upper[q], first, by);
        }
    }
    read_scales(type, at, &scale, &offset);
    if (type == QN_TYPE_Q6_K) {
        const __m512i hi = broadcast_128(acts->sum_upper + group0), lo = _mm512_sub_epi32(act_sum, hi);
        __m512i factor_lower, factor_upper;
        read_factors(at, &factor_lower, &factor_upper);
        const __m512i isum_lower = _mm512_sub_epi32(sum_fours(sum[0], sum[1], sum[2], sum[3]), _mm512_mullo_epi32(lo, zero));
        const __m512i isum_upper =
            _mm512_sub_epi32(sum_fours(sum_upper[0], sum_upper[1], sum_upper[2], sum_upper[3]), _mm512_mullo_epi32(hi, zero));
        isum = _mm512_add_epi32(_mm512_mullo_epi32(isum_lower, factor_lower), _mm512_mullo_epi32(isum_upper, factor_upper));
    } else {
        isum = sum_fours(sum_upper[0], sum_upper[1], sum_upper[2], sum_upper[3]);
        if (!wide_has_offset(type)) /* whose zero is 0 */
            isum = _mm512_sub_epi32(isum, _mm512_mullo_epi32(act_sum, zero));
    }
    partial = _mm512_fmadd_ps(_mm512_cvtepi32_ps(isum), _mm512_mul_ps(scale, act_scale), partial);
    if (wide_has_offset(type))
        partial = _mm512_fmadd_ps(_mm512_cvtepi32_ps(act_sum), _mm512_mul_ps(offset, act_scale), partial);
    return partial;
}

/* The canonical sums of four rows, whose partial sum i is lane i % 4 of the row in vector i / 4, in lanes 0, 4, 8, 12. */
QN_INLINE __m512 sum_rows(const __m512 partial[4])
{
    __m512 p = _mm512_add_ps(_mm512_add_ps(partial[0], partial[2]), _mm512_add_ps(partial[1], partial[3]));
    p = _mm512_add_ps(p, _mm512_permute_ps(p, 0x4e));
    return _mm512_add_ps(p, _mm512_permute_ps(p, 0xb1));
}

/* Asks for the lines that begin in these bytes: the one before was asked for with the bytes before. Returns where they end. */
QN_INLINE const uint8_t *prefetch_lines(const uint8_t *p, size_t bytes, bool to_l1)
{
    for (size_t i = 0; i < (bytes + 63) / 64; i++) {
        const uint8_t *line = p + (64 * i + 63 < bytes ? 64 * i + 63 : bytes - 1);
        if (to_l1)
            _mm_prefetch((const char *)line, _MM_HINT_T0);
        else
            _mm_prefetch((const char *)line, _MM_HINT_T1);
    }
    return p + bytes;
}

/* Up to four rows; where there are fewer the last stands in for the others, and is not written again. */
QN_INLINE void gemv_wide_rows(qn_type type, bool hilo, const qn_matrix *weights, size_t row, size_t n_rows, const qn_acts *acts,
                              size_t token, bool accumulate, float *out)
{
    const size_t quarters = wide_block_weights(type) / QUARTER, n_groups = weights->n_cols / QN_QUANT_GROUP;
    const size_t step = quarters ? quarters : 1; /* quarters that are taken at a time */
    const size_t bytes = wide_block_bytes(type) * (quarters ? 1 : QUARTER_RUNS);
    const __m512i zero = _mm512_set1_epi32(weights->type->zero_point);
    __m512 partial[4];
    struct quarter at = { .n_groups = QUARTER_RUNS };
    for (size_t k = 0; k < 4; k++) {
        at.row[k] = weights->data + (row + (k < n_rows ? k : n_rows - 1)) * weights->row_bytes;
        partial[k] = _mm512_setzero_ps();
    }
    /* Rows are worked on four at a time, but memory is asked for as it lies, whole groups of four ahead: on Zen 4 this reads
     * 17 to 18 GB/s where four streams read 11. What is soon used, and not too fast, comes into the nearest cache; otherwise
     * into the second, which can wait for more lines at once (Q8_0: 19 GB/s in place of 13). */
    const size_t four_rows = 4 * weights->row_bytes, distance = (WIDE_PREFETCH_BYTES + four_rows - 1) / four_rows * four_rows;
    const bool to_l1 = type != QN_TYPE_Q8_0 && distance <= WIDE_PREFETCH_BYTES * 3 / 2;
    const uint8_t *prefetch = at.row[0] + distance;
    size_t group0 = token * acts->n_super * QN_SUPER_GROUPS, i = 0;
    for (; i + step <= n_groups / QUARTER_RUNS; i += step) {
        prefetch = prefetch_lines(prefetch, 4 * bytes, to_l1);
        for (size_t half = 0; half < step; half++, group0 += QUARTER_RUNS) {
            at.half = half;
            partial[(i + half) % 4] = accumulate_quarter(type, hilo, &at, acts, group0, zero, partial[(i + half) % 4]);
        }
        for (size_t k = 0; k < 4; k++)
            at.row[k] += bytes;
    }
    if (!quarters && n_groups % QUARTER_RUNS) {
        prefetch_lines(prefetch, 4 * (n_groups % QUARTER_RUNS) * wide_block_bytes(type), to_l1);
        at.n_groups = n_groups % QUARTER_RUNS;
        partial[i % 4] = accumulate_quarter(type, hilo, &at, acts, group0, zero, partial[i % 4]);
    }
    const __m512i firsts = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
    __m128 sums = _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, sum_rows(partial)));
    const __mmask8 rows = (__mmask8)((1u << n_rows) - 1);
    if (accumulate)
        sums = _mm_add_ps(_mm_maskz_loadu_ps(rows, out + row), sums);
    _mm_mask_storeu_ps(out + row, rows, sums);
}

/* A function of its own for each type, so that the compiler sees the constants. */
#define GEMV_WIDE_KERNEL(name, type, hilo)                                                                                     \
    static void name(const qn_matrix *weights, size_t row_begin, size_t row_end, const qn_acts *acts, size_t token,            \
                     bool accumulate, float *out)                                                                              \
    {                                                                                                                          \
        for (size_t row = row_begin; row < row_end; row += 4)                                                                  \
            gemv_wide_rows(type, hilo, weights, row, row_end - row < 4 ? row_end - row : 4, acts, token, accumulate, out);     \
    }

GEMV_WIDE_KERNEL(gemv_q4_0, QN_TYPE_Q4_0, false)
GEMV_WIDE_KERNEL(gemv_q4_1, QN_TYPE_Q4_1, false)
GEMV_WIDE_KERNEL(gemv_q5_0, QN_TYPE_Q5_0, false)
GEMV_WIDE_KERNEL(gemv_q5_1, QN_TYPE_Q5_1, false)
GEMV_WIDE_KERNEL(gemv_q8_0, QN_TYPE_Q8_0, false)
GEMV_WIDE_KERNEL(gemv_q4_k, QN_TYPE_Q4_K, false)
GEMV_WIDE_KERNEL(gemv_q5_k, QN_TYPE_Q5_K, false)
GEMV_WIDE_KERNEL(gemv_q6_k, QN_TYPE_Q6_K, false)
GEMV_WIDE_KERNEL(gemv_tq1_0, QN_TYPE_TQ1_0, false)
GEMV_WIDE_KERNEL(gemv_tq2_0, QN_TYPE_TQ2_0, false)
GEMV_WIDE_KERNEL(gemv_ox2_0, QN_TYPE_OX2_0, false)
GEMV_WIDE_KERNEL(gemv_q4_0_hilo, QN_TYPE_Q4_0, true)
GEMV_WIDE_KERNEL(gemv_q4_1_hilo, QN_TYPE_Q4_1, true)
GEMV_WIDE_KERNEL(gemv_q5_0_hilo, QN_TYPE_Q5_0, true)
GEMV_WIDE_KERNEL(gemv_q5_1_hilo, QN_TYPE_Q5_1, true)
GEMV_WIDE_KERNEL(gemv_q8_0_hilo, QN_TYPE_Q8_0, true)
GEMV_WIDE_KERNEL(gemv_q4_k_hilo, QN_TYPE_Q4_K, true)
GEMV_WIDE_KERNEL(gemv_q5_k_hilo, QN_TYPE_Q5_K, true)
GEMV_WIDE_KERNEL(gemv_tq1_0_hilo, QN_TYPE_TQ1_0, true)
GEMV_WIDE_KERNEL(gemv_tq2_0_hilo, QN_TYPE_TQ2_0, true)
GEMV_WIDE_KERNEL(gemv_ox2_0_hilo, QN_TYPE_OX2_0, true)

/* The product of one token for a type of this file, which reads QN_ACT_PLAIN; NULL for other types. */
static qn_gemv_fn gemv_wide(const qn_type_info *type, bool hilo)
{
    switch (type->type) {
    case QN_TYPE_Q4_0: return hilo ? gemv_q4_0_hilo : gemv_q4_0;
    case QN_TYPE_Q4_1: return hilo ? gemv_q4_1_hilo : gemv_q4_1;
    case QN_TYPE_Q5_0: return hilo ? gemv_q5_0_hilo : gemv_q5_0;
    case QN_TYPE_Q5_1: return hilo ? gemv_q5_1_hilo : gemv_q5_1;
    case QN_TYPE_Q8_0: return hilo ? gemv_q8_0_hilo : gemv_q8_0;
    case QN_TYPE_Q4_K: return hilo ? gemv_q4_k_hilo : gemv_q4_k;
    case QN_TYPE_Q5_K: return hilo ? gemv_q5_k_hilo : gemv_q5_k;
    case QN_TYPE_Q6_K: return hilo ? NULL : gemv_q6_k;
    case QN_TYPE_TQ1_0: return hilo ? gemv_tq1_0_hilo : gemv_tq1_0;
    case QN_TYPE_TQ2_0: return hilo ? gemv_tq2_0_hilo : gemv_tq2_0;
    case QN_TYPE_OX2_0: return hilo ? gemv_ox2_0_hilo : gemv_ox2_0;
    default: return NULL;
    }
}

/* ---- Unpacking: the four quarters of a super-block in place of four rows ---- */

/* Pieces of the quarters, vectors 2q and 2q + 1 those of run q, to the form of tiles: lane 4k + q of vector v is to hold values
 * 4v to 4v + 3 of run q of quarter k. In place if asked. */
QN_INLINE void interleave_pieces(const __m512i piece[PIECES], __m512i code[PIECES])
{
    __m512i ab_low[2], ab_high[2], cd_low[2], cd_high[2];
    for (int h = 0; h < 2; h++) {
        ab_low[h] = _mm512_unpacklo_epi32(piece[h], piece[2 + h]);
        ab_high[h] = _mm512_unpackhi_epi32(piece[h], piece[2 + h]);
        cd_low[h] = _mm512_unpacklo_epi32(piece[4 + h], piece[6 + h]);
        cd_high[h] = _mm512_unpackhi_epi32(piece[4 + h], piece[6 + h]);
    }
    for (int h = 0; h < 2; h++) {
        code[4 * h] = _mm512_unpacklo_epi64(ab_low[h], cd_low[h]);
        code[4 * h + 1] = _mm512_unpackhi_epi64(ab_low[h], cd_low[h]);
        code[4 * h + 2] = _mm512_unpacklo_epi64(ab_high[h], cd_high[h]);
        code[4 * h + 3] = _mm512_unpackhi_epi64(ab_high[h], cd_high[h]);
    }
}

/* A whole super-block. Of two blocks of 256 both halves are read for lanes 0, 1 and 2, 3, and each lane keeps its own. */
QN_INLINE void unpack_wide_super(qn_type type, const uint8_t *blocks, qn_super_block *out)
{
    const size_t block_bytes = wide_block_bytes(type), weights = wide_block_weights(type);
    const __mmask16 second = 0xf0f0;
    struct quarter at = { .n_groups = QUARTER_RUNS };
    for (size_t k = 0; k < 4; k++)
        at.row[k] = blocks + k * QUARTER / weights * block_bytes;
    __m512i code[PIECES], other[PIECES], factor_lower, factor_upper;
    __m512 scale, offset;
    read_codes(type, &at, code);
    read_scales(type, &at, &scale, &offset);
    if (type == QN_TYPE_Q6_K)
        read_factors(&at, &factor_lower, &factor_upper);
    if (weights == 256) {
        __m512 other_scale, other_offset;
        at.half = 1;
        read_codes(type, &at, other);
        read_scales(type, &at, &other_scale, &other_offset);
        for (int i = 0; i < PIECES; i++)
            code[i] = _mm512_mask_blend_epi32(second, code[i], other[i]);
        scale = _mm512_mask_blend_ps(second, scale, other_scale);
        if (wide_has_offset(type))
            offset = _mm512_mask_blend_ps(second, offset, other_offset);
        if (type == QN_TYPE_Q6_K) {
            __m512i other_lo, other_hi;
            read_factors(&at, &other_lo, &other_hi);
            factor_lower = _mm512_mask_blend_epi32(second, factor_lower, other_lo);
            factor_upper = _mm512_mask_blend_epi32(second, factor_upper, other_hi);
        }
    }
    interleave_pieces(code, code);
    for (int v = 0; v < PIECES; v++)
        _mm512_store_si512(out->codes + 64 * v, code[v]);
    _mm512_storeu_ps(out->scale, scale);
    if (wide_has_offset(type))
        _mm512_storeu_ps(out->offset, offset);
    if (type == QN_TYPE_Q6_K) {
        _mm512_storeu_si512(out->factor_lower, factor_lower);
        _mm512_storeu_si512(out->factor_upper, factor_upper);
    }
}

/* Unpacks for types of this file, and says whether it is one. A super-block that the row does not fill is completed with zeros:
 * blocks without a scale. */
static bool unpack_wide(const qn_type_info *type, const uint8_t *blocks, size_t n_blocks, qn_super_block *out)
{
    uint8_t padded[QN_SUPER / QN_QUANT_GROUP * 34]; /* Q8_0 takes the most */
    if (qn_act_layout_of(type) != QN_ACT_INTERLEAVED || type->block_weights == 128)
        return false;
    if (n_blocks * type->block_weights < QN_SUPER) {
        memset(padded, 0, sizeof padded);
        memcpy(padded, blocks, n_blocks * type->block_bytes);
        blocks = padded;
    }
    switch (type->type) {
    case QN_TYPE_Q4_0: unpack_wide_super(QN_TYPE_Q4_0, blocks, out); return true;
    case QN_TYPE_Q4_1: unpack_wide_super(QN_TYPE_Q4_1, blocks, out); return true;
    case QN_TYPE_Q5_0: unpack_wide_super(QN_TYPE_Q5_0, blocks, out); return true;
    case QN_TYPE_Q5_1: unpack_wide_super(QN_TYPE_Q5_1, blocks, out); return true;
    case QN_TYPE_Q8_0: unpack_wide_super(QN_TYPE_Q8_0, blocks, out); return true;
    case QN_TYPE_Q4_K: unpack_wide_super(QN_TYPE_Q4_K, blocks, out); return true;
    case QN_TYPE_Q5_K: unpack_wide_super(QN_TYPE_Q5_K, blocks, out); return true;
    case QN_TYPE_Q6_K: unpack_wide_super(QN_TYPE_Q6_K, blocks, out); return true;
    case QN_TYPE_TQ1_0: unpack_wide_super(QN_TYPE_TQ1_0, blocks, out); return true;
    case QN_TYPE_TQ2_0: unpack_wide_super(QN_TYPE_TQ2_0, blocks, out); return true;
    default: return false;
    }
}

#endif
