/* Connections: their states, their deadlines, and clients that disconnect.
 *
 * libmicrohttpd neither times out nor watches a suspended connection. So the I/O thread's poller has each connection,
 * too: it reports that the client closed its end and that the first byte of a request arrived; libmicrohttpd reports a
 * request only when a line is complete. Deadlines are the server's own, and absolute: bytes that arrive do not move
 * them. A connection is closed by shutting its socket down, which libmicrohttpd sees. */
#include "serve/http.h"

#include "http/clock.h"
#include "http/guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEND_SECONDS = 120 /* for the rest of a complete answer */, SILENT_SECONDS = 10 /* until a comment is sent */ };

/* ---- The list of all connections, in the order of their opening ---- */

static void add_all(qn_connections *list, qn_connection *c)
{
    c->previous = list->last;
    if (list->last)
        list->last->next = c;
    else
        list->first = c;
    list->last = c;
    list->count++;
}

static void remove_all(qn_connections *list, qn_connection *c)
{
    *(c->previous ? &c->previous->next : &list->first) = c->next;
    *(c->next ? &c->next->previous : &list->last) = c->previous;
    list->count--;
}

/* ---- Addresses ---- */

/* Sets client_text from the address. All addresses of this machine are one client: its users may have any of
 * 127.0.0.0/8. Of other IPv6 addresses the first 64 bits count. */
static void set_client(qn_connection *c, const qn_address *address)
{
    qn_address network = *address;
    if (c->is_loopback) {
        snprintf(c->client_text, sizeof c->client_text, "this machine");
        return;
    }
    if (!address->is_ipv6 || qn_address_is_mapped(address)) {
        memcpy(c->client_text, c->address_text, sizeof c->client_text);
        return;
    }
    memset(network.bytes + 8, 0, 8);
    qn_address_print(&network, c->client_text);
}

/* Sets the address of the client, and the texts and flags made from it. */
static void set_address(qn_connection *c)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c->mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    qn_address address;
    snprintf(c->address_text, sizeof c->address_text, "?");
    if (!info || !info->client_addr || !qn_address_from(info->client_addr, &address))
        return;
    qn_address_print(&address, c->address_text);
    c->is_loopback = qn_guard_is_loopback(&address);
    set_client(c, &address);
}

/* ---- Opened and closed ---- */

/* Creates the state of a connection that libmicrohttpd has accepted; *context is NULL without memory. If there are now
 * too many connections, one is shut. */
static void open_connection(qn_http *http, struct MHD_Connection *mhd, void **context)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    qn_connection *c = info ? calloc(1, sizeof *c) : NULL;
    *context = c;
    if (!c)
        return;
    c->http = http;
    c->mhd = mhd;
    c->socket = (qn_socket)info->connect_fd;
    set_address(c);
    if (!qn_crowd_join(c)) {
        *context = NULL;
        free(c);
        return;
    }
    const bool is_watched = qn_poller_add(http->poller, c->socket, c);
    add_all(&http->all, c);
    qn_metrics_connected(http->metrics);
    qn_connection_enter(c, QN_CONNECTION_NEW);
    qn_gate_expect(c);
    if (is_watched)
        qn_crowd_evict(c);
    else
        qn_connection_shut(c);
}

/* Whether a connection has a request, and so counts in n_busy. */
static bool is_busy(const qn_connection *c)
{
    return c->state != QN_CONNECTION_NEW && c->state != QN_CONNECTION_IDLE;
}

/* Frees the state of a connection that libmicrohttpd has closed. */
static void close_connection(qn_http *http, qn_connection *c)
{
    qn_request_lose(c);
    qn_poller_remove(http->poller, c->socket);
    http->n_busy -= is_busy(c);
    qn_gate_forget(c);
    remove_all(&http->all, c);
    qn_crowd_leave(c);
    qn_metrics_disconnected(http->metrics);
    free(c);
}

void qn_connection_notify(void *http, struct MHD_Connection *mhd, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        open_connection(http, mhd, context);
    else if (*context)
        close_connection(http, *context);
}

