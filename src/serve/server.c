/* The server as a whole: its socket, its daemon, and the loop of the I/O thread. */
#include "serve/http.h"

#include "base/heap.h"
#include "base/status.h"
#include "http/clock.h"
#include "http/guard.h"
#include "http/listen.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TICK_SECONDS 0.25

enum {
    EVENTS = 256,            /* taken at once */
    RESUMED_AT_ONCE = 1024,  /* answers, before other events are looked at */
    SPARE_CONNECTIONS = 64,  /* accepted while older ones are closed */
    LEAST_MEMORY = 64 << 10, /* bytes, of a connection */
    OTHER_MEMORY = 32 << 10, /* of a connection, besides request headers: response headers, a piece of the body */
    FLUSH_SECONDS = 2        /* to send the last events of streams */
};

struct qn_server {
    qn_http http;
    pthread_t thread;
    bool has_thread, is_joined;
};

/* ---- Control: qn_server_stop and qn_server_reload are called by other threads and signal handlers ---- */

/* The stop is counted last: from then on the server may be freed. If the loop has taken the wake before, it sees the
 * stop in its next turn, at the latest with the next tick. */
void qn_server_stop(qn_server *server)
{
    qn_poller_wake(server->http.poller);
    atomic_fetch_add(&server->http.stops, 1);
}

void qn_server_reload(qn_server *server)
{
    atomic_fetch_add(&server->http.reloads, 1);
    qn_poller_wake(server->http.poller);
}

/* Reports the thread's last error to the operator, after `what` unless that is "". */
static void note(const qn_http *http, const char *what)
{
    char text[640];
    if (!http->params.note)
        return;
    snprintf(text, sizeof text, "%s%s%s", what, *what ? ": " : "", qn_error_text());
    http->params.note(text);
}

/* Reports a state to the service manager, unless the server is draining: no other state may follow STOPPING=1. */
static void notify(const qn_http *http, const char *state)
{
    if (!http->is_draining)
        qn_notify_service(state);
}

/* Reads keys and certificate again, opens the access log again and has the model files scanned, on the I/O thread; also
 * while the server drains. What cannot be read or opened stays in use as it was. */
static void reload(qn_http *http)
{
    char state[64];
    snprintf(state, sizeof state, "RELOADING=1\nMONOTONIC_USEC=%lld", (long long)(1e6 * qn_now()));
    notify(http, state);
    if (http->params.keys && qn_keys_reload(http->params.keys))
        note(http, "the keys stay as they were");
    if (http->tls && qn_tls_reload(http->tls))
        note(http, "the certificate stays as it was");
    if (http->params.log && qn_access_log_reopen(http->params.log))
        note(http, "the access log stays as it was");
    qn_registry_scan_soon(&http->registry);
    notify(http, qn_registry_has_started(&http->registry) ? "READY=1" : "STATUS=loading");
}

/* ---- Draining ---- */

/* Closes the listening socket. The loop ends with the last request, or after drain_seconds. */
static void begin_drain(qn_http *http)
{
    http->is_draining = true;
    qn_notify_service("STOPPING=1");
    http->drain_until = qn_now() + http->params.drain_seconds;
    const MHD_socket listening = MHD_quiesce_daemon(http->daemon);
    if (listening != MHD_INVALID_SOCKET)
        qn_socket_close((qn_socket)listening);
    http->listening = QN_NO_SOCKET;
}

/* Ends all answers with an error, which has some time to be sent. Requests that have not arrived completely are not
 * waited for. */
static void cut_answers(qn_http *http)
{
    qn_refusal refusal;
    qn_refuse(&refusal, 503, "stopping", NULL, "the server is stopping");
    for (qn_connection *c = http->all.first; c; c = c->next)
        if (c->request && c->request->answer)
            qn_answer_stop(c->request->answer, &refusal);
        else if (c->state != QN_CONNECTION_ANSWERING)
            qn_connection_shut(c);
    http->is_cut = true;
    http->drain_until = qn_now() + FLUSH_SECONDS;
}

/* Whether the loop has ended. */
static bool drain(qn_http *http)
{
    if (!http->is_draining)
        return false;
    if (!http->n_busy)
        return true;
    if (qn_now() < http->drain_until)
        return false;
    if (http->is_cut)
        return true;
    cut_answers(http);
    return false;
}

