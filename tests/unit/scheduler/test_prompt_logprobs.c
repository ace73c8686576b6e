/* Log probabilities of prompts: those of a session that evaluates the same tokens, whatever else the steps evaluate. */
#include "helper_scheduler.h"

#include <math.h>

enum { N_CTX = 512, LONGEST = 200, LISTED = 3 };

static qn_model *model;
static uint32_t n_vocab;

static const struct setting {
    const char *name, *file, *kv;
    size_t ahead; /* sequences of a step that may be launched while another is in flight; 0: the CPU's steps */
} settings[] = {
    { "attention", "qwen3.q1_0", "f16", 0 },       { "attention, codes", "qwen3.q2_0", "aura4", 0 },
    { "recurrent", "qwen35.q1_0", "f16", 0 },      { "recurrent, codes", "qwen35.q1_0", "aura4", 0 },
    { "attention, ahead", "llama.f16", "f16", 8 }, { "recurrent, codes, ahead", "qwen35.ptq1_0", "aura4", 8 },
    { "attention, fp32", "qwen3.q1_0", "f32", 0 }, { "recurrent, fp32", "qwen35.q1_0", "f32", 0 },
};

static qn_scheduler *begin(const struct setting *setting, qn_scheduler_params params)
{
    char path[100];
    label("%s", setting->name);
    snprintf(path, sizeof path, "tests/golden/%s.gguf", setting->file);
    load_model(path, 0, 2, &model);
    n_vocab = qn_model_get_info(model)->n_vocab;
    if (setting->ahead)
        let_overlap(model, setting->ahead);
    params.kv = setting->kv;
    params.n_ctx = N_CTX;
    params.no_thread = true;
    params.run_ahead = setting->ahead;
    return create_scheduler(model, &params);
}

static void end(const struct setting *setting, qn_scheduler *scheduler)
{
    const qn_cache *cache = scheduler->cache;
    qn_scheduler_free(scheduler);
    if (setting->ahead)
        stop_overlap(model);
    assert_int_equal(items_held(cache), 0);
    qn_model_free(model);
}

/* ---- Requests ---- */

struct scored {
    struct answer answer; /* first: answer_token and the others take its address */
    qn_token prompt[LONGEST];
    size_t n_prompt;
    qn_logprobs logprobs[LONGEST];
    size_t n, stop_at; /* tokens of the prompt so far; on_prompt_token returns false at this number, 0: never */
};

static bool take_prompt(void *user, size_t index, qn_token token, const qn_logprobs *logprobs)
{
    struct scored *s = user;
    assert_int_equal(index, s->n);
    assert_int_equal(token, s->prompt[index]);
    assert_int_equal(s->answer.n_tokens, 0);
    assert_int_equal(s->answer.n_ends, 0);
    assert_true(!logprobs == !index);
    if (logprobs)
        s->logprobs[index] = *logprobs;
    return ++s->n != s->stop_at;
}

static qn_request_params request_of(uint64_t seed, size_t n, int64_t max_tokens, struct scored *s)
{
    memset(s, 0, sizeof *s);
    s->n_prompt = n;
    for (size_t i = 0; i < n; i++)
        s->prompt[i] = (qn_token)(qn_splitmix(&seed) % n_vocab);
    qn_request_params params = prompt_of(s->prompt, n, max_tokens, &s->answer);
    params.on_text = NULL; /* there is no tokeniser */
    params.n_prompt_logprobs = LISTED;
    params.on_prompt_token = take_prompt;
    return params;
}

/* ---- The same from a session ---- */

static double log_sum(const float *logits)
{
    double largest = logits[0], sum = 0;
    for (size_t i = 1; i < n_vocab; i++)
        largest = logits[i] > largest ? logits[i] : largest;
    for (size_t i = 0; i < n_vocab; i++)
        sum += exp(logits[i] - largest);
    return largest + log(sum);
}

/* A float's rounding near the largest magnitudes here, 2^5. */
static void assert_near(double found, double expected)
{
    assert_true(fabs(found - expected) < 4e-6);
}

static void check_row(const float *logits, qn_token token, const qn_logprobs *found)
{
    const double sum = log_sum(logits);
    assert_near(found->chosen, logits[token] - sum);
    assert_int_equal(found->n, LISTED);
    for (uint32_t i = 0; i < found->n; i++) {
        size_t n_before = 0; /* tokens that are to be listed before this one */
        for (size_t t = 0; t < n_vocab; t++)
            n_before += logits[t] > logits[found->tokens[i]] ||
                        (logits[t] == logits[found->tokens[i]] && (qn_token)t < found->tokens[i]);
        assert_int_equal(n_before, i);
        assert_near(found->values[i], logits[found->tokens[i]] - sum);
    }
}

