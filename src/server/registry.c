/* Models by name. */
#include "server/registry.h"

#include "base/status.h"

#include <string.h>

qn_status qn_registry_init(qn_registry *registry)
{
    memset(registry, 0, sizeof *registry);
    return pthread_mutex_init(&registry->lock, NULL) ? qn_fail(QN_ERR_MEMORY, "no memory for a lock") : QN_OK;
}

void qn_registry_free(qn_registry *registry)
{
    for (size_t i = 0; i < registry->n_models; i++) {
        qn_model_metrics_free(registry->models[i].metrics);
        qn_recall_free(registry->models[i].recall);
    }
    pthread_mutex_destroy(&registry->lock);
}

static qn_registered *find(qn_registry *registry, const char *name)
{
    for (size_t i = 0; i < registry->n_models; i++)
        if (!strcmp(registry->models[i].name, name))
            return &registry->models[i];
    return NULL;
}

/* The caller holds the lock. */
static qn_status add(qn_registry *registry, qn_registered *model)
{
    if (registry->n_models == QN_REGISTRY_MODELS)
        return qn_fail(QN_ERR_INVALID, "there are %d models, at most as many are allowed", QN_REGISTRY_MODELS);
    if (find(registry, model->name))
        return qn_fail(QN_ERR_INVALID, "two models have the name '%s'", model->name);
    QN_TRY(qn_model_metrics_create(&model->metrics));
    const qn_status status = qn_recall_create(0, 0, &model->recall);
    if (status) {
        qn_model_metrics_free(model->metrics);
        return status;
    }
    registry->models[registry->n_models++] = *model;
    return QN_OK;
}

qn_status qn_registry_add(qn_registry *registry, const qn_registered *model)
{
    qn_registered copy = *model;
    copy.served.name = copy.name;
    copy.echoed = copy.served;
    copy.echoed.name = NULL;
    pthread_mutex_lock(&registry->lock);
    const qn_status status = add(registry, &copy);
    pthread_mutex_unlock(&registry->lock);
    return status;
}

size_t qn_registry_count(qn_registry *registry)
{
    pthread_mutex_lock(&registry->lock);
    const size_t n = registry->n_models;
    pthread_mutex_unlock(&registry->lock);
    return n;
}

const qn_registered *qn_registry_at(const qn_registry *registry, size_t index)
{
    return &registry->models[index];
}

const qn_registered *qn_registry_find(qn_registry *registry, const char *name, qn_refusal *refusal)
{
    const qn_registered *found = NULL;
    pthread_mutex_lock(&registry->lock);
    const size_t n = registry->n_models;
    if (n == 1 || (n && !name))
        found = &registry->models[0];
    else if (n)
        found = find(registry, name);
    pthread_mutex_unlock(&registry->lock);
    if (!n)
        qn_refuse(refusal, 503, "loading", NULL, "the model is being loaded");
    else if (!found)
        qn_refuse(refusal, 404, "model_not_found", "model", "there is no model '%.200s'", name);
    return found;
}
