/* Checks where public functions may be called. For each thread it stores the scheduler whose callbacks the thread
 * calls. */
#include "engine/calls.h"

#include "base/process.h"

static _Thread_local qn_calling calling;

qn_status qn_model_check_process(const qn_model *model, const char *function)
{
    return qn_process_check(model->process, function, "model");
}

qn_status qn_model_enter(qn_model *model, const char *function)
{
    QN_TRY(qn_model_check_process(model, function));
    if (!qn_model_is_locked_here(model))
        return QN_OK;
    return qn_fail(QN_ERR_INVALID,
                   "%s: a step of the same model is in flight, which this thread has begun and would wait for: it "
                   "must not be called in a callback during a step, or between steps with run_ahead",
                   function);
}

qn_status qn_session_take(qn_session *session, const char *function)
{
    if (atomic_exchange(&session->is_used, true))
        return qn_fail(QN_ERR_INVALID,
                       "%s: the session is in use: it must not be called in a callback of the same session, or while "
                       "another thread uses it",
                       function);
    return QN_OK;
}

qn_status qn_session_enter(qn_session *session, const char *function)
{
    QN_TRY(qn_model_enter(session->model, function));
    return qn_session_take(session, function);
}

void qn_session_leave(qn_session *session)
{
    atomic_store(&session->is_used, false);
}

qn_calling qn_callbacks_begin(qn_calling of)
{
    const qn_calling before = calling;
    calling = of;
    return before;
}

void qn_callbacks_end(qn_calling before)
{
    calling = before;
}

qn_calling qn_callbacks_of(void)
{
    return calling;
}

qn_status qn_check_no_callback(const char *function)
{
    if (!calling.scheduler)
        return QN_OK;
    return qn_fail(
        QN_ERR_INVALID,
        "%s: it must not be called in a callback of a scheduler: it would wait for what comes after that callback",
        function);
}
