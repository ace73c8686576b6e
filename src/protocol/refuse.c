/* Refusals of a body and of its fields. */
#include "protocol/json_body.h"

#include "base/printable.h"
#include "gguf/json_decode.h"

#include <stdarg.h>
#include <stdio.h>

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

const char *qn_json_type_name(const json_t *value)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a number",  [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",        [JSON_NULL] = "null"
    };
    return value ? names[json_typeof(value)] : "missing";
}

/* Names the type found; for a value of the right type its fault: it is empty, or not an integer. */
bool qn_refuse_type(qn_refusal *refusal, const char *name, const json_t *value, const char *expected)
{
    char number[QN_JSON_FOUND_BYTES];
    const bool is_empty =
        (json_is_array(value) && !json_array_size(value)) || (json_is_string(value) && !json_string_length(value));
    const char *found = json_is_real(value)    ? qn_json_found(value, number)
                        : !is_empty            ? qn_json_type_name(value)
                        : json_is_array(value) ? "an empty array"
                                               : "an empty string";
    return qn_refuse(refusal, 400, NULL, name, "'%s' is %s, expected %s", name, found, expected);
}

bool qn_refuse_choice(qn_refusal *refusal, const char *name, const json_t *value, const char *expected)
{
    char found[QN_JSON_FOUND_BYTES];
    return qn_refuse(refusal, 400, NULL, name, "'%s' is %s, expected %s", name, qn_json_found(value, found), expected);
}

bool qn_refuse_memory(qn_refusal *refusal)
{
    return qn_refuse(refusal, 500, "out_of_memory", NULL, "no memory for the request");
}

bool qn_refuse_over(qn_account *account, qn_refusal *refusal)
{
    switch (qn_account_refused(account)) {
    case QN_LIMIT_NONE: break;
    case QN_LIMIT_REQUEST:
        return qn_refuse(refusal, 413, "request_too_large", NULL,
                         "the request needs more memory than a request with a body of its length may use");
    case QN_LIMIT_CLIENT:
        return qn_refuse(refusal, 429, "overloaded", NULL,
                         "the requests of this client use all the memory that a client may use");
    case QN_LIMIT_SERVER:
        return qn_refuse(refusal, 429, "overloaded", NULL,
                         "the requests of all clients use all the memory for requests");
    }
    return qn_refuse_memory(refusal);
}
