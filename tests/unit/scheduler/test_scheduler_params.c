/* What a request can ask beside its sampling parameters: bias, log probabilities, masks. Log probabilities are compared
 * with those of a session's logits; answers are the same alone and beside others. */
#include "helper_sanitizers.h"
#include "helper_demo.h"

#include <math.h>
#include <unistd.h>

enum { PROMPT = 70, OTHER_PROMPT = 100, TOKENS = QN_TEST_SANITIZED ? 6 : 16, MASKS = 5, NEIGHBOURS = 4 };

/* ---- Requests ---- */

/* What masks and their checks have been asked. Every fifth token is allowed, another fifth after each token. */
struct constraint {
    struct answer answer; /* first: callbacks get it */
    size_t n_masks, n_checks, n_accepted;
    bool all; /* every token is allowed */
};

static bool is_allowed(const struct constraint *c, const qn_token *answer, size_t n, qn_token token)
{
    return c->all || token % MASKS == (qn_token)(n ? (answer[n - 1] + 1) % MASKS : 0);
}

static void mask(void *user, const qn_token *answer, size_t n, uint32_t *allowed)
{
    struct constraint *c = user;
    c->n_masks++;
    for (uint32_t i = 0; i < n_vocab; i++)
        if (is_allowed(c, answer, n, (qn_token)i))
            allowed[i / 32] |= 1u << i % 32;
}

static bool accepts(void *user, const qn_token *answer, size_t n, qn_token token)
{
    struct constraint *c = user;
    const bool accepted = is_allowed(c, answer, n, token);
    c->n_checks++;
    c->n_accepted += accepted;
    return accepted;
}

static qn_token prompt[PROMPT];

static qn_request_params params_of(struct constraint *c, float temperature)
{
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    uint64_t seed = 3;
    for (size_t i = 0; i < PROMPT; i++)
        prompt[i] = (qn_token)(qn_splitmix(&seed) % n_vocab);
    memset(c, 0, sizeof *c);
    params.tokens = prompt;
    params.n_tokens = PROMPT;
    params.max_tokens = TOKENS;
    params.ignore_end = true;
    params.sampling = SAMPLING(.temperature = temperature, .top_p = 1, .repeat_penalty = 1, .seed = 5);
    collect_answer(&params, &c->answer);
    return params;
}

/* The answer of a scheduler, beside as many requests of random prompts. */
static void answer_beside(const qn_request_params *params, size_t n_others, qn_scheduler_params with)
{
    static struct constraint others[NEIGHBOURS];
    static qn_token tokens[NEIGHBOURS][OTHER_PROMPT];
    uint64_t seed = 9;
    with.size = sizeof with;
    qn_scheduler *scheduler = create_scheduler(model, &with);
    for (size_t i = 0; i < n_others; i++) {
        qn_request_params other = params_of(&others[i], 1);
        for (size_t j = 0; j < OTHER_PROMPT; j++)
            tokens[i][j] = (qn_token)(qn_splitmix(&seed) % n_vocab);
        other.tokens = tokens[i];
        other.n_tokens = OTHER_PROMPT;
        other.mask = i % 2 ? mask : NULL;
        other.accepts = i % 4 == 1 ? accepts : NULL;
        other.n_logprobs = (int)i - 1;
        submit_request(scheduler, &other);
    }
    submit_and_wait(scheduler, params);
    qn_scheduler_free(scheduler);
}

static void answer_of(const qn_request_params *params)
{
    answer_beside(params, 0, SCHEDULER_PARAMS(.no_thread = true));
}

static void assert_same(const struct answer *a, const struct answer *b)
{
    assert_int_equal(a->result.finish, b->result.finish);
    assert_same_answer(a, b);
    for (size_t i = 0; i < a->n_tokens; i++) {
        label("token %zu", i);
        assert_memory_equal(&a->logprobs[i].chosen, &b->logprobs[i].chosen, sizeof(float));
        assert_int_equal(a->logprobs[i].n, b->logprobs[i].n);
        assert_memory_equal(a->logprobs[i].tokens, b->logprobs[i].tokens, a->logprobs[i].n * sizeof(qn_token));
        assert_memory_equal(a->logprobs[i].values, b->logprobs[i].values, a->logprobs[i].n * sizeof(float));
    }
}

