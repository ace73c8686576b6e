/* Joins JSON schemas: allOf, references with siblings, and the keywords next to anyOf. Only the top level is joined;
 * the schemas of properties and items become an allOf, which is joined when it is compiled. */
#include "grammar/schema_merge.h"
#include "base/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A step is a value that is visited, or an item of a list that is copied. */
enum { PER_KEY = 32, PER_MERGE = 8 * PER_KEY, MAX_BRANCHES = 256, MAX_PAIRS = 4 * MAX_BRANCHES, MAX_REFERENCES = 32 };

/* Static functions that join values borrow `a` and `b`, and return a new reference; NULL: they cannot be joined, or
 * there is no memory, and *steps is QN_SCHEMA_NO_MEMORY. *steps is increased; above QN_SCHEMA_STEPS the result may be
 * incomplete: the merge refuses it in the end. */

/* Joins two schemas by an allOf, or by one of them where the other says nothing more. */
static json_t *all_of(json_t *a, json_t *b, uint64_t *steps)
{
    if (json_is_true(a) || qn_schema_is_equal(a, b, steps))
        return json_incref(b);
    if (json_is_true(b))
        return json_incref(a);
    json_t *of[] = { a, b }, *all = json_array();
    for (int i = 0; i < 2; i++) { /* avoids needless nesting */
        json_t *parts = json_object_size(of[i]) == 1 ? json_object_get(of[i], "allOf") : NULL;
        *steps += json_array_size(parts);
        if (json_is_array(parts) && *steps <= QN_SCHEMA_STEPS)
            qn_schema_add_all(all, parts, steps);
        else
            qn_schema_add(all, json_incref(of[i]), steps);
    }
    return qn_schema_made(json_pack("{s:o}", "allOf", all), steps);
}

static bool has_type(json_t *types, const char *name)
{
    size_t i;
    json_t *t;
    if (json_is_string(types))
        return !strcmp(json_string_value(types), name);
    json_array_foreach(types, i, t) if (json_is_string(t) && !strcmp(json_string_value(t), name)) return true;
    return false;
}

/* Joins two `type`: the types of both lists. An integer is a number, too. */
static json_t *merge_types(json_t *a, json_t *b, uint64_t *steps)
{
    static const char *const names[] = { "null", "boolean", "object", "array", "string", "number", "integer" };
    json_t *both = qn_schema_made(json_array(), steps);
    *steps += 2 * (json_array_size(a) + json_array_size(b)) * sizeof names / sizeof *names;
    if (*steps > QN_SCHEMA_STEPS)
        return both;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const bool integer = !strcmp(names[i], "integer");
        const bool in_a = has_type(a, names[i]) || (integer && has_type(a, "number"));
        const bool in_b = has_type(b, names[i]) || (integer && has_type(b, "number"));
        if (in_a && in_b && !(integer && has_type(both, "number")))
            qn_schema_add(both, json_string(names[i]), steps);
    }
    return both;
}

/* Joins two `enum`: the values of `a` that `b` has, in the order of `a`. */
static json_t *intersect(json_t *a, json_t *b, uint64_t *steps)
{
    json_t *both = qn_schema_made(json_array(), steps);
    for (size_t i = 0; i < json_array_size(a) && *steps <= QN_SCHEMA_STEPS; i++)
        for (size_t k = 0; k < json_array_size(b) && *steps <= QN_SCHEMA_STEPS; k++)
            if (qn_schema_is_equal(json_array_get(a, i), json_array_get(b, k), steps)) {
                qn_schema_add(both, json_incref(json_array_get(a, i)), steps);
                break;
            }
    return both;
}

/* Joins two lists of which all parts have to hold: those of `a`, then those of `b`. */
static json_t *unite(json_t *a, json_t *b, uint64_t *steps)
{
    *steps += json_array_size(a) + json_array_size(b);
    if (*steps > QN_SCHEMA_STEPS)
        return NULL;
    json_t *both = qn_schema_made(qn_schema_copy(a), steps);
    if (json_is_array(both) && json_is_array(b))
        qn_schema_add_all(both, b, steps);
    return both;
}

/* Joins two anyOf or oneOf by the branches of a product: an allOf of each pair that may have a value in common, for the
 * first branch of `a` all of `b`, and so on; false if there is none. NULL: too many. */
