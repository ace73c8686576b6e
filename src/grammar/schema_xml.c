/* Parameters of a function and their values, in the form xml of tool calls. schema.c joins references and combinations
 * as for JSON; this file writes the rest: a string is its plain text, any other value is JSON.
 *
 * If a value may be a string or something else, the parser reads its text as the first type that fits, in the order
 * of output_tools.c. So types after the string are never read and not written, and no string is written that would
 * be read as a type before it: `5` if the value may also be an integer. A value of any type is any text. */
#include "grammar/schema.h"

#include "base/append.h"
#include "base/keyed_hash.h"

#include <stdlib.h>
#include <string.h>

#define PARAMETER_OPEN "<parameter="
#define PARAMETER_CLOSE "</parameter>"
#define FUNCTION_CLOSE "</function>"

/* Limit of the total length of all tools' parameter names; above it, a text may contain no parameter tag at all. */
enum { MAX_NAMES = 4096 };

/* Undeclared names: 1 to 64 printable ASCII characters but < and >, as authors of tools choose them. */
static const char any_name[] = "[ -;=?-~]{1,64}";

/* ---- Texts ---- */

/* Returns the words that a text must not contain: its end tag, and the tags of parameters, which end a text if its end
 * tag is missing. They are the keys of a new reference to an object; NULL without memory. */
static json_t *find_words(const qn_schema_compiler *c)
{
    json_t *words = json_object();
    const char *name;
    size_t total = 0, length;
    char word[sizeof PARAMETER_OPEN + QN_OUTPUT_MAX_NAME + 1];
    bool is_whole = json_object_set_new(words, PARAMETER_CLOSE, json_null()) == 0;
    if (c->xml.is_close_text) /* it follows </function> and ends a value */
        is_whole &= json_object_set_new(words, FUNCTION_CLOSE, json_null()) == 0;
    for (size_t i = 0; total <= MAX_NAMES && (name = qn_output_argument_name(c->xml.tools, NULL, i, &length)); i++) {
        size_t n = 0;
        while (n < length && (uint8_t)name[n] < 0x80)
            n++;
        snprintf(word, sizeof word, PARAMETER_OPEN "%.*s%s", (int)n, name, n == length ? ">" : "");
        if (json_object_get(words, word))
            continue;
        is_whole &= json_object_set_new(words, word, json_null()) == 0;
        total += n;
    }
    if (total > MAX_NAMES)
        is_whole &= json_object_set_new(words, PARAMETER_OPEN, json_null()) == 0;
    if (is_whole)
        return words;
    json_decref(words);
    return NULL;
}

/* Adds the DFA of texts that contain none of these words. */
static qn_status add_words(qn_schema_compiler *c, uint32_t *id)
{
    json_t *found = find_words(c), *value;
    const char **words = calloc(json_object_size(found) + 1, sizeof *words), *word;
    size_t n = 0;
    qn_dfa dfa;
    qn_status status = words && found ? QN_OK : qn_schema_no_memory();
    if (status == QN_OK)
        json_object_foreach(found, word, value) words[n++] = word;
    if (status == QN_OK)
        status = qn_dfa_without_words(words, n, "tools", &c->grammar->steps, &dfa);
    if (status == QN_OK)
        status = qn_grammar_add_dfa(c->grammar, &dfa, id);
    free(words);
    json_decref(found);
    return status;
}

/* Prints the regular expression of texts that the parser reads as JSON of some types, or as Python's constants. */
static void print_readings(qn_text_buffer *to, unsigned reads)
{
    static const struct {
        unsigned type;
        const char *regex;
    } readings[] = { { QN_IS_NULL, "null|None" },
                     { QN_IS_BOOLEAN, "true|false|True|False" },
                     { QN_IS_INTEGER, "-?(0|[1-9][0-9]*)(\\.0+|(\\.[0-9]+)?[eE][+-]?[0-9]+)?" },
                     { QN_IS_NUMBER, "-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?" },
                     { QN_IS_ARRAY, "\\[[\\s\\S]*" },
                     { QN_IS_OBJECT, "\\{[\\s\\S]*" } };
    const char *between = "";
    qn_append(to, "[ \\t\\r\\n]*(");
    for (size_t i = 0; i < sizeof readings / sizeof *readings; i++)
        if (reads & readings[i].type) {
            qn_append(to, "%s%s", between, readings[i].regex);
            between = "|";
        }
    qn_append(to, ")[ \\t\\r\\n]*");
}

