/* Attention over a KV cache of fp16 or fp32 elements, AVX-512. */
#define QN_V16_AVX512
#define QUERY_GROUP 8
enum { ACCUMULATORS = 8 };

#include "kernels/attention/attention_simd.h"

void qn_attention_init_avx512(qn_attention_kernels *kernels)
{
    attention_init_simd(kernels);
}
