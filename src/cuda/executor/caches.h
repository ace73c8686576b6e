/* The pool of a model on a CUDA device, and its cache formats (gpu/format.h) with the tables of their codecs. */
#ifndef QN_CUDA_EXECUTOR_CACHES_H
#define QN_CUDA_EXECUTOR_CACHES_H

#include "cuda/executor/internal.h"
#include "cuda/kernels/aura/aura.h"
#include "gpu/memory.h"

typedef struct qn_cuda_caches qn_cuda_caches;

/* A codec's tables on the device. */
typedef struct qn_cuda_codec {
    qn_aura_gpu_rotation rotation;
    qn_aura_gpu_levels levels;
    float gain;
} qn_cuda_codec;

/* A cache format: shared by all memories with these codecs. */
typedef struct qn_cuda_format {
    qn_gpu_format base;
    qn_attention_gpu attention; /* shape, and bits of this format */
    qn_cuda_codec codecs[2];    /* of keys, of values */
    qn_cuda_buffer tables;      /* of the codecs */
    struct qn_cuda_format *next;
} qn_cuda_format;

/* qn_cuda_format_of - Returns the format of a memory on a CUDA device. */
static inline const qn_cuda_format *qn_cuda_format_of(const qn_gpu_memory *memory)
{
    return (const qn_cuda_format *)memory->format;
}

/* qn_cuda_caches_create - Creates the caches of common->plan, without formats and without a pool: the pool is created
 * with the first format, when the weights are on the device. Free with qn_cuda_caches_free. */
qn_status qn_cuda_caches_create(qn_cuda_common *common, qn_cuda_caches **out);

/* qn_cuda_caches_common - Returns the `common` given to qn_cuda_caches_create. */
qn_cuda_common *qn_cuda_caches_common(const qn_cuda_caches *caches);

/* qn_cuda_caches_free - Frees the caches, after all memories. Accepts NULL. */
void qn_cuda_caches_free(qn_cuda_caches *caches);

/* qn_cuda_caches_find - Finds a cache format on the device; the first call for a format creates it. The caches own
 * *out. From any thread. */
qn_status qn_cuda_caches_find(qn_cuda_caches *caches, const qn_kv_format *format, const qn_cuda_format **out);

/* qn_cuda_caches_upload - Writes `bytes` bytes to an address in the pool that no queued work accesses. Waits for the
 * copy. From any thread that does not hold the lock of the model's stream. */
qn_status qn_cuda_caches_upload(const qn_cuda_caches *caches, uint64_t to, const void *from, size_t bytes);

/* qn_cuda_layer_cache - Sets the kernel arguments of an attention layer's cache: offsets from the start of a page's
 * item, and strides between heads within it. *pages (fp16 pages) is zeroed unless the format has AURA codes. The caller
 * sets `tables`. */
void qn_cuda_layer_cache(const qn_cuda_format *format, size_t layer, qn_attention_gpu_cache *cache,
                         qn_attention_gpu_pages *pages);

#endif
