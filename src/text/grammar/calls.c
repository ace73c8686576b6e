/* Tool calls as chat templates print them. Their nodes are made from the end to the beginning; arguments are rules of schemas.
 * In the form xml an object rule has the parameters, in any order, each once. */
#include "text/grammar/schema.h"
#include "base/memory.h"
#include "text/output_internal.h"

#include <stdlib.h>
#include <string.h>

#define PARAMETER_OPEN "<parameter="
#define PARAMETER_CLOSE "</parameter>"

enum { MAX_REFERENCES = 8 };

typedef struct call_compiler {
    qn_schema_compiler c;
    const qn_grammar_calls *calls;
    int32_t raw; /* the DFA of raw text up to PARAMETER_CLOSE, or -1 */
} call_compiler;

static qn_status no_memory(void)
{
    return qn_fail(QN_ERR_MEMORY, "tools: no memory");
}

/* ---- Nodes ---- */

static qn_status add_literal(qn_schema_compiler *c, const char *text, uint32_t next, uint32_t *node)
{
    *node = next;
    for (size_t i = strlen(text); i-- > 0;)
        QN_TRY(qn_schema_byte(c, text[i], *node, node));
    return QN_OK;
}

static qn_status add_regex(qn_schema_compiler *c, const char *regex, uint32_t next, uint32_t *node)
{
    uint32_t expr, dfa;
    c->exprs.n = c->exprs.n_ranges = 0;
    QN_TRY(qn_expr_regex(&c->exprs, regex, strlen(regex), false, "tool call", &expr));
    QN_TRY(qn_schema_dfa(c, expr, &dfa));
    return qn_schema_node(c, QN_DFA, dfa, next, node);
}

static qn_status add_delimiter(qn_schema_compiler *c, const qn_output_delimiter *delimiter, int mark, uint32_t next,
                               uint32_t *node)
{
    if (delimiter->token >= 0)
        return qn_schema_byte(c, (char)mark, next, node);
    return add_literal(c, delimiter->text, next, node);
}

/* A rule that is made already. */
static qn_status add_rule(qn_schema_compiler *c, const char *what, uint32_t entry, uint32_t *rule)
{
    QN_TRY(qn_grammar_add_rule(c->grammar, what, rule));
    QN_TRY(qn_realloc_array(&c->schemas, &c->capacity, c->grammar->n_rules, sizeof *c->schemas, "schema"));
    c->grammar->rules[*rule].entry = entry;
    c->schemas[*rule] = NULL;
    c->rule = (uint32_t)c->grammar->n_rules;
    return QN_OK;
}

/* ---- Values of the form xml ---- */

/* The DFA of raw text and "\n</parameter>". States: how much of PARAMETER_CLOSE was read, behind a newline or not; then those
 * inside characters, and the end. */
