/* The server: HTTP for the protocols, over the schedulers of models.
 *
 *     qn_server_create(&params, &server)       it listens, and answers 503 as long as it has no model
 *     qn_server_add(server, &model)            it is ready; or qn_server_add_files
 *     qn_server_wait(server)                   until qn_server_stop, and what follows it
 *     free the models' schedulers, then qn_server_free(server)
 *
 * Threads: one does all input and output, and alone calls libmicrohttpd; params->n_workers read bodies. */
#ifndef QN_SERVE_SERVER_H
#define QN_SERVE_SERVER_H

#include "http/access_log.h"
#include "http/keys.h"
#include "serve/registry.h"

typedef struct qn_server qn_server;

typedef struct qn_server_params {
    const char *host;               /* a name or an address */
    uint16_t port;                  /* 0: any that is free */
    const char *tls_cert, *tls_key; /* files in PEM; NULL: no TLS */
    qn_keys *keys;                  /* NULL: none are needed */
    bool allows_anyone;             /* to be reached from other machines without keys */
    /* [n_hosts] names besides localhost and `host` that a Host header may have. Pages of them may come by http and https: a proxy
     * that speaks TLS may stand before the server. */
    const char *const *hosts;
    size_t n_hosts;
    const char *const *origins; /* [n_origins] whose pages may use the server; "*": any */
    size_t n_origins;
    size_t max_header, max_body; /* bytes */
    size_t max_connections;
    size_t max_per_address; /* connections; of this machine at least half of max_connections */
    /* Seconds: from the first byte of a request, or from the beginning of a connection, to the end of the headers; from there
     * to the end of the body; between requests; of requests after qn_server_stop. */
    double header_seconds, body_seconds, idle_seconds, drain_seconds;
    size_t n_workers;
    bool shares_prefixes; /* between keys */
    bool no_page;         /* the chat page is not served */
    bool has_seed;        /* of bodies without one: seed, else random numbers */
    uint64_t seed;
    qn_access_log *log;             /* NULL: none */
    void (*note)(const char *text); /* what someone should know; called by the I/O thread */
} qn_server_params;

/* qn_server_create - listen, and start the threads. Params are copied, what they point to outlives the server.
 *
 * QN_ERR_INVALID   the host is not of this machine or not known, or can be reached from others without keys or allows_anyone;
 *                  a certificate and a key do not fit
 * QN_ERR_IO        the port is taken, or a file cannot be read */
qn_status qn_server_create(const qn_server_params *params, qn_server **out);

/* qn_server_url - "http://127.0.0.1:8080". */
const char *qn_server_url(const qn_server *server);

/* qn_server_add - serve a loaded model; its metrics and recall are created. */
qn_status qn_server_add(qn_server *server, const qn_registered *model);

/* qn_server_add_files - serve the models of a loader's files, which it adds with `scan`, at once and whenever the server is told
 * to reload. They are freed with the server. */
qn_status qn_server_add_files(qn_server *server, const qn_registry_loader *loader);

/* qn_server_stop - accept no connections; end after all requests, or after the seconds of draining. qn_server_reload - read keys
 * and certificates again, and open the log again. Both return at once, and may be called by signal handlers. */
void qn_server_stop(qn_server *server);
void qn_server_reload(qn_server *server);

/* qn_server_wait - until the server has stopped. qn_server_free - free it; one that was never stopped ends its requests first.
 * NULL is allowed. */
void qn_server_wait(qn_server *server);
void qn_server_free(qn_server *server);

#endif
