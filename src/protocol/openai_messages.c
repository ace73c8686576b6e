/* Reads the body of a chat as a conversation of qn_request_params: messages and tools in the form that chat templates
 * take, and the template variables that a request can set.
 *
 * Messages are changed in place, in the values of the body; the conversation takes references to them. False of a
 * function that takes or checks a value: refused. */
#include "protocol/openai.h"
#include "protocol/parts.h"

#include "gguf/json_decode.h"
#include "chat/adapt.h"
#include "chat/continue.h"

#include <stdio.h>
#include <string.h>

enum { MAX_MESSAGES = 4096, MAX_TOOLS = 512, MAX_NAME = 256, PART_BYTES = 256 };

/* Variables of templates: nesting, and bytes of texts and values. */
enum { VARIABLE_DEPTH = 16, VARIABLE_BYTES = 64 << 10, VALUE_BYTES = 16 };

/* The place of a field, for refusals: "messages[3].content". */
typedef struct place {
    char name[120];
} place;

static place place_of(const char *list, size_t index, const char *field)
{
    place p;
    snprintf(p.name, sizeof p.name, "%s[%zu]%s%s", list, index, *field ? "." : "", field);
    return p;
}

/* ---- Messages ---- */

/* Makes a part that has another type one of the type "text": documents, search results, and a refusal of an earlier
 * answer. A part without a text is left as it is. */
static bool rewrite_part(json_t *part, bool in_result, qn_reading *reading, qn_refusal *refusal)
{
    json_t *refused = json_object_get(part, "refusal"), *text = NULL;
    qn_bytes of_part = { .account = reading->account };
    if (qn_json_is(json_object_get(part, "type"), "refusal") && json_is_string(refused))
        text = json_incref(refused);
    else if (!qn_part_text(part, in_result, reading, &of_part))
        return true;
    if (!text && !of_part.has_failed && qn_reading_take(reading, PART_BYTES + of_part.length))
        text = json_stringn(of_part.length ? of_part.data : "", of_part.length);
    qn_bytes_free(&of_part);
    return (json_object_set_new(part, "text", text) == 0 &&
            json_object_set_new(part, "type", json_string("text")) == 0) ||
           qn_reading_refuse(reading, refusal);
}

/* Checks the parts of a content; each becomes one of the type "text" or is refused. */
static bool take_parts(const json_t *parts, size_t index, bool in_result, qn_reading *reading, qn_refusal *refusal)
{
    char found[QN_JSON_FOUND_BYTES];
    for (size_t i = 0; i < json_array_size(parts); i++) {
        json_t *part = json_array_get(parts, i);
        if (!rewrite_part(part, in_result, reading, refusal))
            return false;
        const json_t *type = json_object_get(part, "type");
        if (!qn_json_is(type, "text") || !json_is_string(json_object_get(part, "text")))
            return qn_refuse(refusal, 400, "unsupported_content", place_of("messages", index, "content").name,
                             "message %zu: part %zu is %s%s, expected {\"type\": \"text\", \"text\": ...}: the model "
                             "reads only text",
                             index, i, type ? "of the type " : qn_json_found(part, found),
                             type ? qn_json_found(type, found) : "");
    }
    return true;
}

json_t *qn_openai_arguments(json_t *given, qn_reading *reading)
{
    const char *text = json_is_string(given) ? json_string_value(given) : "";
    json_t *arguments = given && !json_is_string(given) ? json_incref(given)
                        : *text                         ? qn_reading_decode(reading, text, json_string_length(given))
                                                        : json_object();
    if (json_is_object(arguments) || !given)
        return arguments;
    json_decref(arguments);
    return reading->is_over ? NULL : json_pack("{s:O}", "arguments", given);
}

