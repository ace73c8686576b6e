/* Fields of a body. What is missing or null leaves the value as it is; what has another type or range than expected is
 * refused with the field's name. */
#ifndef QN_PROTOCOL_JSON_BODY_H
#define QN_PROTOCOL_JSON_BODY_H

#include "protocol/protocol.h"

#include <jansson.h>

/* qn_field - a member of an object; NULL if it is missing or null. */
json_t *qn_field(const json_t *object, const char *name);

/* qn_json_is - whether a value is this string. */
bool qn_json_is(const json_t *value, const char *text);

/* qn_field_number, qn_field_integer, qn_field_bool - a value between two others, ends included. A real number without a
 * fraction is an integer. False: refused. */
bool qn_field_number(const json_t *object, const char *name, double least, double most, float *out, qn_refusal *refusal);
bool qn_field_integer(const json_t *object, const char *name, int64_t least, int64_t most, int64_t *out, qn_refusal *refusal);
bool qn_field_bool(const json_t *object, const char *name, bool *out, qn_refusal *refusal);

/* qn_json_integer_of - the integer that a value is; false if it is none. */
bool qn_json_integer_of(const json_t *value, int64_t *out);

/* qn_json_type_name - returns the name of a value's type for messages: "an object"; NULL: "missing". */
const char *qn_json_type_name(const json_t *value);

/* qn_refuse_type - refuse a field whose value is of another type than expected. qn_refuse_memory - for lack of memory. Both
 * return false. */
bool qn_refuse_type(qn_refusal *refusal, const char *name, const json_t *value, const char *expected);

/* qn_refuse_choice - refuse a field whose value is not one of those listed. Returns false. */
bool qn_refuse_choice(qn_refusal *refusal, const char *name, const json_t *value, const char *expected);
bool qn_refuse_memory(qn_refusal *refusal);

/* qn_refuse_over - for memory that an account did not have: 413 or 429; else for lack of memory. Returns false. */
bool qn_refuse_over(qn_account *account, qn_refusal *refusal);

/* ---- Memory of values ---- */

/* qn_reading_take - promise memory to values; false: they would be too many. qn_reading_refuse - the refusal after that, or for lack
 * of memory; returns false. qn_reading_end - nothing more is read; the bytes that stay promised. */
bool qn_reading_take(qn_reading *reading, size_t bytes);
bool qn_reading_refuse(const qn_reading *reading, qn_refusal *refusal);
size_t qn_reading_end(qn_reading *reading);

/* qn_reading_decode - the value that a text in a body is, counted with those of the body; NULL: it is none, or `is_over` is set. */
json_t *qn_reading_decode(qn_reading *reading, const char *text, size_t length);

/* qn_json_dump - append a value as JSON; a terminator follows it. */
void qn_json_dump(const json_t *value, qn_bytes *out);
/* qn_body_check_zeros - whether U+0000 is only where strings have lengths, as deep as the body is. False: refused. json_zeros.c. */
bool qn_body_check_zeros(const json_t *body, qn_refusal *refusal);

/* qn_limit - a limit, or its default where it is 0. */
static inline size_t qn_limit(uint32_t limit, uint32_t otherwise)
{
    return limit ? limit : otherwise;
}

#endif
