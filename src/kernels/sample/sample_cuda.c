/* The launches that choose a token on the GPU. */
#include "kernels/sample/sample_cuda.h"

#include <math.h>

bool qn_sample_gpu_takes(const qn_sample_choice *choice)
{
    return qn_sample_is_greedy(choice) || choice->top_k <= QN_SAMPLE_CANDIDATES;
}

qn_sample_params qn_sample_gpu_params(const qn_sample_choice *choice, size_t n)
{
    const int bits = qn_sample_weight_bits(n);
    const float inverse = qn_sample_is_greedy(choice) ? 1 : 1 / choice->temperature;
    /* e^-u is below a unit from bits * ln 2 on; one ln 2 more is far beyond what rounding moves. */
    const double bins_per_unit = QN_SAMPLE_BINS / ((bits + 1) * 0.6931471805599453);
    const double last = choice->min_p > 0 ? (0.01 - log((double)choice->min_p)) * bins_per_unit : QN_SAMPLE_BINS;
    return (qn_sample_params){ .random = choice->random,
                               .penalty = choice->penalty,
                               .inverse = inverse,
                               .top_p = choice->top_p,
                               .min_p = choice->min_p,
                               .weight_unit = ldexpf(1, bits),
                               .bins_per_unit = (float)bins_per_unit,
                               .last_bin = last < QN_SAMPLE_BINS - 1 ? (uint32_t)last : QN_SAMPLE_BINS - 1,
                               .top_k = choice->top_k < n ? choice->top_k : 0 };
}

static qn_status launch_of(size_t n, const char *function, qn_launch *out)
{
    if (n == 0 || n > INT32_MAX)
        return qn_fail(QN_ERR_INVALID, "choosing a token: %zu logits, expected 1 to %d", n, INT32_MAX);
    *out = (qn_launch){ .source = "sample/sample.cu",
                        .defines = "",
                        .function = function,
                        .grid = { (uint32_t)((n + QN_SAMPLE_PIECE - 1) / QN_SAMPLE_PIECE), 1, 1 },
                        .block = { QN_SAMPLE_THREADS, 1, 1 },
                        .args_bytes = sizeof(qn_sample_args),
                        .dependent = true };
    return QN_OK;
}

qn_status qn_sample_gpu_best(size_t n, qn_launch *out)
{
    return launch_of(n, "qn_sample_best", out);
}

qn_status qn_sample_gpu_survey(size_t n, qn_launch *out)
{
    return launch_of(n, "qn_sample_survey", out);
}

qn_status qn_sample_gpu_draw(size_t n, qn_launch *out)
{
    return launch_of(n, "qn_sample_draw", out);
}
