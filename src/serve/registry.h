/* The models that a server answers with, by name: which are loaded, which requests use them, and which wait for one.
 *
 * A model is added loaded, and then stays (qn_registry_add), or as a file (qn_registry_add_file), and is then loaded when a request
 * asks for it, by a thread of the registry. That thread frees the models that were used longest ago where a limit of memory or
 * number would be passed, but not before they were loaded for stay_seconds. A model that requests use is never freed: it takes no
 * more of them until those that it has have ended, or have given it back because they had not begun (is_back). Models are
 * loaded in the order in which they are asked for, but clients take turns: one that asks for many has one loaded after the other
 * client's.
 *
 *     qn_registry_acquire(registry, name, &waiter, &model, &refusal)     a reference to a loaded model, or the waiter waits for it
 *     use model; qn_registry_release(registry, model)
 *
 * Threads: any, at the same time; qn_registry_init and qn_registry_free when no other uses it. */
#ifndef QN_SERVE_REGISTRY_H
#define QN_SERVE_REGISTRY_H

#include "serve/metrics.h"
#include "protocol/protocol.h"
#include "protocol/recall.h"

#include <pthread.h>

enum { QN_REGISTRY_MODELS = 256, QN_REGISTRY_NAME_BYTES = 256, QN_REGISTRY_TURNS = 64, QN_REGISTRY_CLIENT_BYTES = 64 };

/* A loaded model. The registry has made name, metrics and recall, and keeps them as long as it lives; the rest is the
 * loader's, valid as long as a reference is held. */
typedef struct qn_registered {
    const char *name;
    qn_served served; /* with the name */
    qn_served echoed; /* for requests that name it in another way: without a name, so that answers have theirs */
    qn_scheduler *scheduler;
    uint32_t n_parallel;
    uint32_t page_tokens; /* of the KV cache, and how many pages its memory has */
    uint64_t n_pages;
    uint64_t bytes;  /* of memory: weights, and what contexts may take */
    int64_t created; /* seconds since 1970 */
    qn_model_metrics *metrics;
    qn_recall *recall;
} qn_registered;

typedef struct qn_registry qn_registry;

/* What loads and frees models of files. Called by the registry's thread, one at a time, but for `scan`. */
typedef struct qn_registry_loader {
    /* Looks at the file of a model that is to be loaded, without its weights: one that is broken costs no other model its memory.
     * NULL: files are not looked at. */
    qn_status (*check)(void *user, const char *path);
    /* Fills served, scheduler, n_parallel, page_tokens, n_pages and bytes. `memory` is what contexts may take, 0 the default. It
     * ends with QN_ERR_CANCELLED soon after qn_registry_is_stopping. */
    qn_status (*load)(void *user, qn_registry *registry, const char *path, uint64_t memory, qn_registered *model);
    void (*free)(void *user, const qn_registered *model); /* after all requests, or while they are cancelled, at the end */
    /* Whether a loaded model can no longer be used, because its file was cut: it gets no more requests, is freed when it has
     * none, and is loaded again for the next. By any thread. NULL: none ever is. */
    bool (*is_lost)(void *user, const qn_registered *model);
    /* Looks for new files: qn_registry_add_file, qn_registry_remove_file. By any thread, one at a time. NULL: there are none. */
    void (*scan)(void *user, qn_registry *registry);
    void *user;
    uint64_t memory;      /* bytes that all loaded models may have; 0: no limit */
    size_t max_loaded;    /* 0: no limit */
    uint32_t max_queued;  /* requests that may wait for a model; beyond it those of clients that have less than an equal part */
    double pause_seconds; /* after a model that failed to load, until the next attempt */
    double stay_seconds;  /* that a model stays loaded at least, also when another wants its memory */
    double scan_seconds;  /* at least, between two scans that requests are the reason of */
} qn_registry_loader;

typedef enum qn_model_state {
    QN_MODEL_UNLOADED,
    QN_MODEL_LOADING,
    QN_MODEL_LOADED, /* also while it takes no new requests, because it is to be freed */
    QN_MODEL_FREEING,
    QN_MODEL_FAILED /* to load, a short time ago */
} qn_model_state;

/* A request that waits for a model. The caller sets `wake`. */
typedef struct qn_waiter {
    /* Called once, unless it is cancelled, by any thread: with a reference to the model, or NULL and a refusal. */
    void (*wake)(struct qn_waiter *waiter);
    const char *client; /* whose request it is: clients take turns; lives as long as it waits */
    bool is_back;       /* it had the model, which was to be freed before it had begun: it waits again however many do */
    const qn_registered *model;
    qn_refusal refusal;
    struct qn_registry_entry *entry; /* the registry's, as what follows; NULL: it does not wait */
    struct qn_waiter *previous, *next;
    uint64_t turn; /* the tick when a model was loaded for its client last; 0: not yet */
} qn_waiter;

typedef struct qn_registry_entry qn_registry_entry;

typedef struct qn_registry_turn {
    char client[QN_REGISTRY_CLIENT_BYTES];
    uint64_t tick;
} qn_registry_turn;

