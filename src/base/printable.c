/* Characters that may be shown in lines of terminals and logs. */
#include "base/printable.h"

#include "base/utf8.h"

#include <string.h>

bool qn_is_control(uint32_t code)
{
    return code < 0x20 || (code >= 0x7f && code <= 0x9f);
}

bool qn_is_deceptive(uint32_t code)
{
    static const struct {
        uint32_t first, last;
    } ranges[] = {
        { 0x00ad, 0x00ad },   /* SOFT HYPHEN */
        { 0x061c, 0x061c },   /* ARABIC LETTER MARK */
        { 0x115f, 0x1160 },   /* HANGUL FILLERs */
        { 0x180e, 0x180e },   /* MONGOLIAN VOWEL SEPARATOR */
        { 0x200b, 0x200f },   /* ZERO WIDTH SPACE, NON-JOINER and JOINER; LEFT-TO-RIGHT and RIGHT-TO-LEFT MARK */
        { 0x2028, 0x202e },   /* LINE and PARAGRAPH SEPARATOR; embeddings and overrides of direction */
        { 0x2060, 0x206f },   /* WORD JOINER, invisible operators; isolates of direction */
        { 0x3164, 0x3164 },   /* HANGUL FILLER */
        { 0xfeff, 0xfeff },   /* ZERO WIDTH NO-BREAK SPACE */
        { 0xffa0, 0xffa0 },   /* HALFWIDTH HANGUL FILLER */
        { 0xfff9, 0xfffb },   /* INTERLINEAR ANNOTATION */
        { 0xe0000, 0xe0fff }, /* tags, variation selectors */
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (code >= ranges[i].first && code <= ranges[i].last)
            return true;
    return false;
}

size_t qn_harmless(const char *text, size_t length)
{
    size_t n;
    uint32_t code;
    return qn_utf8_next(text, length, &n, &code) == QN_UTF8_COMPLETE && !qn_is_control(code) ? n : 0;
}

size_t qn_printable(const char *text, size_t length)
{
    size_t n;
    uint32_t code;
    return qn_utf8_next(text, length, &n, &code) == QN_UTF8_COMPLETE && !qn_is_control(code) && !qn_is_deceptive(code)
               ? n
               : 0;
}

void qn_mask(char *text)
{
    const size_t length = strlen(text);
    for (size_t at = 0; at < length;) {
        const size_t n = qn_printable(text + at, length - at);
        if (!n)
            text[at] = '?';
        at += n ? n : 1;
    }
}
