/* Names of members and patternProperties: the schemas of a name by the patterns that it matches, whether it is
 * declared or not. */
#include "grammar/schema.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_PATTERNS = 16 };

/* Makes the DFA of names that match a pattern, which the caller frees. *is_none: there are none, and no DFA. */
static qn_status compile(qn_schema_compiler *c, const char *pattern, bool in_string, qn_dfa *dfa, bool *is_none)
{
    return qn_schema_compile_pattern(c, pattern, strlen(pattern), in_string, dfa, is_none);
}

/* Joins *schema, NULL at first, with another schema of the same value. Owned by the compiler. */
static qn_status join(qn_schema_compiler *c, json_t **schema, json_t *other)
{
    json_t *both = *schema ? json_pack("{s:[O,O]}", "allOf", *schema, other) : json_incref(other);
    QN_TRY(qn_schema_own(c, both));
    *schema = both;
    return QN_OK;
}

/* Lists the declared properties, and null for each required name that is not among them: an object, in this order,
 * owned by the compiler. */
static qn_status list_properties(qn_schema_compiler *c, json_t *required, json_t *properties, json_t **out)
{
    json_t *name;
    size_t i;
    *out = json_object();
    QN_TRY(qn_schema_own(c, *out));
    if (properties && json_object_update(*out, properties))
        return qn_schema_no_memory();
    if (json_array_size(required) > 2 * QN_GRAMMAR_PROPERTIES)
        return QN_OK;
    json_array_foreach(required, i, name) if (json_is_string(name) && !json_object_get(*out, json_string_value(name)) &&
                                              json_object_set_new(*out, json_string_value(name),
                                                                  json_null())) return qn_schema_no_memory();
    return QN_OK;
}

qn_status qn_schema_match_properties(qn_schema_compiler *c, json_t *schema, json_t *required, json_t *rest,
                                     json_t **properties)
{
    json_t *patterns = json_object_get(schema, "patternProperties"), *declared = *properties, *out, *property,
           *matching;
    const char *pattern, *key;
    if (!json_is_object(patterns) || json_object_size(patterns) > MAX_PATTERNS)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s/patternProperties: not an object of at most %d patterns",
                       qn_schema_path(c), MAX_PATTERNS);
    QN_TRY(list_properties(c, required, declared, &out));
    json_object_foreach(patterns, pattern, matching)
    {
        qn_dfa dfa;
        void *next;
        bool is_none;
        qn_status status = compile(c, pattern, false, &dfa, &is_none);
        if (qn_schema_may_ignore(c, status))
            continue;
        QN_TRY(status);
        if (is_none)
            continue;
        json_object_foreach_safe(out, next, key, property)
        {
            if (status != QN_OK || !qn_dfa_takes(&dfa, key, strlen(key)))
                continue;
            property = json_is_null(property) ? NULL : property;
            status = join(c, &property, matching);
            if (status == QN_OK && json_object_set(out, key, property))
                status = qn_schema_no_memory();
        }
        qn_dfa_free(&dfa);
        QN_TRY(status);
    }
    json_object_foreach(out, key, property) if (json_is_null(property) &&
                                                json_object_set(out, key, rest)) return qn_schema_no_memory();
    *properties = json_object_size(out) ? out : declared;
    return QN_OK;
}

/* ---- propertyNames ---- */

enum { MAX_REFERENCES = 32 };

/* Finds the constants of a schema of names. *list: owned by the compiler; NULL if it is another schema. *is_any: any
 * name fits. */
static qn_status find_listed(qn_schema_compiler *c, json_t *names, json_t **list, bool *is_any)
{
    const char *key, *reference;
    json_t *value;
    bool is_known = true;
    for (int i = 0; i < MAX_REFERENCES && (reference = json_string_value(json_object_get(names, "$ref"))); i++)
        QN_TRY(qn_schema_at_place(c, qn_schema_resolve(c->root, reference, &c->merges, &names)));
    json_object_foreach(names, key, value)
    {
        const bool is_string =
            !strcmp(key, "type") && json_is_string(value) && !strcmp(json_string_value(value), "string");
        is_known &= is_string || !strcmp(key, "enum") || !strcmp(key, "const") || qn_schema_is_note(key);
    }
    json_t *all = json_object_get(names, "enum"), *one = json_object_get(names, "const");
    is_known &= !(all && one) && (json_is_object(names) || json_is_boolean(names));
    *is_any = is_known && !all && !one && !json_is_false(names);
    *list = NULL;
    if (!is_known || *is_any)
        return QN_OK;
    *list = one ? json_pack("[O]", one) : all ? json_incref(all) : json_array();
    return qn_schema_own(c, *list);
}

/* Gives names of `list` without a schema the schema `rest`, and those that are not listed the schema false. Changes
 * `properties`. */
