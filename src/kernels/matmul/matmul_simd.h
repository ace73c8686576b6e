/* The matrix product over sixteen-lane vectors: compiled once for each instruction set by the file that includes it, after
 * defining the set for kernels/vec16.h, TILE_ROWS and TILE_TOKENS. */
#ifndef QN_KERNELS_MATMUL_MATMUL_SIMD_H
#define QN_KERNELS_MATMUL_MATMUL_SIMD_H

#include "kernels/matmul/matmul.h"
#include "kernels/matmul/packed.h"
#include "kernels/vec16.h"

#include <string.h>

/* [16 runs][8 groups] to [8 groups][16 runs]. */
QN_INLINE void interleave_runs(const uint8_t *runs, uint8_t *out)
{
    for (size_t group = 0; group < QN_RUN / 4; group++)
        for (size_t lane = 0; lane < QN_SUPER_RUNS; lane++)
            memcpy(out + group * 64 + lane * 4, runs + lane * QN_RUN + group * 4, 4);
}

/* A super-block of codes in rising order to a form. A file that has a faster way defines OWN_ARRANGE, and the function below.
 */
static void arrange(qn_act_form form, const int8_t *codes, int8_t *out);

#ifndef OWN_ARRANGE
/* Codes of a run in rising order to four-byte groups: the permutation within a run that a form asks for, before groups of all
 * sixteen runs are brought side by side. */
QN_INLINE void arrange_run(qn_act_form form, const uint8_t *codes, uint8_t *groups)
{
    for (size_t i = 0; i < QN_RUN; i++) {
        const size_t at = form == QN_ACT_BITS    ? i % 8 * 4 + i / 8
                          : form == QN_ACT_PAIRS ? (i / 16 * 4 + i % 4) * 4 + i % 16 / 4
                                                 : i;
        groups[at] = codes[i];
    }
}

static void arrange(qn_act_form form, const int8_t *codes, int8_t *out)
{
    if (form == QN_ACT_PLAIN) {
        memcpy(out, codes, QN_SUPER);
        return;
    }
    if (form == QN_ACT_TRITS) { /* [4 blocks][8 sixteens] to [8][4] */
        for (size_t v = 0; v < 8; v++)
            for (size_t block = 0; block < 4; block++)
                memcpy(out + 64 * v + 16 * block, codes + 128 * block + 16 * v, 16);
        return;
    }
    _Alignas(64) uint8_t groups[QN_SUPER];
    for (size_t lane = 0; lane < QN_SUPER_RUNS; lane++)
        arrange_run(form, (const uint8_t *)codes + lane * QN_RUN, groups + lane * QN_RUN);
    interleave_runs(groups, (uint8_t *)out);
}
#endif

#ifdef HAS_TABLES
/* Tables of the sixteen runs of a super-block (packed.h), laid out as the file's own products read them; the file that defines
 * HAS_TABLES has this function. */
static void fill_tables(const int8_t *codes, uint8_t *tables);
#endif

