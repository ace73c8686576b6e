/* Which characters of a stranger's text may be shown in a line of a terminal or log: names in files and requests,
 * messages of other programs. A character that controls a terminal, reorders the surrounding text or is invisible could
 * falsify the line. Pure functions. */
#ifndef QN_BASE_PRINTABLE_H
#define QN_BASE_PRINTABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* qn_is_control - whether a code point is a control character: U+0000 to U+001F and U+007F to U+009F. Some terminals
 * take U+009B for ESC [. */
bool qn_is_control(uint32_t code);

/* qn_is_deceptive - whether a code point reorders text, ends a line for some readers, or is invisible: bidirectional
 * formatting, line and paragraph separators, zero-width characters, tags. */
bool qn_is_deceptive(uint32_t code);

/* qn_printable - the length in bytes of the first character of text [length], length >= 1; 0 if it is a control
 * character, deceptive, or not well-formed UTF-8. */
size_t qn_printable(const char *text, size_t length);

/* qn_harmless - the same for text of several lines in any language: deceptive characters are allowed. */
size_t qn_harmless(const char *text, size_t length);

/* qn_mask - replaces by '?' each byte of a terminated text that is not part of a printable character. */
void qn_mask(char *text);

#endif
