/* Enumerations and constants: which values of an enum or const fit the schema's other keywords, and how they are
 * written. */
#include "grammar/schema.h"

#include "base/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Steps of a filter besides those of its automaton, and of a value besides those of its text. */
enum { FILTER_STEPS = 1 << 14, VALUE_STEPS = 64 };

static unsigned type_of(json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_NULL: return QN_IS_NULL;
    case JSON_TRUE:
    case JSON_FALSE: return QN_IS_BOOLEAN;
    case JSON_INTEGER: return QN_IS_INTEGER | QN_IS_NUMBER;
    case JSON_REAL:
        return json_real_value(value) == floor(json_real_value(value)) ? QN_IS_INTEGER | QN_IS_NUMBER : QN_IS_NUMBER;
    case JSON_STRING: return QN_IS_STRING;
    case JSON_ARRAY: return QN_IS_ARRAY;
    case JSON_OBJECT: return QN_IS_OBJECT;
    }
    return 0;
}

/* ---- Other keywords ---- */

/* Returns a copy of a value in which reals with integer values are integers, as schemas of integers have them. A new
 * reference; NULL without memory. */
static json_t *with_integers(json_t *value)
{
    json_t *out, *item;
    const char *key;
    size_t i;
    bool is_whole = true;
    const double number = json_real_value(value);
    if (json_is_real(value) && number == floor(number) && fabs(number) < 0x1p53)
        return json_integer((json_int_t)number);
    if (!json_is_array(value) && !json_is_object(value))
        return json_incref(value);
    out = json_is_array(value) ? json_array() : json_object();
    json_array_foreach(value, i, item) is_whole &= json_array_append_new(out, with_integers(item)) == 0;
    json_object_foreach(value, key, item) is_whole &= json_object_set_new_nocheck(out, key, with_integers(item)) == 0;
    if (is_whole)
        return out;
    json_decref(out);
    return NULL;
}

/* Whether a value fits an automaton. */
static qn_status check_value(qn_schema_compiler *c, const qn_grammar *grammar, json_t *value, bool *fits)
{
    qn_grammar_state *state;
    json_t *plain = with_integers(value);
    char *text = NULL;
    for (int precision = 15; plain && precision <= 17; precision++) { /* the fewest digits that give the number */
        free(text);
        text = json_dumps(plain, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(precision));
        if (!json_is_real(plain) || !text || strtod(text, NULL) == json_real_value(plain))
            break;
    }
    json_decref(plain);
    if (!text)
        return qn_schema_no_memory();
    const size_t length = strlen(text);
    qn_status status = qn_schema_charge(c, VALUE_STEPS + length);
    if (status == QN_OK)
        status = qn_grammar_state_create(grammar, &state);
    if (status == QN_OK) {
        *fits = qn_grammar_state_advance(state, text, length) && qn_grammar_state_is_finished(state);
        qn_grammar_state_free(state);
    }
    free(text);
    return status;
}

/* Makes the schema without its constants; it applies to every type unless it names some. *rest: owned by the compiler;
 * NULL: nothing is left. */
static qn_status beside(qn_schema_compiler *c, json_t *schema, json_t **rest)
{
    static const char *const others[] = { "enum", "const", "type", "nullable", "not" };
    json_t *value;
    const char *key;
    QN_TRY(qn_schema_own(c, *rest = json_object()));
    json_object_foreach(schema, key, value)
    {
        bool is_other = qn_schema_is_note(key);
        for (size_t i = 0; i < sizeof others / sizeof *others; i++)
            is_other |= !strcmp(key, others[i]);
        if (!is_other && json_object_set_nocheck(*rest, key, value))
            return qn_schema_no_memory();
    }
    if (!json_object_size(*rest)) {
        *rest = NULL;
        return QN_OK;
    }
    json_t *types = json_pack("[s,s,s,s,s,s]", "null", "boolean", "number", "string", "array", "object");
    return json_object_set_new(*rest, "type", types) ? qn_schema_no_memory() : QN_OK;
}

/* Drops the constants that do not fit the other keywords: these become a grammar of their own, which checks each
 * constant. */
