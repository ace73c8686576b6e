/* The table of routes. A path is exact, or ends with a star that stands for everything below it. */
#ifndef QN_SERVE_ROUTE_H
#define QN_SERVE_ROUTE_H

#include "protocol/protocol.h"

typedef struct qn_http qn_http;

/* The resource that a GET request receives. */
typedef struct qn_resource {
    const char *model; /* from the query "?model=NAME"; NULL: none */
    const char *query; /* from the query "?fail_on_no_slot=N"; NULL: none */
    /* Whose requests the client may see in detail: those of this name of clients; NULL: all. */
    const char *client;
    int status;
    const char *type;  /* a static string */
    qn_bytes body;     /* or `bytes` */
    const void *bytes; /* [length] static, used instead of `body` */
    size_t length;
    const char *policy;   /* Content-Security-Policy, static; NULL: none */
    const char *etag;     /* static; NULL: none */
    const char *encoding; /* Content-Encoding of `bytes`, static; NULL: none */
    bool accepts_gzip;    /* set by the caller: the client accepts it */
    bool varies;          /* another client may get another encoding */
} qn_resource;

typedef struct qn_route {
    const char *path;
    const char *allow; /* for the Allow header: "GET, HEAD, OPTIONS" */
    /* QN_ROUTE_OPEN: without a key; QN_ROUTE_OPERATORS: qn_key.is_operators */
    enum { QN_ROUTE_KEYS, QN_ROUTE_OPEN, QN_ROUTE_OPERATORS } whose;
    /* One of the following three. `get` answers GET on the I/O thread, so it must not wait; `rest` is the text that
     * the star stands for. False: refused. */
    bool (*get)(qn_http *http, const char *rest, qn_resource *resource, qn_refusal *refusal);
    const qn_protocol *protocol; /* answers POST */
    const char *missing;         /* not implemented: 501, with this text */
} qn_route;

/* qn_route_find - the route of a path. NULL: there is none. */
const qn_route *qn_route_find(const char *path);

/* qn_route_index - the index of a route in qn_route_names. */
size_t qn_route_index(const qn_route *route);

/* qn_routes_init - fill the table with the routes of all protocols and of the server; call it once, before the
 * others. */
qn_status qn_routes_init(void);

/* Members `get`. The resources of llama-server's clients, and vLLM's /tokenizer_info. In resources_llama.c. */
bool qn_get_health(qn_http *http, const char *rest, qn_resource *resource, qn_refusal *refusal);
bool qn_get_props(qn_http *http, const char *rest, qn_resource *resource, qn_refusal *refusal);
bool qn_get_slots(qn_http *http, const char *rest, qn_resource *resource, qn_refusal *refusal);
bool qn_get_tokenizer(qn_http *http, const char *rest, qn_resource *resource, qn_refusal *refusal);

/* Ollama's resources. In resources_ollama.c. */
bool qn_get_ollama_tags(qn_http *http, const char *rest, qn_resource *resource, qn_refusal *refusal);
bool qn_get_ollama_running(qn_http *http, const char *rest, qn_resource *resource, qn_refusal *refusal);
bool qn_get_ollama_version(qn_http *http, const char *rest, qn_resource *resource, qn_refusal *refusal);

/* qn_route_names - the names of the routes, for metrics. Returns their number. */
size_t qn_route_names(const char *const **names);

#endif
