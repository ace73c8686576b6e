/* Internal declarations of the scheduler.
 *
 *   scheduler.c   creation, threads, public functions
 *   input.c       prompts and lists, shared by requests
 *   request.c     creation of requests
 *   clients.c     clients, their queues and shares
 *   places.c      which requests are being evaluated, for observers
 *   admit.c       chooses the requests to evaluate next, and the requests that give up a place
 *   queue.c       end of sequences
 *   step.c        rows of a step
 *   pass.c        draft steps, before a step
 *   flight.c      steps on the device, and their tokens
 *   score.c       log probabilities of prompts
 *   embed.c       embeddings of prompts
 *   draft.c       drafts of a request
 *   draft_model.c proposals of the draft model, for all requests of a step
 *   sample.c      parameters of sampling
 *   masks.c       order in which masks are made
 *   output.c      text and callbacks
 *   generate.c    qn_generate: a scheduler of one request, in a session's memory
 *
 * A request is a list of tokens (the prompt and the sampled tokens) and a sequence that holds the first of them. A step
 * evaluates some of the remaining tokens, and samples another token if it evaluates the last. So a prompt, a token
 * being decoded and a sequence that has lost its memory are handled alike: as tokens that the sequence does not hold
 * yet.
 *
 * Threads. The step thread runs steps, the delivery thread calls callbacks, the mask thread makes the masks of
 * grammars. With no_thread and in qn_generate there are no such threads: the caller of qn_scheduler_step or
 * qn_generate, one at a time, does the work of all three. "Step thread." after a function: only that thread calls it,
 * and holds neither lock. Members marked "Step" are used by that thread only.
 *
 * Locks. `lock` protects the clients, the queues and the counters; `events_lock` protects events and masks. Neither is
 * held during a step, a callback or the making of a mask.
 *
 * Life of a request. It belongs to the submitting thread until qn_clients_enqueue, then to the step thread until its
 * last event is queued, then to the delivery thread, which frees it after its last callback. */
#ifndef QN_SCHEDULER_SCHEDULER_H
#define QN_SCHEDULER_SCHEDULER_H

#include "scheduler/draft.h"
#include "engine/events.h"
#include "engine/pooling.h"
#include "engine/spec/drafting.h"
#include "scheduler/step_time.h"
#include "quern/scheduler.h"
#include "text/stop.h"
#include "text/utf8_stream.h"

/* How often a request may give up its memory. */
enum { QN_MAX_SET_ASIDE = 2 };

/* Most drafted rows of a step. */
enum { QN_STEP_DRAFTED = 64 };

/* Most scored rows of a step: rows of prompts whose log probabilities are computed. A GPU's pieces of fixed size fit.
 */
enum { QN_STEP_SCORED = 64 };

typedef struct qn_request qn_request;

/* State of a qn_generate call (generate.c), on its stack. Used by the calling thread only. */
typedef struct qn_generation {
    qn_session *session;
    uint32_t n_before; /* tokens in the session before the call */
    size_t n_prompt;   /* n_before and the tokens of the prompt */
    size_t n_passed;   /* tokens of the answer that callbacks have received */
    bool has_ended;
    qn_request_result result;
    char error[QN_ERROR_TEXT_MAX];
} qn_generation;

/* ---- Prompts and lists shared by requests ---- */

/* A tokenised prompt. Constant after creation, reference-counted, and shared by requests of one submission with the
 * same prompt. Any thread may add and drop references; the last one frees it. */
typedef struct qn_input_prompt {
    atomic_uint n_users;
    qn_token *tokens; /* [n_tokens] */
    size_t n_tokens;
    uint32_t *keep; /* [n_keep], ascending: positions whose recurrent states are kept; multiples of QN_PAGE above 0 */
    size_t n_keep;
    qn_output_params output; /* for a conversation whose answer is parsed */
    qn_output_tools *tools;  /* of `output`, or NULL */
} qn_input_prompt;

/* The other lists of a request. Constant after creation, reference-counted and shared like a prompt. */
typedef struct qn_input_lists {
    atomic_uint n_users;
    qn_stop_strings *stop;
    qn_logit_bias *bias; /* [n_bias + n_held]: qn_held_biases */
    size_t n_bias, n_held;
    qn_token *stop_tokens;
    size_t n_stop_tokens;
    char *scope;
} qn_input_lists;

/* ---- Clients ---- */

/* A client with requests; freed with its last request. s->lock protects the members up to `rows`, except `name`, which
 * is constant. */
typedef struct qn_client {
    struct qn_client *next; /* in order of arrival */
    char *name;
    uint32_t n_requests; /* requests not yet freed */
    qn_request *queue;
    uint32_t n_queued, n_running; /* n_running is changed by the step thread only, which reads it without the lock */
    /* Rows of steps that the client has used. A client that had no requests starts at the lowest count of the others.
     * The client with the lowest count is served first. */
    uint64_t rows; /* changed by the step thread only */

    /* Step. */
    size_t n_held;                    /* tokens held by its running requests (qn_clients_count_held) */
    size_t prompt_rows, prompt_share; /* in the step being composed: rows that its prompts need, rows that they get */

    /* Protected by events_lock. */
    struct qn_client *next_ready;
    struct qn_event *first_event, **last_event;
    struct qn_client *next_masking;
    qn_request *masks;   /* requests whose masks are to be made */
    double mask_seconds; /* time spent on its masks. A client without masks starts at the value of the client whose mask
                            was begun last */
} qn_client;

