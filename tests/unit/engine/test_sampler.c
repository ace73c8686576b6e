/* Sampling: greedy, each filter on distributions with known probabilities, seeds, and rejected parameters. */
#include "helper_create.h"

#include "engine/internal.h"
#include "quern/quern.h"

#include <math.h>

enum { VOCAB = 1000, DRAWS = 20000 };

/* Probabilities 1/2, 1/4, 1/8 ...; ranks are not in the order of token ids. */
static float logits[VOCAB];

static qn_token token_of(int rank)
{
    return (qn_token)(rank * 37 % VOCAB);
}

static int set_up(void)
{
    for (int rank = 0; rank < VOCAB; rank++)
        logits[token_of(rank)] = (float)(-0.6931471805599453 * (rank < 60 ? rank : 60));
    return 0;
}

static qn_sampling plain(uint64_t seed)
{
    return SAMPLING(.temperature = 1, .top_p = 1, .repeat_penalty = 1, .repeat_last_n = 64, .seed = seed);
}

/* The relative frequency of each of the first eight ranks; all other tokens are counted in the ninth. */
static void draw_many(qn_sampling params, double frequency[9])
{
    qn_sampler *sampler;
    assert_ok(qn_sampler_create(&params, VOCAB, &sampler));
    for (int i = 0; i < 9; i++)
        frequency[i] = 0;
    for (int i = 0; i < DRAWS; i++) {
        qn_token token;
        int rank = 0;
        assert_ok(qn_sampler_pick(sampler, logits, NULL, 0, &token));
        while (rank < 8 && token_of(rank) != token)
            rank++;
        frequency[rank] += 1.0 / DRAWS;
    }
    qn_sampler_free(sampler);
}

/* The bound is five standard deviations of a relative frequency over DRAWS draws. */
static void assert_frequency(double found, double expected)
{
    const double bound = 5 * sqrt(expected * (1 - expected) / DRAWS) + 1e-12;
    if (!(fabs(found - expected) <= bound))
        fail_msg("frequency %g, expected %g +- %g", found, expected, bound);
}

TEST(draws_follow_the_distribution)
{
    double frequency[9];
    draw_many(plain(1), frequency);
    for (int i = 0; i < 8; i++)
        assert_frequency(frequency[i], pow(0.5, i + 1));
    qn_sampling warm = plain(2);
    warm.temperature = 2; /* weights 2^(-rank/2) */
    draw_many(warm, frequency);
    for (int i = 0; i < 8; i++)
        assert_frequency(frequency[i], pow(2, -i / 2.0) * (1 - sqrt(0.5)));
}

TEST(filters_keep_what_they_say)
{
    double frequency[9];
    qn_sampling params = plain(3);
    params.top_k = 3; /* 4/7, 2/7, 1/7 */
    draw_many(params, frequency);
    assert_frequency(frequency[0], 4 / 7.0);
    assert_frequency(frequency[2], 1 / 7.0);
    assert_true(frequency[3] == 0 && frequency[8] == 0);
    params = plain(4);
    params.top_p = 0.7f; /* 1/2 is not enough, 3/4 is */
    draw_many(params, frequency);
    assert_frequency(frequency[0], 2 / 3.0);
    assert_frequency(frequency[1], 1 / 3.0);
    assert_true(frequency[2] == 0);
    params = plain(5);
    params.min_p = 0.2f; /* relative to 1/2: keeps 1/2, 1/4, 1/8 */
    draw_many(params, frequency);
    assert_frequency(frequency[0], 4 / 7.0);
    assert_frequency(frequency[2], 1 / 7.0);
    assert_true(frequency[3] == 0);
}

/* Of 1/2, 1/4, 1/8, the tokens with a tenth or more, the last is kept. */
TEST(top_choices_are_excluded)
{
    double frequency[9];
    qn_sampling params = plain(6);
    params.xtc_threshold = 0.1f;
    params.xtc_probability = 1;
    draw_many(params, frequency);
    assert_true(frequency[0] == 0 && frequency[1] == 0);
    assert_frequency(frequency[2], 1 / 2.0);
    assert_frequency(frequency[3], 1 / 4.0);
    params.xtc_probability = 0.3f;
    draw_many(params, frequency);
    assert_frequency(frequency[0], 0.7 / 2);
    assert_frequency(frequency[2], 0.7 / 8 + 0.3 / 2);
    params.xtc_probability = 1;
    params.top_k = 2; /* 2/3 and 1/3 */
    draw_many(params, frequency);
    assert_true(frequency[1] > 0.9999);
    params.xtc_threshold = 0.51f; /* 2/3 only: the last of one is kept */
    draw_many(params, frequency);
    assert_frequency(frequency[0], 2 / 3.0);
}

