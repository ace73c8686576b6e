/* Inside the server: its state, connections and HTTP requests. All of it belongs to the I/O thread, unless a comment
 * names another. Here a request is an HTTP request; an answer submits scheduler requests. MHD: libmicrohttpd,
 * whose callbacks come from MHD_run and MHD_stop_daemon. */
#ifndef QN_SERVE_HTTP_H
#define QN_SERVE_HTTP_H

#include "base/poller.h"
#include "http/framing.h"
#include "serve/answer.h"
#include "serve/route.h"
#include "serve/server.h"
#include "serve/tls.h"
#include "serve/worker.h"

#include <microhttpd.h>
#include <stdatomic.h>

enum {
    QN_HTTP_ID_BYTES = 40, /* with the zero at the end, as the next two */
    QN_HTTP_PATH_BYTES = 512,
    QN_HTTP_ADDRESS_BYTES = QN_ADDRESS_TEXT_BYTES,
    QN_HTTP_GATE_BYTES = 32 << 10,   /* of a header block: a socket's receive buffer always holds as much */
    QN_HTTP_MAX_DISCARDED = 64 << 20 /* bytes read of a refused body, so that the client reads the refusal */
};

typedef struct qn_http qn_http;
typedef struct qn_connection qn_connection;
typedef struct qn_peer qn_peer;
typedef struct qn_connections qn_connections;

typedef struct qn_http_request qn_http_request;

/* A request, from its first line to its line in the access log, which is written at the end of its answer. If the
 * client disconnects before, the line is written when all its scheduler requests have ended. */
struct qn_http_request {
    qn_http *http;
    qn_connection *connection; /* NULL: the client disconnected */
    char id[QN_HTTP_ID_BYTES];
    char address[QN_HTTP_ADDRESS_BYTES];
    double started, time; /* qn_now, qn_time */
    double seconds;       /* duration, once it is complete */
    char method[16];
    char path[QN_HTTP_PATH_BYTES]; /* decoded; "": it is invalid */
    const char *target; /* [n_target] the path with its query, in libmicrohttpd's memory; only its address is used */
    size_t n_target;
    const char *why_invalid;     /* what is wrong with the target; NULL: it is valid */
    const qn_route *route;       /* NULL: none */
    const qn_protocol *protocol; /* sets the form of errors; known once the headers are read */
    bool has_headers;
    bool keeps_body; /* key, path and headers were checked and a protocol reads the body; other bodies are discarded */
    bool closes;     /* the connection, after the answer: libmicrohttpd may have read other headers than were sent */
    bool has_key;
    qn_key key;
    char origin[256]; /* a listed origin, else "" */
    bool is_refused;  /* the answer is `refusal` */
    qn_refusal refusal;
    qn_account *account; /* set with the first byte of the body */
    qn_bytes body;
    size_t n_discarded; /* bytes of an unwanted body */
    qn_answer *answer;
    bool is_streaming;
    bool needs_comment; /* the stream was silent for a while */
    double last_sent;   /* qn_now, of the stream */
    int status;         /* 0: not answered */
    uint64_t n_sent;
    bool is_answered;                 /* by qn_gate_refuse_head */
    bool is_dropped;                  /* the server closes the connection without an answer */
    bool is_lost;                     /* the client disconnected */
    qn_http_request *previous, *next; /* in qn_http.ending */
};

/* What a connection is doing. */
typedef enum qn_connection_state {
    QN_CONNECTION_NEW,       /* no bytes arrived yet */
    QN_CONNECTION_IDLE,      /* between requests */
    QN_CONNECTION_HEADERS,   /* a request has begun to arrive */
    QN_CONNECTION_BODY,      /* all headers have arrived */
    QN_CONNECTION_ANSWERING, /* the request is complete */
} qn_connection_state;

