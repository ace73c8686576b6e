/* Answers of sessions as events: with tools and without, stop strings, the budget of reasoning, a conversation that
 * goes on. The caller (tools/make_parrot_model.py) answers everything with reasoning and a call. */
#include "helper_create.h"
#include "helper_output.h"

#include "engine/events.h"
#include "gguf/gguf.h"
#include "helper_request.h"
#include "helper_files.h"
#include "quern/quern.h"
#include "quern/scheduler.h"

#include <unistd.h>

#define ASK "\"messages\": [{\"role\": \"user\", \"content\": \"What is it?\"}], \"add_generation_prompt\": true"
#define TOOLS                                                                                                          \
    "[{\"type\": \"function\", \"function\": {\"name\": \"look_up\", \"parameters\": {\"type\": \"object\"}}}]"
#define CALL "{\"name\": \"look_up\", \"arguments\": {\"text\": \"a \\\"quern\\\"\", \"n\": 2}}"
#define EVENTS "[look_up|{\"text\": \"a \\\"quern\\\"\", \"n\": 2}]="
#define WORDS "\n</think>\n\n"
#define THINKS                                                                                                         \
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"                                               \
    "{% if add_generation_prompt %}assistant: <think>\n{% endif %}"

enum { MAX_TOKENS = 64, THINK_OPEN = 259, THINK_CLOSE = 261 /* of the caller */ };

static qn_model *caller, *demo;

/* What callbacks have received. */
struct listener {
    struct transcript transcript;
    qn_token tokens[MAX_TOKENS];
    size_t n_tokens, n_events, stop_at; /* on_event returns false at so many; 0: never */
    int n_ends;
};

static struct listener listener;

static bool on_event(void *user, const qn_output_event *event)
{
    struct listener *l = user;
    transcript_event(event, &l->transcript);
    return ++l->n_events != l->stop_at;
}

static bool on_token(void *user, qn_token token, const qn_logprobs *logprobs)
{
    (void)logprobs;
    struct listener *l = user;
    assert_true(l->n_tokens < MAX_TOKENS);
    l->tokens[l->n_tokens++] = token;
    return true;
}

static qn_request_params params_of(const char *tools)
{
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    transcript_free(&listener.transcript);
    listener = (struct listener){ .transcript = { .last_kind = -1 } };
    params.sampling.temperature = 0;
    params.max_tokens = MAX_TOKENS;
    params.tools = tools;
    params.tools_length = tools ? strlen(tools) : 0;
    params.on_event = on_event;
    params.on_token = on_token;
    params.user = &listener;
    return params;
}

/* The answer of a new session to a conversation. */
static qn_status answer(qn_model *model, const char *conversation, const qn_request_params *params,
                        qn_request_result *result)
{
    qn_token *tokens;
    size_t n;
    assert_ok(qn_conversation_tokens(model, conversation, strlen(conversation), -1, &tokens, &n));
    qn_session *session = create_session(model, NULL);
    const qn_status status = generate_from(session, tokens, n, params, result);
    qn_session_free(session);
    qn_free_tokens(tokens);
    return status;
}

static void assert_log(const char *expected)
{
    text_add(&listener.transcript.log, "", 0);
    transcript_close(&listener.transcript);
    assert_string_equal(listener.transcript.log.data, expected);
    assert_null(listener.transcript.problem);
}

/* ---- Events ---- */

TEST(answers_are_events)
{
    qn_request_result result = QN_REQUEST_RESULT_INIT;
    qn_request_params params = params_of(TOOLS);
    assert_ok(answer(caller, "{" ASK ", \"tools\": " TOOLS "}", &params, &result));
    assert_log("R{I look it up.}" EVENTS);
    assert_int_equal(result.finish, QN_FINISH_STOP);
    assert_int_equal(result.n_generated, listener.n_tokens);
    params = params_of(NULL);
    assert_ok(answer(caller, "{" ASK "}", &params, &result));
    assert_log("R{I look it up.}C{<tool_call>\n" CALL "\n</tool_call>}");
    params = params_of(TOOLS);
    params.max_tokens = 4;
    assert_ok(answer(caller, "{" ASK "}", &params, &result));
    assert_log("R{I look it up.}"); /* a delimiter that is cut is nothing */
    assert_int_equal(result.finish, QN_FINISH_LENGTH);
    params = params_of(TOOLS); /* complete, but for its closing delimiter */
    params.max_tokens = 5;
    assert_ok(answer(caller, "{" ASK "}", &params, &result));
    assert_log("R{I look it up.}" EVENTS);
}

