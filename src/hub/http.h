/* Requests to the hub, by libcurl. TLS certificates are always verified. The token is sent only to the hub's own
 * address, and only over TLS or to this machine. A redirect from https to http is refused. A client is used by one
 * thread at a time, and callbacks come on that thread. */
#ifndef QN_HUB_HTTP_H
#define QN_HUB_HTTP_H

#include "hub/header.h"
#include "hub/hub.h"
#include "hub/settings.h"

#include <stddef.h>

typedef struct qn_hub_http qn_hub_http;

typedef struct qn_hub_request {
    const char *repo; /* for error texts */
    const char *what; /* for error texts: the repository, or a file of it */
    char *url;
    bool head;     /* no body; a redirect is not followed if the answer has X-Linked-Etag */
    uint64_t from; /* first byte of the body; 0: the whole file, otherwise a range is requested */
    /* For status 200 and 206: called with the headers, then with pieces of the body. A status other than QN_OK ends
     * the request with that status. */
    qn_status (*on_headers)(void *user, const qn_hub_response *response);
    qn_status (*on_body)(void *user, const void *data, size_t size);
    void *user;
    qn_hub_progress progress; /* passed to params->on_progress meanwhile; the callbacks may change it */
} qn_hub_request;

/* qn_hub_http_create - creates a client. `settings` and `params` must outlive it. Free it with qn_hub_http_free. */
qn_status qn_hub_http_create(const qn_hub_settings *settings, const qn_hub_params *params, qn_hub_http **http);
void qn_hub_http_free(qn_hub_http *http);

/* qn_hub_http_url - ENDPOINT/BEFORE/AFTER, with the characters of AFTER percent-encoded except '/', followed by
 * `rest` unchanged. free() it. NULL without memory. */
char *qn_hub_http_url(const qn_hub_http *http, const char *before, const char *after, const char *rest);

/* qn_hub_http_is_loopback - whether a URL's host is this machine: requests to it use no proxy. */
bool qn_hub_http_is_loopback(const char *url);

/* qn_hub_http_trust - sets which certificates a handle of libcurl trusts: those of SSL_CERT_FILE, else the system's.
 * False if libcurl refuses. */
bool qn_hub_http_trust(void *curl);

/* qn_hub_http_get - makes a request, and repeats it after transient failures while *failures is less than 5. It counts
 * the failures; the caller resets *failures when it sees progress.
 *
 *   again   NULL: repeat in this call. Otherwise nothing is repeated here: it is set to true, after the waiting time,
 *           if the caller may repeat the request
 *
 * QN_OK for status 200, 206 and 416, and for redirects that are not followed. Other answers are errors that say what
 * to do. */
qn_status qn_hub_http_get(qn_hub_http *http, qn_hub_request *request, qn_hub_response *response, unsigned *failures,
                          bool *again);

/* qn_hub_wait - waits for a number of seconds. QN_ERR_CANCELLED if params->on_progress cancels. */
qn_status qn_hub_wait(const qn_hub_params *params, double seconds);

/* qn_hub_log - formats a line and passes it to params->on_log. */
void qn_hub_log(const qn_hub_params *params, const char *format, ...) QN_PRINTF(2, 3);

#endif
