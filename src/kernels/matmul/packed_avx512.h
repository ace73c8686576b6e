/* Part of matmul_avx512.c: GEMM of packed matrices (packed.h, QN_PACKING_WORDS). A vector is one word of sixteen rows:
 * the sum of a group has one row per lane, and no operation crosses lanes. */
#ifndef QN_KERNELS_MATMUL_PACKED_AVX512_H
#define QN_KERNELS_MATMUL_PACKED_AVX512_H

#include "kernels/matmul/matmul_simd.h"
#include "kernels/matmul/packed.h"

enum { PACK_VECTORS = QN_PANEL_ROWS / 16 };

/* Prefetch distance in bytes, into L2: each line is prefetched next to the load of the line before it by so much. In
 * bursts of a block, prefetches occupy the buffers for misses that loads need, and computing and reading add up.
 * Measured on Sapphire Rapids, one core reading Q1_0 from memory, in bytes a cycle: bursts at 9216 bytes 2.8; singly at
 * 9216, 4608, 2304, 1152 bytes 3.5, 3.5, 3.8, 3.5; two panels at once, which are two streams for the prefetchers of the
 * hardware, 3.5, 3.6, 4.1, 3.9; loads alone 4.4. Zen 4 has the same rate at any distance from 4608 on, and a third less
 * with the non-temporal hint or without prefetches. */
enum { PANEL_PREFETCH_BYTES = 2304 };

/* Panels computed at once for one token. */
enum { PANELS_AT_ONCE = 2 };

/* Prefetches the line at a distance from p. Where a tile reads lines that are cached, the distance is 0. */
QN_INLINE void prefetch_line(const uint8_t *p, size_t distance)
{
    _mm_prefetch((const char *)p + distance, _MM_HINT_T1);
}

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

QN_INLINE void load_scales(const uint8_t *p, size_t distance, __m512 scale[PACK_VECTORS])
{
    for (size_t line = 0; line < 2 * QN_PANEL_ROWS; line += 64)
        prefetch_line(p + line, distance);
    QN_UNROLLED
    for (int g = 0; g < PACK_VECTORS; g++)
        scale[g] = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(p + 32 * g)));
}

/* The tables of a group. */
struct lut {
    __m512i low[2], high[2]; /* of low and of high nibbles: [low, high bytes of the sums] */
};

QN_INLINE struct lut load_lut(const uint8_t *lut)
{
    return (struct lut){ { _mm512_load_si512(lut), _mm512_load_si512(lut + 64) },
                         { _mm512_load_si512(lut + 128), _mm512_load_si512(lut + 192) } };
}

/* Table indices: the nibbles of a group's words. */
struct nibbles {
    __m512i low, high;
};

QN_INLINE struct nibbles load_nibbles(const uint8_t *p, size_t distance)
{
    const __m512i nibble = _mm512_set1_epi8(15), lut_offset = _mm512_set1_epi32(0x30201000);
    const __m512i words = _mm512_loadu_si512(p);
    prefetch_line(p, distance);
    /* (words & nibble) | lut_offset */
    return (struct nibbles){ _mm512_ternarylogic_epi32(words, nibble, lut_offset, 0xea),
                             _mm512_ternarylogic_epi32(_mm512_srli_epi32(words, 4), nibble, lut_offset, 0xea) };
}

/* Computes from + 2S; S is the sum of the activation codes whose weight bit is set. */
QN_INLINE __m512i lut_sum(const struct lut *lut, const struct nibbles *at, __m512i from)
{
    const __m512i two = _mm512_set1_epi8(2), sixty_four = _mm512_set1_epi8(64);
    const __m512i sums_low =
        _mm512_add_epi8(_mm512_permutexvar_epi8(at->low, lut->low[0]), _mm512_permutexvar_epi8(at->high, lut->high[0]));
    const __m512i sums_high =
        _mm512_add_epi8(_mm512_permutexvar_epi8(at->low, lut->low[1]), _mm512_permutexvar_epi8(at->high, lut->high[1]));
    return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(from, sums_low, two), sixty_four, sums_high);
}