/* Finds the DFA of texts without these words that the parser does not read as JSON of the types; `reads` 0: of all
 * texts without them. Made once for each set of types. Arrays and objects are recognised by their bracket. */
static qn_status find_texts(qn_schema_compiler *c, unsigned reads, uint32_t *id)
{
    char regex[400];
    uint32_t expr;
    qn_dfa read, dfa;
    if (!c->xml.texts[reads] && !reads) {
        QN_TRY(add_words(c, id));
        c->xml.texts[0] = *id + 1;
    } else if (!c->xml.texts[reads]) {
        qn_text_buffer to = QN_APPEND_TO(regex);
        print_readings(&to, reads);
        QN_TRY(find_texts(c, 0, id));
        QN_TRY(qn_expr_regex(&c->exprs, regex, to.length, false, "tools", &expr));
        QN_TRY(qn_dfa_compile(&c->exprs, expr, false, "tools", &c->grammar->steps, &read));
        const qn_status status = qn_dfa_meet(&c->grammar->dfas[*id], &read, true, "tools", &c->grammar->steps, &dfa);
        qn_dfa_free(&read);
        QN_TRY(status);
        QN_TRY(qn_grammar_add_dfa(c->grammar, &dfa, id));
        c->xml.texts[reads] = *id + 1;
    }
    *id = c->xml.texts[reads] - 1;
    return QN_OK;
}

/* ---- Strings ---- */

/* Intersects the DFA of an expression with `texts`. *is_none: the result is empty. */
static qn_status keep(qn_schema_compiler *c, uint32_t expr, const qn_dfa *texts, qn_dfa *out, bool *is_none)
{
    qn_dfa dfa;
    QN_TRY(qn_dfa_compile(&c->exprs, expr, false, qn_schema_path(c), &c->grammar->steps, &dfa));
    const qn_status status = qn_dfa_meet(&dfa, texts, false, qn_schema_path(c), &c->grammar->steps, out);
    qn_dfa_free(&dfa);
    *is_none = status == QN_ERR_INVALID;
    return *is_none ? QN_OK : status;
}

/* Makes the DFA of patterns and lengths. */
static qn_status compile_patterns(qn_schema_compiler *c, const qn_schema_patterns *patterns, const qn_string_rule *rule,
                                  uint32_t *id, bool *is_none)
{
    uint32_t expr;
    qn_dfa matching, dfa;
    QN_TRY(qn_schema_meet_patterns(c, patterns, false, &c->grammar->dfas[rule->dfa], &matching, is_none));
    if (*is_none)
        return QN_OK;
    if (rule->min || rule->max != QN_UNLIMITED) {
        qn_status status = qn_expr_any(&c->exprs, rule->min, rule->max, &expr);
        if (status == QN_OK)
            status = keep(c, expr, &matching, &dfa, is_none);
        qn_dfa_free(&matching);
        if (status != QN_OK || *is_none)
            return status;
        matching = dfa;
    }
    return qn_grammar_add_dfa(c->grammar, &matching, id);
}

/* Finds the DFA of patterns and lengths; equal ones share it. *is_none: no text fits, and *id is not set. */
static qn_status add_patterns(qn_schema_compiler *c, const qn_schema_patterns *patterns, const qn_string_rule *rule,
                              uint32_t *id, bool *is_none)
{
    const qn_hash128 texts = qn_schema_hash_patterns(patterns);
    const uint64_t parts[] = { texts.low, texts.high, rule->min, rule->max, (uint64_t)rule->dfa + 1 };
    const qn_hash128 hash = qn_keyed_hash128(parts, sizeof parts);
    const size_t slot = hash.low % QN_SCHEMA_NUMBERS;
    if (!c->patterns[slot].dfa || c->patterns[slot].low != hash.low || c->patterns[slot].high != hash.high) {
        QN_TRY(compile_patterns(c, patterns, rule, id, is_none));
        if (*is_none)
            return QN_OK;
        c->patterns[slot].low = hash.low;
        c->patterns[slot].high = hash.high;
        c->patterns[slot].dfa = *id + 1;
    }
    *id = c->patterns[slot].dfa - 1;
    return QN_OK;
}

