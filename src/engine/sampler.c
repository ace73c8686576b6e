/* Samplers: validation of the parameters, and the random number generator. Sampling itself is in kernels/sample/. */
#include "engine/internal.h"

#include "base/cpu.h"
#include "base/memory.h"
#include "base/params.h"
#include "base/splitmix.h"
#include "engine/dry.h"
#include "kernels/sample/sample.h"

#include <math.h>

struct qn_sampler {
    qn_sampling params;
    size_t n_vocab;
    uint64_t random; /* state of the random number generator */
    float mirostat_mu;
    bool has_begun;  /* the first token has been requested */
    size_t n_before; /* preceding tokens at the first call: the generated text begins after them */
    qn_sample_kernels kernels;
    qn_sample_breakers *breakers; /* NULL: none, or DRY is off */
    void *scratch;                /* for qn_sampler_sample; allocated when it is first called */
};

/* Bounds of repeat_penalty. Logits, which are divided or multiplied by it, remain finite up to a magnitude of 3e35;
 * those of real models are far smaller. */
#define QN_LEAST_PENALTY 1e-3f
#define QN_MOST_PENALTY 1e3f

/* Most tokens that DRY searches: each is compared with the end of the text, for every sampled token. */
enum { QN_DRY_MOST_TEXT = 8192 };

void qn_sampling_init(qn_sampling *sampling, size_t size)
{
    const qn_sampling defaults = QN_SAMPLING_INIT;
    sampling->size = size;
    qn_result_write(&defaults, sizeof defaults, sampling);
}

static qn_status check_dry(const qn_sampling *p)
{
    if (!(p->dry_multiplier >= 0 && p->dry_multiplier <= 1e6f))
        return qn_fail(QN_ERR_INVALID, "dry_multiplier: %g, expected 0 to 1e6", (double)p->dry_multiplier);
    if (p->dry_multiplier == 0)
        return QN_OK;
    if (!(p->dry_base >= 1 && p->dry_base <= 1e6f))
        return qn_fail(QN_ERR_INVALID, "dry_base: %g, expected 1 to 1e6", (double)p->dry_base);
    if (p->dry_allowed_length < 0 || p->dry_allowed_length > 1000)
        return qn_fail(QN_ERR_INVALID, "dry_allowed_length: %d, expected 0 to 1000", p->dry_allowed_length);
    if (p->dry_penalty_last_n < -1)
        return qn_fail(QN_ERR_INVALID, "dry_penalty_last_n: %d, expected -1 or more", p->dry_penalty_last_n);
    return qn_dry_check(p->dry_breakers, p->n_dry_breakers);
}

static qn_status check_mirostat(const qn_sampling *p)
{
    if (p->mirostat != 0 && p->mirostat != 2)
        return qn_fail(QN_ERR_INVALID, "mirostat: %d, expected 0 or 2", p->mirostat);
    if (!(p->mirostat_tau >= 0 && p->mirostat_tau <= 100))
        return qn_fail(QN_ERR_INVALID, "mirostat_tau: %g, expected 0 to 100", (double)p->mirostat_tau);
    if (!(p->mirostat_eta >= 0 && p->mirostat_eta <= 100))
        return qn_fail(QN_ERR_INVALID, "mirostat_eta: %g, expected 0 to 100", (double)p->mirostat_eta);
    return QN_OK;
}

