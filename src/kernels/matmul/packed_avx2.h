/* Part of matmul_avx2.c and matmul_avxvnni.c: GEMM of packed matrices (packed.h). 1-bit codes are packed by
 * QN_PACKING_BYTES: a vector is one byte of 32 rows, and all of them use the same table. 2-bit codes are packed by
 * QN_PACKING_WORDS: a vector is one word of eight rows. */
#ifndef QN_KERNELS_MATMUL_PACKED_AVX2_H
#define QN_KERNELS_MATMUL_PACKED_AVX2_H

#include "kernels/matmul/matmul_simd.h"
#include "kernels/matmul/packed.h"

/* Prefetch distance in bytes, into L2: each line next to the load before it by so much (packed_avx512.h says why). From
 * memory, in bytes a cycle of Sapphire Rapids: bursts at 9216 bytes 2.5, singly 3.0 to 3.5, the same at 2304. */
enum { PANEL_PREFETCH_BYTES = 3456 };

/* Fills the look-up tables of the groups of a super-block. The tables of a group: for each byte of its word, for its
 * low and then its high nibble, [low, high byte of the sums][16 entries]. The high byte is biased by 16, so that it is
 * never negative. */
static void fill_lut(const int8_t *codes, uint8_t *lut)
{
    static const _Alignas(32) uint8_t first_two[32] = {
#define FOUR 0, 0, 1, 0, 0, 1, 1, 1
        FOUR, FOUR, FOUR, FOUR
#undef FOUR
    };
    static const _Alignas(32) uint8_t last_two[32] = { 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 1, 0, 1, 0,
                                                       0, 1, 0, 1, 0, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1 };
    const __m256i first = _mm256_load_si256((const __m256i *)(const void *)first_two);
    const __m256i last = _mm256_load_si256((const __m256i *)(const void *)last_two);
    for (size_t four = 0; four < QN_SUPER / 4; four++) {
        int16_t two[2];
        memcpy(two, codes + 4 * four, sizeof two);
        const __m256i sums = _mm256_add_epi16(_mm256_maddubs_epi16(first, _mm256_set1_epi16(two[0])),
                                              _mm256_maddubs_epi16(last, _mm256_set1_epi16(two[1])));
        const __m256i low = _mm256_and_si256(sums, _mm256_set1_epi16(31));
        const __m256i high = _mm256_add_epi16(_mm256_srai_epi16(sums, 5), _mm256_set1_epi16(16));
        _mm256_store_si256((__m256i *)(void *)(lut + 32 * four),
                           _mm256_permute4x64_epi64(_mm256_packus_epi16(low, high), 0xd8));
    }
}

typedef float panel_partial[QN_LANES][QN_PANEL_ROWS];

/* Returns the load mask of a partial sum: all lanes if groups were added to it before `group`, else none (it then
 * counts as zero). */
QN_INLINE __m256i pack_started(size_t group)
{
    return _mm256_set1_epi32(group < QN_LANES ? 0 : -1);
}

QN_INLINE void panel_accumulate(float *partial, __m256i isum, __m256 scale, __m256i started)
{
    const __m256 sum = _mm256_maskload_ps(partial, started);
    _mm256_store_ps(partial, _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum), scale, sum));
}

/* Combines hi and lo sums: QN_HILO_BASE * sum + sum_lo; 254 is 256 - 2. */
QN_INLINE __m256i pack_hilo(__m256i sum, __m256i sum_lo)
{
    const __m256i both = _mm256_sub_epi32(_mm256_slli_epi32(sum, 8), _mm256_slli_epi32(sum, 1));
    return _mm256_add_epi32(both, sum_lo);
}

/* Prefetches the line at a distance from p. Where lines are read that are cached, the distance is 0. */
QN_INLINE void prefetch_line(const uint8_t *p, size_t distance)
{
    _mm_prefetch((const char *)p + distance, _MM_HINT_T1);
}