/* ---- Refusals ---- */

TEST(refuses_requests)
{
    const qn_logit_bias outside = { (qn_token)n_vocab, 1 }, nan = { 1, NAN }, infinite = { 1, INFINITY };
    static struct constraint c;
    const struct {
        qn_request_params params;
        const char *text;
    } cases[] = {
        { { .bias = &outside, .n_bias = 1 }, "bias 0: id 4096 is outside the vocabulary, expected 0 to 4095" },
        { { .bias = &nan, .n_bias = 1 }, "bias 0: nan, expected a finite value or -inf" },
        { { .bias = &infinite, .n_bias = 1 }, "bias 0: inf" },
        { { .n_logprobs = 21 }, "log probabilities: 21, expected -1 to 20" },
        { { .n_logprobs = -2 }, "log probabilities: -2" },
        { { .accepts = accepts }, "accepts: it is given without mask" },
    };
    qn_scheduler *scheduler = create_scheduler(model, &SCHEDULER_PARAMS(.no_thread = true));
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("%s", cases[i].text);
        qn_request_params params = params_of(&c, 0);
        params.bias = cases[i].params.bias;
        params.n_bias = cases[i].params.n_bias;
        params.n_logprobs = cases[i].params.n_logprobs;
        params.accepts = cases[i].params.accepts;
        assert_fails(qn_scheduler_submit(scheduler, &params, NULL), QN_ERR_INVALID, cases[i].text);
    }
    qn_scheduler_free(scheduler);
    assert_int_equal(c.answer.n_ends, 0);
}

/* ---- Log probabilities and bias ---- */

static double log_sum(const float *logits)
{
    double largest = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n_vocab; i++)
        largest = logits[i] > largest ? logits[i] : largest;
    for (uint32_t i = 0; i < n_vocab; i++)
        sum += exp(logits[i] - largest);
    return largest + log(sum);
}

/* Bias, penalties and masks do not change them. */
static void check_logprobs(const qn_logprobs *found, qn_token sampled, const float *logits, double tolerance)
{
    const double sum = log_sum(logits);
    assert_true(fabs(found->chosen - (logits[sampled] - sum)) < tolerance);
    for (uint32_t k = 0; k < found->n; k++) {
        size_t n_larger = 0;
        for (uint32_t v = 0; v < n_vocab; v++)
            n_larger += logits[v] > logits[found->tokens[k]] + tolerance;
        assert_true(n_larger <= k);
        assert_true(fabs(found->values[k] - (logits[found->tokens[k]] - sum)) < tolerance);
        assert_true(k == 0 || found->values[k] <= found->values[k - 1]);
    }
}

static void check_requests(double tolerance)
{
    static const qn_logit_bias bias[] = { { 7, 100 }, { 9, 99 }, { 9, 1 } };
    static const int n_logprobs[] = { 0, 1, 20, 5, 20 };
    static struct constraint c;
    float *logits = malloc(n_vocab * sizeof *logits);
    assert_non_null(logits);
    for (int i = 0; i < 5; i++) {
        label("case %d", i);
        qn_request_params params = params_of(&c, 1);
        params.n_logprobs = n_logprobs[i];
        params.bias = bias;
        params.n_bias = i == 2 || i == 4 ? 3 : 0;
        params.mask = i > 2 ? mask : NULL;
        params.accepts = i > 2 ? accepts : NULL;
        params.sampling.frequency_penalty = i == 4 ? 1 : 0;
        answer_of(&params);
        assert_int_equal(c.answer.n_tokens, TOKENS);
        assert_true(i < 3 || c.n_masks > 0);
        qn_session *session = create_session(model, NULL);
        for (size_t t = 0; t < TOKENS; t++) {
            if (t == 0)
                assert_ok(qn_session_eval(session, prompt, PROMPT, QN_LOGITS_LAST, logits));
            else
                assert_ok(qn_session_eval(session, &c.answer.tokens[t - 1], 1, QN_LOGITS_LAST, logits));
            assert_int_equal(c.answer.logprobs[t].n, n_logprobs[i]);
            check_logprobs(&c.answer.logprobs[t], c.answer.tokens[t], logits, tolerance);
            assert_true(i != 2 || c.answer.tokens[t] == 7 || c.answer.tokens[t] == 9);
            assert_true(i < 3 || is_allowed(&c, c.answer.tokens, t, c.answer.tokens[t]));
        }
        qn_session_free(session);
    }
    free(logits);
}

