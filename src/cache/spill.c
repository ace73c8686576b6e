/* A pool in host memory next to the device's, and copies between the two. One thread makes all copies to host memory;
 * copies back are made by the thread that needs the item. */
#include "cache/spill.h"

#include "base/memory.h"
#include "cache/host_memory.h"

#include <pthread.h>
#include <string.h>

enum { IDLE_SHARE = 16 };

/* A copy goes from UNUSED to QUEUED, COPYING, ENDED and back to UNUSED. An abandoned copy becomes UNUSED at once, but
 * only after COPYING has ended if it is being made. */
enum phase { UNUSED, QUEUED, COPYING, ENDED };

struct copy {
    enum phase phase;
    uint64_t number; /* order of queueing */
    uint32_t item;   /* holds a reference while QUEUED or COPYING */
    bool is_abandoned;
    qn_spilled result; /* valid once ENDED; kind and owner always */
};

/* Members before `lock` are constant after creation. */
struct qn_spill {
    const qn_cache *cache;
    qn_pool *pool;
    qn_pool_class *classes[QN_ITEM_KINDS]; /* NULL where the cache has none */
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; /* protects the members below */
    pthread_cond_t queued, ended;
    bool has_lock, is_stopping;
    uint64_t n_queued, n_ended; /* since creation */
    struct copy copies[QN_SPILL_COPIES];
};

qn_pool_class *qn_item_class(const qn_cache *cache, qn_item_kind kind)
{
    qn_pool_class *const classes[QN_ITEM_KINDS] = { cache->pages, cache->f16_pages, cache->states };
    return classes[kind];
}

static qn_status add_classes(qn_spill *s)
{
    for (qn_item_kind kind = 0; kind < QN_ITEM_KINDS; kind++) {
        const qn_pool_class *class = qn_item_class(s->cache, kind);
        if (class)
            QN_TRY(qn_pool_add_class(s->pool, "spilled item", qn_pool_stride(class), &s->classes[kind]));
    }
    return QN_OK;
}

static void *address_of(const qn_spill *s, qn_item_kind kind, uint32_t copy)
{
    return (void *)(uintptr_t)qn_pool_address(s->classes[kind], copy);
}

/* ---- The thread ---- */

static struct copy *next_queued(qn_spill *s)
{
    struct copy *next = NULL;
    for (size_t i = 0; i < QN_SPILL_COPIES; i++)
        if (s->copies[i].phase == QUEUED && (!next || s->copies[i].number < next->number))
            next = &s->copies[i];
    return next;
}

/* Copies an item to host memory; *copy is its item there. Called without the lock, because committing and first
 * touching host memory takes long. */
static qn_status make_copy(qn_spill *s, qn_item_kind kind, uint32_t item, uint32_t *copy)
{
    const qn_pool_class *class = qn_item_class(s->cache, kind);
    uint32_t to;
    QN_TRY(qn_pool_take(s->classes[kind], &to));
    const qn_status status = s->cache->copy_out(s->cache->context, address_of(s, kind, to),
                                                qn_pool_address(class, item), qn_pool_stride(class));
    if (status != QN_OK) {
        qn_spill_drop(s, kind, to);
        return status;
    }
    *copy = to;
    return QN_OK;
}

/* Drops the items of a copy, which becomes UNUSED. Called with the lock held. */
static void free_copy(qn_spill *s, struct copy *c)
{
    if (c->phase == QUEUED)
        qn_pool_drop(qn_item_class(s->cache, c->result.kind), c->item);
    else if (c->result.status == QN_OK)
        qn_spill_drop(s, c->result.kind, c->result.copy);
    c->phase = UNUSED;
}

/* Counts an ended copy and wakes waiting threads. Called with the lock held. */
static void count_end(qn_spill *s)
{
    s->n_ended++;
    pthread_cond_broadcast(&s->ended);
}

