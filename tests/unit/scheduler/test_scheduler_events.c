/* Answers of requests as events: reasoning, content and calls of a script that masks impose on the demo model; stop
 * strings, the budget of reasoning, refusals. */
#include "helper_output.h"
#include "helper_sanitizers.h"
#include "helper_scheduler.h"

#define TURNS                                                                                                          \
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls %}\n<tool_call>\n"                   \
    "{{ '{\"name\": \"' + c.function.name + '\", \"arguments\": ' + c.function.arguments|tojson }}}\n</tool_call>"     \
    "{% endfor %}\n{% endfor %}{% if add_generation_prompt %}assistant: {% if enable_thinking %}<think>\n"             \
    "{% else %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
#define TEMPLATE "{% if tools %}{{ tools|tojson }}\n{% endif %}" TURNS
#define NO_TOOLS "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
#define OTHER_CALLS                                                                                                    \
    "{% if tools %}{{ tools|tojson }}\n{% endif %}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}"   \
    "[CALLS]{{ c.function.name }}{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}"

#define MESSAGES                                                                                                       \
    "\"messages\": [{\"role\": \"user\", \"content\": \"Tell me a story.\"}], \"add_generation_prompt\": true"
#define TOOLS "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"look_up\", \"parameters\": {}}}]"
#define THINKS "\"enable_thinking\": true"
#define CALL "<tool_call>\n{\"name\": \"look_up\", \"arguments\": {\"text\": \"red\"}}\n</tool_call>"

static const char plain[] = "{" MESSAGES "}", thinks[] = "{" MESSAGES ", " THINKS "}",
                  with_tools[] = "{" MESSAGES ", " TOOLS "}", with_all[] = "{" MESSAGES ", " TOOLS ", " THINKS "}";

enum { MAX_SCRIPT = 200 };

static qn_model *model, *no_tools_model, *other_calls_model;
static uint32_t n_vocab;
static qn_token end_token;

static void load(const char *chat_template, qn_model **out)
{
    assert_ok(qn_model_load(QN_SOURCE_DIR "/tests/golden/scheduler.gguf",
                            &CPU_MODEL(.n_threads = 1, .skip_weight_scan = true, .chat_template = chat_template), out));
}

static int load_models(void)
{
    load(TEMPLATE, &model);
    load(NO_TOOLS, &no_tools_model);
    load(OTHER_CALLS, &other_calls_model);
    n_vocab = qn_model_get_info(model)->n_vocab;
    while (!qn_token_is_end(model, end_token))
        end_token++;
    return 0;
}

static int free_models(void)
{
    qn_model_free(model);
    qn_model_free(no_tools_model);
    qn_model_free(other_calls_model);
    return 0;
}

/* ---- Requests ---- */

struct listener {
    struct answer answer; /* first: its callbacks get it */
    struct transcript transcript;
    size_t n_events, cancel_at;      /* on_event returns false after so many; 0: never */
    qn_token script[MAX_SCRIPT + 1]; /* what is generated, and then an end token */
    size_t n_script, n_masks;
};

static bool on_event(void *user, const qn_output_event *event)
{
    struct listener *l = user;
    assert_int_equal(l->answer.n_ends, 0);
    transcript_event(event, &l->transcript);
    return ++l->n_events != l->cancel_at;
}

static void follow_script(void *user, const qn_token *answer, size_t n, uint32_t *allowed)
{
    struct listener *l = user;
    const qn_token token = n < l->n_script ? l->script[n] : end_token;
    assert_memory_equal(answer, l->script, (n < l->n_script ? n : l->n_script) * sizeof *answer);
    l->n_masks++;
    allowed[token / 32] |= 1u << token % 32;
}

static qn_request_params params_of(struct listener *l, const char *conversation, const char *script)
{
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    transcript_free(&l->transcript);
    memset(l, 0, sizeof *l);
    l->transcript.last_kind = -1;
    params.conversation = conversation;
    params.conversation_length = strlen(conversation);
    params.max_tokens = MAX_SCRIPT;
    params.sampling.temperature = 0;
    collect_answer(&params, &l->answer);
    params.on_text = NULL;
    params.on_event = on_event;
    if (script) {
        qn_token *tokens;
        assert_ok(qn_tokenize(model, script, strlen(script), false, false, &tokens, &l->n_script));
        assert_true(l->n_script <= MAX_SCRIPT);
        memcpy(l->script, tokens, l->n_script * sizeof *tokens);
        qn_free_tokens(tokens);
        params.mask = follow_script;
    }
    return params;
}

static void run(const qn_request_params *params, qn_scheduler_params with)
{
    qn_scheduler *scheduler = create_scheduler(model, &with);
    submit_and_wait(scheduler, params);
    qn_scheduler_free(scheduler);
}

static void assert_log(struct listener *l, const char *expected)
{
    text_add(&l->transcript.log, "", 0);
    transcript_close(&l->transcript);
    assert_string_equal(l->transcript.log.data, expected);
    assert_null(l->transcript.problem);
    assert_int_equal(l->answer.n_ends, 1);
    assert_int_equal(l->answer.result.n_generated, l->answer.n_tokens);
}

static struct listener listener, other;

/* The answer's events, from a scheduler with threads and from one without. */
static void expect(const char *conversation, const char *script, const char *const *stop, qn_finish finish,
                   const char *events)
{
    for (int i = 0; i < 2; i++) {
        label("%s, thread %d", script, !i);
        qn_request_params params = params_of(&listener, conversation, script);
        params.stop = stop;
        params.n_stop = stop ? 1 : 0;
        run(&params, SCHEDULER_PARAMS(.no_thread = i));
        assert_log(&listener, events);
        assert_int_equal(listener.answer.result.finish, finish);
        assert_int_equal(listener.answer.result.is_stop_string, stop && finish == QN_FINISH_STOP);
        if (!stop)
            assert_int_equal(listener.answer.n_tokens, listener.n_script + 1);
    }
}

/* ---- Events ---- */

TEST(answers_are_events)
{
    expect(plain, "A red ball.", NULL, QN_FINISH_STOP, "C{A red ball.}");
    expect(thinks, "Red or\nblue?\n</think>\n\nA ball.", NULL, QN_FINISH_STOP, "R{Red or\nblue?}C{A ball.}");
    expect(with_tools, "Wait.\n" CALL, NULL, QN_FINISH_STOP, "C{Wait.}[look_up|{\"text\": \"red\"}]=");
    expect(with_all, "Hm.\n</think>\n\n" CALL "\n" CALL, NULL, QN_FINISH_STOP,
           "R{Hm.}[look_up|{\"text\": \"red\"}]=[look_up|{\"text\": \"red\"}]=");
    expect(with_tools, "<tool_call>\n{\"name\": \"look_up\", \"arguments\": {\"te", NULL, QN_FINISH_STOP,
           "[look_up|{\"te]~");
    expect(plain, CALL, NULL, QN_FINISH_STOP, "C{" CALL "}"); /* without tools */
}

/* Events are then made while the next step is computed. `ahead` as in let_overlap. A script is a mask, with which no
 * step is launched behind another. */
static void expect_the_same_beside_a_step(size_t ahead, const char *script, int64_t budget)
{
    qn_model *overlapping;
    load(TEMPLATE, &overlapping);
    let_overlap(overlapping, ahead);
    qn_request_params params = params_of(&listener, with_all, script);
    qn_request_params alone = params_of(&other, with_all, script);
    params.reasoning_budget = alone.reasoning_budget = budget;
    qn_scheduler *scheduler = create_scheduler(overlapping, NULL);
    submit_and_wait(scheduler, &params);
    qn_scheduler_free(scheduler);
    run(&alone, SCHEDULER_PARAMS(.no_thread = true));
    assert_same_answer(&listener.answer, &other.answer);
    text_add(&other.transcript.log, "", 0);
    transcript_close(&other.transcript);
    assert_true(other.transcript.log.n > 0);
    assert_log(&listener, other.transcript.log.data);
    qn_model_free(overlapping);
}

TEST(events_do_not_depend_on_a_step_beside)
{
    for (size_t ahead = 0; ahead <= 4; ahead += 4) {
        expect_the_same_beside_a_step(ahead, NULL, -1);
        expect_the_same_beside_a_step(ahead, NULL, 0);
        expect_the_same_beside_a_step(ahead, NULL, 9);
        expect_the_same_beside_a_step(ahead, "Hm.\n</think>\n\nSo.\n" CALL, -1);
    }
}

/* ---- Ends ---- */

TEST(stop_strings_are_found_in_content)
{
    static const char *const red[] = { "red" }, *const tags[] = { "no", "<tool" };
    expect(thinks, "A red one.\n</think>\n\nA red ball.", red, QN_FINISH_STOP, "R{A red one.}C{A }");
    expect(with_tools, CALL "\nA red ball.", red, QN_FINISH_STOP, "[look_up|{\"text\": \"red\"}]=C{A }");
    expect(with_tools, "A re\n" CALL " ball is red", red, QN_FINISH_STOP,
           "C{A re}[look_up|{\"text\": \"red\"}]=C{ ball is }");
    for (int i = 0; i < 2; i++) { /* the parser holds it back until the answer ends */
        qn_request_params params = params_of(&listener, with_tools, "So\n<tool");
        params.stop = tags;
        params.n_stop = 2;
        params.max_tokens = i ? (int64_t)listener.n_script : MAX_SCRIPT;
        run(&params, SCHEDULER_PARAMS(.no_thread = true));
        assert_log(&listener, i ? "C{So}" : "C{So\n}"); /* of an answer that is cut it could have become a call: it is
                                                           nothing */
        assert_int_equal(listener.answer.result.finish, i ? QN_FINISH_LENGTH : QN_FINISH_STOP);
        assert_int_equal(listener.answer.result.is_stop_string, !i);
        assert_int_equal(listener.answer.result.stop_string, !i);
    }
}

TEST(a_callback_cancels)
{
    qn_request_params params = params_of(&listener, with_tools, "So\n" CALL "\n" CALL);
    listener.cancel_at = 2;
    run(&params, (qn_scheduler_params)QN_SCHEDULER_PARAMS_INIT);
    assert_int_equal(listener.n_events, 2);
    assert_int_equal(listener.answer.result.finish, QN_FINISH_CALLBACK);
    assert_int_equal(listener.answer.result.n_generated, listener.answer.n_tokens);
}

TEST(what_is_open_ends)
{
    bool idle;
    qn_request_params params = params_of(&listener, with_tools, CALL);
    params.max_tokens = (int64_t)listener.n_script - 12;
    run(&params, (qn_scheduler_params)QN_SCHEDULER_PARAMS_INIT);
    assert_int_equal(listener.answer.result.finish, QN_FINISH_LENGTH);
    assert_int_equal(listener.transcript.log.data[listener.transcript.log.n - 1], '~');

    /* After a failed allocation the parser is not used. */
    params = params_of(&listener, with_tools, CALL);
    qn_scheduler *scheduler = create_scheduler(model, &SCHEDULER_PARAMS(.no_thread = true));
    submit_request(scheduler, &params);
    while (!listener.n_events)
        assert_ok(qn_scheduler_step(scheduler, &idle));
    scheduler->running[0]->events.status = qn_fail(QN_ERR_MEMORY, "no memory for a test");
    qn_scheduler_wait(scheduler);
    qn_scheduler_free(scheduler);
    assert_int_equal(listener.answer.result.finish, QN_FINISH_ERROR);
    assert_int_equal(listener.answer.result.status, QN_ERR_MEMORY);
    assert_int_equal(listener.answer.n_ends, 1);
    assert_true(listener.answer.n_tokens < listener.n_script);
}

/* ---- The budget ---- */

TEST(a_budget_ends_reasoning)
{
    qn_token *words;
    size_t n_words;
    assert_ok(qn_tokenize(model, "\n</think>\n\n", 11, false, true, &words, &n_words));
    for (int budget = 0; budget <= 3; budget += 3)
        for (int i = 0; i < 3; i++) {
            label("budget %d, scheduler %d", budget, i);
            qn_request_params params = params_of(&listener, thinks, budget ? " the the the" : "");
            memcpy(listener.script + listener.n_script, words, n_words * sizeof *words);
            listener.n_script += n_words;
            params.reasoning_budget = budget;
            params.n_logprobs = 0;
            params.mask = i == 2 ? NULL : follow_script;
            run(&params, SCHEDULER_PARAMS(.no_thread = i == 1));
            for (size_t t = 0; t < n_words; t++) {
                assert_int_equal(listener.answer.tokens[(size_t)budget + t], words[t]);
                assert_true(listener.answer.logprobs[(size_t)budget + t].chosen == 0);
            }
            if (i < 2) {
                assert_log(&listener, budget ? "R{ the the the}" : "");
                assert_int_equal(listener.n_masks, (size_t)budget + 1); /* words are not asked about */
            }
        }
    /* max_tokens ends the words as well. */
    qn_request_params params = params_of(&listener, thinks, NULL);
    params.reasoning_budget = 2;
    params.max_tokens = 3;
    run(&params, (qn_scheduler_params)QN_SCHEDULER_PARAMS_INIT);
    assert_int_equal(listener.answer.n_tokens, 3);
    assert_int_equal(listener.answer.result.finish, QN_FINISH_LENGTH);
    assert_int_equal(listener.answer.tokens[2], words[0]);
    /* So does a stop token among them. */
    params = params_of(&listener, thinks, NULL);
    params.reasoning_budget = 2;
    params.stop_tokens = words + 1;
    params.n_stop_tokens = 1;
    run(&params, (qn_scheduler_params)QN_SCHEDULER_PARAMS_INIT);
    assert_int_equal(listener.answer.n_tokens, 4);
    assert_int_equal(listener.answer.result.finish, QN_FINISH_STOP);
    qn_free_tokens(words);
}

/* What follows the words is what follows them in a prompt, to the bit; also when the request is set aside behind
 * them. */
TEST(words_are_evaluated)
{
    enum { BUDGET = 5, TOKENS = QN_TEST_SANITIZED ? 14 : 30 };
    qn_token *prompt, *tokens;
    size_t n_prompt, n_words;
    bool idle = false;
    assert_ok(qn_tokenize(model, "\n</think>\n\n", 11, false, true, &tokens, &n_words));
    qn_free_tokens(tokens);
    qn_request_params params = params_of(&listener, thinks, NULL);
    params.reasoning_budget = BUDGET;
    params.max_tokens = TOKENS;
    params.ignore_end = true;
    qn_scheduler *scheduler = create_scheduler(model, &SCHEDULER_PARAMS(.no_thread = true));
    submit_request(scheduler, &params);
    while (listener.answer.n_tokens < BUDGET + n_words)
        assert_ok(qn_scheduler_step(scheduler, &idle));
    qn_scheduler_set_aside(scheduler, scheduler->running[0]);
    qn_scheduler_wait(scheduler);
    qn_scheduler_free(scheduler);
    assert_int_equal(listener.answer.n_tokens, TOKENS);
    assert_int_equal(listener.answer.result.n_set_aside, 1);

    assert_ok(qn_conversation_tokens(model, thinks, sizeof thinks - 1, -1, &prompt, &n_prompt));
    tokens = malloc((n_prompt + BUDGET + n_words) * sizeof *tokens);
    assert_non_null(tokens);
    memcpy(tokens, prompt, n_prompt * sizeof *tokens);
    memcpy(tokens + n_prompt, listener.answer.tokens, (BUDGET + n_words) * sizeof *tokens);
    static struct answer alone;
    qn_request_params request = QN_REQUEST_PARAMS_INIT;
    request.tokens = tokens;
    request.n_tokens = n_prompt + BUDGET + n_words;
    request.max_tokens = (int64_t)(TOKENS - BUDGET - n_words);
    request.ignore_end = true;
    request.sampling.temperature = 0;
    answer_alone(model, NULL, 1024, &request, &alone);
    assert_memory_equal(alone.tokens, listener.answer.tokens + BUDGET + n_words, alone.n_tokens * sizeof *tokens);
    qn_free_tokens(prompt);
    free(tokens);
}

/* ---- Refusals ---- */

static bool any_text(void *user, const char *text, size_t length)
{
    (void)user;
    (void)text;
    (void)length;
    return true;
}

static void refuses(qn_model *with, const qn_request_params *params, qn_status status, const char *text)
{
    qn_scheduler *scheduler = create_scheduler(with, &SCHEDULER_PARAMS(.no_thread = true));
    assert_int_equal(qn_scheduler_submit(scheduler, params, NULL), status);
    label("%s", qn_error_text());
    assert_text(text);
    qn_scheduler_free(scheduler);
}

TEST(refuses_what_cannot_be_parsed)
{
    qn_request_params params = params_of(&listener, plain, NULL);
    params.on_text = any_text;
    refuses(model, &params, QN_ERR_INVALID, "on_event: it is given with on_text");
    params = params_of(&listener, plain, NULL);
    params.tools = "[]";
    params.tools_length = 2;
    refuses(model, &params, QN_ERR_INVALID, "tools: they are given with a conversation, which has its own");
    params.conversation = NULL;
    params.text = "x";
    params.on_event = NULL;
    refuses(model, &params, QN_ERR_INVALID, "tools: they are given without on_event");
    params = params_of(&listener, with_tools, NULL);
    refuses(no_tools_model, &params, QN_ERR_UNSUPPORTED, "tools: the model's chat template has none");
    refuses(other_calls_model, &params, QN_ERR_UNSUPPORTED, "its calls cannot be parsed back");
    params = params_of(&listener, "{" MESSAGES ", \"tools\": {\"a\": 1}}", NULL);
    refuses(model, &params, QN_ERR_INVALID, "tools: they are not an array");
    assert_int_equal(listener.answer.n_ends, 0);
}

TEST_GROUP(load_models, free_models)

int main(void)
{
    const int failed = run_all_tests();
    transcript_free(&listener.transcript);
    transcript_free(&other.transcript);
    return failed;
}
