/* Filters of strings and numbers, and the table of all filters. */
#include "base/status.h"
#include "base/strings.h"
#include "jinja/filters.h"
#include "jinja/lexer.h"
#include "jinja/strings.h"
#include "base/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILTER(name) static qn_status name(qn_run *r, const qn_value *self, const qn_call *call, qn_value *out)
#define UNUSED (void)r, (void)self, (void)call

static bool is_given(const qn_value *argument)
{
    return argument && argument->type != QN_VALUE_NONE;
}

static bool is_set(const qn_value *argument)
{
    return argument && qn_value_is_true(argument);
}

/* ---- Strings ---- */

FILTER(filter_string)
{
    UNUSED;
    return qn_str(r, self, out);
}

FILTER(filter_upper)
{
    qn_value text;
    UNUSED;
    QN_TRY(qn_str(r, self, &text));
    return qn_change_case(r, &text, QN_CASE_UPPER, out);
}

FILTER(filter_lower)
{
    qn_value text;
    UNUSED;
    QN_TRY(qn_str(r, self, &text));
    return qn_change_case(r, &text, QN_CASE_LOWER, out);
}

FILTER(filter_capitalize)
{
    qn_value text;
    UNUSED;
    QN_TRY(qn_str(r, self, &text));
    return qn_change_case(r, &text, QN_CASE_CAPITALIZE, out);
}

static bool is_opening(char byte)
{
    return byte == '-' || byte == '(' || byte == '{' || byte == '[' || byte == '<';
}

/* Makes the first letter of each word a capital. Words begin after white space and some opening characters. */
FILTER(filter_title)
{
    qn_value text, part;
    qn_builder b = { .arena = &r->arena };
    UNUSED;
    QN_TRY(qn_str(r, self, &text));
    const qn_jinja_string *s = text.u.string;
    QN_TRY(qn_run_work(r, s->length / QN_DECODED_PER_STEP));
    for (size_t at = 0, n; at < s->length; at += n) {
        enum { STEPS_OF_WORD = 4 };
        const size_t begin = at;
        QN_TRY(qn_run_work(r, STEPS_OF_WORD));
        while (at < s->length && (n = is_opening(s->data[at]) ? 1 : qn_space_at(s->data, s->length, at)) > 0)
            at += n;
        QN_TRY(qn_value_part(&r->arena, &text, begin, at, &part));
        QN_TRY(qn_builder_string(&b, &part));
        n = 0;
        while (at + n < s->length && !is_opening(s->data[at + n]) && !qn_space_at(s->data, s->length, at + n))
            n++;
        const qn_jinja_string rest = { s->data + at, NULL, n };
        const size_t first = qn_code_point_at(&rest, 1);
        QN_TRY(qn_value_part(&r->arena, &text, at, at + first, &part));
        QN_TRY(qn_change_case(r, &part, QN_CASE_UPPER, &part));
        QN_TRY(qn_builder_string(&b, &part));
        QN_TRY(qn_value_part(&r->arena, &text, at + first, at + n, &part));
        QN_TRY(qn_change_case(r, &part, QN_CASE_LOWER, &part));
        QN_TRY(qn_builder_string(&b, &part));
    }
    return qn_builder_finish(&b, out);
}

FILTER(filter_trim)
{
    qn_value text;
    QN_TRY(qn_str(r, self, &text));
    return qn_strip(r, &text, call->bound[0], true, true, out);
}

FILTER(filter_replace)
{
    qn_value text, old, with;
    int64_t most = -1;
    QN_TRY(qn_str(r, self, &text));
    QN_TRY(qn_str(r, call->bound[0], &old));
    QN_TRY(qn_str(r, call->bound[1], &with));
    if (is_given(call->bound[2]))
        QN_TRY(qn_want_integer(r, call->bound[2], "count", &most));
    return qn_replace(r, &text, &old, &with, most, out);
}