/* The entropy of 1/2, 1/4, 1/8 ... is 2 bits: the distances of the tokens' surprisals are 1, 0, 1, 2, 3 ... bits. */
TEST(typical_tokens_are_kept)
{
    double frequency[9];
    qn_sampling params = plain(8);
    params.typical_p = 0.2f; /* 1/4 is enough */
    draw_many(params, frequency);
    assert_true(frequency[1] > 0.9999);
    params.typical_p = 0.8f; /* 7/8 */
    draw_many(params, frequency);
    assert_frequency(frequency[0], 4 / 7.0);
    assert_frequency(frequency[2], 1 / 7.0);
    assert_true(frequency[3] == 0);
    params.typical_p = 0.9f; /* 15/16 */
    draw_many(params, frequency);
    assert_frequency(frequency[3], 1 / 15.0);
    assert_true(frequency[4] == 0);
}

/* Whatever the temperature, the tokens within so many deviations are kept. */
TEST(deviations_bound_the_logits)
{
    double frequency[9], sum = 0, squares = 0;
    for (int i = 0; i < VOCAB; i++) {
        sum += (double)logits[i];
        squares += (double)logits[i] * (double)logits[i];
    }
    const double sigma = sqrt(squares / VOCAB - sum / VOCAB * sum / VOCAB), step = 0.6931471805599453;
    for (int n_kept = 1; n_kept < 4; n_kept++) {
        qn_sampling params = plain(7);
        params.temperature = 20;
        params.top_n_sigma = (float)((n_kept - 0.5) * step / sigma);
        draw_many(params, frequency);
        for (int i = 0; i < 9; i++)
            assert_true((frequency[i] > 0) == (i < n_kept));
    }
}

TEST(greedy_takes_the_lowest_of_equals)
{
    float two[VOCAB] = { 0 };
    qn_sampling params = plain(0);
    qn_sampler *sampler;
    qn_token token;
    two[700] = two[300] = 5;
    params.temperature = 0;
    assert_ok(qn_sampler_create(&params, VOCAB, &sampler));
    assert_ok(qn_sampler_pick(sampler, two, NULL, 0, &token));
    assert_int_equal(token, 300);
    qn_sampler_free(sampler);
}

