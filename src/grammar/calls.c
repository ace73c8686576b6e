/* The grammar of tool calls, as chat templates print them. Nodes are made from the end to the beginning. Arguments
 * are rules of schemas; in the form xml, those of schema_xml.c. */
#include "grammar/schema.h"

#include <stdlib.h>
#include <string.h>

typedef struct call_compiler {
    qn_schema_compiler c;
    const qn_grammar_calls *calls;
} call_compiler;

/* ---- Nodes ---- */

/* Adds the texts of a regular expression. Expressions of earlier calls are dropped. */
static qn_status add_regex(qn_schema_compiler *c, const char *regex, uint32_t next, uint32_t *node)
{
    uint32_t expr, dfa;
    c->exprs.n = c->exprs.n_ranges = 0;
    QN_TRY(qn_expr_regex(&c->exprs, regex, strlen(regex), false, "tool call", &expr));
    QN_TRY(qn_schema_dfa(c, expr, &dfa));
    return qn_schema_node(c, QN_DFA, dfa, next, node);
}

/* Adds a delimiter: the mark of its token, or its text. */
static qn_status add_delimiter(qn_schema_compiler *c, const qn_output_delimiter *delimiter, int mark, uint32_t next,
                               uint32_t *node)
{
    if (delimiter->token >= 0)
        return qn_schema_byte(c, (char)mark, next, node);
    return qn_schema_literal(c, delimiter->text, next, node);
}

/* ---- Calls ---- */

/* Whether a type, or a list of types, includes objects. */
static bool may_be_object(json_t *type)
{
    json_t *name;
    size_t i;
    json_array_foreach(type, i,
                       name) if (json_is_string(name) && !strcmp(json_string_value(name), "object")) return true;
    return !json_is_array(type) && (!json_is_string(type) || !strcmp(json_string_value(type), "object"));
}

/* Makes the schema of the arguments, restricted to objects. *schema: owned by the compiler. */
static qn_status find_schema(qn_schema_compiler *c, const json_t *function, const char *what, json_t **schema)
{
    const json_t *given = qn_output_tool_schema(function);
    *schema = json_is_object(given) ? qn_schema_copy((json_t *)given) : json_object();
    QN_TRY(qn_schema_own(c, *schema));
    if (!may_be_object(json_object_get(*schema, "type")))
        return qn_fail(QN_ERR_INVALID, "%s: the type of its arguments is not 'object'", what);
    return json_object_set_new(*schema, "type", json_string("object")) ? qn_schema_no_memory() : QN_OK;
}

/* Adds a function, from its name to `next`, which follows the last brace or tag. */
static qn_status add_function(call_compiler *k, const json_t *function, uint32_t next, uint32_t *entry)
{
    qn_schema_compiler *c = &k->c;
    const char *name = json_string_value(json_object_get(function, "name"));
    const bool is_xml = k->calls->output->form == QN_OUTPUT_XML;
    char what[80];
    json_t *schema;
    uint32_t rule, node;
    if (!name)
        return qn_fail(QN_ERR_INVALID, "tools: a tool has no name");
    snprintf(what, sizeof what, "tool '%.60s'", name);
    if (is_xml && !qn_schema_is_tag_name(name))
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: the name is not supported", what);
    QN_TRY(find_schema(c, function, what, &schema));
    if (is_xml) {
        c->xml.tool = qn_output_find_tool(c->xml.tools, name, strlen(name));
        QN_TRY(qn_schema_compile(c, what, schema, schema, QN_FORM_PARAMETERS, &rule));
        QN_TRY(qn_schema_node(c, QN_CALL, rule, next, &node));
        QN_TRY(qn_schema_literal(c, ">\n", node, &node));
        return qn_schema_literal(c, name, node, entry);
    }
    QN_TRY(qn_schema_compile(c, what, schema, schema, QN_FORM_JSON, &rule));
    QN_TRY(add_regex(c, " ?\\}", next, &node));
    QN_TRY(qn_schema_node(c, QN_CALL, rule, node, &node));
    QN_TRY(add_regex(
        c, k->calls->output->form == QN_OUTPUT_LLAMA3 ? " ?, ?\"parameters\" ?: ?" : " ?, ?\"arguments\" ?: ?", node,
        &node));
    char *text = json_dumps(json_object_get(function, "name"), JSON_ENCODE_ANY);
    const qn_status status = text ? qn_schema_literal(c, text, node, entry) : qn_schema_no_memory();
    free(text);
    return status;
}

/* Adds a call, from after call_open to `next`, which follows call_close. Functions are alternatives in the order of the
 * tools. */
