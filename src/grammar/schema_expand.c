/* Conditions of schemas as alternatives, which schema.c compiles:
 *
 *   - `if`: `if` and `then`, or the negation of `if` and `else`. If `if` cannot be negated, `then` and `else` stand in
 *     for the latter. So every value that fits the alternatives validates, but some that validate may not fit.
 *   - `not`: the alternatives of its negation, if that is whole.
 *   - dependentRequired, dependentSchemas, dependencies: for each name, it does not occur, or what it requires holds.
 */
#include "grammar/schema_merge.h"

#include <string.h>

/* Longer lists are not read: schemas that need them are left out. */
enum { MAX_LIST = 256 };

/* What a name with requirements counts. */
enum { DEPENDENCY_STEPS = 64 };

static bool has(json_t *list, const char *name)
{
    json_t *item;
    size_t i;
    if (json_array_size(list) > MAX_LIST)
        return false;
    json_array_foreach(list, i, item) if (json_is_string(item) && !strcmp(json_string_value(item), name)) return true;
    return false;
}

static bool is_object(json_t *schema)
{
    const char *type = json_string_value(json_object_get(schema, "type"));
    return type && !strcmp(type, "object");
}

/* Returns the schemas of the same value, a new reference to a list. */
static json_t *list_known(json_t *schema, json_t *beside, uint64_t *steps)
{
    json_t *known = json_array();
    qn_schema_add(known, json_incref(schema), steps);
    if (beside)
        qn_schema_add(known, json_incref(beside), steps);
    return known;
}

/* Adds a part that has to hold, too, to a list that is made when there is one. The reference to the part is taken
 * over. */
static void add_part(json_t **parts, json_t *part, uint64_t *steps)
{
    if (!*parts)
        *parts = json_array();
    qn_schema_add(*parts, part, steps);
}

/* Adds a part: that one of the alternatives holds. The reference to the list is taken over. */
static void add_any_of(json_t **parts, json_t *alternatives, uint64_t *steps)
{
    (void)qn_schema_made(alternatives, steps);
    add_part(parts, json_array_size(alternatives) ? json_pack("{s:O}", "anyOf", alternatives) : json_false(), steps);
    json_decref(alternatives);
}

/* ---- if ---- */

/* Returns a condition with its properties required, and typed, as the other schemas of the same value say, a new
 * reference: that helps to show that alternatives are disjoint. */
static json_t *require_those(json_t *condition, json_t *schema, json_t *beside, uint64_t *steps)
{
    if (!json_is_object(condition))
        return json_incref(condition);
    json_t *out = qn_schema_copy(condition), *required = json_array(), *property;
    const char *key;
    if (json_is_array(json_object_get(condition, "required")))
        qn_schema_add_all(required, json_object_get(condition, "required"), steps);
    json_t *properties = json_object_get(condition, "properties");
    if (json_object_size(properties) > MAX_LIST)
        properties = NULL;
    json_object_foreach(properties, key, property) if (has(json_object_get(schema, "required"), key) ||
                                                       has(json_object_get(beside, "required"), key))
        qn_schema_add(required, json_string(key), steps);
    if (json_array_size(required))
        qn_schema_put(out, "required", json_incref(required), steps);
    json_decref(required);
    if (!json_object_get(out, "type") && (is_object(schema) || is_object(beside)))
        qn_schema_put(out, "type", json_string("object"), steps);
    return out;
}

/* Takes if, then and else out of `out`, the copy of the schema, and adds what they mean to the parts; so in the
 * functions below. */
static void expand_if(json_t *root, json_t *schema, json_t *beside, bool is_loose, uint64_t *steps, json_t *out,
                      json_t **parts)
{
    json_t *condition = json_object_get(schema, "if"), *then = json_object_get(schema, "then"),
           *otherwise = json_object_get(schema, "else"), *alternatives = json_array(), *other;
    bool is_whole;
    size_t i;
    json_object_del(out, "if");
    json_object_del(out, "then");
    json_object_del(out, "else");
    if (!condition || (!then && !otherwise)) {
        json_decref(alternatives);
        return;
    }
    then = then ? then : json_true();
    otherwise = otherwise ? otherwise : json_true();
    qn_schema_add(alternatives, json_pack("{s:[o,O]}", "allOf", require_those(condition, schema, beside, steps), then),
                  steps);
    json_t *known = list_known(schema, beside, steps);
    json_t *others = qn_schema_negate(root, condition, known, steps, &is_whole);
    json_array_foreach(others, i, other)
        qn_schema_add(alternatives, json_pack("{s:[O,O]}", "allOf", other, otherwise), steps);
    if (!is_whole)
        qn_schema_add(alternatives, json_pack("{s:[O,O]}", "allOf", then, otherwise), steps);
    json_decref(others);
    json_decref(known);
    if (is_whole || !is_loose)
        add_any_of(parts, alternatives, steps);
    else
        json_decref(alternatives);
}

