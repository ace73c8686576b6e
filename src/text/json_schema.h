/* What JSON Schema says of references and keywords, for the parser of answers and the compiler of grammars. Schemas come from strangers:
 * their references may form cycles. */
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

/* The most steps that resolving, comparing and joining the schemas of one request take: values that are visited, and items that are
 * copied, of 64 bytes each at most. */
enum { QN_SCHEMA_STEPS = 1 << 22 };

/* qn_schema_resolve - finds the schema that a reference names in `root`: "#/a/b", or "#name" of an $anchor, alone or after the root's
 * own $id.
 *
 *   steps   counted up by the search for an anchor
 *   out     borrowed; NULL after an error
 *
 * QN_ERR_INVALID: there is none. QN_ERR_UNSUPPORTED: it is in another document, it is too long, or steps passed QN_SCHEMA_STEPS. */
qn_status qn_schema_resolve(json_t *root, const char *reference, uint64_t *steps, json_t **out);

/* qn_schema_is_equal - returns whether two values are equal to a JSON schema, which compares numbers by value.
 *
 *   steps   counted up; values are not equal once it passed QN_SCHEMA_STEPS */
bool qn_schema_is_equal(json_t *a, json_t *b, uint64_t *steps);

/* qn_schema_implied_types - returns the types that a schema's keywords are about, as QN_IS_...; 0: its keywords are about none. */
unsigned qn_schema_implied_types(const json_t *schema);

#endif
