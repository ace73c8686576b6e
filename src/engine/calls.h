/* Where public functions may be called: not in a forked child, and not in a callback that the function would wait for.
 * Each public function that takes a lock or waits begins with one of these checks, before anything else. */
#ifndef QN_ENGINE_CALLS_H
#define QN_ENGINE_CALLS_H

#include "engine/internal.h"
#include "quern/scheduler.h"

/* qn_model_check_process - QN_ERR_INVALID in a forked child of the process that loaded the model. */
qn_status qn_model_check_process(const qn_model *model, const char *function);

/* qn_model_enter - the same, and QN_ERR_INVALID where the calling thread holds the model's lock: in a callback during a
 * step, and between the steps of a scheduler with run_ahead. */
qn_status qn_model_enter(qn_model *model, const char *function);

/* qn_session_enter - qn_model_enter, and the session is used by this call until qn_session_leave. QN_ERR_INVALID if it
 * is used already: by the call whose callback this is, or by another thread. */
qn_status qn_session_enter(qn_session *session, const char *function);
void qn_session_leave(qn_session *session);

/* qn_session_take - what qn_session_enter does besides qn_model_enter. */
qn_status qn_session_take(qn_session *session, const char *function);

/* The scheduler whose callbacks a thread calls, and its model; NULL: none. */
typedef struct qn_calling {
    const qn_scheduler *scheduler;
    const qn_model *model;
} qn_calling;

/* qn_callbacks_begin - the calling thread calls callbacks of a scheduler from now on. Returns in whose callback it is.
 */
qn_calling qn_callbacks_begin(qn_calling of);

/* qn_callbacks_end - the calling thread has called them.
 *
 *   before   what qn_callbacks_begin returned */
void qn_callbacks_end(qn_calling before);

/* qn_callbacks_of - returns in whose callback the calling thread is. */
qn_calling qn_callbacks_of(void);

/* qn_check_no_callback - QN_ERR_INVALID in a callback of any scheduler: two that wait for each other would hang as one
 * does. */
qn_status qn_check_no_callback(const char *function);

#endif
