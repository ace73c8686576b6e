/* GEMM tiles for NEON: up to four rows by three tokens, one quarter of every super-block at a time, so that twelve
 * integer and twelve float accumulators stay in the 32 registers for a full pass over K. Compiled once per instruction
 * set by kernels/matmul/gemv_neon.h, whose readers unpack the weights. */
#ifndef QN_KERNELS_MATMUL_GEMM_NEON_H
#define QN_KERNELS_MATMUL_GEMM_NEON_H

#include "kernels/matmul/matmul_simd.h"

/* Full unrolling of a loop over registers. Only clang needs it: without it, clang unrolls some loops only after it has
 * put their arrays into memory. */
#ifdef __clang__
#define UNROLL_FULL _Pragma("clang loop unroll(full)")
#else
#define UNROLL_FULL
#endif

/* Keeps the compiler from interleaving the work of two rows, which needs more values than there are registers. */
#define COMPILER_BARRIER() __asm__ volatile("" ::: "memory")

#ifdef QN_V16_I8MM
#include "kernels/matmul/gemm_i8mm.h"
enum { GEMM_ROWS = I8MM_ROWS, GEMM_TOKENS = I8MM_TOKENS };
#else
enum { GEMM_ROWS = TILE_ROWS, GEMM_TOKENS = TILE_TOKENS };
#endif

/* Accumulators of byte products, before they are added to the lanes of groups. Without dot product instructions they
 * are 16 bits wide, and widened when the next products might overflow. */
#ifdef QN_V16_DOTPROD
typedef int32x4_t mac_acc;
QN_INLINE mac_acc mac_begin(int32x4_t sum)
{
    return sum;
}
QN_INLINE mac_acc mac_add(mac_acc to, int8x16_t codes, int8x16_t acts)
{
    return vdotq_s32(to, codes, acts);
}
QN_INLINE int32x4_t mac_end(int32x4_t sum, mac_acc x)
{
    (void)sum;
    return x;
}
#else
typedef struct mac_acc {
    int16x8_t low, high;
} mac_acc;
QN_INLINE mac_acc mac_begin(int32x4_t sum)
{
    (void)sum;
    return (mac_acc){ vdupq_n_s16(0), vdupq_n_s16(0) };
}
QN_INLINE mac_acc mac_add(mac_acc to, int8x16_t codes, int8x16_t acts)
{
    return (mac_acc){ vmlal_s8(to.low, vget_low_s8(codes), vget_low_s8(acts)), vmlal_high_s8(to.high, codes, acts) };
}
QN_INLINE int32x4_t mac_end(int32x4_t sum, mac_acc x)
{
    return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(x.low), vpaddlq_s16(x.high)));
}
#endif

/* Compile-time parameters of a tile's arithmetic: constant wherever tile_quarter is called. */
struct tile_traits {
    bool wide; /* 8-bit codes, which are unpacked signed here (Q8_0) */
    bool has_zero_point, has_offset, hilo;
};

/* Adds the dot products of one super-block's quarter to `sum`; w and codes point to the quarter. */
QN_INLINE void tile_codes(const uint8_t *w, size_t row_bytes, size_t n_rows, const int8_t *codes, size_t token_bytes,
                          size_t n_tokens, bool wide, int32x4_t sum[TILE_TOKENS][TILE_ROWS])
{
    /* 16 bits hold eight products of codes below 32 (8 * 31 * 127 < 32768), and two of any code. */
    const size_t vectors = wide ? 2 : 8;
    UNROLL_FULL
    for (size_t v0 = 0; v0 < 8; v0 += vectors) {
        mac_acc acc[TILE_TOKENS][TILE_ROWS];
        UNROLL_FULL
        for (size_t t = 0; t < n_tokens; t++)
            for (size_t r = 0; r < n_rows; r++)
                acc[t][r] = mac_begin(sum[t][r]);
        UNROLL_FULL
        for (size_t v = v0; v < v0 + vectors; v++) {
            int8x16_t rows[TILE_ROWS];
            UNROLL_FULL
            for (size_t r = 0; r < n_rows; r++)
                rows[r] = vld1q_s8((const int8_t *)w + r * row_bytes + 64 * v);
            UNROLL_FULL
            for (size_t t = 0; t < n_tokens; t++) {
                const int8x16_t act = vld1q_s8(codes + t * token_bytes + 64 * v);
                UNROLL_FULL
                for (size_t r = 0; r < n_rows; r++)
                    acc[t][r] = mac_add(acc[t][r], rows[r], act);
            }
        }
        UNROLL_FULL
        for (size_t t = 0; t < n_tokens; t++)
            for (size_t r = 0; r < n_rows; r++)
                sum[t][r] = mac_end(sum[t][r], acc[t][r]);
    }
}

