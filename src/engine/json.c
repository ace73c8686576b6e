/* JSON that a caller gives as text. */
#include "engine/internal.h"

/* Deeper JSON is refused before it is parsed. */
enum { MAX_DEPTH = 256 };

static qn_status check_depth(const char *what, const char *text, size_t length)
{
    size_t depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < length; i++) {
        const char c = text[i];
        if (in_string) {
            i += c == '\\';
            in_string = c != '"';
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            if (++depth > MAX_DEPTH)
                return qn_fail(QN_ERR_INVALID, "the %s is nested deeper than %d", what, MAX_DEPTH);
        } else if (c == ']' || c == '}') {
            depth -= depth > 0;
        }
    }
    return QN_OK;
}

qn_status qn_load_json(const char *what, const char *text, size_t length, size_t flags, json_t **out)
{
    json_error_t error;
    *out = NULL;
    QN_TRY(check_depth(what, text, length));
    *out = json_loadb(text, length, flags | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!*out)
        return qn_fail(QN_ERR_INVALID, "the %s is not JSON: line %d, column %d: %s", what, error.line, error.column,
                       error.text);
    return QN_OK;
}
