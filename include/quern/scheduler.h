/* quern: evaluates many sequences of one model at once.
 *
 * A scheduler runs requests together: each step of the model has one row for every request being decoded, and pieces of
 * the prompts of others, so that all of them share one read of the weights. A prefix that an earlier request evaluated
 * is not evaluated again.
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
 * The answer to a request depends only on its tokens, sampling parameters and seed. Other requests, their order, prefix
 * reuse and free memory change only its speed. On the CPU answers are bit-identical. On a GPU they differ by the
 * rounding of different batch sizes, unless qn_model_params.deterministic is set.
 *
 * Threads: all functions may be called from any thread and from callbacks, with these exceptions. In a callback of any
 * scheduler, qn_scheduler_wait returns QN_ERR_INVALID, and qn_scheduler_free and qn_model_free of the same model do
 * nothing, because they would wait for that callback. In a callback of the same scheduler, qn_scheduler_step returns
 * QN_ERR_INVALID. A callback that waits for a later callback by other means deadlocks. In a forked child, functions
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
    /* Most requests that wait; 0: 1024. When the queue is full, a client with fewer waiting requests than an equal
     * share of max_queued can still queue more, up to four times max_queued in all. */
    uint32_t max_queued;
    uint32_t max_rows; /* most rows of a step, up to 4096; 0: 128 on the CPU, 256 with AMX, 2048 on a GPU */
    /* Approximate limit of the time of a step that decodes, in seconds: pieces of prompts in that step are made small
     * enough. 0: about twice the time of the step without prompts, or 8 ms. */
    double step_seconds;
    uint64_t prefix_states; /* bytes of recurrent states kept for reuse; 0: a quarter of the memory of sessions; ignored
                               without recurrent layers */
    /* Bytes of host memory, at least 2 MiB, to which kept prefixes and sequences that were set aside are moved when the
     * GPU's memory is full; 0: a quarter of the available memory; ignored on the CPU. */
    uint64_t prefix_host;
    bool no_prefix_host;  /* drop prefixes instead of moving them to host memory */
    bool no_prefix_cache; /* evaluate every prompt from its beginning */
    bool no_thread;       /* the caller runs the steps, with qn_scheduler_step */
    bool run_ahead; /* with no_thread, on a GPU: a step may stay in flight between calls of qn_scheduler_step, until a
                       call sets *idle. Sessions of the model wait for that step, so the caller must not use a session
                       between these calls, and one thread makes all of them */
    bool prompts_first; /* decode nothing while a prompt is being evaluated, for benchmarks */
    /* Reports a cache format that differs from `kv`, from qn_scheduler_create; and once, from the thread that runs
     * steps, if hardly any drafted token is accepted. NULL: none */
    qn_log_fn on_log;
    void *user;          /* passed to on_log */
    qn_draft_kind draft; /* of requests whose own is QN_DRAFT_AUTO */
} qn_scheduler_params;
#define QN_SCHEDULER_PARAMS_INIT QN_INIT(qn_scheduler_params)

/* qn_scheduler_create - Creates a scheduler. Unless no_thread is set it has three threads of its own: one runs steps
 * while there are requests, one makes masks of grammars, one calls the requests' callbacks.
 *
 *   model    must outlive the scheduler; sessions of the same model may be used at the same time
 *   params   NULL for the defaults
 *   out      free it with qn_scheduler_free
 *
 * Sequences use the memory of the model's sessions (qn_model_params.memory), page by page. Prefixes of ended requests
 * stay there until another sequence of the model needs the memory.
 *
 * QN_ERR_INVALID       a value is outside its range, or the model was loaded with vocab_only
 * QN_ERR_UNSUPPORTED   unknown cache format; a drafter that is not there
 * QN_ERR_MEMORY        not enough memory */
QN_API qn_status qn_scheduler_create(qn_model *model, const qn_scheduler_params *params, qn_scheduler **out);

/* qn_scheduler_free - Cancels all requests, calls their on_end and frees the scheduler. NULL is allowed. Does nothing
 * in a callback and in a forked child; qn_error_text then has the reason. */
QN_API void qn_scheduler_free(qn_scheduler *scheduler);

/* ---- Requests ---- */

/* The request for which qn_scheduler_submit_all failed. */
typedef struct qn_submit_refusal {
    size_t size;     /* set by QN_SUBMIT_REFUSAL_INIT */
    size_t index;    /* of the request in `params` */
    size_t n_prompt; /* with QN_ERR_CONTEXT: the number of tokens in its prompt */
} qn_submit_refusal;
#define QN_SUBMIT_REFUSAL_INIT QN_INIT(qn_submit_refusal)

/* qn_scheduler_submit_all - Queues n requests of one client, such as the choices of an answer: all of them or none.
 * Everything that params point to is copied, except `user`. Does not wait for a step.
 *
 *   params    [n] all of one size. Data that a request shares with the previous one, by the same pointer and length, is
 *             checked, tokenised, compiled and stored once: prompt and marks; stop strings, stop tokens, bias and
 *             scope; and, if the prompt is also shared, grammar and trigger
 *   ids       [n] ids for qn_scheduler_cancel, written before any callback and never reused; NULL is allowed
 *   refusal   written on an error: the request that was refused. The caller sets its size; NULL is allowed
 *
 * QN_ERR_INVALID       no prompt, more than one, an id outside the vocabulary, or a value outside its range; on_event
 *                      with on_text, tools without on_event or with a conversation
 * QN_ERR_CONTEXT       the prompt does not fit in n_ctx
 * QN_ERR_UNSUPPORTED   text or a grammar is given, or text is needed, and the model has no supported tokeniser or chat
 *                      format; or on_event with tools, and the chat template does not support tools or its calls cannot
 *                      be parsed back; or a drafter that is not there
 * QN_ERR_BUSY          the queue is full, or on_memory returned false
 * QN_ERR_MEMORY        not enough memory
 *
 * After an error no callback is called. */