static void quantize_simd(qn_acts *acts, size_t row, size_t super, const float *values, size_t n)
{
    const size_t run0 = (row * acts->n_super + super) * QN_SUPER_RUNS;
    if (acts->values)
        memcpy(acts->values + row * acts->n_cols + super * QN_SUPER, values, n * sizeof *values);
    if (!acts->scale)
        return;
    _Alignas(64) int8_t codes[QN_SUPER], fine_codes[QN_SUPER];
    for (size_t lane = 0; lane < QN_SUPER_RUNS; lane++) {
        const size_t begin = lane * QN_RUN, left = begin < n ? n - begin : 0;
        v16 a = left >= 16 ? v16_load(values + begin) : left ? v16_load_n(values + begin, left) : v16_set1(0);
        v16 b = left >= 32  ? v16_load(values + begin + 16)
                : left > 16 ? v16_load_n(values + begin + 16, left - 16)
                            : v16_set1(0);
        const float largest = v16_hmax(v16_max(v16_abs(a), v16_abs(b)));
        /* Zero times anything finite is zero, and NaN otherwise. */
        const bool finite = v16_sum(v16_fma(a, v16_set1(0), v16_mul(b, v16_set1(0)))) == 0;
        const bool zero = !finite || largest < QN_SMALLEST_RUN;
        const float inverse = zero ? 0 : 127.0f / largest, step = zero ? 0 : largest * (1.0f / 127);
        const float scale = finite ? step : NAN;
        if (!finite)
            a = b = v16_set1(0);
        v16 qa = v16_rint(v16_mul(a, v16_set1(inverse))), qb = v16_rint(v16_mul(b, v16_set1(inverse)));
        v16i_store_i8(codes + begin, v16_to_int(qa));
        v16i_store_i8(codes + begin + 16, v16_to_int(qb));
        if (acts->fine) {
            const v16 minus_step = v16_set1(-step), finer = v16_set1(inverse * QN_FINE), fine = v16_set1(QN_FINE);
            const v16 fa = v16_rint(v16_mul(v16_fma(qa, minus_step, a), finer));
            const v16 fb = v16_rint(v16_mul(v16_fma(qb, minus_step, b), finer));
            v16i_store_i8(fine_codes + begin, v16_to_int(fa));
            v16i_store_i8(fine_codes + begin + 16, v16_to_int(fb));
            qa = v16_fma(qa, fine, fa);
            qb = v16_fma(qb, fine, fb);
        }
        /* Whole numbers below 2^24: float sums of them are exact. */
        const float sum_hi = v16_sum(qb);
        acts->scale[run0 + lane] = acts->fine ? scale * (1.0f / QN_FINE) : scale;
        acts->sum[run0 + lane] = (int32_t)(v16_sum(qa) + sum_hi);
        acts->sum_hi[run0 + lane] = (int32_t)sum_hi;
    }
#ifdef HAS_TABLES
    if (acts->tables)
        fill_tables(codes, acts->tables + run0 * QN_RUN_TABLES);
    if (acts->fine_tables)
        fill_tables(fine_codes, acts->fine_tables + run0 * QN_RUN_TABLES);
#endif
    for (int form = 0; form < QN_ACT_INT_FORMS; form++) {
        if (acts->codes[form])
            arrange((qn_act_form)form, codes, acts->codes[form] + run0 * QN_RUN);
        if (acts->fine_codes[form])
            arrange((qn_act_form)form, fine_codes, acts->fine_codes[form] + run0 * QN_RUN);
    }
}

/* Scale of a block for each of its runs, zero for blocks that are not there. */
QN_INLINE void spread_scales(const uint8_t *scale, size_t block_bytes, size_t runs, size_t n_blocks, float *out)
{
    for (size_t block = 0; block < QN_SUPER_RUNS / runs; block++) {
        uint16_t half = 0;
        if (block < n_blocks)
            memcpy(&half, scale + block * block_bytes, sizeof half);
        const float d = qn_f16_to_f32(half);
        for (size_t run = 0; run < runs; run++)
            out[block * runs + run] = d;
    }
}

/* Bit v of the 64 bytes of a super-block is vector v: the stored bytes need only be brought together. */
QN_INLINE void unpack_bits(const uint8_t *blocks, size_t n_blocks, qn_super *out)
{
    uint8_t bits[64] = { 0 };
    for (size_t block = 0; block < n_blocks; block++)
        memcpy(bits + 16 * block, blocks + 18 * block + 2, 16);
    for (size_t v = 0; v < 8; v++)
        for (size_t i = 0; i < 64; i++)
            out->codes[64 * v + i] = (uint8_t)((bits[i] >> v & 1) << 1);
    spread_scales(blocks, 18, 4, n_blocks, out->scale);
}

