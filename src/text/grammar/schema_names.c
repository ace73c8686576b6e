/* Names of members by patternProperties: which schemas a name that matches has, be it one of the properties or not. */
#include "text/grammar/schema.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_PATTERNS = 16 };

static qn_status no_memory(void)
{
    return qn_fail(QN_ERR_MEMORY, "schema: no memory");
}

static qn_status compile(qn_schema_compiler *c, const char *pattern, bool in_string, qn_dfa *dfa)
{
    uint32_t expr;
    QN_TRY(qn_expr_regex(&c->exprs, pattern, strlen(pattern), true, qn_schema_path(c), &expr));
    return qn_dfa_compile(&c->exprs, expr, in_string, qn_schema_path(c), &c->grammar->steps, dfa);
}

/* The schema of a value that fits both; NULL: it has none yet. Owned by the compiler. */
static qn_status join(qn_schema_compiler *c, json_t **schema, json_t *other)
{
    json_t *both = *schema ? json_pack("{s:[O,O]}", "allOf", *schema, other) : json_incref(other);
    QN_TRY(qn_schema_own(c, both));
    *schema = both;
    return QN_OK;
}

qn_status qn_schema_match_properties(qn_schema_compiler *c, json_t *patterns, json_t **properties)
{
    json_t *out = json_object(), *property, *schema;
    const char *pattern, *key;
    if (!json_is_object(patterns) || json_object_size(patterns) > MAX_PATTERNS) {
        json_decref(out);
        return qn_fail(QN_ERR_UNSUPPORTED, "%s/patternProperties: not an object of at most %d patterns", qn_schema_path(c),
                       MAX_PATTERNS);
    }
    QN_TRY(qn_schema_own(c, out));
    if (!*properties)
        return QN_OK;
    if (json_object_update(out, *properties))
        return no_memory();
    json_object_foreach(patterns, pattern, schema)
    {
        qn_dfa dfa;
        qn_status status = compile(c, pattern, false, &dfa);
        if (qn_schema_may_ignore(c, status))
            continue;
        QN_TRY(status);
        json_object_foreach(*properties, key, property)
        {
            property = json_object_get(out, key);
            if (status != QN_OK || !qn_dfa_takes(&dfa, key, strlen(key)))
                continue;
            status = join(c, &property, schema);
            if (status == QN_OK && json_object_set(out, key, property))
                status = no_memory();
        }
        qn_dfa_free(&dfa);
        QN_TRY(status);
    }
    *properties = out;
    return QN_OK;
}

/* Names of a set, which match the patterns of its schema. */
typedef struct name_set {
    qn_dfa names;
    json_t *schema; /* NULL: they match none */
} name_set;

/* Splits a set by a pattern: `set` keeps the names that do not match, `matching` gets those that do. Either may have none. */
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

static qn_status split_all(qn_schema_compiler *c, json_t *patterns, bool in_string, name_set *sets, size_t *n)
{
    const char *pattern;
    json_t *schema;
    json_object_foreach(patterns, pattern, schema)
    {
        qn_dfa dfa;
        qn_status status = compile(c, pattern, in_string, &dfa);
        QN_TRY(status);
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
    if (qn_schema_may_ignore(c, status)) { /* the object has no other names then */
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
        return no_memory();
    for (; o->n_other_rules < n; o->n_other_rules++)
        QN_TRY(qn_schema_rule(c, names[o->n_other_rules].schema, form, keyword, NULL, &o->other_rules[o->n_other_rules]));
    return QN_OK;
}