/* Adds the nodes of texts with length limits. *node is the QN_TEXT, which counts characters. The node directly before
 * it in the array, a QN_DFA of the same texts, does not count: nothing leads to it, but where no token can exceed the
 * limits masks use it instead (stop_counting in mask.c). So nothing may be added between the two. */
static qn_status add_counted(qn_schema_compiler *c, qn_string_rule rule, uint32_t next, uint32_t *node)
{
    uint32_t id;
    QN_TRY(qn_grammar_add_string(c->grammar, rule, &id));
    QN_TRY(qn_schema_node(c, QN_DFA, (uint32_t)rule.dfa, next, node));
    return qn_schema_node(c, QN_TEXT, id, next, node);
}

/* Adds the texts of strings that fit a schema and are not read as one of the types `reads`, as an alternative; none if
 * no text fits. */
static qn_status add_strings(qn_schema_compiler *c, json_t *schema, unsigned reads, uint32_t next, uint32_t *entry)
{
    qn_string_rule rule = { .form = QN_STRING_VALUE };
    qn_schema_patterns patterns;
    uint32_t texts, id, node;
    bool is_none = false;
    QN_TRY(qn_schema_count(c, schema, "minLength", 0, &rule.min));
    QN_TRY(qn_schema_count(c, schema, "maxLength", QN_UNLIMITED, &rule.max));
    QN_TRY(qn_schema_find_patterns(c, schema, &patterns));
    if (rule.min > rule.max)
        return QN_OK;
    QN_TRY(find_texts(c, reads, &texts));
    QN_TRY(qn_schema_exclude(c, schema, false, &texts, &is_none));
    if (is_none)
        return QN_OK;
    rule.dfa = (int32_t)texts;
    qn_status status = patterns.n ? add_patterns(c, &patterns, &rule, &id, &is_none) : QN_OK;
    if (qn_schema_may_ignore(c, status)) { /* pattern and lengths together are too large for an automaton */
        const qn_string_rule any_length = { .form = rule.form, .max = QN_UNLIMITED, .dfa = rule.dfa };
        status = add_patterns(c, &patterns, &any_length, &id, &is_none);
    }
    if (is_none)
        return QN_OK;
    if (qn_schema_may_ignore(c, status)) {
        status = QN_OK;
        patterns.n = 0;
    }
    QN_TRY(status);
    if (patterns.n)
        QN_TRY(qn_schema_node(c, QN_DFA, id, next, &node));
    else if (rule.min || rule.max != QN_UNLIMITED)
        QN_TRY(add_counted(c, rule, next, &node));
    else
        QN_TRY(qn_schema_node(c, QN_DFA, texts, next, &node));
    return qn_schema_or(c, node, entry);
}

/* ---- Values ---- */

/* Adds JSON that fits a schema, as an alternative. The compiler takes the reference to the schema. */
static qn_status add_json(qn_schema_compiler *c, json_t *schema, uint32_t next, uint32_t *entry)
{
    uint32_t rule, node;
    QN_TRY(qn_schema_own(c, schema));
    QN_TRY(qn_schema_rule(c, schema, QN_FORM_JSON, NULL, NULL, &rule));
    QN_TRY(qn_schema_node(c, QN_CALL, rule, next, &node));
    return qn_schema_or(c, node, entry);
}

/* Whether the text of a constant, as JSON, is read as one of the types. Strings have texts of their own. */
static bool is_read(unsigned reads, json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_NULL: return reads & QN_IS_NULL;
    case JSON_TRUE:
    case JSON_FALSE: return reads & QN_IS_BOOLEAN;
    case JSON_INTEGER: return reads & (QN_IS_INTEGER | QN_IS_NUMBER);
    case JSON_REAL: return reads & QN_IS_NUMBER;
    case JSON_ARRAY: return reads & QN_IS_ARRAY;
    case JSON_OBJECT: return reads & QN_IS_OBJECT;
    case JSON_STRING: return false;
    }
    return false;
}

/* Adds the texts of constants, which are strings, as one DFA before `next`. */
static qn_status add_texts(qn_schema_compiler *c, json_t *constants, uint32_t next, uint32_t *node)
{
    uint32_t strings, last = 0, part;
    json_t *value;
    size_t i;
    QN_TRY(qn_expr_add(&c->exprs, (qn_expr){ .kind = QN_EXPR_ALT }, &strings));
    json_array_foreach(constants, i, value)
    {
        QN_TRY(qn_expr_literal(&c->exprs, json_string_value(value), json_string_length(value), &part));
        qn_expr_append(&c->exprs, strings, &last, part);
    }
    QN_TRY(qn_schema_dfa(c, strings, node));
    return qn_schema_node(c, QN_DFA, *node, next, node);
}

