/* The methods of str that split, join, search and replace. */
#include "base/status.h"
#include "jinja/lexer.h"
#include "jinja/search.h"
#include "jinja/strings.h"

#include <string.h>

#define METHOD(name) static qn_status name(qn_run *r, const qn_value *self, const qn_call *call, qn_value *out)

/* ---- Splitting and joining ---- */

static qn_status append_part(qn_run *r, const qn_value *self, size_t begin, size_t end, qn_value *list)
{
    qn_value part;
    QN_TRY(qn_run_work(r, 1));
    QN_TRY(qn_value_part(&r->arena, self, begin, end, &part));
    return qn_list_append(&r->arena, list->u.list, part);
}

static qn_status split_at_space(qn_run *r, const qn_value *self, int64_t most, qn_value *out)
{
    const qn_jinja_string *s = self->u.string;
    size_t at = 0, n;
    for (int64_t parts = 0;; parts++) {
        while ((n = qn_space_at(s->data, s->length, at)) > 0)
            at += n;
        if (at == s->length)
            return QN_OK;
        const size_t begin = at;
        if (most >= 0 && parts == most)
            return append_part(r, self, begin, s->length, out);
        while (at < s->length && !qn_space_at(s->data, s->length, at))
            at++;
        QN_TRY(append_part(r, self, begin, at, out));
    }
}

static qn_status split_at(qn_run *r, const qn_value *self, const qn_search *separator, int64_t most, qn_value *out)
{
    const qn_jinja_string *s = self->u.string;
    size_t begin = 0;
    for (int64_t parts = 0; most < 0 || parts < most; parts++) {
        const size_t n = qn_search_first(separator, s->data + begin, s->length - begin);
        if (n == QN_NOWHERE)
            break;
        QN_TRY(append_part(r, self, begin, begin + n, out));
        begin += n + separator->length;
    }
    return append_part(r, self, begin, s->length, out);
}

/* Splits from the end; the parts are in reverse order. */
static qn_status rsplit_at(qn_run *r, const qn_value *self, const qn_search *separator, int64_t most, qn_value *out)
{
    const qn_jinja_string *s = self->u.string;
    size_t end = s->length;
    for (int64_t parts = 0; most < 0 || parts < most; parts++) {
        const size_t at = qn_search_last(separator, s->data, end);
        if (at == QN_NOWHERE)
            break;
        QN_TRY(append_part(r, self, at + separator->length, end, out));
        end = at;
    }
    return append_part(r, self, 0, end, out);
}

static void reverse_list(qn_list *list)
{
    for (size_t i = 0; i < list->n / 2; i++) {
        const qn_value v = list->items[i];
        list->items[i] = list->items[list->n - 1 - i];
        list->items[list->n - 1 - i] = v;
    }
}

static qn_status rsplit_at_space(qn_run *r, const qn_value *self, int64_t most, qn_value *out)
{
    const qn_jinja_string *s = self->u.string;
    size_t end = s->length, n;
    for (int64_t parts = 0;; parts++) {
        while ((n = qn_space_before(s->data, end)) > 0)
            end -= n;
        if (!end)
            return QN_OK;
        size_t begin = end;
        if (most >= 0 && parts == most)
            return append_part(r, self, 0, end, out);
        while (begin > 0 && !qn_space_before(s->data, begin))
            begin--;
        QN_TRY(append_part(r, self, begin, end, out));
        end = begin;
    }
}

static qn_status split_either(qn_run *r, const qn_value *self, const qn_call *call, bool from_right, qn_value *out)
{
    int64_t most = -1;
    const qn_value *separator = call->bound[0];
    if (call->bound[1])
        QN_TRY(qn_want_integer(r, call->bound[1], "maxsplit", &most));
    QN_TRY(qn_run_work(r, self->u.string->length / QN_READ_PER_STEP));
    QN_TRY(qn_value_sequence(&r->arena, QN_VALUE_LIST, 4, out));
    if (!separator || separator->type == QN_VALUE_NONE) {
        QN_TRY(from_right ? rsplit_at_space(r, self, most, out) : split_at_space(r, self, most, out));
    } else {
        QN_TRY(qn_want_string(r, separator, "a separator"));
        if (!separator->u.string->length)
            return qn_run_fail(r, "the separator is empty");
        qn_search search;
        QN_TRY(qn_search_init(r, separator->u.string, from_right, &search));
        QN_TRY(from_right ? rsplit_at(r, self, &search, most, out) : split_at(r, self, &search, most, out));
    }
    if (from_right)
        reverse_list(out->u.list);
    return QN_OK;
}