/* Computes quarter q of all super-blocks: the float partials of its four groups. */
QN_INLINE void tile_quarter(const qn_type_info *type, const qn_super_block *rows, size_t n_rows, const qn_acts *acts,
                            size_t first, size_t n_tokens, struct tile_traits traits, size_t q,
                            v16 out[TILE_TOKENS][TILE_ROWS])
{
    const qn_act_layout layout = qn_act_layout_of(type);
    const size_t n_super = acts->n_super, row_bytes = n_super * sizeof *rows, token_bytes = n_super * QN_SUPER;
    const size_t token_groups = n_super * QN_SUPER_GROUPS;
    const int32x4_t zero = vdupq_n_s32(type->zero_point);
    const int8_t *codes = acts->codes[layout] + first * token_bytes + 16 * q;
    const int8_t *codes_lo = traits.hilo ? acts->codes_lo[layout] + first * token_bytes + 16 * q : NULL;
    const float *act_scale = acts->scale + first * token_groups + 4 * q;
    const int32_t *act_sum = acts->sum + first * token_groups + 4 * q;
    float32x4_t partial[TILE_TOKENS][TILE_ROWS];
    UNROLL_FULL
    for (size_t t = 0; t < n_tokens; t++)
        for (size_t r = 0; r < n_rows; r++)
            partial[t][r] = vdupq_n_f32(0);
    for (size_t s = 0; s < n_super; s++) {
        const uint8_t *w = rows[s].codes + 16 * q;
        int32x4_t sum[TILE_TOKENS][TILE_ROWS];
        UNROLL_FULL
        for (size_t t = 0; t < n_tokens; t++)
            for (size_t r = 0; r < n_rows; r++)
                sum[t][r] = vdupq_n_s32(0);
        tile_codes(w, row_bytes, n_rows, codes + s * QN_SUPER, token_bytes, n_tokens, traits.wide, sum);
        if (traits.hilo) {
            UNROLL_FULL
            for (size_t t = 0; t < n_tokens; t++)
                for (size_t r = 0; r < n_rows; r++)
                    sum[t][r] = vmulq_s32(sum[t][r], vdupq_n_s32(QN_HILO_BASE));
            tile_codes(w, row_bytes, n_rows, codes_lo + s * QN_SUPER, token_bytes, n_tokens, traits.wide, sum);
        }
        UNROLL_FULL
        for (size_t t = 0; t < n_tokens; t++) {
            const float32x4_t scale = vld1q_f32(act_scale + t * token_groups + s * QN_SUPER_GROUPS);
            const int32x4_t total = vld1q_s32(act_sum + t * token_groups + s * QN_SUPER_GROUPS);
            UNROLL_FULL
            for (size_t r = 0; r < n_rows; r++) {
                const qn_super_block *row = &rows[r * n_super + s];
                const int32x4_t acc = traits.has_zero_point ? vmlsq_s32(sum[t][r], total, zero) : sum[t][r];
                const float32x4_t both = vmulq_f32(vld1q_f32(row->scale + 4 * q), scale);
                partial[t][r] = vfmaq_f32(partial[t][r], vcvtq_f32_s32(acc), both);
                if (traits.has_offset)
                    partial[t][r] = vfmaq_f32(partial[t][r], vcvtq_f32_s32(total),
                                              vmulq_f32(vld1q_f32(row->offset + 4 * q), scale));
            }
        }
    }
    UNROLL_FULL
    for (size_t t = 0; t < n_tokens; t++)
        for (size_t r = 0; r < n_rows; r++)
            out[t][r].q[q] = partial[t][r];
}