typedef enum qn_event_kind {
    QN_EVENT_OUTPUT,    /* a token, text, or both */
    QN_EVENT_PROMPT,    /* a token of the prompt */
    QN_EVENT_PROGRESS,  /* a part of the prompt was evaluated */
    QN_EVENT_EMBEDDING, /* of the prompt */
    QN_EVENT_PARSED,    /* for on_event */
    QN_EVENT_MASK,      /* a token was rejected: call the caller's mask */
    QN_EVENT_END
} qn_event_kind;

/* Arguments of a callback. Allocated by the step thread, and freed by the delivery thread after the callback; events of
 * kinds QN_EVENT_MASK and QN_EVENT_END are members of their request. Constant while it is queued, except `next`, which
 * events_lock protects. */
typedef struct qn_event {
    struct qn_event *next;
    qn_request *request;
    qn_event_kind kind;
    qn_token token; /* or QN_NO_TOKEN */
    size_t index;   /* of QN_EVENT_PROMPT */
    qn_prompt_progress progress;
    size_t length;         /* of the text */
    char *text;            /* in the allocation of the event, like logprobs and the text of parsed */
    qn_logprobs *logprobs; /* or NULL */
    float *embedding;      /* [n_embd] in the allocation of the event */
    qn_output_event parsed;
} qn_event;

/* State of a request whose token was rejected. */
enum qn_mask_state {
    QN_MASK_NONE,    /* no token was rejected */
    QN_MASK_WAITING, /* another thread makes the mask and samples under it: the mask thread with a grammar, else the
                        delivery thread. The request has no rows in steps, unless it was set aside: then its tokens are
                        evaluated again, without a sample */
    QN_MASK_SAMPLED  /* the step thread adds the token */
};

/* Progress of the mask of a request with a grammar: nothing to do, in the client's queue, being made by the mask
 * thread. */
enum qn_mask_place { QN_MASK_NOWHERE, QN_MASK_QUEUED, QN_MASK_MADE };

struct qn_request {
    qn_request *next; /* in the queue of its client, under s->lock; before, in the list of its submission */
    qn_scheduler *scheduler;
    qn_client *client;     /* NULL before it is queued; like the ids constant afterwards */
    uint64_t id;           /* ascending */
    uint64_t first_id;     /* of the first request of its submission */
    bool has_begun;        /* a request of its submission was admitted; under s->lock */
    atomic_bool cancelled; /* set by any thread */

    /* Constant after qn_request_new. `constraint` and `drafts` also hold estimates, which change during steps. */
    qn_request_params params; /* data behind its pointers is copied into the members below, or not kept */
    qn_constraint constraint;
    qn_drafts drafts;
    qn_input_prompt *prompt;
    qn_input_lists *lists;
    size_t n_prompt, n_vocab;
    double submitted, deadline; /* qn_now; INFINITY */

    /* Step. */
    qn_token *tokens; /* [n_tokens], followed by a draft; cap_tokens is 0 while this is the array of `prompt`, until a
                         token is added */
    size_t n_tokens, cap_tokens;
    qn_memory *memory;    /* NULL while it is in the queue */
    uint32_t rope_offset; /* qn_row.rope_offsets of its rows: of qn_generate in a session with rows that share positions
                           */
    size_t n_lost;        /* tokens in its sequence when it was last set aside */
    size_t n_again;       /* of n_lost, tokens to evaluate again after the last admission */
    size_t n_turn;        /* rows since the last admission */
    uint32_t place;       /* index in qn_scheduler.places, while it runs */
    uint32_t n_passed;    /* number of requests that were admitted while this one did not fit in memory */
    qn_sampler *sampler;
    qn_stop *stop;
    qn_utf8_stream utf8;
    qn_events events;     /* with on_event, instead of `utf8`; also with a reasoning budget */
    uint32_t branch;      /* an additional position whose state is kept, or 0 */
    uint32_t kept_state;  /* the last position whose state was kept */
    qn_pooled *pooled;    /* with `pooling`, until the embedding is queued */
    size_t n_progress;    /* tokens of the prompt that on_progress was told of */
    size_t n_scored;      /* tokens of the prompt whose log probabilities are queued for on_prompt_token */
    size_t score_share;   /* in the step being composed: rows that may be scored */
    bool has_kept_prompt; /* the pages of the prompt were added to the kept prefixes */
    bool has_output;      /* the last token is not yet emitted */
    bool is_forced;       /* the last token was not sampled */
    bool is_over; /* result.finish has the reason; qn_scheduler_end is called once no step in flight has its rows */
    uint32_t n_in_flight; /* number of steps in flight with rows of this request */
    bool has_pending;     /* the step in flight samples its next token, as request `logit_row` of the step */
    bool expects_draft;   /* the step in flight samples a forced token, and more forced tokens follow */
    uint32_t logit_row;
    qn_status failure;            /* with is_over; its text is `error` */
    uint64_t admitted_after;      /* value of qn_scheduler.n_released when it did not fit; UINT64_MAX: not yet tried */
    double admitted, first_token; /* 0: not yet */
    qn_request_result result;
    char error[QN_ERROR_TEXT_MAX];
    qn_logprobs logprobs; /* of the last token, with n_logprobs >= 0 */

