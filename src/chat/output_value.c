/* Values in the form xml of tool calls: converts the text of a value to JSON, by its types. */
#include "chat/output_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void qn_output_escape(qn_output_parser *p, qn_symbols *to, const char *text, size_t n)
{
    static const char controls[] = "\b\t\n\f\r", letters[] = "btnfr";
    for (size_t i = 0; i < n; i++) {
        const char c = text[i];
        char escape[8] = { '\\', c };
        const char *control = c ? strchr(controls, c) : NULL;
        if (control)
            escape[1] = letters[control - controls];
        else if ((unsigned char)c < 0x20)
            snprintf(escape, sizeof escape, "\\u%04x", (unsigned)c);
        if (control || c == '"' || c == '\\' || (unsigned char)c < 0x20)
            qn_output_append(p, to, escape, (unsigned char)c < 0x20 && !control ? 6 : 2);
        else
            qn_output_append(p, to, &c, 1);
    }
}

/* A number with more digits, or after more space, is a string if the types allow one. */
enum { MAX_UNSURE = 1024, MAX_SPACE = 64 };

static bool begins_word(const char *text, size_t n, const char *const *words)
{
    for (; *words; words++) {
        const size_t length = strlen(*words), same = n < length ? n : length;
        size_t end = same;
        while (end < n && qn_json_is_space(text[end]))
            end++;
        if (!memcmp(text, *words, same) && end == n)
            return true;
    }
    return false;
}

static bool begins_number(const char *text, size_t n)
{
    size_t i = 0;
    if (n > MAX_UNSURE || (*text != '-' && (*text < '0' || *text > '9')))
        return false;
    while (i < n && (strchr("+-.eE", text[i]) ? text[i] != 0 : text[i] >= '0' && text[i] <= '9'))
        i++;
    while (i < n && qn_json_is_space(text[i]))
        i++;
    return i == n;
}

static bool may_be(qn_value_type type, const char *text, size_t n)
{
    static const char *const nulls[] = { "null", "None", NULL }, *const booleans[] = { "true", "false", "True", "False",
                                                                                       NULL };
    switch (type) {
    case VALUE_NULL: return begins_word(text, n < MAX_UNSURE ? n : MAX_UNSURE, nulls);
    case VALUE_BOOLEAN: return begins_word(text, n < MAX_UNSURE ? n : MAX_UNSURE, booleans);
    case VALUE_INTEGER:
    case VALUE_NUMBER: return begins_number(text, n);
    case VALUE_ARRAY: return *text == '[';
    case VALUE_OBJECT: return *text == '{';
    case VALUE_STRING:
    case N_VALUE_TYPES: break;
    }
    return false;
}

bool qn_output_may_be_other(const qn_value_types *types, const char *text, size_t n)
{
    size_t space = 0;
    while (space < n && space <= MAX_SPACE && qn_json_is_space(text[space]))
        space++;
    bool may = space == n && space <= MAX_SPACE;
    for (size_t i = 0; i < types->n && types->types[i] != VALUE_STRING && space < n && space <= MAX_SPACE; i++)
        may |= may_be(types->types[i], text + space, n - space);
    return may;
}

/* Returns the JSON of a number that is an integer, or NULL: 1.0 is 1, but 1e3 is not converted. */
static const char *integer(const char *text, size_t n, size_t *length)
{
    char copy[64];
    if (*text != '-' && (*text < '0' || *text > '9'))
        return NULL;
    if (!memchr(text, '.', n) && !memchr(text, 'e', n) && !memchr(text, 'E', n))
        return text;
    if (n >= sizeof copy)
        return NULL;
    memcpy(copy, text, n);
    copy[n] = 0;
    const double number = strtod(copy, NULL);
    const size_t whole = strcspn(copy, ".eE");
    if (!isfinite(number) || number != floor(number))
        return NULL;
    *length = strspn(copy + whole, ".0") == n - whole ? whole : n;
    return text;
}

/* Returns the JSON of a value that is an instance of the type, or NULL. Templates of Qwen3.5 print Python's
 * constants. */
