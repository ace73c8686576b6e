/* A decoder without recursion: a value is added to the innermost open array or object, which are on a stack. */
#include "gguf/json_decode.h"

#include "base/append.h"
#include "base/utf8.h"

#include <locale.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of Jansson's values, with malloc's overhead, rounded up. Tables of arrays and objects double when they are
 * full, so an element counts for the old and the new table. */
enum { NUMBER_COST = 32, STRING_COST = 64, ARRAY_COST = 128, OBJECT_COST = 240, ELEMENT_COST = 24, MEMBER_COST = 120 };

/* Token ids are below SHARED_INTEGERS. From MANY_INTEGERS integers on, equal ones are shared. */
enum { SHARED_INTEGERS = 1 << 18, MANY_INTEGERS = 1 << 14 };

typedef struct decoder {
    const char *text;
    size_t length, at;
    const qn_json_limits *limits;
    size_t flags, max_depth;
    json_error_t *why;
    json_t *root;
    json_t *open[QN_JSON_DEPTH]; /* [depth] open arrays and objects, each inside the previous one */
    size_t depth;
    char *scratch; /* for a string with escapes, and for keys */
    size_t cap_scratch;
    size_t n_integers;
    json_t **shared; /* [SHARED_INTEGERS] the last integer with these low bits; NULL: few integers so far */
} decoder;

/* ---- Errors ---- */

static bool fail(decoder *d, enum json_error_code code, const char *what)
{
    json_error_t *why = d->why;
    int line = 1, column = 1;
    for (size_t i = 0; i < d->at && i < d->length; i++) {
        column = d->text[i] == '\n' ? 1 : column + 1;
        line += d->text[i] == '\n';
    }
    *why = (json_error_t){ .line = line, .column = column, .position = d->at < INT32_MAX ? (int)d->at : INT32_MAX };
    (void)qn_print(why->text, sizeof why->text - 1, "%s", what);
    why->text[sizeof why->text - 1] = (char)code; /* where Jansson stores it */
    return false;
}

static bool expected(decoder *d, const char *what)
{
    char text[96], found[16];
    const char c = d->at < d->length ? d->text[d->at] : 0;
    if (d->at >= d->length)
        return fail(d, json_error_premature_end_of_input, "the text ends too early");
    snprintf(found, sizeof found, c > ' ' && c < 0x7f ? "'%c'" : "byte 0x%02x", (unsigned char)c);
    snprintf(text, sizeof text, "found %s, expected %s", found, what);
    return fail(d, json_error_invalid_syntax, text);
}

static bool no_memory(decoder *d)
{
    return fail(d, json_error_out_of_memory, "no memory for its values");
}

static bool take(decoder *d, size_t bytes)
{
    const qn_json_limits *limits = d->limits;
    return !limits || !limits->take || limits->take(limits->user, bytes) || no_memory(d);
}

/* ---- Adding values ---- */

static json_t *holder(const decoder *d)
{
    return d->depth ? d->open[d->depth - 1] : NULL;
}

/* Adds a value and owns it; it is NULL without memory. The key is in `scratch`. */
static bool put(decoder *d, json_t *value)
{
    json_t *in = holder(d);
    if (!value)
        return no_memory(d);
    if (!in) {
        d->root = value;
        return true;
    }
    if (json_is_array(in))
        return json_array_append_new(in, value) == 0 || no_memory(d);
    return json_object_set_new_nocheck(in, d->scratch, value) == 0 || no_memory(d);
}

/* ---- Strings ---- */

static bool reserve_scratch(decoder *d, size_t need)
{
    if (need <= d->cap_scratch)
        return true;
    char *scratch = realloc(d->scratch, need);
    if (!scratch)
        return no_memory(d);
    d->scratch = scratch;
    d->cap_scratch = need;
    return true;
}

/* Reads four hexadecimal digits; UINT32_MAX if they are not. */
static uint32_t hex_unit(const decoder *d, size_t at)
{
    uint32_t unit = 0;
    if (d->length - at < 4)
        return UINT32_MAX;
    for (size_t i = 0; i < 4; i++) {
        const char c = d->text[at + i], lower = (char)(c | 0x20);
        const bool is_digit = c >= '0' && c <= '9';
        if (!is_digit && !(lower >= 'a' && lower <= 'f'))
            return UINT32_MAX;
        unit = unit << 4 | (uint32_t)(is_digit ? c - '0' : lower - 'a' + 10);
    }
    return unit;
}

