/* The scheduler's contract, on the demo model: refusals, how requests end, what is evaluated and what is reused, steps
 * of many sequences, memory that is full. */
#include "helper_demo.h"

#include "base/append.h"
#include "helper_sanitizers.h"

#include <math.h>
#include <unistd.h>

static qn_scheduler *new_scheduler(qn_scheduler_params params)
{
    params.no_thread = true;
    return create_scheduler(model, &params);
}

static void step_to_idle(qn_scheduler *scheduler)
{
    bool idle;
    assert_ok(qn_scheduler_step(scheduler, &idle));
    assert_true(idle);
}

/* Tokens evaluated for one more request. */
static size_t evaluated(qn_scheduler *scheduler, const qn_request_params *params)
{
    const uint64_t rows = counters_of(scheduler).rows;
    submit_and_wait(scheduler, params);
    return (size_t)(counters_of(scheduler).rows - rows);
}

/* ---- Refusals ---- */

TEST(refuses_parameters)
{
    qn_scheduler *scheduler = (qn_scheduler *)model;
    const struct {
        qn_scheduler_params params;
        qn_status status;
        const char *text;
    } cases[] = {
        { { .kv = "f17" }, QN_ERR_UNSUPPORTED, "f17" },
        { { .n_ctx = QN_MAX_CTX + 1u }, QN_ERR_INVALID, "context: 1073741825 tokens" },
        { { .max_rows = 4097 }, QN_ERR_INVALID, "rows of a step: 4097" },
        { { .max_rows = 4, .max_sequences = 5 }, QN_ERR_INVALID, "sequences: 5, at most 4" },
        { { .max_sequences = 4097 }, QN_ERR_INVALID, "sequences: 4097" },
        { { .step_seconds = -1 }, QN_ERR_INVALID, "step time: -1" },
        { { .step_seconds = (double)NAN }, QN_ERR_INVALID, "step time: " },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("%s", cases[i].text);
        qn_scheduler_params params = cases[i].params;
        params.size = sizeof params;
        assert_fails(qn_scheduler_create(model, &params, &scheduler), cases[i].status, cases[i].text);
        assert_null(scheduler);
    }
    qn_scheduler_free(NULL);
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/scheduler.gguf", QN_SOURCE_DIR);
    qn_model *vocab = create_model(path, &CPU_MODEL(.vocab_only = true));
    assert_fails(qn_scheduler_create(vocab, NULL, &scheduler), QN_ERR_INVALID, "vocab_only");
    qn_model_free(vocab);
}

