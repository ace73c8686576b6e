/* The body of a chat completion as a conversation of qn_request_params: messages and tools in the form that chat templates take,
 * and the few of their variables that a request can set. */
#include "cli/batch.h"

#include "text/chat_adapt.h"

#include <string.h>

static bool no_memory(qn_batch_error *error, const qn_batch_job *job)
{
    return qn_batch_fail(error, job, "out_of_memory", "no memory for its conversation");
}

static bool is(const json_t *value, const char *text)
{
    return json_is_string(value) && !strcmp(json_string_value(value), text);
}

/* ---- Messages ---- */

static bool check_parts(const qn_batch_job *job, const json_t *parts, size_t index, qn_batch_error *error)
{
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i);
        if (!is(json_object_get(part, "type"), "text") || !json_is_string(json_object_get(part, "text")))
            return qn_batch_fail(error, job, "unsupported_content",
                                 "message %zu: part %zu is not a text, which is all that is supported", index, i);
    }
    return true;
}

/* Arguments as text become the object that it is. */
static bool take_call(const qn_batch_job *job, json_t *call, size_t index, size_t number, qn_batch_error *error)
{
    json_t *function = json_object_get(call, "function"), *given = qn_batch_field(function, "arguments");
    if (!json_is_string(json_object_get(function, "name")))
        return qn_batch_fail(error, job, "invalid_request", "message %zu: tool call %zu has no function with a name", index,
                             number);
    const char *text = json_is_string(given) ? json_string_value(given) : "";
    json_t *arguments = given && !json_is_string(given) ? json_incref(given)
                        : *text                         ? json_loads(text, 0, NULL)
                                                        : json_object();
    const bool is_valid = json_is_object(arguments);
    const bool done = is_valid && json_object_set(function, "arguments", arguments) == 0;
    json_decref(arguments);
    if (!is_valid)
        return qn_batch_fail(error, job, "invalid_request",
                             "message %zu: the arguments of tool call %zu are not an object, or the text of one", index,
                             number);
    return done || no_memory(error, job);
}

static bool take_calls(const qn_batch_job *job, json_t *message, size_t index, qn_batch_error *error)
{
    json_t *calls = qn_batch_field(message, "tool_calls");
    if (!calls) {
        (void)json_object_del(message, "tool_calls");
        return true;
    }
    if (!json_is_array(calls))
        return qn_batch_wrong(error, job, "tool_calls", calls, "an array");
    for (size_t i = 0; i < json_array_size(calls); i++)
        if (!take_call(job, json_array_get(calls, i), index, i, error))
            return false;
    return true;
}

/* A message beside calls may have no content. */
static bool take_content(const qn_batch_job *job, json_t *message, size_t index, qn_batch_error *error)
{
    const json_t *content = qn_batch_field(message, "content");
    if (json_is_array(content))
        return check_parts(job, content, index, error);
    if (!content && json_array_size(json_object_get(message, "tool_calls")))
        return json_object_set_new(message, "content", json_string("")) == 0 || no_memory(error, job);
    return json_is_string(content) || qn_batch_wrong(error, job, "content", content, "a string or an array of texts");
}

static bool take_message(const qn_batch_job *job, json_t *message, size_t index, qn_batch_error *error)
{
    static const char *const roles[] = { "system", "developer", "user", "assistant", "tool" };
    const json_t *role = json_object_get(message, "role");
    size_t i = 0;
    while (i < sizeof roles / sizeof *roles && !is(role, roles[i]))
        i++;
    if (i == sizeof roles / sizeof *roles)
        return qn_batch_wrong(error, job, "role", role, "\"system\", \"developer\", \"user\", \"assistant\" or \"tool\"");
    return take_calls(job, message, index, error) && take_content(job, message, index, error);
}

static bool take_messages(const qn_batch_job *job, const json_t *body, json_t *conversation, qn_batch_error *error)
{
    const json_t *given = json_object_get(body, "messages");
    if (!json_is_array(given) || !json_array_size(given))
        return qn_batch_wrong(error, job, "messages", given, "an array with at least one message");
    json_t *messages = json_deep_copy(given);
    if (json_object_set_new(conversation, "messages", messages))
        return no_memory(error, job);
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (!take_message(job, json_array_get(messages, i), i, error))
            return false;
    return true;
}

