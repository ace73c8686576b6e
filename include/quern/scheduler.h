/* quern: many sequences of one model at once.
 *
 * A scheduler takes requests and runs them together: each step of the model has a row for every request that is being decoded
 * and pieces of the prompts of others, so that the weights are read once for all of them. Prefixes that earlier requests had
 * are not evaluated again.
 *
 *     qn_scheduler *scheduler;
 *     qn_scheduler_create(model, NULL, &scheduler);
 *     qn_request_params request = qn_request_defaults();
 *     request.text = "Once upon a time";
 *     request.on_text = print_text;
 *     request.on_end = count_down;
 *     qn_scheduler_submit(scheduler, &request, NULL);
 *     ...
 *     qn_scheduler_free(scheduler);
 *
 * What a request answers depends on the request alone: on its tokens, sampling parameters and seed. Other requests, the order
 * in which they come, prefix reuse and the memory that is left change its speed only. On the CPU that holds to the bit; on a
 * GPU up to the rounding of other batch sizes, or to the bit with qn_model_params.deterministic.
 *
 * Threads: all functions may be called from any thread, also from callbacks, except for these: in a callback of any scheduler
 * qn_scheduler_wait returns QN_ERR_INVALID, and qn_scheduler_free and, of the same model, qn_model_free do nothing, for they
 * would wait for that callback; qn_scheduler_step returns QN_ERR_INVALID in a callback of the same scheduler. A callback that
 * waits by other means for what a later callback brings hangs. In a forked child functions that return a qn_status return
 * QN_ERR_INVALID, and others do nothing (quern/quern.h).
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
    const char *kv; /* format of the KV cache, as in qn_session_params */
    uint32_t n_ctx; /* most tokens of a request, prompt and answer; 0: the context length used in training */
    uint32_t
        max_sequences; /* most requests that are evaluated at the same time, at most max_rows; 0: 16 on the CPU, 64 on a GPU */
    /* Most requests that wait; 0: 1024. When so many do, those of a client that has fewer waiting than an equal part of them are
     * queued all the same, up to four times as many in all. */
    uint32_t max_queued;
    uint32_t max_rows; /* most rows of a step, up to 4096; 0: 128 on the CPU, 2048 on a GPU */
    /* A step that decodes takes at most about so long: prompts are evaluated in smaller pieces beside it. 0: about twice as
     * long as without prompts, or 8 ms. */
    double step_seconds;
    uint64_t prefix_states; /* bytes of recurrent states kept for reuse; 0: a quarter of the memory of sessions; ignored
                               without recurrent layers */
    uint64_t prefix_host;   /* bytes of host memory, at least 2 MiB, to which kept prefixes and what is set aside are moved
                               when a GPU's memory is full; 0: a quarter of what is available; ignored on the CPU */
    bool no_prefix_host;    /* drop them instead */
    bool no_prefix_cache;   /* evaluate every prompt from its beginning */
    bool no_thread;         /* the caller runs the steps, with qn_scheduler_step */
    bool run_ahead;     /* with no_thread, on a GPU: a step may be in flight between the calls of qn_scheduler_step, until one
                               is idle; sessions of the model wait for it, so that the caller must not use any between them */
    bool prompts_first; /* decode nothing while a prompt is being evaluated, for benchmarks */
    qn_log_fn on_log;   /* reports a cache format that differs from `kv`, from qn_scheduler_create; NULL: none */
    void *user;         /* passed to on_log */
} qn_scheduler_params;

/* qn_scheduler_create - a scheduler. Unless no_thread is set it has two threads of its own: one runs steps while there are
 * requests, the other calls the requests' callbacks.
 *
 *   model    must outlive the scheduler; sessions of the same model may be used at the same time
 *   params   NULL for the defaults, which are all zero
 *   out      free it with qn_scheduler_free
 *
 * Sequences take their memory from that of the model's sessions (qn_model_params.memory), page by page. Prefixes of requests
 * that have ended stay in it until another sequence of the model needs it.
 *
 * QN_ERR_INVALID       a value is outside its range, or the model was loaded with vocab_only
 * QN_ERR_UNSUPPORTED   unknown cache format
 * QN_ERR_MEMORY        not enough memory */
