/* The matmul over vectors of sixteen lanes. Compiled once per instruction set: the including file defines the set for
 * kernels/vec16.h, TILE_ROWS and TILE_TOKENS. */
#ifndef QN_KERNELS_MATMUL_MATMUL_SIMD_H
#define QN_KERNELS_MATMUL_MATMUL_SIMD_H

#include "base/cpu.h"
#include "base/fmaf.h"
#include "kernels/matmul/blocks.h"
#include "kernels/matmul/packed.h"
#include "kernels/vec16.h"

#include <string.h>

/* A line of quant/layout.h. The fields are constants if the type is one. */
struct block_layout {
    size_t weights, bytes, scale, min, codes;
    int zero, max_code;
};

QN_INLINE struct block_layout block_of(qn_type type)
{
    switch (type) {
#define BLOCK_CASE(ID, ...)                                                                                            \
    case QN_TYPE_##ID: return (struct block_layout){ __VA_ARGS__ };
        QN_BLOCK_LAYOUTS(BLOCK_CASE)
    default: return (struct block_layout){ .weights = 1 };
    }
}

/* Returns the bytes of a super-block as stored. */
QN_INLINE size_t super_bytes(qn_type type)
{
    return QN_SUPER / block_of(type).weights * block_of(type).bytes;
}

QN_INLINE bool has_offset(qn_type type)
{
    return block_of(type).min != block_of(type).scale;
}

/* Types with a factor for each half of a group (qn_type_info), and an offset too if has_offset. */
QN_INLINE bool has_factors(qn_type type)
{
    return type == QN_TYPE_Q2_K || type == QN_TYPE_Q3_K || type == QN_TYPE_Q6_K;
}

/* Types of which the halves of groups have sums of their own: those with factors, and NVFP4_L, which has scales. */
QN_INLINE bool splits_groups(qn_type type)
{
    return has_factors(type) || type == QN_TYPE_NVFP4_L;
}

/* Types whose nibbles select one of these values: of the code, without the zero point. */
QN_INLINE bool has_values(qn_type type)
{
    return type == QN_TYPE_IQ4_NL || type == QN_TYPE_IQ4_XS || type == QN_TYPE_MXFP4 || type == QN_TYPE_NVFP4_L;
}

static const _Alignas(16) int8_t iq4_values[16] = { QN_IQ4_VALUES }, e2m1_values[16] = { QN_E2M1_VALUES };

/* Interleaves [16 groups][8 quads of codes] to [8 quads][16 groups]. */
QN_INLINE void interleave_groups(const uint8_t *groups, uint8_t *out)
{
    for (size_t quad = 0; quad < QN_QUANT_GROUP / 4; quad++)
        for (size_t lane = 0; lane < QN_SUPER_GROUPS; lane++)
            memcpy(out + quad * 64 + lane * 4, groups + lane * QN_QUANT_GROUP + quad * 4, 4);
}

/* Reorders a super-block of codes from ascending order to a layout. A file with a faster version defines
 * OWN_REORDER_CODES and this function. */
static void reorder_codes(qn_act_layout layout, const int8_t *codes, int8_t *out);

#ifndef OWN_REORDER_CODES
/* Reorders the codes of a group, ascending, to the order of a layout within the group; quads of all sixteen groups are
 * interleaved afterwards. */
QN_INLINE void reorder_group(qn_act_layout layout, const uint8_t *codes, uint8_t *quads)
{
    for (size_t i = 0; i < QN_QUANT_GROUP; i++) {
        const size_t at = layout == QN_ACT_1BIT   ? i % 8 * 4 + i / 8
                          : layout == QN_ACT_2BIT ? (i / 16 * 4 + i % 4) * 4 + i % 16 / 4
                                                  : i;
        quads[at] = codes[i];
    }
}

static void reorder_codes(qn_act_layout layout, const int8_t *codes, int8_t *out)
{
    if (layout == QN_ACT_PLAIN) {
        memcpy(out, codes, QN_SUPER);
        return;
    }
    if (layout == QN_ACT_TERNARY) { /* [4 blocks][8 pieces of 16] to [8][4] */
        for (size_t v = 0; v < 8; v++)
            for (size_t block = 0; block < 4; block++)
                memcpy(out + 64 * v + 16 * block, codes + 128 * block + 16 * v, 16);
        return;
    }
    _Alignas(64) uint8_t quads[QN_SUPER];
    for (size_t lane = 0; lane < QN_SUPER_GROUPS; lane++)
        reorder_group(layout, (const uint8_t *)codes + lane * QN_QUANT_GROUP, quads + lane * QN_QUANT_GROUP);
    interleave_groups(quads, (uint8_t *)out);
}
#endif

