/* Conversion of weights for AVX2. */
#include "quant/quant_kernels.h"

#include "quant/layout.h"
#include "quant/trits_simd.h"

static void dequantize_bf16(const uint8_t *blocks, size_t n_blocks, float *weights)
{
    size_t i = 0;
    for (; n_blocks - i >= 8; i += 8) {
        const __m128i values = _mm_loadu_si128((const __m128i *)(const void *)(blocks + 2 * i));
        _mm256_storeu_ps(weights + i, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(values), 16)));
    }
    qn_dequantize_bf16(blocks + 2 * i, n_blocks - i, weights + i);
}

static size_t find_nonfinite_bf16(const uint8_t *blocks, size_t n_blocks)
{
    const __m256i exponent = _mm256_set1_epi16(0x7f80);
    size_t i = 0;
    for (; n_blocks - i >= 64; i += 64) {
        __m256i bad = _mm256_setzero_si256();
        for (size_t j = 0; j < 64; j += 16) {
            const __m256i values = _mm256_loadu_si256((const __m256i *)(const void *)(blocks + 2 * (i + j)));
            bad = _mm256_or_si256(bad, _mm256_cmpeq_epi16(_mm256_and_si256(values, exponent), exponent));
        }
        if (!_mm256_testz_si256(bad, bad))
            break;
    }
    return i + qn_find_nonfinite_bf16(blocks + 2 * i, n_blocks - i);
}

static inline __m256i magnitudes(const float *weights)
{
    const __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(weights));
    return _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
}

static void quantize_q1_0(const float *weights, size_t n_blocks, uint8_t *blocks)
{
    for (size_t b = 0; b < n_blocks; b++, weights += QN_Q1_0_WEIGHTS, blocks += QN_Q1_0_BYTES) {
        const uint32_t first = qn_f32_bits(weights[0]) & 0x7fffffff;
        __m256i differ = _mm256_setzero_si256();
        for (size_t i = 0; i < QN_Q1_0_WEIGHTS; i += 8) {
            const __m256 signs = _mm256_cmp_ps(_mm256_loadu_ps(weights + i), _mm256_setzero_ps(), _CMP_GE_OQ);
            blocks[QN_Q1_0_CODES + i / 8] = (uint8_t)_mm256_movemask_ps(signs);
            differ =
                _mm256_or_si256(differ, _mm256_xor_si256(magnitudes(weights + i), _mm256_set1_epi32((int32_t)first)));
        }
        if (_mm256_testz_si256(differ, differ))
            qn_store_f16(blocks + QN_Q1_0_SCALE, qn_f32_to_f16_satfinite(qn_bits_f32(first)));
        else
            qn_quantize_mixed_q1_0(weights, 1, blocks);
    }
}

static void unpack_q1_0(const uint8_t *blocks, size_t n_blocks, uint8_t *codes, float *scale, float *offset,
                        int8_t *factor)
{
    (void)offset, (void)factor;
    const __m256i bytes = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bits = _mm256_set1_epi64x((int64_t)0x8040201008040201);
    for (size_t b = 0; b < n_blocks; b++, blocks += QN_Q1_0_BYTES)
        for (size_t r = 0; r < QN_Q1_0_WEIGHTS / QN_QUANT_GROUP; r++, codes += QN_QUANT_GROUP) {
            int32_t word;
            memcpy(&word, blocks + QN_Q1_0_CODES + 4 * r, sizeof word);
            const __m256i own = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(word), bytes), bits);
            _mm256_storeu_si256((__m256i *)(void *)codes,
                                _mm256_and_si256(_mm256_cmpeq_epi8(own, bits), _mm256_set1_epi8(2)));
            *scale++ = qn_load_f16(blocks + QN_Q1_0_SCALE);
        }
}

