/* Generation as run shows it: text streamed to standard output, a progress line while a long prompt is read. */
#ifndef QN_CLI_GENERATE_H
#define QN_CLI_GENERATE_H

#include "cli/progress.h"
#include "quern/quern.h"

typedef struct qn_stream {
    qn_progress progress;
    bool answering; /* the first new token is there: no progress line may come between the text */
    bool broken;    /* standard output takes no more */
    bool ends_line; /* the last byte shown was a newline */
} qn_stream;

/* qn_stream_generate - qn_generate with `params` (its callbacks and user pointer are set here), streaming as it goes. Returns
 * qn_generate's status. Ctrl-C cancels it, and only while it runs. A failing standard output ends it with QN_FINISH_CALLBACK and
 * stream->broken. */
qn_status qn_stream_generate(qn_session *session, const qn_token *tokens, size_t n, qn_request_params params, qn_stream *stream,
                             qn_request_result *result);

#endif