static qn_status add_raw_dfa(qn_schema_compiler *c, uint32_t *id)
{
    enum {
        LENGTH = sizeof PARAMETER_CLOSE - 1,
        INSIDE = 1 + 2 * LENGTH,
        NEED_1 = INSIDE,
        NEED_2,
        NEED_3,
        E0,
        ED,
        F0,
        F4,
        END,
        N
    };
    static const struct {
        uint8_t from, lo, hi, to; /* from 0: of all text states */
    } utf8[] = { { 0, 0xc2, 0xdf, NEED_1 },      { 0, 0xe0, 0xe0, E0 },          { 0, 0xe1, 0xec, NEED_2 },
                 { 0, 0xed, 0xed, ED },          { 0, 0xee, 0xef, NEED_2 },      { 0, 0xf0, 0xf0, F0 },
                 { 0, 0xf1, 0xf3, NEED_3 },      { 0, 0xf4, 0xf4, F4 },          { NEED_1, 0x80, 0xbf, 1 },
                 { NEED_2, 0x80, 0xbf, NEED_1 }, { NEED_3, 0x80, 0xbf, NEED_2 }, { E0, 0xa0, 0xbf, NEED_1 },
                 { ED, 0x80, 0x9f, NEED_1 },     { F0, 0x90, 0xbf, NEED_2 },     { F4, 0x80, 0x8f, NEED_2 } };
    qn_dfa dfa = { .n_states = N, .n_classes = 256, .next = calloc((size_t)N * 256, sizeof *dfa.next), .accept = calloc(N, 1) };
    if (!dfa.next || !dfa.accept) {
        qn_dfa_free(&dfa);
        return no_memory();
    }
    for (int byte = 0; byte < 256; byte++)
        dfa.class_of[byte] = (uint8_t)byte;
    for (uint32_t state = 1; state < INSIDE; state++) {
        const uint32_t read = (state - 1) / 2, behind_newline = (state - 1) % 2;
        uint32_t *next = dfa.next + (size_t)state * 256;
        for (int byte = 0; byte < 0x80; byte++)
            next[byte] = byte == '\n' ? 2 : byte == '<' ? 3 + (!read && behind_newline) : 1;
        for (size_t i = 0; i < sizeof utf8 / sizeof *utf8 && !utf8[i].from; i++)
            for (int byte = utf8[i].lo; byte <= utf8[i].hi; byte++)
                next[byte] = utf8[i].to;
        if (read || behind_newline)
            next[(uint8_t)PARAMETER_CLOSE[read]] = read + 1 < LENGTH ? state + 2 : behind_newline ? END : 0;
    }
    for (size_t i = 0; i < sizeof utf8 / sizeof *utf8; i++)
        for (int byte = utf8[i].lo; utf8[i].from && byte <= utf8[i].hi; byte++)
            dfa.next[(size_t)utf8[i].from * 256 + (size_t)byte] = utf8[i].to;
    dfa.accept[END] = 1;
    return qn_grammar_add_dfa(c->grammar, &dfa, id);
}

/* Enumerations: strings as they are. */
static qn_status add_enum(qn_schema_compiler *c, json_t *schema, uint32_t next, uint32_t *node)
{
    uint32_t alternatives, last = 0, part, dfa;
    unsigned types;
    size_t i;
    json_t *constants, *value;
    QN_TRY(qn_schema_types(c, schema, &types));
    QN_TRY(qn_schema_constants(c, schema, types, &constants));
    *node = QN_NODE_NEVER;
    if (!json_array_size(constants))
        return QN_OK;
    c->exprs.n = c->exprs.n_ranges = 0;
    QN_TRY(qn_expr_add(&c->exprs, (qn_expr){ .kind = QN_EXPR_ALT }, &alternatives));
    json_array_foreach(constants, i, value)
    {
        char *text = json_is_string(value) ? NULL : json_dumps(value, JSON_ENCODE_ANY);
        if (!text && !json_is_string(value))
            return no_memory();
        const qn_status status = text ? qn_expr_literal(&c->exprs, text, strlen(text), &part)
                                      : qn_expr_literal(&c->exprs, json_string_value(value), json_string_length(value), &part);
        free(text);
        QN_TRY(status);
        qn_expr_append(&c->exprs, alternatives, &last, part);
    }
    QN_TRY(qn_schema_dfa(c, alternatives, &dfa));
    return qn_schema_node(c, QN_DFA, dfa, next, node);
}

