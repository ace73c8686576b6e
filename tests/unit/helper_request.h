/* Requests of tests: one that is submitted, one that continues a session with tokens, and the counters of a scheduler
 * as a value. */
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

#define submit_request(scheduler, params) assert_ok(qn_scheduler_submit(scheduler, params, NULL))

/* For a scheduler with a thread, or one without any other. */
#define submit_and_wait(scheduler, params)                                                                             \
    do {                                                                                                               \
        submit_request(scheduler, params);                                                                             \
        qn_scheduler_wait(scheduler);                                                                                  \
    } while (0)

/* Zeros where the library gives none. */
static inline qn_scheduler_counters counters_of(qn_scheduler *scheduler)
{
    qn_scheduler_counters counters = QN_SCHEDULER_COUNTERS_INIT;
    (void)qn_scheduler_get_counters(scheduler, &counters);
    return counters;
}

#endif
