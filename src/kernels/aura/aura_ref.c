/* AURA: the reference, plain loops in the canonical order that the variants reproduce bit for bit. Pages are read one
 * code at a time. */
#include "base/fmaf.h"
#include "kernels/aura/aura.h"

#include "kernels/canon.h"

#include <string.h>

static float dot_ref(const float *a, const float *b, size_t n)
{
    float partial[QN_LANES] = { 0 };
    for (size_t i = 0; i < n; i++)
        partial[i % QN_LANES] = qn_fmaf(a[i], b[i], partial[i % QN_LANES]);
    return qn_sum16(partial);
}

static void gemv_ref(float *y, const float *matrix, const float *x, size_t n)
{
    for (size_t row = 0; row < n; row++)
        y[row] = dot_ref(matrix + row * n, x, n);
}

static void quantize_ref(uint8_t *codes, const float *y, const qn_aura_codec *codec)
{
    const size_t n_boundaries = ((size_t)1 << codec->bits) - 1;
    for (size_t d = 0; d < codec->dim; d++) {
        unsigned code = 0;
        for (size_t i = 0; i < n_boundaries; i++)
            code += codec->boundaries[i] < y[d];
        codes[d] = (uint8_t)code;
    }
}

static void decode_ref(float *y, const uint32_t *words, const qn_aura_codec *codec)
{
    uint8_t codes[QN_AURA_MAX_DIM];
    qn_aura_unpack(codes, words, codec->dim, codec->bits);
    for (size_t d = 0; d < codec->dim; d++)
        y[d] = codec->codebook[codes[d]];
}

static void axpy_ref(float *y, float weight, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = qn_fmaf(weight, x[i], y[i]);
}

/* Converts weights p * scale to int16 multiples of *weight_scale, which is large enough that sums over centroids fit in
 * 32 bits. */
static void quantize_weights(int16_t *weights_i16, float *weight_scale, const float *p, const float *scales, size_t n)
{
    float partial[QN_LANES] = { 0 }, largest = 0;
    for (size_t j = 0; j < n; j++) {
        const float w = p[j] * scales[j];
        partial[j % QN_LANES] += w;
        largest = w > largest ? w : largest;
    }
    const float by_largest = largest / INT16_MAX, by_sum = qn_sum16(partial) / QN_AURA_MAX_ABS_SUM;
    *weight_scale = by_sum > by_largest ? by_sum : by_largest;
    const float inverse = *weight_scale > QN_AURA_TINY ? 1 / *weight_scale : 0;
    for (size_t j = 0; j < n; j++) {
        const float w = rintf(p[j] * scales[j] * inverse);
        weights_i16[j] = (int16_t)(isnan(w) ? 0 : w > INT16_MAX ? INT16_MAX : w < INT16_MIN ? INT16_MIN : w);
    }
}

/* Returns the product as unsigned, because sums may overflow 32 bits with scales that no encoder wrote. */
static uint32_t mul_i16(int16_t a, int16_t b)
{
    return (uint32_t)((int32_t)a * b);
}

static float value_scale(const qn_aura_block *block, size_t position)
{
    const qn_aura_codec *codec = block->value_codec;
    const uint8_t *scales = block->values[position / QN_PAGE] + qn_aura_value_code_bytes(codec->dim, codec->bits);
    return ((const float *)(const void *)scales)[position % QN_PAGE];
}

static void attend_query_ref(const int16_t *query, float query_scale, const qn_aura_block *block, size_t visible,
                             float *out, float *m, float *l)
{
    const qn_aura_codec *kc = block->key_codec, *vc = block->value_codec;
    float p[QN_AURA_BLOCK], scales[QN_AURA_BLOCK], partial[QN_LANES] = { 0 }, weight_scale;
    int16_t weights_i16[QN_AURA_BLOCK];
    uint32_t sums[QN_AURA_MAX_DIM] = { 0 };
    uint8_t codes[QN_AURA_MAX_DIM];
    for (size_t j = 0; j < visible; j++) {
        uint32_t sum = 0;
        qn_aura_load_key(block->keys[j / QN_PAGE], j % QN_PAGE, codes, &scales[j], kc->dim, kc->bits);
        for (size_t d = 0; d < kc->dim; d++)
            sum += mul_i16(query[d], kc->centroids[codes[d]]);
        p[j] = (float)(int32_t)sum * query_scale * scales[j];
    }
    *m = p[0];
    for (size_t j = 1; j < visible; j++)
        *m = p[j] > *m ? p[j] : *m;
    for (size_t j = 0; j < visible; j++) {
        p[j] = qn_exp(p[j] - *m);
        partial[j % QN_LANES] += p[j];
    }
    *l = qn_sum16(partial);
    for (size_t j = 0; j < visible; j++)
        scales[j] = value_scale(block, j);
    quantize_weights(weights_i16, &weight_scale, p, scales, visible);
    for (size_t j = 0; j < visible; j++) {
        qn_aura_load_value(block->values[j / QN_PAGE], j % QN_PAGE, codes, &scales[j], vc->dim, vc->bits);
        for (size_t d = 0; d < vc->dim; d++)
            sums[d] += mul_i16(weights_i16[j], vc->centroids[codes[d]]);
    }
    for (size_t d = 0; d < vc->dim; d++)
        out[d] = (float)(int32_t)sums[d] * (weight_scale * vc->step);
}

static void block_ref(const int16_t *queries, const float *query_scales, size_t n_queries, const qn_aura_block *block,
                      const uint16_t *visible, float *out, float *m, float *l)
{
    const size_t dim = block->key_codec->dim;
    for (size_t q = 0; q < n_queries; q++)
        if (visible[q])
            attend_query_ref(queries + q * dim, query_scales[q], block, visible[q], out + q * dim, m + q, l + q);
}

void qn_aura_init_ref(qn_aura_kernels *kernels)
{
    *kernels = (qn_aura_kernels){ .gemv = gemv_ref,
                                  .quantize = quantize_ref,
                                  .decode = decode_ref,
                                  .dot = dot_ref,
                                  .axpy = axpy_ref,
                                  .block = block_ref };
}
