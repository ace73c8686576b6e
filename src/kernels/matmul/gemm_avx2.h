/* GEMM tiles for AVX2 and AVX-VNNI. The readers of gemv_avx2.h unpack stored blocks. Integer dot products are widened
 * as rarely as the codes allow: without dpbusd, pairs of products are accumulated in 16 bits over the largest number of
 * vectors that fits, which costs two instructions a vector; widening each vector costs four. Float weights use
 * matmul_simd.h. */
#ifndef QN_KERNELS_MATMUL_GEMM_AVX2_H
#define QN_KERNELS_MATMUL_GEMM_AVX2_H

#define HAS_LUT
#include "kernels/matmul/gemv_avx2.h"
#include "kernels/matmul/packed_avx2.h"
#include "kernels/matmul/tables_avx2.h"

/* Eight accumulators of one half of a super-block stay in registers: four rows by two tokens, so that activations,
 * which come from L2, are read less often. Float tiles, whose accumulators take two registers each, are TILE_ROWS by
 * TILE_TOKENS. */
enum { GEMM_ROWS = 4, GEMM_TOKENS = 2 };

/* ---- Unpacking ---- */

/* Interleaves eight groups, one per vector: eight quads of codes of each, 64 bytes apart. */
QN_INLINE void store_quads(const __m256i group[8], uint8_t *out)
{
    __m256i a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_epi32(group[i], group[i + 1]);
        a[i + 1] = _mm256_unpackhi_epi32(group[i], group[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) { /* quads 2j and 2j + 1 of four groups, and 4 + the same in the upper half */
            b[i + 2 * j] = _mm256_unpacklo_epi64(a[i + j], a[i + j + 2]);
            b[i + 2 * j + 1] = _mm256_unpackhi_epi64(a[i + j], a[i + j + 2]);
        }
    for (int g = 0; g < 4; g++) {
        _mm256_store_si256((__m256i *)(out + 64 * g), _mm256_permute2x128_si256(b[g], b[4 + g], 0x20));
        _mm256_store_si256((__m256i *)(out + 64 * (g + 4)), _mm256_permute2x128_si256(b[g], b[4 + g], 0x31));
    }
}

/* Unpacks half of a super-block's codes to the layout of the GEMM. */
QN_INLINE void unpack_half(qn_type type, const uint8_t *p, size_t half, uint8_t *out)
{
    __m256i code[8], group[8];
    switch (type) {
    case QN_TYPE_Q1_0: {
        const __m256i bits = read_1bit(p, half), two = _mm256_set1_epi8(2);
        _mm256_store_si256((__m256i *)out, _mm256_and_si256(_mm256_add_epi8(bits, bits), two));
        for (int v = 1; v < 8; v++)
            _mm256_store_si256((__m256i *)(out + 64 * v), _mm256_and_si256(_mm256_srli_epi16(bits, v - 1), two));
        return;
    }
    case QN_TYPE_Q2_0:
    case QN_TYPE_PQ2_0:
    case QN_TYPE_OX2_0: {
        __m256i bytes[2];
        read_2bit(type, p, half, &bytes[0], &bytes[1]);
        for (int v = 0; v < 8; v++)
            _mm256_store_si256((__m256i *)(out + 64 * v),
                               _mm256_and_si256(_mm256_srli_epi16(bytes[v / 4], v % 4 * 2), _mm256_set1_epi8(3)));
        return;
    }
    case QN_TYPE_PTQ1_0:
        read_ptq1_0(p, half, code);
        for (int r = 0; r < 4; r++) {
            group[r] = _mm256_permute2x128_si256(code[2 * r], code[2 * r + 1], 0x20);
            group[4 + r] = _mm256_permute2x128_si256(code[2 * r], code[2 * r + 1], 0x31);
        }
        break;
    default:
        read_groups(type, p, half, group);
        for (int r = 0; is_read_signed(type) && r < 8; r++)
            group[r] = _mm256_xor_si256(group[r], _mm256_set1_epi8(-128));
    }
    store_quads(group, out);
}

QN_INLINE void unpack_format(qn_type type, qn_act_layout layout, const uint8_t *p, qn_super_block *out)
{
    (void)layout;
    __m256 scale[2], offset[2], offset_upper;
    read_scales(type, p, scale, offset);
    for (size_t half = 0; half < 2; half++) {
        unpack_half(type, p, half, out->codes + 32 * half);
        _mm256_storeu_ps(out->scale + 8 * half, scale[half]);
        if (type == QN_TYPE_NVFP4_L)
            _mm256_storeu_ps(out->scale_upper + 8 * half, offset[half]);
        if (type == QN_TYPE_Q2_K)
            read_half_offsets(p + half * QN_Q2_K_BYTES, &offset[half], &offset_upper);
        if (type == QN_TYPE_Q2_K)
            _mm256_storeu_ps(out->offset_upper + 8 * half, offset_upper);
        if (has_offset(type))
            _mm256_storeu_ps(out->offset + 8 * half, offset[half]);
        if (has_factors(type)) {
            const __m256i both = _mm256_cvtepi16_epi32(read_factors(type, p + half * block_of(type).bytes));
            const __m256i lower = _mm256_srai_epi32(_mm256_slli_epi32(both, 24), 24);
            _mm256_storeu_si256((__m256i *)(out->factor_lower + 8 * half), lower);
            _mm256_storeu_si256((__m256i *)(out->factor_upper + 8 * half), _mm256_srai_epi32(both, 8));
        }
    }
}

/* ---- GEMM ---- */

/* dpbusd multiplies codes up to 255; with maddubs their zero point, 128, is subtracted before the multiplication. */
#ifdef QN_V16_AVXVNNI
enum { NO_WIDE_ZERO_POINT = 0 };
#else
enum { NO_WIDE_ZERO_POINT = 1 };
#endif

/* Compile-time parameters of a tile's arithmetic: constant wherever gemm_block is called. */
struct gemm_block_traits {
    int n_i16_adds;              /* number of vectors whose products fit in a 16-bit sum */
    bool wide;                   /* codes up to 255 */
    bool no_zero_point;          /* the zero point is 0 or already subtracted */
    bool has_offset, has_factor; /* as in qn_type_info */
    bool has_halves;             /* has_factor or has_half_scale: the halves of groups have sums of their own */
    bool hilo;
};

/* Stops reassociation by the compiler: gcc 12 turns serial additions into trees, whose leaves exceed the registers (1.4
 * times the time of a tile). */
QN_INLINE void keep_in_register(__m256i *x)
{
    __asm__("" : "+x"(*x));
}

/* Adds the dot products of vectors [begin, end) of one half of a super-block. */
QN_INLINE void gemm_block_codes(const uint8_t *w, size_t row_bytes, size_t n_rows, const int8_t *acts,
                                size_t token_bytes, size_t n_tokens, int begin, int end,
                                struct gemm_block_traits traits, __m256i sum[GEMM_TOKENS][GEMM_ROWS])
{
#ifdef QN_V16_AVXVNNI
    for (int v = begin; v < end; v++) {
        __m256i row[GEMM_ROWS];
        for (size_t r = 0; r < n_rows; r++)
            row[r] = load32(w + r * row_bytes + 64 * v);
        for (size_t t = 0; t < n_tokens; t++) {
            const __m256i a = load32(acts + t * token_bytes + 64 * v);
            for (size_t r = 0; r < n_rows; r++)
                sum[t][r] = _mm256_dpbusd_avx_epi32(sum[t][r], row[r], a);
        }
    }
    (void)traits;
#else
    for (int first = begin; first < end; first += traits.n_i16_adds) {
        __m256i words[GEMM_TOKENS][GEMM_ROWS];
#pragma GCC unroll 8
        for (int v = first; v < first + traits.n_i16_adds; v++) {
            __m256i a[GEMM_TOKENS];
            for (size_t t = 0; t < n_tokens; t++)
                a[t] = load32(acts + t * token_bytes + 64 * v);
            for (size_t r = 0; r < n_rows; r++) {
                const __m256i row = load32(w + r * row_bytes + 64 * v);
                /* As in multiply_signed: code - 128 by activations, which are never -128. */
                const __m256i sign = _mm256_xor_si256(row, _mm256_set1_epi8(-128));
                for (size_t t = 0; t < n_tokens; t++) {
                    const __m256i products =
                        traits.wide ? _mm256_maddubs_epi16(_mm256_abs_epi8(sign), _mm256_sign_epi8(a[t], sign))
                                    : _mm256_maddubs_epi16(row, a[t]);
                    words[t][r] = v == first ? products : _mm256_add_epi16(words[t][r], products);
                    keep_in_register(&words[t][r]);
                }
            }
        }
        for (size_t t = 0; t < n_tokens; t++)
            for (size_t r = 0; r < n_rows; r++)
                sum[t][r] = _mm256_add_epi32(sum[t][r], _mm256_madd_epi16(words[t][r], _mm256_set1_epi16(1)));
    }
#endif
}

/* Computes the integer dot products of one half of a super-block, minus zero point times the sums of activations.
 * `sum`: full groups, or for types with halves the first 16 values of each; `last`: the last 16 values of each, for
 * types with halves. */
QN_INLINE void gemm_block_isums(const qn_super_block *w, size_t row_supers, size_t n_rows, const qn_acts *acts,
                                qn_act_layout layout, size_t super0, size_t half, size_t n_tokens, int zero_bits,
                                struct gemm_block_traits traits, __m256i sum[GEMM_TOKENS][GEMM_ROWS],
                                __m256i last[GEMM_TOKENS][GEMM_ROWS])
{
    const size_t n_super = acts->n_super, row_bytes = row_supers * sizeof *w, token_bytes = n_super * QN_SUPER;
    const uint8_t *codes = w->codes + 32 * half;
    for (size_t t = 0; t < n_tokens; t++)
        for (size_t r = 0; r < n_rows; r++)
            sum[t][r] = last[t][r] = _mm256_setzero_si256();
    for (int pass = traits.hilo ? 0 : 1; pass < 2; pass++) {
        const int8_t *a =
            (traits.hilo && pass ? acts->codes_lo[layout] : acts->codes[layout]) + super0 * QN_SUPER + 32 * half;
        if (traits.has_halves) {
            gemm_block_codes(codes, row_bytes, n_rows, a, token_bytes, n_tokens, 0, 4, traits, sum);
            gemm_block_codes(codes, row_bytes, n_rows, a, token_bytes, n_tokens, 4, 8, traits, last);
        } else {
            gemm_block_codes(codes, row_bytes, n_rows, a, token_bytes, n_tokens, 0, 8, traits, sum);
        }
        for (size_t t = 0; t < n_tokens && traits.hilo && !pass; t++)
            for (size_t r = 0; r < n_rows; r++) {
                sum[t][r] = _mm256_mullo_epi32(sum[t][r], _mm256_set1_epi32(QN_HILO_BASE));
                if (traits.has_halves)
                    last[t][r] = _mm256_mullo_epi32(last[t][r], _mm256_set1_epi32(QN_HILO_BASE));
            }
    }
    for (size_t t = 0; t < n_tokens; t++) {
        const size_t group = (super0 + t * n_super) * QN_SUPER_GROUPS + 8 * half;
        const __m128i bits = _mm_cvtsi32_si128(zero_bits);
        const __m256i hi = _mm256_sll_epi32(load32(acts->sum_upper + group), bits);
        __m256i lo = _mm256_sll_epi32(load32(acts->sum + group), bits);
        if (traits.has_halves)
            lo = _mm256_sub_epi32(lo, hi);
        for (size_t r = 0; r < n_rows && !traits.no_zero_point; r++) {
            sum[t][r] = _mm256_sub_epi32(sum[t][r], lo);
            if (traits.has_halves)
                last[t][r] = _mm256_sub_epi32(last[t][r], hi);
        }
    }
}

/* Computes one tile. All arguments except the pointers are constants at the calls, so every loop over rows and tokens
 * unrolls. The float accumulators are in memory: the registers hold the integer ones. */
QN_INLINE void gemm_block(const qn_super_block *rows, size_t n_rows, const qn_acts *acts, qn_act_layout layout,
                          size_t first, size_t n_tokens, int zero_bits, struct gemm_block_traits traits, float *out)
{
    const size_t n_super = acts->n_super;
    __m256 partial[GEMM_TOKENS][GEMM_ROWS][2];
    for (size_t t = 0; t < n_tokens; t++)
        for (size_t r = 0; r < n_rows; r++)
            partial[t][r][0] = partial[t][r][1] = _mm256_setzero_ps();
    for (size_t s = 0; s < n_super; s++)
        for (size_t half = 0; half < 2; half++) {
            const qn_super_block *w = rows + s;
            const size_t super0 = first * n_super + s;
            __m256i sum[GEMM_TOKENS][GEMM_ROWS], last[GEMM_TOKENS][GEMM_ROWS];
            gemm_block_isums(w, n_super, n_rows, acts, layout, super0, half, n_tokens, zero_bits, traits, sum, last);
            for (size_t t = 0; t < n_tokens; t++) {
                const size_t group = (super0 + t * n_super) * QN_SUPER_GROUPS + 8 * half;
                const __m256 act_scale = _mm256_loadu_ps(acts->scale + group);
                for (size_t r = 0; r < n_rows; r++) {
                    const qn_super_block *row = &w[r * n_super];
                    __m256 *to = &partial[t][r][half];
                    __m256i isum = sum[t][r];
                    if (traits.has_factor)
                        isum = _mm256_add_epi32(_mm256_mullo_epi32(isum, load32(row->factor_lower + 8 * half)),
                                                _mm256_mullo_epi32(last[t][r], load32(row->factor_upper + 8 * half)));
                    *to = _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum),
                                          _mm256_mul_ps(_mm256_loadu_ps(row->scale + 8 * half), act_scale), *to);
                    if (traits.has_halves && !traits.has_factor)
                        *to = _mm256_fmadd_ps(_mm256_cvtepi32_ps(last[t][r]),
                                              _mm256_mul_ps(_mm256_loadu_ps(row->scale_upper + 8 * half), act_scale),
                                              *to);
                    const __m256i act_sum = load32(acts->sum + group), upper = load32(acts->sum_upper + group);
                    if (traits.has_offset)
                        *to = _mm256_fmadd_ps(
                            _mm256_cvtepi32_ps(traits.has_factor ? _mm256_sub_epi32(act_sum, upper) : act_sum),
                            _mm256_mul_ps(_mm256_loadu_ps(row->offset + 8 * half), act_scale), *to);
                    if (traits.has_offset && traits.has_factor)
                        *to = _mm256_fmadd_ps(_mm256_cvtepi32_ps(upper),
                                              _mm256_mul_ps(_mm256_loadu_ps(row->offset_upper + 8 * half), act_scale),
                                              *to);
                }
            }
        }
    for (size_t t = 0; t < n_tokens; t++)
        for (size_t r = 0; r < n_rows; r++)
            out[t * GEMM_ROWS + r] = v16_sum((v16){ partial[t][r][0], partial[t][r][1] });
}

