/* Conversions and the step of the delta rule over sixteen-lane vectors; included by one file per instruction set. The
 * compiler vectorises the loops that do not use v16. */
#ifndef QN_KERNELS_DELTANET_ROW_KERNELS_SIMD_H
#define QN_KERNELS_DELTANET_ROW_KERNELS_SIMD_H

#include "kernels/deltanet/row_kernels.h"
#include "kernels/vec16.h"

static void to_f32_simd(float *y, const void *x, qn_dtype dtype, size_t n)
{
    const uint16_t *u16 = x;
    if (dtype == QN_DTYPE_F32) {
        memcpy(y, x, n * sizeof *y);
        return;
    }
    size_t i = 0;
    for (; i + QN_LANES <= n; i += QN_LANES)
        v16_store(y + i, dtype == QN_DTYPE_F16 ? v16_load_f16(u16 + i) : v16_load_bf16(u16 + i));
    if (i < n)
        v16_store_n(y + i, dtype == QN_DTYPE_F16 ? v16_load_f16_n(u16 + i, n - i) : v16_load_bf16_n(u16 + i, n - i),
                    n - i);
}

/* qn_f32_to_bf16 without a branch. */
QN_INLINE uint32_t bf16_bits(float x)
{
    const uint32_t bits = qn_f32_bits(x), rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    return ((bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded) & 0xffff0000u;
}

QN_INLINE void store_f16_n(uint16_t *y, v16 x, size_t n)
{
    uint16_t u16[QN_LANES];
    v16_store_f16(u16, x);
    memcpy(y, u16, n * sizeof *y);
}

static void from_f32_simd(void *y, const float *x, qn_dtype dtype, size_t n)
{
    uint16_t *u16 = y;
    size_t i = 0;
    if (dtype == QN_DTYPE_F32) {
        memcpy(y, x, n * sizeof *x);
    } else if (dtype == QN_DTYPE_BF16) {
        for (; i < n; i++)
            u16[i] = (uint16_t)(bf16_bits(x[i]) >> 16);
    } else {
        for (; i + QN_LANES <= n; i += QN_LANES)
            v16_store_f16(u16 + i, v16_load(x + i));
        if (i < n)
            store_f16_n(u16 + i, v16_load_n(x + i, n - i), n - i);
    }
}

static void round_simd(float *y, const float *x, qn_dtype dtype, size_t n)
{
    size_t i = 0;
    if (dtype == QN_DTYPE_F32) {
        for (; i < n; i++)
            y[i] = x[i];
    } else if (dtype == QN_DTYPE_BF16) {
        for (; i < n; i++)
            y[i] = qn_bits_f32(bf16_bits(x[i]));
    } else {
        uint16_t u16[QN_LANES];
        for (; i + QN_LANES <= n; i += QN_LANES) {
            v16_store_f16(u16, v16_load(x + i));
            v16_store(y + i, v16_load_f16(u16));
        }
        if (i < n) {
            v16_store_f16(u16, v16_load_n(x + i, n - i));
            v16_store_n(y + i, v16_load_f16(u16), n - i);
        }
    }
}

/* State rows processed together: their accumulators are independent, which hides the FMA latency. */
enum { STEP_ROWS = 4 };

static void step_simd(float *state, const qn_gdn_token *token, size_t head_k, size_t head_v, float *o)
{
    const v16 decay = v16_set1(token->decay);
    for (size_t x = 0; x < head_v; x += STEP_ROWS, state += STEP_ROWS * head_k) {
        v16 sum[STEP_ROWS], v_new[STEP_ROWS];
        for (size_t r = 0; r < STEP_ROWS; r++)
            sum[r] = v16_set1(0);
        for (size_t i = 0; i < head_k; i += QN_LANES) {
            const v16 k = v16_load(token->k + i);
            for (size_t r = 0; r < STEP_ROWS; r++)
                sum[r] = v16_fma(v16_load(state + r * head_k + i), k, sum[r]);
        }
        for (size_t r = 0; r < STEP_ROWS; r++) {
            v_new[r] = v16_set1(token->beta * (token->v[x + r] - token->decay * v16_sum(sum[r])));
            sum[r] = v16_set1(0);
        }
        for (size_t i = 0; i < head_k; i += QN_LANES) {
            const v16 k = v16_load(token->k + i), q = v16_load(token->q + i);
            for (size_t r = 0; r < STEP_ROWS; r++) {
                float *s = state + r * head_k + i;
                const v16 after = v16_fma(v_new[r], k, v16_mul(decay, v16_load(s)));
                v16_store(s, after);
                sum[r] = v16_fma(after, q, sum[r]);
            }
        }
        for (size_t r = 0; r < STEP_ROWS; r++)
            o[x + r] = token->scale * v16_sum(sum[r]);
    }
}

QN_INLINE void row_kernels_init_simd(qn_gdn_row_kernels *rows)
{
    *rows = (qn_gdn_row_kernels){
        .to_f32 = to_f32_simd,
        .from_f32 = from_f32_simd,
        .round = round_simd,
        .step = step_simd,
    };
}

#endif