/* ---- not ---- */

/* Rewrites `not` as its negation. What cannot be expressed stays a `not`, which the compiler refuses or ignores. */
static void expand_not(json_t *root, json_t *schema, json_t *beside, uint64_t *steps, json_t *out, json_t **parts)
{
    json_t *excluded = json_object_get(schema, "not");
    bool is_whole;
    if (!excluded || qn_schema_excludes_strings(schema))
        return;
    json_t *known = list_known(schema, beside, steps);
    json_t *others = qn_schema_negate(root, excluded, known, steps, &is_whole);
    json_decref(known);
    if (!is_whole) {
        json_decref(others);
        return;
    }
    json_object_del(out, "not");
    add_any_of(parts, others, steps);
}

/* ---- Dependencies ---- */

/* Returns the schema of what an object with a name needs: the name, and other names or a schema. A new reference. */
static json_t *with_name(const char *name, json_t *needed, uint64_t *steps)
{
    if (!json_is_array(needed))
        return json_pack("{s:[{s:s,s:[s]},O]}", "allOf", "type", "object", "required", name, needed);
    json_t *required = json_pack("[s]", name);
    qn_schema_add_all(required, needed, steps);
    return json_pack("{s:s,s:o}", "type", "object", "required", required);
}

/* Returns the schema of objects without a name, a new reference. Values that are no objects fit. */
static json_t *without_name(const char *name)
{
    return json_pack("{s:{s:b}}", "properties", name, 0);
}

static void expand_dependencies(json_t *schema, json_t *beside, const char *keyword, uint64_t *steps, json_t *out,
                                json_t **parts)
{
    json_t *dependencies = json_object_get(schema, keyword), *needed;
    const char *name;
    bool is_known = json_is_object(dependencies) && json_object_size(dependencies) <= MAX_LIST;
    json_object_foreach(dependencies, name, needed) is_known &=
        json_is_object(needed) || json_is_boolean(needed) ||
        (json_is_array(needed) && json_array_size(needed) <= MAX_LIST);
    json_object_foreach(dependencies, name, needed) *steps += DEPENDENCY_STEPS + json_array_size(needed);
    if (!is_known || *steps > QN_SCHEMA_STEPS)
        return;
    json_object_del(out, keyword);
    json_object_foreach(dependencies, name, needed)
    {
        json_t *with = with_name(name, needed, steps);
        if (has(json_object_get(schema, "required"), name) || has(json_object_get(beside, "required"), name))
            add_part(parts, with, steps);
        else
            add_any_of(parts, json_pack("[o,o]", with, without_name(name)), steps);
    }
}

/* ---- All ---- */

json_t *qn_schema_expand(json_t *root, json_t *schema, json_t *beside, bool is_loose, uint64_t *steps)
{
    static const char *const dependencies[] = { "dependentRequired", "dependentSchemas", "dependencies" };
    bool is_plain = !json_object_get(schema, "if") && !json_object_get(schema, "not");
    for (size_t i = 0; i < sizeof dependencies / sizeof *dependencies; i++)
        is_plain &= !json_object_get(schema, dependencies[i]);
    if (is_plain)
        return json_incref(schema);
    json_t *out = qn_schema_copy(schema), *parts = NULL;
    if (!out)
        return NULL;
    if (json_object_get(schema, "if"))
        expand_if(root, schema, beside, is_loose, steps, out, &parts);
    if (json_object_get(schema, "not"))
        expand_not(root, schema, beside, steps, out, &parts);
    for (size_t i = 0; i < sizeof dependencies / sizeof *dependencies; i++)
        if (json_object_get(schema, dependencies[i]))
            expand_dependencies(schema, beside, dependencies[i], steps, out, &parts);
    if (!parts)
        return out;
    /* The schema comes first, so that its properties keep their order. */
    if (json_object_size(out) && json_array_insert(parts, 0, out))
        *steps = QN_SCHEMA_NO_MEMORY;
    json_decref(out);
    return json_pack("{s:o}", "allOf", parts);
}
