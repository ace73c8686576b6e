/* Internal declarations of the scheduler. scheduler.c: creation, threads, the public functions; input.c: what
 * requests have in common; request.c: what is submitted; clients.c: clients, their queues and
 * shares; admit.c: who is evaluated next, and who gives up a place; queue.c: the end of sequences;
 * step.c: the rows of a step; flight.c: steps on the device, and their tokens; sample.c:
 * what tokens are sampled by; masks.c: whose mask is made next; output.c: text and callbacks;
 * generate.c: qn_generate, a scheduler of one request that has a session's memory.
 *
 * A request is a list of tokens, the prompt and what has been sampled, and a sequence that holds the first of them. A
 * step evaluates some of the others, and samples another token from the last. So a prompt, a token that is decoded and
 * a sequence that has lost its memory are the same thing: tokens that the sequence does not hold.
 *
 * One thread runs steps: the scheduler's, or the callers of qn_scheduler_step. It alone uses what is marked "step". */
#ifndef QN_SCHEDULER_SCHEDULER_H
#define QN_SCHEDULER_SCHEDULER_H

#include "scheduler/draft.h"
#include "engine/events.h"
#include "scheduler/step_time.h"
#include "quern/scheduler.h"
#include "text/stop.h"
#include "text/utf8_stream.h"

/* A sequence gives up its memory at most so often. */
enum { QN_MAX_SET_ASIDE = 2 };

/* Most drafted rows of a step. */
enum { QN_STEP_DRAFTED = 32 };

typedef struct qn_request qn_request;

/* What qn_generate keeps of its request (generate.c). */
typedef struct qn_generation {
    qn_session *session;
    uint32_t n_before; /* tokens that the session had */
    size_t n_prompt;   /* and with the prompt */
    size_t n_passed;   /* tokens of the answer that callbacks have had */
    bool has_ended;
    qn_request_result result;
    char error[QN_ERROR_TEXT_MAX];
} qn_generation;

/* ---- What requests have in common ---- */

/* A prompt that is tokenised. Constant, and shared by the requests of a submission that have it; counted by them. */
typedef struct qn_input_prompt {
    atomic_uint n_users;
    qn_token *tokens; /* [n_tokens] */
    size_t n_tokens;
    uint32_t *keep; /* [n_keep], ascending: positions whose states are kept; multiples of QN_PAGE above 0 */
    size_t n_keep;
    qn_output_params output; /* of a conversation whose answer is parsed */
    qn_output_tools *tools;  /* of `output`, or NULL */
} qn_input_prompt;

/* The same of the lists that a request has beside its prompt. */
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

/* Who has requests. It lives as long as one of them does. Of the scheduler's lock, but for its events. */
typedef struct qn_client {
    struct qn_client *next; /* in the order in which they came */
    char *name;
    uint32_t n_requests; /* that are not freed */
    qn_request *queue;
    uint32_t n_queued, n_running; /* n_running is changed by the step thread only */
    /* Rows of steps that it has had since it came, and before that as many as the client that had had the fewest: its
     * deficit is the difference to that one. */
    uint64_t rows;

    /* Step. */
    size_t n_held;                    /* tokens of its running requests (qn_clients_count_held) */
    size_t prompt_rows, prompt_share; /* of the step that is composed: rows that its prompts need, and get */

    /* Of events_lock. */
    struct qn_client *next_ready;
    struct qn_event *first_event, **last_event;
    struct qn_client *next_masking;
    qn_request *masks;   /* that are to be made */
    double mask_seconds; /* that its masks have taken, or as many as the client had whose mask was begun last when it
                            had none */
} qn_client;

typedef enum qn_event_kind {
    QN_EVENT_OUTPUT, /* a token, text, or both */
    QN_EVENT_PARSED, /* for on_event */
    QN_EVENT_MASK,   /* a token was rejected, of a request with a caller's mask */
    QN_EVENT_END
} qn_event_kind;

/* What callbacks are called with. Events of the last two kinds are members of their request. */
typedef struct qn_event {
    struct qn_event *next;
    qn_request *request;
    qn_event_kind kind;
    qn_token token;        /* or QN_NO_TOKEN */
    size_t length;         /* of the text */
    char *text;            /* in the same allocation, as are: */
    qn_logprobs *logprobs; /* or NULL */
    qn_output_event parsed;
} qn_event;

/* What becomes of a rejected token. */
enum qn_mask_state {
    QN_MASK_NONE,    /* no token was rejected */
    QN_MASK_WAITING, /* until another thread has sampled under the mask: that of masks with a grammar, else the one that
                        calls callbacks. The request has no rows in steps; if it was set aside, those of its tokens,
                        without a sample */
    QN_MASK_SAMPLED  /* the step thread adds the token */
};