/* Replaces the arguments of a call by an object, as templates take them. */
static bool take_call(json_t *call, size_t index, size_t number, qn_reading *reading, qn_refusal *refusal)
{
    json_t *function = json_object_get(call, "function");
    const place where = place_of("messages", index, "tool_calls");
    if (!json_is_string(json_object_get(function, "name")))
        return qn_refuse(refusal, 400, NULL, where.name, "message %zu: tool call %zu has no function with a name",
                         index, number);
    json_t *arguments = qn_openai_arguments(qn_field(function, "arguments"), reading);
    return json_object_set_new(function, "arguments", arguments) == 0 || qn_reading_refuse(reading, refusal);
}

/* Checks the calls of a message, and makes objects of their arguments. A `tool_calls` that is null is removed. */
static bool take_calls(json_t *message, size_t index, qn_reading *reading, qn_refusal *refusal)
{
    json_t *calls = qn_field(message, "tool_calls");
    if (!calls) {
        (void)json_object_del(message, "tool_calls");
        return true;
    }
    if (!json_is_array(calls))
        return qn_refuse_type(refusal, "tool_calls", calls, "an array");
    for (size_t i = 0; i < json_array_size(calls); i++)
        if (!take_call(json_array_get(calls, i), index, i, reading, refusal))
            return false;
    return true;
}

/* Whether a message of the assistant has something beside its content. */
static bool has_other(const json_t *message)
{
    return json_array_size(json_object_get(message, "tool_calls")) ||
           (qn_json_is(json_object_get(message, "role"), "assistant") &&
            (qn_field(message, "reasoning_content") || qn_field(message, "reasoning")));
}

/* Checks the content of a message and makes it a text or parts of text. A message with calls or reasoning may have
 * none. */
static bool take_content(json_t *message, size_t index, qn_reading *reading, qn_refusal *refusal)
{
    const json_t *content = qn_field(message, "content");
    json_t *refused = qn_field(message, "refusal");
    if (json_is_array(content))
        return take_parts(content, index, qn_json_is(json_object_get(message, "role"), "tool"), reading, refusal);
    if (!content && json_is_string(refused))
        return json_object_set(message, "content", refused) == 0 || qn_refuse_memory(refusal);
    if (!content && has_other(message))
        return json_object_set_new(message, "content", json_string("")) == 0 || qn_refuse_memory(refusal);
    return json_is_string(content) || qn_refuse_type(refusal, "content", content, "a string or an array of texts");
}

static bool take_message(json_t *message, size_t index, qn_reading *reading, qn_refusal *refusal)
{
    static const char *const roles[] = { "system", "developer", "user", "assistant", "tool" };
    const json_t *role = json_object_get(message, "role");
    size_t i = 0;
    while (i < sizeof roles / sizeof *roles && !qn_json_is(role, roles[i]))
        i++;
    if (i == sizeof roles / sizeof *roles)
        return qn_refuse_choice(refusal, "role", role,
                                "\"system\", \"developer\", \"user\", \"assistant\" or \"tool\"");
    return take_calls(message, index, reading, refusal) && take_content(message, index, reading, refusal);
}

static bool is_answer(const json_t *messages, size_t index)
{
    return qn_json_is(json_object_get(json_array_get(messages, index), "role"), "assistant");
}

bool qn_openai_check_count(size_t n, const char *name, const qn_protocol_limits *limits, qn_refusal *refusal)
{
    const size_t most =
        !strcmp(name, "tools") ? qn_limit(limits->tools, MAX_TOOLS) : qn_limit(limits->messages, MAX_MESSAGES);
    return n <= most ||
           qn_refuse(refusal, 400, NULL, name, "'%s' has %zu entries, at most %zu are allowed", name, n, most);
}

