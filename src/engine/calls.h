/* Where public functions may be called: not in a forked child, and not in a callback that the function would wait for.
 * Each public function that takes a lock or waits begins with one of these checks, before anything else. */
#ifndef QN_ENGINE_CALLS_H
#define QN_ENGINE_CALLS_H

#include "engine/internal.h"
#include "quern/scheduler.h"

/* qn_model_check_process - QN_ERR_INVALID in a forked child of the process that loaded the model. */
qn_status qn_model_check_process(const qn_model *model, const char *function);

/* qn_model_enter - Checks at the beginning of a public function that takes the model's lock or waits for its threads
 * whether it may. Takes nothing, so there is no qn_model_leave. QN_ERR_INVALID in a forked child, and if the calling
 * thread already holds the model's lock: it is in a callback during a step, or a scheduler that it runs with run_ahead
 * has a step in flight. */
qn_status qn_model_enter(qn_model *model, const char *function);

/* qn_session_enter - Does what qn_model_enter does, and marks the session as used until qn_session_leave.
 * QN_ERR_INVALID if it is already used, by the call that runs this callback or by another thread. */
qn_status qn_session_enter(qn_session *session, const char *function);

/* qn_session_leave - Ends the use of a session by a call that has entered or taken it. */
void qn_session_leave(qn_session *session);

/* qn_session_take - Marks the session as used, as qn_session_enter does, but may be called where the thread holds the
 * model's lock: for qn_session_free. */
qn_status qn_session_take(qn_session *session, const char *function);

/* The scheduler whose callbacks a thread calls, and its model; NULL: none. Each thread has its own. */
typedef struct qn_calling {
    const qn_scheduler *scheduler;
    const qn_model *model;
} qn_calling;

/* qn_callbacks_begin - Notes that the calling thread calls callbacks of a scheduler from now on. Returns the previous
 * value, for qn_callbacks_end. */
qn_calling qn_callbacks_begin(qn_calling of);

/* qn_callbacks_end - Restores the value before qn_callbacks_begin.
 *
 *   before   the result of qn_callbacks_begin */
void qn_callbacks_end(qn_calling before);

/* qn_callbacks_of - Returns the scheduler and model whose callback the calling thread runs. */
qn_calling qn_callbacks_of(void);

/* qn_check_no_callback - QN_ERR_INVALID in a callback of any scheduler: callbacks of two schedulers that wait for each
 * other would deadlock, like a callback that waits for its own scheduler. */
qn_status qn_check_no_callback(const char *function);

#endif