METHOD(str_split)
{
    return split_either(r, self, call, false, out);
}

METHOD(str_rsplit)
{
    return split_either(r, self, call, true, out);
}

/* Splits a text in three: the text before the separator, the separator, and the text after it. Without a separator the
 * whole text is first; from the right, last. */
static qn_status partition(qn_run *r, const qn_value *self, const qn_value *separator, bool from_right, qn_value *out)
{
    const qn_jinja_string *s = self->u.string;
    qn_search search;
    QN_TRY(qn_want_string(r, separator, "a separator"));
    if (!separator->u.string->length)
        return qn_run_fail(r, "the separator is empty");
    QN_TRY(qn_run_work(r, s->length / QN_READ_PER_STEP));
    QN_TRY(qn_search_init(r, separator->u.string, from_right, &search));
    const size_t at =
        from_right ? qn_search_last(&search, s->data, s->length) : qn_search_first(&search, s->data, s->length);
    const size_t without = from_right ? 0 : s->length, begin = at == QN_NOWHERE ? without : at,
                 end = at == QN_NOWHERE ? without : at + search.length;
    QN_TRY(qn_value_sequence(&r->arena, QN_VALUE_TUPLE, 3, out));
    QN_TRY(append_part(r, self, 0, begin, out));
    QN_TRY(append_part(r, self, begin, end, out));
    return append_part(r, self, end, s->length, out);
}

METHOD(str_partition)
{
    return partition(r, self, call->bound[0], false, out);
}

METHOD(str_rpartition)
{
    return partition(r, self, call->bound[0], true, out);
}

/* The number of bytes of the line end at `at`, by Python's rules; 0 if there is none. */
static size_t line_end_at(const qn_jinja_string *s, size_t at)
{
    const unsigned char *p = (const unsigned char *)s->data + at;
    const size_t left = s->length - at;
    switch (*p) {
    case '\r': return left > 1 && p[1] == '\n' ? 2 : 1;
    case '\n':
    case '\v':
    case '\f':
    case 0x1C:
    case 0x1D:
    case 0x1E: return 1;
    case 0xC2: return left > 1 && p[1] == 0x85 ? 2 : 0;                                   /* U+0085 */
    case 0xE2: return left > 2 && p[1] == 0x80 && (p[2] == 0xA8 || p[2] == 0xA9) ? 3 : 0; /* U+2028, U+2029 */
    default: return 0;
    }
}

qn_status qn_split_lines(qn_run *r, const qn_value *self, bool keep_ends, qn_value *out)
{
    const qn_jinja_string *s = self->u.string;
    QN_TRY(qn_value_sequence(&r->arena, QN_VALUE_LIST, 4, out));
    QN_TRY(qn_run_work(r, s->length / QN_READ_PER_STEP));
    size_t begin = 0;
    for (size_t at = 0; at < s->length;) {
        const size_t n = line_end_at(s, at);
        if (n) {
            QN_TRY(append_part(r, self, begin, keep_ends ? at + n : at, out));
            begin = at + n;
        }
        at += n ? n : 1;
    }
    return begin < s->length ? append_part(r, self, begin, s->length, out) : QN_OK;
}

METHOD(str_splitlines)
{
    return qn_split_lines(r, self, call->bound[0] && qn_value_is_true(call->bound[0]), out);
}

METHOD(str_join)
{
    const qn_value *items;
    size_t n;
    qn_builder b = { .arena = &r->arena };
    QN_TRY(qn_items_of(r, call->bound[0], &items, &n));
    for (size_t i = 0; i < n; i++) {
        qn_value item = items[i];
        QN_TRY(qn_run_work(r, 1 + qn_value_weight(&item) + qn_value_weight(self)));
        if (self->safe) { /* a safe string joins values of any type */
            QN_TRY(qn_str(r, &item, &item));
            QN_TRY(qn_escape_html(r, &item, &item));
        }
        QN_TRY(qn_want_string(r, &item, "an item that is joined"));
        if (i)
            QN_TRY(qn_builder_string(&b, self));
        QN_TRY(qn_builder_string(&b, &item));
    }
    QN_TRY(qn_builder_finish(&b, out));
    out->safe = self->safe;
    return QN_OK;
}

/* ---- Searching ---- */

