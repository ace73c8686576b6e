/* Launches of sampling on the GPU. */
#include "kernels/sample/sample_cuda.h"

#include "kernels/variants.h"
#include "kernels/sample/variants.def"

#include <math.h>

static uint32_t blocks_for(size_t n)
{
    const size_t blocks = (n + QN_SAMPLE_THREADS - 1) / QN_SAMPLE_THREADS;
    return (uint32_t)(blocks < QN_SAMPLE_BLOCKS ? blocks : QN_SAMPLE_BLOCKS);
}

qn_sample_mode qn_sample_gpu_mode(const qn_sampling *sampling, size_t n)
{
    const size_t k = qn_sample_top_k(sampling, n);
    if (qn_sample_is_greedy(sampling))
        return QN_SAMPLE_ARGMAX;
    if (k < n && k > QN_SAMPLE_CANDIDATES)
        return QN_SAMPLE_HOST;
    return k < n && k <= blocks_for(n) / 2 ? QN_SAMPLE_TOP_K : QN_SAMPLE_HISTOGRAM;
}

qn_sample_params qn_sample_gpu_params(const qn_sample_request *request, size_t n)
{
    const qn_sampling *sampling = &request->sampling;
    const size_t k = qn_sample_top_k(sampling, n);
    const int bits = qn_sample_weight_bits(n);
    const float inverse = qn_sample_is_greedy(sampling) ? 1 : 1 / sampling->temperature;
    /* e^-u is below one unit for u > bits * ln 2; another ln 2 is far more than any rounding error. */
    const double bins_per_unit = QN_SAMPLE_BINS / ((bits + 1) * 0.6931471805599453);
    const double last = sampling->min_p > 0 ? (0.01 - log((double)sampling->min_p)) * bins_per_unit : QN_SAMPLE_BINS;
    return (qn_sample_params){ .random = request->random,
                               .penalty = sampling->repeat_penalty,
                               .inverse = inverse,
                               .top_p = sampling->top_p,
                               .min_p = sampling->min_p,
                               .weight_unit = ldexpf(1, bits),
                               .bins_per_unit = (float)bins_per_unit,
                               .last_bin = last < QN_SAMPLE_BINS - 1 ? (uint32_t)last : QN_SAMPLE_BINS - 1,
                               .top_k = k < n ? (uint32_t)k : 0 };
}

qn_status qn_sample_gpu_launches(qn_sample_mode mode, size_t n, qn_launch launches[QN_SAMPLE_LAUNCHES], size_t *n_launches)
{
    static const struct {
        const char *names[QN_SAMPLE_LAUNCHES];
        size_t n;
    } modes[QN_SAMPLE_MODES] = {
        [QN_SAMPLE_ARGMAX] = { { "qn_sample_argmax" }, 1 },
        [QN_SAMPLE_TOP_K] = { { "qn_sample_argmax", "qn_sample_draw" }, 2 },
        [QN_SAMPLE_HISTOGRAM] = { { "qn_sample_argmax", "qn_sample_histogram", "qn_sample_draw" }, 3 },
    };
    if (n == 0 || n > INT32_MAX)
        return qn_fail(QN_ERR_INVALID, "sampling on the GPU: %zu logits, expected 1 to %d", n, INT32_MAX);
    *n_launches = modes[mode].n;
    for (size_t i = 0; i < *n_launches; i++)
        launches[i] = (qn_launch){ .variant.source = &sample_source,
                                   .function = modes[mode].names[i],
                                   .grid = { blocks_for(n), 1, 1 },
                                   .block = { QN_SAMPLE_THREADS, 1, 1 },
                                   .args_bytes = sizeof(qn_sample_args),
                                   .pdl = true };
    return QN_OK;
}
