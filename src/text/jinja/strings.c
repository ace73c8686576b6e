/* The methods of str. */
#include "base/status.h"
#include "text/jinja/strings.h"
#include "text/jinja/lexer.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define METHOD(name) static qn_status name(qn_run *r, const qn_value *self, const qn_call *call, qn_value *out)
#define UNUSED (void)r, (void)self, (void)call

/* ---- Case ---- */

/* Characters whose other case is several characters, or depends on nothing that utf8proc knows. */
static const char *special_upper(uint32_t code)
{
    switch (code) {
    case 0xDF: return "SS";
    case 0x149: return "\xCA\xBCN";
    case 0xFB00: return "FF";
    case 0xFB01: return "FI";
    case 0xFB02: return "FL";
    case 0xFB03: return "FFI";
    case 0xFB04: return "FFL";
    case 0xFB05:
    case 0xFB06: return "ST";
    default: return NULL;
    }
}

/* The same for the first character of a word. */
static const char *special_title(uint32_t code)
{
    switch (code) {
    case 0xDF: return "Ss";
    case 0xFB00: return "Ff";
    case 0xFB01: return "Fi";
    case 0xFB02: return "Fl";
    case 0xFB03: return "Ffi";
    case 0xFB04: return "Ffl";
    case 0xFB05:
    case 0xFB06: return "St";
    default: return special_upper(code);
    }
}

static size_t change_code(uint32_t code, qn_case_change to_case, char *to)
{
    const char *special = to_case == QN_CASE_UPPER   ? special_upper(code)
                          : to_case == QN_CASE_TITLE ? special_title(code)
                          : code == 0x130            ? "i\xCC\x87"
                                                     : NULL;
    if (special) {
        memcpy(to, special, strlen(special));
        return strlen(special);
    }
    const utf8proc_int32_t c = (utf8proc_int32_t)code;
    return qn_utf8_encode((uint32_t)(to_case == QN_CASE_UPPER   ? utf8proc_toupper(c)
                                     : to_case == QN_CASE_TITLE ? utf8proc_totitle(c)
                                                                : utf8proc_tolower(c)),
                          to);
}

static bool is_cased(uint32_t code)
{
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT: return true;
    default: return false;
    }
}

static uint8_t origin_at(const qn_value *v, size_t at)
{
    return v->u.string->marks ? v->u.string->marks[at] : v->origin;
}

/* Unicode's Case_Ignorable, without its rarest characters. */
static bool is_case_ignorable(uint32_t code)
{
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK: return true;
    default: return code == '\'' || code == '.' || code == ':' || code == 0xB7 || code == 0x2018 || code == 0x2019;
    }
}

/* A capital sigma at `at` ends its word. */
static bool is_final_sigma(const qn_jinja_string *s, size_t at)
{
    uint32_t code = 0;
    size_t begin = at, n;
    do {
        if (begin == 0)
            return false;
        do
            begin--;
        while (begin > 0 && ((unsigned char)s->data[begin] & 0xC0) == 0x80);
        (void)qn_utf8_next(s->data + begin, at - begin, &n, &code);
    } while (is_case_ignorable(code));
    if (!is_cased(code))
        return false;
    for (at += 2; at < s->length; at += n) {
        if (qn_utf8_next(s->data + at, s->length - at, &n, &code) != QN_UTF8_COMPLETE || !is_case_ignorable(code))
            return !is_cased(code);
    }
    return true;
}

qn_status qn_change_case(qn_run *r, const qn_value *self, qn_case_change change, qn_value *out)
{
    enum { CAPITAL_SIGMA = 0x3A3, FINAL_SIGMA = 0x3C2 };
    const qn_jinja_string *s = self->u.string;
    qn_builder b = { .arena = &r->arena };
    bool in_word = false;
    QN_TRY(qn_run_work(r, s->length / 8));
    for (size_t at = 0, n; at < s->length; at += n) {
        uint32_t code;
        char changed[8];
        if (qn_utf8_next(s->data + at, s->length - at, &n, &code) != QN_UTF8_COMPLETE)
            code = 0xFFFD;
        const bool begins_word = (change == QN_CASE_TITLE && !in_word) || (change == QN_CASE_CAPITALIZE && at == 0);
        const qn_case_change to_case = change == QN_CASE_UPPER ? QN_CASE_UPPER : begins_word ? QN_CASE_TITLE : QN_CASE_LOWER;
        const size_t n_changed = to_case == QN_CASE_LOWER && code == CAPITAL_SIGMA && is_final_sigma(s, at)
                                     ? qn_utf8_encode(FINAL_SIGMA, changed)
                                     : change_code(code, to_case, changed);
        QN_TRY(qn_builder_bytes(&b, changed, n_changed, origin_at(self, at)));
        in_word = is_cased(code);
    }
    QN_TRY(qn_builder_finish(&b, out));
    out->safe = self->safe;
    return QN_OK;
}