static bool take_messages(const json_t *body, qn_reading *reading, json_t *conversation, qn_refusal *refusal)
{
    json_t *messages = json_object_get(body, "messages");
    const size_t n = json_array_size(messages);
    if (!n)
        return qn_refuse_type(refusal, "messages", messages, "an array with at least one message");
    if (!qn_openai_check_count(n, "messages", reading->limits, refusal))
        return false;
    if (json_object_set(conversation, "messages", messages))
        return qn_refuse_memory(refusal);
    for (size_t i = 0; i < n; i++)
        if (!take_message(json_array_get(messages, i), i, reading, refusal)) {
            if (strncmp(refusal->param, "messages", 8) != 0)
                snprintf(refusal->param, sizeof refusal->param, "%.63s", place_of("messages", i, refusal->param).name);
            return false;
        }
    if (n > 1 && is_answer(messages, n - 1) && is_answer(messages, n - 2))
        return qn_refuse(refusal, 400, NULL, "messages",
                         "the last two messages are the assistant's, expected one at most");
    return true;
}

/* ---- Tools ---- */

static bool has_function(const json_t *tools, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (qn_json_is(json_object_get(json_object_get(json_array_get(tools, i), "function"), "name"), name))
            return true;
    return false;
}

bool qn_openai_check_function(const json_t *function, size_t index, const json_t *tools, size_t n_before,
                              qn_refusal *refusal)
{
    const json_t *name = json_object_get(function, "name"), *parameters = qn_field(function, "parameters"),
                 *strict = qn_field(function, "strict");
    const place where = place_of("tools", index, "");
    const size_t length = json_string_length(name);
    if (!length || length > MAX_NAME || strlen(json_string_value(name)) != length)
        return qn_refuse(refusal, 400, NULL, where.name,
                         "tool %zu: its name has %zu bytes, expected 1 to %d without U+0000", index, length, MAX_NAME);
    if (has_function(tools, n_before, json_string_value(name)))
        return qn_refuse(refusal, 400, NULL, where.name, "tool %zu: another tool has its name, '%.60s'", index,
                         json_string_value(name));
    if (parameters && !json_is_object(parameters))
        return qn_refuse(refusal, 400, NULL, where.name, "tool %zu: 'parameters' is not an object", index);
    return !strict || json_is_boolean(strict) ||
           qn_refuse(refusal, 400, NULL, where.name, "tool %zu: 'strict' is neither true nor false", index);
}

static bool check_tool(const json_t *tools, size_t index, qn_refusal *refusal)
{
    const json_t *tool = json_array_get(tools, index), *type = json_object_get(tool, "type"),
                 *function = json_object_get(tool, "function");
    const place where = place_of("tools", index, "");
    if (json_is_string(type) && !qn_json_is(type, "function"))
        return qn_refuse(refusal, 400, "unsupported", where.name,
                         "tool %zu is of the type '%.40s', expected \"function\"", index, json_string_value(type));
    if (!json_is_string(type) || !json_is_string(json_object_get(function, "name")))
        return qn_refuse(refusal, 400, NULL, where.name,
                         "tool %zu: expected {\"type\": \"function\", \"function\": {\"name\": ...}}", index);
    return qn_openai_check_function(function, index, tools, index, refusal);
}

static bool take_tools(const json_t *body, qn_reading *reading, json_t *conversation, qn_refusal *refusal)
{
    json_t *tools = qn_field(body, "tools");
    const size_t n = json_array_size(tools);
    if (tools && !json_is_array(tools))
        return qn_refuse_type(refusal, "tools", tools, "an array");
    if (!qn_openai_check_count(n, "tools", reading->limits, refusal))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!check_tool(tools, i, refusal))
            return false;
    if (!n || qn_json_is(qn_field(body, "tool_choice"), "none"))
        return true;
    return json_object_set(conversation, "tools", tools) == 0 || qn_refuse_memory(refusal);
}

/* ---- Variables of the template ---- */

bool qn_openai_take_effort(json_t *effort, const char *name, json_t *conversation, qn_refusal *refusal)
{
    size_t i = 0;
    while (i < QN_EFFORT_LEVELS && !qn_json_is(effort, qn_effort_levels[i]))
        i++;
    if (i == QN_EFFORT_LEVELS)
        return qn_refuse_choice(refusal, name, effort,
                                "\"none\", \"minimal\", \"low\", \"medium\", \"high\", \"xhigh\" or \"max\"");
    return json_object_set(conversation, "reasoning_effort", effort) == 0 || qn_refuse_memory(refusal);
}