struct qn_connection {
    qn_http *http;
    struct MHD_Connection *mhd;
    qn_socket socket;
    char address_text[QN_HTTP_ADDRESS_BYTES];
    char client_text[QN_HTTP_ADDRESS_BYTES]; /* shared by all addresses of this machine, or of an IPv6 /64 */
    bool is_loopback;
    qn_connection_state state;
    double deadline;    /* qn_now; 0: none */
    bool is_suspended;  /* in libmicrohttpd, which then does not see that the client disconnects */
    bool is_gone;       /* the client has closed its end */
    bool is_shut;       /* the server has shut the socket down; it closes soon */
    bool is_gated;      /* suspended until a header block is complete */
    bool may_have_rest; /* libmicrohttpd may hold bytes that arrived after the last request */
    bool is_expected;   /* in qn_http.expected */
    qn_connection *next_expected;
    qn_framing head;                /* what was read of the next header block */
    unsigned n_looks;               /* how often its bytes were looked at */
    qn_http_request *request;       /* NULL between requests */
    qn_connection *previous, *next; /* in qn_http.all */
    qn_peer *peer;                  /* of all connections with the same client_text */
    bool is_known;                  /* its last request was accepted, with a valid key if there are keys */
    qn_connections *waiting_in;     /* the peer's list of connections that wait for the client, or NULL */
    qn_connection *waiting_previous, *waiting_next; /* in waiting_in */
};

/* A list of connections, in the order of insertion. */
struct qn_connections {
    qn_connection *first, *last;
    size_t count;
};

struct qn_http {
    qn_server_params params;
    char url[128];
    bool is_loopback;
    qn_poller *poller;   /* what the loop waits for; woken by answers with news, and when `stops` or `reloads` counts */
    qn_socket listening; /* QN_NO_SOCKET once libmicrohttpd owns it */
    bool has_epoll;      /* libmicrohttpd has, whose descriptor is then one of the events */
    double next_tick;    /* qn_now */
    struct MHD_Daemon *daemon;
    qn_outbox outbox;
    qn_registry registry; /* has its own lock */
    qn_protocol_limits limits;
    qn_budget *budget; /* of all requests */
    qn_workers *workers;
    qn_metrics *metrics;
    qn_tls *tls;
    qn_connections all;            /* in the order of their opening */
    qn_peer *peers;                /* clients that have connections */
    size_t n_open;                 /* connections that are not shut */
    size_t n_waiting[2];           /* [is_known] connections that wait for their clients */
    qn_connection *expected;       /* their next bytes begin a request; until libmicrohttpd has done its work */
    char gate[QN_HTTP_GATE_BYTES]; /* a copy of the header block that is looked at */
    size_t n_busy;                 /* connections with a request: from its first byte to the end of its answer */
    qn_http_request *ending;       /* requests that lost their connection and have scheduler requests left */
    /* is_draining: no new connections; requests that have begun are answered. is_cut: the time for that is over, and
     * answers were ended with an error. is_closing: the loop has ended, and all connections are closed. */
    bool is_draining, is_cut, is_closing;
    bool has_warned;           /* the operator was told of an answer's warning */
    double drain_until;        /* qn_now */
    atomic_int stops, reloads; /* counted by other threads and signal handlers */
};

/* ---- Connections, connection.c ---- */

/* qn_connection_notify - libmicrohttpd's callback: a connection was opened or closed. */
void qn_connection_notify(void *http, struct MHD_Connection *mhd, void **context,
                          enum MHD_ConnectionNotificationCode code);

/* qn_connection_of - returns the server's connection of libmicrohttpd's. NULL: there was no memory for it. */
qn_connection *qn_connection_of(struct MHD_Connection *mhd);

/* qn_connection_enter - enter a state and set its deadline. */
void qn_connection_enter(qn_connection *connection, qn_connection_state state);

/* qn_connection_begin - the first bytes of a request arrived: start the time limit for its headers, unless it has
 * started. */
void qn_connection_begin(qn_connection *connection);

/* qn_connection_suspend - have libmicrohttpd leave the connection alone: it neither reads nor writes, and calls no
 * callback for it, until qn_connection_resume. */
void qn_connection_suspend(qn_connection *connection);

/* qn_connection_resume - let libmicrohttpd serve the connection again. */
void qn_connection_resume(qn_connection *connection);

/* qn_connection_shut - shut the socket down, so that libmicrohttpd closes the connection, in a later turn of the loop.
 * The connection is valid until then. */
void qn_connection_shut(qn_connection *connection);

/* qn_connection_take - handle an event of the socket: bytes arrived, or the client has closed its end. */
void qn_connection_take(qn_connection *connection, bool has_ended);

/* qn_connections_tick - called several times a second: enforce deadlines, send comments on silent streams. */
void qn_connections_tick(qn_http *http);

/* ---- Limits of connections, crowd.c ---- */

/* qn_crowd_join - add a new connection, whose client_text is set, to its peer. False: no memory. */
bool qn_crowd_join(qn_connection *connection);

