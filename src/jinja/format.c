/* Python's string formatting: `format % values` and format.format(values). */
#include "base/status.h"
#include "jinja/run.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* A specification, for both kinds of formatting. */
typedef struct spec {
    char fill[5]; /* a character of UTF-8 */
    char align;   /* '<', '>', '^', '=', or 0 */
    char sign;    /* '+', ' ', or 0 */
    bool alternate, comma;
    int width, precision; /* -1: not given */
    char type;            /* or 0 */
} spec;

enum { MAX_WIDTH = 10000, MAX_PRECISION = 100 };

/* A double has at most 309 digits before the point; then come the point, its places, and a terminator. */
enum { NUMBER_BYTES = 309 + 1 + MAX_PRECISION + 1 };

/* Reads a decimal number at *at. -1: there is none; -2: it is above `most`. */
static int read_number(const char **at, const char *end, int most)
{
    if (*at == end || **at < '0' || **at > '9')
        return -1;
    int64_t n = 0;
    for (; *at < end && **at >= '0' && **at <= '9'; ++*at) {
        n = n * 10 + (**at - '0');
        if (n > most)
            return -2;
    }
    return (int)n;
}

/* ---- Padding ---- */

static qn_status put_fill(qn_run *r, qn_builder *b, const spec *s, size_t n)
{
    const qn_jinja_string fill = { s->fill, NULL, strlen(s->fill) };
    const qn_value value = { .type = QN_VALUE_STRING, .origin = QN_FROM_TEMPLATE, .u.string = &fill };
    QN_TRY(qn_run_work(r, n / QN_READ_PER_STEP));
    return qn_builder_repeat(b, &value, n);
}

/* Appends a text padded to its width. With '=', the padding comes after the first n_head bytes, the sign and prefix of
 * a number. */
static qn_status put_padded(qn_run *r, qn_builder *b, const spec *s, const qn_value *text, size_t n_head,
                            char default_align)
{
    QN_TRY(qn_run_work(r, text->u.string->length / QN_READ_PER_STEP));
    const size_t n = qn_code_points(text->u.string), width = s->width > 0 ? (size_t)s->width : 0,
                 padding = width > n ? width - n : 0;
    const char align = s->align ? s->align : default_align;
    const size_t before = align == '>' || align == '=' ? padding : align == '^' ? padding / 2 : 0;
    qn_value head, tail;
    const size_t split = align == '=' ? n_head : 0;
    QN_TRY(qn_value_part(b->arena, text, 0, split, &head));
    QN_TRY(qn_value_part(b->arena, text, split, text->u.string->length, &tail));
    QN_TRY(qn_builder_string(b, &head));
    QN_TRY(put_fill(r, b, s, before));
    QN_TRY(qn_builder_string(b, &tail));
    return put_fill(r, b, s, padding - before);
}

/* ---- Numbers ---- */

static const char *sign_text(const spec *s, bool negative)
{
    return negative ? "-" : s->sign == '+' ? "+" : s->sign == ' ' ? " " : "";
}

/* Whether a number is padded with zeros between its sign and its digits. */
static bool is_zero_padded(const spec *s)
{
    return !strcmp(s->fill, "0") && (!s->align || s->align == '=');
}

/* Writes a number with commas between groups of three digits of its integer part, and with zeros before it, which have
 * commas, too, until it has `width` characters. */
static void add_commas(char *out, const char *number, size_t width)
{
    const size_t n = strspn(number, "0123456789"), n_rest = strlen(number) - n;
    size_t padded = n; /* digits of the integer part, with zeros: they have (padded - 1) / 3 commas */
    while (n && padded + (padded - 1) / 3 + n_rest < width)
        padded++;
    for (size_t i = padded; i-- > 0;) {
        *out++ = i < n ? number[n - 1 - i] : '0';
        if (i && i % 3 == 0)
            *out++ = ',';
    }
    memcpy(out, number + n, n_rest + 1);
}

