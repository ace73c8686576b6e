/* Changes of an edited text. */
#include "cli/edit_text.h"

#include "cli/columns.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

void qn_edit_free(qn_edit *e)
{
    free(e->bytes);
    free(e->cut);
    *e = (qn_edit){ 0 };
}

bool qn_edit_insert(qn_edit *e, const char *bytes, size_t n)
{
    if (!n)
        return true;
    if (n > QN_EDIT_MAX - e->length || qn_realloc_array(&e->bytes, &e->capacity, e->length + n + 1, 1, "message"))
        return false;
    memmove(e->bytes + e->cursor + n, e->bytes + e->cursor, e->length - e->cursor);
    memcpy(e->bytes + e->cursor, bytes, n);
    e->length += n;
    e->cursor += n;
    e->bytes[e->length] = 0;
    return true;
}

bool qn_edit_set(qn_edit *e, const char *bytes, size_t n)
{
    if (n > QN_EDIT_MAX || qn_realloc_array(&e->bytes, &e->capacity, n + 1, 1, "message"))
        return false;
    memcpy(e->bytes, bytes, n);
    e->bytes[n] = 0;
    e->length = e->cursor = n;
    return true;
}

void qn_edit_remove(qn_edit *e, size_t from, size_t to)
{
    if (from >= to)
        return;
    memmove(e->bytes + from, e->bytes + to, e->length - to);
    e->length -= to - from;
    e->bytes[e->length] = 0;
    e->cursor = from;
}

void qn_edit_cut(qn_edit *e, size_t from, size_t to)
{
    if (from >= to || qn_realloc_array(&e->cut, &e->cut_capacity, to - from, 1, "message"))
        return;
    memcpy(e->cut, e->bytes + from, to - from);
    e->n_cut = to - from;
    qn_edit_remove(e, from, to);
}

/* ---- Places ---- */

size_t qn_edit_left(const qn_edit *e)
{
    return e->cursor ? qn_cluster_before(e->bytes, e->cursor) : 0;
}

static size_t after(const qn_edit *e, size_t at)
{
    return at < e->length ? at + qn_cluster_first(e->bytes + at, e->length - at).bytes : at;
}

size_t qn_edit_right(const qn_edit *e)
{
    return after(e, e->cursor);
}

/* Whether a byte belongs to a word. Bytes of all other alphabets do. */
static bool is_of_word(const qn_edit *e, size_t at)
{
    const unsigned char c = (unsigned char)e->bytes[at];
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' || c >= 0x80;
}

size_t qn_edit_word_left(const qn_edit *e)
{
    size_t at = e->cursor;
    while (at > 0 && !is_of_word(e, at - 1))
        at--;
    while (at > 0 && is_of_word(e, at - 1))
        at--;
    return at;
}

size_t qn_edit_word_right(const qn_edit *e)
{
    size_t at = e->cursor;
    while (at < e->length && !is_of_word(e, at))
        at = after(e, at);
    while (at < e->length && is_of_word(e, at))
        at = after(e, at);
    return at;
}

size_t qn_edit_space_left(const qn_edit *e)
{
    size_t at = e->cursor;
    while (at > 0 && strchr(" \t\n", e->bytes[at - 1]))
        at--;
    while (at > 0 && !strchr(" \t\n", e->bytes[at - 1]))
        at--;
    return at;
}

size_t qn_edit_line_begin(const qn_edit *e)
{
    size_t at = e->cursor;
    while (at > 0 && e->bytes[at - 1] != '\n')
        at--;
    return at;
}

size_t qn_edit_line_end(const qn_edit *e)
{
    size_t at = e->cursor;
    while (at < e->length && e->bytes[at] != '\n')
        at++;
    return at;
}

static void reverse(char *bytes, size_t n)
{
    for (size_t i = 0; i < n / 2; i++) {
        const char c = bytes[i];
        bytes[i] = bytes[n - 1 - i];
        bytes[n - 1 - i] = c;
    }
}

void qn_edit_swap(qn_edit *e)
{
    const size_t middle = e->cursor == e->length ? qn_edit_left(e) : e->cursor;
    if (!middle)
        return;
    const size_t from = qn_cluster_before(e->bytes, middle), to = after(e, middle);
    reverse(e->bytes + from, middle - from);
    reverse(e->bytes + middle, to - middle);
    reverse(e->bytes + from, to - from);
    e->cursor = to;
}