#ifdef HAS_LUT
/* Fills the look-up tables of the sixteen groups of a super-block (packed.h), in the order that the file's packed
 * kernels read. A file that defines HAS_LUT defines this function. */
static void fill_lut(const int8_t *codes, uint8_t *lut);
#endif

#ifdef HAS_TILES
/* Write a super-block of a row to the tiles of acts (tiles.h, blocks.h); its scales and sums are in acts. A file that
 * defines HAS_TILES defines these functions. */
static void fill_tiles(qn_acts *acts, size_t row, size_t super, const int8_t *codes, const int8_t *codes_lo);
static void fill_block_tiles(qn_acts *acts, size_t row, size_t super, const int8_t *codes, const int8_t *codes_lo);
#endif

/* Loads a group of values, padded with zeros. */
QN_INLINE void load_group(const float *values, size_t begin, size_t n, v16 *a, v16 *b)
{
    const size_t left = begin < n ? n - begin : 0;
    *a = left >= 16 ? v16_load(values + begin) : left ? v16_load_n(values + begin, left) : v16_set1(0);
    *b = left >= 32  ? v16_load(values + begin + 16)
         : left > 16 ? v16_load_n(values + begin + 16, left - 16)
                     : v16_set1(0);
}

/* Finds the largest magnitudes of the groups of a super-block; of a group with an infinity or NaN, one of these. A file
 * with a faster version defines OWN_GROUP_AMAX and this function. */
#ifdef OWN_GROUP_AMAX
static void find_group_amax(const float *values, size_t n, float amax[QN_SUPER_GROUPS]);
#else
static void find_group_amax(const float *values, size_t n, float amax[QN_SUPER_GROUPS])
{
    for (size_t lane = 0; lane < QN_SUPER_GROUPS; lane++) {
        v16 a, b;
        load_group(values, lane * QN_QUANT_GROUP, n, &a, &b);
        /* The sum of 0 * x is 0 if all x are finite, and NaN otherwise. */
        amax[lane] =
            v16_hmax(v16_max(v16_abs(a), v16_abs(b))) + v16_sum(v16_fma(a, v16_set1(0), v16_mul(b, v16_set1(0))));
    }
}
#endif

/* Finds the scales of the groups of a super-block, each from its group alone. */
QN_INLINE void find_group_scales(const float amax[QN_SUPER_GROUPS], qn_group_scale scales[QN_SUPER_GROUPS],
                                 bool finite[QN_SUPER_GROUPS])
{
    for (size_t lane = 0; lane < QN_SUPER_GROUPS; lane++) {
        finite[lane] = amax[lane] < INFINITY;
        const bool zero = !finite[lane] || amax[lane] < QN_MIN_GROUP_ABSMAX;
        scales[lane] = (qn_group_scale){ zero ? 0 : 127.0f / amax[lane], zero ? 0 : amax[lane] * (1.0f / 127), 1 };
    }
}

/* Finds those of acts with factors. */
QN_INLINE void find_block_scales(qn_acts *acts, size_t group0, float amax[QN_SUPER_GROUPS],
                                 qn_group_scale scales[QN_SUPER_GROUPS], bool finite[QN_SUPER_GROUPS])
{
    for (size_t first = 0; first < QN_SUPER_GROUPS; first += QN_BLOCK_GROUPS) {
        bool all_finite = true;
        for (size_t g = first; g < first + QN_BLOCK_GROUPS; g++)
            all_finite = all_finite && amax[g] < INFINITY;
        for (size_t g = first; g < first + QN_BLOCK_GROUPS; g++)
            amax[g] = all_finite ? amax[g] : 0;
        const float scale = qn_block_scales(amax + first, acts->hilo, scales + first);
        acts->block_scale[(group0 + first) / QN_BLOCK_GROUPS] = !all_finite  ? NAN
                                                                : acts->hilo ? scale * (1.0f / QN_HILO_BASE)
                                                                             : scale;
        for (size_t g = first; g < first + QN_BLOCK_GROUPS; g++) {
            finite[g] = all_finite;
            acts->factor[group0 + g] = scales[g].factor;
        }
    }
}

