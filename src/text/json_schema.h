/* References and implied types of JSON Schema, for the parser of answers and the compiler of grammars. Schemas come
 * from strangers: their references may form cycles. */
#ifndef QN_TEXT_JSON_SCHEMA_H
#define QN_TEXT_JSON_SCHEMA_H

#include "quern/status.h"

#include <jansson.h>

#include <stdbool.h>
#include <stdint.h>

/* Sets of types. A number includes integers. */
enum {
    QN_IS_NULL = 1,
    QN_IS_BOOLEAN = 2,
    QN_IS_INTEGER = 4,
    QN_IS_NUMBER = 8,
    QN_IS_STRING = 16,
    QN_IS_ARRAY = 32,
    QN_IS_OBJECT = 64,
    QN_IS_ANY = 127 - QN_IS_INTEGER,
};

/* Limit of the steps of resolving, comparing and joining the schemas of one request. A step is a value that is
 * visited, or an item, of at most 64 bytes, that is copied. */
enum { QN_SCHEMA_STEPS = 1 << 22 };

/* qn_schema_resolve - finds the schema that a reference names in `root`: "#/a/b", or "#name" of an $anchor, alone or
 * after the root's own $id.
 *
 *   steps   the search for an anchor adds its steps
 *   out     borrowed; NULL after an error
 *
 * QN_ERR_INVALID: there is no such schema. QN_ERR_UNSUPPORTED: it is in another document, the reference is too long,
 * or steps exceeds QN_SCHEMA_STEPS. */
qn_status qn_schema_resolve(json_t *root, const char *reference, uint64_t *steps, json_t **out);

/* qn_schema_is_equal - whether two values are equal for a JSON schema, which compares numbers by value.
 *
 *   steps   is increased; above QN_SCHEMA_STEPS the result is false */
bool qn_schema_is_equal(json_t *a, json_t *b, uint64_t *steps);

/* qn_schema_implied_types - the types to which a schema's keywords apply, as QN_IS_...; 0: none of its keywords
 * implies a type. */
unsigned qn_schema_implied_types(const json_t *schema);

#endif
