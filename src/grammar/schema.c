/* From a JSON schema to an automaton. Each schema becomes a rule, compiled from a queue, so that schemas may refer
 * to themselves and nesting needs no stack. schema_types.c compiles objects, arrays and scalars. */
#include "grammar/schema.h"

#include "base/append.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Objects that begin alike have three configurations each after the bracket. */
enum { MAX_BRANCHES = QN_GRAMMAR_THREADS / 3, MAX_OVERLAPS = 1024 };

const char *qn_schema_path(const qn_schema_compiler *c)
{
    return c->rule < c->grammar->n_rules ? c->grammar->rules[c->rule].name : c->what;
}

qn_status qn_schema_own(qn_schema_compiler *c, json_t *schema)
{
    if (!schema)
        return qn_schema_no_memory();
    if (json_array_append_new(c->owned, schema) != 0)
        return qn_schema_no_memory();
    return QN_OK;
}

/* Appends a step of a JSON pointer; nothing for NULL. */
static void append_step(qn_text_buffer *path, const char *step)
{
    if (step)
        qn_append_bytes(path, "/", 1);
    for (const char *c = step; c && *c && !path->is_cut; c++)
        if (*c == '~' || *c == '/')
            qn_append_bytes(path, *c == '~' ? "~0" : "~1", 2);
        else
            qn_append_bytes(path, c, 1);
}

/* Finds the rule of a schema in a form, by the schema's address, or makes a new one, named by its path;
 * qn_schema_compile compiles it later. */
static qn_status add_rule(qn_schema_compiler *c, json_t *schema, qn_schema_form form, const char *path, uint32_t *rule)
{
    size_t slot = (((uintptr_t)schema >> 4) + form) * UINT64_C(0x9e3779b97f4a7c15) >> 40 & (QN_SCHEMA_SLOTS - 1);
    for (; c->slots[slot]; slot = (slot + 1) & (QN_SCHEMA_SLOTS - 1))
        if (c->places[c->slots[slot] - 1].schema == schema && c->places[c->slots[slot] - 1].form == form) {
            *rule = c->slots[slot] - 1;
            return QN_OK;
        }
    QN_TRY(qn_realloc_array(&c->places, &c->capacity, c->grammar->n_rules + 1, sizeof *c->places, "schema"));
    QN_TRY(qn_grammar_add_rule(c->grammar, path, rule));
    c->places[*rule] = (struct qn_schema_place){ schema, form };
    c->slots[slot] = *rule + 1;
    return QN_OK;
}

qn_status qn_schema_rule(qn_schema_compiler *c, json_t *schema, qn_schema_form form, const char *keyword,
                         const char *key, uint32_t *rule)
{
    char path[256];
    qn_text_buffer to = QN_APPEND_TO(path);
    qn_append(&to, "%.160s", qn_schema_path(c));
    append_step(&to, keyword);
    append_step(&to, key);
    return add_rule(c, schema, form, path, rule);
}

qn_status qn_schema_node(qn_schema_compiler *c, qn_node_kind kind, uint32_t a, uint32_t next, uint32_t *id)
{
    return qn_grammar_add_node(c->grammar, (qn_node){ .kind = (uint8_t)kind, .a = a, .next = next }, id);
}

qn_status qn_schema_byte(qn_schema_compiler *c, char byte, uint32_t next, uint32_t *id)
{
    return qn_grammar_add_node(
        c->grammar, (qn_node){ .kind = QN_BYTE, .lo = (uint8_t)byte, .hi = (uint8_t)byte, .next = next }, id);
}

qn_status qn_schema_literal(qn_schema_compiler *c, const char *text, uint32_t next, uint32_t *id)
{
    *id = next;
    for (size_t i = strlen(text); i-- > 0;)
        QN_TRY(qn_schema_byte(c, text[i], *id, id));
    return QN_OK;
}

/* ---- White space ---- */

