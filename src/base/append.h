/* Text in a buffer of fixed size, piece by piece. The text always ends with a zero byte and never passes the buffer's end:
 * what does not fit is cut, and nothing follows it. No other code uses what snprintf returns, which is the length without the
 * cut. */
#ifndef QN_BASE_APPEND_H
#define QN_BASE_APPEND_H

#include "quern/status.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct qn_text_buffer {
    char *text; /* [size] */
    size_t size;
    size_t length; /* of the text, < size */
    bool is_cut;   /* a piece did not fit */
} qn_text_buffer;

/* qn_append_to - an empty text in a buffer of `size` bytes; of size 0 it is cut. QN_APPEND_TO - the same for an array. */
qn_text_buffer qn_append_to(char *buffer, size_t size);
#define QN_APPEND_TO(array) qn_append_to((array), sizeof(array))

/* qn_append_after - goes on behind the text that the buffer has, which ends in it. */
qn_text_buffer qn_append_after(char *buffer, size_t size);

/* qn_append, qn_append_list, qn_append_bytes - append a formatted text, or bytes as they are. */
void qn_append(qn_text_buffer *to, const char *format, ...) QN_PRINTF(2, 3);
void qn_append_list(qn_text_buffer *to, const char *format, va_list arguments) QN_PRINTF(2, 0);
void qn_append_bytes(qn_text_buffer *to, const char *bytes, size_t n);

/* qn_append_hex - append two hexadecimal digits for each byte, in lower case. */
void qn_append_hex(qn_text_buffer *to, const void *bytes, size_t n);

/* qn_print - the text of a format in a buffer; false if it was cut. */
bool qn_print(char *buffer, size_t size, const char *format, ...) QN_PRINTF(3, 4);

#endif