static qn_status keep_listed(qn_schema_compiler *c, json_t *list, json_t *rest, json_t *properties)
{
    json_t *listed = json_object(), *name, *value;
    const char *key;
    size_t i;
    void *next;
    QN_TRY(qn_schema_own(c, listed));
    json_array_foreach(list, i,
                       name) if (json_is_string(name) && json_object_set_new(listed, json_string_value(name),
                                                                             json_null())) return qn_schema_no_memory();
    json_object_foreach_safe(
        properties, next, key,
        value) if (!json_object_get(listed, key) &&
                   json_object_set_new(properties, key, json_false())) return qn_schema_no_memory();
    json_object_foreach(listed, key, value) if (!json_object_get(properties, key) &&
                                                json_object_set(properties, key, rest)) return qn_schema_no_memory();
    return QN_OK;
}

qn_status qn_schema_list_names(qn_schema_compiler *c, json_t **schema)
{
    json_t *names = json_object_get(*schema, "propertyNames"), *properties, *required, *rest, *list;
    bool is_any;
    if (!names)
        return QN_OK;
    QN_TRY(find_listed(c, names, &list, &is_any));
    if (is_any)
        return QN_OK;
    if (!json_is_array(list) || json_array_size(list) > QN_GRAMMAR_PROPERTIES ||
        json_object_get(*schema, "patternProperties"))
        return QN_OK;
    QN_TRY(qn_schema_members(c, *schema, &properties, &required, &rest));
    json_t *copy = qn_schema_copy(*schema);
    QN_TRY(qn_schema_own(c, copy));
    json_t *all = properties ? qn_schema_copy(properties) : json_object();
    QN_TRY(qn_schema_own(c, all));
    QN_TRY(keep_listed(c, list, rest, all));
    *schema = copy;
    return json_object_set(copy, "properties", all) ||
                   json_object_set_new(copy, "additionalProperties", json_false()) ||
                   json_object_del(copy, "propertyNames")
               ? qn_schema_no_memory()
               : QN_OK;
}

/* Finds the schema of names with all references and parts joined. *plain: owned by the compiler; NULL if it has other
 * keywords than those of strings and may be ignored. */
static qn_status find_plain(qn_schema_compiler *c, json_t *names, json_t **plain)
{
    static const char *const of_strings[] = { "type",    "enum", "const",  "minLength",    "maxLength",
                                              "pattern", "not",  "format", QN_SCHEMA_LIKE, QN_SCHEMA_UNLIKE };
    const char *key;
    json_t *value, *merged, *parts;
    size_t i;
    bool is_plain = true;
    *plain = json_pack("{s:s}", "type", "string");
    QN_TRY(qn_schema_own(c, *plain));
    for (int round = 0; round < MAX_REFERENCES && names; round++) {
        QN_TRY(qn_schema_at_place(c, qn_schema_merge(c->root, *plain, names, false, &c->merges, &merged)));
        QN_TRY(qn_schema_own(c, merged));
        parts = json_object_get(merged, "allOf");
        names = NULL;
        if (!parts) {
            *plain = merged;
            break;
        }
        names = qn_schema_copy(merged);
        QN_TRY(qn_schema_own(c, names));
        json_object_del(names, "allOf");
        json_array_foreach(parts, i, value)
        {
            QN_TRY(qn_schema_at_place(c, qn_schema_merge(c->root, names, value, false, &c->merges, &merged)));
            QN_TRY(qn_schema_own(c, merged));
            names = merged;
        }
    }
    is_plain = !names && json_is_object(*plain);
    json_object_foreach(*plain, key, value)
    {
        bool is_known = qn_schema_is_note(key);
        for (i = 0; i < sizeof of_strings / sizeof *of_strings; i++)
            is_known |= !strcmp(key, of_strings[i]);
        is_plain &= is_known;
    }
    is_plain &= qn_schema_excludes_strings(*plain) || !json_object_get(*plain, "not");
    if (json_is_false(*plain) || is_plain)
        return QN_OK;
    *plain = NULL;
    return c->options.strict ? qn_fail(QN_ERR_UNSUPPORTED, "%s/propertyNames: only keywords of strings are supported",
                                       qn_schema_path(c))
                             : QN_OK;
}

/* Keeps of a DFA of names those that fit. *is_none: none does, and the DFA is freed. */
static qn_status keep_fitting(qn_schema_compiler *c, json_t *schema, bool in_string, qn_dfa *names, bool *is_none)
{
    json_t *plain, *of_names = json_object_get(schema, "propertyNames");
    *is_none = false;
    qn_status status = of_names && !json_is_true(of_names) ? find_plain(c, of_names, &plain) : QN_OK;
    if (status != QN_OK)
        qn_dfa_free(names);
    if (status != QN_OK || !of_names || json_is_true(of_names) || !plain)
        return status;
    json_t *type = json_object_get(plain, "type");
    *is_none = json_is_false(plain) || (json_is_array(type) && !json_array_size(type));
    if (*is_none)
        qn_dfa_free(names);
    else
        status = qn_schema_keep_strings(c, plain, in_string, names, is_none);
    return status;
}

qn_status qn_schema_restrict_names(qn_schema_compiler *c, json_t *schema, bool in_string, qn_dfa *names)
{
    bool is_none;
    QN_TRY(keep_fitting(c, schema, in_string, names, &is_none));
    return is_none ? qn_fail(QN_ERR_INVALID, "%s/propertyNames: no name fits", qn_schema_path(c)) : QN_OK;
}

