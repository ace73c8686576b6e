/* A pool of threads with a queue per client; clients take turns. There are at most as many queued answers as
 * connections. */
#include "serve/worker.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_WORKERS = 16 };

/* A client with queued answers, the oldest first, or with answers that threads work on. */
typedef struct lane {
    struct lane *next;
    qn_answer *first, *last;
    size_t n_threads; /* that work on its answers */
    char client[];
} lane;

struct qn_workers {
    /* Protects the members below except threads and n_threads; and the links of queued answers. */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* an answer was added, a thread has become idle, or the threads are to end */
    lane *lanes;            /* the next turn first */
    bool is_stopping;
    pthread_t threads[MAX_WORKERS];
    size_t n_threads, n_idle; /* idle: without an answer */
};

/* ---- Lanes. The caller holds the lock ---- */

/* Returns the client's lane, created if it has none. NULL: no memory. */
static lane *find_lane(qn_workers *w, const char *client)
{
    lane **link = &w->lanes;
    for (; *link; link = &(*link)->next)
        if (!strcmp((*link)->client, client))
            return *link;
    lane *l = calloc(1, sizeof *l + strlen(client) + 1);
    if (l)
        strcpy(l->client, client);
    *link = l;
    return l;
}

/* Takes a lane out of the list; does not free it. */
static void remove_lane(qn_workers *w, lane *l)
{
    lane **link = &w->lanes;
    while (*link != l)
        link = &(*link)->next;
    *link = l->next;
}

/* Gives a lane the last turn. */
static void make_last(qn_workers *w, lane *l)
{
    lane **link = &w->lanes;
    remove_lane(w, l);
    while (*link)
        link = &(*link)->next;
    *link = l;
    l->next = NULL;
}

/* Takes the first answer of a lane that has one, with the reference of the queue. */
static qn_answer *pop(lane *l)
{
    qn_answer *answer = l->first;
    l->first = qn_answer_linked(answer);
    return answer;
}

/* Returns the lane whose answer is started next; NULL: none. A client gets the last idle thread only if it has no other
 * thread, so that its bodies, which may take long, leave a thread to other clients. */
static lane *next_lane(qn_workers *w)
{
    for (lane *l = w->lanes; l; l = l->next)
        if (l->first && (!l->n_threads || w->n_idle > 1)) {
            make_last(w, l);
            return l;
        }
    return NULL;
}

/* ---- Threads ---- */

/* A thread of the pool. It starts answers without the lock, and releases the reference of the queue. */
static void *work(void *workers)
{
    qn_workers *w = workers;
    pthread_mutex_lock(&w->lock);
    while (!w->is_stopping) {
        lane *l = next_lane(w);
        if (!l) {
            pthread_cond_wait(&w->changed, &w->lock);
            continue;
        }
        qn_answer *answer = pop(l);
        l->n_threads++;
        w->n_idle--;
        pthread_mutex_unlock(&w->lock);
        qn_answer_start(answer);
        qn_answer_release(answer);
        pthread_mutex_lock(&w->lock);
        w->n_idle++;
        if (!--l->n_threads && !l->first) {
            remove_lane(w, l);
            free(l);
        }
        pthread_cond_signal(&w->changed); /* a lane may get one more thread now */
    }
    pthread_mutex_unlock(&w->lock);
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
    w->n_idle = n_threads < MAX_WORKERS ? n_threads : MAX_WORKERS;
    for (const size_t n = w->n_idle; w->n_threads < n; w->n_threads++)
        if (pthread_create(&w->threads[w->n_threads], NULL, work, w)) {
            qn_workers_free(w);
            return qn_fail(QN_ERR_MEMORY, "cannot start a worker thread");
        }
    *out = w;
    return QN_OK;
}

/* Ends an answer with a refusal, and releases the reference of the queue. */
static void refuse(qn_answer *answer, int status, const char *code, const char *text)
{
    qn_refusal refusal;
    qn_refuse(&refusal, status, code, NULL, "%s", text);
    qn_answer_refuse(answer, &refusal);
    qn_answer_release(answer);
}

/* Ends an answer without a worker, on the calling thread, and releases the reference of the queue. The caller does not
 * hold the lock. */
static void settle(qn_answer *answer)
{
    if (!qn_answer_is_ending(answer)) {
        refuse(answer, 503, "stopping", "the server is stopping");
        return;
    }
    qn_answer_start(answer);
    qn_answer_release(answer);
}

void qn_workers_stop(qn_workers *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->is_stopping = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    for (size_t i = 0; i < w->n_threads; i++)
        pthread_join(w->threads[i], NULL);
    w->n_threads = 0;
    for (lane *l = w->lanes, *next; l; l = next) { /* qn_workers_add adds none any more */
        next = l->next;
        while (l->first)
            settle(pop(l));
        free(l);
    }
    w->lanes = NULL;
}

void qn_workers_free(qn_workers *w)
{
    if (!w)
        return;
    qn_workers_stop(w);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

void qn_workers_add(qn_workers *w, qn_answer *answer)
{
    qn_answer_hold(answer);
    qn_answer_link(answer, NULL);
    pthread_mutex_lock(&w->lock);
    const bool is_stopping = w->is_stopping;
    lane *l = is_stopping ? NULL : find_lane(w, qn_answer_client(answer));
    if (l && l->first)
        qn_answer_link(l->last, answer);
    else if (l)
        l->first = answer;
    if (l)
        l->last = answer;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (is_stopping || (!l && qn_answer_is_ending(answer)))
        settle(answer);
    else if (!l)
        refuse(answer, 500, "out_of_memory", "no memory for the request");
}
