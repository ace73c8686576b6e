/* Checks JSON byte by byte, without storing it: whether the input so far is the beginning of a value, and where the
 * value ends. Strict (RFC 8259), except that strings are not checked to be UTF-8. Surrogates must come in pairs. */
#ifndef QN_TEXT_JSON_SCAN_H
#define QN_TEXT_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { QN_JSON_MAX_DEPTH = 256 };

typedef enum qn_json_step {
    QN_JSON_MORE,       /* the byte belongs to the value, which is not complete */
    QN_JSON_END,        /* the byte is the last of the value */
    QN_JSON_END_BEFORE, /* the value, a number, ended before the byte */
    QN_JSON_ERROR       /* not JSON, or nested deeper than QN_JSON_MAX_DEPTH */
} qn_json_step;

/* Zero it before a value. */
typedef struct qn_json_scan {
    uint8_t state;
    uint8_t n_literal; /* number of bytes of true, false or null read */
    uint8_t n_hex;
    bool is_key;     /* the string is a key */
    bool needs_pair; /* the string's last character is a high surrogate */
    uint16_t unit;   /* UTF-16 unit of an escape */
    uint16_t depth;
    const char *literal;
    uint64_t objects[QN_JSON_MAX_DEPTH / 64]; /* a bit for each level: set for an object, clear for an array */
} qn_json_scan;

/* qn_json_scan_feed - checks one byte. Do not call it after QN_JSON_END, QN_JSON_END_BEFORE or QN_JSON_ERROR. Space
 * before the value gives QN_JSON_MORE. */
qn_json_step qn_json_scan_feed(qn_json_scan *scan, char byte);

/* qn_json_scan_in_string - whether a string inside an array or object is open. */
bool qn_json_scan_in_string(const qn_json_scan *scan);

/* qn_json_is_value - whether a text is one JSON value, with optional space before but not after it. */
bool qn_json_is_value(const char *text, size_t length);

/* White space of JSON. */
static inline bool qn_json_is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

#endif
