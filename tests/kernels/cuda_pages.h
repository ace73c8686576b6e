/* Shapes and layouts of KV caches in pages, for the check and the benchmarks of kernels that read them through page
 * tables. */
#ifndef QN_CHECK_CUDA_PAGES_H
#define QN_CHECK_CUDA_PAGES_H

#include "cuda_codec.h"
#include "cuda/kernels/attention/page_rows.h"

/* A model's attention layers. Caches of codes have fp16 pages, too. */
typedef struct qn_pages_shape {
    size_t dim, n_heads, n_kv_heads;
    unsigned key_bits, value_bits; /* 16 and 16: fp16 */
} qn_pages_shape;

/* Offsets of a layer's arrays in a page of rows, and in an fp16 page of a cache of codes. */
typedef struct qn_pages_layout {
    size_t keys, values, key_scales, value_scales, layer_bytes;
    size_t f16_keys, f16_values, means, f16_layer_bytes;
    size_t key_row, value_row; /* bytes of a row of a head */
} qn_pages_layout;

qn_pages_layout qn_pages_layout_of(const qn_pages_shape *s);

/* qn_pages_cache - Returns the cache of a layer, for kernels. tables: addresses of page tables, on the device. */
qn_attention_gpu_cache qn_pages_cache(const qn_pages_shape *s, const qn_pages_layout *l, size_t layer, uint64_t tables);

/* qn_pages_f16 - Returns the fp16 pages of a layer's cache of codes, for kernels. tables as for qn_pages_cache. */
qn_attention_gpu_pages qn_pages_f16(const qn_pages_shape *s, const qn_pages_layout *l, size_t layer, uint64_t tables);

/* qn_pages_gpu - Returns the attention of a shape on the device under test. */
qn_attention_gpu qn_pages_gpu(const qn_pages_shape *s);

/* qn_bench_cuda_pages - Times decode of many sequences of the same and of very different lengths. */
void qn_bench_cuda_pages(void);

#endif
