/* Who has the places of connections, and which connection is closed where there are too many.
 *
 * Two classes of connections wait for their clients: the known, whose last request was to be answered (with a valid key, where
 * there are keys), and all others. Others go first, as long as the known have no more than half of the places, so that neither
 * class can take those of the other. Of a class the client goes first that has most of it, and of a client's connections the
 * one that has waited longest. An answer to one that is not known waits for its client, too: without a key nobody keeps a
 * place by not reading. The cost of one is a walk over the clients. */
#include "serve/http.h"

#include <stdlib.h>
#include <string.h>

struct qn_peer {
    qn_peer *next;
    size_t n, n_open;          /* connections; those that are not shut, and about to be closed */
    qn_connections waiting[2]; /* [is_known] that wait for the client */
    char name[QN_HTTP_ADDRESS_BYTES];
};

bool qn_crowd_join(qn_connection *c)
{
    qn_peer *p = c->http->peers;
    while (p && strcmp(p->name, c->client_text) != 0)
        p = p->next;
    if (!p && (p = calloc(1, sizeof *p))) {
        memcpy(p->name, c->client_text, sizeof p->name);
        p->next = c->http->peers;
        c->http->peers = p;
    }
    if (!p)
        return false;
    p->n++;
    p->n_open++;
    c->http->n_open++;
    c->peer = p;
    return true;
}

void qn_crowd_serve(qn_connection *c)
{
    qn_connections *list = c->waiting_in;
    if (!list)
        return;
    *(c->waiting_previous ? &c->waiting_previous->waiting_next : &list->first) = c->waiting_next;
    *(c->waiting_next ? &c->waiting_next->waiting_previous : &list->last) = c->waiting_previous;
    list->count--;
    c->http->n_waiting[c->is_known]--;
    c->waiting_in = NULL;
}

void qn_crowd_shut(qn_connection *c)
{
    if (c->is_shut)
        return;
    c->is_shut = true;
    c->peer->n_open--;
    c->http->n_open--;
    qn_crowd_serve(c);
}

void qn_crowd_leave(qn_connection *c)
{
    qn_peer *p = c->peer, **link = &c->http->peers;
    qn_crowd_shut(c);
    c->peer = NULL;
    if (--p->n)
        return;
    while (*link != p)
        link = &(*link)->next;
    *link = p->next;
    free(p);
}

/* ---- Who waits ---- */

void qn_crowd_wait(qn_connection *c, bool anew)
{
    qn_connections *list = &c->peer->waiting[c->is_known];
    if (anew)
        qn_crowd_serve(c);
    if (c->waiting_in)
        return;
    c->waiting_in = list;
    c->waiting_next = NULL;
    c->waiting_previous = list->last;
    *(list->last ? &list->last->waiting_next : &list->first) = c;
    list->last = c;
    list->count++;
    c->http->n_waiting[c->is_known]++;
}

void qn_crowd_know(qn_connection *c, bool is_known)
{
    const bool waits = c->waiting_in;
    if (c->is_known == is_known)
        return;
    qn_crowd_serve(c);
    c->is_known = is_known;
    if (waits)
        qn_crowd_wait(c, true);
}

/* ---- Who goes ---- */

static size_t limit_of(const qn_connection *c)
{
    const qn_server_params *params = &c->http->params;
    const size_t half = (params->max_connections + 1) / 2;
    return c->is_loopback && half > params->max_per_address ? half : params->max_per_address;
}

static qn_connection *of_client(const qn_peer *p, size_t limit)
{
    return p->waiting[p->waiting[true].count > limit / 2].first;
}

static qn_connection *of_all(const qn_http *http)
{
    const bool is_known = http->n_waiting[true] > http->params.max_connections / 2;
    const qn_peer *most = http->peers;
    for (const qn_peer *p = most; p; p = p->next)
        most = p->waiting[is_known].count > most->waiting[is_known].count ? p : most;
    return most->waiting[is_known].first;
}

void qn_crowd_evict(qn_connection *fresh)
{
    qn_http *http = fresh->http;
    const size_t limit = limit_of(fresh);
    const bool is_crowd = fresh->peer->n_open > limit;
    if (!is_crowd && http->n_open <= http->params.max_connections)
        return;
    qn_metrics_refused(http->metrics);
    qn_connection_shut(is_crowd ? of_client(fresh->peer, limit) : of_all(http));
}