/* Decodes the escape \uXXXX at `at`, or two that form a pair. */
static bool decode_unicode(decoder *d, char *out, size_t *n_out)
{
    enum { REPLACEMENT = 0xfffd };
    uint32_t code = hex_unit(d, d->at + 2);
    if (code == UINT32_MAX)
        return fail(d, json_error_invalid_syntax, "an escape \\u has not four hexadecimal digits");
    d->at += 6;
    if (code >> 10 == 0xd800 >> 10) {
        const bool has_next = d->length - d->at >= 6 && !memcmp(d->text + d->at, "\\u", 2);
        const uint32_t low = has_next ? hex_unit(d, d->at + 2) : UINT32_MAX;
        const bool is_pair = low >> 10 == 0xdc00 >> 10;
        code = is_pair ? 0x10000 + ((code & 0x3ff) << 10 | (low & 0x3ff)) : REPLACEMENT;
        d->at += is_pair ? 6 : 0;
    } else if (code >> 10 == 0xdc00 >> 10) {
        code = REPLACEMENT;
    }
    *n_out += qn_utf8_encode(code, out + *n_out);
    return true;
}

static bool decode_escape(decoder *d, char *out, size_t *n_out)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char c = d->at + 1 < d->length ? d->text[d->at + 1] : 0;
    const char *name = c ? strchr(names, c) : NULL;
    if (c == 'u')
        return decode_unicode(d, out, n_out);
    if (!name) {
        d->at++;
        return expected(d, "an escape");
    }
    out[(*n_out)++] = values[name - names];
    d->at += 2;
    return true;
}

/* Finds the quote that ends a string, whose first byte is at `at`. */
static bool find_end(decoder *d, size_t *end, bool *has_escapes)
{
    *has_escapes = false;
    for (size_t i = d->at, n; i < d->length; i += n) {
        uint32_t code;
        n = 1;
        if (d->text[i] == '"') {
            *end = i;
            return true;
        }
        if (d->text[i] == '\\') {
            *has_escapes = true;
            n = 2;
            continue;
        }
        const qn_utf8 found = qn_utf8_next(d->text + i, d->length - i, &n, &code);
        if (found == QN_UTF8_COMPLETE && code >= ' ')
            continue;
        d->at = i;
        return found == QN_UTF8_COMPLETE ? fail(d, json_error_invalid_syntax, "a string has a control character")
                                         : fail(d, json_error_invalid_utf8, "a string is not UTF-8");
    }
    d->at = d->length;
    return expected(d, "");
}

/* Decodes a string, from its quote on. *out points into the text, or to a terminated copy in `scratch` if it has
 * escapes or with `copies`. */
static bool decode_string(decoder *d, bool copies, const char **out, size_t *n_out)
{
    size_t end = 0;
    bool has_escapes;
    d->at++;
    if (!find_end(d, &end, &has_escapes))
        return false;
    *out = d->text + d->at;
    *n_out = end - d->at;
    if (has_escapes || copies) {
        if (!reserve_scratch(d, *n_out + 1))
            return false;
        size_t n = 0;
        while (d->at < end) {
            const char *escape = has_escapes ? memchr(d->text + d->at, '\\', end - d->at) : NULL;
            const size_t plain = (escape ? (size_t)(escape - d->text) : end) - d->at;
            memcpy(d->scratch + n, d->text + d->at, plain);
            n += plain;
            d->at += plain;
            if (escape && !decode_escape(d, d->scratch, &n))
                return false;
        }
        d->scratch[n] = 0;
        *out = d->scratch;
        *n_out = n;
    }
    d->at = end + 1;
    return true;
}

static bool put_string(decoder *d)
{
    /* `scratch` holds the object's key, but a value with escapes needs it. */
    json_t *in = holder(d);
    char *key = NULL;
    const bool is_member = json_is_object(in);
    const char *text;
    size_t n;
    if (is_member) {
        key = d->scratch;
        d->scratch = NULL;
        d->cap_scratch = 0;
    }
    bool done = decode_string(d, false, &text, &n);
    if (done && d->limits && d->limits->refuses_zero && memchr(text, 0, n))
        done = fail(d, json_error_null_character, "a string has U+0000");
    done = done && take(d, STRING_COST + n);
    json_t *value = done ? json_stringn_nocheck(text, n) : NULL;
    if (is_member) {
        free(d->scratch);
        d->scratch = key;
        d->cap_scratch = key ? strlen(key) + 1 : 0;
    }
    return done && put(d, value);
}

/* ---- Numbers ---- */

static size_t count_digits(const decoder *d, size_t at)
{
    size_t n = 0;
    while (at + n < d->length && d->text[at + n] >= '0' && d->text[at + n] <= '9')
        n++;
    return n;
}