qn_status qn_schema_any_space(qn_schema_compiler *c, uint32_t next, uint32_t *id)
{
    *id = next;
    return c->options.style.space == QN_JSON_SPACE_ANY ? qn_schema_node(c, QN_DFA, c->space, next, id) : QN_OK;
}

/* Adds one space; none in the style compact; in the style any, any white space. */
static qn_status add_one(qn_schema_compiler *c, uint32_t next, uint32_t *id)
{
    if (c->options.style.space == QN_JSON_SPACE_COMPACT || c->options.style.space == QN_JSON_SPACE_ANY)
        return qn_schema_any_space(c, next, id);
    return qn_schema_byte(c, ' ', next, id);
}

/* Adds a line end and an indentation `levels` deeper than the rule's. */
static qn_status add_line(qn_schema_compiler *c, uint8_t levels, uint32_t next, uint32_t *id)
{
    return qn_grammar_add_node(c->grammar, (qn_node){ .kind = QN_INDENT, .lo = levels, .next = next }, id);
}

qn_status qn_schema_after_colon(qn_schema_compiler *c, uint32_t next, uint32_t *id)
{
    return add_one(c, next, id);
}

qn_status qn_schema_after_comma(qn_schema_compiler *c, uint32_t next, uint32_t *id)
{
    return c->options.style.space == QN_JSON_SPACE_INDENT ? add_line(c, 1, next, id) : add_one(c, next, id);
}

qn_status qn_schema_after_open(qn_schema_compiler *c, uint32_t next, uint32_t *id)
{
    *id = next;
    return c->options.style.space == QN_JSON_SPACE_INDENT ? add_line(c, 1, next, id) : QN_OK;
}

qn_status qn_schema_before_close(qn_schema_compiler *c, uint32_t next, uint32_t *id)
{
    *id = next;
    return c->options.style.space == QN_JSON_SPACE_INDENT ? add_line(c, 0, next, id) : QN_OK;
}

qn_status qn_schema_inner(qn_schema_compiler *c, uint32_t rule, uint32_t next, uint32_t *id)
{
    const uint8_t levels = c->options.style.space == QN_JSON_SPACE_INDENT;
    return qn_grammar_add_node(c->grammar, (qn_node){ .kind = QN_CALL, .lo = levels, .a = rule, .next = next }, id);
}

qn_status qn_schema_dfa(qn_schema_compiler *c, uint32_t expr, uint32_t *dfa)
{
    qn_dfa compiled;
    QN_TRY(qn_dfa_compile(&c->exprs, expr, false, qn_schema_path(c), &c->grammar->steps, &compiled));
    return qn_grammar_add_dfa(c->grammar, &compiled, dfa);
}

qn_status qn_schema_charge(qn_schema_compiler *c, uint64_t steps)
{
    c->grammar->steps += steps;
    return c->grammar->steps > QN_GRAMMAR_STEPS ? qn_fail(QN_ERR_UNSUPPORTED, "%s: too large", qn_schema_path(c))
                                                : QN_OK;
}

bool qn_schema_may_ignore(const qn_schema_compiler *c, qn_status status)
{
    return status == QN_ERR_UNSUPPORTED && !c->options.strict && c->grammar->steps <= QN_GRAMMAR_STEPS;
}

/* The first alternative needs no split. */
qn_status qn_schema_or(qn_schema_compiler *c, uint32_t node, uint32_t *entry)
{
    if (*entry == QN_NODE_NEVER) {
        *entry = node;
        return QN_OK;
    }
    return qn_schema_node(c, QN_SPLIT, *entry, node, entry);
}

/* Adds a call of a rule, and the end of this rule, as an alternative. */
static qn_status call_rule(qn_schema_compiler *c, uint32_t rule, uint32_t *entry)
{
    uint32_t node;
    QN_TRY(qn_schema_node(c, QN_CALL, rule, c->end, &node));
    return qn_schema_or(c, node, entry);
}