/* The same for 2-bit fields: a run is eight bytes, whose first four hold its first 16 values. */
QN_INLINE void unpack_pairs(const uint8_t *blocks, size_t block_bytes, size_t code_bytes, size_t codes_at, size_t scale_at,
                            size_t n_blocks, qn_super *out)
{
    uint8_t stored[128] = { 0 }, half[2][64];
    for (size_t block = 0; block < n_blocks; block++)
        memcpy(stored + code_bytes * block, blocks + block_bytes * block + codes_at, code_bytes);
    for (size_t lane = 0; lane < QN_SUPER_RUNS; lane++) {
        memcpy(half[0] + 4 * lane, stored + 8 * lane, 4);
        memcpy(half[1] + 4 * lane, stored + 8 * lane + 4, 4);
    }
    for (size_t h = 0; h < 2; h++)
        for (size_t j = 0; j < 4; j++)
            for (size_t i = 0; i < 64; i++)
                out->codes[64 * (4 * h + j) + i] = half[h][i] >> 2 * j & 3;
    spread_scales(blocks + scale_at, block_bytes, code_bytes / 8, n_blocks, out->scale);
}

static void unpack_any(const qn_type_info *type, const uint8_t *blocks, size_t n_blocks, qn_super *out)
{
    _Alignas(64) uint8_t codes[QN_SUPER];
    int8_t factor[2 * QN_SUPER_RUNS] = { 0 };
    const size_t n_runs = n_blocks * type->block_weights / QN_RUN;
    type->unpack(blocks, n_blocks, codes, out->scale, out->offset, factor);
    for (size_t run = n_runs; run < QN_SUPER_RUNS; run++)
        out->scale[run] = out->offset[run] = 0;
    memset(codes + n_runs * QN_RUN, 0, QN_SUPER - n_runs * QN_RUN);
    interleave_runs(codes, out->codes);
    for (size_t run = 0; type->has_factor && run < QN_SUPER_RUNS; run++) {
        out->factor_lo[run] = factor[2 * run];
        out->factor_hi[run] = factor[2 * run + 1];
    }
}

static void unpack_simd(const qn_type_info *type, const uint8_t *blocks, size_t n_blocks, qn_super *out)
{
    switch (type->type) {
    case QN_TYPE_Q1_0: unpack_bits(blocks, n_blocks, out); break;
    case QN_TYPE_Q2_0: unpack_pairs(blocks, 18, 16, 2, 0, n_blocks, out); break;
    case QN_TYPE_PQ2_0: unpack_pairs(blocks, 34, 32, 2, 0, n_blocks, out); break;
    case QN_TYPE_OX2_0: unpack_pairs(blocks, 34, 32, 0, 32, n_blocks, out); break;
    default: unpack_any(type, blocks, n_blocks, out); break;
    }
}

/* What a tile's arithmetic depends on besides its size; constant wherever dot_tile is called. */
struct dot_kind {
    bool wide;                   /* codes above 127 */
    bool no_zero;                /* nothing is subtracted from a code */
    bool has_offset, has_factor; /* as in qn_type_info */
    bool fine;                   /* activations of two terms */
};

/* Minus the zero of the type, 2^zero_bits, times the sums of runs of activations; nothing where the zero is 0. */
QN_INLINE v16i minus_zeros(const int32_t *sums, int zero_bits, struct dot_kind kind)
{
    if (kind.no_zero)
        return v16i_set1(0);
    return v16i_sub(v16i_set1(0), v16i_shift_left(v16i_load(sums), zero_bits));
}

/* Adds the integer products of one super-block to `sum` (its first halves of runs alone, and the second to `sum_hi`, if the
 * type has factors). */