/* Appends a number of fewer than NUMBER_BYTES bytes: a sign and a prefix, `digits`, a suffix of at most one byte. */
static qn_status put_number(qn_run *r, qn_builder *b, const spec *s, const char *sign, const char *prefix,
                            const char *digits, const char *suffix)
{
    char text[MAX_WIDTH + 2 * NUMBER_BYTES];
    qn_value value;
    const size_t n_head = strlen(sign) + strlen(prefix), n_other = n_head + strlen(suffix);
    const size_t width = is_zero_padded(s) && s->width > 0 ? (size_t)s->width : 0;
    snprintf(text, sizeof text, "%s%s", sign, prefix);
    if (s->comma)
        add_commas(text + n_head, digits, width > n_other ? width - n_other : 0);
    else
        memcpy(text + n_head, digits, strlen(digits) + 1);
    memcpy(text + strlen(text), suffix, strlen(suffix) + 1);
    QN_TRY(qn_value_copy_text(b->arena, text, strlen(text), QN_FROM_TEMPLATE, &value));
    return put_padded(r, b, s, &value, n_head, is_zero_padded(s) ? '=' : '>');
}

static qn_status put_integer(qn_run *r, qn_builder *b, const spec *s, int64_t v)
{
    char digits[MAX_PRECISION + 1];
    const uint64_t magnitude = v < 0 ? -(uint64_t)v : (uint64_t)v;
    const char *prefix = "";
    switch (s->type) {
    case 'x':
        snprintf(digits, sizeof digits, "%" PRIx64, magnitude);
        prefix = "0x";
        break;
    case 'X':
        snprintf(digits, sizeof digits, "%" PRIX64, magnitude);
        prefix = "0X";
        break;
    case 'o':
        snprintf(digits, sizeof digits, "%" PRIo64, magnitude);
        prefix = "0o";
        break;
    case 'b': {
        size_t n = 0;
        for (int bit = 63; bit >= 0; bit--)
            if (magnitude >> bit & 1 || n || bit == 0)
                digits[n++] = magnitude >> bit & 1 ? '1' : '0';
        digits[n] = 0;
        prefix = "0b";
        break;
    }
    default: snprintf(digits, sizeof digits, "%" PRIu64, magnitude); break;
    }
    const size_t n = strlen(digits), least = s->precision > 0 ? (size_t)s->precision : 0;
    if (n < least) {
        memmove(digits + least - n, digits, n + 1);
        memset(digits, '0', least - n);
    }
    return put_number(r, b, s, sign_text(s, v < 0), s->alternate ? prefix : "", digits, "");
}

static qn_status put_real(qn_run *r, qn_builder *b, const spec *s, double v)
{
    char digits[NUMBER_BYTES], format[16];
    const bool percent = s->type == '%', negative = __builtin_signbit(v) && v == v;
    const double magnitude = negative ? -v : v;
    QN_TRY(qn_run_work(r, 2 * QN_FLOAT_STEPS + (s->precision > 0 ? (uint64_t)s->precision : 0)));
    if (!s->type && s->precision < 0) {
        qn_float_text(magnitude, digits);
    } else {
        snprintf(format, sizeof format, "%%%s.*%c", s->alternate ? "#" : "", percent ? 'f' : s->type ? s->type : 'g');
        snprintf(digits, sizeof digits, format, s->precision < 0 ? 6 : s->precision,
                 percent ? magnitude * 100 : magnitude);
    }
    return put_number(r, b, s, sign_text(s, negative), "", digits, percent ? "%" : "");
}

/* Appends a string, cut to `precision` characters. */
static qn_status put_text(qn_run *r, qn_builder *b, const spec *s, const qn_value *text, char default_align)
{
    qn_value shown = *text;
    QN_TRY(qn_run_work(r, text->u.string->length / QN_COPIED_PER_STEP));
    if (s->precision >= 0)
        QN_TRY(qn_value_part(b->arena, text, 0, qn_code_point_at(text->u.string, (size_t)s->precision), &shown));
    return put_padded(r, b, s, &shown, 0, default_align);
}

/* ---- format % values ---- */

typedef struct percent {
    qn_run *r;
    const char *at, *end;
    const qn_value *values; /* the whole right operand */
    const qn_value *items;  /* [n] in order */
    size_t n, used;
    bool is_safe; /* the format is safe: values are escaped */
    qn_builder b;
} percent;

