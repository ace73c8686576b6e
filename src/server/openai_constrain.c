/* What answers may be: response_format, llama-server's json_schema and grammar, and tool_choice. */
#include "server/openai.h"

#include <stdlib.h>
#include <string.h>

/* ---- The format of content ---- */

bool qn_openai_take_schema(qn_openai *x, json_t *schema, bool is_strict, const char *field, qn_refusal *refusal)
{
    if (!json_is_object(schema) && !json_is_boolean(schema))
        return qn_refuse_type(refusal, field, schema, "a JSON schema");
    x->format = (qn_format){ .is_given = true,
                             .kind = is_strict ? QN_GRAMMAR_SCHEMA_STRICT : QN_GRAMMAR_SCHEMA,
                             .source = json_incref(schema),
                             .field = field };
    return true;
}

static bool take_response_format(qn_openai *x, const json_t *given, qn_refusal *refusal)
{
    const json_t *type = json_object_get(given, "type"), *holder = json_object_get(given, "json_schema");
    json_t *schema = qn_field(given, "schema");
    bool is_strict = false;
    if (!json_is_object(given))
        return qn_refuse_type(refusal, "response_format", given, "an object");
    if (qn_json_is(type, "text"))
        return true;
    if (qn_json_is(type, "json_object") && schema)
        return qn_openai_take_schema(x, schema, false, "response_format.schema", refusal);
    if (qn_json_is(type, "json_object")) {
        x->format = (qn_format){ .is_given = true, .kind = QN_GRAMMAR_JSON, .field = "response_format" };
        return true;
    }
    if (!qn_json_is(type, "json_schema"))
        return qn_refuse_choice(refusal, "response_format.type", type, "\"text\", \"json_object\" or \"json_schema\"");
    if (!json_is_object(holder))
        return qn_refuse_type(refusal, "response_format.json_schema", holder, "an object");
    return qn_field_bool(holder, "strict", &is_strict, refusal) &&
           qn_openai_take_schema(x, json_object_get(holder, "schema"), is_strict, "response_format.json_schema.schema",
                                 refusal);
}

static bool take_format(qn_openai *x, const json_t *body, qn_refusal *refusal)
{
    const json_t *response = qn_field(body, "response_format");
    json_t *schema = qn_field(body, "json_schema"), *grammar = qn_field(body, "grammar");
    if (response && !take_response_format(x, response, refusal))
        return false;
    if (x->format.is_given + !!schema + (grammar && (!json_is_string(grammar) || json_string_length(grammar))) > 1)
        return qn_refuse(refusal, 400, NULL, schema ? "json_schema" : "grammar",
                         "'response_format', 'json_schema' and 'grammar' cannot be given together");
    if (schema)
        return qn_openai_take_schema(x, schema, false, "json_schema", refusal);
    if (!grammar)
        return true;
    if (!json_is_string(grammar))
        return qn_refuse_type(refusal, "grammar", grammar, "a string");
    if (json_string_length(grammar))
        x->format =
            (qn_format){ .is_given = true, .kind = QN_GRAMMAR_GBNF, .source = json_incref(grammar), .field = "grammar" };
    return true;
}

static bool compile_format(qn_openai *x, qn_refusal *refusal)
{
    const qn_format *f = &x->format;
    const bool is_schema = f->source && f->kind != QN_GRAMMAR_GBNF;
    qn_bytes schema = { .account = x->base.account };
    if (is_schema)
        qn_json_dump(f->source, &schema);
    if (schema.has_failed) {
        qn_bytes_free(&schema);
        return qn_refuse_over(x->base.account, refusal);
    }
    const char *text = is_schema ? schema.data : json_string_value(f->source);
    const size_t length = is_schema ? schema.length : json_string_length(f->source);
    const qn_status status = qn_grammar_create_in(x->served->model, x->base.scope, f->kind, text, length, &x->params.grammar);
    qn_bytes_free(&schema);
    if (status == QN_ERR_MEMORY)
        return qn_refuse_memory(refusal);
    return status == QN_OK ||
           qn_refuse(refusal, 400, status == QN_ERR_UNSUPPORTED ? "unsupported" : NULL, f->field, "%s", qn_error_text());
}

/* ---- Calls ---- */

static json_t *find_tool(const json_t *tools, const char *name)
{
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (qn_json_is(json_object_get(json_object_get(json_array_get(tools, i), "function"), "name"), name))
            return json_array_get(tools, i);
    return NULL;
}

static bool holds(const json_t *list, const json_t *value)
{
    size_t i = 0;
    while (i < json_array_size(list) && json_array_get(list, i) != value)
        i++;
    return i < json_array_size(list);
}