TEST(penalty_changes_the_argmax)
{
    float x[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        x[i] = -5;
    x[1] = 4;
    x[2] = 3;
    x[3] = -1;
    qn_sampling params = plain(0);
    qn_sampler *sampler;
    qn_token token, recent[] = { 1, 1, 2, 5 };
    params.temperature = 0;
    params.repeat_penalty = 1.5f;
    params.repeat_last_n = 4;
    assert_ok(qn_sampler_create(&params, VOCAB, &sampler));
    /* Token 1 has 4/1.5 = 2.67: penalised once although it occurs twice. Token 2, with 3, wins unless it is in the
     * window. */
    assert_ok(qn_sampler_pick(sampler, x, recent, 2, &token));
    assert_int_equal(token, 2);
    assert_ok(qn_sampler_pick(sampler, x, recent, 4, &token));
    assert_int_equal(token, 1);
    qn_sampler_free(sampler);
}

/* The prompt is not penalised, however often a token occurs there; the generated text is, by its counts. */
TEST(generated_text_is_penalised)
{
    enum { PROMPT = 5, STEPS = 7 };
    static const qn_token frequent[STEPS] = { 1, 1, 1, 2, 1, 2, 1 }, present[STEPS] = { 1, 2, 1, 1, 1, 1, 1 };
    float x[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        x[i] = -5;
    x[1] = 4;
    x[2] = 3.3f;
    for (int round = 0; round < 2; round++) {
        qn_sampling params = plain(0);
        qn_sampler *sampler;
        qn_token tokens[PROMPT + STEPS] = { 1, 1, 1, 1, 2 };
        params.temperature = 0;
        params.repeat_last_n = 1; /* the penalties of the generated text have no window */
        params.frequency_penalty = round ? 0 : 0.3f;
        params.presence_penalty = round ? 1 : 0;
        assert_ok(qn_sampler_create(&params, VOCAB, &sampler));
        for (size_t i = 0; i < STEPS; i++) {
            label("round %d, step %zu", round, i);
            assert_ok(qn_sampler_pick(sampler, x, tokens, PROMPT + i, &tokens[PROMPT + i]));
            assert_int_equal(tokens[PROMPT + i], (round ? present : frequent)[i]);
        }
        qn_sampler_free(sampler);
    }
}

static bool ends_with_breaker(const qn_sampling *p, const qn_token *text, size_t n)
{
    size_t length = 0;
    for (size_t i = 0; i < p->n_dry_breakers; i++, length++) {
        if (p->dry_breakers[i] != -1)
            continue;
        if (length <= n && !memcmp(p->dry_breakers + i - length, text + (n - length), length * sizeof *text))
            return true;
        length = (size_t)-1;
    }
    return false;
}

/* The penalty of each token from the definition: the longest suffix of the text, without breakers, that occurred before
 * the token. */
static double dry_penalty(const qn_sampling *p, const qn_token *text, size_t n, qn_token token)
{
    double penalty = 0;
    for (size_t at = 0; at < n; at++) {
        size_t length = 0;
        bool is_broken = false;
        for (; length < at && !is_broken; length++) {
            is_broken = ends_with_breaker(p, text, n - length);
            if (is_broken || text[at - 1 - length] != text[n - 1 - length])
                break;
        }
        if (text[at] == token && length >= (size_t)p->dry_allowed_length)
            penalty = fmax(penalty, (double)p->dry_multiplier *
                                        pow((double)p->dry_base, (double)length - p->dry_allowed_length));
    }
    return ends_with_breaker(p, &token, 1) ? 0 : fmin(penalty, 1e6);
}

/* Texts of few different tokens, which repeat. A token's logit is that of the only allowed one. */
TEST(repetitions_are_penalised)
{
    enum { LENGTH = 200, TOKENS = 4 };
    static const qn_token breakers[] = { 3, -1, 9, -1, 0, 1, -1, 0, 1, 1, -1, 1, 0, -1, 1, 0, 0, 0, 0, 2, -1, 2, -1 };
    static const size_t ends[] = { 0, 2, 4, 7, 11, 21, 23 };
    float zeros[TOKENS] = { 0 };
    qn_token text[LENGTH];
    uint32_t random = 1;
    for (int round = 0; round < 300; round++) {
        qn_sampling params = plain(0);
        qn_sampler *sampler;
        params.dry_multiplier = 0.8f;
        params.dry_base = round % 5 ? 1.75f : 1;
        params.dry_allowed_length = round % 4;
        params.dry_penalty_last_n = round % 3 ? -1 : 50;
        params.dry_breakers = breakers;
        params.n_dry_breakers = ends[round / 3 % 7];
        const size_t n = (size_t)round % LENGTH;
        for (size_t i = 0; i < n; i++) {
            random = random * 1664525 + 1013904223;
            text[i] = round % 7 == 0 ? 1 : (qn_token)(random >> 28 < 11 ? 0 : (random >> 25) % TOKENS);
        }
        assert_ok(qn_sampler_create(&params, TOKENS, &sampler));
        const size_t last = params.dry_penalty_last_n < 0 || n < 50 ? n : 50;
        for (uint32_t token = 0; token < TOKENS; token++) {
            label("round %d, token %u", round, (unsigned)token);
            const uint32_t allowed = 1u << token;
            qn_sample_request request = qn_sampler_next_request(sampler, text, n);
            request.allowed = &allowed;
            assert_ok(qn_sampler_sample(sampler, zeros, &request));
            const double expected = -dry_penalty(&params, text + (n - last), last, (qn_token)token);
            assert_true(fabs((double)qn_sample_key_logit(request.best) - expected) <= 1e-5 * fabs(expected));
        }
        qn_sampler_free(sampler);
    }
}

/* The surprise of the tokens that are left, in float64. Tokens next to the bound may be in or out: NAN. */
static double mirostat_surprise(const double *probabilities, double mu, qn_token token)
{
    double kept = 0;
    for (int i = 0; i < VOCAB; i++) {
        const double surprisal = -log2(probabilities[i]);
        if (fabs(surprisal - mu) < 1e-4)
            return NAN;
        kept += i == 0 || surprisal < mu ? probabilities[i] : 0;
    }
    assert_true(token == 0 || -log2(probabilities[token]) < mu);
    return -log2(probabilities[token] / kept);
}

/* No token with more surprisal than the bound is drawn but the most likely one, the bound follows, and the mean
 * surprise is tau. */
TEST(mirostat_follows_the_surprise)
{
    enum { STEPS = 20000 };
    static const float taus[] = { 2, 4, 6.5f };
    static double probabilities[VOCAB];
    float flat[VOCAB];
    double total = 0;
    for (int i = 0; i < VOCAB; i++) {
        flat[i] = (float)(i * 733 % VOCAB) * -0.02f;
        total += exp((double)flat[i]);
    }
    for (int i = 0; i < VOCAB; i++)
        probabilities[i] = exp((double)flat[i]) / total;
    for (int round = 0; round < 3; round++) {
        qn_sampling params = plain((uint64_t)round);
        qn_sampler *sampler;
        double expected = 2 * (double)taus[round], mean = 0;
        label("tau %g", (double)taus[round]);
        params.mirostat = 2;
        params.mirostat_tau = taus[round];
        params.mirostat_eta = 0.1f;
        params.top_k = 1; /* not read */
        assert_ok(qn_sampler_create(&params, VOCAB, &sampler));
        for (int step = 0; step < STEPS; step++) {
            qn_sample_request request = qn_sampler_next_request(sampler, NULL, 0);
            assert_true(fabs((double)request.mirostat_mu - expected) < 1e-4);
            assert_ok(qn_sampler_sample(sampler, flat, &request));
            const double surprise = mirostat_surprise(probabilities, (double)request.mirostat_mu, request.token);
            assert_true(isnan(surprise) || fabs((double)request.surprise - surprise) < 1e-4);
            qn_sampler_observe(sampler, &request);
            mean += (double)request.surprise / STEPS;
            expected = (double)request.mirostat_mu - 0.1 * (double)(request.surprise - taus[round]);
        }
        assert_true(fabs(mean - (double)taus[round]) < 0.02);
        qn_sampler_free(sampler);
    }
}

/* qn_sampler_pick lets the bound follow: with a low tau most tokens are the most likely one. */
TEST(picks_use_mirostat)
{
    double frequency[9];
    qn_sampling params = plain(9);
    params.mirostat = 2;
    params.mirostat_tau = 0.5f;
    params.mirostat_eta = 0.2f;
    draw_many(params, frequency);
    assert_true(frequency[0] > 0.7 && frequency[3] < 0.05);
}

TEST(seeds_repeat)
{
    qn_token first[50], again;
    for (int round = 0; round < 3; round++) {
        label("round %d", round);
        qn_sampling params = QN_SAMPLING_INIT;
        qn_sampler *sampler;
        int differ = 0;
        params.seed = round == 2 ? 8 : 7;
        assert_ok(qn_sampler_create(&params, VOCAB, &sampler));
        for (int i = 0; i < 50; i++) {
            assert_ok(qn_sampler_pick(sampler, logits, NULL, 0, round ? &again : &first[i]));
            differ += round && again != first[i];
        }
        assert_true(round == 2 ? differ > 5 : differ == 0);
        qn_sampler_free(sampler);
    }
}

TEST(rejects_bad_parameters)
{
    static const qn_token open[] = { 1, -1, 2 }, empty[] = { 1, -1, -1 }, wrong[] = { -2, -1 },
                          longest[66] = { [65] = -1 };
#define NEUTRAL .top_p = 1, .repeat_penalty = 1
    static const struct {
        qn_sampling params;
        const char *field;
    } bad[] = {
        { { .temperature = -1, .top_p = 1, .repeat_penalty = 1 }, "temperature" },
        { { .temperature = NAN, .top_p = 1, .repeat_penalty = 1 }, "temperature" },
        { { .top_k = -1, .top_p = 1, .repeat_penalty = 1 }, "top_k" },
        { { .top_p = 0, .repeat_penalty = 1 }, "top_p" },
        { { .top_p = 1.5f, .repeat_penalty = 1 }, "top_p" },
        { { .top_p = 1, .min_p = 1, .repeat_penalty = 1 }, "min_p" },
        { { .top_p = 1, .repeat_penalty = 0 }, "repeat_penalty: 0, expected 0.001 to 1000" },
        { { .top_p = 1, .repeat_penalty = 1e-38f }, "repeat_penalty: 1e-38, expected 0.001 to 1000" },
        { { .top_p = 1, .repeat_penalty = 9.9e-4f }, "repeat_penalty" },
        { { .top_p = 1, .repeat_penalty = 1001 }, "repeat_penalty: 1001, expected 0.001 to 1000" },
        { { .top_p = 1, .repeat_penalty = INFINITY }, "repeat_penalty" },
        { { .top_p = 1, .repeat_penalty = NAN }, "repeat_penalty" },
        { { NEUTRAL, .repeat_last_n = -1 }, "repeat_last_n" },
        { { NEUTRAL, .frequency_penalty = 2.1f }, "frequency_penalty: 2.1, expected -2 to 2" },
        { { NEUTRAL, .frequency_penalty = NAN }, "frequency_penalty" },
        { { NEUTRAL, .presence_penalty = -2.1f }, "presence_penalty: -2.1, expected -2 to 2" },
        { { NEUTRAL, .presence_penalty = NAN }, "presence_penalty" },
        { { NEUTRAL, .top_n_sigma = -1 }, "top_n_sigma: -1, expected 0 or more" },
        { { NEUTRAL, .top_n_sigma = NAN }, "top_n_sigma" },
        { { NEUTRAL, .top_n_sigma = INFINITY }, "top_n_sigma" },
        { { NEUTRAL, .dry_multiplier = -1 }, "dry_multiplier: -1, expected 0 to 1e6" },
        { { NEUTRAL, .dry_multiplier = NAN }, "dry_multiplier" },
        { { NEUTRAL, .dry_multiplier = 1, .dry_base = 0.5f }, "dry_base: 0.5, expected 1 to 1e6" },
        { { NEUTRAL, .dry_multiplier = 1, .dry_base = NAN }, "dry_base" },
        { { NEUTRAL, .dry_multiplier = 1, .dry_base = 2, .dry_allowed_length = -1 }, "dry_allowed_length: -1" },
        { { NEUTRAL, .dry_multiplier = 1, .dry_base = 2, .dry_penalty_last_n = -2 }, "dry_penalty_last_n: -2" },
        { { NEUTRAL, .dry_multiplier = 1, .dry_base = 2, .n_dry_breakers = 1 }, "dry_breakers: NULL" },
        { { NEUTRAL, .dry_multiplier = 1, .dry_base = 2, .dry_breakers = open, .n_dry_breakers = 3 },
          "dry_breakers: the last sequence has no -1" },
        { { NEUTRAL, .dry_multiplier = 1, .dry_base = 2, .dry_breakers = empty, .n_dry_breakers = 3 },
          "dry_breakers: a sequence of no tokens" },
        { { NEUTRAL, .dry_multiplier = 1, .dry_base = 2, .dry_breakers = wrong, .n_dry_breakers = 2 },
          "dry_breakers: -2" },
        { { NEUTRAL, .dry_multiplier = 1, .dry_base = 2, .dry_breakers = longest, .n_dry_breakers = 66 },
          "dry_breakers: a sequence of more than 64 tokens" },
        { { NEUTRAL, .mirostat = 1 }, "mirostat: 1, expected 0 or 2" },
        { { NEUTRAL, .mirostat_tau = -1 }, "mirostat_tau: -1, expected 0 to 100" },
        { { NEUTRAL, .mirostat_eta = NAN }, "mirostat_eta" },
        { { NEUTRAL, .typical_p = 1.1f }, "typical_p: 1.1, expected 0 to 1" },
        { { NEUTRAL, .typical_p = NAN }, "typical_p" },
        { { NEUTRAL, .xtc_probability = 1.1f }, "xtc_probability: 1.1, expected 0 to 1" },
        { { NEUTRAL, .xtc_probability = NAN }, "xtc_probability" },
        { { NEUTRAL, .xtc_threshold = -0.1f }, "xtc_threshold: -0.1, expected 0 to 1" },
        { { NEUTRAL, .xtc_threshold = NAN }, "xtc_threshold" },
    };
    qn_sampler *sampler;
    for (size_t i = 0; i < COUNT(bad); i++) {
        qn_sampling given = bad[i].params;
        given.size = sizeof given;
        assert_int_equal(qn_sampler_create(&given, VOCAB, &sampler), QN_ERR_INVALID);
        assert_null(sampler);
        assert_text(bad[i].field);
    }
    float x[VOCAB] = { 0 };
    qn_sampling params = plain(0);
    qn_token token = -7;
    /* Both ends of the penalty's range, with logits larger than in any model. */
    for (int i = 0; i < 2; i++) {
        params.repeat_penalty = i ? 1e3f : 1e-3f;
        assert_ok(qn_sampler_create(&params, VOCAB, &sampler));
        x[3] = 3e35f;
        x[4] = -3e35f;
        assert_ok(qn_sampler_pick(sampler, x, (const qn_token[]){ 3, 4 }, 2, &token));
        assert_int_equal(token, 3);
        qn_sampler_free(sampler);
    }
    x[3] = x[4] = 0;
    params = plain(0);
    token = -7;
    assert_ok(qn_sampler_create(&params, VOCAB, &sampler));
    x[500] = NAN;
    assert_fails(qn_sampler_pick(sampler, x, NULL, 0, &token), QN_ERR_INVALID, "token 500");
    x[500] = INFINITY;
    assert_int_equal(qn_sampler_pick(sampler, x, NULL, 0, &token), QN_ERR_INVALID);
    assert_int_equal(token, -7);
    qn_sampler_free(sampler);
}

TEST_GROUP(set_up, NULL)