static qn_status filter(qn_schema_compiler *c, json_t *rest, json_t *constants)
{
    qn_schema_compiler other;
    qn_grammar *grammar = NULL;
    uint32_t rule;
    const qn_grammar_options options = { .strict = c->options.strict,
                                         .style = { .space = QN_JSON_SPACE_COMPACT, .order = QN_JSON_ORDER_ANY } };
    qn_status status = qn_schema_begin(&other, &options);
    if (status == QN_OK) {
        other.grammar->steps = c->grammar->steps + FILTER_STEPS;
        status = qn_schema_compile(&other, c->what, c->root, rest, QN_FORM_JSON, &rule);
    }
    if (status == QN_OK)
        status = qn_grammar_finish(other.grammar, rule);
    c->grammar->steps = other.grammar ? other.grammar->steps : QN_GRAMMAR_STEPS;
    status = qn_schema_at_place(c, qn_schema_end(&other, status, &grammar));
    for (size_t i = json_array_size(constants); i-- > 0 && status == QN_OK;) {
        bool fits = false;
        status = check_value(c, grammar, json_array_get(constants, i), &fits);
        if (!fits)
            json_array_remove(constants, i);
    }
    if (grammar)
        qn_grammar_free(grammar);
    return qn_schema_may_ignore(c, status) ? QN_OK : status;
}

static qn_status exclude(qn_schema_compiler *c, json_t *excluded, bool in_string, uint32_t *id, bool *is_none)
{
    uint32_t expr, last = 0, part;
    qn_dfa without, dfa;
    json_t *value;
    size_t i;
    QN_TRY(qn_expr_add(&c->exprs, (qn_expr){ .kind = QN_EXPR_ALT }, &expr));
    json_array_foreach(excluded, i, value)
    {
        QN_TRY(qn_expr_characters(&c->exprs, json_string_value(value), json_string_length(value), &part));
        qn_expr_append(&c->exprs, expr, &last, part);
    }
    if (!last)
        return QN_OK;
    QN_TRY(qn_dfa_compile(&c->exprs, expr, in_string, qn_schema_path(c), &c->grammar->steps, &without));
    const qn_status status =
        qn_dfa_meet(&c->grammar->dfas[*id], &without, true, qn_schema_path(c), &c->grammar->steps, &dfa);
    qn_dfa_free(&without);
    *is_none = status == QN_ERR_INVALID;
    return status == QN_OK ? qn_grammar_add_dfa(c->grammar, &dfa, id) : *is_none ? QN_OK : status;
}

qn_status qn_schema_exclude(qn_schema_compiler *c, json_t *schema, bool in_string, uint32_t *dfa, bool *is_none)
{
    *is_none = false;
    if (!qn_schema_excludes_strings(schema))
        return QN_OK;
    json_t *excluded = qn_schema_excluded(schema);
    if (!excluded)
        return qn_schema_no_memory();
    const qn_status status = exclude(c, excluded, in_string, dfa, is_none);
    json_decref(excluded);
    return status;
}

/* Drops the constants that `not` excludes. */
static qn_status drop_excluded(qn_schema_compiler *c, json_t *schema, json_t *constants)
{
    if (!qn_schema_excludes_strings(schema))
        return QN_OK;
    json_t *excluded = qn_schema_excluded(schema);
    if (!excluded)
        return qn_schema_no_memory();
    const qn_status status = qn_schema_charge(c, json_array_size(excluded) * json_array_size(constants));
    for (size_t i = json_array_size(constants); status == QN_OK && i-- > 0;)
        for (size_t k = 0; k < json_array_size(excluded); k++)
            if (json_equal(json_array_get(constants, i), json_array_get(excluded, k))) {
                json_array_remove(constants, i);
                break;
            }
    json_decref(excluded);
    return status;
}