/* Computes a tile of any size from blocks of constant sizes. Nearly all calls are full tiles, or one token by a full
 * tile of rows. */
QN_INLINE void gemm_blocks(const qn_super_block *rows, size_t n_rows, const qn_acts *acts, qn_act_layout layout,
                           size_t first, size_t n_tokens, int zero_bits, struct gemm_block_traits traits, float *out)
{
    if (n_rows == GEMM_ROWS && n_tokens == GEMM_TOKENS) {
        gemm_block(rows, GEMM_ROWS, acts, layout, first, GEMM_TOKENS, zero_bits, traits, out);
    } else if (n_rows == GEMM_ROWS) {
        for (size_t t = 0; t < n_tokens; t++)
            gemm_block(rows, GEMM_ROWS, acts, layout, first + t, 1, zero_bits, traits, out + t * GEMM_ROWS);
    } else {
        for (size_t t = 0; t < n_tokens; t++)
            for (size_t r = 0; r < n_rows; r++)
                gemm_block(rows + r * acts->n_super, 1, acts, layout, first + t, 1, zero_bits, traits,
                           out + t * GEMM_ROWS + r);
    }
}

/* One function per variant: the traits are compile-time constants. */
#define GEMM_I8_VARIANT(suffix, ...)                                                                                   \
    static void gemm_i8_##suffix(const qn_super_block *rows, size_t n_rows, const qn_acts *acts, qn_act_layout layout, \
                                 size_t first, size_t n_tokens, int zero_bits, float *out)                             \
    {                                                                                                                  \
        gemm_blocks(rows, n_rows, acts, layout, first, n_tokens, zero_bits, (struct gemm_block_traits){ __VA_ARGS__ }, \
                    out);                                                                                              \
    }