/* Returns the form of the rule being compiled, which its parts have, too. */
static qn_schema_form form_here(const qn_schema_compiler *c)
{
    return c->places[c->rule].form;
}

/* Adds a call of the rule of a schema, which stands under a key of a keyword, as an alternative. */
static qn_status call(qn_schema_compiler *c, json_t *schema, const char *keyword, const char *key, uint32_t *entry)
{
    uint32_t rule;
    QN_TRY(qn_schema_rule(c, schema, form_here(c), keyword, key, &rule));
    return call_rule(c, rule, entry);
}

/* ---- Keywords ---- */

/* Checks the keywords that have to be numbers, in every schema that is compiled, whatever its types. */
static qn_status check_numbers(const qn_schema_compiler *c, json_t *schema)
{
    static const char *const counts[] = { "minLength", "maxLength",     "minItems",
                                          "maxItems",  "minProperties", "maxProperties" },
                             *const bounds[] = { "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum" };
    uint32_t count;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        QN_TRY(qn_schema_count(c, schema, counts[i], 0, &count));
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        json_t *value = json_object_get(schema, bounds[i]);
        if (value && !json_is_number(value) && !(i >= 2 && json_is_boolean(value)))
            return qn_fail(QN_ERR_INVALID, "%s/%s: not a number", qn_schema_path(c), bounds[i]);
    }
    return QN_OK;
}

/* Whether a keyword that is not supported restricts nothing with this value. */
static bool is_without_effect(const char *key, json_t *value)
{
    const bool is_any = json_is_true(value) || (json_is_object(value) && !json_object_size(value));
    return (!strncmp(key, "unevaluated", 11) && is_any) || (!strcmp(key, "nullable") && !json_is_true(value));
}

qn_status qn_schema_check_keywords(const qn_schema_compiler *c, json_t *schema)
{
    const char *key;
    json_t *value;
    QN_TRY(check_numbers(c, schema));
    if (!c->options.strict)
        return QN_OK;
    json_object_foreach(schema, key, value)
    {
        const char *meant = qn_schema_meant_keyword(key);
        if (meant)
            return qn_fail(QN_ERR_UNSUPPORTED, "%s: keyword '%s' does not exist: is '%s' meant?", qn_schema_path(c),
                           key, meant);
        if (!qn_schema_is_unsupported(key) || is_without_effect(key, value) ||
            (!strcmp(key, "not") && qn_schema_excludes_strings(schema)))
            continue;
        if (!strcmp(key, "nullable"))
            return qn_fail(QN_ERR_UNSUPPORTED,
                           "%s: 'nullable' is not a keyword of JSON Schema: write \"null\" in a list of types",
                           qn_schema_path(c));
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: keyword '%s' is not supported%s", qn_schema_path(c), key,
                       strcmp(key, "not") ? "" : " with a schema that cannot be negated");
    }
    return QN_OK;
}

/* ---- Combinations ---- */

static bool has_constants(json_t *schema)
{
    return json_object_get(schema, "enum") || json_object_get(schema, "const");
}

/* Returns a copy of the schema without a keyword and without annotations (qn_schema_is_note), a new reference.
 * NULL without memory. *is_empty: nothing is left. */
static json_t *without(json_t *schema, const char *keyword, bool *is_empty)
{
    json_t *rest = json_object(), *value;
    const char *key;
    bool is_whole = true;
    json_object_foreach(schema, key, value) if (strcmp(key, keyword) != 0 && !qn_schema_is_note(key)) is_whole &=
        json_object_set_nocheck(rest, key, value) == 0;
    *is_empty = !json_object_size(rest);
    if (is_whole)
        return rest;
    json_decref(rest);
    return NULL;
}

