/* Reads the body of OpenAI's Responses as a chat: instructions, input items, the format of the answer. */
#include "protocol/parts.h"
#include "protocol/responses.h"
#include "protocol/turns.h"

#include <stdio.h>
#include <string.h>

/* ---- Texts ---- */

typedef void add_text(qn_turns *turns, const char *text, size_t length);

/* Returns the member that is the text of a part, borrowed; its type is not checked. NULL: there is none. */
static const json_t *text_of(const json_t *part)
{
    static const char *const types[] = { "input_text", "output_text", "text", "reasoning_text" };
    const json_t *type = json_object_get(part, "type");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (qn_json_is(type, types[i]))
            return json_object_get(part, "text");
    return qn_json_is(type, "refusal") ? json_object_get(part, "refusal") : NULL;
}

/* Adds the line that replaces a part of a result. False: it has none. */
static bool add_omitted(qn_turns *turns, const json_t *part)
{
    qn_bytes line = { .account = turns->reading->account };
    const bool has_line = qn_part_text(part, true, turns->reading, &line);
    if (has_line)
        qn_turns_result_text(turns, line.data, line.length);
    qn_bytes_free(&line);
    return has_line;
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
        if (add == qn_turns_result_text && !text && add_omitted(turns, part))
            continue;
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
    const json_t *id = json_object_get(item, "call_id");
    json_t *name = json_object_get(item, "name"), *text = json_object_get(item, is_custom ? "input" : "arguments");
    if (!json_is_string(id) || !json_is_string(name) || !json_is_string(text))
        return qn_refuse(refusal, 400, NULL, where, "%s: the call has no call_id, no name or no %s, expected strings",
                         where, is_custom ? "input" : "arguments");
    json_t *whole = qn_responses_tool_name(qn_field(item, "namespace"), name, reading);
    json_t *arguments = !whole      ? NULL
                        : is_custom ? json_pack("{s:O}", "input", text)
                                    : qn_openai_arguments(text, reading);
    if (arguments)
        qn_turns_call(turns, json_string_value(id), json_string_value(whole), arguments);
    json_decref(whole);
    return arguments || qn_reading_refuse(reading, refusal);
}

static bool take_result(qn_turns *turns, const json_t *item, const char *where, qn_refusal *refusal)
{
    const json_t *id = json_object_get(item, "call_id");
    if (!json_is_string(id))
        return qn_refuse(refusal, 400, NULL, where, "%s: the output has no call_id, expected a string", where);
    qn_turns_result(turns, json_string_value(id));
    return add_texts(turns, json_object_get(item, "output"), where, qn_turns_result_text, refusal);
}

/* Adds a reasoning item. Clients that drop its text keep encrypted_content or the id; both have the same value. */
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

/* Adds an item of the input. Items of other types are skipped: servers of OpenAI's tools made them. */
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
    const bool done =
        check_state(body, refusal) && take_input(x, &turns, body, reading, refusal) &&
        take_format(x, qn_field(body, "text"), refusal) && qn_openai_take_format(&x->base, body, reading, refusal) &&
        qn_responses_take_tools(x, body, reading, tools, refusal) && take_effort(body, conversation, refusal) &&
        qn_openai_take_variables(body, conversation, refusal) &&
        (qn_turns_finish(&turns, x->base.tools.list ? tools : NULL, false, conversation) ||
         qn_reading_refuse(reading, refusal));
    qn_turns_free(&turns);
    json_decref(tools);
    return done;
}