QN_INLINE void dot_codes(const qn_super *w, size_t row_supers, size_t n_rows, const int8_t *codes, size_t token_bytes,
                         size_t n_tokens, struct dot_kind kind, v16i sum[TILE_TOKENS][TILE_ROWS],
                         v16i sum_hi[TILE_TOKENS][TILE_ROWS])
{
    for (size_t v = 0; v < 8; v++) {
        v16b rows[TILE_ROWS];
        for (size_t r = 0; r < n_rows; r++)
            rows[r] = v16b_load(w[r * row_supers].codes + 64 * v);
        for (size_t t = 0; t < n_tokens; t++) {
            const v16b a = v16b_load(codes + t * token_bytes + 64 * v);
            for (size_t r = 0; r < n_rows; r++) {
                v16i *to = kind.has_factor && v >= 4 ? &sum_hi[t][r] : &sum[t][r];
                *to = kind.wide ? v16i_dot_wide(*to, rows[r], a) : v16i_dot(*to, rows[r], a);
            }
        }
    }
}

/* One tile. All arguments but the pointers are constants where it is called, so that every loop over rows and tokens unrolls
 * and the sums stay in registers. */
QN_INLINE void dot_tile(const qn_super *rows, size_t n_rows, const qn_acts *acts, qn_act_form form, size_t first,
                        size_t n_tokens, int zero_bits, struct dot_kind kind, float *out)
{
    const size_t n_super = acts->n_super;
    v16 partial[TILE_TOKENS][TILE_ROWS];
    for (size_t t = 0; t < n_tokens; t++)
        for (size_t r = 0; r < n_rows; r++)
            partial[t][r] = v16_set1(0);
    for (size_t s = 0; s < n_super; s++) {
        const qn_super *w = rows + s;
        const size_t super0 = first * n_super + s;
        v16i sum[TILE_TOKENS][TILE_ROWS], sum_hi[TILE_TOKENS][TILE_ROWS];
        if (kind.fine) {
            for (size_t t = 0; t < n_tokens; t++)
                for (size_t r = 0; r < n_rows; r++)
                    sum[t][r] = sum_hi[t][r] = v16i_set1(0);
            dot_codes(w, n_super, n_rows, acts->codes[form] + super0 * QN_SUPER, n_super * QN_SUPER, n_tokens, kind, sum,
                      sum_hi);
        }
        for (size_t t = 0; t < n_tokens; t++) {
            const size_t run = (super0 + t * n_super) * QN_SUPER_RUNS;
            const v16i all = minus_zeros(acts->sum + run, zero_bits, kind);
            const v16i hi = kind.has_factor ? minus_zeros(acts->sum_hi + run, zero_bits, kind) : all;
            const v16i lo = kind.has_factor ? v16i_sub(all, hi) : all;
            for (size_t r = 0; r < n_rows; r++) {
                sum[t][r] = kind.fine ? v16i_add(v16i_mul(sum[t][r], v16i_set1(QN_FINE)), lo) : lo;
                if (kind.has_factor)
                    sum_hi[t][r] = hi; /* types with factors are never fine */
            }
        }
        const int8_t *codes = kind.fine ? acts->fine_codes[form] : acts->codes[form];
        dot_codes(w, n_super, n_rows, codes + super0 * QN_SUPER, n_super * QN_SUPER, n_tokens, kind, sum, sum_hi);
        for (size_t t = 0; t < n_tokens; t++) {
            const size_t run = (super0 + t * n_super) * QN_SUPER_RUNS;
            const v16 scale = v16_load(acts->scale + run);
            for (size_t r = 0; r < n_rows; r++) {
                const qn_super *row = &w[r * n_super];
                v16i product = sum[t][r];
                if (kind.has_factor)
                    product = v16i_add(v16i_mul(product, v16i_load(row->factor_lo)),
                                       v16i_mul(sum_hi[t][r], v16i_load(row->factor_hi)));
                partial[t][r] = v16_fma(v16i_to_float(product), v16_mul(v16_load(row->scale), scale), partial[t][r]);
                if (kind.has_offset)
                    partial[t][r] = v16_fma(v16i_to_float(v16i_load(acts->sum + run)), v16_mul(v16_load(row->offset), scale),
                                            partial[t][r]);
            }
        }
    }
    for (size_t t = 0; t < n_tokens; t++)
        for (size_t r = 0; r < n_rows; r++)
            out[t * TILE_ROWS + r] = v16_sum(partial[t][r]);
}

