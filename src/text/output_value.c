/* Values of the XML form of tool calls: the text of one as JSON, by the types that it may have. */
#include "text/output_internal.h"

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

bool qn_output_is_null(const char *text, size_t n, bool partly)
{
    return (partly ? n <= 4 : n == 4) && (!memcmp(text, "null", n) || !memcmp(text, "None", n));
}

/* The JSON of a number that is an integer, or NULL: 1.0 is 1, and 1e3 stays. */
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

/* The JSON of a value that is an instance of the type, or NULL. Templates of Qwen3.5 print Python's names of constants. */
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
        if (json) {
            qn_output_append(p, to, json, length);
            return;
        }
    }
    qn_output_append(p, to, "\"", 1);
    qn_output_escape(p, to, text, n);
    qn_output_append(p, to, "\"", 1);
}
