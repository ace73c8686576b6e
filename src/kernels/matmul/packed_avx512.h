/* Part of matmul_avx512.c: GEMM of packed matrices (packed.h, QN_PACKING_WORDS). A vector is one word of sixteen rows:
 * the sum of a group has one row per lane, and no operation crosses lanes. */
#ifndef QN_KERNELS_MATMUL_PACKED_AVX512_H
#define QN_KERNELS_MATMUL_PACKED_AVX512_H

#include "kernels/matmul/matmul_simd.h"
#include "kernels/matmul/packed.h"

enum { PACK_VECTORS = QN_PANEL_ROWS / 16 };

/* Prefetch distance in bytes, into L2, which has many more outstanding misses than L1. Measured on Zen 4 with both
 * cores reading Q1_0 from memory (37 GB/s in total): T1 gives 18.5 to 20 GB/s a core at any distance from 4608 to 36864
 * bytes, the non-temporal hint 14, no prefetch 13.5; when memory is faster, T1 at 9216 gives 26. */
enum { PANEL_PREFETCH_BYTES = 9216 };

/* Fills the look-up tables of the groups of a super-block. The tables of a group: [low nibbles, high nibbles of the
 * word's four bytes][low, high byte of the sums][4 bytes][16 entries]. */
static void fill_lut(const int8_t *codes, uint8_t *lut)
{
    static const _Alignas(64) uint8_t bits[64] = {
#define BITS(n) (n) & 1, (n) >> 1 & 1, (n) >> 2 & 1, (n) >> 3 & 1
        BITS(0), BITS(1), BITS(2),  BITS(3),  BITS(4),  BITS(5),  BITS(6),  BITS(7),
        BITS(8), BITS(9), BITS(10), BITS(11), BITS(12), BITS(13), BITS(14), BITS(15)
#undef BITS
    };
    const __m512i masks = _mm512_load_si512(bits), none = _mm512_setzero_si512(), low = _mm512_set1_epi32(31);
    for (size_t four = 0; four < QN_SUPER / 4; four++) {
        int32_t codes_of_four;
        memcpy(&codes_of_four, codes + 4 * four, 4);
        const __m512i sums = _mm512_dpbusd_epi32(none, masks, _mm512_set1_epi32(codes_of_four));
        uint8_t *table = lut + four / 8 * QN_GROUP_LUT_BYTES + four % 2 * 128 + four % 8 / 2 * 16;
        _mm_store_si128((__m128i *)table, _mm512_cvtepi32_epi8(_mm512_and_si512(sums, low)));
        _mm_store_si128((__m128i *)(table + 64), _mm512_cvtepi32_epi8(_mm512_srai_epi32(sums, 5)));
    }
}

/* The partial sums of one token and panel: [16 partials][64 rows]. */
typedef float panel_partial[QN_LANES][QN_PANEL_ROWS];

/* Returns the load mask of a partial sum: all lanes if groups were added to it before `group`, else none (it then
 * counts as zero). */
QN_INLINE __mmask16 pack_started(size_t group)
{
    return group < QN_LANES ? 0 : 0xffff;
}

QN_INLINE void panel_accumulate(float *partial, __m512i isum, __m512 scale, __mmask16 started)
{
    _mm512_store_ps(partial, _mm512_fmadd_ps(_mm512_cvtepi32_ps(isum), scale, _mm512_maskz_load_ps(started, partial)));
}

/* Combines hi and lo sums: QN_HILO_BASE * sum + sum_lo; 254 is 256 - 2. */
QN_INLINE __m512i pack_hilo(__m512i sum, __m512i sum_lo)
{
    const __m512i both = _mm512_sub_epi32(_mm512_slli_epi32(sum, 8), _mm512_slli_epi32(sum, 1));
    return _mm512_add_epi32(both, sum_lo);
}

QN_INLINE void load_scales(const uint8_t *p, __m512 scale[PACK_VECTORS])
{
    QN_UNROLLED
    for (int g = 0; g < PACK_VECTORS; g++)
        scale[g] = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(p + 32 * g)));
}

/* Computes from + 2S; S is the sum of the activation codes whose weight bit is set. low and high are table indices made
 * of the nibbles of a group's words. */