/* Where a grammar's mask is. */
enum qn_mask_place { QN_MASK_NOWHERE, QN_MASK_QUEUED, QN_MASK_MADE };

struct qn_request {
    qn_request *next; /* in the queue of its client, or among those that are submitted with it */
    qn_scheduler *scheduler;
    qn_client *client; /* NULL before it is queued */
    uint64_t id;       /* ascending */
    uint64_t first_id; /* of those that were submitted with it */
    bool has_begun;    /* one of these; of the scheduler's lock */
    atomic_bool cancelled;

    /* Constant. */
    qn_request_params params; /* what it points to is copied below, or not kept */
    qn_constraint constraint;
    qn_drafter drafter;
    qn_input_prompt *prompt;
    qn_input_lists *lists;
    size_t n_prompt, n_vocab;
    double submitted, deadline; /* qn_now; INFINITY */

    /* Step. */
    qn_token *tokens; /* [n_tokens]; those of `prompt` until one is added, with cap_tokens 0. A draft is behind them */
    size_t n_tokens, cap_tokens;
    qn_memory *memory; /* NULL while it is in the queue */
    size_t n_lost;     /* tokens that its sequence had when it was set aside last */
    size_t n_again;    /* of these, the ones to be evaluated again since it was admitted last */
    size_t n_turn;     /* rows since it was admitted last */
    uint32_t n_passed; /* requests that were admitted while there was no memory for it */
    qn_sampler *sampler;
    qn_stop *stop;
    qn_utf8_stream utf8;
    qn_events events;     /* with on_event, in place of `utf8`, or with a budget of reasoning */
    uint32_t branch;      /* another position whose state is kept, or 0 */
    uint32_t kept_state;  /* the last position whose state was kept */
    bool has_kept_prompt; /* the pages of the prompt were added to the kept prefixes */
    bool has_output;      /* the last token is not yet emitted */
    bool is_forced;       /* the last token was not sampled */
    bool is_over;         /* result.finish says why; qn_scheduler_end follows when no step in flight has its rows */
    uint32_t n_in_flight; /* steps in flight that have its rows */
    bool has_pending;     /* the step in flight samples its next token, by its request logit_row */
    bool expects_draft;   /* the step in flight samples a forced token, and others follow */
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
    bool is_rejected;      /* the token that this step has sampled */
    uint32_t n_slow;       /* tokens whose masks are made later, because one took too long for others to wait */
    bool is_checked;       /* the row that is composed, or in flight, has a check */
    bool is_masked_later;  /* it rejects any token, whose random number is used again: as under a mask that was there */
    qn_status mask_status; /* why there is no token */
    char mask_error[QN_ERROR_TEXT_MAX];
    float *logits;            /* [n_vocab] from which the rejected token was sampled; NULL until one is */
    uint32_t *allowed;        /* the mask; NULL until one is made */
    qn_sample_request masked; /* the sample under the mask */
    qn_event mask;

    /* Of events_lock. */
    enum qn_mask_place mask_place;
    qn_request *next_mask;
    bool ends_after_mask; /* the last event is queued when the mask was made */

    /* Delivery: used by the thread that calls callbacks. */
    bool is_muted; /* a callback returned false */
    size_t n_delivered;
    qn_event end;
};

/* The rows of one request in a step. */
typedef struct qn_piece {
    qn_request *request; /* NULL: dropped from the step */
    size_t n;
    size_t n_drafted;      /* of these, the last ones: tokens that may not be those of the answer */
    const uint32_t *masks; /* [n_drafted, mask words]: of what follows each of them */
    bool samples;          /* the next token, from the last row before them; and from each of them */
    bool is_advanced;      /* rows of the next step are reserved behind it */
    bool is_void;          /* the token of its row was not to be evaluated: the row is discarded */
} qn_piece;

/* A step that is composed, or in flight. */
typedef struct qn_scheduled {
    qn_piece *pieces; /* [max_sequences] */
    uint32_t n_pieces;
    qn_row *rows;         /* [max_rows] */
    uint32_t *logit_rows; /* [max_sequences + QN_STEP_DRAFTED] */
    qn_sample_request *requests;
    uint32_t *masks; /* [QN_STEP_DRAFTED, mask words] of drafts; NULL until there is one */
    qn_step step;
    size_t n_decoding;   /* pieces of one row, without those that are drafted */
    double start;        /* when it was begun to be composed */
    bool is_ahead;       /* launched while another was in flight */
    double idle_seconds; /* of the device before it: qn_device.idle_seconds, read while the model is locked */
} qn_scheduled;