    /* Masks. In QN_MASK_WAITING these and `logprobs` belong to the thread that makes the mask, and `tokens` do not
     * change. */
    atomic_int mask_state;
    bool is_rejected; /* the token sampled by this step was rejected */
    uint32_t n_slow;  /* number of next tokens whose masks are made on another thread, because one mask took too long */
    bool is_checked;  /* the row being composed or in flight has a check */
    bool is_masked_later;  /* the check rejects any token, and its random number is used again: the result is that of a
                              mask made in time */
    qn_status mask_status; /* the error if no token was sampled */
    char mask_error[QN_ERROR_TEXT_MAX];
    float *logits;            /* [n_vocab] from which the rejected token was sampled; NULL before the first rejection */
    uint32_t *allowed;        /* the mask; NULL before the first one is made */
    qn_sample_request masked; /* the sample under the mask */
    qn_event mask;

    /* Protected by events_lock. */
    enum qn_mask_place mask_place;
    qn_request *next_mask;
    bool ends_after_mask; /* queue the last event once the mask is made */

    /* Delivery: used by the thread that calls callbacks, and from the last event on also `result` and `error`. */
    bool is_muted; /* a callback returned false */
    size_t n_delivered;
    qn_event end;
};

/* The rows of one request in a step. Used by the step thread only. */
typedef struct qn_piece {
    qn_request *request; /* NULL: dropped from the step */
    size_t n;
    size_t n_drafted;      /* of n, the last rows: drafted tokens, which may be rejected */
    bool is_proposal;      /* they are the drafter's, not forced text */
    const uint32_t *masks; /* [n_drafted, mask words]: tokens allowed after each drafted token; NULL: all */
    qn_logprobs *logprobs; /* [n_drafted] for their samples; NULL: none */
    size_t n_scored;       /* of n, rows that are scored: the first ones that have not been */
    size_t first_row;      /* in the step */
    bool samples;          /* a token is sampled from the last row before the draft, and from each drafted row */
    bool is_advanced;      /* rows of the next step are reserved after it */
    bool is_void;          /* its token should not have been evaluated: the row is discarded */
} qn_piece;

/* A step being composed or in flight, used by the step thread. While it is in flight the device reads `rows`,
 * `logit_rows`, `requests` and the masks, and the team's threads call `prepare` of its requests: they must not
 * change. */
typedef struct qn_scheduled {
    qn_piece *pieces; /* [max_sequences] */
    uint32_t n_pieces;
    qn_row *rows;         /* [max_rows] */
    uint32_t *logit_rows; /* [max_sequences + QN_STEP_DRAFTED + QN_STEP_SCORED] */
    qn_sample_request *requests;
    uint32_t *masks; /* [QN_STEP_DRAFTED, mask words] of drafts; NULL until there is one, like draft_logprobs */
    qn_logprobs *draft_logprobs; /* [QN_STEP_DRAFTED] */
    qn_row_offer *offers;        /* [max_sequences] proposals, by the index of their pieces */
    uint32_t *score_masks; /* [QN_STEP_SCORED, mask words] each allows one token; NULL until there is one, like scores
                            */
    qn_logprobs *scores;   /* [QN_STEP_SCORED] */
    size_t n_scored;
    float *normed; /* [max_rows, n_embd] hidden states of rows that become embeddings; NULL until there is one */
    qn_step step;
    size_t n_decoding;    /* pieces of one row, drafted rows not counted */
    size_t n_drafted;     /* drafted rows */
    double start;         /* when composing began */
    size_t n_passes;      /* draft steps before it, or steps of the draft model */
    double draft_seconds; /* since then, of draft steps and of steps of the draft model, with the wait for the model */
    double lock_seconds;  /* since then, spent waiting for the model's other sessions and schedulers */
    bool is_ahead;        /* launched while another step was in flight */
    double idle_seconds;  /* qn_device.idle_seconds before it, read while the model is locked */
} qn_scheduled;

struct qn_scheduler {
    /* Constant after creation. */
    qn_model *model;
    qn_generation *generation;  /* the qn_generate call that owns this scheduler; NULL for one of qn_scheduler_create */
    qn_scheduler_params params; /* defaults filled in */
    qn_memory_params memory_params;
    const qn_cache *cache;
    qn_kept *kept; /* NULL with no_prefix_cache */