qn_status qn_schema_constants(qn_schema_compiler *c, json_t *schema, unsigned types, json_t **constants)
{
    json_t *values = json_object_get(schema, "enum"), *constant = json_object_get(schema, "const"), *value, *rest;
    size_t i;
    *constants = json_array();
    QN_TRY(qn_schema_own(c, *constants));
    if (values && !json_is_array(values))
        return qn_fail(QN_ERR_INVALID, "%s/enum: not a list", qn_schema_path(c));
    QN_TRY(qn_schema_charge(c, json_array_size(values)));
    if (!values && (type_of(constant) & types) && json_array_append(*constants, constant))
        return qn_schema_no_memory();
    json_array_foreach(values, i, value) if ((type_of(value) & types) &&
                                             (!constant || qn_schema_is_equal(value, constant, &c->comparisons)) &&
                                             json_array_append(*constants, value)) return qn_schema_no_memory();
    QN_TRY(drop_excluded(c, schema, *constants));
    if (!json_array_size(*constants))
        return QN_OK;
    QN_TRY(beside(c, schema, &rest));
    return rest ? filter(c, rest, *constants) : QN_OK;
}

/* ---- How constants are written ---- */

json_t *qn_schema_of_constant(json_t *value)
{
    json_t *inner = json_is_array(value) ? json_array() : json_object(), *required = json_array(), *item,
           *schema = NULL;
    const char *key;
    size_t i;
    bool is_whole = true;
    json_array_foreach(value, i, item) is_whole &= json_array_append_new(inner, json_pack("{s:O}", "const", item)) == 0;
    json_object_foreach(value, key, item)
    {
        is_whole &= json_object_set_new_nocheck(inner, key, json_pack("{s:O}", "const", item)) == 0;
        is_whole &= json_array_append_new(required, json_string(key)) == 0;
    }
    if (is_whole && json_is_array(value))
        schema = json_pack("{s:s,s:O,s:b,s:i}", "type", "array", "prefixItems", inner, "items", 0, "minItems",
                           (int)json_array_size(value));
    else if (is_whole)
        schema = json_pack("{s:s,s:O,s:b,s:O}", "type", "object", "properties", inner, "additionalProperties", 0,
                           "required", required);
    json_decref(required);
    json_decref(inner);
    return schema;
}

/* Appends a string in quotes. JSON may spell its characters with escapes. */
static qn_status add_string(qn_schema_compiler *c, json_t *value, uint32_t parent, uint32_t *last)
{
    uint32_t cat, end = 0, part;
    QN_TRY(qn_expr_add(&c->exprs, (qn_expr){ .kind = QN_EXPR_CAT }, &cat));
    QN_TRY(qn_expr_characters(&c->exprs, json_string_value(value), json_string_length(value), &part));
    qn_expr_append(&c->exprs, cat, &end, part);
    QN_TRY(qn_expr_literal(&c->exprs, "\"", 1, &part));
    qn_expr_append(&c->exprs, cat, &end, part);
    qn_expr_append(&c->exprs, parent, last, cat);
    return QN_OK;
}

static qn_status append_literal(qn_exprs *x, const char *text, uint32_t parent, uint32_t *last)
{
    uint32_t part;
    QN_TRY(qn_expr_literal(x, text, strlen(text), &part));
    qn_expr_append(x, parent, last, part);
    return QN_OK;
}

/* Appends one of two characters, repeated min to max times. */
static qn_status append_repeated(qn_exprs *x, char a, char b, uint32_t min, uint32_t max, uint32_t parent,
                                 uint32_t *last)
{
    uint32_t character, part;
    QN_TRY(qn_expr_either(x, a, b, &character));
    QN_TRY(qn_expr_repeat(x, character, min, max, &part));
    qn_expr_append(x, parent, last, part);
    return QN_OK;
}

/* Digits, e or E, a sign, up to two zeros, the exponent. */
static qn_status add_scientific(qn_exprs *x, const char *digits, int exponent, uint32_t *id)
{
    char text[16];
    uint32_t last = 0;
    snprintf(text, sizeof text, "%d", abs(exponent));
    QN_TRY(qn_expr_add(x, (qn_expr){ .kind = QN_EXPR_CAT }, id));
    QN_TRY(append_literal(x, digits, *id, &last));
    QN_TRY(append_repeated(x, 'e', 'E', 1, 1, *id, &last));
    if (exponent < 0)
        QN_TRY(append_literal(x, "-", *id, &last));
    else
        QN_TRY(append_repeated(x, '+', '+', 0, 1, *id, &last));
    QN_TRY(append_repeated(x, '0', '0', 0, 2, *id, &last));
    return append_literal(x, text, *id, &last);
}

