/* Models by name: entries, references, waiting requests and views. registry_thread.c loads and frees models.
 *
 * Static functions are called with the registry's lock, but for those of `---- Begin and end ----`, pure functions and
 * those whose comment says otherwise. Waiters are woken without the lock. The lock is held while a scheduler's counters
 * are read, and while the loader's is_lost is called. */
#include "serve/registry_entry.h"

#include "base/memory.h"
#include "base/printable.h"
#include "base/share.h"
#include "base/status.h"
#include "http/clock.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- Begin and end ---- */

qn_status qn_registry_init(qn_registry *registry)
{
    memset(registry, 0, sizeof *registry);
    if (pthread_mutex_init(&registry->lock, NULL))
        return qn_fail(QN_ERR_MEMORY, "no memory for a lock");
    if (pthread_mutex_init(&registry->scanning, NULL)) {
        pthread_mutex_destroy(&registry->lock);
        return qn_fail(QN_ERR_MEMORY, "no memory for a lock");
    }
    if (pthread_cond_init(&registry->changed, NULL)) {
        pthread_mutex_destroy(&registry->scanning);
        pthread_mutex_destroy(&registry->lock);
        return qn_fail(QN_ERR_MEMORY, "no memory for a lock");
    }
    return QN_OK;
}

static void free_entry(qn_registry_entry *entry)
{
    qn_model_metrics_free(entry->model.metrics);
    qn_recall_free(entry->model.recall);
    free(entry->path);
    qn_free(entry);
}

void qn_registry_free(qn_registry *registry)
{
    qn_registry_stop(registry);
    qn_registry_unload(registry);
    for (size_t i = 0; i < registry->n_entries; i++)
        free_entry(registry->entries[i]);
    pthread_cond_destroy(&registry->changed);
    pthread_mutex_destroy(&registry->scanning);
    pthread_mutex_destroy(&registry->lock);
}

/* ---- Entries ---- */

static qn_registry_entry *find(const qn_registry *registry, const char *name)
{
    for (size_t i = 0; i < registry->n_entries; i++)
        if (!strcmp(registry->entries[i]->name, name))
            return registry->entries[i];
    return NULL;
}

/* Whether a name is a valid name of a model: it appears in metrics, logs and web pages. */
static bool is_printable(const char *name)
{
    const size_t length = strlen(name);
    size_t at = 0, n = 0;
    while (at < length && (n = qn_printable(name + at, length - at)) != 0)
        at += n;
    return length && at == length;
}

/* Creates an entry of a model that is not loaded; free_entry frees it. Needs no lock. */
static qn_status create_entry(const char *name, const char *path, qn_registry_entry **out)
{
    qn_registry_entry *entry;
    *out = NULL;
    if (strlen(name) >= QN_REGISTRY_NAME_BYTES)
        return qn_fail(QN_ERR_INVALID, "the name of a model has %zu bytes, at most %d are allowed", strlen(name),
                       QN_REGISTRY_NAME_BYTES - 1);
    if (!is_printable(name))
        return qn_fail(QN_ERR_INVALID, "the name of a model, '%s', is not printable; see --alias", name);
    QN_TRY(qn_alloc(&entry, 1, sizeof *entry, "a model's entry"));
    snprintf(entry->name, sizeof entry->name, "%s", name);
    entry->path = path ? strdup(path) : NULL;
    qn_status status = path && !entry->path ? qn_fail(QN_ERR_MEMORY, "no memory for a path") : QN_OK;
    if (!status)
        status = qn_model_metrics_create(&entry->model.metrics);
    if (!status)
        status = qn_recall_create(0, 0, &entry->model.recall);
    if (status) {
        free_entry(entry);
        return status;
    }
    entry->model.name = entry->name;
    entry->model.created = (int64_t)time(NULL);
    *out = entry;
    return QN_OK;
}

