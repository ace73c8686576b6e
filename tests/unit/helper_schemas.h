/* Random schemas of tools: well-formed ones, and mutations such as a stranger could send. Numbers have any size,
 * alternatives may be dead, references point anywhere. For tests and fuzzing; the same state gives the same schemas. */
#ifndef QN_TESTS_HELPER_SCHEMAS_H
#define QN_TESTS_HELPER_SCHEMAS_H

#include "base/splitmix.h"

#include <jansson.h>

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define SCHEMAS_COUNT(list) (sizeof(list) / sizeof *(list))

static uint64_t schemas_state;

static inline size_t draw(size_t n)
{
    return (size_t)(qn_splitmix(&schemas_state) >> 16) % n;
}

#define DRAW_FROM(list) ((list)[draw(SCHEMAS_COUNT(list))])

/* ---- Values ---- */

static const char *const schemas_types[] = { "null", "boolean", "integer", "number", "string", "array", "object" },
                         *const schemas_names[] = { "a", "b", "é", "name with space", "\"", "a/b", "~", "q\nr", "" },
                         *const schemas_counts[] = { "minLength", "maxLength",     "minItems",
                                                     "maxItems",  "minProperties", "maxProperties" },
                         *const schemas_bounds[] = { "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
                                                     "multipleOf" },
                         *const schemas_unions[] = { "anyOf", "oneOf", "allOf" };

static inline json_t *draw_number(int depth)
{
    static const char *const numbers[] = {
        "0",           "1",          "2",
        "3",           "7",          "-1",
        "-0.0",        "0.5",        "1.0",
        "64",          "255",        "256",
        "1024",        "65536",      "100000",
        "2147483647",  "2147483648", "4294967295",
        "4294967296",  "1e10",       "9007199254740993",
        "1e300",       "-1e300",     "1.2345678912345678e300",
        "1e-300",      "5e-324",     "1.7976931348623157e308",
        "0.1",         "-2.5e-7",    "9223372036854775807",
        "12345.678e9", "1e20",       "-9223372036854775808",
    };
    (void)depth;
    return json_loads(DRAW_FROM(numbers), JSON_DECODE_ANY, NULL);
}

static inline json_t *draw_string(void)
{
    static const char *const texts[] = { "",       "x",           "null",  "True", "</parameter>", "\n",
                                         "é🤗", "a\"b\\c",     "1e300", "#/a",  "<tool_call>",  "{",
                                         "\x7f",   "string date", " " };
    return json_string(DRAW_FROM(texts));
}

/* Draws the key before the value, since the evaluation order of arguments is undefined. */
static inline void set_drawn(json_t *object, const char *key, json_t *(*draw_value)(int), int depth)
{
    json_object_set_new(object, key, draw_value(depth));
}

static inline json_t *draw_constant(int depth)
{
    json_t *out;
    const size_t n = draw(4);
    switch (draw(depth > 0 ? 8 : 6)) {
    case 0: return json_null();
    case 1: return json_boolean(draw(2));
    case 2:
    case 3: return draw_number(0);
    case 6:
        out = json_array();
        for (size_t i = 0; i < n; i++)
            json_array_append_new(out, draw_constant(depth - 1));
        return out;
    case 7:
        out = json_object();
        for (size_t i = 0; i < n; i++)
            set_drawn(out, DRAW_FROM(schemas_names), draw_constant, depth - 1);
        return out;
    default: return draw_string();
    }
}

/* ---- Schemas ---- */

static inline json_t *draw_schema(int depth);

static inline json_t *draw_list(json_t *(*item)(int), int depth, size_t most)
{
    json_t *out = json_array();
    for (size_t i = draw(most + 1); i > 0; i--)
        json_array_append_new(out, item(depth));
    return out;
}

static inline json_t *draw_type(int depth)
{
    (void)depth;
    return json_string(DRAW_FROM(schemas_types));
}

static inline json_t *draw_name(int depth)
{
    (void)depth;
    return json_string(DRAW_FROM(schemas_names));
}

static inline json_t *draw_named_schemas(int depth)
{
    json_t *out = json_object();
    for (size_t i = draw(4); i > 0; i--)
        set_drawn(out, DRAW_FROM(schemas_names), draw_schema, depth);
    return out;
}