static void quantize_simd(qn_acts *acts, size_t row, size_t super, const float *values, size_t n)
{
    const size_t group0 = (row * acts->n_super + super) * QN_SUPER_GROUPS;
    if (acts->values)
        memcpy(acts->values + row * acts->n_cols + super * QN_SUPER, values, n * sizeof *values);
    if (!acts->scale)
        return;
    _Alignas(64) int8_t codes[QN_SUPER], codes_lo[QN_SUPER];
    qn_group_scale scales[QN_SUPER_GROUPS];
    bool finite[QN_SUPER_GROUPS];
    float amax[QN_SUPER_GROUPS];
    const bool has_sums = !acts->skip_codes || !acts->block_tiles; /* block tiles are multiplied without them */
    find_group_amax(values, n, amax);
    if (acts->factor)
        find_block_scales(acts, group0, amax, scales, finite);
    else
        find_group_scales(amax, scales, finite);
    for (size_t lane = 0; lane < QN_SUPER_GROUPS; lane++) {
        const size_t begin = lane * QN_QUANT_GROUP;
        const float inverse = scales[lane].inverse, step = scales[lane].step, scale = finite[lane] ? step : NAN;
        v16 a, b;
        load_group(values, begin, n, &a, &b);
        if (!finite[lane])
            a = b = v16_set1(0);
        v16 qa = v16_rint(v16_mul(a, v16_set1(inverse))), qb = v16_rint(v16_mul(b, v16_set1(inverse)));
        v16i_store_i8(codes + begin, v16_to_int(qa));
        v16i_store_i8(codes + begin + 16, v16_to_int(qb));
        if (acts->hilo) {
            const v16 minus_step = v16_set1(-step), lo_inverse = v16_set1(inverse * QN_HILO_BASE),
                      hilo = v16_set1(QN_HILO_BASE);
            const v16 lo_a = v16_rint(v16_mul(v16_fma(qa, minus_step, a), lo_inverse));
            const v16 lo_b = v16_rint(v16_mul(v16_fma(qb, minus_step, b), lo_inverse));
            v16i_store_i8(codes_lo + begin, v16_to_int(lo_a));
            v16i_store_i8(codes_lo + begin + 16, v16_to_int(lo_b));
            qa = v16_fma(qa, hilo, lo_a);
            qb = v16_fma(qb, hilo, lo_b);
        }
        acts->scale[group0 + lane] = acts->hilo ? scale * (1.0f / QN_HILO_BASE) : scale;
        if (!has_sums)
            continue;
        /* Integers below 2^24: their sums are exact in float. */
        const float sum_upper = v16_sum(qb);
        acts->sum[group0 + lane] = (int32_t)(v16_sum(qa) + sum_upper);
        acts->sum_upper[group0 + lane] = (int32_t)sum_upper;
    }
    for (size_t block = 0; acts->factor && has_sums && block < QN_SUPER / QN_BLOCK; block++) {
        const size_t group = group0 + block * QN_BLOCK_GROUPS;
        int32_t sum = 0;
        for (size_t g = group; g < group + QN_BLOCK_GROUPS; g++)
            sum += acts->factor[g] * acts->sum[g];
        acts->block_sum[group / QN_BLOCK_GROUPS] = sum;
    }
#ifdef HAS_TILES
    if (acts->tiles && !acts->skip_tiles)
        fill_tiles(acts, row, super, codes, codes_lo);
    if (acts->block_tiles && !acts->skip_tiles)
        fill_block_tiles(acts, row, super, codes, codes_lo);
#endif
    if (acts->skip_codes)
        return;
#ifdef HAS_LUT
    if (acts->lut)
        fill_lut(codes, acts->lut + group0 * QN_GROUP_LUT_BYTES);
    if (acts->lut_lo)
        fill_lut(codes_lo, acts->lut_lo + group0 * QN_GROUP_LUT_BYTES);
#endif
    for (int layout = 0; layout < QN_ACT_INT8_LAYOUTS; layout++) {
        if (acts->codes[layout])
            reorder_codes((qn_act_layout)layout, codes, acts->codes[layout] + group0 * QN_QUANT_GROUP);
        if (acts->codes_lo[layout])
            reorder_codes((qn_act_layout)layout, codes_lo, acts->codes_lo[layout] + group0 * QN_QUANT_GROUP);
    }
}

/* Repeats the scale of each block for its groups; zero for missing blocks. */
QN_INLINE void broadcast_scales(const uint8_t *scale, size_t block_bytes, size_t groups, size_t n_blocks, float *out)
{
    for (size_t block = 0; block < QN_SUPER_GROUPS / groups; block++) {
        uint16_t f16 = 0;
        if (block < n_blocks)
            memcpy(&f16, scale + block * block_bytes, sizeof f16);
        const float d = qn_f16_to_f32(f16);
        for (size_t group = 0; group < groups; group++)
            out[block * groups + group] = d;
    }
}

