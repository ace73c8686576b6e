/* Shapes of logits, filters, and random requests. */
#include "sample_problem.h"

#include "base/f16.h"

#include <math.h>

const char *const shape_names[N_SHAPES] = { "normal", "wide",     "flat", "flat, high", "tiny", "equal",
                                            "zeros",  "two",      "ties", "rough",      "peak", "outlier",
                                            "masked", "all -inf", "NaN",  "inf" };

/* Its weight at temperature 1, "rough min_p", is larger than that of the next float above it. */
static const float rough_logit = -0x1.fd029cp-7f;

void qn_fill_logits(float *x, size_t n, enum shape shape)
{
    static const float widths[N_SHAPES] = {
        [NORMAL] = 3, [WIDE] = 20,   [FLAT] = 0.01f, [FLAT_HIGH] = 0.01f, [TINY] = 1e-38f,    [TIES] = 1,
        [PEAK] = 1,   [OUTLIER] = 1, [MASKED] = 3,   [WITH_NAN] = 3,      [WITH_INFINITY] = 3
    };
    for (size_t i = 0; i < n; i++)
        x[i] = widths[shape] * qn_random_normal();
    for (size_t i = 0; i < n; i++) {
        x[i] = shape == TWO_VALUES ? (float)qn_random_below(2) : shape == ALL_LOW ? -INFINITY : x[i];
        x[i] = shape == MASKED && qn_random_below(10) ? -INFINITY : x[i];
        x[i] = shape == FLAT_HIGH ? 1000 + x[i] : x[i];
        x[i] = shape == ZEROS && qn_random_below(2) ? -0.0f : x[i];
        x[i] = shape == ROUGH ? qn_bits_f32(qn_f32_bits(rough_logit) - 4 + (uint32_t)qn_random_below(9)) : x[i];
        x[i] = shape == TIES && i % 15 < 3 ? (i % 15 ? 2.5f : 4 + 0.01f * x[i]) : x[i];
    }
    const size_t at = qn_random_below(n);
    if (shape == PEAK || shape == MASKED)
        x[at] = 25;
    if (shape == ROUGH)
        x[at] = 0;
    if (shape == OUTLIER)
        x[at] = 1e30f;
    if (shape == EQUAL && n > 1)
        x[at] = -0.0f;
    for (size_t i = 0; shape == WITH_NAN && i < 3; i++)
        x[qn_random_below(n)] = i == 1 ? -NAN : NAN;
    if (shape == WITH_INFINITY)
        x[at] = INFINITY;
}

const struct sample_filter filters[] = {
    { "greedy", { .repeat_penalty = 1, .top_p = 1 } },
    { "default", { .repeat_penalty = 1, .temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f } },
    { "plain", { .repeat_penalty = 1, .temperature = 1, .top_p = 1 } },
    { "top_p", { .repeat_penalty = 1, .temperature = 1, .top_p = 0.9f } },
    { "hot top_p", { .repeat_penalty = 1, .temperature = 2.5f, .top_p = 0.5f } },
    { "min_p", { .repeat_penalty = 1, .temperature = 1.3f, .top_p = 1, .min_p = 0.1f } },
    { "top_p and min_p", { .repeat_penalty = 1, .temperature = 0.7f, .top_p = 0.97f, .min_p = 0.02f } },
    { "top_k of thousands", { .repeat_penalty = 1, .temperature = 1.5f, .top_k = 2000, .top_p = 0.99f } },
    { "cold", { .repeat_penalty = 1, .temperature = 0.01f, .top_k = 7, .top_p = 0.999f } },
    { "tiny top_p", { .repeat_penalty = 1, .temperature = 1, .top_p = 1e-6f } },
    { "penalty", { .repeat_penalty = 1.3f, .temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f } },
    { "greedy, penalty", { .repeat_penalty = 1.1f, .top_p = 1 } },
    { "reward", { .repeat_penalty = 0.5f, .temperature = 1, .top_p = 0.8f } },
    { "top_k of 64", { .repeat_penalty = 1, .temperature = 1.1f, .top_k = 64, .top_p = 1 } },
    { "top_k of 65", { .repeat_penalty = 1, .temperature = 1.1f, .top_k = 65, .top_p = 1 } },
    { "top_k of 1000", { .repeat_penalty = 1, .temperature = 5, .top_k = 1000, .top_p = 0.5f } },
    { "top_k of all", { .repeat_penalty = 1, .temperature = 1, .top_k = INT32_MAX, .top_p = 0.95f } },
    { "hot", { .repeat_penalty = 1, .temperature = 1e4f, .top_p = 1 } },
    { "hot min_p", { .repeat_penalty = 1, .temperature = 5, .top_p = 0.95f, .min_p = 0.05f } },
    { "high min_p", { .repeat_penalty = 1, .temperature = 1, .top_p = 1, .min_p = 0.9f } },
    { "rough min_p", { .repeat_penalty = 1, .temperature = 1, .top_p = 1, .min_p = 0x1.f81bb2p-1f } },
    { "top_k, top_p, min_p", { .repeat_penalty = 1, .temperature = 1, .top_k = 6000, .top_p = 0.9f, .min_p = 0.5f } },
    { "coldest", { .repeat_penalty = 1, .temperature = 1e-3f, .top_p = 0.95f } },
    { "top_n_sigma", { .repeat_penalty = 1, .temperature = 1.5f, .top_p = 1, .top_n_sigma = 1 } },
    { "typical_p", { .repeat_penalty = 1, .temperature = 1, .top_p = 1, .typical_p = 0.95f } },
    { "XTC", { .repeat_penalty = 1, .temperature = 1, .top_p = 1, .xtc_probability = 0.5f, .xtc_threshold = 0.1f } },
    { "all filters",
      { .repeat_penalty = 1,
        .temperature = 2,
        .top_k = 3000,
        .top_p = 0.9f,
        .min_p = 0.001f,
        .top_n_sigma = 2.5f,
        .typical_p = 0.8f,
        .xtc_probability = 1,
        .xtc_threshold = 0.01f } },
    { "top_k of 5000", { .repeat_penalty = 1.2f, .temperature = 1, .top_k = 5000, .top_p = 1 } },
};
const size_t n_filters = QN_LENGTH(filters);

