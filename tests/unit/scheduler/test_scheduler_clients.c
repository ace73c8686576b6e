/* Clients of a scheduler: what the requests of one submission share, how many of a client may wait, and that the
 * requests of one client do not hold up those of another, whatever they are. Each answer is compared with that of the
 * request alone. */
#include "helper_demo.h"
#include "helper_sanitizers.h"

#include <malloc.h>

enum { PROMPT = 40 };

struct job {
    qn_token prompt[PROMPT];
    qn_request_params params;
    struct answer found;
};

static void make_job(struct job *job, const char *client, uint64_t seed, size_t n_prompt, int64_t max_tokens)
{
    memset(job, 0, sizeof *job);
    make_tokens(seed, job->prompt, n_prompt);
    job->params = (qn_request_params)QN_REQUEST_PARAMS_INIT;
    job->params.tokens = job->prompt;
    job->params.n_tokens = n_prompt;
    job->params.max_tokens = max_tokens;
    job->params.ignore_end = true;
    job->params.sampling.seed = seed;
    job->params.client = client;
    collect_answer(&job->params, &job->found);
}

static void submit(qn_scheduler *scheduler, struct job *job)
{
    submit_request(scheduler, &job->params);
}

static struct job *submit_many(qn_scheduler *scheduler, const char *client, size_t n, int64_t max_tokens)
{
    struct job *jobs = calloc(n, sizeof *jobs);
    assert_non_null(jobs);
    for (size_t i = 0; i < n; i++) {
        make_job(&jobs[i], client, 1000 + i, PROMPT, max_tokens);
        submit(scheduler, &jobs[i]);
    }
    return jobs;
}

static void check_job(struct job *job)
{
    struct answer alone = { 0 };
    assert_int_equal(job->found.n_ends, 1);
    assert_int_equal(job->found.result.finish, QN_FINISH_LENGTH);
    job->params.user = &alone;
    answer_alone(model, NULL, 2048, &job->params, &alone);
    assert_same_answer(&job->found, &alone);
}

static qn_scheduler *new_scheduler(qn_scheduler_params params)
{
    params.no_thread = true;
    params.n_ctx = 2048;
    return create_scheduler(model, &params);
}

static size_t n_running(const qn_scheduler *scheduler, const char *client)
{
    for (const qn_client *c = scheduler->clients; c; c = c->next)
        if (!strcmp(c->name, client))
            return c->n_running;
    return 0;
}

/* ---- What is shared ---- */

enum { CHOICES = 128, STOPS = 64, STOP_BYTES = 1024 };

static void make_stops(char text[STOPS][STOP_BYTES + 1], const char *stops[STOPS])
{
    for (size_t i = 0; i < STOPS; i++) {
        memset(text[i], 'a', STOP_BYTES);
        text[i][STOP_BYTES] = '\0';
        snprintf(text[i], 16, "%zu", 1000 + i);
        text[i][4] = 'a';
        stops[i] = text[i];
    }
}

