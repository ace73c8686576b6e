/* AURA for AVX2. Centroids are looked up byte by byte, sixteen table entries per shuffle. */
#define QN_V16_AVX2
#define QUERY_GROUP 4
enum { ACCUMULATORS = 4, KEY_ACCUMULATORS = 4 };

#include "kernels/aura/aura.h"
#include "kernels/vec16.h"

typedef struct tables {
    const uint8_t *low, *high;     /* the codec's changes of the bytes of centroids */
    __m256i first_low, first_high; /* the first sixteen entries of each, in both 128-bit halves */
} tables;
typedef struct words {
    __m256i lo, hi;
} words;

QN_INLINE __m256i broadcast_16(const uint8_t *table)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
}

QN_INLINE tables tables_of(const qn_aura_codec *codec, unsigned bits)
{
    (void)bits;
    return (tables){ codec->low_change, codec->high_change, broadcast_16(codec->low), broadcast_16(codec->high) };
}

/* Shifts bytes right by `by` bits, or left if it is negative, and masks them. */
QN_INLINE __m256i shift_and_mask(const uint8_t *vector, int by, int mask)
{
    const __m256i v = _mm256_loadu_si256((const __m256i *)vector);
    return _mm256_and_si256(by < 0 ? _mm256_slli_epi16(v, -by) : _mm256_srli_epi16(v, by),
                            _mm256_set1_epi8((char)mask));
}

/* Looks up both bytes of the centroids of codes below 16 * n_tables, n_tables at most 8, of two vectors, which share
 * the loads of tables. A shuffle indexes with the low four bits, and returns 0 if the top bit is set. With 16 less for
 * each table, the codes of tables before have that bit: a code takes the changes of its table and of all tables before,
 * whose XOR is the byte. */
QN_INLINE void look_up_bytes(__m256i code[2], const uint8_t *low, const uint8_t *high, int n_tables,
                             __m256i low_bytes[2], __m256i high_bytes[2])
{
    QN_UNROLLED
    for (int i = 0; i < n_tables; i++) {
        const __m256i low_table = broadcast_16(low + 16 * i), high_table = broadcast_16(high + 16 * i);
        QN_UNROLLED
        for (int half = 0; half < 2; half++) {
            const __m256i l = _mm256_shuffle_epi8(low_table, code[half]),
                          h = _mm256_shuffle_epi8(high_table, code[half]);
            low_bytes[half] = i ? _mm256_xor_si256(low_bytes[half], l) : l;
            high_bytes[half] = i ? _mm256_xor_si256(high_bytes[half], h) : h;
            code[half] = _mm256_sub_epi8(code[half], _mm256_set1_epi8(16));
            /* In this order: gcc keeps the terms of a sum, and the tables for the next vectors, and spills them. */
            __asm__ volatile("" : "+x"(low_bytes[half]), "+x"(high_bytes[half])::"memory");
        }
    }
}

/* Joins low and high bytes of centroids to 16-bit words: out[0] of codes 0 and 1, out[1] of codes 2 and 3 of each
 * lane. */
QN_INLINE void interleave_bytes(__m256i low, __m256i high, __m256i out[2])
{
    const __m256i low_byte = _mm256_set1_epi16(0xff);
    out[0] = _mm256_or_si256(_mm256_and_si256(low, low_byte), _mm256_slli_epi16(high, 8));
    out[1] = _mm256_or_si256(_mm256_srli_epi16(low, 8), _mm256_andnot_si256(low_byte, high));
}

/* Looks up codes of 256 levels. The codebook is antisymmetric, so the upper half's tables are looked up with a mirrored
 * index, and the sign is applied afterwards. That needs half the number of tables. */
QN_INLINE void look_up_mirrored(const __m256i code[2], tables t, __m256i out[2][2])
{
    const __m256i one = _mm256_set1_epi16(1);
    __m256i negative[2], index[2], low[2], high[2];
    for (int half = 0; half < 2; half++) {
        negative[half] = _mm256_cmpgt_epi8(code[half], _mm256_set1_epi8(-1)); /* its top bit is not set */
        index[half] = _mm256_and_si256(_mm256_xor_si256(code[half], negative[half]), _mm256_set1_epi8(0x7f));
    }
    look_up_bytes(index, t.low + 128, t.high + 128, 8, low, high);
    for (int half = 0; half < 2; half++) {
        interleave_bytes(low[half], high[half], out[half]);
        out[half][0] = _mm256_sign_epi16(out[half][0], _mm256_or_si256(_mm256_slli_epi16(negative[half], 8), one));
        out[half][1] = _mm256_sign_epi16(out[half][1], _mm256_or_si256(negative[half], one));
    }
}

