/* Requests to the hub by libcurl. TLS certificates are always verified. The token goes to the hub's own address alone: over
 * TLS, or to this machine. A redirect never leads from https to http. */
#ifndef QN_HUB_HTTP_H
#define QN_HUB_HTTP_H

#include "hub/header.h"
#include "hub/hub.h"
#include "hub/settings.h"

#include <stddef.h>

typedef struct qn_hub_http qn_hub_http;

typedef struct qn_hub_request {
    const char *repo; /* for error texts */
    const char *what; /* the same: the repository, or a file of it */
    char *url;
    bool head;     /* no body; a redirect is not followed from an answer that has X-Linked-Etag */
    uint64_t from; /* the first byte of the body: not 0 makes a range */
    /* For status 200 and 206: the headers, then pieces of the body. Not QN_OK ends the request with that status. */
    qn_status (*on_headers)(void *user, const qn_hub_response *response);
    qn_status (*on_body)(void *user, const void *data, size_t size);
    void *user;
    qn_hub_progress progress; /* what params->on_progress gets meanwhile; the user of the callbacks may change it */
} qn_hub_request;

/* qn_hub_http_create - `settings` and `params` outlive it. Free with qn_hub_http_free. */
qn_status qn_hub_http_create(const qn_hub_settings *settings, const qn_hub_params *params, qn_hub_http **http);
void qn_hub_http_free(qn_hub_http *http);

/* qn_hub_http_url - ENDPOINT/BEFORE/AFTER with the characters of AFTER encoded, but for '/'; and `rest` as it is. NULL without
 * memory. */
char *qn_hub_http_url(const qn_hub_http *http, const char *before, const char *after, const char *rest);

/* qn_hub_http_is_loopback - whether a URL's host is this machine: requests to it go through no proxy. */
bool qn_hub_http_is_loopback(const char *url);

/* qn_hub_http_get - one request, and again after failures that may pass, as long as *failures is less than 5; it counts them,
 * and whoever sees progress sets it to 0.
 *
 *   again   NULL: repeat here. Else nothing is repeated; true if the caller may do so, and the wait before is over
 *
 * QN_OK for status 200, 206 and 416, and for redirects that are not followed; other answers are errors that say what to do. */
qn_status qn_hub_http_get(qn_hub_http *http, qn_hub_request *request, qn_hub_response *response, unsigned *failures,
                          bool *again);

/* qn_hub_wait - wait so many seconds; QN_ERR_CANCELLED by params->on_progress. */
qn_status qn_hub_wait(const qn_hub_params *params, double seconds);

/* qn_hub_log - a formatted line to params->on_log. */
void qn_hub_log(const qn_hub_params *params, const char *format, ...) QN_PRINTF(2, 3);

#endif