/* Whole tiles and single tokens against whole rows are what nearly all calls are; the rest goes one row and token at a time. */
QN_INLINE void dot_shapes(const qn_super *rows, size_t n_rows, const qn_acts *acts, qn_act_form form, size_t first,
                          size_t n_tokens, int zero_bits, struct dot_kind kind, float *out)
{
    if (n_rows == TILE_ROWS && n_tokens == TILE_TOKENS) {
        dot_tile(rows, TILE_ROWS, acts, form, first, TILE_TOKENS, zero_bits, kind, out);
    } else if (n_rows == TILE_ROWS) {
        for (size_t t = 0; t < n_tokens; t++)
            dot_tile(rows, TILE_ROWS, acts, form, first + t, 1, zero_bits, kind, out + t * TILE_ROWS);
    } else {
        for (size_t t = 0; t < n_tokens; t++)
            for (size_t r = 0; r < n_rows; r++)
                dot_tile(rows + r * acts->n_super, 1, acts, form, first + t, 1, zero_bits, kind, out + t * TILE_ROWS + r);
    }
}

/* A function of its own for each kind, so that the compiler sees the constants. */
#define DOT_KIND(suffix, ...)                                                                                                  \
    static void dot_##suffix(const qn_super *rows, size_t n_rows, const qn_acts *acts, qn_act_form form, size_t first,         \
                             size_t n_tokens, int zero_bits, float *out)                                                       \
    {                                                                                                                          \
        dot_shapes(rows, n_rows, acts, form, first, n_tokens, zero_bits, (struct dot_kind){ __VA_ARGS__ }, out);               \
    }

DOT_KIND(plain, .fine = false)
DOT_KIND(wide, .wide = true, .no_zero = V16_WIDE_ZERO == 0)
DOT_KIND(offset, .has_offset = true, .no_zero = true)
DOT_KIND(factor, .has_factor = true)
DOT_KIND(plain_fine, .fine = true)
DOT_KIND(wide_fine, .fine = true, .wide = true, .no_zero = V16_WIDE_ZERO == 0)
DOT_KIND(offset_fine, .fine = true, .has_offset = true, .no_zero = true)

static void dot_simd(const qn_type_info *type, const qn_super *rows, size_t n_rows, const qn_acts *acts, size_t first,
                     size_t n_tokens, float *out)
{
    const qn_act_form form = qn_act_form_of(type);
    const int zero_bits =
        type->zero_point ? __builtin_ctz(type->zero_point) : 0; /* zeros are powers of two, or absent with an offset */
    if (type->has_factor)
        dot_factor(rows, n_rows, acts, form, first, n_tokens, zero_bits, out);
    else if (type->has_offset)
        (acts->fine ? dot_offset_fine : dot_offset)(rows, n_rows, acts, form, first, n_tokens, zero_bits, out);
    else if (type->max_code > 127)
        (acts->fine ? dot_wide_fine : dot_wide)(rows, n_rows, acts, form, first, n_tokens, zero_bits, out);
    else
        (acts->fine ? dot_plain_fine : dot_plain)(rows, n_rows, acts, form, first, n_tokens, zero_bits, out);
}

QN_INLINE v16 load_weights(qn_type type, const uint8_t *row, size_t k)
{
    if (type == QN_TYPE_F32)
        return v16_load((const float *)(const void *)(row + 4 * k));
    return type == QN_TYPE_F16 ? v16_load_f16((const uint16_t *)(const void *)(row + 2 * k))
                               : v16_load_bf16((const uint16_t *)(const void *)(row + 2 * k));
}