/* 66 KB of stop strings, for which an automaton has 1.8 MB, a bias and a long prompt: 128 choices have them once. */
TEST(choices_share_what_they_point_to)
{
    enum { LONG = 1500 };
    static char text[STOPS][STOP_BYTES + 1];
    static struct answer found[CHOICES];
    static qn_logit_bias bias[1000];
    const char *stops[STOPS];
    qn_token *prompt = malloc(LONG * sizeof *prompt);
    uint64_t ids[CHOICES];
    qn_request_params params[CHOICES];
    qn_scheduler *scheduler = new_scheduler((qn_scheduler_params)QN_SCHEDULER_PARAMS_INIT);
    assert_non_null(prompt);
    make_tokens(5, prompt, LONG);
    make_stops(text, stops);
    memset(found, 0, sizeof found);
    for (size_t i = 0; i < CHOICES; i++) {
        params[i] = (qn_request_params)QN_REQUEST_PARAMS_INIT;
        params[i].tokens = prompt;
        params[i].n_tokens = LONG;
        params[i].stop = stops;
        params[i].n_stop = STOPS;
        params[i].bias = bias;
        params[i].n_bias = COUNT(bias);
        params[i].max_tokens = 2;
        params[i].sampling.seed = i;
        collect_answer(&params[i], &found[i]);
    }
    const size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
    assert_ok(qn_scheduler_submit_all(scheduler, params, CHOICES, ids, NULL));
    const size_t bytes = mallinfo2().uordblks + mallinfo2().hblkhd - before;
    if (!QN_TEST_SANITIZED)
        assert_in_range(bytes, 1, 8 << 20);
    memset(prompt, 0xff, LONG * sizeof *prompt); /* copied */
    free(prompt);
    memset(text, 0, sizeof text);
    memset(bias, 0xff, sizeof bias);
    const qn_request *first = scheduler->clients->queue;
    assert_int_equal(first->prompt->n_users, CHOICES);
    assert_int_equal(first->lists->n_users, CHOICES);
    assert_ptr_equal(first->tokens, first->prompt->tokens);
    for (size_t i = 1; i < CHOICES; i++)
        assert_int_equal(ids[i], ids[i - 1] + 1);
    for (int i = 0; i < 3; i++) /* some have begun: the others end before */
        step(scheduler);
    for (size_t i = 8; i < CHOICES; i++)
        qn_scheduler_cancel(scheduler, ids[i]);
    qn_scheduler_wait(scheduler);
    for (size_t i = 0; i < CHOICES; i++)
        assert_int_equal(found[i].n_ends, 1);
    qn_scheduler_free(scheduler);
    memset(bias, 0, sizeof bias);
}

/* Other prompts with the same lists, and other lists for the same prompt. */
TEST(parts_are_shared_apart)
{
    static const char *const stop[] = { "the" };
    struct job jobs[4];
    qn_request_params params[4];
    qn_scheduler *scheduler = new_scheduler((qn_scheduler_params)QN_SCHEDULER_PARAMS_INIT);
    for (size_t i = 0; i < 4; i++) {
        make_job(&jobs[i], NULL, i / 2, PROMPT, 4);
        params[i] = jobs[i].params;
        params[i].tokens = jobs[i / 2 * 2].prompt;
        params[i].stop = i == 3 ? NULL : stop;
        params[i].n_stop = i < 3;
    }
    assert_ok(qn_scheduler_submit_all(scheduler, params, 4, NULL, NULL));
    const qn_request *last = scheduler->clients->queue;
    assert_int_equal(last->prompt->n_users, 2);
    assert_int_equal(last->lists->n_users, 1);
    assert_int_equal(last->next->lists->n_users, 3);
    assert_ptr_not_equal(last->prompt, last->next->next->prompt);
    qn_scheduler_wait(scheduler);
    qn_scheduler_free(scheduler);
}

/* The grammar's match is made once, and each choice has its own copy. */
TEST(choices_share_a_grammar)
{
    static const char *const choices[] = { "one two", "one three", "four" };
    enum { N = 6 };
    struct answer found[N], alone[N];
    qn_request_params params[N];
    qn_grammar *grammar;
    qn_scheduler *scheduler = new_scheduler((qn_scheduler_params)QN_SCHEDULER_PARAMS_INIT);
    assert_ok(qn_grammar_create_choices(model, choices, 3, &grammar));
    memset(found, 0, sizeof found);
    memset(alone, 0, sizeof alone);
    for (size_t i = 0; i < N; i++) {
        params[i] = (qn_request_params)QN_REQUEST_PARAMS_INIT;
        params[i].text = "Once";
        params[i].grammar = grammar;
        params[i].sampling.seed = i;
        params[i].max_tokens = 30;
        collect_answer(&params[i], &alone[i]);
        submit_request(scheduler, &params[i]);
        params[i].user = &found[i];
    }
    assert_ok(qn_scheduler_submit_all(scheduler, params, N, NULL, NULL));
    qn_scheduler_wait(scheduler);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(found[i].result.finish, QN_FINISH_STOP);
        assert_same_answer(&found[i], &alone[i]);
        found[i].text[found[i].n_text] = '\0';
        assert_true(!strcmp(found[i].text, choices[0]) || !strcmp(found[i].text, choices[1]) ||
                    !strcmp(found[i].text, choices[2]));
    }
    qn_scheduler_free(scheduler);
    qn_grammar_free(grammar);
}