/* For n vectors of codes up to c, n * 2 * c * 127 must not exceed 32767: 8 vectors of 15, 4 of 31, 2 of 63, 1 of
 * 128. */
GEMM_I8_VARIANT(four_bits, .n_i16_adds = 8)
GEMM_I8_VARIANT(four_bits_offset, .n_i16_adds = 8, .has_offset = true, .no_zero_point = true)
GEMM_I8_VARIANT(five_bits, .n_i16_adds = 4)
GEMM_I8_VARIANT(five_bits_offset, .n_i16_adds = 4, .has_offset = true, .no_zero_point = true)
GEMM_I8_VARIANT(six_bits_factor, .n_i16_adds = 2, .has_factor = true, .has_halves = true)
GEMM_I8_VARIANT(four_bits_factor_offset, .n_i16_adds = 4, .has_factor = true, .has_halves = true, .has_offset = true,
                .no_zero_point = true)
GEMM_I8_VARIANT(five_bits_halves, .n_i16_adds = 4, .has_halves = true)
GEMM_I8_VARIANT(five_bits_halves_hilo, .n_i16_adds = 4, .has_halves = true, .hilo = true)
GEMM_I8_VARIANT(wide, .n_i16_adds = 1, .wide = true, .no_zero_point = NO_WIDE_ZERO_POINT)
GEMM_I8_VARIANT(four_bits_hilo, .n_i16_adds = 8, .hilo = true)
GEMM_I8_VARIANT(four_bits_offset_hilo, .n_i16_adds = 8, .has_offset = true, .no_zero_point = true, .hilo = true)
GEMM_I8_VARIANT(five_bits_hilo, .n_i16_adds = 4, .hilo = true)
GEMM_I8_VARIANT(five_bits_offset_hilo, .n_i16_adds = 4, .has_offset = true, .no_zero_point = true, .hilo = true)
GEMM_I8_VARIANT(wide_hilo, .n_i16_adds = 1, .wide = true, .no_zero_point = NO_WIDE_ZERO_POINT, .hilo = true)