QN_INLINE void lut_sums(const uint8_t *lut, const __m512i low[PACK_VECTORS], const __m512i high[PACK_VECTORS],
                        __m512i from, __m512i sum[PACK_VECTORS])
{
    const __m512i t0 = _mm512_load_si512(lut), t1 = _mm512_load_si512(lut + 64);
    const __m512i t2 = _mm512_load_si512(lut + 128), t3 = _mm512_load_si512(lut + 192);
    const __m512i two = _mm512_set1_epi8(2), sixty_four = _mm512_set1_epi8(64);
    QN_UNROLLED
    for (int g = 0; g < PACK_VECTORS; g++) {
        const __m512i sums_low =
            _mm512_add_epi8(_mm512_permutexvar_epi8(low[g], t0), _mm512_permutexvar_epi8(high[g], t2));
        const __m512i sums_high =
            _mm512_add_epi8(_mm512_permutexvar_epi8(low[g], t1), _mm512_permutexvar_epi8(high[g], t3));
        sum[g] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(from, sums_low, two), sixty_four, sums_high);
    }
}

/* Multiplies a group of 1-bit weights; p points to its words of 64 rows. The dot product is 2S - act_sum. */
QN_INLINE void panel_group_1bit(const uint8_t *p, const __m512 scale[PACK_VECTORS], const qn_acts *acts, bool hilo,
                                size_t first, size_t n_tokens, size_t group, panel_partial *partial)
{
    const __m512i nibble = _mm512_set1_epi8(15), lut_offset = _mm512_set1_epi32(0x30201000);
    __m512i low[PACK_VECTORS], high[PACK_VECTORS];
    QN_UNROLLED
    for (int g = 0; g < PACK_VECTORS; g++) {
        const __m512i words = _mm512_loadu_si512(p + 64 * g);
        low[g] = _mm512_ternarylogic_epi32(words, nibble, lut_offset, 0xea); /* (words & nibble) | lut_offset */
        high[g] = _mm512_ternarylogic_epi32(_mm512_srli_epi32(words, 4), nibble, lut_offset, 0xea);
    }
    QN_UNROLLED
    for (size_t t = 0; t < n_tokens; t++) {
        const size_t at = (first + t) * acts->n_super * QN_SUPER_GROUPS + group;
        const __m512 act_scale = _mm512_set1_ps(acts->scale[at]);
        const __m512i minus_sum = _mm512_set1_epi32(-acts->sum[at]);
        __m512i isum[PACK_VECTORS];
        if (hilo) {
            __m512i hi[PACK_VECTORS];
            lut_sums(acts->lut + at * QN_GROUP_LUT_BYTES, low, high, _mm512_setzero_si512(), hi);
            lut_sums(acts->lut_lo + at * QN_GROUP_LUT_BYTES, low, high, minus_sum, isum);
            QN_UNROLLED
            for (int g = 0; g < PACK_VECTORS; g++)
                isum[g] = pack_hilo(hi[g], isum[g]);
        } else {
            lut_sums(acts->lut + at * QN_GROUP_LUT_BYTES, low, high, minus_sum, isum);
        }
        QN_UNROLLED
        for (int g = 0; g < PACK_VECTORS; g++)
            panel_accumulate(partial[t][group % QN_LANES] + 16 * g, isum[g], _mm512_mul_ps(scale[g], act_scale),
                             pack_started(group));
    }
}

/* Adds the dot products of a group's two words with codes: field j of byte k of a word is weight 4k + j. */
QN_INLINE void accumulate_2bit(const uint8_t *p, const int8_t *codes, size_t token_bytes, size_t n_tokens,
                               __m512i isum[QN_PANEL_TOKENS][PACK_VECTORS])
{
    const __m512i three = _mm512_set1_epi8(3);
    QN_UNROLLED
    for (int word = 0; word < 2; word++)
        QN_UNROLLED
    for (int j = 0; j < 4; j++) {
        __m512i fields[PACK_VECTORS];
        QN_UNROLLED
        for (int g = 0; g < PACK_VECTORS; g++) {
            const __m512i words = _mm512_loadu_si512(p + (word * PACK_VECTORS + g) * 64);
            fields[g] = _mm512_and_si512(j ? _mm512_srli_epi32(words, 2 * j) : words, three);
        }
        QN_UNROLLED
        for (size_t t = 0; t < n_tokens; t++) {
            int32_t four;
            memcpy(&four, codes + t * token_bytes + 64 * (4 * word + j), 4);
            QN_UNROLLED
            for (int g = 0; g < PACK_VECTORS; g++)
                isum[t][g] = _mm512_dpbusd_epi32(isum[t][g], fields[g], _mm512_set1_epi32(four));
        }
    }
}