static qn_status add_call(call_compiler *k, uint32_t next, uint32_t *entry)
{
    qn_schema_compiler *c = &k->c;
    const qn_grammar_calls *calls = k->calls;
    const bool is_xml = calls->output->form == QN_OUTPUT_XML;
    uint32_t close = next, functions = QN_NODE_NEVER, node;
    size_t i;
    json_t *tool, *names = json_object();
    QN_TRY(qn_schema_own(c, names));
    if (calls->output->form != QN_OUTPUT_LLAMA3) {
        QN_TRY(add_delimiter(c, &calls->output->call_close, QN_MARK_CALL_CLOSE, next, &close));
        QN_TRY(add_regex(c, is_xml ? "\\n" : "\\n?", close, &close));
    }
    json_array_foreach((json_t *)calls->tools, i, tool)
    {
        const json_t *function = json_object_get(tool, "function") ? json_object_get(tool, "function") : tool;
        const char *name = json_string_value(json_object_get(function, "name"));
        if (calls->name && name && strcmp(name, calls->name) != 0)
            continue;
        if (name && json_object_get(names, name)) /* arguments of one would fit the other's schema */
            return qn_fail(QN_ERR_INVALID, "tools: two tools have the name '%.60s'", name);
        if (name && json_object_set_new(names, name, json_true()))
            return qn_schema_no_memory();
        c->options.strict =
            json_is_true(json_object_get(function, "strict")) || json_is_true(json_object_get(tool, "strict"));
        QN_TRY(add_function(k, function, close, &node));
        QN_TRY(qn_schema_or(c, node, &functions));
    }
    if (functions == QN_NODE_NEVER)
        return qn_fail(QN_ERR_INVALID, "tools: %s%s", calls->name ? "none has the name " : "the list is empty",
                       calls->name ? calls->name : "");
    if (is_xml)
        return qn_schema_literal(c, "\n<function=", functions, entry);
    return add_regex(c, "\\n?\\{ ?\"name\" ?: ?", functions, entry);
}

/* Adds the call of the form llama3, with or without call_open; if calls are lazy, also any text that does not begin as
 * one. */
static qn_status add_llama3(call_compiler *k, uint32_t *entry)
{
    qn_schema_compiler *c = &k->c;
    uint32_t call, node;
    QN_TRY(add_call(k, c->end, &call));
    QN_TRY(add_delimiter(c, &k->calls->output->call_open, QN_MARK_CALL_OPEN, call, &node));
    QN_TRY(qn_schema_or(c, call, &node));
    *entry = node;
    if (!k->calls->is_lazy)
        return QN_OK;
    QN_TRY(add_regex(c, "([^\\s{](.|[\\n\\r\\u2028\\u2029])*)?", c->end, &node));
    return qn_schema_or(c, node, entry);
}

/* Adds content as an alternative to calls. Newlines may come first, as before calls, so a model that has written one
 * can still choose. */
static qn_status add_format(call_compiler *k, uint32_t *entry)
{
    qn_schema_compiler *c = &k->c;
    uint32_t rule, node;
    c->options = (qn_grammar_options){ .strict = k->calls->is_format_strict, .style = k->calls->style };
    QN_TRY(qn_schema_compile(c, "format", k->calls->format, k->calls->format, QN_FORM_JSON, &rule));
    QN_TRY(qn_schema_node(c, QN_CALL, rule, c->end, &node));
    QN_TRY(add_regex(c, "\\n{0,2}", node, &node));
    return qn_schema_or(c, node, entry);
}

/* Adds one call or several. `again`, after a call, splits to the next call_open or the end; its alternative is set
 * last, when that node exists. */
static qn_status add_calls(call_compiler *k, uint32_t *entry)
{
    qn_schema_compiler *c = &k->c;
    const qn_output_params *output = k->calls->output;
    uint32_t again = c->end, call, open;
    if (output->form == QN_OUTPUT_LLAMA3)
        return add_llama3(k, entry);
    if (!k->calls->is_single)
        QN_TRY(qn_schema_node(c, QN_SPLIT, QN_NODE_NEVER, c->end, &again));
    QN_TRY(add_call(k, again, &call));
    QN_TRY(add_delimiter(c, &output->call_open, QN_MARK_CALL_OPEN, call, &open));
    QN_TRY(add_regex(c, "\\n{0,2}", open, &open));
    if (!k->calls->is_single)
        c->grammar->nodes[again].a = open;
    *entry = k->calls->is_lazy ? call : open;
    return QN_OK;
}

qn_status qn_grammar_from_calls(const qn_grammar_calls *calls, qn_grammar **out)
{
    call_compiler k = { .calls = calls };
    const bool is_xml = calls->output->form == QN_OUTPUT_XML;
    qn_output_tools *tools = NULL;
    uint32_t rule, entry = QN_NODE_NEVER;
    *out = NULL;
    if (calls->output->form == QN_OUTPUT_PLAIN)
        return qn_fail(QN_ERR_UNSUPPORTED, "tools: the model's chat template has no calls that can be parsed back");
    qn_json_style style = calls->style;
    style.closed = true;
    qn_status status = qn_schema_begin(&k.c, &(qn_grammar_options){ .style = style });
    if (status == QN_OK && is_xml) {
        status = qn_output_tools_create(calls->tools, QN_OUTPUT_XML, &tools);
        k.c.xml.tools = tools;
        k.c.xml.is_close_text = calls->output->call_close.token < 0;
    }
    if (status == QN_OK)
        status = add_calls(&k, &entry);
    if (status == QN_OK && calls->format)
        status = add_format(&k, &entry);
    if (status == QN_OK)
        status = qn_grammar_add_rule(k.c.grammar, "tool calls", &rule);
    if (status == QN_OK) {
        k.c.grammar->rules[rule].entry = entry;
        status = qn_grammar_finish(k.c.grammar, rule);
    }
    status = qn_schema_end(&k.c, status, out);
    qn_output_tools_free(tools);
    return status;
}
