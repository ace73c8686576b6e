/* The models that a server answers with, by name: which are loaded, how many requests use them, which requests wait.
 *
 * A model is either added loaded, and stays (qn_registry_add), or added as a file (qn_registry_add_file). A file is
 * loaded by a thread of the registry when a request names it. If that would pass the limit of memory or of loaded
 * models, the thread first frees the models that were used longest ago, but none that was loaded less than stay_seconds
 * ago. A model in use is never freed: it is drained. It accepts no new requests; those that have not begun are
 * withdrawn and wait again (is_back); the others finish. Models are loaded in the order of requests, but clients take
 * turns: a client that asks for many models has them loaded in turn with those of other clients.
 *
 *     qn_registry_acquire(registry, name, &waiter, &model, &refusal)     a reference to a loaded model, or the waiter
 *                                                                        waits
 *     use model; qn_registry_release(registry, model)
 *
 * In this file a request is a holder of such a reference. Threads: any, at the same time; qn_registry_init and
 * qn_registry_free while no other thread uses the registry. */
#ifndef QN_SERVE_REGISTRY_H
#define QN_SERVE_REGISTRY_H

#include "serve/metrics.h"
#include "protocol/protocol.h"
#include "protocol/recall.h"

#include <pthread.h>

enum {
    QN_REGISTRY_MODELS = 256,
    QN_REGISTRY_NAME_BYTES = 256,
    QN_REGISTRY_TURNS = 64,
    QN_REGISTRY_CLIENT_BYTES = 64,
    QN_REGISTRY_EFFORTS = 8,
    QN_REGISTRY_EFFORT_BYTES = 16
};

/* A loaded model. Name, metrics and recall belong to the registry and live as long as it; the loader fills the other
 * members, valid as long as a reference is held. */
typedef struct qn_registered {
    const char *name;
    qn_served served; /* with the name */
    qn_served echoed; /* `served` without a name, for requests with another name: their answers repeat it */
    qn_scheduler *scheduler;
    uint32_t n_parallel;
    uint32_t page_tokens; /* tokens per page of the KV cache */
    uint64_t n_pages;     /* pages in its memory */
    uint64_t bytes;       /* of memory: weights, and the most that contexts may use */
    int64_t created;      /* seconds since 1970 */
    qn_model_metrics *metrics;
    qn_recall *recall;
} qn_registered;

typedef struct qn_registry qn_registry;

/* How models of files are loaded and freed. Called by the registry's thread, one at a time, except is_lost and scan.
 * All but is_lost are called without the registry's lock and may call the registry; scan must not call
 * qn_registry_scan. */
typedef struct qn_registry_loader {
    /* Checks the file of a model before it is loaded, without its weights, so that no other model is freed for a broken
     * file. NULL: files are not checked. */
    qn_status (*check)(void *user, const char *path);
    /* Fills served, scheduler, n_parallel, page_tokens, n_pages and bytes. `memory` is the limit for contexts, 0: the
     * default. Returns QN_ERR_CANCELLED soon after qn_registry_is_stopping becomes true. */
    qn_status (*load)(void *user, qn_registry *registry, const char *path, uint64_t memory, qn_registered *model);
    void (*free)(void *user, const qn_registered *model); /* after all requests; at the server's end it cancels them */
    /* Whether a loaded model can no longer be used, because its file was truncated. It then gets no new requests, is
     * freed when it has none, and is loaded again for the next. Called by any thread, with the registry's lock: it must
     * be quick and not call the registry. NULL: models are never lost. */
    bool (*is_lost)(void *user, const qn_registered *model);
    /* Looks for new and removed files: qn_registry_add_file, qn_registry_remove_file. Called by any thread, one at a
     * time. NULL: the set of files is fixed. */
    void (*scan)(void *user, qn_registry *registry);
    void *user;
    uint64_t memory;      /* bytes for all loaded models; 0: no limit */
    size_t max_loaded;    /* 0: no limit */
    uint32_t max_queued;  /* requests that may wait for a model; above it only of clients with less than a fair part */
    double pause_seconds; /* after a failed load, until the next attempt */
    double stay_seconds;  /* minimum time that a model stays loaded when another needs its memory */
    double scan_seconds;  /* minimum time between two scans caused by requests */
} qn_registry_loader;

