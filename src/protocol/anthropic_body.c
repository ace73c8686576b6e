/* Reads the body of Anthropic's Messages as a chat: system, messages, tools, thinking, the format of the answer. */
#include "protocol/anthropic.h"
#include "protocol/parts.h"
#include "protocol/turns.h"

#include <stdio.h>
#include <string.h>

enum { LEAST_BUDGET = 1024 }; /* thinking tokens */

/* ---- Texts ---- */

/* Claude Code puts a line that begins with `billing`, and differs in each request, before its system text. */
static const char billing[] = "x-anthropic-billing-header:", reminder[] = "<system-reminder>";

static bool begins_with(const json_t *text, const char *with)
{
    return json_string_length(text) >= strlen(with) && !memcmp(json_string_value(text), with, strlen(with));
}

static void add_system(qn_turns *turns, const json_t *text)
{
    const char *from = json_string_value(text), *end = from + json_string_length(text);
    if (begins_with(text, billing)) {
        const char *line = memchr(from, '\n', (size_t)(end - from));
        for (from = line ? line : end; from < end && *from == '\n';)
            from++;
    }
    qn_turns_system(turns, from, (size_t)(end - from));
}

/* A content's part that is no text is added by `add_text` if it has one. */
typedef struct adder {
    void (*add)(qn_turns *, const json_t *);
    void (*add_text)(qn_turns *turns, const char *text, size_t length);
    bool is_result;
} adder;

static void add_user(qn_turns *turns, const json_t *text)
{
    qn_turns_user(turns, json_string_value(text), json_string_length(text));
}

static void add_result(qn_turns *turns, const json_t *text)
{
    qn_turns_result_text(turns, json_string_value(text), json_string_length(text));
}

/* Refuses blocks whose content would be missing from the prompt: those for which add_other has found no text. Blocks
 * made by servers of Anthropic's tools, and other blocks without text, are skipped. `where` stays with the refusal, so
 * it is a string constant. */
static bool check_block(const json_t *block, const char *where, qn_refusal *refusal)
{
    static const char *const refused[] = { "image", "document", "audio", "video", "search_result" };
    const json_t *type = json_object_get(block, "type");
    if (!json_is_string(type))
        return qn_refuse(refusal, 400, NULL, where, "%s: a block has no type", where);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (qn_json_is(type, refused[i]))
            return qn_refuse(refusal, 400, "unsupported_content", where,
                             "%s: a block is of the type '%s', which is not supported: the model reads only text",
                             where, refused[i]);
    if (qn_json_is(type, "text") && !json_is_string(json_object_get(block, "text")))
        return qn_refuse(refusal, 400, NULL, where, "%s: a block of the type 'text' has no text", where);
    return true;
}

static const adder system_texts = { add_system, qn_turns_system, false },
                   user_texts = { add_user, qn_turns_user, false },
                   result_texts = { add_result, qn_turns_result_text, true };

/* Adds the text of a block that is a document, a search result, or of a result and no text. False: it has none. */
static bool add_other(qn_turns *turns, const json_t *block, const adder *to)
{
    qn_bytes text = { .account = turns->reading->account };
    const bool has_text = qn_part_text(block, to->is_result, turns->reading, &text);
    if (has_text && !text.has_failed)
        to->add_text(turns, text.data, text.length);
    turns->has_failed = turns->has_failed || text.has_failed;
    qn_bytes_free(&text);
    return has_text;
}

/* Adds each text of a content: a string, or blocks. A missing or null content is empty. */
static bool add_texts(qn_turns *turns, const json_t *content, const char *where, const adder *to, qn_refusal *refusal)
{
    if (json_is_string(content))
        to->add(turns, content);
    else if (content && !json_is_array(content))
        return qn_refuse_type(refusal, where, content, "a string or an array of blocks");
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i);
        if (add_other(turns, block, to))
            continue;
        if (!check_block(block, where, refusal))
            return false;
        if (qn_json_is(json_object_get(block, "type"), "text"))
            to->add(turns, json_object_get(block, "text"));
    }
    return true;
}

/* ---- Messages ---- */

static bool is_result(const json_t *block)
{
    return qn_json_is(json_object_get(block, "type"), "tool_result");
}

