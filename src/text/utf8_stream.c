/* Assembles complete UTF-8 characters. */
#include "text/utf8_stream.h"

#include "base/memory.h"
#include "base/utf8.h"

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
    /* The buffer has n_in * 3 bytes for the output, since an invalid byte becomes 3 bytes, followed by the input:
     * the tail and the new bytes. */
    size_t n_in, max_bytes;
    if (!qn_add_size(stream->n_tail, n, &n_in) || !qn_mul_size(n_in, 1 + sizeof replacement, &max_bytes))
        return qn_fail(QN_ERR_MEMORY, "text: a piece of %zu bytes does not fit in memory", n);
    QN_TRY(qn_realloc_array(&stream->text, &stream->capacity, max_bytes + 1, 1, "text"));
    char *in = stream->text + n_in * sizeof replacement, *out = stream->text;
    memcpy(in, stream->tail, stream->n_tail);
    if (n)
        memcpy(in + stream->n_tail, bytes, n);
    stream->n_tail = 0;
    size_t n_out = 0, step;
    for (size_t i = 0; i < n_in; i += step) {
        uint32_t code;
        const qn_utf8 found = qn_utf8_next(in + i, n_in - i, &step, &code);
        if (found == QN_UTF8_INCOMPLETE) {
            stream->n_tail = step;
            memcpy(stream->tail, in + i, step);
        } else if (found == QN_UTF8_COMPLETE) {
            memmove(out + n_out, in + i, step);
            n_out += step;
        } else {
            memcpy(out + n_out, replacement, sizeof replacement);
            n_out += sizeof replacement;
        }
    }
    *text = out;
    *length = n_out;
    return QN_OK;
}

qn_status qn_utf8_stream_flush(qn_utf8_stream *stream, const char **text, size_t *length)
{
    *text = replacement;
    *length = stream->n_tail ? sizeof replacement : 0;
    stream->n_tail = 0;
    return QN_OK;
}
