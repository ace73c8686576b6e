/* quern: many sequences of one model at once.
 *
 * A scheduler takes requests and runs them together: each step of the model has a row for every request that is being
 * decoded and pieces of the prompts of others, so that the weights are read once for all of them. Prefixes that earlier
 * requests had are not evaluated again.
 *
 *     qn_scheduler *scheduler;
 *     qn_scheduler_create(model, NULL, &scheduler);
 *     qn_request_params request = QN_REQUEST_PARAMS_INIT;
 *     request.text = "Once upon a time";
 *     request.on_text = print_text;
 *     request.on_end = count_down;
 *     qn_scheduler_submit(scheduler, &request, NULL);
 *     ...
 *     qn_scheduler_free(scheduler);
 *
 * What a request answers depends on the request alone: on its tokens, sampling parameters and seed. Other requests, the
 * order in which they come, prefix reuse and the memory that is left change its speed only. On the CPU that holds to
 * the bit; on a GPU up to the rounding of other batch sizes, or to the bit with qn_model_params.deterministic.
 *
 * Threads: all functions may be called from any thread, also from callbacks, except for these: in a callback of any
 * scheduler qn_scheduler_wait returns QN_ERR_INVALID, and qn_scheduler_free and, of the same model, qn_model_free do
 * nothing, for they would wait for that callback; qn_scheduler_step returns QN_ERR_INVALID in a callback of the same
 * scheduler. A callback that waits by other means for what a later callback brings hangs. In a forked child functions
 * that return a qn_status return QN_ERR_INVALID, and others do nothing (quern/quern.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUERN_SCHEDULER_H
#define QUERN_SCHEDULER_H

#include "quern/output.h"
#include "quern/quern.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qn_scheduler qn_scheduler;

typedef struct qn_scheduler_params {
    size_t size;            /* set by QN_SCHEDULER_PARAMS_INIT */
    const char *kv;         /* format of the KV cache, as in qn_session_params */
    uint32_t n_ctx;         /* most tokens of a request, prompt and answer; 0: as in qn_session_params */
    uint32_t max_sequences; /* most requests that are evaluated at the same time, at most max_rows; 0: 16 on the CPU, 64
                               on a GPU */
    /* Most requests that wait; 0: 1024. When so many do, those of a client that has fewer waiting than an equal part of
     * them are queued all the same, up to four times as many in all. */
    uint32_t max_queued;
    uint32_t max_rows; /* most rows of a step, up to 4096; 0: 128 on the CPU, 2048 on a GPU */
    /* A step that decodes takes at most about so long: prompts are evaluated in smaller pieces beside it. 0: about
     * twice as long as without prompts, or 8 ms. */
    double step_seconds;
    uint64_t prefix_states; /* bytes of recurrent states kept for reuse; 0: a quarter of the memory of sessions; ignored
                               without recurrent layers */
    /* bytes of host memory, at least 2 MiB, to which kept prefixes and what is set aside are moved when a GPU's memory
     * is full; 0: a quarter of what is available; ignored on the CPU */
    uint64_t prefix_host;
    bool no_prefix_host;  /* drop them instead */
    bool no_prefix_cache; /* evaluate every prompt from its beginning */
    bool no_thread;       /* the caller runs the steps, with qn_scheduler_step */
    bool run_ahead; /* with no_thread, on a GPU: a step may be in flight between the calls of qn_scheduler_step, until
                       one is idle; sessions of the model wait for it, so that the caller must not use any between them
                     */
    bool prompts_first; /* decode nothing while a prompt is being evaluated, for benchmarks */
    qn_log_fn on_log;   /* reports a cache format that differs from `kv`, from qn_scheduler_create; NULL: none */
    void *user;         /* passed to on_log */
} qn_scheduler_params;
#define QN_SCHEDULER_PARAMS_INIT QN_INIT(qn_scheduler_params)

/* qn_scheduler_create - a scheduler. Unless no_thread is set it has two threads of its own: one runs steps while there
 * are requests, the other calls the requests' callbacks.
 *
 *   model    must outlive the scheduler; sessions of the same model may be used at the same time
 *   params   NULL for the defaults
 *   out      free it with qn_scheduler_free
 *
 * Sequences take their memory from that of the model's sessions (qn_model_params.memory), page by page. Prefixes of
 * requests that have ended stay in it until another sequence of the model needs it.
 *
 * QN_ERR_INVALID       a value is outside its range, or the model was loaded with vocab_only
 * QN_ERR_UNSUPPORTED   unknown cache format
 * QN_ERR_MEMORY        not enough memory */
QN_API qn_status qn_scheduler_create(qn_model *model, const qn_scheduler_params *params, qn_scheduler **out);

/* qn_scheduler_free - cancel all requests, make their final calls and free the scheduler. NULL is allowed. From a
 * callback, and in a forked child, it does nothing, and qn_error_text says so. */
QN_API void qn_scheduler_free(qn_scheduler *scheduler);

/* ---- Requests ---- */