    pthread_mutex_t lock;       /* protects the members from here to `counters` */
    pthread_cond_t work, ended; /* a request was queued, a mask was made, or it stops; a request has ended */
    bool is_stopping;
    bool is_closed, has_begun; /* qn_scheduler_close; a request was admitted */
    uint64_t last_id;
    qn_client *clients;
    uint32_t n_clients, n_queued, n_alive;
    qn_request **running; /* [max_sequences], n_running used; both are changed by the step thread only, under the lock,
                             so that it may read them without the lock */
    uint32_t n_running;
    qn_place *places; /* [max_sequences] of running requests; an id of 0: the place is free */
    qn_scheduler_counters counters;

    /* Step. */
    qn_client **sharing; /* [max_sequences]: clients that share the rows of prompts in a step */
    qn_scheduled steps[2];
    qn_scheduled *flight; /* the step to finish next; NULL: none. While there is one, the step thread holds the model's
                             lock */
    size_t positions;     /* positions for which the device has reserved workspace */
    bool overlaps;        /* the device has `launch` */
    double last_end;      /* end of the last step; 0: the scheduler was idle since */
    size_t n_generated;   /* tokens generated since the last counted step */
    qn_step_times times;
    qn_draft_forced forced_draft;       /* of QN_DRAFT; constant */
    qn_written *written;                /* answers that drafters read; NULL with no_prefix_cache */
    struct qn_draft_model *draft_model; /* with its times; of the draft model; NULL: there is none */
    float *chain_logits;                /* of blocks and of their chain (pass.c); NULL before the first */
    size_t cap_chain_logits;            /* rows */
    qn_drafting drafting;               /* copy of the model's, which is updated when the scheduler is freed */
    uint64_t n_drafted, n_accepted;     /* tokens of proposals since the last counted step */
    double (*now)(void);                /* the clock of `times`: qn_now */
    uint64_t n_released;                /* how often a sequence was freed */

    /* Events, for the thread that calls callbacks. */
    pthread_mutex_t events_lock; /* protects the members from here to no_more_masks */
    pthread_cond_t has_events;
    qn_client *first_ready, *last_ready; /* clients with events, served in turn */
    bool no_more_events;

    /* Masks. s->lock may be taken while events_lock is held, never the reverse. */
    pthread_cond_t has_masks;
    qn_client *masking;  /* clients with masks to make, in order of arrival */
    double mask_seconds; /* mask_seconds of the client whose mask was begun last, before that mask */
    bool no_more_masks;

    /* Used by the threads that create and free the scheduler. */
    pthread_t step_thread, delivery_thread, mask_thread;
    bool has_locks, has_step_thread, has_delivery_thread, has_mask_thread;
};

/* ---- scheduler.c ---- */

/* qn_scheduler_create_generation - Creates the scheduler of a qn_generate call, without threads: the calling thread
 * runs its steps. `generation` must outlive it. draft: as in the request. Free it with
 * qn_scheduler_destroy. */
qn_status qn_scheduler_create_generation(qn_generation *generation, qn_draft_kind draft, qn_scheduler **out);

/* qn_scheduler_destroy - Frees a scheduler as qn_scheduler_free does, but does not check whether the thread is in a
 * callback: qn_generate, which creates and frees one, may be called in a callback of another scheduler. NULL is
 * allowed. */
void qn_scheduler_destroy(qn_scheduler *s);

/* ---- generate.c ---- */

/* qn_generation_pass - Updates the session before a token is passed to callbacks, on the thread of the qn_generate
 * call. */
void qn_generation_pass(qn_generation *generation, qn_token token);

/* qn_generation_end - Copies the result of the request that has ended, with its error text: the request is freed after
 * this call. */
void qn_generation_end(qn_generation *generation, const qn_request_result *result);

/* ---- request.c ---- */

/* qn_request_new - Checks params and creates a request with copies of the data that they point to. Any thread. The
 * caller owns the request until qn_clients_enqueue queues it, and frees it otherwise.
 *
 *   before     the request before it in the same submission, not yet queued, or NULL: data with the same pointers is
 *              shared with it
 *   n_prompt   set to the number of prompt tokens if it is known, also on errors */
qn_status qn_request_new(qn_scheduler *s, const qn_request_params *params, const qn_request *before, qn_request **out,
                         size_t *n_prompt);

/* qn_request_free - Frees a request that was not queued, or has had its last callback, with its sequence and its
 * references. NULL is allowed. */
void qn_request_free(qn_request *request);

/* ---- input.c ---- */

/* qn_input_prompt_create - Tokenises the prompt of params that were checked. Any thread. *out has one reference: drop
 * it with qn_input_prompt_free. *n is set to the number of tokens, also if that is too many. */
qn_status qn_input_prompt_create(const qn_scheduler *s, const qn_request_params *params, qn_input_prompt **out,
                                 size_t *n);

/* qn_input_prompt_is_of - Returns true if the prompts of a and b have the same pointers and lengths, so that both
 * requests can share one qn_input_prompt. */