QN_INLINE void load_scales(const uint8_t *p, size_t distance, float scale[QN_PANEL_ROWS])
{
    for (size_t line = 0; line < 2 * QN_PANEL_ROWS; line += 64)
        prefetch_line(p + line, distance);
    QN_UNROLLED
    for (size_t i = 0; i < QN_PANEL_ROWS; i += 8)
        _mm256_store_ps(scale + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + 2 * i))));
}

/* Pins an addition to its position: gcc gathers the terms of integer sums first, more than there are registers. */
QN_INLINE __m256i add_pinned(__m256i a, __m256i b, bool words)
{
    __m256i sum = words ? _mm256_add_epi16(a, b) : _mm256_add_epi8(a, b);
    __asm__("" : "+x"(sum));
    return sum;
}

QN_INLINE __m256i load_lut(const uint8_t *table)
{
    return _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)(const void *)table));
}

/* Computes 2S - minus for 64 rows; S is the sum of the activation codes whose weight bit is set. p is a group's words.
 * sum[half][0] has rows 0 to 7, [1] rows 16 to 23, [2] rows 32 to 39, [3] rows 48 to 55, each + 8 for half 1. The
 * biases of the high bytes sum to 8 * 16 * 32. */
QN_INLINE void lut_sums(const uint8_t *p, size_t distance, const uint8_t *lut, int32_t minus, __m256i sum[2][4])
{
    const __m256i nibble = _mm256_set1_epi8(15);
    __m256i low[2], high[2];
    QN_UNROLLED
    for (int byte = 0; byte < 4; byte++) {
        const __m256i t0 = load_lut(lut + 64 * byte), t1 = load_lut(lut + 64 * byte + 16);
        const __m256i t2 = load_lut(lut + 64 * byte + 32), t3 = load_lut(lut + 64 * byte + 48);
        prefetch_line(p + 64 * byte, distance);
        QN_UNROLLED
        for (int half = 0; half < 2; half++) {
            const __m256i bytes = _mm256_loadu_si256((const __m256i *)(const void *)(p + 64 * byte + 32 * half));
            const __m256i a = _mm256_and_si256(bytes, nibble),
                          b = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble);
            const __m256i l = _mm256_add_epi8(_mm256_shuffle_epi8(t0, a), _mm256_shuffle_epi8(t2, b));
            const __m256i h = _mm256_add_epi8(_mm256_shuffle_epi8(t1, a), _mm256_shuffle_epi8(t3, b));
            low[half] = byte ? add_pinned(low[half], l, false) : l;
            high[half] = byte ? add_pinned(high[half], h, false) : h;
        }
    }
    const __m256i weights = _mm256_set1_epi16(2 | 64 << 8), even = _mm256_set1_epi32(1),
                  odd = _mm256_set1_epi32(1 << 16);
    const __m256i bias = _mm256_set1_epi16((int16_t)(2 * 8 * 16 * 32 + minus));
    QN_UNROLLED
    for (int half = 0; half < 2; half++)
        QN_UNROLLED
    for (int pair = 0; pair < 2; pair++) {
        const __m256i both =
            pair ? _mm256_unpackhi_epi8(low[half], high[half]) : _mm256_unpacklo_epi8(low[half], high[half]);
        const __m256i sums = _mm256_sub_epi16(_mm256_maddubs_epi16(both, weights), bias);
        sum[half][2 * pair] = _mm256_madd_epi16(sums, even);
        sum[half][2 * pair + 1] = _mm256_madd_epi16(sums, odd);
    }
}

/* Multiplies a group of 1-bit weights by one token; p points to its word's bytes of 64 rows. The dot product is 2S -
 * act_sum. */
