/* Builds text in a buffer of fixed size, piece by piece. The text is always terminated and never exceeds the buffer: a
 * piece that does not fit is cut, and later pieces are dropped. No other code may use the result of snprintf, which is
 * the length without the cut. The buffer is the caller's. */
#ifndef QN_BASE_APPEND_H
#define QN_BASE_APPEND_H

#include "quern/status.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct qn_text_buffer {
    char *text; /* [size] */
    size_t size;
    size_t length; /* length of the text, < size */
    bool is_cut;   /* a piece did not fit */
} qn_text_buffer;

/* qn_append_to - begins an empty text in a buffer of `size` bytes; with size 0 it is cut at once. QN_APPEND_TO does
 * so for an array. */
qn_text_buffer qn_append_to(char *buffer, size_t size);
#define QN_APPEND_TO(array) qn_append_to((array), sizeof(array))

/* qn_append_after - continues the terminated text in a buffer. */
qn_text_buffer qn_append_after(char *buffer, size_t size);

/* qn_append - appends a formatted text. */
void qn_append(qn_text_buffer *to, const char *format, ...) QN_PRINTF(2, 3);

/* qn_append_list - appends a formatted text, with a va_list. */
void qn_append_list(qn_text_buffer *to, const char *format, va_list arguments) QN_PRINTF(2, 0);

/* qn_append_bytes - appends bytes. */
void qn_append_bytes(qn_text_buffer *to, const char *bytes, size_t n);

/* qn_append_hex - appends two lower-case hexadecimal digits for each byte. */
void qn_append_hex(qn_text_buffer *to, const void *bytes, size_t n);

/* qn_print - formats a text into a buffer; false if it was cut. */
bool qn_print(char *buffer, size_t size, const char *format, ...) QN_PRINTF(3, 4);

#endif