struct qn_scheduler {
    qn_model *model;
    qn_generation *generation;  /* its only request is that of qn_generate; NULL: a scheduler of the interface */
    qn_scheduler_params params; /* without zeros */
    qn_memory_params memory_params;
    const qn_cache *cache;
    qn_kept *kept; /* NULL with no_prefix_cache */

    pthread_mutex_t lock; /* protects what follows up to `counters` */
    pthread_cond_t work, ended;
    bool is_stopping;
    bool is_closed, has_begun; /* qn_scheduler_close; a request was admitted */
    uint64_t last_id;
    qn_client *clients;
    uint32_t n_clients, n_queued, n_alive;
    qn_request **running; /* [max_sequences] of which n_running; changed by the step thread only */
    uint32_t n_running;
    qn_scheduler_counters counters;

    /* Step. */
    qn_client **sharing; /* [max_sequences]: clients that share the rows of prompts in a step */
    qn_scheduled steps[2];
    qn_scheduled *flight; /* the step that is finished next, with the model's lock; NULL: none */
    size_t positions;     /* for which the device has reserved */
    bool overlaps;        /* the device has `launch` */
    double last_end;      /* of a step; 0: there was no work since */
    size_t n_generated;   /* tokens since the last step that was counted */
    qn_step_times times;
    double (*now)(void); /* the clock of `times`: qn_now */
    uint64_t n_released; /* how often a sequence was freed */

    /* Events, for the thread that calls callbacks. */
    pthread_mutex_t events_lock;
    pthread_cond_t has_events;
    qn_client *first_ready, *last_ready; /* those that have events, in turn */
    bool no_more_events;

    /* Masks, with events_lock. s->lock may be taken while it is held, not the other way round. */
    pthread_cond_t has_masks;
    qn_client *masking;  /* those that have masks to be made, in the order in which they came */
    double mask_seconds; /* those of the client whose mask was begun last, before it */
    bool no_more_masks;

    pthread_t step_thread, delivery_thread, mask_thread;
    bool has_locks, has_step_thread, has_delivery_thread, has_mask_thread;
};

/* ---- scheduler.c ---- */

/* qn_scheduler_create_generation - the scheduler of qn_generate. qn_scheduler_destroy - qn_scheduler_free, from any
 * thread; NULL is allowed. */
qn_status qn_scheduler_create_generation(qn_generation *generation, qn_scheduler **out);
void qn_scheduler_destroy(qn_scheduler *s);

/* ---- generate.c ---- */

/* qn_generation_pass - callbacks are about to have a token. qn_generation_end - the request has ended. */
void qn_generation_pass(qn_generation *generation, qn_token token);
void qn_generation_end(qn_generation *generation, const qn_request_result *result);

/* ---- request.c ---- */

/* qn_request_new - check params and copy what they point to, or share it.
 *
 *   before     another request, or NULL: what its params point to as these do is shared with it. It has not begun
 *   n_prompt   set to the tokens of the prompt where they are known */
qn_status qn_request_new(qn_scheduler *s, const qn_request_params *params, const qn_request *before, qn_request **out,
                         size_t *n_prompt);
void qn_request_free(qn_request *request);

/* ---- input.c ---- */

/* qn_input_prompt_create - tokenise the prompt of params that were checked. *n is set to its tokens, also when they are
 * too many. qn_input_prompt_is_of - whether params that point to the same have the same. */
qn_status qn_input_prompt_create(const qn_scheduler *s, const qn_request_params *params, qn_input_prompt **out,
                                 size_t *n);
bool qn_input_prompt_is_of(const qn_request_params *a, const qn_request_params *b);
qn_input_prompt *qn_input_prompt_share(qn_input_prompt *prompt);
size_t qn_input_prompt_bytes(const qn_input_prompt *prompt);
void qn_input_prompt_free(qn_input_prompt *prompt); /* NULL is allowed */

/* qn_input_lists_create - the same of stop strings, stop tokens, biases and the scope. */
qn_status qn_input_lists_create(const qn_scheduler *s, const qn_request_params *params, qn_input_lists **out);
bool qn_input_lists_are_of(const qn_request_params *a, const qn_request_params *b);
qn_input_lists *qn_input_lists_share(qn_input_lists *lists);
size_t qn_input_lists_bytes(const qn_input_lists *lists);
void qn_input_lists_free(qn_input_lists *lists); /* NULL is allowed */

/* ---- clients.c ---- */

/* qn_clients_enqueue - queue n requests, linked by `next`, of the client of the first one's params; none if there is no
 * room for all of them. They get ids in their order.
 *
 *   ids   [n], written before a callback is called; NULL is allowed */
