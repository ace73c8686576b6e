/* The keywords of JSON Schema: which of them the compiler knows, which restrict nothing, and which a schema may have
 * meant; the values of some. Other keywords are annotations, as JSON Schema says (2020-12 core, 6.5). */
#include "grammar/schema.h"

#include <string.h>
#include <strings.h>

static const char *const notes[] = { "title",
                                     "description",
                                     "default",
                                     "examples",
                                     "example",
                                     "$schema",
                                     "$id",
                                     "id",
                                     "$comment",
                                     "$anchor",
                                     "$vocabulary",
                                     "$dynamicAnchor",
                                     "deprecated",
                                     "readOnly",
                                     "writeOnly",
                                     "$defs",
                                     "definitions",
                                     "contentEncoding",
                                     "contentSchema",
                                     "contentMediaType",
                                     "discriminator",
                                     "$recursiveAnchor",
                                     NULL };
static const char *const supported[] = { "type",
                                         "enum",
                                         "const",
                                         "properties",
                                         "required",
                                         "additionalProperties",
                                         "patternProperties",
                                         "propertyNames",
                                         "minProperties",
                                         "maxProperties",
                                         "items",
                                         "prefixItems",
                                         "additionalItems",
                                         "minItems",
                                         "maxItems",
                                         "uniqueItems",
                                         "minLength",
                                         "maxLength",
                                         "pattern",
                                         "format",
                                         "minimum",
                                         "maximum",
                                         "exclusiveMinimum",
                                         "exclusiveMaximum",
                                         "multipleOf",
                                         "anyOf",
                                         "oneOf",
                                         "allOf",
                                         "if",
                                         "then",
                                         "else",
                                         "$ref",
                                         QN_SCHEMA_LIKE,
                                         QN_SCHEMA_UNLIKE,
                                         NULL };

/* Of the drafts from 3 on. `not` and dependencies are rewritten (schema_expand.c) unless that is not possible. */
static const char *const unsupported[] = { "not",
                                           "dependentRequired",
                                           "dependentSchemas",
                                           "dependencies",
                                           "contains",
                                           "minContains",
                                           "maxContains",
                                           "unevaluatedItems",
                                           "unevaluatedProperties",
                                           "$dynamicRef",
                                           "$recursiveRef",
                                           "divisibleBy",
                                           "disallow",
                                           "extends",
                                           "nullable",
                                           NULL };

static bool is_in(const char *key, const char *const *list)
{
    for (; *list; list++)
        if (!strcmp(key, *list))
            return true;
    return false;
}

bool qn_schema_is_note(const char *key)
{
    return is_in(key, notes) || !(is_in(key, supported) || is_in(key, unsupported));
}

bool qn_schema_is_unsupported(const char *key)
{
    return is_in(key, unsupported);
}

/* Whether two names differ in one character: another one, one more or one less. */
static bool differ_in_one(const char *a, const char *b)
{
    const size_t n_a = strlen(a), n_b = strlen(b), n = n_a < n_b ? n_a : n_b;
    size_t begin = 0, end = 0;
    if (n_a > n_b + 1 || n_b > n_a + 1)
        return false;
    while (begin < n && a[begin] == b[begin])
        begin++;
    while (end < n - begin && a[n_a - 1 - end] == b[n_b - 1 - end])
        end++;
    return (n_a > n_b ? n_a : n_b) - begin - end == 1;
}

/* Names that begin with a sign were chosen to differ. */
const char *qn_schema_meant_keyword(const char *key)
{
    static const char *const *const lists[] = { supported, unsupported };
    if (!(key[0] >= 'a' && key[0] <= 'z') && !(key[0] >= 'A' && key[0] <= 'Z'))
        return NULL;
    if (!qn_schema_is_note(key) || is_in(key, notes))
        return NULL;
    for (int list = 0; list < 2; list++)
        for (const char *const *k = lists[list]; *k; k++)
            if (!strcasecmp(key, *k) || (strlen(*k) >= 4 && differ_in_one(key, *k)))
                return *k;
    return NULL;
}

bool qn_schema_restricts(const char *key)
{
    return !qn_schema_is_note(key) || qn_schema_meant_keyword(key);
}

/* ---- Values of keywords ---- */

json_t *qn_schema_unlike(json_t *pattern)
{
    json_t *list = json_pack("[O]", pattern), *out = json_pack("{s:s}", "type", "string");
    if (json_object_set_new_nocheck(out, QN_SCHEMA_UNLIKE, list) == 0)
        return out;
    json_decref(out);
    return NULL;
}

bool qn_schema_excludes_strings(json_t *schema)
{
    json_t *excluded = json_object_get(schema, "not"), *constant = json_object_get(excluded, "const"),
           *list = json_object_get(excluded, "enum"), *value;
    bool are_strings = json_object_size(excluded) == 1 && (json_is_string(constant) || json_is_array(list));
    size_t i;
    json_array_foreach(list, i, value) are_strings &= json_is_string(value);
    return are_strings;
}

json_t *qn_schema_excluded(json_t *schema)
{
    json_t *excluded = json_object_get(schema, "not"), *constant = json_object_get(excluded, "const");
    return constant ? json_pack("[O]", constant) : json_incref(json_object_get(excluded, "enum"));
}

json_t *qn_schema_with_exclusive_bounds(json_t *schema)
{
    static const char *const bounds[][2] = { { "minimum", "exclusiveMinimum" }, { "maximum", "exclusiveMaximum" } };
    json_t *out = qn_schema_copy(schema);
    for (int i = 0; i < 2; i++) {
        json_t *is_exclusive = json_object_get(out, bounds[i][1]), *bound = json_object_get(out, bounds[i][0]);
        if (!json_is_boolean(is_exclusive))
            continue;
        if (json_is_true(is_exclusive) && json_is_number(bound)) {
            if (json_object_set(out, bounds[i][1], bound)) {
                json_decref(out);
                return NULL;
            }
            json_object_del(out, bounds[i][0]);
        } else {
            json_object_del(out, bounds[i][1]);
        }
    }
    return out;
}