QN_INLINE v16 load_weights_n(qn_type type, const uint8_t *row, size_t k, size_t n)
{
    if (type == QN_TYPE_F32)
        return v16_load_n((const float *)(const void *)(row + 4 * k), n);
    return type == QN_TYPE_F16 ? v16_load_f16_n((const uint16_t *)(const void *)(row + 2 * k), n)
                               : v16_load_bf16_n((const uint16_t *)(const void *)(row + 2 * k), n);
}

QN_INLINE void dot_float_tile(qn_type type, const uint8_t *rows, size_t row_bytes, size_t n_rows, const float *tokens,
                              size_t n_cols, size_t n_tokens, float *out)
{
    v16 partial[TILE_TOKENS][TILE_ROWS];
    for (size_t t = 0; t < n_tokens; t++)
        for (size_t r = 0; r < n_rows; r++)
            partial[t][r] = v16_set1(0);
    size_t k = 0;
    for (; k + QN_LANES <= n_cols; k += QN_LANES)
        for (size_t r = 0; r < n_rows; r++) {
            const v16 w = load_weights(type, rows + r * row_bytes, k);
            for (size_t t = 0; t < n_tokens; t++)
                partial[t][r] = v16_fma(w, v16_load(tokens + t * n_cols + k), partial[t][r]);
        }
    if (k < n_cols)
        for (size_t r = 0; r < n_rows; r++) {
            const v16 w = load_weights_n(type, rows + r * row_bytes, k, n_cols - k);
            for (size_t t = 0; t < n_tokens; t++)
                partial[t][r] = v16_fma(w, v16_load_n(tokens + t * n_cols + k, n_cols - k), partial[t][r]);
        }
    for (size_t t = 0; t < n_tokens; t++)
        for (size_t r = 0; r < n_rows; r++)
            out[t * TILE_ROWS + r] = v16_sum(partial[t][r]);
}

QN_INLINE void dot_float_shapes(qn_type type, const uint8_t *rows, size_t row_bytes, size_t n_rows, const float *tokens,
                                size_t n_cols, size_t n_tokens, float *out)
{
    if (n_rows == TILE_ROWS && n_tokens == TILE_TOKENS) {
        dot_float_tile(type, rows, row_bytes, TILE_ROWS, tokens, n_cols, TILE_TOKENS, out);
    } else if (n_rows == TILE_ROWS) {
        for (size_t t = 0; t < n_tokens; t++)
            dot_float_tile(type, rows, row_bytes, TILE_ROWS, tokens + t * n_cols, n_cols, 1, out + t * TILE_ROWS);
    } else {
        for (size_t t = 0; t < n_tokens; t++)
            for (size_t r = 0; r < n_rows; r++)
                dot_float_tile(type, rows + r * row_bytes, row_bytes, 1, tokens + t * n_cols, n_cols, 1,
                               out + t * TILE_ROWS + r);
    }
}

static void dot_float_simd(const qn_matrix *weights, size_t row, size_t n_rows, const qn_acts *acts, size_t first,
                           size_t n_tokens, float *out)
{
    const uint8_t *rows = weights->data + row * weights->row_bytes;
    const float *tokens = acts->values + first * acts->n_cols;
    if (weights->type->type == QN_TYPE_F32)
        dot_float_shapes(QN_TYPE_F32, rows, weights->row_bytes, n_rows, tokens, acts->n_cols, n_tokens, out);
    else if (weights->type->type == QN_TYPE_F16)
        dot_float_shapes(QN_TYPE_F16, rows, weights->row_bytes, n_rows, tokens, acts->n_cols, n_tokens, out);
    else
        dot_float_shapes(QN_TYPE_BF16, rows, weights->row_bytes, n_rows, tokens, acts->n_cols, n_tokens, out);
}

QN_INLINE void matmul_fill(qn_matmul_kernels *kernels)
{
    *kernels = (qn_matmul_kernels){
        .tile_rows = TILE_ROWS,
        .tile_tokens = TILE_TOKENS,
        .quantize = quantize_simd,
        .unpack = unpack_simd,
        .dot = dot_simd,
        .dot_float = dot_float_simd,
    };
}

#endif
