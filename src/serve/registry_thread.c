/* The registry's thread. It loads the model that requests have waited for longest, with clients taking turns. If the
 * limits require it, it frees other models before: first those without requests, then those that were used longest ago,
 * but none that was loaded less than stay_seconds ago. So clients that ask for one model after another do not keep the
 * server busy with loading.
 *
 * Memory is planned by file sizes. Take as many of the largest models as fit together, each with an eighth of its
 * weights for contexts; the memory that their weights leave is shared evenly between their contexts. So any two models
 * fit if the two largest do. A model whose contexts need more gets all memory that its weights leave.
 *
 * Static functions are called by this thread with the registry's lock. Some release it meanwhile, as their comments
 * say: then all but the entries' addresses may have changed. Only this thread, while it runs, changes the state of
 * models of files. */
#include "serve/registry_entry.h"

#include "base/status.h"
#include "http/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes for the contexts of a model, at least; and what part of its weights they are, if that is more. */
enum { LEAST_CONTEXTS = 16 << 20, CONTEXTS_OF_WEIGHTS = 8 };

/* ---- The plan of memory ---- */

/* Compares sizes for qsort: the largest first. */
static int descending(const void *a, const void *b)
{
    const uint64_t one = *(const uint64_t *)a, other = *(const uint64_t *)b;
    return (one < other) - (one > other);
}

/* Returns the bytes that models of these weights in total need, with contexts. */
static uint64_t at_least(uint64_t weights, size_t n_models)
{
    const uint64_t share = weights / CONTEXTS_OF_WEIGHTS, least = (uint64_t)n_models * LEAST_CONTEXTS;
    return weights + (share > least ? share : least);
}

/* Returns the limit of memory for a model's contexts, in bytes; 0: the weights alone are too large. Only with a limit
 * of memory for all models. */
static uint64_t contexts_of(const qn_registry *registry, const qn_registry_entry *entry)
{
    uint64_t sizes[QN_REGISTRY_MODELS], weights = 0, share = 0;
    size_t n = 0;
    const uint64_t limit = registry->loader.memory,
                   left = entry->weight_bytes < limit ? limit - entry->weight_bytes : 0;
    if (entry->needs_all)
        return left;
    for (size_t i = 0; i < registry->n_entries; i++)
        if (!registry->entries[i]->is_missing && registry->entries[i]->path)
            sizes[n++] = registry->entries[i]->weight_bytes;
    qsort(sizes, n, sizeof *sizes, descending);
    for (size_t i = 0; i < n && (!registry->loader.max_loaded || i < registry->loader.max_loaded); i++) {
        weights += sizes[i];
        if (i && at_least(weights, i + 1) > limit)
            break;
        share = weights < limit ? (limit - weights) / (i + 1) : 0;
    }
    share = share > LEAST_CONTEXTS ? share : LEAST_CONTEXTS;
    return share < left ? share : left;
}

/* ---- Freeing models ---- */

/* Whether so many loaded models and bytes exceed a limit. */
static bool exceeds(const qn_registry *registry, size_t n_loaded, uint64_t bytes)
{
    return (registry->loader.max_loaded && n_loaded > registry->loader.max_loaded) ||
           (registry->loader.memory && bytes > registry->loader.memory);
}

/* Whether a model must not be freed yet; if so, registry->stays_until becomes the earliest time at which one may be. */
static bool stays(qn_registry *registry, const qn_registry_entry *entry)
{
    const double until = entry->loaded_at + registry->loader.stay_seconds;
    if (until <= qn_now())
        return false;
    registry->stays_until = registry->stays_until > 0 && registry->stays_until < until ? registry->stays_until : until;
    return true;
}

/* Returns the next model to free, and its index: without requests before with requests, then by last use. NULL: there
 * is none. */
