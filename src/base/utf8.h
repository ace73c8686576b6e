/* Decodes and encodes one UTF-8 character, by the Unicode standard's table of well-formed byte sequences: no
 * surrogates, no overlong forms, at most U+10FFFF. */
#ifndef QN_BASE_UTF8_H
#define QN_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef enum qn_utf8 {
    QN_UTF8_COMPLETE,   /* a character of *bytes bytes with the code point *code */
    QN_UTF8_INCOMPLETE, /* the bytes are the beginning of a character; more are needed */
    QN_UTF8_INVALID     /* the first *bytes bytes are not part of a character: the maximal subpart, which one U+FFFD
                           replaces */
} qn_utf8;

/* qn_utf8_mark - the number of bytes, 3 or 0, of a byte order mark (U+FEFF) at the beginning of text [length].
 * Windows editors write one; it is not part of the text. */
static inline size_t qn_utf8_mark(const char *text, size_t length)
{
    return length >= 3 && !memcmp(text, "\xef\xbb\xbf", 3) ? 3 : 0;
}

/* qn_utf8_next - decodes the first character of text [length], length >= 1. */
static inline qn_utf8 qn_utf8_next(const char *text, size_t length, size_t *bytes, uint32_t *code)
{
    const unsigned char *s = (const unsigned char *)text;
    *bytes = 1;
    *code = s[0];
    if (s[0] < 0x80)
        return QN_UTF8_COMPLETE;
    if (s[0] < 0xc2 || s[0] > 0xf4)
        return QN_UTF8_INVALID;
    const size_t need = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    unsigned char low = 0x80, high = 0xbf;
    if (s[0] == 0xe0)
        low = 0xa0;
    else if (s[0] == 0xed)
        high = 0x9f;
    else if (s[0] == 0xf0)
        low = 0x90;
    else if (s[0] == 0xf4)
        high = 0x8f;
    *code = s[0] & (0xffu >> (need + 1));
    for (; *bytes < need; ++*bytes) {
        if (*bytes == length)
            return QN_UTF8_INCOMPLETE;
        const unsigned char c = s[*bytes];
        if (c < low || c > high)
            return QN_UTF8_INVALID;
        *code = *code << 6 | (c & 0x3fu);
        low = 0x80;
        high = 0xbf;
    }
    return QN_UTF8_COMPLETE;
}

/* qn_utf8_encode - encodes a character. Returns the number of bytes.
 *
 *   code   a code point that is valid in UTF-8
 *   out    [4] */
static inline size_t qn_utf8_encode(uint32_t code, char *out)
{
    unsigned char *s = (unsigned char *)out;
    if (code < 0x80) {
        s[0] = (unsigned char)code;
        return 1;
    }
    const size_t n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, code >>= 6)
        s[i] = (unsigned char)(0x80u | (code & 0x3fu));
    s[0] = (unsigned char)(0xf00u >> n | code);
    return n;
}

#endif