QN_INLINE void tile_shape(const qn_type_info *type, const qn_super_block *rows, size_t n_rows, const qn_acts *acts,
                          size_t first, size_t n_tokens, struct tile_traits traits, float *out)
{
    v16 partial[TILE_TOKENS][TILE_ROWS];
    for (size_t q = 0; q < 4; q++)
        tile_quarter(type, rows, n_rows, acts, first, n_tokens, traits, q, partial);
    UNROLL_FULL
    for (size_t t = 0; t < n_tokens; t++)
        for (size_t r = 0; r < n_rows; r++)
            out[t * TILE_ROWS + r] = v16_sum(partial[t][r]);
}

/* Computes a tile of any size from tiles of constant sizes. Nearly all calls are full tiles, or single tokens by a full
 * tile of rows. The rest is computed one row and one token at a time. */
QN_INLINE void tile_shapes(const qn_type_info *type, const qn_super_block *rows, size_t n_rows, const qn_acts *acts,
                           size_t first, size_t n_tokens, struct tile_traits traits, float *out)
{
    if (n_rows == TILE_ROWS && n_tokens == TILE_TOKENS) {
        tile_shape(type, rows, TILE_ROWS, acts, first, TILE_TOKENS, traits, out);
        return;
    }
    for (size_t t = 0; t < n_tokens; t++) {
        if (n_rows == TILE_ROWS)
            tile_shape(type, rows, TILE_ROWS, acts, first + t, 1, traits, out + t * TILE_ROWS);
        else
            for (size_t r = 0; r < n_rows; r++)
                tile_shape(type, rows + r * acts->n_super, 1, acts, first + t, 1, traits, out + t * TILE_ROWS + r);
    }
}

#ifndef QN_V16_I8MM
/* One function per variant: the traits are compile-time constants. */
#define TILE_VARIANT(suffix, ...)                                                                                      \
    static void tile_##suffix(const qn_type_info *type, const qn_super_block *rows, size_t n_rows,                     \
                              const qn_acts *acts, size_t first, size_t n_tokens, float *out)                          \
    {                                                                                                                  \
        tile_shapes(type, rows, n_rows, acts, first, n_tokens, (struct tile_traits){ __VA_ARGS__ }, out);              \
    }

TILE_VARIANT(zero, .has_zero_point = true)
TILE_VARIANT(wide, .wide = true)
TILE_VARIANT(offset, .has_offset = true)
TILE_VARIANT(zero_hilo, .hilo = true, .has_zero_point = true)
TILE_VARIANT(wide_hilo, .hilo = true, .wide = true)
TILE_VARIANT(offset_hilo, .hilo = true, .has_offset = true)
#endif

/* Computes a tile of a type with halves. It needs two accumulators per element: the tile of matmul_simd.h, one row and
 * one token at a time to fit the registers. */
