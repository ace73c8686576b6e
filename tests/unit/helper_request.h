/* Requests of tests: one that continues a session with tokens, and the counters of a scheduler as a value. */
#ifndef QN_HELPER_REQUEST_H
#define QN_HELPER_REQUEST_H

#include "quern/scheduler.h"

/* qn_generate with params whose prompt is `tokens`. */
static inline qn_status generate_from(qn_session *session, const qn_token *tokens, size_t n,
                                      const qn_request_params *params, qn_request_result *result)
{
    qn_request_params own = *params;
    own.tokens = tokens;
    own.n_tokens = n;
    return qn_generate(session, &own, result);
}

static inline qn_status generate_text(qn_session *session, const char *text, const qn_request_params *params,
                                      qn_request_result *result)
{
    qn_request_params own = *params;
    own.text = text;
    return qn_generate(session, &own, result);
}

/* Zeros where the library gives none. */
static inline qn_scheduler_counters counters_of(qn_scheduler *scheduler)
{
    qn_scheduler_counters counters = QN_SCHEDULER_COUNTERS_INIT;
    (void)qn_scheduler_get_counters(scheduler, &counters);
    return counters;
}

#endif