/* A tool that is named more than once is there once. */
bool qn_openai_allow(qn_openai *x, const json_t *allowed, qn_refusal *refusal)
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
    return done && (json_array_size(list) ||
                    qn_refuse(refusal, 400, NULL, "tool_choice", "'tool_choice' names no function that is among the tools"));
}

void qn_openai_call(qn_openai *x, json_t *name)
{
    x->tools.is_required = true;
    x->tools.called = json_incref(name);
    x->tools.name = json_is_string(name) ? json_string_value(name) : "";
}

static bool take_tools(qn_openai *x, const json_t *body, qn_refusal *refusal)
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
        return qn_refuse_choice(refusal, "tool_choice", choice,
                                "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": ...}}");
    x->tools.is_required = true;
    if (json_is_object(choice))
        qn_openai_call(x, name);
    return true;
}

bool qn_openai_check_tools(const qn_openai *x, qn_refusal *refusal)
{
    const qn_tools *tools = &x->tools;
    if (tools->is_required && !tools->list)
        return qn_refuse(refusal, 400, NULL, "tool_choice", "'tool_choice' is there, expected tools");
    if (tools->name && !find_tool(tools->list, tools->name))
        return qn_refuse(refusal, 400, NULL, "tool_choice", "'tool_choice' names a function that is not among the tools");
    return !x->format.is_given || x->format.kind != QN_GRAMMAR_GBNF || !tools->list ||
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

/* The schema of content that may come in place of calls. */
static void dump_format(const qn_format *f, qn_bytes *out)
{
    if (f->source)
        qn_json_dump(f->source, out);
    else
        qn_bytes_print(out, "{\"type\":\"object\"}");
}

/* A call that is not required has a grammar from its opening on; with a format the answer has one from its beginning on. Where
 * there is none, as for schemas that are too large, it has none, unless a tool is strict. */
static bool compile_calls(qn_openai *x, qn_refusal *refusal)
{
    const qn_tools *tools = &x->tools;
    const bool has_format = x->format.is_given && !tools->is_required;
    qn_bytes text = { .account = x->base.account }, format = { .account = x->base.account };
    qn_json_dump(tools->list, &text);
    if (has_format)
        dump_format(&x->format, &format);
    const qn_call_params calls = { .tools = text.data,
                                   .length = text.length,
                                   .name = tools->name,
                                   .is_required = tools->is_required,
                                   .is_single = tools->is_single,
                                   .format = has_format ? format.data : NULL,
                                   .format_length = format.length,
                                   .is_format_strict = x->format.kind == QN_GRAMMAR_SCHEMA_STRICT,
                                   .scope = x->base.scope };
    const bool has_memory = !text.has_failed && !format.has_failed;
    const qn_status status = has_memory ? qn_grammar_create_calls(x->served->model, &calls, &x->params.grammar) : QN_ERR_MEMORY;
    qn_bytes_free(&text);
    qn_bytes_free(&format);
    x->params.grammar_trigger.when = tools->is_required || has_format ? QN_GRAMMAR_AFTER_REASONING : QN_GRAMMAR_AT_CALL;
    if (status == QN_ERR_MEMORY)
        return has_memory ? qn_refuse_memory(refusal) : qn_refuse_over(x->base.account, refusal);
    return status == QN_OK || (!tools->is_required && !has_strict_tool(tools->list)) ||
           qn_refuse(refusal, 400, status == QN_ERR_UNSUPPORTED ? "unsupported" : NULL, "tools", "%s", qn_error_text());
}

/* ---- Both ---- */

bool qn_openai_take_constraints(qn_openai *x, const json_t *body, qn_refusal *refusal)
{
    if (!take_format(x, body, refusal))
        return false;
    return x->kind != QN_OPENAI_CHAT || (take_tools(x, body, refusal) && qn_openai_check_tools(x, refusal));
}

bool qn_openai_constrain(qn_openai *x, qn_refusal *refusal)
{
    if (x->tools.list && x->format.is_given) { /* what is wrong with the format is said as if it were alone */
        if (!compile_format(x, refusal))
            return false;
        qn_grammar_free(x->params.grammar);
        x->params.grammar = NULL;
    }
    if (x->tools.list)
        return compile_calls(x, refusal);
    x->params.grammar_trigger.when = x->kind == QN_OPENAI_CHAT ? QN_GRAMMAR_AFTER_REASONING : QN_GRAMMAR_AT_ONCE;
    return !x->format.is_given || compile_format(x, refusal);
}
