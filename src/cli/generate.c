/* Streams generated text to standard output. */
#include "cli/generate.h"

#include "cli/cli.h"
#include "cli/signals.h"

static void begin_answer(qn_stream *stream)
{
    if (stream->answering)
        return;
    stream->answering = true;
    qn_progress_end(&stream->progress);
}

static bool on_text(void *user, const char *text, size_t length)
{
    qn_stream *stream = user;
    begin_answer(stream);
    if (!length)
        return true;
    qn_print_text(stdout, text, length);
    stream->ends_line = text[length - 1] == '\n';
    stream->broken = !qn_out_flush();
    return !stream->broken;
}

static bool on_token(void *user, qn_token token, const qn_logprobs *logprobs)
{
    (void)token, (void)logprobs;
    begin_answer(user);
    return true;
}

static bool on_progress(void *user, size_t done, size_t total)
{
    qn_stream *stream = user;
    return qn_progress_update(stream->answering ? NULL : &stream->progress, done, total);
}

qn_status qn_stream_generate(qn_session *session, const qn_token *tokens, size_t n, qn_request_params params,
                             qn_stream *stream, qn_request_result *result)
{
    *stream = (qn_stream){ .ends_line = true };
    qn_progress_begin(&stream->progress, "reading");
    params.tokens = tokens;
    params.n_tokens = n;
    params.on_text = on_text;
    params.on_token = on_token;
    params.user = stream;
    qn_session_on_progress(session, on_progress, stream);
    qn_signals_session(session);
    const qn_status status = qn_signals_stop_requested() ? QN_ERR_CANCELLED : qn_generate(session, &params, result);
    qn_signals_session(NULL);
    qn_session_on_progress(session, NULL, NULL);
    qn_progress_end(&stream->progress);
    return status;
}
