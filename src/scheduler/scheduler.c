/* Schedulers: creation, their threads, and the functions of quern/scheduler.h. */
#include "scheduler/scheduler.h"

#include "base/memory.h"
#include "base/params.h"
#include "engine/calls.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 4096, MAX_QUEUED = 1024, MAX_SEQUENCES = 64, ROWS_OF_SEQUENCE = 8, STATES_SHARE = 4 };

/* ---- Parameters ---- */

static void fill_params(const qn_model *model, qn_scheduler_params *p)
{
    const uint32_t rows = (uint32_t)model->device->batch, most = rows / ROWS_OF_SEQUENCE;
    p->max_rows = p->max_rows ? p->max_rows : p->max_sequences > rows ? p->max_sequences : rows;
    if (!p->max_sequences)
        p->max_sequences = most < MAX_SEQUENCES ? most : MAX_SEQUENCES;
    p->max_sequences = p->max_sequences ? p->max_sequences : 1;
    if (model->device->piece && p->max_rows < p->max_sequences + model->device->piece)
        p->max_rows = p->max_sequences + (uint32_t)model->device->piece; /* so that a piece always fits */
    p->max_queued = p->max_queued ? p->max_queued : MAX_QUEUED;
    p->step_seconds = p->step_seconds > 0 ? p->step_seconds : INFINITY;
}

static qn_status check_params(const qn_model *model, const qn_scheduler_params *p)
{
    if (p->n_ctx > QN_MAX_CTX)
        return qn_fail(QN_ERR_INVALID, "context: %u tokens, at most %d are allowed", (unsigned)p->n_ctx, QN_MAX_CTX);
    if (p->max_rows > MAX_ROWS)
        return qn_fail(QN_ERR_INVALID, "rows of a step: %u, at most %d are allowed", (unsigned)p->max_rows, MAX_ROWS);
    if (p->max_sequences > (p->max_rows ? p->max_rows : MAX_ROWS))
        return qn_fail(QN_ERR_INVALID, "sequences: %u, at most %u are allowed: one a row of a step",
                       (unsigned)p->max_sequences, p->max_rows ? (unsigned)p->max_rows : MAX_ROWS);
    if (!(p->step_seconds >= 0) || isinf(p->step_seconds))
        return qn_fail(QN_ERR_INVALID, "step time: %g seconds, expected 0 or more", p->step_seconds);
    return qn_model_check_draft(model, p->draft);
}

/* ---- Creation ---- */

static qn_status create_locks(qn_scheduler *s)
{
    int error = pthread_mutex_init(&s->lock, NULL);
    error = error ? error : pthread_mutex_init(&s->events_lock, NULL);
    error = error ? error : pthread_cond_init(&s->work, NULL);
    error = error ? error : pthread_cond_init(&s->ended, NULL);
    error = error ? error : pthread_cond_init(&s->has_events, NULL);
    error = error ? error : pthread_cond_init(&s->has_masks, NULL);
    s->has_locks = !error;
    return error ? qn_fail(QN_ERR_MEMORY, "scheduler: no mutex: %s", strerror(error)) : QN_OK;
}

static qn_status find_cache(qn_scheduler *s)
{
    const qn_kv_format *format;
    QN_TRY(qn_model_kv_format(s->model, s->params.kv, &format));
    qn_model_log_kv(s->model, s->params.kv, format, s->params.on_log, s->params.user);
    s->params.kv = format->name;
    s->memory_params =
        (qn_memory_params){ .n_ctx = s->params.n_ctx ? s->params.n_ctx : 1, .n_batch = s->params.max_rows };
    QN_TRY(qn_model_find_cache(s->model, format, &s->memory_params, &s->cache));
    if (!s->params.n_ctx)
        s->memory_params.n_ctx = s->params.n_ctx = qn_model_default_context(s->model, s->cache);
    const qn_pool *pool = qn_pool_of(s->cache->pages ? s->cache->pages : s->cache->states);
    s->counters.memory_limit = qn_pool_get_usage((qn_pool *)pool).budget;
    if (!s->params.prefix_states)
        s->params.prefix_states = s->counters.memory_limit / STATES_SHARE;
    if (s->params.no_prefix_host || !s->cache->copy_out)
        s->params.prefix_host = 0;
    else if (!s->params.prefix_host)
        s->params.prefix_host = qn_kept_host_budget();
    return s->params.no_prefix_cache
               ? QN_OK
               : qn_kept_create(&s->model->kept, s->cache, s->params.prefix_states, s->params.prefix_host, &s->kept);
}