TEST(all_are_queued_or_none)
{
    struct job jobs[5];
    qn_request_params params[5];
    qn_submit_refusal refusal = QN_SUBMIT_REFUSAL_INIT;
    qn_token *longer = calloc(3000, sizeof *longer);
    qn_scheduler *scheduler = new_scheduler(SCHEDULER_PARAMS(.max_queued = 4));
    assert_non_null(longer);
    for (size_t i = 0; i < 5; i++) {
        make_job(&jobs[i], "a", i, PROMPT, 4);
        params[i] = jobs[i].params;
    }
    assert_ok(qn_scheduler_submit_all(scheduler, params, 0, NULL, NULL));
    params[2].sampling.temperature = -1;
    assert_int_equal(qn_scheduler_submit_all(scheduler, params, 4, NULL, &refusal), QN_ERR_INVALID);
    assert_int_equal(refusal.index, 2);
    params[2] = jobs[2].params;
    params[3].tokens = longer;
    params[3].n_tokens = 3000;
    assert_int_equal(qn_scheduler_submit_all(scheduler, params, 4, NULL, &refusal), QN_ERR_CONTEXT);
    assert_int_equal(refusal.index, 3);
    assert_int_equal(refusal.n_prompt, 3000);
    params[3] = jobs[3].params;
    params[1].client = "b";
    assert_fails(qn_scheduler_submit_all(scheduler, params, 4, NULL, &refusal), QN_ERR_INVALID, "client");
    params[1].client = "a";
    assert_fails(qn_scheduler_submit_all(scheduler, params, 5, NULL, &refusal), QN_ERR_BUSY,
                 "queue: 5 requests at once, at most 4");
    submit_request(scheduler, &params[4]);
    assert_fails(qn_scheduler_submit_all(scheduler, params, 4, NULL, &refusal), QN_ERR_BUSY,
                 "queue: 1 requests wait, 4 more");
    assert_int_equal(counters_of(scheduler).queued, 1);
    qn_scheduler_wait(scheduler);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(jobs[i].found.n_ends, 0);
    assert_ok(qn_scheduler_submit_all(scheduler, params, 4, NULL, &refusal));
    qn_scheduler_wait(scheduler);
    qn_scheduler_free(scheduler);
    free(longer);
}

/* ---- Closed ---- */

static void assert_withdrawn(const struct job *job)
{
    assert_int_equal(job->found.n_ends, 1);
    assert_int_equal(job->found.result.finish, QN_FINISH_WITHDRAWN);
    assert_int_equal(job->found.n_tokens + job->found.n_text, 0);
}

/* What has begun is completed, with all that was submitted with it; the rest is back at the next step. */
TEST(a_closed_scheduler_begins_nothing)
{
    struct job pair[2], late, after;
    qn_request_params params[2];
    qn_scheduler *scheduler = new_scheduler(SCHEDULER_PARAMS(.max_sequences = 1));
    for (size_t i = 0; i < 2; i++) {
        make_job(&pair[i], "pair", i, PROMPT, 8);
        params[i] = pair[i].params;
    }
    assert_ok(qn_scheduler_submit_all(scheduler, params, 2, NULL, NULL));
    struct job *many = submit_many(scheduler, "many", 5, 8);
    step(scheduler);
    assert_int_equal(n_running(scheduler, "pair"), 1);
    qn_scheduler_close(scheduler, true);
    step(scheduler);
    for (size_t i = 0; i < 5; i++)
        assert_withdrawn(&many[i]);
    assert_int_equal(counters_of(scheduler).queued, 1);
    make_job(&late, "late", 7, PROMPT, 8);
    submit(scheduler, &late);
    qn_scheduler_wait(scheduler);
    assert_withdrawn(&late);
    check_job(&pair[0]);
    check_job(&pair[1]);
    qn_scheduler_close(scheduler, false);
    make_job(&after, "late", 8, PROMPT, 8);
    submit(scheduler, &after);
    qn_scheduler_wait(scheduler);
    check_job(&after);
    qn_scheduler_free(scheduler);
    free(many);
}