static qn_registry_entry *next_victim(qn_registry *registry, const bool *is_victim, size_t *index)
{
    qn_registry_entry *best = NULL;
    for (size_t i = 0; i < registry->n_entries; i++) {
        qn_registry_entry *e = registry->entries[i];
        if (!e->path || e->state != QN_MODEL_LOADED || is_victim[i] || stays(registry, e))
            continue;
        if (best && (!best->n_users != !e->n_users ? e->n_users != 0 : e->used > best->used))
            continue;
        best = e;
        *index = i;
    }
    return best;
}

/* Chooses the models to free so that one more with `bytes` fits; is_victim [n_entries]. False: it does not fit while
 * recently loaded models stay; then none is freed. If it would not fit even after all loaded models of files are freed,
 * all are chosen, and the result is true: loading is tried all the same. */
static bool choose_victims(qn_registry *registry, uint64_t bytes, bool *is_victim)
{
    size_t n_loaded = 1, index;
    memset(is_victim, 0, registry->n_entries * sizeof *is_victim);
    for (size_t i = 0; i < registry->n_entries; i++) {
        const qn_registry_entry *e = registry->entries[i];
        if (!e->path || e->state != QN_MODEL_LOADED)
            continue;
        n_loaded++;
        bytes += e->model.bytes;
    }
    while (exceeds(registry, n_loaded, bytes)) {
        const qn_registry_entry *victim = next_victim(registry, is_victim, &index);
        if (!victim && registry->stays_until > 0) {
            memset(is_victim, 0, registry->n_entries * sizeof *is_victim);
            return false;
        }
        if (!victim)
            return true;
        is_victim[index] = true;
        n_loaded--;
        bytes -= victim->model.bytes;
    }
    registry->stays_until = 0;
    return true;
}

/* Frees a loaded model without requests. The lock is released meanwhile. */
static void unload(qn_registry *registry, qn_registry_entry *entry)
{
    const qn_registered model = entry->model;
    qn_registry_settle(entry);
    entry->state = QN_MODEL_FREEING;
    entry->is_draining = entry->is_lost = false;
    pthread_mutex_unlock(&registry->lock);
    registry->loader.free(registry->loader.user, &model);
    pthread_mutex_lock(&registry->lock);
    entry->state = QN_MODEL_UNLOADED;
    entry->model.scheduler = NULL;
    entry->model.served.model = entry->model.echoed.model = NULL;
}

/* Begins or ends the draining of a model: its scheduler is closed or reopened, under the registry's lock. Draining
 * withdraws the queued requests, which wait again with new ones: only requests that have begun delay other models. */
static void set_draining(qn_registry_entry *entry, bool is_draining)
{
    if (entry->is_draining != is_draining && entry->model.scheduler)
        qn_scheduler_close(entry->model.scheduler, is_draining);
    entry->is_draining = is_draining;
}

/* Ends the draining of a model that stays after all, and gives it to its waiters. The lock is released meanwhile. */
static void undrain(qn_registry *registry, qn_registry_entry *entry)
{
    set_draining(entry, false);
    qn_waiter *const first = qn_registry_take_waiters(registry, entry, NULL);
    pthread_mutex_unlock(&registry->lock);
    qn_registry_wake(first);
    pthread_mutex_lock(&registry->lock);
}

/* FITS: memory is free. AGAIN: the lock was released meanwhile, so that all may have changed. LATER: nothing can be
 * done until something changes. */
typedef enum fit { FITS, AGAIN, LATER } fit;

/* Frees models until one more with `bytes` fits; those with requests are drained first. The lock is released only if it
 * returns AGAIN. */
static fit free_memory_for(qn_registry *registry, uint64_t bytes)
{
    bool is_victim[QN_REGISTRY_MODELS];
    fit result = choose_victims(registry, bytes, is_victim) ? FITS : LATER;
    for (size_t i = 0; i < registry->n_entries; i++) {
        qn_registry_entry *e = registry->entries[i];
        if (e->is_draining && !is_victim[i]) {
            undrain(registry, e);
            return AGAIN;
        }
        if (is_victim[i] && !e->n_users) {
            unload(registry, e);
            return AGAIN;
        }
        set_draining(e, is_victim[i]);
        result = is_victim[i] ? LATER : result;
    }
    return result;
}