/* Adds an entry to the registry. Takes the entry over, also after an error. */
static qn_status append(qn_registry *registry, qn_registry_entry *entry)
{
    qn_status status = QN_OK;
    if (registry->n_entries == QN_REGISTRY_MODELS)
        status = qn_fail(QN_ERR_INVALID, "there are more than %d models", QN_REGISTRY_MODELS);
    else if (find(registry, entry->name))
        status = qn_fail(QN_ERR_INVALID, "two models have the name '%s'", entry->name);
    if (status)
        free_entry(entry);
    else
        registry->entries[registry->n_entries++] = entry;
    return status;
}

qn_status qn_registry_add(qn_registry *registry, const qn_registered *model)
{
    qn_registry_entry *entry;
    QN_TRY(create_entry(model->name, NULL, &entry));
    qn_registered *loaded = &entry->model;
    qn_model_metrics *const metrics = loaded->metrics;
    qn_recall *const recall = loaded->recall;
    *loaded = *model;
    loaded->name = entry->name;
    loaded->metrics = metrics;
    loaded->recall = recall;
    pthread_mutex_lock(&registry->lock);
    qn_registry_remember(entry);
    const qn_status status = append(registry, entry);
    pthread_mutex_unlock(&registry->lock);
    return status;
}

qn_status qn_registry_add_file(qn_registry *registry, const char *name, const char *path, uint64_t bytes)
{
    qn_registry_entry *fresh;
    qn_status status = QN_OK;
    pthread_mutex_lock(&registry->lock);
    qn_registry_entry *known = find(registry, name);
    if (known && known->path && !strcmp(known->path, path)) {
        known->retry_at = known->weight_bytes == bytes ? known->retry_at : 0;
        known->weight_bytes = bytes;
        known->is_missing = false;
    } else {
        status = create_entry(name, path, &fresh);
        if (!status) {
            fresh->weight_bytes = bytes;
            status = append(registry, fresh);
        }
    }
    pthread_mutex_unlock(&registry->lock);
    return status;
}

void qn_registry_remove_file(qn_registry *registry, const char *name)
{
    pthread_mutex_lock(&registry->lock);
    qn_registry_entry *entry = find(registry, name);
    if (entry)
        entry->is_missing = true;
    pthread_mutex_unlock(&registry->lock);
}

void qn_registry_scan(qn_registry *registry)
{
    pthread_mutex_lock(&registry->scanning);
    pthread_mutex_lock(&registry->lock);
    const bool can_scan = registry->has_loader && registry->loader.scan;
    registry->scanned_at = qn_now();
    registry->is_scanning = can_scan;
    pthread_mutex_unlock(&registry->lock);
    if (can_scan)
        registry->loader.scan(registry->loader.user, registry);
    pthread_mutex_lock(&registry->lock);
    registry->is_scanning = false;
    registry->has_scanned = true;
    pthread_mutex_unlock(&registry->lock);
    pthread_mutex_unlock(&registry->scanning);
}

void qn_registry_scan_soon(qn_registry *registry)
{
    pthread_mutex_lock(&registry->lock);
    registry->wants_scan = true;
    pthread_cond_signal(&registry->changed);
    pthread_mutex_unlock(&registry->lock);
}

/* Whether a scan is due: folders are not read again for each of many requests. */
static bool is_scan_due(const qn_registry *registry)
{
    return registry->has_loader && qn_now() - registry->scanned_at >= registry->loader.scan_seconds;
}

void qn_registry_refresh(qn_registry *registry)
{
    pthread_mutex_lock(&registry->lock);
    const bool is_due = is_scan_due(registry);
    pthread_mutex_unlock(&registry->lock);
    if (is_due)
        qn_registry_scan_soon(registry);
}

/* ---- The thread ---- */

bool qn_registry_is_stopping(qn_registry *registry)
{
    pthread_mutex_lock(&registry->lock);
    const bool is_stopping = registry->is_stopping;
    pthread_mutex_unlock(&registry->lock);
    return is_stopping;
}