typedef enum qn_model_state {
    QN_MODEL_UNLOADED,
    QN_MODEL_LOADING,
    QN_MODEL_LOADED, /* also while it is drained */
    QN_MODEL_FREEING,
    QN_MODEL_FAILED /* to load, less than pause_seconds ago */
} qn_model_state;

/* A request that waits for a model. It belongs to the caller, who sets `wake`, `client` and is_back. While it waits it
 * must stay where it is. */
typedef struct qn_waiter {
    /* Called once, by any thread and without the registry's lock, unless the wait is cancelled: with `model`, a
     * reference, or with model NULL and `refusal`. May be called before qn_registry_acquire has returned. */
    void (*wake)(struct qn_waiter *waiter);
    const char *client; /* of the request: clients take turns; lives as long as it waits */
    bool is_back;       /* withdrawn from a drained model before it began: it waits again even if the queue is full */
    const qn_registered *model;
    qn_refusal refusal;
    struct qn_registry_entry *entry; /* this and the members below are the registry's; NULL: it does not wait */
    struct qn_waiter *previous, *next;
    uint64_t turn; /* the tick of the last load for its client; 0: none yet */
} qn_waiter;

typedef struct qn_registry_entry qn_registry_entry;

typedef struct qn_registry_turn {
    char client[QN_REGISTRY_CLIENT_BYTES];
    uint64_t tick;
} qn_registry_turn;

struct qn_registry {
    /* `lock` protects all members but thread and has_thread, which the owner uses, and `loader`, which is constant once
     * it is set. `scanning` has one thread scan at a time; it is locked before `lock`. */
    pthread_mutex_t lock, scanning;
    pthread_cond_t changed;                         /* signals the registry's thread */
    qn_registry_entry *entries[QN_REGISTRY_MODELS]; /* [n_entries] in the order of addition; none is removed */
    size_t n_entries;
    qn_registry_loader loader;
    pthread_t thread;
    bool has_loader, has_thread, is_stopping;
    bool is_scanning, has_scanned; /* `scanning` is locked; a scan has ended */
    bool wants_scan;               /* the thread is to scan */
    double scanned_at;             /* qn_now; 0: never */
    uint64_t ticks;                /* counts uses, for the order of last use */
    double stays_until; /* qn_now: when the first model whose memory is needed may be freed; 0: none is waited for */
    qn_registry_turn turns[QN_REGISTRY_TURNS]; /* the last clients for which models were loaded */
};

/* qn_registry_init - create an empty registry. QN_ERR_MEMORY: no lock. */
qn_status qn_registry_init(qn_registry *registry);

/* qn_registry_free - free the registry, after qn_registry_stop. */
void qn_registry_free(qn_registry *registry);

/* qn_registry_add - add a loaded model, which stays; creates its metrics and recall. The owner frees the model after
 * the registry. QN_ERR_INVALID: there are too many models, or the name is taken, too long or not printable. */
qn_status qn_registry_add(qn_registry *registry, const qn_registered *model);

/* qn_registry_start - start a thread that loads models of files. From then on names of requests must match exactly. */
qn_status qn_registry_start(qn_registry *registry, const qn_registry_loader *loader);

/* qn_registry_add_file - add a model that is not loaded. `bytes` is its memory without contexts. A known pair of name
 * and path only gets the new size, and may be loaded again at once if it has failed and the size differs.
 * QN_ERR_INVALID: there are too many models, or the name is that of another file, too long or not printable
 * (base/printable.h). */
qn_status qn_registry_add_file(qn_registry *registry, const char *name, const char *path, uint64_t bytes);

/* qn_registry_remove_file - the file has gone: requests do not find the model any more, unless it is loaded. */
void qn_registry_remove_file(qn_registry *registry, const char *name);

/* qn_registry_scan - call the loader's `scan`, if it has one. */
void qn_registry_scan(qn_registry *registry);

/* qn_registry_scan_soon - have the registry's thread scan; returns at once. */
void qn_registry_scan_soon(qn_registry *registry);

/* qn_registry_stop - refuse waiting requests and end the thread. No model is loaded afterwards. */
void qn_registry_stop(qn_registry *registry);

/* qn_registry_unload - after qn_registry_stop: free all models of files, with the requests that use them. */
void qn_registry_unload(qn_registry *registry);

