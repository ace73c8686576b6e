/* Steps that are launched behind one in flight, on a device of the CPU that computes beside the host: which are, what
 * becomes of rows of requests that turn out to have ended, errors. Answers are those of the request alone. */
#include "helper_scheduler.h"

#include <math.h>

enum { N_CTX = 512, MAX_SEQUENCES = 4, N_PROMPT = 60 };

static qn_model *model;
static uint32_t n_vocab;

static int load(void)
{
    load_model("tests/golden/qwen35.q1_0.gguf", 0, 2, &model);
    n_vocab = qn_model_get_info(model)->n_vocab;
    return 0;
}

static int unload(void)
{
    qn_model_free(model);
    return 0;
}

static qn_token prompts[MAX_SEQUENCES][N_PROMPT];

static qn_request_params request_of(size_t i, size_t n, int64_t max_tokens, struct answer *a)
{
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    uint64_t random = i;
    memset(a, 0, sizeof *a);
    for (size_t t = 0; t < N_PROMPT; t++)
        prompts[i][t] = (qn_token)(qn_splitmix(&random) % n_vocab);
    params.tokens = prompts[i];
    params.n_tokens = n;
    params.max_tokens = max_tokens;
    params.ignore_end = true;
    params.sampling.temperature = i % 2 ? 1.0f : 0.0f;
    params.sampling.seed = i;
    collect_answer(&params, a);
    params.on_text = NULL; /* there is no tokeniser */
    return params;
}

static qn_scheduler *new_scheduler(void)
{
    let_overlap(model, MAX_SEQUENCES);
    return create_scheduler(
        model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .max_sequences = 8, .no_thread = true, .run_ahead = true));
}

static void free_scheduler(qn_scheduler *scheduler)
{
    const qn_cache *cache = scheduler->cache;
    qn_scheduler_free(scheduler);
    stop_overlap(model);
    assert_int_equal(items_held(cache), 0);
}

static void submit(qn_scheduler *scheduler, const qn_request_params *params)
{
    submit_request(scheduler, params);
}

/* What the request alone answers, on a device that does not overlap. */
static struct answer alone(qn_request_params params)
{
    struct answer a = { 0 };
    params.user = &a;
    answer_alone(model, NULL, N_CTX, &params, &a);
    return a;
}

/* Every step but the first is launched behind another, and one that ends by its number of tokens has no row too
 * many. */
TEST(steps_are_launched_behind_others)
{
    struct answer a[MAX_SEQUENCES], expected[MAX_SEQUENCES];
    qn_request_params params[MAX_SEQUENCES];
    size_t rows = 0;
    for (size_t i = 0; i < MAX_SEQUENCES; i++) {
        params[i] = request_of(i, 3 + i, 20 + (int64_t)(5 * i), &a[i]);
        params[i].n_logprobs = i == 2 ? 3 : -1;
        expected[i] = alone(params[i]);
        rows += 3 + i + 20 + 5 * i - 1;
    }
    qn_scheduler *scheduler = new_scheduler();
    for (size_t i = 0; i < MAX_SEQUENCES; i++)
        submit(scheduler, &params[i]);
    qn_scheduler_wait(scheduler);
    const qn_scheduler_counters counters = counters_of(scheduler);
    for (size_t i = 0; i < MAX_SEQUENCES; i++)
        assert_same_answer(&a[i], &expected[i]);
    assert_int_equal(counters.steps, 35);
    assert_int_equal(counters.rows, rows);
    /* The first step waits for what comes after it; states are kept at 64 alone. */
    assert_in_range(counters.ahead_steps, counters.steps - 4, counters.steps - 1);
    assert_true(fabs(counters.idle_seconds - 1e-3 * (double)(counters.steps - 1 - counters.ahead_steps)) < 1e-6);
    free_scheduler(scheduler);
}

/* Runs steps until all has ended. The last token of a request that is over has no row in its sequence. */
static void run_all(qn_scheduler *scheduler)
{
    for (bool idle = false; !idle;) {
        assert_ok(qn_scheduler_step(scheduler, &idle));
        for (uint32_t i = 0; i < scheduler->n_running; i++) {
            const qn_request *r = scheduler->running[i];
            if (r->is_over && !r->n_in_flight)
                assert_true(r->memory->sequence->length < r->n_tokens);
        }
    }
}

/* A token at which a request ends is known when the next step has a row of it: no one hears of that row, and its
 * position is not reused. At 64, it would complete a page. */