/* Unpacks 1-bit codes. Bit v of the 64 code bytes of a super-block is vector v: the stored bytes are only gathered and
 * masked. */
QN_INLINE void unpack_1bit(const uint8_t *blocks, size_t n_blocks, qn_super_block *out)
{
    enum { CODE_BYTES = QN_Q1_0_WEIGHTS / 8 };
    uint8_t bits[64] = { 0 };
    for (size_t block = 0; block < n_blocks; block++)
        memcpy(bits + CODE_BYTES * block, blocks + QN_Q1_0_BYTES * block + QN_Q1_0_CODES, CODE_BYTES);
    for (size_t v = 0; v < 8; v++)
        for (size_t i = 0; i < 64; i++)
            out->codes[64 * v + i] = (uint8_t)((bits[i] >> v & 1) << 1);
    broadcast_scales(blocks + QN_Q1_0_SCALE, QN_Q1_0_BYTES, QN_Q1_0_WEIGHTS / QN_QUANT_GROUP, n_blocks, out->scale);
}

/* Unpacks 2-bit codes. A group is eight bytes; the first four hold its first 16 values. */
QN_INLINE void unpack_2bit(qn_type type, const uint8_t *blocks, size_t n_blocks, qn_super_block *out)
{
    const struct block_layout b = block_of(type);
    const size_t code_bytes = b.weights / 4;
    uint8_t stored[128] = { 0 }, f16[2][64];
    for (size_t block = 0; block < n_blocks; block++)
        memcpy(stored + code_bytes * block, blocks + b.bytes * block + b.codes, code_bytes);
    for (size_t lane = 0; lane < QN_SUPER_GROUPS; lane++) {
        memcpy(f16[0] + 4 * lane, stored + 8 * lane, 4);
        memcpy(f16[1] + 4 * lane, stored + 8 * lane + 4, 4);
    }
    for (size_t h = 0; h < 2; h++)
        for (size_t j = 0; j < 4; j++)
            for (size_t i = 0; i < 64; i++)
                out->codes[64 * (4 * h + j) + i] = f16[h][i] >> 2 * j & 3;
    broadcast_scales(blocks + b.scale, b.bytes, b.weights / QN_QUANT_GROUP, n_blocks, out->scale);
}

static void unpack_any(const qn_type_info *type, const uint8_t *blocks, size_t n_blocks, qn_super_block *out)
{
    _Alignas(64) uint8_t codes[QN_SUPER];
    int8_t factor[2 * QN_SUPER_GROUPS] = { 0 };
    const size_t n_groups = n_blocks * type->block_weights / QN_QUANT_GROUP;
    float offset[2 * QN_SUPER_GROUPS] = { 0 }, scale[2 * QN_SUPER_GROUPS] = { 0 };
    type->unpack(blocks, n_blocks, codes, type->has_half_scale ? scale : out->scale,
                 type->has_factor ? offset : out->offset, factor);
    for (size_t group = n_groups; group < QN_SUPER_GROUPS; group++)
        out->scale[group] = out->offset[group] = 0;
    memset(codes + n_groups * QN_QUANT_GROUP, 0, QN_SUPER - n_groups * QN_QUANT_GROUP);
#if QN_ARM64 /* gemm_neon.h takes codes of more than 7 bits as signed, as it reads Q8_0 */
    for (size_t i = 0; i < QN_SUPER && type->max_code > 127; i++)
        codes[i] ^= 0x80;
#endif
    interleave_groups(codes, out->codes);
    for (size_t group = 0; type->has_half_scale && group < QN_SUPER_GROUPS; group++) {
        out->scale[group] = scale[2 * group];
        out->scale_upper[group] = scale[2 * group + 1];
    }
    for (size_t group = 0; type->has_factor && group < QN_SUPER_GROUPS; group++) {
        out->factor_lower[group] = factor[2 * group];
        out->factor_upper[group] = factor[2 * group + 1];
        out->offset[group] = offset[2 * group];
        out->offset_upper[group] = offset[2 * group + 1];
    }
}

static void unpack_simd(const qn_type_info *type, const uint8_t *blocks, size_t n_blocks, qn_super_block *out)
{
    switch (qn_act_layout_of(type)) {
    case QN_ACT_1BIT: unpack_1bit(blocks, n_blocks, out); break;
    case QN_ACT_2BIT: unpack_2bit(type->type, blocks, n_blocks, out); break;
    default: unpack_any(type, blocks, n_blocks, out); break;
    }
}