/* Returns the codes of 8 weights as int32. */
static inline __m256i ternary_codes(const float *weights, float bound)
{
    const __m256 x = _mm256_loadu_ps(weights);
    const __m256i ge = _mm256_castps_si256(_mm256_cmp_ps(x, _mm256_set1_ps(bound), _CMP_GE_OQ));
    const __m256i le = _mm256_castps_si256(_mm256_cmp_ps(x, _mm256_set1_ps(-bound), _CMP_LE_OQ));
    return _mm256_add_epi32(_mm256_sub_epi32(_mm256_set1_epi32(1), ge), le);
}

static void quantize_ptq1_0(const float *weights, size_t n_blocks, uint8_t *blocks)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); /* packing works in 128-bit lanes */
    for (size_t b = 0; b < n_blocks; b++, weights += QN_PTQ1_0_WEIGHTS, blocks += QN_PTQ1_0_BYTES) {
        uint8_t codes[QN_PTQ1_0_WEIGHTS];
        __m256i largest = _mm256_setzero_si256();
        for (size_t i = 0; i < QN_PTQ1_0_WEIGHTS; i += 8)
            largest = _mm256_max_epi32(largest, magnitudes(weights + i));
        __m128i one = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
        one = _mm_max_epi32(one, _mm_shuffle_epi32(one, 0x4e));
        one = _mm_max_epi32(one, _mm_shuffle_epi32(one, 0xb1));
        const uint16_t scale = qn_f32_to_f16_satfinite(qn_bits_f32((uint32_t)_mm_cvtsi128_si32(one)));
        const float bound = qn_ternary_bound(qn_f16_to_f32(scale));
        for (size_t i = 0; i < QN_PTQ1_0_WEIGHTS; i += 32) {
            const __m256i low =
                _mm256_packs_epi32(ternary_codes(weights + i, bound), ternary_codes(weights + i + 8, bound));
            const __m256i high =
                _mm256_packs_epi32(ternary_codes(weights + i + 16, bound), ternary_codes(weights + i + 24, bound));
            _mm256_storeu_si256((__m256i *)(void *)(codes + i),
                                _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order));
        }
        store_ptq1_0_codes(codes, scale, blocks);
    }
}

static uint32_t largest_difference(const float *weights, const uint8_t *codes, const float *scales, int zero_point,
                                   size_t n)
{
    const __m256i all_codes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256 units = _mm256_cvtepi32_ps(_mm256_sub_epi32(all_codes, _mm256_set1_epi32(zero_point)));
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 largest[2] = { _mm256_setzero_ps(), _mm256_setzero_ps() };
    for (size_t i = 0; i < n; i += QN_QUANT_GROUP) {
        const __m256 values = _mm256_mul_ps(_mm256_set1_ps(scales[i / QN_QUANT_GROUP]), units);
        for (size_t j = 0; j < QN_QUANT_GROUP / 8; j++) {
            const size_t at = i + 8 * j;
            const __m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(codes + at)));
            const __m256 value = _mm256_permutevar8x32_ps(values, code);
            const __m256 difference = _mm256_sub_ps(_mm256_loadu_ps(weights + at), value);
            largest[j % 2] = _mm256_max_ps(largest[j % 2], _mm256_andnot_ps(sign, difference));
        }
    }
    float lanes[8], all = 0;
    _mm256_storeu_ps(lanes, _mm256_max_ps(largest[0], largest[1]));
    for (size_t i = 0; i < 8; i++)
        all = lanes[i] > all ? lanes[i] : all;
    return qn_f32_bits(all);
}

static inline __m256i load_16(const uint8_t *weights, size_t i)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)(weights + 2 * i));
}

/* Packs two vectors of 16-bit values to bytes, in order: packing works in 128-bit lanes. */
static inline __m256i join_bytes(__m256i low, __m256i high)
{
    return _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8);
}