qn_status qn_schema_at_place(const qn_schema_compiler *c, qn_status status)
{
    char text[QN_ERROR_TEXT_MAX];
    if (status == QN_OK)
        return status;
    snprintf(text, sizeof text, "%s", qn_error_text());
    return qn_fail(status, "%s: %s", qn_schema_path(c), text);
}

/* Joins `part`, an alternative of anyOf or oneOf or the target of $ref, with `rest`, the schema's other keywords. The
 * properties of `rest` come first if the schema has `properties` before `keyword`. *joined is owned by the compiler. */
static qn_status join(qn_schema_compiler *c, json_t *schema, const char *keyword, json_t *part, json_t *rest,
                      json_t **joined)
{
    const bool is_rest_first = qn_schema_is_properties_first(schema, keyword);
    QN_TRY(qn_schema_at_place(c, is_rest_first ? qn_schema_merge(c->root, rest, part, false, &c->merges, joined)
                                               : qn_schema_merge(c->root, part, rest, false, &c->merges, joined)));
    return qn_schema_own(c, *joined);
}

/* Makes the schema of what fits an alternative of oneOf and all of `others`, negations of other alternatives. *out is
 * owned by the compiler. */
static qn_status only(qn_schema_compiler *c, json_t *branch, json_t *others, json_t **out)
{
    json_t *parts = json_array();
    QN_TRY(qn_schema_own(c, parts));
    if (json_array_append(parts, branch) || json_array_extend(parts, others))
        return qn_schema_no_memory();
    QN_TRY(qn_schema_own(c, *out = json_pack("{s:O}", "allOf", parts)));
    return QN_OK;
}

/* Appends the negation of alternative `excluded` to `others`, the list of what else has to hold for alternative
 * `from`. */
static qn_status exclude_branch(qn_schema_compiler *c, json_t *branches, size_t excluded, json_t *whole, size_t from,
                                json_t *others)
{
    json_t *known = qn_schema_made(json_pack("[O]", json_array_get(whole, from)), &c->comparisons);
    bool is_whole;
    json_t *negation = qn_schema_negate(c->root, json_array_get(branches, excluded), known, &c->comparisons, &is_whole);
    json_decref(known);
    json_t *part = json_array_size(negation) ? json_pack("{s:O}", "anyOf", negation) : json_false();
    json_decref(negation);
    if (json_array_append_new(others, part))
        return qn_schema_no_memory();
    return is_whole ? QN_OK
                    : qn_fail(QN_ERR_UNSUPPORTED,
                              "%s/oneOf: it is not clear that alternatives %zu and %zu exclude each other",
                              qn_schema_path(c), from < excluded ? from : excluded, from < excluded ? excluded : from);
}

/* Gives *rest the types that each alternative of oneOf applies to, unless there are types already. A value of another
 * type than those to which the keywords of an alternative apply fits it, and so fits the whole only if it fits no
 * other; and no such value is written, since an alternative without types has those that its keywords imply. So only
 * values need be considered whose type each alternative applies to. *rest is owned by the compiler. */
static qn_status imply_types(qn_schema_compiler *c, json_t *branches, json_t **rest)
{
    static const char *const names[] = { "string", "number", "array", "object" };
    static const unsigned types[] = { QN_IS_STRING, QN_IS_NUMBER, QN_IS_ARRAY, QN_IS_OBJECT };
    json_t *branch, *merged, *list = json_array();
    unsigned common = QN_IS_ANY;
    size_t i;
    QN_TRY(qn_schema_own(c, list));
    if (json_object_get(*rest, "type") || has_constants(*rest))
        return QN_OK;
    json_array_foreach(branches, i, branch)
    {
        QN_TRY(qn_schema_at_place(c, qn_schema_merge(c->root, branch, *rest, true, &c->merges, &merged)));
        const unsigned implied = qn_schema_implied_types(merged);
        if (implied && !json_object_get(merged, "type") && !has_constants(merged))
            common &= implied;
        json_decref(merged);
    }
    if (common == QN_IS_ANY || !common)
        return QN_OK;
    for (i = 0; i < sizeof types / sizeof *types; i++)
        if (common & types[i] && json_array_append_new(list, json_string(names[i])))
            return qn_schema_no_memory();
    QN_TRY(qn_schema_own(c, *rest = qn_schema_copy(*rest)));
    return json_object_set(*rest, "type", list) ? qn_schema_no_memory() : QN_OK;
}