/* Else one that is closed before it has requests would answer none, however often it is created again. */
TEST(a_fresh_scheduler_lets_one_begin)
{
    qn_scheduler *scheduler = new_scheduler(SCHEDULER_PARAMS(.max_sequences = 4));
    qn_scheduler_close(scheduler, true);
    struct job *jobs = submit_many(scheduler, "many", 3, 8);
    qn_scheduler_wait(scheduler);
    check_job(&jobs[0]);
    assert_withdrawn(&jobs[1]);
    assert_withdrawn(&jobs[2]);
    qn_scheduler_free(scheduler);
    free(jobs);
}

/* ---- The queue ---- */

static size_t queued_of(qn_scheduler *scheduler, const char *client, struct job *jobs, size_t most)
{
    for (size_t i = 0; i < most; i++) {
        make_job(&jobs[i], client, i, PROMPT, 2);
        const bool has_room = qn_scheduler_check_room(scheduler, client, 1) == QN_OK;
        const qn_status status = qn_scheduler_submit(scheduler, &jobs[i].params, NULL);
        assert_int_equal(status, has_room ? QN_OK : QN_ERR_BUSY);
        if (!has_room)
            return i;
    }
    return most;
}

TEST(no_client_fills_the_queue)
{
    static struct job jobs[8][64];
    static const char *const names[] = { "a", "b", "c", "d", "e", "f", "g", NULL };
    static const size_t expected[] = { 24, 12, 8, 6, 4, 4, 3, 3 }; /* 24 / n */
    qn_scheduler *scheduler = new_scheduler(SCHEDULER_PARAMS(.max_queued = 24));
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(queued_of(scheduler, names[i], jobs[i], 64), expected[i]);
    assert_int_equal(qn_scheduler_check_room(scheduler, "a", 1), QN_ERR_BUSY);
    qn_scheduler_wait(scheduler);
    assert_null(scheduler->clients);
    assert_int_equal(scheduler->n_clients, 0);
    qn_scheduler_free(scheduler);
}

/* ---- Places ---- */

/* Steps until a request has ended. */
static size_t steps_of(qn_scheduler *scheduler, const struct job *job)
{
    size_t n = 0;
    for (; !job->found.n_ends; n++)
        step(scheduler);
    return n;
}

/* Another client has all places and a queue: a request of ten tokens takes the steps that it has alone, and one more to
 * wait. */
TEST(a_request_waits_for_one_step)
{
    enum { N = 24, MORE = 4 };
    for (int ahead = 0; ahead < 2; ahead++) {
        label("ahead %d", ahead);
        struct job other[MORE];
        if (ahead)
            let_overlap(model, 8);
        qn_scheduler *scheduler = new_scheduler(SCHEDULER_PARAMS(.max_sequences = 4, .run_ahead = ahead));
        struct job *many = submit_many(scheduler, "many", N, QN_TEST_SANITIZED ? 24 : 60);
        for (int i = 0; i < 5; i++)
            step(scheduler);
        assert_int_equal(scheduler->n_running, 4);
        for (size_t i = 0; i < MORE; i++) {
            make_job(&other[i], "other", i, 10, 10);
            submit(scheduler, &other[i]);
            /* One with the prompt; of a device that computes beside the host, one that is in flight, and one behind
             * each. */
            assert_in_range(steps_of(scheduler, &other[i]), 10, ahead ? 14 : 11);
            assert_int_equal(other[i].found.result.n_yielded, 0);
        }
        assert_in_range(counters_of(scheduler).yielded, 1, MORE);
        qn_scheduler_wait(scheduler);
        uint64_t yielded = 0;
        for (size_t i = 0; i < N; i++)
            yielded += many[i].found.result.n_yielded;
        assert_int_equal(yielded, counters_of(scheduler).yielded);
        assert_int_equal(counters_of(scheduler).set_aside, 0);
        const qn_cache *cache = scheduler->cache;
        qn_scheduler_free(scheduler);
        assert_int_equal(items_held(cache), 0);
        if (ahead)
            stop_overlap(model);
        for (size_t i = 0; i < MORE; i++)
            check_job(&other[i]);
        for (size_t i = 0; i < N; i += QN_TEST_SANITIZED ? 5 : 1)
            check_job(&many[i]);
        free(many);
    }
}

