/* The reference matmul: plain loops over values in the canonical order. The fast kernels are compared with it bit for
 * bit. */
#include "kernels/matmul/matmul.h"

#include "kernels/canon.h"
#include "kernels/matmul/tiles.h"

#include <string.h>

enum { TILE_ROWS = 1, TILE_TOKENS = 1 };

static void quantize_ref(qn_acts *acts, size_t row, size_t super, const float *values, size_t n)
{
    const size_t group0 = (row * acts->n_super + super) * QN_SUPER_GROUPS;
    if (acts->values)
        memcpy(acts->values + row * acts->n_cols + super * QN_SUPER, values, n * sizeof *values);
    if (!acts->scale)
        return;
    for (size_t lane = 0; lane < QN_SUPER_GROUPS; lane++) {
        float group[QN_QUANT_GROUP] = { 0 };
        for (size_t i = 0; i < QN_QUANT_GROUP && lane * QN_QUANT_GROUP + i < n; i++)
            group[i] = values[lane * QN_QUANT_GROUP + i];
        float amax = 0; /* largest magnitude, quantised to code 127 */
        bool finite = true;
        for (size_t i = 0; i < QN_QUANT_GROUP; i++) {
            amax = fabsf(group[i]) > amax ? fabsf(group[i]) : amax;
            finite = finite && isfinite(group[i]);
        }
        const bool zero = amax < QN_MIN_GROUP_ABSMAX || !finite;
        const float inverse = zero ? 0 : 127.0f / amax, step = zero ? 0 : amax * (1.0f / 127);
        const float scale = finite ? step : NAN;
        if (!finite)
            memset(group, 0, sizeof group);
        int32_t sum = 0, sum_upper = 0;
        for (size_t i = 0; i < QN_QUANT_GROUP; i++) {
            const float code = rintf(group[i] * inverse);
            const float code_lo = acts->hilo ? rintf(fmaf(-code, step, group[i]) * (inverse * QN_HILO_BASE)) : 0;
            for (int layout = 0; layout < QN_ACT_INT8_LAYOUTS; layout++) {
                const size_t at =
                    group0 * QN_QUANT_GROUP + qn_act_index((qn_act_layout)layout, lane * QN_QUANT_GROUP + i);
                if (acts->codes[layout])
                    acts->codes[layout][at] = (int8_t)code;
                if (acts->codes_lo[layout])
                    acts->codes_lo[layout][at] = (int8_t)code_lo;
            }
            if (acts->tiles)
                acts->tiles[qn_act_tile_at(acts, row, super, lane)].codes[i / 4][row % QN_TILE][i % 4] = (int8_t)code;
            if (acts->tiles_lo)
                acts->tiles_lo[qn_act_tile_at(acts, row, super, lane)].codes[i / 4][row % QN_TILE][i % 4] =
                    (int8_t)code_lo;
            const int32_t code_hilo = acts->hilo ? (int32_t)code * QN_HILO_BASE + (int32_t)code_lo : (int32_t)code;
            sum += code_hilo;
            sum_upper += i < QN_QUANT_GROUP / 2 ? 0 : code_hilo;
        }
        acts->scale[group0 + lane] = acts->hilo ? scale * (1.0f / QN_HILO_BASE) : scale;
        acts->sum[group0 + lane] = sum;
        acts->sum_upper[group0 + lane] = sum_upper;
        if (acts->tiles) {
            qn_act_tile *tile = &acts->tiles[qn_act_tile_at(acts, row, super, lane)];
            tile->scale[row % QN_TILE] = acts->scale[group0 + lane];
            tile->sum[row % QN_TILE] = (float)sum;
        }
    }
}

static void unpack_ref(const qn_type_info *type, const uint8_t *blocks, size_t n_blocks, qn_super_block *out)
{
    uint8_t codes[QN_SUPER];
    int8_t factor[2 * QN_SUPER_GROUPS];
    float offset[2 * QN_SUPER_GROUPS], scale[2 * QN_SUPER_GROUPS];
    const size_t n_groups = n_blocks * type->block_weights / QN_QUANT_GROUP;
    memset(out, 0, sizeof *out);
    type->unpack(blocks, n_blocks, codes, scale, offset, factor);
    for (size_t group = 0; group < n_groups; group++) {
        out->scale[group] = scale[type->has_half_scale ? 2 * group : group];
        out->scale_upper[group] = type->has_half_scale ? scale[2 * group + 1] : 0;
    }
    for (size_t i = 0; i < n_blocks * type->block_weights; i++)
        out->codes[qn_act_index(qn_act_layout_of(type), i)] = codes[i];
    for (size_t group = 0; type->has_offset && group < n_groups; group++) {
        out->offset[group] = offset[type->has_factor ? 2 * group : group];
        out->offset_upper[group] = type->has_factor ? offset[2 * group + 1] : 0;
    }
    for (size_t group = 0; type->has_factor && group < n_groups; group++) {
        out->factor_lower[group] = factor[2 * group];
        out->factor_upper[group] = factor[2 * group + 1];
    }
}