/* Compile-time parameters of a tile's arithmetic: constant wherever gemm_tile is called. */
struct gemm_traits {
    bool wide;                   /* codes up to 255 */
    bool no_zero_point;          /* the zero point is 0, or folded into v16i_dot_wide */
    bool has_offset, has_factor; /* as in qn_type_info */
    bool has_half_scale;
    bool hilo; /* activations with the hi/lo int8 split */
};

/* Minus the type's zero point, 2^zero_bits, times the sums of groups of activations; 0 if no_zero_point. */
QN_INLINE v16i minus_zero_points(const int32_t *sums, int zero_bits, struct gemm_traits traits)
{
    if (traits.no_zero_point)
        return v16i_set1(0);
    return v16i_sub(v16i_set1(0), v16i_shift_left(v16i_load(sums), zero_bits));
}

/* Whether the halves of groups have sums of their own. */
QN_INLINE bool has_halves(struct gemm_traits traits)
{
    return traits.has_factor || traits.has_half_scale;
}

/* Adds the integer dot products of one super-block to `sum`. For types with halves `sum` gets the first 16 values of
 * each group, `sum_upper` the last 16. */
QN_INLINE void gemm_codes(const qn_super_block *w, size_t row_supers, size_t n_rows, const int8_t *codes,
                          size_t token_bytes, size_t n_tokens, struct gemm_traits traits,
                          v16i sum[TILE_TOKENS][TILE_ROWS], v16i sum_upper[TILE_TOKENS][TILE_ROWS])
{
    for (size_t v = 0; v < 8; v++) {
        v16b rows[TILE_ROWS];
        for (size_t r = 0; r < n_rows; r++)
            rows[r] = v16b_load(w[r * row_supers].codes + 64 * v);
        for (size_t t = 0; t < n_tokens; t++) {
            const v16b a = v16b_load(codes + t * token_bytes + 64 * v);
            for (size_t r = 0; r < n_rows; r++) {
                v16i *to = has_halves(traits) && v >= 4 ? &sum_upper[t][r] : &sum[t][r];
                *to = traits.wide ? v16i_dot_wide(*to, rows[r], a) : v16i_dot(*to, rows[r], a);
            }
        }
    }
}

/* Computes one tile. All arguments except the pointers are constants at the calls, so every loop over rows and tokens
 * unrolls and the accumulators stay in registers. */
QN_INLINE void gemm_tile(const qn_super_block *rows, size_t n_rows, const qn_acts *acts, qn_act_layout layout,
                         size_t first, size_t n_tokens, int zero_bits, struct gemm_traits traits, float *out)
{
    const size_t n_super = acts->n_super;
    v16 partial[TILE_TOKENS][TILE_ROWS];
    for (size_t t = 0; t < n_tokens; t++)
        for (size_t r = 0; r < n_rows; r++)
            partial[t][r] = v16_set1(0);
    for (size_t s = 0; s < n_super; s++) {
        const qn_super_block *w = rows + s;
        const size_t super0 = first * n_super + s;
        v16i sum[TILE_TOKENS][TILE_ROWS], sum_upper[TILE_TOKENS][TILE_ROWS];
        if (traits.hilo) {
            for (size_t t = 0; t < n_tokens; t++)
                for (size_t r = 0; r < n_rows; r++)
                    sum[t][r] = sum_upper[t][r] = v16i_set1(0);
            gemm_codes(w, n_super, n_rows, acts->codes[layout] + super0 * QN_SUPER, n_super * QN_SUPER, n_tokens,
                       traits, sum, sum_upper);
        }
        for (size_t t = 0; t < n_tokens; t++) {
            const size_t group = (super0 + t * n_super) * QN_SUPER_GROUPS;
            const v16i all = minus_zero_points(acts->sum + group, zero_bits, traits);
            const v16i hi = has_halves(traits) ? minus_zero_points(acts->sum_upper + group, zero_bits, traits) : all;
            const v16i lo = has_halves(traits) ? v16i_sub(all, hi) : all;
            for (size_t r = 0; r < n_rows; r++) {
                sum[t][r] = traits.hilo ? v16i_add(v16i_mul(sum[t][r], v16i_set1(QN_HILO_BASE)), lo) : lo;
                if (has_halves(traits)) /* types with factors have no hi/lo split */
                    sum_upper[t][r] =
                        traits.hilo ? v16i_add(v16i_mul(sum_upper[t][r], v16i_set1(QN_HILO_BASE)), hi) : hi;
            }
        }
        const int8_t *codes = traits.hilo ? acts->codes_lo[layout] : acts->codes[layout];
        gemm_codes(w, n_super, n_rows, codes + super0 * QN_SUPER, n_super * QN_SUPER, n_tokens, traits, sum, sum_upper);
        for (size_t t = 0; t < n_tokens; t++) {
            const size_t group = (super0 + t * n_super) * QN_SUPER_GROUPS;
            const v16 scale = v16_load(acts->scale + group);
            for (size_t r = 0; r < n_rows; r++) {
                const qn_super_block *row = &w[r * n_super];
                v16i isum = sum[t][r];
                if (traits.has_factor)
                    isum = v16i_add(v16i_mul(isum, v16i_load(row->factor_lower)),
                                    v16i_mul(sum_upper[t][r], v16i_load(row->factor_upper)));
                partial[t][r] = v16_fma(v16i_to_float(isum), v16_mul(v16_load(row->scale), scale), partial[t][r]);
                if (traits.has_half_scale)
                    partial[t][r] = v16_fma(v16i_to_float(sum_upper[t][r]), v16_mul(v16_load(row->scale_upper), scale),
                                            partial[t][r]);
                const v16i act_sum = v16i_load(acts->sum + group), upper = v16i_load(acts->sum_upper + group);
                if (traits.has_offset)
                    partial[t][r] = v16_fma(v16i_to_float(traits.has_factor ? v16i_sub(act_sum, upper) : act_sum),
                                            v16_mul(v16_load(row->offset), scale), partial[t][r]);
                if (traits.has_offset && traits.has_factor)
                    partial[t][r] =
                        v16_fma(v16i_to_float(upper), v16_mul(v16_load(row->offset_upper), scale), partial[t][r]);
            }
        }
    }
    for (size_t t = 0; t < n_tokens; t++)
        for (size_t r = 0; r < n_rows; r++)
            out[t * TILE_ROWS + r] = v16_sum(partial[t][r]);
}

