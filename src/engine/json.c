/* Parses JSON text given by a caller. */
#include "engine/internal.h"

#include "base/memory.h"
#include "gguf/json_decode.h"

/* Limit of the memory of parsed values: VALUES bytes, and VALUES_FACTOR bytes for each byte of the text. */
enum { VALUES = 24 << 20, VALUES_FACTOR = 2 };

qn_status qn_load_json(const char *what, const char *text, size_t length, size_t flags, json_t **out)
{
    json_error_t error;
    size_t left;
    if (!qn_mul_size(length, VALUES_FACTOR, &left) || !qn_add_size(left, VALUES, &left))
        left = SIZE_MAX;
    const qn_json_limits limits = { .take = qn_json_take, .user = &left };
    *out = qn_json_decode(text, length, flags, &limits, &error);
    if (!*out && json_error_code(&error) == json_error_stack_overflow)
        return qn_fail(QN_ERR_INVALID, "the %s is nested deeper than %d", what, QN_JSON_DEPTH);
    if (!*out && json_error_code(&error) == json_error_out_of_memory)
        return qn_fail(QN_ERR_INVALID, "the %s has more values than memory is allowed for", what);
    if (!*out)
        return qn_fail(QN_ERR_INVALID, "the %s is not JSON: line %d, column %d: %s", what, error.line, error.column,
                       error.text);
    return QN_OK;
}
