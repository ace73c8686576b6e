/* Masks of grammars in the scheduler: clients take turns by the time that theirs take, callbacks and masks do not wait
 * for each other, requests end while a mask waits or is made, and a grammar that is too ambiguous ends its request by
 * an error of its own. */
#include "helper_sanitizers.h"
#include "helper_demo.h"

#include <unistd.h>

/* ---- Turns ---- */

/* A request whose mask takes no time: it is cancelled. */
static void wait_for_mask(qn_scheduler *s, qn_request *r, qn_client *client)
{
    memset(r, 0, sizeof *r);
    r->client = client;
    r->constraint.match = (qn_grammar_match *)r;
    atomic_init(&r->cancelled, true);
    qn_scheduler_push_mask(s, r);
}

/* Makes a mask and lets it take so many seconds. */
static void make(qn_scheduler *s, const qn_request *expected, double seconds)
{
    assert_int_equal(expected->mask_place, QN_MASK_QUEUED);
    pthread_mutex_lock(&s->events_lock);
    assert_true(qn_scheduler_make_mask(s));
    pthread_mutex_unlock(&s->events_lock);
    assert_int_equal(expected->mask_place, QN_MASK_NOWHERE);
    expected->client->mask_seconds += seconds;
}

TEST(least_time_goes_first)
{
    qn_client a = { .last_event = &a.first_event }, b = { .last_event = &b.first_event },
              late = { .last_event = &late.first_event };
    qn_request of_a[4], of_b[4], of_late[2];
    qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.no_thread = true));
    for (int i = 0; i < 4; i++)
        wait_for_mask(s, &of_a[i], &a);
    make(s, &of_a[0], 10);
    for (int i = 0; i < 3; i++)
        wait_for_mask(s, &of_b[i], &b);
    make(s, &of_b[0], 3); /* not one of each: b has had 0 seconds, and 3, and 6 */
    make(s, &of_b[1], 3);
    make(s, &of_b[2], 9);
    make(s, &of_a[1], 10); /* a 10, b 15 */
    wait_for_mask(s, &of_b[3], &b);
    wait_for_mask(s, &of_late[0], &late);
    assert_true(late.mask_seconds >= 10 && late.mask_seconds < 11); /* no claim on what others have had before */
    make(s, &of_late[0], 1);
    make(s, &of_b[3], 10);
    wait_for_mask(s, &of_late[1], &late);
    make(s, &of_late[1], 100);
    make(s, &of_a[2], 1);
    make(s, &of_a[3], 1);
    assert_null(s->masking);
    qn_scheduler_free(s);
}

/* The last event waits for a mask that is being made, and takes the place of one that is not. */
TEST(requests_end_behind_masks)
{
    qn_client a = { .last_event = &a.first_event };
    qn_request first, second, third;
    qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.no_thread = true));
    wait_for_mask(s, &first, &a);
    wait_for_mask(s, &second, &a);
    wait_for_mask(s, &third, &a);
    second.end.request = &second;
    first.end.request = &first;
    qn_scheduler_push_end(s, &second);
    assert_int_equal(second.mask_place, QN_MASK_NOWHERE);
    assert_ptr_equal(a.first_event, &second.end);
    first.ends_after_mask = true; /* as if it were asked for while the mask is made */
    make(s, &first, 0);
    assert_ptr_equal(second.end.next, &first.end);
    third.end.request = &third;
    qn_scheduler_push_end(s, &third);
    assert_ptr_equal(first.end.next, &third.end);
    assert_null(s->masking);
    s->first_ready = NULL; /* the requests are no real ones */
    qn_scheduler_free(s);
}

/* ---- Threads ---- */

struct blocked {
    qn_scheduler *scheduler;
    uint64_t generated;
    bool went_on;
};

/* Returns when tokens of others were generated meanwhile. */
static bool block(void *user, qn_token token, const qn_logprobs *logprobs)
{
    struct blocked *b = user;
    (void)token, (void)logprobs;
    b->generated = counters_of(b->scheduler).generated_tokens;
    for (int i = 0; i < 10000 && !b->went_on; i++, usleep(1000))
        b->went_on = counters_of(b->scheduler).generated_tokens >= b->generated + 10;
    return false;
}

/* Filters need a mask for each token. */
static qn_request_params masked(qn_grammar *grammar, const char *client, struct answer *a)
{
    static const qn_token prompt[] = { 1, 2, 3 };
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    memset(a, 0, sizeof *a);
    params.tokens = prompt;
    params.n_tokens = 3;
    params.sampling = SAMPLING(.temperature = 1, .top_k = 40, .top_p = 1, .repeat_penalty = 1);
    params.max_tokens = 100;
    params.grammar = grammar;
    params.client = client;
    collect_answer(&params, a);
    return params;
}

TEST(masks_are_made_beside_callbacks)
{
    static struct answer a;
    qn_grammar *grammar = grammar_of("root ::= [a-z ]+");
    struct blocked b = { 0 };
    b.scheduler = create_scheduler(model, NULL);
    const qn_request_params params = masked(grammar, "a", &a);
    qn_request_params blocking = masked(NULL, "b", &a);
    blocking.on_token = block;
    blocking.on_text = NULL;
    blocking.on_end = NULL;
    blocking.user = &b;
    submit_request(b.scheduler, &blocking);
    submit_and_wait(b.scheduler, &params);
    qn_scheduler_free(b.scheduler);
    assert_true(b.went_on);
    assert_int_equal(a.n_ends, 1);
    qn_grammar_free(grammar);
}

