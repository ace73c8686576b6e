/* Output: the step thread converts sampled tokens to text, finds stop strings and queues events. Another thread calls
 * the callbacks; with no_thread, the step thread does after the step. */
#include "scheduler/scheduler.h"

#include "base/memory.h"
#include "engine/calls.h"

#include <stdlib.h>
#include <string.h>

/* ---- Events ---- */

static bool has_callbacks(const qn_request *r)
{
    return r->scheduler->generation || r->params.on_token || r->params.on_text || r->params.on_event ||
           r->params.on_prompt_token || r->params.on_embedding || r->params.on_progress;
}

/* Puts a client that now has events at the end of the list. The caller holds events_lock. */
static void add_ready(qn_scheduler *s, qn_client *c)
{
    c->next_ready = NULL;
    if (s->first_ready)
        s->last_ready->next_ready = c;
    else
        s->first_ready = c;
    s->last_ready = c;
}

/* Takes one event of each client in turn: many events of one client delay those of another by one event. NULL: no event
 * is queued. The caller holds events_lock. */
static qn_event *take_event(qn_scheduler *s)
{
    qn_client *c = s->first_ready;
    if (!c)
        return NULL;
    qn_event *event = c->first_event;
    s->first_ready = c->next_ready;
    c->first_event = event->next;
    if (c->first_event)
        add_ready(s, c);
    else
        c->last_event = &c->first_event;
    return event;
}

void qn_scheduler_push_locked(qn_scheduler *s, qn_event *event)
{
    qn_client *c = event->request->client;
    event->next = NULL;
    if (!c->first_event)
        add_ready(s, c);
    *c->last_event = event;
    c->last_event = &event->next;
    pthread_cond_signal(&s->has_events);
}

void qn_scheduler_push(qn_scheduler *s, qn_event *event)
{
    pthread_mutex_lock(&s->events_lock);
    qn_scheduler_push_locked(s, event);
    pthread_mutex_unlock(&s->events_lock);
}

qn_status qn_request_push_prompt(qn_scheduler *s, qn_request *r, size_t index, const qn_logprobs *logprobs)
{
    qn_event *event;
    QN_TRY(qn_alloc(&event, 1, sizeof *event + (logprobs ? sizeof *logprobs : 0), "log probabilities of a prompt"));
    *event = (qn_event){ .request = r, .kind = QN_EVENT_PROMPT, .token = r->tokens[index], .index = index };
    if (logprobs) {
        event->logprobs = (qn_logprobs *)(void *)(event + 1);
        *event->logprobs = *logprobs;
    }
    qn_scheduler_push(s, event);
    return QN_OK;
}

qn_status qn_request_push_progress(qn_scheduler *s, qn_request *r, const qn_prompt_progress *progress)
{
    qn_event *event;
    QN_TRY(qn_alloc(&event, 1, sizeof *event, "progress of a prompt"));
    *event = (qn_event){ .request = r, .kind = QN_EVENT_PROGRESS, .token = QN_NO_TOKEN, .progress = *progress };
    qn_scheduler_push(s, event);
    return QN_OK;
}

qn_status qn_request_push_embedding(qn_scheduler *s, qn_request *r, const qn_pooled *pooled)
{
    qn_event *event;
    QN_TRY(qn_alloc(&event, 1, sizeof *event + pooled->n_embd * sizeof(float), "an embedding"));
    *event = (qn_event){ .request = r, .kind = QN_EVENT_EMBEDDING, .token = QN_NO_TOKEN, .length = pooled->n_embd };
    event->embedding = (float *)(void *)(event + 1);
    qn_pooled_vector(pooled, event->embedding);
    if (pooled->pooling == QN_POOLING_RANK) {
        event->embedding[0] = qn_ranking_score(&s->model->ranking, event->embedding);
        event->length = 1;
    }
    qn_scheduler_push(s, event);
    return QN_OK;
}

static qn_status push_token(qn_scheduler *s, qn_request *r, qn_token token, const char *text, size_t length)
{
    const bool has_logprobs = token != QN_NO_TOKEN && !r->is_forced && r->params.n_logprobs >= 0;
    qn_event *event;
    if (!has_callbacks(r))
        return QN_OK;
    QN_TRY(qn_alloc(&event, 1, sizeof *event + (has_logprobs ? sizeof *event->logprobs : 0) + length,
                    "text of a request"));
    *event = (qn_event){ .request = r, .token = token, .length = length, .text = (char *)(event + 1) };
    if (has_logprobs) {
        event->logprobs = (qn_logprobs *)(void *)(event + 1);
        *event->logprobs = r->logprobs;
        event->text += sizeof *event->logprobs;
    }
    if (length)
        memcpy(event->text, text, length);
    qn_scheduler_push(s, event);
    return QN_OK;
}

