/* Bytes that grow, and JSON that is written into them. What is written is one value after another: commas and colons come by
 * themselves, from the last byte. */
#ifndef QN_HTTP_BYTES_H
#define QN_HTTP_BYTES_H

#include "http/budget.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero it before use, but for the account, which its memory is promised to as it grows; NULL: none. Without memory, or where the
 * account has none left, has_failed is set, and nothing more is appended. */
typedef struct qn_bytes {
    char *data; /* [length] */
    size_t length, capacity;
    bool has_failed;
    qn_account *account;
} qn_bytes;

/* qn_bytes_free - free it; what is appended next has the same account. */
void qn_bytes_free(qn_bytes *bytes);

/* qn_bytes_add - append bytes as they are. qn_bytes_print - the same of a format. */
void qn_bytes_add(qn_bytes *bytes, const char *data, size_t length);
void qn_bytes_print(qn_bytes *bytes, const char *format, ...) QN_PRINTF(2, 3);

/* ---- JSON ---- */

/* qn_is_utf8 - whether a text is valid UTF-8. */
bool qn_is_utf8(const char *text, size_t length);

/* qn_json_open, qn_json_close - '{' or '[', and their ends. */
void qn_json_open(qn_bytes *bytes, char bracket);
void qn_json_close(qn_bytes *bytes, char bracket);

/* qn_json_key - the key of the member whose value is written next. */
void qn_json_key(qn_bytes *bytes, const char *key);

/* Values. Invalid UTF-8 in a string is replaced by U+FFFD. A NULL text is null. A number that is a float
 * has the fewest digits that read back as it, another one nine digits; one that is not finite is null. */
void qn_json_string(qn_bytes *bytes, const char *text);
void qn_json_text(qn_bytes *bytes, const char *text, size_t length);
void qn_json_escaped(qn_bytes *bytes, const char *text, size_t length);   /* what is between the quotes of a string */
void qn_json_line_text(qn_bytes *bytes, const char *text, size_t length); /* escapes what is not printable (base/printable.h) */
void qn_json_integer(qn_bytes *bytes, int64_t value);
void qn_json_number(qn_bytes *bytes, double value);
void qn_json_bool(qn_bytes *bytes, bool value);
void qn_json_null(qn_bytes *bytes);

/* qn_json_member_* - a key with its value. */
void qn_json_member_string(qn_bytes *bytes, const char *key, const char *text);
void qn_json_member_integer(qn_bytes *bytes, const char *key, int64_t value);

#endif