/* ---- The loop ---- */

/* Handles answers with news. Others are left for the next turn, so that connections are served between. */
static void take_answers(qn_http *http)
{
    for (int i = 0; i < RESUMED_AT_ONCE; i++) {
        qn_answer *answer = qn_outbox_take(&http->outbox);
        if (!answer)
            return;
        qn_http_request *r = qn_answer_user(answer);
        if (r)
            qn_request_news(r);
        qn_answer_release(answer);
    }
    qn_outbox_end(&http->outbox);
}

static void take_control(qn_http *http)
{
    if (atomic_load(&http->reloads) && atomic_exchange(&http->reloads, 0))
        reload(http);
    if (atomic_load(&http->stops) && !http->is_draining)
        begin_drain(http);
}

static void take_tick(qn_http *http)
{
    const double now = qn_now();
    if (now < http->next_tick)
        return;
    http->next_tick = now + TICK_SECONDS;
    qn_connections_tick(http);
}

/* Returns how long the loop may wait, in milliseconds: until libmicrohttpd has work, or the next tick. */
static int timeout_of(const qn_http *http)
{
    MHD_UNSIGNED_LONG_LONG milliseconds;
    const double left = 1e3 * (http->next_tick - qn_now());
    const int until_tick = left > 0 ? (int)left + 1 : 0;
    if (MHD_get_timeout(http->daemon, &milliseconds) != MHD_YES || milliseconds > (unsigned)until_tick)
        return until_tick;
    return (int)milliseconds;
}

/* Waits for what comes and hands it out, then lets libmicrohttpd work. Its sockets are watched by the one descriptor of
 * its epoll, or, where it has none, named at each wait. */
static void turn(qn_http *http, int milliseconds)
{
    fd_set reads, writes, others;
    MHD_socket highest = 0;
    qn_poller_event events[EVENTS];
    qn_poller_sets sets = { .read = &reads, .write = &writes };
    bool is_woken;
    if (!http->has_epoll) {
        FD_ZERO(&reads);
        FD_ZERO(&writes);
        FD_ZERO(&others);
        MHD_get_fdset2(http->daemon, &reads, &writes, &others, &highest, FD_SETSIZE);
        sets.highest = (int)highest;
        FD_ZERO(&others);
    }
    const size_t n =
        qn_poller_wait(http->poller, milliseconds, http->has_epoll ? NULL : &sets, events, EVENTS, &is_woken);
    for (size_t i = 0; i < n; i++)
        qn_connection_take(events[i].data, events[i].has_ended);
    take_control(http);
    if (is_woken)
        take_answers(http);
    take_tick(http);
    if (http->has_epoll)
        MHD_run(http->daemon);
    else
        MHD_run_from_select(http->daemon, &reads, &writes, &others);
}

/* Ends all connections and the daemon. libmicrohttpd cannot stop while some are suspended, so all are resumed. */
static void end_connections(qn_http *http)
{
    http->is_closing = true;
    for (qn_connection *c = http->all.first; c; c = c->next)
        qn_connection_resume(c);
    MHD_run(http->daemon);
    MHD_stop_daemon(http->daemon);
    http->daemon = NULL;
}

/* The I/O thread. */
static void *run(void *argument)
{
    qn_http *http = argument;
    bool has_work = false;
    while (!drain(http)) {
        turn(http, has_work ? 0 : timeout_of(http));
        has_work = qn_gate_run(http);
    }
    end_connections(http);
    return NULL;
}

/* ---- Creation ---- */

/* Raises the system's limit of sockets to that of connections, or lowers that of connections. */
static void fit_sockets(qn_http *http)
{
    enum { OTHERS = 256 };
    const size_t wanted = http->params.max_connections + SPARE_CONNECTIONS + OTHERS;
    size_t allowed = qn_socket_allow(wanted);
    if (!http->has_epoll && allowed > FD_SETSIZE) /* `turn` names each socket in sets */
        allowed = FD_SETSIZE;
    if (allowed < wanted)
        http->params.max_connections = allowed > SPARE_CONNECTIONS + OTHERS ? allowed - SPARE_CONNECTIONS - OTHERS : 1;
}

