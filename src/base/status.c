/* The error text of each thread, and the names of status codes. */
#include "base/status.h"

#include "base/printable.h"

#include <stdarg.h>
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
    case QN_ERR_BUSY: return "busy";
    case QN_ERR_DEVICE: return "device error";
    }
    return "unknown status";
}

const char *qn_error_text(void)
{
    return error_text;
}

qn_status qn_fail(qn_status status, const char *format, ...)
{
    char text[QN_ERROR_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    qn_mask(text);
    memcpy(error_text, text, sizeof text);
    return status;
}