/* Indents lines after the first; with `blank` also empty ones, with `first` also the first. */
FILTER(filter_indent)
{
    enum { MOST_SPACES = 1000 };
    qn_value indent, text, lines;
    qn_builder b = { .arena = &r->arena };
    if (self->type == QN_VALUE_UNDEFINED)
        return qn_fail_undefined(r, self);
    QN_TRY(qn_want_string(r, self, "what is indented"));
    if (call->bound[0] && qn_is_string(call->bound[0])) {
        indent = *call->bound[0];
    } else {
        char spaces[MOST_SPACES];
        int64_t width = 4;
        if (call->bound[0])
            QN_TRY(qn_want_integer(r, call->bound[0], "the width", &width));
        if (width > MOST_SPACES)
            return qn_run_fail(r, "a width of more than %d", MOST_SPACES);
        memset(spaces, ' ', sizeof spaces);
        QN_TRY(qn_value_copy_text(&r->arena, spaces, width > 0 ? (size_t)width : 0, QN_FROM_TEMPLATE, &indent));
    }
    QN_TRY(qn_builder_string(&b, self));
    QN_TRY(qn_builder_bytes(&b, "\n", 1, QN_FROM_TEMPLATE));
    QN_TRY(qn_builder_finish(&b, &text));
    QN_TRY(qn_split_lines(r, &text, false, &lines));
    b = (qn_builder){ .arena = &r->arena };
    for (size_t i = 0; i < lines.u.list->n; i++) {
        const qn_value *line = &lines.u.list->items[i];
        QN_TRY(qn_run_work(r, 1 + indent.u.string->length / QN_COPIED_PER_STEP));
        if (i)
            QN_TRY(qn_builder_bytes(&b, "\n", 1, QN_FROM_TEMPLATE));
        if (i ? is_set(call->bound[2]) || line->u.string->length : is_set(call->bound[1]))
            QN_TRY(qn_builder_string(&b, &indent));
        QN_TRY(qn_builder_string(&b, line));
    }
    QN_TRY(qn_builder_finish(&b, out));
    out->safe = self->safe;
    return QN_OK;
}

FILTER(filter_safe)
{
    UNUSED;
    QN_TRY(qn_str(r, self, out));
    out->safe = true;
    return QN_OK;
}

FILTER(filter_escape)
{
    qn_value text;
    UNUSED;
    QN_TRY(qn_str(r, self, &text));
    return qn_escape_html(r, &text, out);
}

FILTER(filter_forceescape)
{
    qn_value text;
    UNUSED;
    QN_TRY(qn_str(r, self, &text));
    text.safe = false;
    return qn_escape_html(r, &text, out);
}

FILTER(filter_center)
{
    qn_value text, width = qn_value_int(80);
    const qn_call arguments = { .values = call->bound[0] ? call->bound[0] : &width, .n = 1 };
    QN_TRY(qn_str(r, self, &text));
    return qn_call_builtin(r, qn_find_string_method("center", 6), &text, &arguments, out);
}

FILTER(filter_format)
{
    qn_value text, values;
    QN_TRY(qn_str(r, self, &text));
    if (call->n && call->n_named)
        return qn_run_fail(r, "positional and keyword arguments at the same time");
    if (call->n_named) {
        QN_TRY(qn_value_dict(&r->arena, QN_VALUE_DICT, &values));
        for (size_t i = 0; i < call->n_named; i++) {
            qn_value key;
            QN_TRY(qn_value_text(&r->arena, call->names[i], strlen(call->names[i]), QN_FROM_TEMPLATE, &key));
            QN_TRY(qn_dict_set(&r->arena, values.u.dict, key, call->named[i]));
        }
    } else {
        QN_TRY(qn_value_sequence(&r->arena, QN_VALUE_TUPLE, call->n, &values));
        for (size_t i = 0; i < call->n; i++)
            QN_TRY(qn_list_append(&r->arena, values.u.list, call->values[i]));
    }
    return qn_format_percent(r, &text, &values, out);
}