/* Two clients with long queues have half of the places each, and keep them. */
TEST(clients_share_places)
{
    enum { N = 12 };
    qn_scheduler *scheduler = new_scheduler(SCHEDULER_PARAMS(.max_sequences = 4));
    struct job *one = submit_many(scheduler, "one", N, 30);
    for (int i = 0; i < 3; i++)
        step(scheduler);
    assert_int_equal(n_running(scheduler, "one"), 4);
    struct job *other = submit_many(scheduler, "other", N, 30);
    for (int i = 0; i < 60; i++) {
        step(scheduler);
        assert_in_range(n_running(scheduler, "one"), 0, 2);
        assert_in_range(n_running(scheduler, "other"), 0, 2);
    }
    assert_int_equal(counters_of(scheduler).yielded, 2);
    qn_scheduler_wait(scheduler);
    assert_int_equal(counters_of(scheduler).yielded, 2);
    qn_scheduler_free(scheduler);
    for (size_t i = 0; i < N; i += 3) {
        check_job(&one[i]);
        check_job(&other[i]);
    }
    free(one);
    free(other);
}

/* Three clients and two places: each has its turn. What is evaluated again is little; without kept prefixes at most
 * what was progressed since, and once what there is at the end. */
TEST(more_clients_than_places_take_turns)
{
    static const char *const names[] = { "a", "b", "c" };
    enum { TOKENS = MAX_ANSWER, TURN = 128 };
    for (int is_kept = 0; is_kept < 2; is_kept++) {
        label("prefixes are kept: %d", is_kept);
        struct job jobs[3];
        qn_scheduler *scheduler =
            new_scheduler(SCHEDULER_PARAMS(.max_sequences = 2, .no_prefix_cache = !is_kept, .draft = QN_DRAFT_OFF));
        for (size_t i = 0; i < 3; i++) {
            make_job(&jobs[i], names[i], i, PROMPT, TOKENS);
            submit(scheduler, &jobs[i]);
        }
        size_t n = 0;
        for (; !jobs[2].found.n_tokens; n++)
            step(scheduler);
        assert_in_range(n, 1, TURN + 2);
        qn_scheduler_wait(scheduler);
        const qn_scheduler_counters c = counters_of(scheduler);
        assert_in_range(c.yielded, 2, 3 * (TOKENS + PROMPT) / (TURN - 64));
        assert_in_range(c.rows, 3 * (TOKENS + PROMPT - 1),
                        is_kept ? 3 * (TOKENS + PROMPT) + c.yielded * 64 : 9 * (TOKENS + PROMPT));
        qn_scheduler_free(scheduler);
        for (size_t i = 0; i < 3; i++)
            check_job(&jobs[i]);
    }
}

TEST(priorities_are_of_a_client)
{
    struct job high, low[2], other;
    qn_scheduler *scheduler = new_scheduler(SCHEDULER_PARAMS(.max_sequences = 2));
    for (size_t i = 0; i < 2; i++) {
        make_job(&low[i], "one", i, PROMPT, 6);
        submit(scheduler, &low[i]);
    }
    make_job(&high, "one", 3, PROMPT, 6);
    high.params.priority = 100;
    make_job(&other, "other", 4, PROMPT, 6);
    submit(scheduler, &high);
    submit(scheduler, &other);
    step(scheduler);
    assert_int_equal(high.found.n_tokens, 1);
    assert_int_equal(other.found.n_tokens, 1);
    assert_int_equal(low[0].found.n_tokens + low[1].found.n_tokens, 0);
    qn_scheduler_wait(scheduler);
    qn_scheduler_free(scheduler);
}

/* ---- Rows of prompts ---- */

