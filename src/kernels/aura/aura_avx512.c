/* AURA for AVX-512. Centroids are looked up thirty-two at a time in tables that stay in registers. */
#define QN_V16_AVX512
#define QUERY_GROUP 8
enum { ACCUMULATORS = 16, KEY_ACCUMULATORS = 8 };

#include "kernels/aura/aura.h"
#include "kernels/vec16.h"

typedef struct tables {
    __m512i t[8]; /* centroids as int16: one register up to 4 bits, two for 6; for 8, four of low and four of high bytes
                   */
} tables;
typedef __m512i words;

QN_INLINE tables tables_of(const qn_aura_codec *codec, unsigned bits)
{
    tables t = { { _mm512_loadu_si512(codec->centroids) } };
    if (bits == 6)
        t.t[1] = _mm512_loadu_si512(codec->centroids + 32);
    for (size_t i = 0; bits == 8 && i < 4; i++) {
        t.t[i] = _mm512_loadu_si512(codec->low + 64 * i);
        t.t[4 + i] = _mm512_loadu_si512(codec->high + 64 * i);
    }
    return t;
}

/* Shifts the 16-bit words of a vector right by `by` bits, or left if it is negative. */
QN_INLINE __m512i shift_and_mask(const uint8_t *vector, int by)
{
    const __m512i v = _mm512_loadu_si512(vector);
    return by < 0 ? _mm512_slli_epi16(v, (unsigned)-by) : _mm512_srli_epi16(v, (unsigned)by);
}

/* Returns the bits of `low` where the mask is set, else of `high`. */
QN_INLINE __m512i blend_bits(int mask, __m512i low, __m512i high)
{
    return _mm512_ternarylogic_epi32(_mm512_set1_epi16((short)mask), low, high, 0xca);
}

QN_INLINE __m512i look_up_256(__m512i codes, __mmask64 upper, const __m512i *t)
{
    return _mm512_mask_blend_epi8(upper, _mm512_permutex2var_epi8(t[0], codes, t[1]),
                                  _mm512_permutex2var_epi8(t[2], codes, t[3]));
}

/* Looks up the centroids of a step's codes. A look-up indexes with the low five bits of each word (six with two
 * registers), and tables repeat: bits above a code do not matter. */
QN_INLINE void decode_step(const uint8_t *unit, unsigned bits, unsigned j, tables t, words out[2])
{
    if (bits == 8) {
        const __m512i v = _mm512_loadu_si512(unit);
        const __mmask64 upper = _mm512_movepi8_mask(v);
        const __m512i low = look_up_256(v, upper, t.t), high = look_up_256(v, upper, t.t + 4);
        out[0] = blend_bits(0xff, low, _mm512_slli_epi16(high, 8));
        out[1] = blend_bits(0xff, _mm512_srli_epi16(low, 8), high);
        return;
    }
    QN_UNROLLED
    for (int i = 0; i < 2; i++) { /* low bytes, high bytes */
        const int byte = 8 * i, run = (int)j;
        if (bits == 3) {
            const __m512i low = shift_and_mask(unit + run / 4 * 128, byte + 2 * (run % 4)),
                          high = shift_and_mask(unit + 64, byte + run - 2);
            out[i] = _mm512_permutexvar_epi16(blend_bits(3, low, high), t.t[0]);
        } else if (bits == 6) {
            const __m512i low = shift_and_mask(unit + run / 2 * 128, byte + 4 * (run % 2)),
                          high = shift_and_mask(unit + 64, byte + 2 * run - 4);
            out[i] = _mm512_permutex2var_epi16(t.t[0], blend_bits(15, low, high), t.t[1]);
        } else {
            out[i] = _mm512_permutexvar_epi16(shift_and_mask(unit, byte + (int)bits * run), t.t[0]);
        }
    }
}

/* Adds to each lane of `sum` the dot product of its two 16-bit words with a pair that is the same for all lanes. Inline
 * assembly for the broadcast memory operand: gcc would load all pairs in advance, more than there are registers, and
 * spill them. */
