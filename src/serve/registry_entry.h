/* Inside the registry: an entry, and functions that the thread and requests share. Unless a comment says otherwise, the
 * caller holds the registry's lock. */
#ifndef QN_SERVE_REGISTRY_ENTRY_H
#define QN_SERVE_REGISTRY_ENTRY_H

#include "serve/registry.h"

struct qn_registry_entry {
    qn_registered model; /* first, so that a pointer to it is one to the entry */
    char name[QN_REGISTRY_NAME_BYTES];
    char *path;            /* NULL: added loaded, and stays */
    uint64_t weight_bytes; /* memory without contexts */
    qn_model_state state;
    bool is_draining; /* loaded, accepts no new requests, and is freed when it has none */
    bool is_lost;     /* loaded, and can no longer be used */
    bool is_missing;  /* its file has gone */
    bool is_checked;  /* the file was checked since requests began to wait for it */
    bool is_failed, was_loaded;
    bool needs_all;              /* its contexts need all memory that its weights leave */
    size_t n_users;              /* references */
    uint64_t used;               /* the tick (qn_registry.ticks) of its last use */
    uint64_t wanted;             /* the tick when its first waiter came, since the last load */
    double loaded_at;            /* qn_now */
    double retry_at;             /* qn_now: when a failed one may be loaded again */
    const char *error;           /* why its load failed, in words for clients: a static string */
    qn_waiter *first, *last;     /* waiting requests, the oldest first */
    size_t n_waiting, n_clients; /* their number, and that of their clients */
    qn_registry_view last_view;  /* as of its last load, with the counters of all loads before */
    uint64_t n_loads;
};

/* qn_registry_remember - fill last_view of a model that was loaded. */
void qn_registry_remember(qn_registry_entry *entry);

/* qn_registry_settle - add the counters of a model that is about to be freed to last_view. */
void qn_registry_settle(qn_registry_entry *entry);

/* qn_registry_refuse_failed - the refusal for a model that cannot be loaded, 503. */
void qn_registry_refuse_failed(const qn_registry_entry *entry, qn_refusal *refusal);

/* qn_registry_refuse_unknown - the refusal for a name that no model has, 404. */
void qn_registry_refuse_unknown(const char *name, qn_refusal *refusal);

/* qn_registry_turn_of - the tick of the last load for a client; 0: none. */
uint64_t qn_registry_turn_of(const qn_registry *registry, const char *client);

/* qn_registry_take_turn - record that a model is loaded for the client of qn_registry_first_turn(entry). */
void qn_registry_take_turn(qn_registry *registry, const qn_registry_entry *entry);

/* qn_registry_first_turn - the waiter of an entry whose client has gone longest without a load. NULL: nobody waits. */
const qn_waiter *qn_registry_first_turn(const qn_registry_entry *entry);

/* qn_registry_take_waiters - take all waiters of a model, linked by `next`, the oldest first: each gets a reference,
 * or, if refusal is not NULL, that refusal. Pass them to qn_registry_wake. */
qn_waiter *qn_registry_take_waiters(qn_registry *registry, qn_registry_entry *entry, const qn_refusal *refusal);

/* qn_registry_wake - call wake of all linked waiters, in their order; NULL: there are none. The lock is not held: wake
 * may call the registry, and may free its waiter. */
void qn_registry_wake(qn_waiter *first);

#endif
