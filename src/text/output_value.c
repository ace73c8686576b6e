/* Values of the XML form of tool calls: the types that a tool's JSON schema gives an argument, and the value's text as
 * JSON. */
#include "text/grammar/schema_merge.h"
#include "text/output_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Schemas come with requests: references may form cycles, and lists be long. What is counted: 256 for a schema, 4 for a
 * constant or a name of a type, 8 for a value that the search for an anchor visits. */
enum { PER_SCHEMA = 256, PER_CONSTANT = 4, PER_VALUE = 8, MAX_VISITS = 256 * PER_SCHEMA };

static const char *const type_names[N_VALUE_TYPES] = {
    [VALUE_STRING] = "string", [VALUE_INTEGER] = "integer", [VALUE_NUMBER] = "number", [VALUE_BOOLEAN] = "boolean",
    [VALUE_NULL] = "null",     [VALUE_ARRAY] = "array",     [VALUE_OBJECT] = "object",
};

const json_t *qn_output_tool(const json_t *tools, const char *name, size_t length)
{
    size_t i;
    const json_t *tool;
    json_array_foreach(tools, i, tool)
    {
        const json_t *function = json_object_get(tool, "function"), *found;
        if (!function)
            function = tool;
        found = json_object_get(function, "name");
        if (json_is_string(found) && json_string_length(found) == length && !memcmp(json_string_value(found), name, length))
            return function;
    }
    return NULL;
}

const json_t *qn_output_tool_schema(const json_t *tool)
{
    const json_t *schema = json_object_get(tool, "parameters");
    return schema ? schema : json_object_get(tool, "input_schema");
}

struct walk {
    const json_t *root;
    uint64_t n_visits;
    qn_value_types *types;
};

/* Counts visits; false if they are too many. */
static bool visit(struct walk *walk, uint64_t n)
{
    walk->n_visits = n < MAX_VISITS - walk->n_visits ? walk->n_visits + n : MAX_VISITS;
    return walk->n_visits < MAX_VISITS;
}

static void add_type(struct walk *walk, qn_value_type type)
{
    qn_value_types *types = walk->types;
    for (size_t i = 0; i < types->n; i++)
        if (types->types[i] == type)
            return;
    types->types[types->n++] = type;
}

/* What a reference leads to, or NULL. */
static const json_t *resolve(struct walk *walk, const json_t *reference)
{
    json_t *target;
    if (!json_is_string(reference) || !visit(walk, PER_SCHEMA))
        return NULL;
    const uint64_t before = QN_SCHEMA_STEPS - (MAX_VISITS - walk->n_visits) / PER_VALUE;
    uint64_t steps = before;
    if (qn_schema_resolve((json_t *)walk->root, json_string_value(reference), &steps, &target) != QN_OK)
        return NULL;
    return visit(walk, PER_VALUE * (steps - before)) ? target : NULL;
}

/* The schema that references lead to, or NULL. */
static const json_t *dereference(struct walk *walk, const json_t *schema)
{
    const json_t *reference;
    while (schema && (reference = json_object_get(schema, "$ref")))
        schema = resolve(walk, reference);
    return schema;
}

static void add_type_of(struct walk *walk, const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_STRING: add_type(walk, VALUE_STRING); break;
    case JSON_INTEGER: add_type(walk, VALUE_INTEGER); break;
    case JSON_REAL: add_type(walk, VALUE_NUMBER); break;
    case JSON_TRUE:
    case JSON_FALSE: add_type(walk, VALUE_BOOLEAN); break;
    case JSON_NULL: add_type(walk, VALUE_NULL); break;
    case JSON_ARRAY: add_type(walk, VALUE_ARRAY); break;
    case JSON_OBJECT: add_type(walk, VALUE_OBJECT); break;
    }
}

static void add_named(struct walk *walk, const json_t *name)
{
    for (qn_value_type type = 0; type < N_VALUE_TYPES; type++)
        if (json_is_string(name) && !strcmp(json_string_value(name), type_names[type]))
            add_type(walk, type);
}

static const char *const unions[] = { "anyOf", "oneOf", "allOf" };
enum { N_UNIONS = sizeof unions / sizeof *unions };

static void collect(struct walk *walk, const json_t *schema)
{
    const json_t *list, *element;
    size_t i;
    if (!visit(walk, PER_SCHEMA))
        return;
    schema = dereference(walk, schema);
    if ((list = json_object_get(schema, "type"))) {
        add_named(walk, list);
        for (i = 0; i < json_array_size(list) && visit(walk, PER_CONSTANT); i++)
            add_named(walk, json_array_get(list, i));
        if (json_is_true(json_object_get(schema, "nullable")))
            add_type(walk, VALUE_NULL);
        return;
    }
    if ((element = json_object_get(schema, "const")))
        add_type_of(walk, element);
    list = json_object_get(schema, "enum");
    for (i = 0; i < json_array_size(list) && visit(walk, PER_CONSTANT); i++)
        add_type_of(walk, json_array_get(list, i));
    for (size_t u = 0; u < N_UNIONS; u++) {
        list = json_object_get(schema, unions[u]);
        for (i = 0; i < json_array_size(list) && walk->n_visits < MAX_VISITS; i++)
            collect(walk, json_array_get(list, i));
    }
    if (json_object_get(schema, "properties"))
        add_type(walk, VALUE_OBJECT);
    if (json_object_get(schema, "items"))
        add_type(walk, VALUE_ARRAY);
}