/* Returns the number of bytes of a number; 0 if it is not one. */
static size_t number_length(const decoder *d, bool *is_real)
{
    size_t at = d->at + (d->text[d->at] == '-'), n = count_digits(d, at);
    *is_real = false;
    if (!n || (n > 1 && d->text[at] == '0'))
        return 0;
    at += n;
    if (at < d->length && d->text[at] == '.') {
        *is_real = true;
        if (!(n = count_digits(d, at + 1)))
            return 0;
        at += 1 + n;
    }
    if (at < d->length && (d->text[at] | 0x20) == 'e') {
        const bool has_sign = at + 1 < d->length && (d->text[at + 1] == '+' || d->text[at + 1] == '-');
        *is_real = true;
        if (!(n = count_digits(d, at + 1 + has_sign)))
            return 0;
        at += 1 + has_sign + n;
    }
    return at - d->at;
}

/* Reads an integer. False if it has more than 64 bits. */
static bool to_integer(const char *text, size_t length, int64_t *out)
{
    const bool is_negative = *text == '-';
    int64_t value = 0;
    for (size_t i = is_negative; i < length; i++) {
        const int digit = is_negative ? '0' - text[i] : text[i] - '0';
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, digit, &value))
            return false;
    }
    *out = value;
    return true;
}

static bool put_real(decoder *d, size_t length)
{
    char small[64], *text = length < sizeof small ? small : malloc(length + 1);
    if (!text)
        return no_memory(d);
    memcpy(text, d->text + d->at, length);
    text[length] = 0;
    char *point = strchr(text, '.');
    if (point)
        *point = *localeconv()->decimal_point;
    const double value = strtod(text, NULL);
    if (text != small)
        free(text);
    if (!isfinite(value))
        return fail(d, json_error_numeric_overflow, "a number is beyond all reals");
    return take(d, NUMBER_COST) && put(d, json_real(value));
}

/* Returns a reference to an integer that equal ones share; NULL without memory. */
static json_t *shared_integer(decoder *d, int64_t value)
{
    json_t **kept = &d->shared[(uint64_t)value % SHARED_INTEGERS];
    if (*kept && json_integer_value(*kept) == value)
        return json_incref(*kept);
    json_t *integer = take(d, NUMBER_COST) ? json_integer(value) : NULL;
    if (integer) {
        json_decref(*kept);
        *kept = json_incref(integer);
    }
    return integer;
}

static bool put_integer(decoder *d, int64_t value)
{
    d->n_integers++;
    if (!d->shared && d->n_integers == MANY_INTEGERS) {
        if (!take(d, SHARED_INTEGERS * sizeof *d->shared) || !(d->shared = calloc(SHARED_INTEGERS, sizeof *d->shared)))
            return no_memory(d);
    }
    if (d->shared) {
        json_t *integer = shared_integer(d, value);
        return integer && put(d, integer);
    }
    return take(d, NUMBER_COST) && put(d, json_integer(value));
}

static bool put_number(decoder *d)
{
    bool is_real;
    int64_t value;
    const size_t n = number_length(d, &is_real);
    if (!n)
        return fail(d, json_error_invalid_syntax, "a number is not one of JSON");
    if (!(is_real || !to_integer(d->text + d->at, n, &value) ? put_real(d, n) : put_integer(d, value)))
        return false;
    d->at += n;
    return true;
}

/* ---- Values ---- */

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static void skip_space(decoder *d)
{
    while (d->at < d->length && is_space(d->text[d->at]))
        d->at++;
}

static bool is_next(const decoder *d, char c)
{
    return d->at < d->length && d->text[d->at] == c;
}

static bool put_literal(decoder *d, const char *word, json_t *value)
{
    const size_t n = strlen(word);
    if (d->length - d->at < n || memcmp(d->text + d->at, word, n) != 0)
        return expected(d, "a value");
    d->at += n;
    return put(d, value);
}

static bool open_level(decoder *d, bool is_object)
{
    if (d->depth == d->max_depth)
        return fail(d, json_error_stack_overflow, "it is nested too deeply");
    if (!take(d, is_object ? OBJECT_COST : ARRAY_COST))
        return false;
    json_t *value = is_object ? json_object() : json_array();
    if (!put(d, value))
        return false;
    d->open[d->depth++] = value;
    d->at++;
    return true;
}

static bool put_value(decoder *d)
{
    if (d->at >= d->length)
        return expected(d, "");
    if (json_is_array(holder(d)) && !take(d, ELEMENT_COST))
        return false;
    switch (d->text[d->at]) {
    case '{': return open_level(d, true);
    case '[': return open_level(d, false);
    case '"': return put_string(d);
    case 't': return put_literal(d, "true", json_true());
    case 'f': return put_literal(d, "false", json_false());
    case 'n': return put_literal(d, "null", json_null());
    case '-': return put_number(d);
    default: return count_digits(d, d->at) ? put_number(d) : expected(d, "a value");
    }
}

