/* Reads header blocks before libmicrohttpd does. Between requests a connection is suspended until the next header block
 * is complete in the socket, where it is only peeked at. An invalid block never reaches libmicrohttpd, which would read
 * it leniently. Not with TLS, which libmicrohttpd decrypts.
 *
 * libmicrohttpd's manual names two callbacks as the only safe places to suspend a connection, because its threads may
 * work on it elsewhere. This daemon has no threads: between two calls of MHD_run nothing works on a connection, and one
 * that is accepted in one call is read in the next. */
#include "serve/http.h"

#include "http/clock.h"
#include "http/framing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Seconds of CPU time after which a look was too long. The kernel's time for a peek grows with the square of the number
 * of packets, so a block that arrives byte by byte is left to libmicrohttpd. */
#define LONG_LOOK 0.0005

_Static_assert(QN_HTTP_GATE_BYTES % 512 == 0 && !(QN_HTTP_GATE_BYTES & (QN_HTTP_GATE_BYTES - 1)),
               "looks double up to it");

enum {
    MOST_LOOKS = 16,  /* at one header block: each look costs as much as all bytes so far */
    FIRST_LOOK = 512, /* bytes; doubled for a longer block while looks are short */
    /* Times QN_HTTP_GATE_BYTES, read of a refused client's bytes: closing a socket with unread bytes would reset the
     * connection before the client has read the refusal. */
    DISCARDED_AT_ONCE = 16
};

void qn_gate_expect(qn_connection *c)
{
    qn_http *http = c->http;
    if (http->tls || c->is_expected)
        return;
    c->is_expected = true;
    c->next_expected = http->expected;
    http->expected = c;
}

void qn_gate_forget(qn_connection *c)
{
    qn_connection **link = &c->http->expected;
    while (c->is_expected && *link != c)
        link = &(*link)->next_expected;
    if (c->is_expected)
        *link = c->next_expected;
    c->is_expected = false;
}

/* Returns the phrase of the status line. */
static const char *phrase_of(int status)
{
    return status == 400 ? "Bad Request" : status == 414 ? "URI Too Long" : "Request Header Fields Too Large";
}

/* Sends a whole response past libmicrohttpd, as far as the socket takes it, and discards some of what the client has
 * sent. */
static void send_refusal(qn_connection *c, const qn_refusal *refusal)
{
    qn_bytes body = { 0 }, answer = { 0 };
    qn_protocols[0]->refuse(refusal, &body);
    qn_bytes_print(&answer, "HTTP/1.1 %d %s\r\nConnection: close\r\n", refusal->status, phrase_of(refusal->status));
    qn_bytes_print(&answer, "Content-Type: application/json\r\nX-Content-Type-Options: nosniff\r\nX-Request-Id: %s\r\n",
                   refusal->id);
    qn_bytes_print(&answer, "Content-Length: %zu\r\n\r\n", body.length);
    qn_bytes_add(&answer, body.data, body.length);
    if (!body.has_failed && !answer.has_failed && c->http->tls)
        qn_tls_send(c->mhd, answer.data, answer.length);
    else if (!body.has_failed && !answer.has_failed)
        qn_socket_send(c->socket, answer.data, answer.length); /* cut: no answer */
    qn_bytes_free(&body);
    qn_bytes_free(&answer);
    for (int i = 0; i < DISCARDED_AT_ONCE && qn_socket_receive(c->socket, c->http->gate, QN_HTTP_GATE_BYTES) > 0; i++)
        ;
}

/* Sets the refusal of a header block. Keeps the pointer to `id`. */
static void refuse_head(qn_refusal *refusal, int status, const char *why, const char *id)
{
    qn_refuse(refusal, status, status == 400 ? "bad_request" : "headers_too_large", NULL, "%s", why);
    refusal->id = id;
}