static void tile_halves(const qn_type_info *type, const qn_super_block *rows, size_t n_rows, const qn_acts *acts,
                        size_t first, size_t n_tokens, float *out)
{
    const int zero_bits = type->zero_point ? __builtin_ctz(type->zero_point) : 0;
    const struct gemm_traits factor = { .has_factor = true };
    const struct gemm_traits both = { .has_factor = true, .has_offset = true, .no_zero_point = true };
    const struct gemm_traits scales = { .has_half_scale = true },
                             scales_hilo = { .has_half_scale = true, .hilo = true };
    for (size_t t = 0; t < n_tokens; t++)
        for (size_t r = 0; r < n_rows; r++) {
            const qn_super_block *row = rows + r * acts->n_super;
            float *to = out + t * GEMM_ROWS + r;
            if (type->has_half_scale && acts->hilo)
                gemm_tile(row, 1, acts, qn_act_layout_of(type), first + t, 1, zero_bits, scales_hilo, to);
            else if (type->has_half_scale)
                gemm_tile(row, 1, acts, qn_act_layout_of(type), first + t, 1, zero_bits, scales, to);
            else if (type->has_offset)
                gemm_tile(row, 1, acts, qn_act_layout_of(type), first + t, 1, zero_bits, both, to);
            else
                gemm_tile(row, 1, acts, qn_act_layout_of(type), first + t, 1, zero_bits, factor, to);
        }
}

static void gemm_neon(const qn_type_info *type, const qn_super_block *rows, size_t n_rows, const qn_acts *acts,
                      size_t first, size_t n_tokens, float *out)
{
    if (type->has_factor || type->has_half_scale)
        tile_halves(type, rows, n_rows, acts, first, n_tokens, out);
#ifdef QN_V16_I8MM
    else
        gemm_pairs(type, rows, n_rows, acts, first, n_tokens, out);
#else
    else if (type->has_offset)
        (acts->hilo ? tile_offset_hilo : tile_offset)(type, rows, n_rows, acts, first, n_tokens, out);
    else if (type->max_code > 127)
        (acts->hilo ? tile_wide_hilo : tile_wide)(type, rows, n_rows, acts, first, n_tokens, out);
    else
        (acts->hilo ? tile_zero_hilo : tile_zero)(type, rows, n_rows, acts, first, n_tokens, out);
#endif
}

/* Multiplies float weights: four registers per element, so tiles of two by two. */
QN_INLINE void gemm_float_pieces(qn_type type, const qn_matrix *weights, size_t row, size_t n_rows, const qn_acts *acts,
                                 size_t first, size_t n_tokens, float *out)
{
    for (size_t t = 0; t < n_tokens; t += 2)
        for (size_t r = 0; r < n_rows; r += 2) {
            const uint8_t *at = weights->data + (row + r) * weights->row_bytes;
            const float *tokens = acts->values + (first + t) * acts->n_cols;
            float *to = out + t * GEMM_ROWS + r;
            if (t + 1 < n_tokens && r + 1 < n_rows) {
                float tile[2 * TILE_ROWS];
                gemm_float_tile(type, at, weights->row_bytes, 2, tokens, acts->n_cols, 2, tile);
                memcpy(to, tile, 2 * sizeof *to);
                memcpy(to + GEMM_ROWS, tile + TILE_ROWS, 2 * sizeof *to);
            } else if (r + 1 < n_rows) {
                gemm_float_tile(type, at, weights->row_bytes, 2, tokens, acts->n_cols, 1, to);
            } else {
                gemm_float_tile(type, at, weights->row_bytes, 1, tokens, acts->n_cols, 1, to);
                if (t + 1 < n_tokens)
                    gemm_float_tile(type, at, weights->row_bytes, 1, tokens + acts->n_cols, acts->n_cols, 1,
                                    to + GEMM_ROWS);
            }
        }
}

static void gemm_float_neon(const qn_matrix *weights, size_t row, size_t n_rows, const qn_acts *acts, size_t first,
                            size_t n_tokens, float *out)
{
    if (weights->type->type == QN_TYPE_F32)
        gemm_float_pieces(QN_TYPE_F32, weights, row, n_rows, acts, first, n_tokens, out);
    else if (weights->type->type == QN_TYPE_F16)
        gemm_float_pieces(QN_TYPE_F16, weights, row, n_rows, acts, first, n_tokens, out);
    else
        gemm_float_pieces(QN_TYPE_BF16, weights, row, n_rows, acts, first, n_tokens, out);
}

#endif
