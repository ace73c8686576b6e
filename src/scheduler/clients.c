/* Clients: their requests, how many requests may wait, and the rows that each client has used. */
#include "scheduler/scheduler.h"

#include "base/memory.h"
#include "base/share.h"

#include <string.h>

/* ---- Life ---- */

static const char *name_of(const char *client)
{
    return client ? client : "";
}

static qn_status create(const char *name, qn_client **out)
{
    const size_t length = strlen(name);
    QN_TRY(qn_alloc(out, 1, sizeof **out + length + 1, "client"));
    (*out)->name = (char *)(*out + 1);
    memcpy((*out)->name, name, length);
    (*out)->last_event = &(*out)->first_event;
    return QN_OK;
}

/* Finds a client by name; NULL if it has no requests. The caller of this function and of those below, up to
 * qn_clients_check_room, holds the lock. */
static qn_client *find(const qn_scheduler *s, const char *name)
{
    qn_client *c = s->clients;
    while (c && strcmp(c->name, name) != 0)
        c = c->next;
    return c;
}

static void add(qn_scheduler *s, qn_client *c)
{
    qn_client **link = &s->clients;
    while (*link)
        link = &(*link)->next;
    *link = c;
    s->n_clients++;
}

void qn_client_leave(qn_scheduler *s, qn_client *c)
{
    qn_client **link = &s->clients;
    if (--c->n_requests)
        return;
    while (*link != c)
        link = &(*link)->next;
    *link = c->next;
    s->n_clients--;
    qn_free(c);
}

/* ---- The queue ---- */

void qn_client_push(qn_scheduler *s, qn_request *r)
{
    qn_client *c = r->client;
    r->next = c->queue;
    c->queue = r;
    c->n_queued++;
    s->n_queued++;
}

void qn_client_remove(qn_scheduler *s, qn_request *r)
{
    qn_client *c = r->client;
    qn_request **link = &c->queue;
    while (*link != r)
        link = &(*link)->next;
    *link = r->next;
    c->n_queued--;
    s->n_queued--;
}

void qn_client_begin(qn_scheduler *s, qn_request *r)
{
    s->has_begun = r->has_begun = true;
    for (qn_request *other = r->client->queue; other; other = other->next)
        other->has_begun = other->has_begun || other->first_id == r->first_id;
}

bool qn_client_withdraws(const qn_scheduler *s, const qn_request *r)
{
    return s->is_closed && s->has_begun && !r->has_begun;
}

static qn_status check_room(const qn_scheduler *s, const qn_client *c, size_t n)
{
    qn_share share = { .most = s->params.max_queued,
                       .factor = QN_QUEUE_FACTOR,
                       .used = s->n_queued,
                       .own = c ? c->n_queued : 0,
                       .n_clients = 1 };
    for (const qn_client *other = s->clients; other; other = other->next)
        share.n_clients += other != c && other->n_queued;
    if (qn_share_allows(&share, n))
        return QN_OK;
    if (n > share.most)
        return qn_fail(QN_ERR_BUSY, "queue: %zu requests at once, at most %zu may wait", n, share.most);
    return qn_fail(QN_ERR_BUSY, "queue: %zu requests wait, %zu more are not allowed: at most %zu may, of a client %zu",
                   share.used, n, share.most, qn_share_part(&share));
}

qn_status qn_clients_check_room(qn_scheduler *s, const char *client, size_t n)
{
    pthread_mutex_lock(&s->lock);
    const qn_status status = check_room(s, find(s, name_of(client)), n);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* Raises the rows of a client that was idle to the lowest count of the others: it has no claim on rows that they used
 * meanwhile. The caller holds the lock. */
static void lift_rows(const qn_scheduler *s, qn_client *c)
{
    uint64_t least = UINT64_MAX;
    for (const qn_client *other = s->clients; other; other = other->next)
        if (other != c && other->n_queued + other->n_running && other->rows < least)
            least = other->rows;
    c->rows = least != UINT64_MAX && least > c->rows ? least : c->rows;
}

static void enqueue(qn_scheduler *s, qn_client *c, qn_request *first, uint64_t *ids)
{
    size_t i = 0;
    if (!(c->n_queued + c->n_running))
        lift_rows(s, c);
    for (qn_request *r = first, *next; r; r = next, i++) {
        next = r->next;
        r->client = c;
        r->id = ++s->last_id;
        r->first_id = first->id;
        if (ids)
            ids[i] = r->id;
        qn_client_push(s, r);
        c->n_requests++;
        s->n_alive++;
        s->counters.submitted++;
    }
    pthread_cond_signal(&s->work);
}

qn_status qn_clients_enqueue(qn_scheduler *s, qn_request *first, size_t n, uint64_t *ids)
{
    const char *name = name_of(first->params.client);
    qn_client *fresh;
    QN_TRY(create(name, &fresh));
    pthread_mutex_lock(&s->lock);
    qn_client *c = find(s, name);
    const qn_status status = check_room(s, c, n);
    if (status == QN_OK && !c) {
        add(s, fresh);
        c = fresh;
        fresh = NULL;
    }
    if (status == QN_OK)
        enqueue(s, c, first, ids);
    pthread_mutex_unlock(&s->lock);
    qn_free(fresh);
    return status;
}

/* ---- What clients have had ---- */

void qn_clients_charge(qn_scheduler *s, const qn_scheduled *step)
{
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < step->n_pieces; i++) {
        step->pieces[i].request->n_turn += step->pieces[i].n;
        step->pieces[i].request->client->rows += step->pieces[i].n;
    }
    pthread_mutex_unlock(&s->lock);
}

void qn_clients_count_held(const qn_scheduler *s)
{
    for (uint32_t i = 0; i < s->n_running; i++)
        s->running[i]->client->n_held = 0;
    for (uint32_t i = 0; i < s->n_running; i++)
        s->running[i]->client->n_held += s->running[i]->n_tokens;
}

/* ---- Rows of prompts ---- */

static qn_client **find_sharing(const qn_scheduler *s, const qn_client *c, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (s->sharing[i] == c)
            return &s->sharing[i];
    return NULL;
}

/* Lists the clients with prompts left in s->sharing, in ascending order of rows used. Returns their number. */
static uint32_t find_clients_with_prompts(qn_scheduler *s)
{
    uint32_t n = 0;
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->n_running; i++) {
        qn_client *c = s->running[i]->client;
        const size_t rows = qn_request_rows_left(s->running[i]);
        if (rows > 1 && !find_sharing(s, c, n)) {
            uint32_t at = n++;
            for (; at && s->sharing[at - 1]->rows > c->rows; at--)
                s->sharing[at] = s->sharing[at - 1];
            s->sharing[at] = c;
            c->prompt_rows = c->prompt_share = 0;
        }
        c->prompt_rows += rows > 1 ? rows : 0;
    }
    pthread_mutex_unlock(&s->lock);
    return n;
}

void qn_clients_share_prompts(qn_scheduler *s, size_t rows, size_t part)
{
    const uint32_t n = find_clients_with_prompts(s);
    if (n == 1)
        s->sharing[0]->prompt_share = rows;
    for (bool go_on = n > 1; go_on && rows;) {
        go_on = false;
        for (uint32_t i = 0; i < n; i++) {
            qn_client *c = s->sharing[i];
            size_t taken = c->prompt_rows - c->prompt_share;
            taken = taken < part ? taken : part;
            taken = taken < rows ? taken : rows;
            c->prompt_share += taken;
            rows -= taken;
            go_on = go_on || taken;
        }
    }
}