static bool take_result(qn_turns *turns, const json_t *block, const char *where, qn_refusal *refusal)
{
    const json_t *id = json_object_get(block, "tool_use_id");
    bool is_error = false;
    if (!json_is_string(id))
        return qn_refuse(refusal, 400, NULL, where, "%s: a tool_result has no tool_use_id", where);
    if (!qn_field_bool(block, "is_error", &is_error, refusal))
        return false;
    qn_turns_result(turns, json_string_value(id));
    if (is_error)
        qn_turns_result_text(turns, "Error:", strlen("Error:"));
    return add_texts(turns, qn_field(block, "content"), where, &result_texts, refusal);
}

/* Adds the blocks of a user message. Results come first, as nothing may separate them from their calls. Reminders next
 * to results are added to the last result: as user texts they would make templates drop the reasoning before them. */
static bool take_user(qn_turns *turns, const json_t *content, const char *where, qn_refusal *refusal)
{
    bool has_results = false, has_texts = false;
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i);
        if (!is_result(block))
            continue;
        has_results = true;
        if (!take_result(turns, block, where, refusal))
            return false;
    }
    if (!has_results) {
        qn_turns_user(turns, "", 0);
        return add_texts(turns, content, where, &user_texts, refusal);
    }
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i), *text = json_object_get(block, "text");
        if (!is_result(block) && add_other(turns, block, &user_texts)) {
            has_texts = true;
            continue;
        }
        if (!check_block(block, where, refusal))
            return false;
        if (!qn_json_is(json_object_get(block, "type"), "text"))
            continue;
        has_texts = has_texts || !begins_with(text, reminder);
        (has_texts ? add_user : add_system)(turns, text);
    }
    return true;
}

static bool take_thinking(qn_turns *turns, const json_t *block, const char *where, qn_refusal *refusal)
{
    const json_t *text = json_object_get(block, "thinking"), *signature = qn_field(block, "signature");
    if (!json_is_string(text))
        return qn_refuse(refusal, 400, NULL, where, "%s: a block of the type 'thinking' has no thinking", where);
    qn_turns_reasoning(turns, json_string_value(text), json_string_length(text), json_string_value(signature));
    return true;
}

static bool take_tool_use(qn_turns *turns, const json_t *block, const char *where, qn_refusal *refusal)
{
    const json_t *id = json_object_get(block, "id"), *name = json_object_get(block, "name");
    json_t *input = json_object_get(block, "input");
    if (!json_is_string(id) || !json_is_string(name) || !json_is_object(input))
        return qn_refuse(refusal, 400, NULL, where, "%s: a tool_use has no id, no name, or no object as its input",
                         where);
    qn_turns_call(turns, json_string_value(id), json_string_value(name), json_incref(input));
    return true;
}

static bool take_answer(qn_turns *turns, const json_t *content, const char *where, qn_refusal *refusal)
{
    qn_turns_answer(turns, json_string_value(content), json_string_length(content));
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i), *type = json_object_get(block, "type"),
                     *text = json_object_get(block, "text");
        if (!check_block(block, where, refusal) ||
            (qn_json_is(type, "thinking") && !take_thinking(turns, block, where, refusal)) ||
            (qn_json_is(type, "tool_use") && !take_tool_use(turns, block, where, refusal)))
            return false;
        if (qn_json_is(type, "text"))
            qn_turns_answer(turns, json_string_value(text), json_string_length(text));
    }
    return true;
}

static bool take_message(qn_turns *turns, const json_t *message, size_t index, qn_refusal *refusal)
{
    const json_t *role = json_object_get(message, "role"), *content = qn_field(message, "content");
    char where[48];
    const bool is_user = qn_json_is(role, "user"), is_answer = qn_json_is(role, "assistant");
    if (!is_user && !is_answer && !qn_json_is(role, "system")) {
        snprintf(where, sizeof where, "messages.%zu.role", index);
        return qn_refuse_choice(refusal, where, role, "\"user\", \"assistant\" or \"system\"");
    }
    snprintf(where, sizeof where, "messages.%zu.content", index);
    if (!json_is_string(content) && !json_is_array(content))
        return qn_refuse_type(refusal, where, content, "a string or an array of blocks");
    if (is_answer)
        return take_answer(turns, content, where, refusal);
    return is_user ? take_user(turns, content, where, refusal)
                   : add_texts(turns, content, where, &system_texts, refusal);
}

