/* Joining JSON schemas: allOf, references with siblings, and what stands beside anyOf. Only the schemas themselves are joined;
 * those of their properties and items become an allOf, which is joined when it is compiled. */
#include "text/grammar/schema_merge.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_STEPS = 1 << 16, MAX_BRANCHES = 256, MAX_REFERENCES = 32 };

static qn_status no_memory(void)
{
    return qn_fail(QN_ERR_MEMORY, "schema: no memory");
}

qn_status qn_schema_resolve(json_t *root, const char *reference, json_t **out)
{
    json_t *at = root;
    const char *p = reference;
    if (*p++ != '#')
        return qn_fail(QN_ERR_UNSUPPORTED, "$ref '%s' is outside the schema", reference);
    while (*p == '/' && at) {
        char key[512];
        size_t n = 0;
        for (p++; *p && *p != '/' && n + 1 < sizeof key; p++) {
            if (*p == '~' && (p[1] == '0' || p[1] == '1'))
                key[n++] = *++p == '0' ? '~' : '/';
            else if (*p == '%' && p[1] == '2' && p[2] == '5')
                key[n++] = '%', p += 2;
            else
                key[n++] = *p;
        }
        key[n] = 0;
        at = json_is_array(at) ? json_array_get(at, strtoul(key, NULL, 10)) : json_object_get(at, key);
    }
    *out = at;
    return at && !*p ? QN_OK : qn_fail(QN_ERR_INVALID, "$ref '%s' names nothing", reference);
}

bool qn_schema_is_equal(json_t *a, json_t *b)
{
    json_t *item;
    const char *key;
    size_t i;
    if (json_is_number(a) && json_is_number(b) && !(json_is_integer(a) && json_is_integer(b)))
        return json_number_value(a) == json_number_value(b);
    if (json_typeof(a) != json_typeof(b) || json_array_size(a) != json_array_size(b) ||
        json_object_size(a) != json_object_size(b))
        return false;
    if (!json_is_array(a) && !json_is_object(a))
        return json_equal(a, b);
    json_array_foreach(a, i, item) if (!qn_schema_is_equal(item, json_array_get(b, i))) return false;
    json_object_foreach(a, key, item)
    {
        json_t *other = json_object_get(b, key);
        if (!other || !qn_schema_is_equal(item, other))
            return false;
    }
    return true;
}

static json_t *all_of(json_t *a, json_t *b)
{
    if (json_is_true(a) || json_equal(a, b))
        return json_incref(b);
    if (json_is_true(b))
        return json_incref(a);
    return json_pack("{s:[O,O]}", "allOf", a, b);
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

static json_t *merge_types(json_t *a, json_t *b)
{
    static const char *const names[] = { "null", "boolean", "object", "array", "string", "number", "integer" };
    json_t *both = json_array();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const bool integer = !strcmp(names[i], "integer");
        const bool in_a = has_type(a, names[i]) || (integer && has_type(a, "number"));
        const bool in_b = has_type(b, names[i]) || (integer && has_type(b, "number"));
        if (in_a && in_b && !(integer && has_type(both, "number")))
            json_array_append_new(both, json_string(names[i]));
    }
    return both;
}

static json_t *intersect(json_t *a, json_t *b)
{
    size_t i, k;
    json_t *x, *y, *both = json_array();
    json_array_foreach(a, i, x) json_array_foreach(b, k, y) if (qn_schema_is_equal(x, y)) json_array_append(both, x);
    return both;
}

static json_t *unite(json_t *a, json_t *b)
{
    size_t i;
    json_t *x, *both = json_copy(a);
    json_array_foreach(b, i, x) json_array_append(both, x);
    return both;
}

/* Branches of both: each pair of them. */
static json_t *cross(json_t *a, json_t *b)
{
    size_t i, k;
    json_t *x, *y;
    if (json_array_size(a) * json_array_size(b) > MAX_BRANCHES)
        return NULL;
    json_t *both = json_array();
    json_array_foreach(a, i, x) json_array_foreach(b, k, y) json_array_append_new(both, all_of(x, y));
    return both;
}

/* Properties: one that the other schema does not name is its additional property. */
static json_t *merge_properties(json_t *a, json_t *b)
{
    json_t *in_a = json_object_get(a, "properties"), *in_b = json_object_get(b, "properties");
    json_t *rest_a = json_object_get(a, "additionalProperties"), *rest_b = json_object_get(b, "additionalProperties");
    json_t *out = json_object(), *value;
    const char *key;
    json_object_foreach(in_a, key, value)
    {
        json_t *other = json_object_get(in_b, key);
        other = other ? other : rest_b;
        json_object_set_new(out, key, other ? all_of(value, other) : json_incref(value));
    }
    json_object_foreach(in_b, key, value) if (!json_object_get(in_a, key))
        json_object_set_new(out, key, rest_a ? all_of(rest_a, value) : json_incref(value));
    return out;
}