/* ---- Requests ---- */

static void fill_mask(struct problem *p, size_t n)
{
    for (size_t i = 0; i < qn_sample_mask_words(n); i++)
        p->allowed[i] = p->mask == 1 ? (uint32_t)(qn_random() | qn_random() | qn_random()) : 0;
    for (size_t i = 0; p->mask == 2 && i < 5; i++) {
        const size_t token = qn_random_below(n);
        p->allowed[token / 32] |= 1u << token % 32;
    }
    /* Bits after the vocabulary are not read as tokens. */
    if (n % 32)
        p->allowed[n / 32] |= UINT32_MAX << n % 32;
}

/* A token of a list: half of them are likely ones, a few are outside the vocabulary. */
static qn_token listed_token(const float *logits, size_t n)
{
    const bool is_likely = qn_random_below(2);
    size_t best = qn_random_below(n);
    for (size_t i = 0; is_likely && i < 200; i++) {
        const size_t other = qn_random_below(n);
        best = logits[other] > logits[best] ? other : best;
    }
    return qn_random_below(50) ? (qn_token)best : (qn_token)(n + qn_random_below(3)) * (qn_random_below(2) ? 1 : -1);
}

qn_sample_request qn_request_of(struct problem *p, const float *logits, size_t n)
{
    qn_sample_request request = { .sampling = filters[p->filter].sampling,
                                  .recent = p->recent,
                                  .generated = p->generated };
    const size_t draws = qn_random_below(5);
    request.random = draws == 0 ? 0 : draws == 1 ? UINT64_MAX : qn_random();
    request.n_recent = qn_random_below(MAX_RECENT + 1);
    for (size_t i = 0; i < request.n_recent; i++)
        p->recent[i] = listed_token(logits, n);
    if (qn_random_below(3) == 0) {
        request.sampling.frequency_penalty = (float)qn_random_below(5) - 2 + 0.3f;
        request.sampling.presence_penalty = (float)qn_random_below(5) - 2.1f;
        request.n_generated = qn_random_below(MAX_RECENT + 1);
        for (size_t i = 0; i < request.n_generated; i++) /* some tokens several times */
            p->generated[i] = i && qn_random_below(2) ? p->generated[qn_random_below(i)] : listed_token(logits, n);
    }
    if (qn_random_below(3) == 0) {
        request.bias = p->bias;
        request.n_bias = qn_random_below(MAX_BIAS + 1);
        for (size_t i = 0; i < request.n_bias; i++)
            p->bias[i] = (qn_logit_bias){ listed_token(logits, n), i == 3 ? -INFINITY : 4 * qn_random_normal() };
    }
    if (p->mask) {
        fill_mask(p, n);
        request.allowed = p->allowed;
    }
    if (qn_random_below(4) == 0) {
        p->logprobs.n = (uint32_t)qn_random_below(QN_SAMPLE_TOP_LOGPROBS + 1);
        request.logprobs = &p->logprobs;
    }
    return request;
}
