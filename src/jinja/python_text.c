/* str(value) and repr(value) as Python prints them. */
#include "base/append.h"
#include "base/status.h"
#include "jinja/run.h"
#include "base/utf8.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* ---- Floats ---- */

/* Drops zeros at the end of the digits of "d.ddde+XX". */
static void drop_zeros(char *text)
{
    char *e = strchr(text, 'e'), *end = e;
    while (end > text + 1 && end[-1] == '0')
        end--;
    end -= end[-1] == '.';
    memmove(end, e, strlen(e) + 1);
}

/* Writes the shortest digits that read back as x, at most 17: "d.ddde+XX". All doubles keep 15 digits, except those
 * near zero. */
static void shortest_digits(double x, char *text, size_t size)
{
    const bool is_normal = x >= DBL_MIN || x == 0;
    for (int precision = is_normal ? DBL_DIG - 1 : 0; precision <= 16; precision++) {
        snprintf(text, size, "%.*e", precision, x);
        if (strtod(text, NULL) == x)
            break;
    }
    if (is_normal)
        drop_zeros(text);
}

size_t qn_float_text(double x, char *text)
{
    enum { LEAST_EXPONENT = -4, EXPONENT_LIMIT = 16 }; /* numbers in this range are printed without an exponent */
    char scientific[QN_FLOAT_TEXT], digits[QN_FLOAT_TEXT];
    qn_text_buffer to = qn_append_to(text, QN_FLOAT_TEXT);
    if (isnan(x) || isinf(x)) {
        qn_append(&to, "%s", isnan(x) ? "nan" : x < 0 ? "-inf" : "inf");
        return to.length;
    }
    shortest_digits(fabs(x), scientific, sizeof scientific);
    const char *sign = signbit(x) ? "-" : "", *e = strchr(scientific, 'e');
    const int exponent = atoi(e + 1);
    int n = 0;
    for (const char *c = scientific; c < e; c++)
        if (*c != '.')
            digits[n++] = *c;
    digits[n] = 0;
    if (exponent < LEAST_EXPONENT || exponent >= EXPONENT_LIMIT)
        qn_append(&to, "%s%c%s%se%c%02d", sign, digits[0], n > 1 ? "." : "", digits + 1, exponent < 0 ? '-' : '+',
                  abs(exponent));
    else if (exponent < 0)
        qn_append(&to, "%s0.%.*s%s", sign, -exponent - 1, "000", digits);
    else if (n <= exponent + 1)
        qn_append(&to, "%s%s%.*s.0", sign, digits, exponent + 1 - n, "0000000000000000");
    else
        qn_append(&to, "%s%.*s.%s", sign, exponent + 1, digits, digits + exponent + 1);
    return to.length;
}

/* ---- Strings ---- */

static bool is_printable(uint32_t code)
{
    if (code == ' ')
        return true;
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO: return false;
    default: return true;
    }
}