static void gemm_avx2(const qn_type_info *type, const qn_super_block *rows, size_t n_rows, const qn_acts *acts,
                      size_t first, size_t n_tokens, float *out)
{
    const qn_act_layout layout = qn_act_layout_of(type);
    const int zero_bits = type->zero_point ? __builtin_ctz(type->zero_point) : 0; /* a power of two, or 0 if there is an
                                                                                     offset */
    const bool hilo = acts->hilo, offset = type->has_offset;
    void (*gemm)(const qn_super_block *, size_t, const qn_acts *, qn_act_layout, size_t, size_t, int, float *);
    if (type->has_factor)
        gemm = offset ? gemm_i8_four_bits_factor_offset : gemm_i8_six_bits_factor;
    else if (type->has_half_scale)
        gemm = hilo ? gemm_i8_five_bits_halves_hilo : gemm_i8_five_bits_halves;
    else if (type->max_code > 31)
        gemm = hilo ? gemm_i8_wide_hilo : gemm_i8_wide;
    else if (type->max_code > 15)
        gemm = offset ? hilo ? gemm_i8_five_bits_offset_hilo : gemm_i8_five_bits_offset
               : hilo ? gemm_i8_five_bits_hilo
                      : gemm_i8_five_bits;
    else
        gemm = offset ? hilo ? gemm_i8_four_bits_offset_hilo : gemm_i8_four_bits_offset
               : hilo ? gemm_i8_four_bits_hilo
                      : gemm_i8_four_bits;
    gemm(rows, n_rows, acts, layout, first, n_tokens, zero_bits, out);
}