static inline json_t *draw_reference(void)
{
    static const char *const references[] = {
        "#",         "#/properties/a", "#/$defs/a",     "#/$defs/b",   "#a",           "#/anyOf/0",
        "#/allOf/1", "#/properties",   "http://a/b#/c", "#/%24defs/a", "#/$defs/a~1b", "#/enum/0",
        ""
    };
    return json_string(DRAW_FROM(references));
}

static inline json_t *draw_pattern(void)
{
    static const char *const patterns[] = { "^a+$",
                                            "(a|b){2,5}",
                                            "[^\\d]{0,100000}",
                                            "^(a*)*$",
                                            "(?<n",
                                            "\\",
                                            "[a-",
                                            "a{3,2}",
                                            "(?=x)y",
                                            "^.{1,300}$",
                                            "\\u{1f600}",
                                            "((((x))))",
                                            "^$|b",
                                            "é{2}",
                                            "[\\w\\W]*",
                                            "a{1,99}{2}",
                                            "^(?=.*a)(?!.*b).*$",
                                            "((?!a.{3}b)[ab])*",
                                            "\\p{L}+",
                                            "^[^\\P{Lu}]$",
                                            "\\bx\\B",
                                            "(^a|b$)",
                                            "\\p{Nope}",
                                            "(?!(?=a|(?!b)))",
                                            "^(?=(a|b)*c)(?=.{2,9}$)" };
    return json_string(DRAW_FROM(patterns));
}

static inline json_t *draw_format(int depth)
{
    (void)depth;
    static const char *const formats[] = { "date", "date-time", "uuid",          "email",
                                           "uri",  "ipv6",      "uri-reference", "unknown" };
    return json_string(DRAW_FROM(formats));
}

static inline json_t *draw_types(int depth)
{
    return draw(3) ? draw_type(depth) : draw_list(draw_type, depth, 4);
}

static inline json_t *draw_bound(int depth)
{
    (void)depth;
    return draw(6) ? draw_number(0) : json_boolean(draw(2));
}

static inline json_t *draw_constants(int depth)
{
    return draw(8) ? draw_list(draw_constant, depth, 5) : draw_constant(depth);
}

static inline json_t *draw_schemas(int depth)
{
    return draw_list(draw_schema, depth, 4);
}

static inline json_t *draw_names(int depth)
{
    return draw_list(draw_name, depth, 3);
}

static inline json_t *draw_dependencies(int depth)
{
    json_t *out = json_object();
    for (size_t i = draw(4); i > 0; i--)
        set_drawn(out, DRAW_FROM(schemas_names), draw(2) ? draw_names : draw_schema, depth);
    return out;
}

static inline json_t *draw_patterned(int depth)
{
    json_t *out = json_object();
    for (size_t i = draw(4); i > 0; i--) {
        json_t *pattern = draw_pattern();
        set_drawn(out, json_string_value(pattern), draw_schema, depth);
        json_decref(pattern);
    }
    return out;
}

/* Adds a keyword of conditions, or of sets. */
static inline void draw_condition(json_t *schema, int depth)
{
    static const char *const dependencies[] = { "dependentRequired", "dependentSchemas", "dependencies" },
                             *const parts[] = { "if", "then", "else", "not", "propertyNames" };
    switch (draw(5)) {
    case 0: json_object_set_new(schema, "uniqueItems", json_boolean(draw(4))); break;
    case 1: set_drawn(schema, DRAW_FROM(dependencies), draw_dependencies, depth - 1); break;
    case 2: set_drawn(schema, "patternProperties", draw_patterned, depth - 1); break;
    default: set_drawn(schema, DRAW_FROM(parts), draw_schema, depth - 1); break;
    }
}