static bool take_messages(qn_turns *turns, const json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    const json_t *messages = json_object_get(body, "messages");
    const size_t n = json_array_size(messages);
    if (!n)
        return qn_refuse_type(refusal, "messages", messages, "an array with at least one message");
    if (!qn_openai_check_count(n, "messages", reading->limits, refusal) ||
        !add_texts(turns, qn_field(body, "system"), "system", &system_texts, refusal))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!take_message(turns, json_array_get(messages, i), i, refusal))
            return false;
    return !qn_turns_ends_with_call(turns) || qn_refuse(refusal, 400, NULL, "messages",
                                                        "'messages' ends with a tool_use, expected its tool_result, or "
                                                        "an answer of only texts, which is continued");
}

/* ---- Tools ---- */

/* Appends a tool of the body to `tools`, in OpenAI's form. One without a schema is skipped: it is run by Anthropic's
 * servers, or only Anthropic's models know its schema. */
static bool take_tool(const json_t *tool, size_t index, json_t *tools, qn_refusal *refusal)
{
    static const char *const fields[] = { "name", "description", "input_schema", "strict" }, *const names[] = {
        "name", "description", "parameters", "strict"
    };
    const json_t *type = qn_field(tool, "type");
    if (!json_is_object(tool))
        return qn_refuse_type(refusal, "tools", tool, "an array of objects");
    if (type && !qn_json_is(type, "custom") && !qn_field(tool, "input_schema"))
        return true;
    json_t *function = json_object(), *wrapped = json_pack("{s:s, s:O}", "type", "function", "function", function);
    bool done = wrapped && json_array_append_new(tools, wrapped) == 0;
    for (size_t i = 0; done && i < sizeof fields / sizeof *fields; i++) {
        json_t *value = qn_field(tool, fields[i]);
        done = !value || json_object_set(function, names[i], value) == 0;
    }
    done = done ? qn_openai_check_function(function, index, tools, json_array_size(tools) - 1, refusal)
                : qn_refuse_memory(refusal);
    json_decref(function);
    return done;
}

/* Sets base.tools: which tools may or must be called, with a reference of its own to `tools`. is_skipped: the body has
 * tools, but none that the model could call. */
static bool take_tool_choice(qn_anthropic *x, const json_t *choice, json_t *tools, bool is_skipped, qn_refusal *refusal)
{
    const json_t *type = json_object_get(choice, "type");
    json_t *name = json_object_get(choice, "name");
    const bool is_tool = qn_json_is(type, "tool");
    bool is_single = false;
    if (!qn_field_bool(choice, "disable_parallel_tool_use", &is_single, refusal))
        return false;
    if (choice && !qn_json_is(type, "auto") && !qn_json_is(type, "any") && !qn_json_is(type, "none") && !is_tool)
        return json_is_object(choice)
                   ? qn_refuse_choice(refusal, "tool_choice.type", type, "\"auto\", \"any\", \"none\" or \"tool\"")
                   : qn_refuse_type(refusal, "tool_choice", choice, "an object");
    if (is_tool && !json_is_string(name))
        return qn_refuse_type(refusal, "tool_choice.name", name, "a string");
    if (json_array_size(tools) && !qn_json_is(type, "none"))
        x->base.tools.list = json_incref(tools);
    x->base.tools.is_single = is_single;
    x->base.tools.is_required = qn_json_is(type, "any") && !is_skipped;
    if (is_tool)
        qn_openai_call(&x->base, name);
    return true;
}

static bool take_tools(qn_anthropic *x, const json_t *body, qn_reading *reading, json_t *tools, qn_refusal *refusal)
{
    const json_t *given = qn_field(body, "tools");
    if (given && !json_is_array(given))
        return qn_refuse_type(refusal, "tools", given, "an array");
    if (!qn_openai_check_count(json_array_size(given), "tools", reading->limits, refusal))
        return false;
    for (size_t i = 0; i < json_array_size(given); i++)
        if (!take_tool(json_array_get(given, i), i, tools, refusal))
            return false;
    const bool is_skipped = json_array_size(given) && !json_array_size(tools);
    return take_tool_choice(x, qn_field(body, "tool_choice"), tools, is_skipped, refusal) &&
           qn_openai_check_tools(&x->base, refusal);
}

/* ---- Thinking, effort, format ---- */

/* Reads the budget of thinking, in tokens. As on Anthropic's servers: at least LEAST_BUDGET, and less than max_tokens.
 * Token counts have no max_tokens. */