static qn_status check_params(const qn_sampling *p)
{
    if (!(p->temperature >= 0) || isinf(p->temperature))
        return qn_fail(QN_ERR_INVALID, "temperature: %g, expected 0 or more", (double)p->temperature);
    if (p->top_k < 0)
        return qn_fail(QN_ERR_INVALID, "top_k: %d, expected 0 or more", p->top_k);
    if (!(p->top_p > 0 && p->top_p <= 1))
        return qn_fail(QN_ERR_INVALID, "top_p: %g, expected more than 0 and at most 1", (double)p->top_p);
    if (!(p->min_p >= 0 && p->min_p < 1))
        return qn_fail(QN_ERR_INVALID, "min_p: %g, expected 0 or more and less than 1", (double)p->min_p);
    if (!(p->repeat_penalty >= QN_LEAST_PENALTY && p->repeat_penalty <= QN_MOST_PENALTY))
        return qn_fail(QN_ERR_INVALID, "repeat_penalty: %g, expected %g to %g", (double)p->repeat_penalty,
                       (double)QN_LEAST_PENALTY, (double)QN_MOST_PENALTY);
    if (!(p->frequency_penalty >= -2 && p->frequency_penalty <= 2))
        return qn_fail(QN_ERR_INVALID, "frequency_penalty: %g, expected -2 to 2", (double)p->frequency_penalty);
    if (!(p->presence_penalty >= -2 && p->presence_penalty <= 2))
        return qn_fail(QN_ERR_INVALID, "presence_penalty: %g, expected -2 to 2", (double)p->presence_penalty);
    if (!(p->top_n_sigma >= 0) || isinf(p->top_n_sigma))
        return qn_fail(QN_ERR_INVALID, "top_n_sigma: %g, expected 0 or more", (double)p->top_n_sigma);
    if (!(p->typical_p >= 0 && p->typical_p <= 1))
        return qn_fail(QN_ERR_INVALID, "typical_p: %g, expected 0 to 1", (double)p->typical_p);
    if (!(p->xtc_probability >= 0 && p->xtc_probability <= 1))
        return qn_fail(QN_ERR_INVALID, "xtc_probability: %g, expected 0 to 1", (double)p->xtc_probability);
    if (!(p->xtc_threshold >= 0 && p->xtc_threshold <= 1))
        return qn_fail(QN_ERR_INVALID, "xtc_threshold: %g, expected 0 to 1", (double)p->xtc_threshold);
    if (p->repeat_last_n < 0)
        return qn_fail(QN_ERR_INVALID, "repeat_last_n: %d, expected 0 or more", p->repeat_last_n);
    QN_TRY(check_dry(p));
    return check_mirostat(p);
}

static qn_status copy_breakers(const qn_sampling *given, qn_sampler *sampler)
{
    sampler->params.dry_breakers = NULL;
    sampler->params.n_dry_breakers = 0;
    if (!(given->dry_multiplier > 0) || !given->n_dry_breakers)
        return QN_OK;
    return qn_dry_create(given->dry_breakers, given->n_dry_breakers, &sampler->breakers);
}

/* Checks that the reserved bytes are zero: a struct of a later version may have members where this one has reserved
 * bytes. */
static qn_status check_reserved(const qn_sampling *p)
{
    for (size_t i = 0; i < sizeof p->reserved / sizeof *p->reserved; i++)
        if (p->reserved[i])
            return qn_fail(QN_ERR_INVALID, "qn_sampling: byte %zu is set, of a member that this version does not have",
                           offsetof(qn_sampling, reserved) + i * sizeof *p->reserved);
    return QN_OK;
}

qn_status qn_sampler_create(const qn_sampling *given, size_t n_vocab, qn_sampler **out)
{
    qn_sampling own = QN_SAMPLING_INIT, *const params = &own;
    unsigned cpu;
    qn_sampler *sampler;
    *out = NULL;
    QN_TRY(QN_PARAMS_READ(qn_sampling, given, &own));
    QN_TRY(check_reserved(params));
    QN_TRY(check_params(params));
    if (!n_vocab || n_vocab > INT32_MAX)
        return qn_fail(QN_ERR_INVALID, "sampler: a vocabulary of %zu, expected 1 to %d", n_vocab, INT32_MAX);
    QN_TRY(qn_cpu_features(&cpu));
    QN_TRY(qn_alloc(&sampler, 1, sizeof *sampler, "sampler"));
    *sampler = (qn_sampler){
        .params = *params, .n_vocab = n_vocab, .random = params->seed, .mirostat_mu = 2 * params->mirostat_tau
    };
    qn_sample_kernels_init(&sampler->kernels, cpu);
    const qn_status status = copy_breakers(params, sampler);
    if (status != QN_OK)
        qn_sampler_free(sampler);
    else
        *out = sampler;
    return status;
}