/* Adds a keyword with an admissible value. */
static inline void draw_keyword(json_t *schema, int depth)
{
    switch (draw(depth > 0 ? 20 : 9)) {
    case 0:
    case 1: json_object_set_new(schema, "type", draw_types(0)); break;
    case 2:
    case 3: set_drawn(schema, DRAW_FROM(schemas_counts), draw_number, 0); break;
    case 4: set_drawn(schema, DRAW_FROM(schemas_bounds), draw_bound, 0); break;
    case 5: json_object_set_new(schema, "pattern", draw_pattern()); break;
    case 6: set_drawn(schema, draw(2) ? "enum" : "const", draw_constants, 2); break;
    case 7: json_object_set_new(schema, "$ref", draw_reference()); break;
    case 8: set_drawn(schema, draw(2) ? "format" : "$anchor", draw_format, 0); break;
    case 9:
    case 10: set_drawn(schema, DRAW_FROM(schemas_unions), draw_schemas, depth - 1); break;
    case 11: set_drawn(schema, draw(2) ? "properties" : "$defs", draw_named_schemas, depth - 1); break;
    case 12: json_object_set_new(schema, "required", draw_list(draw_name, 0, 3)); break;
    case 13: set_drawn(schema, draw(2) ? "items" : "additionalProperties", draw_schema, depth - 1); break;
    case 14: set_drawn(schema, draw(2) ? "prefixItems" : "items", draw_schemas, depth - 1); break;
    case 15:
    case 16:
    case 17:
    case 18: draw_condition(schema, depth); break;
    default: /* a branch without any type */
        json_object_set_new(schema, DRAW_FROM(schemas_unions), json_pack("[{s:s}]", "type", "null"));
        json_object_set_new(schema, "type", json_string("string"));
        break;
    }
}

static inline json_t *draw_schema(int depth)
{
    if (draw(12) == 0)
        return json_boolean(draw(2));
    json_t *out = json_object();
    for (size_t i = 1 + draw(4); i > 0; i--)
        draw_keyword(out, depth);
    return out;
}

/* Draws the parameters of a tool. */
static inline json_t *draw_parameters(void)
{
    json_t *out = json_pack("{s:s,s:o}", "type", "object", "properties", draw_named_schemas(3));
    for (size_t i = draw(4); i > 0; i--)
        draw_keyword(out, 2);
    return out;
}

/* ---- Mutation ---- */

/* A place in a JSON tree: a member or an item. */
typedef struct json_place {
    json_t *in;
    const char *key;
    size_t index;
} json_place;

enum { MAX_PLACES = 2048 };

static inline size_t find_places(json_t *in, json_place *places, size_t n)
{
    json_t *item;
    const char *key;
    size_t i;
    json_object_foreach(in, key, item)
    {
        if (n < MAX_PLACES)
            places[n++] = (json_place){ in, key, 0 };
        n = find_places(item, places, n);
    }
    json_array_foreach(in, i, item)
    {
        if (n < MAX_PLACES)
            places[n++] = (json_place){ in, NULL, i };
        n = find_places(item, places, n);
    }
    return n;
}

static inline json_t *get_place(const json_place *p)
{
    return p->key ? json_object_get(p->in, p->key) : json_array_get(p->in, p->index);
}

static inline void set_place(const json_place *p, json_t *value)
{
    if (p->key)
        json_object_set_new(p->in, p->key, value);
    else
        json_array_set_new(p->in, p->index, value);
}

/* Changes one place of a tree, which is an array or object. False if it has none. */
static inline bool mutate_json(json_t *tree)
{
    static json_place places[MAX_PLACES];
    const size_t n = find_places(tree, places, 0);
    if (!n)
        return false;
    const json_place to = places[draw(n)];
    json_t *value = get_place(&to);
    switch (draw(10)) {
    case 0: set_place(&to, draw_number(0)); break;
    case 1: set_place(&to, draw_constant(2)); break;
    case 2: set_place(&to, draw_schema(2)); break;
    case 3: set_place(&to, json_deep_copy(get_place(&places[draw(n)]))); break; /* copied from another place */
    case 4:
        if (to.key)
            json_object_del(to.in, to.key);
        else
            json_array_remove(to.in, to.index);
        break;
    case 5: set_place(&to, json_pack("{s:[O]}", DRAW_FROM(schemas_unions), value)); break;
    case 6: set_place(&to, json_pack("{s:[{s:s},O]}", DRAW_FROM(schemas_unions), "type", "null", value)); break;
    case 7:
        if (json_is_array(value))
            json_array_append_new(value, draw_constant(1));
        else if (json_is_object(value))
            draw_keyword(value, 2);
        else
            set_place(&to, draw_reference());
        break;
    case 8:
        if (json_is_object(value))
            set_drawn(value, DRAW_FROM(schemas_counts), draw_number, 0);
        else
            set_place(&to, draw_number(0));
        break;
    default:
        if (to.key) { /* moved to another keyword */
            const char *key = draw(2) ? DRAW_FROM(schemas_counts) : DRAW_FROM(schemas_bounds);
            json_object_set(to.in, key, value);
        }
        break;
    }
    return true;
}

#endif
