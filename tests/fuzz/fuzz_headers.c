/* Headers of the hub's answers: lines of any bytes, and their values as sizes and ranges. A value is that of its line,
 * cut to its size; numbers equal those of a second parser that cannot overflow.
 *
 * An input is lines; each is also parsed as a size and a range. */
#include "fuzz.h"

#include "hub/files.h"
#include "hub/header.h"

#include <ctype.h>

enum { MAX_LINES = 50 };

/* The number of digits of a number up to QN_HUB_SIZE_MAX, by length and comparison; 0 if the text is not one. */
static size_t number_of(const char *text, uint64_t *number)
{
    const size_t n = strspn(text, "0123456789");
    const char *digits = text;
    size_t left = n;
    while (left > 1 && *digits == '0') {
        digits++;
        left--;
    }
    const long double value = left && left <= 30 ? strtold(digits, NULL) : 0;
    if (!left || left > 14 || value > (long double)QN_HUB_SIZE_MAX)
        return 0;
    *number = (uint64_t)value;
    return n;
}

static void check_numbers(const char *text)
{
    uint64_t size = 7, known = 0;
    qn_hub_range range;
    const size_t n = number_of(text, &known);
    const bool is_size = n && !text[n];
    require(qn_hub_size_parse(text, &size) == is_size && size == (is_size ? known : 7), "a size is its digits");
    if (!qn_hub_range_parse(text, &range))
        return;
    require(range.first <= range.last && range.last < range.total && range.total <= QN_HUB_SIZE_MAX,
            "a range is in order");
    uint64_t parts[3];
    const char *at = text + 6;
    for (size_t i = 0; i < 3; i++) {
        const size_t digits = number_of(at, &parts[i]);
        require(digits && at[digits] == "-/"[i], "a range has three numbers");
        at += digits + 1;
    }
    require(parts[0] == range.first && parts[1] == range.last && parts[2] == range.total, "they are the range");
}

static void check_values(const qn_hub_response *r)
{
    const char *values[] = { r->commit, r->etag,       r->linked_etag,  r->linked_size,
                             r->range,  r->error_code, r->error_message };
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        const size_t n = strnlen(values[i], QN_HUB_HEADER_SIZE);
        require(n < QN_HUB_HEADER_SIZE, "a value ends");
        check_numbers(values[i]);
    }
    require(r->status == 77 && r->length == -1 && r->retry_after == 3, "lines change nothing else");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    qn_hub_response response = { .status = 77, .length = -1, .retry_after = 3 };
    for (size_t at = 0, i = 0; at < size && i < MAX_LINES; i++) {
        const uint8_t *end = memchr(data + at, '\n', size - at);
        const size_t n = end ? (size_t)(end - data) - at + 1 : size - at;
        char *line = malloc(n), *text = malloc(n + 1); /* of exact size, so that a read past the end is found */
        require(line && text, "memory");
        memcpy(line, data + at, n);
        memcpy(text, line, n);
        text[n - (end != NULL)] = '\0';
        qn_hub_header(&response, line, n);
        check_values(&response);
        check_numbers(text);
        free(line);
        free(text);
        at += n;
    }
    return 0;
}
