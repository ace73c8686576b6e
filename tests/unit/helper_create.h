/* Models, sessions and schedulers with parameters whose size is set: create_session(model, &SESSION_PARAMS(.n_ctx =
 * 64)). What cannot be created fails the test, at the line of the call. */
#ifndef QN_TESTS_HELPER_CREATE_H
#define QN_TESTS_HELPER_CREATE_H

#include "helper_assert.h"

#include "quern/scheduler.h"

#define MODEL_PARAMS(...) ((qn_model_params){ .size = sizeof(qn_model_params), __VA_ARGS__ })
#define CPU_MODEL(...) MODEL_PARAMS(.device = "cpu", __VA_ARGS__)
#define SESSION_PARAMS(...) ((qn_session_params){ .size = sizeof(qn_session_params), __VA_ARGS__ })
#define SCHEDULER_PARAMS(...) ((qn_scheduler_params){ .size = sizeof(qn_scheduler_params), __VA_ARGS__ })
#define QUANTIZE_PARAMS(...) ((qn_quantize_params){ .size = sizeof(qn_quantize_params), __VA_ARGS__ })
#define SAMPLING(...) ((qn_sampling){ .size = sizeof(qn_sampling), __VA_ARGS__ })

/* Parameters that are NULL are the defaults of the library. */
#define create_model(path, params) created_model(path, params, __FILE__, __LINE__)
#define create_session(model, params) created_session(model, params, __FILE__, __LINE__)
#define create_scheduler(model, params) created_scheduler(model, params, __FILE__, __LINE__)

static inline qn_model *created_model(const char *path, const qn_model_params *params, const char *file, int line)
{
    qn_model *model = NULL;
    labelled_ok(qn_model_load(path, params, &model), "qn_model_load", file, line);
    return model;
}

static inline qn_session *created_session(qn_model *model, const qn_session_params *params, const char *file, int line)
{
    qn_session *session = NULL;
    labelled_ok(qn_session_create(model, params, &session), "qn_session_create", file, line);
    return session;
}

static inline qn_scheduler *created_scheduler(qn_model *model, const qn_scheduler_params *params, const char *file,
                                              int line)
{
    qn_scheduler *scheduler = NULL;
    labelled_ok(qn_scheduler_create(model, params, &scheduler), "qn_scheduler_create", file, line);
    return scheduler;
}

/* Evaluates tokens of a session, without logits. */
#define append_tokens(session, tokens, n) assert_ok(qn_session_eval(session, tokens, n, QN_LOGITS_NONE, NULL))

#endif
