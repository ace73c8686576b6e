/* Conversions and the step of the delta rule: the reference, plain loops in the canonical order. The SIMD variants must
 * give the same bits. */
#include "base/fmaf.h"
#include "kernels/deltanet/row_kernels.h"

#include "kernels/canon.h"

static void to_f32_ref(float *y, const void *x, qn_dtype dtype, size_t n)
{
    const uint16_t *u16 = x;
    if (dtype == QN_DTYPE_F32)
        memcpy(y, x, n * sizeof *y);
    else
        for (size_t i = 0; i < n; i++)
            y[i] = dtype == QN_DTYPE_F16 ? qn_f16_to_f32(u16[i]) : qn_bf16_to_f32(u16[i]);
}

static void from_f32_ref(void *y, const float *x, qn_dtype dtype, size_t n)
{
    uint16_t *u16 = y;
    if (dtype == QN_DTYPE_F32)
        memcpy(y, x, n * sizeof *x);
    else
        for (size_t i = 0; i < n; i++)
            u16[i] = dtype == QN_DTYPE_F16 ? qn_f32_to_f16(x[i]) : qn_f32_to_bf16(x[i]);
}

static void round_ref(float *y, const float *x, qn_dtype dtype, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = dtype == QN_DTYPE_F32   ? x[i]
               : dtype == QN_DTYPE_F16 ? qn_f16_to_f32(qn_f32_to_f16(x[i]))
                                       : qn_bf16_to_f32(qn_f32_to_bf16(x[i]));
}

static float dot(const float *a, const float *b, size_t n)
{
    float partial[QN_LANES] = { 0 };
    for (size_t i = 0; i < n; i++)
        partial[i % QN_LANES] = qn_fmaf(a[i], b[i], partial[i % QN_LANES]);
    return qn_sum16(partial);
}

static void step_ref(float *state, const qn_gdn_token *token, size_t head_k, size_t head_v, float *o)
{
    for (size_t x = 0; x < head_v; x++, state += head_k) {
        const float v_new = token->beta * (token->v[x] - token->decay * dot(state, token->k, head_k));
        for (size_t i = 0; i < head_k; i++)
            state[i] = qn_fmaf(v_new, token->k[i], token->decay * state[i]);
        o[x] = token->scale * dot(state, token->q, head_k);
    }
}

void qn_gdn_row_kernels_init_ref(qn_gdn_row_kernels *rows)
{
    *rows = (qn_gdn_row_kernels){
        .to_f32 = to_f32_ref,
        .from_f32 = from_f32_ref,
        .round = round_ref,
        .step = step_ref,
    };
}
