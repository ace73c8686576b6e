/* Inputs of Gated DeltaNet on the GPU, for its check and its timing. */
#ifndef QN_CHECK_CUDA_DELTANET_H
#define QN_CHECK_CUDA_DELTANET_H

#include "cuda.h"
#include "delta_layer.h"
#include "delta_states.h"

#include "base/f16.h"
#include "cuda/kernels/deltanet/open_few.h"

/* Distributions of tokens' log decays. */
enum decay { NONE, MILD, MIXED, STRONG, ABSURD, WIDE, DECAYS };

static inline double uniform(void)
{
    return (double)(qn_random() >> 11) * 0x1p-53;
}

/* Rounds x to f16 or bf16 in place, and returns the 16-bit values. */
static inline uint16_t *to_16_bits(float *x, size_t n, qn_dtype dtype)
{
    uint16_t *h = qn_new(n, sizeof *h);
    for (size_t i = 0; i < n; i++) {
        h[i] = dtype == QN_DTYPE_F16 ? qn_f32_to_f16(x[i]) : qn_f32_to_bf16(x[i]);
        x[i] = dtype == QN_DTYPE_F16 ? qn_f16_to_f32(h[i]) : qn_bf16_to_f32(h[i]);
    }
    return h;
}

static inline uint16_t *to_bf16(float *x, size_t n)
{
    return to_16_bits(x, n, QN_DTYPE_BF16);
}

static inline float draw_decay(enum decay decay)
{
    const double mild = -exp(uniform() * 6 - 6);
    switch (decay) {
    case NONE: return 0;
    case MILD: return (float)mild;
    case MIXED: return (float)(uniform() < 0.1 ? -50 : mild);
    case STRONG: return -50;
    case ABSURD: return (float)(uniform() < 0.1 ? -1e30 : mild);
    default: return (float)(-1000 * uniform());
    }
}

/* qn_gdn_device - Returns the limits of the device under test. */
qn_gdn_gpu qn_gdn_device(void);

/* qn_gdn_chunk_args_of - Returns the arguments of the chunk kernels in bf16 without addresses: sizes, and the strides
 * of contiguous rows of q, k and v each. */
qn_gdn_chunk_args qn_gdn_chunk_args_of(size_t sequences, size_t tokens, size_t k_heads, size_t v_heads, size_t head_k,
                                       size_t head_v);

/* qn_gdn_open_args_of - Returns the arguments of kernels over open chunks: sizes, and the strides of contiguous
 * rows. */
qn_gdn_open_args qn_gdn_open_args_of(size_t k_heads, size_t v_heads, size_t head_k, size_t head_v, size_t taps);

/* qn_gdn_open_args_of_layer - The same of a layer, in grouped order, with the addresses of its weights. */
qn_gdn_open_args qn_gdn_open_args_of_layer(const struct delta_layer *layer);

/* qn_gdn_fold - Launches qn_gdn_open_fold. */
void qn_gdn_fold(const qn_gdn_open_args *args, size_t head_k, size_t head_v);

/* qn_check_cuda_deltanet_open - Checks the kernels over open chunks. */
void qn_check_cuda_deltanet_open(void);

/* qn_bench_cuda_deltanet - Times the chunk kernels and the token-by-token kernels. */
void qn_bench_cuda_deltanet(void);

/* qn_bench_cuda_deltanet_open - Times the kernels over open chunks. */
void qn_bench_cuda_deltanet_open(void);

#endif
