/* The form of a model's output, determined from its chat template and vocabulary. */
#include "chat/output_parser.h"

#include "base/strings.h"
#include "text/json_scan.h"

#include <stdio.h>
#include <string.h>

static const char *const names[QN_OUTPUT_N_FORMS] = {
    [QN_OUTPUT_PLAIN] = "plain", [QN_OUTPUT_JSON] = "json", [QN_OUTPUT_XML] = "xml", [QN_OUTPUT_LLAMA3] = "llama3"
};

const char *const qn_output_markers[] = { "<think>",         "</think>",         "<tool_call>",    "</tool_call>",
                                          "<tool_response>", "</tool_response>", "<|python_tag|>", NULL };

const char *qn_output_form_name(qn_output_form form)
{
    return (unsigned)form < QN_OUTPUT_N_FORMS ? names[form] : "?";
}

void qn_output_params_init(qn_output_params *params, qn_output_form form)
{
    *params = (qn_output_params){ .form = form,
                                  .think_open = { "<think>", -1 },
                                  .think_close = { "</think>", -1 },
                                  .call_open = { NULL, -1 },
                                  .call_close = { NULL, -1 },
                                  .reasoning_budget = SIZE_MAX,
                                  .max_call = (size_t)16 << 20 };
    if (form == QN_OUTPUT_JSON || form == QN_OUTPUT_XML) {
        params->call_open.text = "<tool_call>";
        params->call_close.text = "</tool_call>";
    } else if (form == QN_OUTPUT_LLAMA3) {
        params->call_open.text = "<|python_tag|>";
    }
}

void qn_output_find_tokens(qn_output_params *params, const qn_tokenizer *tok)
{
    qn_output_delimiter *const all[] = { &params->think_open, &params->think_close, &params->call_open,
                                         &params->call_close };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->text)
            all[i]->token = qn_tokenizer_find(tok, all[i]->text);
}

struct search {
    const char *text;
    size_t length;
    bool found;
};

static bool search(const char *text, size_t length, void *user)
{
    struct search *search = user;
    search->found = qn_memmem(text, length, search->text, search->length) != NULL;
    return !search->found;
}

static bool spells(const qn_jinja *jinja, const char *text)
{
    struct search found = { text, strlen(text), false };
    qn_jinja_spells(jinja, search, &found);
    return found.found;
}

static qn_output_form form_that_is_spelled(const qn_jinja *jinja)
{
    const bool tagged = spells(jinja, "<tool_call>"), arguments = spells(jinja, "\"arguments\": ");
    if (tagged && spells(jinja, "<function=") && spells(jinja, "<parameter="))
        return QN_OUTPUT_XML;
    if (tagged && arguments)
        return QN_OUTPUT_JSON;
    if (!arguments && spells(jinja, "{\"name\": \"") && spells(jinja, "\"parameters\": "))
        return QN_OUTPUT_LLAMA3;
    return QN_OUTPUT_PLAIN;
}

/* ---- A call that the template prints must be parsed back ---- */

#define PROBE "quern_probe"

struct probe {
    bool is_call, found;
    size_t n;
    char arguments[64];
};

static void on_probe_event(const qn_output_event *event, void *user)
{
    struct probe *probe = user;
    if (event->kind == QN_OUTPUT_CALL_BEGIN) {
        probe->is_call = event->length == sizeof PROBE - 1 && !memcmp(event->text, PROBE, event->length);
        probe->n = 0;
    } else if (event->kind == QN_OUTPUT_ARGUMENTS && event->length <= sizeof probe->arguments - probe->n) {
        memcpy(probe->arguments + probe->n, event->text, event->length);
        probe->n += event->length;
    } else if (event->kind == QN_OUTPUT_CALL_END && probe->is_call) {
        json_t *arguments = json_loadb(probe->arguments, probe->n, 0, NULL);
        const char *value = json_string_value(json_object_get(arguments, "key"));
        probe->found = probe->found || (value && json_object_size(arguments) == 1 && !strcmp(value, "a\"b"));
        json_decref(arguments);
    }
}

static bool finds_probe(qn_output_params params, const qn_output_tools *tools, const char *text)
{
    struct probe probe = { .n = 0 };
    qn_output_parser *parser;
    params.tools = tools;
    params.on_event = on_probe_event;
    params.user = &probe;
    if (qn_output_parser_create(&params, &parser) != QN_OK)
        return false;
    /* In the form llama3 a call is the whole answer. */
    const char *next = text;
    while (params.form == QN_OUTPUT_LLAMA3 && (next = strstr(next, "{\"name\": \"" PROBE)))
        text = next++;
    const bool parsed = qn_output_feed(parser, -1, text, strlen(text)) == QN_OK && qn_output_finish(parser) == QN_OK;
    qn_output_parser_free(parser);
    return parsed && probe.found;
}