/* Sets a variable of the conversation that is true or false. `name`: its field, for refusals. */
static bool take_switch(const char *variable, const char *name, json_t *value, json_t *conversation,
                        qn_refusal *refusal)
{
    if (!json_is_boolean(value))
        return qn_refuse_type(refusal, name, value, "true or false");
    return json_object_set(conversation, variable, value) == 0 || qn_refuse_memory(refusal);
}

/* Sets the template's variables by `reasoning`, as clients of other servers send it: an object, or llama.cpp's "on",
 * "off" or "auto". */
static bool take_reasoning(const json_t *body, json_t *conversation, qn_refusal *refusal)
{
    json_t *reasoning = qn_field(body, "reasoning"), *value;
    const char *name;
    const bool is_on = qn_json_is(reasoning, "on");
    if (qn_json_is(reasoning, "auto"))
        return true;
    if (is_on || qn_json_is(reasoning, "off"))
        return json_object_set_new(conversation, "enable_thinking", json_boolean(is_on)) == 0 ||
               qn_refuse_memory(refusal);
    if (reasoning && !json_is_object(reasoning))
        return qn_refuse_type(refusal, "reasoning", reasoning, "an object, \"on\", \"off\" or \"auto\"");
    json_object_foreach(reasoning, name, value)
    {
        const bool is_effort = !strcmp(name, "effort");
        if (json_is_null(value) || !strcmp(name, "summary"))
            continue;
        if (!is_effort && strcmp(name, "enabled") != 0)
            return qn_refuse(refusal, 400, "unsupported", "reasoning",
                             "'reasoning' has '%.40s', expected effort or enabled", name);
        if (is_effort ? !qn_openai_take_effort(value, "reasoning.effort", conversation, refusal)
                      : !take_switch("enable_thinking", "reasoning.enabled", value, conversation, refusal))
            return false;
    }
    return true;
}

/* Whether a name is one that the server sets, or a function of templates. Values of tokens count as text of the
 * template, which may spell control tokens. */
static bool is_reserved(const char *name)
{
    static const char *const names[] = { "messages",  "tools",  "documents", "add_generation_prompt",
                                         "functions", "range",  "dict",      "continue_final_message",
                                         "namespace", "cycler", "joiner",    "raise_exception",
                                         "lipsum",    "loop",   "caller",    "strftime_now" };
    const size_t n = strlen(name), suffix = strlen("_token");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i]))
            return true;
    return n >= suffix && !strcmp(name + n - suffix, "_token");
}

/* Counts the bytes of a value's texts, and its values. False: it is nested deeper than `depth`. */
static bool measure_variable(const json_t *value, int depth, size_t *bytes)
{
    const char *name;
    json_t *member;
    *bytes += VALUE_BYTES + json_string_length(value);
    if (!json_is_object(value) && !json_is_array(value))
        return true;
    if (depth == 0)
        return false;
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!measure_variable(json_array_get(value, i), depth - 1, bytes))
            return false;
    json_object_foreach((json_t *)value, name, member)
    {
        *bytes += strlen(name);
        if (!measure_variable(member, depth - 1, bytes))
            return false;
    }
    return true;
}

/* Takes any other variable of the template. */
static bool take_variable(const char *name, json_t *value, json_t *conversation, qn_refusal *refusal)
{
    size_t bytes = 0;
    if (is_reserved(name))
        return qn_refuse(refusal, 400, "unsupported", "chat_template_kwargs",
                         "'chat_template_kwargs' has '%.40s', which the server sets", name);
    if (!measure_variable(value, VARIABLE_DEPTH, &bytes) || bytes > VARIABLE_BYTES)
        return qn_refuse(refusal, 400, NULL, "chat_template_kwargs",
                         "'chat_template_kwargs': '%.40s' is nested deeper than %d or larger than %d KiB", name,
                         VARIABLE_DEPTH, VARIABLE_BYTES >> 10);
    return json_object_set(conversation, name, value) == 0 || qn_refuse_memory(refusal);
}