qn_status qn_schema_restrict_properties(qn_schema_compiler *c, json_t *schema, json_t *required, json_t *rest,
                                        json_t **properties)
{
    json_t *out, *property;
    const char *key;
    void *next;
    uint32_t any;
    bool is_none;
    qn_dfa names;
    QN_TRY(list_properties(c, required, *properties, &out));
    QN_TRY(qn_expr_any(&c->exprs, 0, QN_UNLIMITED, &any));
    QN_TRY(qn_dfa_compile(&c->exprs, any, false, qn_schema_path(c), &c->grammar->steps, &names));
    QN_TRY(keep_fitting(c, schema, false, &names, &is_none));
    qn_status status = QN_OK;
    json_object_foreach_safe(out, next, key, property)
    {
        json_t *fitting = is_none || !qn_dfa_takes(&names, key, strlen(key)) ? json_false()
                          : json_is_null(property)                           ? rest
                                                                             : property;
        if (status == QN_OK && json_object_set(out, key, fitting))
            status = qn_schema_no_memory();
    }
    if (!is_none)
        qn_dfa_free(&names);
    *properties = json_object_size(out) ? out : *properties;
    return status;
}

/* ---- Sets of names ---- */

/* A set of names that match the same patterns. */
typedef struct name_set {
    qn_dfa names;
    json_t *schema; /* joined schema of the patterns; NULL: they match none */
} name_set;

/* Splits a set by a pattern: `set` keeps the names that do not match, `matching` gets those that do. Either may
 * become empty. */
static qn_status split(qn_schema_compiler *c, const qn_dfa *pattern, json_t *schema, name_set *set, name_set *matching)
{
    qn_dfa others = { 0 };
    uint64_t *steps = &c->grammar->steps;
    *matching = (name_set){ .schema = set->schema };
    qn_status status = qn_dfa_meet(&set->names, pattern, false, qn_schema_path(c), steps, &matching->names);
    if (status == QN_OK)
        status = join(c, &matching->schema, schema);
    if (status == QN_OK || status == QN_ERR_INVALID)
        status = qn_dfa_meet(&set->names, pattern, true, qn_schema_path(c), steps, &others);
    qn_dfa_free(&set->names);
    set->names = others;
    return status == QN_ERR_INVALID ? QN_OK : status;
}

/* Splits the sets by all patterns: sets [QN_SCHEMA_NAMES], of which *n are used, one at first. Some may become
 * empty. */
static qn_status split_all(qn_schema_compiler *c, json_t *patterns, bool in_string, name_set *sets, size_t *n)
{
    const char *pattern;
    json_t *schema;
    json_object_foreach(patterns, pattern, schema)
    {
        qn_dfa dfa;
        bool is_none;
        qn_status status = compile(c, pattern, in_string, &dfa, &is_none);
        QN_TRY(status);
        if (is_none)
            continue;
        for (size_t i = 0, before = *n; i < before && status == QN_OK; i++) {
            if (!sets[i].names.n_states)
                continue;
            if (*n == QN_SCHEMA_NAMES)
                status = qn_fail(QN_ERR_UNSUPPORTED, "%s/patternProperties: too many", qn_schema_path(c));
            else
                status = split(c, &dfa, schema, &sets[i], &sets[(*n)++]);
        }
        qn_dfa_free(&dfa);
        QN_TRY(status);
    }
    return QN_OK;
}

qn_status qn_schema_find_names(qn_schema_compiler *c, json_t *patterns, json_t *rest, bool in_string, qn_dfa *all,
                               qn_schema_names *names, size_t *n_names)
{
    name_set sets[QN_SCHEMA_NAMES] = { { .names = *all } };
    size_t n = 1;
    *n_names = 0;
    qn_status status = split_all(c, patterns, in_string, sets, &n);
    if (qn_schema_may_ignore(c, status)) { /* the object then has no undeclared names */
        rest = json_false();
        for (size_t i = 0; i < n; i++)
            sets[i].schema = NULL;
        status = QN_OK;
    }
    for (size_t i = 0; i < n; i++) {
        json_t *schema = sets[i].schema ? sets[i].schema : rest;
        if (status == QN_OK && sets[i].names.n_states && !json_is_false(schema)) {
            names[*n_names].schema = schema;
            status = qn_grammar_add_dfa(c->grammar, &sets[i].names, &names[(*n_names)++].dfa);
        } else {
            qn_dfa_free(&sets[i].names);
        }
    }
    return status;
}

qn_status qn_schema_other_rules(qn_schema_compiler *c, uint32_t object, const qn_schema_names *names, size_t n,
                                qn_schema_form form, const char *keyword)
{
    qn_object_rule *o = &c->grammar->objects[object];
    if (!(o->other_rules = calloc(n + 1, sizeof *o->other_rules)))
        return qn_schema_no_memory();
    for (; o->n_other_rules < n; o->n_other_rules++)
        QN_TRY(
            qn_schema_rule(c, names[o->n_other_rules].schema, form, keyword, NULL, &o->other_rules[o->n_other_rules]));
    return QN_OK;
}
