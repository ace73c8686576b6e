/* What paths lead to. A table, in which a path is a whole one, or ends with a star: all below it. */
#ifndef QN_SERVE_ROUTE_H
#define QN_SERVE_ROUTE_H

#include "protocol/protocol.h"

typedef struct qn_http qn_http;

/* What a GET request gets. */
typedef struct qn_page {
    const char *model; /* of the query, "?model=NAME"; NULL: none */
    int status;
    const char *type;  /* a static string */
    qn_bytes body;     /* or: */
    const void *bytes; /* [length] static, in place of `body` */
    size_t length;
    const char *policy; /* Content-Security-Policy, static; NULL: none */
    const char *etag;   /* static; NULL: none */
} qn_page;

typedef struct qn_route {
    const char *path;
    const char *allow;                                               /* methods of Allow: "GET, HEAD, OPTIONS" */
    enum { QN_ROUTE_KEYS, QN_ROUTE_OPEN, QN_ROUTE_OPERATORS } whose; /* OPEN: without a key; OPERATORS: qn_key.is_operators */
    /* One of these. Pages are made by the I/O thread: they do not wait. `rest` is what the star of
     * the path stands for. False: refused. */
    bool (*page)(qn_http *http, const char *rest, qn_page *page, qn_refusal *refusal);
    const qn_protocol *protocol; /* of POST requests */
    const char *missing;         /* what is not there: 501, with this text */
} qn_route;

/* qn_route_find - the route of a path; NULL: none. qn_route_index - its index of qn_route_names. */
const qn_route *qn_route_find(const char *path);
size_t qn_route_index(const qn_route *route);

/* qn_routes_init - before all others: the table of all protocols and pages. Threads: once. */
qn_status qn_routes_init(void);

/* qn_route_names - the names of routes, for metrics; the number of them. */
size_t qn_route_names(const char *const **names);

#endif
