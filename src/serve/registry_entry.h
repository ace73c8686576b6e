/* Inside the registry: an entry, and what its thread shares with requests. All of it is of the registry's lock. */
#ifndef QN_SERVE_REGISTRY_ENTRY_H
#define QN_SERVE_REGISTRY_ENTRY_H

#include "serve/registry.h"

struct qn_registry_entry {
    qn_registered model; /* first: a pointer to it is one to the entry */
    char name[QN_REGISTRY_NAME_BYTES];
    char *path;            /* NULL: added loaded, and stays */
    uint64_t weight_bytes; /* what it takes without contexts */
    qn_model_state state;
    bool is_draining; /* loaded, takes no new requests, and is freed when it has none */
    bool is_lost;     /* loaded, and can no longer be used */
    bool is_missing;  /* its file has gone */
    bool is_checked;  /* since requests wait for it: its file can be that of a model */
    bool is_failed, was_loaded;
    bool needs_all; /* of the memory, with its weights */
    size_t n_users;
    uint64_t used;     /* the tick of its last use */
    uint64_t wanted;   /* with waiters: the tick of the first that waits since it was loaded last */
    double loaded_at;  /* qn_now */
    double retry_at;   /* qn_now, of a failed one */
    const char *error; /* why it has failed, as clients learn it: a static string */
    qn_waiter *first, *last;
    size_t n_waiting, n_clients; /* requests, and whose they are */
    qn_registry_view last_view;  /* what was known when it was loaded; counters of the times before */
    uint64_t n_loads;
};

/* qn_registry_remember - a model was loaded: what views have of it. qn_registry_settle - it is about to be freed: its counters. */
void qn_registry_remember(qn_registry_entry *entry);
void qn_registry_settle(qn_registry_entry *entry);

/* qn_registry_refuse_failed - what requests get for a model that cannot be loaded. qn_registry_refuse_unknown - for one that is not
 * there. */
void qn_registry_refuse_failed(const qn_registry_entry *entry, qn_refusal *refusal);
void qn_registry_refuse_unknown(const char *name, qn_refusal *refusal);

/* qn_registry_turn_of - when a model was loaded for a client last. qn_registry_take_turn - now one is loaded for the client of an entry's
 * waiters that has waited longest for its turn. */
uint64_t qn_registry_turn_of(const qn_registry *registry, const char *client);
void qn_registry_take_turn(qn_registry *registry, const qn_registry_entry *entry);

/* qn_registry_first_turn - of the waiters of an entry the one whose client is next; NULL: there is none. */
const qn_waiter *qn_registry_first_turn(const qn_registry_entry *entry);

/* qn_registry_take_waiters - all that wait for a model, linked by `next`: with references, or, where refusal is not NULL, with
 * it. qn_registry_wake - their calls, without the lock. */
qn_waiter *qn_registry_take_waiters(qn_registry *registry, qn_registry_entry *entry, const qn_refusal *refusal);
void qn_registry_wake(qn_waiter *first);

#endif
