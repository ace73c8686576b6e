/* Which client has how many connections, and which connection is closed when there are too many.
 *
 * Connections that wait for their clients are of two classes: known ones, whose last request was accepted (with a valid
 * key, if there are keys), and all others. Others are closed first, as long as the known have no more than half of the
 * limit, so that neither class can drive the other out. Within the class, the client with the most connections loses
 * the one that has waited longest. A connection that is not known also waits for its client while it is answered:
 * without a key nobody keeps a connection by not reading. An eviction walks over all clients. */
#include "serve/http.h"

#include <stdlib.h>
#include <string.h>

/* A client, by client_text, that has connections. */
struct qn_peer {
    qn_peer *next;
    size_t n, n_open;          /* all connections; those that are not shut */
    qn_connections waiting[2]; /* [is_known] connections that wait for the client, since longest first */
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

/* Returns the most open connections of the client of a connection. */
static size_t limit_of(const qn_connection *c)
{
    const qn_server_params *params = &c->http->params;
    const size_t half = (params->max_connections + 1) / 2;
    return c->is_loopback && half > params->max_per_address ? half : params->max_per_address;
}

/* Returns the connection that a client with too many loses. There is one: a new connection waits, too. */
static qn_connection *of_client(const qn_peer *p, size_t limit)
{
    return p->waiting[p->waiting[true].count > limit / 2].first;
}

/* Returns the connection that is shut when the server has too many: that of the client with the most in the class that
 * loses. */
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
