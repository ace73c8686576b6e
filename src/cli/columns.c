/* Columns of text on a terminal. Terminals of two kinds are in use: those that add up the columns of code points
 * (xterm, Alacritty, the Linux console), and those that give a whole cluster one or two (kitty, WezTerm, foot, iTerm2,
 * Windows Terminal). Where they differ, the larger number is taken: a terminal that uses fewer shows a gap, and nothing
 * is drawn over. */
#include "cli/columns.h"

#include "base/printable.h"
#include "base/utf8.h"

#include <utf8proc.h>

enum { EMOJI_STYLE = 0xfe0f, FIRST_VOWEL_JAMO = 0x1160, LAST_JAMO = 0x11ff, FLAG_A = 0x1f1e6, FLAG_Z = 0x1f1ff };

static utf8proc_category_t category_of(uint32_t code)
{
    return utf8proc_category((utf8proc_int32_t)code);
}

unsigned qn_columns_of(uint32_t code)
{
    /* Medial and final jamo are drawn into the syllable that they follow. */
    if (qn_is_control(code) || (code >= FIRST_VOWEL_JAMO && code <= LAST_JAMO))
        return 0;
    if (category_of(code) == UTF8PROC_CATEGORY_MC)
        return 1;
    if (code >= FLAG_A && code <= FLAG_Z)
        return 2; /* the letters of flags: 1 on other terminals */
    const int width = utf8proc_charwidth((utf8proc_int32_t)code);
    return width > 0 ? (unsigned)width : 0;
}

unsigned qn_columns_add(qn_columns *c, uint32_t code, bool *begins)
{
    unsigned width = qn_columns_of(code);
    *begins = !c->last || utf8proc_grapheme_break_stateful(c->last, (utf8proc_int32_t)code, &c->state);
    c->last = (int32_t)code;
    if (*begins) {
        c->width = width;
        c->is_unsure = category_of(code) == UTF8PROC_CATEGORY_MC || (code >= FLAG_A && code <= FLAG_Z);
        return width;
    }
    if (code == EMOJI_STYLE && c->width == 1)
        width = 1; /* a heart, a keycap: with this style two columns wide on newer terminals */
    c->is_unsure |= width > 0 || code == EMOJI_STYLE;
    c->width += width;
    return width;
}

qn_cluster qn_cluster_first(const char *text, size_t length)
{
    qn_cluster cluster = { 0 };
    qn_columns columns = { 0 };
    while (cluster.bytes < length) {
        size_t n;
        uint32_t code;
        bool begins;
        const bool is_valid = qn_utf8_next(text + cluster.bytes, length - cluster.bytes, &n, &code) == QN_UTF8_COMPLETE;
        if (!is_valid && cluster.bytes)
            break;
        if (!is_valid)
            return (qn_cluster){ .bytes = 1, .first = (unsigned char)*text };
        const qn_columns before = columns;
        qn_columns_add(&columns, code, &begins);
        if (begins && cluster.bytes) {
            columns = before;
            break;
        }
        if (!cluster.bytes)
            cluster.first = code;
        cluster.bytes += n;
    }
    cluster.columns = columns.width;
    cluster.is_unsure = columns.is_unsure;
    return cluster;
}

/* Boundaries depend on the text before, as the letters of flags are paired: the search begins at a place that is
 * certainly one, the beginning or between two characters of ASCII that are not CR LF. */
size_t qn_cluster_before(const char *text, size_t at)
{
    size_t from = at - 1;
    while (from > 0 && !((unsigned char)text[from] < 0x80 && (unsigned char)text[from - 1] < 0x80 &&
                         !(text[from] == '\n' && text[from - 1] == '\r')))
        from--;
    for (;;) {
        const size_t n = qn_cluster_first(text + from, at - from).bytes;
        if (from + n >= at)
            return from;
        from += n;
    }
}

bool qn_may_join(uint32_t code)
{
    const unsigned class = utf8proc_get_property((utf8proc_int32_t)code)->boundclass;
    return class == UTF8PROC_BOUNDCLASS_EXTENDED_PICTOGRAPHIC || class == UTF8PROC_BOUNDCLASS_REGIONAL_INDICATOR;
}

bool qn_is_wide_closing(uint32_t code)
{
    const utf8proc_category_t category = category_of(code);
    return qn_columns_of(code) == 2 && (category == UTF8PROC_CATEGORY_PE || category == UTF8PROC_CATEGORY_PF ||
                                        category == UTF8PROC_CATEGORY_PO || category == UTF8PROC_CATEGORY_LM);
}

bool qn_is_wide_opening(uint32_t code)
{
    const utf8proc_category_t category = category_of(code);
    return qn_columns_of(code) == 2 && (category == UTF8PROC_CATEGORY_PS || category == UTF8PROC_CATEGORY_PI);
}
