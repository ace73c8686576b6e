/* Reads the body of OpenAI's Responses as a chat: instructions, input items, tools, the format of the answer. */
#include "protocol/responses.h"
#include "protocol/turns.h"

#include <stdio.h>
#include <string.h>

/* ---- Texts ---- */

typedef void add_text(qn_turns *turns, const char *text, size_t length);

/* The text of a part, or NULL. */
static const json_t *text_of(const json_t *part)
{
    static const char *const types[] = { "input_text", "output_text", "text", "reasoning_text" };
    const json_t *type = json_object_get(part, "type");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (qn_json_is(type, types[i]))
            return json_object_get(part, "text");
    return qn_json_is(type, "refusal") ? json_object_get(part, "refusal") : NULL;
}

/* Adds each text of a content: a string, or parts. */
static bool add_texts(qn_turns *turns, const json_t *content, const char *where, add_text *add, qn_refusal *refusal)
{
    if (json_is_string(content))
        add(turns, json_string_value(content), json_string_length(content));
    else if (!json_is_array(content))
        return qn_refuse_type(refusal, where, content, "a string or an array of parts");
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i), *text = text_of(part), *type = json_object_get(part, "type");
        if (!json_is_string(text))
            return qn_refuse(refusal, 400, "unsupported_content", where,
                             "%s: a part is of the type '%.40s', which is not supported: the model reads only text",
                             where, json_is_string(type) ? json_string_value(type) : "");
        add(turns, json_string_value(text), json_string_length(text));
    }
    return true;
}

/* ---- Items ---- */

static bool take_message(qn_turns *turns, const json_t *item, const char *where, qn_refusal *refusal)
{
    const json_t *role = json_object_get(item, "role"), *content = json_object_get(item, "content");
    char field[64];
    if (qn_json_is(role, "user")) {
        qn_turns_user(turns, "", 0);
        return add_texts(turns, content, where, qn_turns_user, refusal);
    }
    if (qn_json_is(role, "assistant"))
        return add_texts(turns, content, where, qn_turns_answer, refusal);
    if (qn_json_is(role, "system") || qn_json_is(role, "developer"))
        return add_texts(turns, content, where, qn_turns_system, refusal);
    snprintf(field, sizeof field, "%s.role", where);
    return qn_refuse_choice(refusal, field, role, "\"user\", \"assistant\", \"system\" or \"developer\"");
}

static bool take_call(qn_turns *turns, const json_t *item, bool is_custom, const char *where, qn_reading *reading,
                      qn_refusal *refusal)
{
    const json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name");
    json_t *text = json_object_get(item, is_custom ? "input" : "arguments");
    if (!json_is_string(id) || !json_is_string(name) || !json_is_string(text))
        return qn_refuse(refusal, 400, NULL, where, "%s: the call has no call_id, no name or no %s, expected strings",
                         where, is_custom ? "input" : "arguments");
    json_t *arguments = is_custom ? json_pack("{s:O}", "input", text) : qn_openai_arguments(text, reading);
    if (!arguments)
        return qn_reading_refuse(reading, refusal);
    qn_turns_call(turns, json_string_value(id), json_string_value(name), arguments);
    return true;
}

static bool take_result(qn_turns *turns, const json_t *item, const char *where, qn_refusal *refusal)
{
    const json_t *id = json_object_get(item, "call_id");
    if (!json_is_string(id))
        return qn_refuse(refusal, 400, NULL, where, "%s: the output has no call_id, expected a string", where);
    qn_turns_result(turns, json_string_value(id));
    return add_texts(turns, json_object_get(item, "output"), where, qn_turns_result_text, refusal);
}

/* Clients that drop the text of reasoning keep encrypted_content or the id; both have the same value. */
static void take_reasoning(qn_turns *turns, const json_t *item)
{
    const json_t *id = qn_field(item, "encrypted_content"), *content = qn_field(item, "content");
    if (!id)
        id = qn_field(item, "id");
    qn_turns_reasoning(turns, "", 0, json_string_value(id));
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *text = text_of(json_array_get(content, i));
        qn_turns_reasoning(turns, json_string_value(text), json_string_length(text), NULL);
    }
}

/* Skips items of other types: servers of OpenAI's tools made them. */
static bool take_item(qn_turns *turns, const json_t *item, size_t index, qn_reading *reading, qn_refusal *refusal)
{
    const json_t *type = qn_field(item, "type");
    char where[32];
    snprintf(where, sizeof where, "input[%zu]", index);
    if (!json_is_object(item))
        return qn_refuse_type(refusal, where, item, "an object");
    if (!type || qn_json_is(type, "message"))
        return take_message(turns, item, where, refusal);
    if (qn_json_is(type, "function_call") || qn_json_is(type, "custom_tool_call"))
        return take_call(turns, item, qn_json_is(type, "custom_tool_call"), where, reading, refusal);
    if (qn_json_is(type, "function_call_output") || qn_json_is(type, "custom_tool_call_output"))
        return take_result(turns, item, where, refusal);
    if (qn_json_is(type, "reasoning"))
        take_reasoning(turns, item);
    return !qn_json_is(type, "item_reference") ||
           qn_refuse(refusal, 400, "unsupported", where,
                     "%s refers to an item, but responses are not stored: send all items", where);
}