/* Callbacks return false, requests are cancelled, and the scheduler is freed, at any time of a mask. */
TEST(requests_end_at_any_time)
{
    enum { REQUESTS = 8, ROUNDS = QN_TEST_SANITIZED ? 6 : 20 };
    static struct answer answers[REQUESTS];
    qn_grammar *grammar = grammar_of("root ::= (x | [a-z ]{1,3})* \nx ::= \"x\" ([a-z ] x)?");
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t ids[REQUESTS];
        qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.no_thread = round % 4 == 3));
        for (int i = 0; i < REQUESTS; i++) {
            qn_request_params params = masked(grammar, i % 2 ? "a" : "b", &answers[i]);
            params.deadline = i == 3 ? 0.02 : 0;
            answers[i].cancel_at = i == 2 ? 3 : 0;
            assert_ok(qn_scheduler_submit(s, &params, &ids[i]));
        }
        bool idle;
        for (int i = 0; i < round && round % 4 == 3; i++)
            assert_ok(qn_scheduler_step(s, &idle));
        usleep(1000 * (unsigned)round);
        qn_scheduler_cancel(s, ids[0]);
        usleep(500 * (unsigned)round);
        qn_scheduler_free(s);
        for (int i = 0; i < REQUESTS; i++)
            assert_int_equal(answers[i].n_ends, 1);
    }
    qn_grammar_free(grammar);
}

/* ---- Masks beside steps ---- */

/* As if a mask of each running request had taken too long a while ago: the last of its tokens that are masked later is
 * next, or the one behind. */
static void slow_down(qn_scheduler *s, int step)
{
    for (uint32_t i = 0; i < s->n_running; i++)
        s->running[i]->n_slow = s->running[i]->constraint.match ? (uint32_t)(step / 3 % 3) : 0;
}

/* Answers with a grammar, with penalties and with both, when steps are launched ahead of them and when masks are slow:
 * as those of a session alone. */
TEST(masks_are_made_while_steps_run)
{
    enum { REQUESTS = 6 };
    static struct answer found[REQUESTS], expected[REQUESTS];
    qn_grammar *grammar = grammar_of("root ::= \"a\" ([a-z]{1,3} \" \"){4,30}");
    for (int kind = 0; kind < 4; kind++) {
        const size_t ahead = kind % 2 ? 8 : 0;
        const bool is_slow = kind / 2;
        qn_request_params params[REQUESTS];
        bool idle = false;
        for (int i = 0; i < REQUESTS; i++) {
            params[i] = masked(i % 3 != 2 ? grammar : NULL, "a", &found[i]);
            params[i].sampling.seed = (uint64_t)i;
            params[i].sampling.repeat_penalty = i % 3 ? 1.3f : 1;
            params[i].sampling.repeat_last_n = 8;
            params[i].n_logprobs = i / 3 ? 2 : -1;
            params[i].max_tokens = 60;
            params[i].on_text = NULL;
            memset(&expected[i], 0, sizeof expected[i]);
            answer_alone(model, NULL, 256, &params[i], &expected[i]);
        }
        let_overlap(model, ahead);
        n_prepared_steps = 0;
        qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = 256, .no_thread = true, .run_ahead = true,
                                                                    .draft = ahead ? QN_DRAFT_NGRAM : QN_DRAFT_AUTO));
        for (int i = 0; i < REQUESTS; i++)
            submit_request(s, &params[i]);
        for (int step = 0; !idle; step++) {
            if (is_slow)
                slow_down(s, step);
            assert_ok(qn_scheduler_step(s, &idle));
        }
        assert_true(n_prepared_steps > 10);
        assert_true(!ahead || counters_of(s).ahead_steps > (is_slow ? 5 : 20));
        qn_scheduler_free(s);
        stop_overlap(model);
        for (int i = 0; i < REQUESTS; i++) {
            label("request %d, %zu ahead, %s", i, ahead, is_slow ? "slow" : "quick");
            assert_same_answer(&found[i], &expected[i]);
        }
    }
    qn_grammar_free(grammar);
}

/* ---- Errors ---- */

TEST(ambiguous_grammars_are_unsupported)
{
    static struct answer a;
    static const char *const grammars[] = {
        "root ::= (\"a\" | \"b\"{0,1000}){0,1000} \"c\"",
        "root ::= e\ne ::= [a-z ] e [a-z ] | [a-z ] e [a-z ] e | [a-z ]",
    };
    for (size_t i = 0; i < COUNT(grammars); i++) {
        qn_grammar *grammar = grammar_of(grammars[i]);
        qn_scheduler *s;
        const qn_request_params params = masked(grammar, "a", &a);
        label("%s", grammars[i]);
        s = create_scheduler(model, NULL);
        submit_and_wait(s, &params);
        qn_scheduler_free(s);
        assert_int_equal(a.result.finish, QN_FINISH_ERROR);
        assert_int_equal(a.result.status, QN_ERR_UNSUPPORTED);
        assert_contains(a.error, "too ambiguous");
        qn_grammar_free(grammar);
    }
}