static json_t *cross(json_t *root, json_t *a, json_t *b, uint64_t *steps)
{
    size_t i, k;
    json_t *x, *y;
    if (json_array_size(a) * json_array_size(b) > MAX_PAIRS)
        return NULL;
    json_t *both = qn_schema_made(json_array(), steps);
    json_array_foreach(a, i, x) json_array_foreach(b, k, y) if (!qn_schema_is_disjoint(root, x, y, steps))
        qn_schema_add(both, all_of(x, y, steps), steps);
    *steps += PER_KEY * json_array_size(both);
    if (!json_array_size(both))
        qn_schema_add(both, json_false(), steps);
    if (json_array_size(both) <= MAX_BRANCHES)
        return both;
    json_decref(both);
    return NULL;
}

/* Joins properties, or patterns of them: those of `a` first, then those that only `b` names. A property that only one
 * schema names is joined with the other's schema of additional properties. If one of the other's patterns would apply
 * instead, the result is stricter, never looser. */
static json_t *merge_members(json_t *a, json_t *b, const char *keyword, uint64_t *steps)
{
    json_t *in_a = json_object_get(a, keyword), *in_b = json_object_get(b, keyword);
    json_t *rest_a = json_object_get(a, "additionalProperties"), *rest_b = json_object_get(b, "additionalProperties");
    json_t *out = qn_schema_made(json_object(), steps), *value;
    const char *key;
    *steps += PER_KEY * (json_object_size(in_a) + json_object_size(in_b));
    if (*steps > QN_SCHEMA_STEPS)
        return out;
    json_object_foreach(in_a, key, value)
    {
        json_t *other = json_object_get(in_b, key);
        other = other ? other : rest_b;
        qn_schema_put(out, key, other ? all_of(value, other, steps) : json_incref(value), steps);
    }
    json_object_foreach(in_b, key, value) if (!json_object_get(in_a, key))
        qn_schema_put(out, key, rest_a ? all_of(rest_a, value, steps) : json_incref(value), steps);
    return out;
}

/* Joins two `not`: a schema of what either excludes. If each is only constants, one list of them, those of `a` first;
 * else an anyOf of the two. */
static json_t *exclude_both(json_t *a, json_t *b, uint64_t *steps)
{
    json_t *of[] = { a, b }, *all = json_array();
    for (int i = 0; i < 2; i++) {
        json_t *constant = json_object_get(of[i], "const"), *values = json_object_get(of[i], "enum");
        *steps += json_array_size(values);
        if (json_object_size(of[i]) != 1 || (!constant && !json_is_array(values)) || *steps > QN_SCHEMA_STEPS) {
            json_decref(all);
            return qn_schema_made(json_pack("{s:[O,O]}", "anyOf", a, b), steps);
        }
        if (constant)
            qn_schema_add(all, json_incref(constant), steps);
        else
            qn_schema_add_all(all, values, steps);
    }
    return qn_schema_made(json_pack("{s:o}", "enum", all), steps);
}

/* Joins two multipleOf: their least common multiple. NULL if one is no integer, or it is too large. */
static json_t *common_multiple(json_t *a, json_t *b, uint64_t *steps)
{
    const double x = json_number_value(a), y = json_number_value(b);
    if (!(x >= 1) || !(y >= 1) || x > INT32_MAX || y > INT32_MAX || x != floor(x) || y != floor(y))
        return NULL;
    int64_t m = (int64_t)x, n = (int64_t)y;
    while (n) {
        const int64_t rest = m % n;
        m = n;
        n = rest;
    }
    return qn_schema_made(json_integer((int64_t)x / m * (int64_t)y), steps);
}

/* Joins two different formats. Formats that JSON Schema does not define restrict nothing; NULL if both do. */
static json_t *merge_formats(json_t *a, json_t *b)
{
    if (!json_is_string(a) || !json_is_string(b))
        return NULL;
    if (!qn_schema_is_standard_format(json_string_value(a)))
        return json_incref(b);
    return qn_schema_is_standard_format(json_string_value(b)) ? NULL : json_incref(a);
}

static const char *const member_keywords[] = { "properties", "patternProperties", NULL };

static bool is_one_of(const char *key, const char *const *keys)
{
    for (; *keys; keys++)
        if (!strcmp(key, *keys))
            return true;
    return false;
}