void qn_registry_stop(qn_registry *registry)
{
    qn_refusal refusal;
    qn_refuse(&refusal, 503, "stopping", NULL, "the server is stopping");
    pthread_mutex_lock(&registry->lock);
    registry->is_stopping = true;
    pthread_cond_signal(&registry->changed);
    pthread_mutex_unlock(&registry->lock);
    if (registry->has_thread)
        pthread_join(registry->thread, NULL);
    registry->has_thread = false;
    for (size_t i = 0; i < qn_registry_count(registry); i++) {
        pthread_mutex_lock(&registry->lock);
        qn_waiter *const first = qn_registry_take_waiters(registry, registry->entries[i], &refusal);
        pthread_mutex_unlock(&registry->lock);
        qn_registry_wake(first);
    }
}

void qn_registry_unload(qn_registry *registry)
{
    for (size_t i = 0; i < registry->n_entries; i++) {
        qn_registry_entry *entry = registry->entries[i];
        if (!entry->path || entry->state != QN_MODEL_LOADED)
            continue;
        registry->loader.free(registry->loader.user, &entry->model);
        entry->state = QN_MODEL_UNLOADED;
    }
}

/* ---- Turns of clients ---- */

/* Whether two clients are the same. NULL is the client "". */
static bool is_client(const char *one, const char *other)
{
    return !strncmp(one ? one : "", other ? other : "", QN_REGISTRY_CLIENT_BYTES - 1);
}

uint64_t qn_registry_turn_of(const qn_registry *registry, const char *client)
{
    for (size_t i = 0; i < QN_REGISTRY_TURNS; i++)
        if (registry->turns[i].tick && is_client(registry->turns[i].client, client))
            return registry->turns[i].tick;
    return 0;
}

const qn_waiter *qn_registry_first_turn(const qn_registry_entry *entry)
{
    const qn_waiter *first = entry->first;
    for (const qn_waiter *waiter = first; waiter; waiter = waiter->next)
        first = waiter->turn < first->turn ? waiter : first;
    return first;
}

/* Records that a client had its turn. Replaces the client's own turn, or else the oldest. */
static void keep_turn(qn_registry *registry, const char *client, uint64_t tick)
{
    qn_registry_turn *turn = registry->turns;
    for (size_t i = 0; i < QN_REGISTRY_TURNS; i++) {
        qn_registry_turn *t = &registry->turns[i];
        if (t->tick && is_client(t->client, client)) {
            turn = t;
            break;
        }
        turn = t->tick < turn->tick ? t : turn;
    }
    snprintf(turn->client, sizeof turn->client, "%s", client ? client : "");
    turn->tick = tick;
}

void qn_registry_take_turn(qn_registry *registry, const qn_registry_entry *entry)
{
    const qn_waiter *const taker = qn_registry_first_turn(entry);
    const uint64_t tick = ++registry->ticks;
    if (!taker)
        return;
    keep_turn(registry, taker->client, tick);
    for (size_t i = 0; i < registry->n_entries; i++)
        for (qn_waiter *waiter = registry->entries[i]->first; waiter; waiter = waiter->next)
            if (is_client(waiter->client, taker->client))
                waiter->turn = tick;
}

/* ---- Waiting ---- */

/* Returns the number of waiting requests of a client for a model. */
static size_t count_of(const qn_registry_entry *entry, const char *client)
{
    size_t n = 0;
    for (const qn_waiter *waiter = entry->first; waiter; waiter = waiter->next)
        n += is_client(waiter->client, client);
    return n;
}

/* Returns the share of a model's queue that a client which wants to wait has. */
static qn_share share_of(const qn_registry *registry, const qn_registry_entry *entry, const char *client)
{
    const size_t own = count_of(entry, client);
    return (qn_share){ .most = registry->loader.max_queued,
                       .factor = QN_QUEUE_FACTOR,
                       .used = entry->n_waiting,
                       .own = own,
                       .n_clients = entry->n_clients + !own };
}

/* Adds a waiter to those of a model, as the last. The waiter belongs to its request, and is in the list until it is
 * taken or cancelled. */