/* Converts Python's start and end arguments, which are code points, negative from the end, to bytes [*begin, *end). */
static qn_status search_range(qn_run *r, const qn_value *self, const qn_value *start, const qn_value *stop,
                              size_t *begin, size_t *end, bool *valid)
{
    *valid = true;
    *begin = 0;
    *end = self->u.string->length;
    if (!start && !stop)
        return QN_OK;
    QN_TRY(qn_run_work(r, self->u.string->length / QN_READ_PER_STEP));
    const int64_t n = (int64_t)qn_code_points(self->u.string);
    int64_t from = 0, to = n;
    if (start && start->type != QN_VALUE_NONE)
        QN_TRY(qn_want_integer(r, start, "start", &from));
    if (stop && stop->type != QN_VALUE_NONE)
        QN_TRY(qn_want_integer(r, stop, "end", &to));
    from = from < 0 ? (from + n < 0 ? 0 : from + n) : from;
    to = to < 0 ? (to + n < 0 ? 0 : to + n) : to > n ? n : to;
    *valid = from <= to;
    *begin = qn_code_point_at(self->u.string, (size_t)(from < n ? from : n));
    *end = qn_code_point_at(self->u.string, (size_t)to);
    return QN_OK;
}

static bool has_affix(const char *data, size_t length, const qn_jinja_string *affix, bool at_end)
{
    return affix->length <= length &&
           !memcmp(at_end ? data + length - affix->length : data, affix->data, affix->length);
}

static qn_status has_any_affix(qn_run *r, const qn_value *self, const qn_call *call, bool at_end, qn_value *out)
{
    const qn_value *affixes = call->bound[0];
    size_t begin, end, n = 1;
    bool valid, found = false;
    QN_TRY(search_range(r, self, call->bound[1], call->bound[2], &begin, &end, &valid));
    if (affixes->type == QN_VALUE_TUPLE) {
        n = affixes->u.list->n;
        affixes = affixes->u.list->items;
    }
    for (size_t i = 0; i < n && !found; i++) {
        QN_TRY(qn_want_string(r, &affixes[i], "an affix"));
        QN_TRY(qn_run_work(r, 1 + affixes[i].u.string->length / QN_COPIED_PER_STEP));
        found = valid && has_affix(self->u.string->data + begin, end - begin, affixes[i].u.string, at_end);
    }
    *out = qn_value_bool(found);
    return QN_OK;
}

METHOD(str_startswith)
{
    return has_any_affix(r, self, call, false, out);
}

METHOD(str_endswith)
{
    return has_any_affix(r, self, call, true, out);
}

static qn_status find_either(qn_run *r, const qn_value *self, const qn_call *call, bool last, bool must, qn_value *out)
{
    size_t begin, end, at = QN_NOWHERE;
    bool valid;
    qn_search search;
    QN_TRY(qn_want_string(r, call->bound[0], "what is searched"));
    QN_TRY(search_range(r, self, call->bound[1], call->bound[2], &begin, &end, &valid));
    if (valid) {
        const char *data = self->u.string->data + begin;
        QN_TRY(qn_run_work(r, (end - begin) / QN_READ_PER_STEP));
        QN_TRY(qn_search_init(r, call->bound[0]->u.string, last, &search));
        at = last ? qn_search_last(&search, data, end - begin) : qn_search_first(&search, data, end - begin);
    }
    if (at == QN_NOWHERE && must)
        return qn_run_fail(r, "the substring is not found");
    const qn_jinja_string before = { self->u.string->data, NULL, at == QN_NOWHERE ? 0 : begin + at };
    QN_TRY(qn_run_work(r, before.length / QN_COPIED_PER_STEP));
    *out = qn_value_int(at == QN_NOWHERE ? -1 : (int64_t)qn_code_points(&before));
    return QN_OK;
}

METHOD(str_find)
{
    return find_either(r, self, call, false, false, out);
}

METHOD(str_rfind)
{
    return find_either(r, self, call, true, false, out);
}

METHOD(str_index)
{
    return find_either(r, self, call, false, true, out);
}

METHOD(str_rindex)
{
    return find_either(r, self, call, true, true, out);
}

