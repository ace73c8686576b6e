/* Random conversations through chat templates and back: what a template prints of an assistant's turn is parsed into
 * the same reasoning, content and tool calls, however it is divided and wherever it ends. The templates here, the
 * golden ones, and those of models in the folder data/templates of QN_SHARED and in the folder QN_TEMPLATES, such as
 * llama.cpp's models/templates. */
#include "helper_create.h"

#include "helper_output.h"
#include "helper_random.h"
#include "helper_sanitizers.h"
#include "helper_vocab.h"

#include "quern/quern.h"
#include "chat/chat.h"
#include "grammar/grammar.h"

#include <unistd.h>

enum {
    ONE_CALL = 1,
    NO_REASONING = 2,
    UNKNOWN = 4,
    NO_TOOLS = 8,
    CALLS_ALONE = 16, /* beside calls content is not printed */
    NOT_EMPTY = 32,   /* a turn without content has another beginning */
    NO_SCHEMAS = 64,  /* schemas without a type are an endless recursion: it is rendered without tools */
    N_CONVERSATIONS = 100,
    N_THOROUGH = QN_TEST_SANITIZED ? 2 : 20, /* of them are divided and cut at all positions */
    MAX_CALLS = 3
};

#define CHATML "<|im_start|>assistant\n", "<|im_end|>"
#define LLAMA3 "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"
#define GRANITE "<|start_of_role|>assistant<|end_of_role|>", "<|end_of_text|>"
#define CHATML_TURNS "{% for m in messages %}<|im_start|>{{ m.role }}\n"