static void *run_copies(void *spill)
{
    qn_spill *s = spill;
    pthread_mutex_lock(&s->lock);
    while (!s->is_stopping) {
        struct copy *c = next_queued(s);
        if (!c) {
            pthread_cond_wait(&s->queued, &s->lock);
            continue;
        }
        qn_spilled result = c->result;
        c->phase = COPYING;
        pthread_mutex_unlock(&s->lock);
        result.status = make_copy(s, result.kind, c->item, &result.copy);
        qn_pool_drop(qn_item_class(s->cache, result.kind), c->item);
        pthread_mutex_lock(&s->lock);
        c->result = result;
        c->phase = ENDED;
        if (c->is_abandoned)
            free_copy(s, c);
        count_end(s);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- Creation ---- */

static qn_status create_thread(qn_spill *s)
{
    int error = pthread_mutex_init(&s->lock, NULL);
    error = error ? error : pthread_cond_init(&s->queued, NULL);
    error = error ? error : pthread_cond_init(&s->ended, NULL);
    s->has_lock = !error;
    error = error ? error : pthread_create(&s->thread, NULL, run_copies, s);
    s->has_thread = !error;
    return error ? qn_fail(QN_ERR_MEMORY, "prefix cache: no thread: %s", strerror(error)) : QN_OK;
}

qn_status qn_spill_create(const qn_cache *cache, uint64_t budget, qn_spill **out)
{
    const qn_pool_memory memory = qn_host_pool_memory();
    qn_spill *s;
    *out = NULL;
    QN_TRY(qn_alloc(&s, 1, sizeof *s, "prefix cache"));
    *s = (qn_spill){ .cache = cache };
    qn_status status = qn_pool_create(&memory, budget, budget / IDLE_SHARE, &s->pool);
    if (status == QN_OK)
        status = add_classes(s);
    if (status == QN_OK)
        status = create_thread(s);
    if (status != QN_OK) {
        qn_spill_free(s);
        return status;
    }
    *out = s;
    return QN_OK;
}

static void stop_thread(qn_spill *s)
{
    pthread_mutex_lock(&s->lock);
    s->is_stopping = true;
    pthread_cond_signal(&s->queued);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
}

void qn_spill_free(qn_spill *s)
{
    if (!s)
        return;
    if (s->has_thread)
        stop_thread(s);
    if (s->has_lock) {
        pthread_mutex_destroy(&s->lock);
        pthread_cond_destroy(&s->queued);
        pthread_cond_destroy(&s->ended);
    }
    qn_pool_free(s->pool);
    qn_free(s);
}

/* ---- To host memory ---- */

static struct copy *find_unused(qn_spill *s)
{
    for (size_t i = 0; i < QN_SPILL_COPIES; i++)
        if (s->copies[i].phase == UNUSED)
            return &s->copies[i];
    return NULL;
}

bool qn_spill_begin(qn_spill *s, qn_item_kind kind, uint32_t item, uint32_t owner)
{
    pthread_mutex_lock(&s->lock);
    struct copy *c = find_unused(s);
    if (c) {
        qn_pool_share(qn_item_class(s->cache, kind), item);
        *c = (struct copy){
            .phase = QUEUED, .number = s->n_queued++, .item = item, .result = { .kind = kind, .owner = owner }
        };
        pthread_cond_signal(&s->queued);
    }
    pthread_mutex_unlock(&s->lock);
    return c;
}

void qn_spill_abandon(qn_spill *s, qn_item_kind kind, uint32_t owner)
{
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < QN_SPILL_COPIES; i++) {
        struct copy *c = &s->copies[i];
        if (c->phase == UNUSED || c->is_abandoned || c->result.kind != kind || c->result.owner != owner)
            continue;
        c->is_abandoned = true;
        if (c->phase == COPYING)
            continue;
        free_copy(s, c);
        count_end(s);
    }
    pthread_mutex_unlock(&s->lock);
}

bool qn_spill_end(qn_spill *s, qn_spilled *out)
{
    bool found = false;
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < QN_SPILL_COPIES && !found; i++) {
        found = s->copies[i].phase == ENDED;
        if (found) {
            *out = s->copies[i].result;
            s->copies[i].phase = UNUSED;
        }
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}

/* Returns the number of copies in phases first to last. The caller holds the lock. */
static size_t count(const qn_spill *s, enum phase first, enum phase last)
{
    size_t n = 0;
    for (size_t i = 0; i < QN_SPILL_COPIES; i++)
        n += s->copies[i].phase >= first && s->copies[i].phase <= last;
    return n;
}

bool qn_spill_is_busy(qn_spill *s)
{
    pthread_mutex_lock(&s->lock);
    const bool is_busy = count(s, QUEUED, ENDED) > 0;
    pthread_mutex_unlock(&s->lock);
    return is_busy;
}

void qn_spill_wait(qn_spill *s)
{
    pthread_mutex_lock(&s->lock);
    const uint64_t n_ended = s->n_ended;
    while (count(s, QUEUED, COPYING) && !count(s, ENDED, ENDED) && s->n_ended == n_ended)
        pthread_cond_wait(&s->ended, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

/* ---- From host memory ---- */

qn_status qn_spill_in(qn_spill *s, qn_item_kind kind, uint32_t copy, uint32_t *item)
{
    qn_pool_class *class = qn_item_class(s->cache, kind);
    uint32_t to;
    QN_TRY(qn_pool_try_take(class, &to));
    const qn_status status = s->cache->copy_in(s->cache->context, qn_pool_address(class, to), address_of(s, kind, copy),
                                               qn_pool_stride(class));
    if (status != QN_OK) {
        qn_pool_drop(class, to);
        return status;
    }
    qn_spill_drop(s, kind, copy);
    *item = to;
    return QN_OK;
}

void qn_spill_drop(qn_spill *s, qn_item_kind kind, uint32_t copy)
{
    qn_pool_drop(s->classes[kind], copy);
}

/* ---- Memory ---- */

bool qn_spill_fits(const qn_spill *s, qn_item_kind kind)
{
    return qn_pool_stride(s->classes[kind]) <= qn_pool_get_usage(s->pool).budget;
}

/* Returns the bytes of queued and running copies: their host memory is not taken yet, or just now. */
static uint64_t pending_bytes(qn_spill *s)
{
    uint64_t bytes = 0;
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < QN_SPILL_COPIES; i++)
        if (s->copies[i].phase == QUEUED || s->copies[i].phase == COPYING)
            bytes += qn_pool_stride(s->classes[s->copies[i].result.kind]);
    pthread_mutex_unlock(&s->lock);
    return bytes;
}

bool qn_spill_has_space(qn_spill *s, qn_item_kind kind)
{
    const uint64_t pending = pending_bytes(s);
    const qn_pool_usage usage = qn_pool_get_usage(s->pool);
    return usage.held + pending + qn_pool_stride(s->classes[kind]) <= usage.budget;
}

uint64_t qn_spill_bytes(qn_spill *s)
{
    return qn_pool_get_usage(s->pool).held;
}