void qn_sampler_free(qn_sampler *sampler)
{
    if (!sampler)
        return;
    qn_dry_free(sampler->breakers);
    qn_free(sampler->scratch);
    qn_free(sampler);
}

size_t qn_sampler_breaker_bytes(const qn_sampler *sampler)
{
    return qn_dry_bytes(sampler->breakers);
}

void qn_sampler_set_text(const qn_sampler *sampler, const qn_token *recent, size_t n_recent, qn_sample_request *request)
{
    const qn_sampling *p = &sampler->params;
    const size_t n = n_recent < (size_t)p->repeat_last_n ? n_recent : (size_t)p->repeat_last_n;
    const size_t wanted = p->dry_penalty_last_n < 0 ? n_recent : (size_t)p->dry_penalty_last_n,
                 most = wanted < QN_DRY_MOST_TEXT ? wanted : QN_DRY_MOST_TEXT,
                 n_text = n_recent < most ? n_recent : most;
    const bool is_dry = p->dry_multiplier > 0 && n_text;
    const size_t n_generated = n_recent > sampler->n_before ? n_recent - sampler->n_before : 0;
    request->recent = n ? recent + (n_recent - n) : NULL;
    request->n_recent = n;
    request->generated = n_generated ? recent + sampler->n_before : NULL;
    request->n_generated = n_generated;
    request->text = is_dry ? recent + (n_recent - n_text) : NULL;
    request->n_text = is_dry ? n_text : 0;
    request->breakers = is_dry ? sampler->breakers : NULL;
    request->mirostat_mu = sampler->mirostat_mu;
}

qn_sample_request qn_sampler_next_request(qn_sampler *sampler, const qn_token *recent, size_t n_recent)
{
    qn_sample_request request = { .sampling = sampler->params };
    if (!sampler->has_begun)
        sampler->n_before = n_recent;
    sampler->has_begun = true;
    qn_sampler_set_text(sampler, recent, n_recent, &request);
    if (!qn_sample_is_greedy(&sampler->params))
        request.random = qn_splitmix(&sampler->random);
    return request;
}

void qn_sampler_observe(qn_sampler *sampler, const qn_sample_request *sampled)
{
    const qn_sampling *p = &sampler->params;
    if (p->mirostat && !qn_sample_is_greedy(p))
        sampler->mirostat_mu -= p->mirostat_eta * (sampled->surprise - p->mirostat_tau);
}

void qn_sampler_take_back(qn_sampler *sampler, size_t n)
{
    if (!qn_sample_is_greedy(&sampler->params))
        sampler->random = qn_splitmix_before(sampler->random, n);
}

qn_status qn_sampler_sample(qn_sampler *sampler, const float *logits, qn_sample_request *request)
{
    if (!sampler->scratch)
        QN_TRY(qn_alloc(&sampler->scratch, qn_sample_scratch_bytes(sampler->n_vocab), 1, "sampler"));
    qn_sample_token(&sampler->kernels, request, logits, sampler->n_vocab, sampler->scratch);
    return QN_OK;
}

qn_status qn_sampler_pick(qn_sampler *sampler, const float *logits, const qn_token *recent, size_t n_recent,
                          qn_token *token)
{
    qn_sample_request request = qn_sampler_next_request(sampler, recent, n_recent);
    QN_TRY(qn_sampler_sample(sampler, logits, &request));
    QN_TRY(qn_sample_status(request.best));
    qn_sampler_observe(sampler, &request);
    *token = request.token;
    return QN_OK;
}
