/* Launches of sampling on the GPU. */
#include "cuda/kernels/sample/sample.h"

#include "cuda/kernels/variants.h"
#include "cuda/kernels/sample/variants.def"

#include <math.h>

/* The blocks of a row. */
static uint32_t blocks_for(size_t n, size_t n_rows)
{
    const size_t per_block = (size_t)QN_SAMPLE_THREADS * QN_SAMPLE_VECTOR, useful = (n + per_block - 1) / per_block;
    size_t blocks = QN_SAMPLE_GRID / n_rows ? QN_SAMPLE_GRID / n_rows : 1;
    blocks = blocks < QN_SAMPLE_BLOCKS ? blocks : QN_SAMPLE_BLOCKS;
    return (uint32_t)(blocks < useful ? blocks : useful);
}

static bool has_typical_p(const qn_sampling *sampling)
{
    return sampling->typical_p > 0 && sampling->typical_p < 1;
}

/* Whether a request has filters that only qn_sample_select has. */
static bool has_filters(const qn_sampling *sampling)
{
    return sampling->top_n_sigma > 0 || has_typical_p(sampling) || sampling->xtc_probability > 0;
}

/* Returns the mode of sampling that a request needs: QN_SAMPLE_NONE where the host samples, from the logits after mask,
 * bias and penalties. */
static qn_sample_mode kind_of(const qn_sample_request *request, size_t n)
{
    const qn_sampling *sampling = &request->sampling;
    const size_t k = qn_sample_top_k(sampling, n);
    if (qn_sample_is_on_host(sampling, request->logprobs && request->logprobs_after))
        return QN_SAMPLE_NONE;
    if (qn_sample_is_greedy(sampling))
        return QN_SAMPLE_ARGMAX;
    return k < n && k <= QN_SAMPLE_MAX_TOP_K && !has_filters(sampling) ? QN_SAMPLE_TOP_K : QN_SAMPLE_HISTOGRAM;
}

/* Whether the kernels compute log probabilities: those before sampling. */
static bool has_logprobs(const qn_sample_request *request)
{
    return request->logprobs && !request->logprobs_after;
}

qn_sample_mode qn_sample_gpu_mode(const qn_sample_request *request, size_t n)
{
    const qn_sample_mode kind = kind_of(request, n), mode = kind == QN_SAMPLE_NONE ? QN_SAMPLE_ARGMAX : kind;
    return has_logprobs(request) ? mode + QN_SAMPLE_LOGPROBS : mode;
}

qn_sample_mode qn_sample_gpu_join(qn_sample_mode a, qn_sample_mode b)
{
    const unsigned x = a % QN_SAMPLE_LOGPROBS, y = b % QN_SAMPLE_LOGPROBS;
    const bool logprobs = a >= QN_SAMPLE_LOGPROBS || b >= QN_SAMPLE_LOGPROBS;
    return (qn_sample_mode)((x > y ? x : y) + (logprobs ? QN_SAMPLE_LOGPROBS : 0));
}