qn_status qn_clients_enqueue(qn_scheduler *s, qn_request *first, size_t n, uint64_t *ids);

/* qn_clients_check_room - whether n more requests of a client may be queued now. */
qn_status qn_clients_check_room(qn_scheduler *s, const char *client, size_t n);

/* qn_client_push - put a request in the queue of its client. qn_client_remove - take it out. The caller holds
 * s->lock. */
void qn_client_push(qn_scheduler *s, qn_request *r);
void qn_client_remove(qn_scheduler *s, qn_request *r);

/* qn_client_begin - a request of the queue begins, and with it all that were submitted with it. The caller holds
 * s->lock.
 * qn_client_withdraws - whether a request of the queue must not begin. */
void qn_client_begin(qn_scheduler *s, qn_request *r);
bool qn_client_withdraws(const qn_scheduler *s, const qn_request *r);

/* qn_client_leave - a request was freed: with the last one the client is. The caller holds s->lock. */
void qn_client_leave(qn_scheduler *s, qn_client *client);

/* qn_clients_charge - the rows that a step has had. */
void qn_clients_charge(qn_scheduler *s, const qn_scheduled *step);

/* qn_clients_count_held - n_held of all clients that have running requests. */
void qn_clients_count_held(const qn_scheduler *s);

/* qn_clients_share_prompts - prompt_share of the clients of running requests that have prompts left: `rows` rows, as
 * many for each as far as they need them, in parts of `part`, beginning with the client that has had the fewest. */
void qn_clients_share_prompts(qn_scheduler *s, size_t rows, size_t part);

/* ---- queue.c ---- */

/* qn_scheduler_end_late - end what was cancelled or is late; of those with rows in flight, note that they are over. */
void qn_scheduler_end_late(qn_scheduler *s);

/* qn_scheduler_set_aside - free a running request's sequence, of which no step in flight has rows, and queue it again.
 * Its pages are kept for reuse as long as there is memory. */
void qn_scheduler_set_aside(qn_scheduler *s, qn_request *request);

/* qn_scheduler_requeue - the same without counting it. */
void qn_scheduler_requeue(qn_scheduler *s, qn_request *request);

/* qn_scheduler_end - end a request: its pages are kept for reuse, its last events queued. With QN_FINISH_ERROR, the
 * error is `status` with the thread's error text, and its pages are dropped. */
void qn_scheduler_end(qn_scheduler *s, qn_request *request, qn_finish finish, qn_status status);

/* qn_request_is_keepable - whether the pages of its sequence may be kept: where the bits of a row depend on whether it
 * is of a prompt, those with generated tokens may not. */
bool qn_request_is_keepable(const qn_scheduler *s, const qn_request *r);

/* ---- admit.c ---- */

/* qn_scheduler_admit - let requests of the queue begin, also while a step of others is computed. Where none is, running
 * requests of clients that have more than their share are set aside for others. */
void qn_scheduler_admit(qn_scheduler *s);

/* qn_scheduler_wants_place - whether qn_scheduler_admit would set a request aside if no step were in flight. */
bool qn_scheduler_wants_place(qn_scheduler *s);

/* ---- step.c ---- */

/* qn_rows_to_state - of n rows that a sequence of `length` tokens could append, the number after which its state is at
 * most that at `state`, a multiple of QN_PAGE above its state_position: so that it is there after some piece
 * (qn_sequence.state_position). */
size_t qn_rows_to_state(bool folds_whole_chunks, size_t length, size_t state, size_t n);

/* qn_request_rows_left - tokens that the sequence does not hold, a pending one included. */
size_t qn_request_rows_left(const qn_request *r);

/* qn_request_keeps_state - whether the state that its sequence has now is to be kept. qn_request_keep_prefix - keep it,
 * and the pages of a prompt that is complete. */
bool qn_request_keeps_state(const qn_scheduler *s, const qn_request *r);
void qn_request_keep_prefix(qn_scheduler *s, qn_request *r);

/* qn_scheduler_compose - the pieces of a step. qn_scheduler_reserve - memory for them; gives up that of others. Not
 * while a step is in flight. qn_scheduler_reserve_ahead - the same beside a step in flight: false, with nothing
 * reserved, if there is no memory. */
void qn_scheduler_compose(qn_scheduler *s, qn_scheduled *to);
void qn_scheduler_reserve(qn_scheduler *s, qn_scheduled *step);
bool qn_scheduler_reserve_ahead(qn_scheduled *step);

/* qn_scheduler_has_finished - whether a request is over and has not ended. */
bool qn_scheduler_has_finished(const qn_scheduler *s);

