/* Conversion of weights for AVX-512: comparisons give the codes as masks. */
#include "quant/quant_kernels.h"

#include "quant/layout.h"
#include "quant/trits_simd.h"

static void dequantize_bf16(const uint8_t *blocks, size_t n_blocks, float *weights)
{
    size_t i = 0;
    for (; n_blocks - i >= 16; i += 16) {
        const __m256i values = _mm256_loadu_si256((const __m256i *)(const void *)(blocks + 2 * i));
        _mm512_storeu_ps(weights + i, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16)));
    }
    qn_dequantize_bf16(blocks + 2 * i, n_blocks - i, weights + i);
}

static size_t find_nonfinite_bf16(const uint8_t *blocks, size_t n_blocks)
{
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    size_t i = 0;
    for (; n_blocks - i >= 128; i += 128) {
        __mmask32 bad = 0;
        for (size_t j = 0; j < 128; j += 32) {
            const __m512i values = _mm512_loadu_si512(blocks + 2 * (i + j));
            bad |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(values, exponent), exponent);
        }
        if (bad)
            break;
    }
    return i + qn_find_nonfinite_bf16(blocks + 2 * i, n_blocks - i);
}

/* The larger of two magnitudes, without a sign. */
static inline __m512 larger_magnitude(__m512 a, __m512 b)
{
    return _mm512_range_ps(a, b, 0xb);
}

static inline __m512i magnitudes(const float *weights)
{
    return _mm512_and_si512(_mm512_loadu_si512(weights), _mm512_set1_epi32(0x7fffffff));
}

static void quantize_q1_0(const float *weights, size_t n_blocks, uint8_t *blocks)
{
    for (size_t b = 0; b < n_blocks; b++, weights += QN_Q1_0_WEIGHTS, blocks += QN_Q1_0_BYTES) {
        const uint32_t first = qn_f32_bits(weights[0]) & 0x7fffffff;
        __mmask16 differ = 0;
        for (size_t i = 0; i < QN_Q1_0_WEIGHTS; i += 16) {
            const uint16_t signs = _mm512_cmp_ps_mask(_mm512_loadu_ps(weights + i), _mm512_setzero_ps(), _CMP_GE_OQ);
            memcpy(blocks + QN_Q1_0_CODES + i / 8, &signs, sizeof signs);
            differ |= _mm512_cmpneq_epi32_mask(magnitudes(weights + i), _mm512_set1_epi32((int32_t)first));
        }
        if (differ)
            qn_quantize_mixed_q1_0(weights, 1, blocks);
        else
            qn_store_f16(blocks + QN_Q1_0_SCALE, qn_f32_to_f16_satfinite(qn_bits_f32(first)));
    }
}

static void unpack_q1_0(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset,
                        int8_t *factor)
{
    (void)offset, (void)factor;
    for (size_t b = 0; b < n_blocks; b++, blocks += QN_Q1_0_BYTES) {
        const float d = qn_load_f16(blocks + QN_Q1_0_SCALE);
        for (size_t r = 0; r < QN_Q1_0_WEIGHTS / QN_QUANT_GROUP; r++)
            *scale++ = d;
        for (size_t i = 0; i < QN_Q1_0_WEIGHTS; i += 64, codes += 64) {
            uint64_t bits;
            memcpy(&bits, blocks + QN_Q1_0_CODES + i / 8, sizeof bits);
            _mm512_storeu_si512(codes, _mm512_maskz_mov_epi8(bits, _mm512_set1_epi8(2)));
        }
    }
}

/* Adds `place` times the code of 16 (8) weights, minus 1: +1 from the bound on, -1 down from its negative. The
 * caller has added the ones. */
static inline __m512i add_digits(__m512i values, const float *weights, float bound, int32_t place)
{
    const __m512 x = _mm512_loadu_ps(weights);
    const __m512i one = _mm512_set1_epi32(place);
    values = _mm512_mask_add_epi32(values, _mm512_cmp_ps_mask(x, _mm512_set1_ps(bound), _CMP_GE_OQ), values, one);
    return _mm512_mask_sub_epi32(values, _mm512_cmp_ps_mask(x, _mm512_set1_ps(-bound), _CMP_LE_OQ), values, one);
}

static inline __m256i add_8_digits(__m256i values, const float *weights, float bound, __m256i place)
{
    const __m256 x = _mm256_loadu_ps(weights);
    values = _mm256_mask_add_epi32(values, _mm256_cmp_ps_mask(x, _mm256_set1_ps(bound), _CMP_GE_OQ), values, place);
    return _mm256_mask_sub_epi32(values, _mm256_cmp_ps_mask(x, _mm256_set1_ps(-bound), _CMP_LE_OQ), values, place);
}