qn_sample_params qn_sample_gpu_params(const qn_sample_request *request, size_t n)
{
    const qn_sampling *sampling = &request->sampling;
    const size_t k = qn_sample_top_k(sampling, n);
    const bool has_xtc = sampling->xtc_probability > 0 && qn_sample_xtc_applies(request);
    const int bits = qn_sample_weight_bits(n);
    const float inverse = qn_sample_is_greedy(sampling) ? 1 : 1 / sampling->temperature;
    /* e^-u is below one unit for u > bits * ln 2; another ln 2 is far more than any rounding error. */
    const double bins_per_unit = QN_SAMPLE_BINS / ((bits + 1) * 0.6931471805599453);
    const double last = sampling->min_p > 0 ? (0.01 - log((double)sampling->min_p)) * bins_per_unit : QN_SAMPLE_BINS;
    return (qn_sample_params){ .random = request->random,
                               .penalties = { sampling->repeat_penalty, sampling->frequency_penalty,
                                              sampling->presence_penalty },
                               .inverse = inverse,
                               .top_p = sampling->top_p,
                               .min_p = sampling->min_p,
                               .top_n_sigma = sampling->top_n_sigma,
                               .typical_p = has_typical_p(sampling) ? sampling->typical_p : 0,
                               .xtc_threshold = sampling->xtc_threshold,
                               .surprisal_unit = ldexpf(1, bits - 17 < 31 ? bits - 17 : 31),
                               .deviation_bits = (uint32_t)bits / 2,
                               .has_xtc = has_xtc,
                               .selects = sampling->top_n_sigma > 0 || has_typical_p(sampling) || has_xtc,
                               .weight_unit = ldexpf(1, bits),
                               .bins_per_unit = (float)bins_per_unit,
                               .last_bin = last < QN_SAMPLE_BINS - 1 ? (uint32_t)last : QN_SAMPLE_BINS - 1,
                               .kind = kind_of(request, n),
                               .top_k = k < n ? (uint32_t)k : 0,
                               .has_logprobs = has_logprobs(request),
                               .n_top = has_logprobs(request) ? qn_sample_n_top(request->logprobs, n) : 0 };
}

qn_status qn_sample_gpu_launches(qn_sample_mode mode, size_t n, size_t n_rows, bool clusters,
                                 qn_launch launches[QN_SAMPLE_LAUNCHES], size_t *n_launches)
{
    static const struct {
        const qn_gpu_source *source;
        const char *function;
        bool logprobs;
        qn_sample_mode from; /* modes that need it */
        bool one_cluster;    /* the blocks of a row are a cluster, in z */
    } kernels[QN_SAMPLE_LAUNCHES] = {
        { &logprobs_source, "qn_sample_raw_argmax", true, QN_SAMPLE_NONE, false },
        { &logprobs_source, "qn_sample_top_logprobs", true, QN_SAMPLE_NONE, false },
        { &sample_source, "qn_sample_argmax", false, QN_SAMPLE_ARGMAX, false },
        { &sample_source, "qn_sample_histogram", false, QN_SAMPLE_HISTOGRAM, false },
        { &select_source, "qn_sample_select", false, QN_SAMPLE_HISTOGRAM, true },
        { &sample_source, "qn_sample_draw", false, QN_SAMPLE_TOP_K, false },
    };
    if (n == 0 || n > INT32_MAX)
        return qn_fail(QN_ERR_INVALID, "sampling on the GPU: %zu logits, expected 1 to %d", n, INT32_MAX);
    if (n_rows == 0 || n_rows > UINT16_MAX)
        return qn_fail(QN_ERR_INVALID, "sampling on the GPU: %zu rows, expected 1 to %d", n_rows, UINT16_MAX);
    const uint32_t blocks = blocks_for(n, n_rows), most = clusters ? QN_SAMPLE_CLUSTER : 1,
                   cluster = blocks < most ? blocks : most;
    *n_launches = 0;
    for (size_t i = 0; i < QN_SAMPLE_LAUNCHES; i++) {
        if (kernels[i].logprobs ? mode < QN_SAMPLE_LOGPROBS : mode % QN_SAMPLE_LOGPROBS < kernels[i].from)
            continue;
        launches[(*n_launches)++] = (qn_launch){ .variant.source = kernels[i].source,
                                                 .function = kernels[i].function,
                                                 .grid = { kernels[i].one_cluster ? 1 : blocks, (uint32_t)n_rows,
                                                           kernels[i].one_cluster ? cluster : 1 },
                                                 .block = { QN_SAMPLE_THREADS, 1, 1 },
                                                 .args_bytes = sizeof(qn_sample_args),
                                                 .cluster = kernels[i].one_cluster ? cluster : 0,
                                                 .pdl = true };
    }
    return QN_OK;
}