/* qn_scheduler_unreserve - give back what is reserved for a step that is not launched. */
void qn_scheduler_unreserve(qn_scheduled *step);

/* qn_scheduler_positions - workspace for a step, in positions. qn_scheduler_fill_rows - the device's step, from the
 * pieces. */
size_t qn_scheduler_positions(const qn_scheduler *s, const qn_scheduled *step);
void qn_scheduler_fill_rows(qn_scheduled *step);

/* ---- flight.c ---- */

/* qn_scheduler_run_step - returns whether there was anything to do. With a device that computes beside the host, what
 * follows from a step and the next does not depend on is left for the next call: it is done while that computes. The
 * scheduler's thread leaves a step in flight, which the next call finishes. */
bool qn_scheduler_run_step(qn_scheduler *s);

/* qn_scheduler_catch_up - emit tokens, and end requests that are over and have no rows in flight. */
void qn_scheduler_catch_up(qn_scheduler *s);

/* qn_request_fail - end a request by an error when no step in flight has its rows; its text is the thread's error
 * text. */
void qn_request_fail(qn_request *r, qn_status status);

/* qn_request_emit_last - emit the last token with has_output. */
void qn_request_emit_last(qn_scheduler *s, qn_request *r);

/* ---- sample.c ---- */

/* qn_request_next_sample - what the next token is sampled by. qn_request_waits_for_token - whether that depends on the
 * token before, or the host needs that token first: the next step cannot be launched before this one is finished. */
bool qn_request_waits_for_token(const qn_request *request);
qn_sample_request qn_request_next_sample(qn_request *request);

/* qn_request_draft - draft up to `most` tokens behind those of a request, of which no step in flight has rows, in a
 * step that has n_sequences.
 * qn_request_drafted_sample - what is sampled behind i > 0 of them. */
size_t qn_request_draft(qn_request *request, size_t n_sequences, size_t most, uint32_t *masks);
qn_sample_request qn_request_drafted_sample(qn_request *request, size_t i, const uint32_t *mask);

/* qn_request_reject - after a step whose token was rejected: the request waits for its mask. */
void qn_request_reject(qn_scheduler *s, qn_request *request, const qn_sample_request *sampled);

/* qn_request_sample_masked - make the mask and sample under it; false if the request was cancelled. The state is not
 * changed. */
bool qn_request_sample_masked(qn_request *request);
void qn_request_set_mask_state(qn_scheduler *s, qn_request *request, int state);

/* qn_request_take_masked - whether a token was sampled under a mask since the last step; then *status, and *sampled or
 * the thread's error text. */
bool qn_request_take_masked(qn_request *request, qn_sample_request *sampled, qn_status *status);

/* qn_scheduler_await_masks - if running requests wait for masks: return when one has it, or there is other work, or
 * soon. */
void qn_scheduler_await_masks(qn_scheduler *s);

/* ---- masks.c ---- */

/* qn_scheduler_push_mask - a request waits for its mask. */
void qn_scheduler_push_mask(qn_scheduler *s, qn_request *request);

/* qn_scheduler_push_end - queue a request's last event, behind a mask that is being made. One that is not begun is not
 * made. */
void qn_scheduler_push_end(qn_scheduler *s, qn_request *request);

/* qn_scheduler_make_mask - make the mask that is next; false: there is none. The caller holds events_lock, which is
 * given up meanwhile. */
bool qn_scheduler_make_mask(qn_scheduler *s);

/* qn_scheduler_masks - the thread of masks. */
void *qn_scheduler_masks(void *scheduler);

/* ---- output.c ---- */

/* qn_scheduler_push - queue an event. qn_scheduler_push_locked - the same; the caller holds events_lock. */
void qn_scheduler_push(qn_scheduler *s, qn_event *event);
void qn_scheduler_push_locked(qn_scheduler *s, qn_event *event);

/* qn_request_emit - queue a sampled token and its text. Sets *found to whether a stop string ended the request. */
qn_status qn_request_emit(qn_scheduler *s, qn_request *request, qn_token token, bool has_text, bool *found);

/* qn_request_push_parsed - queue an event of a request's answer. */
qn_status qn_request_push_parsed(void *request, const qn_output_event *event);

/* qn_request_emit_end - queue the text held back and the last event. */
void qn_request_emit_end(qn_scheduler *s, qn_request *request);

/* qn_scheduler_deliver - call the callbacks of all queued events, and make all masks. */
void qn_scheduler_deliver(qn_scheduler *s);

/* qn_scheduler_delivery - the delivery thread. */
void *qn_scheduler_delivery(void *scheduler);

#endif
