/* Appends to buffers of fixed size: the only place that uses the result of vsnprintf. */
#include "base/append.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

qn_text_buffer qn_append_to(char *buffer, size_t size)
{
    if (size)
        buffer[0] = '\0';
    return (qn_text_buffer){ .text = buffer, .size = size, .is_cut = !size };
}

qn_text_buffer qn_append_after(char *buffer, size_t size)
{
    qn_text_buffer to = { .text = buffer, .size = size, .length = strnlen(buffer, size) };
    if (to.length < size)
        return to;
    to.length = size ? size - 1 : 0;
    if (size)
        buffer[to.length] = '\0';
    to.is_cut = true;
    return to;
}

void qn_append_list(qn_text_buffer *to, const char *format, va_list arguments)
{
    if (to->is_cut)
        return;
    const size_t left = to->size - to->length;
    const int n = vsnprintf(to->text + to->length, left, format, arguments);
    to->is_cut = n < 0 || (size_t)n >= left;
    if (n < 0)
        to->text[to->length] = '\0';
    else
        to->length += to->is_cut ? left - 1 : (size_t)n;
}

void qn_append(qn_text_buffer *to, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    qn_append_list(to, format, arguments);
    va_end(arguments);
}

void qn_append_bytes(qn_text_buffer *to, const char *bytes, size_t n)
{
    if (to->is_cut)
        return;
    const size_t left = to->size - to->length - 1;
    to->is_cut = n > left;
    n = to->is_cut ? left : n;
    if (n)
        memcpy(to->text + to->length, bytes, n);
    to->length += n;
    to->text[to->length] = '\0';
}

void qn_append_hex(qn_text_buffer *to, const void *bytes, size_t n)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *b = bytes;
    for (size_t i = 0; i < n; i++)
        qn_append_bytes(to, (const char[]){ digits[b[i] >> 4], digits[b[i] & 15] }, 2);
}

bool qn_print(char *buffer, size_t size, const char *format, ...)
{
    qn_text_buffer to = qn_append_to(buffer, size);
    va_list arguments;
    va_start(arguments, format);
    qn_append_list(&to, format, arguments);
    va_end(arguments);
    return !to.is_cut;
}
