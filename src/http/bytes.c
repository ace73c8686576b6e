/* Bytes that grow, and JSON that is written into them. */
#include "http/bytes.h"

#include "base/append.h"
#include "base/memory.h"
#include "base/printable.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void qn_bytes_free(qn_bytes *bytes)
{
    free(bytes->data);
    qn_account_give(bytes->account, bytes->capacity);
    *bytes = (qn_bytes){ .account = bytes->account };
}

/* Grows the buffer as qn_realloc_array does, but reserves the capacity first. It adds half, not double: the account
 * counts pages that are never written, although they take no memory. */
static bool grow(qn_bytes *bytes, size_t need)
{
    enum { LEAST = 64 };
    const size_t half = bytes->capacity + bytes->capacity / 2, wanted = half > need    ? half
                                                                        : need > LEAST ? need
                                                                                       : LEAST;
    if (!qn_account_take(bytes->account, wanted - bytes->capacity))
        return false;
    char *data = realloc(bytes->data, wanted);
    if (!data) {
        qn_account_give(bytes->account, wanted - bytes->capacity);
        return false;
    }
    bytes->data = data;
    bytes->capacity = wanted;
    return true;
}

static bool reserve(qn_bytes *bytes, size_t more)
{
    size_t need;
    if (!bytes->has_failed)
        bytes->has_failed = !qn_add_size(bytes->length, more, &need) || (need > bytes->capacity && !grow(bytes, need));
    return !bytes->has_failed;
}

void qn_bytes_add(qn_bytes *bytes, const char *data, size_t length)
{
    if (!length || !reserve(bytes, length))
        return;
    memcpy(bytes->data + bytes->length, data, length);
    bytes->length += length;
}

void qn_bytes_print(qn_bytes *bytes, const char *format, ...)
{
    char text[256];
    qn_text_buffer to = QN_APPEND_TO(text);
    va_list arguments;
    va_start(arguments, format);
    qn_append_list(&to, format, arguments);
    va_end(arguments);
    if (to.is_cut)
        bytes->has_failed = true;
    else
        qn_bytes_add(bytes, text, to.length);
}

/* ---- JSON ---- */

bool qn_is_utf8(const char *text, size_t length)
{
    uint32_t code;
    for (size_t at = 0, n; at < length; at += n)
        if (qn_utf8_next(text + at, length - at, &n, &code) != QN_UTF8_COMPLETE)
            return false;
    return true;
}

/* Writes a comma if the last byte ends a value. */
static void begin_value(qn_bytes *bytes)
{
    const char last = bytes->length ? bytes->data[bytes->length - 1] : '\n';
    if (last == '"' || last == '}' || last == ']' || (last >= '0' && last <= '9') || (last >= 'a' && last <= 'z'))
        qn_bytes_add(bytes, ",", 1);
}

void qn_json_open(qn_bytes *bytes, char bracket)
{
    begin_value(bytes);
    qn_bytes_add(bytes, &bracket, 1);
}

void qn_json_close(qn_bytes *bytes, char bracket)
{
    qn_bytes_add(bytes, &bracket, 1);
}

void qn_json_key(qn_bytes *bytes, const char *key)
{
    qn_json_string(bytes, key);
    qn_bytes_add(bytes, ":", 1);
}

void qn_json_string(qn_bytes *bytes, const char *text)
{
    if (text)
        qn_json_text(bytes, text, strlen(text));
    else
        qn_json_null(bytes);
}

static void add_escape(qn_bytes *bytes, uint32_t code)
{
    static const char short_forms[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    for (const char *form = short_forms; *form; form += 2)
        if ((uint32_t)*form == code) {
            qn_bytes_add(bytes, (const char[]){ '\\', form[1] }, 2);
            return;
        }
    if (code < 0x10000)
        qn_bytes_print(bytes, "\\u%04X", (unsigned)code);
    else
        qn_bytes_print(bytes, "\\u%04X\\u%04X", (unsigned)(0xd7c0 + (code >> 10)), (unsigned)(0xdc00 + (code & 0x3ff)));
}

/* Whether a character is written unescaped in JSON, or, with is_line, in a line shown by a terminal. */
static bool is_plain(uint32_t code, bool is_line)
{
    return code >= ' ' && code != '"' && code != '\\' && !(is_line && (qn_is_control(code) || qn_is_deceptive(code)));
}

static void add_escaped(qn_bytes *bytes, const char *text, size_t length, bool is_line)
{
    static const char replacement[] = "\xef\xbf\xbd";
    size_t from = 0;
    text = length ? text : "";
    for (size_t at = 0, n; at < length; at += n) {
        uint32_t code;
        const qn_utf8 found = qn_utf8_next(text + at, length - at, &n, &code);
        if (found == QN_UTF8_COMPLETE && is_plain(code, is_line))
            continue;
        qn_bytes_add(bytes, text + from, at - from);
        if (found == QN_UTF8_COMPLETE)
            add_escape(bytes, code);
        else
            qn_bytes_add(bytes, replacement, sizeof replacement - 1);
        from = at + n;
    }
    qn_bytes_add(bytes, text + from, length - from);
}

void qn_json_escaped(qn_bytes *bytes, const char *text, size_t length)
{
    add_escaped(bytes, text, length, false);
}

static void add_string(qn_bytes *bytes, const char *text, size_t length, bool is_line)
{
    begin_value(bytes);
    qn_bytes_add(bytes, "\"", 1);
    add_escaped(bytes, text, length, is_line);
    qn_bytes_add(bytes, "\"", 1);
}

void qn_json_text(qn_bytes *bytes, const char *text, size_t length)
{
    add_string(bytes, text, length, false);
}

void qn_json_line_text(qn_bytes *bytes, const char *text, size_t length)
{
    add_string(bytes, text, length, true);
}

void qn_json_integer(qn_bytes *bytes, int64_t value)
{
    begin_value(bytes);
    qn_bytes_print(bytes, "%" PRId64, value);
}

void qn_json_number(qn_bytes *bytes, double value)
{
    char text[40];
    begin_value(bytes);
    if (!isfinite(value)) {
        qn_bytes_add(bytes, "null", 4);
        return;
    }
    /* The shortest form of a float: %g drops trailing zeros of six digits, and nine digits suffice for every float. */
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if ((double)(float)value == value && strtof(text, NULL) == (float)value)
            break;
    }
    qn_bytes_print(bytes, "%s%s", text, strpbrk(text, ".e") ? "" : ".0");
}

void qn_json_bool(qn_bytes *bytes, bool value)
{
    begin_value(bytes);
    qn_bytes_print(bytes, "%s", value ? "true" : "false");
}

void qn_json_null(qn_bytes *bytes)
{
    begin_value(bytes);
    qn_bytes_add(bytes, "null", 4);
}

void qn_json_member_string(qn_bytes *bytes, const char *key, const char *text)
{
    qn_json_key(bytes, key);
    qn_json_string(bytes, text);
}

void qn_json_member_integer(qn_bytes *bytes, const char *key, int64_t value)
{
    qn_json_key(bytes, key);
    qn_json_integer(bytes, value);
}