static void add_waiter(qn_registry *registry, qn_registry_entry *entry, qn_waiter *waiter)
{
    entry->n_clients += !count_of(entry, waiter->client);
    if (!entry->n_waiting++) {
        entry->wanted = ++registry->ticks;
        entry->is_checked = false;
    }
    waiter->entry = entry;
    waiter->turn = qn_registry_turn_of(registry, waiter->client);
    waiter->next = NULL;
    waiter->previous = entry->last;
    *(entry->last ? &entry->last->next : &entry->first) = waiter;
    entry->last = waiter;
}

/* Removes a waiter from those of its model. */
static void remove_waiter(qn_waiter *waiter)
{
    qn_registry_entry *entry = waiter->entry;
    *(waiter->previous ? &waiter->previous->next : &entry->first) = waiter->next;
    *(waiter->next ? &waiter->next->previous : &entry->last) = waiter->previous;
    entry->n_waiting--;
    entry->n_clients -= !count_of(entry, waiter->client);
    waiter->entry = NULL;
}

qn_waiter *qn_registry_take_waiters(qn_registry *registry, qn_registry_entry *entry, const qn_refusal *refusal)
{
    qn_waiter *const first = entry->first;
    for (qn_waiter *waiter = first; waiter; waiter = waiter->next) {
        waiter->entry = NULL;
        waiter->model = refusal ? NULL : &entry->model;
        if (refusal)
            waiter->refusal = *refusal;
        else
            entry->n_users++;
    }
    entry->used = ++registry->ticks;
    entry->first = entry->last = NULL;
    entry->n_waiting = entry->n_clients = 0;
    return first;
}

void qn_registry_wake(qn_waiter *first)
{
    for (qn_waiter *waiter = first, *next; waiter; waiter = next) {
        next = waiter->next; /* it may be freed by its call */
        waiter->wake(waiter);
    }
}

bool qn_registry_cancel(qn_registry *registry, qn_waiter *waiter)
{
    pthread_mutex_lock(&registry->lock);
    const bool waits = waiter->entry != NULL;
    if (waits)
        remove_waiter(waiter);
    pthread_cond_signal(&registry->changed); /* a model that was drained for it may stay */
    pthread_mutex_unlock(&registry->lock);
    return waits;
}

/* ---- References ---- */

/* Whether requests do not find a model: its file has gone and it is not loaded. */
static bool is_hidden(const qn_registry_entry *entry)
{
    return entry->is_missing && entry->state != QN_MODEL_LOADED;
}

/* Ranks the models for a request without a name: a loaded one comes before one that can be loaded, and that before a
 * failed one. */
static int rank_of(const qn_registry_entry *entry)
{
    return entry->state == QN_MODEL_LOADED ? 3 : entry->state == QN_MODEL_FAILED ? 1 : 2;
}

/* Returns the entry for a name or for none; NULL: there is none. */
static qn_registry_entry *choose(const qn_registry *registry, const char *name)
{
    if (registry->n_entries == 1 && !registry->has_loader)
        return registry->entries[0];
    qn_registry_entry *found = name ? find(registry, name) : NULL;
    for (size_t i = 0; !name && i < registry->n_entries; i++) {
        qn_registry_entry *entry = registry->entries[i];
        if (!is_hidden(entry) && (!found || rank_of(entry) > rank_of(found)))
            found = entry;
    }
    return found && !is_hidden(found) ? found : NULL;
}

void qn_registry_refuse_failed(const qn_registry_entry *entry, qn_refusal *refusal)
{
    const double left = entry->retry_at - qn_now();
    qn_refuse(refusal, 503, "model_unavailable", "model", "the model '%.200s' cannot be loaded: %s", entry->name,
              entry->error);
    refusal->retry_after = left > 1 ? (unsigned)ceil(left) : 1;
}

void qn_registry_refuse_unknown(const char *name, qn_refusal *refusal)
{
    qn_refuse(refusal, 404, "model_not_found", "model", "there is no model '%.200s'", name ? name : "");
}