/* Returns ceil(256 v / 243) for v up to 242, by a multiplication and shift that divide 256 v + 242 exactly; 16
 * bytes. */
static inline __m128i fractions(__m512i values)
{
    const __m512i dividend = _mm512_add_epi32(_mm512_slli_epi32(values, 8), _mm512_set1_epi32(242));
    return _mm512_cvtepi32_epi8(_mm512_srli_epi32(_mm512_mullo_epi32(dividend, _mm512_set1_epi32(69043)), 24));
}

/* Stores the ranges of qn_trit_place. Each vector holds one digit of all bytes of a range; for the last range it
 * holds all digits. */
static inline void store_ptq1_0(const float *weights, float bound, uint8_t *block)
{
    static const int32_t places[] = { 81, 27, 9, 3, 1 };
    const __m256i tail_places = _mm256_setr_epi32(81, 81, 27, 27, 9, 9, 3, 3);
    __m512i first = _mm512_set1_epi32(121); /* the sum of the places */
    __m256i second = _mm256_set1_epi32(121), tail = tail_places;
    for (size_t digit = 0; digit < 5; digit++) {
        first = add_digits(first, weights + 16 * digit, bound, places[digit]);
        second = add_8_digits(second, weights + 80 + 8 * digit, bound, _mm256_set1_epi32(places[digit]));
    }
    tail = add_8_digits(tail, weights + 120, bound, tail_places);
    __m128i third = _mm_add_epi32(_mm256_castsi256_si128(tail), _mm256_extracti128_si256(tail, 1));
    third = _mm_add_epi32(third, _mm_shuffle_epi32(third, 0x4e));
    const __m128i high =
        fractions(_mm512_inserti64x4(_mm512_castsi256_si512(second), _mm256_castsi128_si256(third), 1));
    const uint16_t last = (uint16_t)_mm_extract_epi16(high, 4);
    _mm_storeu_si128((__m128i *)(void *)block, fractions(first));
    _mm_storel_epi64((__m128i *)(void *)(block + 16), high);
    memcpy(block + 24, &last, sizeof last);
}

static void quantize_ptq1_0(const float *weights, size_t n_blocks, uint8_t *blocks)
{
    for (size_t b = 0; b < n_blocks; b++, weights += QN_PTQ1_0_WEIGHTS, blocks += QN_PTQ1_0_BYTES) {
        __m512 largest = _mm512_setzero_ps();
        for (size_t i = 0; i < QN_PTQ1_0_WEIGHTS; i += 16)
            largest = larger_magnitude(largest, _mm512_loadu_ps(weights + i));
        const float d = fminf(_mm512_reduce_max_ps(largest), QN_F16_MAX);
        const __m128i scale = _mm_cvtps_ph(_mm_set_ss(d), _MM_FROUND_TO_NEAREST_INT);
        store_ptq1_0(weights, qn_ternary_bound(_mm_cvtss_f32(_mm_cvtph_ps(scale))), blocks);
        qn_store_f16(blocks + QN_PTQ1_0_SCALE, (uint16_t)_mm_cvtsi128_si32(scale));
    }
}

static uint32_t largest_difference(const float *weights, const uint8_t *codes, const float *scales, int zero_point,
                                   size_t n)
{
    const __m512i all_codes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512 units = _mm512_cvtepi32_ps(_mm512_sub_epi32(all_codes, _mm512_set1_epi32(zero_point)));
    __m512 largest[2] = { _mm512_setzero_ps(), _mm512_setzero_ps() };
    for (size_t i = 0; i < n; i += QN_QUANT_GROUP) {
        const __m512 values = _mm512_mul_ps(_mm512_set1_ps(scales[i / QN_QUANT_GROUP]), units);
        for (size_t j = 0; j < 2; j++) {
            const size_t at = i + 16 * j;
            const __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(codes + at)));
            const __m512 value = _mm512_permutexvar_ps(code, values);
            largest[j] = larger_magnitude(largest[j], _mm512_sub_ps(_mm512_loadu_ps(weights + at), value));
        }
    }
    return qn_f32_bits(_mm512_reduce_max_ps(larger_magnitude(largest[0], largest[1])));
}