/* Decodes a key and its colon. */
static bool decode_key(decoder *d)
{
    const char *key;
    size_t n;
    if (!is_next(d, '"'))
        return expected(d, "a key");
    if (!decode_string(d, true, &key, &n) || !take(d, MEMBER_COST + n))
        return false;
    if (strlen(key) != n)
        return fail(d, json_error_null_byte_in_key, "a key has U+0000");
    if ((d->flags & JSON_REJECT_DUPLICATES) && json_object_get(holder(d), key))
        return fail(d, json_error_duplicate_key, "an object has a key twice");
    skip_space(d);
    if (!is_next(d, ':'))
        return expected(d, "':'");
    d->at++;
    skip_space(d);
    return true;
}

/* Reads what may follow a value: the ends of open arrays and objects, or a comma. */
static bool after_value(decoder *d)
{
    for (skip_space(d); d->depth; skip_space(d)) {
        const bool is_object = json_is_object(holder(d));
        if (is_next(d, ',')) {
            d->at++;
            return true;
        }
        if (!is_next(d, is_object ? '}' : ']'))
            return expected(d, is_object ? "',' or '}'" : "',' or ']'");
        d->at++;
        d->depth--;
    }
    return true;
}

static bool decode(decoder *d)
{
    skip_space(d);
    if (!(d->flags & JSON_DECODE_ANY) && !is_next(d, '{') && !is_next(d, '['))
        return expected(d, "'{' or '['");
    do {
        skip_space(d);
        if (json_is_object(holder(d)) && !decode_key(d))
            return false;
        const size_t before = d->depth;
        if (!put_value(d))
            return false;
        if (d->depth > before) {
            skip_space(d);
            if (!is_next(d, json_is_object(holder(d)) ? '}' : ']'))
                continue; /* its first value comes next */
        }
        if (!after_value(d))
            return false;
    } while (d->depth);
    skip_space(d);
    return d->at == d->length || expected(d, "the end");
}

static void free_shared(decoder *d)
{
    for (size_t i = 0; d->shared && i < SHARED_INTEGERS; i++)
        json_decref(d->shared[i]);
    free(d->shared);
}

json_t *qn_json_decode(const char *text, size_t length, size_t flags, const qn_json_limits *limits, json_error_t *why)
{
    const size_t depth = limits && limits->depth ? limits->depth : QN_JSON_DEPTH;
    decoder d = { .text = text,
                  .length = length,
                  .limits = limits,
                  .at = qn_utf8_mark(text, length),
                  .flags = flags,
                  .max_depth = depth < QN_JSON_DEPTH ? depth : QN_JSON_DEPTH,
                  .why = why };
    const bool done = decode(&d);
    free_shared(&d);
    free(d.scratch);
    if (done)
        return d.root;
    json_decref(d.root);
    return NULL;
}

/* Returns the number of bytes of the characters that end within the first `most` bytes. */
static size_t whole_characters(const char *text, size_t most)
{
    size_t n = strnlen(text, most);
    while (n && ((unsigned char)text[n] & 0xc0) == 0x80)
        n--;
    return n;
}

const char *qn_json_found(const json_t *value, char text[QN_JSON_FOUND_BYTES])
{
    static const char *const names[] = { [JSON_OBJECT] = "an object",
                                         [JSON_ARRAY] = "an array",
                                         [JSON_TRUE] = "true",
                                         [JSON_FALSE] = "false",
                                         [JSON_NULL] = "null" };
    enum { SHOWN = 40 };
    if (json_is_string(value))
        snprintf(text, QN_JSON_FOUND_BYTES, "\"%.*s%s\"", (int)whole_characters(json_string_value(value), SHOWN),
                 json_string_value(value), json_string_length(value) > SHOWN ? "..." : "");
    else if (json_is_integer(value))
        snprintf(text, QN_JSON_FOUND_BYTES, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        snprintf(text, QN_JSON_FOUND_BYTES, "%.10g", json_real_value(value));
    else
        snprintf(text, QN_JSON_FOUND_BYTES, "%s", value ? names[json_typeof(value)] : "missing");
    return text;
}

bool qn_json_take(void *left, size_t bytes)
{
    size_t *n = left;
    const bool fits = bytes <= *n;
    *n -= fits ? bytes : 0;
    return fits;
}

json_t *qn_json_load(const char *text, size_t length, size_t flags, size_t depth, json_error_t *why)
{
    enum { FACTOR = 24, SOME = 1 << 20, MOST = 512 << 20 };
    size_t left = length < (MOST - SOME) / FACTOR ? length * FACTOR + SOME : MOST;
    const qn_json_limits limits = { .depth = depth, .refuses_zero = true, .take = qn_json_take, .user = &left };
    return qn_json_decode(text, length, flags, &limits, why);
}