/* libmicrohttpd's callback that decodes paths and queries: changes nothing, as qn_guard_path decodes the path. */
static size_t keep_path(void *unused, struct MHD_Connection *mhd, char *text)
{
    (void)unused;
    (void)mhd;
    return strlen(text);
}

/* libmicrohttpd's callback for its log. Ignores it, except for the messages that precede a wrong answer. */
static void hear(void *http, const char *format, va_list arguments)
{
    (void)arguments;
    if (strstr(format, "Content-Length"))
        qn_gate_refuse_head(http, 400, "Content-Length is not a number");
    else if (strstr(format, "Not enough memory in pool"))
        qn_gate_refuse_head(http, 431, "the headers are too long; see --max-header");
}

/* Returns the bytes that libmicrohttpd keeps for a connection. It has a table of headers next to their text, and clears
 * all memory after the first request. */
static size_t connection_memory(const qn_http *http)
{
    const size_t wanted = 2 * http->params.max_header + OTHER_MEMORY;
    return wanted > LEAST_MEMORY ? wanted : LEAST_MEMORY;
}

static qn_status start_daemon(qn_http *http)
{
    const unsigned flags = (http->has_epoll ? MHD_USE_EPOLL : 0) | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG |
                           (http->tls ? MHD_USE_TLS : 0);
    struct MHD_OptionItem options[12];
    size_t n = 0;
    options[n++] = (struct MHD_OptionItem){ MHD_OPTION_CONNECTION_LIMIT,
                                            (intptr_t)(http->params.max_connections + SPARE_CONNECTIONS), NULL };
    options[n++] =
        (struct MHD_OptionItem){ MHD_OPTION_CONNECTION_MEMORY_LIMIT, (intptr_t)connection_memory(http), NULL };
    options[n++] = (struct MHD_OptionItem){ MHD_OPTION_NOTIFY_CONNECTION, (intptr_t)qn_connection_notify, http };
    options[n++] = (struct MHD_OptionItem){ MHD_OPTION_NOTIFY_COMPLETED, (intptr_t)qn_request_completed, http };
    options[n++] = (struct MHD_OptionItem){ MHD_OPTION_URI_LOG_CALLBACK, (intptr_t)qn_request_begin, http };
    options[n++] = (struct MHD_OptionItem){ MHD_OPTION_UNESCAPE_CALLBACK, (intptr_t)keep_path, NULL };
    options[n++] = (struct MHD_OptionItem){ MHD_OPTION_LISTEN_SOCKET, http->listening, NULL };
    options[n++] = (struct MHD_OptionItem){ MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, NULL };
    if (http->tls)
        n += qn_tls_use(http->tls, options + n);
    options[n] = (struct MHD_OptionItem){ MHD_OPTION_END, 0, NULL };
    http->daemon = MHD_start_daemon(flags, 0, NULL, NULL, qn_request_handle, http, MHD_OPTION_EXTERNAL_LOGGER, hear,
                                    http, MHD_OPTION_ARRAY, options, MHD_OPTION_END);
    return http->daemon ? QN_OK : qn_fail(QN_ERR_IO, "%s: the server cannot be started", http->url);
}

static qn_status watch_daemon(const qn_http *http)
{
    if (!http->has_epoll)
        return QN_OK;
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    if (!info)
        return qn_fail(QN_ERR_IO, "%s: libmicrohttpd has no epoll descriptor", http->url);
    return qn_poller_add(http->poller, (qn_socket)info->epoll_fd, NULL) ? QN_OK : QN_ERR_IO;
}

/* Listens. QN_ERR_INVALID if other machines could use the server and nothing says that they may. */
static qn_status open_socket(qn_http *http)
{
    const qn_server_params *params = &http->params;
    qn_listener listener;
    QN_TRY(qn_listen(params->host, params->port, &listener));
    http->listening = listener.socket;
    http->is_loopback = qn_guard_is_loopback(&listener.address);
    snprintf(http->url, sizeof http->url, "%s://%s", params->tls_cert ? "https" : "http", listener.authority);
    if (http->is_loopback || params->keys || params->allows_anyone)
        return QN_OK;
    return qn_fail(QN_ERR_INVALID,
                   "--host %s: other machines could use the server; give it keys with --api-key-file, or say "
                   "--allow-unauthenticated",
                   params->host);
}

