/* Searching. memmem compares a short text at every offset, which is fast enough. Long texts, and searches from the
 * end, use Knuth, Morris and Pratt's algorithm. */
#include "jinja/search.h"

#include "base/status.h"
#include "base/strings.h"

#include <string.h>

enum { SHORT = 16 };

/* Returns byte i of the text in the direction of the search. */
static char byte_of(const qn_search *s, size_t i)
{
    return s->what[s->backward ? s->length - 1 - i : i];
}

/* Computes the borders of the algorithm. borders[i]: length of the longest proper prefix of the first i + 1 bytes that
 * is also their suffix. */
static void find_borders(const qn_search *s, uint32_t *borders)
{
    uint32_t k = 0;
    for (size_t i = 1; i < s->length; i++) {
        while (k && byte_of(s, k) != byte_of(s, i))
            k = borders[k - 1];
        k += byte_of(s, k) == byte_of(s, i);
        borders[i] = k;
    }
}

qn_status qn_search_init(qn_run *r, const qn_jinja_string *what, bool backward, qn_search *out)
{
    uint32_t *borders = NULL;
    *out = (qn_search){ .what = what->data, .length = what->length, .backward = backward };
    if (what->length <= (backward ? 1 : SHORT))
        return QN_OK;
    if (what->length > UINT32_MAX)
        return qn_run_fail(r, "a text of %zu bytes is too long to be searched", what->length);
    QN_TRY(qn_run_work(r, what->length / QN_READ_PER_STEP));
    QN_TRY(qn_arena_alloc(&r->arena, &borders, what->length, sizeof *borders));
    find_borders(out, borders);
    out->borders = borders;
    return QN_OK;
}

/* The end of a match, in bytes from the start of the search; QN_NOWHERE if there is none. */
static size_t end_of_match(const qn_search *s, const char *data, size_t length)
{
    size_t k = 0;
    for (size_t i = 0; i < length; i++) {
        if (!k) {
            const char *next =
                s->backward ? qn_memrchr(data, byte_of(s, 0), length - i) : memchr(data + i, *s->what, length - i);
            if (!next)
                return QN_NOWHERE;
            i = s->backward ? length - 1 - (size_t)(next - data) : (size_t)(next - data);
        }
        const char byte = data[s->backward ? length - 1 - i : i];
        while (k && byte_of(s, k) != byte)
            k = s->borders[k - 1];
        k += byte_of(s, k) == byte;
        if (k == s->length)
            return i + 1;
    }
    return QN_NOWHERE;
}

size_t qn_search_first(const qn_search *s, const char *data, size_t length)
{
    if (s->length > length)
        return QN_NOWHERE;
    if (s->borders) {
        const size_t end = end_of_match(s, data, length);
        return end == QN_NOWHERE ? QN_NOWHERE : end - s->length;
    }
    const char *at = s->length ? qn_memmem(data, length, s->what, s->length) : data;
    return at ? (size_t)(at - data) : QN_NOWHERE;
}

size_t qn_search_last(const qn_search *s, const char *data, size_t length)
{
    if (s->length > length)
        return QN_NOWHERE;
    if (s->borders) {
        const size_t end = end_of_match(s, data, length);
        return end == QN_NOWHERE ? QN_NOWHERE : length - end;
    }
    const char *at = s->length ? qn_memrchr(data, *s->what, length) : data + length;
    return at ? (size_t)(at - data) : QN_NOWHERE;
}
