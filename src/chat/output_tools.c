/* The names of tools and, for the form xml, the types that JSON schemas give their arguments. The JSON itself, which
 * may be large, is not needed while an answer is generated. */
#include "chat/output_tools.h"
#include "base/memory.h"
#include "chat/output_internal.h"
#include "text/json_schema.h"

#include <stdlib.h>
#include <string.h>

/* Schemas come from requests: references may form cycles, and lists may be long. Visits are counted and limited: 256
 * for a schema, 4 for a constant or a type name, 8 for a value that the search for an anchor visits. */
enum { PER_SCHEMA = 256, PER_CONSTANT = 4, PER_VALUE = 8, MAX_VISITS = 256 * PER_SCHEMA };

static const char *const type_names[N_VALUE_TYPES] = {
    [VALUE_STRING] = "string", [VALUE_INTEGER] = "integer", [VALUE_NUMBER] = "number", [VALUE_BOOLEAN] = "boolean",
    [VALUE_NULL] = "null",     [VALUE_ARRAY] = "array",     [VALUE_OBJECT] = "object",
};

const json_t *qn_output_tool_schema(const json_t *tool)
{
    const json_t *schema = json_object_get(tool, "parameters");
    return schema ? schema : json_object_get(tool, "input_schema");
}

struct walk {
    const json_t *root;
    uint64_t n_visits;
    qn_value_types *types;
    unsigned n_schemas; /* schemas that name types, or whose keywords imply them */
    bool has_string;    /* string is a type, but not in `types` yet: it comes last */
};

/* Counts visits; false when the limit is reached. */
static bool visit(struct walk *walk, uint64_t n)
{
    walk->n_visits = n < MAX_VISITS - walk->n_visits ? walk->n_visits + n : MAX_VISITS;
    return walk->n_visits < MAX_VISITS;
}

static bool has_type(const qn_value_types *types, qn_value_type type)
{
    for (size_t i = 0; i < types->n; i++)
        if (types->types[i] == type)
            return true;
    return false;
}

static void add_type(struct walk *walk, qn_value_type type)
{
    if (type == VALUE_STRING)
        walk->has_string = true;
    else if (!has_type(walk->types, type))
        walk->types->types[walk->types->n++] = type;
}

/* Returns the schema that a reference points to, or NULL. */
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

/* Adds the type of a JSON name. is_any_text: the name is in a list of types, and no keyword limits the text; the type
 * string then keeps its place in the list (order_types). Otherwise it comes last. */
static void add_named(struct walk *walk, const json_t *name, bool is_any_text)
{
    for (qn_value_type type = 0; type < N_VALUE_TYPES; type++)
        if (json_is_string(name) && !strcmp(json_string_value(name), type_names[type])) {
            add_type(walk, type);
            if (type == VALUE_STRING && is_any_text && !has_type(walk->types, type))
                walk->types->types[walk->types->n++] = type;
        }
}

/* Keywords with schemas that apply to the same value. */
static const char *const parts[] = { "anyOf", "oneOf", "allOf", "if", "then", "else", "$ref" };
enum { N_PARTS = sizeof parts / sizeof *parts, REFERENCE = N_PARTS - 1 };

/* Returns part `i` of a keyword, or NULL. */
static const json_t *part_of(struct walk *walk, const json_t *schema, size_t keyword, size_t i)
{
    const json_t *value = json_object_get(schema, parts[keyword]);
    if (walk->n_visits >= MAX_VISITS || (i > 0 && !json_is_array(value)))
        return NULL;
    if (json_is_array(value))
        return json_array_get(value, i);
    return keyword == REFERENCE && value ? resolve(walk, value) : value;
}

static bool is_any_text(const json_t *schema)
{
    static const char *const limits[] = { "enum", "const", "pattern", "format", "minLength", "maxLength" };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (json_object_get(schema, limits[i]))
            return false;
    return true;
}

/* Adds the types to which keywords apply, as grammars do. A number is recognised in a value of any type, too. */
static void add_implied(struct walk *walk, const json_t *schema)
{
    static const struct {
        unsigned bit;
        qn_value_type type;
    } types[] = { { QN_IS_NUMBER, VALUE_NUMBER },
                  { QN_IS_ARRAY, VALUE_ARRAY },
                  { QN_IS_OBJECT, VALUE_OBJECT },
                  { QN_IS_STRING, VALUE_STRING } };
    const unsigned implied = qn_schema_implied_types(schema);
    if (!implied || implied == QN_IS_NUMBER)
        return;
    walk->n_schemas++;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (implied & types[i].bit)
            add_type(walk, types[i].type);
}

