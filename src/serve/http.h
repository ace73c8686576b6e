/* Inside the server: its state, connections and requests. All of it belongs to the I/O thread, but for what a comment says. */
#ifndef QN_SERVE_HTTP_H
#define QN_SERVE_HTTP_H

#include "serve/answer.h"
#include "http/framing.h"
#include "serve/route.h"
#include "serve/server.h"
#include "serve/tls.h"
#include "serve/worker.h"

#include <microhttpd.h>
#include <netinet/in.h>
#include <stdatomic.h>

enum {
    QN_HTTP_ID_BYTES = 40,
    QN_HTTP_PATH_BYTES = 512,
    QN_HTTP_ADDRESS_BYTES = INET6_ADDRSTRLEN,
    QN_HTTP_GATE_BYTES = 32 << 10,   /* of a header block, which a socket holds for sure */
    QN_HTTP_MAX_DISCARDED = 64 << 20 /* bytes of a body that is refused, which are read so that the client reads the refusal */
};

typedef struct qn_http qn_http;
typedef struct qn_connection qn_connection;
typedef struct qn_peer qn_peer;
typedef struct qn_connections qn_connections;

typedef struct qn_http_request qn_http_request;

/* A request, from its first line to the line of the access log: to the end of its answer, or, where its client went away before,
 * until what it has in a scheduler has ended. */
struct qn_http_request {
    qn_http *http;
    qn_connection *connection; /* NULL: the client went away */
    char id[QN_HTTP_ID_BYTES];
    char address[QN_HTTP_ADDRESS_BYTES];
    double started, time; /* qn_now, qn_time */
    double seconds;       /* that it took; once it is complete */
    char method[16];
    char path[QN_HTTP_PATH_BYTES]; /* decoded; "" where it is invalid */
    const char *target;            /* [n_target] the path with its query, in libmicrohttpd's memory. For its place alone */
    size_t n_target;
    const char *why_invalid;     /* it is no target; NULL: it is one */
    const qn_route *route;       /* NULL: none */
    const qn_protocol *protocol; /* whose form errors have; from the headers on */
    bool has_headers;
    bool keeps_body; /* its key, path and headers were checked, and a protocol reads its body; others are thrown away */
    bool closes;     /* the connection, after the answer: what libmicrohttpd read may be something else than what was sent */
    bool has_key;
    qn_key key;
    char origin[256]; /* a listed one, else "" */
    bool is_refused;  /* the answer is `refusal` */
    qn_refusal refusal;
    qn_account *account; /* from the first byte of a body on */
    qn_bytes body;
    size_t n_discarded; /* of a body that is not wanted */
    qn_answer *answer;
    bool is_streaming;
    bool needs_comment; /* the stream was silent */
    double last_sent;   /* of a stream */
    int status;         /* 0: nothing was answered */
    uint64_t n_sent;
    bool is_answered;                 /* by qn_gate_refuse_head */
    bool is_dropped;                  /* the server closes the connection without an answer */
    bool is_lost;                     /* the client went away */
    qn_http_request *previous, *next; /* of qn_http.ending */
};

/* What a connection is doing. */
typedef enum qn_connection_state {
    QN_CONNECTION_NEW,       /* nothing came yet */
    QN_CONNECTION_IDLE,      /* between requests */
    QN_CONNECTION_HEADERS,   /* the beginning of a request came */
    QN_CONNECTION_BODY,      /* all headers came */
    QN_CONNECTION_ANSWERING, /* the request is complete */
} qn_connection_state;

struct qn_connection {
    qn_http *http;
    struct MHD_Connection *mhd;
    int fd;
    struct sockaddr_storage address;
    char address_text[QN_HTTP_ADDRESS_BYTES];
    char client_text[QN_HTTP_ADDRESS_BYTES]; /* of all of this machine, or of a network of 64 bits for IPv6 */
    bool is_loopback;
    qn_connection_state state;
    double deadline;    /* 0: none */
    bool is_suspended;  /* in libmicrohttpd, which then does not see that the client goes away */
    bool is_gone;       /* the client has closed its end */
    bool is_shut;       /* by the server: it closes soon */
    bool is_gated;      /* suspended until a header block is complete */
    bool may_have_rest; /* of what came after a request, in libmicrohttpd */
    bool is_expected;   /* in qn_http.expected */
    qn_connection *next_expected;
    qn_framing head; /* what was read of it, in so many looks */
    unsigned n_looks;
    qn_http_request *request;       /* NULL between requests */
    qn_connection *previous, *next; /* of all */
    qn_peer *peer;                  /* whose it is, with all of the same client_text */
    bool is_known;                  /* its last request was to be answered, with a valid key if there are keys */
    qn_connections *waiting_in;     /* it waits for its client, in a list of the peer's; NULL: it does not */
    qn_connection *waiting_previous, *waiting_next; /* there */
};

/* A list of connections, in the order in which they were added. */
struct qn_connections {
    qn_connection *first, *last;
    size_t count;
};

