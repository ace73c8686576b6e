/* The server as a whole: its socket, its daemon, and the loop of the I/O thread. */
#include "serve/http.h"

#include "base/heap.h"
#include "base/status.h"
#include "http/clock.h"
#include "http/guard.h"
#include "http/listen.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum {
    TICK_NANOSECONDS = 250000000,
    EVENTS = 256,            /* of epoll, taken at once */
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

/* Makes the I/O thread look at `stops` and `reloads`. Safe in signal handlers; keeps errno. */
static void wake(const qn_http *http)
{
    static const uint64_t one = 1;
    const int saved_errno = errno;
    const ssize_t n = write(http->control_fd, &one, sizeof one);
    (void)n; /* a counter at its limit wakes the thread as well */
    errno = saved_errno;
}

void qn_server_stop(qn_server *server)
{
    atomic_fetch_add(&server->http.stops, 1);
    wake(&server->http);
}

void qn_server_reload(qn_server *server)
{
    atomic_fetch_add(&server->http.reloads, 1);
    wake(&server->http);
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

/* Reports a state to systemd, unless the server is draining: no other state may follow STOPPING=1. */
static void notify(const qn_http *http, const char *state)
{
    if (!http->is_draining)
        qn_notify(state);
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
    qn_notify("STOPPING=1");
    http->drain_until = qn_now() + http->params.drain_seconds;
    const MHD_socket listening = MHD_quiesce_daemon(http->daemon);
    if (listening != MHD_INVALID_SOCKET)
        close(listening);
    http->listen_fd = -1;
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
    qn_outbox_begin(&http->outbox);
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

/* Makes an event descriptor or a timer unreadable. */
static void clear(int fd)
{
    uint64_t count;
    const ssize_t n = read(fd, &count, sizeof count);
    (void)n; /* it may be unreadable already */
}

static void take_control(qn_http *http)
{
    clear(http->control_fd);
    if (atomic_exchange(&http->reloads, 0))
        reload(http);
    if (atomic_load(&http->stops) && !http->is_draining)
        begin_drain(http);
}

static void take_tick(qn_http *http)
{
    clear(http->timer_fd);
    qn_connections_tick(http);
}

/* `data` of an event: NULL for libmicrohttpd, the address of the server's own descriptor, or a connection. */
static void take_event(qn_http *http, void *data, uint32_t events)
{
    if (data == &http->outbox)
        take_answers(http);
    else if (data == &http->timer_fd)
        take_tick(http);
    else if (data == &http->control_fd)
        take_control(http);
    else if (data)
        qn_connection_take(data, events);
}

/* Returns how long the loop may wait, in milliseconds; -1: until an event. */
static int timeout_of(struct MHD_Daemon *daemon)
{
    MHD_UNSIGNED_LONG_LONG milliseconds;
    if (MHD_get_timeout(daemon, &milliseconds) != MHD_YES)
        return -1;
    return milliseconds < 1000 ? (int)milliseconds : 1000;
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
    struct epoll_event events[EVENTS];
    bool has_work = false;
    while (!drain(http)) {
        const int n = epoll_wait(http->epoll_fd, events, EVENTS, has_work ? 0 : timeout_of(http->daemon));
        for (int i = 0; i < n; i++)
            take_event(http, events[i].data.ptr, events[i].events);
        MHD_run(http->daemon);
        has_work = qn_gate_run(http);
    }
    end_connections(http);
    return NULL;
}

/* ---- Creation ---- */

/* Raises the limit of descriptors to that of connections, or lowers that of connections. */
static void fit_descriptors(qn_http *http)
{
    enum { OTHERS = 256 };
    struct rlimit limit;
    const size_t wanted = http->params.max_connections + SPARE_CONNECTIONS + OTHERS;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= wanted)
        return;
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    if (setrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= wanted)
        return;
    const size_t left = limit.rlim_cur > SPARE_CONNECTIONS + OTHERS ? limit.rlim_cur - SPARE_CONNECTIONS - OTHERS : 1;
    http->params.max_connections = left;
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
    const unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | (http->tls ? MHD_USE_TLS : 0);
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
    options[n++] = (struct MHD_OptionItem){ MHD_OPTION_LISTEN_SOCKET, http->listen_fd, NULL };
    options[n++] = (struct MHD_OptionItem){ MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, NULL };
    if (http->tls) {
        /* Only forward secrecy and authenticated ciphers. */
        static char priorities[] = "SECURE128:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-KX-ALL:+ECDHE-ECDSA:+ECDHE-RSA:"
                                   "-CIPHER-ALL:+AES-256-GCM:+CHACHA20-POLY1305:+AES-128-GCM:-MAC-ALL:+AEAD";
        qn_tls_use(http->tls);
        options[n++] = (struct MHD_OptionItem){ MHD_OPTION_HTTPS_CERT_CALLBACK, 0, (void *)(intptr_t)qn_tls_retrieve };
        options[n++] = (struct MHD_OptionItem){ MHD_OPTION_HTTPS_PRIORITIES, 0, priorities };
    }
    options[n] = (struct MHD_OptionItem){ MHD_OPTION_END, 0, NULL };
    http->daemon = MHD_start_daemon(flags, 0, NULL, NULL, qn_request_handle, http, MHD_OPTION_EXTERNAL_LOGGER, hear,
                                    http, MHD_OPTION_ARRAY, options, MHD_OPTION_END);
    return http->daemon ? QN_OK : qn_fail(QN_ERR_IO, "%s: the server cannot be started", http->url);
}

static bool watch(const qn_http *http, int fd, void *data)
{
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = data };
    return fd >= 0 && !epoll_ctl(http->epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

static qn_status create_events(qn_http *http)
{
    static const struct itimerspec ticks = { .it_interval.tv_nsec = TICK_NANOSECONDS,
                                             .it_value.tv_nsec = TICK_NANOSECONDS };
    http->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    http->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    http->control_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (http->epoll_fd < 0 || http->timer_fd < 0 || http->control_fd < 0 ||
        timerfd_settime(http->timer_fd, 0, &ticks, NULL))
        return qn_fail(QN_ERR_IO, "cannot watch the server's events: %s", strerror(errno));
    return QN_OK;
}

static qn_status watch_all(qn_http *http)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    if (info && watch(http, info->epoll_fd, NULL) && watch(http, http->outbox.event_fd, &http->outbox) &&
        watch(http, http->timer_fd, &http->timer_fd) && watch(http, http->control_fd, &http->control_fd))
        return QN_OK;
    return qn_fail(QN_ERR_IO, "cannot watch the server's events: %s", strerror(errno));
}

/* Listens. QN_ERR_INVALID if other machines could use the server and nothing says that they may. */
static qn_status open_socket(qn_http *http)
{
    const qn_server_params *params = &http->params;
    qn_listener listener;
    QN_TRY(qn_listen(params->host, params->port, &listener));
    http->listen_fd = listener.fd;
    http->is_loopback = qn_guard_is_loopback((const struct sockaddr *)&listener.address);
    snprintf(http->url, sizeof http->url, "%s://%s", params->tls_cert ? "https" : "http", listener.authority);
    if (http->is_loopback || params->keys || params->allows_anyone)
        return QN_OK;
    return qn_fail(QN_ERR_INVALID,
                   "--host %s: other machines could use the server; give it keys with --api-key-file, or say "
                   "--allow-unauthenticated",
                   params->host);
}

/* Creates all but registry and outbox, and starts the threads. After an error qn_server_free frees what there is. */
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
    QN_TRY(create_events(http));
    QN_TRY(open_socket(http));
    fit_descriptors(http);
    QN_TRY(qn_workers_create(http->params.n_workers, &http->workers));
    QN_TRY(start_daemon(http));
    http->listen_fd = -1; /* libmicrohttpd owns it now */
    QN_TRY(watch_all(http));
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
    http->listen_fd = http->epoll_fd = http->timer_fd = http->control_fd = -1;
    qn_status status = qn_registry_init(&http->registry);
    if (status) {
        free(server);
        return status;
    }
    status = qn_outbox_init(&http->outbox);
    if (status) {
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

static void close_fd(int fd)
{
    if (fd >= 0)
        close(fd);
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
    close_fd(http->listen_fd);
    close_fd(http->timer_fd);
    close_fd(http->control_fd);
    close_fd(http->epoll_fd);
    qn_tls_free(http->tls);
    qn_metrics_free(http->metrics);
    qn_registry_free(&http->registry);
    qn_outbox_free(&http->outbox);
    qn_budget_free(http->budget);
    free(server);
}
