/* Headers of answers, without libcurl. */
#include "hub/header.h"

#include "hub/files.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* ---- Lines ---- */

static void copy_value(char *out, const char *value, size_t length)
{
    while (length && strchr(" \t\r\n", value[length - 1]))
        length--;
    snprintf(out, QN_HUB_HEADER_SIZE, "%.*s", (int)(length < QN_HUB_HEADER_SIZE ? length : QN_HUB_HEADER_SIZE), value);
}

/* Copies the hash of W/"HASH" or "HASH". */
static void copy_etag(char *out, const char *value, size_t length)
{
    copy_value(out, value, length);
    char *text = out + (strncmp(out, "W/", 2) == 0 ? 2 : 0);
    const size_t end = strlen(text);
    if (end >= 2 && text[0] == '"' && text[end - 1] == '"') {
        text[end - 1] = '\0';
        text++;
    }
    memmove(out, text, strlen(text) + 1);
}

void qn_hub_header(qn_hub_response *r, const char *line, size_t length)
{
    const struct {
        const char *name;
        char *value;
        bool is_etag;
    } known[] = {
        { "x-repo-commit", r->commit, false },          { "etag", r->etag, true },
        { "x-linked-etag", r->linked_etag, true },      { "x-linked-size", r->linked_size, false },
        { "content-range", r->range, false },           { "x-error-code", r->error_code, false },
        { "x-error-message", r->error_message, false },
    };
    const char *colon = length ? memchr(line, ':', length) : NULL;
    for (size_t i = 0; colon && i < sizeof known / sizeof *known; i++) {
        if (strlen(known[i].name) != (size_t)(colon - line) ||
            strncasecmp(known[i].name, line, strlen(known[i].name)) != 0)
            continue;
        const char *value = colon + 1;
        while (value < line + length && (*value == ' ' || *value == '\t'))
            value++;
        (known[i].is_etag ? copy_etag : copy_value)(known[i].value, value, (size_t)(line + length - value));
    }
}

/* ---- Numbers ---- */

/* Parses decimal digits. Returns the position after them, or NULL. */
static const char *read_number(const char *text, uint64_t *number)
{
    const char *at = text;
    for (*number = 0; *at >= '0' && *at <= '9'; at++) {
        *number = *number * 10 + (uint64_t)(*at - '0');
        if (*number > QN_HUB_SIZE_MAX)
            return NULL;
    }
    return at == text ? NULL : at;
}

bool qn_hub_size_parse(const char *text, uint64_t *size)
{
    uint64_t number;
    const char *end = read_number(text, &number);
    if (!end || *end)
        return false;
    *size = number;
    return true;
}

bool qn_hub_range_parse(const char *text, qn_hub_range *range)
{
    static const char unit[] = "bytes ";
    qn_hub_range r;
    if (strncasecmp(text, unit, sizeof unit - 1) != 0)
        return false;
    const char *at = read_number(text + sizeof unit - 1, &r.first);
    at = at && *at == '-' ? read_number(at + 1, &r.last) : NULL;
    at = at && *at == '/' ? read_number(at + 1, &r.total) : NULL;
    if (!at || *at || r.first > r.last || r.last >= r.total)
        return false;
    *range = r;
    return true;
}