/* Multiplies a group of 2-bit weights; p points to its two words of 64 rows. */
QN_INLINE void panel_group_2bit(const uint8_t *p, const __m512 scale[PACK_VECTORS], const qn_acts *acts, bool hilo,
                                size_t first, size_t n_tokens, size_t group, panel_partial *partial)
{
    const size_t token_groups = acts->n_super * QN_SUPER_GROUPS, at = first * token_groups + group;
    const size_t code = (at - group % QN_SUPER_GROUPS) * QN_QUANT_GROUP + group % QN_SUPER_GROUPS * 4;
    __m512i isum[QN_PANEL_TOKENS][PACK_VECTORS];
    QN_UNROLLED
    for (size_t t = 0; t < n_tokens; t++)
        QN_UNROLLED
    for (int g = 0; g < PACK_VECTORS; g++)
        isum[t][g] = hilo ? _mm512_setzero_si512() : _mm512_set1_epi32(-acts->sum[at + t * token_groups]);
    accumulate_2bit(p, acts->codes[QN_ACT_2BIT] + code, token_groups * QN_QUANT_GROUP, n_tokens, isum);
    if (hilo) {
        QN_UNROLLED
        for (size_t t = 0; t < n_tokens; t++)
            QN_UNROLLED
        for (int g = 0; g < PACK_VECTORS; g++)
            isum[t][g] = pack_hilo(isum[t][g], _mm512_set1_epi32(-acts->sum[at + t * token_groups]));
        accumulate_2bit(p, acts->codes_lo[QN_ACT_2BIT] + code, token_groups * QN_QUANT_GROUP, n_tokens, isum);
    }
    QN_UNROLLED
    for (size_t t = 0; t < n_tokens; t++) {
        const __m512 act_scale = _mm512_set1_ps(acts->scale[at + t * token_groups]);
        QN_UNROLLED
        for (int g = 0; g < PACK_VECTORS; g++)
            panel_accumulate(partial[t][group % QN_LANES] + 16 * g, isum[t][g], _mm512_mul_ps(scale[g], act_scale),
                             pack_started(group));
    }
}

QN_INLINE void panel_store(const panel_partial partial, bool accumulate, float *out)
{
    QN_UNROLLED
    for (int g = 0; g < PACK_VECTORS; g++) {
        __m512 sum[QN_LANES];
        QN_UNROLLED
        for (int i = 0; i < QN_LANES; i++)
            sum[i] = _mm512_load_ps(partial[i] + 16 * g);
        QN_UNROLLED
        for (int width = 8; width; width /= 2)
            QN_UNROLLED
        for (int i = 0; i < width; i++)
            sum[i] = _mm512_add_ps(sum[i], sum[i + width]);
        if (accumulate)
            sum[0] = _mm512_add_ps(_mm512_loadu_ps(out + 16 * g), sum[0]);
        _mm512_storeu_ps(out + 16 * g, sum[0]);
    }
}

/* Multiplies one panel by up to QN_PANEL_TOKENS tokens. bits, hilo, block_groups and n_tokens are constants at the
 * calls. */
QN_INLINE void panel_tile(bool bits, bool hilo, size_t block_groups, const uint8_t *p, size_t n_blocks,
                          const qn_acts *acts, size_t first, size_t n_tokens, bool prefetch, bool accumulate,
                          float *out, size_t out_stride)
{
    const size_t group_bytes = (size_t)(bits ? 4 : 8) * QN_PANEL_ROWS,
                 block_bytes = block_groups * group_bytes + 2 * QN_PANEL_ROWS;
    _Alignas(64) panel_partial partial[QN_PANEL_TOKENS];
    if (n_blocks * block_groups < QN_LANES) /* else the first groups initialise every partial sum */
        memset(partial, 0, n_tokens * sizeof *partial);
    for (size_t block = 0; block < n_blocks; block++, p += block_bytes) {
        __m512 scale[PACK_VECTORS];
        for (size_t line = 0; prefetch && line < block_bytes; line += 64)
            _mm_prefetch((const char *)p + PANEL_PREFETCH_BYTES + line, _MM_HINT_T1);
        load_scales(p + block_groups * group_bytes, scale);
        for (size_t r = 0; r < block_groups; r++)
            if (bits)
                panel_group_1bit(p + r * group_bytes, scale, acts, hilo, first, n_tokens, block * block_groups + r,
                                 partial);
            else
                panel_group_2bit(p + r * group_bytes, scale, acts, hilo, first, n_tokens, block * block_groups + r,
                                 partial);
    }
    QN_UNROLLED
    for (size_t t = 0; t < n_tokens; t++)
        panel_store(partial[t], accumulate, out + t * out_stride);
}

