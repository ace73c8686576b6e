/* AURA's codecs with their tables on the device, which belong to the case. */
#ifndef QN_CHECK_CUDA_CODEC_H
#define QN_CHECK_CUDA_CODEC_H

#include "cuda.h"
#include "kernels/aura/aura.h"
#include "cuda/kernels/attention/attention.h"
#include "cuda/kernels/aura/aura.h"

/* qn_codec - Creates a codec. */
qn_aura_codec *qn_codec(size_t dim, unsigned bits, uint64_t seed);

/* qn_codec_keep - Makes a codec belong to the case. */
qn_aura_codec *qn_codec_keep(qn_aura_codec *codec);

/* qn_gpu_rotation - Returns a codec's rotation: signs of a Hadamard transform, or dense matrices. */
qn_aura_gpu_rotation qn_gpu_rotation(const qn_aura_codec *codec);

/* qn_gpu_levels - Returns a codec's boundaries and codebook. */
qn_aura_gpu_levels qn_gpu_levels(const qn_aura_codec *codec);

/* qn_gpu_codec - Returns a codec for attention, with signs for queries that it is to rotate, or with 0. */
qn_attention_gpu_codec qn_gpu_codec(const qn_aura_codec *codec, uint64_t signs);

/* qn_attention_device - Returns the attention of a shape on the device under test; pages: those of a session's codes.
 * Ends the program if the kernels lack it. */
qn_attention_gpu qn_attention_device(size_t dim, size_t n_heads, size_t n_kv_heads, unsigned key_bits,
                                     unsigned value_bits, bool pages);

/* qn_decode_args - Returns the arguments of attention of n_rows rows, with arrays for what it writes; without queries,
 * mask and cache. */
qn_attention_decode_args qn_decode_args(const qn_attention_gpu *gpu, size_t n_rows, const qn_attention_splits *splits);

/* qn_attention_copy_cache - Copies the arrays of a contiguous cache, of so many bytes each; scale_bytes 0: it has none.
 * Returns the address of `more` bytes after them. */
uint64_t qn_attention_copy_cache(qn_attention_gpu_cache *cache, size_t key_bytes, size_t value_bytes,
                                 size_t scale_bytes, size_t more);

#endif
