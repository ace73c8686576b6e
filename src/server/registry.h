/* The models that a server answers with, by name. A model is added when it is loaded and stays until the server has stopped.
 *
 * Threads: any, at the same time; qn_registry_init and qn_registry_free when no other uses it. */
#ifndef QN_SERVER_REGISTRY_H
#define QN_SERVER_REGISTRY_H

#include "server/metrics.h"
#include "server/protocol.h"
#include "server/recall.h"

#include <pthread.h>

enum { QN_REGISTRY_MODELS = 64 };

/* A model. Pointers are the owner's and outlive the registry, but for metrics and recall. */
typedef struct qn_registered {
    const char *name;
    const char *file; /* the name of its file, without folders */
    qn_served served; /* with the name */
    qn_served echoed; /* for requests that name it in another way: without a name, so that answers have theirs */
    qn_scheduler *scheduler;
    uint32_t n_parallel, max_queued;
    uint32_t page_tokens; /* of the KV cache, and how many pages its memory has */
    uint64_t n_pages;
    int64_t created; /* seconds since 1970 */
    qn_model_metrics *metrics;
    qn_recall *recall;
} qn_registered;

typedef struct qn_registry {
    pthread_mutex_t lock;
    qn_registered models[QN_REGISTRY_MODELS];
    size_t n_models;
} qn_registry;

qn_status qn_registry_init(qn_registry *registry);
void qn_registry_free(qn_registry *registry);

/* qn_registry_add - add a model; its metrics and recall are created. QN_ERR_INVALID: there are too many, or one has the name. */
qn_status qn_registry_add(qn_registry *registry, const qn_registered *model);

/* qn_registry_count - how many there are. qn_registry_at - one of them, in the order in which they were added. */
size_t qn_registry_count(qn_registry *registry);
const qn_registered *qn_registry_at(const qn_registry *registry, size_t index);

/* qn_registry_find - the model of a request. A single one has any name; name NULL: the first. NULL: refused, with 404, or with
 * 503 where none is loaded. */
const qn_registered *qn_registry_find(qn_registry *registry, const char *name, qn_refusal *refusal);

#endif