static bool calls_are_parsed_back(const qn_jinja *jinja, const qn_output_params *params)
{
    static const qn_jinja_limits limits = { .steps = 1000000, .memory = 16 << 20, .output = 1 << 20 };
    json_t *tools =
        json_pack("[{s: s, s: {s: s, s: s, s: {s: s, s: {s: {s: s}}}}}]", "type", "function", "function", "name", PROBE,
                  "description", "", "parameters", "type", "object", "properties", "key", "type", "string");
    json_t *messages =
        json_pack("[{s: s, s: s}, {s: s, s: s, s: [{s: s, s: s, s: {s: s, s: {s: s}}}]}]", "role", "user", "content",
                  "Hi", "role", "assistant", "content", "", "tool_calls", "id", "call00000", "type", "function",
                  "function", "name", PROBE, "arguments", "key", "a\"b");
    json_t *empty = json_string("");
    const qn_jinja_variable variables[] = { { "messages", messages, false },
                                            { "tools", tools, false },
                                            { "bos_token", empty, true },
                                            { "eos_token", empty, true } };
    qn_jinja_output output;
    qn_output_tools *kept = NULL;
    bool found = false;
    if (messages && tools && empty && qn_output_tools_create(tools, params->form, &kept) == QN_OK &&
        qn_jinja_render(jinja, variables, 4, 0, &limits, &output) == QN_OK) {
        found = finds_probe(*params, kept, output.text);
        qn_jinja_output_free(&output);
    }
    qn_output_tools_free(kept);
    json_decref(tools);
    json_decref(messages);
    json_decref(empty);
    return found;
}

/* ---- The end of reasoning ---- */

static void take_between(const char *text, const char *close, char words[QN_OUTPUT_MAX_WORDS])
{
    const char *begin = strstr(text, "qn9thought"), *end = begin ? strstr(begin, "qn9answer") : NULL;
    if (!end)
        return;
    begin += strlen("qn9thought");
    const size_t n = (size_t)(end - begin);
    if (n >= QN_OUTPUT_MAX_WORDS || !qn_memmem(begin, n, close, strlen(close)))
        return;
    memcpy(words, begin, n);
    words[n] = '\0';
}

void qn_output_reasoning_words(const qn_jinja *jinja, const qn_output_params *params, char words[QN_OUTPUT_MAX_WORDS])
{
    static const qn_jinja_limits limits = { .steps = 1000000, .memory = 16 << 20, .output = 1 << 20 };
    words[0] = '\0';
    if (!params->think_close.text)
        return;
    snprintf(words, QN_OUTPUT_MAX_WORDS, "\n%s\n\n", params->think_close.text);
    json_t *messages = json_pack("[{s: s, s: s}, {s: s, s: s, s: s}]", "role", "user", "content", "Hi", "role",
                                 "assistant", "reasoning_content", "qn9thought", "content", "qn9answer");
    json_t *empty = json_string(""), *none = json_null();
    const qn_jinja_variable variables[] = { { "messages", messages, false },
                                            { "tools", none, false },
                                            { "bos_token", empty, true },
                                            { "eos_token", empty, true } };
    qn_jinja_output output;
    if (messages && empty && qn_jinja_render(jinja, variables, 4, 0, &limits, &output) == QN_OK) {
        take_between(output.text, params->think_close.text, words);
        qn_jinja_output_free(&output);
    }
    json_decref(messages);
    json_decref(empty);
    json_decref(none);
}

bool qn_output_form_of(const qn_jinja *jinja, qn_output_params *params)
{
    const qn_output_form form = form_that_is_spelled(jinja);
    qn_output_params_init(params, form);
    const bool known = form != QN_OUTPUT_PLAIN && calls_are_parsed_back(jinja, params);
    if (!known)
        qn_output_params_init(params, QN_OUTPUT_PLAIN);
    if (!spells(jinja, "<think>") && !spells(jinja, "</think>"))
        params->think_open.text = params->think_close.text = NULL;
    return known || !(qn_jinja_uses(jinja, "tools") || qn_jinja_uses(jinja, "tool_calls"));
}

bool qn_output_ends_with(const char *delimiter, const char *prompt, size_t length)
{
    const size_t n = strlen(delimiter);
    while (length && qn_json_is_space(prompt[length - 1]))
        length--;
    return n && length >= n && !memcmp(prompt + length - n, delimiter, n);
}
