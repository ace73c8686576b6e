/* The tokens sampled during generation are those that a sampler returns for the same logits, on the CPU and, if
 * present, on a GPU; and qn_sample_token against penalties and log probabilities in float64. Its filters and draws:
 * test_sample_exact.c, test_sample_statistics.c. */
#include "helper_random.h"
#include "helper_create.h"

#include "quern/quern.h"

#include "base/cpu.h"
#include "helper_request.h"
#include "kernels/canon.h"
#include "kernels/sample/sample.h"

#include <math.h>

/* ---- Generation ---- */

enum { N_PROMPT = 20, N_NEW = 40, N_CTX = 128 };

static const char *const models[] = { "llama.q1_0", "qwen3.f16", "qwen3.pq2_0", "qwen35.q1_0",
                                      "qwen35-rotated.ptq1_0" };

static const qn_sampling samplings[] = {
    { .size = sizeof(qn_sampling), .temperature = 0, .top_p = 1, .repeat_penalty = 1 },
    { .size = sizeof(qn_sampling), .temperature = 0, .top_p = 1, .repeat_penalty = 1.3f, .repeat_last_n = 16 },
    { .size = sizeof(qn_sampling),
      .temperature = 0.8f,
      .top_k = 40,
      .top_p = 0.95f,
      .min_p = 0.05f,
      .repeat_penalty = 1,
      .seed = 1 },
    { .size = sizeof(qn_sampling),
      .temperature = 0.8f,
      .top_k = 10,
      .top_p = 0.9f,
      .repeat_penalty = 1.2f,
      .repeat_last_n = 1000,
      .seed = 2 },
    { .size = sizeof(qn_sampling), .temperature = 1.5f, .top_p = 1, .repeat_penalty = 1, .seed = 3 },
    { .size = sizeof(qn_sampling), .temperature = 0, .top_p = 1, .repeat_penalty = 1, .frequency_penalty = 0.4f },
    { .size = sizeof(qn_sampling),
      .temperature = 0.8f,
      .top_k = 40,
      .top_p = 0.95f,
      .repeat_penalty = 1.1f,
      .repeat_last_n = 8,
      .frequency_penalty = -0.1f,
      .presence_penalty = 1.5f,
      .seed = 5 },
    { .size = sizeof(qn_sampling),
      .temperature = 1.2f,
      .top_k = 1 << 20,
      .top_p = 0.99f,
      .repeat_penalty = 0.8f,
      .repeat_last_n = 30,
      .seed = 4 },
    { .size = sizeof(qn_sampling),
      .temperature = 0.7f,
      .top_p = 1,
      .repeat_penalty = 1,
      .dry_multiplier = 0.8f,
      .dry_base = 1.75f,
      .dry_allowed_length = 1,
      .dry_penalty_last_n = -1,
      .seed = 6 },
    /* On the CPU only, from here. */
    { .size = sizeof(qn_sampling), .temperature = 2, .top_p = 1, .repeat_penalty = 1, .top_n_sigma = 1.5f, .seed = 7 },
    { .size = sizeof(qn_sampling), .temperature = 2, .top_p = 1, .repeat_penalty = 1, .typical_p = 0.7f, .seed = 8 },
    { .size = sizeof(qn_sampling),
      .temperature = 2,
      .top_p = 1,
      .repeat_penalty = 1,
      .xtc_probability = 0.5f,
      .xtc_threshold = 0.05f,
      .seed = 9 },
    { .size = sizeof(qn_sampling),
      .temperature = 1,
      .top_p = 1,
      .repeat_penalty = 1,
      .mirostat = 2,
      .mirostat_tau = 3,
      .mirostat_eta = 0.3f,
      .seed = 10 },
};
enum { N_SAMPLINGS = COUNT(samplings) };

static qn_session *new_session(qn_model *model)
{
    return create_session(model, &SESSION_PARAMS(.n_ctx = N_CTX));
}

struct list {
    qn_token tokens[N_NEW];
    size_t n;
};

static bool collect(void *user, qn_token token, const qn_logprobs *logprobs)
{
    (void)logprobs;
    struct list *list = user;
    assert_true(list->n < N_NEW);
    list->tokens[list->n++] = token;
    return true;
}