static qn_status next_value(percent *p, const qn_value **out)
{
    if (p->used == p->n)
        return qn_run_fail(p->r, "the format has more places than the %zu values", p->n);
    *out = &p->items[p->used++];
    return QN_OK;
}

static qn_status read_star(percent *p, int most, int *out)
{
    const qn_value *v = NULL;
    int64_t n;
    if (p->at < p->end && *p->at == '*') {
        p->at++;
        QN_TRY(next_value(p, &v));
        QN_TRY(qn_want_integer(p->r, v, "a width", &n));
        if (n < 0 || n > most)
            return qn_run_fail(p->r, "a width or precision above %d", most);
        *out = (int)n;
        return QN_OK;
    }
    *out = read_number(&p->at, p->end, most);
    return *out == -2 ? qn_run_fail(p->r, "a width or precision above %d", most) : QN_OK;
}

/* Reads "(name)" after %, and finds the value of that key. */
static qn_status read_key(percent *p, const qn_value **value)
{
    const char *close = memchr(p->at, ')', (size_t)(p->end - p->at));
    if (!close || p->values->type != QN_VALUE_DICT)
        return qn_run_fail(p->r, close ? "a format with names needs a dict" : "a name in the format has no end");
    *value = qn_dict_find_text(p->values->u.dict, p->at, (size_t)(close - p->at));
    if (!*value)
        return qn_run_fail(p->r, "the dict has no key '%.*s'",
                           qn_shown_bytes(p->at, (size_t)(close - p->at), QN_SHOWN_BYTES), p->at);
    p->at = close + 1;
    return QN_OK;
}

static qn_status put_code_point(percent *p, const spec *s, int64_t code)
{
    utf8proc_uint8_t bytes[4];
    qn_value text;
    if (code < 0 || code > 0x10FFFF || !utf8proc_codepoint_valid((utf8proc_int32_t)code))
        return qn_run_fail(p->r, "%%c of an integer that is no code point");
    const size_t n = (size_t)utf8proc_encode_char((utf8proc_int32_t)code, bytes);
    QN_TRY(qn_value_copy_text(p->b.arena, (const char *)bytes, n, QN_FROM_DATA, &text));
    return put_text(p->r, &p->b, s, &text, '>');
}

static qn_status put_percent_value(percent *p, spec *s, const qn_value *v)
{
    qn_value text;
    switch (s->type) {
    case 's':
    case 'r':
    case 'a':
        QN_TRY(s->type == 's'   ? qn_str(p->r, v, &text)
               : s->type == 'r' ? qn_repr(p->r, v, &text)
                                : qn_ascii(p->r, v, &text));
        text.safe = text.safe && s->type == 's';
        if (p->is_safe)
            QN_TRY(qn_escape_html(p->r, &text, &text));
        return put_text(p->r, &p->b, s, &text, '>');
    case 'c':
        s->precision = -1;
        if (!p->is_safe && qn_is_string(v) && qn_code_points(v->u.string) == 1)
            return put_text(p->r, &p->b, s, v, '>');
        if (!p->is_safe && qn_is_integer(v))
            return put_code_point(p, s, qn_integer_of(v));
        return qn_run_fail(p->r, "%%c needs one character");
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o': {
        const bool hexadecimal = s->type == 'x' || s->type == 'X' || s->type == 'o';
        if (!qn_is_number(v) || (hexadecimal && !qn_is_integer(v)))
            return qn_run_fail(p->r, "%%%c needs a number, found %s", s->type, qn_value_type_name(v));
        if (v->type == QN_VALUE_FLOAT && !(v->u.real > -9.2e18 && v->u.real < 9.2e18))
            return qn_run_fail(p->r, "the result has more than 64 bits");
        return put_integer(p->r, &p->b, s, v->type == QN_VALUE_FLOAT ? (int64_t)v->u.real : qn_integer_of(v));
    }
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        if (!qn_is_number(v))
            return qn_run_fail(p->r, "%%%c needs a number, found %s", s->type, qn_value_type_name(v));
        return put_real(p->r, &p->b, s, qn_real_of(v));
    default: return qn_run_fail(p->r, "the format '%%%c' is not supported", s->type);
    }
}