static void collect(struct walk *walk, const json_t *schema)
{
    const json_t *list, *element;
    size_t i;
    if (!json_is_object(schema) || !visit(walk, PER_SCHEMA))
        return;
    if (json_is_true(json_object_get(schema, "nullable")))
        add_type(walk, VALUE_NULL);
    const unsigned n_before = walk->n_schemas;
    walk->n_schemas +=
        json_object_get(schema, "type") || json_object_get(schema, "const") || json_object_get(schema, "enum");
    if ((list = json_object_get(schema, "type"))) {
        add_named(walk, list, false);
        for (i = 0; i < json_array_size(list) && visit(walk, PER_CONSTANT); i++)
            add_named(walk, json_array_get(list, i), is_any_text(schema));
        return;
    }
    if ((element = json_object_get(schema, "const")))
        add_type_of(walk, element);
    list = json_object_get(schema, "enum");
    for (i = 0; i < json_array_size(list) && visit(walk, PER_CONSTANT); i++)
        add_type_of(walk, json_array_get(list, i));
    for (size_t k = 0; k < N_PARTS; k++)
        for (i = 0; (element = part_of(walk, schema, k, i)); i++)
            collect(walk, element);
    if (walk->n_schemas == n_before)
        add_implied(walk, schema);
}

/* Adds the type that a property has in a constant of `const` or `enum`. True if the constant has the property. */
static bool add_constant(struct walk *walk, const json_t *constant, const char *name)
{
    const json_t *value = json_object_get(constant, name);
    if (!value)
        return false;
    walk->n_schemas++;
    add_type_of(walk, value);
    return true;
}

static bool collect_constants(struct walk *walk, const json_t *schema, const char *name)
{
    const json_t *list = json_object_get(schema, "enum");
    bool is_named = add_constant(walk, json_object_get(schema, "const"), name);
    for (size_t i = 0; i < json_array_size(list) && visit(walk, PER_CONSTANT); i++)
        is_named |= add_constant(walk, json_array_get(list, i), name);
    return is_named;
}

/* Adds the types of a property from a schema of objects, its references and the schemas that it joins. name NULL: of
 * undeclared properties. True if a schema declares the property. */
static bool collect_property(struct walk *walk, const json_t *schema, const char *name)
{
    const json_t *property = name ? json_object_get(json_object_get(schema, "properties"), name)
                                  : json_object_get(schema, "additionalProperties"),
                 *part;
    json_t *matching;
    const char *pattern;
    bool is_named = property != NULL;
    if (!json_is_object(schema) || !visit(walk, PER_SCHEMA))
        return false;
    if (property)
        collect(walk, property);
    else if (name) /* another schema may declare it */
        collect(walk, json_object_get(schema, "additionalProperties"));
    if (name)
        is_named |= collect_constants(walk, schema, name);
    else
        json_object_foreach((json_t *)json_object_get(schema, "patternProperties"), pattern, matching)
            collect(walk, matching);
    for (size_t k = 0; k < N_PARTS; k++)
        for (size_t i = 0; (part = part_of(walk, schema, k, i)); i++)
            is_named |= collect_property(walk, part, name);
    return is_named;
}

/* Orders the types. A string in a single list of types has its place there; otherwise it is last, since any text is
 * a string. Null is first. */
static void order_types(struct walk *walk)
{
    qn_value_types *types = walk->types;
    size_t n = 0;
    const bool has_null = has_type(types, VALUE_NULL),
               is_last = walk->has_string && (walk->n_schemas > 1 || !has_type(types, VALUE_STRING));
    qn_value_types ordered = { .n = 0 };
    if (!walk->has_string)
        return;
    if (has_null)
        ordered.types[n++] = VALUE_NULL;
    for (size_t i = 0; i < types->n; i++)
        if (types->types[i] != VALUE_NULL && (types->types[i] != VALUE_STRING || !is_last))
            ordered.types[n++] = types->types[i];
    if (is_last)
        ordered.types[n++] = VALUE_STRING;
    ordered.n = n;
    *types = ordered;
}