static void format_escape(char *to, size_t size, uint32_t code)
{
    snprintf(to, size, code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x", code);
}

static qn_status append_character(qn_builder *b, const char *bytes, size_t n, uint32_t code, char quote)
{
    char escaped[12];
    if (code == (uint32_t)quote || code == '\\')
        snprintf(escaped, sizeof escaped, "\\%c", (char)code);
    else if (code == '\n' || code == '\r' || code == '\t')
        snprintf(escaped, sizeof escaped, "\\%c", code == '\n' ? 'n' : code == '\r' ? 'r' : 't');
    else if (is_printable(code))
        return qn_builder_bytes(b, bytes, n, QN_FROM_DATA);
    else
        format_escape(escaped, sizeof escaped, code);
    return qn_builder_bytes(b, escaped, strlen(escaped), QN_FROM_DATA);
}

static qn_status append_string_repr(qn_run *r, qn_builder *b, const qn_value *v)
{
    const qn_jinja_string *s = v->u.string;
    QN_TRY(qn_run_work(r, s->length / QN_DECODED_PER_STEP));
    const char quote = memchr(s->data, '\'', s->length) && !memchr(s->data, '"', s->length) ? '"' : '\'';
    if (v->safe)
        QN_TRY(qn_builder_bytes(b, "Markup(", 7, QN_FROM_DATA));
    QN_TRY(qn_builder_bytes(b, &quote, 1, QN_FROM_DATA));
    for (size_t at = 0, n; at < s->length; at += n) {
        uint32_t code;
        if (qn_utf8_next(s->data + at, s->length - at, &n, &code) != QN_UTF8_COMPLETE)
            code = 0xFFFD;
        QN_TRY(append_character(b, s->data + at, n, code, quote));
    }
    QN_TRY(qn_builder_bytes(b, &quote, 1, QN_FROM_DATA));
    return v->safe ? qn_builder_bytes(b, ")", 1, QN_FROM_DATA) : QN_OK;
}

/* ---- Containers ---- */

static qn_status append_text(qn_builder *b, const char *text)
{
    return qn_builder_bytes(b, text, strlen(text), QN_FROM_DATA);
}

static qn_status append_repr(qn_run *r, qn_builder *b, const qn_value *v);

static qn_status append_items(qn_run *r, qn_builder *b, const char *open, const qn_value *items, size_t n,
                              const char *close)
{
    QN_TRY(append_text(b, open));
    for (size_t i = 0; i < n; i++) {
        if (i)
            QN_TRY(append_text(b, ", "));
        QN_TRY(append_repr(r, b, &items[i]));
    }
    return append_text(b, close);
}

static qn_status append_dict(qn_run *r, qn_builder *b, const qn_dict *dict)
{
    QN_TRY(append_text(b, "{"));
    for (size_t i = 0; i < dict->n; i++) {
        if (i)
            QN_TRY(append_text(b, ", "));
        QN_TRY(append_repr(r, b, &dict->entries[i].key));
        QN_TRY(append_text(b, ": "));
        QN_TRY(append_repr(r, b, &dict->entries[i].value));
    }
    return append_text(b, "}");
}

static qn_status append_view(qn_run *r, qn_builder *b, const qn_value *v)
{
    static const char *const names[] = { "dict_items([", "dict_keys([", "dict_values([" };
    const qn_value *items;
    size_t n;
    QN_TRY(qn_items_of(r, v, &items, &n));
    return append_items(r, b, names[v->u.view->kind], items, n, "])");
}

static qn_status append_range(qn_builder *b, const qn_range_value *range)
{
    char text[80];
    if (range->step == 1)
        snprintf(text, sizeof text, "range(%" PRId64 ", %" PRId64 ")", range->start, range->stop);
    else
        snprintf(text, sizeof text, "range(%" PRId64 ", %" PRId64 ", %" PRId64 ")", range->start, range->stop,
                 range->step);
    return append_text(b, text);
}

static qn_status append_other(qn_run *r, qn_builder *b, const qn_value *v)
{
    char text[100];
    switch (v->type) {
    case QN_VALUE_NAMESPACE:
        QN_TRY(append_text(b, "<Namespace "));
        QN_TRY(append_dict(r, b, v->u.dict));
        return append_text(b, ">");
    case QN_VALUE_MACRO:
        snprintf(text, sizeof text, "<Macro '%.60s'>", v->u.macro->node->name);
        return append_text(b, text);
    case QN_VALUE_LOOP:
        snprintf(text, sizeof text, "<LoopContext %zu/%zu>", v->u.loop->at + 1, v->u.loop->n);
        return append_text(b, text);
    default: snprintf(text, sizeof text, "<%s>", qn_value_type_name(v)); return append_text(b, text);
    }
}

/* Writes str() of a number, a boolean or none; false for other values. They cannot spell a special token, so their text
 * counts as the template's. */
static bool scalar_text(const qn_value *v, char *text, size_t size)
{
    switch (v->type) {
    case QN_VALUE_NONE: snprintf(text, size, "None"); return true;
    case QN_VALUE_BOOL: snprintf(text, size, "%s", v->u.boolean ? "True" : "False"); return true;
    case QN_VALUE_INT: snprintf(text, size, "%" PRId64, v->u.integer); return true;
    case QN_VALUE_FLOAT: qn_float_text(v->u.real, text); return true;
    default: return false;
    }
}

static qn_status append_repr(qn_run *r, qn_builder *b, const qn_value *v)
{
    char text[QN_FLOAT_TEXT];
    QN_TRY(qn_run_enter(r));
    QN_TRY(qn_run_work(r, v->type == QN_VALUE_FLOAT ? QN_FLOAT_STEPS : 0));
    qn_status status = QN_OK;
    if (scalar_text(v, text, sizeof text))
        status = append_text(b, text);
    else if (v->type == QN_VALUE_UNDEFINED)
        status = append_text(b, "Undefined");
    else if (v->type == QN_VALUE_STRING)
        status = append_string_repr(r, b, v);
    else if (v->type == QN_VALUE_LIST)
        status = append_items(r, b, "[", v->u.list->items, v->u.list->n, "]");
    else if (v->type == QN_VALUE_TUPLE)
        status = append_items(r, b, "(", v->u.list->items, v->u.list->n, v->u.list->n == 1 ? ",)" : ")");
    else if (v->type == QN_VALUE_DICT)
        status = append_dict(r, b, v->u.dict);
    else if (v->type == QN_VALUE_VIEW)
        status = append_view(r, b, v);
    else if (v->type == QN_VALUE_RANGE)
        status = append_range(b, v->u.range);
    else
        status = append_other(r, b, v);
    r->depth--;
    return status;
}

qn_status qn_repr(qn_run *r, const qn_value *value, qn_value *out)
{
    qn_builder b = { .arena = &r->arena };
    QN_TRY(append_repr(r, &b, value));
    return qn_builder_finish(&b, out);
}

qn_status qn_ascii(qn_run *r, const qn_value *value, qn_value *out)
{
    qn_builder b = { .arena = &r->arena };
    qn_value text;
    char escaped[12];
    QN_TRY(qn_repr(r, value, &text));
    const qn_jinja_string *s = text.u.string;
    QN_TRY(qn_run_work(r, s->length / QN_DECODED_PER_STEP));
    for (size_t at = 0, n; at < s->length; at += n) {
        uint32_t code;
        (void)qn_utf8_next(s->data + at, s->length - at, &n, &code);
        if (code < 0x80) {
            QN_TRY(qn_builder_bytes(&b, s->data + at, n, QN_FROM_DATA));
            continue;
        }
        format_escape(escaped, sizeof escaped, code);
        QN_TRY(qn_builder_bytes(&b, escaped, strlen(escaped), QN_FROM_DATA));
    }
    return qn_builder_finish(&b, out);
}

qn_status qn_append_str(qn_run *r, qn_builder *b, const qn_value *value)
{
    char text[QN_FLOAT_TEXT];
    if (qn_is_string(value)) {
        QN_TRY(qn_run_work(r, value->u.string->length / QN_COPIED_PER_STEP));
        return qn_builder_string(b, value);
    }
    if (value->type == QN_VALUE_UNDEFINED)
        return QN_OK;
    QN_TRY(qn_run_work(r, value->type == QN_VALUE_FLOAT ? QN_FLOAT_STEPS : 0));
    if (scalar_text(value, text, sizeof text))
        return qn_builder_bytes(b, text, strlen(text), QN_FROM_TEMPLATE);
    return append_repr(r, b, value);
}

qn_status qn_str(qn_run *r, const qn_value *value, qn_value *out)
{
    *out = *value;
    if (qn_is_string(value))
        return QN_OK;
    qn_builder b = { .arena = &r->arena };
    QN_TRY(qn_append_str(r, &b, value));
    return qn_builder_finish(&b, out);
}

/* ---- HTML ---- */

static const char *entity_of(char byte)
{
    switch (byte) {
    case '&': return "&amp;";
    case '<': return "&lt;";
    case '>': return "&gt;";
    case '\'': return "&#39;";
    case '"': return "&#34;";
    default: return NULL;
    }
}

qn_status qn_escape_html(qn_run *r, const qn_value *string, qn_value *out)
{
    const qn_jinja_string *s = string->u.string;
    *out = *string;
    if (string->safe)
        return QN_OK;
    qn_builder b = { .arena = &r->arena };
    QN_TRY(qn_run_work(r, s->length / QN_READ_PER_STEP));
    for (size_t begin = 0, at = 0; at <= s->length; at++) {
        const char *entity = at < s->length ? entity_of(s->data[at]) : NULL;
        if (at < s->length && !entity)
            continue;
        qn_value part;
        QN_TRY(qn_run_work(r, 1));
        QN_TRY(qn_value_part(&r->arena, string, begin, at, &part));
        QN_TRY(qn_builder_string(&b, &part));
        if (entity)
            QN_TRY(qn_builder_bytes(&b, entity, strlen(entity), QN_FROM_DATA));
        begin = at + 1;
    }
    QN_TRY(qn_builder_finish(&b, out));
    out->safe = true;
    return QN_OK;
}