QN_API qn_status qn_scheduler_create(qn_model *model, const qn_scheduler_params *params, qn_scheduler **out);

/* qn_scheduler_free - cancel all requests, make their final calls and free the scheduler. NULL is allowed. From a callback, and
 * in a forked child, it does nothing, and qn_error_text says so. */
QN_API void qn_scheduler_free(qn_scheduler *scheduler);

/* ---- Requests ---- */

/* Why a request ended. */
typedef enum qn_finish {
    QN_FINISH_STOP,      /* an end token, a stop token or a stop string */
    QN_FINISH_LENGTH,    /* max_tokens tokens were generated, or the context is full */
    QN_FINISH_CANCELLED, /* qn_scheduler_cancel, a callback that returned false, or qn_scheduler_free */
    QN_FINISH_DEADLINE,  /* the deadline has passed */
    QN_FINISH_ERROR,     /* `status` and `error` say what */
    QN_FINISH_WITHDRAWN  /* it had not begun when the scheduler was closed (qn_scheduler_close) */
} qn_finish;

typedef struct qn_request_result {
    qn_finish finish;
    qn_status status;     /* QN_OK unless finish is QN_FINISH_ERROR */
    const char *error;    /* its text, "" else; valid during the call */
    bool is_stop_string;  /* finish is QN_FINISH_STOP because of a stop string */
    size_t stop_string;   /* with is_stop_string: its index in `stop` */
    size_t n_prompt;      /* tokens of the prompt */
    size_t n_reused;      /* of these, tokens that were not evaluated, because a prefix was found */
    size_t n_generated;   /* tokens generated, an end token included */
    uint32_t n_set_aside; /* how often it gave up its memory for other requests; at most 2 */
    uint32_t n_yielded;   /* how often it gave up its place for a request of another client */
    double queued_seconds, prompt_seconds, generate_seconds; /* until admitted; until the first token is sampled; the rest */
    size_t
        n_jumped; /* of n_generated, tokens of forced text that took no step of their own; a callback that returned false may have
                        had fewer */
} qn_request_result;