/* Computes a tile of any size from tiles of constant sizes. Nearly all calls are full tiles, or single tokens by a full
 * tile of rows. The rest is computed one row and one token at a time. */
QN_INLINE void gemm_shapes(const qn_super_block *rows, size_t n_rows, const qn_acts *acts, qn_act_layout layout,
                           size_t first, size_t n_tokens, int zero_bits, struct gemm_traits traits, float *out)
{
    if (n_rows == TILE_ROWS && n_tokens == TILE_TOKENS) {
        gemm_tile(rows, TILE_ROWS, acts, layout, first, TILE_TOKENS, zero_bits, traits, out);
    } else if (n_rows == TILE_ROWS) {
        for (size_t t = 0; t < n_tokens; t++)
            gemm_tile(rows, TILE_ROWS, acts, layout, first + t, 1, zero_bits, traits, out + t * TILE_ROWS);
    } else {
        for (size_t t = 0; t < n_tokens; t++)
            for (size_t r = 0; r < n_rows; r++)
                gemm_tile(rows + r * acts->n_super, 1, acts, layout, first + t, 1, zero_bits, traits,
                          out + t * TILE_ROWS + r);
    }
}

/* One function per variant: the traits are compile-time constants. */
#define GEMM_VARIANT(suffix, ...)                                                                                      \
    static void gemm_##suffix(const qn_super_block *rows, size_t n_rows, const qn_acts *acts, qn_act_layout layout,    \
                              size_t first, size_t n_tokens, int zero_bits, float *out)                                \
    {                                                                                                                  \
        gemm_shapes(rows, n_rows, acts, layout, first, n_tokens, zero_bits, (struct gemm_traits){ __VA_ARGS__ }, out); \
    }

GEMM_VARIANT(plain, .hilo = false)
GEMM_VARIANT(wide, .wide = true, .no_zero_point = V16_WIDE_ZERO == 0)
GEMM_VARIANT(offset, .has_offset = true, .no_zero_point = true)
GEMM_VARIANT(factor, .has_factor = true)
GEMM_VARIANT(factor_offset, .has_factor = true, .has_offset = true, .no_zero_point = true)
GEMM_VARIANT(half_scale, .has_half_scale = true)
GEMM_VARIANT(half_scale_hilo, .has_half_scale = true, .hilo = true)
GEMM_VARIANT(plain_hilo, .hilo = true)
GEMM_VARIANT(wide_hilo, .hilo = true, .wide = true, .no_zero_point = V16_WIDE_ZERO == 0)
GEMM_VARIANT(offset_hilo, .hilo = true, .has_offset = true, .no_zero_point = true)

