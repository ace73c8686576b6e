/* qn_generate: a scheduler of one request, which uses the session's memory and continues its tokens. */
#include "scheduler/scheduler.h"

#include "base/params.h"
#include "engine/calls.h"
#include "engine/rows.h"

#include <string.h>

/* Updates the session before callbacks receive a token. In callbacks the session holds all tokens before the token that
 * they receive, and that token is pending. */
void qn_generation_pass(qn_generation *g, qn_token token)
{
    qn_session *session = g->session;
    session->length = (uint32_t)(g->n_prompt + g->n_passed++);
    session->pending = token;
    if (session->length < session->n_ctx)
        session->tokens[session->length] = token;
}

void qn_generation_end(qn_generation *g, const qn_request_result *result)
{
    g->has_ended = true;
    g->result = *result;
    memcpy(g->error, result->error, strlen(result->error) + 1);
}

/* Between two steps of a prompt: updates the session's length and reports progress. */
static void pass_progress(qn_generation *g)
{
    qn_session *session = g->session;
    const uint32_t length = session->memory->sequence->length;
    if (g->n_passed || length == session->length)
        return;
    session->length = length;
    session->pending = QN_NO_TOKEN;
    if (length < g->n_prompt && session->on_progress &&
        !session->on_progress(session->progress_user, length - g->n_before, g->n_prompt - g->n_before))
        atomic_store(&session->cancelled, true);
}

/* Brings the session to its final length: all tokens of the answer but the last, which is pending. Drops drafted tokens
 * after a callback that returned false, and evaluates inserted words that end reasoning if they were not evaluated.
 * After an error the session holds the evaluated tokens. */
static qn_status settle(qn_generation *g, qn_status status)
{
    qn_session *session = g->session;
    qn_memory *memory = session->memory;
    const uint32_t evaluated = memory->sequence->length;
    const uint32_t end = (uint32_t)(g->n_prompt + g->n_passed - 1), kept = evaluated < end ? evaluated : end;
    if (status != QN_OK)
        qn_memory_on_append(memory, evaluated); /* gives back what was reserved for a step that failed */
    if (!g->n_passed) {
        session->length = evaluated;
        return QN_OK;
    }
    const qn_token pending = session->pending;
    if (evaluated > end && status == QN_OK)
        qn_memory_truncate(memory, end);
    session->length = status == QN_OK ? kept : evaluated;
    const qn_status appended =
        status == QN_OK && kept < end ? qn_session_append(session, session->tokens + kept, end - kept) : QN_OK;
    session->pending = session->length == end ? pending : QN_NO_TOKEN;
    return appended;
}

static qn_status run(qn_generation *g, qn_scheduler *s, const qn_request_params *params)
{
    qn_session *session = g->session;
    qn_request *request;
    size_t n;
    QN_TRY(qn_request_new(s, params, NULL, &request, &n));
    uint32_t components[QN_ROPE_COMPONENTS];
    qn_session_components(session, g->n_before, components);
    request->rope_offset = components[0] - g->n_before;
    g->n_prompt = request->n_prompt;
    memcpy(session->tokens, request->tokens, g->n_prompt * sizeof *session->tokens);
    const qn_status status = qn_clients_enqueue(s, request, 1, NULL);
    if (status != QN_OK) {
        qn_request_free(request);
        return status;
    }
    while (!g->has_ended) {
        (void)qn_scheduler_run_step(s);
        pass_progress(g);
        qn_scheduler_deliver(s);
    }
    atomic_store(&session->cancelled, false);
    const uint32_t evaluated = session->memory->sequence->length;
    g->result.n_prompt = (evaluated < g->n_prompt ? evaluated : g->n_prompt) - g->n_before;
    QN_TRY(settle(g, g->result.status));
    return g->result.status ? qn_fail(g->result.status, "%s", g->error) : QN_OK;
}

qn_status qn_generate(qn_session *session, const qn_request_params *params, qn_request_result *result)
{
    qn_generation g = { .session = session };
    qn_scheduler *s;
    if (result)
        QN_TRY(QN_RESULT_CHECK(qn_request_result, result));
    QN_TRY(qn_session_enter(session, __func__));
    g.n_before = session->length;
    qn_request_params own = QN_REQUEST_PARAMS_INIT;
    qn_status status = QN_PARAMS_READ(qn_request_params, params, &own);
    if (status == QN_OK)
        status = qn_scheduler_create_generation(&g, own.draft, &s);
    if (status == QN_OK) {
        status = run(&g, s, params);
        qn_scheduler_destroy(s);
    }
    atomic_store(&session->cancelled, false); /* a request that came too late does not apply to the next call */
    g.result.error = "";
    if (status == QN_OK && result)
        qn_result_write(&g.result, sizeof g.result, result);
    qn_session_leave(session);
    return status;
}