static qn_status put_conversion(percent *p)
{
    spec s = { .fill = " ", .precision = -1 };
    const qn_value *value = NULL;
    bool zero = false, left = false;
    if (p->at < p->end && *p->at == '(') {
        p->at++;
        QN_TRY(read_key(p, &value));
    }
    for (; p->at < p->end && *p->at && strchr("#0- +", *p->at); p->at++) {
        s.alternate |= *p->at == '#';
        zero |= *p->at == '0';
        left |= *p->at == '-';
        if (*p->at == '+' || (*p->at == ' ' && !s.sign))
            s.sign = *p->at;
    }
    QN_TRY(read_star(p, MAX_WIDTH, &s.width));
    if (p->at < p->end && *p->at == '.') {
        p->at++;
        QN_TRY(read_star(p, MAX_PRECISION, &s.precision));
        s.precision = s.precision < 0 ? 0 : s.precision;
    }
    while (p->at < p->end && (*p->at == 'l' || *p->at == 'h' || *p->at == 'L'))
        p->at++;
    if (p->at == p->end)
        return qn_run_fail(p->r, "the format ends in a conversion");
    s.type = *p->at++;
    if (s.type == '%')
        return qn_builder_bytes(&p->b, "%", 1, QN_FROM_TEMPLATE);
    if (zero && !left && !strchr("srac", s.type))
        s.fill[0] = '0';
    s.align = left ? '<' : s.fill[0] == '0' ? '=' : '>';
    if (!value)
        QN_TRY(next_value(p, &value));
    return put_percent_value(p, &s, value);
}

/* Appends the part of the format string between two offsets, with its origin. */
static qn_status put_literal(qn_builder *b, const qn_value *format, const char *begin, const char *end)
{
    qn_value part;
    const char *data = format->u.string->data;
    QN_TRY(qn_value_part(b->arena, format, (size_t)(begin - data), (size_t)(end - data), &part));
    return qn_builder_string(b, &part);
}

qn_status qn_format_percent(qn_run *r, const qn_value *format, const qn_value *values, qn_value *out)
{
    const qn_jinja_string *f = format->u.string;
    percent p = { .r = r,
                  .at = f->data,
                  .end = f->data + f->length,
                  .values = values,
                  .is_safe = format->safe,
                  .b = { .arena = &r->arena } };
    const bool is_tuple = values->type == QN_VALUE_TUPLE;
    QN_TRY(qn_run_work(r, f->length / QN_COPIED_PER_STEP));
    p.items = is_tuple ? values->u.list->items : values;
    p.n = is_tuple ? values->u.list->n : 1;
    while (p.at < p.end) {
        const char *next = memchr(p.at, '%', (size_t)(p.end - p.at));
        QN_TRY(put_literal(&p.b, format, p.at, next ? next : p.end));
        if (!next)
            break;
        p.at = next + 1;
        QN_TRY(qn_run_work(r, 1));
        QN_TRY(put_conversion(&p));
    }
    if (p.used < p.n && values->type != QN_VALUE_DICT && values->type != QN_VALUE_LIST &&
        values->type != QN_VALUE_UNDEFINED)
        return qn_run_fail(r, "the format has fewer places than the %zu values", p.n);
    QN_TRY(qn_builder_finish(&p.b, out));
    out->safe = format->safe;
    return QN_OK;
}

/* ---- format.format(values) ---- */

typedef struct braces {
    qn_run *r;
    const qn_value *format;
    const qn_call *call;
    size_t next;                  /* the value of the next {} */
    bool is_automatic, is_manual; /* {} or {0} has occurred; they must not be mixed */
    qn_builder b;
} braces;