/* Adds the texts of many constants as a list of words, each with the line end after it, so that none begins another.
 * The line end is that of `next`, so the list leads to the node after `next`. *is_done: false, and nothing is added, if
 * they are few, `next` reads no line end, or a text has a line end or U+0000. */
static qn_status add_many(qn_schema_compiler *c, json_t *constants, uint32_t next, uint32_t *node, bool *is_done)
{
    const size_t n = json_array_size(constants);
    const qn_node end = c->grammar->nodes[next];
    json_t *value;
    size_t i;
    uint32_t list = 0;
    *is_done = n >= QN_SCHEMA_MANY && end.kind == QN_BYTE && end.lo == '\n';
    json_array_foreach(constants, i, value) *is_done =
        *is_done && !memchr(json_string_value(value), '\n', json_string_length(value)) &&
        strlen(json_string_value(value)) == json_string_length(value);
    if (!*is_done)
        return QN_OK;
    char **words = calloc(n + 1, sizeof *words);
    qn_status status = words ? QN_OK : qn_schema_no_memory();
    for (i = 0; i < n && status == QN_OK; i++) {
        value = json_array_get(constants, i);
        const size_t size = json_string_length(value) + 2;
        qn_text_buffer to = qn_append_to(words[i] = malloc(size), size);
        if (words[i])
            qn_append(&to, "%s\n", json_string_value(value));
        status = words[i] ? qn_schema_charge(c, size / 4 + 1) : qn_schema_no_memory();
    }
    if (status == QN_OK)
        status = qn_grammar_add_words(c->grammar, words, n, qn_schema_path(c), &list);
    for (i = 0; words && i < n; i++)
        free(words[i]);
    free(words);
    QN_TRY(status);
    return qn_schema_node(c, QN_WORDS, list, end.next, node);
}

/* Adds the constants of a schema, as alternatives: strings by their texts first, then all others as JSON. */
static qn_status add_constants(qn_schema_compiler *c, json_t *schema, unsigned types, unsigned reads, uint32_t next,
                               uint32_t *entry)
{
    json_t *constants, *value, *others, *strings;
    uint32_t texts, node;
    size_t i;
    bool is_done;
    QN_TRY(qn_schema_own(c, others = json_array()));
    QN_TRY(qn_schema_own(c, strings = json_array()));
    QN_TRY(qn_schema_constants(c, schema, types, &constants));
    QN_TRY(find_texts(c, reads, &texts));
    json_array_foreach(constants, i, value)
    {
        const char *text = json_string_value(value);
        if (is_read(reads, value) && json_array_append(others, value))
            return qn_schema_no_memory();
        if (text && qn_dfa_takes(&c->grammar->dfas[texts], text, json_string_length(value)) &&
            json_array_append(strings, value))
            return qn_schema_no_memory();
    }
    if (json_array_size(strings)) {
        QN_TRY(add_many(c, strings, next, &node, &is_done));
        if (!is_done)
            QN_TRY(add_texts(c, strings, next, &node));
        QN_TRY(qn_schema_or(c, node, entry));
    }
    return json_array_size(others) ? add_json(c, json_pack("{s:O}", "enum", others), next, entry) : QN_OK;
}

/* Adds values other than strings, as alternatives: Python's spellings of null and the booleans, which templates print,
 * in the order of `others`; then one rule of JSON for all types that are allowed and that the parser reads as such. The
 * order of alternatives has no meaning: all of them may follow. */