/* Takes a reference to a loaded model, or has the waiter wait for it, or refuses. */
static qn_acquired acquire(qn_registry *registry, qn_registry_entry *entry, qn_waiter *waiter,
                           const qn_registered **model, qn_refusal *refusal)
{
    if (entry->state == QN_MODEL_LOADED && !entry->is_draining && !entry->is_lost) {
        entry->n_users++;
        entry->used = ++registry->ticks;
        *model = &entry->model;
        return QN_ACQUIRED;
    }
    const qn_share share = share_of(registry, entry, waiter->client);
    if (registry->is_stopping)
        qn_refuse(refusal, 503, "stopping", NULL, "the server is stopping");
    else if (entry->state == QN_MODEL_FAILED && qn_now() < entry->retry_at)
        qn_registry_refuse_failed(entry, refusal);
    else if (!waiter->is_back && !qn_share_allows(&share, 1))
        qn_refuse(refusal, 429, "overloaded", NULL, "%zu requests wait for the model, at most %zu may, of a client %zu",
                  share.used, share.most, qn_share_part(&share));
    else {
        add_waiter(registry, entry, waiter);
        pthread_cond_signal(&registry->changed);
        return QN_ACQUIRE_WAITS;
    }
    return QN_ACQUIRE_REFUSED;
}

/* Waits for the end of a scan that has begun. */
static void wait_for_scan(qn_registry *registry)
{
    pthread_mutex_lock(&registry->scanning);
    pthread_mutex_unlock(&registry->scanning);
}

/* Takes the lock, also if it returns NULL, and returns the entry of a name. An unknown name causes a scan, without the
 * lock; one that has begun may yet find it. NULL: there is none. */
static qn_registry_entry *lock_entry(qn_registry *registry, const char *name)
{
    pthread_mutex_lock(&registry->lock);
    qn_registry_entry *entry = choose(registry, name);
    const bool is_due = is_scan_due(registry);
    if (entry || (!is_due && !registry->is_scanning))
        return entry;
    if (is_due)
        registry->scanned_at = qn_now(); /* only one of many requests scans */
    pthread_mutex_unlock(&registry->lock);
    if (is_due)
        qn_registry_scan(registry);
    else
        wait_for_scan(registry);
    pthread_mutex_lock(&registry->lock);
    return choose(registry, name);
}

qn_acquired qn_registry_acquire(qn_registry *registry, const char *name, qn_waiter *waiter, const qn_registered **model,
                                qn_refusal *refusal)
{
    qn_acquired result = QN_ACQUIRE_REFUSED;
    *model = NULL;
    qn_registry_entry *entry = lock_entry(registry, name);
    const bool is_empty = !registry->n_entries;
    if (entry)
        result = acquire(registry, entry, waiter, model, refusal);
    pthread_mutex_unlock(&registry->lock);
    if (!entry && is_empty)
        qn_refuse(refusal, 503, "loading", NULL, "the model is being loaded");
    else if (!entry)
        qn_registry_refuse_unknown(name, refusal);
    return result;
}

/* Returns the entry of a model, whose first member it is. Needs no lock. */
static qn_registry_entry *entry_of(const qn_registered *model)
{
    return (qn_registry_entry *)(uintptr_t)model;
}

bool qn_registry_frees(qn_registry *registry)
{
    pthread_mutex_lock(&registry->lock);
    const bool frees = registry->has_loader;
    pthread_mutex_unlock(&registry->lock);
    return frees;
}

void qn_registry_release(qn_registry *registry, const qn_registered *model)
{
    qn_registry_entry *entry = entry_of(model);
    pthread_mutex_lock(&registry->lock);
    entry->used = ++registry->ticks;
    if (entry->path && registry->loader.is_lost)
        entry->is_lost = entry->is_lost || registry->loader.is_lost(registry->loader.user, model);
    if (!--entry->n_users)
        pthread_cond_signal(&registry->changed); /* the model can be freed, also in place of one that is drained */
    pthread_mutex_unlock(&registry->lock);
}

