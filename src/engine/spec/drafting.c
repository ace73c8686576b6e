/* Measurements of drafts that outlive a scheduler. */
#include "engine/spec/drafting.h"

#include "base/append.h"
#include "base/memory.h"

#include <string.h>

enum { CHECKED_DRAFTS = 200 };
static const double LEAST_ACCEPTED = 0.05;

qn_status qn_drafting_create(double row_cost, double pass_cost, qn_drafting **out)
{
    QN_TRY(qn_alloc(out, 1, sizeof **out, "drafts"));
    (*out)->costs.first = (*out)->passes.first = row_cost;
    (*out)->passes.unit = pass_cost;
    qn_acceptances_begin(&(*out)->acceptances);
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

void qn_drafting_load(qn_drafting *model, qn_drafting *to)
{
    *to = (qn_drafting){ 0 };
    pthread_mutex_lock(&model->lock);
    to->costs = model->costs;
    to->passes = model->passes;
    to->n_drafts = model->n_drafts;
    to->n_of_head = model->n_of_head;
    to->n_drafted = model->n_drafted;
    to->n_accepted = model->n_accepted;
    to->has_warned = model->has_warned;
    to->record = model->record;
    to->head = model->head;
    to->acceptances = model->acceptances;
    pthread_mutex_unlock(&model->lock);
    to->n_loaded = to->costs.n_steps;
    to->n_loaded_passes = to->passes.n_steps;
}

/* Replaces the times that the copy has measured. Steps of both are steps of the model. */
static void add_costs(const qn_row_costs *c, uint64_t n_loaded, qn_row_costs *to)
{
    to->n_steps += c->n_steps - n_loaded;
    for (size_t n = 1; n <= QN_COST_ROWS; n++)
        if (c->of[n].step > n_loaded) {
            to->of[n] = c->of[n];
            to->of[n].step = to->n_steps - (c->n_steps - c->of[n].step);
        }
}

void qn_drafting_store(const qn_drafting *from, qn_drafting *model)
{
    pthread_mutex_lock(&model->lock);
    add_costs(&from->costs, from->n_loaded, &model->costs);
    add_costs(&from->passes, from->n_loaded_passes, &model->passes);
    if (from->was_checked)
        model->n_drafts = model->n_of_head = model->n_drafted = model->n_accepted = 0;
    model->n_drafts += from->added_drafts;
    model->n_of_head += from->added_of_head;
    model->n_drafted += from->added_drafted;
    model->n_accepted += from->added_accepted;
    model->has_warned = model->has_warned || from->has_warned;
    model->record = from->record;
    model->head = from->head;
    model->acceptances = from->acceptances;
    pthread_mutex_unlock(&model->lock);
}

bool qn_drafting_head_rests(qn_drafting *model)
{
    pthread_mutex_lock(&model->lock);
    const bool rests = model->head.rests;
    pthread_mutex_unlock(&model->lock);
    return rests;
}

bool qn_drafting_count(qn_drafting *d, bool is_of_head, size_t n, size_t n_accepted)
{
    d->n_drafts++;
    d->n_of_head += is_of_head;
    d->added_of_head += is_of_head;
    d->n_drafted += n;
    d->n_accepted += n_accepted;
    d->added_drafts++;
    d->added_drafted += n;
    d->added_accepted += n_accepted;
    if (d->n_drafts < CHECKED_DRAFTS || d->has_warned)
        return false;
    const bool is_low = (double)d->n_accepted < LEAST_ACCEPTED * (double)d->n_drafted;
    if (!is_low) {
        d->n_drafts = d->n_of_head = d->n_drafted = d->n_accepted = 0;
        d->added_drafts = d->added_of_head = d->added_drafted = d->added_accepted = 0;
        d->was_checked = true;
    }
    return is_low;
}

void qn_drafting_log(qn_drafting *d, qn_drafting *model, qn_log_fn on_log, void *user)
{
    char line[192];
    const char *reason =
        2 * d->n_of_head > d->n_drafts
            ? (model->has_drafter ? "the drafter seems to be for another model"
                                  : "the model's block for multi-token prediction seems to be another model's")
            : "the text repeats little, or the drafter does not fit the model";
    pthread_mutex_lock(&model->lock);
    const bool was_told = model->has_warned;
    model->has_warned = d->has_warned = true;
    pthread_mutex_unlock(&model->lock);
    if (was_told)
        return;
    (void)qn_print(line, sizeof line, "drafts: only %llu of %llu drafted tokens were accepted: %s",
                   (unsigned long long)d->n_accepted, (unsigned long long)d->n_drafted, reason);
    on_log(user, line);
}