static qn_status parse_spec(const braces *f, const char *at, const char *end, spec *s)
{
    *s = (spec){ .fill = " ", .precision = -1, .width = -1 };
    size_t fill = 1;
    bool has_fill = false;
    while (at + fill < end && ((unsigned char)at[fill] & 0xC0) == 0x80)
        fill++;
    if (at + fill < end && at[fill] && strchr("<>^=", at[fill]) && fill < sizeof s->fill) {
        memcpy(s->fill, at, fill);
        s->fill[fill] = 0;
        s->align = at[fill];
        has_fill = true;
        at += fill + 1;
    } else if (at < end && *at && strchr("<>^=", *at)) {
        s->align = *at++;
    }
    if (at < end && (*at == '+' || *at == '-' || *at == ' '))
        s->sign = *at++;
    if (at < end && *at == '#') {
        s->alternate = true;
        at++;
    }
    if (at < end && *at == '0' && !has_fill)
        s->fill[0] = '0';
    s->width = read_number(&at, end, MAX_WIDTH);
    if (at < end && *at == ',') {
        s->comma = true;
        at++;
    }
    if (at < end && *at == '.') {
        at++;
        s->precision = read_number(&at, end, MAX_PRECISION);
        if (s->precision == -1)
            return qn_run_fail(f->r, "a precision is missing in the format");
    }
    if (at < end)
        s->type = *at++;
    if (at != end || s->width == -2 || s->precision == -2 || (s->type && !strchr("sdboxXeEfFgG%", s->type)))
        return qn_run_fail(f->r, "the format of a value is not supported");
    if (s->comma && s->type && strchr("sboxX", s->type))
        return qn_run_fail(f->r, "',' in a format with '%c'", s->type);
    return QN_OK;
}

static qn_status put_formatted(braces *f, const spec *s, const qn_value *v, bool has_spec)
{
    qn_value text;
    if (qn_is_number(v) && has_spec) {
        const bool as_integer = qn_is_integer(v) && (!s->type || strchr("dboxX", s->type));
        if (s->type == 's' || (!as_integer && s->type && strchr("dboxX", s->type)))
            return qn_run_fail(f->r, "the format '%c' is not one of %s", s->type, qn_value_type_name(v));
        if (as_integer && s->precision >= 0)
            return qn_run_fail(f->r, "a precision in the format of an integer");
        return as_integer ? put_integer(f->r, &f->b, s, qn_integer_of(v)) : put_real(f->r, &f->b, s, qn_real_of(v));
    }
    if (has_spec && !qn_is_string(v))
        return qn_run_fail(f->r, "%s has no formats", qn_value_type_name(v));
    if ((s->type && s->type != 's') || s->align == '=')
        return qn_run_fail(f->r, "the format '%c' is not one of %s", s->type ? s->type : s->align,
                           qn_value_type_name(v));
    if (s->comma || s->sign || s->alternate)
        return qn_run_fail(f->r, "',', '#' or a sign in the format of %s", qn_value_type_name(v));
    QN_TRY(qn_str(f->r, v, &text));
    return put_text(f->r, &f->b, s, &text, '<');
}

static qn_status field_root(braces *f, const char *name, size_t n, qn_value *out)
{
    char *end;
    char digits[24];
    snprintf(digits, sizeof digits, "%.*s", (int)(n < 20 ? n : 20), name);
    const size_t index = n ? strtoul(digits, &end, 10) : f->next++;
    if (!n || !*end) {
        f->is_automatic |= !n;
        f->is_manual |= n > 0;
        if (f->is_automatic && f->is_manual)
            return qn_run_fail(f->r, "places with and without numbers in one format");
        if (index >= f->call->n)
            return qn_run_fail(f->r, "the format has more places than the %zu values", f->call->n);
        *out = f->call->values[index];
        return QN_OK;
    }
    enum { NAMES_PER_STEP = 8 };
    QN_TRY(qn_run_work(f->r, f->call->n_named / NAMES_PER_STEP));
    for (size_t i = 0; i < f->call->n_named; i++)
        if (strlen(f->call->names[i]) == n && !memcmp(f->call->names[i], name, n)) {
            *out = f->call->named[i];
            return QN_OK;
        }
    return qn_run_fail(f->r, "there is no value '%.*s' to format", qn_shown_bytes(name, n, QN_SHOWN_BYTES), name);
}

/* Finds the value of a place {}, whose text is at..end: a number, a name, or nothing for the next value; then any
 * number of .attribute and [key]. */