/* Ends all draining: no model waits for memory any more. The lock is released only if it returns AGAIN. */
static fit keep_all(qn_registry *registry)
{
    for (size_t i = 0; i < registry->n_entries; i++)
        if (registry->entries[i]->is_draining) {
            undrain(registry, registry->entries[i]);
            return AGAIN;
        }
    return LATER;
}

/* Frees a model that can no longer be used; the lock is released meanwhile. False: there is none without requests. */
static bool free_lost(qn_registry *registry)
{
    for (size_t i = 0; i < registry->n_entries; i++) {
        qn_registry_entry *e = registry->entries[i];
        if (!e->is_lost || e->n_users || e->state != QN_MODEL_LOADED)
            continue;
        unload(registry, e);
        return true;
    }
    return false;
}

/* ---- Loading ---- */

/* Whether entry `a` is loaded before `b`: the one whose client has gone longest without a load, then the one that was
 * wanted first. Both have waiters. */
static bool is_before(const qn_registry_entry *a, const qn_registry_entry *b)
{
    const uint64_t one = qn_registry_first_turn(a)->turn, other = qn_registry_first_turn(b)->turn;
    return one != other ? one < other : a->wanted < b->wanted;
}

/* Returns the model to load: of the client whose turn it is, the one that it asked for first. NULL: none is wanted. */
static qn_registry_entry *next_wanted(const qn_registry *registry)
{
    qn_registry_entry *best = NULL;
    for (size_t i = 0; i < registry->n_entries; i++) {
        qn_registry_entry *e = registry->entries[i];
        const bool can_load = e->n_waiting && (e->state == QN_MODEL_UNLOADED || e->state == QN_MODEL_FAILED);
        if (can_load && (!best || is_before(e, best)))
            best = e;
    }
    return best;
}

/* Returns the reason of a failed load in words for clients. The error text has paths, and may have bytes of any file
 * that a link leads to, so it goes only to the notes that the loader prints. */
static const char *reason_of(qn_status status)
{
    switch (status) {
    case QN_ERR_MEMORY: return "it does not fit in memory";
    case QN_ERR_IO: return "its file cannot be read";
    case QN_ERR_DEVICE: return "the driver of the GPU reports an error";
    case QN_ERR_UNSUPPORTED: return "its file needs a feature that this server does not support";
    case QN_ERR_CANCELLED: return "the server is stopping";
    default: return "its file is not a model";
    }
}

/* Gives the model to all waiters, or refuses them. The lock is released meanwhile. */
static void wake_waiters(qn_registry *registry, qn_registry_entry *entry, const qn_refusal *refusal)
{
    qn_waiter *const first = qn_registry_take_waiters(registry, entry, refusal);
    pthread_mutex_unlock(&registry->lock);
    qn_registry_wake(first);
    pthread_mutex_lock(&registry->lock);
}

/* Refuses the waiters of a model that cannot be loaded. A scan finds out whether its file has gone. The lock is
 * released meanwhile. */
static void fail(qn_registry *registry, qn_registry_entry *entry, qn_status status)
{
    qn_refusal refusal;
    entry->error = reason_of(status);
    pthread_mutex_unlock(&registry->lock);
    qn_registry_scan(registry);
    pthread_mutex_lock(&registry->lock);
    entry->state = entry->is_missing ? QN_MODEL_UNLOADED : QN_MODEL_FAILED;
    entry->is_failed = !entry->is_missing;
    entry->retry_at = qn_now() + registry->loader.pause_seconds;
    if (entry->is_missing)
        qn_registry_refuse_unknown(entry->name, &refusal);
    else
        qn_registry_refuse_failed(entry, &refusal);
    wake_waiters(registry, entry, &refusal);
}

/* Whether the file was checked before. If not, checks it now, with the lock released, so that all may have changed. */
static bool was_checked(qn_registry *registry, qn_registry_entry *entry)
{
    if (entry->is_checked || !registry->loader.check)
        return true;
    pthread_mutex_unlock(&registry->lock);
    const qn_status status = registry->loader.check(registry->loader.user, entry->path);
    pthread_mutex_lock(&registry->lock);
    entry->is_checked = true;
    if (status)
        fail(registry, entry, status);
    return false;
}

