/* Assembles complete UTF-8 characters from the bytes of tokens, which may end inside a character. */
#ifndef QN_TEXT_UTF8_STREAM_H
#define QN_TEXT_UTF8_STREAM_H

#include "base/status.h"

#include <stddef.h>

/* Zero it before use; free it with qn_utf8_stream_free. */
typedef struct qn_utf8_stream {
    char *text;
    size_t capacity;
    char tail[4]; /* the beginning of an incomplete character, at most 3 bytes */
    size_t n_tail;
} qn_utf8_stream;

void qn_utf8_stream_free(qn_utf8_stream *stream);

/* qn_utf8_stream_feed - adds bytes and returns the characters that are now complete.
 *
 *   bytes    [n]
 *   text     [*length] not terminated, valid until the next call. Each maximal subpart of invalid bytes is replaced by
 *            U+FFFD, as the Unicode standard recommends
 *   length   in bytes
 *
 * An incomplete character at the end is held back. On QN_ERR_MEMORY the stream is unchanged. */
qn_status qn_utf8_stream_feed(qn_utf8_stream *stream, const char *bytes, size_t n, const char **text, size_t *length);

/* qn_utf8_stream_flush - ends the text: returns one U+FFFD if an incomplete character was held back, and resets the
 * stream. */
qn_status qn_utf8_stream_flush(qn_utf8_stream *stream, const char **text, size_t *length);

#endif
