/* Which characters of a text that a stranger wrote a line of a terminal or of a log may show: names in files and requests,
 * messages of other programs. One that drives a terminal, reorders the text around it or cannot be seen makes the line say
 * what is not so. */
#ifndef QN_BASE_PRINTABLE_H
#define QN_BASE_PRINTABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* qn_is_control - whether a code point is a control character: U+0000 to U+001F, and U+007F to U+009F, of which some terminals
 * take U+009B for ESC [. */
bool qn_is_control(uint32_t code);

/* qn_is_deceptive - whether it changes the order of text, ends a line for some readers, or is not seen: bidirectional
 * formatting, line and paragraph separators, characters of no width, tags. */
bool qn_is_deceptive(uint32_t code);

/* qn_printable - the length in bytes of the character that text [length], length >= 1, begins with. 0: it is a control
 * character, deceptive, or no well-formed UTF-8. qn_harmless - the same for text that may be in any language, and has more
 * than a line: a deceptive character belongs to it. */
size_t qn_printable(const char *text, size_t length);
size_t qn_harmless(const char *text, size_t length);

/* qn_mask - replace by '?' each byte of a terminated text that belongs to no printable character. */
void qn_mask(char *text);

#endif