/* The main function of the step thread. It ends when the scheduler is freed and all requests have ended. */
static void *run_steps(void *scheduler)
{
    qn_scheduler *s = scheduler;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        while (!s->is_stopping && !s->n_queued && !s->n_running)
            pthread_cond_wait(&s->work, &s->lock);
        const bool is_over = s->is_stopping && !s->n_queued && !s->n_running;
        pthread_mutex_unlock(&s->lock);
        if (is_over)
            return NULL;
        (void)qn_scheduler_run_step(s);
    }
}

static qn_status create_threads(qn_scheduler *s)
{
    if (s->params.no_thread)
        return QN_OK;
    int error = pthread_create(&s->delivery_thread, NULL, qn_scheduler_delivery, s);
    s->has_delivery_thread = !error;
    if (!error)
        error = pthread_create(&s->mask_thread, NULL, qn_scheduler_masks, s);
    s->has_mask_thread = s->has_delivery_thread && !error;
    if (!error)
        error = pthread_create(&s->step_thread, NULL, run_steps, s);
    s->has_step_thread = s->has_mask_thread && !error;
    return error ? qn_fail(QN_ERR_MEMORY, "scheduler: no thread: %s", strerror(error)) : QN_OK;
}

static qn_status create(qn_scheduler *s)
{
    const uint32_t n = s->params.max_sequences, n_logits = n + QN_STEP_DRAFTED + QN_STEP_SCORED;
    QN_TRY(create_locks(s));
    if (s->params.draft != QN_DRAFT_OFF)
        QN_TRY(qn_draft_environment(&s->forced_draft));
    if (s->forced_draft.kind == QN_DRAFT_MODEL)
        QN_TRY(qn_model_check_draft(s->model, QN_DRAFT_MODEL));
    if (!s->params.no_prefix_cache)
        QN_TRY(qn_written_create(&s->written));
    if (s->generation)
        s->cache = s->generation->session->memory->sequence->cache;
    else
        QN_TRY(find_cache(s));
    QN_TRY(qn_draft_model_create(s));
    QN_TRY(qn_alloc(&s->running, n, sizeof(qn_request *), "scheduler"));
    QN_TRY(qn_alloc(&s->sharing, n, sizeof(qn_client *), "scheduler"));
    QN_TRY(qn_alloc(&s->places, n, sizeof *s->places, "scheduler"));
    for (size_t i = 0; i < 2; i++) {
        qn_scheduled *step = &s->steps[i];
        QN_TRY(qn_alloc(&step->pieces, n, sizeof *step->pieces, "scheduler"));
        QN_TRY(qn_alloc(&step->offers, n, sizeof *step->offers, "scheduler"));
        QN_TRY(qn_alloc(&step->logit_rows, n_logits, sizeof *step->logit_rows, "scheduler"));
        QN_TRY(qn_alloc(&step->requests, n_logits, sizeof *step->requests, "scheduler"));
        QN_TRY(qn_alloc(&step->rows, s->params.max_rows, sizeof *step->rows, "scheduler"));
    }
    return create_threads(s);
}

static qn_status create_with(qn_model *model, const qn_scheduler_params *params, qn_generation *generation,
                             qn_scheduler **out)
{
    qn_scheduler *s;
    QN_TRY(qn_alloc(&s, 1, sizeof *s, "scheduler"));
    s->model = model;
    s->generation = generation;
    s->params = *params;
    fill_params(model, &s->params);
    s->now = qn_now;
    qn_drafting_load(model->drafting, &s->drafting);
    s->overlaps = model->device->vtable->launch != NULL;
    const qn_status status = create(s);
    if (status != QN_OK) {
        char text[QN_ERROR_TEXT_MAX];
        memcpy(text, qn_error_text(), strlen(qn_error_text()) + 1);
        qn_scheduler_destroy(s);
        return qn_fail(status, "%s", text);
    }
    *out = s;
    return QN_OK;
}

qn_status qn_scheduler_create(qn_model *model, const qn_scheduler_params *params, qn_scheduler **out)
{
    qn_scheduler_params own = QN_SCHEDULER_PARAMS_INIT;
    *out = NULL;
    if (params)
        QN_TRY(QN_PARAMS_READ(qn_scheduler_params, params, &own));
    QN_TRY(qn_model_enter(model, __func__));
    if (!model->device)
        return qn_fail(QN_ERR_INVALID, "%s: loaded with vocab_only, cannot be run", qn_gguf_path(model->file));
    QN_TRY(check_params(model, &own));
    return create_with(model, &own, NULL, out);
}