METHOD(str_upper)
{
    UNUSED;
    return qn_change_case(r, self, QN_CASE_UPPER, out);
}

METHOD(str_lower)
{
    UNUSED;
    return qn_change_case(r, self, QN_CASE_LOWER, out);
}

METHOD(str_title)
{
    UNUSED;
    return qn_change_case(r, self, QN_CASE_TITLE, out);
}

METHOD(str_capitalize)
{
    UNUSED;
    return qn_change_case(r, self, QN_CASE_CAPITALIZE, out);
}

/* ---- Stripping ---- */

static bool contains_character(const qn_jinja_string *set, const char *bytes, size_t n)
{
    return memmem(set->data, set->length, bytes, n) != NULL;
}

/* Bytes of the character at `at`, if it is to be stripped. */
static size_t strippable_at(const qn_jinja_string *s, size_t at, const qn_jinja_string *set)
{
    if (!set)
        return qn_space_at(s->data, s->length, at);
    const qn_jinja_string rest = { s->data + at, NULL, s->length - at };
    const size_t n = at < s->length ? qn_code_point_at(&rest, 1) : 0;
    return n && contains_character(set, s->data + at, n) ? n : 0;
}

static size_t strippable_before(const qn_jinja_string *s, size_t begin, size_t at, const qn_jinja_string *set)
{
    if (at == begin)
        return 0;
    if (!set)
        return qn_space_before(s->data, at);
    size_t n = 1;
    while (at - n > begin && ((unsigned char)s->data[at - n] & 0xC0) == 0x80)
        n++;
    return contains_character(set, s->data + at - n, n) ? n : 0;
}

qn_status qn_strip(qn_run *r, const qn_value *self, const qn_value *characters, bool left, bool right, qn_value *out)
{
    const qn_jinja_string *s = self->u.string, *set = NULL;
    size_t begin = 0, end = s->length;
    if (characters && characters->type != QN_VALUE_NONE) {
        QN_TRY(qn_want_string(r, characters, "what is stripped"));
        set = characters->u.string;
    }
    for (size_t n; left && begin < end && (n = strippable_at(s, begin, set)) > 0;)
        begin += n;
    for (size_t n; right && end > begin && (n = strippable_before(s, begin, end, set)) > 0;)
        end -= n;
    QN_TRY(qn_run_work(r, (begin + s->length - end) / 16));
    return qn_value_part(&r->arena, self, begin, end, out);
}

METHOD(str_strip)
{
    return qn_strip(r, self, call->bound[0], true, true, out);
}

METHOD(str_lstrip)
{
    return qn_strip(r, self, call->bound[0], true, false, out);
}

METHOD(str_rstrip)
{
    return qn_strip(r, self, call->bound[0], false, true, out);
}

static qn_status without_affix(qn_run *r, const qn_value *self, const qn_value *affix, bool is_prefix, qn_value *out)
{
    QN_TRY(qn_want_string(r, affix, "an affix"));
    const qn_jinja_string *s = self->u.string, *a = affix->u.string;
    const bool has =
        a->length <= s->length && !memcmp(is_prefix ? s->data : s->data + s->length - a->length, a->data, a->length);
    const size_t n = has ? a->length : 0;
    return qn_value_part(&r->arena, self, is_prefix ? n : 0, s->length - (is_prefix ? 0 : n), out);
}

METHOD(str_removeprefix)
{
    return without_affix(r, self, call->bound[0], true, out);
}

METHOD(str_removesuffix)
{
    return without_affix(r, self, call->bound[0], false, out);
}

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

static qn_status split_at(qn_run *r, const qn_value *self, const qn_jinja_string *separator, int64_t most, qn_value *out)
{
    const qn_jinja_string *s = self->u.string;
    size_t begin = 0;
    for (int64_t parts = 0; most < 0 || parts < most; parts++) {
        const char *next =
            s->length > begin ? memmem(s->data + begin, s->length - begin, separator->data, separator->length) : NULL;
        if (!next)
            break;
        QN_TRY(append_part(r, self, begin, (size_t)(next - s->data), out));
        begin = (size_t)(next - s->data) + separator->length;
    }
    return append_part(r, self, begin, s->length, out);
}

