/* Strict reading of HTTP header blocks (RFC 9112). */
#include "http/framing.h"

#include "http/guard.h"

#include <stdint.h>
#include <string.h>
#include <strings.h>

enum { MOST_DIGITS = 19 /* below 2^64 */ };

/* ---- Headers ---- */

static bool is_name(const char *name, size_t n, const char *expected)
{
    return n == strlen(expected) && !strncasecmp(name, expected, n);
}

bool qn_framing_is_length(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (text[i] < '0' || text[i] > '9')
            return false;
    return n && n <= MOST_DIGITS;
}

/* Whether text [n] has no control characters but tabs. */
static bool is_text(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (((unsigned char)text[i] < ' ' && text[i] != '\t') || text[i] == 0x7f)
            return false;
    return true;
}

static const char bad_line[] = "the first line is not a method, a target and HTTP/1.1, with one space between them";

const char *qn_framing_method(const char *method, size_t n)
{
    return n && qn_guard_token(method, n) == n ? NULL : bad_line;
}

const char *qn_framing_target(const char *target, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)target[i] <= ' ' || target[i] == 0x7f)
            return bad_line;
    return n ? NULL : bad_line;
}

static size_t count(const char *text, size_t n, char c)
{
    size_t found = 0;
    for (size_t i = 0; i < n; i++)
        found += text[i] == c;
    return found;
}

const char *qn_framing_add(qn_framing *f, const char *name, size_t n_name, const char *value, size_t n_value)
{
    if (!n_name || qn_guard_token(name, n_name) != n_name)
        return "a header name has a space or another invalid character";
    if (!is_text(value, n_value))
        return "a header value has a control character";
    f->n_values += 1 + (is_name(name, n_name, "Cookie") ? 1 + count(value, n_value, ';') : 0);
    f->n_hosts += is_name(name, n_name, "Host");
    if (is_name(name, n_name, "Content-Length")) {
        f->n_lengths++;
        if (!qn_framing_is_length(value, n_value))
            return "Content-Length is not a number";
    } else if (is_name(name, n_name, "Transfer-Encoding")) {
        f->n_encodings++;
        if (!is_name(value, n_value, "chunked"))
            return "Transfer-Encoding is not chunked";
    }
    return NULL;
}

const char *qn_framing_end(const qn_framing *f)
{
    if (f->n_hosts > 1)
        return "there is more than one Host header";
    if (!f->n_hosts && !f->is_http_1_0)
        return "there is no Host header";
    if (f->n_lengths > 1 || f->n_encodings > 1 || (f->n_lengths && f->n_encodings))
        return "there is more than one Content-Length or Transfer-Encoding header";
    if (f->n_encodings && f->is_http_1_0)
        return "HTTP/1.0 has no Transfer-Encoding";
    return NULL;
}

/* ---- Blocks ---- */

static const char *check_request_line(qn_framing *f, const char *line, size_t n)
{
    const char *const end = line + n, *const target = memchr(line, ' ', n),
                      *const version = target ? memchr(target + 1, ' ', (size_t)(end - target) - 1) : NULL;
    if (!version || end - version != 9 || memcmp(version, " HTTP/1.", 8) != 0 ||
        (version[8] != '0' && version[8] != '1'))
        return bad_line;
    f->has_first = true;
    f->is_http_1_0 = version[8] == '0';
    f->n_values += count(target, (size_t)(version - target), '&');
    const char *const why = qn_framing_method(line, (size_t)(target - line));
    return why ? why : qn_framing_target(target + 1, (size_t)(version - target) - 1);
}

static const char *check_header_line(qn_framing *f, const char *line, size_t n)
{
    if (*line == ' ' || *line == '\t')
        return "a header is folded into another line";
    const char *const colon = memchr(line, ':', n);
    if (!colon)
        return "a header has no colon";
    const char *value = colon + 1, *end = line + n;
    while (value < end && (*value == ' ' || *value == '\t'))
        value++;
    while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    return qn_framing_add(f, line, (size_t)(colon - line), value, (size_t)(end - value));
}

/* The line [*length] at the beginning of text [n], without its CRLF. NULL: its end has not arrived, or *why it is
 * invalid. */
static const char *next_line(const char *text, size_t n, size_t *length, const char **why)
{
    const char *const end = memchr(text, '\n', n);
    const char *const first = memchr(text, '\r', end ? (size_t)(end - text) : n);
    if ((end && (end == text || first != end - 1)) || (!end && first && first != text + n - 1))
        *why = "a line does not end with CRLF";
    if (*why || !end)
        return NULL;
    *length = (size_t)(end - text) - 1;
    return text;
}

qn_head qn_framing_read(qn_framing *f, const char *bytes, size_t n, const char **why)
{
    const char *line;
    size_t length = 0;
    *why = NULL;
    while (f->at < n && (line = next_line(bytes + f->at, n - f->at, &length, why)) != NULL) {
        f->at += length + 2;
        if (!length && f->has_first) {
            *why = qn_framing_end(f);
            return *why ? QN_HEAD_INVALID : QN_HEAD_COMPLETE;
        }
        if (length)
            *why = f->has_first ? check_header_line(f, line, length) : check_request_line(f, line, length);
        if (*why)
            return QN_HEAD_INVALID;
        if (f->n_values > QN_FRAMING_VALUES) {
            *why = "there are too many headers, cookies or query parameters";
            return QN_HEAD_LARGE;
        }
    }
    return *why ? QN_HEAD_INVALID : QN_HEAD_PART;
}
