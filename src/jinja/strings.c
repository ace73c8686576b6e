/* The methods of str except those that search. */
#include "base/status.h"
#include "base/strings.h"
#include "jinja/strings.h"
#include "jinja/lexer.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define METHOD(name) static qn_status name(qn_run *r, const qn_value *self, const qn_call *call, qn_value *out)
#define UNUSED (void)r, (void)self, (void)call

/* ---- Case ---- */

/* Returns the upper case of characters for which it is several characters, or which utf8proc lacks. */
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

/* Returns the title case of the same, for the first character of a word. */
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
    if (code < 0x80) {
        const bool is_lower = code >= 'a' && code <= 'z', is_upper = code >= 'A' && code <= 'Z';
        *to = (char)(to_case == QN_CASE_LOWER ? code | (is_upper ? 0x20 : 0) : code & ~(is_lower ? 0x20u : 0u));
        return 1;
    }
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
    if (code < 0x80)
        return (code | 0x20) >= 'a' && (code | 0x20) <= 'z';
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT: return true;
    default: return false;
    }
}

/* Swaps the case of a letter. A title-case letter (a capital and a small letter in one) is kept. */
static qn_case_change other_case(uint32_t code)
{
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_LL: return QN_CASE_UPPER;
    case UTF8PROC_CATEGORY_LT: return QN_CASE_TITLE;
    default: return QN_CASE_LOWER;
    }
}

static uint8_t origin_at(const qn_value *v, size_t at)
{
    return v->u.string->marks ? v->u.string->marks[at] : v->origin;
}

/* Whether a character has Unicode's property Case_Ignorable, without its rarest characters. */
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