METHOD(str_count)
{
    int64_t n = 0;
    QN_TRY(qn_want_string(r, call->bound[0], "what is counted"));
    size_t from, to;
    bool valid;
    QN_TRY(search_range(r, self, call->bound[1], call->bound[2], &from, &to, &valid));
    if (!valid) {
        *out = qn_value_int(0);
        return QN_OK;
    }
    const qn_jinja_string s = { self->u.string->data + from, NULL, to - from }, *what = call->bound[0]->u.string;
    qn_search search;
    QN_TRY(qn_run_work(r, s.length / QN_READ_PER_STEP));
    QN_TRY(qn_search_init(r, what, false, &search));
    if (!what->length)
        n = (int64_t)qn_code_points(&s) + 1;
    for (size_t at = 0, next; what->length; at += next + what->length, n++) {
        next = qn_search_first(&search, s.data + at, s.length - at);
        if (next == QN_NOWHERE)
            break;
        QN_TRY(qn_run_work(r, 1));
    }
    *out = qn_value_int(n);
    return QN_OK;
}

/* ---- Replacing ---- */

qn_status qn_replace(qn_run *r, const qn_value *self, const qn_value *old, const qn_value *with, int64_t most,
                     qn_value *out)
{
    const qn_jinja_string *s = self->u.string, *what = old->u.string;
    qn_builder b = { .arena = &r->arena };
    size_t at = 0;
    qn_search search;
    QN_TRY(qn_run_work(r, s->length / QN_READ_PER_STEP));
    QN_TRY(qn_search_init(r, what, false, &search));
    for (int64_t n = 0; most < 0 || n < most; n++) {
        qn_value part;
        size_t next = at;
        if (what->length) {
            const size_t found = qn_search_first(&search, s->data + at, s->length - at);
            if (found == QN_NOWHERE)
                break;
            next = at + found;
        } else if (n > 0) { /* between all characters and at both ends */
            if (at == s->length)
                break;
            const qn_jinja_string rest = { s->data + at, NULL, s->length - at };
            next = at + qn_code_point_at(&rest, 1);
        }
        QN_TRY(qn_run_work(r, 1 + with->u.string->length / QN_COPIED_PER_STEP));
        QN_TRY(qn_value_part(&r->arena, self, at, next, &part));
        QN_TRY(qn_builder_string(&b, &part));
        QN_TRY(qn_builder_string(&b, with));
        at = next + what->length;
    }
    qn_value rest;
    QN_TRY(qn_value_part(&r->arena, self, at, s->length, &rest));
    QN_TRY(qn_builder_string(&b, &rest));
    return qn_builder_finish(&b, out);
}

METHOD(str_replace)
{
    int64_t most = -1;
    qn_value old = *call->bound[0], with = *call->bound[1];
    QN_TRY(qn_want_string(r, &old, "what is replaced"));
    if (self->safe) { /* a safe string accepts values of any type */
        QN_TRY(qn_str(r, &with, &with));
        QN_TRY(qn_escape_html(r, &with, &with));
    }
    QN_TRY(qn_want_string(r, &with, "the replacement"));
    if (call->bound[2])
        QN_TRY(qn_want_integer(r, call->bound[2], "count", &most));
    QN_TRY(qn_replace(r, self, &old, &with, most, out));
    out->safe = self->safe;
    return QN_OK;
}

static const qn_builtin methods[] = {
    { .name = "split", .call = str_split, .parameters = { "sep", "maxsplit" } },
    { .name = "rsplit", .call = str_rsplit, .parameters = { "sep", "maxsplit" } },
    { .name = "startswith", .call = str_startswith, .parameters = { "prefix", "start", "end" }, .required = 1 },
    { .name = "endswith", .call = str_endswith, .parameters = { "suffix", "start", "end" }, .required = 1 },
    { .name = "replace", .call = str_replace, .parameters = { "old", "new", "count" }, .required = 2 },
    { .name = "find", .call = str_find, .parameters = { "sub", "start", "end" }, .required = 1 },
    { .name = "rfind", .call = str_rfind, .parameters = { "sub", "start", "end" }, .required = 1 },
    { .name = "index", .call = str_index, .parameters = { "sub", "start", "end" }, .required = 1 },
    { .name = "rindex", .call = str_rindex, .parameters = { "sub", "start", "end" }, .required = 1 },
    { .name = "count", .call = str_count, .parameters = { "sub", "start", "end" }, .required = 1 },
    { .name = "join", .call = str_join, .parameters = { "iterable" }, .required = 1 },
    { .name = "splitlines", .call = str_splitlines, .parameters = { "keepends" } },
    { .name = "partition", .call = str_partition, .parameters = { "sep" }, .required = 1 },
    { .name = "rpartition", .call = str_rpartition, .parameters = { "sep" }, .required = 1 },
};

const qn_builtin *qn_find_search_method(const char *name, size_t length)
{
    return qn_find_in(methods, sizeof methods / sizeof *methods, name, length);
}