qn_status qn_scheduler_create_generation(qn_generation *generation, qn_draft_kind draft, qn_scheduler **out)
{
    const qn_session *session = generation->session;
    const qn_scheduler_params params = { .n_ctx = session->n_ctx,
                                         .max_sequences = 1,
                                         .max_queued = 1,
                                         .max_rows = session->n_batch,
                                         .draft = draft == QN_DRAFT_OFF ? draft : QN_DRAFT_AUTO,
                                         .on_log = session->on_log,
                                         .user = session->log_user,
                                         .no_prefix_cache = true,
                                         .no_thread = true };
    return create_with(session->model, &params, generation, out);
}

/* ---- The end ---- */

/* Cancels all queued and running requests, which then end in the next step. The caller holds s->lock. */
static void cancel_all(qn_scheduler *s)
{
    for (const qn_client *c = s->clients; c; c = c->next)
        for (qn_request *r = c->queue; r; r = r->next)
            atomic_store(&r->cancelled, true);
    for (uint32_t i = 0; i < s->n_running; i++)
        atomic_store(&s->running[i]->cancelled, true);
}

/* Cancels all requests, and waits until they have ended and their callbacks have returned. The threads end in the order
 * in which they pass requests on: steps, masks, delivery. The caller holds no lock. */
static void stop(qn_scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    s->is_stopping = true;
    cancel_all(s);
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    if (s->has_step_thread)
        pthread_join(s->step_thread, NULL);
    else if (s->n_queued || s->n_running) {
        if (s->flight)
            (void)qn_scheduler_run_step(s);
        qn_scheduler_catch_up(s);
        qn_scheduler_end_late(s);
    }
    pthread_mutex_lock(&s->events_lock);
    s->no_more_masks = true;
    pthread_cond_signal(&s->has_masks);
    pthread_mutex_unlock(&s->events_lock);
    if (s->has_mask_thread) /* before callbacks: it may queue a last event */
        pthread_join(s->mask_thread, NULL);
    pthread_mutex_lock(&s->events_lock);
    s->no_more_events = true;
    pthread_cond_signal(&s->has_events);
    pthread_mutex_unlock(&s->events_lock);
    if (s->has_delivery_thread)
        pthread_join(s->delivery_thread, NULL);
    else
        qn_scheduler_deliver(s);
}

void qn_scheduler_free(qn_scheduler *s)
{
    if (s && !qn_model_check_process(s->model, __func__) && !qn_check_no_callback(__func__))
        qn_scheduler_destroy(s);
}

void qn_scheduler_destroy(qn_scheduler *s)
{
    if (!s)
        return;
    if (s->has_locks) {
        stop(s);
        qn_drafting_store(&s->drafting, s->model->drafting);
        qn_kept_free(&s->model->kept, s->kept);
        pthread_mutex_destroy(&s->lock);
        pthread_mutex_destroy(&s->events_lock);
        pthread_cond_destroy(&s->work);
        pthread_cond_destroy(&s->ended);
        pthread_cond_destroy(&s->has_events);
        pthread_cond_destroy(&s->has_masks);
    }
    qn_draft_model_free(s);
    qn_written_free(s->written);
    free(s->chain_logits);
    qn_free(s->running);
    qn_free(s->sharing);
    qn_free(s->places);
    for (size_t i = 0; i < 2; i++) {
        qn_free(s->steps[i].pieces);
        qn_free(s->steps[i].offers);
        qn_free(s->steps[i].draft_logprobs);
        qn_free(s->steps[i].logit_rows);
        qn_free(s->steps[i].requests);
        qn_free(s->steps[i].masks);
        qn_free(s->steps[i].score_masks);
        qn_free(s->steps[i].scores);
        qn_free(s->steps[i].normed);
        qn_free(s->steps[i].rows);
    }
    qn_free(s);
}

/* ---- Requests ---- */

static void free_all(qn_request *first)
{
    for (qn_request *r = first, *next; r; r = next) {
        next = r->next;
        qn_request_free(r);
    }
}

/* Returns request i of the caller's array, whose items may be smaller or larger than the library's struct. */
static const qn_request_params *params_of(const qn_request_params *params, size_t i)
{
    return (const qn_request_params *)(const void *)((const char *)params + i * params->size);
}

/* Creates the requests, linked by `next`; none after an error. */
static qn_status create_all(qn_scheduler *s, const qn_request_params *params, size_t n, qn_request **first,
                            qn_submit_refusal *refusal)
{
    qn_request *before = NULL, **link = first;
    *first = NULL;
    for (size_t i = 0; i < n; i++, link = &before->next) {
        refusal->index = i;
        const qn_status status = qn_request_new(s, params_of(params, i), before, link, &refusal->n_prompt);
        if (status != QN_OK) {
            free_all(*first);
            return status;
        }
        before = *link;
    }
    return QN_OK;
}