bool qn_input_prompt_is_of(const qn_request_params *a, const qn_request_params *b);
qn_input_prompt *qn_input_prompt_share(qn_input_prompt *prompt);
size_t qn_input_prompt_bytes(const qn_input_prompt *prompt);
void qn_input_prompt_free(qn_input_prompt *prompt); /* NULL is allowed */

/* qn_input_lists_create - Copies stop strings, stop tokens, biases and the scope of params that were checked. Any
 * thread. *out has one reference: drop it with qn_input_lists_free. */
qn_status qn_input_lists_create(const qn_scheduler *s, const qn_request_params *params, qn_input_lists **out);
bool qn_input_lists_are_of(const qn_request_params *a, const qn_request_params *b);
qn_input_lists *qn_input_lists_share(qn_input_lists *lists);
size_t qn_input_lists_bytes(const qn_input_lists *lists);
void qn_input_lists_free(qn_input_lists *lists); /* NULL is allowed */

/* ---- clients.c ---- */

/* qn_clients_enqueue - Queues n requests, linked by `next`, for the client named by the first request's params: all of
 * them or none. The scheduler then owns them, and its threads may end and free them before the call returns. Ids ascend
 * in this order. QN_ERR_BUSY if the queue has no room. Any thread, without s->lock.
 *
 *   ids   [n], written before any callback; NULL is allowed */
qn_status qn_clients_enqueue(qn_scheduler *s, qn_request *first, size_t n, uint64_t *ids);

/* qn_clients_check_room - Returns QN_OK if n more requests of a client may be queued now, else QN_ERR_BUSY. Any thread,
 * without s->lock. */
qn_status qn_clients_check_room(qn_scheduler *s, const char *client, size_t n);

/* qn_client_push - Puts a request in the queue of its client. The caller holds s->lock. */
void qn_client_push(qn_scheduler *s, qn_request *r);

/* qn_client_remove - Takes a request out of the queue of its client. The caller holds s->lock. */
void qn_client_remove(qn_scheduler *s, qn_request *r);

/* qn_client_begin - Marks a queued request and all others of its submission as begun. The caller holds s->lock. */
void qn_client_begin(qn_scheduler *s, qn_request *r);

/* qn_client_withdraws - Returns true if a queued request must not begin, because the scheduler is closed. The caller
 * holds s->lock. */
bool qn_client_withdraws(const qn_scheduler *s, const qn_request *r);

/* qn_places_enter - Gives a request that begins to run a free place. The caller of this function and of the next two
 * holds s->lock. */
void qn_places_enter(qn_scheduler *s, qn_request *r);

/* qn_places_leave - Frees the place of a running request. */
void qn_places_leave(qn_scheduler *s, const qn_request *r);

/* qn_places_update - Copies the progress of all running requests into their places. */
void qn_places_update(qn_scheduler *s);

/* qn_client_leave - Notes that a request was freed; frees the client with its last request. The caller holds
 * s->lock. */
void qn_client_leave(qn_scheduler *s, qn_client *client);

/* qn_clients_charge - Adds the rows of a step to its clients' counts. Step thread. */
void qn_clients_charge(qn_scheduler *s, const qn_scheduled *step);

/* qn_clients_count_held - Sets n_held of all clients with running requests. Step thread, with or without s->lock. */
void qn_clients_count_held(const qn_scheduler *s);

/* qn_clients_share_prompts - Sets prompt_share of all clients whose running requests have prompts left. `rows` rows are
 * shared evenly, none beyond need, in parts of `part` rows, beginning with the client that has used the fewest rows.
 * Step thread. */
void qn_clients_share_prompts(qn_scheduler *s, size_t rows, size_t part);

/* ---- queue.c ---- */

/* qn_scheduler_end_late - Ends requests that were cancelled, withdrawn or are past their deadline. Requests with rows
 * in flight are only marked is_over. Step thread. */
void qn_scheduler_end_late(qn_scheduler *s);

/* qn_scheduler_set_aside - Frees the sequence of a running request without rows in flight, and queues the request
 * again: its tokens are evaluated again later. Its pages are kept for reuse as long as there is memory. Step thread. */
void qn_scheduler_set_aside(qn_scheduler *s, qn_request *request);

/* qn_scheduler_requeue - Does what qn_scheduler_set_aside does, without counting it. Step thread. */
void qn_scheduler_requeue(qn_scheduler *s, qn_request *request);

/* qn_scheduler_end - Ends a request that has no rows in flight: one that runs, or one that was taken out of its queue.
 * Keeps its pages for reuse and queues its last events. With QN_FINISH_ERROR, the error is `status` with the calling
 * thread's error text, and the pages are dropped. Step thread. The request must not be used afterwards: the delivery
 * thread frees it after its last callback. */
void qn_scheduler_end(qn_scheduler *s, qn_request *request, qn_finish finish, qn_status status);

/* qn_request_is_keepable - Returns true if the pages of the request's sequence may be kept for reuse. If the device
 * computes prompts and generated tokens with different bits, sequences with generated tokens may not. Step thread. */
bool qn_request_is_keepable(const qn_scheduler *s, const qn_request *r);