/* Counts words: runs of letters, digits and _. */
FILTER(filter_wordcount)
{
    qn_value text;
    int64_t n_words = 0;
    bool is_in_word = false;
    UNUSED;
    QN_TRY(qn_str(r, self, &text));
    const qn_jinja_string *s = text.u.string;
    QN_TRY(qn_run_work(r, s->length / QN_DECODED_PER_STEP));
    for (size_t at = 0, n; at < s->length; at += n) {
        uint32_t code;
        const bool is_word = qn_utf8_next(s->data + at, s->length - at, &n, &code) == QN_UTF8_COMPLETE &&
                             (code == '_' || qn_is_letter_or_digit(code));
        n_words += is_word && !is_in_word;
        is_in_word = is_word;
    }
    *out = qn_value_int(n_words);
    return QN_OK;
}

/* Cuts a text to at most `length` characters including `end`, before its last word unless killwords is set. A short
 * sequence stays unchanged. */
FILTER(filter_truncate)
{
    int64_t most = 255, leeway = 5, n;
    qn_value end;
    qn_builder b = { .arena = &r->arena };
    QN_TRY(qn_value_text(&r->arena, "...", 3, QN_FROM_TEMPLATE, &end));
    if (call->bound[0])
        QN_TRY(qn_want_integer(r, call->bound[0], "length", &most));
    if (call->bound[2])
        end = *call->bound[2];
    if (is_given(call->bound[3]))
        QN_TRY(qn_want_integer(r, call->bound[3], "leeway", &leeway));
    QN_TRY(qn_want_string(r, &end, "end"));
    QN_TRY(qn_run_work(r, end.u.string->length / QN_READ_PER_STEP));
    const int64_t n_end = (int64_t)qn_code_points(end.u.string);
    if (most < n_end || leeway < 0)
        return qn_run_fail(r, leeway < 0 ? "a leeway below 0" : "a length below that of the end");
    QN_TRY(qn_value_count(r, self, &n));
    *out = *self;
    if (n - leeway <= most)
        return QN_OK;
    QN_TRY(qn_want_string(r, self, "what is truncated"));
    const qn_jinja_string *s = self->u.string;
    size_t kept = qn_code_point_at(s, (size_t)(most - n_end));
    const char *space = is_set(call->bound[1]) ? NULL : qn_memrchr(s->data, ' ', kept);
    kept = space ? (size_t)(space - s->data) : kept;
    QN_TRY(qn_value_part(&r->arena, self, 0, kept, out));
    QN_TRY(qn_builder_string(&b, out));
    QN_TRY(qn_builder_string(&b, &end));
    return qn_builder_finish(&b, out);
}

static qn_status put_quoted(qn_run *r, qn_builder *b, const qn_value *value, bool in_query)
{
    static const char hex[] = "0123456789ABCDEF";
    qn_value text;
    QN_TRY(qn_str(r, value, &text));
    const qn_jinja_string *s = text.u.string;
    QN_TRY(qn_run_work(r, 1 + s->length / QN_DECODED_PER_STEP));
    for (size_t i = 0; i < s->length; i++) {
        const unsigned char c = (unsigned char)s->data[i];
        const char escaped[] = { '%', hex[c >> 4], hex[c & 15] };
        const bool is_kept = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '_' || c == '.' ||
                             c == '-' || c == '~' || (c == '/' && !in_query);
        QN_TRY(is_kept                ? qn_builder_bytes(b, s->data + i, 1, QN_FROM_DATA)
               : c == ' ' && in_query ? qn_builder_bytes(b, "+", 1, QN_FROM_DATA)
                                      : qn_builder_bytes(b, escaped, sizeof escaped, QN_FROM_DATA));
    }
    return QN_OK;
}

