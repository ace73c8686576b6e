/* Answers: their lifetime, the scheduler requests of an exchange, and the callbacks that fill the queue.
 *
 * The answer's lock and the outbox's lock are never held together: notify() is called after the answer's lock is
 * released. A protocol's functions that write the answer, and the scheduler's cancellation, are called with the
 * answer's lock, so they must not call back into the answer. Static functions are called without the lock and take it
 * where they need it, unless a comment says otherwise. */
#include "serve/answer.h"

#include "base/append.h"
#include "base/memory.h"
#include "base/random.h"
#include "http/clock.h"
#include "protocol/json_body.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One of the answer's scheduler requests: the `user` of its callbacks. Valid until its on_end has returned. */
typedef struct slot {
    qn_answer *answer;
    size_t index;
    double last_token;         /* qn_now; 0: no token yet */
    qn_recall_answer recalled; /* texts so far */
} slot;

struct qn_answer {
    qn_outbox *outbox;
    qn_answer_params params;
    char scope[QN_KEY_SCOPE_BYTES], client[QN_ANSWER_CLIENT_BYTES];
    qn_bytes body; /* kept until a request has begun, if the model may be freed for others: then it is parsed again */
    char secret[49];
    int64_t created;
    uint64_t seed;
    void *user; /* the I/O thread's */
    atomic_uint references;
    qn_answer *next_job; /* protected by the worker pool's lock */
    /* Protected by the outbox's lock. */
    qn_answer *next;
    bool is_listed;
    /* Belongs to the thread that works on the answer: a worker, the waker, then the callbacks. */
    const qn_registered *model; /* a reference; NULL before it is acquired and after the end */
    qn_exchange *exchange;
    qn_waiter waiter;
    slot *slots;          /* [exchange->n_requests] */
    uint64_t *ids;        /* [n_submitted]; n_submitted is protected by `lock` */
    pthread_mutex_t lock; /* protects the members below, and the exchange from begin() on */
    size_t n_submitted;
    size_t n_left;      /* requests that have not ended, plus 1 while the worker submits */
    size_t n_withdrawn; /* requests that ended because their model is drained */
    bool is_ending;     /* n_left is 0: a worker writes the end */
    bool is_back;       /* all requests were withdrawn: a worker waits for the model again */
    bool has_begun;     /* the beginning of a stream was written */
    bool may_open;      /* a stream that waits for its model */
    qn_bytes out;
    size_t n_taken; /* bytes of `out` */
    size_t n_begun; /* length of the beginning of a stream, which may be long: it may repeat prompts */
    qn_answer_view view;
    bool is_abandoned;  /* nothing is appended any more */
    bool is_stopped;    /* with `refusal` */
    bool was_cancelled; /* is_abandoned, is_stopped or a withdrawal ended a request early */
    qn_refusal refusal;
    /* Belongs to the worker that submits, then to the thread that ends the answer. */
    size_t n_kept; /* bytes reserved for memory of the scheduler */
    bool is_over;  /* the account had no bytes left */
};

/* ---- The outbox ---- */

qn_status qn_outbox_init(qn_outbox *outbox, qn_poller *poller)
{
    *outbox = (qn_outbox){ .poller = poller };
    return pthread_mutex_init(&outbox->lock, NULL) ? qn_fail(QN_ERR_MEMORY, "no memory for a lock") : QN_OK;
}

void qn_outbox_free(qn_outbox *outbox)
{
    pthread_mutex_destroy(&outbox->lock);
}

/* Puts the answer into the outbox, with a reference, unless it is there. Takes the outbox's lock. */
static void notify(qn_answer *a)
{
    qn_outbox *outbox = a->outbox;
    pthread_mutex_lock(&outbox->lock);
    const bool is_new = !a->is_listed, was_empty = !outbox->first;
    if (is_new) {
        atomic_fetch_add(&a->references, 1);
        a->is_listed = true;
        a->next = NULL;
        if (was_empty)
            outbox->first = a;
        else
            outbox->last->next = a;
        outbox->last = a;
    }
    pthread_mutex_unlock(&outbox->lock);
    if (is_new && was_empty)
        qn_poller_wake(outbox->poller);
}

