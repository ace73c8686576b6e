/* A growing buffer of bytes, and a writer of JSON into it. The writer puts commas between values by looking at the last
 * byte. A buffer is used by one thread at a time. */
#ifndef QN_HTTP_BYTES_H
#define QN_HTTP_BYTES_H

#include "http/budget.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero it before use; `account`, from which its memory is reserved as it grows, may be set (NULL: none). When memory or
 * the account is exhausted, has_failed is set and nothing more is appended. */
typedef struct qn_bytes {
    char *data; /* [length] */
    size_t length, capacity;
    bool has_failed;
    qn_account *account;
} qn_bytes;

/* qn_bytes_free - free the bytes and empty the buffer. It can be used again, with the same account. */
void qn_bytes_free(qn_bytes *bytes);

/* qn_bytes_add - append bytes as they are. */
void qn_bytes_add(qn_bytes *bytes, const char *data, size_t length);

/* qn_bytes_print - append formatted text of less than 256 bytes; a longer one sets has_failed. */
void qn_bytes_print(qn_bytes *bytes, const char *format, ...) QN_PRINTF(2, 3);

/* ---- JSON ---- */

/* qn_is_utf8 - whether a text is valid UTF-8. */
bool qn_is_utf8(const char *text, size_t length);

/* qn_json_open - write '{' or '['. */
void qn_json_open(qn_bytes *bytes, char bracket);

/* qn_json_close - write the bracket that closes an object or an array: '}' or ']'. */
void qn_json_close(qn_bytes *bytes, char bracket);

/* qn_json_key - write the key of the member whose value is written next. */
void qn_json_key(qn_bytes *bytes, const char *key);

/* Write a value. A NULL text is null; invalid UTF-8 is replaced by U+FFFD. A number that is a float has the fewest
 * digits that read back as the same float, another one nine digits; a number that is not finite is null. */
void qn_json_string(qn_bytes *bytes, const char *text);
void qn_json_text(qn_bytes *bytes, const char *text, size_t length);
void qn_json_escaped(qn_bytes *bytes, const char *text, size_t length);   /* a part of a string, without quotes */
void qn_json_line_text(qn_bytes *bytes, const char *text, size_t length); /* escapes unprintable text */
void qn_json_integer(qn_bytes *bytes, int64_t value);
void qn_json_number(qn_bytes *bytes, double value);
void qn_json_bool(qn_bytes *bytes, bool value);
void qn_json_null(qn_bytes *bytes);

/* qn_json_member_* - write a key and its value. */
void qn_json_member_string(qn_bytes *bytes, const char *key, const char *text);
void qn_json_member_integer(qn_bytes *bytes, const char *key, int64_t value);

#endif
