/* Shared by the tests of the AURA kernels: random numbers, views, buffers, caches, attention in float64. */
#ifndef QN_TESTS_HELPER_AURA_H
#define QN_TESTS_HELPER_AURA_H

#include "helper_assert.h"

#include "quern/kernels.h"

#include <math.h>

static const size_t aura_dims[] = { 64, 80, 96, 128, 192, 256, 512 };
static const unsigned aura_bits[] = { 2, 3, 4, 6, 8 };
enum { N_DIMS = 7, N_BITS = 5 };

static uint64_t random_state = 1;

/* Uniform in (0, 1). */
static inline double uniform(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    uint64_t z = (random_state ^ random_state >> 29) * 0xbf58476d1ce4e5b9u;
    return ((double)(z >> 11) + 0.5) * 0x1p-53;
}

/* Standard normal, by the Box-Muller transform. */
static inline double normal(void)
{
    return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform());
}

static inline float *normals(size_t n, double scale)
{
    float *x = malloc((n ? n : 1) * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(normal() * scale);
    return x;
}

static inline void *memory(size_t bytes, int fill)
{
    void *p = malloc(bytes ? bytes : 1);
    assert_non_null(p);
    return memset(p, fill, bytes);
}

static inline qn_view f32(void *data, size_t count)
{
    return (qn_view){ data, QN_DTYPE_F32, count };
}

static inline qn_view u32(void *data, size_t count)
{
    return (qn_view){ data, QN_DTYPE_U32, count };
}

static inline qn_aura_codec *new_codec(size_t dim, unsigned bits)
{
    qn_aura_codec *codec;
    if (qn_aura_codec_create(&codec, dim, bits, 7) != QN_OK)
        fail_msg("dim %zu bits %u: %s", dim, bits, qn_error_text());
    return codec;
}

/* A cache with random rows in its first n_keys positions, and the rows decoded from it, [n_kv_heads, n_keys, dim].
 * All bits of later positions are 1: NaN as scales. */
typedef struct aura_case {
    qn_aura_cache cache;
    float *keys, *values;
} aura_case;

static inline aura_case new_case(size_t dim, unsigned key_bits, unsigned value_bits, size_t n_kv_heads, size_t capacity,
                                 size_t n_keys)
{
    aura_case c = { .cache = { .n_kv_heads = n_kv_heads, .capacity = capacity, .n_keys = n_keys } };
    qn_aura_cache *cache = &c.cache;
    cache->key_codec = new_codec(dim, key_bits);
    cache->value_codec = new_codec(dim, value_bits);
    const size_t rows = n_kv_heads * capacity, n = n_keys * n_kv_heads * dim;
    const size_t key_words = rows * qn_aura_words(cache->key_codec),
                 value_words = rows * qn_aura_words(cache->value_codec);
    cache->key_codes = u32(memory(key_words * 4, 0xff), key_words);
    cache->value_codes = u32(memory(value_words * 4, 0xff), value_words);
    cache->key_scales = f32(memory(rows * 4, 0xff), rows);
    cache->value_scales = f32(memory(rows * 4, 0xff), rows);
    float *keys = normals(n, 1), *values = normals(n, 1);
    uint32_t *positions = memory(n_keys * 4, 0);
    for (size_t t = 0; t < n_keys; t++)
        positions[t] = (uint32_t)t;
    assert_ok(qn_aura_store(cache, f32(keys, n), f32(values, n), u32(positions, n_keys), n_keys));
    c.keys = keys;
    c.values = values;
    for (size_t h = 0; h < n_kv_heads; h++) {
        const size_t row = h * capacity, at = h * n_keys * dim;
        assert_ok(qn_aura_decode(cache->key_codec,
                                 u32((uint32_t *)cache->key_codes.data + row * qn_aura_words(cache->key_codec),
                                     n_keys * qn_aura_words(cache->key_codec)),
                                 f32((float *)cache->key_scales.data + row, n_keys), n_keys, true,
                                 f32(keys + at, n_keys * dim)));
        assert_ok(qn_aura_decode(cache->value_codec,
                                 u32((uint32_t *)cache->value_codes.data + row * qn_aura_words(cache->value_codec),
                                     n_keys * qn_aura_words(cache->value_codec)),
                                 f32((float *)cache->value_scales.data + row, n_keys), n_keys, true,
                                 f32(values + at, n_keys * dim)));
    }
    free(positions);
    return c;
}

static inline void free_case(aura_case *c)
{
    qn_aura_codec_free((qn_aura_codec *)c->cache.key_codec);
    qn_aura_codec_free((qn_aura_codec *)c->cache.value_codec);
    free(c->cache.key_codes.data);
    free(c->cache.value_codes.data);
    free(c->cache.key_scales.data);
    free(c->cache.value_scales.data);
    free(c->keys);
    free(c->values);
}

/* The attention of one query over keys [from, to) of decoded rows, in double. `sink` is NaN if there is none. */
static inline void attend_float64(const float *query, const float *keys, const float *values, size_t from, size_t to,
                                  size_t dim, double scale, double sink, double *out)
{
    double largest = sink, sum = 0;
    double *scores = malloc((to + 1) * sizeof *scores);
    assert_non_null(scores);
    for (size_t d = 0; d < dim; d++)
        out[d] = 0;
    for (size_t j = from; j < to; j++) {
        scores[j] = 0;
        for (size_t d = 0; d < dim; d++)
            scores[j] += (double)query[d] * scale * (double)keys[j * dim + d];
        largest = scores[j] > largest || isnan(largest) ? scores[j] : largest;
    }
    if (!isnan(sink))
        sum = exp(sink - largest);
    for (size_t j = from; j < to; j++) {
        const double p = exp(scores[j] - largest);
        sum += p;
        for (size_t d = 0; d < dim; d++)
            out[d] += p * (double)values[j * dim + d];
    }
    for (size_t d = 0; d < dim; d++)
        out[d] = sum > 0 ? out[d] / sum : 0;
    free(scores);
}

/* |found - exact| / |exact|, or |found| if exact is 0. */
static inline double relative(const float *found, const double *exact, size_t n)
{
    double error = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        error += ((double)found[i] - exact[i]) * ((double)found[i] - exact[i]);
        square += exact[i] * exact[i];
    }
    return square > 0 ? sqrt(error / square) : sqrt(error);
}

#endif
