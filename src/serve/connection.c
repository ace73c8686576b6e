/* Connections: their states, their deadlines, and clients that disconnect.
 *
 * libmicrohttpd neither times out nor watches a suspended connection. So each connection is also in the I/O thread's
 * own epoll set, edge-triggered, which reports that the client closed its end and that the first byte of a request
 * arrived; libmicrohttpd reports a request only when a line is complete. Deadlines are the server's own, and absolute:
 * bytes that arrive do not move them. A connection is closed by shutting its socket down, which libmicrohttpd sees. */
#include "serve/http.h"

#include "http/clock.h"
#include "http/guard.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

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
static void set_client(qn_connection *c)
{
    struct in6_addr network = ((const struct sockaddr_in6 *)&c->address)->sin6_addr;
    if (c->is_loopback) {
        snprintf(c->client_text, sizeof c->client_text, "this machine");
        return;
    }
    if (c->address.ss_family != AF_INET6 || IN6_IS_ADDR_V4MAPPED(&network)) {
        memcpy(c->client_text, c->address_text, sizeof c->client_text);
        return;
    }
    memset(&network.s6_addr[8], 0, 8);
    inet_ntop(AF_INET6, &network, c->client_text, sizeof c->client_text);
}

/* Sets the address of the client, and the texts and flags made from it. */
static void set_address(qn_connection *c)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c->mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *address = info ? info->client_addr : NULL;
    snprintf(c->address_text, sizeof c->address_text, "?");
    if (!address)
        return;
    if (address->sa_family == AF_INET) {
        memcpy(&c->address, address, sizeof(struct sockaddr_in));
        inet_ntop(AF_INET, &((const struct sockaddr_in *)address)->sin_addr, c->address_text, sizeof c->address_text);
    } else if (address->sa_family == AF_INET6) {
        memcpy(&c->address, address, sizeof(struct sockaddr_in6));
        inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)address)->sin6_addr, c->address_text,
                  sizeof c->address_text);
    }
    c->is_loopback = qn_guard_is_loopback(address);
    set_client(c);
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
    c->fd = info->connect_fd;
    set_address(c);
    if (!qn_crowd_join(c)) {
        *context = NULL;
        free(c);
        return;
    }
    struct epoll_event event = { .events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.ptr = c };
    const bool is_watched = !epoll_ctl(http->epoll_fd, EPOLL_CTL_ADD, c->fd, &event);
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
    epoll_ctl(http->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
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
    return recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
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
    shutdown(c->fd, SHUT_RDWR);
}

void qn_connection_take(qn_connection *c, uint32_t events)
{
    const bool has_bytes_alone = !(events & ~(uint32_t)EPOLLIN);
    c->is_gone = c->is_gone || !has_bytes_alone;
    if (c->is_gated) {
        (void)qn_gate_look(c);
        return;
    }
    if (has_bytes_alone) {
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