QN_INLINE void panel_group_1bit(const uint8_t *p, size_t distance, const float *scale, const qn_acts *acts, bool hilo,
                                size_t at, __m256i started, float *partial)
{
    const __m256 act_scale = _mm256_set1_ps(acts->scale[at]);
    const __m256i act_sum = _mm256_set1_epi32(acts->sum[at]);
    __m256i sum[2][4], sum_lo[2][4];
    /* 16 bits hold the sum of a group's codes, but not that of combined hi/lo codes. */
    lut_sums(p, distance, acts->lut + at * QN_GROUP_LUT_BYTES, hilo ? 0 : acts->sum[at], sum);
    if (hilo)
        lut_sums(p, 0, acts->lut_lo + at * QN_GROUP_LUT_BYTES, 0, sum_lo);
    QN_UNROLLED
    for (int half = 0; half < 2; half++)
        QN_UNROLLED
    for (int i = 0; i < 4; i++) {
        const size_t row = (size_t)(16 * i + 8 * half);
        const __m256i isum = hilo ? _mm256_sub_epi32(pack_hilo(sum[half][i], sum_lo[half][i]), act_sum) : sum[half][i];
        panel_accumulate(partial + row, isum, _mm256_mul_ps(_mm256_load_ps(scale + row), act_scale), started);
    }
}

QN_INLINE __m256i dot_2bit_step(__m256i sums, __m256i fields, __m256i codes)
{
#ifdef QN_V16_AVXVNNI
    return _mm256_dpbusd_avx_epi32(sums, fields, codes);
#else
    return add_pinned(sums, _mm256_maddubs_epi16(fields, codes), true); /* at most eight times 2 * 3 * 127 */
#endif
}

QN_INLINE __m256i dot_2bit_end(__m256i sums)
{
#ifdef QN_V16_AVXVNNI
    return sums;
#else
    return _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
#endif
}

/* Computes the dot products of a group's two words with codes, for n_vectors of eight rows: field j of byte k of a word
 * is weight 4k + j. */
QN_INLINE void accumulate_2bit(const uint8_t *p, size_t distance, const int8_t *codes, size_t token_bytes,
                               size_t n_tokens, size_t n_vectors, __m256i sums[QN_PANEL_TOKENS][4])
{
    const __m256i three = _mm256_set1_epi8(3);
    QN_UNROLLED
    for (size_t t = 0; t < n_tokens; t++)
        QN_UNROLLED
    for (size_t v = 0; v < n_vectors; v++)
        sums[t][v] = _mm256_setzero_si256();
    QN_UNROLLED
    for (size_t word = 0; word < 2; word++)
        QN_UNROLLED
    for (int j = 0; j < 4; j++) {
        __m256i fields[4];
        QN_UNROLLED
        for (size_t v = 0; v < n_vectors; v++) {
            const uint8_t *q = p + (word * QN_PANEL_ROWS + 8 * v) * 4;
            const __m256i words = _mm256_loadu_si256((const __m256i *)(const void *)q);
            if (!j && v % 2 == 0)
                prefetch_line(q, distance);
            fields[v] = _mm256_and_si256(j ? _mm256_srli_epi32(words, 2 * j) : words, three);
        }
        QN_UNROLLED
        for (size_t t = 0; t < n_tokens; t++) {
            int32_t four;
            memcpy(&four, codes + t * token_bytes + 64 * (4 * word + (size_t)j), 4);
            QN_UNROLLED
            for (size_t v = 0; v < n_vectors; v++)
                sums[t][v] = dot_2bit_step(sums[t][v], fields[v], _mm256_set1_epi32(four));
        }
    }
    QN_UNROLLED
    for (size_t t = 0; t < n_tokens; t++)
        QN_UNROLLED
    for (size_t v = 0; v < n_vectors; v++)
        sums[t][v] = dot_2bit_end(sums[t][v]);
}

/* Multiplies a group of 2-bit weights; p points to its two words of 64 rows. Computes n_vectors of eight rows at a
 * time, the number that the registers hold. */