qn_connection *qn_connection_of(struct MHD_Connection *mhd)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

/* ---- States ---- */

/* Whether bytes of the next request arrived before the end of the last one. */
static bool has_bytes(const qn_connection *c)
{
    char byte;
    return qn_socket_peek(c->socket, &byte, 1) == 1;
}

void qn_connection_enter(qn_connection *c, qn_connection_state state)
{
    const qn_server_params *params = &c->http->params;
    const double seconds[] = { [QN_CONNECTION_NEW] = params->header_seconds,
                               [QN_CONNECTION_IDLE] = params->idle_seconds,
                               [QN_CONNECTION_HEADERS] = params->header_seconds,
                               [QN_CONNECTION_BODY] = params->body_seconds,
                               [QN_CONNECTION_ANSWERING] = 0 };
    c->http->n_busy -= is_busy(c);
    c->state = state;
    c->http->n_busy += is_busy(c);
    c->deadline = seconds[state] > 0 ? qn_now() + seconds[state] : 0;
    if (state == QN_CONNECTION_ANSWERING && c->is_known)
        qn_crowd_serve(c);
    else if (!c->is_shut)
        qn_crowd_wait(c, state == QN_CONNECTION_IDLE);
    if (state == QN_CONNECTION_IDLE && has_bytes(c))
        qn_connection_begin(c);
}

/* A connection's first request has no time limit of its own: the limit that began with the connection goes on. */
void qn_connection_begin(qn_connection *c)
{
    const double deadline = c->deadline;
    const bool is_first = c->state == QN_CONNECTION_NEW;
    if (is_busy(c))
        return;
    qn_connection_enter(c, QN_CONNECTION_HEADERS);
    c->deadline = is_first ? deadline : c->deadline;
}

void qn_connection_suspend(qn_connection *c)
{
    c->is_suspended = true;
    MHD_suspend_connection(c->mhd);
}

void qn_connection_resume(qn_connection *c)
{
    if (!c->is_suspended)
        return;
    c->is_suspended = c->is_gated = false;
    MHD_resume_connection(c->mhd);
}

void qn_connection_shut(qn_connection *c)
{
    qn_crowd_shut(c);
    qn_socket_shut(c->socket);
}

void qn_connection_take(qn_connection *c, bool has_ended)
{
    c->is_gone = c->is_gone || has_ended;
    if (c->is_gated) {
        (void)qn_gate_look(c);
        return;
    }
    if (!has_ended) {
        qn_connection_begin(c);
        return;
    }
    if (!c->is_suspended)
        return;
    if (c->request && c->request->answer)
        qn_answer_abandon(c->request->answer);
    qn_connection_resume(c);
}

/* ---- Time ---- */

/* Sets the deadline of a stream whose answer is complete; has a comment sent on a silent stream. */
static void tick_stream(qn_connection *c, double now)
{
    qn_http_request *r = c->request;
    if (c->deadline <= 0 && qn_answer_look(r->answer).is_done)
        c->deadline = now + SEND_SECONDS;
    if (!c->is_suspended || now - r->last_sent < SILENT_SECONDS)
        return;
    r->needs_comment = true;
    qn_connection_resume(c);
}

/* Begins a stream before its model is loaded; later errors are stream events. */
static void tick_answer(qn_connection *c, double now)
{
    qn_http_request *r = c->request;
    if (!c->is_suspended || now - r->started < SILENT_SECONDS || !qn_answer_open(r->answer))
        return;
    r->needs_comment = true;
    qn_connection_resume(c);
}

void qn_connections_tick(qn_http *http)
{
    const double now = qn_now();
    for (qn_connection *c = http->all.first; c; c = c->next) {
        if (c->deadline > 0 && now > c->deadline && !c->is_shut)
            qn_connection_shut(c);
        else if (c->request && c->request->is_streaming)
            tick_stream(c, now);
        else if (c->request && c->request->answer && !c->request->status)
            tick_answer(c, now);
        else if (c->request && c->request->status && c->deadline <= 0)
            c->deadline = now + SEND_SECONDS;
    }
}
