/* The negation of a schema as alternatives: a value does not fit if it breaks one of the keywords. A keyword whose
 * negation no schema expresses is left out, and the result is said not to be whole: then every value that fits an
 * alternative does not fit the schema, but there may be others. */
#include "grammar/schema_merge.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Longer lists are not read, and deeper schemas not negated: the result is not whole. */
enum { MAX_LIST = 256, MAX_DEPTH = 8, MAX_NUMBERS = 16, MAX_PAIRED = 12 };

/* An alternative takes about a kilobyte. Each is counted as so many steps, so that all of a schema's together take less
 * than 100 MB; and no negation has more than the compiler could use by far. */
enum { ALTERNATIVE_STEPS = 64, MAX_ALTERNATIVES = 1024 };

static const char *const type_names[] = { "null", "boolean", "number", "string", "array", "object" };
enum { N_TYPES = sizeof type_names / sizeof *type_names };

/* A negation that is made. `known` in the functions below: a list of schemas of the same value, borrowed, or NULL. */
typedef struct negation {
    json_t *root; /* borrowed: references are resolved in it */
    uint64_t *steps;
    json_t *alternatives; /* so far, in the order of the schema's keywords; owned */
    bool is_whole;        /* the alternatives accept all values that do not fit */
} negation;

/* ---- Lists ---- */

static bool has(json_t *list, json_t *value, uint64_t *steps)
{
    json_t *item;
    size_t i;
    json_array_foreach(list, i, item) if (qn_schema_is_equal(item, value, steps)) return true;
    return false;
}

static bool names_type(json_t *type, const char *name)
{
    json_t *item;
    size_t i;
    if (json_is_string(type))
        return !strcmp(json_string_value(type), name);
    json_array_foreach(type, i, item) if (json_is_string(item) && !strcmp(json_string_value(item), name)) return true;
    return false;
}

static bool is_full(const negation *n)
{
    return *n->steps > QN_SCHEMA_STEPS || json_array_size(n->alternatives) >= MAX_ALTERNATIVES;
}

/* Appends an alternative, whose reference is taken over; NULL: no memory. It is left out, and the result is not whole,
 * if there are too many. */
static void add(negation *n, json_t *alternative)
{
    *n->steps += ALTERNATIVE_STEPS;
    if (is_full(n)) {
        n->is_whole = false;
        json_decref(alternative);
    } else {
        qn_schema_add(n->alternatives, alternative, n->steps);
    }
}

/* Appends all alternatives of a list, whose reference is taken over. */
static void add_all(negation *n, json_t *alternatives)
{
    json_t *alternative;
    size_t i;
    json_array_foreach(alternatives, i, alternative) add(n, json_incref(alternative));
    json_decref(alternatives);
}

static json_t *negate(json_t *root, json_t *schema, json_t *known, int depth, uint64_t *steps, bool *is_whole);

/* Returns the negation of a part, a new reference to a list. The whole is whole only if each part is. */
static json_t *negate_part(negation *n, json_t *schema, json_t *known, int depth)
{
    return negate(n->root, schema, known, depth + 1, n->steps, &n->is_whole);
}

/* Returns a schema of all of some alternatives, a new reference; the reference to the list is taken over. */
static json_t *any_of(json_t *alternatives)
{
    if (!json_array_size(alternatives)) {
        json_decref(alternatives);
        return json_false();
    }
    if (json_array_size(alternatives) > 1)
        return json_pack("{s:o}", "anyOf", alternatives);
    json_t *only = json_incref(json_array_get(alternatives, 0));
    json_decref(alternatives);
    return only;
}

/* ---- Types and constants ---- */

/* Whether one of `known`, schemas of the same value, excludes numbers with fractions by types without "number". */
static bool has_no_fractions(json_t *known)
{
    json_t *schema;
    size_t i;
    json_array_foreach(known, i, schema)
    {
        json_t *type = json_object_get(schema, "type");
        if ((json_is_string(type) || json_is_array(type)) && !names_type(type, "number"))
            return true;
    }
    return false;
}

