/* Attention over an fp16 KV cache: the reference, plain loops in the canonical order that the variants reproduce bit
 * for bit. */
#include "kernels/attention/attention.h"

#include "kernels/canon.h"

#include <stdbool.h>

static uint16_t clamp_f16(float x)
{
    return qn_f32_to_f16(x > QN_F16_MAX ? QN_F16_MAX : x < -QN_F16_MAX ? -QN_F16_MAX : x);
}

static void store_ref(uint16_t *keys, uint16_t *values, size_t position, const float *key, const float *value,
                      size_t head_dim)
{
    uint16_t *tile = keys + position / QN_KEY_TILE * QN_KEY_TILE * head_dim + position % QN_KEY_TILE;
    bool is_nan = false;
    for (size_t d = 0; d < head_dim; d++) {
        is_nan = is_nan || isnan(value[d]);
        tile[d * QN_KEY_TILE] = clamp_f16(key[d]);
        values[position * head_dim + d] = isnan(value[d]) ? 0 : clamp_f16(value[d]);
    }
    if (is_nan)
        tile[0] = QN_F16_NAN;
}

static float score_ref(const float *query, const qn_attention_block *block, size_t position, size_t head_dim)
{
    const uint16_t *tile = block->keys[position / QN_PAGE] + position % QN_PAGE / QN_KEY_TILE * QN_KEY_TILE * head_dim +
                           position % QN_KEY_TILE;
    float score = 0;
    for (size_t d = 0; d < head_dim; d++)
        score = fmaf(query[d], qn_f16_to_f32(tile[d * QN_KEY_TILE]), score);
    return score;
}

static const uint16_t *value_ref(const qn_attention_block *block, size_t position, size_t head_dim)
{
    return block->values[position / QN_PAGE] + position % QN_PAGE * head_dim;
}

static void block_ref(const float *queries, size_t n_queries, const qn_attention_block *block, const uint16_t *visible,
                      size_t head_dim, float *out, float *m, float *l, float *scores)
{
    for (size_t q = 0; q < n_queries; q++) {
        if (!visible[q])
            continue;
        float *p = scores + q * QN_KEY_BLOCK, partial[QN_LANES] = { 0 };
        for (size_t j = 0; j < visible[q]; j++)
            p[j] = score_ref(queries + q * head_dim, block, j, head_dim);
        m[q] = p[0];
        for (size_t j = 1; j < visible[q]; j++)
            m[q] = p[j] > m[q] ? p[j] : m[q];
        for (size_t j = 0; j < visible[q]; j++) {
            p[j] = qn_exp(p[j] - m[q]);
            partial[j % QN_LANES] += p[j];
        }
        l[q] = qn_sum16(partial);
        for (size_t d = 0; d < head_dim; d++) {
            float sum = 0;
            for (size_t j = 0; j < visible[q]; j++)
                sum = fmaf(p[j], qn_f16_to_f32(value_ref(block, j, head_dim)[d]), sum);
            out[q * head_dim + d] = sum;
        }
    }
}

static void combine_ref(float *out, float *m, float *l, const float *block_out, float block_m, float block_l,
                        size_t head_dim)
{
    const float largest = block_m > *m ? block_m : *m;
    const float out_scale = qn_exp(*m - largest), block_scale = qn_exp(block_m - largest);
    for (size_t d = 0; d < head_dim; d++)
        out[d] = fmaf(block_out[d], block_scale, out[d] * out_scale);
    *l = fmaf(block_l, block_scale, *l * out_scale);
    *m = largest;
}

static void normalize_ref(float *y, const float *x, float l, size_t head_dim)
{
    for (size_t d = 0; d < head_dim; d++)
        y[d] = x[d] / l;
}

void qn_attention_init_ref(qn_attention_kernels *kernels)
{
    *kernels = (qn_attention_kernels){
        .store = store_ref, .block = block_ref, .combine = combine_ref, .normalize = normalize_ref
    };
}