static qn_status add_others(qn_schema_compiler *c, json_t *schema, unsigned types, unsigned reads, uint32_t next,
                            uint32_t *entry)
{
    static const struct {
        unsigned type, read;
        const char *name, *words[2];
    } others[] = { { QN_IS_NULL, QN_IS_NULL, "null", { "None" } },
                   { QN_IS_BOOLEAN, QN_IS_BOOLEAN, "boolean", { "True", "False" } },
                   { QN_IS_NUMBER, QN_IS_NUMBER, "number", { NULL } },
                   { QN_IS_INTEGER, QN_IS_INTEGER | QN_IS_NUMBER, "integer", { NULL } },
                   { QN_IS_ARRAY, QN_IS_ARRAY, "array", { NULL } },
                   { QN_IS_OBJECT, QN_IS_OBJECT, "object", { NULL } } };
    json_t *names, *copy;
    uint32_t node;
    QN_TRY(qn_schema_own(c, names = json_array()));
    QN_TRY(qn_schema_own(c, copy = qn_schema_copy(schema)));
    if (types & QN_IS_NUMBER && !(reads & QN_IS_NUMBER))
        types |= QN_IS_INTEGER;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (!(types & others[i].type) || !(reads & others[i].read))
            continue;
        if (json_array_append_new(names, json_string(others[i].name)))
            return qn_schema_no_memory();
        for (size_t k = 0; k < 2 && others[i].words[k]; k++) {
            QN_TRY(qn_schema_literal(c, others[i].words[k], next, &node));
            QN_TRY(qn_schema_or(c, node, entry));
        }
    }
    (void)json_object_del(copy, "nullable");
    if (json_object_set(copy, "type", names))
        return qn_schema_no_memory();
    return json_array_size(names) ? add_json(c, json_incref(copy), next, entry) : QN_OK;
}

/* Whether a schema allows any value. */
static bool is_anything(json_t *schema, unsigned types)
{
    const char *key;
    json_t *value;
    json_object_foreach(schema, key, value) if (!qn_schema_is_note(key) && strcmp(key, "type") != 0 &&
                                                strcmp(key, "nullable") != 0) return false;
    return types == QN_IS_ANY;
}

qn_status qn_schema_value(qn_schema_compiler *c, json_t *schema, unsigned types, qn_schema_form form, uint32_t *entry)
{
    const unsigned reads = form & QN_FORM_READS;
    uint32_t close;
    QN_TRY(qn_schema_literal(c, "\n" PARAMETER_CLOSE, c->end, &close));
    if (json_object_get(schema, "enum") || json_object_get(schema, "const"))
        return add_constants(c, schema, types, reads, close, entry);
    if (types & QN_IS_STRING && is_anything(schema, types))
        return add_strings(c, schema, 0, close, entry);
    if (types & QN_IS_STRING)
        QN_TRY(add_strings(c, schema, reads, close, entry));
    return add_others(c, schema, types, reads, close, entry);
}

/* ---- Parameters ---- */

bool qn_schema_is_tag_name(const char *name)
{
    for (const char *c = name; *c; c++)
        if ((uint8_t)*c < 0x20 || *c == '<' || *c == '>')
            return false;
    return *name && strlen(name) <= QN_OUTPUT_MAX_NAME;
}

/* Returns the form of a parameter's value, with the types that the parser tries before the string. */
static qn_schema_form value_form(const qn_schema_compiler *c, const char *key)
{
    static const unsigned bits[N_VALUE_TYPES] = {
        [VALUE_INTEGER] = QN_IS_INTEGER, [VALUE_NUMBER] = QN_IS_NUMBER, [VALUE_BOOLEAN] = QN_IS_BOOLEAN,
        [VALUE_NULL] = QN_IS_NULL,       [VALUE_ARRAY] = QN_IS_ARRAY,   [VALUE_OBJECT] = QN_IS_OBJECT
    };
    qn_value_types types;
    unsigned reads = 0;
    qn_output_argument_types(c->xml.tools, c->xml.tool, key, strlen(key), &types);
    for (size_t i = 0; i < types.n && types.types[i] != VALUE_STRING; i++)
        reads |= bits[types.types[i]];
    return (qn_schema_form)(QN_FORM_VALUE | reads);
}

/* Adds what follows the opening tag of a parameter: a line end, a call of the value's rule, which reads the end tag
 * too, and a line end. `between` is the node after them, *node the first of them. */
static qn_status add_line(qn_schema_compiler *c, uint32_t rule, uint32_t between, uint32_t *node)
{
    QN_TRY(qn_schema_byte(c, '\n', between, node));
    QN_TRY(qn_schema_node(c, QN_CALL, rule, *node, node));
    return qn_schema_byte(c, '\n', *node, node);
}

/* Adds a declared parameter to an object: its name, and the nodes of its value. There is room for it in the object's
 * arrays. */