/* A string: by its pattern, else by its lengths, else any; *is_done false for any. */
static qn_status add_bounded(call_compiler *k, json_t *schema, uint32_t next, uint32_t *node, bool *is_done)
{
    qn_schema_compiler *c = &k->c;
    const json_t *given = json_object_get(schema, "pattern");
    const char *pattern = json_string_value(given);
    uint32_t expr, dfa, min, max;
    QN_TRY(qn_schema_count(c, schema, "minLength", 0, &min));
    QN_TRY(qn_schema_count(c, schema, "maxLength", QN_UNLIMITED, &max));
    *node = QN_NODE_NEVER;
    *is_done = !pattern && min > max;
    if (*is_done || (!pattern && !min && max == QN_UNLIMITED))
        return QN_OK;
    c->exprs.n = c->exprs.n_ranges = 0;
    qn_status status = pattern ? qn_expr_regex(&c->exprs, pattern, json_string_length(given), true, c->what, &expr)
                               : qn_expr_any(&c->exprs, min, max, &expr);
    if (status == QN_OK)
        status = qn_schema_dfa(c, expr, &dfa);
    if (status == QN_ERR_UNSUPPORTED && !c->options.strict && c->grammar->steps <= QN_GRAMMAR_STEPS)
        return QN_OK;
    QN_TRY(status);
    *is_done = true;
    return qn_schema_node(c, QN_DFA, dfa, next, node);
}

static bool has_type(const qn_value_types *types, qn_value_type type)
{
    for (size_t i = 0; i < types->n; i++)
        if (types->types[i] == type)
            return true;
    return false;
}

/* Templates print constants in Python's spelling too. */
static qn_status add_python_words(qn_schema_compiler *c, const qn_value_types *types, uint32_t next, uint32_t *node)
{
    uint32_t word;
    if (has_type(types, VALUE_NULL)) {
        QN_TRY(add_literal(c, "None", next, &word));
        QN_TRY(qn_schema_or(c, word, node));
    }
    if (!has_type(types, VALUE_BOOLEAN))
        return QN_OK;
    QN_TRY(add_regex(c, "True|False", next, &word));
    return qn_schema_or(c, word, node);
}

/* The value of a parameter and PARAMETER_CLOSE, as a rule. */
static qn_status add_value(call_compiler *k, const char *what, json_t *root, const char *key, json_t *schema, uint32_t *rule)
{
    qn_schema_compiler *c = &k->c;
    qn_value_types types;
    uint32_t close, node, json;
    bool is_done = false;
    qn_output_value_types(root, key, strlen(key), &types);
    QN_TRY(qn_schema_compile(c, what, root, schema, key, &json)); /* also what is raw: its errors are the same */
    QN_TRY(add_literal(c, "\n" PARAMETER_CLOSE, c->end, &close));
    if (json_is_array(json_object_get(schema, "enum")) || json_object_get(schema, "const")) {
        QN_TRY(add_enum(c, schema, close, &node));
    } else if (!types.n || has_type(&types, VALUE_STRING)) {
        QN_TRY(add_bounded(k, schema, close, &node, &is_done));
        uint32_t raw = (uint32_t)k->raw;
        if (!is_done && k->raw < 0)
            QN_TRY(add_raw_dfa(c, &raw));
        if (!is_done) {
            k->raw = (int32_t)raw;
            QN_TRY(qn_schema_node(c, QN_DFA, raw, c->end, &node));
        }
    } else {
        QN_TRY(qn_schema_node(c, QN_CALL, json, close, &node));
        QN_TRY(add_python_words(c, &types, close, &node));
    }
    return add_rule(c, what, node, rule);
}

static int compare_spellings(const void *a, const void *b)
{
    return strcmp(((const qn_spelling *)a)->text, ((const qn_spelling *)b)->text);
}

static bool is_name(const char *name)
{
    for (const char *c = name; *c; c++)
        if ((uint8_t)*c < 0x20 || *c == '<' || *c == '>')
            return false;
    return *name != 0;
}

/* The schema of the arguments without references, and with allOf joined where that can be done. */
static qn_status join_root(qn_schema_compiler *c, json_t *root, json_t **joined)
{
    json_t *parts, *part, *next, *nothing = json_true();
    qn_status status = qn_schema_merge(root, nothing, root, &c->merges, joined);
    QN_TRY(status);
    QN_TRY(qn_schema_own(c, *joined));
    for (int i = 0; i < MAX_REFERENCES && json_is_array(parts = json_object_get(*joined, "allOf")); i++) {
        json_t *rest = json_copy(*joined);
        size_t k;
        QN_TRY(qn_schema_own(c, rest));
        json_object_del(rest, "allOf");
        json_array_foreach(parts, k, part)
        {
            status = qn_schema_merge(root, rest, part, &c->merges, &next);
            if (status == QN_ERR_UNSUPPORTED && !c->options.strict)
                return QN_OK;
            QN_TRY(status);
            QN_TRY(qn_schema_own(c, rest = next));
        }
        *joined = rest;
    }
    return QN_OK;
}