/* The integer dot products of the groups of a super-block of a row and a token, without the zero point. */
QN_INLINE v16i super_isums(const qn_super_block *w, const qn_acts *acts, qn_act_layout layout, size_t super,
                           int zero_bits)
{
    v16i sum = v16i_set1(0);
    for (size_t v = 0; v < 8 && acts->hilo; v++)
        sum = v16i_dot(sum, v16b_load(w->codes + 64 * v), v16b_load(acts->codes[layout] + super * QN_SUPER + 64 * v));
    sum = v16i_sub(v16i_mul(sum, v16i_set1(QN_HILO_BASE)),
                   v16i_shift_left(v16i_load(acts->sum + super * QN_SUPER_GROUPS), zero_bits));
    const int8_t *codes = acts->hilo ? acts->codes_lo[layout] : acts->codes[layout];
    for (size_t v = 0; v < 8; v++)
        sum = v16i_dot(sum, v16b_load(w->codes + 64 * v), v16b_load(codes + super * QN_SUPER + 64 * v));
    return sum;
}

/* A tile of a type with blocks (blocks.h). */
static void gemm_stored_blocks(const qn_type_info *type, const qn_super_block *rows, size_t n_rows, const qn_acts *acts,
                               size_t first, size_t n_tokens, int zero_bits, float *out)
{
    const size_t n_blocks = acts->n_cols / QN_BLOCK;
    for (size_t t = 0; t < n_tokens; t++)
        for (size_t r = 0; r < n_rows; r++) {
            float element = 0;
            for (size_t s = 0; s < acts->n_super; s++) {
                const qn_super_block *w = &rows[r * acts->n_super + s];
                const size_t super = (first + t) * acts->n_super + s;
                int32_t sums[QN_SUPER_GROUPS];
                v16i_store(sums, v16i_mul(super_isums(w, acts, qn_act_layout_of(type), super, zero_bits),
                                          v16i_load(acts->factor + super * QN_SUPER_GROUPS)));
                for (size_t g = 0; g < QN_SUPER_GROUPS; g += QN_BLOCK_GROUPS) {
                    const size_t block = g / QN_BLOCK_GROUPS;
                    const int32_t sum = sums[g] + sums[g + 1] + sums[g + 2] + sums[g + 3];
                    if (s * (QN_SUPER / QN_BLOCK) + block < n_blocks)
                        element =
                            qn_fmaf((float)sum, w->scale[g] * acts->block_scale[super * (QN_SUPER / QN_BLOCK) + block],
                                    element);
                }
            }
            out[t * TILE_ROWS + r] = element;
        }
}