static bool take_budget(qn_anthropic *x, const json_t *thinking, qn_refusal *refusal)
{
    static const char field[] = "thinking.budget_tokens";
    const json_t *given = qn_field(thinking, "budget_tokens");
    const int64_t most = x->base.params.max_tokens;
    int64_t *budget = &x->base.params.reasoning_budget;
    if (!qn_json_integer_of(given, budget))
        return qn_refuse_type(refusal, field, given, "an integer");
    if (*budget < LEAST_BUDGET || *budget > INT32_MAX)
        return qn_refuse(refusal, 400, NULL, field, "'%s' is %lld, expected at least %d", field, (long long)*budget,
                         LEAST_BUDGET);
    return most < 0 || *budget < most ||
           qn_refuse(refusal, 400, NULL, field, "'%s' is %lld, expected less than 'max_tokens', %lld", field,
                     (long long)*budget, (long long)most);
}

/* Reads whether the answer has thinking and shows it. A body that does not ask for thinking gets none. */
static bool take_thinking_mode(qn_anthropic *x, const json_t *given, bool *thinks, qn_refusal *refusal)
{
    const json_t *type = json_object_get(given, "type"), *display = qn_field(given, "display");
    const bool is_enabled = qn_json_is(type, "enabled"), is_disabled = qn_json_is(type, "disabled");
    x->omits_thinking = qn_json_is(display, "omitted");
    *thinks = given && !is_disabled;
    x->hides_thinking = !*thinks;
    if (given && !is_enabled && !is_disabled && !qn_json_is(type, "adaptive"))
        return qn_refuse_choice(refusal, "thinking.type", type, "\"enabled\", \"disabled\" or \"adaptive\"");
    return !is_enabled || take_budget(x, given, refusal);
}

/* Reads the schema of the answer. `output_format` is the older name. */
static bool take_format(qn_anthropic *x, const json_t *body, qn_refusal *refusal)
{
    const json_t *older = qn_field(body, "output_format"), *newer = qn_field(qn_field(body, "output_config"), "format"),
                 *format = newer ? newer : older, *type = json_object_get(format, "type");
    if (older && newer)
        return qn_refuse(refusal, 400, NULL, "output_format",
                         "'output_format' is given with 'output_config.format', expected one of them");
    if (format && !qn_json_is(type, "json_schema"))
        return qn_refuse_choice(refusal, newer ? "output_config.format.type" : "output_format.type", type,
                                "\"json_schema\"");
    return !format || qn_openai_take_schema(&x->base, json_object_get(format, "schema"), false,
                                            newer ? "output_config.format.schema" : "output_format.schema", refusal);
}

static bool take_output(qn_anthropic *x, const json_t *body, qn_reading *reading, json_t *conversation,
                        qn_refusal *refusal)
{
    const json_t *config = qn_field(body, "output_config");
    json_t *effort = qn_field(config, "effort");
    bool thinks;
    if (config && !json_is_object(config))
        return qn_refuse_type(refusal, "output_config", config, "an object");
    if (!take_thinking_mode(x, qn_field(body, "thinking"), &thinks, refusal) ||
        !qn_field_integer(body, "thinking_budget_tokens", -1, INT32_MAX, &x->base.params.reasoning_budget, refusal) ||
        !take_format(x, body, refusal) || !qn_openai_take_format(&x->base, body, reading, refusal))
        return false;
    if (json_object_set_new(conversation, "enable_thinking", json_boolean(thinks)))
        return qn_refuse_memory(refusal);
    if (effort && !qn_openai_take_effort(effort, "output_config.effort", conversation, refusal))
        return false;
    if (effort && !thinks)
        (void)json_object_del(conversation, "reasoning_effort");
    return true;
}

/* ---- All of it ---- */

/* Refuses a request that continues a thread: threads are stored on the server, so it has no conversation. */
static bool check_thread(const json_t *body, qn_refusal *refusal)
{
    return !qn_field(body, "thread") ||
           qn_refuse(refusal, 400, QN_ANTHROPIC_NO_THREADS, "thread",
                     "'thread' is not supported: messages are not stored, send the whole conversation as 'messages'");
}

bool qn_anthropic_conversation(qn_anthropic *x, const json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    qn_turns turns;
    qn_turns_init(&turns, reading);
    json_t *tools = json_array(), *conversation = x->base.base.conversation = json_object();
    const bool done =
        check_thread(body, refusal) && take_messages(&turns, body, reading, refusal) &&
        take_output(x, body, reading, conversation, refusal) && take_tools(x, body, reading, tools, refusal) &&
        (qn_turns_finish(&turns, x->base.tools.list, true, conversation) || qn_reading_refuse(reading, refusal));
    qn_turns_free(&turns);
    json_decref(tools);
    return done;
}