/* Makes oneOf, in strict mode, a union of alternatives that exclude each other: two that are not shown to do so, each
 * joined with the schema's other keywords, get the negation of each other. *branches: a new list, in the same order,
 * owned by the compiler. */
static qn_status exclude_each_other(qn_schema_compiler *c, json_t **branches, json_t *rest)
{
    json_t *whole, *others, *out, *branch, *merged;
    size_t i, n_overlaps = 0;
    QN_TRY(qn_schema_own(c, whole = json_array()));
    QN_TRY(qn_schema_own(c, others = json_array()));
    QN_TRY(qn_schema_own(c, out = json_array()));
    json_array_foreach(*branches, i, branch)
    {
        QN_TRY(qn_schema_at_place(c, qn_schema_merge(c->root, branch, rest, true, &c->merges, &merged)));
        if (json_array_append_new(whole, merged) || json_array_append_new(others, json_array()))
            return qn_schema_no_memory();
        for (size_t k = 0; k < i; k++) {
            if (qn_schema_is_disjoint(c->root, json_array_get(whole, k), merged, &c->comparisons))
                continue;
            if (++n_overlaps > MAX_OVERLAPS)
                return qn_fail(QN_ERR_UNSUPPORTED, "%s/oneOf: more than %d pairs of alternatives may overlap",
                               qn_schema_path(c), MAX_OVERLAPS);
            QN_TRY(exclude_branch(c, *branches, k, whole, i, json_array_get(others, i)));
            QN_TRY(exclude_branch(c, *branches, i, whole, k, json_array_get(others, k)));
        }
    }
    json_array_foreach(*branches, i, branch)
    {
        if (json_array_size(json_array_get(others, i)))
            QN_TRY(only(c, branch, json_array_get(others, i), &branch));
        if (json_array_append(out, branch))
            return qn_schema_no_memory();
    }
    *branches = out;
    return QN_OK;
}

/* Adds the alternatives of anyOf or oneOf, in their order. */
static qn_status compile_any_of(qn_schema_compiler *c, json_t *schema, const char *keyword, uint32_t *entry)
{
    json_t *branches = json_object_get(schema, keyword), *branch;
    size_t i;
    bool is_empty;
    if (!json_is_array(branches) || !json_array_size(branches))
        return qn_fail(QN_ERR_INVALID, "%s/%s: not a list of schemas", qn_schema_path(c), keyword);
    if (json_array_size(branches) > MAX_BRANCHES)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s/%s: %zu alternatives, at most %d are supported", qn_schema_path(c),
                       keyword, json_array_size(branches), MAX_BRANCHES);
    json_t *rest = without(schema, keyword, &is_empty);
    QN_TRY(qn_schema_own(c, rest));
    if (c->options.strict && !strcmp(keyword, "oneOf")) {
        QN_TRY(imply_types(c, branches, &rest));
        is_empty = !json_object_size(rest);
        QN_TRY(exclude_each_other(c, &branches, rest));
    }
    json_array_foreach(branches, i, branch)
    {
        char key[32];
        snprintf(key, sizeof key, "%zu", i);
        if (!is_empty)
            QN_TRY(join(c, schema, keyword, branch, rest, &branch));
        QN_TRY(call(c, branch, keyword, key, entry));
    }
    return QN_OK;
}

