/* Constraints of answers: tool_choice, and how it combines with the format of content. */
#include "protocol/openai.h"

#include <stdlib.h>
#include <string.h>

/* ---- Calls ---- */

/* Returns the tool whose function has a name, borrowed; NULL: there is none. */
static json_t *find_tool(const json_t *tools, const char *name)
{
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (qn_json_is(json_object_get(json_object_get(json_array_get(tools, i), "function"), "name"), name))
            return json_array_get(tools, i);
    return NULL;
}

/* Whether a list has this very value, not only an equal one. */
static bool holds(const json_t *list, const json_t *value)
{
    size_t i = 0;
    while (i < json_array_size(list) && json_array_get(list, i) != value)
        i++;
    return i < json_array_size(list);
}

/* Replaces the list of tools by those that are allowed, in the order in which they are named. Names that no tool has,
 * and duplicates, are dropped. */
bool qn_openai_allow(qn_text_exchange *x, const json_t *allowed, qn_refusal *refusal)
{
    const json_t *mode = json_object_get(allowed, "mode"), *named = json_object_get(allowed, "tools");
    json_t *all = x->tools.list, *list = json_array();
    if (!json_is_array(named) || (!qn_json_is(mode, "auto") && !qn_json_is(mode, "required"))) {
        json_decref(list);
        return qn_refuse(refusal, 400, NULL, "tool_choice",
                         "'tool_choice' needs 'tools' and a 'mode', \"auto\" or \"required\"");
    }
    bool done = qn_openai_check_count(json_array_size(named), "tools", &x->limits, refusal) &&
                qn_openai_check_count(json_array_size(all), "tools", &x->limits, refusal);
    for (size_t i = 0; done && i < json_array_size(named); i++) {
        const json_t *entry = json_array_get(named, i), *function = json_object_get(entry, "function");
        const char *name = json_string_value(json_object_get(function ? function : entry, "name"));
        json_t *tool = name ? find_tool(all, name) : NULL;
        done = !tool || holds(list, tool) || json_array_append(list, tool) == 0 || qn_refuse_memory(refusal);
    }
    x->tools.is_required = qn_json_is(mode, "required");
    x->tools.list = list;
    json_decref(all);
    return done && (json_array_size(list) || qn_refuse(refusal, 400, NULL, "tool_choice",
                                                       "'tool_choice' names no function that is among the tools"));
}

void qn_openai_call(qn_text_exchange *x, json_t *name)
{
    x->tools.is_required = true;
    x->tools.called = json_incref(name);
    x->tools.name = json_is_string(name) ? json_string_value(name) : "";
}

static bool take_tools(qn_text_exchange *x, const json_t *body, qn_refusal *refusal)
{
    const json_t *choice = qn_field(body, "tool_choice");
    json_t *tools = qn_field(body, "tools"), *name = json_object_get(json_object_get(choice, "function"), "name");
    bool is_parallel = true;
    if (!qn_field_bool(body, "parallel_tool_calls", &is_parallel, refusal))
        return false;
    x->tools.is_single = !is_parallel;
    if (qn_json_is(choice, "none"))
        return true;
    x->tools.list = json_array_size(tools) ? json_incref(tools) : NULL;
    if (!choice || qn_json_is(choice, "auto"))
        return true;
    if (qn_json_is(json_object_get(choice, "type"), "allowed_tools"))
        return qn_openai_allow(x, json_object_get(choice, "allowed_tools"), refusal);
    if (!qn_json_is(choice, "required") && !qn_json_is(json_object_get(choice, "type"), "function"))
        return qn_refuse_choice(
            refusal, "tool_choice", choice,
            "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": ...}}");
    x->tools.is_required = true;
    if (json_is_object(choice))
        qn_openai_call(x, name);
    return true;
}