/* Adds all types but these. The numbers that are no integers are a type of their own that no schema names. */
static void negate_type(negation *n, json_t *type, json_t *known)
{
    json_t *left = json_array();
    if (json_array_size(type) > MAX_LIST || !(json_is_string(type) || json_is_array(type))) {
        n->is_whole = false;
        json_decref(left);
        return;
    }
    for (size_t i = 0; i < N_TYPES; i++) {
        if (names_type(type, type_names[i]))
            continue;
        if (!strcmp(type_names[i], "number") && names_type(type, "integer")) {
            n->is_whole &= has_no_fractions(known);
            continue;
        }
        qn_schema_add(left, json_string(type_names[i]), n->steps);
    }
    if (json_array_size(left))
        add(n, json_pack("{s:O}", "type", left));
    json_decref(left);
}

static const char *type_of(json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_NULL: return "null";
    case JSON_TRUE:
    case JSON_FALSE: return "boolean";
    case JSON_INTEGER:
    case JSON_REAL: return "number";
    case JSON_STRING: return "string";
    case JSON_ARRAY: return "array";
    case JSON_OBJECT: return "object";
    }
    return "";
}

static int compare_numbers(const void *a, const void *b)
{
    const double x = json_number_value(*(json_t *const *)a), y = json_number_value(*(json_t *const *)b);
    return (x > y) - (x < y);
}

/* Adds the numbers between and beyond some numbers, which it sorts. */
static void add_gaps(negation *n, json_t **numbers, size_t count)
{
    qsort(numbers, count, sizeof *numbers, compare_numbers);
    for (size_t i = 0; i <= count; i++) {
        json_t *gap = json_pack("{s:s}", "type", "number");
        if (i)
            qn_schema_put(gap, "exclusiveMinimum", json_incref(numbers[i - 1]), n->steps);
        if (i < count)
            qn_schema_put(gap, "exclusiveMaximum", json_incref(numbers[i]), n->steps);
        add(n, gap);
    }
}

/* Adds the values of the types of constants, other than these. */
static void add_other_values(negation *n, json_t *constants)
{
    json_t *strings = json_array(), *value, *numbers[MAX_NUMBERS];
    size_t i, n_numbers = 0;
    bool has_true = false, has_false = false;
    json_array_foreach(constants, i, value)
    {
        if (json_is_string(value))
            qn_schema_add(strings, json_incref(value), n->steps);
        if (json_is_number(value) && n_numbers < MAX_NUMBERS)
            numbers[n_numbers++] = value;
        else if (json_is_number(value) || json_is_array(value) || json_is_object(value))
            n->is_whole = false;
        has_true |= json_is_true(value);
        has_false |= json_is_false(value);
    }
    if (json_array_size(strings))
        add(n, json_pack("{s:s,s:{s:O}}", "type", "string", "not", "enum", strings));
    if (has_true != has_false)
        add(n, json_pack("{s:b}", "const", (int)has_false));
    if (n_numbers && n->is_whole)
        add_gaps(n, numbers, n_numbers);
    json_decref(strings);
}

/* Returns the values that schemas of the same value list, a new reference; NULL if none does. */
static json_t *find_listed(json_t *known, uint64_t *steps)
{
    json_t *schema, *type;
    size_t i;
    json_array_foreach(known, i, schema)
    {
        if (json_is_array(json_object_get(schema, "enum")))
            return json_incref(json_object_get(schema, "enum"));
        type = json_object_get(schema, "type");
        if (json_is_string(type) && !strcmp(json_string_value(type), "boolean"))
            return qn_schema_made(json_pack("[b,b]", 0, 1), steps);
    }
    return NULL;
}

static void negate_constants(negation *n, json_t *constants, json_t *known)
{
    json_t *listed = find_listed(known, n->steps), *value, *types = json_array();
    size_t i;
    if (!json_is_array(constants)) {
        n->is_whole = false;
    } else if (listed && json_array_size(listed) <= MAX_LIST && json_array_size(constants) <= MAX_LIST) {
        json_t *left = json_array();
        json_array_foreach(listed, i, value) if (!has(constants, value, n->steps))
            qn_schema_add(left, json_incref(value), n->steps);
        add(n, json_pack("{s:o}", "enum", left));
    } else {
        for (i = 0; i < N_TYPES; i++) {
            bool is_among = false;
            size_t k;
            json_array_foreach(constants, k, value) is_among |= !strcmp(type_of(value), type_names[i]);
            if (!is_among)
                qn_schema_add(types, json_string(type_names[i]), n->steps);
        }
        *n->steps += N_TYPES * json_array_size(constants);
        if (json_array_size(types))
            add(n, json_pack("{s:O}", "type", types));
        add_other_values(n, constants);
    }
    json_decref(types);
    json_decref(listed);
}

