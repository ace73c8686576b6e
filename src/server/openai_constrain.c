/* What answers may be: response_format, llama-server's json_schema and grammar, and tool_choice. */
#include "server/openai.h"

#include "quern/grammar.h"

#include <stdlib.h>
#include <string.h>

/* ---- The format of content ---- */

/* The one that a body asks for; text is NULL for any JSON object. */
typedef struct format {
    bool is_given;
    qn_grammar_kind kind;
    const json_t *schema; /* of schemas */
    const json_t *text;   /* of grammars */
    const char *field;
} format;

static bool take_schema(const json_t *schema, bool has_strict, const char *field, format *out, qn_refusal *refusal)
{
    if (!json_is_object(schema) && !json_is_boolean(schema))
        return qn_refuse_type(refusal, field, schema, "a JSON schema");
    *out = (format){
        .is_given = true, .kind = has_strict ? QN_GRAMMAR_SCHEMA_STRICT : QN_GRAMMAR_SCHEMA, .schema = schema, .field = field
    };
    return true;
}

static bool take_response_format(const json_t *given, format *out, qn_refusal *refusal)
{
    const json_t *type = json_object_get(given, "type"), *holder = json_object_get(given, "json_schema"),
                 *schema = qn_field(given, "schema");
    bool is_strict = false;
    if (!json_is_object(given))
        return qn_refuse_type(refusal, "response_format", given, "an object");
    if (qn_json_is(type, "text"))
        return true;
    if (qn_json_is(type, "json_object") && schema)
        return take_schema(schema, false, "response_format.schema", out, refusal);
    if (qn_json_is(type, "json_object")) {
        *out = (format){ .is_given = true, .kind = QN_GRAMMAR_JSON, .field = "response_format" };
        return true;
    }
    if (!qn_json_is(type, "json_schema"))
        return qn_refuse_type(refusal, "response_format.type", type, "\"text\", \"json_object\" or \"json_schema\"");
    if (!json_is_object(holder))
        return qn_refuse_type(refusal, "response_format.json_schema", holder, "an object");
    return qn_field_bool(holder, "strict", &is_strict, refusal) &&
           take_schema(json_object_get(holder, "schema"), is_strict, "response_format.json_schema.schema", out, refusal);
}

static bool take_format(const json_t *body, format *out, qn_refusal *refusal)
{
    const json_t *response = qn_field(body, "response_format"), *schema = qn_field(body, "json_schema"),
                 *grammar = qn_field(body, "grammar");
    *out = (format){ 0 };
    if (response && !take_response_format(response, out, refusal))
        return false;
    if (out->is_given + !!schema + (grammar && (!json_is_string(grammar) || json_string_length(grammar))) > 1)
        return qn_refuse(refusal, 400, NULL, schema ? "json_schema" : "grammar",
                         "'response_format', 'json_schema' and 'grammar' cannot be given together");
    if (schema)
        return take_schema(schema, false, "json_schema", out, refusal);
    if (!grammar)
        return true;
    if (!json_is_string(grammar))
        return qn_refuse_type(refusal, "grammar", grammar, "a string");
    if (json_string_length(grammar))
        *out = (format){ .is_given = true, .kind = QN_GRAMMAR_GBNF, .text = grammar, .field = "grammar" };
    return true;
}

