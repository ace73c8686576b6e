/* if, then and else of schemas as alternatives. A value fits if it fits
 *
 *     `if` and `then`, or the negation of `if` and `else`, or `then` and `else`.
 *
 * Only the types and constants of values and of properties are negated, which is what authors of tools use. If `if`
 * cannot be negated, the second alternative is left out, and the third stands in for it. So every value that fits
 * the alternatives validates, but some that validate may not fit. */
#include "grammar/schema_merge.h"

#include <string.h>

/* Longer lists are not read: schemas that need them are left out. */
enum { MAX_LIST = 256 };

static const char *const type_names[] = { "null", "boolean", "number", "string", "array", "object" };
enum { N_TYPES = sizeof type_names / sizeof *type_names };

/* ---- Negation ---- */

static bool has(json_t *list, json_t *value)
{
    json_t *item;
    size_t i;
    uint64_t steps = 0;
    if (json_array_size(list) > MAX_LIST)
        return false;
    json_array_foreach(list, i, item) if (qn_schema_is_equal(item, value, &steps)) return true;
    return false;
}

/* Whether all constants are ASCII strings. */
static bool are_texts(json_t *constants)
{
    json_t *value;
    size_t i, k;
    bool are = json_array_size(constants) > 0;
    json_array_foreach(constants, i, value)
    {
        are &= json_is_string(value);
        for (k = 0; are && k < json_string_length(value); k++)
            are = (unsigned char)json_string_value(value)[k] < 0x80;
    }
    return are;
}

/* A schema of the values of `known` except some constants, or NULL. */
static json_t *other_constants(json_t *constants, json_t *known)
{
    json_t *values = json_object_get(known, "enum"), *value, *rest = NULL;
    json_t *booleans = json_pack("[b,b]", 0, 1);
    size_t i;
    if (!values && json_is_string(json_object_get(known, "type")) &&
        !strcmp(json_string_value(json_object_get(known, "type")), "boolean"))
        values = booleans;
    if (json_array_size(constants) > MAX_LIST || json_array_size(values) > MAX_LIST) {
        json_decref(booleans);
        return NULL;
    }
    if (json_is_array(values)) {
        json_t *left = json_array();
        json_array_foreach(values, i, value) if (!has(constants, value)) json_array_append(left, value);
        rest = json_pack("{s:o}", "enum", left);
    } else if (are_texts(constants)) {
        rest = json_pack("{s:{s:O}}", "not", "enum", constants);
    }
    json_decref(booleans);
    return rest;
}

static json_t *other_types(json_t *type)
{
    json_t *left = json_array();
    for (size_t i = 0; i < N_TYPES; i++) {
        json_t *name = json_string(type_names[i]);
        if (!json_equal(type, name) && !has(type, name))
            json_array_append(left, name);
        json_decref(name);
    }
    return json_pack("{s:o}", "type", left);
}

/* The negation of a schema of constants or types, or NULL. Integers have none. */
static json_t *other_values(json_t *schema, json_t *known)
{
    json_t *type = json_object_get(schema, "type"), *constant = json_object_get(schema, "const"), *rest;
    json_t *values = constant ? json_pack("[O]", constant) : json_incref(json_object_get(schema, "enum"));
    json_t *integer = json_string("integer");
    if (json_is_array(values))
        rest = other_constants(values, known);
    else
        rest = type && !json_equal(type, integer) && !has(type, integer) ? other_types(type) : NULL;
    json_decref(values);
    json_decref(integer);
    return rest;
}

static json_t *find_property(json_t *a, json_t *b, const char *name)
{
    json_t *property = json_object_get(json_object_get(a, "properties"), name);
    return property ? property : json_object_get(json_object_get(b, "properties"), name);
}

/* Whether a condition has other keywords than properties and required. */
static bool asks_for_more(json_t *condition)
{
    const char *key;
    json_t *value, *object = json_string("object");
    bool more = false;
    json_object_foreach(condition, key, value) more |= strcmp(key, "properties") != 0 && strcmp(key, "required") != 0 &&
                                                       !(!strcmp(key, "type") && json_equal(value, object));
    json_decref(object);
    return more;
}