static void check_model(qn_model *model, const char *name, size_t s)
{
    const size_t n_vocab = qn_model_get_info(model)->n_vocab;
    float *logits = malloc(n_vocab * sizeof *logits);
    qn_token prompt[N_PROMPT], token;
    struct list list = { .n = 0 };
    qn_sampler *sampler;
    assert_non_null(logits);
    for (size_t i = 0; i < N_PROMPT; i++)
        prompt[i] = (qn_token)(i * i * 7 % n_vocab);
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    params.sampling = samplings[s];
    params.max_tokens = N_NEW;
    params.ignore_end = true;
    params.on_token = collect;
    params.user = &list;
    qn_session *generated = new_session(model), *evaluated = new_session(model);
    assert_ok(generate_from(generated, prompt, N_PROMPT, &params, NULL));
    assert_int_equal(list.n, N_NEW);
    assert_ok(qn_sampler_create(&samplings[s], n_vocab, &sampler));
    assert_ok(qn_session_eval(evaluated, prompt, N_PROMPT, QN_LOGITS_LAST, logits));
    for (size_t i = 0; i < N_NEW; i++) {
        assert_ok(qn_sampler_pick(sampler, logits, qn_session_tokens(evaluated), qn_session_length(evaluated), &token));
        if (token != list.tokens[i])
            fail_msg("%s, sampling %zu: token %zu is %d, from logits %d", name, s, i, list.tokens[i], token);
        assert_ok(qn_session_eval(evaluated, &token, 1, QN_LOGITS_LAST, logits));
    }
    qn_sampler_free(sampler);
    qn_session_free(generated);
    qn_session_free(evaluated);
    free(logits);
}

static void check_device(const char *device)
{
    for (size_t m = 0; m < COUNT(models); m++) {
        char path[512];
        qn_model *model;
        snprintf(path, sizeof path, "%s/tests/golden/%s.gguf", QN_SOURCE_DIR, models[m]);
        const qn_status status = qn_model_load(path, &MODEL_PARAMS(.device = device, .n_threads = 2), &model);
        if (status == QN_ERR_UNSUPPORTED && strcmp(device, "cuda") == 0)
            skip();
        label("%s on %s", models[m], device);
        assert_ok(status);
        for (size_t s = 0; s < N_SAMPLINGS; s++) {
            label("sampling %zu", s);
            check_model(model, models[m], s);
        }
        qn_model_free(model);
    }
}

TEST(steps_sample_like_samplers)
{
    check_device("cpu");
}

TEST(gpu_steps_sample_like_samplers)
{
    check_device("cuda");
}

/* ---- qn_sample_token ---- */

enum { VOCAB = 3000 };

static const float *sorted_by;

static int likelier_first(const void *a, const void *b)
{
    const int x = *(const int *)a, y = *(const int *)b;
    return sorted_by[x] != sorted_by[y] ? (sorted_by[x] < sorted_by[y]) - (sorted_by[x] > sorted_by[y]) : x - y;
}

static float next_float(void)
{
    return (float)(random_u64() >> 40) * 0x1p-24f;
}

/* ---- Mask, bias, penalties and log probabilities against float64 ---- */

enum { LISTED = 60 };

static double reference_logit(const qn_sample_request *request, const float *logits, int token)
{
    double x = logits[token], count = 0;
    bool is_recent = false;
    if (request->allowed && !(request->allowed[token / 32] >> token % 32 & 1))
        return -INFINITY;
    for (size_t i = 0; i < request->n_bias; i++)
        x += request->bias[i].token == token ? (double)request->bias[i].value : 0;
    for (size_t i = 0; i < request->n_recent; i++)
        is_recent |= request->recent[i] == token;
    if (is_recent)
        x = x > 0 ? x / (double)request->sampling.repeat_penalty : x * (double)request->sampling.repeat_penalty;
    for (size_t i = 0; i < request->n_generated; i++)
        count += request->generated[i] == token;
    return x - count * (double)request->sampling.frequency_penalty -
           (count > 0) * (double)request->sampling.presence_penalty;
}

static double reference_logprob(const float *logits, int token)
{
    double sum = 0;
    for (int i = 0; i < VOCAB; i++)
        sum += exp((double)logits[i]);
    return (double)logits[token] - log(sum);
}