/* Digits, and zeros after a point. */
static qn_status add_plain(qn_exprs *x, const char *digits, uint32_t *id)
{
    uint32_t last = 0, fraction, last_of_fraction = 0, part;
    QN_TRY(qn_expr_add(x, (qn_expr){ .kind = QN_EXPR_CAT }, id));
    QN_TRY(append_literal(x, digits, *id, &last));
    if (strchr(digits, '.'))
        return append_repeated(x, '0', '0', 0, QN_UNLIMITED, *id, &last);
    QN_TRY(qn_expr_add(x, (qn_expr){ .kind = QN_EXPR_CAT }, &fraction));
    QN_TRY(append_literal(x, ".", fraction, &last_of_fraction));
    QN_TRY(append_repeated(x, '0', '0', 1, QN_UNLIMITED, fraction, &last_of_fraction));
    QN_TRY(qn_expr_repeat(x, fraction, 0, 1, &part));
    qn_expr_append(x, *id, &last, part);
    return QN_OK;
}

/* A number that is not an integer: its shortest digits, with an exponent, and without one unless that is long. */
static qn_status add_real(qn_exprs *x, double number, uint32_t *id)
{
    enum { LONG = 20 };
    char digits[40], text[64];
    uint32_t last = 0, part;
    int precision = 0;
    do
        snprintf(digits, sizeof digits, "%.*e", precision, number);
    while (strtod(digits, NULL) != number && ++precision < 17);
    char *e = strchr(digits, 'e');
    const int exponent = atoi(e + 1);
    *e = 0;
    QN_TRY(qn_expr_add(x, (qn_expr){ .kind = QN_EXPR_ALT }, id));
    QN_TRY(add_scientific(x, digits, exponent, &part));
    qn_expr_append(x, *id, &last, part);
    if (abs(exponent) > LONG)
        return QN_OK;
    snprintf(text, sizeof text, "%.*f", precision > exponent ? precision - exponent : 0, number);
    QN_TRY(add_plain(x, text, &part));
    qn_expr_append(x, *id, &last, part);
    return QN_OK;
}

static qn_status add_scalar(qn_schema_compiler *c, json_t *value, uint32_t parent, uint32_t *last)
{
    uint32_t part;
    if (json_is_real(value)) {
        QN_TRY(add_real(&c->exprs, json_real_value(value), &part));
    } else {
        char *text = json_dumps(value, JSON_ENCODE_ANY);
        if (!text)
            return qn_schema_no_memory();
        const qn_status status = qn_expr_literal(&c->exprs, text, strlen(text), &part);
        free(text);
        QN_TRY(status);
    }
    qn_expr_append(&c->exprs, parent, last, part);
    return QN_OK;
}

qn_status qn_schema_scalar(qn_schema_compiler *c, json_t *value, uint32_t next, uint32_t *node)
{
    uint32_t expr, last = 0, dfa;
    QN_TRY(qn_expr_add(&c->exprs, (qn_expr){ .kind = QN_EXPR_ALT }, &expr));
    QN_TRY(add_scalar(c, value, expr, &last));
    QN_TRY(qn_schema_dfa(c, expr, &dfa));
    return qn_schema_node(c, QN_DFA, dfa, next, node);
}

static qn_status add_value(qn_schema_compiler *c, json_t *value, uint32_t strings, uint32_t *last_string,
                           uint32_t scalars, uint32_t *last_scalar, uint32_t *entry)
{
    uint32_t rule, node;
    if (json_is_string(value))
        return add_string(c, value, strings, last_string);
    if (!json_is_array(value) && !json_is_object(value))
        return add_scalar(c, value, scalars, last_scalar);
    json_t *schema = qn_schema_of_constant(value);
    QN_TRY(qn_schema_own(c, schema));
    QN_TRY(qn_schema_rule(c, schema, QN_FORM_JSON, "const", NULL, &rule));
    QN_TRY(qn_schema_node(c, QN_CALL, rule, c->end, &node));
    return qn_schema_or(c, node, entry);
}

/* ---- Many strings ---- */

/* Appends a string to a list with room for it, as JSON spells it without the opening quote, which is a node of its own:
 * its characters outside ASCII unescaped, or all escaped; then the closing quote. The caller frees the words, also
 * after an error. */