static void check_prompt(const struct setting *setting, const struct scored *s)
{
    float *logits = malloc((size_t)LONGEST * n_vocab * sizeof *logits);
    assert_non_null(logits);
    qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = N_CTX, .kv = setting->kv));
    assert_ok(qn_session_eval(session, s->prompt, s->n_prompt, QN_LOGITS_ALL, logits));
    for (size_t i = 1; i < s->n; i++)
        check_row(logits + (i - 1) * n_vocab, s->prompt[i], &s->logprobs[i]);
    qn_session_free(session);
    free(logits);
}

/* A request of other rows: its answer is that of the request alone. */
static void check_answer(const struct setting *setting, qn_request_params params, const struct answer *found)
{
    struct answer expected = { 0 };
    params.user = &expected;
    answer_alone(model, setting->kv, N_CTX, &params, &expected);
    assert_same_answer(found, &expected);
}

static void check(const struct setting *setting, const qn_request_params *params, const struct scored *s)
{
    label("%s: a prompt of %zu", setting->name, s->n_prompt);
    assert_int_equal(s->answer.n_ends, 1);
    assert_int_equal(s->answer.result.finish, QN_FINISH_LENGTH);
    assert_int_equal(s->n, s->n_prompt);
    check_prompt(setting, s);
    if (params->max_tokens)
        check_answer(setting, *params, &s->answer);
    else
        assert_int_equal(s->answer.n_tokens, 0);
}

/* ---- Tests ---- */

/* Prompts of one token, of as many rows as a step scores and one more or less, and longer ones, next to decode rows. */
TEST_EACH(beside_others, struct setting, setting, settings)
{
    enum { N = 7, DECODING = 2 };
    static const size_t lengths[N] = { 1, 2, QN_STEP_SCORED, QN_STEP_SCORED + 1, QN_STEP_SCORED + 2, 150, LONGEST };
    static struct scored scored[N];
    static struct answer decoding[DECODING];
    qn_request_params params[N], others[DECODING];
    qn_token prompts[DECODING][10];
    qn_scheduler *scheduler = begin(setting, SCHEDULER_PARAMS(.max_sequences = 8));
    for (size_t i = 0; i < DECODING; i++) {
        uint64_t seed = 100 + i;
        for (size_t t = 0; t < 10; t++)
            prompts[i][t] = (qn_token)(qn_splitmix(&seed) % n_vocab);
        others[i] = prompt_of(prompts[i], 10, 40, &decoding[i]);
        others[i].on_text = NULL;
        submit_request(scheduler, &others[i]);
    }
    step(scheduler);
    for (size_t i = 0; i < N; i++) {
        params[i] = request_of(i, lengths[i], i % 2 ? 5 : 0, &scored[i]);
        submit_request(scheduler, &params[i]);
    }
    assert_ok(qn_scheduler_wait(scheduler));
    for (size_t i = 0; i < N; i++)
        check(setting, &params[i], &scored[i]);
    for (size_t i = 0; i < DECODING; i++)
        check_answer(setting, others[i], &decoding[i]);
    end(setting, scheduler);
}

/* All rows are evaluated, and kept for others. */
TEST_EACH(reuses_no_prefix, struct setting, setting, settings)
{
    static struct scored first, second;
    static struct answer third;
    qn_scheduler *scheduler = begin(setting, SCHEDULER_PARAMS(.max_sequences = 2));
    qn_request_params params = request_of(1, LONGEST, 0, &first);
    submit_and_wait(scheduler, &params);
    check(setting, &params, &first);
    params = request_of(1, LONGEST, 2, &second);
    submit_and_wait(scheduler, &params);
    check(setting, &params, &second);
    assert_int_equal(second.answer.result.n_reused, 0);
    params = prompt_of(first.prompt, LONGEST, 2, &third);
    params.on_text = NULL;
    submit_and_wait(scheduler, &params);
    assert_int_equal(third.result.n_reused, (LONGEST - 1) / QN_PAGE * QN_PAGE);
    assert_memory_equal(third.tokens, second.answer.tokens, 2 * sizeof *third.tokens);
    end(setting, scheduler);
}

/* A request that was set aside goes on where it was, with the rows that were kept or by evaluating them again. */
TEST_EACH(is_set_aside, struct setting, setting, settings)
{
    static struct scored scored;
    for (int i = 0; i < 4; i++) {
        qn_scheduler *scheduler =
            begin(setting, SCHEDULER_PARAMS(.max_sequences = 2, .no_prefix_cache = i % 2, .max_rows = 40));
        qn_request_params params = request_of(5, LONGEST, i / 2 ? 3 : 0, &scored);
        submit_request(scheduler, &params);
        for (size_t round = 0; round < QN_MAX_SET_ASIDE; round++) {
            while (scored.n < 50 * (round + 1))
                step(scheduler);
            while (scheduler->flight)
                step(scheduler);
            qn_scheduler_set_aside(scheduler, scheduler->running[0]);
        }
        assert_ok(qn_scheduler_wait(scheduler));
        assert_int_equal(scored.answer.result.n_set_aside, QN_MAX_SET_ASIDE);
        check(setting, &params, &scored);
        end(setting, scheduler);
    }
}

