/* min_tokens: the first tokens of an answer do not end it, neither as end tokens and stop tokens nor by stop strings,
 * in sessions and in the scheduler, alone and with a grammar, which goes before it. */
#include "helper_sanitizers.h"
#include "helper_small_model.h"

#include "quern/grammar.h"

enum { TOKENS = 60, ROWS = 320, SEEDS = QN_TEST_SANITIZED ? 4 : 24 };

static qn_model *small;

static int load(void)
{
    load_small(&small);
    return 0;
}

static int unload(void)
{
    qn_model_free(small);
    return 0;
}

static const qn_token prompt[] = { 'O', 'n', 'c', 'e' };

static qn_request_params request_of(bool has_filters, uint64_t seed, struct answer *a)
{
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    memset(a, 0, sizeof *a);
    params.tokens = prompt;
    params.n_tokens = 4;
    params.max_tokens = TOKENS;
    params.sampling =
        SAMPLING(.temperature = 1.5f, .top_k = has_filters ? 200 : 0, .top_p = 1, .repeat_penalty = 1, .seed = seed);
    collect_answer(&params, a);
    return params;
}

/* In a session, and by a scheduler together with another request that may end at once. */
static void answer(qn_request_params *params, struct answer *a)
{
    static struct answer alone, beside;
    qn_request_params other = *params;
    memset(&alone, 0, sizeof alone);
    memset(&beside, 0, sizeof beside);
    params->user = &alone;
    answer_alone(small, NULL, 256, params, &alone);
    params->user = a;
    other.user = &beside;
    other.min_tokens = 0;
    qn_scheduler *scheduler = create_scheduler(small, &SCHEDULER_PARAMS(.no_thread = true));
    const qn_request_params both[] = { other, *params };
    assert_ok(qn_scheduler_submit_all(scheduler, both, 2, NULL, NULL));
    qn_scheduler_wait(scheduler);
    qn_scheduler_free(scheduler);
    assert_same_answer(a, &alone);
    assert_true(beside.n_tokens > 0);
}

static bool is_in(const qn_token *list, size_t n, qn_token token)
{
    for (size_t i = 0; i < n; i++)
        if (list[i] == token)
            return true;
    return false;
}

/* Nine of ten tokens end the answer, end tokens included. The first are those that biases of -inf leave. */
TEST(first_tokens_do_not_end)
{
    static struct answer a, biased;
    static qn_token stops[ROWS];
    static qn_logit_bias bias[ROWS];
    size_t n_stops = 0, n_ended = 0;
    for (qn_token t = 0; t < ROWS; t++)
        if (t % 10 && t != END)
            stops[n_stops++] = t;
    for (size_t i = 0; i < n_stops; i++)
        bias[i] = (qn_logit_bias){ stops[i], -INFINITY };
    bias[n_stops] = (qn_logit_bias){ END, -INFINITY };
    for (uint64_t i = 0; i < SEEDS; i++) {
        const size_t least = i % 12;
        label("seed %d", (int)i);
        qn_request_params params = request_of(i % 2, i, &a);
        params.min_tokens = (int64_t)least;
        params.stop_tokens = stops;
        params.n_stop_tokens = n_stops;
        answer(&params, &a);
        assert_true(a.n_tokens > least);
        for (size_t t = 0; t + 1 < a.n_tokens; t++)
            assert_true(a.tokens[t] != END && !is_in(stops, n_stops, a.tokens[t]));
        n_ended += a.result.finish == QN_FINISH_STOP;
        assert_int_equal(a.result.finish == QN_FINISH_STOP,
                         a.tokens[a.n_tokens - 1] == END || is_in(stops, n_stops, a.tokens[a.n_tokens - 1]));
        qn_request_params same = request_of(i % 2, i, &biased);
        same.bias = bias;
        same.n_bias = n_stops + 1;
        qn_scheduler *scheduler = create_scheduler(small, &SCHEDULER_PARAMS(.no_thread = true));
        submit_and_wait(scheduler, &same);
        qn_scheduler_free(scheduler);
        assert_memory_equal(a.tokens, biased.tokens, least * sizeof *a.tokens);
    }
    assert_true(n_ended > SEEDS / 2);
}

/* Tokens that do not end the answer because of ignore_end are not held back; stop tokens are, and end it. */
TEST(end_tokens_that_are_ignored)
{
    static struct answer a;
    static const qn_token end = END;
    const qn_logit_bias likely = { END, 30 };
    for (int is_stop = 0; is_stop < 2; is_stop++) {
        qn_request_params params = request_of(false, 3, &a);
        params.ignore_end = true;
        params.min_tokens = 10;
        params.bias = &likely;
        params.n_bias = 1;
        params.stop_tokens = &end;
        params.n_stop_tokens = (size_t)is_stop;
        qn_scheduler *scheduler = create_scheduler(small, &SCHEDULER_PARAMS(.no_thread = true));
        submit_and_wait(scheduler, &params);
        qn_scheduler_free(scheduler);
        assert_int_equal(a.n_tokens, is_stop ? 11 : TOKENS);
        for (size_t t = 0; t < a.n_tokens; t++)
            assert_int_equal(a.tokens[t] == END, !is_stop || t == 10);
    }
}