TEST(a_row_behind_the_end_is_void)
{
    for (size_t length = N_PROMPT + 1; length < N_PROMPT + 8; length++) {
        struct answer a, longer, other;
        const size_t n_answer = length - N_PROMPT;
        qn_request_params params = request_of(0, N_PROMPT, (int64_t)n_answer + 12, &longer);
        const struct answer expected = alone(params);
        qn_token stop = expected.tokens[n_answer - 1];
        size_t n = 0;
        while (expected.tokens[n] != stop)
            n++;
        label("%zu tokens", n + 1);
        params.user = &a;
        memset(&a, 0, sizeof a);
        params.stop_tokens = &stop;
        params.n_stop_tokens = 1;
        const qn_request_params beside = request_of(1, 5, 30, &other);
        const struct answer expected_beside = alone(beside);
        qn_scheduler *scheduler = new_scheduler();
        submit(scheduler, &beside);
        submit(scheduler, &params);
        run_all(scheduler);
        assert_int_equal(a.result.finish, QN_FINISH_STOP);
        assert_int_equal(a.n_tokens, n + 1);
        assert_memory_equal(a.tokens, expected.tokens, (n + 1) * sizeof *a.tokens);
        assert_same_answer(&other, &expected_beside);
        assert_int_equal(counters_of(scheduler).rows, 5 + 29 + N_PROMPT + n + 1); /* one is void */
        params.n_stop_tokens = 0;
        params.user = &longer;
        submit(scheduler, &params); /* from what is kept of the first */
        qn_scheduler_wait(scheduler);
        assert_same_answer(&longer, &expected);
        free_scheduler(scheduler);
    }
}

/* The first tokens do not end a request, those behind a step in flight included: half of the vocabulary would. */
TEST(the_first_tokens_end_nothing)
{
    static qn_token stops[1 << 16];
    assert_true(n_vocab <= COUNT(stops));
    for (uint32_t i = 0; i < n_vocab; i += 2)
        stops[i / 2] = (qn_token)i;
    for (int64_t min_tokens = 0; min_tokens < 12; min_tokens++) {
        struct answer a[MAX_SEQUENCES], expected[MAX_SEQUENCES];
        label("%d tokens", (int)min_tokens);
        qn_scheduler *scheduler;
        qn_request_params params[MAX_SEQUENCES];
        for (size_t i = 0; i < MAX_SEQUENCES; i++) {
            params[i] = request_of(i, 3 + i, 40, &a[i]);
            params[i].min_tokens = min_tokens + (int64_t)i;
            params[i].stop_tokens = stops;
            params[i].n_stop_tokens = (n_vocab + 1) / 2;
            expected[i] = alone(params[i]);
        }
        scheduler = new_scheduler();
        for (size_t i = 0; i < MAX_SEQUENCES; i++)
            submit(scheduler, &params[i]);
        run_all(scheduler);
        for (size_t i = 0; i < MAX_SEQUENCES; i++) {
            assert_same_answer(&a[i], &expected[i]);
            assert_true(a[i].n_tokens > (size_t)params[i].min_tokens);
            for (size_t t = 0; t < a[i].n_tokens; t++)
                assert_int_equal(a[i].tokens[t] % 2, t + 1 < a[i].n_tokens || a[i].result.finish == QN_FINISH_LENGTH);
        }
        assert_true(counters_of(scheduler).ahead_steps > 0);
        free_scheduler(scheduler);
    }
}

/* Samplers that depend on the tokens before: no step is launched before they are known, and answers are those of
 * sessions. */
TEST(samplers_follow_the_text)
{
    struct answer a[MAX_SEQUENCES], expected[MAX_SEQUENCES];
    qn_request_params params[MAX_SEQUENCES];
    for (size_t i = 0; i < MAX_SEQUENCES; i++) {
        params[i] = request_of(i, 30, 80, &a[i]);
        params[i].sampling.temperature = 0.7f;
        params[i].sampling.mirostat = i % 2 ? 2 : 0;
        params[i].sampling.mirostat_tau = 2;
        params[i].sampling.mirostat_eta = 0.5f;
        params[i].sampling.dry_multiplier = i / 2 ? 3 : 0;
        params[i].sampling.dry_allowed_length = 0;
        expected[i] = alone(params[i]);
    }
    qn_scheduler *scheduler = new_scheduler();
    for (size_t i = 0; i < MAX_SEQUENCES; i++)
        submit(scheduler, &params[i]);
    qn_scheduler_wait(scheduler);
    for (size_t i = 0; i < MAX_SEQUENCES; i++) {
        label("request %zu", i);
        assert_same_answer(&a[i], &expected[i]);
    }
    free_scheduler(scheduler);
}

static void allow_all(void *user, const qn_token *answer, size_t n, uint32_t *allowed)
{
    (void)user;
    (void)answer;
    (void)n;
    memset(allowed, 0xff, (n_vocab + 31) / 32 * sizeof *allowed);
}

