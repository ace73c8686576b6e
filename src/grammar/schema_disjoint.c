/* Shows that two schemas have no value in common: only then is oneOf a union. */
#include "grammar/schema_merge.h"

#include <math.h>
#include <string.h>

enum { MAX_DEPTH = 12, PER_PAIR = 16 };

typedef struct search {
    json_t *root;
    uint64_t steps;
} search;

static const char *const type_names[] = { "null", "boolean", "integer", "number", "string", "array", "object" };
enum {
    IS_NULL = 1,
    IS_BOOLEAN = 2,
    IS_INTEGER = 4,
    IS_NUMBER = 8,
    IS_STRING = 16,
    IS_ARRAY = 32,
    IS_OBJECT = 64,
    IS_ALL = 127
};

/* Returns the bits of a type by its name; 0: it is none. */
static unsigned named_type(json_t *name)
{
    for (size_t i = 0; json_is_string(name) && i < sizeof type_names / sizeof *type_names; i++)
        if (!strcmp(json_string_value(name), type_names[i]))
            return 1u << i | (i == 3 ? IS_INTEGER : 0);
    return 0;
}

static unsigned type_of(json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_NULL: return IS_NULL;
    case JSON_TRUE:
    case JSON_FALSE: return IS_BOOLEAN;
    case JSON_INTEGER: return IS_INTEGER;
    case JSON_REAL: return json_real_value(value) == floor(json_real_value(value)) ? IS_INTEGER : IS_NUMBER;
    case JSON_STRING: return IS_STRING;
    case JSON_ARRAY: return IS_ARRAY;
    case JSON_OBJECT: return IS_OBJECT;
    }
    return 0;
}

/* Returns the number of values of enum or const. *first: the const, or NULL; it counts as a list of one. */
static size_t constants(json_t *schema, json_t **first)
{
    json_t *values = json_object_get(schema, "enum");
    *first = json_object_get(schema, "const");
    return *first ? 1 : json_array_size(values);
}

static json_t *constant(json_t *schema, size_t i)
{
    json_t *one = json_object_get(schema, "const");
    return one ? one : json_array_get(json_object_get(schema, "enum"), i);
}

static bool has_constants(json_t *schema)
{
    return json_object_get(schema, "const") || json_is_array(json_object_get(schema, "enum"));
}

/* Returns the types of the values that fit, as bits. IS_NUMBER stands for numbers with a fraction. */
static unsigned types_of(json_t *schema)
{
    json_t *type = json_object_get(schema, "type"), *each, *first;
    unsigned named = type ? named_type(type) : IS_ALL, of_constants = 0;
    size_t i;
    json_array_foreach(type, i, each) named |= named_type(each);
    for (i = 0; i < constants(schema, &first); i++)
        of_constants |= type_of(constant(schema, i));
    return has_constants(schema) ? named & of_constants : named;
}

/* Whether two schemas have a constant in common, or it takes too many steps to tell. */
static bool share_constants(search *s, json_t *a, json_t *b)
{
    json_t *first;
    const size_t n_a = constants(a, &first), n_b = constants(b, &first);
    for (size_t i = 0; i < n_a; i++)
        for (size_t k = 0; k < n_b; k++)
            if (qn_schema_is_equal(constant(a, i), constant(b, k), &s->steps) || s->steps > QN_SCHEMA_STEPS)
                return true;
    return false;
}

/* Whether the upper bound of `a` is below the lower bound of `b`. */
static bool is_below(json_t *a, const char *most, const char *exclusive_most, json_t *b, const char *least,
                     const char *exclusive_least)
{
    json_t *high = json_object_get(a, most), *below = exclusive_most ? json_object_get(a, exclusive_most) : NULL;
    json_t *low = json_object_get(b, least), *above = exclusive_least ? json_object_get(b, exclusive_least) : NULL;
    if (json_is_number(high) && json_is_number(low) && json_number_value(high) < json_number_value(low))
        return true;
    high = json_is_number(high) ? high : below;
    low = json_is_number(low) ? low : above;
    return json_is_number(high) && json_is_number(low) && (high == below || low == above) &&
           json_number_value(high) <= json_number_value(low);
}