static void gemm_float_avx2(const qn_matrix *weights, size_t row, size_t n_rows, const qn_acts *acts, size_t first,
                            size_t n_tokens, float *out)
{
    for (size_t begin = 0; begin < n_rows; begin += TILE_ROWS) {
        const size_t n = n_rows - begin < TILE_ROWS ? n_rows - begin : TILE_ROWS;
        float tile[TILE_TOKENS * TILE_ROWS];
        gemm_float_simd(weights, row + begin, n, acts, first, n_tokens, tile);
        for (size_t t = 0; t < n_tokens; t++)
            for (size_t r = 0; r < n; r++)
                out[t * GEMM_ROWS + begin + r] = tile[t * TILE_ROWS + r];
    }
}

#define FORMATS(X)                                                                                                     \
    X(q1_0, Q1_0, QN_ACT_1BIT, HILO,                                                                                   \
      { QN_PACKING_BYTES, QN_ACT_LUT, packed_q1_0, SIZE_MAX, true, tables_q1_0, TABLES_MIN_TOKENS })                   \
    X(q2_0, Q2_0, QN_ACT_2BIT, HILO,                                                                                   \
      { QN_PACKING_WORDS, QN_ACT_2BIT, packed_q2_0, SIZE_MAX, true, TABLES_2BIT(tables_q2_0) })                        \
    X(pq2_0, PQ2_0, QN_ACT_2BIT, HILO,                                                                                 \
      { QN_PACKING_WORDS, QN_ACT_2BIT, packed_pq2_0, SIZE_MAX, true, TABLES_2BIT(tables_pq2_0) })                      \
    X(ox2_0, OX2_0, QN_ACT_2BIT, HILO, { 0 })                                                                          \
    X(ptq1_0, PTQ1_0, QN_ACT_TERNARY, HILO, { 0 })                                                                     \
    X(tq1_0, TQ1_0, QN_ACT_PLAIN, HILO, { 0 })                                                                         \
    X(tq2_0, TQ2_0, QN_ACT_PLAIN, HILO, { 0 })                                                                         \
    X(q4_0, Q4_0, QN_ACT_PLAIN, HILO, { 0 })                                                                           \
    X(q4_1, Q4_1, QN_ACT_PLAIN, HILO, { 0 })                                                                           \
    X(q5_0, Q5_0, QN_ACT_PLAIN, HILO, { 0 })                                                                           \
    X(q5_1, Q5_1, QN_ACT_PLAIN, HILO, { 0 })                                                                           \
    X(q8_0, Q8_0, QN_ACT_PLAIN, HILO, { 0 })                                                                           \
    X(q4_k, Q4_K, QN_ACT_PLAIN, HILO, { 0 })                                                                           \
    X(q5_k, Q5_K, QN_ACT_PLAIN, HILO, { 0 })                                                                           \
    X(q6_k, Q6_K, QN_ACT_PLAIN, NO_HILO, { 0 })                                                                        \
    X(q2_k, Q2_K, QN_ACT_PLAIN, NO_HILO, { 0 })                                                                        \
    X(q3_k, Q3_K, QN_ACT_PLAIN, NO_HILO, { 0 })                                                                        \
    X(iq4_nl, IQ4_NL, QN_ACT_PLAIN, HILO, { 0 })                                                                       \
    X(iq4_xs, IQ4_XS, QN_ACT_PLAIN, HILO, { 0 })                                                                       \
    X(mxfp4, MXFP4, QN_ACT_PLAIN, HILO, { 0 })                                                                         \
    X(nvfp4_l, NVFP4_L, QN_ACT_PLAIN, HILO, { 0 })

FORMAT_TABLE(FORMATS)

QN_INLINE void matmul_fill_avx2(qn_matmul_kernels *kernels)
{
    matmul_fill(kernels, formats, N_FORMATS);
    kernels->tile_rows = GEMM_ROWS;
    kernels->tile_tokens = GEMM_TOKENS;
    kernels->gemm = gemm_avx2;
    kernels->gemm_float = gemm_float_avx2;
}

#endif