/* qn_registry_is_stopping - whether qn_registry_stop was called. */
bool qn_registry_is_stopping(qn_registry *registry);

/* ---- Requests ---- */

typedef enum qn_acquired {
    QN_ACQUIRED,        /* *model has a reference */
    QN_ACQUIRE_WAITS,   /* waiter->wake will be called, or has been */
    QN_ACQUIRE_REFUSED, /* 404: no such model; 429: too many requests wait; 503: cannot be loaded, or not added yet */
} qn_acquired;

/* qn_registry_acquire - get the model that a request names. A single model that was added loaded answers to any name.
 * Name NULL: the first model that is loaded, else that can be. An unknown name causes a scan, at most once in
 * scan_seconds. */
qn_acquired qn_registry_acquire(qn_registry *registry, const char *name, qn_waiter *waiter, const qn_registered **model,
                                qn_refusal *refusal);

/* qn_registry_cancel - end a wait. False: the request did not wait, or its wake is being called. */
bool qn_registry_cancel(qn_registry *registry, qn_waiter *waiter);

/* qn_registry_frees - whether models may be freed for others. */
bool qn_registry_frees(qn_registry *registry);

/* qn_registry_release - give a reference back. */
void qn_registry_release(qn_registry *registry, const qn_registered *model);

/* ---- Views ---- */

/* Reasoning of a model, as its chat template has it. */
typedef struct qn_registry_reasoning {
    bool has_any;                                                /* answers may begin with reasoning */
    bool is_optional;                                            /* a request can switch it off */
    char efforts[QN_REGISTRY_EFFORTS][QN_REGISTRY_EFFORT_BYTES]; /* [n_efforts] levels, lowest first */
    size_t n_efforts;
    char effort[QN_REGISTRY_EFFORT_BYTES]; /* of requests that name none; "": the template's own */
} qn_registry_reasoning;

/* The state of a model, with the data of its last load. Strings belong to the registry and live as long as it. */
typedef struct qn_registry_view {
    const char *name;
    const char *path; /* NULL: it was added loaded */
    qn_model_state state;
    bool is_draining; /* loaded, but takes no new requests */
    bool is_failed;   /* its last load failed */
    bool was_loaded;  /* the members from display_name on are known */
    bool is_on_gpu;   /* when it was loaded last */
    size_t n_waiting; /* requests */
    uint64_t n_loads;
    uint64_t weight_bytes; /* memory without contexts, of a model of a file */
    char display_name[128], architecture[32], quantisation[16];
    uint32_t n_ctx, n_ctx_train, n_vocab, n_embd, n_parallel, page_tokens;
    uint64_t n_params, file_bytes, n_pages;
    uint64_t bytes; /* of memory, now */
    int64_t created, max_tokens;
    qn_sampling sampling;
    qn_registry_reasoning reasoning;
    const qn_model_metrics *metrics;
    qn_scheduler_counters counters; /* summed over all loads */
} qn_registry_view;

/* qn_registry_refresh - have the thread scan soon, at most once in scan_seconds. */
void qn_registry_refresh(qn_registry *registry);

/* qn_registry_count - the number of indices of qn_registry_look; it never shrinks. */
size_t qn_registry_count(qn_registry *registry);

/* qn_registry_has_started - whether there is a model, or a loader, whose folder may be empty. False: the only model is
 * still being loaded. */
bool qn_registry_has_started(qn_registry *registry);

/* qn_registry_look - view the model of an index, in the order of addition. False: its file has gone. */
bool qn_registry_look(qn_registry *registry, size_t index, qn_registry_view *view);

/* qn_registry_look_for - view the model of a name. False: there is none, or its file has gone. */
bool qn_registry_look_for(qn_registry *registry, const char *name, qn_registry_view *view);

/* qn_registry_read - have `read` look at the model of a name; NULL or, of a single model, any name: the first one that
 * is loaded. It is called with the registry's lock, so it must be quick and not call the registry. False: no such model
 * is loaded; `refusal` says so. */
bool qn_registry_read(qn_registry *registry, const char *name, void (*read)(const qn_registered *model, void *user),
                      void *user, qn_refusal *refusal);

/* qn_registry_is_ready - whether at least one model is loaded, or can be. With a loader: from the end of its first scan
 * on. */
bool qn_registry_is_ready(qn_registry *registry);

#endif
