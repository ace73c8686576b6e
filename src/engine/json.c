/* JSON that a caller gives as text. */
#include "engine/internal.h"

#include "text/json_scan.h"

#include <stdlib.h>
#include <string.h>

/* Deeper JSON is refused before it is parsed. */
enum { MAX_DEPTH = 256, MAX_INTEGER = 18 };

/* A copy of JSON in which integers of more than 18 digits have ".0" behind them: they are beyond 64 bits, or may be. */
static char *with_reals(const char *text, size_t length, size_t *n)
{
    char *out = malloc(length + length / MAX_INTEGER * 2 + 3);
    bool is_inside = false;
    *n = 0;
    for (size_t i = 0; out && i < length;) {
        size_t digits = 0;
        while (!is_inside && i + digits < length && text[i + digits] >= '0' && text[i + digits] <= '9')
            digits++;
        const size_t taken = digits ? digits : is_inside && text[i] == '\\' && i + 1 < length ? 2 : 1;
        is_inside ^= text[i] == '"';
        memcpy(out + *n, text + i, taken);
        *n += taken;
        i += taken;
        const bool is_fraction = i > digits && memchr(".eE+", text[i - digits - 1], 4);
        if (digits > MAX_INTEGER && !is_fraction && (i == length || !memchr(".eE", text[i], 3))) {
            memcpy(out + *n, ".0", 2);
            *n += 2;
        }
    }
    return out;
}

qn_status qn_load_json(const char *what, const char *text, size_t length, size_t flags, json_t **out)
{
    json_error_t error;
    *out = NULL;
    if (qn_json_is_deeper(text, length, MAX_DEPTH))
        return qn_fail(QN_ERR_INVALID, "the %s is nested deeper than %d", what, MAX_DEPTH);
    flags |= JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL;
    *out = json_loadb(text, length, flags, &error);
    if (!*out && json_error_code(&error) == json_error_numeric_overflow) {
        size_t n;
        char *reals = with_reals(text, length, &n);
        if (reals)
            *out = json_loadb(reals, n, flags, NULL);
        free(reals);
    }
    if (!*out)
        return qn_fail(QN_ERR_INVALID, "the %s is not JSON: line %d, column %d: %s", what, error.line, error.column,
                       error.text);
    return QN_OK;
}