static bool compile(const qn_openai *x, const format *f, qn_grammar **out, qn_refusal *refusal)
{
    char *schema = f->schema ? json_dumps(f->schema, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    if (f->schema && !schema)
        return qn_refuse_memory(refusal);
    const char *text = schema ? schema : json_string_value(f->text);
    const size_t length = schema ? strlen(schema) : json_string_length(f->text);
    const qn_status status = qn_grammar_create(x->served->model, f->kind, text, length, out);
    free(schema);
    if (status == QN_ERR_MEMORY)
        return qn_refuse_memory(refusal);
    return status == QN_OK ||
           qn_refuse(refusal, 400, status == QN_ERR_UNSUPPORTED ? "unsupported" : NULL, f->field, "%s", qn_error_text());
}

/* ---- Calls ---- */

static bool has_tool(const json_t *body, const json_t *name)
{
    const json_t *tools = qn_field(body, "tools");
    for (size_t i = 0; json_is_string(name) && i < json_array_size(tools); i++)
        if (json_equal(name, json_object_get(json_object_get(json_array_get(tools, i), "function"), "name")))
            return true;
    return false;
}

/* Whether the model may call functions: it has tools, and the body does not forbid it. */
static bool may_call(const qn_openai *x, const json_t *body)
{
    return x->kind == QN_OPENAI_CHAT && json_array_size(qn_field(body, "tools")) &&
           !qn_json_is(qn_field(body, "tool_choice"), "none");
}

static bool check_tool_choice(const json_t *body, qn_refusal *refusal)
{
    const json_t *choice = qn_field(body, "tool_choice"), *name = json_object_get(json_object_get(choice, "function"), "name");
    bool is_parallel = true;
    if (!qn_field_bool(body, "parallel_tool_calls", &is_parallel, refusal))
        return false;
    if (!choice || qn_json_is(choice, "none") || qn_json_is(choice, "auto"))
        return true;
    if (!qn_json_is(choice, "required") && !qn_json_is(json_object_get(choice, "type"), "function"))
        return qn_refuse_type(refusal, "tool_choice", choice,
                              "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": ...}}");
    if (!json_array_size(qn_field(body, "tools")))
        return qn_refuse(refusal, 400, NULL, "tool_choice", "'tool_choice' is there, expected tools");
    return json_is_string(choice) || has_tool(body, name) ||
           qn_refuse(refusal, 400, NULL, "tool_choice", "'tool_choice' names a function that is not among the tools");
}

static bool has_strict_tool(const json_t *tools)
{
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (json_is_true(json_object_get(json_object_get(json_array_get(tools, i), "function"), "strict")))
            return true;
    return false;
}

/* A call that is not required has a grammar from its opening on. Where there is none, as for schemas that are too large, it has
 * none, unless a tool is strict. */
static bool compile_calls(qn_openai *x, qn_refusal *refusal)
{
    const json_t *body = x->base.body, *tools = qn_field(body, "tools"), *choice = qn_field(body, "tool_choice");
    const bool is_required = choice && !qn_json_is(choice, "auto");
    bool is_parallel = true;
    (void)qn_field_bool(body, "parallel_tool_calls", &is_parallel, refusal);
    char *text = json_dumps(tools, JSON_COMPACT);
    if (!text)
        return qn_refuse_memory(refusal);
    const qn_call_params calls = { .tools = text,
                                   .length = strlen(text),
                                   .name = json_string_value(json_object_get(json_object_get(choice, "function"), "name")),
                                   .is_required = is_required,
                                   .is_single = !is_parallel };
    const qn_status status = qn_grammar_create_calls(x->served->model, &calls, &x->params.grammar);
    free(text);
    x->params.grammar_trigger.when = is_required ? QN_GRAMMAR_AFTER_REASONING : QN_GRAMMAR_AT_CALL;
    if (status == QN_ERR_MEMORY)
        return qn_refuse_memory(refusal);
    return status == QN_OK || (!is_required && !has_strict_tool(tools)) ||
           qn_refuse(refusal, 400, status == QN_ERR_UNSUPPORTED ? "unsupported" : NULL, "tools", "%s", qn_error_text());
}

/* ---- Both ---- */

bool qn_openai_check_constraints(const qn_openai *x, const json_t *body, qn_refusal *refusal)
{
    format f;
    if (!take_format(body, &f, refusal) || (x->kind == QN_OPENAI_CHAT && !check_tool_choice(body, refusal)))
        return false;
    return !f.is_given || !may_call(x, body) ||
           qn_refuse(refusal, 400, "unsupported", "response_format",
                     "'response_format' is given with tools that may be called");
}

bool qn_openai_constrain(qn_openai *x, qn_refusal *refusal)
{
    format f;
    if (may_call(x, x->base.body))
        return compile_calls(x, refusal);
    if (!take_format(x->base.body, &f, refusal) || (f.is_given && !compile(x, &f, &x->params.grammar, refusal)))
        return false;
    x->params.grammar_trigger.when = x->kind == QN_OPENAI_CHAT ? QN_GRAMMAR_AFTER_REASONING : QN_GRAMMAR_AT_ONCE;
    return true;
}
