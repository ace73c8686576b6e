/* Log probabilities after sampling: those with which tokens are drawn, as counted over evenly spaced random numbers. */
#include "helper_assert.h"
#include "helper_test.h"

#include "base/cpu.h"
#include "base/splitmix.h"
#include "kernels/sample/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = 60, DRAWS = 4096 };

/* Values of 0 stand for those that are off; a temperature of -1 is 0. */
static const struct setting {
    const char *name;
    qn_sampling sampling;
    bool is_masked;
} settings[] = {
#define SETTING(name_, masked, ...)                                                                                    \
    {                                                                                                                  \
        name_, { .size = sizeof(qn_sampling), .repeat_penalty = 1, __VA_ARGS__ }, masked                               \
    }
    SETTING("all", false, .top_k = 0),
    SETTING("cold", false, .temperature = 0.3f),
    SETTING("top_k", false, .top_k = 5),
    SETTING("a large top_k", false, .top_k = N - 1),
    SETTING("top_p", false, .top_p = 0.7f),
    SETTING("min_p", false, .min_p = 0.2f),
    SETTING("min_p and top_p", false, .min_p = 0.05f, .top_p = 0.8f),
    SETTING("typical_p", false, .typical_p = 0.4f),
    SETTING("top_n_sigma", false, .top_n_sigma = 1),
    SETTING("XTC", false, .xtc_probability = 1, .xtc_threshold = 0.04f),
    SETTING("XTC and top_k", false, .xtc_probability = 1, .xtc_threshold = 0.02f, .top_k = 9),
    SETTING("a mask", true, .top_p = 0.9f),
    SETTING("mirostat", false, .mirostat = 2),
    SETTING("few bits of mirostat", false, .mirostat = 2, .mirostat_tau = -50),
    SETTING("greedy", false, .temperature = -1),
    SETTING("one token", false, .top_k = 1),
};

static float logits[N];
static double counted[N];

static qn_sample_request request_of(const struct setting *setting, const uint32_t *mask, uint64_t random,
                                    qn_logprobs *logprobs)
{
    qn_sampling sampling = setting->sampling;
    sampling.temperature = sampling.temperature < 0 ? 0 : sampling.temperature > 0 ? sampling.temperature : 1;
    sampling.top_p = sampling.top_p > 0 ? sampling.top_p : 1;
    return (qn_sample_request){ .sampling = sampling,
                                .allowed = setting->is_masked ? mask : NULL,
                                .mirostat_mu = setting->sampling.mirostat_tau < 0 ? setting->sampling.mirostat_tau : 3,
                                .random = random,
                                .logprobs = logprobs,
                                .logprobs_after = true };
}

/* The list is in descending order, has every token that is drawn, as far as it is long enough, and no other. */
static void check(const qn_logprobs *l)
{
    double sum = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        assert_true(!i || l->values[i] <= l->values[i - 1]);
        assert_true(!i || l->tokens[i] != l->tokens[i - 1]);
        assert_true(fabs(exp(l->values[i]) - counted[l->tokens[i]]) < 2.0 / DRAWS);
        sum += exp(l->values[i]);
    }
    if (l->n < QN_MAX_LOGPROBS)
        assert_true(fabs(sum - 1) < 1e-5);
}

TEST_EACH(are_those_of_the_draw, struct setting, setting, settings)
{
    qn_sample_kernels kernels;
    unsigned cpu;
    void *scratch = aligned_alloc(64, (qn_sample_scratch_bytes(N) + 63) / 64 * 64);
    uint32_t mask[2] = { 0 };
    assert_non_null(scratch);
    assert_ok(qn_cpu_features(&cpu));
    for (uint64_t seed = 0; seed < 6; seed++) {
        label("%s, seed %d", setting->name, (int)seed);
        uint64_t state = seed;
        for (int i = 0; i < N; i++)
            logits[i] = (float)(qn_splitmix(&state) >> 40) * 0x1p-24f * 6 - 3;
        logits[7] = logits[8]; /* of equal ones both are listed */
        mask[0] = (uint32_t)qn_splitmix(&state);
        mask[1] = (uint32_t)qn_splitmix(&state) & 0xfffffff;
        qn_sample_kernels_init(&kernels, seed % 2 ? cpu : 0);
        memset(counted, 0, sizeof counted);
        for (uint64_t i = 0; i < DRAWS; i++) {
            qn_logprobs none = { .n = 0 };
            qn_sample_request drawn = request_of(setting, mask, (i << 52) + (UINT64_C(1) << 51), &none);
            qn_sample_token(&kernels, &drawn, logits, N, scratch);
            assert_int_equal(none.n, 0);
            counted[drawn.token] += 1.0 / DRAWS;
        }
        for (uint64_t i = 0; i < DRAWS; i += 97) {
            qn_logprobs l = { .n = QN_MAX_LOGPROBS };
            qn_sample_request drawn = request_of(setting, mask, (i << 52) + (UINT64_C(1) << 51), &l);
            qn_sample_token(&kernels, &drawn, logits, N, scratch);
            check(&l);
            assert_true(fabs(exp(l.chosen) - counted[drawn.token]) < 2.0 / DRAWS);
        }
    }
    free(scratch);
}
