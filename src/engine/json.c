/* JSON that a caller gives as text. */
#include "engine/internal.h"

#include "text/json_decode.h"
#include "text/json_scan.h"

/* Deeper JSON is refused before it is parsed. */
enum { MAX_DEPTH = 256 };

qn_status qn_load_json(const char *what, const char *text, size_t length, size_t flags, json_t **out)
{
    json_error_t error;
    *out = NULL;
    if (qn_json_is_deeper(text, length, MAX_DEPTH))
        return qn_fail(QN_ERR_INVALID, "the %s is nested deeper than %d", what, MAX_DEPTH);
    *out = qn_json_decode(text, length, flags, &error);
    if (!*out)
        return qn_fail(QN_ERR_INVALID, "the %s is not JSON: line %d, column %d: %s", what, error.line, error.column,
                       error.text);
    return QN_OK;
}