static qn_status add_parameter(qn_schema_compiler *c, uint32_t object, const char *key, json_t *schema,
                               uint32_t between)
{
    const uint32_t property = c->grammar->objects[object].n_properties++;
    qn_object_rule *o = &c->grammar->objects[object];
    if (!qn_schema_is_tag_name(key))
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: the name of a parameter, '%.80s', is not supported", qn_schema_path(c),
                       key);
    char *text = strdup(key);
    if (!text)
        return qn_schema_no_memory();
    o->spellings[o->n_spellings++] = (qn_spelling){ text, (uint16_t)strlen(key), (uint16_t)property };
    QN_TRY(qn_schema_rule(c, schema, value_form(c, key), "properties", key, &o->value_rules[property]));
    return add_line(c, o->value_rules[property], between, &o->values[property]);
}

/* Appends a name to an expression of alternatives; does nothing for an empty one. */
static qn_status add_name(qn_schema_compiler *c, const char *name, size_t length, uint32_t names, uint32_t *last)
{
    uint32_t part;
    if (!length)
        return QN_OK;
    QN_TRY(qn_expr_literal(&c->exprs, name, length, &part));
    qn_expr_append(&c->exprs, names, last, part);
    return QN_OK;
}

/* Makes the DFA of names that neither the tool nor the object declares. The caller frees it. */
static qn_status find_other_names(qn_schema_compiler *c, const qn_object_rule *o, qn_dfa *out)
{
    uint64_t *steps = &c->grammar->steps;
    uint32_t any, known, last = 0;
    const char *name;
    size_t length;
    qn_dfa names, others;
    QN_TRY(qn_expr_regex(&c->exprs, any_name, strlen(any_name), false, "tools", &any));
    QN_TRY(qn_expr_add(&c->exprs, (qn_expr){ .kind = QN_EXPR_ALT }, &known));
    for (uint32_t i = 0; i < o->n_spellings; i++)
        QN_TRY(add_name(c, o->spellings[i].text, o->spellings[i].length, known, &last));
    for (size_t i = 0; (name = qn_output_argument_name(c->xml.tools, c->xml.tool, i, &length)); i++)
        QN_TRY(add_name(c, name, length, known, &last));
    QN_TRY(qn_dfa_compile(&c->exprs, any, false, "tools", steps, &names));
    if (!last) {
        *out = names;
        return QN_OK;
    }
    qn_status status = qn_dfa_compile(&c->exprs, known, false, "tools", steps, &others);
    if (status == QN_OK) {
        status = qn_dfa_meet(&names, &others, true, "tools", steps, out);
        qn_dfa_free(&others);
    }
    qn_dfa_free(&names);
    return status;
}

/* Adds undeclared parameters: o->others, a node that reads a name and continues with its value. None if no name
 * fits. */
static qn_status add_rest(qn_schema_compiler *c, uint32_t object, json_t *schema, json_t *rest, uint32_t between)
{
    json_t *patterns = json_object_get(schema, "patternProperties");
    qn_object_rule *o = &c->grammar->objects[object];
    qn_schema_names names[QN_SCHEMA_NAMES];
    uint32_t node, any = QN_NODE_NEVER;
    size_t n;
    qn_dfa all;
    qn_status status = find_other_names(c, o, &all);
    if (status == QN_OK)
        status = qn_schema_restrict_names(c, schema, false, &all);
    if (status == QN_ERR_INVALID)
        return QN_OK;
    QN_TRY(status);
    QN_TRY(qn_schema_find_names(c, patterns, rest, false, &all, names, &n));
    QN_TRY(qn_schema_other_rules(c, object, names, n, value_form(c, ""), "additionalProperties"));
    for (size_t i = 0; i < n; i++) {
        QN_TRY(add_line(c, o->other_rules[i], between, &node));
        QN_TRY(qn_schema_byte(c, '>', node, &node));
        QN_TRY(qn_schema_node(c, QN_DFA, names[i].dfa, node, &node));
        QN_TRY(qn_schema_or(c, node, &any));
    }
    o->additional = n > 0;
    return qn_schema_node(c, QN_REST, object, any, &o->others);
}

static int compare_spellings(const void *a, const void *b)
{
    return strcmp(((const qn_spelling *)a)->text, ((const qn_spelling *)b)->text);
}