/* Multiplies a group of 1-bit weights; p points to its words of 64 rows. The dot product is 2S - act_sum. */
QN_INLINE void panel_group_1bit(const uint8_t *p, size_t distance, const __m512 scale[PACK_VECTORS],
                                const qn_acts *acts, bool hilo, size_t first, size_t n_tokens, size_t group,
                                panel_partial *partial)
{
    struct nibbles at[PACK_VECTORS];
    QN_UNROLLED
    for (int g = 0; g < PACK_VECTORS; g++)
        at[g] = load_nibbles(p + 64 * g, distance);
    QN_UNROLLED
    for (size_t t = 0; t < n_tokens; t++) {
        const size_t act = (first + t) * acts->n_super * QN_SUPER_GROUPS + group;
        const __m512 act_scale = _mm512_set1_ps(acts->scale[act]);
        const __m512i zero = _mm512_setzero_si512(),
                      minus_sum = _mm512_sub_epi32(zero, _mm512_set1_epi32(acts->sum[act]));
        const struct lut lut = load_lut(acts->lut + act * QN_GROUP_LUT_BYTES);
        __m512i isum[PACK_VECTORS];
        QN_UNROLLED
        for (int g = 0; g < PACK_VECTORS; g++)
            isum[g] = lut_sum(&lut, &at[g], hilo ? zero : minus_sum);
        if (hilo) {
            const struct lut lut_lo = load_lut(acts->lut_lo + act * QN_GROUP_LUT_BYTES);
            QN_UNROLLED
            for (int g = 0; g < PACK_VECTORS; g++)
                isum[g] = pack_hilo(isum[g], lut_sum(&lut_lo, &at[g], minus_sum));
        }
        QN_UNROLLED
        for (int g = 0; g < PACK_VECTORS; g++)
            panel_accumulate(partial[t][group % QN_LANES] + 16 * g, isum[g], _mm512_mul_ps(scale[g], act_scale),
                             pack_started(group));
    }
}

