/* Measurements of drafts that outlive a scheduler. */
#include "engine/spec/drafting.h"

#include "base/append.h"
#include "base/memory.h"

#include <string.h>

enum { CHECKED_DRAFTS = 200 };
static const double LEAST_ACCEPTED = 0.05;

qn_status qn_drafting_create(double row_cost, qn_drafting **out)
{
    QN_TRY(qn_alloc(out, 1, sizeof **out, "drafts"));
    (*out)->costs.first = row_cost;
    const int error = pthread_mutex_init(&(*out)->lock, NULL);
    if (!error)
        return QN_OK;
    qn_free(*out);
    *out = NULL;
    return qn_fail(QN_ERR_MEMORY, "drafts: no mutex: %s", strerror(error));
}

void qn_drafting_free(qn_drafting *drafting)
{
    if (drafting)
        pthread_mutex_destroy(&drafting->lock);
    qn_free(drafting);
}

static void copy(const qn_drafting *from, qn_drafting *to)
{
    to->costs = from->costs;
    to->n_drafts = from->n_drafts;
    to->n_drafted = from->n_drafted;
    to->n_accepted = from->n_accepted;
    to->has_warned = from->has_warned;
}

void qn_drafting_load(qn_drafting *model, qn_drafting *to)
{
    pthread_mutex_lock(&model->lock);
    copy(model, to);
    pthread_mutex_unlock(&model->lock);
}

void qn_drafting_store(const qn_drafting *from, qn_drafting *model)
{
    pthread_mutex_lock(&model->lock);
    copy(from, model);
    pthread_mutex_unlock(&model->lock);
}

bool qn_drafting_count(qn_drafting *d, size_t n, size_t n_accepted)
{
    d->n_drafts++;
    d->n_drafted += n;
    d->n_accepted += n_accepted;
    if (d->n_drafts < CHECKED_DRAFTS || d->has_warned)
        return false;
    const bool is_low = (double)d->n_accepted < LEAST_ACCEPTED * (double)d->n_drafted;
    if (!is_low)
        d->n_drafts = d->n_drafted = d->n_accepted = 0;
    return is_low;
}

void qn_drafting_log(qn_drafting *d, qn_log_fn on_log, void *user)
{
    char line[160];
    d->has_warned = true;
    (void)qn_print(
        line, sizeof line,
        "drafts: only %llu of %llu drafted tokens were accepted: the text repeats little, or the drafter does "
        "not fit the model",
        (unsigned long long)d->n_accepted, (unsigned long long)d->n_drafted);
    on_log(user, line);
}