/* Returns the codes of step j of half a unit's vectors. */
QN_INLINE __m256i codes_of_step(const uint8_t *unit, unsigned bits, int j)
{
    if (bits == 3)
        return _mm256_or_si256(shift_and_mask(unit + j / 4 * 128, 2 * (j % 4), 3), shift_and_mask(unit + 64, j - 2, 4));
    if (bits == 6)
        return _mm256_or_si256(shift_and_mask(unit + j / 2 * 128, 4 * (j % 2), 15),
                               shift_and_mask(unit + 64, 2 * j - 4, 48));
    return shift_and_mask(unit, (int)bits * j, (1 << bits) - 1);
}

QN_INLINE void decode_step(const uint8_t *unit, unsigned bits, unsigned j, tables t, words out[2])
{
    __m256i code[2] = { codes_of_step(unit, bits, (int)j), codes_of_step(unit + 32, bits, (int)j) }, both[2][2];
    if (bits == 8) {
        look_up_mirrored(code, t, both);
    } else {
        __m256i low[2], high[2];
        if (bits == 6)
            look_up_bytes(code, t.low, t.high, 4, low, high);
        for (int half = 0; half < 2; half++) {
            if (bits != 6) {
                low[half] = _mm256_shuffle_epi8(t.first_low, code[half]);
                high[half] = _mm256_shuffle_epi8(t.first_high, code[half]);
            }
            interleave_bytes(low[half], high[half], both[half]);
        }
    }
    out[0] = (words){ both[0][0], both[1][0] };
    out[1] = (words){ both[0][1], both[1][1] };
}

QN_INLINE v16i words_dot(v16i sum, words w, const int16_t *pair)
{
    int32_t both;
    memcpy(&both, pair, sizeof both);
    const __m256i by = _mm256_set1_epi32(both);
    return (v16i){ _mm256_add_epi32(sum.lo, _mm256_madd_epi16(w.lo, by)),
                   _mm256_add_epi32(sum.hi, _mm256_madd_epi16(w.hi, by)) };
}

QN_INLINE void store_i16(int16_t *p, v16i a)
{
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8));
}

#include "kernels/aura/aura_simd.h"

/* ---- Rows ---- */

/* Quantises a row: up to 4 bits by linear comparison with all boundaries; above by binary search: whichever takes fewer
 * instructions. */
static void quantize_avx2(uint8_t *codes, const float *y, const qn_aura_codec *codec)
{
    const int n = (1 << codec->bits) - 1;
    for (size_t d = 0; d < codec->dim; d += 8) {
        const __m256 x = _mm256_loadu_ps(y + d);
        __m256i code = _mm256_setzero_si256();
        if (codec->bits <= 4) {
            for (int i = 0; i < n; i++) /* a true comparison is -1 */
                code = _mm256_sub_epi32(
                    code, _mm256_castps_si256(_mm256_cmp_ps(_mm256_set1_ps(codec->boundaries[i]), x, _CMP_LT_OQ)));
        } else {
            for (int step = (n + 1) / 2; step; step /= 2) {
                const __m256i middle = _mm256_add_epi32(code, _mm256_set1_epi32(step - 1));
                const __m256 above =
                    _mm256_cmp_ps(_mm256_i32gather_ps(codec->boundaries, middle, sizeof(float)), x, _CMP_LT_OQ);
                code = _mm256_add_epi32(code, _mm256_and_si256(_mm256_castps_si256(above), _mm256_set1_epi32(step)));
            }
        }
        const __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
        _mm_storel_epi64((__m128i *)(codes + d), _mm_packus_epi16(half, half));
    }
}

/* Decodes a row, eight codes at a time, which fit eight bytes. Each lane combines the 32-bit word in which its code
 * begins and the next one. */
static void decode_avx2(float *y, const uint32_t *words_of_row, const qn_aura_codec *codec)
{
    const uint8_t *bytes = (const uint8_t *)words_of_row;
    const int bits = (int)codec->bits;
    const __m256i from = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(bits));
    const __m256i first = _mm256_srli_epi32(from, 5), right = _mm256_and_si256(from, _mm256_set1_epi32(31));
    const __m256i after = _mm256_add_epi32(first, _mm256_set1_epi32(1)),
                  left = _mm256_sub_epi32(_mm256_set1_epi32(32), right);
    for (size_t d = 0; d < codec->dim; d += 8, bytes += bits) {
        uint64_t run = 0;
        memcpy(&run, bytes, (size_t)bits);
        const __m256i row = _mm256_castsi128_si256(_mm_cvtsi64_si128((int64_t)run));
        const __m256i low = _mm256_srlv_epi32(_mm256_permutevar8x32_epi32(row, first), right);
        const __m256i high = _mm256_sllv_epi32(_mm256_permutevar8x32_epi32(row, after), left);
        const __m256i code = _mm256_and_si256(_mm256_or_si256(low, high), _mm256_set1_epi32((1 << bits) - 1));
        _mm256_storeu_ps(y + d, _mm256_i32gather_ps(codec->codebook, code, sizeof(float)));
    }
}

void qn_aura_init_avx2(qn_aura_kernels *kernels)
{
    aura_init_simd(kernels);
    kernels->quantize = quantize_avx2;
    kernels->decode = decode_avx2;
}