/* Adds the join of all parts of allOf, and of the schema's other keywords. */
static qn_status compile_all_of(qn_schema_compiler *c, json_t *schema, uint32_t *entry)
{
    json_t *parts = json_object_get(schema, "allOf"), *part;
    size_t i;
    bool is_empty;
    json_t *rest = without(schema, "allOf", &is_empty), *all, *merged = json_true();
    const bool is_rest_first = qn_schema_is_properties_first(schema, "allOf");
    QN_TRY(qn_schema_own(c, rest));
    QN_TRY(qn_schema_own(c, all = json_array()));
    if (!json_is_array(parts))
        return qn_fail(QN_ERR_INVALID, "%s/allOf: not a list of schemas", qn_schema_path(c));
    if (json_array_extend(all, parts) ||
        (!is_empty && json_array_insert(all, is_rest_first ? 0 : json_array_size(all), rest)))
        return qn_schema_no_memory();
    json_array_foreach(all, i, part)
    {
        json_t *next;
        QN_TRY(qn_schema_at_place(c, qn_schema_merge(c->root, merged, part, false, &c->merges, &next)));
        QN_TRY(qn_schema_own(c, next));
        merged = next;
    }
    return call(c, merged, "allOf", NULL, entry);
}

/* Adds the schema that $ref names, joined with the keywords next to it. A rule of the referenced schema alone is named
 * by the path of the reference. */
static qn_status compile_reference(qn_schema_compiler *c, json_t *schema, uint32_t *entry)
{
    json_t *target;
    bool is_empty;
    char path[256];
    uint32_t rule;
    const char *reference = json_string_value(json_object_get(schema, "$ref"));
    if (!reference)
        return qn_fail(QN_ERR_INVALID, "%s/$ref: not a string", qn_schema_path(c));
    json_t *rest = without(schema, "$ref", &is_empty);
    QN_TRY(qn_schema_own(c, rest));
    QN_TRY(qn_schema_at_place(c, qn_schema_resolve(c->root, reference, &c->merges, &target)));
    if (!is_empty) {
        QN_TRY(join(c, schema, "$ref", target, rest, &target));
        return call(c, target, NULL, NULL, entry);
    }
    snprintf(path, sizeof path, "%s: %.160s", c->what, reference);
    QN_TRY(add_rule(c, target, form_here(c), path, &rule));
    return call_rule(c, rule, entry);
}

/* ---- Types ---- */

static const char *const type_names[] = { "null", "boolean", "integer", "number", "string", "array", "object" };
enum { N_TYPES = sizeof type_names / sizeof *type_names };

/* Returns the JSON name of a type by its name in a programming language; NULL if it is none. */
static const char *meant_type(const char *name)
{
    static const char *const names[][2] = {
        { "str", "string" },   { "text", "string" },   { "char", "string" },    { "int", "integer" },
        { "long", "integer" }, { "uint", "integer" },  { "int32", "integer" },  { "int64", "integer" },
        { "float", "number" }, { "double", "number" }, { "decimal", "number" }, { "bool", "boolean" },
        { "list", "array" },   { "tuple", "array" },   { "set", "array" },      { "dict", "object" },
        { "map", "object" },   { "struct", "object" }, { "none", "null" },      { "nil", "null" },
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcasecmp(name, names[i][0]))
            return names[i][1];
    for (size_t i = 0; i < N_TYPES; i++)
        if (!strcasecmp(name, type_names[i]))
            return type_names[i];
    return NULL;
}

static qn_status add_type(const qn_schema_compiler *c, json_t *type, unsigned *types)
{
    const char *name = json_string_value(type);
    for (size_t i = 0; name && i < N_TYPES; i++)
        if (!strcmp(name, type_names[i])) {
            *types |= 1u << i;
            return QN_OK;
        }
    const char *meant = name ? meant_type(name) : NULL;
    return qn_fail(QN_ERR_INVALID, "%s/type: '%.40s' is not a type%s%s%s", qn_schema_path(c),
                   name ? name : "(no string)", meant ? ", expected \"" : "", meant ? meant : "", meant ? "\"" : "");
}