bool qn_openai_check_tools(const qn_text_exchange *x, qn_refusal *refusal)
{
    const qn_tools *tools = &x->tools;
    if (tools->is_required && !tools->list)
        return qn_refuse(refusal, 400, NULL, "tool_choice", "'tool_choice' is given, expected tools");
    if (tools->name && !find_tool(tools->list, tools->name))
        return qn_refuse(refusal, 400, NULL, "tool_choice", "'tool_choice' names %s",
                         *tools->name ? "a function that is not among the tools"
                                      : "no function, expected one of the tools");
    const bool is_json = x->format.kind == QN_GRAMMAR_JSON || x->format.kind == QN_GRAMMAR_SCHEMA ||
                         x->format.kind == QN_GRAMMAR_SCHEMA_STRICT;
    return !x->format.is_given || is_json || !tools->list ||
           qn_refuse(refusal, 400, "unsupported", x->format.field, "'%s' is given with tools that may be called",
                     x->format.field);
}

static bool has_strict_tool(const json_t *tools)
{
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (json_is_true(json_object_get(json_object_get(json_array_get(tools, i), "function"), "strict")))
            return true;
    return false;
}

/* Returns where the grammar of a whole answer begins. An answer that continues a message has no reasoning before it. */
static qn_grammar_when whole_answer(const qn_text_exchange *x)
{
    const bool continues = json_is_true(json_object_get(x->base.conversation, "continue_final_message"));
    return x->kind == QN_CHAT_EXCHANGE && !continues ? QN_GRAMMAR_AFTER_REASONING : QN_GRAMMAR_AT_ONCE;
}

/* Writes the schema of content that may come instead of calls. */
static void dump_format(const qn_format *f, qn_bytes *out)
{
    if (f->source)
        qn_json_dump(f->source, out);
    else
        qn_bytes_print(out, "{\"type\":\"object\"}");
}

/* Compiles the grammar of calls. That of an optional call begins at its opening; with a format, the answer has a
 * grammar from its beginning. If no grammar can be made, for example because schemas are too large, calls have none,
 * unless a tool is strict. */
static bool compile_calls(qn_text_exchange *x, qn_refusal *refusal)
{
    const qn_tools *tools = &x->tools;
    const bool has_format = x->format.is_given && !tools->is_required;
    qn_bytes text = { .account = x->base.account }, format = { .account = x->base.account };
    qn_json_dump(tools->list, &text);
    if (has_format)
        dump_format(&x->format, &format);
    const qn_call_params calls = { .size = sizeof(qn_call_params),
                                   .tools = text.data,
                                   .length = text.length,
                                   .name = tools->name,
                                   .is_required = tools->is_required,
                                   .is_single = tools->is_single,
                                   .format = has_format ? format.data : NULL,
                                   .format_length = format.length,
                                   .is_format_strict = x->format.kind == QN_GRAMMAR_SCHEMA_STRICT,
                                   .scope = x->base.scope,
                                   .style = &x->style };
    const bool has_memory = !text.has_failed && !format.has_failed;
    const qn_status status =
        has_memory ? qn_grammar_create_calls(x->served->model, &calls, &x->params.grammar) : QN_ERR_MEMORY;
    qn_bytes_free(&text);
    qn_bytes_free(&format);
    x->params.grammar_trigger.when = tools->is_required || has_format ? whole_answer(x) : QN_GRAMMAR_AT_CALL;
    if (status == QN_ERR_MEMORY)
        return has_memory ? qn_refuse_memory(refusal) : qn_refuse_over(x->base.account, refusal);
    return status == QN_OK || (!tools->is_required && !has_strict_tool(tools->list)) ||
           qn_refuse(refusal, 400, status == QN_ERR_UNSUPPORTED ? "unsupported" : NULL, "tools", "%s", qn_error_text());
}

/* ---- Both ---- */

bool qn_openai_take_constraints(qn_text_exchange *x, const json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    if (!qn_openai_take_format(x, body, reading, refusal))
        return false;
    return x->kind != QN_CHAT_EXCHANGE || (take_tools(x, body, refusal) && qn_openai_check_tools(x, refusal));
}

bool qn_openai_constrain(qn_text_exchange *x, qn_refusal *refusal)
{
    if (x->tools.list && x->format.is_given) { /* a fault of the format is reported as without tools */
        if (!qn_openai_compile_format(x, refusal))
            return false;
        qn_grammar_free(x->params.grammar);
        x->params.grammar = NULL;
    }
    if (x->tools.list)
        return compile_calls(x, refusal);
    x->params.grammar_trigger.when = whole_answer(x);
    return !x->format.is_given || qn_openai_compile_format(x, refusal);
}
