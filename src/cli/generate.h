/* Generation as run shows it: text is streamed to standard output, with a progress line while a long prompt is
 * evaluated. */
#ifndef QN_CLI_GENERATE_H
#define QN_CLI_GENERATE_H

#include "cli/progress.h"
#include "quern/quern.h"

typedef struct qn_stream {
    qn_progress progress;
    bool answering; /* the first token was generated: no progress line may interrupt the text */
    bool broken;    /* standard output cannot be written any more */
    bool ends_line; /* the last byte shown was a newline */
} qn_stream;

/* qn_stream_generate - call qn_generate with `params`, whose callbacks and user pointer are set here, and stream the
 * text. Returns qn_generate's status. Ctrl-C cancels it while it runs. If standard output fails, it ends with
 * QN_FINISH_CALLBACK and stream->broken. */
qn_status qn_stream_generate(qn_session *session, const qn_token *tokens, size_t n, qn_request_params params,
                             qn_stream *stream, qn_request_result *result);

#endif