static qn_status append_word(qn_schema_compiler *c, json_t *value, bool ascii, char **words, size_t *n)
{
    size_t length;
    char *text = qn_schema_spell(json_string_value(value), json_string_length(value), ascii, &length);
    char *word = text ? realloc(text, length + 2) : NULL;
    if (!word) {
        free(text);
        return qn_schema_no_memory();
    }
    memcpy(word + length, "\"", 2);
    words[(*n)++] = word;
    return qn_schema_charge(c, length / 4 + 1);
}

static qn_status add_many(qn_schema_compiler *c, json_t *strings, uint32_t *entry)
{
    const size_t most = 2 * json_array_size(strings);
    char **words = calloc(most + 1, sizeof *words);
    json_t *value;
    size_t i, n = 0;
    uint32_t list = 0, node;
    qn_status status = words ? QN_OK : qn_schema_no_memory();
    json_array_foreach(strings, i, value) for (int ascii = 0; ascii < 2 && status == QN_OK; ascii++)
    {
        bool is_foreign = false;
        for (size_t k = 0; k < json_string_length(value); k++)
            is_foreign |= (uint8_t)json_string_value(value)[k] >= 0x80;
        if (!ascii || is_foreign)
            status = append_word(c, value, ascii, words, &n);
    }
    if (status == QN_OK)
        status = qn_grammar_add_words(c->grammar, words, n, qn_schema_path(c), &list);
    for (i = 0; i < n; i++)
        free(words[i]);
    free(words);
    QN_TRY(status);
    QN_TRY(qn_schema_node(c, QN_WORDS, list, c->end, &node));
    QN_TRY(qn_schema_byte(c, '"', node, &node));
    return qn_schema_or(c, node, entry);
}

/* Takes the strings out of a list of constants, if they are many. *strings: owned by the compiler, or NULL. */
static qn_status take_many(qn_schema_compiler *c, json_t **constants, json_t **strings)
{
    json_t *value, *others, *all;
    size_t i;
    *strings = NULL;
    QN_TRY(qn_schema_own(c, others = json_array()));
    QN_TRY(qn_schema_own(c, all = json_array()));
    json_array_foreach(*constants, i, value) if (json_array_append(json_is_string(value) ? all : others,
                                                                   value)) return qn_schema_no_memory();
    if (json_array_size(all) < QN_SCHEMA_MANY)
        return QN_OK;
    *strings = all;
    *constants = others;
    return QN_OK;
}

qn_status qn_schema_enum(qn_schema_compiler *c, json_t *schema, unsigned types, uint32_t *entry)
{
    json_t *constants, *many, *value;
    uint32_t strings, scalars, last_string = 0, last_scalar = 0, node;
    size_t i;
    qn_dfa dfa;
    QN_TRY(qn_schema_constants(c, schema, types, &constants));
    QN_TRY(take_many(c, &constants, &many));
    if (many)
        QN_TRY(add_many(c, many, entry));
    QN_TRY(qn_expr_add(&c->exprs, (qn_expr){ .kind = QN_EXPR_ALT }, &strings));
    QN_TRY(qn_expr_add(&c->exprs, (qn_expr){ .kind = QN_EXPR_ALT }, &scalars));
    json_array_foreach(constants, i, value)
        QN_TRY(add_value(c, value, strings, &last_string, scalars, &last_scalar, entry));
    if (last_string) {
        QN_TRY(qn_dfa_compile(&c->exprs, strings, true, qn_schema_path(c), &c->grammar->steps, &dfa));
        QN_TRY(qn_grammar_add_dfa(c->grammar, &dfa, &node));
        QN_TRY(qn_schema_node(c, QN_DFA, node, c->end, &node));
        QN_TRY(qn_schema_byte(c, '"', node, &node));
        QN_TRY(qn_schema_or(c, node, entry));
    }
    if (last_scalar) {
        QN_TRY(qn_schema_dfa(c, scalars, &node));
        QN_TRY(qn_schema_node(c, QN_DFA, node, c->end, &node));
        QN_TRY(qn_schema_or(c, node, entry));
    }
    return QN_OK;
}