/* The tolerance: a sum of float weights, each off by a few units in the last place, and rounding to a float. */
TEST(log_probabilities_are_those_of_the_logits)
{
    check_requests(1e-5);
}

/* The tolerance: logits of a prompt that is evaluated in pieces of another size. */
TEST(log_probabilities_on_a_gpu)
{
    qn_model *const on_cpu = model;
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/scheduler.gguf", QN_SOURCE_DIR);
    const qn_status status = qn_model_load(path, &MODEL_PARAMS(.device = "cuda", .n_threads = 2), &model);
    if (status == QN_OK) {
        check_requests(0.02);
        qn_model_free(model);
    }
    model = on_cpu;
    if (status == QN_ERR_UNSUPPORTED)
        skip();
    assert_ok(status);
}

TEST(no_log_probabilities_without_being_asked)
{
    static struct constraint c, asked;
    qn_request_params params = params_of(&c, 1);
    answer_of(&params);
    params = params_of(&asked, 1);
    params.n_logprobs = 20;
    answer_of(&params);
    assert_true(c.answer.logprobs[0].chosen == 0 && asked.answer.logprobs[0].chosen != 0);
    assert_same_answer(&c.answer, &asked.answer);
}

/* ---- Masks ---- */

TEST(masks_allow_what_they_say)
{
    static struct constraint masked, checked, all, free_of_masks;
    for (int i = 0; i < 2; i++) {
        label("temperature %d", i);
        qn_request_params params = params_of(&masked, (float)i);
        params.mask = mask;
        answer_of(&params);
        assert_int_equal(masked.n_masks, TOKENS);
        for (size_t t = 0; t < TOKENS; t++)
            assert_true(is_allowed(&masked, masked.answer.tokens, t, masked.answer.tokens[t]));
        params = params_of(&checked, (float)i);
        params.mask = mask;
        params.accepts = accepts;
        answer_of(&params);
        assert_int_equal(checked.n_checks, TOKENS);
        assert_int_equal(checked.n_masks, TOKENS - checked.n_accepted);
        assert_true(checked.n_masks > 0);
        for (size_t t = 0; t < TOKENS; t++)
            assert_true(is_allowed(&checked, checked.answer.tokens, t, checked.answer.tokens[t]));
        if (i == 0)
            assert_same_answer(&masked.answer, &checked.answer);
        params = params_of(&all, (float)i);
        params.mask = mask;
        all.all = true;
        answer_of(&params);
        params = params_of(&free_of_masks, (float)i);
        answer_of(&params);
        assert_same_answer(&all.answer, &free_of_masks.answer);
    }
}

static void mask_nothing(void *user, const qn_token *answer, size_t n, uint32_t *allowed)
{
    (void)user;
    (void)answer;
    (void)n;
    (void)allowed;
}

TEST(an_empty_mask_is_an_error)
{
    static struct constraint c;
    qn_request_params params = params_of(&c, 1);
    params.mask = mask_nothing;
    answer_of(&params);
    assert_int_equal(c.answer.result.finish, QN_FINISH_ERROR);
    assert_int_equal(c.answer.result.status, QN_ERR_INVALID);
    assert_contains(c.answer.error, "the largest of the allowed tokens is -inf");
    assert_int_equal(c.answer.n_tokens, 0);
}

/* ---- Neighbours ---- */