/* ---- Bounds and counts ---- */

static void negate_bound(negation *n, const char *key, json_t *value)
{
    static const char *const opposites[][2] = { { "minimum", "exclusiveMaximum" },
                                                { "maximum", "exclusiveMinimum" },
                                                { "exclusiveMinimum", "maximum" },
                                                { "exclusiveMaximum", "minimum" } };
    for (size_t i = 0; i < sizeof opposites / sizeof *opposites; i++)
        if (!strcmp(key, opposites[i][0]) && json_is_number(value))
            add(n, json_pack("{s:s,s:O}", "type", "number", opposites[i][1], value));
    n->is_whole &= json_is_number(value);
}

/* Negates a keyword that is a count. False: it is none. */
static bool negate_count(negation *n, const char *key, json_t *value)
{
    static const struct {
        const char *least, *most, *type;
    } counts[] = { { "minLength", "maxLength", "string" },
                   { "minItems", "maxItems", "array" },
                   { "minProperties", "maxProperties", "object" } };
    const double number = json_number_value(value);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const bool is_least = !strcmp(key, counts[i].least);
        if (!is_least && strcmp(key, counts[i].most) != 0)
            continue;
        if (!json_is_number(value) || number < 0 || number > INT32_MAX - 1 || number != floor(number))
            n->is_whole = false;
        else if (!is_least || number > 0)
            add(n, json_pack("{s:s,s:I}", "type", counts[i].type, is_least ? counts[i].most : counts[i].least,
                             (json_int_t)number + (is_least ? -1 : 1)));
        return true;
    }
    return false;
}

/* ---- Objects and arrays ---- */

/* Returns the schemas of a property in schemas of the same value, a new reference to a list. */
static json_t *known_properties(negation *n, json_t *known, const char *key)
{
    json_t *out = qn_schema_made(json_array(), n->steps), *schema, *property;
    size_t i;
    json_array_foreach(known, i, schema)
    {
        property = json_object_get(json_object_get(schema, "properties"), key);
        const char *reference = json_string_value(json_object_get(property, "$ref"));
        json_t *target;
        if (property)
            qn_schema_add(out, json_incref(property), n->steps);
        if (reference && qn_schema_resolve(n->root, reference, n->steps, &target) == QN_OK)
            qn_schema_add(out, json_incref(target), n->steps);
    }
    return out;
}

static void negate_properties(negation *n, json_t *properties, json_t *known, int depth)
{
    json_t *property;
    const char *key;
    if (json_object_size(properties) > MAX_LIST) {
        n->is_whole = false;
        return;
    }
    json_object_foreach(properties, key, property)
    {
        json_t *of_property = known_properties(n, known, key), *others = negate_part(n, property, of_property, depth);
        if (json_array_size(others))
            add(n, json_pack("{s:s,s:{s:o},s:[s]}", "type", "object", "properties", key, any_of(json_incref(others)),
                             "required", key));
        json_decref(others);
        json_decref(of_property);
    }
}

static void negate_required(negation *n, json_t *required)
{
    json_t *name;
    size_t i;
    n->is_whole &= json_array_size(required) <= MAX_LIST;
    if (json_array_size(required) <= MAX_LIST)
        json_array_foreach(required, i, name) if (json_is_string(name))
            add(n, json_pack("{s:s,s:{s:b}}", "type", "object", "properties", json_string_value(name), 0));
}

/* Negates additionalProperties false: an object has a name that is not declared. That can be said only if another
 * schema lets it have no names but its own: it has one of those. */
