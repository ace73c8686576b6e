/* Reads fields of a body. A missing or null field leaves the value unchanged; a field of another type or range than
 * expected is refused, with its name. */
#ifndef QN_PROTOCOL_JSON_BODY_H
#define QN_PROTOCOL_JSON_BODY_H

#include "protocol/protocol.h"

#include <jansson.h>

/* qn_field - returns a member of an object, borrowed from it; NULL: missing or null. */
json_t *qn_field(const json_t *object, const char *name);

/* qn_json_is - whether a value is a given string. */
bool qn_json_is(const json_t *value, const char *text);

/* qn_field_number - read a number from least to most. False: refused. */
bool qn_field_number(const json_t *object, const char *name, double least, double most, float *out,
                     qn_refusal *refusal);

/* qn_field_integer - read an integer from least to most. A real number without a fraction is an integer. False:
 * refused. */
bool qn_field_integer(const json_t *object, const char *name, int64_t least, int64_t most, int64_t *out,
                      qn_refusal *refusal);

/* qn_field_bool - read true or false. False: refused. */
bool qn_field_bool(const json_t *object, const char *name, bool *out, qn_refusal *refusal);

/* qn_json_integer_of - read a value that is an integer. False: it is not. */
bool qn_json_integer_of(const json_t *value, int64_t *out);

/* qn_json_type_name - returns the name of a value's type for messages: "an object"; NULL: "missing". */
const char *qn_json_type_name(const json_t *value);

/* qn_refuse_type - refuse a field that has another type than expected. Returns false. */
bool qn_refuse_type(qn_refusal *refusal, const char *name, const json_t *value, const char *expected);

/* qn_refuse_choice - refuse a field that has none of the values in `expected`. Returns false. */
bool qn_refuse_choice(qn_refusal *refusal, const char *name, const json_t *value, const char *expected);

/* qn_refuse_memory - refuse for lack of memory, 500. Returns false. */
bool qn_refuse_memory(qn_refusal *refusal);

/* qn_refuse_over - refuse because an account has no memory left, 413 or 429, or else for lack of memory. Returns
 * false. */
bool qn_refuse_over(qn_account *account, qn_refusal *refusal);

/* ---- Memory of values ---- */

/* qn_reading_take - reserve memory for values. False: they would need too much; is_over is set. */
bool qn_reading_take(qn_reading *reading, size_t bytes);

/* qn_reading_refuse - the refusal after qn_reading_take returned false, or else for lack of memory. Returns false. */
bool qn_reading_refuse(const qn_reading *reading, qn_refusal *refusal);

/* qn_reading_end - the body was read: give back what was reserved but not used. Returns the bytes that stay
 * reserved. */
size_t qn_reading_end(qn_reading *reading);

/* qn_reading_decode - parse a JSON text that is a string of the body; its values count as values of the body. Returns a
 * new reference; NULL: it is not JSON, or is_over is set. */
json_t *qn_reading_decode(qn_reading *reading, const char *text, size_t length);

/* qn_json_dump - append a value as JSON, with a zero byte after the last. */
void qn_json_dump(const json_t *value, qn_bytes *out);

/* qn_body_check_zeros - check that U+0000 is only in texts that are read by their length. False: refused. In
 * json_zeros.c. */
bool qn_body_check_zeros(const json_t *body, qn_refusal *refusal);

/* qn_limit - returns a limit, or `otherwise` if it is 0. */
static inline size_t qn_limit(uint32_t limit, uint32_t otherwise)
{
    return limit ? limit : otherwise;
}

#endif