QN_INLINE void panel_group_2bit(const uint8_t *p, size_t distance, const float *scale, const qn_acts *acts, bool hilo,
                                size_t first, size_t n_tokens, size_t n_vectors, size_t group, panel_partial *partial)
{
    const size_t token_groups = acts->n_super * QN_SUPER_GROUPS, at = first * token_groups + group;
    const size_t code = (at - group % QN_SUPER_GROUPS) * QN_QUANT_GROUP + group % QN_SUPER_GROUPS * 4;
    for (size_t row = 0; row < QN_PANEL_ROWS; row += 8 * n_vectors) {
        __m256i sums[QN_PANEL_TOKENS][4], sums_lo[QN_PANEL_TOKENS][4];
        accumulate_2bit(p + 4 * row, distance, acts->codes[QN_ACT_2BIT] + code, token_groups * QN_QUANT_GROUP, n_tokens,
                        n_vectors, sums);
        if (hilo)
            accumulate_2bit(p + 4 * row, 0, acts->codes_lo[QN_ACT_2BIT] + code, token_groups * QN_QUANT_GROUP, n_tokens,
                            n_vectors, sums_lo);
        QN_UNROLLED
        for (size_t t = 0; t < n_tokens; t++) {
            const __m256 act_scale = _mm256_set1_ps(acts->scale[at + t * token_groups]);
            const __m256i act_sum = _mm256_set1_epi32(acts->sum[at + t * token_groups]);
            QN_UNROLLED
            for (size_t v = 0; v < n_vectors; v++) {
                const __m256i combined = hilo ? pack_hilo(sums[t][v], sums_lo[t][v]) : sums[t][v];
                panel_accumulate(partial[t][group % QN_LANES] + row + 8 * v, _mm256_sub_epi32(combined, act_sum),
                                 _mm256_mul_ps(_mm256_load_ps(scale + row + 8 * v), act_scale), pack_started(group));
            }
        }
    }
}

QN_INLINE void panel_store(const panel_partial partial, bool accumulate, float *out)
{
    for (size_t row = 0; row < QN_PANEL_ROWS; row += 8) {
        __m256 sum[QN_LANES / 2];
        QN_UNROLLED
        for (int i = 0; i < QN_LANES / 2; i++)
            sum[i] = _mm256_add_ps(_mm256_load_ps(partial[i] + row), _mm256_load_ps(partial[i + 8] + row));
        QN_UNROLLED
        for (int width = 4; width; width /= 2)
            QN_UNROLLED
        for (int i = 0; i < width; i++)
            sum[i] = _mm256_add_ps(sum[i], sum[i + width]);
        if (accumulate)
            sum[0] = _mm256_add_ps(_mm256_loadu_ps(out + row), sum[0]);
        _mm256_storeu_ps(out + row, sum[0]);
    }
}

/* Multiplies one panel by n_tokens tokens. n_tokens, n_vectors and block_groups are constants at the calls. */
QN_INLINE void panel_tile_2bit(bool hilo, size_t block_groups, const uint8_t *p, size_t n_blocks, const qn_acts *acts,
                               size_t first, size_t n_tokens, size_t n_vectors, size_t distance, bool accumulate,
                               float *out, size_t out_stride)
{
    const size_t group_bytes = 8 * QN_PANEL_ROWS, block_bytes = block_groups * group_bytes + 2 * QN_PANEL_ROWS;
    _Alignas(64) panel_partial partial[QN_PANEL_TOKENS];
    _Alignas(64) float scale[QN_PANEL_ROWS];
    if (n_blocks * block_groups < QN_LANES) /* else the first groups initialise every partial sum */
        memset(partial, 0, n_tokens * sizeof *partial);
    for (size_t block = 0; block < n_blocks; block++, p += block_bytes) {
        load_scales(p + block_groups * group_bytes, distance, scale);
        for (size_t r = 0; r < block_groups; r++)
            panel_group_2bit(p + r * group_bytes, distance, scale, acts, hilo, first, n_tokens, n_vectors,
                             block * block_groups + r, partial);
    }
    QN_UNROLLED
    for (size_t t = 0; t < n_tokens; t++)
        panel_store(partial[t], accumulate, out + t * out_stride);
}

/* Multiplies all panels, four tokens or one at a time. Only the first tokens of a panel prefetch: for later tokens it
 * is cached. */