static size_t pack_q1_0(qn_type source, const uint8_t *weights, size_t n_blocks, uint8_t *blocks)
{
    for (size_t b = 0; b < n_blocks; b++, weights += 2 * QN_Q1_0_WEIGHTS, blocks += QN_Q1_0_BYTES) {
        uint16_t first, scale;
        memcpy(&first, weights, sizeof first);
        const uint16_t magnitude = first & 0x7fff;
        const __m512i all = _mm512_set1_epi16((int16_t)magnitude), magnitude_bits = _mm512_set1_epi16(0x7fff);
        __mmask32 differ = 0;
        for (size_t i = 0; i < QN_Q1_0_WEIGHTS; i += 32) {
            const __m512i x = _mm512_loadu_si512(weights + 2 * i);
            const uint32_t codes = magnitude ? ~_mm512_movepi16_mask(x) : ~0u;
            differ |= _mm512_cmpneq_epi16_mask(_mm512_and_si512(x, magnitude_bits), all);
            memcpy(blocks + QN_Q1_0_CODES + i / 8, &codes, sizeof codes);
        }
        if (differ || !qn_exact_scale(source, magnitude, &scale))
            return b;
        qn_store_f16(blocks + QN_Q1_0_SCALE, scale);
    }
    return n_blocks;
}

static inline uint16_t largest_of_32(__m512i magnitudes)
{
    const __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(magnitudes), _mm512_extracti64x4_epi64(magnitudes, 1));
    return largest_of_8(_mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)));
}

static size_t pack_ptq1_0(qn_type source, const uint8_t *weights, size_t n_blocks, uint8_t *blocks)
{
    const __m512i magnitude_bits = _mm512_set1_epi16(0x7fff), ones = _mm512_set1_epi8(1);
    for (size_t b = 0; b < n_blocks; b++, weights += 2 * QN_PTQ1_0_WEIGHTS, blocks += QN_PTQ1_0_BYTES) {
        uint8_t codes[QN_PTQ1_0_WEIGHTS];
        uint16_t scale;
        __m512i x[4], largest = _mm512_setzero_si512();
        for (size_t i = 0; i < 4; i++) {
            x[i] = _mm512_loadu_si512(weights + 64 * i);
            largest = _mm512_max_epu16(largest, _mm512_and_si512(x[i], magnitude_bits));
        }
        const uint16_t magnitude = largest_of_32(largest);
        /* In a block of zeros `plus` and `minus` are both 0, so a zero matches both and keeps code 1. */
        const __m512i plus = _mm512_set1_epi16((int16_t)magnitude);
        const __m512i minus = _mm512_set1_epi16((int16_t)(magnitude ? magnitude | 0x8000 : 0));
        __mmask64 known = ~(__mmask64)0;
        for (size_t i = 0; i < 4; i += 2) {
            const __mmask64 is_plus =
                _mm512_cmpeq_epi16_mask(x[i], plus) | (__mmask64)_mm512_cmpeq_epi16_mask(x[i + 1], plus) << 32;
            const __mmask64 is_minus =
                _mm512_cmpeq_epi16_mask(x[i], minus) | (__mmask64)_mm512_cmpeq_epi16_mask(x[i + 1], minus) << 32;
            const __mmask64 is_zero = _mm512_testn_epi16_mask(x[i], magnitude_bits) |
                                      (__mmask64)_mm512_testn_epi16_mask(x[i + 1], magnitude_bits) << 32;
            const __m512i code = _mm512_mask_add_epi8(ones, is_plus, ones, ones);
            known &= is_plus | is_minus | is_zero;
            _mm512_storeu_si512(codes + 32 * i, _mm512_mask_sub_epi8(code, is_minus, code, ones));
        }
        if (~known || !qn_exact_scale(source, magnitude, &scale))
            return b;
        store_ptq1_0_codes(codes, scale, blocks);
    }
    return n_blocks;
}

void qn_quant_init_avx512(qn_quant_kernels *kernels)
{
    *kernels = (qn_quant_kernels){
        .dequantize_bf16 = dequantize_bf16,
        .find_nonfinite_bf16 = find_nonfinite_bf16,
        .quantize_q1_0 = quantize_q1_0,
        .quantize_ptq1_0 = quantize_ptq1_0,
        .unpack_q1_0 = unpack_q1_0,
        .unpack_ptq1_0 = unpack_ptq1_0,
        .largest_difference = largest_difference,
        .pack_q1_0 = pack_q1_0,
        .pack_ptq1_0 = pack_ptq1_0,
    };
}