qn_status qn_request_push_parsed(void *request, const qn_output_event *parsed)
{
    qn_request *r = request;
    qn_event *event;
    QN_TRY(qn_alloc(&event, 1, sizeof *event + parsed->length, "output of a request"));
    *event = (qn_event){ .request = r, .kind = QN_EVENT_PARSED, .token = QN_NO_TOKEN, .parsed = *parsed };
    memcpy(event + 1, parsed->text, parsed->length);
    event->parsed.text = (const char *)(event + 1);
    qn_scheduler_push(r->scheduler, event);
    return QN_OK;
}

/* Handles a stop string in text that was held back: an answer that ended for its length then ended by the string. */
static void stop_late(qn_request *r, bool found)
{
    if (found && (r->result.finish == QN_FINISH_LENGTH || r->result.finish == QN_FINISH_CONTEXT))
        r->result.finish = QN_FINISH_STOP;
    r->result.is_stop_string = found && r->result.finish == QN_FINISH_STOP;
}

static qn_status finish_events(qn_request *r)
{
    if (r->events.status != QN_OK)
        return QN_OK;
    QN_TRY(qn_events_finish(&r->events, r->result.finish != QN_FINISH_STOP));
    stop_late(r, r->events.is_stop_string);
    return QN_OK;
}

/* ---- Text ---- */

/* Finds the bytes of a token, none if it has no text. They belong to the tokeniser. */
static qn_status find_bytes(const qn_scheduler *s, const qn_request *r, qn_token token, const char **bytes,
                            size_t *length)
{
    const qn_tokenizer *tok = s->model->tokenizer;
    *bytes = "";
    *length = 0;
    /* The vocabulary may be smaller than n_vocab: ids beyond it have no text. */
    if (!tok || (size_t)token >= qn_tokenizer_n_vocab(tok) ||
        (!r->params.show_special && qn_tokenizer_is_special(tok, token)))
        return QN_OK;
    return qn_tokenizer_piece(tok, token, bytes, length);
}

qn_status qn_request_emit(qn_scheduler *s, qn_request *r, qn_token token, bool has_text, bool *found)
{
    const char *bytes = "", *text, *safe = NULL;
    size_t length = 0, n, n_safe = 0;
    *found = false;
    qn_stop_hold(r->stop, (int64_t)r->result.n_generated <= r->params.min_tokens);
    if (has_text)
        QN_TRY(find_bytes(s, r, token, &bytes, &length));
    if (r->params.on_event)
        QN_TRY(push_token(s, r, token, NULL, 0));
    if (r->events.parser && has_text)
        QN_TRY(qn_events_feed(&r->events, token, bytes, length));
    *found = r->events.is_stop_string;
    if (r->params.on_event)
        return QN_OK;
    if (length && (r->params.on_text || r->params.n_stop)) {
        QN_TRY(qn_utf8_stream_feed(&r->utf8, bytes, length, &text, &n));
        QN_TRY(qn_stop_feed(r->stop, text, n, &safe, &n_safe, found));
    }
    return push_token(s, r, token, safe, n_safe);
}

/* Emits the text held back, in up to two parts. */
static qn_status flush_text(qn_scheduler *s, qn_request *r)
{
    const char *text, *safe;
    size_t n, n_safe;
    bool found;
    QN_TRY(qn_utf8_stream_flush(&r->utf8, &text, &n));
    QN_TRY(qn_stop_feed(r->stop, text, n, &safe, &n_safe, &found));
    stop_late(r, found);
    if (n_safe)
        QN_TRY(push_token(s, r, QN_NO_TOKEN, safe, n_safe));
    QN_TRY(qn_stop_flush(r->stop, &safe, &n_safe));
    return n_safe ? push_token(s, r, QN_NO_TOKEN, safe, n_safe) : QN_OK;
}

void qn_request_emit_end(qn_scheduler *s, qn_request *r)
{
    const bool has_text = r->params.on_text || r->params.n_stop || r->params.on_event;
    if (has_text && !r->result.is_stop_string && r->result.finish != QN_FINISH_WITHDRAWN) {
        const qn_status status = r->params.on_event ? finish_events(r) : flush_text(s, r);
        if (status != QN_OK && r->result.status == QN_OK) {
            r->result.finish = QN_FINISH_ERROR;
            r->result.status = status;
            memcpy(r->error, qn_error_text(), strlen(qn_error_text()) + 1);
        }
    }
    qn_scheduler_push_end(s, r);
}

/* ---- Callbacks ---- */