/* qn_crowd_shut - a connection is about to be closed and counts no longer. */
void qn_crowd_shut(qn_connection *connection);

/* qn_crowd_leave - a connection was closed: remove it from its peer. */
void qn_crowd_leave(qn_connection *connection);

/* qn_crowd_wait - the connection waits for its client. `anew`: since now, else since it began to wait. */
void qn_crowd_wait(qn_connection *connection, bool anew);

/* qn_crowd_serve - the connection does not wait for its client. */
void qn_crowd_serve(qn_connection *connection);

/* qn_crowd_know - set is_known: whether its request is accepted. */
void qn_crowd_know(qn_connection *connection, bool is_known);

/* qn_crowd_evict - a connection was opened: if its peer or the server has too many, shut one that waits for its
 * client. */
void qn_crowd_evict(qn_connection *fresh);

/* ---- Header blocks, gate.c ---- */

/* qn_gate_expect - the next bytes of a connection begin a request. */
void qn_gate_expect(qn_connection *connection);

/* qn_gate_forget - undo qn_gate_expect. */
void qn_gate_forget(qn_connection *connection);

/* qn_gate_run - after libmicrohttpd's work: suspend the connections on which a request is expected. Returns whether
 * libmicrohttpd has work now. */
bool qn_gate_run(qn_http *http);

/* qn_gate_look - look at the bytes that arrived on a suspended connection, or at its end; resume it once the header
 * block is complete or refused. Returns whether libmicrohttpd has work now. */
bool qn_gate_look(qn_connection *connection);

/* qn_gate_refuse_head - called during libmicrohttpd's work, when it logs why it refuses a header block: answer the
 * request and shut its connection, so that libmicrohttpd's own answer, which would have two heads, is not sent. */
void qn_gate_refuse_head(qn_http *http, int status, const char *why);

/* ---- Requests, request.c ---- */

/* qn_request_begin - libmicrohttpd's callback: the first line of a request was read. Returns the qn_http_request. */
void *qn_request_begin(void *http, const char *uri, struct MHD_Connection *mhd);

/* qn_request_handle - libmicrohttpd's callback: headers or a piece of the body were read, or the request is
 * complete. */
enum MHD_Result qn_request_handle(void *http, struct MHD_Connection *mhd, const char *url, const char *method,
                                  const char *version, const char *data, size_t *length, void **context);

/* qn_request_completed - libmicrohttpd's callback: the request has ended. */
void qn_request_completed(void *http, struct MHD_Connection *mhd, void **context, enum MHD_RequestTerminationCode code);

/* qn_request_lose - end the connection's request, if it has one, with an error. libmicrohttpd does not always report
 * the completion of requests that it refuses by itself. */
void qn_request_lose(qn_connection *connection);

/* qn_request_make_id - make a random id. */
void qn_request_make_id(char id[QN_HTTP_ID_BYTES]);

/* qn_request_refuse - set the answer to a refusal. Returns false. */
bool qn_request_refuse(qn_http_request *request, int status, const char *code, const char *message);

/* qn_request_check_head - check that the headers say where the request ends; set `closes`. False: refused, and later
 * bytes on the connection must not be read as requests. In request_head.c. */
bool qn_request_check_head(qn_http_request *request, struct MHD_Connection *mhd, const char *method,
                           const char *version);

/* qn_request_news - the request's answer has news: resume the connection, to send it, or, if the client disconnected
 * and all scheduler requests have ended, log the request and free it. */
void qn_request_news(qn_http_request *request);

/* qn_requests_end - log all requests without connections; no scheduler has requests any more. */
void qn_requests_end(qn_http *http);

/* ---- Answers, respond.c ---- */

/* The four functions below queue a response. MHD_NO: no memory; libmicrohttpd closes the connection. */

/* qn_respond_refusal - send the request's refusal. */
enum MHD_Result qn_respond_refusal(qn_http_request *request, bool closes);

/* qn_respond_resource - send the resource of a GET request, or a refusal. */
enum MHD_Result qn_respond_resource(qn_http_request *request);

/* qn_respond_options - answer OPTIONS. */
enum MHD_Result qn_respond_options(qn_http_request *request);

/* qn_respond_answer - send an answer, which is accepted. */
enum MHD_Result qn_respond_answer(qn_http_request *request);

#endif
