/* Attention over a KV cache of fp16 or fp32 elements: the reference, plain loops in the canonical order that the
 * variants reproduce bit for bit. */
#include "base/fmaf.h"
#include "kernels/attention/attention.h"

#include "kernels/canon.h"

#include <float.h>
#include <stdbool.h>

static uint16_t clamp_f16(float x)
{
    return qn_f32_to_f16(x > QN_F16_MAX ? QN_F16_MAX : x < -QN_F16_MAX ? -QN_F16_MAX : x);
}

static float clamp_f32(float x)
{
    return x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : x;
}

/* Returns the index of dimension d of the key at `position` in a page, or in adjacent pages. */
static size_t key_at(size_t position, size_t d, size_t head_dim)
{
    return (position / QN_KEY_TILE * head_dim + d) * QN_KEY_TILE + position % QN_KEY_TILE;
}

static void store_f16_ref(void *keys, void *values, size_t position, const float *key, const float *value,
                          size_t head_dim)
{
    uint16_t *k = keys, *v = values;
    bool is_nan = false;
    for (size_t d = 0; d < head_dim; d++) {
        is_nan = is_nan || isnan(value[d]);
        k[key_at(position, d, head_dim)] = clamp_f16(key[d]);
        v[position * head_dim + d] = isnan(value[d]) ? 0 : clamp_f16(value[d]);
    }
    if (is_nan)
        k[key_at(position, 0, head_dim)] = QN_F16_NAN;
}

static void store_f32_ref(void *keys, void *values, size_t position, const float *key, const float *value,
                          size_t head_dim)
{
    float *k = keys, *v = values;
    bool is_nan = false;
    for (size_t d = 0; d < head_dim; d++) {
        is_nan = is_nan || isnan(value[d]);
        k[key_at(position, d, head_dim)] = clamp_f32(key[d]);
        v[position * head_dim + d] = isnan(value[d]) ? 0 : clamp_f32(value[d]);
    }
    if (is_nan)
        k[key_at(position, 0, head_dim)] = NAN;
}

static float element(const void *page, size_t at, bool is_f32)
{
    return is_f32 ? ((const float *)page)[at] : qn_f16_to_f32(((const uint16_t *)page)[at]);
}

static float score_ref(const float *query, const qn_attention_block *block, size_t position, size_t head_dim,
                       bool is_f32)
{
    float score = 0;
    for (size_t d = 0; d < head_dim; d++)
        score = qn_fmaf(
            query[d], element(block->keys[position / QN_PAGE], key_at(position % QN_PAGE, d, head_dim), is_f32), score);
    return score;
}

static float value_ref(const qn_attention_block *block, size_t position, size_t d, size_t head_dim, bool is_f32)
{
    return element(block->values[position / QN_PAGE], position % QN_PAGE * head_dim + d, is_f32);
}

static void block_ref(const float *queries, size_t n_queries, const qn_attention_block *block, const uint16_t *visible,
                      size_t head_dim, float *out, float *m, float *l, float *scores, bool is_f32)
{
    for (size_t q = 0; q < n_queries; q++) {
        if (!visible[q])
            continue;
        float *p = scores + q * QN_KEY_BLOCK, partial[QN_LANES] = { 0 };
        for (size_t j = 0; j < visible[q]; j++)
            p[j] = j < block->first ? -INFINITY : score_ref(queries + q * head_dim, block, j, head_dim, is_f32);
        m[q] = p[0];
        for (size_t j = 1; j < visible[q]; j++)
            m[q] = p[j] > m[q] ? p[j] : m[q];
        for (size_t j = 0; j < visible[q]; j++) {
            p[j] = j < block->first ? 0 : qn_exp(p[j] - m[q]);
            partial[j % QN_LANES] += p[j];
        }
        l[q] = qn_sum16(partial);
        for (size_t d = 0; d < head_dim; d++) {
            float sum = 0;
            for (size_t j = 0; j < visible[q]; j++)
                sum = qn_fmaf(p[j], value_ref(block, j, d, head_dim, is_f32), sum);
            out[q * head_dim + d] = sum;
        }
    }
}

static void block_f16_ref(const float *queries, size_t n_queries, const qn_attention_block *block,
                          const uint16_t *visible, size_t head_dim, float *out, float *m, float *l, float *scores)
{
    block_ref(queries, n_queries, block, visible, head_dim, out, m, l, scores, false);
}

static void block_f32_ref(const float *queries, size_t n_queries, const qn_attention_block *block,
                          const uint16_t *visible, size_t head_dim, float *out, float *m, float *l, float *scores)
{
    block_ref(queries, n_queries, block, visible, head_dim, out, m, l, scores, true);
}

static void combine_ref(float *out, float *m, float *l, const float *block_out, float block_m, float block_l,
                        size_t head_dim)
{
    const float largest = block_m > *m ? block_m : *m;
    const float out_scale = qn_exp(*m - largest), block_scale = qn_exp(block_m - largest);
    for (size_t d = 0; d < head_dim; d++)
        out[d] = qn_fmaf(block_out[d], block_scale, out[d] * out_scale);
    *l = qn_fmaf(block_l, block_scale, *l * out_scale);
    *m = largest;
}

static void normalize_ref(float *y, const float *x, float l, size_t head_dim)
{
    for (size_t d = 0; d < head_dim; d++)
        y[d] = x[d] / l;
}

void qn_attention_init_ref(qn_attention_kernels *kernels)
{
    *kernels = (qn_attention_kernels){ .f16 = { store_f16_ref, block_f16_ref },
                                       .f32 = { store_f32_ref, block_f32_ref },
                                       .combine = combine_ref,
                                       .normalize = normalize_ref };
}
