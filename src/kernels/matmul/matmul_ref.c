/* The reference matrix product: plain loops over values in the canonical order. What the fast variants are held to, bit for
 * bit. */
#include "kernels/matmul/matmul.h"

#include "kernels/canon.h"

#include <string.h>

enum { TILE_ROWS = 1, TILE_TOKENS = 1 };

static void quantize_ref(qn_acts *acts, size_t row, size_t super, const float *values, size_t n)
{
    const size_t run0 = (row * acts->n_super + super) * QN_SUPER_RUNS;
    if (acts->values)
        memcpy(acts->values + row * acts->n_cols + super * QN_SUPER, values, n * sizeof *values);
    if (!acts->scale)
        return;
    for (size_t lane = 0; lane < QN_SUPER_RUNS; lane++) {
        float run[QN_RUN] = { 0 };
        for (size_t i = 0; i < QN_RUN && lane * QN_RUN + i < n; i++)
            run[i] = values[lane * QN_RUN + i];
        float largest = 0; /* becomes code 127 */
        bool finite = true;
        for (size_t i = 0; i < QN_RUN; i++) {
            largest = fabsf(run[i]) > largest ? fabsf(run[i]) : largest;
            finite = finite && isfinite(run[i]);
        }
        const bool zero = largest < QN_SMALLEST_RUN || !finite;
        const float inverse = zero ? 0 : 127.0f / largest, step = zero ? 0 : largest * (1.0f / 127);
        const float scale = finite ? step : NAN;
        if (!finite)
            memset(run, 0, sizeof run);
        int32_t sum = 0, sum_hi = 0;
        for (size_t i = 0; i < QN_RUN; i++) {
            const float code = rintf(run[i] * inverse);
            const float fine_code = acts->fine ? rintf(fmaf(-code, step, run[i]) * (inverse * QN_FINE)) : 0;
            for (int form = 0; form < QN_ACT_INT_FORMS; form++) {
                const size_t at = run0 * QN_RUN + qn_act_position((qn_act_form)form, lane * QN_RUN + i);
                if (acts->codes[form])
                    acts->codes[form][at] = (int8_t)code;
                if (acts->fine_codes[form])
                    acts->fine_codes[form][at] = (int8_t)fine_code;
            }
            const int32_t whole = acts->fine ? (int32_t)code * QN_FINE + (int32_t)fine_code : (int32_t)code;
            sum += whole;
            sum_hi += i < QN_RUN / 2 ? 0 : whole;
        }
        acts->scale[run0 + lane] = acts->fine ? scale * (1.0f / QN_FINE) : scale;
        acts->sum[run0 + lane] = sum;
        acts->sum_hi[run0 + lane] = sum_hi;
    }
}

static void unpack_ref(const qn_type_info *type, const uint8_t *blocks, size_t n_blocks, qn_super *out)
{
    uint8_t codes[QN_SUPER];
    int8_t factor[2 * QN_SUPER_RUNS];
    memset(out, 0, sizeof *out);
    type->unpack(blocks, n_blocks, codes, out->scale, out->offset, factor);
    for (size_t i = 0; i < n_blocks * type->block_weights; i++)
        out->codes[qn_act_position(qn_act_form_of(type), i)] = codes[i];
    for (size_t run = 0; type->has_factor && run < n_blocks * type->block_weights / QN_RUN; run++) {
        out->factor_lo[run] = factor[2 * run];
        out->factor_hi[run] = factor[2 * run + 1];
    }
}

/* The whole number that run `lane` of a super-block of weights and of a token give; at `run` begin the token's codes. */
static int32_t run_product(const qn_type_info *type, const qn_super *weights, const qn_acts *acts, size_t run, size_t lane)
{
    const qn_act_form form = qn_act_form_of(type);
    int32_t lo = 0, hi = 0;
    for (size_t i = 0; i < QN_RUN; i++) {
        const size_t at = qn_act_position(form, lane * QN_RUN + i);
        int32_t code = acts->codes[form][run * QN_RUN + at];
        if (acts->fine)
            code = code * QN_FINE + acts->fine_codes[form][run * QN_RUN + at];
        *(i < QN_RUN / 2 ? &lo : &hi) += ((int32_t)weights->codes[at] - type->zero_point) * code;
    }
    return type->has_factor ? lo * weights->factor_lo[lane] + hi * weights->factor_hi[lane] : lo + hi;
}

static void dot_ref(const qn_type_info *type, const qn_super *rows, size_t n_rows, const qn_acts *acts, size_t first,
                    size_t n_tokens, float *out)
{
    for (size_t t = 0; t < n_tokens; t++)
        for (size_t r = 0; r < n_rows; r++) {
            float partial[QN_LANES] = { 0 };
            for (size_t s = 0; s < acts->n_super; s++)
                for (size_t lane = 0; lane < QN_SUPER_RUNS; lane++) {
                    const qn_super *w = &rows[r * acts->n_super + s];
                    const size_t run = ((first + t) * acts->n_super + s) * QN_SUPER_RUNS + lane;
                    const int32_t product = run_product(type, w, acts, run - lane, lane);
                    partial[lane] = fmaf((float)product, w->scale[lane] * acts->scale[run], partial[lane]);
                    if (type->has_offset)
                        partial[lane] = fmaf((float)acts->sum[run], w->offset[lane] * acts->scale[run], partial[lane]);
                }
            out[t * TILE_ROWS + r] = qn_sum16(partial);
        }
}

static float float_weight(const qn_matrix *weights, const uint8_t *row, size_t k)
{
    float x;
    uint16_t half;
    if (weights->type->type == QN_TYPE_F32) {
        memcpy(&x, row + 4 * k, sizeof x);
        return x;
    }
    memcpy(&half, row + 2 * k, sizeof half);
    return weights->type->type == QN_TYPE_F16 ? qn_f16_to_f32(half) : qn_bf16_to_f32(half);
}

static void dot_float_ref(const qn_matrix *weights, size_t row, size_t n_rows, const qn_acts *acts, size_t first,
                          size_t n_tokens, float *out)
{
    for (size_t t = 0; t < n_tokens; t++)
        for (size_t r = 0; r < n_rows; r++) {
            const float *x = acts->values + (first + t) * acts->n_cols;
            float partial[QN_LANES] = { 0 };
            for (size_t k = 0; k < acts->n_cols; k++)
                partial[k % QN_LANES] =
                    fmaf(float_weight(weights, weights->data + (row + r) * weights->row_bytes, k), x[k], partial[k % QN_LANES]);
            out[t * TILE_ROWS + r] = qn_sum16(partial);
        }
}

void qn_matmul_init_ref(qn_matmul_kernels *kernels)
{
    *kernels = (qn_matmul_kernels){
        .tile_rows = TILE_ROWS,
        .tile_tokens = TILE_TOKENS,
        .quantize = quantize_ref,
        .unpack = unpack_ref,
        .dot = dot_ref,
        .dot_float = dot_float_ref,
    };
}