TEST(answers_end)
{
    static const char *const stop[] = { "I look", "look_up\"" };
    qn_request_result result = QN_REQUEST_RESULT_INIT;
    qn_request_params params = params_of(NULL);
    params.stop = stop;
    params.n_stop = 2;
    assert_ok(answer(caller, "{" ASK "}", &params, &result));
    assert_log("R{I look it up.}C{<tool_call>\n{\"name\": \"}"); /* in content, not in reasoning */
    assert_int_equal(result.finish, QN_FINISH_STOP);
    params = params_of(TOOLS);
    params.stop = stop;
    params.n_stop = 2;
    assert_ok(answer(caller, "{" ASK "}", &params, &result));
    assert_log("R{I look it up.}" EVENTS); /* nor in calls */
    assert_int_equal(result.finish, QN_FINISH_STOP);
    for (size_t at = 1; at <= 3; at++) {
        params = params_of(TOOLS);
        listener.stop_at = at;
        assert_ok(answer(caller, "{" ASK "}", &params, &result));
        assert_int_equal(result.finish, QN_FINISH_CALLBACK);
        assert_int_equal(listener.n_events, at);
    }
}

static void refuses(qn_model *model, const qn_request_params *params, qn_status expected, const char *text)
{
    assert_fails(answer(model, "{" ASK "}", params, NULL), expected, text);
    assert_int_equal(listener.n_tokens, 0);
}

static bool on_text(void *user, const char *text, size_t length)
{
    (void)user;
    (void)text;
    (void)length;
    return true;
}

TEST(wrong_params_are_refused)
{
    qn_request_params params = params_of(TOOLS);
    params.on_text = on_text;
    refuses(caller, &params, QN_ERR_INVALID, "on_event: it is given with on_text");
    params = params_of(TOOLS);
    params.on_event = NULL;
    refuses(caller, &params, QN_ERR_INVALID, "tools: they are given without on_event");
    params = params_of("[{");
    refuses(caller, &params, QN_ERR_INVALID, "tools");
    params = params_of("{}");
    refuses(caller, &params, QN_ERR_INVALID, "tools: they are not an array");
    params = params_of(TOOLS);
    refuses(demo, &params, QN_ERR_UNSUPPORTED, "tools: the model's chat template has none");
    params = params_of("[]");
    assert_ok(answer(caller, "{" ASK "}", &params, NULL));
    assert_int_equal(listener.transcript.n_calls, 0);
}

/* ---- The budget ---- */

static void on_end(void *user, const qn_request_result *result)
{
    struct listener *l = user;
    assert_int_equal(result->status, QN_OK);
    l->n_ends++;
}

/* The same answer from a scheduler. */
static void schedule(const char *conversation, const qn_request_params *like)
{
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    params.conversation = conversation;
    params.conversation_length = strlen(conversation);
    params.sampling = like->sampling;
    params.max_tokens = like->max_tokens;
    params.ignore_end = like->ignore_end;
    params.reasoning_budget = like->reasoning_budget;
    params.on_event = on_event;
    params.on_token = on_token;
    params.on_end = on_end;
    params.user = &listener;
    qn_scheduler *scheduler = create_scheduler(demo, &SCHEDULER_PARAMS(.no_thread = true));
    submit_and_wait(scheduler, &params);
    qn_scheduler_free(scheduler);
    assert_int_equal(listener.n_ends, 1);
}