/* ---- Views ---- */

/* Adds the counters that only grow. Those of the present state, such as `queued`, are left as they are. */
static void add_counters(qn_scheduler_counters *sum, const qn_scheduler_counters *before)
{
    sum->submitted += before->submitted;
    sum->finished += before->finished;
    sum->set_aside += before->set_aside;
    sum->yielded += before->yielded;
    sum->prompt_tokens += before->prompt_tokens;
    sum->reused_tokens += before->reused_tokens;
    sum->generated_tokens += before->generated_tokens;
    sum->prefix_hits += before->prefix_hits;
    sum->steps += before->steps;
    sum->rows += before->rows;
    sum->ahead_steps += before->ahead_steps;
    sum->drafted_tokens += before->drafted_tokens;
    sum->accepted_tokens += before->accepted_tokens;
    sum->draft_passes += before->draft_passes;
    sum->draft_seconds += before->draft_seconds;
    sum->step_seconds += before->step_seconds;
    sum->idle_seconds += before->idle_seconds;
}

/* Returns the counters of a model, summed over all its loads; `queued` includes the requests that wait for it to be
 * loaded. */
static qn_scheduler_counters counters_of(const qn_registry_entry *entry)
{
    qn_scheduler_counters counters = QN_SCHEDULER_COUNTERS_INIT;
    if (entry->state == QN_MODEL_LOADED && entry->model.scheduler)
        (void)qn_scheduler_get_counters(entry->model.scheduler, &counters);
    add_counters(&counters, &entry->last_view.counters);
    counters.queued += (uint32_t)entry->n_waiting;
    return counters;
}

void qn_registry_settle(qn_registry_entry *entry)
{
    qn_scheduler_counters counters = QN_SCHEDULER_COUNTERS_INIT;
    if (entry->model.scheduler)
        (void)qn_scheduler_get_counters(entry->model.scheduler, &counters);
    add_counters(&entry->last_view.counters, &counters);
}

static void look_at_reasoning(const qn_served *served, qn_registry_reasoning *out)
{
    const qn_chat_format *format = qn_model_get_chat_format(served->model);
    *out = (qn_registry_reasoning){ .has_any = *format->think_open };
    if (served->effort)
        snprintf(out->effort, sizeof out->effort, "%s", served->effort);
    while (out->n_efforts < format->n_efforts && out->n_efforts < QN_REGISTRY_EFFORTS) {
        snprintf(out->efforts[out->n_efforts], QN_REGISTRY_EFFORT_BYTES, "%s", format->efforts[out->n_efforts]);
        out->n_efforts++;
    }
    out->is_optional = format->has_enable_thinking || (out->n_efforts && !strcmp(out->efforts[0], "none"));
}

void qn_registry_remember(qn_registry_entry *entry)
{
    qn_registered *model = &entry->model;
    qn_registry_view *view = &entry->last_view;
    model->served.name = entry->name;
    model->echoed = model->served;
    model->echoed.name = NULL;
    entry->state = QN_MODEL_LOADED;
    entry->is_failed = false;
    entry->was_loaded = true;
    entry->n_loads++;
    if (model->served.model) {
        const qn_model_info info = *qn_model_get_info(model->served.model);
        snprintf(view->display_name, sizeof view->display_name, "%s", info.name);
        view->n_ctx_train = info.n_ctx_train;
        view->n_vocab = info.n_vocab;
        view->n_embd = info.n_embd;
        view->n_params = info.n_params;
        view->is_on_gpu = strcmp(info.device, "cpu") && *info.device;
        snprintf(view->architecture, sizeof view->architecture, "%s", info.architecture);
        snprintf(view->quantisation, sizeof view->quantisation, "%s", info.quantisation);
        view->file_bytes = info.file_bytes;
        look_at_reasoning(&model->served, &view->reasoning);
    }
    view->n_ctx = model->served.n_ctx;
    view->max_tokens = model->served.max_tokens;
    view->sampling = model->served.sampling;
    view->n_parallel = model->n_parallel;
    view->page_tokens = model->page_tokens;
    view->n_pages = model->n_pages;
}

