/* The reference matmul: plain loops over values in the canonical order. The fast kernels are compared with it bit for
 * bit. */
#include "base/fmaf.h"
#include "kernels/matmul/matmul.h"

#include "kernels/canon.h"
#include "kernels/matmul/blocks.h"

#include <string.h>

enum { TILE_ROWS = 1, TILE_TOKENS = 1 };

/* The scale of a group that depends on it alone. */
static qn_group_scale group_scale(float amax)
{
    const bool zero = amax < QN_MIN_GROUP_ABSMAX;
    return (qn_group_scale){ .inverse = zero ? 0 : 127.0f / amax, .step = zero ? 0 : amax * (1.0f / 127), .factor = 1 };
}

/* Writes the digits of factor * code of value i of a group to the block's tile; with the hi/lo split the codes. A code
 * without a factor is a lo digit. */
static void put_block_tile(const qn_acts *acts, size_t row, size_t group, size_t i, int32_t code, int32_t code_lo,
                           int32_t factor, bool has_hi)
{
    const size_t at = qn_act_block_at(acts, row, group / QN_BLOCK_GROUPS);
    const size_t k = group % QN_BLOCK_GROUPS * QN_QUANT_GROUP + i, half = k / QN_BLOCK_K;
    const int32_t x = factor * code, hi = has_hi ? (int32_t)rintf((float)x * (1.0f / QN_BLOCK_BASE)) : 0;
    acts->block_tiles[at].codes[half][row % QN_TILE][k % QN_BLOCK_K] = (int8_t)(x - QN_BLOCK_BASE * hi);
    acts->block_tiles_hi[at].codes[half][row % QN_TILE][k % QN_BLOCK_K] = (int8_t)(acts->hilo ? code_lo : hi);
}

/* Quantises a group, of a super-block that begins with group `group0` of acts. A group, or block, with a value that is
 * not finite has finite = false: codes are 0 and the scale NaN. */
static void quantize_group(qn_acts *acts, size_t row, size_t super, size_t lane, const float *group,
                           const qn_group_scale *scale, bool has_hi, bool finite)
{
    const size_t group0 = (row * acts->n_super + super) * QN_SUPER_GROUPS;
    int32_t sum = 0, sum_upper = 0;
    for (size_t i = 0; i < QN_QUANT_GROUP; i++) {
        const float x = finite ? group[i] : 0, code = rintf(x * scale->inverse);
        const float code_lo = acts->hilo ? rintf(qn_fmaf(-code, scale->step, x) * (scale->inverse * QN_HILO_BASE)) : 0;
        for (int layout = 0; layout < QN_ACT_INT8_LAYOUTS; layout++) {
            const size_t at = group0 * QN_QUANT_GROUP + qn_act_index((qn_act_layout)layout, lane * QN_QUANT_GROUP + i);
            if (acts->codes[layout])
                acts->codes[layout][at] = (int8_t)code;
            if (acts->codes_lo[layout])
                acts->codes_lo[layout][at] = (int8_t)code_lo;
        }
        if (acts->tiles)
            acts->tiles[qn_act_tile_at(acts, row, super, lane)].codes[i / 4][row % QN_TILE][i % 4] = (int8_t)code;
        if (acts->tiles_lo)
            acts->tiles_lo[qn_act_tile_at(acts, row, super, lane)].codes[i / 4][row % QN_TILE][i % 4] = (int8_t)code_lo;
        if (acts->block_tiles)
            put_block_tile(acts, row, super * QN_SUPER_GROUPS + lane, i, (int32_t)code, (int32_t)code_lo, scale->factor,
                           has_hi);
        const int32_t code_hilo = acts->hilo ? (int32_t)code * QN_HILO_BASE + (int32_t)code_lo : (int32_t)code;
        sum += code_hilo;
        sum_upper += i < QN_QUANT_GROUP / 2 ? 0 : code_hilo;
    }
    const float step = finite ? scale->step : NAN;
    acts->scale[group0 + lane] = acts->hilo ? step * (1.0f / QN_HILO_BASE) : step;
    acts->sum[group0 + lane] = sum;
    acts->sum_upper[group0 + lane] = sum_upper;
    if (acts->factor)
        acts->factor[group0 + lane] = scale->factor;
    if (acts->tiles) {
        qn_act_tile *tile = &acts->tiles[qn_act_tile_at(acts, row, super, lane)];
        tile->scale[row % QN_TILE] = acts->scale[group0 + lane];
        tile->sum[row % QN_TILE] = (float)sum;
    }
}

/* Writes what is kept of a block: its scale, and the sum of its codes times their factors. */
static void finish_block(qn_acts *acts, size_t row, size_t block, float scale)
{
    const size_t at = row * qn_act_blocks(acts) + block, group0 = at * QN_BLOCK_GROUPS;
    acts->block_scale[at] = acts->hilo ? scale * (1.0f / QN_HILO_BASE) : scale;
    acts->block_sum[at] = 0;
    for (size_t g = 0; g < QN_BLOCK_GROUPS; g++)
        acts->block_sum[at] += acts->factor[group0 + g] * acts->sum[group0 + g];
    if (!acts->block_tiles)
        return;
    qn_act_block_tile *tile = &acts->block_tiles[qn_act_block_at(acts, row, block)];
    tile->scale[row % QN_TILE] = acts->block_scale[at];
    tile->has_hi[row % QN_TILE] = qn_block_has_hi(acts->factor + group0);
}