TEST(a_budget_ends_reasoning)
{
    qn_token *words, found[MAX_TOKENS];
    size_t n_words, n_found;
    qn_request_result result = QN_REQUEST_RESULT_INIT;
    assert_ok(qn_tokenize(demo, WORDS, strlen(WORDS), true, false, &words, &n_words));
    for (int64_t budget = 0; budget <= 6; budget += 3)
        for (int64_t limit = budget; limit <= budget + (int64_t)n_words + 10; limit += n_words + 10) {
            label("budget %d, at most %d tokens", (int)budget, (int)limit);
            qn_request_params params = params_of(NULL);
            params.reasoning_budget = budget;
            params.ignore_end = true;
            params.max_tokens = limit ? limit : 1;
            assert_ok(answer(demo, "{" ASK "}", &params, &result));
            assert_int_equal(result.finish, QN_FINISH_LENGTH);
            assert_int_equal(listener.n_tokens, params.max_tokens);
            for (size_t i = (size_t)budget; i < (size_t)budget + n_words && i < listener.n_tokens; i++)
                assert_int_equal(listener.tokens[i], words[i - (size_t)budget]);
            n_found = listener.n_tokens;
            memcpy(found, listener.tokens, sizeof found);
            char *log = strdup(listener.transcript.log.data ? listener.transcript.log.data : "");
            assert_int_equal(strstr(log, "C{") != NULL, limit > budget);
            params_of(NULL);
            schedule("{" ASK "}", &params);
            assert_int_equal(listener.n_tokens, n_found);
            assert_memory_equal(listener.tokens, found, n_found * sizeof *found);
            assert_string_equal(listener.transcript.log.data ? listener.transcript.log.data : "", log);
            free(log);
        }
    /* Without events the text has the words. */
    qn_request_params params = params_of(NULL);
    params.on_event = NULL;
    params.reasoning_budget = 2;
    params.max_tokens = 2 + (int64_t)n_words;
    assert_ok(answer(demo, "{" ASK "}", &params, &result));
    assert_memory_equal(listener.tokens + 2, words, n_words * sizeof *words);
    qn_free_tokens(words);
}

/* The words end reasoning also where its delimiters are control tokens, which text does not become by itself. */
TEST(words_are_control_tokens)
{
    static const char source[] = QN_SOURCE_DIR "/tests/golden/caller.gguf";
    char path[] = "/tmp/quern-test-XXXXXX";
    qn_gguf *gguf;
    size_t n;
    uint8_t *bytes = read_file(source, &n);
    assert_ok(qn_gguf_open_memory(bytes, n, source, &gguf));
    uint8_t *types = (uint8_t *)qn_gguf_find(gguf, "tokenizer.ggml.token_type")->data;
    qn_gguf_close(gguf);
    types[4 * THINK_OPEN] = types[4 * THINK_CLOSE] = 3;
    const int fd = mkstemp(path);
    assert_int_equal(write(fd, bytes, n), n);
    close(fd);
    free(bytes);
    qn_model *model = create_model(path, &CPU_MODEL());
    unlink(path);
    assert_true(qn_token_is_special(model, THINK_CLOSE));
    qn_request_params params = params_of(NULL);
    params.reasoning_budget = 1;
    params.max_tokens = 6;
    assert_ok(answer(model, "{" ASK "}", &params, NULL));
    assert_int_equal(listener.tokens[0], THINK_OPEN);
    assert_int_equal(listener.tokens[3], THINK_CLOSE);
    assert_log("R{I look it up.}");
    qn_model_free(model);
}

/* ---- Conversations ---- */