/* The parts from the end, in reverse order. */
static qn_status rsplit_at(qn_run *r, const qn_value *self, const qn_jinja_string *separator, int64_t most, qn_value *out)
{
    const qn_jinja_string *s = self->u.string;
    size_t end = s->length, at = s->length;
    for (int64_t parts = 0; (most < 0 || parts < most) && at >= separator->length;) {
        at--;
        if (at + separator->length > end || memcmp(s->data + at, separator->data, separator->length) != 0) {
            if (!at)
                break;
            continue;
        }
        QN_TRY(append_part(r, self, at + separator->length, end, out));
        end = at;
        parts++;
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
    QN_TRY(qn_run_work(r, self->u.string->length / 64));
    QN_TRY(qn_value_sequence(&r->arena, QN_VALUE_LIST, 4, out));
    if (!separator || separator->type == QN_VALUE_NONE) {
        QN_TRY(from_right ? rsplit_at_space(r, self, most, out) : split_at_space(r, self, most, out));
    } else {
        QN_TRY(qn_want_string(r, separator, "a separator"));
        if (!separator->u.string->length)
            return qn_run_fail(r, "the separator is empty");
        QN_TRY(from_right ? rsplit_at(r, self, separator->u.string, most, out)
                          : split_at(r, self, separator->u.string, most, out));
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

METHOD(str_partition)
{
    const qn_value *separator = call->bound[0];
    const qn_jinja_string *s = self->u.string;
    QN_TRY(qn_want_string(r, separator, "a separator"));
    const qn_jinja_string *sep = separator->u.string;
    if (!sep->length)
        return qn_run_fail(r, "the separator is empty");
    const char *at = memmem(s->data, s->length, sep->data, sep->length);
    const size_t begin = at ? (size_t)(at - s->data) : s->length, end = at ? begin + sep->length : s->length;
    QN_TRY(qn_value_sequence(&r->arena, QN_VALUE_TUPLE, 3, out));
    QN_TRY(append_part(r, self, 0, begin, out));
    QN_TRY(append_part(r, self, begin, end, out));
    return append_part(r, self, end, s->length, out);
}

/* Python's line ends, longest first. */
static size_t line_end_at(const qn_jinja_string *s, size_t at)
{
    static const char *const ends[] = { "\r\n", "\n",   "\r",       "\v",           "\f",          "\x1c",
                                        "\x1d", "\x1e", "\xC2\x85", "\xE2\x80\xA8", "\xE2\x80\xA9" };
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (s->length - at >= strlen(ends[i]) && !memcmp(s->data + at, ends[i], strlen(ends[i])))
            return strlen(ends[i]);
    return 0;
}

qn_status qn_split_lines(qn_run *r, const qn_value *self, bool keep_ends, qn_value *out)
{
    const qn_jinja_string *s = self->u.string;
    QN_TRY(qn_value_sequence(&r->arena, QN_VALUE_LIST, 4, out));
    QN_TRY(qn_run_work(r, s->length / 16));
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
        QN_TRY(qn_run_work(r, 1 + qn_value_weight(&item)));
        if (self->safe) { /* it joins any values */
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

/* Python's start and end arguments: code points, negative from the end. Bytes [*begin, *end). */
static qn_status search_range(qn_run *r, const qn_value *self, const qn_value *start, const qn_value *stop, size_t *begin,
                              size_t *end, bool *valid)
{
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
    QN_TRY(qn_run_work(r, self->u.string->length / 64));
    return QN_OK;
}

static bool has_affix(const char *data, size_t length, const qn_jinja_string *affix, bool at_end)
{
    return affix->length <= length && !memcmp(at_end ? data + length - affix->length : data, affix->data, affix->length);
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

static const char *last_match(const char *data, size_t length, const qn_jinja_string *what)
{
    for (size_t at = length + 1; at-- > 0;)
        if (length - at >= what->length && !memcmp(data + at, what->data, what->length))
            return data + at;
    return NULL;
}

static qn_status find_either(qn_run *r, const qn_value *self, const qn_call *call, bool last, bool must, qn_value *out)
{
    size_t begin, end;
    bool valid;
    QN_TRY(qn_want_string(r, call->bound[0], "what is searched"));
    const qn_jinja_string *what = call->bound[0]->u.string;
    QN_TRY(search_range(r, self, call->bound[1], call->bound[2], &begin, &end, &valid));
    const char *data = self->u.string->data + begin, *at = NULL;
    if (valid)
        at = last           ? last_match(data, end - begin, what)
             : what->length ? memmem(data, end - begin, what->data, what->length)
                            : data;
    if (!at && must)
        return qn_run_fail(r, "the substring is not found");
    const qn_jinja_string before = { self->u.string->data, NULL, at ? (size_t)(at - self->u.string->data) : 0 };
    *out = qn_value_int(at ? (int64_t)qn_code_points(&before) : -1);
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
    QN_TRY(qn_run_work(r, s.length / 16));
    if (!what->length)
        n = (int64_t)qn_code_points(&s) + 1;
    for (const char *at = s.data, *end = s.data + s.length;
         what->length && at < end && (at = memmem(at, (size_t)(end - at), what->data, what->length)); at += what->length)
        n++;
    *out = qn_value_int(n);
    return QN_OK;
}

/* ---- Replacing ---- */

qn_status qn_replace(qn_run *r, const qn_value *self, const qn_value *old, const qn_value *with, int64_t most, qn_value *out)
{
    const qn_jinja_string *s = self->u.string, *what = old->u.string;
    qn_builder b = { .arena = &r->arena };
    size_t at = 0;
    QN_TRY(qn_run_work(r, s->length / 16));
    for (int64_t n = 0; most < 0 || n < most; n++) {
        qn_value part;
        size_t next = at;
        if (what->length) {
            const char *found = at < s->length ? memmem(s->data + at, s->length - at, what->data, what->length) : NULL;
            if (!found)
                break;
            next = (size_t)(found - s->data);
        } else if (n > 0) { /* between all characters, and at both ends */
            if (at == s->length)
                break;
            const qn_jinja_string rest = { s->data + at, NULL, s->length - at };
            next = at + qn_code_point_at(&rest, 1);
        }
        QN_TRY(qn_run_work(r, 1 + with->u.string->length / 64));
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
    if (self->safe) { /* it takes any value */
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

/* ---- Padding ---- */

static qn_status pad(qn_run *r, const qn_value *self, const qn_call *call, unsigned left_half, unsigned right_half,
                     qn_value *out)
{
    enum { MAX_WIDTH = 100000 };
    int64_t width;
    qn_value fill;
    QN_TRY(qn_want_integer(r, call->bound[0], "the width", &width));
    QN_TRY(qn_value_text(&r->arena, " ", 1, QN_FROM_TEMPLATE, &fill));
    if (call->bound[1]) {
        QN_TRY(qn_want_string(r, call->bound[1], "the fill character"));
        fill = *call->bound[1];
        if (self->safe)
            QN_TRY(qn_escape_html(r, &fill, &fill));
    }
    if (qn_code_points(fill.u.string) != 1 || width > MAX_WIDTH)
        return qn_run_fail(r, width > MAX_WIDTH ? "the width is too large" : "the fill is not one character");
    const int64_t n = (int64_t)qn_code_points(self->u.string), padding = width > n ? width - n : 0,
                  odd_left = padding & width & 1, /* as Python's center divides */
        left = left_half && right_half ? padding / 2 + odd_left
               : left_half             ? padding
                                       : 0;
    qn_builder b = { .arena = &r->arena };
    QN_TRY(qn_run_work(r, (uint64_t)padding));
    for (int64_t i = 0; i < left; i++)
        QN_TRY(qn_builder_string(&b, &fill));
    QN_TRY(qn_builder_string(&b, self));
    for (int64_t i = left; i < padding; i++)
        QN_TRY(qn_builder_string(&b, &fill));
    QN_TRY(qn_builder_finish(&b, out));
    out->safe = self->safe;
    return QN_OK;
}

METHOD(str_ljust)
{
    return pad(r, self, call, 0, 1, out);
}

METHOD(str_rjust)
{
    return pad(r, self, call, 1, 0, out);
}

METHOD(str_center)
{
    return pad(r, self, call, 1, 1, out);
}

/* ---- Kinds of characters ---- */

typedef bool (*code_test)(uint32_t code);

static bool is_letter(uint32_t code)
{
    const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)code);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

bool qn_is_letter_or_digit(uint32_t code)
{
    const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)code);
    return is_letter(code) || (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO);
}

static bool is_digit(uint32_t code)
{
    return utf8proc_category((utf8proc_int32_t)code) == UTF8PROC_CATEGORY_ND;
}

static bool is_space(uint32_t code)
{
    char bytes[4];
    const size_t n = qn_utf8_encode(code, bytes);
    return qn_space_at(bytes, n, 0) == n;
}

static qn_status all_are(qn_run *r, const qn_value *self, code_test test, qn_value *out)
{
    const qn_jinja_string *s = self->u.string;
    bool all = s->length > 0;
    QN_TRY(qn_run_work(r, s->length / 16));
    for (size_t at = 0, n; at < s->length && all; at += n) {
        uint32_t code;
        all = qn_utf8_next(s->data + at, s->length - at, &n, &code) == QN_UTF8_COMPLETE && test(code);
    }
    *out = qn_value_bool(all);
    return QN_OK;
}

METHOD(str_isdigit)
{
    UNUSED;
    return all_are(r, self, is_digit, out);
}

METHOD(str_isalpha)
{
    UNUSED;
    return all_are(r, self, is_letter, out);
}

METHOD(str_isalnum)
{
    UNUSED;
    return all_are(r, self, qn_is_letter_or_digit, out);
}

METHOD(str_isspace)
{
    UNUSED;
    return all_are(r, self, is_space, out);
}

METHOD(str_isupper)
{
    UNUSED;
    return qn_call_builtin(r, qn_find_test("upper", 5), self, call, out);
}

METHOD(str_islower)
{
    UNUSED;
    return qn_call_builtin(r, qn_find_test("lower", 5), self, call, out);
}

METHOD(str_format)
{
    return qn_format_braces(r, self, call, out);
}

static const qn_builtin methods[] = {
    { .name = "split", .call = str_split, .parameters = { "sep", "maxsplit" } },
    { .name = "rsplit", .call = str_rsplit, .parameters = { "sep", "maxsplit" } },
    { .name = "strip", .call = str_strip, .parameters = { "chars" } },
    { .name = "lstrip", .call = str_lstrip, .parameters = { "chars" } },
    { .name = "rstrip", .call = str_rstrip, .parameters = { "chars" } },
    { .name = "startswith", .call = str_startswith, .parameters = { "prefix", "start", "end" }, .required = 1 },
    { .name = "endswith", .call = str_endswith, .parameters = { "suffix", "start", "end" }, .required = 1 },
    { .name = "replace", .call = str_replace, .parameters = { "old", "new", "count" }, .required = 2 },
    { .name = "upper", .call = str_upper },
    { .name = "lower", .call = str_lower },
    { .name = "title", .call = str_title },
    { .name = "capitalize", .call = str_capitalize },
    { .name = "find", .call = str_find, .parameters = { "sub", "start", "end" }, .required = 1 },
    { .name = "rfind", .call = str_rfind, .parameters = { "sub", "start", "end" }, .required = 1 },
    { .name = "index", .call = str_index, .parameters = { "sub", "start", "end" }, .required = 1 },
    { .name = "rindex", .call = str_rindex, .parameters = { "sub", "start", "end" }, .required = 1 },
    { .name = "count", .call = str_count, .parameters = { "sub", "start", "end" }, .required = 1 },
    { .name = "join", .call = str_join, .parameters = { "iterable" }, .required = 1 },
    { .name = "format", .call = str_format, .is_variadic = true },
    { .name = "splitlines", .call = str_splitlines, .parameters = { "keepends" } },
    { .name = "partition", .call = str_partition, .parameters = { "sep" }, .required = 1 },
    { .name = "removeprefix", .call = str_removeprefix, .parameters = { "prefix" }, .required = 1 },
    { .name = "removesuffix", .call = str_removesuffix, .parameters = { "suffix" }, .required = 1 },
    { .name = "ljust", .call = str_ljust, .parameters = { "width", "fillchar" }, .required = 1 },
    { .name = "rjust", .call = str_rjust, .parameters = { "width", "fillchar" }, .required = 1 },
    { .name = "center", .call = str_center, .parameters = { "width", "fillchar" }, .required = 1 },
    { .name = "isdigit", .call = str_isdigit },
    { .name = "isalpha", .call = str_isalpha },
    { .name = "isalnum", .call = str_isalnum },
    { .name = "isspace", .call = str_isspace },
    { .name = "isupper", .call = str_isupper },
    { .name = "islower", .call = str_islower },
};

const qn_builtin *qn_find_string_method(const char *name, size_t length)
{
    return qn_find_in(methods, sizeof methods / sizeof *methods, name, length);
}