/* The request that was refused. */
typedef struct qn_submit_refusal {
    size_t size;     /* set by QN_SUBMIT_REFUSAL_INIT */
    size_t index;    /* of the request */
    size_t n_prompt; /* with QN_ERR_CONTEXT: the tokens of its prompt */
} qn_submit_refusal;
#define QN_SUBMIT_REFUSAL_INIT QN_INIT(qn_submit_refusal)

/* qn_scheduler_submit_all - queue n requests of one client, such as the choices of an answer: all of them or none.
 * Everything that params point to is copied, `user` aside. Does not wait for a step.
 *
 *   params    [n] all of one size. What one points to as the one before it does, with the same pointer and length, is
 *             checked, tokenised, compiled and kept once: its prompt with its marks; its stop strings and tokens, bias
 *             and scope; and, with the same prompt, its grammar and trigger
 *   ids       [n] written before any callback: numbers of the requests for qn_scheduler_cancel, never used twice; NULL
 *             is allowed
 *   refusal   of an error; NULL is allowed
 *
 * QN_ERR_INVALID       no prompt, more than one, an id outside the vocabulary, or a value outside its range; on_event
 *                      with on_text, tools without on_event or with a conversation
 * QN_ERR_CONTEXT       the prompt does not fit in n_ctx
 * QN_ERR_UNSUPPORTED   text or a grammar is given or text is needed, and the model has no supported tokeniser or chat
 *                      format; on_event with tools, which the chat template does not have, or whose calls cannot be
 *                      parsed back
 * QN_ERR_BUSY          the queue is full, or on_memory returned false
 * QN_ERR_MEMORY        not enough memory
 *
 * After an error no callback is called. */
QN_API qn_status qn_scheduler_submit_all(qn_scheduler *scheduler, const qn_request_params *params, size_t n,
                                         uint64_t *ids, qn_submit_refusal *refusal);

/* qn_scheduler_submit - queue one request. */
QN_API qn_status qn_scheduler_submit(qn_scheduler *scheduler, const qn_request_params *params, uint64_t *id);

/* qn_scheduler_check_room - whether n more requests of a client could be queued now: QN_ERR_BUSY if they could not. */
QN_API qn_status qn_scheduler_check_room(qn_scheduler *scheduler, const char *client, size_t n);

/* qn_scheduler_cancel - end a request before its next token. Nothing happens if it has ended. */
QN_API void qn_scheduler_cancel(qn_scheduler *scheduler, uint64_t id);

/* qn_scheduler_close - requests begin no more, so that a scheduler with many in its queue has none soon: those of a
 * submission of which none has begun end with QN_FINISH_WITHDRAWN, also those that come later; the others are
 * completed. A scheduler in which none has ever begun lets the first begin. With `closed` false it is open again. */
QN_API void qn_scheduler_close(qn_scheduler *scheduler, bool closed);

/* qn_scheduler_step - with no_thread: run one step and the callbacks that it causes; on a GPU some of them are called
 * by the next step, before one that is idle. By one thread at a time. Sets *idle to whether there was nothing to do.
 * QN_ERR_INVALID if the scheduler has a thread, or in one of its callbacks. */
QN_API qn_status qn_scheduler_step(qn_scheduler *scheduler, bool *idle);

/* qn_scheduler_wait - wait until all requests have ended and their last callbacks have returned; with no_thread, run
 * steps until then. QN_ERR_INVALID from a callback. */
QN_API qn_status qn_scheduler_wait(qn_scheduler *scheduler);

typedef struct qn_scheduler_counters {
    size_t size; /* set by QN_SCHEDULER_COUNTERS_INIT */
    /* Now. */
    uint32_t queued, running;              /* requests that wait, those set aside included; that are evaluated */
    uint64_t memory_bytes, memory_limit;   /* of all sequences of the model and of kept prefixes; what they may take */
    uint64_t prefix_tokens, prefix_states; /* in kept prefixes */
    uint64_t prefix_host_bytes;            /* of these, in host memory */
    /* Since the scheduler was created. */
    uint64_t submitted, finished, set_aside, yielded; /* yielded: how often a place was given up for another client's
                                                         request */
    uint64_t prompt_tokens, reused_tokens, generated_tokens; /* of admitted requests; reused: not evaluated */
    uint64_t prefix_hits;                                    /* requests of which a prefix was found */
    uint64_t steps, rows;
    uint64_t ahead_steps;                      /* of these, launched while the one before was in flight; on a GPU */
    double step_seconds, longest_step_seconds; /* sum, and the longest */
    double idle_seconds;                       /* of a GPU, from the end of a step until the next one is launched */
} qn_scheduler_counters;
#define QN_SCHEDULER_COUNTERS_INIT QN_INIT(qn_scheduler_counters)

/* qn_scheduler_get_counters - a consistent copy, as of the last step that has ended.
 *
 *   counters   its size is set; all else is written
 *
 * QN_ERR_INVALID in a forked child, and for a size of 0; nothing is written then. */
QN_API qn_status qn_scheduler_get_counters(qn_scheduler *scheduler, qn_scheduler_counters *counters);

#ifdef __cplusplus
}
#endif
#endif