/* Loads a model for its waiters, with `memory` bytes for contexts; 0: no limit, or, with a limit for all models, too
 * large to be loaded. The lock is released meanwhile. After a failure for lack of memory the model is loaded again,
 * with all memory that its weights leave. */
static void load(qn_registry *registry, qn_registry_entry *entry, uint64_t memory)
{
    qn_registered fresh = entry->model;
    qn_status status;
    entry->state = QN_MODEL_LOADING;
    qn_registry_take_turn(registry, entry);
    const bool is_too_large = registry->loader.memory && !memory;
    pthread_mutex_unlock(&registry->lock);
    if (is_too_large)
        status = qn_fail(QN_ERR_MEMORY, "its weights and contexts do not fit in the memory of models, %.1f MiB",
                         (double)registry->loader.memory / 1048576);
    else
        status = registry->loader.load(registry->loader.user, registry, entry->path, memory, &fresh);
    pthread_mutex_lock(&registry->lock);
    if (status == QN_ERR_MEMORY && memory && !entry->needs_all) {
        entry->state = QN_MODEL_UNLOADED; /* its waiters stay */
        entry->needs_all = true;
        return;
    }
    if (status) {
        fail(registry, entry, status);
        return;
    }
    entry->model = fresh;
    entry->loaded_at = qn_now();
    qn_registry_remember(entry);
    wake_waiters(registry, entry, NULL);
}

/* One step of the thread's loop, which may release the lock. False: there is nothing to do but wait, and the lock was
 * not released in this call, so that no signal is missed. */
static bool go_on(qn_registry *registry)
{
    if (registry->wants_scan) {
        registry->wants_scan = false;
        pthread_mutex_unlock(&registry->lock);
        qn_registry_scan(registry);
        pthread_mutex_lock(&registry->lock);
        return true;
    }
    if (free_lost(registry))
        return true;
    registry->stays_until = 0;
    qn_registry_entry *entry = next_wanted(registry);
    if (!entry)
        return keep_all(registry) != LATER;
    if (!was_checked(registry, entry))
        return true;
    const uint64_t memory = registry->loader.memory ? contexts_of(registry, entry) : 0;
    const bool fits = memory || !registry->loader.memory;
    const fit found = fits ? free_memory_for(registry, entry->weight_bytes + memory) : FITS;
    if (found == FITS)
        load(registry, entry, memory);
    return found != LATER;
}

/* Waits until something changes or a model may be freed. The lock is released during the wait. */
static void wait_for_change(qn_registry *registry)
{
    struct timespec until;
    if (registry->stays_until <= 0) {
        pthread_cond_wait(&registry->changed, &registry->lock);
        return;
    }
    const double left = registry->stays_until - qn_now(), end = qn_time() + (left > 0 ? left : 0);
    until.tv_sec = (time_t)end;
    until.tv_nsec = (long)((end - (double)until.tv_sec) * 1e9);
    pthread_cond_timedwait(&registry->changed, &registry->lock, &until);
}

/* The main function of the registry's thread: takes steps until the registry stops, and waits when one had nothing to
 * do. */
static void *serve(void *argument)
{
    qn_registry *registry = argument;
    pthread_mutex_lock(&registry->lock);
    while (!registry->is_stopping)
        if (!go_on(registry))
            wait_for_change(registry);
    pthread_mutex_unlock(&registry->lock);
    return NULL;
}

qn_status qn_registry_start(qn_registry *registry, const qn_registry_loader *loader)
{
    pthread_mutex_lock(&registry->lock);
    registry->loader = *loader;
    registry->has_loader = true;
    pthread_mutex_unlock(&registry->lock);
    qn_registry_scan(registry);
    if (pthread_create(&registry->thread, NULL, serve, registry))
        return qn_fail(QN_ERR_MEMORY, "cannot start the thread that loads models");
    registry->has_thread = true;
    return QN_OK;
}
