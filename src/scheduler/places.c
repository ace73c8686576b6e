/* Places: copies of what is known of running requests, which observers may read at any time. The requests themselves
 * belong to the thread that runs steps. */
#include "scheduler/scheduler.h"

#include "base/params.h"
#include "engine/calls.h"

#include <stdio.h>

static void fill(const qn_request *r, qn_place *place)
{
    const size_t length = r->memory->sequence->length;
    place->n_prompt = r->n_prompt;
    place->n_reused = r->result.n_reused;
    place->n_evaluated = length < r->n_prompt ? length : r->n_prompt;
    place->n_generated = r->result.n_generated;
    place->max_tokens = r->params.max_tokens;
}

void qn_places_enter(qn_scheduler *s, qn_request *r)
{
    r->place = 0;
    while (s->places[r->place].id) /* there are as many as requests that may run */
        r->place++;
    qn_place *place = &s->places[r->place];
    *place = (qn_place){ .size = sizeof *place, .index = r->place, .id = r->id };
    snprintf(place->client, sizeof place->client, "%s", r->client->name);
    fill(r, place);
}

void qn_places_leave(qn_scheduler *s, const qn_request *r)
{
    s->places[r->place].id = 0;
}

void qn_places_update(qn_scheduler *s)
{
    for (uint32_t i = 0; i < s->n_running; i++)
        fill(s->running[i], &s->places[s->running[i]->place]);
}

qn_status qn_scheduler_get_places(qn_scheduler *s, qn_place *places, size_t most, size_t *n)
{
    *n = 0;
    if (!most)
        return QN_OK;
    const size_t size = places->size;
    QN_TRY(QN_RESULT_CHECK(qn_place, places));
    QN_TRY(qn_model_check_process(s->model, __func__));
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->params.max_sequences && *n < most; i++) {
        qn_place *to = (qn_place *)(void *)((char *)places + *n * size);
        if (!s->places[i].id)
            continue;
        to->size = size;
        qn_result_write(&s->places[i], sizeof s->places[i], to);
        (*n)++;
    }
    pthread_mutex_unlock(&s->lock);
    return QN_OK;
}
