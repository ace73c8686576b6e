/* Masks of grammars: a queue for each client, and the thread that makes them. The client that supplies a grammar pays
 * for its masks: they are not made on the delivery thread, and the client whose masks have taken the least time goes
 * first. A caller's mask is a callback and therefore an event (output.c). */
#include "scheduler/scheduler.h"

/* Queues a request's mask. A client that had no masks has no claim on the time that others used meanwhile: its time is
 * raised to theirs. The caller of this function and of the next two holds events_lock. */
static void enqueue(qn_scheduler *s, qn_request *r)
{
    qn_client *c = r->client, **client = &s->masking;
    qn_request **link = &c->masks;
    if (!c->masks) {
        c->mask_seconds = c->mask_seconds > s->mask_seconds ? c->mask_seconds : s->mask_seconds;
        while (*client)
            client = &(*client)->next_masking;
        *client = c;
        c->next_masking = NULL;
    }
    while (*link)
        link = &(*link)->next_mask;
    *link = r;
    r->next_mask = NULL;
    r->mask_place = QN_MASK_QUEUED;
}

static void dequeue(qn_scheduler *s, qn_request *r)
{
    qn_client *c = r->client, **client = &s->masking;
    qn_request **link = &c->masks;
    while (*link != r)
        link = &(*link)->next_mask;
    *link = r->next_mask;
    r->mask_place = QN_MASK_NOWHERE;
    if (c->masks)
        return;
    while (*client != c)
        client = &(*client)->next_masking;
    *client = c->next_masking;
}

/* Takes the first queued request of the client whose masks have taken the least time; NULL if none is queued. The
 * caller holds events_lock. */
static qn_request *take(qn_scheduler *s)
{
    qn_client *least = s->masking;
    for (qn_client *c = s->masking; c; c = c->next_masking)
        if (c->mask_seconds < least->mask_seconds)
            least = c;
    if (!least)
        return NULL;
    qn_request *r = least->masks;
    s->mask_seconds = least->mask_seconds;
    dequeue(s, r);
    r->mask_place = QN_MASK_MADE;
    return r;
}

void qn_scheduler_push_mask(qn_scheduler *s, qn_request *r)
{
    if (!r->constraint.match) {
        qn_scheduler_push(s, &r->mask);
        return;
    }
    pthread_mutex_lock(&s->events_lock);
    enqueue(s, r);
    pthread_cond_signal(&s->has_masks);
    pthread_mutex_unlock(&s->events_lock);
}

void qn_scheduler_push_end(qn_scheduler *s, qn_request *r)
{
    pthread_mutex_lock(&s->events_lock);
    if (r->mask_place == QN_MASK_QUEUED)
        dequeue(s, r);
    r->ends_after_mask = r->mask_place == QN_MASK_MADE;
    if (!r->ends_after_mask)
        qn_scheduler_push_locked(s, &r->end);
    pthread_mutex_unlock(&s->events_lock);
}

bool qn_scheduler_make_mask(qn_scheduler *s)
{
    qn_request *r = take(s);
    if (!r)
        return false;
    pthread_mutex_unlock(&s->events_lock);
    const double begin = qn_now();
    const bool is_sampled = qn_request_sample_masked(r);
    const double seconds = qn_now() - begin;
    pthread_mutex_lock(&s->events_lock);
    r->client->mask_seconds += seconds;
    r->mask_place = QN_MASK_NOWHERE;
    if (r->ends_after_mask)
        qn_scheduler_push_locked(s, &r->end);
    else if (is_sampled)
        qn_request_set_mask_state(s, r, QN_MASK_SAMPLED);
    return true;
}

void *qn_scheduler_masks(void *scheduler)
{
    qn_scheduler *s = scheduler;
    pthread_mutex_lock(&s->events_lock);
    while (qn_scheduler_make_mask(s) || !s->no_more_masks)
        if (!s->masking && !s->no_more_masks)
            pthread_cond_wait(&s->has_masks, &s->events_lock);
    pthread_mutex_unlock(&s->events_lock);
    return NULL;
}
