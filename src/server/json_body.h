/* Fields of a body. What is missing or null leaves the value as it is; what has another type or range than expected is
 * refused with the field's name. */
#ifndef QN_SERVER_JSON_BODY_H
#define QN_SERVER_JSON_BODY_H

#include "server/protocol.h"

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

/* qn_refuse_type - refuse a field whose value is of another type than expected. qn_refuse_memory - for lack of memory. Both
 * return false. */
bool qn_refuse_type(qn_refusal *refusal, const char *name, const json_t *value, const char *expected);
bool qn_refuse_memory(qn_refusal *refusal);

/* qn_body_check_zeros - whether U+0000 is only where strings have lengths, as deep as the body is. False: refused. json_zeros.c. */
bool qn_body_check_zeros(const json_t *body, qn_refusal *refusal);

/* qn_limit - a limit, or its default where it is 0. */
static inline size_t qn_limit(uint32_t limit, uint32_t otherwise)
{
    return limit ? limit : otherwise;
}

#endif
