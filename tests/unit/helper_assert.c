/* What assertions print: labels of cases, statuses with their error texts. */
#include "helper_assert.h"

#include "base/append.h"

static _Thread_local char labels[512];
static _Thread_local size_t labels_length;

size_t label_begin(const char *format, ...)
{
    const size_t before = labels_length;
    qn_text_buffer text = { .text = labels, .size = sizeof labels, .length = before };
    va_list args;
    qn_append(&text, "%s", before ? ", " : "");
    va_start(args, format);
    qn_append_list(&text, format, args);
    va_end(args);
    labels_length = text.length;
    return before;
}

void label_end(const size_t *length)
{
    labels_length = *length;
    labels[labels_length] = '\0';
}

void label_failed(void)
{
    if (labels_length)
        print_error("case: %s\n", labels);
    labels_length = 0;
    labels[0] = '\0';
}

void fail_with(const char *file, int line, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    label_failed();
    print_error("%s:%d: %s\n", file, line, text);
    _fail(file, line);
}

void labelled_ok(qn_status status, const char *expression, const char *file, int line)
{
    if (status != QN_OK)
        fail_with(file, line, "%s: %s: %s", expression, qn_status_name(status), qn_error_text());
}

void labelled_failure(qn_status found, qn_status expected, const char *part, const char *expression, const char *file,
                      int line)
{
    if (found != expected)
        fail_with(file, line, "%s: %s, expected %s: %s", expression, qn_status_name(found), qn_status_name(expected),
                  found == QN_OK ? "" : qn_error_text());
    labelled_text(part, file, line);
}

void labelled_text(const char *part, const char *file, int line)
{
    labelled_part(qn_error_text(), part, file, line);
}

void labelled_part(const char *text, const char *part, const char *file, int line)
{
    if (!strstr(text, part))
        fail_with(file, line, "'%s' is not in '%s'", part, text);
}