TEST(refuses_requests)
{
    static const qn_token tokens[] = { 1, 2, 3 }, wrong[] = { 1, -1 };
    static const qn_chat_message strange = { "user", NULL };
    static const uint32_t beyond[] = { 4 }, descending[] = { 2, 1 };
    static const char *const empty[] = { "" };
    qn_scheduler *scheduler = new_scheduler(SCHEDULER_PARAMS(.n_ctx = 3));
    struct answer a = { 0 };
    const qn_sampling sampling = SAMPLING(.temperature = -1, .top_p = 1, .repeat_penalty = 1),
                      defaults = (qn_sampling)QN_SAMPLING_INIT;
    const struct {
        qn_request_params params;
        qn_status status;
        const char *text;
    } cases[] = {
        { { .sampling = defaults }, QN_ERR_INVALID, "prompt: 0 of tokens, text, messages and a conversation" },
        { { .sampling = defaults, .text = "a", .tokens = tokens, .n_tokens = 3 }, QN_ERR_INVALID, "prompt: 2 of" },
        { { .sampling = defaults, .tokens = tokens }, QN_ERR_INVALID, "no tokens" },
        { { .sampling = defaults, .text = "" }, QN_ERR_INVALID, "no tokens" },
        { { .sampling = defaults, .messages = &strange }, QN_ERR_INVALID, "no messages" },
        { { .sampling = defaults, .messages = &strange, .n_messages = 1 }, QN_ERR_INVALID, "message 0 has no content" },
        { { .sampling = defaults, .tokens = wrong, .n_tokens = 2 }, QN_ERR_INVALID, "token 1: id -1" },
        { { .sampling = defaults, .text = "one two three four five" }, QN_ERR_CONTEXT, "the capacity is 3" },
        { { .sampling = defaults, .text = "a", .marks = beyond, .n_marks = 1 }, QN_ERR_INVALID, "marks: 1 without" },
        { { .sampling = defaults, .tokens = tokens, .n_tokens = 3, .marks = beyond, .n_marks = 1 },
          QN_ERR_INVALID,
          "mark 0: 4" },
        { { .sampling = defaults, .tokens = tokens, .n_tokens = 3, .marks = descending, .n_marks = 2 },
          QN_ERR_INVALID,
          "mark 1" },
        { { .sampling = sampling, .text = "a" }, QN_ERR_INVALID, "temperature: -1" },
        { { .sampling = defaults, .text = "a", .stop = empty, .n_stop = 1 }, QN_ERR_INVALID, "stop" },
        { { .sampling = defaults, .text = "a", .stop_tokens = wrong, .n_stop_tokens = 2 },
          QN_ERR_INVALID,
          "stop token 1: id -1" },
        { { .sampling = defaults, .text = "a", .deadline = -1 }, QN_ERR_INVALID, "deadline: -1" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("%s", cases[i].text);
        qn_request_params params = cases[i].params;
        params.size = sizeof params;
        collect_answer(&params, &a);
        assert_fails(qn_scheduler_submit(scheduler, &params, NULL), cases[i].status, cases[i].text);
    }
    step_to_idle(scheduler);
    assert_int_equal(counters_of(scheduler).submitted, 0);
    qn_scheduler_free(scheduler);
    assert_int_equal(a.n_ends, 0);
}

TEST(refuses_text_without_a_tokeniser)
{
    qn_model *golden;
    bool idle;
    load_model("tests/golden/qwen3.q2_0.gguf", 0, 1, &golden);
    qn_scheduler *scheduler = create_scheduler(golden, NULL);
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    params.text = "a";
    assert_int_equal(qn_scheduler_submit(scheduler, &params, NULL), QN_ERR_UNSUPPORTED);
    assert_fails(qn_scheduler_step(scheduler, &idle), QN_ERR_INVALID, "thread");
    qn_scheduler_free(scheduler);
    qn_model_free(golden);
}

TEST(refuses_when_the_queue_is_full)
{
    static const qn_token tokens[] = { 1, 2, 3 };
    struct answer a[4];
    qn_scheduler *scheduler = new_scheduler(SCHEDULER_PARAMS(.max_queued = 3));
    for (int i = 0; i < 3; i++) {
        const qn_request_params params = prompt_of(tokens, 3, 2, &a[i]);
        submit_request(scheduler, &params);
    }
    const qn_request_params params = prompt_of(tokens, 3, 2, &a[3]);
    assert_fails(qn_scheduler_submit(scheduler, &params, NULL), QN_ERR_BUSY, "queue: 3 requests wait");
    assert_int_equal(counters_of(scheduler).queued, 3);
    step(scheduler);
    assert_int_equal(counters_of(scheduler).running, 3);
    submit_and_wait(scheduler, &params);
    for (int i = 0; i < 4; i++)
        assert_int_equal(a[i].n_ends, 1);
    qn_scheduler_free(scheduler);
}

/* ---- How requests end ---- */

TEST(answers_as_a_session_does)
{
    static const char *const stop[] = { "lyfic", "pally" }; /* parts of two tokens */
    const char *const prompt = "Once upon a time, there was";
    for (int i = 0; i < 8; i++) {
        label("case %d", i);
        qn_token *tokens;
        struct answer found, expected = { 0 };
        size_t n;
        qn_scheduler *scheduler =
            new_scheduler(SCHEDULER_PARAMS(.n_ctx = i == 5 ? 40 : 200, .kv = i == 6 ? "aura4" : NULL));
        assert_ok(qn_tokenize(model, prompt, strlen(prompt), true, true, &tokens, &n));
        qn_request_params params = prompt_of(tokens, n, i == 4 ? 0 : i == 5 ? -1 : 60, &found);
        params.sampling.temperature = i % 2 ? 1.0f : 0.0f;
        params.sampling.seed = (uint64_t)i;
        params.stop = stop;
        params.n_stop = i == 2 || i == 3 ? 2 : 0;
        params.ignore_end = i != 7;
        params.show_special = i == 1;
        answer_alone(model, i == 6 ? "aura4" : NULL, i == 5 ? 40 : 200, &params, &expected);
        params.user = &found;
        params.text = prompt;
        params.tokens = NULL;
        submit_and_wait(scheduler, &params);
        assert_same_answer(&found, &expected);
        assert_int_equal(found.n_ends, 1);
        assert_int_equal(found.result.finish, params.n_stop ? QN_FINISH_STOP
                                              : i == 7      ? found.result.finish
                                              : i == 5      ? QN_FINISH_CONTEXT
                                                            : QN_FINISH_LENGTH);
        assert_int_equal(found.result.is_stop_string, params.n_stop > 0);
        assert_int_equal(found.result.n_prompt, n);
        assert_int_equal(found.result.n_generated, expected.n_tokens);
        qn_free_tokens(tokens);
        qn_scheduler_free(scheduler);
    }
}

TEST(stops_at_a_stop_token)
{
    static const qn_token tokens[] = { 10, 20, 30 };
    struct answer a, b;
    qn_scheduler *scheduler = new_scheduler((qn_scheduler_params)QN_SCHEDULER_PARAMS_INIT);
    qn_request_params params = prompt_of(tokens, 3, 30, &a);
    (void)evaluated(scheduler, &params);
    const qn_token stop = a.tokens[a.n_tokens / 2];
    params = prompt_of(tokens, 3, 30, &b);
    params.stop_tokens = &stop;
    params.n_stop_tokens = 1;
    (void)evaluated(scheduler, &params);
    assert_int_equal(b.result.finish, QN_FINISH_STOP);
    assert_false(b.result.is_stop_string);
    assert_int_equal(b.tokens[b.n_tokens - 1], stop);
    assert_true(b.n_tokens <= a.n_tokens / 2 + 1);
    assert_memory_equal(a.tokens, b.tokens, b.n_tokens * sizeof *b.tokens);
    assert_true(b.n_text <= a.n_text && !memcmp(a.text, b.text, b.n_text));
    qn_scheduler_free(scheduler);
}

TEST(ends_early)
{
    static const qn_token tokens[] = { 10, 20, 30 };
    struct answer cancelled, late, muted, freed;
    uint64_t id;
    qn_scheduler *scheduler = new_scheduler((qn_scheduler_params)QN_SCHEDULER_PARAMS_INIT);
    qn_request_params params = prompt_of(tokens, 3, 100, &cancelled);
    assert_ok(qn_scheduler_submit(scheduler, &params, &id));
    params = prompt_of(tokens, 3, 200, &late);
    params.deadline = 1000;
    submit_request(scheduler, &params);
    params = prompt_of(tokens, 3, 200, &muted);
    muted.cancel_at = 4;
    submit_request(scheduler, &params);
    for (int i = 0; i < 3; i++)
        step(scheduler);
    qn_scheduler_cancel(scheduler, id);
    qn_scheduler_cancel(scheduler, id + 1000);
    for (uint32_t i = 0; i < scheduler->n_running; i++)
        if (scheduler->running[i]->params.deadline > 0)
            scheduler->running[i]->deadline = qn_now();
    qn_scheduler_wait(scheduler);
    assert_int_equal(cancelled.result.finish, QN_FINISH_CANCELLED);
    assert_int_equal(cancelled.n_tokens, 3);
    assert_int_equal(late.result.finish, QN_FINISH_DEADLINE);
    assert_int_equal(late.n_tokens, 3);
    assert_int_equal(muted.result.finish, QN_FINISH_CALLBACK);
    assert_int_equal(muted.n_tokens, 4);
    assert_int_equal(muted.result.n_generated, 4);
    params = prompt_of(tokens, 3, -1, &freed);
    assert_ok(qn_scheduler_submit(scheduler, &params, &id));
    step(scheduler);
    qn_scheduler_free(scheduler);
    assert_int_equal(freed.result.finish, QN_FINISH_CANCELLED);
    assert_int_equal(freed.n_ends, 1);
    /* In the queue, with a thread that may or may not have begun. */
    scheduler = create_scheduler(model, NULL);
    params = prompt_of(tokens, 3, -1, &freed);
    assert_ok(qn_scheduler_submit(scheduler, &params, &id));
    qn_scheduler_free(scheduler);
    assert_int_equal(freed.result.finish, QN_FINISH_CANCELLED);
    assert_int_equal(freed.n_ends, 1);
}

/* ---- Steps ---- */

/* A long prompt is evaluated in pieces, and every sequence that is decoded gets a token in each step. */
TEST(long_prompts_stall_nobody)
{
    static qn_token tokens[3][900];
    struct answer a[3];
    qn_scheduler *scheduler = new_scheduler(SCHEDULER_PARAMS(.max_rows = 40, .max_sequences = 3));
    for (int i = 0; i < 3; i++)
        make_tokens((uint64_t)i, tokens[i], 900);
    for (int i = 0; i < 2; i++) {
        const qn_request_params params = prompt_of(tokens[i], 10, 200, &a[i]);
        submit_request(scheduler, &params);
    }
    step(scheduler);
    assert_int_equal(a[0].n_tokens, 1);
    const qn_request_params params = prompt_of(tokens[2], 900, 5, &a[2]);
    submit_request(scheduler, &params);
    size_t steps = 0;
    for (; a[2].n_tokens == 0; steps++) {
        const uint64_t rows = counters_of(scheduler).rows;
        step(scheduler);
        assert_int_equal(a[0].n_tokens, steps + 2);
        assert_int_equal(a[1].n_tokens, steps + 2);
        assert_in_range(counters_of(scheduler).rows - rows, 2, 40);
    }
    assert_true(steps >= 900 / 38);
    qn_scheduler_free(scheduler);
}

TEST(prompts_first_decodes_later)
{
    static qn_token tokens[3][200];
    struct answer a[3];
    qn_scheduler *scheduler = new_scheduler(SCHEDULER_PARAMS(.max_rows = 64, .prompts_first = true));
    for (int i = 0; i < 3; i++) {
        make_tokens((uint64_t)i, tokens[i], 200);
        const qn_request_params params = prompt_of(tokens[i], 200, 5, &a[i]);
        submit_request(scheduler, &params);
    }
    while (!a[2].n_tokens) {
        step(scheduler);
        assert_true(a[0].n_tokens <= 1 && a[1].n_tokens <= 1);
    }
    qn_scheduler_wait(scheduler);
    for (int i = 0; i < 3; i++)
        assert_int_equal(a[i].n_tokens, 5);
    qn_scheduler_free(scheduler);
}

/* Prompts are evaluated in smaller pieces while others are decoded, if steps take longer than they are to. */
TEST(steps_follow_their_target)
{
    static qn_token tokens[2][1800];
    struct answer a[2];
    qn_scheduler *scheduler =
        new_scheduler(SCHEDULER_PARAMS(.max_rows = 512, .step_seconds = 1e-6, .draft = QN_DRAFT_OFF));
    for (int i = 0; i < 2; i++) {
        make_tokens((uint64_t)i, tokens[i], 1800);
        const qn_request_params params = prompt_of(tokens[i], i ? 1800 : 5, 200, &a[i]);
        submit_request(scheduler, &params);
        step(scheduler);
    }
    step(scheduler);
    const uint64_t rows = counters_of(scheduler).rows;
    step(scheduler);
    assert_int_equal(counters_of(scheduler).rows - rows, 1 + 16);
    qn_scheduler_free(scheduler);
}

/* On a device that computes beside the host, tokens but the first are emitted while the next step is computed; what is
 * cancelled has all that was generated. */
TEST(tokens_come_with_the_next_step)
{
    static const qn_token tokens[] = { 10, 20, 30 };
    struct answer cancelled, whole, expected;
    uint64_t id;
    let_overlap(model, 0);
    qn_scheduler *scheduler = new_scheduler(SCHEDULER_PARAMS(.max_sequences = 2));
    qn_request_params params = prompt_of(tokens, 3, 30, &cancelled);
    assert_ok(qn_scheduler_submit(scheduler, &params, &id));
    params = prompt_of(tokens, 3, 4, &whole);
    submit_request(scheduler, &params);
    static const size_t emitted[] = { 1, 1, 2 };
    for (size_t i = 0; i < 3; i++) {
        step(scheduler);
        assert_int_equal(cancelled.n_tokens, emitted[i]);
    }
    qn_scheduler_cancel(scheduler, id);
    step(scheduler);
    assert_int_equal(cancelled.result.finish, QN_FINISH_CANCELLED);
    assert_int_equal(cancelled.result.n_generated, 3);
    assert_int_equal(cancelled.n_tokens, 3);
    assert_int_equal(whole.n_tokens, 3);
    assert_int_equal(whole.n_ends, 0);
    step(scheduler); /* the answer is complete: there is nothing to compute */
    assert_int_equal(whole.n_ends, 1);
    step_to_idle(scheduler);
    qn_scheduler_free(scheduler);
    stop_overlap(model);
    memset(&expected, 0, sizeof expected);
    params.user = &expected;
    answer_alone(model, NULL, 2048, &params, &expected);
    assert_same_answer(&whole, &expected);
}

static qn_status refuse_step(qn_device *device, const qn_step *step)
{
    (void)device;
    (void)step;
    return qn_fail(QN_ERR_MEMORY, "no memory for a step");
}

/* What was generated before an error is emitted, although the step that it was to be emitted beside does not run. */
TEST(an_error_keeps_what_was_generated)
{
    static const qn_token tokens[] = { 10, 20, 30 };
    struct answer a;
    let_overlap(model, 0);
    qn_device_vtable refusing = *model->device->vtable;
    qn_scheduler *scheduler = new_scheduler(SCHEDULER_PARAMS(.max_sequences = 2));
    const qn_request_params params = prompt_of(tokens, 3, 30, &a);
    submit_request(scheduler, &params);
    for (size_t i = 0; i < 3; i++)
        step(scheduler);
    assert_int_equal(a.n_tokens, 2);
    refusing.launch = refuse_step;
    model->device->vtable = &refusing;
    step(scheduler);
    assert_int_equal(a.result.finish, QN_FINISH_ERROR);
    assert_int_equal(a.result.status, QN_ERR_MEMORY);
    assert_int_equal(a.result.n_generated, 3);
    assert_int_equal(a.n_tokens, 3);
    assert_int_equal(a.n_ends, 1);
    qn_scheduler_free(scheduler);
    stop_overlap(model);
}

TEST(higher_priority_begins_first)
{
    static const qn_token tokens[] = { 10, 20, 30 };
    struct answer a[3];
    qn_scheduler *scheduler = new_scheduler(SCHEDULER_PARAMS(.max_sequences = 1));
    for (int i = 0; i < 3; i++) {
        qn_request_params params = prompt_of(tokens, 3, 4, &a[i]);
        params.priority = i == 1 ? 5 : 0;
        submit_request(scheduler, &params);
    }
    while (!a[1].n_ends)
        step(scheduler);
    assert_int_equal(a[0].n_tokens + a[2].n_tokens, 0);
    while (!a[0].n_ends)
        step(scheduler);
    assert_int_equal(a[2].n_tokens, 0);
    qn_scheduler_free(scheduler);
}

/* Waiting for six seconds outweighs a priority of five: nobody waits for ever. */
TEST(waiting_raises_priority)
{
    static const qn_token tokens[] = { 10, 20, 30 };
    struct answer a[2];
    qn_scheduler *scheduler = new_scheduler(SCHEDULER_PARAMS(.max_sequences = 1));
    for (int i = 0; i < 2; i++) {
        qn_request_params params = prompt_of(tokens, 3, 4, &a[i]);
        params.priority = i ? 5 : 0;
        submit_request(scheduler, &params);
    }
    for (qn_request *r = scheduler->clients->queue; r; r = r->next)
        r->submitted -= r->params.priority ? 0 : 6;
    while (!a[0].n_ends)
        step(scheduler);
    assert_int_equal(a[1].n_tokens, 0);
    qn_scheduler_free(scheduler);
}

/* ---- Prefixes ---- */

TEST(second_turn_evaluates_its_own_tokens)
{
    enum { LONG = QN_TEST_SANITIZED ? 320 : 2400 };
    static const char *const kvs[] = { "f16", "aura4", "f32" };
    for (int i = 0; i < 3; i++) {
        label("%s", kvs[i]);
        static qn_token tokens[LONG + 200];
        struct answer first, second, alone = { 0 };
        qn_scheduler *scheduler = new_scheduler(SCHEDULER_PARAMS(.kv = kvs[i], .n_ctx = 4096, .draft = QN_DRAFT_OFF));
        make_tokens(1, tokens, LONG + 200);
        qn_request_params params = prompt_of(tokens, LONG, 30, &first);
        assert_int_equal(evaluated(scheduler, &params), LONG + 29);
        memcpy(tokens + LONG, first.tokens, 30 * sizeof *tokens);
        params = prompt_of(tokens, LONG + 30 + 50, 1, &second);
        assert_true(evaluated(scheduler, &params) <= 50 + 63 + 1);
        assert_true(second.result.n_reused + 63 >= (size_t)LONG + 29);
        answer_alone(model, kvs[i], 4096, &params, &alone);
        params.user = &second;
        /* The answer is dropped by the next request, as clients drop reasoning: the end of the prompt was kept. */
        make_tokens(2, tokens + LONG, 50);
        params = prompt_of(tokens, LONG + 50, 1, &second);
        assert_true(evaluated(scheduler, &params) <= 50 + 63);
        const qn_scheduler_counters counters = counters_of(scheduler);
        assert_int_equal(counters.prefix_hits, 2);
        assert_true(counters.prefix_tokens > LONG && counters.prefix_states >= 2);
        /* Another scope shares nothing. */
        params.scope = "other";
        assert_true(evaluated(scheduler, &params) >= LONG + 50);
        qn_scheduler_free(scheduler);
    }
}

/* The state's position after a piece of n rows. */
static size_t state_after(bool folds_whole_chunks, size_t length, size_t n, size_t state)
{
    const size_t end = length + n, chunk = (length + QN_PAGE - 1) / QN_PAGE * QN_PAGE;
    if (folds_whole_chunks && chunk + QN_PAGE <= end)
        return end / QN_PAGE * QN_PAGE;
    return end > state + QN_PAGE ? (end - 1) / QN_PAGE * QN_PAGE : state;
}

/* Pieces of any size pass through the state that is to be kept, on devices of both kinds. */
TEST(pieces_pass_through_a_kept_state)
{
    for (int folds = 0; folds < 2; folds++)
        for (size_t first = 0; first < 200; first++)
            for (size_t open = folds && first % QN_PAGE == 0 ? 0 : 1; open <= QN_PAGE && open <= first; open++)
                for (size_t most = 1; most < 400; most += most < 5 ? 1 : 37) {
                    const size_t wanted = first / QN_PAGE * QN_PAGE + 2 * QN_PAGE;
                    size_t length = first, state = first - open;
                    if (state % QN_PAGE)
                        continue;
                    while (state < wanted) {
                        const size_t n = qn_rows_to_state(folds, length, wanted, most);
                        assert_in_range(n, 1, most);
                        state = state_after(folds, length, n, state);
                        length += n;
                    }
                    label("folds %d, from %zu, %zu rows", folds, first, most);
                    assert_int_equal(state, wanted);
                }
}

TEST(shared_beginnings_are_kept_from_the_third_on)
{
    enum { SAME = QN_TEST_SANITIZED ? 192 : 2000 };
    static qn_token tokens[SAME + 100];
    qn_scheduler *scheduler = new_scheduler(SCHEDULER_PARAMS(.n_ctx = 4096));
    for (uint64_t i = 0; i < 5; i++) {
        label("request %d", (int)i);
        struct answer found, expected = { 0 };
        make_tokens(99, tokens, SAME);
        make_tokens(i, tokens + SAME, 100);
        qn_request_params params = prompt_of(tokens, SAME + 100, 1, &found);
        const size_t n = evaluated(scheduler, &params);
        assert_true(i < 2 ? (int)n == SAME + 100 : n <= 100 + 63);
        params.user = &expected;
        answer_alone(model, NULL, 4096, &params, &expected);
        assert_same_answer(&found, &expected);
    }
    qn_scheduler_free(scheduler);
}

TEST(conversations_continue_where_messages_end)
{
    static char long_text[1200];
    memset(long_text, 'x', sizeof long_text - 1);
    for (size_t i = 5; i < sizeof long_text - 1; i += 6)
        long_text[i] = ' ';
    const qn_chat_message messages[] = {
        { "system", long_text }, { "user", "Tell me a story." }, { "assistant", "No." }, { "user", "Why?" }
    };
    struct answer a, b;
    qn_scheduler *scheduler = new_scheduler((qn_scheduler_params)QN_SCHEDULER_PARAMS_INIT);
    qn_token *tokens;
    size_t n_system;
    qn_request_params params = prompt_of(NULL, 0, 20, &a);
    params.messages = messages;
    params.n_messages = 2;
    (void)evaluated(scheduler, &params);
    /* Another conversation with the same system message. */
    const qn_chat_message other[] = { { "system", long_text }, { "user", "And then?" } };
    assert_ok(qn_chat_tokens(model, other, 1, false, &tokens, &n_system));
    params = prompt_of(NULL, 0, 1, &b);
    params.messages = other;
    params.n_messages = 2;
    assert_true(evaluated(scheduler, &params) <= b.result.n_prompt - n_system + 63);
    /* The same as a conversation in JSON. */
    char json[1500];
    qn_text_buffer text = QN_APPEND_TO(json);
    qn_append(&text,
              "{\"messages\": [{\"role\": \"system\", \"content\": \"%s\"}, {\"role\": \"user\", "
              "\"content\": \"And then?\"}], \"add_generation_prompt\": true}",
              long_text);
    const size_t n_prompt = b.result.n_prompt;
    params = prompt_of(NULL, 0, 1, &b);
    params.conversation = json;
    params.conversation_length = text.length;
    assert_true(evaluated(scheduler, &params) <= 64);
    assert_int_equal(b.result.n_prompt, n_prompt);
    /* The first one, with another answer in place of the generated one. */
    params = prompt_of(NULL, 0, 1, &b);
    params.messages = messages;
    params.n_messages = 4;
    assert_true(evaluated(scheduler, &params) <= b.result.n_prompt - a.result.n_prompt + 63);
    qn_free_tokens(tokens);
    qn_scheduler_free(scheduler);
}

TEST(evaluates_all_without_a_prefix_cache)
{
    static qn_token tokens[300];
    struct answer a;
    qn_scheduler *scheduler = new_scheduler(SCHEDULER_PARAMS(.no_prefix_cache = true));
    make_tokens(1, tokens, 300);
    const qn_request_params params = prompt_of(tokens, 300, 1, &a);
    for (int i = 0; i < 3; i++)
        assert_int_equal(evaluated(scheduler, &params), 300);
    assert_int_equal(items_held(scheduler->cache), 0);
    qn_scheduler_free(scheduler);
}

/* ---- Memory ---- */

/* More sequences than fit: the youngest are set aside, at most twice each, and lose no token. */
TEST(the_youngest_is_set_aside)
{
    enum { N = 8 };
    static qn_token tokens[N][64];
    static struct answer found[N], expected[N];
    qn_model *small;
    qn_scheduler *scheduler;
    load_model("tests/golden/scheduler.gguf", 12 << 20, 1, &small);
    scheduler = create_scheduler(small, &SCHEDULER_PARAMS(.n_ctx = 2048, .max_sequences = N));
    qn_request_params params[N];
    for (int i = 0; i < N; i++) {
        make_tokens((uint64_t)i, tokens[i], 64);
        params[i] = prompt_of(tokens[i], 60, 250, &found[i]);
        submit_request(scheduler, &params[i]);
    }
    qn_scheduler_wait(scheduler);
    const qn_scheduler_counters counters = counters_of(scheduler);
    assert_true(counters.set_aside > 0);
    assert_true(counters.memory_limit == 12 << 20 && counters.memory_bytes <= counters.memory_limit);
    uint64_t set_aside = 0;
    for (int i = 0; i < N; i++) {
        label("request %d", i);
        assert_int_equal(found[i].result.finish, QN_FINISH_LENGTH);
        assert_in_range(found[i].result.n_set_aside, 0, 2);
        set_aside += found[i].result.n_set_aside;
        if (QN_TEST_SANITIZED && i % (N - 1)) /* slow */
            continue;
        memset(&expected[i], 0, sizeof expected[i]);
        params[i].user = &expected[i];
        answer_alone(model, NULL, 2048, &params[i], &expected[i]);
        assert_same_answer(&found[i], &expected[i]);
    }
    assert_int_equal(found[0].result.n_set_aside, 0);
    assert_int_equal(set_aside, counters.set_aside);
    const qn_cache *cache = scheduler->cache;
    qn_scheduler_free(scheduler);
    assert_int_equal(items_held(cache), 0);
    qn_model_free(small);
}

TEST(one_that_never_fits_fails_alone)
{
    static qn_token tokens[3900];
    struct answer large, little;
    qn_model *small;
    qn_scheduler *scheduler;
    load_model("tests/golden/scheduler.gguf", 5 << 20, 1, &small);
    scheduler = create_scheduler(small, &SCHEDULER_PARAMS(.n_ctx = 4096));
    make_tokens(3, tokens, 3900);
    qn_request_params params = prompt_of(tokens, 3900, 5, &large);
    submit_request(scheduler, &params);
    params = prompt_of(tokens, 20, 5, &little);
    submit_and_wait(scheduler, &params);
    assert_int_equal(large.result.finish, QN_FINISH_ERROR);
    assert_int_equal(large.result.status, QN_ERR_MEMORY);
    assert_contains(large.error, "memory");
    assert_int_equal(little.result.finish, QN_FINISH_LENGTH);
    assert_int_equal(little.n_tokens, 5);
    qn_scheduler_free(scheduler);
    qn_model_free(small);
}

/* Kept prefixes are evicted for sessions. */
TEST(sessions_evict_kept_prefixes)
{
    static qn_token tokens[1500];
    struct answer a;
    qn_model *small;
    qn_scheduler *scheduler;
    load_model("tests/golden/scheduler.gguf", 10 << 20, 1, &small);
    scheduler = create_scheduler(small, NULL);
    make_tokens(4, tokens, 1500);
    const qn_request_params params = prompt_of(tokens, 1500, 5, &a);
    submit_and_wait(scheduler, &params);
    assert_int_equal(a.result.finish, QN_FINISH_LENGTH);
    qn_session *session = create_session(small, NULL);
    append_tokens(session, tokens, 1500);
    qn_session_free(session);
    qn_scheduler_free(scheduler);
    qn_model_free(small);
}

/* ---- Callbacks ---- */

static qn_scheduler *watched;

/* Returns when all tokens of both requests have been generated. */
static bool slow_token(void *user, qn_token token, const qn_logprobs *logprobs)
{
    for (int i = 0; i < 6000 && counters_of(watched).generated_tokens < 60; i++)
        usleep(10000);
    return answer_token(user, token, logprobs);
}

TEST(slow_callbacks_block_no_step)
{
    static const qn_token tokens[] = { 10, 20, 30 };
    struct answer slow, quick;
    watched = create_scheduler(model, NULL);
    qn_request_params params = prompt_of(tokens, 3, 30, &slow);
    params.on_token = slow_token;
    submit_request(watched, &params);
    params = prompt_of(tokens, 3, 30, &quick);
    submit_and_wait(watched, &params);
    assert_int_equal(counters_of(watched).generated_tokens, 60);
    assert_true(slow.result.generate_seconds < 60);
    assert_int_equal(slow.n_tokens, 30);
    assert_int_equal(quick.n_tokens, 30);
    qn_scheduler_free(watched);
}