/* Finds the types of argument `key`. *left: the number of visits allowed; reduced by those made. */
static void find_types(const json_t *schema, const char *key, size_t length, uint64_t *left, qn_value_types *types)
{
    const uint64_t begin = *left < MAX_VISITS ? MAX_VISITS - *left : 0;
    struct walk walk = { .root = schema, .n_visits = begin, .types = types };
    char name[QN_OUTPUT_MAX_NAME + 1];
    bool is_named = false;
    *types = (qn_value_types){ .n = 0 };
    if (length <= QN_OUTPUT_MAX_NAME) {
        memcpy(name, key, length);
        name[length] = '\0';
        is_named = collect_property(&walk, schema, name);
    }
    if (!is_named)
        collect_property(&walk, schema, NULL);
    order_types(&walk);
    *left -= walk.n_visits - begin;
    /* A value of any type is JSON if it can be read as JSON. */
    if (!types->n)
        for (qn_value_type type = VALUE_INTEGER; type < N_VALUE_TYPES; type++)
            types->types[types->n++] = type;
}

void qn_output_value_types(const json_t *schema, const char *key, size_t length, qn_value_types *types)
{
    uint64_t left = MAX_VISITS;
    find_types(schema, key, length, &left, types);
}

/* ---- Tools ---- */

/* Limit of visits for all tools, and in addition for each argument. Types that are not found within it are any. */
enum { VISITS_OF_TOOLS = 64 * MAX_VISITS, VISITS_OF_ARGUMENT = 8 * PER_SCHEMA };

/* An argument; its name is names[name .. name + length). */
typedef struct argument {
    uint32_t name;
    uint16_t length;
    uint8_t n_types, types[N_VALUE_TYPES];
} argument;

struct qn_output_tool {
    uint32_t name, length;
    uint32_t first, n; /* its declared arguments */
    argument other;    /* the types of undeclared ones */
};

struct qn_output_tools {
    size_t n_tools, n_arguments, n_names;
    size_t tool_capacity, argument_capacity, name_capacity;
    qn_output_tool *tools;
    argument *arguments;
    char *names;
};

struct build {
    qn_output_tools *to;
    uint64_t left; /* visits */
    json_t *found; /* names of the current tool's arguments */
    bool has_memory;
};

static qn_status add_name(qn_output_tools *to, const char *name, size_t length, uint32_t *at)
{
    size_t need;
    if (!qn_add_size(to->n_names, length, &need) || need > UINT32_MAX)
        return qn_fail(QN_ERR_MEMORY, "tools: their names do not fit in memory");
    QN_TRY(qn_realloc_array(&to->names, &to->name_capacity, need + 1, 1, "tools"));
    memcpy(to->names + to->n_names, name, length);
    *at = (uint32_t)to->n_names;
    to->n_names = need;
    return QN_OK;
}

static argument argument_of(const qn_value_types *types)
{
    argument a = { .n_types = (uint8_t)types->n };
    for (size_t i = 0; i < types->n; i++)
        a.types[i] = (uint8_t)types->types[i];
    return a;
}

/* Keeps the names of an object's members. */
static void keep_names(struct build *b, struct walk *walk, const json_t *object)
{
    const json_t *value;
    const char *name;
    json_object_foreach((json_t *)object, name, value)
    {
        if (!visit(walk, PER_CONSTANT))
            return;
        b->has_memory &= strlen(name) > QN_OUTPUT_MAX_NAME || !json_object_set_new(b->found, name, json_null());
    }
}

/* Finds the names of properties where collect_property looks for them. */
static void find_names(struct build *b, struct walk *walk, const json_t *schema)
{
    const json_t *list = json_object_get(schema, "enum"), *part;
    if (!json_is_object(schema) || !visit(walk, PER_SCHEMA))
        return;
    keep_names(b, walk, json_object_get(schema, "properties"));
    keep_names(b, walk, json_object_get(schema, "const"));
    for (size_t i = 0; i < json_array_size(list) && visit(walk, PER_CONSTANT); i++)
        keep_names(b, walk, json_array_get(list, i));
    for (size_t k = 0; k < N_PARTS; k++)
        for (size_t i = 0; (part = part_of(walk, schema, k, i)); i++)
            find_names(b, walk, part);
}