/* All at once: alone, beside others, in small pieces, with threads, and when memory is given up and evaluated again. */
TEST(answers_do_not_depend_on_neighbours)
{
    static const qn_logit_bias bias[] = { { 50, -INFINITY }, { 51, 3 }, { 52, 3 } };
    static struct constraint alone, beside;
    const qn_scheduler_params with[] = { { .no_thread = true }, { .max_rows = 16 }, { 0 }, { .max_sequences = 2 } };
    for (int i = 0; i < 4; i++)
        for (size_t k = 0; k < COUNT(with); k++) {
            for (int j = 0; j < 2; j++) {
                qn_request_params params = params_of(j ? &beside : &alone, i == 3 ? 0 : 1);
                params.sampling.frequency_penalty = 0.3f;
                params.bias = bias;
                params.n_bias = 3;
                params.n_logprobs = 6;
                params.mask = i ? mask : NULL;
                params.accepts = i > 1 ? accepts : NULL;
                answer_beside(&params, j ? NEIGHBOURS : 0, with[k]);
            }
            label("case %d, scheduler %zu", i, k);
            assert_int_equal(alone.answer.n_tokens, TOKENS);
            assert_same(&alone.answer, &beside.answer);
        }
}

/* A request that waits for its mask gives up its memory: it is evaluated again, and its token is sampled once. */
TEST(a_request_that_waits_is_set_aside)
{
    static struct constraint c, expected;
    bool idle = false;
    size_t n_set_aside = 0;
    qn_request_params params = params_of(&expected, 1);
    params.mask = mask;
    params.accepts = accepts;
    answer_of(&params);
    params = params_of(&c, 1);
    params.mask = mask;
    params.accepts = accepts;
    qn_scheduler *scheduler = create_scheduler(model, &SCHEDULER_PARAMS(.no_thread = true));
    submit_request(scheduler, &params);
    while (!idle) {
        idle = !qn_scheduler_run_step(scheduler);
        qn_request *r = scheduler->n_running ? scheduler->running[0] : NULL;
        if (r && atomic_load(&r->mask_state) == QN_MASK_WAITING && n_set_aside < QN_MAX_SET_ASIDE) {
            qn_scheduler_set_aside(scheduler, r);
            if (n_set_aside++)
                (void)qn_scheduler_run_step(scheduler); /* evaluated again before there is a mask */
        }
        qn_scheduler_deliver(scheduler);
    }
    assert_int_equal(c.answer.result.n_set_aside, QN_MAX_SET_ASIDE);
    assert_same(&c.answer, &expected.answer);
    assert_int_equal(c.n_checks, expected.n_checks);
    qn_scheduler_free(scheduler);
}

static qn_scheduler *watched;

/* Returns when all tokens of the other request have been generated. */
static void slow_mask(void *user, const qn_token *answer, size_t n, uint32_t *allowed)
{
    for (int i = 0; i < 6000 && counters_of(watched).generated_tokens < TOKENS; i++)
        usleep(10000);
    mask(user, answer, n, allowed);
}

TEST(slow_masks_block_no_other_request)
{
    static struct constraint slow, quick;
    watched = create_scheduler(model, NULL);
    qn_request_params params = params_of(&slow, 1);
    params.mask = slow_mask;
    params.max_tokens = 2;
    submit_request(watched, &params);
    params = params_of(&quick, 1);
    submit_and_wait(watched, &params);
    assert_int_equal(slow.answer.n_tokens, 2);
    assert_true(slow.answer.result.prompt_seconds < 60);
    assert_int_equal(quick.answer.n_tokens, TOKENS);
    qn_scheduler_free(watched);
}

/* ---- Ends ---- */

/* Cancelled from the mask's thread, late while it waits, and with the scheduler. */
static void cancel_in_mask(void *user, const qn_token *answer, size_t n, uint32_t *allowed)
{
    struct constraint *c = user;
    mask(user, answer, n, allowed);
    if (n == 3)
        qn_scheduler_cancel(watched, c->answer.n_ends ? 0 : 1);
}