static qn_status field_value(braces *f, const char *at, const char *end, qn_value *out)
{
    const char *stop = at;
    while (stop < end && *stop != '.' && *stop != '[')
        stop++;
    QN_TRY(field_root(f, at, (size_t)(stop - at), out));
    for (at = stop; at < end; at = stop) {
        if (*at != '.' && *at != '[')
            return qn_run_fail(f->r, "only '.' or '[' may follow ']' in a place of a format");
        const bool is_key = *at++ == '[';
        for (stop = at; stop < end && (is_key ? *stop != ']' : *stop != '.' && *stop != '[');)
            stop++;
        if (is_key && stop == end)
            return qn_run_fail(f->r, "a ']' is missing in a place of a format");
        if (stop == at)
            return qn_run_fail(f->r, "an empty name after '%c' in a place of a format", at[-1]);
        if (!is_key) {
            QN_TRY(qn_attribute_of(f->r, out, at, (size_t)(stop - at), out));
        } else {
            const char *digits = at;
            const int index = read_number(&digits, stop, 1 << 30);
            qn_value key = qn_value_int(index);
            if (index < 0 || digits != stop)
                QN_TRY(qn_value_copy_text(&f->r->arena, at, (size_t)(stop - at), QN_FROM_TEMPLATE, &key));
            QN_TRY(qn_item_of(f->r, out, &key, out));
            stop++;
        }
    }
    return QN_OK;
}

static qn_status put_field(braces *f, const char *at, const char *end)
{
    const char *colon = memchr(at, ':', (size_t)(end - at)), *name_end = colon ? colon : end;
    const char conversion = name_end - at >= 2 && name_end[-2] == '!' ? name_end[-1] : 0;
    qn_value v;
    spec s;
    if (conversion)
        name_end -= 2;
    if (memchr(at, '{', (size_t)(end - at)))
        return qn_run_fail(f->r, "formats within formats are not supported");
    QN_TRY(field_value(f, at, name_end, &v));
    if (conversion == 'r')
        QN_TRY(qn_repr(f->r, &v, &v));
    else if (conversion == 's')
        QN_TRY(qn_str(f->r, &v, &v));
    else if (conversion == 'a')
        QN_TRY(qn_ascii(f->r, &v, &v));
    else if (conversion)
        return qn_run_fail(f->r, "the conversion '!%c' is not supported", conversion);
    const bool has_spec = colon && colon + 1 < end;
    QN_TRY(parse_spec(f, colon ? colon + 1 : end, end, &s));
    if (!f->format->safe)
        return put_formatted(f, &s, &v, has_spec);
    if (qn_is_string(&v) && v.safe)
        return has_spec ? qn_run_fail(f->r, "a safe string has no formats") : qn_builder_string(&f->b, &v);
    braces one = *f;
    one.b = (qn_builder){ .arena = &f->r->arena };
    QN_TRY(put_formatted(&one, &s, &v, has_spec));
    QN_TRY(qn_builder_finish(&one.b, &v));
    QN_TRY(qn_escape_html(f->r, &v, &v));
    return qn_builder_string(&f->b, &v);
}

qn_status qn_format_braces(qn_run *r, const qn_value *format, const qn_call *call, qn_value *out)
{
    braces f = { .r = r, .format = format, .call = call, .b = { .arena = &r->arena } };
    const char *at = format->u.string->data, *end = at + format->u.string->length;
    QN_TRY(qn_run_work(r, format->u.string->length / QN_READ_PER_STEP));
    while (at < end) {
        const char *begin = at;
        while (at < end && *at != '{' && *at != '}')
            at++;
        QN_TRY(put_literal(&f.b, format, begin, at));
        if (at == end)
            break;
        QN_TRY(qn_run_work(r, 1));
        if (at + 1 < end && at[1] == *at) {
            QN_TRY(put_literal(&f.b, format, at, at + 1));
            at += 2;
            continue;
        }
        const char *close = *at == '{' ? memchr(at, '}', (size_t)(end - at)) : NULL;
        if (!close)
            return qn_run_fail(r, "a single '%c' in the format", *at);
        QN_TRY(put_field(&f, at + 1, close));
        at = close + 1;
    }
    QN_TRY(qn_builder_finish(&f.b, out));
    out->safe = format->safe;
    return QN_OK;
}