/* ---- Tools ---- */

static bool take_tools(const qn_batch_job *job, const json_t *body, json_t *conversation, qn_batch_error *error)
{
    json_t *tools = qn_batch_field(body, "tools");
    const json_t *choice = qn_batch_field(body, "tool_choice");
    if (tools && !json_is_array(tools))
        return qn_batch_wrong(error, job, "tools", tools, "an array");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *type = json_object_get(tool, "type");
        if (json_is_string(type) && !is(type, "function"))
            return qn_batch_fail(error, job, "unsupported", "tool %zu is of the type '%.40s', expected \"function\"", i,
                                 json_string_value(type));
        if (!json_is_string(type) || !json_is_string(json_object_get(json_object_get(tool, "function"), "name")))
            return qn_batch_fail(error, job, "invalid_request",
                                 "tool %zu: expected {\"type\": \"function\", \"function\": {\"name\": ...}}", i);
    }
    if (choice && !is(choice, "none") && !is(choice, "auto"))
        return qn_batch_fail(error, job, "unsupported", "'tool_choice' is neither \"auto\" nor \"none\"");
    if (!json_array_size(tools) || is(choice, "none"))
        return true;
    return json_object_set(conversation, "tools", tools) == 0 || no_memory(error, job);
}

/* ---- Variables of the template ---- */

static bool take_effort(const qn_batch_job *job, json_t *effort, json_t *conversation, qn_batch_error *error)
{
    size_t i = 0;
    while (i < QN_EFFORT_LEVELS && !is(effort, qn_effort_levels[i]))
        i++;
    if (i == QN_EFFORT_LEVELS)
        return qn_batch_wrong(error, job, "reasoning_effort", effort,
                              "\"none\", \"minimal\", \"low\", \"medium\", \"high\", \"xhigh\" or \"max\"");
    return json_object_set(conversation, "reasoning_effort", effort) == 0 || no_memory(error, job);
}

static bool take_variables(const qn_batch_job *job, const json_t *body, json_t *conversation, qn_batch_error *error)
{
    json_t *effort = qn_batch_field(body, "reasoning_effort"), *variables = qn_batch_field(body, "chat_template_kwargs"),
           *value;
    const char *name;
    if (effort && !take_effort(job, effort, conversation, error))
        return false;
    if (variables && !json_is_object(variables))
        return qn_batch_wrong(error, job, "chat_template_kwargs", variables, "an object");
    json_object_foreach(variables, name, value)
    {
        if (!strcmp(name, "reasoning_effort")) {
            if (!take_effort(job, value, conversation, error))
                return false;
            continue;
        }
        if (strcmp(name, "enable_thinking") != 0 && strcmp(name, "preserve_thinking") != 0)
            return qn_batch_fail(
                error, job, "unsupported",
                "'chat_template_kwargs' has '%.40s', expected enable_thinking, preserve_thinking or reasoning_effort", name);
        if (!json_is_boolean(value))
            return qn_batch_wrong(error, job, name, value, "true or false");
        if (json_object_set(conversation, name, value))
            return no_memory(error, job);
    }
    return true;
}

bool qn_batch_conversation(qn_batch_job *job, const json_t *body, qn_batch_error *error)
{
    json_t *conversation = json_pack("{s:b}", "add_generation_prompt", 1);
    if (!conversation)
        return no_memory(error, job);
    const bool done = take_messages(job, body, conversation, error) && take_tools(job, body, conversation, error) &&
                      take_variables(job, body, conversation, error);
    if (done)
        job->conversation = json_dumps(conversation, JSON_COMPACT);
    json_decref(conversation);
    if (!done)
        return false;
    if (!job->conversation)
        return no_memory(error, job);
    job->params.conversation = job->conversation;
    job->params.conversation_length = strlen(job->conversation);
    return true;
}
