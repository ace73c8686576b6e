/* Test problem of the public AURA operations on the GPU: random codes, scales, queries and weights, on the host in the
 * form of the CPU's operations, and on the device. Other files check and time the operations. */
#ifndef QN_CHECK_CUDA_AURA_PROBLEM_H
#define QN_CHECK_CUDA_AURA_PROBLEM_H

#include "cuda_codec.h"
#include "cuda/kernels/aura/aura_attention.h"
#include "cuda_views.h"
#include "quern/kernels.h"

typedef struct qn_aura_ops_shape {
    size_t dim, n_heads, n_kv_heads, n_keys, capacity, n_tokens;
    unsigned key_bits, value_bits;
    bool causal, sinks, custom_codec; /* custom_codec: a dense rotation for every dim */
    size_t window, block;
    uint32_t positions[5];
    qn_dtype dtype, out_dtype;
    float skip;
} qn_aura_ops_shape;

typedef struct qn_aura_ops_problem {
    const qn_aura_ops_shape *s;
    qn_aura_codec *key_codec, *value_codec;
    size_t n_queries, n_blocks, n_splits;
    uint32_t *keys, *values;          /* [kv heads][capacity][words] */
    float *key_scales, *value_scales; /* [kv heads][capacity] */
    void *queries;                    /* [n_queries][dim], typed */
    float *sinks, *weights;
    qn_aura_cache cache;
    qn_aura_queries cpu_queries;
    qn_aura_gpu gpu;
    qn_aura_gpu_cache gpu_cache;
    qn_aura_gpu_queries gpu_queries;
    qn_aura_gpu_rotation key_rotation, value_rotation;
    uint64_t gpu_sinks;
} qn_aura_ops_problem;

/* qn_aura_ops_problem_new - Creates a problem with all arrays on host and device. */
void qn_aura_ops_problem_new(qn_aura_ops_problem *p, const qn_aura_ops_shape *s);

/* qn_aura_ops_codes - Returns random codes of all heads. */
uint32_t *qn_aura_ops_codes(const qn_aura_ops_shape *s, unsigned bits);

/* qn_aura_ops_scales - Returns scales of rows with elements of about 1, so that scores are about 1 too. Scales of
 * positions after n_keys are NaN: they must not be read. */
float *qn_aura_ops_scales(const qn_aura_ops_shape *s);

/* qn_aura_ops_codec - Returns the standard codec, or a codec created from its tables, with the same rotation as a dense
 * matrix. */
qn_aura_codec *qn_aura_ops_codec(const qn_aura_ops_shape *s, unsigned bits, uint64_t seed);

/* qn_aura_ops_bytes - Returns the bytes of an element. */
size_t qn_aura_ops_bytes(qn_dtype dtype);

/* qn_aura_ops_pass2 - Returns the arguments of a second pass, which combines n_blocks blocks; without sinks. m and l 0:
 * it adds partials. qn_aura_ops_launch_pass2 launches it. */
qn_aura_flash_pass2_args qn_aura_ops_pass2(const qn_aura_ops_problem *p, uint64_t partials, uint64_t m, uint64_t l,
                                           size_t n_blocks, uint64_t out, qn_dtype dtype);
void qn_aura_ops_launch_pass2(const qn_aura_ops_problem *p, const qn_aura_flash_pass2_args *args);

/* qn_bench_cuda_aura_ops - Times the operations. */
void qn_bench_cuda_aura_ops(void);

#endif