qn_answer *qn_outbox_take(qn_outbox *outbox)
{
    pthread_mutex_lock(&outbox->lock);
    qn_answer *a = outbox->first;
    if (a) {
        outbox->first = a->next;
        a->is_listed = false;
    }
    pthread_mutex_unlock(&outbox->lock);
    return a;
}

void qn_outbox_end(qn_outbox *outbox)
{
    pthread_mutex_lock(&outbox->lock);
    const bool is_empty = !outbox->first;
    pthread_mutex_unlock(&outbox->lock);
    if (!is_empty)
        qn_poller_wake(outbox->poller);
}

/* ---- Life ---- */

qn_answer *qn_answer_create(qn_outbox *outbox, const qn_answer_params *params, qn_bytes *body, void *user)
{
    qn_answer *a = calloc(1, sizeof *a);
    if (!a || pthread_mutex_init(&a->lock, NULL)) {
        free(a);
        qn_bytes_free(body);
        return NULL;
    }
    a->outbox = outbox;
    a->params = *params;
    snprintf(a->scope, sizeof a->scope, "%s", params->scope ? params->scope : "");
    qn_account_hold(params->account);
    snprintf(a->client, sizeof a->client, "%s", params->client);
    a->body = *body;
    *body = (qn_bytes){ 0 };
    a->out.account = params->account;
    a->user = user;
    atomic_init(&a->references, 1);
    return a;
}

void qn_answer_hold(qn_answer *a)
{
    atomic_fetch_add(&a->references, 1);
}

/* Frees the exchange and all else that uses the model, then gives the model back. All requests have ended, or there
 * were none, so no other thread uses them. The caller does not hold the lock. */
static void leave_model(qn_answer *a)
{
    for (size_t i = 0; a->slots && i < a->exchange->n_requests; i++)
        qn_recall_answer_free(&a->slots[i].recalled);
    qn_free(a->slots);
    qn_exchange_free(a->exchange);
    if (a->model)
        qn_registry_release(a->params.registry, a->model);
    qn_account_give(a->params.account, a->n_kept);
    a->n_kept = 0;
    a->slots = NULL;
    a->exchange = NULL;
    a->model = NULL;
}