TEST(ends_while_it_waits)
{
    static struct constraint c;
    bool idle;
    for (int i = 0; i < 2; i++) {
        label("thread %d", i);
        watched = create_scheduler(model, &SCHEDULER_PARAMS(.no_thread = !i));
        qn_request_params params = params_of(&c, 1);
        params.mask = cancel_in_mask;
        submit_and_wait(watched, &params);
        assert_int_equal(c.answer.result.finish, QN_FINISH_CANCELLED);
        assert_int_equal(c.answer.n_tokens, 3);
        assert_int_equal(c.answer.n_ends, 1);
        qn_scheduler_free(watched);
    }
    watched = create_scheduler(model, &SCHEDULER_PARAMS(.no_thread = true));
    qn_request_params params = params_of(&c, 1);
    params.mask = mask;
    params.deadline = 1000;
    submit_request(watched, &params);
    assert_ok(qn_scheduler_step(watched, &idle));
    (void)qn_scheduler_run_step(watched);
    assert_int_equal(atomic_load(&watched->running[0]->mask_state), QN_MASK_WAITING);
    watched->running[0]->deadline = qn_now();
    qn_scheduler_wait(watched);
    assert_int_equal(c.answer.result.finish, QN_FINISH_DEADLINE);
    assert_string_equal(c.answer.error, "");
    params = params_of(&c, 1);
    params.mask = mask;
    submit_request(watched, &params);
    (void)qn_scheduler_run_step(watched);
    qn_scheduler_free(watched);
    assert_int_equal(c.answer.result.finish, QN_FINISH_CANCELLED);
    assert_int_equal(c.n_masks, 0);
}

/* ---- Memory ---- */

enum { MOST_ASKED = 4 };

/* What on_memory was called with. It allows n calls. */
static struct {
    size_t bytes[MOST_ASKED], n, most;
} asked;

static bool on_memory(void *user, size_t bytes)
{
    (void)user;
    if (asked.n == asked.most)
        return false;
    asked.bytes[asked.n++] = bytes;
    return true;
}

TEST(says_what_it_keeps)
{
    enum { STOP = 60000, BIASES = 1000, REST = 16 << 10 };
    static const char gbnf[] = "root ::= [a-z]+ \"a long text of a grammar\"";
    static struct constraint c;
    static char stop[STOP + 1];
    static qn_logit_bias bias[BIASES];
    const char *const stops[] = { stop };
    qn_grammar *grammar;
    uint64_t ids[2];
    assert_ok(qn_grammar_create(model, QN_GRAMMAR_GBNF, gbnf, strlen(gbnf), &grammar));
    qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.no_thread = true));
    qn_request_params params = params_of(&c, 0);
    params.on_memory = on_memory;
    memset(stop, 'x', STOP);
    for (size_t most = 0; most <= 2; most++) {
        label("%zu calls", most);
        qn_request_params all[2] = { params, params };
        all[0].stop = all[1].stop = stops;
        all[0].n_stop = all[1].n_stop = 1;
        all[0].bias = all[1].bias = bias;
        all[0].n_bias = all[1].n_bias = BIASES;
        all[0].grammar = all[1].grammar = grammar;
        asked.n = 0;
        asked.most = most;
        assert_int_equal(qn_scheduler_submit_all(s, all, 2, ids, NULL), most < 2 ? QN_ERR_BUSY : QN_OK);
        if (most < 2)
            assert_text("memory");
        assert_int_equal(asked.n, most);
        assert_int_equal(counters_of(s).queued, most < 2 ? 0 : 2);
        assert_int_equal(c.answer.n_ends, 0);
    }
    assert_in_range(asked.bytes[0], 28 * STOP + sizeof bias + sizeof prompt,
                    28 * STOP + sizeof bias + sizeof prompt + 3 * REST);
    assert_in_range(asked.bytes[1], sizeof(qn_request), REST); /* the rest is shared */
    qn_scheduler_free(s);
    qn_grammar_free(grammar);
}