/* From behind `<function=NAME>` and its newline to `next`. */
static qn_status add_parameters(call_compiler *k, const char *what, json_t *root, uint32_t next, uint32_t *entry)
{
    qn_schema_compiler *c = &k->c;
    json_t *joined, *schema;
    const char *key;
    uint32_t id, between, first, rule, node;
    QN_TRY(join_root(c, root, &joined));
    QN_TRY(qn_schema_check_keywords(c, joined));
    json_t *required = json_object_get(joined, "required"), *properties = json_object_get(joined, "properties");
    const size_t n = json_object_size(properties);
    if (n > QN_GRAMMAR_PROPERTIES || json_array_size(required) > 2 * QN_GRAMMAR_PROPERTIES)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: more than %d properties", what, QN_GRAMMAR_PROPERTIES);
    QN_TRY(qn_grammar_add_object(c->grammar, &id));
    qn_object_rule o = { .max = QN_UNLIMITED,
                         .is_ordered = c->options.style.order == QN_JSON_ORDER_SCHEMA,
                         .end = '>',
                         .spellings = calloc(n + 1, sizeof *o.spellings),
                         .values = calloc(n + 1, sizeof *o.values),
                         .value_rules = calloc(n + 1, sizeof *o.value_rules) };
    c->grammar->objects[id] = o;
    if (!o.spellings || !o.values || !o.value_rules)
        return no_memory();
    QN_TRY(qn_schema_node(c, QN_MEMBER, id, 0, &first));
    QN_TRY(qn_schema_node(c, QN_MEMBER, id, 0, &between));
    json_object_foreach(properties, key, schema)
    {
        const uint32_t property = c->grammar->objects[id].n_properties++;
        if (!is_name(key) || strlen(key) > QN_GRAMMAR_SPELLED)
            return qn_fail(QN_ERR_UNSUPPORTED, "%s: the name of a parameter, '%.80s', is not supported", what, key);
        char *text = strdup(key);
        if (!text)
            return no_memory();
        c->grammar->objects[id].spellings[property] = (qn_spelling){ text, (uint16_t)strlen(key), (uint16_t)property };
        c->grammar->objects[id].n_spellings++;
        QN_TRY(add_value(k, what, root, key, schema, &o.value_rules[property]));
        QN_TRY(qn_schema_byte(c, '\n', between, &node));
        QN_TRY(qn_schema_node(c, QN_CALL, o.value_rules[property], node, &node));
        QN_TRY(qn_schema_byte(c, '\n', node, &o.values[property]));
        for (size_t i = 0; i < json_array_size(required); i++)
            if (json_is_string(json_array_get(required, i)) && !strcmp(json_string_value(json_array_get(required, i)), key))
                c->grammar->objects[id].required[property / 64] |= UINT64_C(1) << (property % 64);
    }
    qsort(o.spellings, n, sizeof *o.spellings, compare_spellings);
    QN_TRY(qn_schema_node(c, QN_KEY, id, 0, &node));
    QN_TRY(add_literal(c, PARAMETER_OPEN, node, &node));
    c->grammar->objects[id].first = c->grammar->objects[id].more = node;
    for (int i = 0; i < 4; i++)
        c->grammar->objects[id].n_required += (uint32_t)__builtin_popcountll(c->grammar->objects[id].required[i]);
    QN_TRY(add_literal(c, "</function>", c->end, &node));
    c->grammar->objects[id].close = c->grammar->objects[id].close_empty = node;
    QN_TRY(add_rule(c, what, first, &rule));
    return qn_schema_node(c, QN_CALL, rule, next, entry);
}