/* ---- admit.c ---- */

/* qn_scheduler_admit - Admits queued requests, also while a step is in flight. If no step is in flight, running
 * requests of clients that have more than an equal share of the memory are set aside for other clients. Step thread. */
void qn_scheduler_admit(qn_scheduler *s);

/* qn_scheduler_wants_place - Returns true if qn_scheduler_admit would set a request aside if no step were in flight.
 * Step thread. */
bool qn_scheduler_wants_place(qn_scheduler *s);

/* ---- step.c ---- */

/* qn_rows_to_state - Returns how many of n rows a sequence of `length` tokens may append so that its state_position
 * does not pass `state`, a multiple of QN_PAGE above it. So the state at `state` exists after some piece. */
size_t qn_rows_to_state(bool folds_whole_chunks, size_t length, size_t state, size_t n);

/* qn_request_rows_left - Returns the number of tokens that the sequence does not hold, including a pending one. Step
 * thread, with or without s->lock. */
size_t qn_request_rows_left(const qn_request *r);

/* qn_request_keeps_state - Returns true if the current state of the request's sequence is to be kept. Step thread. */
bool qn_request_keeps_state(const qn_scheduler *s, const qn_request *r);

/* qn_request_keep_prefix - Keeps the current state if it is to be kept, and the pages of a complete prompt. Step
 * thread. */
void qn_request_keep_prefix(qn_scheduler *s, qn_request *r);

/* qn_scheduler_compose - Chooses the pieces of a step. Step thread. */
void qn_scheduler_compose(qn_scheduler *s, qn_scheduled *to);

/* qn_scheduler_reserve - Reserves memory for the pieces of a step, taking it from other requests if needed: these are
 * set aside, and requests that do not fit alone end. Not while a step is in flight. Step thread. */
void qn_scheduler_reserve(qn_scheduler *s, qn_scheduled *step);

/* qn_scheduler_reserve_ahead - Reserves memory while another step is in flight. Returns false, with nothing reserved,
 * if there is not enough memory. Step thread. */
bool qn_scheduler_reserve_ahead(qn_scheduled *step);

/* qn_scheduler_has_finished - Returns true if a request is over but has not ended yet. Step thread. */
bool qn_scheduler_has_finished(const qn_scheduler *s);

/* qn_scheduler_unreserve - Returns the memory reserved for a step that is not launched. Step thread. */
void qn_scheduler_unreserve(qn_scheduled *step);

/* qn_scheduler_positions - Returns the workspace that a step needs, in positions. Step thread. */
size_t qn_scheduler_positions(const qn_scheduler *s, const qn_scheduled *step);

/* qn_scheduler_fill_rows - Fills the device's step from the pieces. The step points to arrays of *step and of its
 * requests, which must not change until it has ended. Step thread. */
void qn_scheduler_fill_rows(const qn_scheduler *s, qn_scheduled *step);

/* ---- pass.c ---- */

/* qn_scheduler_run_passes - Runs the draft steps for a step that is being composed: chains of `chosen` tokens for all
 * offers that are passed. They become their requests' proposals, with fewer tokens if there is no memory or the device
 * fails. Step thread, while no step is in flight. */
void qn_scheduler_run_passes(qn_scheduler *s, qn_scheduled *step);

/* ---- flight.c ---- */

/* qn_scheduler_run_step - Runs one step. Returns false if there was nothing to do. On a device that computes
 * asynchronously, work on the results that the next step does not need is left for the next call, which does it while
 * its step computes. The scheduler's thread leaves a step in flight, which the next call finishes; until then the
 * thread holds the model's lock, so that the same thread must make that call. Step thread, without the model's lock
 * unless a step is in flight. */
bool qn_scheduler_run_step(qn_scheduler *s);

/* qn_scheduler_catch_up - Emits tokens, and ends requests that are over and have no rows in flight. Step thread. */
void qn_scheduler_catch_up(qn_scheduler *s);

/* qn_request_fail - Marks a request as failed, with the thread's error text. It ends once no step in flight has its
 * rows. Step thread. */
void qn_request_fail(qn_request *r, qn_status status);

/* qn_request_emit_last - Emits the last token. Call it only with has_output. Step thread. */
void qn_request_emit_last(qn_scheduler *s, qn_request *r);

/* ---- score.c ---- */

/* qn_request_is_scored - Returns true if tokens of the prompt have not been passed to on_prompt_token yet. No step runs
 * ahead of one of such a request. Step thread. */
bool qn_request_is_scored(const qn_request *request);

/* qn_request_n_reusable - Returns the number of tokens of which a prefix may be adopted: all but the last of them need
 * neither log probabilities nor, for an embedding, hidden states. Step thread. */
size_t qn_request_n_reusable(const qn_request *request);

/* qn_scheduler_share_scores - Sets score_share of all running requests: QN_STEP_SCORED rows go to the clients that have
 * used the fewest rows. Requests fail if there is no memory for the results. Step thread. */
void qn_scheduler_share_scores(qn_scheduler *s, qn_scheduled *step);