/* Whether the range of one schema is below that of the other. */
static bool are_apart(json_t *a, json_t *b, const char *most, const char *exclusive_most, const char *least,
                      const char *exclusive_least)
{
    return is_below(a, most, exclusive_most, b, least, exclusive_least) ||
           is_below(b, most, exclusive_most, a, least, exclusive_least);
}

static bool disjoint(search *s, json_t *a, json_t *b, int depth);

/* Returns the schema of a property, borrowed; NULL: any value fits. */
static json_t *property(json_t *schema, const char *key)
{
    json_t *named = json_object_get(json_object_get(schema, "properties"), key);
    if (named || json_object_get(schema, "patternProperties")) /* one of the patterns may match it */
        return named;
    return json_object_get(schema, "additionalProperties");
}

/* Whether one of them requires a property for which no value fits both. */
static bool have_discriminator(search *s, json_t *requiring, json_t *a, json_t *b, int depth)
{
    json_t *name;
    size_t i;
    json_array_foreach(json_object_get(requiring, "required"), i, name)
    {
        json_t *of_a = json_is_string(name) ? property(a, json_string_value(name)) : NULL;
        json_t *of_b = json_is_string(name) ? property(b, json_string_value(name)) : NULL;
        if (json_is_false(of_a) || json_is_false(of_b) || (of_a && of_b && disjoint(s, of_a, of_b, depth + 1)))
            return true;
    }
    return false;
}

/* Whether types, constants, bounds or required properties show that no value fits both. */
static bool plain_disjoint(search *s, json_t *a, json_t *b, int depth)
{
    const unsigned both = types_of(a) & types_of(b);
    if (!both || (has_constants(a) && has_constants(b) && !share_constants(s, a, b)))
        return true;
    if (both & (IS_NULL | IS_BOOLEAN))
        return false;
    if (both & (IS_INTEGER | IS_NUMBER) &&
        !are_apart(a, b, "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"))
        return false;
    if (both & IS_STRING && !are_apart(a, b, "maxLength", NULL, "minLength", NULL))
        return false;
    if (both & IS_ARRAY && !are_apart(a, b, "maxItems", NULL, "minItems", NULL))
        return false;
    return !(both & IS_OBJECT) || are_apart(a, b, "maxProperties", NULL, "minProperties", NULL) ||
           have_discriminator(s, a, a, b, depth) || have_discriminator(s, b, a, b, depth);
}

/* Whether `a` excludes `b` by its other keywords: a part of allOf, a reference, or every alternative. */
static bool parts_disjoint(search *s, json_t *a, json_t *b, int depth)
{
    static const char *const unions[] = { "anyOf", "oneOf" };
    json_t *part, *target, *list;
    size_t i;
    const char *reference = json_string_value(json_object_get(a, "$ref"));
    if (reference && qn_schema_resolve(s->root, reference, &s->steps, &target) == QN_OK &&
        disjoint(s, target, b, depth + 1))
        return true;
    json_array_foreach(json_object_get(a, "allOf"), i, part) if (disjoint(s, part, b, depth + 1)) return true;
    for (size_t u = 0; u < 2; u++) {
        bool all = json_array_size(list = json_object_get(a, unions[u])) > 0;
        json_array_foreach(list, i, part) all = all && disjoint(s, part, b, depth + 1);
        if (all)
            return true;
    }
    return false;
}

/* Returns the total length of the lists of a schema that are read for each pair. */
static uint64_t lists_of(json_t *schema)
{
    return json_array_size(json_object_get(schema, "enum")) + json_array_size(json_object_get(schema, "type")) +
           2 * json_array_size(json_object_get(schema, "required"));
}

static bool disjoint(search *s, json_t *a, json_t *b, int depth)
{
    s->steps += PER_PAIR + lists_of(a) + lists_of(b);
    if (depth > MAX_DEPTH || s->steps > QN_SCHEMA_STEPS)
        return false;
    if (json_is_false(a) || json_is_false(b))
        return true;
    if (!json_is_object(a) || !json_is_object(b))
        return false;
    return plain_disjoint(s, a, b, depth) || parts_disjoint(s, a, b, depth) || parts_disjoint(s, b, a, depth);
}

bool qn_schema_is_disjoint(json_t *root, json_t *a, json_t *b, uint64_t *steps)
{
    search s = { .root = root, .steps = *steps };
    const bool is = disjoint(&s, a, b, 0);
    *steps = s.steps;
    return is && s.steps <= QN_SCHEMA_STEPS;
}