static void gemm_simd(const qn_type_info *type, const qn_super_block *rows, size_t n_rows, const qn_acts *acts,
                      size_t first, size_t n_tokens, float *out)
{
    const qn_act_layout layout = qn_act_layout_of(type);
    const int zero_bits = type->zero_point ? __builtin_ctz(type->zero_point) : 0; /* a power of two, or 0 if there is an
                                                                                     offset */
    if (acts->factor && qn_type_has_blocks(type))
        gemm_stored_blocks(type, rows, n_rows, acts, first, n_tokens, zero_bits, out);
    else if (type->has_factor)
        (type->has_offset ? gemm_factor_offset : gemm_factor)(rows, n_rows, acts, layout, first, n_tokens, zero_bits,
                                                              out);
    else if (type->has_half_scale)
        (acts->hilo ? gemm_half_scale_hilo : gemm_half_scale)(rows, n_rows, acts, layout, first, n_tokens, zero_bits,
                                                              out);
    else if (type->has_offset)
        (acts->hilo ? gemm_offset_hilo : gemm_offset)(rows, n_rows, acts, layout, first, n_tokens, zero_bits, out);
    else if (type->max_code > 127)
        (acts->hilo ? gemm_wide_hilo : gemm_wide)(rows, n_rows, acts, layout, first, n_tokens, zero_bits, out);
    else
        (acts->hilo ? gemm_plain_hilo : gemm_plain)(rows, n_rows, acts, layout, first, n_tokens, zero_bits, out);
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

QN_INLINE void gemm_float_tile(qn_type type, const uint8_t *rows, size_t row_bytes, size_t n_rows, const float *tokens,
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

QN_INLINE void gemm_float_shapes(qn_type type, const uint8_t *rows, size_t row_bytes, size_t n_rows,
                                 const float *tokens, size_t n_cols, size_t n_tokens, float *out)
{
    if (n_rows == TILE_ROWS && n_tokens == TILE_TOKENS) {
        gemm_float_tile(type, rows, row_bytes, TILE_ROWS, tokens, n_cols, TILE_TOKENS, out);
    } else if (n_rows == TILE_ROWS) {
        for (size_t t = 0; t < n_tokens; t++)
            gemm_float_tile(type, rows, row_bytes, TILE_ROWS, tokens + t * n_cols, n_cols, 1, out + t * TILE_ROWS);
    } else {
        for (size_t t = 0; t < n_tokens; t++)
            for (size_t r = 0; r < n_rows; r++)
                gemm_float_tile(type, rows + r * row_bytes, row_bytes, 1, tokens + t * n_cols, n_cols, 1,
                                out + t * TILE_ROWS + r);
    }
}

static void gemm_float_simd(const qn_matrix *weights, size_t row, size_t n_rows, const qn_acts *acts, size_t first,
                            size_t n_tokens, float *out)
{
    const uint8_t *rows = weights->data + row * weights->row_bytes;
    const float *tokens = acts->values + first * acts->n_cols;
    if (weights->type->type == QN_TYPE_F32)
        gemm_float_shapes(QN_TYPE_F32, rows, weights->row_bytes, n_rows, tokens, acts->n_cols, n_tokens, out);
    else if (weights->type->type == QN_TYPE_F16)
        gemm_float_shapes(QN_TYPE_F16, rows, weights->row_bytes, n_rows, tokens, acts->n_cols, n_tokens, out);
    else
        gemm_float_shapes(QN_TYPE_BF16, rows, weights->row_bytes, n_rows, tokens, acts->n_cols, n_tokens, out);
}

/* ---- The table of an instruction set ----
 *
 * FORMATS(X) of a file has one line per type that the file reads as stored:
 *
 *   X(name, type, layout of the GEMV's activations, HILO or NO_HILO: a GEMV for the hi/lo split, qn_packed_kernel or {
 *   0 })
 *
 * From the line come the type's functions and its row. The file defines, for the type and layout that the line names,
 *
 *   gemv_format(type, layout, hilo, weights, ...)   as qn_gemv_fn
 *   unpack_format(type, layout, blocks, out)        as unpack of qn_matmul_format
 *
 * inline: type, layout and hilo are constants at the calls. */
#define GEMV_KERNEL(name, type, layout, hilo)                                                                          \
    static void name(const qn_matrix *weights, size_t row_begin, size_t row_end, const qn_acts *acts, size_t token,    \
                     bool accumulate, float *out)                                                                      \
    {                                                                                                                  \
        gemv_format(type, layout, hilo, weights, row_begin, row_end, acts, token, accumulate, out);                    \
    }
#define GEMV_HILO(id, ID, layout) GEMV_KERNEL(gemv_##id##_hilo, QN_TYPE_##ID, layout, true)
#define GEMV_NO_HILO(id, ID, layout)
#define GEMV_OF_HILO(id) gemv_##id##_hilo
#define GEMV_OF_NO_HILO(id) NULL

#define FORMAT_FUNCTIONS(id, ID, act_layout, hilo, ...)                                                                \
    GEMV_KERNEL(gemv_##id, QN_TYPE_##ID, act_layout, false)                                                            \
    GEMV_##hilo(id, ID, act_layout) static void unpack_##id(const uint8_t *blocks, qn_super_block *out)                \
    {                                                                                                                  \
        unpack_format(QN_TYPE_##ID, act_layout, blocks, out);                                                          \
    }

#define FORMAT_ROW(id, ID, act_layout, hilo, ...)                                                                      \
    { .type = QN_TYPE_##ID,                                                                                            \
      .layout = act_layout,                                                                                            \
      .gemv = gemv_##id,                                                                                               \
      .gemv_hilo = GEMV_OF_##hilo(id),                                                                                 \
      .unpack = unpack_##id,                                                                                           \
      .packed = __VA_ARGS__ },

#define FORMAT_TABLE(FORMATS)                                                                                          \
    FORMATS(FORMAT_FUNCTIONS)                                                                                          \
    static const qn_matmul_format formats[] = { FORMATS(FORMAT_ROW) };

#define N_FORMATS (sizeof formats / sizeof formats[0])

QN_INLINE void matmul_fill(qn_matmul_kernels *kernels, const qn_matmul_format *formats, size_t n_formats)
{
    *kernels = (qn_matmul_kernels){
        .tile_rows = TILE_ROWS,
        .tile_tokens = TILE_TOKENS,
        .quantize = quantize_simd,
        .unpack = unpack_simd,
        .gemm = gemm_simd,
        .gemm_float = gemm_float_simd,
        .formats = formats,
        .n_formats = n_formats,
    };
}

#endif