/* Marks the required parameters. Those without a schema get that of the rest, and are added after all others. */
static qn_status add_required(qn_schema_compiler *c, uint32_t object, json_t *required, json_t *rest, uint32_t between)
{
    qn_object_rule *o = &c->grammar->objects[object];
    json_t *name;
    size_t i;
    json_array_foreach(required, i, name)
    {
        const char *key = json_string_value(name);
        uint32_t k = 0;
        if (!key)
            return qn_fail(QN_ERR_INVALID, "%s/required/%zu: not a string", qn_schema_path(c), i);
        while (k < o->n_spellings && strcmp(o->spellings[k].text, key) != 0)
            k++;
        if (k == QN_GRAMMAR_PROPERTIES)
            return qn_fail(QN_ERR_UNSUPPORTED, "%s: more than %d properties", qn_schema_path(c), QN_GRAMMAR_PROPERTIES);
        if (k == o->n_spellings)
            QN_TRY(add_parameter(c, object, key, rest, between));
        o->required[k / 64] |= UINT64_C(1) << (k % 64);
    }
    for (i = 0; i < 4; i++)
        o->n_required += (uint32_t)__builtin_popcountll(o->required[i]);
    return QN_OK;
}

/* Adds the parameters of an object, in the order of `properties`; spellings are sorted in the end. `between`: the node
 * between two parameters. */
static qn_status add_parameters(qn_schema_compiler *c, uint32_t object, json_t *schema, uint32_t between)
{
    json_t *properties, *required, *rest, *value;
    const char *key;
    QN_TRY(qn_schema_members(c, schema, &properties, &required, &rest));
    const size_t most = json_object_size(properties) + json_array_size(required);
    qn_object_rule *o = &c->grammar->objects[object];
    o->spellings = calloc(most + 1, sizeof *o->spellings);
    o->values = calloc(most + 1, sizeof *o->values);
    o->value_rules = calloc(most + 1, sizeof *o->value_rules);
    if (!o->spellings || !o->values || !o->value_rules)
        return qn_schema_no_memory();
    json_object_foreach(properties, key, value) QN_TRY(add_parameter(c, object, key, value, between));
    QN_TRY(add_required(c, object, required, rest, between));
    if (o->n_spellings)
        qsort(o->spellings, o->n_spellings, sizeof *o->spellings, compare_spellings);
    return json_is_false(rest) && !json_object_get(schema, "patternProperties")
               ? QN_OK
               : add_rest(c, object, schema, rest, between);
}

/* Adds the parameters of an object's schema, as an alternative. Nodes: `first` or `between` choose among o->first or
 * o->more, which open a parameter, and o->close. */
static qn_status add_object(qn_schema_compiler *c, json_t *schema, uint32_t *entry)
{
    uint32_t id, between, first, node;
    QN_TRY(qn_schema_list_names(c, &schema));
    QN_TRY(qn_grammar_add_object(c->grammar, &id));
    QN_TRY(qn_schema_node(c, QN_MEMBER, id, 0, &between));
    QN_TRY(add_parameters(c, id, schema, between));
    QN_TRY(qn_schema_node(c, QN_MEMBER, id, 0, &first));
    qn_object_rule *o = &c->grammar->objects[id];
    o->end = '>';
    QN_TRY(qn_schema_object_counts(c, schema, o));
    QN_TRY(qn_schema_literal(c, FUNCTION_CLOSE, c->end, &o->close));
    o->close_empty = o->close;
    QN_TRY(qn_schema_node(c, QN_KEY, id, 0, &node));
    if (o->others)
        QN_TRY(qn_schema_or(c, o->others, &node));
    QN_TRY(qn_schema_literal(c, PARAMETER_OPEN, node, &o->first));
    o->more = o->first;
    return qn_schema_or(c, first, entry);
}

qn_status qn_schema_parameters(qn_schema_compiler *c, json_t *schema, uint32_t *entry)
{
    json_t *constants, *value, *one;
    size_t i;
    if (!json_object_get(schema, "enum") && !json_object_get(schema, "const"))
        return add_object(c, schema, entry);
    QN_TRY(qn_schema_constants(c, schema, QN_IS_OBJECT, &constants));
    json_array_foreach(constants, i, value)
    {
        one = qn_schema_of_constant(value);
        QN_TRY(qn_schema_own(c, one));
        QN_TRY(add_object(c, one, entry));
    }
    return QN_OK;
}