typedef struct qn_request_params {
    /* The prompt: tokens, or text, or messages in the model's chat format with the assistant's header at the end, or a
     * conversation as qn_conversation_tokens takes it, with tools and reasoning where wanted. */
    const qn_token *tokens; /* [n_tokens] */
    size_t n_tokens;
    const char *text;                /* zero-terminated UTF-8; special tokens in it are parsed */
    const qn_chat_message *messages; /* [n_messages] */
    size_t n_messages;
    const char *conversation; /* [conversation_length] JSON */
    size_t conversation_length;

    qn_sampling sampling;
    const qn_logit_bias *bias; /* [n_bias] added to the logits; values of a token that occurs twice are added */
    size_t n_bias;
    int n_logprobs;          /* 0 to QN_MAX_LOGPROBS: on_token gets log probabilities, and so many of the most likely tokens;
                       -1: none */
    int64_t max_tokens;      /* tokens to generate; < 0: no limit but the context */
    int64_t min_tokens;      /* the first tokens, which do not end the request, as in qn_generate_params */
    bool ignore_end;         /* continue after end tokens; a grammar begins again after one */
    const char *const *stop; /* [n_stop] stop strings, UTF-8, not empty */
    size_t n_stop;           /* with on_event they are found in content, not in reasoning and calls */
    const qn_token *stop_tokens; /* [n_stop_tokens] tokens that end the request as end tokens do, also with ignore_end */
    size_t n_stop_tokens;
    bool show_special;   /* on_text and on_event receive the names of special tokens */
    qn_grammar *grammar; /* as in qn_generate_params; the request keeps a reference */
    qn_grammar_trigger grammar_trigger;

    /* With on_event: tokens of reasoning after which it is ended by the template's words ("\n</think>\n\n"); < 0: no limit. The
     * words are not sampled, but count as generated: on_token gets their tokens without log probabilities, mask and accepts
     * find them in `answer`. */
    int64_t reasoning_budget;

    /* Lengths of the prompt at which another request may continue differently, such as the ends of messages: recurrent layers
     * keep their state at the last multiple of 64 before them. Only with tokens: for messages the library sets them. */
    const uint32_t *marks; /* [n_marks], ascending, at most n_tokens */
    size_t n_marks;
    const char *scope; /* prefixes are shared within a scope only; NULL: the scope "" */

    /* Who asks, such as a user or an address; NULL: the client "". Clients share the scheduler evenly: places among the sequences
     * of a step, rows of prompts, and the queue. The requests of one delay those of another by the end of a step, however many they
     * are; within a client they are admitted by priority. */
    const char *client;

    int priority;    /* requests of higher priority are admitted first; waiting raises it by one each second */
    double deadline; /* seconds from now after which the request ends; 0: none */

    /* Which tokens may follow, for answers that a grammar or a schema describes. `answer` is [n] tokens, all that were
     * generated so far.
     *   mask      sets the bits of the tokens that may follow: bit t % 32 of allowed[t / 32]. allowed is
     *             [(n_vocab + 31) / 32] words that are zero. If no token of a finite logit is allowed, the request ends with
     *             an error. NULL: all tokens are allowed
     *   accepts   whether `token`, which was sampled from all tokens, may follow. Only if it may not, mask is called, and a
     *             token is sampled from the same logits under the mask. NULL: mask is called for each token. Not without mask
     * End tokens are asked about like others. Not together with a grammar, which needs neither.
     *
     * With accepts most tokens cost one question and no mask. Greedy answers are the same with it and without. Sampled ones
     * follow the same distribution if top_k, top_p and min_p are off; else these filters see the whole vocabulary first, and
     * that of the mask only after a rejection.
     *
     * accepts is called by the thread that runs steps, while all requests and sessions of the model wait: it must return in
     * microseconds, must not block, and must not call functions of the library. mask is called as the callbacks below, by the
     * same thread, after all of those of earlier tokens. While it runs the steps of other requests go on, so it may take
     * longer than a step; but other callbacks wait for it. The two are never called at the same time for one request; accepts
     * may be while on_token, on_text or on_event is. They may keep a state for the tokens that they have seen: a token that
     * was accepted follows, as does one of the mask, and n never decreases. */
    bool (*accepts)(void *user, const qn_token *answer, size_t n, qn_token token);
    void (*mask)(void *user, const qn_token *answer, size_t n, uint32_t *allowed);

    /* Callbacks. They are called in order, by one thread at a time, and never between the rows of a step: a slow callback
     * delays no request's tokens, but may delay the callbacks of others. Any may be NULL.
     *   on_token   each generated token, before its text. logprobs is NULL with n_logprobs -1, else valid during the call
     *   on_text    text, in complete UTF-8 characters, as in qn_generate_params
     *   on_event   in place of on_text, with a conversation: reasoning, content and tool calls as they come (quern/output.h,
     *              docs/tool-calls.md). Without tools in the conversation a call is content. A call that has begun ends before
     *              on_end, unless the request was cancelled by a callback or ended with an error
     *   on_end     exactly once, as the last call. Afterwards the scheduler keeps nothing of the request
     * on_token, on_text and on_event return false to cancel the request: only on_end is called after that, with what they had
     * received. */
    bool (*on_token)(void *user, qn_token token, const qn_logprobs *logprobs);
    bool (*on_text)(void *user, const char *text, size_t length);
    bool (*on_event)(void *user, const qn_output_event *event);
    void (*on_end)(void *user, const qn_request_result *result);

    /* Called while the request is submitted, by that thread: the bytes of memory that it keeps until it has ended, for its prompt,
     * lists, tools and grammar, without what an earlier one of its submission keeps for it, what it generates, and its pages. False:
     * it may not, and the submission is refused with QN_ERR_BUSY. NULL: not called. */
    bool (*on_memory)(void *user, size_t bytes);
    void *user;

    qn_jump_forward jump_forward; /* as in qn_generate_params; not with log probabilities, which need each token's own step */
} qn_request_params;

/* qn_request_defaults - no prompt, qn_sampling_defaults, no log probabilities, no limits, no callbacks. */
QN_API qn_request_params qn_request_defaults(void);

/* What was refused. */
typedef struct qn_submit_refusal {
    size_t index;    /* of the request */
    size_t n_prompt; /* with QN_ERR_CONTEXT: the tokens of its prompt */
} qn_submit_refusal;