qn_status qn_schema_types(const qn_schema_compiler *c, json_t *schema, unsigned *types)
{
    json_t *type = json_object_get(schema, "type"), *each;
    size_t i;
    *types = 0;
    if (json_is_array(type)) {
        if (json_array_size(type) > N_TYPES)
            return qn_fail(QN_ERR_INVALID, "%s/type: %zu types, but only %d exist", qn_schema_path(c),
                           json_array_size(type), N_TYPES);
        json_array_foreach(type, i, each) QN_TRY(add_type(c, each, types));
    } else if (type) {
        QN_TRY(add_type(c, type, types));
    } else {
        const unsigned implied = has_constants(schema) ? 0 : qn_schema_implied_types(schema);
        *types = implied ? implied : QN_IS_ANY;
    }
    if (json_is_true(json_object_get(schema, "nullable")))
        *types |= QN_IS_NULL;
    if (*types & QN_IS_NUMBER && !has_constants(schema))
        *types &= ~(unsigned)QN_IS_INTEGER;
    return QN_OK;
}

/* Adds the values of each type of a schema without combinations, as alternatives. */
static qn_status compile_types(qn_schema_compiler *c, json_t *schema, uint32_t *entry)
{
    const qn_schema_form form = form_here(c);
    unsigned types;
    uint32_t node;
    QN_TRY(qn_schema_types(c, schema, &types));
    if (form == QN_FORM_PARAMETERS)
        return types & QN_IS_OBJECT ? qn_schema_parameters(c, schema, entry) : QN_OK;
    if (form & QN_FORM_VALUE)
        return qn_schema_value(c, schema, types, form, entry);
    if (has_constants(schema))
        return qn_schema_enum(c, schema, types, entry);
    if (types & QN_IS_STRING) {
        QN_TRY(qn_schema_string(c, schema, &node));
        QN_TRY(qn_schema_or(c, node, entry));
    }
    if (types & (QN_IS_NUMBER | QN_IS_INTEGER)) {
        QN_TRY(qn_schema_number(c, schema, !(types & QN_IS_NUMBER), &node));
        QN_TRY(qn_schema_or(c, node, entry));
    }
    if (types & QN_IS_ARRAY) {
        QN_TRY(qn_schema_array(c, schema, &node));
        QN_TRY(qn_schema_or(c, node, entry));
    }
    if (types & QN_IS_OBJECT) {
        QN_TRY(qn_schema_object(c, schema, &node));
        QN_TRY(qn_schema_or(c, node, entry));
    }
    static const char *const words[] = { "null", "true|false", "true|false|null" };
    const unsigned word = types & (QN_IS_NULL | QN_IS_BOOLEAN);
    if (word) {
        const int which = word == QN_IS_NULL ? 0 : word == QN_IS_BOOLEAN ? 1 : 2;
        uint32_t expr, dfa;
        if (!c->words[which]) {
            QN_TRY(qn_expr_regex(&c->exprs, words[which], strlen(words[which]), false, "word", &expr));
            QN_TRY(qn_schema_dfa(c, expr, &dfa));
            c->words[which] = dfa + 1;
        }
        dfa = c->words[which] - 1;
        QN_TRY(qn_schema_node(c, QN_DFA, dfa, c->end, &node));
        QN_TRY(qn_schema_or(c, node, entry));
    }
    return QN_OK;
}