QN_INLINE void panel_loop_2bit(bool hilo, size_t block_groups, const qn_packed_matrix *weights, size_t row,
                               size_t n_rows, const qn_acts *acts, size_t first, size_t n_tokens, bool accumulate,
                               float *out, size_t out_stride)
{
    const size_t n_blocks = weights->stored.row_bytes / weights->stored.type->block_bytes, last = first + n_tokens;
    for (size_t end = row + n_rows; row < end; row += QN_PANEL_ROWS) {
        const uint8_t *p = weights->packed + row * weights->stored.row_bytes;
        float *to = out + row;
        size_t t = first, distance = PANEL_PREFETCH_BYTES;
        for (; t + 4 <= last; t += 4, distance = 0)
            panel_tile_2bit(hilo, block_groups, p, n_blocks, acts, t, 4, 2, distance, accumulate, to + t * out_stride,
                            out_stride);
        for (; t < last; t++, distance = 0)
            panel_tile_2bit(hilo, block_groups, p, n_blocks, acts, t, 1, 4, distance, accumulate, to + t * out_stride,
                            out_stride);
    }
}

QN_INLINE void panel_loop_1bit(bool hilo, const qn_packed_matrix *weights, size_t row, size_t n_rows,
                               const qn_acts *acts, size_t first, size_t n_tokens, bool accumulate, float *out,
                               size_t out_stride)
{
    const size_t n_blocks = weights->stored.row_bytes / weights->stored.type->block_bytes,
                 group_bytes = 4 * QN_PANEL_ROWS;
    const size_t block_bytes = 4 * group_bytes + 2 * QN_PANEL_ROWS;
    _Alignas(64) panel_partial partial;
    _Alignas(64) float scale[QN_PANEL_ROWS];
    for (size_t end = row + n_rows; row < end; row += QN_PANEL_ROWS)
        for (size_t t = first; t < first + n_tokens; t++) {
            const uint8_t *p = weights->packed + row * weights->stored.row_bytes;
            const size_t distance = t == first ? PANEL_PREFETCH_BYTES : 0;
            if (4 * n_blocks < QN_LANES)
                memset(partial, 0, sizeof partial);
            for (size_t block = 0; block < n_blocks; block++, p += block_bytes) {
                load_scales(p + 4 * group_bytes, distance, scale);
                for (size_t r = 0; r < 4; r++) {
                    const size_t group = 4 * block + r, at = t * acts->n_super * QN_SUPER_GROUPS + group;
                    panel_group_1bit(p + r * group_bytes, distance, scale, acts, hilo, at, pack_started(group),
                                     partial[group % QN_LANES]);
                }
            }
            panel_store(partial, accumulate, out + t * out_stride + row);
        }
}

#define PACKED_ARGUMENTS                                                                                               \
    const qn_packed_matrix *weights, size_t row, size_t n_rows, const qn_acts *acts, size_t first, size_t n_tokens,    \
        bool accumulate, float *out, size_t out_stride

static void packed_q1_0(PACKED_ARGUMENTS)
{
    if (acts->hilo)
        panel_loop_1bit(true, weights, row, n_rows, acts, first, n_tokens, accumulate, out, out_stride);
    else
        panel_loop_1bit(false, weights, row, n_rows, acts, first, n_tokens, accumulate, out, out_stride);
}

static void packed_q2_0(PACKED_ARGUMENTS)
{
    if (acts->hilo)
        panel_loop_2bit(true, QN_Q2_0_WEIGHTS / QN_QUANT_GROUP, weights, row, n_rows, acts, first, n_tokens, accumulate,
                        out, out_stride);
    else
        panel_loop_2bit(false, QN_Q2_0_WEIGHTS / QN_QUANT_GROUP, weights, row, n_rows, acts, first, n_tokens,
                        accumulate, out, out_stride);
}

static void packed_pq2_0(PACKED_ARGUMENTS)
{
    if (acts->hilo)
        panel_loop_2bit(true, QN_PQ2_0_WEIGHTS / QN_QUANT_GROUP, weights, row, n_rows, acts, first, n_tokens,
                        accumulate, out, out_stride);
    else
        panel_loop_2bit(false, QN_PQ2_0_WEIGHTS / QN_QUANT_GROUP, weights, row, n_rows, acts, first, n_tokens,
                        accumulate, out, out_stride);
}

#endif