/* Refuses a block that libmicrohttpd never sees: answers, counts and logs it, and shuts the connection. */
static void refuse(qn_connection *c, int status, const char *why)
{
    qn_http *http = c->http;
    char id[QN_HTTP_ID_BYTES];
    qn_refusal refusal;
    qn_request_make_id(id);
    refuse_head(&refusal, status, why, id);
    send_refusal(c, &refusal);
    qn_metrics_request(http->metrics, qn_route_index(NULL), status);
    if (http->params.log)
        qn_access_log_write(
            http->params.log,
            &(qn_access){
                .time = qn_time(), .id = id, .address = c->address_text, .method = "", .path = "", .status = status });
    qn_connection_shut(c);
}

void qn_gate_refuse_head(qn_http *http, int status, const char *why)
{
    for (qn_connection *c = http->all.first; c; c = c->next) {
        /* At most one request has all its headers and has not reached qn_request_handle. */
        if (!c->request || c->state > QN_CONNECTION_HEADERS || c->is_shut || c->is_suspended ||
            !MHD_get_connection_info(c->mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE))
            continue;
        qn_refusal refusal;
        refuse_head(&refusal, status, why, c->request->id);
        c->request->status = status;
        c->request->is_answered = true;
        send_refusal(c, &refusal);
        qn_connection_shut(c);
        return;
    }
}

/* Whether more is needed than the n bytes at the front of the socket; if not, the block is refused or let through. The
 * bytes may be the rest of a request whose beginning libmicrohttpd has read after the last request; request_head.c then
 * makes the final check. */
static bool needs_more(qn_connection *c, size_t n)
{
    const char *why;
    const size_t most = c->http->params.max_header;
    const qn_head head = qn_framing_read(&c->head, c->http->gate, n, &why);
    if (head == QN_HEAD_PART && n > most)
        refuse(c, c->head.has_first ? 431 : 414, "the headers are too long; see --max-header");
    else if (head == QN_HEAD_LARGE)
        refuse(c, 431, why);
    else if (head == QN_HEAD_INVALID && !c->may_have_rest)
        refuse(c, 400, why);
    else if (head == QN_HEAD_COMPLETE)
        c->may_have_rest = c->head.at < n;
    return head == QN_HEAD_PART && n <= most && n < QN_HTTP_GATE_BYTES && ++c->n_looks < MOST_LOOKS;
}

/* Peeks at the bytes at the front of the socket, into http->gate, doubling the size. After a long look it stops, and no
 * other look follows. Returns as qn_socket_peek. */
static ptrdiff_t look(qn_connection *c)
{
    for (size_t size = FIRST_LOOK;; size *= 2) {
        const double begin = qn_clock_read(CLOCK_THREAD_CPUTIME_ID);
        const ptrdiff_t n = qn_socket_peek(c->socket, c->http->gate, size);
        if (n < (ptrdiff_t)size || size == QN_HTTP_GATE_BYTES)
            return n;
        if (qn_clock_read(CLOCK_THREAD_CPUTIME_ID) - begin > LONG_LOOK) {
            c->n_looks = MOST_LOOKS;
            return n;
        }
    }
}

bool qn_gate_look(qn_connection *c)
{
    const ptrdiff_t n = c->is_shut ? 0 : look(c);
    const bool is_open = !c->is_gone && n != 0;
    if (n > 0)
        qn_connection_begin(c);
    if ((n <= 0 || needs_more(c, (size_t)n)) && is_open)
        return false;
    qn_connection_resume(c);
    return true;
}

bool qn_gate_run(qn_http *http)
{
    bool lets_through = false;
    while (http->expected) {
        qn_connection *c = http->expected;
        qn_gate_forget(c);
        if (c->request || c->is_suspended || c->is_shut)
            continue;
        qn_connection_suspend(c);
        c->is_gated = true;
        c->head = (qn_framing){ 0 };
        c->n_looks = 0;
        lets_through |= qn_gate_look(c);
    }
    return lets_through;
}