/* A caller's mask, and more sequences than the device takes; penalties do not wait: they are counted when the token is
 * sampled. */
TEST(some_steps_wait)
{
    for (size_t kind = 0; kind < 4; kind++) {
        struct answer a, expected, others[MAX_SEQUENCES];
        qn_request_params params = request_of(0, 5, 30, &a);
        label("%s", kind == 0 ? "penalty" : kind == 1 ? "mask" : kind == 2 ? "many" : "none");
        params.sampling.repeat_penalty = kind == 0 ? 1.3f : 1;
        expected = alone(params);
        params.mask = kind == 1 ? allow_all : NULL;
        qn_scheduler *scheduler = new_scheduler();
        submit(scheduler, &params);
        for (size_t i = 0; kind == 2 && i < MAX_SEQUENCES; i++) {
            const qn_request_params other = request_of(i, 5, 40, &others[i]);
            submit(scheduler, &other);
        }
        while (!a.n_ends)
            step(scheduler);
        assert_same_answer(&a, &expected);
        assert_true((counters_of(scheduler).ahead_steps == 0) == (kind == 1 || kind == 2));
        free_scheduler(scheduler);
    }
}

/* A request that is cancelled while its rows are in flight ends after the step; so do all when the scheduler is
 * freed. */
TEST(cancelled_in_flight)
{
    for (size_t how = 0; how < 2; how++) {
        struct answer a, other;
        uint64_t id;
        label("%s", how ? "freed" : "cancelled");
        const qn_request_params params = request_of(0, 5, 100, &a), beside = request_of(1, 5, 40, &other);
        const struct answer expected = alone(params), expected_beside = alone(beside);
        qn_scheduler *scheduler = new_scheduler();
        assert_ok(qn_scheduler_submit(scheduler, &params, &id));
        submit(scheduler, &beside);
        for (int i = 0; i < 10; i++)
            step(scheduler);
        assert_int_equal(n_steps_in_flight, 1);
        if (!how) {
            qn_scheduler_cancel(scheduler, id);
            qn_scheduler_wait(scheduler);
            assert_same_answer(&other, &expected_beside);
        }
        free_scheduler(scheduler);
        assert_int_equal(a.n_ends, 1);
        assert_int_equal(other.n_ends, 1);
        assert_int_equal(a.result.finish, QN_FINISH_CANCELLED);
        assert_int_equal(a.result.n_generated, a.n_tokens);
        assert_memory_equal(a.tokens, expected.tokens, a.n_tokens * sizeof *a.tokens);
    }
}

static int n_good; /* calls before those that fail */

static qn_status failing_launch(qn_device *device, const qn_step *rows)
{
    return n_good-- > 0 ? launch_step(device, rows) : qn_fail(QN_ERR_DEVICE, "made to fail");
}

static qn_status failing_finish(qn_device *device)
{
    const qn_status status = finish_step(device);
    return n_good-- > 0 ? status : qn_fail(QN_ERR_DEVICE, "made to fail");
}

/* A step that cannot be launched behind another ends its requests when that one is finished; one that fails takes with
 * it the step behind it. Others go on. */
TEST(errors_in_flight)
{
    for (int kind = 0; kind < 2; kind++)
        for (int n = 0; n < 5; n++) {
            struct answer a[3], expected;
            qn_request_params params[3];
            label("%s after %d", kind ? "finish" : "launch", n);
            for (size_t i = 0; i < 3; i++)
                params[i] = request_of(i, 5, 20, &a[i]);
            expected = alone(params[2]);
            qn_scheduler *scheduler = new_scheduler();
            qn_device_vtable vtable = *model->device->vtable;
            const qn_device_vtable *working = model->device->vtable;
            vtable.launch = kind ? vtable.launch : failing_launch;
            vtable.finish = kind ? failing_finish : vtable.finish;
            model->device->vtable = &vtable;
            n_good = n;
            submit(scheduler, &params[0]);
            submit(scheduler, &params[1]);
            while (!a[0].n_ends || !a[1].n_ends)
                step(scheduler);
            assert_int_equal(n_steps_in_flight, 0);
            model->device->vtable = working;
            for (size_t i = 0; i < 2; i++) {
                assert_int_equal(a[i].n_ends, 1);
                assert_int_equal(a[i].result.finish, QN_FINISH_ERROR);
                assert_int_equal(a[i].result.status, QN_ERR_DEVICE);
                assert_string_equal(a[i].error, "made to fail");
                assert_int_equal(a[i].result.n_generated, a[i].n_tokens);
            }
            submit(scheduler, &params[2]);
            qn_scheduler_wait(scheduler);
            assert_same_answer(&a[2], &expected);
            free_scheduler(scheduler);
        }
}

TEST_GROUP(load, unload)