/* Multiplies all panels, by four, two or one token at a time. Only the first tokens of a panel prefetch: for later
 * tokens it is cached. */
QN_INLINE void panel_loop(bool bits, bool hilo, size_t block_groups, const qn_packed_matrix *weights, size_t row,
                          size_t n_rows, const qn_acts *acts, size_t first, size_t n_tokens, bool accumulate,
                          float *out, size_t out_stride)
{
    const size_t n_blocks = weights->stored.row_bytes / weights->stored.type->block_bytes, last = first + n_tokens;
    for (size_t end = row + n_rows; row < end; row += QN_PANEL_ROWS) {
        const uint8_t *p = weights->packed + row * weights->stored.row_bytes;
        float *to = out + row;
        size_t t = first;
        for (; t + 4 <= last; t += 4)
            panel_tile(bits, hilo, block_groups, p, n_blocks, acts, t, 4, t == first, accumulate, to + t * out_stride,
                       out_stride);
        for (; t + 2 <= last; t += 2)
            panel_tile(bits, hilo, block_groups, p, n_blocks, acts, t, 2, t == first, accumulate, to + t * out_stride,
                       out_stride);
        for (; t < last; t++)
            panel_tile(bits, hilo, block_groups, p, n_blocks, acts, t, 1, t == first, accumulate, to + t * out_stride,
                       out_stride);
    }
}

#define PACKED(name, bits, block_groups)                                                                               \
    static void name(const qn_packed_matrix *weights, size_t row, size_t n_rows, const qn_acts *acts, size_t first,    \
                     size_t n_tokens, bool accumulate, float *out, size_t out_stride)                                  \
    {                                                                                                                  \
        if (acts->hilo)                                                                                                \
            panel_loop(bits, true, block_groups, weights, row, n_rows, acts, first, n_tokens, accumulate, out,         \
                       out_stride);                                                                                    \
        else                                                                                                           \
            panel_loop(bits, false, block_groups, weights, row, n_rows, acts, first, n_tokens, accumulate, out,        \
                       out_stride);                                                                                    \
    }

PACKED(packed_q1_0, true, QN_Q1_0_WEIGHTS / QN_QUANT_GROUP)
PACKED(packed_q2_0, false, QN_Q2_0_WEIGHTS / QN_QUANT_GROUP)
PACKED(packed_pq2_0, false, QN_PQ2_0_WEIGHTS / QN_QUANT_GROUP)

/* Multiplies base-3 digits of packed words by their activations without extracting the digits. With x a byte times a
 * power of 3 (mod 256) and y = 3x (mod 256), the digit is (3x - y) / 256. Sums of x and of y by activations are
 * therefore enough, and the division is done once per group: two multiply-adds per digit, and no instruction to extract
 * it. */
QN_INLINE __m512i ternary_digit(__m512i x, __m512i codes, __m512i *sum, __m512i *next_sum)
{
    __m512i twice = _mm512_add_epi8(x, x);
    __asm__("" : "+v"(twice)); /* gcc would multiply by 3, in 16 bits */
    const __m512i next = _mm512_add_epi8(x, twice);
    *sum = _mm512_dpbusd_epi32(*sum, x, codes);
    *next_sum = _mm512_dpbusd_epi32(*next_sum, next, codes);
    return next;
}

/* Number of vectors of sixteen rows whose accumulators fit in the registers. */
enum { TERNARY_VECTORS = 2 };

/* Multiplies a block of ternary weights by one token. codes: the block's 128 activations in ascending order. act_scale
 * and act_sum belong to its four groups. */
