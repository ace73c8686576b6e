/* The sampler of the CPU: every instruction set must sample the reference's tokens; and its speed on one core.
 * tests/unit/kernels/test_sample_exact.c checks the reference's tokens. */
#include "check_sample.h"

#include "check.h"
#include "kernels/sample/sample.h"

enum { MAX_VOCAB = 248320, N_ALLOWED = 10, N_TIES = 10000, N_GENERATED = 500 };

static float logits[MAX_VOCAB];
static uint32_t allowed[MAX_VOCAB / 32];
static qn_token generated[N_GENERATED];

static const char *const distributions[] = { "normal", "flat", "wide", "peaked", "equal", "outlier", "ties" };
enum { N_DISTRIBUTIONS = QN_LENGTH(distributions) };

/* Normal with deviations 3, 1 and 8; 20 tokens with nearly all of the probability; all equal; one of them larger by 60;
 * 10^4 equal tokens among the most likely ones. */
static void fill_logits(size_t distribution, size_t n)
{
    static const float scales[N_DISTRIBUTIONS] = { 3, 1, 8, 1.5f, 0, 0, 3 };
    qn_random_seed(n + distribution);
    qn_random_floats(logits, n, scales[distribution]);
    for (size_t i = 0; i < 20 && distribution == 3; i++)
        logits[qn_random_below(n)] = 18 + (float)qn_random_below(4);
    if (distribution == 5)
        logits[qn_random_below(n)] = 60;
    for (size_t i = 0; i < N_TIES && distribution == 6; i++)
        logits[qn_random_below(n)] = 8;
}

static void allow(size_t n, size_t n_allowed)
{
    memset(allowed, 0, sizeof allowed);
    for (size_t i = 0; i < n_allowed; i++) {
        const size_t token = qn_random_below(n);
        allowed[token / 32] |= 1u << token % 32;
    }
}

#define PLAIN .top_p = 1, .repeat_penalty = 1

static const struct setting {
    const char *name;
    qn_sampling sampling;
    size_t n_allowed; /* 0: all */
    uint32_t n_logprobs;
} settings[] = {
    { "temperature 1", { .temperature = 1, PLAIN }, 0, 0 },
    { "top_p 0.95", { .temperature = 1, .top_p = 0.95f, .repeat_penalty = 1 }, 0, 0 },
    { "min_p 0.05", { .temperature = 1, .min_p = 0.05f, PLAIN }, 0, 0 },
    { "20 logprobs", { .temperature = 1, PLAIN }, 0, 20 },
    { "10 allowed", { .temperature = 1, PLAIN }, N_ALLOWED, 0 },
    { "half allowed", { .temperature = 1, PLAIN }, MAX_VOCAB / 2, 0 },
    { "top_k 20", { .temperature = 1, .top_k = 20, PLAIN }, 0, 0 },
    { "top_k 40", { .temperature = 1, .top_k = 40, PLAIN }, 0, 0 },
    { "top_k 1000", { .temperature = 1, .top_k = 1000, PLAIN }, 0, 0 },
    { "penalties", { .temperature = 1, .top_p = 1, .repeat_penalty = 1.1f, .presence_penalty = 0.5f }, 0, 0 },
    { "top_n_sigma 1", { .temperature = 1, .top_n_sigma = 1, PLAIN }, 0, 0 },
    { "typical_p 0.9", { .temperature = 1, .typical_p = 0.9f, PLAIN }, 0, 0 },
    { "XTC", { .temperature = 1, .min_p = 0.02f, .xtc_probability = 0.5f, .xtc_threshold = 0.1f, PLAIN }, 0, 0 },
    { "argmax", { .temperature = 0, PLAIN }, 0, 0 },
};
enum { N_SETTINGS = QN_LENGTH(settings) };