/* qn_scheduler_submit_all - queue n requests of one client, such as the choices of an answer: all of them or none. Everything that
 * params point to is copied, `user` aside. Does not wait for a step.
 *
 *   params    [n] what one points to as the one before it does, with the same pointer and length, is checked, tokenised, compiled and
 *             kept once: its prompt with its marks; its stop strings and tokens, bias and scope; and, with the same prompt, its
 *             grammar and trigger
 *   ids       [n] written before any callback: numbers of the requests for qn_scheduler_cancel, never used twice; NULL is allowed
 *   refusal   of an error; NULL is allowed
 *
 * QN_ERR_INVALID       no prompt, more than one, an id outside the vocabulary, or a value outside its range; on_event with
 *                      on_text, or without a conversation
 * QN_ERR_CONTEXT       the prompt does not fit in n_ctx
 * QN_ERR_UNSUPPORTED   text or a grammar is given or text is needed, and the model has no supported tokeniser or chat format;
 *                      on_event with tools, which the chat template does not have, or whose calls cannot be parsed back
 * QN_ERR_BUSY          the queue is full, or on_memory returned false
 * QN_ERR_MEMORY        not enough memory
 *
 * After an error no callback is called. */
QN_API qn_status qn_scheduler_submit_all(qn_scheduler *scheduler, const qn_request_params *params, size_t n, uint64_t *ids,
                                         qn_submit_refusal *refusal);

/* qn_scheduler_submit - queue one request. */
QN_API qn_status qn_scheduler_submit(qn_scheduler *scheduler, const qn_request_params *params, uint64_t *id);

/* qn_scheduler_check_room - whether n more requests of a client could be queued now: QN_ERR_BUSY if they could not. */
QN_API qn_status qn_scheduler_check_room(qn_scheduler *scheduler, const char *client, size_t n);

/* qn_scheduler_cancel - end a request before its next token. Nothing happens if it has ended. */
QN_API void qn_scheduler_cancel(qn_scheduler *scheduler, uint64_t id);

/* qn_scheduler_close - requests begin no more, so that a scheduler with many in its queue has none soon: those of a submission
 * of which none has begun end with QN_FINISH_WITHDRAWN, also those that come later; the others are completed. A scheduler in
 * which none has ever begun lets the first begin. With `closed` false it is open again. */
QN_API void qn_scheduler_close(qn_scheduler *scheduler, bool closed);

/* qn_scheduler_step - with no_thread: run one step and the callbacks that it causes; on a GPU some of them are called by the
 * next step, before one that is idle. By one thread at a time. Sets *idle to whether there was nothing to do. QN_ERR_INVALID
 * if the scheduler has a thread, or in one of its callbacks. */
QN_API qn_status qn_scheduler_step(qn_scheduler *scheduler, bool *idle);

/* qn_scheduler_wait - wait until all requests have ended and their last callbacks have returned; with no_thread, run steps
 * until then. QN_ERR_INVALID from a callback. */
QN_API qn_status qn_scheduler_wait(qn_scheduler *scheduler);

typedef struct qn_scheduler_counters {
    /* Now. */
    uint32_t queued, running;              /* requests that wait, those set aside included; that are evaluated */
    uint64_t memory_bytes, memory_limit;   /* of all sequences of the model and of kept prefixes; what they may take */
    uint64_t prefix_tokens, prefix_states; /* in kept prefixes */
    uint64_t prefix_host_bytes;            /* of these, in host memory */
    /* Since the scheduler was created. */
    uint64_t submitted, finished, set_aside, yielded; /* yielded: how often a place was given up for another client's request */
    uint64_t prompt_tokens, reused_tokens, generated_tokens; /* of admitted requests; reused: not evaluated */
    uint64_t prefix_hits;                                    /* requests of which a prefix was found */
    uint64_t steps, rows;
    uint64_t ahead_steps;                      /* of these, launched while the one before was in flight; on a GPU */
    double step_seconds, longest_step_seconds; /* sum, and the longest */
    double idle_seconds;                       /* of a GPU, from the end of a step until the next one is launched */
} qn_scheduler_counters;

/* qn_scheduler_get_counters - a consistent copy, as of the last step that has ended; zeros in a forked child. */
QN_API qn_scheduler_counters qn_scheduler_get_counters(qn_scheduler *scheduler);

#ifdef __cplusplus
}
#endif
#endif