/* Adds the dot products of a group's two words with codes: field j of byte k of a word is weight 4k + j. */
QN_INLINE void accumulate_2bit(const uint8_t *p, size_t distance, const int8_t *codes, size_t token_bytes,
                               size_t n_tokens, __m512i isum[QN_PANEL_TOKENS][PACK_VECTORS])
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
            if (!j)
                prefetch_line(p + (word * PACK_VECTORS + g) * 64, distance);
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
QN_INLINE void panel_group_2bit(const uint8_t *p, size_t distance, const __m512 scale[PACK_VECTORS],
                                const qn_acts *acts, bool hilo, size_t first, size_t n_tokens, size_t group,
                                panel_partial *partial)
{
    const size_t token_groups = acts->n_super * QN_SUPER_GROUPS, at = first * token_groups + group;
    const size_t code = (at - group % QN_SUPER_GROUPS) * QN_QUANT_GROUP + group % QN_SUPER_GROUPS * 4;
    __m512i isum[QN_PANEL_TOKENS][PACK_VECTORS];
    QN_UNROLLED
    for (size_t t = 0; t < n_tokens; t++)
        QN_UNROLLED
    for (int g = 0; g < PACK_VECTORS; g++)
        isum[t][g] = hilo ? _mm512_setzero_si512() : _mm512_set1_epi32(-acts->sum[at + t * token_groups]);
    accumulate_2bit(p, distance, acts->codes[QN_ACT_2BIT] + code, token_groups * QN_QUANT_GROUP, n_tokens, isum);
    if (hilo) {
        QN_UNROLLED
        for (size_t t = 0; t < n_tokens; t++)
            QN_UNROLLED
        for (int g = 0; g < PACK_VECTORS; g++)
            isum[t][g] = pack_hilo(isum[t][g], _mm512_set1_epi32(-acts->sum[at + t * token_groups]));
        accumulate_2bit(p, 0, acts->codes_lo[QN_ACT_2BIT] + code, token_groups * QN_QUANT_GROUP, n_tokens, isum);
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

/* ---- Blocks of 128 values (blocks.h) ---- */

/* Adds factor * isum: both are 16-bit integers. */
QN_INLINE __m512i add_factored(__m512i sum, __m512i isum, int32_t factor)
{
    return _mm512_dpwssd_epi32(sum, isum, _mm512_set1_epi32(factor));
}

/* Adds a group of 1-bit weights to the sums of its block. */
QN_INLINE void add_group_1bit(const uint8_t *p, size_t distance, const qn_acts *acts, bool hilo, size_t first,
                              size_t n_tokens, size_t group, __m512i sum[QN_PANEL_TOKENS][PACK_VECTORS])
{
    struct nibbles at[PACK_VECTORS];
    QN_UNROLLED
    for (int g = 0; g < PACK_VECTORS; g++)
        at[g] = load_nibbles(p + 64 * g, distance);
    QN_UNROLLED
    for (size_t t = 0; t < n_tokens; t++) {
        const size_t act = (first + t) * acts->n_super * QN_SUPER_GROUPS + group;
        const __m512i zero = _mm512_setzero_si512();
        const struct lut lut = load_lut(acts->lut + act * QN_GROUP_LUT_BYTES);
        __m512i isum[PACK_VECTORS];
        QN_UNROLLED
        for (int g = 0; g < PACK_VECTORS; g++)
            isum[g] = lut_sum(&lut, &at[g], zero);
        if (hilo) {
            const struct lut lut_lo = load_lut(acts->lut_lo + act * QN_GROUP_LUT_BYTES);
            QN_UNROLLED
            for (int g = 0; g < PACK_VECTORS; g++)
                sum[t][g] = _mm512_add_epi32(sum[t][g], pack_hilo(isum[g], lut_sum(&lut_lo, &at[g], zero)));
            continue;
        }
        QN_UNROLLED
        for (int g = 0; g < PACK_VECTORS; g++)
            sum[t][g] = add_factored(sum[t][g], isum[g], acts->factor[act]);
    }
}

/* The same of 2-bit weights. */
QN_INLINE void add_group_2bit(const uint8_t *p, size_t distance, const qn_acts *acts, bool hilo, size_t first,
                              size_t n_tokens, size_t group, __m512i sum[QN_PANEL_TOKENS][PACK_VECTORS])
{
    const size_t token_groups = acts->n_super * QN_SUPER_GROUPS, at = first * token_groups + group;
    const size_t code = (at - group % QN_SUPER_GROUPS) * QN_QUANT_GROUP + group % QN_SUPER_GROUPS * 4;
    __m512i isum[QN_PANEL_TOKENS][PACK_VECTORS];
    QN_UNROLLED
    for (size_t t = 0; t < n_tokens; t++)
        QN_UNROLLED
    for (int g = 0; g < PACK_VECTORS; g++)
        isum[t][g] = _mm512_setzero_si512();
    accumulate_2bit(p, distance, acts->codes[QN_ACT_2BIT] + code, token_groups * QN_QUANT_GROUP, n_tokens, isum);
    if (hilo) {
        QN_UNROLLED
        for (size_t t = 0; t < n_tokens; t++)
            QN_UNROLLED
        for (int g = 0; g < PACK_VECTORS; g++)
            isum[t][g] = pack_hilo(isum[t][g], _mm512_setzero_si512());
        accumulate_2bit(p, 0, acts->codes_lo[QN_ACT_2BIT] + code, token_groups * QN_QUANT_GROUP, n_tokens, isum);
    }
    QN_UNROLLED
    for (size_t t = 0; t < n_tokens; t++)
        QN_UNROLLED
    for (int g = 0; g < PACK_VECTORS; g++)
        sum[t][g] = hilo ? _mm512_add_epi32(sum[t][g], isum[t][g])
                         : add_factored(sum[t][g], isum[t][g], acts->factor[at + t * token_groups]);
}

/* Scales the sum of a block and adds it. */
QN_INLINE __m512 add_block(__m512 element, __m512i sum, __m512 scale, float act_scale)
{
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(scale, _mm512_set1_ps(act_scale)), element);
}

QN_INLINE void store_elements(const __m512 element[PACK_VECTORS], bool accumulate, float *out)
{
    QN_UNROLLED
    for (int g = 0; g < PACK_VECTORS; g++)
        _mm512_storeu_ps(out + 16 * g,
                         accumulate ? _mm512_add_ps(_mm512_loadu_ps(out + 16 * g), element[g]) : element[g]);
}

QN_INLINE void store_partial(const float partial[QN_PANEL_ROWS], bool accumulate, float *out)
{
    __m512 element[PACK_VECTORS];
    QN_UNROLLED
    for (int g = 0; g < PACK_VECTORS; g++)
        element[g] = _mm512_load_ps(partial + 16 * g);
    store_elements(element, accumulate, out);
}

/* panel_tile of blocks of 128 values. */
QN_INLINE void panel_tile_blocks(bool bits, bool hilo, const uint8_t *p, size_t n_panels, size_t n_blocks,
                                 const qn_acts *acts, size_t first, size_t n_tokens, size_t distance, bool accumulate,
                                 float *out, size_t out_stride)
{
    const size_t group_bytes = (size_t)(bits ? 4 : 8) * QN_PANEL_ROWS,
                 block_bytes = QN_BLOCK_GROUPS * group_bytes + 2 * QN_PANEL_ROWS, panel_bytes = n_blocks * block_bytes;
    __m512 element[QN_PANEL_TOKENS][PACK_VECTORS]; /* of panels by tokens */
    QN_UNROLLED
    for (size_t i = 0; i < n_panels * n_tokens; i++)
        QN_UNROLLED
    for (int g = 0; g < PACK_VECTORS; g++)
        element[i][g] = _mm512_setzero_ps();
    for (size_t block = 0; block < n_blocks; block++, p += block_bytes) {
        const bool ends = block * block_bytes + distance >= panel_bytes;
        const size_t ahead = ends ? distance + (n_panels - 1) * panel_bytes : distance;
        __m512i sum[QN_PANEL_TOKENS][PACK_VECTORS];
        QN_UNROLLED
        for (size_t i = 0; i < n_panels * n_tokens; i++)
            QN_UNROLLED
        for (int g = 0; g < PACK_VECTORS; g++)
            sum[i][g] = _mm512_set1_epi32(-acts->block_sum[(first + i % n_tokens) * qn_act_blocks(acts) + block]);
        for (size_t r = 0; r < QN_BLOCK_GROUPS; r++)
            QN_UNROLLED
        for (size_t i = 0; i < n_panels; i++) {
            const uint8_t *words = p + i * panel_bytes + r * group_bytes;
            (bits ? add_group_1bit : add_group_2bit)(words, ahead, acts, hilo, first, n_tokens,
                                                     block * QN_BLOCK_GROUPS + r, sum + i * n_tokens);
        }
        QN_UNROLLED
        for (size_t i = 0; i < n_panels; i++) {
            __m512 scale[PACK_VECTORS];
            load_scales(p + i * panel_bytes + QN_BLOCK_GROUPS * group_bytes, ahead, scale);
            QN_UNROLLED
            for (size_t t = 0; t < n_tokens; t++)
                QN_UNROLLED
            for (int g = 0; g < PACK_VECTORS; g++)
                element[i * n_tokens + t][g] =
                    add_block(element[i * n_tokens + t][g], sum[i * n_tokens + t][g], scale[g],
                              acts->block_scale[(first + t) * qn_act_blocks(acts) + block]);
        }
    }
    QN_UNROLLED
    for (size_t i = 0; i < n_panels; i++)
        QN_UNROLLED
    for (size_t t = 0; t < n_tokens; t++)
        store_elements(element[i * n_tokens + t], accumulate, out + i * QN_PANEL_ROWS + t * out_stride);
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

/* Multiplies n_panels adjacent panels by n_tokens tokens, together at most QN_PANEL_TOKENS. `distance` is that of
 * prefetch_line; at the end of its panels a tile prefetches the beginnings of the next ones. bits, hilo, blocks
 * (blocks.h), block_groups, n_panels and n_tokens are constants at the calls. */
QN_INLINE void panel_tile(bool bits, bool hilo, bool blocks, size_t block_groups, const uint8_t *p, size_t n_panels,
                          size_t n_blocks, const qn_acts *acts, size_t first, size_t n_tokens, size_t distance,
                          bool accumulate, float *out, size_t out_stride)
{
    if (blocks) {
        panel_tile_blocks(bits, hilo, p, n_panels, n_blocks, acts, first, n_tokens, distance, accumulate, out,
                          out_stride);
        return;
    }
    const size_t group_bytes = (size_t)(bits ? 4 : 8) * QN_PANEL_ROWS,
                 block_bytes = block_groups * group_bytes + 2 * QN_PANEL_ROWS, panel_bytes = n_blocks * block_bytes;
    _Alignas(64) panel_partial partial[QN_PANEL_TOKENS];
    if (n_blocks * block_groups < QN_LANES) /* else the first groups initialise every partial sum */
        memset(partial, 0, n_panels * n_tokens * sizeof *partial);
    for (size_t block = 0; block < n_blocks; block++, p += block_bytes) {
        __m512 scale[PANELS_AT_ONCE][PACK_VECTORS];
        const bool ends = block * block_bytes + distance >= panel_bytes;
        const size_t ahead = ends ? distance + (n_panels - 1) * panel_bytes : distance;
        QN_UNROLLED
        for (size_t i = 0; i < n_panels; i++)
            load_scales(p + i * panel_bytes + block_groups * group_bytes, ahead, scale[i]);
        for (size_t r = 0; r < block_groups; r++)
            QN_UNROLLED
        for (size_t i = 0; i < n_panels; i++) {
            const uint8_t *words = p + i * panel_bytes + r * group_bytes;
            if (bits)
                panel_group_1bit(words, ahead, scale[i], acts, hilo, first, n_tokens, block * block_groups + r,
                                 partial + i * n_tokens);
            else
                panel_group_2bit(words, ahead, scale[i], acts, hilo, first, n_tokens, block * block_groups + r,
                                 partial + i * n_tokens);
        }
    }
    QN_UNROLLED
    for (size_t i = 0; i < n_panels; i++)
        QN_UNROLLED
    for (size_t t = 0; t < n_tokens; t++)
        panel_store(partial[i * n_tokens + t], accumulate, out + i * QN_PANEL_ROWS + t * out_stride);
}

/* Multiplies all panels: by one token two panels at a time, by more one, and four, two or one token. Only the first
 * tokens of a panel prefetch: for later tokens it is cached. */
QN_INLINE void panel_loop(bool bits, bool hilo, bool blocks, size_t block_groups, const qn_packed_matrix *weights,
                          size_t row, size_t n_rows, const qn_acts *acts, size_t first, size_t n_tokens,
                          bool accumulate, float *out, size_t out_stride)
{
    const size_t n_blocks = weights->stored.row_bytes / weights->stored.type->block_bytes, last = first + n_tokens,
                 end = row + n_rows;
    for (; n_tokens == 1 && row + PANELS_AT_ONCE * QN_PANEL_ROWS <= end; row += PANELS_AT_ONCE * QN_PANEL_ROWS)
        panel_tile(bits, hilo, blocks, block_groups, weights->packed + row * weights->stored.row_bytes, PANELS_AT_ONCE,
                   n_blocks, acts, first, 1, PANEL_PREFETCH_BYTES, accumulate, out + row + first * out_stride,
                   out_stride);
    for (; row < end; row += QN_PANEL_ROWS) {
        const uint8_t *p = weights->packed + row * weights->stored.row_bytes;
        float *to = out + row;
        size_t t = first, distance = PANEL_PREFETCH_BYTES;
        for (; t + 4 <= last; t += 4, distance = 0)
            panel_tile(bits, hilo, blocks, block_groups, p, 1, n_blocks, acts, t, 4, distance, accumulate,
                       to + t * out_stride, out_stride);
        for (; t + 2 <= last; t += 2, distance = 0)
            panel_tile(bits, hilo, blocks, block_groups, p, 1, n_blocks, acts, t, 2, distance, accumulate,
                       to + t * out_stride, out_stride);
        for (; t < last; t++, distance = 0)
            panel_tile(bits, hilo, blocks, block_groups, p, 1, n_blocks, acts, t, 1, distance, accumulate,
                       to + t * out_stride, out_stride);
    }
}

#define PACKED_VARIANT(name, bits, hilo, blocks, block_groups)                                                         \
    static void name(const qn_packed_matrix *weights, size_t row, size_t n_rows, const qn_acts *acts, size_t first,    \
                     size_t n_tokens, bool accumulate, float *out, size_t out_stride)                                  \
    {                                                                                                                  \
        panel_loop(bits, hilo, blocks, block_groups, weights, row, n_rows, acts, first, n_tokens, accumulate, out,     \
                   out_stride);                                                                                        \
    }
#define PACKED(name, bits, block_groups)                                                                               \
    PACKED_VARIANT(name##_plain, bits, false, false, block_groups)                                                     \
    PACKED_VARIANT(name##_hilo, bits, true, false, block_groups)                                                       \
    PACKED_VARIANT(name##_blocks, bits, false, (block_groups) == QN_BLOCK_GROUPS, block_groups)                        \
    PACKED_VARIANT(name##_blocks_hilo, bits, true, (block_groups) == QN_BLOCK_GROUPS, block_groups)                    \
    static void name(const qn_packed_matrix *weights, size_t row, size_t n_rows, const qn_acts *acts, size_t first,    \
                     size_t n_tokens, bool accumulate, float *out, size_t out_stride)                                  \
    {                                                                                                                  \
        static const qn_packed_gemm_fn variants[2][2] = { { name##_plain, name##_hilo },                               \
                                                          { name##_blocks, name##_blocks_hilo } };                     \
        variants[acts->factor != NULL][acts->hilo](weights, row, n_rows, acts, first, n_tokens, accumulate, out,       \
                                                   out_stride);                                                        \
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

/* Multiplies a block of ternary weights by one token. codes: the block's 128 activations in ascending order. isum: of
 * its four groups, without the zero point. */
QN_INLINE void panel_block_ternary(const uint8_t *p, size_t distance, const int8_t *codes,
                                   __m512i isum[TERNARY_VECTORS][4], __m512 scale[TERNARY_VECTORS])
{
    __m512i sum[TERNARY_VECTORS][4], next_sum[TERNARY_VECTORS][4], x[TERNARY_VECTORS], last[TERNARY_VECTORS];
    QN_UNROLLED
    for (int g = 0; g < TERNARY_VECTORS; g++) {
        last[g] = _mm512_loadu_si512(p + 4 * QN_PANEL_ROWS * 6 + 64 * g);
        prefetch_line(p + 4 * QN_PANEL_ROWS * 6 + 64 * g, distance);
        QN_UNROLLED
        for (int group = 0; group < 4; group++)
            sum[g][group] = next_sum[g][group] = _mm512_setzero_si512();
    }
    QN_UNROLLED
    for (int word = 0; word < 6; word++) {
        QN_UNROLLED
        for (int g = 0; g < TERNARY_VECTORS; g++) {
            x[g] = _mm512_loadu_si512(p + 4 * QN_PANEL_ROWS * word + 64 * g);
            prefetch_line(p + 4 * QN_PANEL_ROWS * word + 64 * g, distance);
        }
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
        scale[g] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(last[g], 16)));
        QN_UNROLLED
        for (int group = 0; group < 4; group++) {
            const __m512i thrice = _mm512_add_epi32(sum[g][group], _mm512_add_epi32(sum[g][group], sum[g][group]));
            isum[g][group] = _mm512_srai_epi32(_mm512_sub_epi32(thrice, next_sum[g][group]), 8);
        }
    }
}

/* Adds a block to the partial sums of rows. act_scale and act_sum belong to its four groups. */
QN_INLINE void add_ternary_groups(__m512i isum[TERNARY_VECTORS][4], const __m512 scale[TERNARY_VECTORS],
                                  const float *act_scale, const int32_t *act_sum, float (*partial)[QN_PANEL_ROWS],
                                  __mmask16 started)
{
    QN_UNROLLED
    for (int g = 0; g < TERNARY_VECTORS; g++)
        QN_UNROLLED
    for (int group = 0; group < 4; group++)
        panel_accumulate(partial[group] + 16 * g, _mm512_sub_epi32(isum[g][group], _mm512_set1_epi32(act_sum[group])),
                         _mm512_mul_ps(scale[g], _mm512_set1_ps(act_scale[group])), started);
}

/* The same by the arithmetic of blocks.h; partial[0] has the elements. */
QN_INLINE void add_ternary_block(__m512i isum[TERNARY_VECTORS][4], const __m512 scale[TERNARY_VECTORS],
                                 const qn_acts *acts, size_t block, float (*partial)[QN_PANEL_ROWS], __mmask16 started)
{
    QN_UNROLLED
    for (int g = 0; g < TERNARY_VECTORS; g++) {
        __m512i sum = _mm512_set1_epi32(-acts->block_sum[block]);
        QN_UNROLLED
        for (int group = 0; group < 4; group++)
            sum = add_factored(sum, isum[g][group], acts->factor[block * QN_BLOCK_GROUPS + (size_t)group]);
        panel_accumulate(partial[0] + 16 * g, sum, _mm512_mul_ps(scale[g], _mm512_set1_ps(acts->block_scale[block])),
                         started);
    }
}

/* Multiplies n_panels adjacent panels by one token, as panel_tile. */
QN_INLINE void panel_tile_ternary(bool blocks, const uint8_t *p, size_t n_panels, size_t n_blocks, const qn_acts *acts,
                                  size_t token, size_t distance, bool accumulate, float *out)
{
    const size_t block_bytes = QN_PTQ1_0_BYTES * QN_PANEL_ROWS, panel_bytes = n_blocks * block_bytes;
    _Alignas(64) panel_partial partial[PANELS_AT_ONCE];
    if (4 * n_blocks < QN_LANES && !blocks)
        memset(partial, 0, n_panels * sizeof *partial);
    for (size_t block = 0; block < n_blocks; block++, p += block_bytes) {
        const size_t group = token * acts->n_super * QN_SUPER_GROUPS + 4 * block;
        const bool ends = block * block_bytes + distance >= panel_bytes;
        const size_t ahead = ends ? distance + (n_panels - 1) * panel_bytes : distance;
        for (size_t i = 0; i < n_panels; i++)
            for (size_t g = 0; g < PACK_VECTORS; g += TERNARY_VECTORS) {
                __m512i isum[TERNARY_VECTORS][4];
                __m512 scale[TERNARY_VECTORS];
                panel_block_ternary(p + i * panel_bytes + 64 * g, ahead,
                                    acts->codes[QN_ACT_PLAIN] + group * QN_QUANT_GROUP, isum, scale);
                if (blocks)
                    add_ternary_block(isum, scale, acts, group / QN_BLOCK_GROUPS,
                                      (float(*)[QN_PANEL_ROWS])(partial[i][0] + 16 * g), block ? 0xffff : 0);
                else
                    add_ternary_groups(isum, scale, acts->scale + group, acts->sum + group,
                                       (float(*)[QN_PANEL_ROWS])(partial[i][4 * block % QN_LANES] + 16 * g),
                                       pack_started(4 * block));
            }
    }
    for (size_t i = 0; i < n_panels; i++)
        if (blocks)
            store_partial(partial[i][0], accumulate, out + i * QN_PANEL_ROWS);
        else
            panel_store(partial[i], accumulate, out + i * QN_PANEL_ROWS);
}

QN_INLINE void ternary_loop(bool blocks, const qn_packed_matrix *weights, size_t row, size_t n_rows,
                            const qn_acts *acts, size_t first, size_t n_tokens, bool accumulate, float *out,
                            size_t out_stride)
{
    const size_t n_blocks = weights->stored.n_cols / QN_PTQ1_0_WEIGHTS, end = row + n_rows,
                 pair = PANELS_AT_ONCE * QN_PANEL_ROWS;
    for (; n_tokens == 1 && row + pair <= end; row += pair)
        panel_tile_ternary(blocks, weights->packed + row * weights->stored.row_bytes, PANELS_AT_ONCE, n_blocks, acts,
                           first, PANEL_PREFETCH_BYTES, accumulate, out + first * out_stride + row);
    for (; row < end; row += QN_PANEL_ROWS)
        for (size_t t = first; t < first + n_tokens; t++)
            panel_tile_ternary(blocks, weights->packed + row * weights->stored.row_bytes, 1, n_blocks, acts, t,
                               t == first ? PANEL_PREFETCH_BYTES : 0, accumulate, out + t * out_stride + row);
}

static void packed_ptq1_0(const qn_packed_matrix *weights, size_t row, size_t n_rows, const qn_acts *acts, size_t first,
                          size_t n_tokens, bool accumulate, float *out, size_t out_stride)
{
    if (acts->factor)
        ternary_loop(true, weights, row, n_rows, acts, first, n_tokens, accumulate, out, out_stride);
    else
        ternary_loop(false, weights, row, n_rows, acts, first, n_tokens, accumulate, out, out_stride);
}

#endif
