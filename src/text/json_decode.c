/* Reads JSON with Jansson, over a copy of the text where Jansson would refuse it. */
#include "text/json_decode.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* ---- Surrogates ---- */

/* An escape \udXxx whose X is one of these digits. */
static bool is_escape(const char *text, size_t length, const char *digits)
{
    return length >= 6 && !memcmp(text, "\\u", 2) && (text[2] | 32) == 'd' && memchr(digits, text[3] | 32, 4) &&
           isxdigit((unsigned char)text[4]) && isxdigit((unsigned char)text[5]);
}

/* Calls `replace` for each escape of a surrogate that is not in a pair; stops where it returns false. */
static bool each_surrogate(const char *text, size_t length, bool (*replace)(size_t at, void *user), void *user)
{
    const char *next;
    for (size_t i = 0; i < length && (next = memchr(text + i, '\\', length - i));) {
        i = (size_t)(next - text);
        const bool is_high = is_escape(text + i, length - i, "89ab"), is_low = is_escape(text + i, length - i, "cdef");
        const bool is_pair = is_high && is_escape(text + i + 6, length - i - 6, "cdef");
        if (!is_pair && (is_high || is_low) && !replace(i, user))
            return false;
        i += is_pair ? 12 : 2;
    }
    return true;
}

static bool stop(size_t at, void *user)
{
    (void)at;
    (void)user;
    return false;
}

/* The replacement has the length of what it replaces. */
static bool put_replacement(size_t at, void *user)
{
    memcpy((char *)user + at + 2, "fffd", 4);
    return true;
}

/* ---- Integers ---- */

/* Whether the number that a terminated text begins with is an integer of more than 64 bits. */
static bool is_wide(const char *number, size_t length)
{
    enum { MOST_DIGITS = 18 };
    char *end;
    if (length <= MOST_DIGITS)
        return false;
    errno = 0;
    (void)strtoll(number, &end, 10);
    return errno == ERANGE && end == number + length;
}

/* Copies a terminated text of [length], which has no zero byte, with a fraction behind integers of more than 64 bits, which makes them real. */
static char *widen(const char *text, size_t length, size_t *n_out)
{
    enum { SHORTEST = 19 };
    char *out = malloc(length + length / SHORTEST * 2 + 3);
    bool in_string = false;
    *n_out = 0;
    for (size_t i = 0, n; out && i < length; i += n) {
        n = in_string ? 0 : strspn(text + i, "+-.0123456789eE");
        const bool adds = n && is_wide(text + i, n);
        if (!n)
            n = in_string && text[i] == '\\' && i + 1 < length ? 2 : 1;
        in_string ^= text[i] == '"';
        memcpy(out + *n_out, text + i, n);
        *n_out += n;
        if (adds)
            memcpy(out + *n_out, ".0", 2);
        *n_out += adds ? 2 : 0;
    }
    return out;
}

static json_t *load_wide(const char *text, size_t length, size_t flags, json_error_t *why)
{
    size_t n = 0;
    char *copy = memchr(text, 0, length) ? NULL : strndup(text, length); /* JSON has no zero bytes */
    char *wide = copy ? widen(copy, length, &n) : NULL;
    json_t *json = wide ? json_loadb(wide, n, flags, why) : NULL;
    free(copy);
    free(wide);
    return json;
}

json_t *qn_json_decode(const char *text, size_t length, size_t flags, json_error_t *why)
{
    char *copy = NULL;
    flags |= JSON_ALLOW_NUL;
    if (!each_surrogate(text, length, stop, NULL)) {
        copy = malloc(length);
        if (copy) {
            memcpy(copy, text, length);
            (void)each_surrogate(text, length, put_replacement, copy);
        }
    }
    if (copy)
        text = copy;
    json_t *json = json_loadb(text, length, flags, why);
    if (!json && json_error_code(why) == json_error_numeric_overflow)
        json = load_wide(text, length, flags, why);
    free(copy);
    return json;
}