static void quantize_ref(qn_acts *acts, size_t row, size_t super, const float *values, size_t n)
{
    if (acts->values)
        memcpy(acts->values + row * acts->n_cols + super * QN_SUPER, values, n * sizeof *values);
    if (!acts->scale)
        return;
    for (size_t block = 0; block < QN_SUPER / QN_BLOCK; block++) {
        float x[QN_BLOCK] = { 0 }, amax[QN_BLOCK_GROUPS] = { 0 }; /* amax: magnitudes that are quantised to 127 */
        bool finite[QN_BLOCK_GROUPS], all_finite = true;
        for (size_t i = 0; i < QN_BLOCK && block * QN_BLOCK + i < n; i++)
            x[i] = values[block * QN_BLOCK + i];
        for (size_t g = 0; g < QN_BLOCK_GROUPS; g++) {
            finite[g] = true;
            for (size_t i = 0; i < QN_QUANT_GROUP; i++) {
                const float value = x[g * QN_QUANT_GROUP + i];
                amax[g] = fabsf(value) > amax[g] ? fabsf(value) : amax[g];
                finite[g] = finite[g] && isfinite(value);
            }
            all_finite = all_finite && finite[g];
        }
        qn_group_scale scales[QN_BLOCK_GROUPS];
        float block_scale = NAN;
        static const float none[QN_BLOCK_GROUPS];
        if (acts->factor)
            block_scale = qn_block_scales(all_finite ? amax : none, acts->hilo, scales);
        for (size_t g = 0; g < QN_BLOCK_GROUPS && !acts->factor; g++)
            scales[g] = group_scale(finite[g] ? amax[g] : 0);
        bool has_hi = false;
        for (size_t g = 0; g < QN_BLOCK_GROUPS; g++)
            has_hi = has_hi || scales[g].factor != 1;
        for (size_t g = 0; g < QN_BLOCK_GROUPS; g++)
            quantize_group(acts, row, super, block * QN_BLOCK_GROUPS + g, x + g * QN_QUANT_GROUP, &scales[g], has_hi,
                           acts->factor ? all_finite : finite[g]);
        if (acts->factor)
            finish_block(acts, row, super * (QN_SUPER / QN_BLOCK) + block, all_finite ? block_scale : NAN);
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
    partial = qn_fmaf((float)(type->has_half_scale ? lower : lower + upper), w->scale[lane] * act_scale, partial);
    if (type->has_half_scale)
        partial = qn_fmaf((float)upper, w->scale_upper[lane] * act_scale, partial);
    const int32_t sum_upper = type->has_factor ? acts->sum_upper[group] : 0;
    if (type->has_offset)
        partial = qn_fmaf((float)(acts->sum[group] - sum_upper), w->offset[lane] * act_scale, partial);
    if (type->has_offset && type->has_factor)
        partial = qn_fmaf((float)sum_upper, w->offset_upper[lane] * act_scale, partial);
    return partial;
}

/* The element of a row and a token of a type with blocks. */
static float block_element(const qn_type_info *type, const qn_super_block *row, const qn_acts *acts, size_t token)
{
    float element = 0;
    for (size_t block = 0; block < acts->n_cols / QN_BLOCK; block++) {
        const size_t at = token * qn_act_blocks(acts) + block, lane0 = block * QN_BLOCK_GROUPS % QN_SUPER_GROUPS;
        const qn_super_block *w = &row[block * QN_BLOCK / QN_SUPER];
        int32_t sum = 0;
        for (size_t g = 0; g < QN_BLOCK_GROUPS; g++) {
            int32_t lower, upper;
            group_isums(type, w, acts, at * QN_BLOCK_GROUPS - lane0, lane0 + g, &lower, &upper);
            sum += acts->factor[at * QN_BLOCK_GROUPS + g] * (lower + upper);
        }
        element = qn_fmaf((float)sum, w->scale[lane0] * acts->block_scale[at], element);
    }
    return element;
}

static void gemm_ref(const qn_type_info *type, const qn_super_block *rows, size_t n_rows, const qn_acts *acts,
                     size_t first, size_t n_tokens, float *out)
{
    for (size_t t = 0; t < n_tokens; t++)
        for (size_t r = 0; r < n_rows; r++) {
            float partial[QN_LANES] = { 0 };
            if (acts->factor && qn_type_has_blocks(type)) {
                out[t * TILE_ROWS + r] = block_element(type, &rows[r * acts->n_super], acts, first + t);
                continue;
            }
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
                partial[k % QN_LANES] =
                    qn_fmaf(float_weight(weights, weights->data + (row + r) * weights->row_bytes, k), x[k],
                            partial[k % QN_LANES]);
            out[t * TILE_ROWS + r] = qn_sum16(partial);
        }
}

void qn_matmul_init_amx_ref(qn_matmul_kernels *kernels)
{
    kernels->gemm_tiles = qn_tile_gemm_ref;
    kernels->put_tile = qn_tile_put_ref;
    kernels->min_tile_tokens = 1;
    kernels->block_scales = true;
    kernels->min_block_tokens = kernels->min_ternary_tokens = 1;
    kernels->gemm_blocks = qn_block_gemm_ref;
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