/* qn_request_most_rows - Returns how many rows a request may have in a step by its score_share; SIZE_MAX: any number.
 * Step thread. */
size_t qn_request_most_rows(const qn_request *request);

/* qn_scheduler_fill_scores - Adds samples of the scored rows of a piece, whose rows begin at `first` in the step, and
 * sets its n_scored. Step thread. */
void qn_scheduler_fill_scores(qn_scheduled *step, qn_piece *piece, size_t first);

/* qn_request_take_scores - Queues the tokens of the prompt whose log probabilities a step has computed. Step thread.
 *
 *   sampled   [n] */
qn_status qn_request_take_scores(qn_scheduler *s, qn_request *request, const qn_sample_request *sampled, size_t n);

/* ---- embed.c ---- */

/* qn_request_check_pooling - Checks the members of params that ask for an embedding. */
qn_status qn_request_check_pooling(const qn_scheduler *s, const qn_request_params *params);

/* qn_scheduler_alloc_normed - Allocates the hidden states of a step if a running request is to have an embedding; these
 * requests fail without memory. */
void qn_scheduler_alloc_normed(qn_scheduler *s, qn_scheduled *step);

/* qn_request_ask_normed - Has a step compute the hidden states of a piece's rows that the embedding needs. */
void qn_request_ask_normed(const qn_scheduler *s, qn_scheduled *step, const qn_piece *piece);

/* qn_request_take_normed - Adds the hidden states of a piece to the embedding, and queues the complete one. */
qn_status qn_request_take_normed(qn_scheduler *s, const qn_scheduled *step, const qn_piece *piece);

/* qn_request_take_progress - Queues the progress of the prompt after a step, if it was asked for. */
qn_status qn_request_take_progress(qn_scheduler *s, qn_request *request);

/* ---- sample.c ---- */

/* qn_request_waits_for_token - Returns true if sampling the next token depends on the token before it, or the host
 * needs that token first: the next step can then be launched only after the current one is finished. Step thread. */
bool qn_request_waits_for_token(const qn_request *request);

/* qn_request_next_sample - Returns the parameters by which the next token is sampled. They point into the request,
 * which the device and `prepare` read until the step has ended. Step thread. */
qn_sample_request qn_request_next_sample(qn_request *request);

/* qn_request_draft - Drafts up to `most` tokens of forced text after those of a request without rows in flight, in a
 * step of n_sequences sequences. The drafted tokens follow the request's own in `tokens`; `masks` has a row for each.
 * Returns the number of drafted tokens. Step thread. */
size_t qn_request_draft(qn_request *request, size_t n_sequences, size_t most, uint32_t *masks);

/* qn_request_draft_room - Returns how many of `most` tokens can be drafted after those of a request without rows in
 * flight, and reserves memory for them. Step thread. */
size_t qn_request_draft_room(qn_request *request, size_t most);

/* qn_request_propose - Has the drafter of a request without rows in flight propose up to `most` tokens, with their
 * chances in request->drafts. Returns the number of tokens. Step thread. */
size_t qn_request_propose(qn_request *request, size_t most);

/* qn_request_offer_head - Does what qn_draft_offer_head does, after qn_request_propose. Step thread. */
size_t qn_request_offer_head(qn_request *request, size_t most);

/* qn_request_block_rows - Returns the rows of a block of the draft head after the request's tokens: fewer than a whole
 * one at the end of the context, and of the page where drafts end with it. 0 for a head that makes chains. Step thread.
 */
size_t qn_request_block_rows(const qn_request *request);

/* qn_request_expects_proposal - Returns true if the step of n_rows rows in flight, which samples the request's next
 * token, is likely to sample a proposed one, after which more tokens are worth a draft, or if those of the draft head
 * after it are. Step thread. */
bool qn_request_expects_proposal(qn_request *request, const qn_drafting *drafting, size_t n_rows);

/* qn_request_take_proposal - Drafts the first n tokens of the proposal, as qn_request_draft does. masks: NULL without a
 * grammar. Step thread. */
size_t qn_request_take_proposal(qn_request *request, size_t n, uint32_t *masks);

/* qn_request_drafted_sample - Returns the parameters for sampling after i > 0 drafted tokens. Call it once for each i,
 * in ascending order: it consumes a random number, as qn_sampler_next_request does. mask, logprobs: of this sample; may
 * be NULL. Step thread. */
qn_sample_request qn_request_drafted_sample(qn_request *request, size_t i, const uint32_t *mask, qn_logprobs *logprobs);

/* qn_request_reject - Makes a request wait for its mask, after a step whose token was rejected. Step thread. */
void qn_request_reject(qn_scheduler *s, qn_request *request, const qn_sample_request *sampled);

/* qn_request_sample_masked - Makes the mask and samples under it. Returns false if the request was cancelled. Does not
 * change mask_state. By the mask thread, or for a caller's mask by the delivery thread, without locks, while mask_state
 * is QN_MASK_WAITING. */
bool qn_request_sample_masked(qn_request *request);