static qn_status add_arguments(struct build *b, const json_t *schema, qn_output_tool *tool)
{
    qn_output_tools *to = b->to;
    struct walk walk = { .root = schema };
    qn_value_types types;
    const char *name;
    json_t *value;
    json_object_clear(b->found);
    find_names(b, &walk, schema);
    if (!b->has_memory)
        return qn_fail(QN_ERR_MEMORY, "no memory for tools");
    tool->first = (uint32_t)to->n_arguments;
    json_object_foreach(b->found, name, value)
    {
        const size_t length = strlen(name);
        b->left += VISITS_OF_ARGUMENT;
        find_types(schema, name, length, &b->left, &types);
        QN_TRY(qn_realloc_array(&to->arguments, &to->argument_capacity, to->n_arguments + 1, sizeof *to->arguments,
                                "tools"));
        argument *a = &to->arguments[to->n_arguments++];
        *a = argument_of(&types);
        a->length = (uint16_t)length;
        QN_TRY(add_name(to, name, length, &a->name));
        tool->n++;
    }
    find_types(schema, "", SIZE_MAX, &b->left, &types); /* a length that no name has */
    tool->other = argument_of(&types);
    return QN_OK;
}

static qn_status add_tool(struct build *b, const json_t *entry, bool has_types)
{
    qn_output_tools *to = b->to;
    const json_t *function = json_object_get(entry, "function"), *name;
    function = function ? function : entry;
    name = json_object_get(function, "name");
    if (!json_is_string(name))
        return QN_OK;
    QN_TRY(qn_realloc_array(&to->tools, &to->tool_capacity, to->n_tools + 1, sizeof *to->tools, "tools"));
    qn_output_tool *tool = &to->tools[to->n_tools++];
    *tool = (qn_output_tool){ .length = (uint32_t)json_string_length(name) };
    QN_TRY(add_name(to, json_string_value(name), json_string_length(name), &tool->name));
    return has_types ? add_arguments(b, qn_output_tool_schema(function), tool) : QN_OK;
}

qn_status qn_output_tools_create(const json_t *tools, qn_output_form form, qn_output_tools **out)
{
    struct build b = { .left = VISITS_OF_TOOLS, .has_memory = true };
    *out = NULL;
    QN_TRY(qn_alloc(&b.to, 1, sizeof *b.to, "tools"));
    b.found = json_object();
    qn_status status = b.found ? QN_OK : qn_fail(QN_ERR_MEMORY, "no memory for tools");
    for (size_t i = 0; status == QN_OK && i < json_array_size(tools); i++)
        status = add_tool(&b, json_array_get(tools, i), form == QN_OUTPUT_XML);
    json_decref(b.found);
    if (status == QN_OK)
        *out = b.to;
    else
        qn_output_tools_free(b.to);
    return status;
}

void qn_output_tools_free(qn_output_tools *tools)
{
    if (!tools)
        return;
    free(tools->tools);
    free(tools->arguments);
    free(tools->names);
    qn_free(tools);
}

size_t qn_output_tools_bytes(const qn_output_tools *tools)
{
    return tools ? sizeof *tools + tools->tool_capacity * sizeof *tools->tools +
                       tools->argument_capacity * sizeof *tools->arguments + tools->name_capacity
                 : 0;
}

const qn_output_tool *qn_output_find_tool(const qn_output_tools *tools, const char *name, size_t length)
{
    for (size_t i = 0; tools && i < tools->n_tools; i++) {
        const qn_output_tool *tool = &tools->tools[i];
        if (tool->length == length && !memcmp(tools->names + tool->name, name, length))
            return tool;
    }
    return NULL;
}

const char *qn_output_argument_name(const qn_output_tools *tools, const qn_output_tool *tool, size_t i, size_t *length)
{
    const size_t first = tool ? tool->first : 0, n = tool ? tool->n : tools->n_arguments;
    if (i >= n)
        return NULL;
    *length = tools->arguments[first + i].length;
    return tools->names + tools->arguments[first + i].name;
}

int64_t qn_output_find_argument(const qn_output_tools *tools, const qn_output_tool *tool, const char *key,
                                size_t length)
{
    for (uint32_t i = 0; tool && i < tool->n; i++) {
        const argument *a = &tools->arguments[tool->first + i];
        if (a->length == length && !memcmp(tools->names + a->name, key, length))
            return i;
    }
    return -1;
}

void qn_output_argument_types(const qn_output_tools *tools, const qn_output_tool *tool, const char *key, size_t length,
                              qn_value_types *types)
{
    if (!tool) {
        qn_output_value_types(NULL, key, length, types);
        return;
    }
    const int64_t which = qn_output_find_argument(tools, tool, key, length);
    const argument *found = which < 0 ? &tool->other : &tools->arguments[tool->first + (uint32_t)which];
    *types = (qn_value_types){ .n = found->n_types };
    for (size_t i = 0; i < found->n_types; i++)
        types->types[i] = (qn_value_type)found->types[i];
}
