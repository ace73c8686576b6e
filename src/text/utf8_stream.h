/* Letting only whole UTF-8 characters through: a model's tokens may end in the middle of one. */
#ifndef QN_TEXT_UTF8_STREAM_H
#define QN_TEXT_UTF8_STREAM_H

#include "base/status.h"

#include <stddef.h>

/* Zero it before the first byte; qn_utf8_stream_free at the end. */
typedef struct qn_utf8_stream {
    char *text;
    size_t capacity;
    char tail[4]; /* the beginning of a character, 3 bytes at most */
    size_t n_tail;
} qn_utf8_stream;

void qn_utf8_stream_free(qn_utf8_stream *stream);

/* qn_utf8_stream_feed - take bytes[0..n) and give back the characters that are whole by now, in *text, not terminated, valid
 * until the next call. What may still become a character is held back. Bytes that no longer can come out as U+FFFD, one for
 * each maximal subpart, as the Unicode standard recommends. QN_ERR_MEMORY leaves the stream as it was. */
qn_status qn_utf8_stream_feed(qn_utf8_stream *stream, const char *bytes, size_t n, const char **text, size_t *length);

/* qn_utf8_stream_flush - the end: what was held back comes out as one U+FFFD, and the stream is as new. */
qn_status qn_utf8_stream_flush(qn_utf8_stream *stream, const char **text, size_t *length);

#endif
