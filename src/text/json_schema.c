/* References of JSON schemas, equality of values, and the types that keywords imply. */
#include "text/json_schema.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of a text whose comparison counts as one step. */
enum { BYTES_A_STEP = 32 };

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
}

/* Decodes the percent-encoding of a URI's fragment. False if it is too long. */
static bool decode(const char *fragment, char *out, size_t size)
{
    size_t n = 0;
    for (const char *p = fragment; *p; p++) {
        const int high = *p == '%' ? hex_digit(p[1]) : -1, low = high >= 0 ? hex_digit(p[2]) : -1;
        if (n + 1 >= size)
            return false;
        out[n++] = low >= 0 ? (char)(high << 4 | low) : *p;
        p += low >= 0 ? 2 : 0;
    }
    out[n] = 0;
    return true;
}

/* Returns the schema with $anchor `name` in `value`. NULL if there is none, or after too many steps. */
static json_t *find_anchor(json_t *value, const char *name, uint64_t *steps)
{
    json_t *item, *found = NULL;
    const char *key;
    if (++*steps > QN_SCHEMA_STEPS)
        return NULL;
    const char *anchor = json_string_value(json_object_get(value, "$anchor"));
    if (anchor && !strcmp(anchor, name))
        return value;
    *steps += json_object_size(value) + json_array_size(value);
    json_object_foreach(value, key, item)
    {
        if (found || *steps > QN_SCHEMA_STEPS)
            break;
        if (json_is_object(item) || json_is_array(item))
            found = find_anchor(item, name, steps);
    }
    for (size_t i = 0; i < json_array_size(value) && !found && *steps <= QN_SCHEMA_STEPS; i++)
        if (json_is_object(item = json_array_get(value, i)) || json_is_array(item))
            found = find_anchor(item, name, steps);
    return found;
}

/* Returns the value that a JSON pointer points to, or NULL. */
static json_t *follow(json_t *at, char *pointer)
{
    bool is_step = *pointer == '/';
    while (at && is_step) {
        char *key = ++pointer, *to = pointer;
        for (; *pointer && *pointer != '/'; pointer++) {
            const bool is_escape = *pointer == '~' && (pointer[1] == '0' || pointer[1] == '1');
            *to++ = !is_escape ? *pointer : pointer[1] == '0' ? '~' : '/';
            pointer += is_escape;
        }
        is_step = *pointer == '/';
        *to = 0;
        if (json_is_array(at))
            at = *key && strspn(key, "0123456789") == strlen(key) ? json_array_get(at, strtoul(key, NULL, 10)) : NULL;
        else
            at = json_object_get(at, key);
    }
    return at;
}

qn_status qn_schema_resolve(json_t *root, const char *reference, uint64_t *steps, json_t **out)
{
    char fragment[1024];
    const char *id = json_string_value(json_object_get(root, "$id")), *p = reference;
    const size_t n_id = id ? strcspn(id, "#") : 0;
    *out = NULL;
    if (n_id && !strncmp(p, id, n_id) && (p[n_id] == '#' || !p[n_id]))
        p += n_id;
    if (*p != '#' && (*p || p == reference))
        return qn_fail(QN_ERR_UNSUPPORTED, "$ref '%s' is outside the schema", reference);
    p += *p == '#';
    if (!decode(p, fragment, sizeof fragment))
        return qn_fail(QN_ERR_UNSUPPORTED, "$ref '%.80s...' is too long: %zu bytes", reference, strlen(reference));
    if (*fragment && *fragment != '/') {
        *out = find_anchor(root, fragment, steps);
        if (*steps > QN_SCHEMA_STEPS)
            return qn_fail(QN_ERR_UNSUPPORTED, "$ref '%s': too many references to anchors", reference);
    } else {
        *out = follow(root, fragment);
    }
    return *out ? QN_OK : qn_fail(QN_ERR_INVALID, "$ref '%s': there is no such schema", reference);
}

/* Each set of keywords that apply to one type implies it. */
unsigned qn_schema_implied_types(const json_t *schema)
{
    static const struct {
        const char *keyword;
        unsigned types;
    } implied[] = { { "properties", QN_IS_OBJECT },
                    { "required", QN_IS_OBJECT },
                    { "additionalProperties", QN_IS_OBJECT },
                    { "patternProperties", QN_IS_OBJECT },
                    { "propertyNames", QN_IS_OBJECT },
                    { "minProperties", QN_IS_OBJECT },
                    { "maxProperties", QN_IS_OBJECT },
                    { "dependentRequired", QN_IS_OBJECT },
                    { "dependentSchemas", QN_IS_OBJECT },
                    { "dependencies", QN_IS_OBJECT },
                    { "items", QN_IS_ARRAY },
                    { "prefixItems", QN_IS_ARRAY },
                    { "minItems", QN_IS_ARRAY },
                    { "maxItems", QN_IS_ARRAY },
                    { "uniqueItems", QN_IS_ARRAY },
                    { "minLength", QN_IS_STRING },
                    { "maxLength", QN_IS_STRING },
                    { "pattern", QN_IS_STRING },
                    { "format", QN_IS_STRING },
                    { "minimum", QN_IS_NUMBER },
                    { "maximum", QN_IS_NUMBER },
                    { "exclusiveMinimum", QN_IS_NUMBER },
                    { "exclusiveMaximum", QN_IS_NUMBER },
                    { "multipleOf", QN_IS_NUMBER } };
    unsigned types = 0;
    for (size_t i = 0; i < sizeof implied / sizeof *implied; i++)
        if (json_object_get(schema, implied[i].keyword))
            types |= implied[i].types;
    return types;
}

bool qn_schema_is_equal(json_t *a, json_t *b, uint64_t *steps)
{
    json_t *item;
    const char *key;
    size_t i;
    if (++*steps > QN_SCHEMA_STEPS)
        return false;
    if (a == b)
        return true;
    if (json_is_string(a) && json_is_string(b))
        *steps += json_string_length(a) / BYTES_A_STEP;
    if (json_is_number(a) && json_is_number(b) && !(json_is_integer(a) && json_is_integer(b)))
        return json_number_value(a) == json_number_value(b);
    if (json_typeof(a) != json_typeof(b) || json_array_size(a) != json_array_size(b) ||
        json_object_size(a) != json_object_size(b))
        return false;
    if (!json_is_array(a) && !json_is_object(a))
        return json_equal(a, b);
    json_array_foreach(a, i, item) if (!qn_schema_is_equal(item, json_array_get(b, i), steps)) return false;
    json_object_foreach(a, key, item)
    {
        json_t *other = json_object_get(b, key);
        if (!other || !qn_schema_is_equal(item, other, steps))
            return false;
    }
    return true;
}
