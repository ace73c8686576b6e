/* Who is evaluated: the queue, admission by memory, giving up the memory of the youngest, and the end of requests.
 *
 * The request of the highest priority is admitted when there is memory for its tokens besides what those that are running still
 * need for theirs; one that does not fit waits, and those behind it with it. When the pool is full nonetheless, because sequences
 * grow, the youngest is set aside, at most QN_MAX_SET_ASIDE times. Of those that were set aside so often only one runs at a time:
 * it can take the memory of all others, so that it ends. */
#include "engine/scheduler.h"

#include <string.h>

/* ---- The queue ---- */

static double priority_of(const qn_request *r, double now)
{
    return r->params.priority + (now - r->submitted);
}

/* The link to the request that is next; its target is NULL if the queue is empty. */
static qn_request **find_next(qn_scheduler *s, double now)
{
    qn_request **best = &s->queue;
    for (qn_request **link = &s->queue; *link; link = &(*link)->next) {
        const double difference = priority_of(*link, now) - priority_of(*best, now);
        if (difference > 0 || (difference == 0 && (*link)->id < (*best)->id))
            best = link;
    }
    return best;
}

/* The caller holds s->lock. */
static void unlink_running(qn_scheduler *s, const qn_request *r)
{
    for (uint32_t i = 0; i < s->n_running; i++)
        if (s->running[i] == r) {
            memmove(&s->running[i], &s->running[i + 1], (s->n_running - i - 1) * sizeof(qn_request *));
            s->n_running--;
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
        qn_kept_state(s->kept, r->scope, r->tokens, r->memory, QN_STATE_MARK);
}

static void free_memory(qn_scheduler *s, qn_request *r)
{
    if (!r->memory)
        return;
    r->memory->vtable->free(r->memory);
    r->memory = NULL;
    s->n_released++;
}

void qn_scheduler_set_aside(qn_scheduler *s, qn_request *r)
{
    if (r->has_output)
        qn_request_emit_last(s, r);
    keep_pages(s, r);
    free_memory(s, r);
    r->admitted_after = s->n_released;
    r->kept_state = 0;
    r->result.n_set_aside++;
    pthread_mutex_lock(&s->lock); /* once: a request that is being cancelled is in one of the two lists */
    unlink_running(s, r);
    r->next = s->queue;
    s->queue = r;
    s->n_queued++;
    s->counters.set_aside++;
    pthread_mutex_unlock(&s->lock);
}

void qn_scheduler_end(qn_scheduler *s, qn_request *r, qn_finish finish, qn_status status)
{
    const double now = qn_now();
    if (finish == QN_FINISH_ERROR && r->output_status == QN_OK)
        memcpy(r->error, qn_error_text(), strlen(qn_error_text()) + 1);
    if (r->has_output)
        qn_request_emit_last(s, r);
    if (r->output_status != QN_OK) {
        finish = QN_FINISH_ERROR;
        status = r->output_status;
    }
    r->result.finish = finish;
    r->result.status = finish == QN_FINISH_ERROR ? status : QN_OK;
    if (finish != QN_FINISH_ERROR)
        keep_pages(s, r);
    free_memory(s, r);
    pthread_mutex_lock(&s->lock);
    unlink_running(s, r);
    pthread_mutex_unlock(&s->lock);
    const double admitted = r->admitted > 0 ? r->admitted : now, first = r->first_token > 0 ? r->first_token : now;
    r->result.queued_seconds = admitted - r->submitted;
    r->result.prompt_seconds = first - admitted;
    r->result.generate_seconds = now - first;
    qn_request_emit_end(s, r);
}

/* ---- Cancelled and late ones ---- */

static bool is_over(const qn_request *r, double now, qn_finish *finish)
{
    const bool is_cancelled = atomic_load(&r->cancelled);
    *finish = is_cancelled ? QN_FINISH_CANCELLED : QN_FINISH_DEADLINE;
    return is_cancelled || now >= r->deadline;
}

static void end_queued(qn_scheduler *s, double now)
{
    qn_request *over = NULL;
    qn_finish finish;
    pthread_mutex_lock(&s->lock);
    for (qn_request **link = &s->queue; *link;) {
        qn_request *r = *link;
        if (!is_over(r, now, &finish)) {
            link = &r->next;
            continue;
        }
        *link = r->next;
        s->n_queued--;
        r->next = over;
        over = r;
    }
    pthread_mutex_unlock(&s->lock);
    for (qn_request *next; over; over = next) {
        next = over->next;
        (void)is_over(over, now, &finish);
        qn_scheduler_end(s, over, finish, QN_OK);
    }
}

static void end_running(qn_scheduler *s, double now)
{
    qn_finish finish;
    for (uint32_t i = s->n_running; i-- > 0;)
        if (!s->running[i]->is_over && is_over(s->running[i], now, &finish))
            qn_scheduler_end(s, s->running[i], finish, QN_OK);
}

/* ---- Admission ---- */

static uint64_t item_bytes(const qn_pool_class *class)
{
    return class ? qn_pool_stride(class) : 0;
}

/* Bytes of pages that a sequence of `held` tokens needs for its request's tokens and another one. */
static uint64_t missing_bytes(const qn_scheduler *s, const qn_request *r, size_t held)
{
    const size_t pages = (r->n_tokens + QN_PAGE) / QN_PAGE - held / QN_PAGE;
    return pages * item_bytes(s->cache->pages) + 2 * item_bytes(s->cache->f16_pages);
}

/* Whether there is memory for a request's tokens, after eviction of kept prefixes. */
static bool fits(const qn_scheduler *s, const qn_request *r)
{
    qn_pool_class *class = s->cache->pages ? s->cache->pages : s->cache->states;
    uint64_t need = missing_bytes(s, r, r->memory->sequence->length) + 2 * item_bytes(s->cache->states);
    for (uint32_t i = 0; i < s->n_running; i++) {
        const qn_sequence *q = s->running[i]->memory->sequence;
        need += missing_bytes(s, s->running[i], q->length + q->reserved); /* reserved: beside a step */
    }
    for (;;) {
        const uint64_t available = qn_pool_available(class) * item_bytes(class);
        if (available >= need)
            return true;
        for (uint64_t freed = 0; freed < need - available; freed += item_bytes(class))
            if (!qn_kept_evict(&s->model->kept))
                return false;
    }
}

static bool is_last_chance(const qn_request *r)
{
    return r->result.n_set_aside >= QN_MAX_SET_ASIDE;
}

/* Whether a request may begin, memory aside. */
static bool may_begin(const qn_scheduler *s, const qn_request *r)
{
    if (!s->n_running)
        return true;
    for (uint32_t i = 0; is_last_chance(r) && i < s->n_running; i++)
        if (is_last_chance(s->running[i]))
            return false;
    return r->admitted_after != s->n_released;
}

static void adopt_prefix(qn_scheduler *s, qn_request *r)
{
    uint32_t matched = 0;
    if (!s->kept || qn_kept_adopt(&s->model->kept, s->kept, r->scope, r->tokens, r->n_tokens, r->memory, &matched) != QN_OK)
        return;
    r->branch = matched > r->memory->sequence->length ? matched : 0;
}

/* Gives a request a sequence, with what is there of its prefix. False if it does not fit. */
static qn_status begin(qn_scheduler *s, qn_request *r, bool *begun)
{
    *begun = false;
    QN_TRY(qn_kept_memory_new(&s->model->kept, s->model->device, &s->memory_params, &r->memory));
    adopt_prefix(s, r);
    *begun = fits(s, r) || !s->n_running;
    if (*begun)
        return QN_OK;
    r->memory->vtable->free(r->memory);
    r->memory = NULL;
    r->admitted_after = s->n_released;
    return QN_OK;
}

static void count_admitted(qn_scheduler *s, qn_request *r, double now)
{
    const size_t reused = r->memory->sequence->length;
    if (r->admitted > 0)
        return;
    r->admitted = now;
    r->result.n_reused = reused;
    s->counters.prompt_tokens += r->n_prompt;
    s->counters.reused_tokens += reused;
    s->counters.prefix_hits += reused > 0;
}

static void start_running(qn_scheduler *s, qn_request **link, double now)
{
    qn_request *r = *link;
    *link = r->next;
    s->n_queued--;
    s->running[s->n_running++] = r;
    count_admitted(s, r, now);
}

/* Whether the next step has rows of a running request. */
static bool has_rows(const qn_scheduler *s)
{
    for (uint32_t i = 0; i < s->n_running; i++)
        if (!s->running[i]->is_over && atomic_load(&s->running[i]->mask_state) != QN_MASK_WAITING)
            return true;
    return false;
}

/* Whether a request begins with what is copied from host memory. Others do not wait for the copy, which is made beside a step of
 * theirs. */
static bool waits_for_copy(const qn_scheduler *s, const qn_request *r)
{
    return s->overlaps && s->kept && has_rows(s) && qn_kept_is_spilled(s->kept, r->scope, r->tokens, r->n_tokens);
}

/* Returns false when no other request can begin. */
static bool admit_next(qn_scheduler *s, double now, bool is_beside)
{
    bool begun = false;
    pthread_mutex_lock(&s->lock);
    qn_request *r = *find_next(s, now);
    pthread_mutex_unlock(&s->lock);
    if (!r || !may_begin(s, r) || (!is_beside && waits_for_copy(s, r)))
        return false;
    const qn_status status = begin(s, r, &begun);
    if (status == QN_ERR_MEMORY && s->n_running) {
        r->admitted_after = s->n_released;
        return false;
    }
    if (status == QN_OK && !begun)
        return false;
    pthread_mutex_lock(&s->lock);
    qn_request **link = &s->queue;
    while (*link != r)
        link = &(*link)->next;
    if (status == QN_OK) {
        start_running(s, link, now);
    } else {
        *link = r->next;
        s->n_queued--;
    }
    pthread_mutex_unlock(&s->lock);
    if (status != QN_OK)
        qn_scheduler_end(s, r, QN_FINISH_ERROR, status);
    return true;
}

static void admit(qn_scheduler *s, double now, bool is_beside)
{
    while (s->n_running < s->params.max_sequences && admit_next(s, now, is_beside))
        ;
}

void qn_scheduler_admit_beside(qn_scheduler *s)
{
    admit(s, qn_now(), true);
}

void qn_scheduler_admit(qn_scheduler *s)
{
    const double now = qn_now();
    end_queued(s, now);
    end_running(s, now);
    admit(s, now, false);
}