/* Long prompts of one client beside one of another: it gets its part of each step. */
TEST(prompts_share_rows)
{
    enum { N = 4, LONG = 1800, ROWS = 64 };
    qn_token *prompts = calloc(N * LONG, sizeof *prompts);
    struct answer found[N];
    struct job other;
    qn_scheduler *scheduler = new_scheduler(SCHEDULER_PARAMS(.max_sequences = 8, .max_rows = ROWS));
    assert_non_null(prompts);
    make_tokens(9, prompts, N * LONG);
    memset(found, 0, sizeof found);
    for (size_t i = 0; i < N; i++) {
        qn_request_params params = QN_REQUEST_PARAMS_INIT;
        params.tokens = prompts + i * LONG;
        params.n_tokens = LONG;
        params.max_tokens = 1;
        params.client = "long";
        collect_answer(&params, &found[i]);
        submit_request(scheduler, &params);
    }
    for (int i = 0; i < 3; i++)
        step(scheduler);
    make_job(&other, "other", 3, PROMPT, 1);
    submit(scheduler, &other);
    const uint64_t rows = counters_of(scheduler).rows;
    assert_in_range(steps_of(scheduler, &other), 1, 2);
    assert_in_range(counters_of(scheduler).rows - rows, ROWS, 2 * ROWS); /* no row is left out */
    qn_scheduler_free(scheduler);
    free(prompts);
}

/* ---- Memory ---- */

/* Answers of one client grow until the pool is full: they give up memory, and the small request of another does not. */
TEST(memory_is_given_up_by_who_has_most)
{
    enum { N = 8, SMALL = 6 };
    static struct job many[N], small[SMALL];
    qn_model *tight;
    qn_scheduler *scheduler;
    load_model("tests/golden/scheduler.gguf", 13 << 20, 1, &tight);
    scheduler = create_scheduler(tight, &SCHEDULER_PARAMS(.n_ctx = 2048, .max_sequences = 2 * N, .no_thread = true));
    for (size_t i = 0; i < N; i++) {
        make_job(&many[i], "many", i, PROMPT, 250);
        submit(scheduler, &many[i]);
    }
    for (size_t i = 0; i < SMALL; i++) {
        make_job(&small[i], "small", i, 10, 10);
        submit(scheduler, &small[i]);
        assert_in_range(steps_of(scheduler, &small[i]), 10, 13);
        for (int k = 0; k < 20; k++)
            step(scheduler);
    }
    qn_scheduler_wait(scheduler);
    const qn_scheduler_counters c = counters_of(scheduler);
    assert_true(c.set_aside + c.yielded > 0);
    qn_scheduler_free(scheduler);
    qn_model_free(tight);
    for (size_t i = 0; i < SMALL; i++) {
        assert_int_equal(small[i].found.result.n_set_aside, 0);
        check_job(&small[i]);
    }
    for (size_t i = 0; i < N; i += 3)
        check_job(&many[i]);
}

/* ---- Callbacks ---- */

static char order[64];
static size_t n_order;

static bool note_token(void *user, qn_token token, const qn_logprobs *logprobs)
{
    (void)token;
    (void)logprobs;
    order[n_order++] = *(const char *)user;
    return true;
}

/* The events of a step with eight requests of one client, and one of another: that one's comes second. */
TEST(callbacks_take_turns)
{
    struct job jobs[9];
    qn_scheduler *scheduler = new_scheduler(SCHEDULER_PARAMS(.max_sequences = 16));
    for (size_t i = 0; i < 9; i++) {
        make_job(&jobs[i], i < 8 ? "many" : "one", i, 4, 1);
        jobs[i].params.on_token = note_token;
        jobs[i].params.on_text = NULL;
        jobs[i].params.on_end = NULL;
        jobs[i].params.user = i < 8 ? "m" : "1";
        submit(scheduler, &jobs[i]);
    }
    n_order = 0;
    qn_scheduler_wait(scheduler);
    assert_int_equal(n_order, 9);
    assert_true(order[0] == '1' || order[1] == '1');
    qn_scheduler_free(scheduler);
}