/* The integer dot products of group `lane` of a super-block of weights and of a token, whose codes start at group
 * `group`: of the first 16 values, and of the last. */
static void group_isums(const qn_type_info *type, const qn_super_block *weights, const qn_acts *acts, size_t group,
                        size_t lane, int32_t *lower, int32_t *upper)
{
    const qn_act_layout layout = qn_act_layout_of(type);
    *lower = *upper = 0;
    for (size_t i = 0; i < QN_QUANT_GROUP; i++) {
        const size_t at = qn_act_index(layout, lane * QN_QUANT_GROUP + i);
        int32_t code = acts->codes[layout][group * QN_QUANT_GROUP + at];
        if (acts->hilo)
            code = code * QN_HILO_BASE + acts->codes_lo[layout][group * QN_QUANT_GROUP + at];
        *(i < QN_QUANT_GROUP / 2 ? lower : upper) += ((int32_t)weights->codes[at] - type->zero_point) * code;
    }
    if (type->has_factor) {
        *lower *= weights->factor_lower[lane];
        *upper *= weights->factor_upper[lane];
    }
}

/* Adds a group of one row and one token. */
static float add_group(const qn_type_info *type, const qn_super_block *w, const qn_acts *acts, size_t group,
                       size_t lane, float partial)
{
    const float act_scale = acts->scale[group];
    int32_t lower, upper;
    group_isums(type, w, acts, group - lane, lane, &lower, &upper);
    partial = fmaf((float)(type->has_half_scale ? lower : lower + upper), w->scale[lane] * act_scale, partial);
    if (type->has_half_scale)
        partial = fmaf((float)upper, w->scale_upper[lane] * act_scale, partial);
    const int32_t sum_upper = type->has_factor ? acts->sum_upper[group] : 0;
    if (type->has_offset)
        partial = fmaf((float)(acts->sum[group] - sum_upper), w->offset[lane] * act_scale, partial);
    if (type->has_offset && type->has_factor)
        partial = fmaf((float)sum_upper, w->offset_upper[lane] * act_scale, partial);
    return partial;
}

static void gemm_ref(const qn_type_info *type, const qn_super_block *rows, size_t n_rows, const qn_acts *acts,
                     size_t first, size_t n_tokens, float *out)
{
    for (size_t t = 0; t < n_tokens; t++)
        for (size_t r = 0; r < n_rows; r++) {
            float partial[QN_LANES] = { 0 };
            for (size_t s = 0; s < acts->n_super; s++)
                for (size_t lane = 0; lane < QN_SUPER_GROUPS; lane++)
                    partial[lane] =
                        add_group(type, &rows[r * acts->n_super + s], acts,
                                  ((first + t) * acts->n_super + s) * QN_SUPER_GROUPS + lane, lane, partial[lane]);
            out[t * TILE_ROWS + r] = qn_sum16(partial);
        }
}

static float float_weight(const qn_matrix *weights, const uint8_t *row, size_t k)
{
    float x;
    uint16_t f16;
    if (weights->type->type == QN_TYPE_F32) {
        memcpy(&x, row + 4 * k, sizeof x);
        return x;
    }
    memcpy(&f16, row + 2 * k, sizeof f16);
    return weights->type->type == QN_TYPE_F16 ? qn_f16_to_f32(f16) : qn_bf16_to_f32(f16);
}

static void gemm_float_ref(const qn_matrix *weights, size_t row, size_t n_rows, const qn_acts *acts, size_t first,
                           size_t n_tokens, float *out)
{
    for (size_t t = 0; t < n_tokens; t++)
        for (size_t r = 0; r < n_rows; r++) {
            const float *x = acts->values + (first + t) * acts->n_cols;
            float partial[QN_LANES] = { 0 };
            for (size_t k = 0; k < acts->n_cols; k++)
                partial[k % QN_LANES] = fmaf(float_weight(weights, weights->data + (row + r) * weights->row_bytes, k),
                                             x[k], partial[k % QN_LANES]);
            out[t * TILE_ROWS + r] = qn_sum16(partial);
        }
}

void qn_matmul_init_amx_ref(qn_matmul_kernels *kernels)
{
    kernels->gemm_tiles = qn_tile_gemm_ref;
    kernels->put_tile = qn_tile_put_ref;
    kernels->min_tile_tokens = 1;
}

void qn_matmul_init_ref(qn_matmul_kernels *kernels)
{
    *kernels = (qn_matmul_kernels){
        .tile_rows = TILE_ROWS,
        .tile_tokens = TILE_TOKENS,
        .quantize = quantize_ref,
        .unpack = unpack_ref,
        .gemm = gemm_ref,
        .gemm_float = gemm_float_ref,
    };
}
