/* A CPU model that spills kept prefixes as a GPU does, by copies that can be held, delayed and counted. */
#ifndef QN_TESTS_HELPER_SPILL_H
#define QN_TESTS_HELPER_SPILL_H

#include "helper_scheduler.h"

#include <pthread.h>
#include <unistd.h>

/* State of copies to host memory (out) and back (in). */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_held;       /* copies out do not finish */
    unsigned delay;     /* maximum duration of a copy out, in microseconds */
    size_t most_out;    /* number of copies out before one fails */
    size_t n_begun;     /* copies out that have begun */
    size_t n_out, n_in; /* copies that have finished */
    size_t n_beside;    /* of n_in, those during a step */
} copies = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static inline qn_status copy_out(void *context, void *to, uint64_t from, size_t bytes)
{
    (void)context;
    pthread_mutex_lock(&copies.lock);
    copies.n_begun++;
    pthread_cond_broadcast(&copies.changed);
    while (copies.is_held)
        pthread_cond_wait(&copies.changed, &copies.lock);
    uint64_t seed = copies.n_begun;
    const unsigned delay = copies.delay ? (unsigned)(qn_splitmix(&seed) % copies.delay) : 0;
    const bool fails = copies.n_out == copies.most_out;
    copies.n_out++;
    pthread_mutex_unlock(&copies.lock);
    memcpy(to, (const void *)(uintptr_t)from, bytes / 2);
    usleep(delay);
    memcpy((char *)to + bytes / 2, (const char *)(uintptr_t)from + bytes / 2, bytes - bytes / 2);
    return fails ? qn_fail(QN_ERR_IO, "copy to host memory: broken") : QN_OK;
}

static inline qn_status copy_in(void *context, uint64_t to, const void *from, size_t bytes)
{
    (void)context;
    pthread_mutex_lock(&copies.lock);
    copies.n_in++;
    copies.n_beside += n_steps_in_flight > 0;
    pthread_mutex_unlock(&copies.lock);
    memcpy((void *)(uintptr_t)to, from, bytes);
    return QN_OK;
}

static inline void hold_copies(bool is_held)
{
    pthread_mutex_lock(&copies.lock);
    copies.is_held = is_held;
    pthread_cond_broadcast(&copies.changed);
    pthread_mutex_unlock(&copies.lock);
}

static inline void await_copies(size_t n_begun)
{
    pthread_mutex_lock(&copies.lock);
    while (copies.n_begun < n_begun)
        pthread_cond_wait(&copies.changed, &copies.lock);
    pthread_mutex_unlock(&copies.lock);
}

/* A thread that lets copies finish after a while. */
static inline void *release_copies(void *unused)
{
    usleep(100000);
    hold_copies(false);
    return unused;
}

/* Makes sequences created from now on use caches that spill. */
static inline void let_spill(qn_model *model, const char *kv)
{
    qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = 256, .kv = kv));
    qn_cache *cache = (qn_cache *)session->memory->sequence->cache;
    cache->copy_out = copy_out;
    cache->copy_in = copy_in;
    qn_session_free(session);
    copies.n_begun = copies.n_out = copies.n_in = copies.n_beside = 0;
    copies.most_out = SIZE_MAX;
    copies.delay = 0;
}

static inline void load_spilling(uint64_t memory, qn_model **model)
{
    load_model("tests/golden/scheduler.gguf", memory, 1, model);
    let_spill(*model, NULL);
}

#endif