/* Appends negations of `condition`, each joined with `otherwise`. True if every part of the condition has one. */
static bool append_others(json_t *alternatives, json_t *condition, json_t *schema, json_t *beside, json_t *otherwise)
{
    json_t *properties = json_object_get(condition, "properties"), *property, *name, *not_it, *values;
    const char *key;
    size_t i;
    bool is_all = !asks_for_more(condition);
    if (json_object_size(properties) > MAX_LIST || json_array_size(json_object_get(condition, "required")) > MAX_LIST)
        return false;
    json_object_foreach(properties, key, property)
    {
        if (!(values = other_values(property, find_property(schema, beside, key)))) {
            is_all = false;
            continue;
        }
        not_it = json_pack("{s:s,s:{s:o},s:[s]}", "type", "object", "properties", key, values, "required", key);
        json_array_append_new(alternatives, json_pack("{s:[o,O]}", "allOf", not_it, otherwise));
    }
    json_array_foreach(json_object_get(condition, "required"), i, name) if (json_is_string(name))
    {
        not_it = json_pack("{s:s,s:{s:b}}", "type", "object", "properties", json_string_value(name), 0);
        json_array_append_new(alternatives, json_pack("{s:[o,O]}", "allOf", not_it, otherwise));
    }
    if (!properties && (values = other_values(condition, json_object_get(schema, "enum") ? schema : beside)))
        json_array_append_new(alternatives, json_pack("{s:[o,O]}", "allOf", values, otherwise));
    return is_all;
}

/* ---- Alternatives ---- */

static bool is_object(json_t *schema)
{
    const char *type = json_string_value(json_object_get(schema, "type"));
    return type && !strcmp(type, "object");
}

/* A condition with its properties required, and typed, as the other schemas of the same value say: that helps to
 * show that alternatives are disjoint. */
static json_t *require_those(json_t *condition, json_t *schema, json_t *beside)
{
    json_t *out = json_copy(condition), *required = json_array(), *property;
    const char *key;
    if (!json_is_object(condition)) {
        json_decref(required);
        return out ? out : json_incref(condition);
    }
    json_array_extend(required, json_object_get(condition, "required"));
    json_t *properties = json_object_get(condition, "properties");
    if (json_object_size(properties) > MAX_LIST)
        properties = NULL;
    json_object_foreach(properties, key, property)
    {
        json_t *name = json_string(key);
        if (has(json_object_get(schema, "required"), name) || has(json_object_get(beside, "required"), name))
            json_array_append(required, name);
        json_decref(name);
    }
    json_object_set_new(out, "required", required);
    if (is_object(schema) || is_object(beside))
        json_object_set_new(out, "type", json_string("object"));
    return out;
}

json_t *qn_schema_expand_if(json_t *schema, json_t *beside)
{
    json_t *condition = json_object_get(schema, "if"), *then = json_object_get(schema, "then"),
           *otherwise = json_object_get(schema, "else"), *out = json_copy(schema), *alternatives = json_array(), *all;
    json_object_del(out, "if");
    json_object_del(out, "then");
    json_object_del(out, "else");
    if (!condition || (!then && !otherwise)) {
        json_decref(alternatives);
        return out;
    }
    then = then ? then : json_true();
    otherwise = otherwise ? otherwise : json_true();
    json_array_append_new(alternatives,
                          json_pack("{s:[o,O]}", "allOf", require_those(condition, schema, beside), then));
    if (!append_others(alternatives, condition, schema, beside, otherwise))
        json_array_append_new(alternatives, json_pack("{s:[O,O]}", "allOf", then, otherwise));
    all = json_object_get(out, "allOf") ? json_copy(json_object_get(out, "allOf")) : json_array();
    json_array_append_new(all, json_pack("{s:o}", "anyOf", alternatives));
    json_object_set_new(out, "allOf", all);
    return out;
}