void qn_answer_release(qn_answer *a)
{
    if (!a || atomic_fetch_sub(&a->references, 1) != 1)
        return;
    leave_model(a);
    qn_free(a->ids);
    qn_bytes_free(&a->body);
    qn_bytes_free(&a->out);
    qn_account_release(a->params.account);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

const char *qn_answer_client(const qn_answer *a)
{
    return a->client;
}

void qn_answer_link(qn_answer *a, qn_answer *next)
{
    a->next_job = next;
}

qn_answer *qn_answer_linked(const qn_answer *a)
{
    return a->next_job;
}

/* ---- The end ---- */

/* Makes the answer a refusal. Bytes that were written but not sent are dropped. A stream that cannot report the
 * refusal, as there is no memory to parse its body again, is cut. The caller holds the lock and owns the exchange. */
static void refuse(qn_answer *a, const qn_refusal *refusal)
{
    const bool has_begun = a->view.is_stream && a->view.is_accepted;
    qn_refusal named = *refusal;
    named.id = a->params.id;
    if (has_begun && !a->exchange) {
        a->is_abandoned = true;
    } else if (has_begun) {
        a->params.protocol->fail(a->exchange, &named, &a->out);
    } else {
        qn_bytes_free(&a->out);
        a->n_taken = 0;
        a->params.protocol->refuse(&named, &a->out);
        a->view.status = refusal->status;
        a->view.retry_after = refusal->retry_after;
        a->view.is_stream = false;
    }
    a->view.is_accepted = a->view.is_done = true;
}

/* Completes the answer after all requests have ended. The caller holds the lock. */
static void finish(qn_answer *a)
{
    if (a->is_abandoned || a->view.is_done)
        return;
    if (a->is_stopped && a->was_cancelled) {
        refuse(a, &a->refusal);
        return;
    }
    const int status = a->exchange->protocol->end(a->exchange, &a->out);
    if (a->out.has_failed && !a->view.is_stream) {
        qn_refuse_over(a->params.account, &a->refusal);
        refuse(a, &a->refusal);
        return;
    }
    if (!a->view.is_stream)
        a->view.status = status;
    a->is_abandoned = a->out.has_failed;
    a->view.is_accepted = a->view.is_done = true;
    if (a->exchange->n_requests) /* others, such as token counts, do not use the model */
        qn_metrics_latency(a->model->metrics, qn_now() - a->params.arrived);
}

/* Ends an answer without requests left: completes it, gives the model back, tells the connection, and releases the
 * requests' reference. The answer may be freed afterwards. */
static void end(qn_answer *a)
{
    pthread_mutex_lock(&a->lock);
    finish(a);
    a->view.has_ended = true;
    pthread_mutex_unlock(&a->lock);
    leave_model(a);
    notify(a);
    qn_answer_release(a);
}

/* If no request has begun and the model is drained, has a worker wait for the model again, and releases the requests'
 * reference. False: the answer ends instead. Called when no requests are left. */
static bool go_back(qn_answer *a)
{
    pthread_mutex_lock(&a->lock);
    const bool goes = a->n_withdrawn && a->n_withdrawn == a->exchange->n_requests && !a->is_abandoned && !a->is_stopped;
    a->is_back = goes;
    a->n_submitted = goes ? 0 : a->n_submitted;
    pthread_mutex_unlock(&a->lock);
    if (!goes)
        return false;
    a->params.restart(a->params.restart_user, a);
    qn_answer_release(a); /* the requests' reference */
    return true;
}

/* Removes n from n_left: requests that ended or were not submitted, or the worker. Returns whether none is left. */
static bool leave(qn_answer *a, size_t n)
{
    pthread_mutex_lock(&a->lock);
    a->n_left -= n;
    const bool is_last = !a->n_left;
    pthread_mutex_unlock(&a->lock);
    return is_last;
}

/* Ends an answer after its last request, on the scheduler's callback thread. Writing many choices, or log
 * probabilities, takes long: then a worker does it (is_ending), so that callbacks of other requests do not wait. */
static void end_by_callback(qn_answer *a)
{
    const qn_exchange *x = a->exchange;
    if (go_back(a))
        return;
    if (x->is_stream || (x->n_requests == 1 && x->requests->n_logprobs < 0)) {
        end(a);
        return;
    }
    pthread_mutex_lock(&a->lock);
    a->is_ending = true;
    pthread_mutex_unlock(&a->lock);
    a->params.restart(a->params.restart_user, a);
}

bool qn_answer_is_ending(qn_answer *a)
{
    pthread_mutex_lock(&a->lock);
    const bool is_ending = a->is_ending;
    pthread_mutex_unlock(&a->lock);
    return is_ending;
}

/* Unless a stream has begun, the exchange is freed before the text of the refusal is allocated: that text could lie
 * above the exchange on the heap, which then could not shrink. */
void qn_answer_refuse(qn_answer *a, const qn_refusal *refusal)
{
    pthread_mutex_lock(&a->lock);
    a->may_open = false;
    const bool has_begun = a->view.is_stream && a->view.is_accepted;
    pthread_mutex_unlock(&a->lock);
    if (!has_begun)
        leave_model(a);
    pthread_mutex_lock(&a->lock);
    if (!a->is_abandoned)
        refuse(a, refusal);
    a->view.has_ended = true;
    pthread_mutex_unlock(&a->lock);
    leave_model(a);
    notify(a);
}

/* ---- Callbacks ----
 *
 * Members of qn_request_params; `user` is the slot. The scheduler's callback thread calls them, without a lock, but for
 * on_memory. They return false to end the request. */

/* Whether the connection can use something new. The caller holds the lock. */
static bool has_news(const qn_answer *a)
{
    return a->view.is_done || (a->view.is_stream && a->view.is_accepted && a->out.length > a->n_taken);
}

/* Abandons the answer if more bytes wait than a client that reads would leave, or if the queue had no memory. Its
 * requests are cancelled by their next callbacks, which return false. The caller holds the lock. */
static void check_waiting(qn_answer *a)
{
    const size_t most = QN_ANSWER_MAX_WAITING + a->n_begun;
    if (a->out.has_failed || a->out.length - a->n_taken > most)
        a->is_abandoned = a->view.is_done = true;
}

/* Hands an event to the protocol, under the lock, and tells the connection of news. False: the request is not needed
 * any more, and the scheduler ends it. */
static bool pass(slot *s, const qn_exchange_event *event)
{
    qn_answer *a = s->answer;
    pthread_mutex_lock(&a->lock);
    const bool is_wanted = !a->is_abandoned && !a->view.is_done;
    const bool is_cut = a->is_stopped && event->kind == QN_EXCHANGE_END && qn_is_cancelled(event->result);
    if (is_wanted && !is_cut) { /* an answer that is cut ends with an error */
        const size_t length = a->out.length;
        a->exchange->protocol->event(a->exchange, s->index, event, &a->out);
        a->n_begun += event->kind == QN_EXCHANGE_PROMPT ? a->out.length - length : 0;
        check_waiting(a);
    }
    const bool go_on = is_wanted && !a->is_abandoned && !a->is_stopped && !a->exchange->has_failed,
               is_new = has_news(a);
    pthread_mutex_unlock(&a->lock);
    if (is_new && is_wanted)
        notify(a);
    return go_on;
}

static bool on_prompt_token(void *user, size_t index, qn_token token, const qn_logprobs *logprobs)
{
    return pass(
        user, &(qn_exchange_event){ .kind = QN_EXCHANGE_PROMPT, .index = index, .token = token, .logprobs = logprobs });
}

static bool on_text(void *user, const char *text, size_t length)
{
    return pass(user, &(qn_exchange_event){ .kind = QN_EXCHANGE_TEXT, .text = text, .length = length });
}

static bool on_event(void *user, const qn_output_event *event)
{
    slot *s = user;
    s->recalled.reasoning.account = s->recalled.content.account = s->answer->params.account;
    qn_recall_take(&s->recalled, event);
    return pass(s, &(qn_exchange_event){ .kind = QN_EXCHANGE_OUTPUT, .output = event });
}

static bool on_token(void *user, qn_token token, const qn_logprobs *logprobs)
{
    slot *s = user;
    const qn_answer *a = s->answer;
    const double now = qn_now();
    if (s->last_token > 0) {
        qn_metrics_next_token(a->model->metrics, now - s->last_token);
    } else {
        qn_metrics_first_token(a->model->metrics, now - a->params.arrived);
        qn_bytes_free(&s->answer->body); /* it is not parsed again */
    }
    s->last_token = now;
    return pass(s, &(qn_exchange_event){ .kind = QN_EXCHANGE_TOKEN, .token = token, .logprobs = logprobs });
}

static bool on_progress(void *user, const qn_prompt_progress *progress)
{
    return pass(user, &(qn_exchange_event){ .kind = QN_EXCHANGE_PROGRESS, .progress = progress });
}

static bool on_embedding(void *user, const float *embedding, size_t n)
{
    slot *s = user;
    qn_bytes_free(&s->answer->body); /* it is not parsed again */
    return pass(s, &(qn_exchange_event){ .kind = QN_EXCHANGE_EMBEDDING, .embedding = embedding, .length = n });
}

/* Reserves memory of the scheduler for a request in the account. Called by the worker's thread while it submits. */
static bool on_memory(void *user, size_t bytes)
{
    const slot *s = user;
    qn_answer *a = s->answer;
    a->is_over = !qn_account_take(a->params.account, bytes);
    a->n_kept += a->is_over ? 0 : bytes;
    return !a->is_over;
}

/* Whether a request is the first of its prompt, whose tokens are counted once: choices of one prompt share its tokens.
 * A conversation is one prompt. */
static bool is_first_choice(const qn_exchange *exchange, size_t i)
{
    return !i || exchange->requests[i].tokens != exchange->requests[i - 1].tokens;
}

/* Counts a request that was withdrawn before it began. After the last request the answer waits again or ends. */
static void withdraw(qn_answer *a)
{
    pthread_mutex_lock(&a->lock);
    a->n_withdrawn++;
    a->was_cancelled = true;
    pthread_mutex_unlock(&a->lock);
    if (leave(a, 1))
        end_by_callback(a);
}

static void on_end(void *user, const qn_request_result *result)
{
    slot *s = user;
    qn_answer *a = s->answer;
    if (result->finish == QN_FINISH_WITHDRAWN) {
        withdraw(a);
        return;
    }
    qn_metrics_ended(a->model->metrics, result, is_first_choice(a->exchange, s->index)); /* who has the end finds it
                                                                                            counted */
    (void)pass(s, &(qn_exchange_event){ .kind = QN_EXCHANGE_END, .result = result });
    if (result->finish == QN_FINISH_STOP || result->finish == QN_FINISH_LENGTH || result->finish == QN_FINISH_CONTEXT)
        qn_recall_keep(a->model->recall, a->scope, a->exchange, s->index, &s->recalled);
    pthread_mutex_lock(&a->lock);
    if (is_first_choice(a->exchange, s->index)) {
        a->view.usage.n_prompt += result->n_prompt;
        a->view.usage.n_cached += result->n_reused;
    }
    a->view.usage.n_generated += result->n_generated;
    a->was_cancelled |= qn_is_cancelled(result);
    pthread_mutex_unlock(&a->lock);
    if (leave(a, 1))
        end_by_callback(a);
}

/* ---- Requests ---- */

/* Cancels all submitted requests. Called by any thread. As long as requests are left, the model reference is valid: it
 * is given back only after on_end, which takes the lock, has counted the last one. */
static void cancel(qn_answer *a)
{
    pthread_mutex_lock(&a->lock);
    const size_t n = a->n_left ? a->n_submitted : 0;
    for (size_t i = 0; i < n; i++)
        qn_scheduler_cancel(a->model->scheduler, a->ids[i]);
    pthread_mutex_unlock(&a->lock);
}

/* Sets the seed and the secret that tell this exchange from others with the same body. False: no random numbers. */
static bool find_origin(qn_answer *a)
{
    unsigned char random[24] = { 0 };
    if (*a->secret)
        return true;
    if (!qn_random_bytes(random, sizeof random))
        return false;
    qn_text_buffer text = QN_APPEND_TO(a->secret);
    qn_append_hex(&text, random, sizeof random);
    a->created = (int64_t)qn_time();
    a->seed = a->params.seed;
    if (!a->params.has_seed)
        memcpy(&a->seed, random, sizeof a->seed);
    return true;
}

/* Parses the body into an exchange, which keeps its own references to the values that it needs. Frees the body unless
 * it may be parsed again. False: refused. */
static bool parse(qn_answer *a, qn_refusal *refusal)
{
    if (!find_origin(a))
        return qn_refuse(refusal, 500, "failed", NULL, "no random numbers");
    const qn_exchange_origin origin = {
        .id = a->params.id, .secret = a->secret, .created = a->created, .seed = a->seed
    };
    qn_reading reading = { .limits = a->params.limits, .account = a->params.account };
    json_t *json = qn_body_read(a->body.data ? a->body.data : "", a->body.length, &reading, refusal);
    if (!qn_registry_frees(a->params.registry))
        qn_bytes_free(&a->body);
    a->exchange = json ? qn_exchange_create(a->params.protocol, json, &reading, &origin, refusal) : NULL;
    json_decref(json);
    pthread_mutex_lock(&a->lock);
    a->view.n_omitted = a->exchange ? a->exchange->n_omitted : 0;
    pthread_mutex_unlock(&a->lock);
    return a->exchange != NULL;
}

/* Parses the body of an answer that waits again. The old exchange is freed before the model may be. */
static bool parse_again(qn_answer *a, qn_refusal *refusal)
{
    leave_model(a);
    a->waiter.wake = NULL;
    a->waiter.is_back = true;
    pthread_mutex_lock(&a->lock);
    a->n_withdrawn = 0;
    a->is_back = a->was_cancelled = false;
    pthread_mutex_unlock(&a->lock);
    return parse(a, refusal);
}

/* Returns the model with the name that answers have: the body's if it has one, else the registry's. */
static const qn_served *served_of(const qn_answer *a)
{
    return a->exchange->model ? &a->model->echoed : &a->model->served;
}

/* Refuses a body that would not be queued, before its tokens are counted. */
static bool check_queue(const qn_answer *a, qn_refusal *refusal)
{
    const qn_status status = qn_scheduler_check_room(a->model->scheduler, a->client, 1);
    if (status)
        qn_exchange_refuse_status(served_of(a), status, 0, refusal);
    return !status;
}

/* Returns the scope of prefixes kept for later requests; NULL: all clients share them. */
static const char *scope_of(const qn_answer *a)
{
    return a->params.shares_prefixes || !*a->scope ? NULL : a->scope;
}

/* Makes the scheduler requests of the exchange for the model, and a slot and an id for each. False: refused. */
static bool bind(qn_answer *a, qn_refusal *refusal)
{
    if (!a->exchange->protocol->is_direct && !check_queue(a, refusal))
        return false;
    a->exchange->n_values +=
        qn_recall_apply(a->model->recall, a->scope, a->exchange->conversation, a->params.account).n_bytes;
    a->exchange->scope = scope_of(a);
    if (!qn_exchange_bind(a->exchange, served_of(a), refusal))
        return false;
    const size_t n = a->exchange->n_requests;
    pthread_mutex_lock(&a->lock);
    a->view.warning = a->exchange->warning;
    a->view.model = a->model->name;
    pthread_mutex_unlock(&a->lock);
    if (qn_alloc(&a->slots, n, sizeof *a->slots, "requests") ||
        (!a->ids && qn_alloc(&a->ids, n, sizeof *a->ids, "requests")))
        return qn_refuse(refusal, 500, "out_of_memory", NULL, "no memory for the request");
    return true;
}

/* Sets the callbacks of request i, and whose it is. */
static void prepare(qn_answer *a, size_t i)
{
    qn_request_params *params = &a->exchange->requests[i];
    a->slots[i] = (slot){ .answer = a, .index = i };
    params->on_text = a->exchange->has_events || params->pooling ? NULL : on_text;
    params->on_event = a->exchange->has_events ? on_event : NULL;
    params->on_prompt_token = on_prompt_token;
    params->on_token = on_token;
    params->on_progress = a->exchange->has_progress ? on_progress : NULL;
    params->on_embedding = params->pooling ? on_embedding : NULL;
    params->on_end = on_end;
    params->on_memory = on_memory;
    params->user = &a->slots[i];
    params->scope = scope_of(a);
    params->client = a->client;
}

/* Submits all requests; callbacks may run before it returns. A stream begins in the queue, from which nobody reads
 * before it is accepted. False: refused, and no request was submitted. */
static bool submit(qn_answer *a, qn_refusal *refusal)
{
    const size_t n = a->exchange->n_requests;
    qn_submit_refusal refused = QN_SUBMIT_REFUSAL_INIT;
    for (size_t i = 0; i < n; i++)
        prepare(a, i);
    const qn_status status = qn_scheduler_submit_all(a->model->scheduler, a->exchange->requests, n, a->ids, &refused);
    if (status && a->is_over)
        return qn_refuse_over(a->params.account, refusal);
    if (status) {
        qn_exchange_refuse_status(served_of(a), status, refused.n_prompt, refusal);
        return false;
    }
    pthread_mutex_lock(&a->lock);
    a->n_submitted = n;
    pthread_mutex_unlock(&a->lock);
    return true;
}

/* Begins the answer and submits its requests. The worker counts as a request until all are submitted, so that only one
 * thread finds that none is left. */
static void run(qn_answer *a)
{
    const size_t n = a->exchange->n_requests;
    qn_refusal refusal = { 0 };
    qn_bytes again = { 0 };
    pthread_mutex_lock(&a->lock);
    a->n_left = n + 1;
    a->may_open = false;
    a->view.is_stream = a->exchange->is_stream;
    a->view.status = 200;
    a->exchange->protocol->begin(a->exchange, a->has_begun ? &again : &a->out);
    a->n_begun = a->has_begun ? a->n_begun : a->out.length;
    a->has_begun = true;
    pthread_mutex_unlock(&a->lock);
    qn_bytes_free(&again);

    const bool is_queued = submit(a, &refusal);
    pthread_mutex_lock(&a->lock);
    const bool is_useless = a->is_abandoned || a->is_stopped;
    if (is_queued)
        a->view.is_accepted = true;
    else if (!a->is_abandoned && !a->view.is_done)
        refuse(a, &refusal);
    const bool is_new = has_news(a);
    pthread_mutex_unlock(&a->lock);
    if (is_queued && is_useless)
        cancel(a);
    if (is_new)
        notify(a);
    if (leave(a, is_queued ? 1 : n + 1) && !go_back(a))
        end(a);
}

/* ---- The model ---- */

/* The waiter's wake(), called by any thread; the waiter holds a reference. */
static void wake(qn_waiter *waiter)
{
    qn_answer *a = (qn_answer *)((char *)waiter - offsetof(qn_answer, waiter));
    a->model = waiter->model;
    a->params.restart(a->params.restart_user, a);
    qn_answer_release(a);
}

/* Ends a useless wait for the model, and the answer with it. If the answer does not wait, another thread owns it, which
 * ends it. */
static void leave_queue(qn_answer *a)
{
    if (!qn_registry_cancel(a->params.registry, &a->waiter))
        return;
    pthread_mutex_lock(&a->lock);
    const qn_refusal refusal = a->refusal;
    pthread_mutex_unlock(&a->lock);
    qn_answer_refuse(a, &refusal);
    qn_answer_release(a); /* the waiter's reference */
}

/* Gets the model, or makes the answer wait for it. Called again after wake(), it returns the result of the wait. Once
 * it has returned QN_ACQUIRE_WAITS, the answer belongs to another thread. */
static qn_acquired acquire(qn_answer *a, qn_refusal *refusal)
{
    if (a->waiter.wake) {
        *refusal = a->waiter.refusal;
        return a->model ? QN_ACQUIRED : QN_ACQUIRE_REFUSED;
    }
    a->waiter.wake = wake;
    a->waiter.client = a->client;
    qn_answer_hold(a); /* the waiter's reference */
    pthread_mutex_lock(&a->lock);
    a->may_open = a->exchange->is_stream;
    pthread_mutex_unlock(&a->lock);
    const qn_acquired result =
        qn_registry_acquire(a->params.registry, a->exchange->model, &a->waiter, &a->model, refusal);
    if (result != QN_ACQUIRE_WAITS)
        qn_answer_release(a);
    return result;
}

/* Whether nobody wants the answer any more. */
static bool is_useless(qn_answer *a)
{
    pthread_mutex_lock(&a->lock);
    const bool is_useless = a->is_abandoned || a->is_stopped;
    pthread_mutex_unlock(&a->lock);
    return is_useless;
}

void qn_answer_start(qn_answer *a)
{
    qn_refusal refusal;
    if (qn_answer_is_ending(a)) {
        end(a);
        return;
    }
    pthread_mutex_lock(&a->lock);
    const bool is_abandoned = a->is_abandoned, is_stopped = a->is_stopped, is_back = a->is_back;
    refusal = a->refusal;
    pthread_mutex_unlock(&a->lock);
    if (is_abandoned) {
        qn_answer_refuse(a, &refusal); /* nobody reads it */
        return;
    }
    qn_acquired result = QN_ACQUIRE_REFUSED;
    if (!is_stopped && (is_back ? parse_again(a, &refusal) : a->exchange || parse(a, &refusal)))
        result = acquire(a, &refusal);
    if (result == QN_ACQUIRE_WAITS) {
        if (is_useless(a)) /* it may have become useless since the check above */
            leave_queue(a);
        return;
    }
    if (result == QN_ACQUIRE_REFUSED || !bind(a, &refusal)) {
        qn_answer_refuse(a, &refusal);
        return;
    }
    qn_answer_hold(a); /* the requests' reference */
    run(a);
}

/* ---- The connection ---- */

void *qn_answer_user(const qn_answer *a)
{
    return a->user;
}

void qn_answer_forget(qn_answer *a)
{
    a->user = NULL;
}

qn_answer_view qn_answer_look(qn_answer *a)
{
    pthread_mutex_lock(&a->lock);
    const qn_answer_view view = a->view;
    pthread_mutex_unlock(&a->lock);
    return view;
}

long qn_answer_read(qn_answer *a, char *out, size_t most)
{
    pthread_mutex_lock(&a->lock);
    size_t n = a->out.length - a->n_taken;
    n = n < most ? n : most;
    const long result = a->is_abandoned ? QN_ANSWER_LOST : n ? (long)n : a->view.is_done ? QN_ANSWER_END : 0;
    if (result > 0) {
        memcpy(out, a->out.data + a->n_taken, n);
        a->n_taken += n;
        if (a->n_taken == a->out.length)
            a->n_taken = a->out.length = 0;
    }
    pthread_mutex_unlock(&a->lock);
    return result;
}

qn_bytes qn_answer_body(qn_answer *a)
{
    pthread_mutex_lock(&a->lock);
    const qn_bytes body = a->out;
    a->out = (qn_bytes){ 0 };
    pthread_mutex_unlock(&a->lock);
    return body;
}

bool qn_answer_open(qn_answer *a)
{
    pthread_mutex_lock(&a->lock);
    const bool opens = a->may_open && !a->is_abandoned && !a->view.is_done;
    if (opens) {
        a->view.is_stream = a->view.is_accepted = true;
        a->view.status = 200;
    }
    pthread_mutex_unlock(&a->lock);
    return opens;
}

void qn_answer_abandon(qn_answer *a)
{
    pthread_mutex_lock(&a->lock);
    const bool is_new = !a->is_abandoned && !a->view.is_done;
    a->is_abandoned = true;
    pthread_mutex_unlock(&a->lock);
    if (is_new) {
        leave_queue(a);
        cancel(a);
    }
}

void qn_answer_stop(qn_answer *a, const qn_refusal *refusal)
{
    pthread_mutex_lock(&a->lock);
    a->is_stopped = true;
    a->refusal = *refusal;
    pthread_mutex_unlock(&a->lock);
    leave_queue(a);
    cancel(a);
}