static void negate_closed(negation *n, json_t *schema, json_t *known)
{
    json_t *of_schema = json_object_get(schema, "properties"), *other, *properties = NULL, *value;
    const char *key;
    size_t i;
    json_array_foreach(known, i, other) if (json_is_false(json_object_get(other, "additionalProperties")) &&
                                            !json_object_get(other, "patternProperties"))
    {
        properties = json_object_get(other, "properties");
        break;
    }
    if (i == json_array_size(known) || json_object_get(schema, "patternProperties") ||
        json_object_size(properties) > MAX_LIST) {
        n->is_whole = false;
        return;
    }
    json_object_foreach(properties, key, value) if (!json_object_get(of_schema, key))
        add(n, json_pack("{s:s,s:[s]}", "type", "object", "required", key));
}

/* Negates dependencies: an object with the name breaks what it requires: other names, or a schema. */
static void negate_dependencies(negation *n, json_t *dependencies, int depth)
{
    json_t *needed, *name;
    const char *key;
    size_t i;
    if (json_object_size(dependencies) > MAX_LIST) {
        n->is_whole = false;
        return;
    }
    json_object_foreach(dependencies, key, needed)
    {
        *n->steps += ALTERNATIVE_STEPS * json_array_size(needed);
        if (is_full(n)) {
            n->is_whole = false;
            break;
        }
        json_t *others = json_is_array(needed) ? json_array() : negate_part(n, needed, NULL, depth);
        n->is_whole &= json_array_size(needed) <= MAX_LIST;
        if (json_array_size(needed) <= MAX_LIST)
            json_array_foreach(needed, i, name) if (json_is_string(name)) qn_schema_add(
                others, json_pack("{s:s,s:{s:b}}", "type", "object", "properties", json_string_value(name), 0),
                n->steps);
        if (json_array_size(others))
            add(n, json_pack("{s:[{s:s,s:[s]},o]}", "allOf", "type", "object", "required", key,
                             any_of(json_incref(others))));
        json_decref(others);
    }
}

/* ---- Combinations ---- */

static void negate_all_of(negation *n, json_t *parts, json_t *known, int depth)
{
    json_t *part;
    size_t i;
    json_array_foreach(parts, i, part)
    {
        if (is_full(n)) {
            n->is_whole = false;
            break;
        }
        add_all(n, negate_part(n, part, known, depth));
    }
}

/* Negates anyOf and oneOf: no part fits; of oneOf also: two do. */
static void negate_union(negation *n, json_t *parts, bool is_one_of, json_t *known, int depth)
{
    json_t *part, *all = json_array();
    size_t i;
    json_array_foreach(parts, i, part) qn_schema_add(all, any_of(negate_part(n, part, known, depth)), n->steps);
    add(n, json_pack("{s:o}", "allOf", all));
    if (!is_one_of)
        return;
    n->is_whole &= json_array_size(parts) <= MAX_PAIRED;
    for (i = 1; i < json_array_size(parts) && i < MAX_PAIRED; i++)
        for (size_t k = 0; k < i; k++) {
            json_t *a = json_array_get(parts, i), *b = json_array_get(parts, k);
            if (!qn_schema_is_disjoint(n->root, a, b, n->steps))
                add(n, json_pack("{s:[O,O]}", "allOf", a, b));
        }
}

/* Negates a condition: `if` holds and `then` does not, or `if` does not hold, nor does `else`. */
static void negate_if(negation *n, json_t *schema, json_t *known, int depth)
{
    json_t *condition = json_object_get(schema, "if"), *then = json_object_get(schema, "then"),
           *otherwise = json_object_get(schema, "else");
    if (then)
        add(n, json_pack("{s:[O,o]}", "allOf", condition, any_of(negate_part(n, then, known, depth))));
    if (otherwise)
        add(n, json_pack("{s:[o,o]}", "allOf", any_of(negate_part(n, condition, known, depth)),
                         any_of(negate_part(n, otherwise, known, depth))));
}

static void negate_reference(negation *n, const char *reference, json_t *known, int depth)
{
    json_t *target;
    if (!reference || qn_schema_resolve(n->root, reference, n->steps, &target) != QN_OK) {
        n->is_whole = false;
        return;
    }
    add_all(n, negate_part(n, target, known, depth));
}

/* ---- Keywords ---- */

static bool is_one_of(const char *key, const char *const *keys)
{
    for (; *keys; keys++)
        if (!strcmp(key, *keys))
            return true;
    return false;
}