/* Creates all but registry, poller and outbox, and starts the threads. After an error qn_server_free frees what there
 * is. */
static qn_status create(qn_server *server)
{
    qn_http *http = &server->http;
    const char *const *names;
    qn_heap_keep_little();
    QN_TRY(qn_routes_init());
    const size_t n_names = qn_route_names(&names);
    const qn_budget_limits memory = qn_budget_limits_for(http->params.max_body);
    QN_TRY(qn_budget_create(&memory, &http->budget));
    QN_TRY(qn_metrics_create(names, n_names, &http->metrics));
    if (http->params.tls_cert)
        QN_TRY(qn_tls_create(http->params.tls_cert, http->params.tls_key, &http->tls));
    QN_TRY(open_socket(http));
    fit_sockets(http);
    QN_TRY(qn_workers_create(http->params.n_workers, &http->workers));
    QN_TRY(start_daemon(http));
    http->listening = QN_NO_SOCKET; /* libmicrohttpd owns it now */
    QN_TRY(watch_daemon(http));
    http->next_tick = qn_now() + TICK_SECONDS;
    if (pthread_create(&server->thread, NULL, run, http))
        return qn_fail(QN_ERR_MEMORY, "cannot start the server's thread");
    server->has_thread = true;
    return QN_OK;
}

qn_status qn_server_create(const qn_server_params *params, qn_server **out)
{
    qn_server *server = calloc(1, sizeof *server);
    *out = NULL;
    if (!server)
        return qn_fail(QN_ERR_MEMORY, "no memory for a server");
    qn_http *http = &server->http;
    http->params = *params;
    http->listening = QN_NO_SOCKET;
    http->has_epoll = MHD_is_feature_supported(MHD_FEATURE_EPOLL) == MHD_YES;
    qn_status status = qn_registry_init(&http->registry);
    if (status) {
        free(server);
        return status;
    }
    status = qn_poller_create(&http->poller);
    if (!status)
        status = qn_outbox_init(&http->outbox, http->poller);
    if (status) {
        qn_poller_free(http->poller);
        qn_registry_free(&http->registry);
        free(server);
        return status;
    }
    status = create(server);
    if (status)
        qn_server_free(server);
    else
        *out = server;
    return status;
}

const char *qn_server_url(const qn_server *server)
{
    return server->http.url;
}

qn_status qn_server_add(qn_server *server, const qn_registered *model)
{
    return qn_registry_add(&server->http.registry, model);
}

qn_status qn_server_add_files(qn_server *server, const qn_registry_loader *loader)
{
    return qn_registry_start(&server->http.registry, loader);
}

void qn_server_wait(qn_server *server)
{
    qn_http *http = &server->http;
    if (!server->has_thread || server->is_joined)
        return;
    pthread_join(server->thread, NULL);
    server->is_joined = true;
    qn_registry_stop(&http->registry); /* before the workers, which get answers from it */
    qn_workers_stop(http->workers);
}

/* Releases the answers whose scheduler requests have ended, and logs their requests. Only the owner's thread is
 * left. */
static void empty_outbox(qn_http *http)
{
    for (qn_answer *answer; (answer = qn_outbox_take(&http->outbox));)
        qn_answer_release(answer);
    qn_requests_end(http);
}

void qn_server_free(qn_server *server)
{
    if (!server)
        return;
    qn_http *http = &server->http;
    if (server->has_thread && !server->is_joined) {
        qn_server_stop(server);
        qn_server_wait(server);
    }
    if (http->daemon)
        MHD_stop_daemon(http->daemon);
    qn_registry_stop(&http->registry);
    qn_workers_stop(http->workers);
    qn_registry_unload(&http->registry); /* workers get the ends of answers */
    qn_workers_free(http->workers);
    empty_outbox(http);
    if (http->listening != QN_NO_SOCKET)
        qn_socket_close(http->listening);
    qn_tls_free(http->tls);
    qn_metrics_free(http->metrics);
    qn_registry_free(&http->registry);
    qn_outbox_free(&http->outbox);
    qn_poller_free(http->poller);
    qn_budget_free(http->budget);
    free(server);
}