struct qn_registry {
    pthread_mutex_t lock, scanning; /* `scanning` is taken first */
    pthread_cond_t changed;         /* something for the thread */
    qn_registry_entry *entries[QN_REGISTRY_MODELS];
    size_t n_entries;
    qn_registry_loader loader;
    pthread_t thread;
    bool has_loader, has_thread, is_stopping;
    bool wants_scan;    /* by the thread */
    double scanned_at;  /* qn_now; 0: never */
    uint64_t ticks;     /* counts uses, which says what was used longest ago */
    double stays_until; /* qn_now: when a model that was wanted may be freed for another; 0: none waits for that */
    qn_registry_turn turns[QN_REGISTRY_TURNS]; /* clients for which models were loaded, the last of them */
};

qn_status qn_registry_init(qn_registry *registry);

/* qn_registry_free - what qn_registry_stop left is freed. */
void qn_registry_free(qn_registry *registry);

/* qn_registry_add - add a model that is loaded and stays; its metrics and recall are created. The owner frees it after the
 * registry. QN_ERR_INVALID: there are too many, or one has the name. */
qn_status qn_registry_add(qn_registry *registry, const qn_registered *model);

/* qn_registry_start - models of files from now on, with a thread that loads them. Names are exact from then on. */
qn_status qn_registry_start(qn_registry *registry, const qn_registry_loader *loader);

/* qn_registry_add_file - add a model that is not loaded, and takes so many bytes without its contexts. One of the same name and path stays as it
 * is, but for its size; with another one it may be loaded again at once if it has failed. QN_ERR_INVALID: there are too many, another file has
 * the name, or it is not printable (base/printable.h). qn_registry_remove_file - it is there no more: no request finds it, unless it is loaded. */
qn_status qn_registry_add_file(qn_registry *registry, const char *name, const char *path, uint64_t bytes);
void qn_registry_remove_file(qn_registry *registry, const char *name);

/* qn_registry_scan - the loader's, where it has one. qn_registry_scan_soon - by the thread, without waiting for it. */
void qn_registry_scan(qn_registry *registry);
void qn_registry_scan_soon(qn_registry *registry);

/* qn_registry_stop - refuse requests that wait, and end the thread. No model is loaded afterwards. qn_registry_unload - then:
 * free all models of files, with the requests that they have. */
void qn_registry_stop(qn_registry *registry);
void qn_registry_unload(qn_registry *registry);
bool qn_registry_is_stopping(qn_registry *registry);

/* ---- Requests ---- */

typedef enum qn_acquired {
    QN_ACQUIRED,        /* *model has a reference */
    QN_ACQUIRE_WAITS,   /* waiter->wake will be called, or has been */
    QN_ACQUIRE_REFUSED, /* 404: there is no such model; 429: too many wait; 503: it cannot be loaded, or none is there yet */
} qn_acquired;

/* qn_registry_acquire - the model of a request. A single one that was added loaded has any name; name NULL: the first that
 * is loaded, or can be. May look for new files, once in scan_seconds. */
qn_acquired qn_registry_acquire(qn_registry *registry, const char *name, qn_waiter *waiter, const qn_registered **model,
                                qn_refusal *refusal);

/* qn_registry_cancel - a request waits no more. False: it did not, or its wake is being called. */
bool qn_registry_cancel(qn_registry *registry, qn_waiter *waiter);

/* qn_registry_frees - whether models may be freed for others. qn_registry_release - give a reference back. */
bool qn_registry_frees(qn_registry *registry);
void qn_registry_release(qn_registry *registry, const qn_registered *model);

/* ---- What is there ---- */

/* What a model is, or was when it was loaded last. Strings are the registry's, and live as long. */
typedef struct qn_registry_view {
    const char *name;
    const char *path; /* NULL: it was added loaded */
    qn_model_state state;
    bool is_draining; /* loaded, but takes no new requests */
    bool is_failed;   /* its last attempt to be loaded */
    bool was_loaded;  /* what follows is known */
    size_t n_waiting; /* requests */
    uint64_t n_loads;
    char display_name[128];
    uint32_t n_ctx, n_ctx_train, n_vocab, n_embd, n_parallel, page_tokens;
    uint64_t n_params, file_bytes, n_pages;
    uint64_t bytes; /* of memory, now */
    int64_t created, max_tokens;
    qn_sampling sampling;
    const qn_model_metrics *metrics;
    qn_scheduler_counters counters; /* sums are of all the times that it was loaded */
} qn_registry_view;

/* qn_registry_refresh - what follows is to be up to date soon: scan, at most once in scan_seconds. */
void qn_registry_refresh(qn_registry *registry);

/* qn_registry_count - entries of qn_registry_look; they never become fewer. qn_registry_look - one of them, in the order in which
 * they were added. False: its file has gone. qn_registry_look_for - by name. */
size_t qn_registry_count(qn_registry *registry);
bool qn_registry_look(qn_registry *registry, size_t index, qn_registry_view *view);
bool qn_registry_look_for(qn_registry *registry, const char *name, qn_registry_view *view);

/* qn_registry_is_ready - whether at least one model is loaded, or can be. */
bool qn_registry_is_ready(qn_registry *registry);

#endif