/* Finds the client of all requests. */
static qn_status find_client(const qn_request_params *params, size_t n, const char **client)
{
    qn_request_params own = QN_REQUEST_PARAMS_INIT;
    for (size_t i = 0; i < n; i++) {
        QN_TRY(QN_PARAMS_READ(qn_request_params, params_of(params, i), &own));
        if (params_of(params, i)->size != params->size)
            return qn_fail(QN_ERR_INVALID,
                           "qn_request_params: the size of request %zu is %zu, expected that of the first, %zu", i,
                           params_of(params, i)->size, params->size);
        *client = i ? *client : own.client;
        if (strcmp(own.client ? own.client : "", *client ? *client : ""))
            return qn_fail(QN_ERR_INVALID, "client: that of request %zu is another one than that of the first", i);
    }
    return QN_OK;
}

qn_status qn_scheduler_submit_all(qn_scheduler *s, const qn_request_params *params, size_t n, uint64_t *ids,
                                  qn_submit_refusal *refusal)
{
    qn_submit_refusal refused = QN_SUBMIT_REFUSAL_INIT;
    const char *client = NULL;
    qn_request *first;
    if (refusal)
        QN_TRY(QN_RESULT_CHECK(qn_submit_refusal, refusal));
    if (!n)
        return QN_OK;
    QN_TRY(qn_model_check_process(s->model, __func__));
    QN_TRY(find_client(params, n, &client));
    QN_TRY(qn_clients_check_room(s, client, n));
    qn_status status = create_all(s, params, n, &first, &refused);
    if (refusal)
        qn_result_write(&refused, sizeof refused, refusal);
    QN_TRY(status);
    status = qn_clients_enqueue(s, first, n, ids);
    if (status != QN_OK)
        free_all(first);
    return status;
}

qn_status qn_scheduler_submit(qn_scheduler *s, const qn_request_params *params, uint64_t *id)
{
    return qn_scheduler_submit_all(s, params, 1, id, NULL);
}

qn_status qn_scheduler_check_room(qn_scheduler *s, const char *client, size_t n)
{
    QN_TRY(qn_model_check_process(s->model, __func__));
    return qn_clients_check_room(s, client, n);
}

void qn_scheduler_cancel(qn_scheduler *s, uint64_t id)
{
    if (qn_model_check_process(s->model, __func__))
        return;
    pthread_mutex_lock(&s->lock);
    for (const qn_client *c = s->clients; c; c = c->next)
        for (qn_request *r = c->queue; r; r = r->next)
            if (r->id == id)
                atomic_store(&r->cancelled, true);
    for (uint32_t i = 0; i < s->n_running; i++)
        if (s->running[i]->id == id)
            atomic_store(&s->running[i]->cancelled, true);
    pthread_mutex_unlock(&s->lock);
}

void qn_scheduler_close(qn_scheduler *s, bool closed)
{
    if (qn_model_check_process(s->model, __func__))
        return;
    pthread_mutex_lock(&s->lock);
    s->is_closed = closed;
    pthread_mutex_unlock(&s->lock);
}

/* ---- Steps and counters ---- */

qn_status qn_scheduler_step(qn_scheduler *s, bool *idle)
{
    if (!s->params.no_thread)
        return qn_fail(QN_ERR_INVALID, "scheduler: it has a thread that runs its steps");
    QN_TRY(qn_model_check_process(s->model, __func__));
    if (qn_callbacks_of().scheduler == s)
        QN_TRY(qn_check_no_callback(__func__));
    *idle = !qn_scheduler_run_step(s);
    qn_scheduler_deliver(s);
    return QN_OK;
}

qn_status qn_scheduler_wait(qn_scheduler *s)
{
    bool idle = false;
    QN_TRY(qn_model_check_process(s->model, __func__));
    QN_TRY(qn_check_no_callback(__func__));
    while (s->params.no_thread && !idle)
        QN_TRY(qn_scheduler_step(s, &idle));
    pthread_mutex_lock(&s->lock);
    while (!s->params.no_thread && s->n_alive)
        pthread_cond_wait(&s->ended, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return QN_OK;
}

qn_status qn_scheduler_get_counters(qn_scheduler *s, qn_scheduler_counters *counters)
{
    QN_TRY(QN_RESULT_CHECK(qn_scheduler_counters, counters));
    QN_TRY(qn_model_check_process(s->model, __func__));
    pthread_mutex_lock(&s->lock);
    qn_scheduler_counters now = s->counters;
    now.queued = s->n_queued;
    now.running = s->n_running;
    pthread_mutex_unlock(&s->lock);
    qn_result_write(&now, sizeof now, counters);
    return QN_OK;
}