/* The letters e and t are frequent enough by their bias. */
TEST(stop_strings_come_later)
{
    static struct answer a;
    static const char *const stops[] = { "e", "te" };
    const qn_logit_bias likely[] = { { 'e', 7 }, { 't', 7 } };
    size_t n_held = 0;
    qn_scheduler *scheduler = create_scheduler(small, &SCHEDULER_PARAMS(.no_thread = true));
    for (size_t least = 0; least < 20; least++) {
        size_t end = least;
        label("%zu tokens", least);
        qn_request_params params = request_of(false, 8, &a);
        params.min_tokens = (int64_t)least;
        params.bias = likely;
        params.n_bias = 2;
        params.stop = stops;
        params.n_stop = 2;
        submit_and_wait(scheduler, &params);
        while (end < a.n_tokens && a.tokens[end] != 'e')
            end++;
        assert_true(end < a.n_tokens && a.result.is_stop_string);
        assert_int_equal(a.n_tokens, end + 1);
        const bool is_long = end > 0 && a.tokens[end - 1] == 't';
        assert_int_equal(a.result.stop_string, is_long);
        n_held += memchr(a.text, 'e', a.n_text) != NULL;
    }
    assert_true(n_held > 0);
    qn_scheduler_free(scheduler);
}

static const struct {
    const char *regex;
    size_t least, most; /* tokens that an answer may have, its end included; most 0: TOKENS */
} grammars[] = { { "yes|no", 3, 4 }, { "[0-9]{3}", 4, 4 }, { "[0-9]{2,}", 31, 0 }, { "([0-9]{40})?x", 31, 42 } };

/* What only an end may follow ends, whatever min_tokens says; where more may follow, more does. */
TEST(grammars_go_before)
{
    static struct answer a;
    for (size_t i = 0; i < COUNT(grammars); i++) {
        qn_grammar *grammar;
        assert_ok(qn_grammar_create(small, QN_GRAMMAR_REGEX, grammars[i].regex, strlen(grammars[i].regex), &grammar));
        for (uint64_t seed = 0; seed < 8; seed++) {
            label("%s, seed %d", grammars[i].regex, (int)seed);
            qn_request_params params = request_of(seed % 2, seed, &a);
            params.sampling.temperature = seed < 2 ? 0 : 1.5f;
            params.min_tokens = seed < 6 ? 30 : TOKENS;
            params.grammar = grammar;
            answer(&params, &a);
            assert_true(a.result.finish != QN_FINISH_ERROR);
            assert_in_range(a.n_tokens, i == 3 ? 2 : grammars[i].least, grammars[i].most ? grammars[i].most : TOKENS);
            assert_int_equal(a.result.finish == QN_FINISH_STOP, a.tokens[a.n_tokens - 1] == END);
        }
        qn_grammar_free(grammar);
    }
}

/* A caller's mask likewise: after two tokens it allows the end and a stop token only, of which the words behind the
 * vocabulary say nothing. */
static void mask(void *user, const qn_token *tokens, size_t n, uint32_t *allowed)
{
    (void)user;
    (void)tokens;
    allowed[n < 2 ? 'a' / 32 : END / 32] |= 1u << (n < 2 ? 'a' % 32 : END % 32);
    if (n >= 2)
        allowed['z' / 32] |= 1u << 'z' % 32;
}

TEST(masks_go_before)
{
    static struct answer a;
    static const qn_token stop = 'z';
    qn_scheduler *scheduler = create_scheduler(small, &SCHEDULER_PARAMS(.no_thread = true));
    qn_request_params params = request_of(false, 1, &a);
    params.min_tokens = 20;
    params.stop_tokens = &stop;
    params.n_stop_tokens = 1;
    params.mask = mask;
    submit_and_wait(scheduler, &params);
    assert_int_equal(a.result.finish, QN_FINISH_STOP);
    assert_int_equal(a.n_tokens, 3);
    params = request_of(false, 1, &a); /* without the stop token, it is what may follow, again and again */
    params.min_tokens = 20;
    params.mask = mask;
    submit_and_wait(scheduler, &params);
    assert_true(a.n_tokens > 20 && a.tokens[19] == 'z');
    qn_scheduler_free(scheduler);
}

TEST(refuses)
{
    static struct answer a;
    static const qn_token outside[] = { 5, ROWS }, negative[] = { -1 };
    static const char *const texts[] = { "min_tokens: 61, expected at most max_tokens, 60",
                                         "stop token 1: id 320 is outside the vocabulary, expected 0 to 319",
                                         "stop token 0: id -1 is outside the vocabulary" };
    qn_scheduler *scheduler = create_scheduler(small, &SCHEDULER_PARAMS(.no_thread = true));
    qn_session *session = create_session(small, &SESSION_PARAMS(.n_ctx = 64));
    for (size_t i = 0; i < 3; i++) {
        qn_request_params params = request_of(false, 1, &a);
        qn_request_params generate = QN_REQUEST_PARAMS_INIT;
        label("case %zu", i);
        params.min_tokens = generate.min_tokens = i == 0 ? TOKENS + 1 : 0;
        params.stop_tokens = generate.stop_tokens = i == 1 ? outside : negative;
        params.n_stop_tokens = generate.n_stop_tokens = i == 1 ? 2 : i == 2 ? 1 : 0;
        generate.max_tokens = TOKENS;
        assert_fails(qn_scheduler_submit(scheduler, &params, NULL), QN_ERR_INVALID, texts[i]);
        assert_fails(generate_from(session, prompt, 4, &generate, NULL), QN_ERR_INVALID, texts[i]);
    }
    qn_session_free(session);
    qn_scheduler_free(scheduler);
}

TEST_GROUP(load, unload)