/* Percent-encodes the input: a text, or pairs of keys and values, which become a query. */
FILTER(filter_urlencode)
{
    const qn_value *pairs, *pair;
    size_t n, two;
    qn_value view = *self;
    qn_builder b = { .arena = &r->arena };
    UNUSED;
    if (self->type < QN_VALUE_LIST || self->type > QN_VALUE_ITERATOR) {
        QN_TRY(put_quoted(r, &b, self, false));
        return qn_builder_finish(&b, out);
    }
    if (self->type == QN_VALUE_DICT) {
        const qn_call none = { 0 };
        QN_TRY(qn_call_builtin(r, qn_find_method(self, "items", 5), self, &none, &view));
    }
    QN_TRY(qn_items_of(r, &view, &pairs, &n));
    for (size_t i = 0; i < n; i++) {
        QN_TRY(qn_items_of(r, &pairs[i], &pair, &two));
        if (two != 2)
            return qn_run_fail(r, "item %zu is no pair of a key and a value", i);
        QN_TRY(qn_builder_bytes(&b, "&", i > 0, QN_FROM_DATA));
        QN_TRY(put_quoted(r, &b, &pair[0], true));
        QN_TRY(qn_builder_bytes(&b, "=", 1, QN_FROM_DATA));
        QN_TRY(put_quoted(r, &b, &pair[1], true));
    }
    return qn_builder_finish(&b, out);
}

FILTER(filter_tojson)
{
    qn_json_style style = { .indent = call->bound[1],
                            .item_separator = is_given(call->bound[1]) ? "," : ", ",
                            .key_separator = ": ",
                            .n_item_separator = is_given(call->bound[1]) ? 1 : 2,
                            .n_key_separator = 2,
                            .ascii = is_set(call->bound[0]),
                            .sort_keys = is_set(call->bound[3]) };
    if (is_given(call->bound[2])) {
        const qn_value *pair = call->bound[2];
        if ((pair->type != QN_VALUE_TUPLE && pair->type != QN_VALUE_LIST) || pair->u.list->n != 2)
            return qn_run_fail(r, "separators is %s, expected a pair of strings", qn_value_type_name(pair));
        QN_TRY(qn_want_string(r, &pair->u.list->items[0], "a separator"));
        QN_TRY(qn_want_string(r, &pair->u.list->items[1], "a separator"));
        const qn_jinja_string *item = pair->u.list->items[0].u.string, *key = pair->u.list->items[1].u.string;
        style.item_separator = item->data;
        style.n_item_separator = item->length;
        style.key_separator = key->data;
        style.n_key_separator = key->length;
    }
    return qn_to_json(r, self, &style, out);
}

FILTER(filter_from_json)
{
    UNUSED;
    QN_TRY(qn_want_string(r, self, "what is read as JSON"));
    return qn_from_json(r, self, out);
}

/* ---- Numbers ---- */

/* Copies a text without surrounding white space and underscores between digits, with a terminator. False if it is
 * too long to be a number. */
static bool number_text(const qn_jinja_string *s, char *text, size_t size)
{
    size_t begin = 0, end = s->length, n, length = 0;
    while ((n = qn_space_at(s->data, s->length, begin)) > 0)
        begin += n;
    while (end > begin && (n = qn_space_before(s->data, end)) > 0)
        end -= n;
    for (size_t i = begin; i < end; i++) {
        char c = s->data[i];
        uint32_t code;
        if ((unsigned char)c >= 0x80 && qn_utf8_next(s->data + i, end - i, &n, &code) == QN_UTF8_COMPLETE &&
            qn_decimal_value(code) >= 0) {
            c = (char)('0' + qn_decimal_value(code));
            i += n - 1;
        }
        const bool between = i > begin && i + 1 < end && s->data[i - 1] != '_' && s->data[i + 1] != '_';
        if (c == '_' && between)
            continue;
        if (c == '_' || !c || length + 1 == size)
            return false;
        text[length++] = c;
    }
    text[length] = 0;
    return length > 0;
}

static bool read_integer(const qn_jinja_string *s, int base, int64_t *out)
{
    char text[128], *end;
    if (!number_text(s, text, sizeof text))
        return false;
    const char *digits = text + (*text == '+' || *text == '-');
    const char letter = digits[0] == '0' ? digits[1] : 0;
    const int of_prefix = letter == 'x' || letter == 'X'   ? 16
                          : letter == 'o' || letter == 'O' ? 8
                          : letter == 'b' || letter == 'B' ? 2
                                                           : 0;
    if ((of_prefix && of_prefix == base) || (of_prefix && base == 0)) {
        base = of_prefix;
        digits += 2;
    }
    if (!((*digits >= '0' && *digits <= '9') || (*digits >= 'a' && *digits <= 'z') ||
          (*digits >= 'A' && *digits <= 'Z')))
        return false;
    errno = 0;
    const unsigned long long magnitude = strtoull(digits, &end, base ? base : 10);
    if (*end || errno || magnitude > INT64_MAX)
        return false;
    *out = *text == '-' ? -(int64_t)magnitude : (int64_t)magnitude;
    return true;
}