#define JSON_TEMPLATE                                                                                                  \
    CHATML_TURNS                                                                                                       \
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}"           \
    "{% for c in m.tool_calls %}\n<tool_call>\n{{ '{\"name\": \"' + c.function.name + '\", \"arguments\": ' + "        \
    "c.function.arguments|tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
#define XML_TEMPLATE                                                                                                   \
    CHATML_TURNS                                                                                                       \
    "<think>\n{{ m.reasoning_content }}\n</think>\n\n{{ m.content }}{% for c in m.tool_calls %}\n\n<tool_call>\n"      \
    "<function={{ c.function.name }}>\n{% for key, value in c.function.arguments|items %}<parameter={{ key }}>\n"      \
    "{{ value if value is string else value|tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>"            \
    "{% endfor %}<|im_end|>\n{% endfor %}"
#define LLAMA3_TEMPLATE                                                                                                \
    "{% for m in messages %}<|start|>{{ m.role }}\n{% if m.tool_calls %}{% set c = m.tool_calls[0].function %}"        \
    "{{ '{\"name\": \"' + c.name + '\", ' }}{{ '\"parameters\": ' }}{{ c.arguments|tojson }}}"                         \
    "{% else %}{{ m.content }}{% endif %}<|eot|>{% endfor %}"

static const struct origin {
    const char *name; /* of a file, or NULL */
    const char *source;
    const char *open, *close; /* around a turn */
    qn_output_form form;
    int flags;
} origins[] = {
    { NULL, JSON_TEMPLATE, CHATML, QN_OUTPUT_JSON, 0 },
    { NULL, XML_TEMPLATE, CHATML, QN_OUTPUT_XML, 0 },
    { NULL, LLAMA3_TEMPLATE, "<|start|>assistant\n", "<|eot|>", QN_OUTPUT_LLAMA3, ONE_CALL | NO_REASONING },
    { "tools_json", NULL, CHATML, QN_OUTPUT_JSON, NO_REASONING | NOT_EMPTY },
    { "tools_xml", NULL, CHATML, QN_OUTPUT_XML, NO_REASONING },
    { "header_date", NULL, LLAMA3, QN_OUTPUT_LLAMA3, ONE_CALL | NO_REASONING },
    { "reasoning", NULL, CHATML, QN_OUTPUT_PLAIN, NO_TOOLS },
    { "inst", NULL, NULL, NULL, QN_OUTPUT_PLAIN, UNKNOWN },
    { "Qwen-Qwen3-0.6B", NULL, CHATML, QN_OUTPUT_JSON, 0 },
    { "Qwen-Qwen2.5-7B-Instruct", NULL, CHATML, QN_OUTPUT_JSON, NO_REASONING },
    { "Qwen-QwQ-32B", NULL, CHATML, QN_OUTPUT_JSON, NO_REASONING },
    { "ibm-granite-granite-4.0", NULL, GRANITE, QN_OUTPUT_JSON, NO_REASONING },
    { "ibm-granite-granite-4.1", NULL, GRANITE, QN_OUTPUT_JSON, NO_REASONING },
    { "Bielik-11B-v3.0-Instruct", NULL, CHATML, QN_OUTPUT_JSON, 0 },
    { "MiMo-VL", NULL, CHATML, QN_OUTPUT_JSON, NO_REASONING },
    { "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", NULL, CHATML, QN_OUTPUT_JSON,
      NO_REASONING | CALLS_ALONE | NO_SCHEMAS },
    { "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", NULL, CHATML, QN_OUTPUT_JSON,
      NO_REASONING | CALLS_ALONE | NO_SCHEMAS },
    { "Reka-Edge", NULL, "<sep>assistant: ", "\n\n<sep>", QN_OUTPUT_JSON, NO_REASONING },
    { "Qwen3.8-27B", NULL, CHATML, QN_OUTPUT_XML, 0 },
    { "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", NULL, CHATML, QN_OUTPUT_XML, 0 },
    { "StepFun3.5-Flash", NULL, CHATML, QN_OUTPUT_XML, 0 },
    { "meta-llama-Llama-3.1-8B-Instruct", NULL, LLAMA3, QN_OUTPUT_LLAMA3, ONE_CALL | NO_REASONING },
    { "meta-llama-Llama-3.2-3B-Instruct", NULL, LLAMA3, QN_OUTPUT_LLAMA3, ONE_CALL | NO_REASONING },
    { "meta-llama-Llama-3.3-70B-Instruct", NULL, LLAMA3, QN_OUTPUT_LLAMA3, ONE_CALL | NO_REASONING },
    { "Qwen3.5-4B", NULL, CHATML, QN_OUTPUT_XML, 0 },
    { "Qwen3-Coder", NULL, CHATML, QN_OUTPUT_XML, NO_REASONING },
    { "deepseek-ai-DeepSeek-V3.1", NULL, NULL, NULL, QN_OUTPUT_PLAIN, UNKNOWN },
    { "mistralai-Mistral-Nemo-Instruct-2407", NULL, NULL, NULL, QN_OUTPUT_PLAIN, UNKNOWN },
    { "HuggingFaceTB-SmolLM3-3B", NULL, CHATML, QN_OUTPUT_PLAIN, NO_TOOLS | NO_REASONING },
};

static const char tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"look_up\", \"description\": \"Looks up.\", \"parameters\": "
    "{\"type\": \"object\", \"properties\": {\"text\": {\"type\": \"string\"}, \"note\": {\"anyOf\": [{\"type\": "
    "\"null\"}, {\"$ref\": \"#/$defs/note\"}]}, \"count\": {\"type\": \"integer\"}, \"ratio\": {\"type\": "
    "[\"number\", \"null\"]}, \"flag\": {\"type\": \"boolean\"}, \"list\": {\"type\": \"array\"}, \"where\": "
    "{\"type\": \"object\"}}, \"$defs\": {\"note\": {\"type\": \"string\"}}}}}, {\"type\": \"function\", "
    "\"function\": {\"name\": \"now\", \"parameters\": {\"type\": \"object\", \"properties\": {}}}}]";

/* ---- Conversations ---- */

static char *random_text(const char *const *pieces, size_t n_pieces, size_t n)
{
    struct text text = { 0 };
    text_add(&text, "", 0);
    for (size_t i = 0; i < n; i++) {
        const char *piece = pieces[random_u32() % n_pieces];
        text_add(&text, piece, strlen(piece));
    }
    return text.data;
}

/* Inside of arguments there may be anything but the ends of the XML form. */
static json_t *random_string(void)
{
    static const char *const pieces[] = { "a",
                                          "K\xc3\xb6ln",
                                          "\xf0\x9f\x98\x80",
                                          "\n",
                                          "\t",
                                          " ",
                                          "\"",
                                          "\\",
                                          "\r",
                                          "<b>",
                                          "</b>",
                                          "<tool_call>",
                                          "{",
                                          "</think>",
                                          "\x01",
                                          "]",
                                          "\xe2\x80\xa8",
                                          "</param",
                                          "</tool_call>",
                                          "7",
                                          "\\u00e9",
                                          "<function=" };
    char *text = random_text(pieces, COUNT(pieces), random_u32() % 8);
    json_t *string = json_string(text);
    free(text);
    return string;
}

static json_t *random_value(unsigned depth)
{
    const unsigned kind = random_u32() % (depth ? 7 : 5);
    json_t *value = NULL;
    switch (kind) {
    case 0: return random_string();
    case 1: return json_integer((json_int_t)(int32_t)random_u32());
    case 2: return json_real((double)random_float() * 1e3);
    case 3: return json_boolean(random_u32() % 2);
    case 4: return json_null();
    case 5:
        value = json_array();
        for (unsigned i = random_u32() % 4; i > 0; i--)
            json_array_append_new(value, random_value(depth - 1));
        return value;
    default:
        value = json_object();
        for (unsigned i = random_u32() % 4; i > 0; i--) {
            char key[16];
            snprintf(key, sizeof key, "k\xc3\xa9\"%u", i);
            json_object_set_new(value, key, random_value(depth - 1));
        }
        return value;
    }
}

static json_t *random_call(void)
{
    json_t *arguments = json_object();
    const bool now = random_u32() % 4 == 0;
    for (unsigned i = random_u32() % 8; i > 0 && !now; i--)
        switch (random_u32() % 7) {
        case 0: json_object_set_new(arguments, "text", random_string()); break;
        case 1: json_object_set_new(arguments, "note", json_string("none\nat all")); break;
        case 2: json_object_set_new(arguments, "count", json_integer((json_int_t)random_u32() - 1000)); break;
        case 3:
            json_object_set_new(arguments, "ratio", random_u32() % 2 ? json_real(random_float()) : json_null());
            break;
        case 4: json_object_set_new(arguments, "flag", json_boolean(random_u32() % 2)); break;
        case 5: json_object_set_new(arguments, "list", json_pack("[o, o]", random_value(3), random_value(3))); break;
        case 6: json_object_set_new(arguments, "where", json_pack("{s: o}", "\xc3\xbc", random_value(3))); break;
        }
    return json_pack("{s: s, s: {s: s, s: o}}", "type", "function", "function", "name", now ? "now" : "look_up",
                     "arguments", arguments);
}

/* Text without space at its ends, which templates strip; tags stand inside of lines. */
static json_t *random_prose(bool may_be_empty)
{
    static const char *const pieces[] = {
        "words", "K\xc3\xb6ln",      "\n\n",          " ",        "a <tool_call> b", "x <function=now> y",
        ".",     "\xf0\x9f\x98\x80", "{\"name\": 1}", "- item\n", "<thin",           "</tool",
        "\""
    };
    if (may_be_empty && random_u32() % 3 == 0)
        return json_string("");
    char *middle = random_text(pieces, COUNT(pieces), random_u32() % 8);
    json_t *text = json_sprintf("So%s.", middle);
    free(middle);
    return text;
}

static json_t *random_answer(const struct origin *origin)
{
    json_t *calls = json_array();
    const unsigned n = origin->flags & NO_TOOLS ? 0 : random_u32() % ((origin->flags & ONE_CALL ? 1 : MAX_CALLS) + 1);
    for (unsigned i = 0; i < n; i++)
        json_array_append_new(calls, random_call());
    const bool is_alone = n && origin->flags & (ONE_CALL | CALLS_ALONE);
    json_t *content = is_alone ? json_string("") : random_prose(!(origin->flags & NOT_EMPTY));
    json_t *answer = json_pack("{s: s, s: o, s: o}", "role", "assistant", "content", content, "tool_calls", calls);
    if (!(origin->flags & NO_REASONING))
        json_object_set_new(answer, "reasoning_content", random_prose(false));
    if (!n)
        json_object_del(answer, "tool_calls");
    return answer;
}

/* ---- Parsing back ---- */

struct answer {
    struct text reasoning, content, arguments[MAX_CALLS], names[MAX_CALLS];
    size_t n_calls;
    bool is_complete[MAX_CALLS];
};

static void on_event(const qn_output_event *event, void *user)
{
    struct answer *answer = user;
    struct text *to = NULL;
    switch (event->kind) {
    case QN_OUTPUT_REASONING: to = &answer->reasoning; break;
    case QN_OUTPUT_CONTENT: to = &answer->content; break;
    case QN_OUTPUT_CALL_BEGIN:
        assert_int_equal(event->call, answer->n_calls++);
        assert_true(event->call < MAX_CALLS);
        to = &answer->names[event->call];
        break;
    case QN_OUTPUT_ARGUMENTS: to = &answer->arguments[event->call]; break;
    case QN_OUTPUT_CALL_END: answer->is_complete[event->call] = event->call_end == QN_OUTPUT_COMPLETE; return;
    }
    text_add(to, event->text, event->length);
}

static void free_answer(struct answer *answer)
{
    free(answer->reasoning.data);
    free(answer->content.data);
    for (size_t i = 0; i < MAX_CALLS; i++) {
        free(answer->arguments[i].data);
        free(answer->names[i].data);
    }
}

/* In a piece of `first` bytes and then pieces of `step` bytes, or of random sizes if it is 0. */
static struct answer parse(qn_output_params params, bool by_token, const char *output, size_t n, size_t first,
                           size_t step)
{
    struct answer answer = { .n_calls = 0 };
    qn_output_parser *parser;
    params.tools = keep_tools(tools_text, params.form);
    params.on_event = on_event;
    params.user = &answer;
    if (by_token) {
        params.think_open.token = 10;
        params.think_close.token = 11;
        params.call_open.token = 12;
        params.call_close.token = 13;
    }
    assert_ok(qn_output_parser_create(&params, &parser));
    for (size_t at = 0, end; at < n; at = end) {
        int32_t token;
        const size_t most = at < first ? first - at : step ? step : 1 + random_u32() % 9;
        end = next_piece(&params, output, at, n, most, &token);
        assert_ok(qn_output_feed(parser, token >= 0 ? token : by_token ? 100 : -1, output + at, end - at));
    }
    assert_ok(qn_output_finish(parser));
    qn_output_parser_free(parser);
    return answer;
}

static void expect_text(const struct text *found, const json_t *expected)
{
    assert_string_equal(found->data ? found->data : "", expected ? json_string_value(expected) : "");
}

static void expect_answer(const struct answer *found, const json_t *expected)
{
    const json_t *calls = json_object_get(expected, "tool_calls");
    expect_text(&found->reasoning, json_object_get(expected, "reasoning_content"));
    expect_text(&found->content, json_object_get(expected, "content"));
    assert_int_equal(found->n_calls, json_array_size(calls));
    for (size_t i = 0; i < found->n_calls; i++) {
        const json_t *function = json_object_get(json_array_get(calls, i), "function");
        expect_text(&found->names[i], json_object_get(function, "name"));
        json_t *arguments = json_loads(found->arguments[i].data, 0, NULL);
        if (!json_equal(arguments, json_object_get(function, "arguments")))
            fail_msg("arguments: %s", found->arguments[i].data);
        json_decref(arguments);
        assert_true(found->is_complete[i]);
    }
}

/* The output ends early: the arguments are a prefix of what they become. */
static void expect_prefix(const struct answer *part, const struct answer *whole)
{
    assert_true(part->n_calls <= whole->n_calls);
    for (size_t i = 0; i < part->n_calls; i++) {
        const struct text *a = &part->arguments[i], *b = &whole->arguments[i];
        assert_true(a->n <= b->n && (!a->n || !memcmp(a->data, b->data, a->n)));
        assert_true(part->is_complete[i] == (a->n == b->n));
    }
}

static char *turn_of(const struct origin *origin, const qn_jinja *jinja, json_t *answer)
{
    qn_jinja_output output;
    json_t *messages = json_pack("[{s: s, s: s}, O]", "role", "user", "content", "Hi", answer);
    json_t *empty = json_string("");
    const qn_jinja_variable variables[] = { { "messages", messages, false },
                                            { "bos_token", empty, true },
                                            { "eos_token", empty, true },
                                            { "tools", load_tools(tools_text), false } };
    assert_ok(qn_jinja_render(jinja, variables, origin->flags & NO_SCHEMAS ? 3 : 4, 0, NULL, &output));
    json_decref(empty);
    char *found = output.text, *begin = NULL;
    while ((found = strstr(found, origin->open))) {
        found += strlen(origin->open);
        begin = found;
    }
    assert_non_null(begin);
    char *end = strstr(begin, origin->close);
    assert_non_null(end);
    char *turn = strndup(begin, (size_t)(end - begin));
    assert_non_null(turn);
    json_decref(messages);
    qn_jinja_output_free(&output);
    return turn;
}

/* The calls of a turn fit the grammar of the tools, from the first delimiter on, and nothing less than all of them. */
static void check_grammar(const qn_output_params *params, const json_t *answer, const char *output)
{
    const json_t *calls = json_object_get(answer, "tool_calls");
    const char *begin = params->form == QN_OUTPUT_LLAMA3 ? output : strstr(output, "<tool_call>\n{\"name\": \"");
    if (!begin)
        begin = strstr(output, "<tool_call>{\"name\": \"");
    if (!begin)
        begin = strstr(output, "<tool_call>\n<function=");
    if (!json_array_size(calls) || !begin)
        return;
    const bool is_lazy = random_u32() % 2, is_single = random_u32() % 2, is_one = json_array_size(calls) == 1;
    const qn_grammar_calls of = { .output = params,
                                  .tools = load_tools(tools_text),
                                  .is_lazy = is_lazy,
                                  .is_single = is_single,
                                  .style = { .space = QN_JSON_SPACE_ANY, .order = QN_JSON_ORDER_ANY } };
    const char *text = begin + (is_lazy && params->form != QN_OUTPUT_LLAMA3 ? strlen(params->call_open.text) : 0);
    size_t n = strlen(text);
    qn_grammar *grammar;
    qn_grammar_state *state;
    label("lazy %d, single %d: %s", is_lazy, is_single, text);
    while (n && (text[n - 1] == '\n' || text[n - 1] == ' '))
        n--;
    assert_ok(qn_grammar_from_calls(&of, &grammar));
    assert_ok(qn_grammar_state_create(grammar, &state));
    for (size_t i = 0; i < n && is_one; i++) {
        assert_false(qn_grammar_state_is_finished(state) && !(is_lazy && !i));
        if (!qn_grammar_state_advance(state, text + i, 1))
            fail_msg("byte %zu does not fit: %s", i, text + i);
    }
    if (!is_one)
        assert_int_equal(qn_grammar_state_advance(state, text, n), !is_single);
    assert_int_equal(qn_grammar_state_is_finished(state), is_one || !is_single);
    qn_grammar_state_free(state);
    qn_grammar_free(grammar);
}

/* Divided into two at all positions, and ended there. */
static void check_positions(const qn_output_params *params, bool by_token, const char *output, size_t n,
                            const struct answer *whole, const json_t *answer)
{
    for (size_t at = 0; at < n; at++) {
        struct answer divided = parse(*params, by_token, output, n, at, n);
        expect_answer(&divided, answer);
        free_answer(&divided);
        struct answer part = parse(*params, by_token, output, at, 0, at);
        expect_prefix(&part, whole);
        free_answer(&part);
    }
}

static void check_answer(const struct origin *origin, const qn_jinja *jinja, const qn_output_params *params,
                         bool is_thorough)
{
    json_t *answer = random_answer(origin);
    char *output = turn_of(origin, jinja, answer);
    check_grammar(params, answer, output);
    const size_t n = strlen(output), steps[] = { n, 1, 0, 0, 0, 0 };
    for (int by_token = 0; by_token < 2; by_token++) {
        label("%s, %s: %s", origin->name ? origin->name : "own", by_token ? "tokens" : "bytes", output);
        for (size_t i = 0; i < COUNT(steps); i++) {
            struct answer found = parse(*params, by_token, output, n, 0, steps[i]);
            expect_answer(&found, answer);
            for (int cut = 0; cut < 10; cut++) {
                struct answer part = parse(*params, by_token, output, n ? random_u32() % n : 0, 0, 0);
                expect_prefix(&part, &found);
                free_answer(&part);
            }
            if (is_thorough && i == 0)
                check_positions(params, by_token, output, n, &found, answer);
            free_answer(&found);
        }
    }
    free(output);
    json_decref(answer);
}

/* ---- Templates ---- */

/* The source of a template; NULL if its file is in none of the folders. */
static char *read_template(const struct origin *origin)
{
    char path[4096];
    const char *shared = getenv("QN_SHARED"), *given = getenv("QN_TEMPLATES");
    const char *const folders[] = { QN_SOURCE_DIR "/tests/golden/templates",
                                    shared && *shared ? shared : QN_SOURCE_DIR "/../shared", given };
    if (!origin->name)
        return strdup(origin->source);
    FILE *file = NULL;
    for (size_t i = 0; i < 3 && !file; i++) {
        snprintf(path, sizeof path, "%s/%s%s.jinja", folders[i] ? folders[i] : "", i == 1 ? "data/templates/" : "",
                 origin->name);
        file = fopen(path, "rb");
    }
    struct text text = { 0 };
    char buffer[4096];
    text_add(&text, "", 0);
    for (size_t n; file && (n = fread(buffer, 1, sizeof buffer, file)) > 0;)
        text_add(&text, buffer, n);
    if (file) {
        fclose(file);
        return text.data;
    }
    free(text.data);
    return NULL;
}

static size_t check_origins(void)
{
    size_t n_found = 0;
    for (size_t i = 0; i < COUNT(origins); i++) {
        const struct origin *origin = &origins[i];
        qn_output_params params;
        qn_jinja *jinja;
        char *source = read_template(origin);
        if (!source)
            continue;
        n_found++;
        label("%s", origin->name ? origin->name : "own");
        assert_ok(qn_jinja_compile(source, strlen(source), &jinja));
        assert_int_equal(qn_output_form_of(jinja, &params), !(origin->flags & UNKNOWN));
        assert_string_equal(qn_output_form_name(params.form), qn_output_form_name(origin->form));
        for (int round = 0; round < N_CONVERSATIONS && origin->open; round++)
            check_answer(origin, jinja, &params, round < N_THOROUGH);
        qn_jinja_free(jinja);
        free(source);
    }
    return n_found;
}

/* Those of models are not here everywhere. */
TEST(test_templates)
{
    assert_true(check_origins() >= 8);
}

static struct file_bytes make_file(const char *template)
{
    static const char *const merges[] = { "u s", NULL };
    static const struct added_token added[] = {
        { "<think>", 4 }, { "</think>", 4 }, { "<tool_call>", 3 }, { NULL, 0 }
    };
    const struct vocab_spec spec = {
        .model = "gpt2", .pre = "qwen2", .merges = merges, .added = added, .chat_template = template
    };
    return make_vocab(&spec);
}

TEST(test_model_info)
{
    static const struct {
        const char *template, *tool_calls;
        bool has_thinking;
    } cases[] = {
        { JSON_TEMPLATE, "json", true },
        { XML_TEMPLATE, "xml", true },
        { LLAMA3_TEMPLATE, "llama3", false },
        { "{{ messages[0].tool_calls }}", "unknown", false },
        { "{{ messages[0].content }}", "", false },
        { "{% what %}</think>", "", false },
        { NULL, "", false },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct file_bytes bytes = make_file(cases[i].template);
        char path[] = "/tmp/quern-test-XXXXXX";
        const int fd = mkstemp(path);
        assert_int_equal(write(fd, bytes.data, bytes.n), bytes.n);
        close(fd);
        free(bytes.data);
        label("case %zu", i);
        qn_model *model = create_model(path, &CPU_MODEL(.vocab_only = true));
        unlink(path);
        const qn_chat_format format = *qn_model_get_chat_format(model);
        assert_string_equal(format.tool_calls, cases[i].tool_calls);
        assert_string_equal(format.think_open, cases[i].has_thinking ? "<think>" : "");
        assert_string_equal(format.think_close, cases[i].has_thinking ? "</think>" : "");
        qn_model_free(model);
    }
}

/* Delimiters are control tokens, user-defined ones, or none of the vocabulary. */
TEST(test_tokens)
{
    const struct file_bytes bytes = make_file("{% what %}");
    qn_gguf *file;
    qn_tokenizer *tok;
    qn_chat_template *chat;
    qn_output_params output;
    assert_ok(qn_gguf_open_memory(bytes.data, bytes.n, "test.gguf", &file));
    assert_ok(qn_tokenizer_create(file, &tok));
    assert_ok(qn_chat_template_create(file, tok, XML_TEMPLATE, &chat));
    assert_true(qn_chat_template_output(chat, &output));
    assert_int_equal(output.form, QN_OUTPUT_XML);
    assert_true(output.think_open.token >= 256);
    assert_int_equal(output.think_open.token, qn_tokenizer_find(tok, "<think>"));
    assert_int_equal(output.think_close.token, output.think_open.token + 1);
    assert_int_equal(output.call_open.token, output.think_open.token + 2);
    assert_string_equal(output.call_close.text, "</tool_call>");
    assert_int_equal(output.call_close.token, -1);
    qn_chat_template_free(chat);
    assert_ok(qn_chat_template_create(file, tok, NULL, &chat));
    assert_true(qn_chat_template_output(chat, &output));
    assert_int_equal(output.form, QN_OUTPUT_PLAIN);
    assert_null(output.think_open.text);
    assert_null(output.think_close.text);
    qn_chat_template_free(chat);
    qn_tokenizer_free(tok);
    qn_gguf_close(file);
    free(bytes.data);
}