QN_INLINE v16i words_dot(v16i sum, words w, const int16_t *pair)
{
    typedef int32_t __attribute__((may_alias, aligned(2))) both;
    __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*(const both *)pair));
    return sum;
}

QN_INLINE void store_i16(int16_t *p, v16i a)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtsepi32_epi16(a));
}

#include "kernels/aura/aura_simd.h"

/* ---- Rows ---- */

/* Quantises a row by binary search over the boundaries, one bit of the code at a time from the highest. */
static void quantize_avx512(uint8_t *codes, const float *y, const qn_aura_codec *codec)
{
    float padded[QN_AURA_MAX_LEVELS]; /* gathers and full-register loads stay in bounds */
    const size_t n = ((size_t)1 << codec->bits) - 1;
    memcpy(padded, codec->boundaries, n * sizeof *padded);
    for (size_t i = n; i < QN_LANES; i++)
        padded[i] = 0;
    const __m512 table = _mm512_loadu_ps(padded);
    for (size_t d = 0; d < codec->dim; d += QN_LANES) {
        const __m512 x = _mm512_loadu_ps(y + d);
        __m512i code = _mm512_setzero_si512();
        for (int step = 1 << (codec->bits - 1); step; step /= 2) {
            const __m512i middle = _mm512_add_epi32(code, _mm512_set1_epi32(step - 1));
            const __m512 boundary = codec->bits <= 4 ? _mm512_permutexvar_ps(middle, table)
                                                     : _mm512_i32gather_ps(middle, padded, sizeof(float));
            code =
                _mm512_mask_add_epi32(code, _mm512_cmp_ps_mask(boundary, x, _CMP_LT_OQ), code, _mm512_set1_epi32(step));
        }
        _mm_storeu_si128((__m128i *)(codes + d), _mm512_cvtepi32_epi8(code));
    }
}

/* Decodes a row, sixteen codes at a time, which fit sixteen bytes. Each lane combines the 32-bit word in which its code
 * begins and the next one. */
static void decode_avx512(float *y, const uint32_t *words_of_row, const qn_aura_codec *codec)
{
    const uint8_t *bytes = (const uint8_t *)words_of_row;
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i from = _mm512_mullo_epi32(lane, _mm512_set1_epi32((int)codec->bits)),
                  first = _mm512_srli_epi32(from, 5);
    const __m512i after = _mm512_add_epi32(first, _mm512_set1_epi32(1)),
                  right = _mm512_and_si512(from, _mm512_set1_epi32(31));
    const __m512i left = _mm512_sub_epi32(_mm512_set1_epi32(32), right);
    const __mmask16 load_mask = (__mmask16)((1u << 2 * codec->bits) - 1); /* bytes of sixteen codes */
    const __m512i mask = _mm512_set1_epi32((1 << codec->bits) - 1);
    float padded[2 * QN_LANES] = { 0 };
    memcpy(padded, codec->codebook, (codec->bits <= 4 ? (size_t)1 << codec->bits : 0) * sizeof *padded);
    const __m512 table = _mm512_loadu_ps(padded);
    for (size_t d = 0; d < codec->dim; d += QN_LANES, bytes += 2 * codec->bits) {
        const __m512i row = _mm512_castsi128_si512(_mm_maskz_loadu_epi8(load_mask, bytes));
        const __m512i low = _mm512_srlv_epi32(_mm512_permutexvar_epi32(first, row), right);
        const __m512i high = _mm512_sllv_epi32(_mm512_permutexvar_epi32(after, row), left);
        const __m512i code = _mm512_and_si512(_mm512_or_si512(low, high), mask);
        _mm512_storeu_ps(y + d, codec->bits <= 4 ? _mm512_permutexvar_ps(code, table)
                                                 : _mm512_i32gather_ps(code, codec->codebook, sizeof(float)));
    }
}

void qn_aura_init_avx512(qn_aura_kernels *kernels)
{
    aura_init_simd(kernels);
    kernels->quantize = quantize_avx512;
    kernels->decode = decode_avx512;
}
