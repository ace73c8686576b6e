/* The JSON of a body, read with limits, and its fields. */
#include "server/json_body.h"

#include "base/printable.h"
#include "text/json_decode.h"
#include "text/json_scan.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A value takes up to 250 bytes: a body of all that are allowed takes 40 MB. An agent's first request has 10,000. */
enum { MAX_DEPTH = 128, MAX_VALUES = 300000 };

/* ---- Refusals ---- */

bool qn_refuse(qn_refusal *refusal, int status, const char *code, const char *param, const char *format, ...)
{
    va_list arguments;
    *refusal = (qn_refusal){ .status = status, .code = code };
    snprintf(refusal->param, sizeof refusal->param, "%s", param ? param : "");
    va_start(arguments, format);
    vsnprintf(refusal->message, sizeof refusal->message, format, arguments);
    va_end(arguments);
    qn_mask(refusal->message);
    return false;
}

static const char *type_name(const json_t *value)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array", [JSON_STRING] = "a string", [JSON_INTEGER] = "an integer",
        [JSON_REAL] = "a number",    [JSON_TRUE] = "true",      [JSON_FALSE] = "false",     [JSON_NULL] = "null"
    };
    return value ? names[json_typeof(value)] : "missing";
}

bool qn_refuse_type(qn_refusal *refusal, const char *name, const json_t *value, const char *expected)
{
    return qn_refuse(refusal, 400, NULL, name, "'%s' is %s, expected %s", name, type_name(value), expected);
}

bool qn_refuse_memory(qn_refusal *refusal)
{
    return qn_refuse(refusal, 500, "out_of_memory", NULL, "no memory for the request");
}

/* ---- Reading ---- */

/* False: refused. */
static bool check_size(const char *text, size_t length, const qn_protocol_limits *limits, qn_refusal *refusal)
{
    const size_t depth = qn_limit(limits->depth, MAX_DEPTH), most = qn_limit(limits->values, MAX_VALUES);
    if (qn_json_is_deeper(text, length, depth))
        return qn_refuse(refusal, 400, "invalid_json", NULL, "the body is nested deeper than %zu", depth);
    const size_t n = qn_json_count(text, length);
    return n <= most ||
           qn_refuse(refusal, 400, "invalid_json", NULL, "the body has %zu values, at most %zu are allowed", n, most);
}

json_t *qn_body_read(const char *body, size_t length, const qn_protocol_limits *limits, qn_refusal *refusal)
{
    static const qn_protocol_limits defaults;
    json_error_t why;
    if (!check_size(body, length, limits ? limits : &defaults, refusal))
        return NULL;
    json_t *json = qn_json_decode(body, length, 0, &why);
    if (!json && json_error_code(&why) == json_error_out_of_memory)
        qn_refuse_memory(refusal);
    else if (!json)
        qn_refuse(refusal, 400, "invalid_json", NULL, "byte %d: %s", why.position, why.text);
    else if (!json_is_object(json))
        qn_refuse(refusal, 400, "invalid_json", NULL, "it is %s, expected an object", type_name(json));
    if (json_is_object(json) && qn_body_check_zeros(json, refusal))
        return json;
    json_decref(json);
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
    return json_is_string(value) && json_string_length(value) == strlen(text) && !strcmp(json_string_value(value), text);
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

bool qn_field_integer(const json_t *object, const char *name, int64_t least, int64_t most, int64_t *out, qn_refusal *refusal)
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