/* Whether a keyword needs no negation: it is read with another one, or any value fits it. */
static bool is_trivial(const char *key, json_t *value)
{
    static const char *const parts[] = { "then", "else", "$defs", "definitions", "additionalItems", NULL },
                             *const schemas[] = { "additionalProperties",  "items", "propertyNames", "unevaluatedItems",
                                                  "unevaluatedProperties", NULL };
    const bool is_any = json_is_true(value) || (json_is_object(value) && !json_object_size(value));
    return is_one_of(key, parts) || (is_one_of(key, schemas) && is_any) ||
           (!strcmp(key, "uniqueItems") && !json_is_true(value)) ||
           (!strcmp(key, "format") && json_is_string(value) &&
            !qn_schema_is_standard_format(json_string_value(value))) ||
           (!strcmp(key, "nullable") && !json_is_true(value));
}

static void negate_keyword(negation *n, json_t *schema, const char *key, json_t *value, json_t *known, int depth)
{
    static const char *const bounds[] = { "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", NULL },
                             *const dependencies[] = { "dependentRequired", "dependentSchemas", NULL };
    if (is_trivial(key, value) || negate_count(n, key, value))
        return;
    if (!strcmp(key, "type"))
        negate_type(n, value, known);
    else if (!strcmp(key, "enum"))
        negate_constants(n, value, known);
    else if (!strcmp(key, "const")) {
        json_t *one = qn_schema_made(json_pack("[O]", value), n->steps);
        negate_constants(n, one, known);
        json_decref(one);
    } else if (is_one_of(key, bounds))
        negate_bound(n, key, value);
    else if (!strcmp(key, "pattern") && json_is_string(value))
        add(n, qn_schema_unlike(value));
    else if (!strcmp(key, "required") && json_is_array(value))
        negate_required(n, value);
    else if (!strcmp(key, "properties") && json_is_object(value))
        negate_properties(n, value, known, depth);
    else if (!strcmp(key, "additionalProperties") && json_is_false(value))
        negate_closed(n, schema, known);
    else if (is_one_of(key, dependencies) && json_is_object(value))
        negate_dependencies(n, value, depth);
    else if (!strcmp(key, "allOf") && json_is_array(value))
        negate_all_of(n, value, known, depth);
    else if ((!strcmp(key, "anyOf") || !strcmp(key, "oneOf")) && json_is_array(value))
        negate_union(n, value, !strcmp(key, "oneOf"), known, depth);
    else if (!strcmp(key, "not"))
        add(n, json_incref(value));
    else if (!strcmp(key, "if"))
        negate_if(n, schema, known, depth);
    else if (!strcmp(key, "$ref"))
        negate_reference(n, json_string_value(value), known, depth);
    else /* also `dependencies`, which drafts from 2019-09 on ignore */
        n->is_whole &= !qn_schema_restricts(key);
}

static json_t *negate(json_t *root, json_t *schema, json_t *known, int depth, uint64_t *steps, bool *is_whole)
{
    negation n = { .root = root, .steps = steps, .is_whole = true };
    const char *key;
    json_t *value, *plain;
    n.alternatives = qn_schema_made(json_array(), steps);
    *steps += 8 + 8 * json_object_size(schema);
    if (depth > MAX_DEPTH || *steps > QN_SCHEMA_STEPS || !(json_is_object(schema) || json_is_boolean(schema))) {
        *is_whole = false;
        return n.alternatives;
    }
    if (json_is_false(schema))
        add(&n, json_true());
    plain = json_is_object(schema) ? qn_schema_made(qn_schema_with_exclusive_bounds(schema), steps) : NULL;
    json_t *reference = json_object_get(plain, "$ref");
    json_object_foreach(plain, key, value)
        /* Before draft 2019-09 the keywords next to a reference are ignored. */
        if (reference && value != reference) n.is_whole &= !qn_schema_restricts(key);
    else negate_keyword(&n, plain, key, value, known, depth);
    json_decref(plain);
    *is_whole &= n.is_whole && *steps <= QN_SCHEMA_STEPS;
    return n.alternatives;
}

json_t *qn_schema_negate(json_t *root, json_t *schema, json_t *known, uint64_t *steps, bool *is_whole)
{
    *is_whole = true;
    return negate(root, schema, known, 0, steps, is_whole);
}