bool qn_openai_take_variables(const json_t *body, json_t *conversation, qn_refusal *refusal)
{
    json_t *effort = qn_field(body, "reasoning_effort"), *thinks = qn_field(body, "enable_thinking"),
           *variables = qn_field(body, "chat_template_kwargs"), *value;
    const char *name;
    if (thinks && !take_switch("enable_thinking", "enable_thinking", thinks, conversation, refusal))
        return false;
    if (effort && !qn_openai_take_effort(effort, "reasoning_effort", conversation, refusal))
        return false;
    if (variables && !json_is_object(variables))
        return qn_refuse_type(refusal, "chat_template_kwargs", variables, "an object");
    json_object_foreach(variables, name, value)
    {
        if (!strcmp(name, "reasoning_effort")) {
            if (!qn_openai_take_effort(value, name, conversation, refusal))
                return false;
            continue;
        }
        const bool is_switch = !strcmp(name, "enable_thinking") || !strcmp(name, "preserve_thinking");
        if (!(is_switch ? take_switch(name, name, value, conversation, refusal)
                        : take_variable(name, value, conversation, refusal)))
            return false;
    }
    return true;
}

/* Checks that the body asks for text alone: answers are only text. */
static bool check_modalities(const json_t *body, qn_refusal *refusal)
{
    const json_t *given = qn_field(body, "modalities");
    char found[QN_JSON_FOUND_BYTES];
    if (given && !json_is_array(given))
        return qn_refuse_type(refusal, "modalities", given, "an array");
    for (size_t i = 0; i < json_array_size(given); i++)
        if (!qn_json_is(json_array_get(given, i), "text"))
            return qn_refuse(refusal, 400, "unsupported_content", "modalities",
                             "'modalities' has %s, expected \"text\"", qn_json_found(json_array_get(given, i), found));
    return true;
}

/* Takes how the answer begins: as a new message, unless it continues the last message or the text that the template
 * prints at the end. */
static bool take_end(const json_t *body, json_t *conversation, qn_refusal *refusal)
{
    bool continues = false, has_header = true;
    if (!qn_field_bool(body, "continue_final_message", &continues, refusal) ||
        !qn_field_bool(body, "add_generation_prompt", &has_header, refusal))
        return false;
    if (continues && has_header && qn_field(body, "add_generation_prompt"))
        return qn_refuse(
            refusal, 400, NULL, "add_generation_prompt",
            "'add_generation_prompt' is given with 'continue_final_message', expected one of them to be true");
    return (json_object_set_new(conversation, "add_generation_prompt", json_boolean(has_header && !continues)) == 0 &&
            (!continues || json_object_set_new(conversation, "continue_final_message", json_true()) == 0)) ||
           qn_refuse_memory(refusal);
}

static bool check_continued(const json_t *conversation, qn_refusal *refusal)
{
    bool continues;
    return qn_chat_continues(conversation, &continues) == QN_OK ||
           qn_refuse(refusal, 400, NULL, "messages", "%s", qn_error_text());
}

json_t *qn_openai_conversation(const json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    json_t *conversation = json_object();
    const bool done = check_modalities(body, refusal) && take_end(body, conversation, refusal) &&
                      take_messages(body, reading, conversation, refusal) && check_continued(conversation, refusal) &&
                      take_tools(body, reading, conversation, refusal) && take_reasoning(body, conversation, refusal) &&
                      qn_openai_take_variables(body, conversation, refusal);
    if (done)
        return conversation;
    json_decref(conversation);
    return NULL;
}
