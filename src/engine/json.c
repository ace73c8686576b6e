/* JSON that a caller gives as text. */
#include "engine/internal.h"

#include "text/json_decode.h"
#include "text/json_scan.h"

qn_status qn_load_json(const char *what, const char *text, size_t length, size_t flags, json_t **out)
{
    json_error_t error;
    *out = NULL;
    *out = qn_json_decode(text, length, flags, NULL, &error);
    if (!*out && json_error_code(&error) == json_error_stack_overflow)
        return qn_fail(QN_ERR_INVALID, "the %s is nested deeper than %d", what, QN_JSON_MAX_DEPTH);
    if (!*out && json_error_code(&error) == json_error_out_of_memory)
        return qn_fail(QN_ERR_MEMORY, "no memory for the %s", what);
    if (!*out)
        return qn_fail(QN_ERR_INVALID, "the %s is not JSON: line %d, column %d: %s", what, error.line, error.column,
                       error.text);
    return QN_OK;
}