static bool read_real(const qn_jinja_string *s, double *out)
{
    char text[400], *end;
    if (!number_text(s, text, sizeof text) || strpbrk(text, "xXpP("))
        return false;
    *out = strtod(text, &end);
    return end != text && !*end;
}

/* Converts a float to an integer, without its fraction. A NaN becomes 0. */
static qn_status real_to_integer(const qn_run *r, double x, int64_t *out)
{
    *out = 0;
    if (isinf(x))
        return qn_run_fail(r, "infinity is no integer");
    if (fabs(x) >= 0x1p63)
        return qn_run_fail(r, "the result has more than 64 bits");
    if (!isnan(x))
        *out = (int64_t)x;
    return QN_OK;
}

FILTER(filter_int)
{
    int64_t base = 10, n = 0;
    double x;
    bool is_number = false;
    if (self->type == QN_VALUE_UNDEFINED)
        return qn_fail_undefined(r, self);
    if (call->bound[1])
        QN_TRY(qn_want_integer(r, call->bound[1], "base", &base));
    if (base != 0 && (base < 2 || base > 36))
        return qn_run_fail(r, "base is not 0 and not 2 to 36");
    if (qn_is_integer(self)) {
        n = qn_integer_of(self);
        is_number = true;
    } else if (self->type == QN_VALUE_FLOAT) {
        is_number = !isnan(self->u.real);
        QN_TRY(real_to_integer(r, self->u.real, &n));
    } else if (qn_is_string(self)) {
        QN_TRY(qn_run_work(r, 2 * (QN_NUMBER_STEPS + self->u.string->length / QN_READ_PER_STEP)));
        is_number = read_integer(self->u.string, (int)base, &n);
        if (!is_number && read_real(self->u.string, &x) && isfinite(x)) {
            is_number = true;
            QN_TRY(real_to_integer(r, x, &n));
        }
    }
    *out = is_number ? qn_value_int(n) : call->bound[0] ? *call->bound[0] : qn_value_int(0);
    return QN_OK;
}

FILTER(filter_float)
{
    double x = 0;
    if (self->type == QN_VALUE_UNDEFINED)
        return qn_fail_undefined(r, self);
    if (qn_is_string(self))
        QN_TRY(qn_run_work(r, QN_NUMBER_STEPS + self->u.string->length / QN_READ_PER_STEP));
    const bool is_number = qn_is_number(self) || (qn_is_string(self) && read_real(self->u.string, &x));
    if (qn_is_number(self))
        x = qn_real_of(self);
    *out = is_number ? qn_value_float(x) : call->bound[0] ? *call->bound[0] : qn_value_float(0);
    return QN_OK;
}

FILTER(filter_abs)
{
    UNUSED;
    if (!qn_is_number(self))
        return self->type == QN_VALUE_UNDEFINED ? qn_fail_undefined(r, self)
                                                : qn_run_fail(r, "%s has no absolute value", qn_value_type_name(self));
    if (self->type == QN_VALUE_FLOAT) {
        *out = qn_value_float(fabs(self->u.real));
        return QN_OK;
    }
    const int64_t n = qn_integer_of(self);
    if (n == INT64_MIN)
        return qn_run_fail(r, "the result has more than 64 bits");
    *out = qn_value_int(n < 0 ? -n : n);
    return QN_OK;
}

/* Rounds a half to even. */
static double round_real(double x, int64_t precision)
{
    char text[400];
    if (precision < 0) {
        const double scale = pow(10, (double)-precision);
        return nearbyint(x / scale) * scale;
    }
    if (precision > 17 || fabs(x) > 1e22)
        return x;
    snprintf(text, sizeof text, "%.*f", (int)precision, x);
    return strtod(text, NULL);
}