static bool take_input(qn_responses *x, qn_turns *turns, const json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    const json_t *input = qn_field(body, "input");
    json_t *instructions = qn_field(body, "instructions");
    if (instructions && !json_is_string(instructions))
        return qn_refuse_type(refusal, "instructions", instructions, "a string");
    if (instructions)
        qn_json_text(&x->instructions, json_string_value(instructions), json_string_length(instructions));
    if (x->instructions.has_failed)
        return qn_refuse_over(reading->account, refusal);
    qn_turns_system(turns, json_string_value(instructions), json_string_length(instructions));
    if (json_is_string(input)) {
        qn_turns_user(turns, json_string_value(input), json_string_length(input));
        return true;
    }
    if (!json_is_array(input))
        return qn_refuse_type(refusal, "input", input, "a string or an array of items");
    if (!qn_openai_check_count(json_array_size(input), "input", reading->limits, refusal))
        return false;
    for (size_t i = 0; i < json_array_size(input); i++)
        if (!take_item(turns, json_array_get(input, i), i, reading, refusal))
            return false;
    return true;
}

/* ---- Tools ---- */

/* A custom tool becomes a function with one text argument. A grammar of its input is described to the model. */
static json_t *function_of_custom(const json_t *tool)
{
    json_t *description = qn_field(tool, "description"), *name = json_object_get(tool, "name");
    const json_t *format = qn_field(tool, "format"), *syntax = json_object_get(format, "syntax"),
                 *definition = json_object_get(format, "definition");
    json_t *function =
        json_pack("{s:O?, s:{s:s, s:{s:{s:s}}, s:[s], s:b}}", "name", name, "parameters", "type", "object",
                  "properties", "input", "type", "string", "required", "input", "additionalProperties", 0);
    qn_bytes text = { 0 };
    if (json_is_string(description))
        qn_bytes_add(&text, json_string_value(description), json_string_length(description));
    if (json_is_string(syntax) && json_is_string(definition)) {
        qn_bytes_print(&text, "%sThe input is a text of this %.20s grammar:\n", text.length ? "\n\n" : "",
                       json_string_value(syntax));
        qn_bytes_add(&text, json_string_value(definition), json_string_length(definition));
    }
    if (text.has_failed ||
        (text.length && json_object_set_new(function, "description", json_stringn(text.data, text.length)) != 0)) {
        json_decref(function);
        function = NULL;
    }
    qn_bytes_free(&text);
    return function;
}

static json_t *function_of(const json_t *tool)
{
    static const char *const fields[] = { "name", "description", "parameters", "strict" };
    json_t *function = json_object();
    bool done = function != NULL;
    for (size_t i = 0; done && i < sizeof fields / sizeof *fields; i++) {
        json_t *value = qn_field(tool, fields[i]);
        done = !value || json_object_set(function, fields[i], value) == 0;
    }
    if (done)
        return function;
    json_decref(function);
    return NULL;
}

/* Tools of other types are run by OpenAI's servers. */
static bool take_tool(qn_responses *x, const json_t *tool, size_t index, json_t *tools, qn_refusal *refusal)
{
    const json_t *type = json_object_get(tool, "type");
    const bool is_custom = qn_json_is(type, "custom");
    if (!json_is_object(tool))
        return qn_refuse_type(refusal, "tools", tool, "an array of objects");
    if (!is_custom && !qn_json_is(type, "function"))
        return true;
    json_t *function = is_custom ? function_of_custom(tool) : function_of(tool);
    const bool done = function ? qn_openai_check_function(function, index, tools, json_array_size(tools), refusal)
                               : qn_refuse_memory(refusal);
    json_t *wrapped = done ? json_pack("{s:s, s:O}", "type", "function", "function", function) : NULL;
    json_decref(function);
    if (!done)
        return false;
    if (is_custom && !x->custom)
        x->custom = json_array();
    return (json_array_append_new(tools, wrapped) == 0 &&
            (!is_custom || json_array_append(x->custom, json_object_get(tool, "name")) == 0)) ||
           qn_refuse_memory(refusal);
}

bool qn_responses_is_custom(const qn_responses *x, const char *name, size_t length)
{
    for (size_t i = 0; i < json_array_size(x->custom); i++) {
        const json_t *of = json_array_get(x->custom, i);
        if (json_string_length(of) == length && !memcmp(json_string_value(of), name, length))
            return true;
    }
    return false;
}

