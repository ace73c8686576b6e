/* The error text of each thread, and the names of status codes. */
#include "base/status.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char error_text[QN_ERROR_TEXT_MAX];

const char *qn_status_name(qn_status status)
{
    switch (status) {
    case QN_OK: return "ok";
    case QN_ERR_INVALID: return "invalid argument";
    case QN_ERR_FORMAT: return "malformed data";
    case QN_ERR_UNSUPPORTED: return "unsupported";
    case QN_ERR_IO: return "input/output error";
    case QN_ERR_MEMORY: return "out of memory";
    case QN_ERR_CONTEXT: return "context full";
    case QN_ERR_CANCELLED: return "cancelled";
    }
    return "unknown status";
}

const char *qn_error_text(void)
{
    return error_text;
}

/* Replaces by '?' the control characters, of one byte and of two (U+0080 to U+009F), and the bidirectional formatting
 * characters of Unicode. */
static void mask_controls(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c; c++) {
        const bool one = c[0] < 0x20 || c[0] == 0x7f;
        const bool two = c[0] == 0xc2 && c[1] >= 0x80 && c[1] <= 0x9f;
        const bool marks = c[0] == 0xe2 && c[1] == 0x80 && (c[2] == 0x8e || c[2] == 0x8f || (c[2] >= 0xaa && c[2] <= 0xae));
        const bool isolates = c[0] == 0xe2 && c[1] == 0x81 && c[2] >= 0xa6 && c[2] <= 0xa9;
        memset(c, '?', marks || isolates ? 3 : two ? 2 : one);
    }
}

qn_status qn_fail(qn_status status, const char *format, ...)
{
    char text[QN_ERROR_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    mask_controls(text);
    memcpy(error_text, text, sizeof text);
    return status;
}
