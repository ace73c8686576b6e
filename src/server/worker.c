/* A pool of threads with one queue, which is as long as there are connections at most. */
#include "server/worker.h"

#include "base/status.h"

#include <stdlib.h>

enum { MAX_WORKERS = 16 };

struct qn_workers {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    qn_answer *first, *last;
    bool is_stopping;
    pthread_t threads[MAX_WORKERS];
    size_t n_threads;
};

/* The next answer; NULL: the pool stops. */
static qn_answer *take(qn_workers *w)
{
    pthread_mutex_lock(&w->lock);
    while (!w->first && !w->is_stopping)
        pthread_cond_wait(&w->changed, &w->lock);
    qn_answer *answer = w->is_stopping ? NULL : w->first;
    if (answer)
        w->first = qn_answer_linked(answer);
    pthread_mutex_unlock(&w->lock);
    return answer;
}

static void *work(void *workers)
{
    for (qn_answer *answer; (answer = take(workers));) {
        qn_answer_start(answer);
        qn_answer_release(answer);
    }
    return NULL;
}

qn_status qn_workers_create(size_t n_threads, qn_workers **out)
{
    qn_workers *w = calloc(1, sizeof *w);
    *out = NULL;
    if (!w || pthread_mutex_init(&w->lock, NULL)) {
        free(w);
        return qn_fail(QN_ERR_MEMORY, "no memory for workers");
    }
    if (pthread_cond_init(&w->changed, NULL)) {
        pthread_mutex_destroy(&w->lock);
        free(w);
        return qn_fail(QN_ERR_MEMORY, "no memory for workers");
    }
    for (size_t i = 0; i < n_threads && i < MAX_WORKERS; i++) {
        if (pthread_create(&w->threads[i], NULL, work, w)) {
            qn_workers_free(w);
            return qn_fail(QN_ERR_MEMORY, "no thread for a worker");
        }
        w->n_threads++;
    }
    *out = w;
    return QN_OK;
}

void qn_workers_free(qn_workers *w)
{
    qn_refusal refusal;
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->is_stopping = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    for (size_t i = 0; i < w->n_threads; i++)
        pthread_join(w->threads[i], NULL);
    qn_refuse(&refusal, 503, "stopping", NULL, "the server is stopping");
    while (w->first) {
        qn_answer *answer = w->first;
        w->first = qn_answer_linked(answer);
        qn_answer_refuse(answer, &refusal);
        qn_answer_release(answer);
    }
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

void qn_workers_add(qn_workers *w, qn_answer *answer)
{
    qn_answer_hold(answer);
    qn_answer_link(answer, NULL);
    pthread_mutex_lock(&w->lock);
    if (w->first)
        qn_answer_link(w->last, answer);
    else
        w->first = answer;
    w->last = answer;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}