struct qn_http {
    qn_server_params params;
    char url[128];
    bool is_loopback;
    int listen_fd, epoll_fd, timer_fd, control_fd;
    struct MHD_Daemon *daemon;
    qn_outbox outbox;
    qn_registry registry; /* of its own lock */
    qn_protocol_limits limits;
    qn_budget *budget; /* of all requests */
    qn_workers *workers;
    qn_metrics *metrics;
    qn_tls *tls;
    qn_connections all;
    qn_peer *peers;                /* those that have connections */
    size_t n_open;                 /* connections that are not shut */
    size_t n_waiting[2];           /* [is_known] connections */
    qn_connection *expected;       /* those of which the next is a request, until libmicrohttpd has done its work */
    char gate[QN_HTTP_GATE_BYTES]; /* bytes of a request that are looked at */
    size_t n_busy;                 /* connections with a request: from its first byte to the end of its answer */
    qn_http_request *ending;       /* without connections */
    bool is_draining, is_cut, is_closing;
    double drain_until;
    atomic_int stops, reloads; /* requests of signal handlers */
};

/* ---- Connections, connection.c ---- */

/* qn_connection_notify - libmicrohttpd's: one was opened or closed. */
void qn_connection_notify(void *http, struct MHD_Connection *mhd, void **context, enum MHD_ConnectionNotificationCode code);

/* qn_connection_of - that of a request. NULL where there was no memory for it. */
qn_connection *qn_connection_of(struct MHD_Connection *mhd);

/* qn_connection_enter - a new state, with its deadline. */
void qn_connection_enter(qn_connection *connection, qn_connection_state state);

/* qn_connection_begin - bytes of a request came, or its first line: the time for its headers begins, unless it has. */
void qn_connection_begin(qn_connection *connection);

/* qn_connection_suspend, qn_connection_resume - libmicrohttpd leaves it alone, or looks at it again. */
void qn_connection_suspend(qn_connection *connection);
void qn_connection_resume(qn_connection *connection);

/* qn_connection_shut - close it soon. */
void qn_connection_shut(qn_connection *connection);

/* qn_connection_take - what epoll says of its socket: bytes came, or the client has closed its end. */
void qn_connection_take(qn_connection *connection, uint32_t events);

/* qn_connections_tick - now and then: deadlines, comments of silent streams. */
void qn_connections_tick(qn_http *http);

/* ---- Places, crowd.c ---- */

/* qn_crowd_join - a connection that was opened, with its client_text, is one of its peer. False without memory.
 * qn_crowd_shut - it is about to be closed, and has no place any more. qn_crowd_leave - it was closed. */
bool qn_crowd_join(qn_connection *connection);
void qn_crowd_shut(qn_connection *connection);
void qn_crowd_leave(qn_connection *connection);

/* qn_crowd_wait - it waits for its client, still or, anew, from now on. qn_crowd_serve - it does not. */
void qn_crowd_wait(qn_connection *connection, bool anew);
void qn_crowd_serve(qn_connection *connection);

/* qn_crowd_know - whether its request is to be answered. */
void qn_crowd_know(qn_connection *connection, bool is_known);

/* qn_crowd_evict - one was opened: if there are too many of its peer, or of all, one that waits for its client is closed. */
void qn_crowd_evict(qn_connection *fresh);

/* ---- Header blocks, gate.c ---- */

/* qn_gate_expect - a request comes next on a connection. qn_gate_forget - no more. */
void qn_gate_expect(qn_connection *connection);
void qn_gate_forget(qn_connection *connection);

/* qn_gate_run - after libmicrohttpd's work: suspend connections on which a request is expected. qn_gate_look - bytes came on such a
 * one, or its end. Whether libmicrohttpd has work now. */
bool qn_gate_run(qn_http *http);
bool qn_gate_look(qn_connection *connection);

/* qn_gate_refuse_head - during libmicrohttpd's work, when it says what it refuses a header block for: answer the request that has it,
 * and shut its connection. libmicrohttpd would send two heads; what it answers has nowhere to go then. */
void qn_gate_refuse_head(qn_http *http, int status, const char *why);

/* ---- Requests, request.c: libmicrohttpd's callbacks ---- */

void *qn_request_begin(void *http, const char *uri, struct MHD_Connection *mhd);
enum MHD_Result qn_request_handle(void *http, struct MHD_Connection *mhd, const char *url, const char *method,
                                  const char *version, const char *data, size_t *length, void **context);
void qn_request_completed(void *http, struct MHD_Connection *mhd, void **context, enum MHD_RequestTerminationCode code);

/* qn_request_lose - ends a connection's request, if it has one, which libmicrohttpd has forgotten: for those that it refuses by itself it
 * does not always say that they are completed. */
void qn_request_lose(qn_connection *connection);

/* qn_request_make_id - a random id. qn_request_refuse - the answer is a refusal. Returns false. */
void qn_request_make_id(char id[QN_HTTP_ID_BYTES]);
bool qn_request_refuse(qn_http_request *request, int status, const char *code, const char *message);

/* qn_request_check_head - whether headers say where the request ends; sets `closes`. False: refused, and nothing on the connection can
 * be believed any more. request_head.c. */
bool qn_request_check_head(qn_http_request *request, struct MHD_Connection *mhd, const char *method, const char *version);

/* qn_request_news - its answer has something new. May free it. */
void qn_request_news(qn_http_request *request);

/* qn_requests_end - log what is left of requests without connections; nothing is in a scheduler any more. */
void qn_requests_end(qn_http *http);

/* ---- Answers, respond.c ---- */

/* qn_respond_refusal, qn_respond_page, qn_respond_answer - queue what the client gets. The answer is accepted. */
enum MHD_Result qn_respond_refusal(qn_http_request *request, bool closes);
enum MHD_Result qn_respond_page(qn_http_request *request);
enum MHD_Result qn_respond_options(qn_http_request *request);
enum MHD_Result qn_respond_answer(qn_http_request *request);

#endif