FILTER(filter_round)
{
    int64_t precision = 0;
    QN_TRY(qn_run_work(r, QN_FLOAT_STEPS));
    if (call->bound[0])
        QN_TRY(qn_want_integer(r, call->bound[0], "precision", &precision));
    if (!qn_is_number(self))
        return self->type == QN_VALUE_UNDEFINED ? qn_fail_undefined(r, self)
                                                : qn_run_fail(r, "%s cannot be rounded", qn_value_type_name(self));
    if (precision < -20 || precision > 300)
        return qn_run_fail(r, "a precision that is not -20 to 300");
    const bool common = !call->bound[1] || (qn_is_string(call->bound[1]) && qn_text_is(call->bound[1], "common", 6)),
               up = !common && qn_is_string(call->bound[1]) && qn_text_is(call->bound[1], "ceil", 4),
               down = !common && qn_is_string(call->bound[1]) && qn_text_is(call->bound[1], "floor", 5);
    if (!common && !up && !down)
        return qn_run_fail(r, "the method is not common, ceil or floor");
    if (common && qn_is_integer(self)) {
        *out = qn_value_int(precision >= 0 ? qn_integer_of(self) : (int64_t)round_real(qn_real_of(self), precision));
        return QN_OK;
    }
    const double scale = pow(10, (double)precision), x = qn_real_of(self);
    *out =
        qn_value_float(common ? round_real(x, precision) : ((up ? ceil(x * scale) : floor(x * scale)) + 0.0) / scale);
    return QN_OK;
}

/* ---- The table ---- */

FILTER(filter_default)
{
    UNUSED;
    if (self->type != QN_VALUE_UNDEFINED && !(is_set(call->bound[1]) && !qn_value_is_true(self))) {
        *out = *self;
        return QN_OK;
    }
    if (call->bound[0]) {
        *out = *call->bound[0];
        return QN_OK;
    }
    return qn_value_text(&r->arena, "", 0, QN_FROM_TEMPLATE, out);
}

static const qn_builtin filters[] = {
    { .name = "string", .call = filter_string },
    { .name = "upper", .call = filter_upper },
    { .name = "lower", .call = filter_lower },
    { .name = "capitalize", .call = filter_capitalize },
    { .name = "title", .call = filter_title },
    { .name = "trim", .call = filter_trim, .parameters = { "chars" } },
    { .name = "replace", .call = filter_replace, .parameters = { "old", "new", "count" }, .required = 2 },
    { .name = "indent", .call = filter_indent, .parameters = { "width", "first", "blank" } },
    { .name = "safe", .call = filter_safe },
    { .name = "escape", .call = filter_escape },
    { .name = "e", .call = filter_escape },
    { .name = "forceescape", .call = filter_forceescape },
    { .name = "center", .call = filter_center, .parameters = { "width" } },
    { .name = "format", .call = filter_format, .is_variadic = true },
    { .name = "wordcount", .call = filter_wordcount },
    { .name = "truncate", .call = filter_truncate, .parameters = { "length", "killwords", "end", "leeway" } },
    { .name = "urlencode", .call = filter_urlencode },
    { .name = "tojson", .call = filter_tojson, .parameters = { "ensure_ascii", "indent", "separators", "sort_keys" } },
    { .name = "from_json", .call = filter_from_json },
    { .name = "int", .call = filter_int, .parameters = { "default", "base" } },
    { .name = "float", .call = filter_float, .parameters = { "default" } },
    { .name = "abs", .call = filter_abs },
    { .name = "round", .call = filter_round, .parameters = { "precision", "method" } },
    { .name = "default", .call = filter_default, .parameters = { "default_value", "boolean" } },
    { .name = "d", .call = filter_default, .parameters = { "default_value", "boolean" } },
};

const qn_builtin *qn_find_filter(const char *name, size_t length)
{
    const qn_builtin *filter = qn_find_in(filters, sizeof filters / sizeof *filters, name, length);
    return filter ? filter : qn_find_sequence_filter(name, length);
}