/* Returns the value of a keyword that both schemas have, x in `a` and y in `b`; NULL if the two cannot be joined. */
static json_t *merge_keyword(json_t *root, const char *key, json_t *x, json_t *y, uint64_t *steps)
{
    static const char
        *const lower[] = { "minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", NULL },
               *const upper[] = { "maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", NULL },
               *const schemas[] = { "items", "additionalProperties", "propertyNames", NULL };
    if (!strcmp(key, "nullable") || qn_schema_is_equal(x, y, steps))
        return json_incref(x);
    if (json_is_number(x) && json_is_number(y) && (is_one_of(key, lower) || is_one_of(key, upper)))
        return json_incref((json_number_value(x) < json_number_value(y)) == is_one_of(key, upper) ? x : y);
    if (is_one_of(key, schemas))
        return all_of(x, y, steps);
    if (!strcmp(key, "type"))
        return merge_types(x, y, steps);
    if (!strcmp(key, "enum"))
        return intersect(x, y, steps);
    if (!strcmp(key, "required") || !strcmp(key, "allOf") || !strcmp(key, QN_SCHEMA_LIKE) ||
        !strcmp(key, QN_SCHEMA_UNLIKE))
        return unite(x, y, steps);
    if (!strcmp(key, "uniqueItems"))
        return json_incref(json_is_true(x) ? x : y);
    if (!strcmp(key, "multipleOf"))
        return common_multiple(x, y, steps);
    if (!strcmp(key, "format"))
        return merge_formats(x, y);
    if (qn_schema_is_note(key))
        return json_incref(x);
    if (!strcmp(key, "not"))
        return exclude_both(x, y, steps);
    if (!strcmp(key, "anyOf") || !strcmp(key, "oneOf"))
        return cross(root, x, y, steps);
    return NULL;
}

bool qn_schema_is_properties_first(json_t *schema, const char *keyword)
{
    const char *key;
    json_t *value;
    json_object_foreach(schema, key, value)
    {
        if (!strcmp(key, "properties"))
            return true;
        if (!strcmp(key, keyword))
            return false;
    }
    return false;
}

/* Returns the error of a step counter above QN_SCHEMA_STEPS. */
static qn_status too_many(uint64_t steps)
{
    return steps >= QN_SCHEMA_NO_MEMORY ? qn_schema_no_memory()
                                        : qn_fail(QN_ERR_UNSUPPORTED, "too many schemas for one value");
}

static qn_status merge(json_t *root, json_t *a, json_t *b, bool is_loose, int depth, uint64_t *steps, json_t **out);

/* *out: a new reference to the schema with its reference resolved. */
static qn_status flatten(json_t *root, json_t *schema, bool is_loose, int depth, uint64_t *steps, json_t **out)
{
    *out = json_incref(schema);
    for (int i = depth; i < MAX_REFERENCES; i++) {
        const char *reference = json_string_value(json_object_get(*out, "$ref"));
        if (!reference)
            return QN_OK;
        *steps += PER_KEY * json_object_size(*out);
        json_t *target, *rest = *steps <= QN_SCHEMA_STEPS ? qn_schema_copy(*out) : NULL, *merged = NULL;
        qn_status status = *steps > QN_SCHEMA_STEPS ? too_many(*steps)
                           : rest                   ? qn_schema_resolve(root, reference, steps, &target)
                                                    : qn_schema_no_memory();
        if (status == QN_OK) {
            json_object_del(rest, "$ref");
            if (json_object_size(rest))
                status = qn_schema_is_properties_first(*out, "$ref")
                             ? merge(root, rest, target, is_loose, i + 1, steps, &merged)
                             : merge(root, target, rest, is_loose, i + 1, steps, &merged);
            else
                merged = json_incref(target);
        }
        json_decref(rest);
        json_decref(*out);
        *out = merged;
        QN_TRY(status);
    }
    json_decref(*out);
    *out = NULL;
    return qn_fail(QN_ERR_UNSUPPORTED, "a chain of more than %d references for one value", MAX_REFERENCES);
}

/* Returns a copy of the schema without conditions and draft 4's bounds, and with a constant as a list if the other
 * schema has a constant, too. A new reference; NULL without memory. */
