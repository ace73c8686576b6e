/* Reads the JSON of a body, within limits, and its fields. */
#include "protocol/json_body.h"

#include "base/memory.h"
#include "base/printable.h"
#include "gguf/json_decode.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 128 };

/* ---- Memory of values ---- */

bool qn_reading_take(qn_reading *r, size_t bytes)
{
    enum { STEP = 16 << 10 }; /* so that memory is reserved in few steps */
    size_t more;
    if (bytes > r->left) {
        const size_t lacks = bytes - r->left;
        if (!qn_add_size(lacks, STEP, &more) || more > r->most - r->promised || !qn_account_take(r->account, more)) {
            r->is_over = true;
            return false;
        }
        r->promised += more;
        r->left += more;
    }
    r->left -= bytes;
    return true;
}

bool qn_reading_refuse(const qn_reading *r, qn_refusal *refusal)
{
    if (!r->is_over || qn_account_refused(r->account) != QN_LIMIT_NONE)
        return qn_refuse_over(r->account, refusal);
    return qn_refuse(refusal, 413, "request_too_large", NULL,
                     "the body has more values than a body of its length may have");
}

size_t qn_reading_end(qn_reading *r)
{
    qn_account_give(r->account, r->left);
    r->promised -= r->left;
    r->left = 0;
    return r->promised;
}

static bool take_values(void *reading, size_t bytes)
{
    return qn_reading_take(reading, bytes);
}

static json_t *decode(qn_reading *r, const char *text, size_t length, json_error_t *why)
{
    const uint32_t depth = r->limits ? r->limits->depth : 0;
    const qn_json_limits limits = { .depth = qn_limit(depth, MAX_DEPTH), .take = take_values, .user = r };
    return qn_json_decode(text, length, 0, &limits, why);
}

json_t *qn_reading_decode(qn_reading *r, const char *text, size_t length)
{
    json_error_t why;
    return decode(r, text, length, &why);
}

static int add_piece(const char *text, size_t length, void *out)
{
    qn_bytes_add(out, text, length);
    return ((const qn_bytes *)out)->has_failed ? -1 : 0;
}

void qn_json_dump(const json_t *value, qn_bytes *out)
{
    if (json_dump_callback(value, add_piece, out, JSON_COMPACT | JSON_ENCODE_ANY))
        out->has_failed = true;
    qn_bytes_add(out, "", 1);
    out->length -= !out->has_failed;
}

/* ---- Reading ---- */

json_t *qn_body_read(const char *body, size_t length, qn_reading *reading, qn_refusal *refusal)
{
    json_error_t why;
    size_t most;
    if (!qn_mul_size(length, QN_REQUEST_FACTOR, &most) || !qn_add_size(most, QN_REQUEST_MEMORY, &reading->most))
        reading->most = SIZE_MAX;
    json_t *json = decode(reading, body, length, &why);
    if (!json && json_error_code(&why) == json_error_out_of_memory)
        qn_reading_refuse(reading, refusal);
    else if (!json)
        qn_refuse(refusal, 400, "invalid_json", NULL, "byte %d: %s", why.position, why.text);
    else if (!json_is_object(json))
        qn_refuse(refusal, 400, "invalid_json", NULL, "the body is %s, expected an object", qn_json_type_name(json));
    if (json_is_object(json) && qn_body_check_zeros(json, refusal))
        return json;
    json_decref(json);
    qn_account_give(reading->account, qn_reading_end(reading));
    return NULL;
}

/* ---- Fields ---- */

json_t *qn_field(const json_t *object, const char *name)
{
    json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

bool qn_json_is(const json_t *value, const char *text)
{
    return json_is_string(value) && json_string_length(value) == strlen(text) &&
           !strcmp(json_string_value(value), text);
}

bool qn_field_number(const json_t *object, const char *name, double least, double most, float *out, qn_refusal *refusal)
{
    const json_t *value = qn_field(object, name);
    if (!value)
        return true;
    if (!json_is_number(value))
        return qn_refuse_type(refusal, name, value, "a number");
    const double number = json_number_value(value);
    if (!(number >= least && number <= most))
        return qn_refuse(refusal, 400, NULL, name, "'%s' is %g, expected %g to %g", name, number, least, most);
    *out = (float)number;
    return true;
}

bool qn_json_integer_of(const json_t *value, int64_t *out)
{
    const double real = json_real_value(value);
    if (json_is_integer(value))
        *out = json_integer_value(value);
    else if (json_is_real(value) && real == floor(real) && fabs(real) < 0x1p63)
        *out = (int64_t)real;
    else
        return false;
    return true;
}

bool qn_field_integer(const json_t *object, const char *name, int64_t least, int64_t most, int64_t *out,
                      qn_refusal *refusal)
{
    const json_t *value = qn_field(object, name);
    int64_t number;
    if (!value)
        return true;
    if (!qn_json_integer_of(value, &number))
        return qn_refuse_type(refusal, name, value, "an integer");
    if (number < least || number > most)
        return qn_refuse(refusal, 400, NULL, name, "'%s' is %lld, expected %lld to %lld", name, (long long)number,
                         (long long)least, (long long)most);
    *out = number;
    return true;
}

bool qn_field_bool(const json_t *object, const char *name, bool *out, qn_refusal *refusal)
{
    const json_t *value = qn_field(object, name);
    if (!value)
        return true;
    if (!json_is_boolean(value))
        return qn_refuse_type(refusal, name, value, "true or false");
    *out = json_is_true(value);
    return true;
}