/* ---- Calls ---- */

/* The arguments' schema as one of objects, owned by the compiler. */
static qn_status find_schema(qn_schema_compiler *c, const json_t *function, json_t **schema)
{
    static const char *const others[] = { "type", "$ref", "anyOf", "oneOf", "allOf" };
    const json_t *given = qn_output_tool_schema(function);
    *schema = json_is_object(given) ? json_copy((json_t *)given) : json_object();
    QN_TRY(qn_schema_own(c, *schema));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (json_object_get(*schema, others[i]))
            return QN_OK;
    return json_object_set_new(*schema, "type", json_string("object")) ? no_memory() : QN_OK;
}

/* From the name of a function to `next`, behind the last brace or tag. */
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
    if (is_xml && !is_name(name))
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: the name is not supported", what);
    QN_TRY(find_schema(c, function, &schema));
    if (is_xml) {
        QN_TRY(add_parameters(k, what, schema, next, &node));
        QN_TRY(add_literal(c, ">\n", node, &node));
        return add_literal(c, name, node, entry);
    }
    QN_TRY(qn_schema_compile(c, what, schema, schema, NULL, &rule));
    QN_TRY(add_regex(c, " ?\\}", next, &node));
    QN_TRY(qn_schema_node(c, QN_CALL, rule, node, &node));
    QN_TRY(add_regex(c, k->calls->output->form == QN_OUTPUT_LLAMA3 ? " ?, ?\"parameters\" ?: ?" : " ?, ?\"arguments\" ?: ?",
                     node, &node));
    char *text = json_dumps(json_object_get(function, "name"), JSON_ENCODE_ANY);
    const qn_status status = text ? add_literal(c, text, node, entry) : no_memory();
    free(text);
    return status;
}

/* From behind call_open to `next`, behind call_close. */
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
        if (name && json_object_get(names, name)) /* arguments of one would fit the schema of the other */
            return qn_fail(QN_ERR_INVALID, "tools: two tools have the name '%.60s'", name);
        if (name && json_object_set_new(names, name, json_true()))
            return no_memory();
        c->options.strict = json_is_true(json_object_get(function, "strict")) || json_is_true(json_object_get(tool, "strict"));
        QN_TRY(add_function(k, function, close, &node));
        QN_TRY(qn_schema_or(c, node, &functions));
    }
    if (functions == QN_NODE_NEVER)
        return qn_fail(QN_ERR_INVALID, "tools: %s%s", calls->name ? "there is none of the name " : "there are none",
                       calls->name ? calls->name : "");
    if (is_xml)
        return add_literal(c, "\n<function=", functions, entry);
    return add_regex(c, "\\n?\\{ ?\"name\" ?: ?", functions, entry);
}

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

/* Content in place of calls. Newlines may come first, as before calls: a model that has written one can still choose. */
static qn_status add_format(call_compiler *k, uint32_t *entry)
{
    qn_schema_compiler *c = &k->c;
    uint32_t rule, node;
    c->options = (qn_grammar_options){ .strict = k->calls->is_format_strict, .style = k->calls->style };
    QN_TRY(qn_schema_compile(c, "format", k->calls->format, k->calls->format, NULL, &rule));
    QN_TRY(qn_schema_node(c, QN_CALL, rule, c->end, &node));
    QN_TRY(add_regex(c, "\\n{0,2}", node, &node));
    return qn_schema_or(c, node, entry);
}

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
    call_compiler k = { .calls = calls, .raw = -1 };
    uint32_t rule, entry = QN_NODE_NEVER;
    *out = NULL;
    if (calls->output->form == QN_OUTPUT_PLAIN)
        return qn_fail(QN_ERR_UNSUPPORTED, "tools: the model's chat template has no calls that can be parsed back");
    qn_status status = qn_schema_begin(&k.c, &(qn_grammar_options){ .closed = true, .style = calls->style });
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
    return qn_schema_end(&k.c, status, out);
}
