/* The filter between tokens and text. */
#include "text/utf8_stream.h"

#include "base/memory.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

static const char replacement[] = { '\xef', '\xbf', '\xbd' };

void qn_utf8_stream_free(qn_utf8_stream *stream)
{
    free(stream->text);
    *stream = (qn_utf8_stream){ 0 };
}

qn_status qn_utf8_stream_feed(qn_utf8_stream *stream, const char *bytes, size_t n, const char **text, size_t *length)
{
    /* The tail and the new bytes are laid at the end of a buffer that has room for what they become: three bytes for each. */
    size_t given, room;
    if (!qn_add_size(stream->n_tail, n, &given) || !qn_mul_size(given, 1 + sizeof replacement, &room))
        return qn_fail(QN_ERR_MEMORY, "text: a piece of %zu bytes does not fit in memory", n);
    QN_TRY(qn_realloc_array(&stream->text, &stream->capacity, room + 1, 1, "text"));
    char *in = stream->text + given * sizeof replacement, *out = stream->text;
    memcpy(in, stream->tail, stream->n_tail);
    if (n)
        memcpy(in + stream->n_tail, bytes, n);
    stream->n_tail = 0;
    size_t made = 0, step;
    for (size_t i = 0; i < given; i += step) {
        uint32_t code;
        const qn_utf8 found = qn_utf8_next(in + i, given - i, &step, &code);
        if (found == QN_UTF8_PART) {
            stream->n_tail = step;
            memcpy(stream->tail, in + i, step);
        } else if (found == QN_UTF8_WHOLE) {
            memmove(out + made, in + i, step);
            made += step;
        } else {
            memcpy(out + made, replacement, sizeof replacement);
            made += sizeof replacement;
        }
    }
    *text = out;
    *length = made;
    return QN_OK;
}

qn_status qn_utf8_stream_flush(qn_utf8_stream *stream, const char **text, size_t *length)
{
    *text = replacement;
    *length = stream->n_tail ? sizeof replacement : 0;
    stream->n_tail = 0;
    return QN_OK;
}