/* qn_request_set_mask_state - Sets mask_state and wakes the step thread. Any thread, without s->lock; events_lock may
 * be held. */
void qn_request_set_mask_state(qn_scheduler *s, qn_request *request, int state);

/* qn_request_take_masked - Returns true if a token was sampled under a mask since the last step. *status is then set,
 * and *sampled, or on an error the thread's error text. Step thread. */
bool qn_request_take_masked(qn_request *request, qn_sample_request *sampled, qn_status *status);

/* qn_scheduler_await_masks - If running requests wait for masks, waits until one mask is made, there is other work, or
 * a short timeout ends. Step thread. */
void qn_scheduler_await_masks(qn_scheduler *s);

/* ---- draft_model.c ---- */

/* qn_draft_model_create - Sets s->draft_model, if the model has a draft model that can run between steps. */
qn_status qn_draft_model_create(qn_scheduler *s);
void qn_draft_model_free(qn_scheduler *s);

/* qn_draft_model_run - Has the draft model propose tokens after the pieces of a step, which has n_rows rows and may
 * have `most` drafted ones. Step thread. */
void qn_draft_model_run(qn_scheduler *s, qn_scheduled *to, size_t n_rows, size_t most);

/* qn_draft_model_expects - While a step is in flight: returns true if the draft model is expected to propose tokens
 * after it, so that the next step waits for them. Step thread. */
bool qn_draft_model_expects(qn_scheduler *s, const qn_scheduled *step);

/* qn_draft_model_leave - Frees the draft model's sequence of a request, and keeps what was learned. Step thread. */
void qn_draft_model_leave(qn_scheduler *s, qn_request *request);

/* qn_draft_model_count - Counts the tokens of a request's proposal that were accepted in the step that ends. Step
 * thread. */
void qn_draft_model_count(qn_scheduler *s, const qn_request *request, size_t n_accepted);

/* qn_draft_model_measure - Counts the time of a step that has ended, without that of the draft model. Step thread. */
void qn_draft_model_measure(qn_scheduler *s, const qn_scheduled *step, double seconds);

/* ---- masks.c ---- */

/* qn_scheduler_push_mask - Queues the mask of a request: for the mask thread if it is a grammar's, else as an event.
 * Step thread. */
void qn_scheduler_push_mask(qn_scheduler *s, qn_request *request);

/* qn_scheduler_push_end - Queues a request's last event, after a mask that is being made. A queued mask is dropped.
 * Step thread. The request must not be used afterwards. */
void qn_scheduler_push_end(qn_scheduler *s, qn_request *request);

/* qn_scheduler_make_mask - Makes the next queued mask. Returns false if there is none. By the mask thread; without one,
 * by qn_scheduler_deliver. The caller holds events_lock, which is released while the mask is made. */
bool qn_scheduler_make_mask(qn_scheduler *s);

/* qn_scheduler_masks - The main function of the mask thread. It ends when no_more_masks is set and no mask is
 * queued. */
void *qn_scheduler_masks(void *scheduler);

/* ---- output.c ---- */

/* qn_scheduler_push - Queues an event behind those of its client. It then belongs to the delivery thread. Step thread,
 * without events_lock. */
void qn_scheduler_push(qn_scheduler *s, qn_event *event);

/* qn_scheduler_push_locked - Does what qn_scheduler_push does. Any thread of the scheduler that holds events_lock. */
void qn_scheduler_push_locked(qn_scheduler *s, qn_event *event);

/* qn_request_emit - Queues a sampled token and its text. Sets *found to true if a stop string ended the request. Step
 * thread. */
qn_status qn_request_emit(qn_scheduler *s, qn_request *request, qn_token token, bool has_text, bool *found);

/* qn_request_push_prompt - Queues a token of the prompt; logprobs may be NULL. Step thread. */
qn_status qn_request_push_prompt(qn_scheduler *s, qn_request *request, size_t index, const qn_logprobs *logprobs);

/* qn_request_push_progress - Queues the progress of the prompt. Step thread. */
qn_status qn_request_push_progress(qn_scheduler *s, qn_request *request, const qn_prompt_progress *progress);

/* qn_request_push_embedding - Queues the embedding of the prompt. Step thread. */
qn_status qn_request_push_embedding(qn_scheduler *s, qn_request *request, const qn_pooled *pooled);

/* qn_request_push_parsed - Queues a parsed event of a request's answer. Step thread. */
qn_status qn_request_push_parsed(void *request, const qn_output_event *event);

/* qn_request_emit_end - Queues the text held back and the last event. Step thread. */
void qn_request_emit_end(qn_scheduler *s, qn_request *request);

/* qn_scheduler_deliver - Calls the callbacks of all queued events, and makes all masks. For schedulers without threads:
 * by the thread that runs steps, after each step, without locks. */
void qn_scheduler_deliver(qn_scheduler *s);

/* qn_scheduler_delivery - The main function of the delivery thread. It ends when no_more_events is set and no event is
 * queued. */
void *qn_scheduler_delivery(void *scheduler);

#endif