/* A choice of a skipped tool leaves the choice to the model. is_skipped: all tools are skipped. */
static bool take_tool_choice(qn_responses *x, const json_t *choice, json_t *tools, bool is_skipped, qn_refusal *refusal)
{
    const json_t *type = json_object_get(choice, "type");
    const bool is_named = qn_json_is(type, "function") || qn_json_is(type, "custom");
    if (choice && !json_is_object(choice) && !qn_json_is(choice, "none") && !qn_json_is(choice, "auto") &&
        !qn_json_is(choice, "required"))
        return qn_refuse_choice(refusal, "tool_choice", choice,
                                "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"name\": ...}");
    if (json_array_size(tools) && !qn_json_is(choice, "none"))
        x->base.tools.list = json_incref(tools);
    x->base.tools.is_required = qn_json_is(choice, "required") && !is_skipped;
    if (is_named)
        qn_openai_call(&x->base, json_object_get(choice, "name"));
    if (choice)
        qn_json_dump(choice, &x->choice);
    if (x->choice.has_failed)
        return qn_refuse_over(x->base.base.account, refusal);
    return !qn_json_is(type, "allowed_tools") || qn_openai_allow(&x->base, choice, refusal);
}

static bool take_tools(qn_responses *x, const json_t *body, qn_reading *reading, json_t *tools, qn_refusal *refusal)
{
    const json_t *given = qn_field(body, "tools");
    bool is_parallel = true;
    if (given && !json_is_array(given))
        return qn_refuse_type(refusal, "tools", given, "an array");
    if (!qn_openai_check_count(json_array_size(given), "tools", reading->limits, refusal) ||
        !qn_field_bool(body, "parallel_tool_calls", &is_parallel, refusal))
        return false;
    for (size_t i = 0; i < json_array_size(given); i++)
        if (!take_tool(x, json_array_get(given, i), i, tools, refusal))
            return false;
    const bool is_skipped = json_array_size(given) && !json_array_size(tools);
    x->base.tools.is_single = !is_parallel;
    return take_tool_choice(x, qn_field(body, "tool_choice"), tools, is_skipped, refusal) &&
           qn_openai_check_tools(&x->base, refusal);
}

/* ---- Format, effort ---- */

static bool take_format(qn_responses *x, const json_t *text, qn_refusal *refusal)
{
    const json_t *format = qn_field(text, "format"), *type = json_object_get(format, "type");
    bool is_strict = false;
    if (text && !json_is_object(text))
        return qn_refuse_type(refusal, "text", text, "an object");
    if (!format || qn_json_is(type, "text"))
        return true;
    if (qn_json_is(type, "json_object")) {
        x->base.format = (qn_format){ .is_given = true, .kind = QN_GRAMMAR_JSON, .field = "text.format" };
        return true;
    }
    if (!qn_json_is(type, "json_schema"))
        return qn_refuse_choice(refusal, "text.format.type", type, "\"text\", \"json_object\" or \"json_schema\"");
    return qn_field_bool(format, "strict", &is_strict, refusal) &&
           qn_openai_take_schema(&x->base, json_object_get(format, "schema"), is_strict, "text.format.schema", refusal);
}

static bool take_effort(const json_t *body, json_t *conversation, qn_refusal *refusal)
{
    const json_t *reasoning = qn_field(body, "reasoning");
    json_t *effort = qn_field(reasoning, "effort");
    if (reasoning && !json_is_object(reasoning))
        return qn_refuse_type(refusal, "reasoning", reasoning, "an object");
    return !effort || qn_openai_take_effort(effort, "reasoning.effort", conversation, refusal);
}

/* ---- All of it ---- */

/* Refuses fields that need stored responses. */
static bool check_state(const json_t *body, qn_refusal *refusal)
{
    static const char *const fields[] = { "previous_response_id", "conversation", "prompt" };
    bool is_background = false;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (qn_field(body, fields[i]))
            return qn_refuse(refusal, 400, "unsupported", fields[i],
                             "'%s' is not supported: responses are not stored, send the whole conversation as 'input'",
                             fields[i]);
    return qn_field_bool(body, "background", &is_background, refusal) &&
           (!is_background || qn_refuse(refusal, 400, "unsupported", "background", "'background' is not supported"));
}

bool qn_responses_conversation(qn_responses *x, const json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    qn_turns turns;
    qn_turns_init(&turns, reading);
    json_t *tools = json_array(), *conversation = x->base.base.conversation = json_object();
    const bool done = check_state(body, refusal) && take_input(x, &turns, body, reading, refusal) &&
                      take_format(x, qn_field(body, "text"), refusal) &&
                      qn_openai_take_format(&x->base, body, reading, refusal) &&
                      take_tools(x, body, reading, tools, refusal) && take_effort(body, conversation, refusal) &&
                      qn_openai_take_variables(body, conversation, refusal) &&
                      (qn_turns_finish(&turns, x->base.tools.list ? tools : NULL, false, conversation) ||
                       qn_reading_refuse(reading, refusal));
    qn_turns_free(&turns);
    json_decref(tools);
    return done;
}