static size_t pack_q1_0(qn_type source, const uint8_t *weights, size_t n_blocks, uint8_t *blocks)
{
    const __m256i magnitude_bits = _mm256_set1_epi16(0x7fff);
    for (size_t b = 0; b < n_blocks; b++, weights += 2 * QN_Q1_0_WEIGHTS, blocks += QN_Q1_0_BYTES) {
        const uint16_t magnitude =
            (uint16_t)_mm256_extract_epi16(_mm256_and_si256(load_16(weights, 0), magnitude_bits), 0);
        const __m256i all = _mm256_set1_epi16((int16_t)magnitude);
        __m256i differ = _mm256_setzero_si256();
        uint16_t scale;
        for (size_t i = 0; i < QN_Q1_0_WEIGHTS; i += 32) {
            const __m256i low = load_16(weights, i), high = load_16(weights, i + 16);
            differ = _mm256_or_si256(differ, _mm256_xor_si256(_mm256_and_si256(low, magnitude_bits), all));
            differ = _mm256_or_si256(differ, _mm256_xor_si256(_mm256_and_si256(high, magnitude_bits), all));
            const uint32_t negative = (uint32_t)_mm256_movemask_epi8(join_bytes(low, high)),
                           codes = magnitude ? ~negative : ~0u;
            memcpy(blocks + QN_Q1_0_CODES + i / 8, &codes, sizeof codes);
        }
        if (!_mm256_testz_si256(differ, differ) || !qn_exact_scale(source, magnitude, &scale))
            return b;
        qn_store_f16(blocks + QN_Q1_0_SCALE, scale);
    }
    return n_blocks;
}

/* The codes, 1 plus the sign, of 32 weights of magnitude `all`. Others give 1, and set bits in *other unless they
 * are 0. */
static inline __m256i sign_codes(const uint8_t *weights, __m256i all, __m256i *other)
{
    const __m256i magnitude_bits = _mm256_set1_epi16(0x7fff);
    __m256i x[2], known[2];
    for (size_t j = 0; j < 2; j++) {
        x[j] = load_16(weights, 16 * j);
        const __m256i magnitude = _mm256_and_si256(x[j], magnitude_bits);
        known[j] = _mm256_cmpeq_epi16(magnitude, all);
        *other = _mm256_or_si256(*other, _mm256_andnot_si256(known[j], magnitude));
    }
    const __m256i minus_sign = _mm256_sign_epi8(join_bytes(known[0], known[1]), join_bytes(x[0], x[1]));
    return _mm256_sub_epi8(_mm256_set1_epi8(1), minus_sign);
}

static size_t pack_ptq1_0(qn_type source, const uint8_t *weights, size_t n_blocks, uint8_t *blocks)
{
    const __m256i magnitude_bits = _mm256_set1_epi16(0x7fff);
    for (size_t b = 0; b < n_blocks; b++, weights += 2 * QN_PTQ1_0_WEIGHTS, blocks += QN_PTQ1_0_BYTES) {
        uint8_t codes[QN_PTQ1_0_WEIGHTS];
        uint16_t scale;
        __m256i largest = _mm256_setzero_si256(), other = largest;
        for (size_t i = 0; i < QN_PTQ1_0_WEIGHTS; i += 16)
            largest = _mm256_max_epu16(largest, _mm256_and_si256(load_16(weights, i), magnitude_bits));
        const uint16_t magnitude =
            largest_of_8(_mm_max_epu16(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1)));
        const __m256i all = _mm256_set1_epi16(magnitude ? (int16_t)magnitude : -1); /* zeros have no sign */
        for (size_t i = 0; i < QN_PTQ1_0_WEIGHTS; i += 32)
            _mm256_storeu_si256((__m256i *)(void *)(codes + i), sign_codes(weights + 2 * i, all, &other));
        if (!_mm256_testz_si256(other, other) || !qn_exact_scale(source, magnitude, &scale))
            return b;
        store_ptq1_0_codes(codes, scale, blocks);
    }
    return n_blocks;
}

void qn_quant_init_avx2(qn_quant_kernels *kernels)
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