TEST_EACH(ends_in_the_prompt, struct setting, setting, settings)
{
    static struct scored stopped, cancelled, whole;
    uint64_t id;
    qn_scheduler *scheduler = begin(setting, SCHEDULER_PARAMS(.max_sequences = 4));
    qn_request_params params = request_of(1, LONGEST, 5, &stopped);
    stopped.stop_at = 70;
    submit_request(scheduler, &params);
    params = request_of(2, LONGEST, 5, &cancelled);
    assert_ok(qn_scheduler_submit(scheduler, &params, &id));
    params = request_of(3, LONGEST, 5, &whole);
    submit_request(scheduler, &params);
    while (!cancelled.n)
        step(scheduler);
    qn_scheduler_cancel(scheduler, id);
    assert_ok(qn_scheduler_wait(scheduler));
    assert_int_equal(stopped.answer.result.finish, QN_FINISH_CALLBACK);
    assert_int_equal(stopped.n, 70);
    assert_int_equal(cancelled.answer.result.finish, QN_FINISH_CANCELLED);
    assert_true(cancelled.n < LONGEST);
    assert_int_equal(stopped.answer.n_tokens + cancelled.answer.n_tokens, 0);
    check_prompt(setting, &stopped);
    check_prompt(setting, &cancelled);
    check(setting, &params, &whole);
    end(setting, scheduler);
}

/* The long prompts of one client do not hold up a short one of another: it waits for one step at most. */
TEST(clients_share_scored_rows)
{
    enum { N = 3 };
    static struct scored many[N], one;
    const struct setting *setting = &settings[0];
    qn_scheduler *scheduler = begin(setting, SCHEDULER_PARAMS(.max_sequences = 8, .max_rows = 2 * QN_STEP_SCORED));
    for (size_t i = 0; i < N; i++) {
        qn_request_params params = request_of(i, LONGEST, 0, &many[i]);
        params.client = "many";
        submit_request(scheduler, &params);
    }
    step(scheduler);
    qn_request_params params = request_of(9, 40, 0, &one);
    params.client = "one";
    submit_request(scheduler, &params);
    step(scheduler);
    step(scheduler);
    assert_int_equal(one.answer.n_ends, 1);
    assert_ok(qn_scheduler_wait(scheduler));
    check(setting, &params, &one);
    for (size_t i = 0; i < N; i++)
        check_prompt(setting, &many[i]);
    end(setting, scheduler);
}

TEST(refuses)
{
    static struct scored scored;
    const struct setting *setting = &settings[0];
    qn_scheduler *scheduler = begin(setting, SCHEDULER_PARAMS(.max_sequences = 2));
    qn_request_params params = request_of(1, 5, 1, &scored);
    params.n_prompt_logprobs = QN_MAX_LOGPROBS + 1;
    assert_fails(qn_scheduler_submit(scheduler, &params, NULL), QN_ERR_INVALID, "of the prompt: 21, expected -1 to 20");
    params.n_prompt_logprobs = -2;
    assert_fails(qn_scheduler_submit(scheduler, &params, NULL), QN_ERR_INVALID, "of the prompt: -2");
    params.n_prompt_logprobs = 0;
    params.reasoning_budget = 5;
    assert_fails(qn_scheduler_submit(scheduler, &params, NULL), QN_ERR_INVALID, "with a reasoning budget");
    params.reasoning_budget = -1;
    qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = N_CTX));
    assert_fails(qn_generate(session, &params, NULL), QN_ERR_UNSUPPORTED, "only a scheduler");
    qn_session_free(session);
    end(setting, scheduler);
}

/* Log probabilities after sampling are the same with steps that could run ahead: such a row's token is sampled on the
 * host, and the next step waits for it. */
TEST(after_sampling)
{
    enum { N = 8 };
    static struct scored scored[2];
    for (size_t i = 0; i < 2; i++) {
        struct setting setting = settings[4];
        setting.ahead = i ? setting.ahead : 0;
        qn_scheduler *scheduler = begin(&setting, SCHEDULER_PARAMS(.max_sequences = 2));
        qn_request_params params = request_of(1, 5, N, &scored[i]);
        params.on_prompt_token = NULL;
        params.n_logprobs = 4;
        params.logprobs_after = true;
        params.sampling = SAMPLING(.temperature = 2, .top_k = 9, .top_p = 0.9f, .repeat_penalty = 1, .seed = 3);
        submit_and_wait(scheduler, &params);
        assert_int_equal(scored[i].answer.n_tokens, N);
        end(&setting, scheduler);
    }
    assert_memory_equal(scored[0].answer.tokens, scored[1].answer.tokens, N * sizeof *scored->answer.tokens);
    for (size_t t = 0; t < N; t++) {
        const qn_logprobs *a = &scored[0].answer.logprobs[t], *b = &scored[1].answer.logprobs[t];
        assert_true(a->chosen == b->chosen && a->n == b->n && a->n > 0);
        assert_memory_equal(a->values, b->values, a->n * sizeof *a->values);
        assert_memory_equal(a->tokens, b->tokens, a->n * sizeof *a->tokens);
    }
}