QN_INLINE void panel_block_ternary(const uint8_t *p, const int8_t *codes, const float *act_scale,
                                   const int32_t *act_sum, float (*partial)[QN_PANEL_ROWS], __mmask16 started)
{
    __m512i sum[TERNARY_VECTORS][4], next_sum[TERNARY_VECTORS][4], x[TERNARY_VECTORS], last[TERNARY_VECTORS];
    QN_UNROLLED
    for (int g = 0; g < TERNARY_VECTORS; g++) {
        last[g] = _mm512_loadu_si512(p + 4 * QN_PANEL_ROWS * 6 + 64 * g);
        QN_UNROLLED
        for (int group = 0; group < 4; group++)
            sum[g][group] = next_sum[g][group] = _mm512_setzero_si512();
    }
    QN_UNROLLED
    for (int word = 0; word < 6; word++) {
        QN_UNROLLED
        for (int g = 0; g < TERNARY_VECTORS; g++)
            x[g] = _mm512_loadu_si512(p + 4 * QN_PANEL_ROWS * word + 64 * g);
        QN_UNROLLED
        for (int n = 0; n < 5; n++) {
            const int group = word < 4 ? n / 2
                              : n < 2  ? 2
                                       : 3,
                      at = word < 4 ? 16 * n + 4 * word : 80 + 8 * n + 4 * (word - 4);
            int32_t four;
            memcpy(&four, codes + at, 4);
            QN_UNROLLED
            for (int g = 0; g < TERNARY_VECTORS; g++)
                x[g] = ternary_digit(x[g], _mm512_set1_epi32(four), &sum[g][group], &next_sum[g][group]);
        }
    }
    QN_UNROLLED
    for (int g = 0; g < TERNARY_VECTORS; g++)
        x[g] = last[g];
    QN_UNROLLED
    for (int n = 0; n < 4; n++) { /* two bytes of codes; the two of the scale are multiplied by zeros */
        uint16_t two;
        memcpy(&two, codes + 120 + 2 * n, 2);
        QN_UNROLLED
        for (int g = 0; g < TERNARY_VECTORS; g++)
            x[g] = ternary_digit(x[g], _mm512_set1_epi32(two), &sum[g][3], &next_sum[g][3]);
    }
    QN_UNROLLED
    for (int g = 0; g < TERNARY_VECTORS; g++) {
        const __m512 scale = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(last[g], 16)));
        QN_UNROLLED
        for (int group = 0; group < 4; group++) {
            const __m512i thrice = _mm512_add_epi32(sum[g][group], _mm512_add_epi32(sum[g][group], sum[g][group]));
            const __m512i isum = _mm512_sub_epi32(_mm512_srai_epi32(_mm512_sub_epi32(thrice, next_sum[g][group]), 8),
                                                  _mm512_set1_epi32(act_sum[group]));
            panel_accumulate(partial[group] + 16 * g, isum, _mm512_mul_ps(scale, _mm512_set1_ps(act_scale[group])),
                             started);
        }
    }
}

static void packed_ptq1_0(const qn_packed_matrix *weights, size_t row, size_t n_rows, const qn_acts *acts, size_t first,
                          size_t n_tokens, bool accumulate, float *out, size_t out_stride)
{
    const size_t block_bytes = weights->stored.type->block_bytes * QN_PANEL_ROWS,
                 n_blocks = weights->stored.n_cols / QN_PTQ1_0_WEIGHTS;
    _Alignas(64) panel_partial partial;
    for (size_t end = row + n_rows; row < end; row += QN_PANEL_ROWS)
        for (size_t t = first; t < first + n_tokens; t++) {
            const uint8_t *p = weights->packed + row * weights->stored.row_bytes;
            if (4 * n_blocks < QN_LANES)
                memset(partial, 0, sizeof partial);
            for (size_t block = 0; block < n_blocks; block++, p += block_bytes) {
                const size_t group = t * acts->n_super * QN_SUPER_GROUPS + 4 * block;
                for (size_t line = 0; t == first && line < block_bytes; line += 64)
                    _mm_prefetch((const char *)p + PANEL_PREFETCH_BYTES + line, _MM_HINT_T1);
                for (size_t g = 0; g < PACK_VECTORS; g += TERNARY_VECTORS)
                    panel_block_ternary(p + 64 * g, acts->codes[QN_ACT_PLAIN] + group * QN_QUANT_GROUP,
                                        acts->scale + group, acts->sum + group,
                                        (float(*)[QN_PANEL_ROWS])(partial[4 * block % QN_LANES] + 16 * g),
                                        pack_started(4 * block));
            }
            panel_store(partial, accumulate, out + t * out_stride + row);
        }
}

#endif