QN_API qn_status qn_scheduler_submit_all(qn_scheduler *scheduler, const qn_request_params *params, size_t n,
                                         uint64_t *ids, qn_submit_refusal *refusal);

/* qn_scheduler_submit - Queues one request, as qn_scheduler_submit_all with n = 1. */
QN_API qn_status qn_scheduler_submit(qn_scheduler *scheduler, const qn_request_params *params, uint64_t *id);

/* qn_scheduler_check_room - Returns QN_OK if n more requests of a client could be queued now, else QN_ERR_BUSY. */
QN_API qn_status qn_scheduler_check_room(qn_scheduler *scheduler, const char *client, size_t n);

/* qn_scheduler_cancel - Ends a request before its next token. Does nothing if the request has ended. */
QN_API void qn_scheduler_cancel(qn_scheduler *scheduler, uint64_t id);

/* qn_scheduler_close - Closes or reopens a scheduler. While it is closed, no new submission begins, so that it drains
 * soon: queued and later requests end with QN_FINISH_WITHDRAWN. If one request of a submission has begun, all requests
 * of that submission are completed. A scheduler in which no request has ever begun still begins the first.
 *
 *   closed   true: close; false: reopen */
QN_API void qn_scheduler_close(qn_scheduler *scheduler, bool closed);

/* qn_scheduler_step - With no_thread: runs one step and the callbacks that it causes. On a GPU, the next call may run
 * some of these callbacks, but none is left when a call is idle. One thread at a time may call.
 *
 *   idle   set to true if there was nothing to do
 *
 * QN_ERR_INVALID if the scheduler has a thread, or in one of its callbacks. */
QN_API qn_status qn_scheduler_step(qn_scheduler *scheduler, bool *idle);

/* qn_scheduler_wait - Waits until all requests have ended and their last callbacks have returned; with no_thread, runs
 * steps until then. QN_ERR_INVALID in a callback. */
QN_API qn_status qn_scheduler_wait(qn_scheduler *scheduler);

typedef struct qn_scheduler_counters {
    size_t size; /* set by QN_SCHEDULER_COUNTERS_INIT */
    /* Now. */
    uint32_t queued, running; /* queued: requests that wait, including those set aside; running: requests that are
                                 evaluated */
    uint64_t memory_bytes, memory_limit;   /* memory of all sequences of the model and of kept prefixes; its limit */
    uint64_t prefix_tokens, prefix_states; /* tokens and recurrent states in kept prefixes */
    uint64_t prefix_host_bytes;            /* of kept prefixes, in host memory */
    /* Since the scheduler was created. */
    uint64_t submitted, finished, set_aside, yielded; /* yielded: how often a request gave up its place to another
                                                         client's request */
    uint64_t prompt_tokens, reused_tokens, generated_tokens; /* of admitted requests; reused: prompt tokens not
                                                                evaluated */
    uint64_t prefix_hits;                                    /* requests with a prefix in the cache */
    uint64_t steps, rows;
    uint64_t ahead_steps; /* of `steps`, those launched while the previous step was in flight; on a GPU */
    double step_seconds, longest_step_seconds; /* sum of all steps; the longest step */
    double idle_seconds;                       /* time a GPU was idle from the end of a step until the next launch */
    uint64_t drafted_tokens, accepted_tokens;  /* rows of tokens that drafters proposed; of these, those that were
                                                  accepted */
    uint64_t draft_passes; /* steps of a draft head or of a draft model, before steps of the model */
    double draft_seconds;  /* sum of all of them, with the wait for the model; a part of step_seconds */
} qn_scheduler_counters;
#define QN_SCHEDULER_COUNTERS_INIT QN_INIT(qn_scheduler_counters)

/* qn_scheduler_get_counters - Returns a consistent copy of the counters, as of the last finished step.
 *
 *   counters   the caller sets its size; all other members are written
 *
 * QN_ERR_INVALID in a forked child and for a size of 0; nothing is written then. */
QN_API qn_status qn_scheduler_get_counters(qn_scheduler *scheduler, qn_scheduler_counters *counters);

/* A request that is being evaluated, as of the last step. */
typedef struct qn_place {
    size_t size;     /* set by QN_PLACE_INIT */
    uint32_t index;  /* below max_sequences; stays the same until the request ends or gives its place up */
    uint64_t id;     /* of qn_scheduler_submit */
    char client[64]; /* the beginning of its name */
    size_t n_prompt, n_reused, n_evaluated; /* tokens of the prompt; of these, found in the cache; of these, evaluated
                                               or found so far */
    size_t n_generated;
    int64_t max_tokens; /* as in the request; < 0: no limit */
} qn_place;
#define QN_PLACE_INIT QN_INIT(qn_place)

/* qn_scheduler_get_places - Lists the requests that are being evaluated, in the order of their places.
 *
 *   places   [most] the caller sets the size of the first, which is that of all; the others are written
 *   most     at most this number are written
 *   n        the number that was written
 *
 * QN_ERR_INVALID in a forked child and for a size of 0. */
QN_API qn_status qn_scheduler_get_places(qn_scheduler *scheduler, qn_place *places, size_t most, size_t *n);

#ifdef __cplusplus
}
#endif
#endif
