/* Attention over a KV cache of fp16 or fp32 elements, NEON. */
#define QN_V16_NEON
#define QUERY_GROUP 4
enum { ACCUMULATORS = 4 };

#include "kernels/attention/attention_simd.h"

void qn_attention_init_neon(qn_attention_kernels *kernels)
{
    attention_init_simd(kernels);
}
