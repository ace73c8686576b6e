/* The end of sequences: puts requests that are set aside back in the queue, and ends other requests, including those
 * that were cancelled, withdrawn or are past their deadline. All functions run on the step thread; the delivery thread
 * frees the requests (output.c). */
#include "scheduler/scheduler.h"

#include <string.h>

/* Takes a request out of the running ones, if it is one of them. The caller holds s->lock. */
static void unlink_running(qn_scheduler *s, const qn_request *r)
{
    for (uint32_t i = 0; i < s->n_running; i++)
        if (s->running[i] == r) {
            memmove(&s->running[i], &s->running[i + 1], (s->n_running - i - 1) * sizeof(qn_request *));
            s->n_running--;
            r->client->n_running--;
            qn_places_leave(s, r);
            break;
        }
}

/* ---- The end of a sequence ---- */

bool qn_request_is_keepable(const qn_scheduler *s, const qn_request *r)
{
    return !s->model->device->piece || r->memory->sequence->length <= r->n_prompt;
}

static void keep_pages(qn_scheduler *s, qn_request *r)
{
    if (s->kept && r->memory && r->memory->sequence->length && qn_request_is_keepable(s, r))
        qn_kept_state(s->kept, r->lists->scope, qn_token_ids(r->tokens), r->memory, QN_STATE_MARK);
}

static void free_memory(qn_scheduler *s, qn_request *r)
{
    qn_draft_model_leave(s, r);
    if (!r->memory)
        return;
    if (!s->generation) /* else it is the session's */
        r->memory->vtable->free(r->memory);
    r->memory = NULL;
    s->n_released++;
}

void qn_scheduler_requeue(qn_scheduler *s, qn_request *r)
{
    if (r->has_output)
        qn_request_emit_last(s, r);
    keep_pages(s, r);
    r->n_lost = r->memory->sequence->length;
    free_memory(s, r);
    r->admitted_after = s->n_released;
    r->kept_state = 0;
    pthread_mutex_lock(&s->lock); /* once: a request that is being cancelled is in one of the two lists */
    unlink_running(s, r);
    qn_client_push(s, r);
    pthread_mutex_unlock(&s->lock);
}

void qn_scheduler_set_aside(qn_scheduler *s, qn_request *r)
{
    r->result.n_set_aside++;
    pthread_mutex_lock(&s->lock);
    s->counters.set_aside++;
    pthread_mutex_unlock(&s->lock);
    qn_scheduler_requeue(s, r);
}

void qn_scheduler_end(qn_scheduler *s, qn_request *r, qn_finish finish, qn_status status)
{
    const double now = qn_now();
    if (finish == QN_FINISH_ERROR && r->failure == QN_OK)
        memcpy(r->error, qn_error_text(), strlen(qn_error_text()) + 1);
    if (r->has_output)
        qn_request_emit_last(s, r);
    if (r->failure != QN_OK) {
        finish = QN_FINISH_ERROR;
        status = r->failure;
    }
    r->result.finish = finish;
    r->result.status = finish == QN_FINISH_ERROR ? status : QN_OK;
    if (finish != QN_FINISH_ERROR)
        keep_pages(s, r);
    free_memory(s, r);
    if (s->written && r->cap_tokens && r->drafts.proposes)
        qn_written_add(s->written, r->lists->scope, r->tokens + r->n_prompt, r->n_tokens - r->n_prompt);
    pthread_mutex_lock(&s->lock);
    unlink_running(s, r);
    pthread_mutex_unlock(&s->lock);
    const double admitted = r->admitted > 0 ? r->admitted : now, first = r->first_token > 0 ? r->first_token : now;
    r->result.queued_seconds = admitted - r->submitted;
    r->result.prompt_seconds = first - admitted;
    r->result.generate_seconds = now - first;
    qn_request_emit_end(s, r);
}

/* ---- Cancelled, late and withdrawn ones ---- */

static bool is_over(const qn_request *r, double now, qn_finish *finish)
{
    const qn_generation *g = r->scheduler->generation;
    const bool is_cancelled = atomic_load(&r->cancelled) || (g && atomic_load(&g->session->cancelled));
    *finish = is_cancelled ? QN_FINISH_CANCELLED : QN_FINISH_DEADLINE;
    return is_cancelled || now >= r->deadline;
}

static void end_queued(qn_scheduler *s, double now)
{
    qn_request *over = NULL;
    qn_finish finish;
    pthread_mutex_lock(&s->lock);
    for (const qn_client *c = s->clients; c; c = c->next)
        for (qn_request *r = c->queue, *next; r; r = next) {
            next = r->next;
            if (!is_over(r, now, &finish) && !qn_client_withdraws(s, r))
                continue;
            qn_client_remove(s, r);
            r->next = over;
            over = r;
        }
    pthread_mutex_unlock(&s->lock);
    for (qn_request *next; over; over = next) {
        next = over->next;
        if (!is_over(over, now, &finish))
            finish = QN_FINISH_WITHDRAWN;
        qn_scheduler_end(s, over, finish, QN_OK);
    }
}

static void end_running(qn_scheduler *s, double now)
{
    qn_finish finish;
    for (uint32_t i = s->n_running; i-- > 0;) {
        qn_request *r = s->running[i];
        if (r->is_over || !is_over(r, now, &finish))
            continue;
        r->is_over = true;
        r->result.finish = finish;
        if (!r->n_in_flight)
            qn_scheduler_end(s, r, finish, QN_OK);
    }
}

void qn_scheduler_end_late(qn_scheduler *s)
{
    const double now = qn_now();
    end_queued(s, now);
    end_running(s, now);
}