static void assert_near(double found, double expected)
{
    if (!(fabs(found - expected) <= 2e-6 * (1 + fabs(expected))))
        fail_msg("%.9g, expected %.9g", found, expected);
}

static void check_logprobs(const qn_logprobs *found, const float *logits, int token, uint32_t n_top)
{
    static int order[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        order[i] = i;
    sorted_by = logits;
    qsort(order, VOCAB, sizeof *order, likelier_first);
    assert_int_equal(found->n, n_top);
    assert_near((double)found->chosen, reference_logprob(logits, token));
    for (uint32_t i = 0; i < n_top; i++) {
        assert_int_equal(found->tokens[i], order[i]);
        assert_near((double)found->values[i], reference_logprob(logits, order[i]));
    }
}

/* The logit of each token after mask, bias and penalties is that of the only allowed token. */
TEST(logits_change_as_documented)
{
    static float logits[VOCAB];
    static uint64_t scratch[VOCAB * 3];
    static uint32_t allowed[(VOCAB + 31) / 32];
    qn_token recent[LISTED], generated[LISTED];
    qn_logit_bias bias[LISTED];
    qn_sample_kernels kernels;
    qn_sample_kernels_init(&kernels, 0);
    for (int i = 0; i < VOCAB; i++)
        logits[i] = 16 * next_float() - 8;
    for (int i = 0; i < LISTED; i++) { /* of 40 tokens, so that lists overlap and repeat; some are outside the
                                          vocabulary */
        recent[i] = i == 3 ? -1 : (qn_token)(random_u64() % 40);
        generated[i] = i == 4 ? VOCAB : (qn_token)(random_u64() % 40);
        bias[i] = (qn_logit_bias){ i == 5 ? INT32_MAX : (qn_token)(random_u64() % 40), 4 * next_float() - 2 };
    }
    for (int round = 0; round < 8; round++) {
        label("round %d", round);
        qn_logprobs logprobs;
        qn_sample_request request = { .sampling = { .top_p = 1,
                                                    .repeat_penalty = round & 1 ? 1.3f : 1,
                                                    .frequency_penalty = round & 2 ? 0.7f : 0,
                                                    .presence_penalty = round & 4 ? -1.1f : 0 },
                                      .recent = recent,
                                      .generated = generated,
                                      .n_recent = round & 1 ? LISTED : 0,
                                      .n_generated = round & 6 ? LISTED : 0,
                                      .bias = bias,
                                      .n_bias = round % 3 ? LISTED : 0,
                                      .allowed = allowed,
                                      .logprobs = &logprobs };
        for (int token = 0; token < VOCAB; token += token < 40 ? 1 : 97) {
            memset(allowed, 0, sizeof allowed);
            allowed[token / 32] = 1u << token % 32;
            logprobs.n = (uint32_t)token % (QN_SAMPLE_TOP_LOGPROBS + 1);
            request.sampling.temperature = token % 2 ? 1 : 0;
            qn_sample_token(&kernels, &request, logits, VOCAB, scratch);
            assert_int_equal(request.token, token);
            assert_int_equal(qn_sample_key_index(request.best), token);
            assert_near((double)qn_sample_key_logit(request.best), reference_logit(&request, logits, token));
            if (token % 8 == 0)
                check_logprobs(&logprobs, logits, token, (uint32_t)token % (QN_SAMPLE_TOP_LOGPROBS + 1));
        }
    }
}

/* Without a mask the token is the largest of all changed logits; other tokens keep theirs. */
TEST(changed_logits_compete)
{
    static const float logits[4] = { 5, 4, 3.5f, -1 };
    static uint64_t scratch[12];
    const struct {
        qn_sample_request request;
        int token;
    } cases[] = {
        { { .sampling = { .repeat_penalty = 1 } }, 0 },
        { { .sampling = { .repeat_penalty = 1, .presence_penalty = 1.1f },
            .generated = (const qn_token[]){ 0, 0 },
            .n_generated = 2 },
          1 },
        { { .sampling = { .repeat_penalty = 1, .frequency_penalty = 0.4f },
            .generated = (const qn_token[]){ 0, 0 },
            .n_generated = 2 },
          0 },
        { { .sampling = { .repeat_penalty = 1, .frequency_penalty = 0.6f },
            .generated = (const qn_token[]){ 0, 1, 0 },
            .n_generated = 3 },
          0 },
        { { .sampling = { .repeat_penalty = 1, .frequency_penalty = 0.8f },
            .generated = (const qn_token[]){ 0, 1, 0 },
            .n_generated = 3 },
          2 },
        { { .sampling = { .repeat_penalty = 1 }, .generated = (const qn_token[]){ 0, 0 }, .n_generated = 2 }, 0 },
        { { .sampling = { .repeat_penalty = 1 },
            .bias = (const qn_logit_bias[]){ { 3, 4 }, { 3, 2.5f } },
            .n_bias = 2 },
          3 },
        { { .sampling = { .repeat_penalty = 1 }, .bias = (const qn_logit_bias[]){ { 0, -INFINITY } }, .n_bias = 1 },
          1 },
        { { .sampling = { .repeat_penalty = 1 }, .allowed = (const uint32_t[]){ 0xfffffffc } }, 2 },
    };
    qn_sample_kernels kernels;
    qn_sample_kernels_init(&kernels, 0);
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("case %zu", i);
        qn_sample_request request = cases[i].request;
        qn_sample_token(&kernels, &request, logits, 4, scratch);
        assert_int_equal(request.token, cases[i].token);
    }
}