/* The types of a property of objects, in what their schema says itself, refers to or joins. True if one names the property. */
static bool collect_property(struct walk *walk, const json_t *schema, const char *name)
{
    const json_t *property = json_object_get(json_object_get(schema, "properties"), name), *list;
    const json_t *reference = json_object_get(schema, "$ref");
    bool is_named = property != NULL;
    size_t i;
    if (!json_is_object(schema) || !visit(walk, PER_SCHEMA))
        return false;
    if (property)
        collect(walk, property);
    if (reference)
        is_named |= collect_property(walk, resolve(walk, reference), name);
    for (size_t u = 0; u < N_UNIONS; u++) {
        list = json_object_get(schema, unions[u]);
        for (i = 0; i < json_array_size(list) && walk->n_visits < MAX_VISITS; i++)
            is_named |= collect_property(walk, json_array_get(list, i), name);
    }
    return is_named;
}

void qn_output_value_types(const json_t *schema, const char *key, size_t length, qn_value_types *types)
{
    struct walk walk = { .root = schema, .types = types };
    char name[MAX_NAME + 1];
    bool is_named = false;
    *types = (qn_value_types){ .n = 0 };
    if (length <= MAX_NAME) {
        memcpy(name, key, length);
        name[length] = '\0';
        is_named = collect_property(&walk, schema, name);
    }
    if (!is_named)
        collect(&walk, json_object_get(dereference(&walk, schema), "additionalProperties"));
    /* A value of any type is JSON if it can be read as JSON. */
    if (!types->n)
        for (qn_value_type type = VALUE_INTEGER; type < N_VALUE_TYPES; type++)
            types->types[types->n++] = type;
}

void qn_output_escape(qn_output_parser *p, qn_symbols *to, const char *text, size_t n)
{
    static const char controls[] = "\b\t\n\f\r", letters[] = "btnfr";
    for (size_t i = 0; i < n; i++) {
        const char c = text[i];
        char escape[8] = { '\\', c };
        const char *control = c ? strchr(controls, c) : NULL;
        if (control)
            escape[1] = letters[control - controls];
        else if ((unsigned char)c < 0x20)
            snprintf(escape, sizeof escape, "\\u%04x", (unsigned)c);
        if (control || c == '"' || c == '\\' || (unsigned char)c < 0x20)
            qn_output_append(p, to, escape, (unsigned char)c < 0x20 && !control ? 6 : 2);
        else
            qn_output_append(p, to, &c, 1);
    }
}

bool qn_output_is_null(const char *text, size_t n, bool partly)
{
    return (partly ? n <= 4 : n == 4) && (!memcmp(text, "null", n) || !memcmp(text, "None", n));
}

/* The JSON of a number that is an integer, or NULL: 1.0 is 1, and 1e3 stays. */
static const char *integer(const char *text, size_t n, size_t *length)
{
    char copy[64];
    if (*text != '-' && (*text < '0' || *text > '9'))
        return NULL;
    if (!memchr(text, '.', n) && !memchr(text, 'e', n) && !memchr(text, 'E', n))
        return text;
    if (n >= sizeof copy)
        return NULL;
    memcpy(copy, text, n);
    copy[n] = 0;
    const double number = strtod(copy, NULL);
    const size_t whole = strcspn(copy, ".eE");
    if (!isfinite(number) || number != floor(number))
        return NULL;
    *length = strspn(copy + whole, ".0") == n - whole ? whole : n;
    return text;
}

/* The JSON of a value that is an instance of the type, or NULL. Templates of Qwen3.5 print Python's names of constants. */
static const char *instance(qn_value_type type, const char *text, size_t n, size_t *length)
{
    static const struct {
        qn_value_type type;
        const char *name, *json;
    } constants[] = {
        { VALUE_BOOLEAN, "True", "true" },
        { VALUE_BOOLEAN, "False", "false" },
        { VALUE_NULL, "None", "null" },
    };
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (type == constants[i].type && n == strlen(constants[i].name) && !memcmp(text, constants[i].name, n)) {
            *length = strlen(constants[i].json);
            return constants[i].json;
        }
    if (!qn_json_is_value(text, n))
        return NULL;
    *length = n;
    bool is = false;
    const bool number = *text == '-' || (*text >= '0' && *text <= '9');
    switch (type) {
    case VALUE_INTEGER: return integer(text, n, length);
    case VALUE_NUMBER: is = number; break;
    case VALUE_BOOLEAN: is = *text == 't' || *text == 'f'; break;
    case VALUE_NULL: is = *text == 'n'; break;
    case VALUE_ARRAY: is = *text == '['; break;
    case VALUE_OBJECT: is = *text == '{'; break;
    case VALUE_STRING:
    case N_VALUE_TYPES: break;
    }
    return is ? text : NULL;
}

void qn_output_value(qn_output_parser *p, qn_symbols *to, const qn_value_types *types, const char *text, size_t n)
{
    const char *trimmed = text;
    size_t n_trimmed = n, length;
    for (; n_trimmed && qn_json_is_space(*trimmed); trimmed++)
        n_trimmed--;
    while (n_trimmed && qn_json_is_space(trimmed[n_trimmed - 1]))
        n_trimmed--;
    for (size_t i = 0; i < types->n && types->types[i] != VALUE_STRING; i++) {
        const char *json = instance(types->types[i], trimmed, n_trimmed, &length);
        if (json) {
            qn_output_append(p, to, json, length);
            return;
        }
    }
    qn_output_append(p, to, "\"", 1);
    qn_output_escape(p, to, text, n);
    qn_output_append(p, to, "\"", 1);
}
