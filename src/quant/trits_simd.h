/* Codes of PTQ1_0 for the AVX2 and AVX-512 variants. In each range of qn_trit_place, the codes of digit n of all
 * bytes are contiguous, so a vector with all bytes of a block yields one digit of each. */
#ifndef QN_QUANT_TRITS_SIMD_H
#define QN_QUANT_TRITS_SIMD_H

#include "quant/families.h"
#include "quant/layout.h"

#include <immintrin.h>

/* Offsets of the codes of the second and third range: 16 bytes of five digits, 8 bytes of five, 2 bytes of four. */
enum { PTQ1_0_RANGE2 = 80, PTQ1_0_RANGE3 = 120 };

/* The largest of eight 16-bit magnitudes. */
static inline uint16_t largest_of_8(__m128i magnitudes)
{
    const __m128i all_bits = _mm_set1_epi16(-1);
    return (uint16_t)~_mm_extract_epi16(_mm_minpos_epu16(_mm_xor_si128(magnitudes, all_bits)), 0);
}

static inline void unpack_ptq1_0(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset,
                                 int8_t *factor)
{
    (void)offset, (void)factor;
    const __m256i first = _mm256_set1_epi8(86), second = _mm256_set1_epi8((char)171);
    for (size_t b = 0; b < n_blocks; b++, blocks += QN_PTQ1_0_BYTES, codes += QN_PTQ1_0_WEIGHTS, scale += 4) {
        /* The second load begins at byte 12 instead of 16, then shifts by 4: a block ends after 28 bytes. */
        const __m128i end = _mm_srli_si128(_mm_loadu_si128((const __m128i *)(const void *)(blocks + 12)), 4);
        __m256i x = _mm256_inserti128_si256(
            _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)blocks)), end, 1);
        _mm_storeu_ps(scale, _mm_set1_ps(qn_load_f16(blocks + QN_PTQ1_0_SCALE)));
        for (size_t digit = 0; digit < 5; digit++) {
            /* The highest digit is (x >= 86) + (x >= 171); 3 x mod 256 carries the next one up. */
            const __m256i one = _mm256_cmpeq_epi8(_mm256_max_epu8(x, first), x);
            const __m256i two = _mm256_cmpeq_epi8(_mm256_max_epu8(x, second), x);
            const __m256i code = _mm256_sub_epi8(_mm256_setzero_si256(), _mm256_add_epi8(one, two));
            const __m128i high = _mm256_extracti128_si256(code, 1);
            _mm_storeu_si128((__m128i *)(void *)(codes + 16 * digit), _mm256_castsi256_si128(code));
            _mm_storel_epi64((__m128i *)(void *)(codes + PTQ1_0_RANGE2 + 8 * digit), high);
            if (digit < 4) {
                const uint16_t tail = (uint16_t)_mm_extract_epi16(high, 4);
                memcpy(codes + PTQ1_0_RANGE3 + 2 * digit, &tail, sizeof tail);
            }
            x = _mm256_add_epi8(x, _mm256_add_epi8(x, x));
        }
    }
}

static inline __m128i load_digits(const uint8_t *codes, size_t width)
{
    int32_t two = 0;
    if (width == 16)
        return _mm_loadu_si128((const __m128i *)(const void *)codes);
    if (width == 8)
        return _mm_loadl_epi64((const __m128i *)(const void *)codes);
    memcpy(&two, codes, 2);
    return _mm_cvtsi32_si128(two);
}

/* Returns 81 t0 + 27 t1 + 9 t2 + 3 t3 + t4 of each byte; at most 242. Called with constants. */
static inline __m128i join_digits(const uint8_t *codes, size_t width, size_t n_digits)
{
    __m128i value = load_digits(codes, width);
    for (size_t digit = 1; digit < 5; digit++) {
        value = _mm_add_epi8(value, _mm_add_epi8(value, value));
        if (digit < n_digits)
            value = _mm_add_epi8(value, load_digits(codes + digit * width, width));
    }
    return value;
}

/* Returns ceil(256 v / 243) = v + ceil(13 v / 243). The multiplication and shift divide by 243 exactly up to 3388 = 13
 * * 242 + 242. */
static inline __m128i byte_fractions(__m128i values)
{
    const __m256i v = _mm256_cvtepu8_epi16(values);
    const __m256i dividend = _mm256_add_epi16(_mm256_mullo_epi16(v, _mm256_set1_epi16(13)), _mm256_set1_epi16(242));
    const __m256i quotient = _mm256_srli_epi16(_mm256_mulhi_epu16(dividend, _mm256_set1_epi16(17261)), 6);
    const __m256i sum = _mm256_add_epi16(v, quotient); /* at most 255 */
    return _mm_packus_epi16(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
}

static inline void store_ptq1_0_codes(const uint8_t *codes, uint16_t scale, uint8_t *block)
{
    const __m128i low = byte_fractions(join_digits(codes, 16, 5));
    const __m128i middle = join_digits(codes + PTQ1_0_RANGE2, 8, 5), last = join_digits(codes + PTQ1_0_RANGE3, 2, 4);
    const __m128i high = byte_fractions(_mm_unpacklo_epi64(middle, last));
    const uint16_t tail = (uint16_t)_mm_extract_epi16(high, 4);
    _mm_storeu_si128((__m128i *)(void *)block, low);
    _mm_storel_epi64((__m128i *)(void *)(block + 16), high);
    memcpy(block + 24, &tail, sizeof tail);
    qn_store_f16(block + QN_PTQ1_0_SCALE, scale);
}

#endif