static json_t *modernise(json_t *root, json_t *schema, json_t *other, bool is_loose, uint64_t *steps)
{
    json_t *plain = qn_schema_with_exclusive_bounds(schema), *constant;
    json_t *out = plain ? qn_schema_expand(root, plain, other, is_loose, steps) : NULL;
    json_decref(plain);
    constant = json_object_get(out, "const");
    if (constant && json_object_get(other, "const") && !json_object_get(schema, "enum")) {
        qn_schema_put(out, "enum", json_pack("[O]", constant), steps);
        json_object_del(out, "const");
    }
    return out;
}

/* If both have a pattern, moves that of `b` to its list of further patterns, which can be joined. Changes `b`. */
static void move_pattern(json_t *a, json_t *b, uint64_t *steps)
{
    json_t *pattern = json_object_get(b, "pattern");
    if (!json_is_string(pattern) || !json_is_string(json_object_get(a, "pattern")) ||
        qn_schema_is_equal(pattern, json_object_get(a, "pattern"), steps))
        return;
    json_t *more =
        json_object_get(b, QN_SCHEMA_LIKE) ? qn_schema_copy(json_object_get(b, QN_SCHEMA_LIKE)) : json_array();
    qn_schema_add(more, json_incref(pattern), steps);
    qn_schema_put(b, QN_SCHEMA_LIKE, more, steps);
    json_object_del(b, "pattern");
}

/* Joins two objects keyword by keyword. *out: a new reference, with the keywords of `a` first. */
static qn_status merge_objects(json_t *root, json_t *a, json_t *b, uint64_t *steps, json_t **out)
{
    json_t *merged = qn_schema_copy(a), *value;
    const char *key;
    if (!merged)
        return qn_schema_no_memory();
    json_object_foreach(b, key, value)
    {
        json_t *other = json_object_get(a, key);
        json_t *joined = other ? strcmp(key, "properties") ? merge_keyword(root, key, other, value, steps) : json_true()
                               : json_incref(value);
        if (!joined) {
            json_decref(merged);
            return *steps > QN_SCHEMA_STEPS
                       ? too_many(*steps)
                       : qn_fail(QN_ERR_UNSUPPORTED, "two schemas for one value have '%s', which cannot be joined",
                                 key);
        }
        qn_schema_put(merged, key, joined, steps);
    }
    for (const char *const *k = member_keywords; *k; k++)
        if (json_object_get(a, *k) || json_object_get(b, *k))
            qn_schema_put(merged, *k, merge_members(a, b, *k, steps), steps);
    *out = merged;
    return QN_OK;
}

/* Joins two schemas without references. */
static qn_status merge_plain(json_t *root, json_t *x, json_t *y, bool is_loose, uint64_t *steps, json_t **out)
{
    if (json_is_false(x) || json_is_false(y))
        *out = json_false();
    else if (json_is_true(x) || json_is_true(y))
        *out = json_incref(json_is_true(x) ? y : x);
    else if (!json_is_object(x) || !json_is_object(y))
        return qn_fail(QN_ERR_INVALID, "neither an object nor a boolean");
    else {
        *steps += PER_KEY * (json_object_size(x) + json_object_size(y));
        if (*steps > QN_SCHEMA_STEPS)
            return too_many(*steps);
        json_t *a = modernise(root, x, y, is_loose, steps), *b = modernise(root, y, x, is_loose, steps);
        move_pattern(a, b, steps);
        const qn_status status = a && b ? merge_objects(root, a, b, steps, out) : qn_schema_no_memory();
        json_decref(a);
        json_decref(b);
        return status;
    }
    return QN_OK;
}

static qn_status merge(json_t *root, json_t *a, json_t *b, bool is_loose, int depth, uint64_t *steps, json_t **out)
{
    json_t *x = NULL, *y = NULL;
    *out = NULL;
    *steps += PER_MERGE;
    if (*steps > QN_SCHEMA_STEPS)
        return too_many(*steps);
    qn_status status = flatten(root, a, is_loose, depth, steps, &x);
    if (status == QN_OK)
        status = flatten(root, b, is_loose, depth, steps, &y);
    if (status == QN_OK)
        status = merge_plain(root, x, y, is_loose, steps, out);
    json_decref(x);
    json_decref(y);
    if (status != QN_OK || *steps <= QN_SCHEMA_STEPS)
        return status;
    json_decref(*out);
    *out = NULL;
    return too_many(*steps);
}

qn_status qn_schema_merge(json_t *root, json_t *a, json_t *b, bool is_loose, uint64_t *steps, json_t **out)
{
    return merge(root, a, b, is_loose, 0, steps, out);
}
