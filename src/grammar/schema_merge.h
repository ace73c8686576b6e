/* Joins JSON schemas that apply to the same value. Error texts do not contain the place. */
#ifndef QN_GRAMMAR_SCHEMA_MERGE_H
#define QN_GRAMMAR_SCHEMA_MERGE_H

#include "text/json_schema.h"

#include <stdbool.h>

/* qn_schema_is_disjoint - whether it can show that no value fits both schemas, by types, constants, bounds, or a
 * required property: the other schema forbids it, or the two schemas of it are disjoint.
 *
 *   steps   is increased; above QN_SCHEMA_STEPS the result is false */
bool qn_schema_is_disjoint(json_t *root, json_t *a, json_t *b, uint64_t *steps);

/* qn_schema_is_properties_first - whether `properties` is written before a keyword: then the schema's own properties
 * come before those of the keyword. */
bool qn_schema_is_properties_first(json_t *schema, const char *keyword);

/* qn_schema_expand_if - rewrites a schema with if, then and else as alternatives, each of which accepts only values
 * that validate. A new reference; NULL without memory.
 *
 *   beside   another schema of the same value, or NULL: it helps to express the negation of `if` */
json_t *qn_schema_expand_if(json_t *schema, json_t *beside);

/* qn_schema_no_memory - sets and returns the error of a failed allocation in a schema's compilation. */
qn_status qn_schema_no_memory(void);

/* qn_schema_merge - the schema of the values that fit both `a` and `b`. The properties of `a` come before further ones
 * of `b`. References in them are resolved in `root`.
 *
 *   steps   is increased; QN_ERR_UNSUPPORTED above QN_SCHEMA_STEPS
 *   out     a new reference
 *
 * QN_ERR_UNSUPPORTED for keywords that cannot be joined: two different patterns, formats or negations. */
qn_status qn_schema_merge(json_t *root, json_t *a, json_t *b, uint64_t *steps, json_t **out);

#endif