/* Compiles a schema. *entry: the node at which its values begin. */
static qn_status compile_rule(qn_schema_compiler *c, json_t *schema, uint32_t *entry)
{
    *entry = QN_NODE_NEVER;
    if (json_is_false(schema))
        return QN_OK;
    if (json_is_true(schema))
        return compile_types(c, c->anything, entry);
    if (!json_is_object(schema))
        return qn_fail(QN_ERR_INVALID, "%s: neither an object nor a boolean", qn_schema_path(c));
    schema = qn_schema_expand(c->root, schema, NULL, false, &c->merges);
    QN_TRY(qn_schema_own(c, schema));
    QN_TRY(qn_schema_check_keywords(c, schema));
    if (json_object_get(schema, "$ref"))
        return compile_reference(c, schema, entry);
    if (json_object_get(schema, "allOf"))
        return compile_all_of(c, schema, entry);
    if (json_object_get(schema, "anyOf"))
        return compile_any_of(c, schema, "anyOf", entry);
    if (json_object_get(schema, "oneOf"))
        return compile_any_of(c, schema, "oneOf", entry);
    return compile_types(c, schema, entry);
}

qn_status qn_schema_compile(qn_schema_compiler *c, const char *what, json_t *root, json_t *part, qn_schema_form form,
                            uint32_t *rule)
{
    char path[256];
    qn_print(c->what, sizeof c->what, "%s", what);
    c->root = root;
    qn_print(path, sizeof path, "%s: #", c->what);
    QN_TRY(add_rule(c, part, form, path, rule));
    for (; c->rule < c->grammar->n_rules; c->rule++) {
        uint32_t entry;
        const qn_status status = compile_rule(c, c->places[c->rule].schema, &entry);
        if (c->merges >= QN_SCHEMA_NO_MEMORY || c->comparisons >= QN_SCHEMA_NO_MEMORY)
            return qn_schema_no_memory();
        QN_TRY(status);
        c->grammar->rules[c->rule].entry = entry;
        c->exprs.n = c->exprs.n_ranges = 0;
    }
    return QN_OK;
}

qn_status qn_schema_begin(qn_schema_compiler *c, const qn_grammar_options *options)
{
    static const char space[] = "( |\\r?\\n[ \\t]{0,20})?";
    uint32_t expr;
    *c = (qn_schema_compiler){ .options = options ? *options : (qn_grammar_options){ 0 } };
    c->owned = json_array();
    c->anything = json_object();
    c->slots = calloc(QN_SCHEMA_SLOTS, sizeof *c->slots);
    if (!c->owned || !c->anything || !c->slots)
        return qn_schema_no_memory();
    QN_TRY(qn_grammar_begin(&c->grammar));
    QN_TRY(qn_expr_regex(&c->exprs, space, strlen(space), false, "white space", &expr));
    QN_TRY(qn_schema_dfa(c, expr, &c->space));
    return qn_schema_node(c, QN_RETURN, 0, 0, &c->end);
}

qn_status qn_schema_end(qn_schema_compiler *c, qn_status status, qn_grammar **out)
{
    if (status == QN_OK)
        *out = c->grammar;
    else
        qn_grammar_free(c->grammar);
    qn_exprs_free(&c->exprs);
    json_decref(c->owned);
    json_decref(c->anything);
    free(c->places);
    free(c->slots);
    return status;
}

qn_status qn_grammar_from_schema(const json_t *schema, const qn_grammar_options *options, qn_grammar **out)
{
    qn_schema_compiler c;
    uint32_t rule;
    json_t *root = json_incref((json_t *)schema);
    *out = NULL;
    qn_status status = qn_schema_begin(&c, options);
    if (status == QN_OK)
        status = qn_schema_compile(&c, "schema", root, root, QN_FORM_JSON, &rule);
    if (status == QN_OK)
        status = qn_grammar_finish(c.grammar, rule);
    status = qn_schema_end(&c, status, out);
    json_decref(root);
    return status;
}

qn_status qn_grammar_from_json(bool object, qn_json_style style, qn_grammar **out)
{
    json_t *schema = object ? json_pack("{s:s}", "type", "object") : json_true();
    if (!schema)
        return qn_schema_no_memory();
    const qn_status status = qn_grammar_from_schema(schema, &(qn_grammar_options){ .style = style }, out);
    json_decref(schema);
    return status;
}