static qn_sample_request request_of(const struct setting *setting, qn_logprobs *logprobs)
{
    const bool penalises = setting->sampling.repeat_penalty != 1;
    logprobs->n = setting->n_logprobs;
    return (qn_sample_request){ .sampling = setting->sampling,
                                .recent = generated,
                                .generated = generated,
                                .n_recent = penalises ? 64 : 0,
                                .n_generated = penalises ? N_GENERATED : 0,
                                .allowed = setting->n_allowed ? allowed : NULL,
                                .random = qn_random(),
                                .logprobs = setting->n_logprobs ? logprobs : NULL };
}

static void fill_lists(const struct setting *setting, size_t n)
{
    allow(n, setting->n_allowed);
    for (size_t i = 0; i < N_GENERATED; i++)
        generated[i] = (qn_token)qn_random_below(n);
}

/* ---- Check ---- */

void qn_check_sample_tokens(void)
{
    static const size_t vocabularies[] = { 1, 15, 129, 1000, 5003, 16411 };
    enum { N_VOCABULARIES = QN_LENGTH(vocabularies), DRAWS = 20 };
    static qn_token expected[DRAWS];
    static qn_logprobs expected_logprobs;
    void *scratch = qn_new(qn_sample_scratch_bytes(MAX_VOCAB), 1);
    for (size_t c = 0; c < N_VOCABULARIES * N_DISTRIBUTIONS * N_SETTINGS; c++) {
        const size_t n = vocabularies[c / N_SETTINGS / N_DISTRIBUTIONS],
                     distribution = c / N_SETTINGS % N_DISTRIBUTIONS;
        const struct setting *setting = &settings[c % N_SETTINGS];
        if (!qn_case_selected())
            continue;
        fill_logits(distribution, n);
        fill_lists(setting, n);
        for (const qn_cpu_level *level = qn_levels(); level->name; level++) {
            qn_sample_kernels kernels;
            qn_logprobs logprobs;
            qn_sample_kernels_init(&kernels, level->features);
            qn_case_begin("sample", level->name, "%s of %zu, %s", setting->name, n, distributions[distribution]);
            qn_random_seed(c);
            for (size_t draw = 0; draw < DRAWS; draw++) {
                qn_sample_request request = request_of(setting, &logprobs);
                qn_sample_token(&kernels, &request, logits, n, scratch);
                if (qn_is_reference(level)) {
                    expected[draw] = request.token;
                    expected_logprobs = logprobs;
                }
                qn_expect(request.token == expected[draw], "draw %zu is %d, expected %d", draw, request.token,
                          expected[draw]);
            }
            qn_expect(!setting->n_logprobs || memcmp(logprobs.values, expected_logprobs.values,
                                                     expected_logprobs.n * sizeof *logprobs.values) == 0,
                      "log probabilities differ");
        }
    }
    qn_release();
}

/* ---- Speed ---- */

struct timed_token {
    const qn_sample_kernels *kernels;
    const struct setting *setting;
    size_t n;
    void *scratch;
};

static void timed_token(void *context)
{
    struct timed_token *t = context;
    qn_logprobs logprobs;
    qn_sample_request request = request_of(t->setting, &logprobs);
    qn_sample_token(t->kernels, &request, logits, t->n, t->scratch);
}

void qn_bench_sample_tokens(const qn_cpu_level *level)
{
    static const size_t vocabularies[] = { 49152, 151936, MAX_VOCAB };
    void *scratch = qn_new(qn_sample_scratch_bytes(MAX_VOCAB), 1);
    qn_sample_kernels kernels;
    qn_sample_kernels_init(&kernels, level->features);
    for (size_t v = 0; v < QN_LENGTH(vocabularies); v++)
        for (size_t d = 0; d < N_DISTRIBUTIONS; d++) {
            fill_logits(d, vocabularies[v]);
            for (size_t s = 0; s < N_SETTINGS; s++) {
                struct timed_token timed = { &kernels, &settings[s], vocabularies[v], scratch };
                const char *shape = qn_text("%zu %s, %s", vocabularies[v], distributions[d], settings[s].name);
                if (!qn_bench_selected(shape))
                    continue;
                fill_lists(&settings[s], vocabularies[v]);
                qn_bench("sample", level->name, shape, (double)vocabularies[v], "token", timed_token, &timed);
            }
        }
    qn_release();
}
