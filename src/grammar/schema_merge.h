/* Joins JSON schemas that apply to the same value. Error texts do not contain the place. */
#ifndef QN_GRAMMAR_SCHEMA_MERGE_H
#define QN_GRAMMAR_SCHEMA_MERGE_H

#include "text/json_schema.h"

#include <stdbool.h>

/* A step counter that is not below this value: an allocation failed, and what was made since is incomplete. The counter
 * is then above QN_SCHEMA_STEPS, so the work ends soon; qn_schema_compile returns QN_ERR_MEMORY in the end. */
#define QN_SCHEMA_NO_MEMORY (UINT64_MAX / 2)

/* qn_schema_made - returns `value`. NULL stands for a failed allocation: *steps becomes QN_SCHEMA_NO_MEMORY. */
json_t *qn_schema_made(json_t *value, uint64_t *steps);

/* qn_schema_copy - a shallow copy of a value, as json_copy makes it, which leaves members out if an allocation fails. A
 * new reference; NULL without memory. */
json_t *qn_schema_copy(json_t *value);

/* Add a value, whose reference is taken over, to a list; all values of a list; a member to an object. If that fails, or
 * a value or the list is NULL, *steps becomes QN_SCHEMA_NO_MEMORY. */
void qn_schema_add(json_t *list, json_t *value, uint64_t *steps);
void qn_schema_add_all(json_t *list, json_t *values, uint64_t *steps);
void qn_schema_put(json_t *object, const char *key, json_t *value, uint64_t *steps);

/* qn_schema_is_disjoint - whether it can show that no value fits both schemas, by types, constants, bounds, or a
 * required property: the other schema forbids it, or the two schemas of it are disjoint.
 *
 *   steps   is increased; above QN_SCHEMA_STEPS the result is false */
bool qn_schema_is_disjoint(json_t *root, json_t *a, json_t *b, uint64_t *steps);

/* qn_schema_is_properties_first - whether `properties` is written before a keyword: then the schema's own properties
 * come before those of the keyword. */
bool qn_schema_is_properties_first(json_t *schema, const char *keyword);

/* Keywords of our own, each a list of regular expressions: a string has to match all, or must match none. No JSON text
 * has such a key, since it is no UTF-8. */
#define QN_SCHEMA_LIKE "pattern\xff"
#define QN_SCHEMA_UNLIKE "not pattern\xff"

/* qn_schema_is_note - whether a keyword is an annotation, which restricts nothing: those of JSON Schema, and all that
 * it does not know. */
bool qn_schema_is_note(const char *key);

/* qn_schema_restricts - whether a keyword restricts values, or may be meant to. */
bool qn_schema_restricts(const char *key);

/* qn_schema_is_standard_format - whether JSON Schema defines a format; others are annotations. */
bool qn_schema_is_standard_format(const char *name);

/* qn_schema_excludes_strings - whether `not` is nothing but a constant or an enum of strings: each is then excluded. */
bool qn_schema_excludes_strings(json_t *schema);

/* qn_schema_excluded - the strings that `not` excludes, if qn_schema_excludes_strings: a new reference to a list. NULL
 * without memory. */
json_t *qn_schema_excluded(json_t *schema);

/* qn_schema_unlike - the schema of strings that do not match a pattern. A new reference; NULL without memory. */
json_t *qn_schema_unlike(json_t *pattern);

/* qn_schema_with_exclusive_bounds - a copy of the schema with draft 4's boolean bounds as exclusive bounds. NULL
 * without memory. */
json_t *qn_schema_with_exclusive_bounds(json_t *schema);

/* qn_schema_negate - schemas that together are the negation of a schema. A new reference to a list.
 *
 *   known      schemas of the same value, a list: they say which values need not be considered
 *   steps      is increased; above QN_SCHEMA_STEPS the result is not whole, from QN_SCHEMA_NO_MEMORY on incomplete
 *   is_whole   false: some values fit neither the schema nor the alternatives */
json_t *qn_schema_negate(json_t *root, json_t *schema, json_t *known, uint64_t *steps, bool *is_whole);

/* qn_schema_expand - rewrites a schema with if, not, dependentRequired, dependentSchemas or dependencies as
 * alternatives, each of which accepts only values that validate. What cannot be rewritten stays. A new reference; NULL
 * without memory.
 *
 *   beside     another schema of the same value, or NULL: it helps to express negations
 *   is_loose   an `if` that cannot be rewritten exactly is left out: the result accepts all values that validate, and
 *              perhaps others
 *   steps      is increased; from QN_SCHEMA_NO_MEMORY on the result is incomplete */
json_t *qn_schema_expand(json_t *root, json_t *schema, json_t *beside, bool is_loose, uint64_t *steps);

/* qn_schema_no_memory - sets and returns the error of a failed allocation in a schema's compilation. */
qn_status qn_schema_no_memory(void);

/* qn_schema_merge - the schema of the values that fit both `a` and `b`. The properties of `a` come before further ones
 * of `b`. References in them are resolved in `root`.
 *
 *   is_loose   the result accepts all values that fit both and perhaps others, as qn_schema_is_disjoint needs it; else
 *              it may not accept all (qn_schema_expand)
 *   steps      is increased; QN_ERR_UNSUPPORTED above QN_SCHEMA_STEPS; QN_ERR_MEMORY from QN_SCHEMA_NO_MEMORY on
 *   out        a new reference
 *
 * QN_ERR_UNSUPPORTED for keywords that cannot be joined, such as two different formats. */
qn_status qn_schema_merge(json_t *root, json_t *a, json_t *b, bool is_loose, uint64_t *steps, json_t **out);

#endif
