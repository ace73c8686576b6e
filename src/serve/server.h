/* The server: HTTP for the protocols, over the schedulers of models.
 *
 *     qn_server_create(&params, &server)       listens; answers 503 until it has a model
 *     qn_server_add(server, &model)            or qn_server_add_files: the server is ready
 *     qn_server_wait(server)                   until qn_server_stop was called and requests have ended
 *     free the models' schedulers, then qn_server_free(server)
 *
 * Threads: one thread does all input and output and alone calls libmicrohttpd; params->n_workers threads read
 * bodies. */
#ifndef QN_SERVE_SERVER_H
#define QN_SERVE_SERVER_H

#include "http/access_log.h"
#include "http/keys.h"
#include "serve/registry.h"

typedef struct qn_server qn_server;

typedef struct qn_server_params {
    const char *host;               /* a name or an address */
    uint16_t port;                  /* 0: any free port */
    const char *tls_cert, *tls_key; /* files in PEM; NULL: no TLS */
    qn_keys *keys;                  /* NULL: requests need no key */
    bool allows_anyone;             /* without keys, also from other machines */
    /* [n_hosts] names that Host headers may have besides localhost and `host`. Their pages may come by http and https,
     * as a proxy that speaks TLS may stand before the server. */
    const char *const *hosts;
    size_t n_hosts;
    const char *const *origins; /* [n_origins] origins whose pages may use the server; "*": any */
    size_t n_origins;
    size_t max_header, max_body; /* bytes */
    size_t max_connections;
    size_t max_per_address; /* connections; addresses of this machine: at least half of max_connections */
    /* Limits in seconds. header: from a request's first byte, or its connection's start, to the end of the headers;
     * body: from there to the end of the body; idle: between requests; drain: for requests after qn_server_stop. */
    double header_seconds, body_seconds, idle_seconds, drain_seconds;
    size_t n_workers;
    bool shares_prefixes; /* between API keys */
    bool no_page;         /* do not serve the chat page */
    bool no_slots;        /* /slots is refused */
    bool has_seed;        /* bodies without a seed use `seed`, else random numbers */
    uint64_t seed;
    qn_access_log *log;             /* NULL: none */
    void (*note)(const char *text); /* reports to the operator; called by the I/O thread */
} qn_server_params;

/* qn_server_create - listen, and start the threads. Params are copied; the objects they point to outlive the server.
 *
 * QN_ERR_INVALID   the host is unknown or not of this machine; other machines could reach the server without keys and
 *                  without allows_anyone; a certificate and a key do not match
 * QN_ERR_IO        the port is taken, or a file cannot be read */
qn_status qn_server_create(const qn_server_params *params, qn_server **out);

/* qn_server_url - the server's URL, as "http://127.0.0.1:8080". */
const char *qn_server_url(const qn_server *server);

/* qn_server_add - serve a loaded model; creates its metrics and recall. */
qn_status qn_server_add(qn_server *server, const qn_registered *model);

/* qn_server_add_files - serve the models of a loader's files. Calls its `scan` now, whenever the server is told to
 * reload, after a failed load, and, at most every scan_seconds, when models are listed or a name is unknown. The models
 * are freed with the server. */
qn_status qn_server_add_files(qn_server *server, const qn_registry_loader *loader);

/* qn_server_stop - accept no more connections; the server ends with its last request, or after drain_seconds. Returns
 * at once; signal handlers may call it. */
void qn_server_stop(qn_server *server);

/* qn_server_reload - read keys and certificates again, reopen the access log, and scan the loader's files again.
 * Returns at once; signal handlers may call it. */
void qn_server_reload(qn_server *server);

/* qn_server_wait - wait until the server has stopped. */
void qn_server_wait(qn_server *server);

/* qn_server_free - stop the server unless it was, ending its requests, and free it. NULL is allowed. */
void qn_server_free(qn_server *server);

#endif
