/* Raw input of custom tools. Models call them as functions with one argument: the string of {"input": "..."}, extracted
 * as it arrives. */
#include "protocol/responses.h"

#include "text/json_scan.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

static const char prefix[] = "{\"input\":\"";

static void take_prefix(qn_custom_input *input, char c)
{
    const char expected = prefix[input->n_prefix];
    const bool in_key = input->n_prefix > 1 && input->n_prefix < sizeof "{\"input\"" - 1;
    if (c == expected)
        input->n_prefix++;
    else if (in_key || !qn_json_is_space(c))
        input->state = QN_CUSTOM_OTHER;
    if (input->n_prefix == sizeof prefix - 1)
        input->state = QN_CUSTOM_TEXT;
}

static uint32_t unit_of(const char *escape)
{
    const char digits[] = { escape[2], escape[3], escape[4], escape[5], 0 };
    return (uint32_t)strtoul(digits, NULL, 16);
}

static void add_character(uint32_t code, qn_bytes *text)
{
    char bytes[4];
    qn_bytes_add(text, bytes, qn_utf8_encode(code, bytes));
}

/* Appends the character of a \u escape. Half of a surrogate pair waits for the other half, which follows in JSON that
 * was checked. */
static void take_unicode(qn_custom_input *input, qn_bytes *text)
{
    const uint32_t first = unit_of(input->escape);
    if (input->n_escape == 6 && first >> 10 == 0xd800 >> 10)
        return;
    if (input->n_escape == 12) {
        const uint32_t second = unit_of(input->escape + 6);
        const bool is_pair = second >> 10 == 0xdc00 >> 10;
        add_character(is_pair ? 0x10000 + ((first & 0x3ff) << 10 | (second & 0x3ff)) : 0xfffd, text);
    } else {
        add_character(first >> 11 == 0xd800 >> 11 ? 0xfffd : first, text);
    }
    input->n_escape = 0;
}

static void take_escape(qn_custom_input *input, char c, qn_bytes *text)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char *name = c ? strchr(names, c) : NULL;
    input->escape[input->n_escape++] = c;
    if (input->n_escape == 2 && name) {
        qn_bytes_add(text, &values[name - names], 1);
        input->n_escape = 0;
    } else if (input->n_escape == 6 || input->n_escape == 12) {
        take_unicode(input, text);
    }
}

static void take_text(qn_custom_input *input, char c, qn_bytes *text)
{
    if (input->n_escape || c == '\\')
        take_escape(input, c, text);
    else if (c == '"')
        input->state = QN_CUSTOM_AFTER;
    else
        qn_bytes_add(text, &c, 1);
}

void qn_custom_input_feed(qn_custom_input *input, const char *arguments, size_t length, qn_bytes *text)
{
    for (size_t i = 0; i < length; i++) {
        if (input->state == QN_CUSTOM_PREFIX)
            take_prefix(input, arguments[i]);
        else if (input->state == QN_CUSTOM_TEXT)
            take_text(input, arguments[i], text);
    }
}

bool qn_custom_input_is_other(const qn_custom_input *input, bool is_complete)
{
    return (input->state == QN_CUSTOM_PREFIX && is_complete) || input->state == QN_CUSTOM_OTHER;
}
