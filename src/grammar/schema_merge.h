/* Joining JSON schemas that apply to the same value. Error texts lack the place. */
#ifndef QN_GRAMMAR_SCHEMA_MERGE_H
#define QN_GRAMMAR_SCHEMA_MERGE_H

#include "text/json_schema.h"

#include <stdbool.h>

/* qn_schema_is_disjoint - whether it is shown that no value fits both schemas: by types, constants, bounds, or a required
 * property that the other forbids or of which the same is shown.
 *
 *   steps   counted up; above QN_SCHEMA_STEPS nothing is shown */
bool qn_schema_is_disjoint(json_t *root, json_t *a, json_t *b, uint64_t *steps);

/* qn_schema_is_properties_first - whether a schema's own properties come before those of a keyword that is joined with them: where
 * `properties` is written before it. */
bool qn_schema_is_properties_first(json_t *schema, const char *keyword);

/* qn_schema_expand_if - a schema with if, then and else as alternatives, none of which has what does not validate. A new reference;
 * NULL without memory.
 *
 *   beside   another schema of the same value, or NULL: it helps to say what `if` is not */
json_t *qn_schema_expand_if(json_t *schema, json_t *beside);

/* qn_schema_no_memory - sets the error of a failed allocation while a schema is compiled, and returns it. */
qn_status qn_schema_no_memory(void);

/* qn_schema_merge - the schema of the values that fit both `a` and `b`, with the properties of `a` before others of `b`.
 * References in them are resolved in `root`.
 *
 *   steps   counted up; QN_ERR_UNSUPPORTED above QN_SCHEMA_STEPS
 *   out     a new reference
 *
 * QN_ERR_UNSUPPORTED for keywords that cannot be joined: two patterns, formats or negations that differ. */
qn_status qn_schema_merge(json_t *root, json_t *a, json_t *b, uint64_t *steps, json_t **out);

#endif