/* Whether a capital sigma at `at` ends its word. */
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
    QN_TRY(qn_run_work(r, s->length / QN_DECODED_PER_STEP));
    for (size_t at = 0, n; at < s->length; at += n) {
        uint32_t code;
        char changed[8];
        if (qn_utf8_next(s->data + at, s->length - at, &n, &code) != QN_UTF8_COMPLETE)
            code = 0xFFFD;
        const bool begins_word = (change == QN_CASE_TITLE && !in_word) || (change == QN_CASE_CAPITALIZE && at == 0);
        const qn_case_change to_case = change == QN_CASE_SWAP    ? other_case(code)
                                       : change == QN_CASE_UPPER ? QN_CASE_UPPER
                                       : begins_word             ? QN_CASE_TITLE
                                                                 : QN_CASE_LOWER;
        if (code == CAPITAL_SIGMA)
            QN_TRY(qn_run_work(r, 1));
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

METHOD(str_swapcase)
{
    UNUSED;
    return qn_change_case(r, self, QN_CASE_SWAP, out);
}

METHOD(str_capitalize)
{
    UNUSED;
    return qn_change_case(r, self, QN_CASE_CAPITALIZE, out);
}

/* ---- Stripping ---- */

/* The characters to strip. A long set has a bit for each code point outside ASCII. */
typedef struct char_set {
    const qn_jinja_string *text; /* NULL: white space */
    bool ascii[128];
    const uint8_t *bits;
} char_set;

static qn_status make_set(qn_run *r, const qn_jinja_string *text, char_set *set)
{
    enum { SHORT = 32, CODE_POINTS = 0x110000 };
    uint8_t *bits = NULL;
    *set = (char_set){ .text = text };
    QN_TRY(qn_run_work(r, text->length / QN_DECODED_PER_STEP));
    if (text->length > SHORT && qn_code_points(text) < text->length) {
        QN_TRY(qn_run_work(r, CODE_POINTS / 8 / QN_COPIED_PER_STEP));
        QN_TRY(qn_arena_alloc(&r->arena, &bits, CODE_POINTS / 8, 1));
    }
    for (size_t at = 0, n; at < text->length; at += n) {
        uint32_t code;
        if (qn_utf8_next(text->data + at, text->length - at, &n, &code) != QN_UTF8_COMPLETE)
            continue;
        if (code < 128)
            set->ascii[code] = true;
        else if (bits)
            bits[code / 8] |= (uint8_t)(1u << code % 8);
    }
    set->bits = bits;
    return QN_OK;
}

static bool contains_character(const char_set *set, const char *bytes, size_t n)
{
    uint32_t code;
    size_t n_code;
    if ((unsigned char)*bytes < 128)
        return set->ascii[(unsigned char)*bytes];
    if (!set->bits)
        return qn_memmem(set->text->data, set->text->length, bytes, n) != NULL;
    return qn_utf8_next(bytes, n, &n_code, &code) == QN_UTF8_COMPLETE && set->bits[code / 8] >> code % 8 & 1;
}

/* The number of bytes of the character at `at` if it is to be stripped, else 0. */
static size_t strippable_at(const qn_jinja_string *s, size_t at, const char_set *set)
{
    if (!set->text)
        return qn_space_at(s->data, s->length, at);
    const qn_jinja_string rest = { s->data + at, NULL, s->length - at };
    const size_t n = qn_code_point_at(&rest, 1);
    return contains_character(set, s->data + at, n) ? n : 0;
}

static size_t strippable_before(const qn_jinja_string *s, size_t begin, size_t at, const char_set *set)
{
    if (!set->text)
        return qn_space_before(s->data, at);
    size_t n = 1;
    while (at - n > begin && ((unsigned char)s->data[at - n] & 0xC0) == 0x80)
        n++;
    return contains_character(set, s->data + at - n, n) ? n : 0;
}

/* Counts the steps of `bytes` bytes in portions, since their total is not known in advance. */
static qn_status count_stripped(qn_run *r, size_t bytes, size_t *counted)
{
    enum { AT_ONCE = 1024 };
    if (bytes - *counted < AT_ONCE)
        return QN_OK;
    *counted += AT_ONCE;
    return qn_run_work(r, AT_ONCE / QN_DECODED_PER_STEP);
}

qn_status qn_strip(qn_run *r, const qn_value *self, const qn_value *characters, bool left, bool right, qn_value *out)
{
    const qn_jinja_string *s = self->u.string;
    char_set set = { 0 };
    size_t begin = 0, end = s->length, counted = 0;
    if (characters && characters->type != QN_VALUE_NONE) {
        QN_TRY(qn_want_string(r, characters, "what is stripped"));
        QN_TRY(make_set(r, characters->u.string, &set));
    }
    for (size_t n; left && begin < end && (n = strippable_at(s, begin, &set)) > 0; begin += n)
        QN_TRY(count_stripped(r, begin, &counted));
    counted = 0;
    for (size_t n; right && end > begin && (n = strippable_before(s, begin, end, &set)) > 0; end -= n)
        QN_TRY(count_stripped(r, s->length - end, &counted));
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
    QN_TRY(qn_run_work(r, a->length / QN_COPIED_PER_STEP));
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
    QN_TRY(qn_run_work(r, (fill.u.string->length + self->u.string->length) / QN_COPIED_PER_STEP));
    if (qn_code_points(fill.u.string) != 1 || width > MAX_WIDTH)
        return qn_run_fail(r, width > MAX_WIDTH ? "the width is too large" : "the fill is not one character");
    const int64_t n = (int64_t)qn_code_points(self->u.string), padding = width > n ? width - n : 0,
                  odd_left = padding & width & 1, /* rounds as Python's center does */
        left = left_half && right_half ? padding / 2 + odd_left
               : left_half             ? padding
                                       : 0;
    qn_builder b = { .arena = &r->arena };
    QN_TRY(qn_run_work(r, (uint64_t)padding / QN_READ_PER_STEP));
    QN_TRY(qn_builder_repeat(&b, &fill, (size_t)left));
    QN_TRY(qn_builder_string(&b, self));
    QN_TRY(qn_builder_repeat(&b, &fill, (size_t)(padding - left)));
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

/* Zeros between the sign and the digits. */
METHOD(str_zfill)
{
    qn_value zero, sign, rest, width = *call->bound[0], arguments[2];
    const qn_jinja_string *s = self->u.string;
    const size_t n_sign = s->length && (*s->data == '+' || *s->data == '-');
    int64_t n;
    QN_TRY(qn_want_integer(r, &width, "the width", &n));
    QN_TRY(qn_value_text(&r->arena, "0", 1, QN_FROM_TEMPLATE, &zero));
    QN_TRY(qn_value_part(&r->arena, self, 0, n_sign, &sign));
    QN_TRY(qn_value_part(&r->arena, self, n_sign, s->length, &rest));
    arguments[0] = qn_value_int(n > 0 ? n - (int64_t)n_sign : 0);
    arguments[1] = zero;
    const qn_call right = { .bound = { &arguments[0], &arguments[1] } };
    qn_builder b = { .arena = &r->arena };
    QN_TRY(pad(r, &rest, &right, 1, 0, &rest));
    QN_TRY(qn_run_work(r, s->length / QN_COPIED_PER_STEP));
    QN_TRY(qn_builder_string(&b, &sign));
    QN_TRY(qn_builder_string(&b, &rest));
    QN_TRY(qn_builder_finish(&b, out));
    out->safe = self->safe;
    return QN_OK;
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

static bool is_decimal(uint32_t code)
{
    return utf8proc_category((utf8proc_int32_t)code) == UTF8PROC_CATEGORY_ND;
}

/* Whether isdigit() is true: digits in circles, with dots and so on count, too. Covers those in use. */
static bool is_digit(uint32_t code)
{
    static const uint16_t ranges[][2] = { { 0xB2, 0xB3 },     { 0xB9, 0xB9 },     { 0x1369, 0x1371 },
                                          { 0x19DA, 0x19DA }, { 0x2070, 0x2070 }, { 0x2074, 0x2079 },
                                          { 0x2080, 0x2089 }, { 0x2460, 0x2468 }, { 0x2474, 0x247C },
                                          { 0x2488, 0x2490 }, { 0x24EA, 0x24EA }, { 0x24F5, 0x24FD },
                                          { 0x24FF, 0x24FF }, { 0x2776, 0x277E }, { 0x2780, 0x2788 },
                                          { 0x278A, 0x2792 } };
    for (size_t i = 0; code >= 0x80 && i < sizeof ranges / sizeof *ranges; i++)
        if (code >= ranges[i][0] && code <= ranges[i][1])
            return true;
    return is_decimal(code);
}

int qn_decimal_value(uint32_t code)
{
    uint32_t first = code; /* digits come in runs of ten; only the first run has gaps */
    if (!is_decimal(code))
        return -1;
    while (is_decimal(first - 1))
        first--;
    return (int)((code - first) % 10);
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
    QN_TRY(qn_run_work(r, s->length / QN_DECODED_PER_STEP));
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

METHOD(str_isdecimal)
{
    UNUSED;
    return all_are(r, self, is_decimal, out);
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
    { .name = "strip", .call = str_strip, .parameters = { "chars" } },
    { .name = "lstrip", .call = str_lstrip, .parameters = { "chars" } },
    { .name = "rstrip", .call = str_rstrip, .parameters = { "chars" } },
    { .name = "upper", .call = str_upper },
    { .name = "lower", .call = str_lower },
    { .name = "title", .call = str_title },
    { .name = "capitalize", .call = str_capitalize },
    { .name = "swapcase", .call = str_swapcase },
    { .name = "format", .call = str_format, .is_variadic = true },
    { .name = "removeprefix", .call = str_removeprefix, .parameters = { "prefix" }, .required = 1 },
    { .name = "removesuffix", .call = str_removesuffix, .parameters = { "suffix" }, .required = 1 },
    { .name = "ljust", .call = str_ljust, .parameters = { "width", "fillchar" }, .required = 1 },
    { .name = "rjust", .call = str_rjust, .parameters = { "width", "fillchar" }, .required = 1 },
    { .name = "center", .call = str_center, .parameters = { "width", "fillchar" }, .required = 1 },
    { .name = "zfill", .call = str_zfill, .parameters = { "width" }, .required = 1 },
    { .name = "isdigit", .call = str_isdigit },
    { .name = "isdecimal", .call = str_isdecimal },
    { .name = "isalpha", .call = str_isalpha },
    { .name = "isalnum", .call = str_isalnum },
    { .name = "isspace", .call = str_isspace },
    { .name = "isupper", .call = str_isupper },
    { .name = "islower", .call = str_islower },
};

const qn_builtin *qn_find_string_method(const char *name, size_t length)
{
    const qn_builtin *method = qn_find_search_method(name, length);
    return method ? method : qn_find_in(methods, sizeof methods / sizeof *methods, name, length);
}