/* Fills a view of an entry. False: the entry is hidden. */
static bool look(const qn_registry_entry *entry, qn_registry_view *view)
{
    if (is_hidden(entry))
        return false;
    *view = entry->last_view;
    view->name = entry->name;
    view->path = entry->path;
    view->state = entry->state;
    view->is_draining = entry->is_draining;
    view->is_failed = entry->is_failed;
    view->was_loaded = entry->was_loaded;
    view->weight_bytes = entry->weight_bytes;
    view->n_waiting = entry->n_waiting;
    view->n_loads = entry->n_loads;
    view->bytes = entry->state == QN_MODEL_LOADED || entry->state == QN_MODEL_FREEING ? entry->model.bytes : 0;
    view->created = entry->model.created;
    view->metrics = entry->model.metrics;
    view->counters = counters_of(entry);
    return true;
}

size_t qn_registry_count(qn_registry *registry)
{
    pthread_mutex_lock(&registry->lock);
    const size_t n = registry->n_entries;
    pthread_mutex_unlock(&registry->lock);
    return n;
}

bool qn_registry_has_started(qn_registry *registry)
{
    pthread_mutex_lock(&registry->lock);
    const bool is = registry->n_entries > 0 || registry->has_loader;
    pthread_mutex_unlock(&registry->lock);
    return is;
}

bool qn_registry_look(qn_registry *registry, size_t index, qn_registry_view *view)
{
    pthread_mutex_lock(&registry->lock);
    const bool is_there = look(registry->entries[index], view);
    pthread_mutex_unlock(&registry->lock);
    return is_there;
}

bool qn_registry_look_for(qn_registry *registry, const char *name, qn_registry_view *view)
{
    pthread_mutex_lock(&registry->lock);
    const qn_registry_entry *entry = find(registry, name);
    const bool is_there = entry && look(entry, view);
    pthread_mutex_unlock(&registry->lock);
    return is_there;
}

/* Returns the loaded model of a name, or the first loaded one for no name or if there is only one model; NULL: there is
 * none. */
static const qn_registry_entry *find_loaded(const qn_registry *registry, const char *name)
{
    const bool is_only = registry->n_entries == 1 && !registry->has_loader;
    for (size_t i = 0; i < registry->n_entries; i++) {
        const qn_registry_entry *entry = registry->entries[i];
        if (entry->state == QN_MODEL_LOADED && entry->model.served.model &&
            (!name || is_only || !strcmp(entry->name, name)))
            return entry;
    }
    return NULL;
}

bool qn_registry_read(qn_registry *registry, const char *name, void (*read)(const qn_registered *model, void *user),
                      void *user, qn_refusal *refusal)
{
    pthread_mutex_lock(&registry->lock);
    const qn_registry_entry *entry = find_loaded(registry, name);
    const bool is_known = !name || entry || find(registry, name);
    if (entry)
        read(&entry->model, user);
    pthread_mutex_unlock(&registry->lock);
    if (!is_known)
        qn_registry_refuse_unknown(name, refusal);
    else if (!entry)
        qn_refuse(refusal, 503, "not_loaded", name ? "model" : NULL, "%s",
                  name ? "the model is loaded with its first request" : "no model is loaded yet");
    return entry != NULL;
}

bool qn_registry_is_ready(qn_registry *registry)
{
    bool is_ready = false;
    pthread_mutex_lock(&registry->lock);
    const bool is_known = !registry->has_loader || registry->has_scanned;
    for (size_t i = 0; i < registry->n_entries && is_known && !is_ready; i++)
        is_ready = !is_hidden(registry->entries[i]) && registry->entries[i]->state != QN_MODEL_FAILED;
    pthread_mutex_unlock(&registry->lock);
    return is_ready;
}
