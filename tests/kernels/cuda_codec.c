/* AURA's codecs on the device. */
#include "cuda_codec.h"

static void release(void *codec)
{
    qn_aura_codec_delete(codec);
}

qn_aura_codec *qn_codec_keep(qn_aura_codec *codec)
{
    qn_own(codec, 0, NULL, release);
    return codec;
}

qn_aura_codec *qn_codec(size_t dim, unsigned bits, uint64_t seed)
{
    qn_aura_codec *codec;
    qn_assert_ok(qn_aura_codec_new(&codec, dim, bits, seed));
    return qn_codec_keep(codec);
}

qn_aura_gpu_rotation qn_gpu_rotation(const qn_aura_codec *codec)
{
    const size_t bytes = codec->dim * sizeof(float);
    if (codec->signs)
        return (qn_aura_gpu_rotation){ .signs = qn_gpu_from(codec->signs, bytes) };
    return (qn_aura_gpu_rotation){ .forward = qn_gpu_from(codec->transpose, codec->dim * bytes),
                                   .inverse = qn_gpu_from(codec->rotation, codec->dim * bytes) };
}

qn_aura_gpu_levels qn_gpu_levels(const qn_aura_codec *codec)
{
    const size_t n = (size_t)1 << codec->bits;
    return (qn_aura_gpu_levels){ .boundaries = qn_gpu_from(codec->boundaries, (n - 1) * sizeof(float)),
                                 .codebook = qn_gpu_from(codec->codebook, n * sizeof(float)) };
}

qn_attention_gpu_codec qn_gpu_codec(const qn_aura_codec *codec, uint64_t signs)
{
    const size_t n = (size_t)1 << codec->bits;
    return (qn_attention_gpu_codec){ .codebook = qn_gpu_from(codec->codebook, n * sizeof(float)),
                                     .signs = signs,
                                     .gain = qn_attention_gpu_gain(codec->codebook, n) };
}

qn_attention_gpu qn_attention_device(size_t dim, size_t n_heads, size_t n_kv_heads, unsigned key_bits,
                                     unsigned value_bits, bool pages)
{
    const qn_attention_gpu gpu = { .head_dim = dim,
                                   .n_heads = n_heads,
                                   .n_kv_heads = n_kv_heads,
                                   .key_bits = key_bits,
                                   .value_bits = value_bits,
                                   .pages = pages,
                                   .n_sms = qn_gpu_info()->n_sms,
                                   .max_shared_bytes = qn_gpu_info()->max_shared_bytes };
    qn_assert_ok(qn_attention_gpu_check(&gpu));
    return gpu;
}

qn_attention_decode_args qn_decode_args(const qn_attention_gpu *gpu, size_t n_rows, const qn_attention_splits *splits)
{
    const size_t queries = n_rows * gpu->n_heads, dim = gpu->head_dim;
    return (qn_attention_decode_args){ .partials = qn_gpu_floats(queries * splits->n * dim),
                                       .maxima = qn_gpu_floats(queries * splits->n * 2),
                                       .counters = qn_gpu_zeros(queries * sizeof(uint32_t)),
                                       .out = qn_gpu_floats(queries * dim),
                                       .splits = *splits,
                                       .n_rows = (uint32_t)n_rows,
                                       .n_heads = (uint32_t)gpu->n_heads,
                                       .n_kv_heads = (uint32_t)gpu->n_kv_heads,
                                       .query_stride = (uint32_t)(gpu->n_heads * dim),
                                       .out_stride = (uint32_t)(gpu->n_heads * dim),
                                       .scale = 1 / sqrtf((float)dim) };
}

uint64_t qn_attention_copy_cache(qn_attention_gpu_cache *cache, size_t key_bytes, size_t value_bytes,
                                 size_t scale_bytes, size_t more)
{
    uint64_t *const arrays[] = { &cache->keys, &cache->values, &cache->key_scales, &cache->value_scales };
    const size_t bytes[] = { key_bytes, value_bytes, scale_bytes, scale_bytes };
    uint64_t at = qn_gpu_new(key_bytes + value_bytes + 2 * scale_bytes + more);
    for (size_t i = 0; i < QN_LENGTH(arrays); i++) {
        if (bytes[i])
            qn_assert_ok(qn_cuda_copy_d2d(qn_gpu(), qn_gpu_stream(), at, *arrays[i], bytes[i]));
        *arrays[i] = at;
        at += bytes[i];
    }
    return at;
}