static const char *instance(qn_value_type type, const char *text, size_t n, size_t *length)
{
    static const struct {
        qn_value_type type;
        const char *name, *json;
    } constants[] = {
        { VALUE_BOOLEAN, "True", "true" },
        { VALUE_BOOLEAN, "False", "false" },
        { VALUE_NULL, "None", "null" },
    };
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (type == constants[i].type && n == strlen(constants[i].name) && !memcmp(text, constants[i].name, n)) {
            *length = strlen(constants[i].json);
            return constants[i].json;
        }
    if (!qn_json_is_value(text, n))
        return NULL;
    *length = n;
    bool is = false;
    const bool number = *text == '-' || (*text >= '0' && *text <= '9');
    switch (type) {
    case VALUE_INTEGER: return integer(text, n, length);
    case VALUE_NUMBER: is = number; break;
    case VALUE_BOOLEAN: is = *text == 't' || *text == 'f'; break;
    case VALUE_NULL: is = *text == 'n'; break;
    case VALUE_ARRAY: is = *text == '['; break;
    case VALUE_OBJECT: is = *text == '{'; break;
    case VALUE_STRING:
    case N_VALUE_TYPES: break;
    }
    return is ? text : NULL;
}

/* ---- Lists and dictionaries as Python prints them ---- */

/* Appends a Python string that begins with a quote as a JSON string. Returns its length; 0: it does not end. */
static size_t append_string(qn_output_parser *p, qn_symbols *to, const char *text, size_t n)
{
    size_t at = 1, plain = 1;
    qn_output_append(p, to, "\"", 1);
    for (; at < n && text[at] != *text; at++) {
        if (text[at] != '\\')
            continue;
        qn_output_escape(p, to, text + plain, at - plain);
        if (++at == n)
            return 0;
        const char escaped = text[at];
        /* JSON has no escape of an apostrophe; the others are the same, or make the text invalid */
        if (escaped != '\'')
            qn_output_append(p, to, "\\", 1);
        qn_output_append(p, to, &escaped, 1);
        plain = at + 1;
    }
    qn_output_escape(p, to, text + plain, (at < n ? at : n) - plain);
    qn_output_append(p, to, "\"", 1);
    return at < n ? at + 1 : 0;
}

static size_t append_constant(qn_output_parser *p, qn_symbols *to, const char *text, size_t n)
{
    static const char *const constants[][2] = { { "True", "true" }, { "False", "false" }, { "None", "null" } };
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++) {
        const size_t length = strlen(constants[i][0]);
        if (n >= length && !memcmp(text, constants[i][0], length)) {
            qn_output_append(p, to, constants[i][1], strlen(constants[i][1]));
            return length;
        }
    }
    return 0;
}

static bool closes_after_comma(const char *text, size_t n)
{
    size_t i = 1;
    while (i < n && qn_json_is_space(text[i]))
        i++;
    return *text == ',' && i < n && strchr("])}", text[i]);
}

/* Writes a list or dictionary of Python as JSON: strings, constants and tuples are rewritten, the comma before an end
 * is dropped, and all else stays, so the result may not be JSON. False: it has a string without an end. */
static bool write_literal(qn_output_parser *p, qn_symbols *to, const char *text, size_t n)
{
    to->n = 0;
    for (size_t at = 0, length; at < n; at += length) {
        const char c = text[at] == '(' ? '[' : text[at] == ')' ? ']' : text[at];
        length = append_constant(p, to, text + at, n - at);
        if (length)
            continue;
        length = 1;
        if (c == '\'' || c == '"')
            length = append_string(p, to, text + at, n - at);
        else if (!closes_after_comma(text + at, n - at))
            qn_output_append(p, to, &c, 1);
        if (!length)
            return false;
    }
    return p->status == QN_OK;
}

/* Returns a value that is a list or a dictionary of Python, as JSON in p->literal, or NULL. */
static const char *literal(qn_output_parser *p, qn_value_type type, const char *text, size_t n, size_t *length)
{
    const char first = type == VALUE_ARRAY ? '[' : type == VALUE_OBJECT ? '{' : '\0';
    if (!n || !first || *text != first || !write_literal(p, &p->literal, text, n))
        return NULL;
    return instance(type, p->literal.data, p->literal.n, length);
}

/* ---- Values ---- */

void qn_output_value(qn_output_parser *p, qn_symbols *to, const qn_value_types *types, const char *text, size_t n)
{
    const char *trimmed = text;
    size_t n_trimmed = n, length;
    for (; n_trimmed && qn_json_is_space(*trimmed); trimmed++)
        n_trimmed--;
    while (n_trimmed && qn_json_is_space(trimmed[n_trimmed - 1]))
        n_trimmed--;
    for (size_t i = 0; i < types->n && types->types[i] != VALUE_STRING; i++) {
        const char *json = instance(types->types[i], trimmed, n_trimmed, &length);
        if (!json)
            json = literal(p, types->types[i], trimmed, n_trimmed, &length);
        if (json) {
            qn_output_append(p, to, json, length);
            return;
        }
    }
    qn_output_append(p, to, "\"", 1);
    qn_output_escape(p, to, text, n);
    qn_output_append(p, to, "\"", 1);
}