static bool is_one_of(const char *key, const char *const *keys)
{
    for (; *keys; keys++)
        if (!strcmp(key, *keys))
            return true;
    return false;
}

/* The value of a keyword that both have; NULL if they cannot be joined. */
static json_t *merge_keyword(const char *key, json_t *x, json_t *y)
{
    static const char *const lower[] = { "minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", NULL },
                             *const upper[] = { "maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", NULL },
                             *const schemas[] = { "items", "additionalProperties", NULL },
                             *const notes[] = { "title", "description", "default",  "examples", "$schema",  "$id",
                                                "$defs", "definitions", "$comment", "example",  "nullable", NULL };
    if (json_equal(x, y) || is_one_of(key, notes))
        return json_incref(x);
    if (json_is_number(x) && json_is_number(y) && (is_one_of(key, lower) || is_one_of(key, upper)))
        return json_incref((json_number_value(x) < json_number_value(y)) == is_one_of(key, upper) ? x : y);
    if (is_one_of(key, schemas))
        return all_of(x, y);
    if (!strcmp(key, "type"))
        return merge_types(x, y);
    if (!strcmp(key, "enum"))
        return intersect(x, y);
    if (!strcmp(key, "required") || !strcmp(key, "allOf"))
        return unite(x, y);
    if (!strcmp(key, "anyOf") || !strcmp(key, "oneOf"))
        return cross(x, y);
    return NULL;
}

static qn_status merge(json_t *root, json_t *a, json_t *b, int depth, uint64_t *steps, json_t **out);

/* A schema without its reference. A new reference in *out. */
static qn_status flatten(json_t *root, json_t *schema, int depth, uint64_t *steps, json_t **out)
{
    *out = json_incref(schema);
    for (int i = depth; i < MAX_REFERENCES; i++) {
        const char *reference = json_string_value(json_object_get(*out, "$ref"));
        if (!reference)
            return QN_OK;
        json_t *target, *rest = json_copy(*out), *merged = NULL;
        qn_status status = rest ? qn_schema_resolve(root, reference, &target) : no_memory();
        if (status == QN_OK) {
            json_object_del(rest, "$ref");
            if (json_object_size(rest))
                status = merge(root, target, rest, i + 1, steps, &merged);
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
    return qn_fail(QN_ERR_UNSUPPORTED, "more than %d references of references for one value", MAX_REFERENCES);
}

static qn_status merge_objects(json_t *a, json_t *b, uint64_t *steps, json_t **out)
{
    json_t *merged = json_copy(a), *value;
    const char *key;
    if (!merged)
        return no_memory();
    json_object_foreach(b, key, value)
    {
        json_t *other = json_object_get(a, key);
        json_t *joined =
            other ? strcmp(key, "properties") ? merge_keyword(key, other, value) : json_true() : json_incref(value);
        ++*steps;
        if (!joined) {
            json_decref(merged);
            return qn_fail(QN_ERR_UNSUPPORTED, "'%s' of two schemas for one value", key);
        }
        json_object_set_new(merged, key, joined);
    }
    if (json_object_get(a, "properties") || json_object_get(b, "properties")) {
        json_t *properties = merge_properties(a, b);
        *steps += json_object_size(properties);
        json_object_set_new(merged, "properties", properties);
    }
    *out = merged;
    return QN_OK;
}

static qn_status merge(json_t *root, json_t *a, json_t *b, int depth, uint64_t *steps, json_t **out)
{
    json_t *x = NULL, *y = NULL;
    *out = NULL;
    *steps += 8;
    if (*steps > MAX_STEPS)
        return qn_fail(QN_ERR_UNSUPPORTED, "too many schemas for one value");
    qn_status status = flatten(root, a, depth, steps, &x);
    if (status == QN_OK)
        status = flatten(root, b, depth, steps, &y);
    if (status == QN_OK) {
        if (json_is_false(x) || json_is_false(y))
            *out = json_false();
        else if (json_is_true(x) || json_is_true(y))
            *out = json_incref(json_is_true(x) ? y : x);
        else if (json_is_object(x) && json_is_object(y))
            status = merge_objects(x, y, steps, out);
        else
            status = qn_fail(QN_ERR_INVALID, "neither an object nor a boolean");
    }
    json_decref(x);
    json_decref(y);
    return status;
}

qn_status qn_schema_merge(json_t *root, json_t *a, json_t *b, uint64_t *steps, json_t **out)
{
    return merge(root, a, b, 0, steps, out);
}