TEST(excluded_and_broken_logits)
{
    static uint64_t scratch[3 * 40];
    static const uint32_t none[2] = { 0, 0xffffff00 }, first_eight[2] = { 0xff, 0 };
    float logits[40] = { 0 };
    qn_sample_kernels kernels;
    qn_logprobs logprobs = { .n = 20, .chosen = 7 };
    qn_sample_kernels_init(&kernels, 0);
    qn_sample_request request = { .sampling = { .temperature = 1, .top_p = 1, .repeat_penalty = 1 },
                                  .allowed = none,
                                  .logprobs = &logprobs };
    qn_sample_token(&kernels, &request, logits, 40, scratch);
    assert_int_equal(request.token, -1);
    assert_true(logprobs.n == 20 && logprobs.chosen == 7);
    assert_fails(qn_sample_status(request.best), QN_ERR_INVALID, "the largest of the allowed tokens is -inf");
    /* A NaN that is not allowed does not matter to the token, but the probabilities of all tokens are unknown. */
    logits[30] = NAN;
    request.allowed = first_eight;
    qn_sample_token(&kernels, &request, logits, 40, scratch);
    assert_in_range(request.token, 0, 7);
    assert_true(logprobs.n == 0 && isnan(logprobs.chosen));
    /* Fewer tokens than are to be listed. */
    logprobs.n = 20;
    qn_sample_token(&kernels, &request, logits, 4, scratch);
    assert_int_equal(logprobs.n, 4);
    assert_near((double)logprobs.values[3], log(0.25));
    assert_int_equal(logprobs.tokens[3], 3);
}

TEST(keys_are_ordered)
{
    const float ascending[] = { -INFINITY, -3, -1e-30f, 0, 1e-30f, 2, 65504, INFINITY, NAN };
    enum { N = COUNT(ascending) };
    for (size_t i = 0; i < N; i++) {
        assert_true(i == 0 || qn_sample_key(ascending[i], 9) > qn_sample_key(ascending[i - 1], 0));
        assert_true(qn_sample_key(ascending[i], 3) > qn_sample_key(ascending[i], 4));
        assert_int_equal(qn_sample_key_index(qn_sample_key(ascending[i], 123456)), 123456);
        assert_true(isnan(ascending[i]) || qn_sample_key_logit(qn_sample_key(ascending[i], 7)) == ascending[i]);
        assert_int_equal(qn_sample_is_finite(qn_sample_key(ascending[i], 1)), isfinite(ascending[i]) != 0);
    }
    assert_true(qn_sample_key(-0.0f, 1) == qn_sample_key(0.0f, 1));
    assert_int_equal(qn_sample_weight_bits(1), 62);
    assert_int_equal(qn_sample_weight_bits(1 << 18), 44);
    assert_int_equal(qn_sample_weight_bits((1 << 18) + 1), 43);
}