static void mute(qn_request *r)
{
    r->is_muted = true;
    atomic_store(&r->cancelled, true);
}

/* What was computed of the prompt. */
static void deliver_prompt(const qn_event *event)
{
    qn_request *r = event->request;
    const qn_request_params *p = &r->params;
    bool goes_on = true;
    if (r->is_muted)
        return;
    if (event->kind == QN_EVENT_PROMPT)
        goes_on = p->on_prompt_token(p->user, event->index, event->token, event->logprobs);
    else if (event->kind == QN_EVENT_PROGRESS)
        goes_on = p->on_progress(p->user, &event->progress);
    else
        goes_on = p->on_embedding(p->user, event->embedding, event->length);
    if (!goes_on)
        mute(r);
}

static void deliver_token(qn_scheduler *s, qn_event *event)
{
    qn_request *r = event->request;
    const qn_request_params *p = &r->params;
    if (r->is_muted)
        return;
    const bool has_token = event->token != QN_NO_TOKEN;
    r->n_delivered += has_token;
    if (has_token && s->generation)
        qn_generation_pass(s->generation, event->token);
    if ((has_token && p->on_token && !p->on_token(p->user, event->token, event->logprobs)) ||
        (event->length && p->on_text && !p->on_text(p->user, event->text, event->length)))
        mute(r);
}

static void deliver_parsed(qn_event *event)
{
    qn_request *r = event->request;
    if (!r->is_muted && !r->params.on_event(r->params.user, &event->parsed))
        mute(r);
}

static void deliver_end(qn_scheduler *s, qn_request *r)
{
    if (r->is_muted) {
        r->result.finish = QN_FINISH_CALLBACK;
        r->result.status = QN_OK;
        r->result.is_stop_string = false;
        r->result.n_generated = r->n_delivered;
    }
    r->result.stop_string = r->result.is_stop_string ? qn_stop_found(r->stop) : 0;
    r->result.error = r->result.finish == QN_FINISH_ERROR ? r->error : "";
    /* Counted before its last callback, from which others learn that it has ended. */
    pthread_mutex_lock(&s->lock);
    s->counters.finished++;
    pthread_mutex_unlock(&s->lock);
    qn_client *client = r->client;
    if (r->params.on_end)
        r->params.on_end(r->params.user, &r->result);
    if (s->generation)
        qn_generation_end(s->generation, &r->result);
    qn_request_free(r);
    pthread_mutex_lock(&s->lock);
    qn_client_leave(s, client);
    s->n_alive--;
    pthread_cond_broadcast(&s->ended);
    pthread_mutex_unlock(&s->lock);
}

static void deliver(qn_scheduler *s, qn_event *event)
{
    switch (event->kind) {
    case QN_EVENT_PROMPT:
    case QN_EVENT_PROGRESS:
    case QN_EVENT_EMBEDDING:
        deliver_prompt(event);
        qn_free(event);
        break;
    case QN_EVENT_OUTPUT:
        deliver_token(s, event);
        qn_free(event);
        break;
    case QN_EVENT_PARSED:
        deliver_parsed(event);
        qn_free(event);
        break;
    case QN_EVENT_MASK:
        if (qn_request_sample_masked(event->request))
            qn_request_set_mask_state(s, event->request, QN_MASK_SAMPLED);
        break;
    case QN_EVENT_END:
        deliver_end(s, event->request); /* frees the event */
        break;
    }
}

/* Calls the callbacks of the next event. Returns false if there is none. The caller holds events_lock, which is
 * released during the callbacks. */
static bool deliver_next(qn_scheduler *s)
{
    qn_event *event = take_event(s);
    if (!event)
        return false;
    pthread_mutex_unlock(&s->events_lock);
    /* Callbacks of a session may wait for schedulers. */
    const qn_calling before =
        qn_callbacks_begin(s->generation ? qn_callbacks_of() : (qn_calling){ .scheduler = s, .model = s->model });
    deliver(s, event);
    qn_callbacks_end(before);
    pthread_mutex_lock(&s->events_lock);
    return true;
}

void qn_scheduler_deliver(qn_scheduler *s)
{
    pthread_mutex_lock(&s->events_lock);
    while (deliver_next(s) || qn_scheduler_make_mask(s))
        ;
    pthread_mutex_unlock(&s->events_lock);
}

void *qn_scheduler_delivery(void *scheduler)
{
    qn_scheduler *s = scheduler;
    pthread_mutex_lock(&s->events_lock);
    while (deliver_next(s) || !s->no_more_events)
        if (!s->first_ready && !s->no_more_events)
            pthread_cond_wait(&s->has_events, &s->events_lock);
    pthread_mutex_unlock(&s->events_lock);
    return NULL;
}