/* A second turn evaluates what the first one does not have, also of the prompt that it shares whole. */
TEST(conversations_go_on)
{
    static const char
        first[] = "{" ASK "}",
        second[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"What is it?\"}, {\"role\": \"assistant\", "
                   "\"content\": \"A mill.\"}, {\"role\": \"user\", \"content\": \"So?\"}]}";
    qn_token *tokens, *again;
    size_t n, n_again;
    uint32_t shared;
    qn_request_params params = params_of(NULL);
    params.max_tokens = 3;
    qn_session *session = create_session(caller, NULL);
    assert_ok(qn_conversation_tokens(caller, first, sizeof first - 1, -1, &tokens, &n));
    assert_ok(qn_session_truncate_to(session, tokens, n, &shared));
    assert_int_equal(shared, 0);
    assert_ok(generate_from(session, tokens, n, &params, NULL));
    assert_ok(qn_session_truncate_to(session, tokens, n, &shared));
    assert_int_equal(shared, n - 1);
    assert_int_equal(qn_session_length(session), n - 1);
    assert_ok(qn_conversation_tokens(caller, second, sizeof second - 1, -1, &again, &n_again));
    assert_ok(generate_from(session, tokens + shared, n - shared, &params, NULL));
    assert_ok(qn_session_truncate_to(session, again, n_again, &shared));
    assert_int_equal(shared, n); /* up to the assistant's header */
    assert_memory_equal(qn_session_tokens(session), again, shared * sizeof *again);
    assert_int_equal(qn_session_truncate_to(session, again, 0, &shared), QN_ERR_INVALID);
    qn_session_free(session);
    qn_free_tokens(tokens);
    qn_free_tokens(again);
}

/* Where an answer begins is told from the delimiter's token, not from a message's text that spells it. */
TEST(ends_of_prompts)
{
    const qn_tokenizer *tok;
    qn_token spelled[7], *raw;
    size_t n;
    bool ends;
    assert_ok(qn_model_tokenizer(caller, &tok));
    for (int i = 0; i < 7; i++)
        spelled[i] = "<think>"[i];
    assert_ok(qn_tokenize(caller, "x<think>\n", 9, true, false, &raw, &n));
    const qn_output_delimiter as_token = { "<think>", THINK_OPEN }, as_text = { "<think>", -1 }, none = { NULL, -1 };
    const struct {
        const qn_token *prompt;
        size_t n;
        qn_output_delimiter delimiter;
        bool ends;
    } cases[] = { { raw, n, as_token, true },    { raw, n - 2, as_token, false }, { spelled, 7, as_token, false },
                  { spelled, 7, as_text, true }, { spelled, 6, as_text, false },  { raw, n, as_text, true },
                  { raw, n, none, false },       { raw, 0, as_token, false },     { raw, 0, as_text, false } };
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("case %zu", i);
        assert_ok(qn_prompt_ends_with(tok, cases[i].prompt, cases[i].n, &cases[i].delimiter, &ends));
        assert_int_equal(ends, cases[i].ends);
    }
    qn_free_tokens(raw);
}

TEST(chat_formats_are_described)
{
    qn_chat_format format = *qn_model_get_chat_format(caller);
    assert_string_equal(format.source, "file");
    assert_string_equal(format.problem, "");
    assert_string_equal(format.tool_calls, "json");
    assert_string_equal(format.think_open, "<think>");
    assert_true(format.has_enable_thinking && !format.has_reasoning_effort);
    assert_int_equal(format.n_efforts, 0);
    format = *qn_model_get_chat_format(demo);
    assert_string_equal(format.source, "given");
    assert_string_equal(format.tool_calls, "");
    assert_string_equal(format.think_close, "</think>");
    assert_true(!format.has_enable_thinking && !format.has_reasoning_effort);
}

static int load_models(void)
{
    caller = create_model(QN_SOURCE_DIR "/tests/golden/caller.gguf", &CPU_MODEL());
    demo = create_model(QN_SOURCE_DIR "/models/quern-demo.gguf",
                        &CPU_MODEL(.n_threads = 1, .skip_weight_scan = true, .chat_template = THINKS));
    return 0;
}

static int free_models(void)
{
    transcript_free(&listener.transcript);
    qn_model_free(caller);
    qn_model_free(demo);
    return 0;
}

TEST_GROUP(load_models, free_models)
