/* One libcurl handle. Redirects are followed here, so that each target is checked. */
#include "hub/http.h"

#include "base/append.h"
#include "base/certificates.h"
#include "base/memory.h"
#include "base/strings.h"
#include "quern/quern.h"

#include <curl/curl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum { MAX_REDIRECTS = 5, MAX_FAILURES = 5, LONGEST_WAIT = 300, CONNECT_TIMEOUT = 30, MAX_IGNORED = 1 << 20 };

struct qn_hub_http {
    const qn_hub_settings *settings;
    const qn_hub_params *params;
    CURL *curl;
    char *authorization; /* the header line, or NULL */
    char error[CURL_ERROR_SIZE];
    /* The current request. */
    qn_hub_request *request;
    qn_hub_response *response;
    qn_status status; /* status of the callbacks, which set the error text */
    bool has_begun;   /* on_headers was called */
    size_t ignored;   /* bytes of a body that is not the requested content */
};

/* ---- Waiting and logging ---- */

qn_status qn_hub_wait(const qn_hub_params *params, double seconds)
{
    const qn_hub_progress progress = { 0 };
    for (double left = seconds; left > 0; left -= 0.1) {
        const struct timespec slice = { .tv_nsec = left < 0.1 ? (long)(left * 1e9) : 100000000 };
        if (params->on_progress && !params->on_progress(params->user, &progress))
            return qn_fail(QN_ERR_CANCELLED, "the download was cancelled");
        nanosleep(&slice, NULL);
    }
    return QN_OK;
}

void qn_hub_log(const qn_hub_params *params, const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (params->on_log)
        params->on_log(params->user, line);
}

/* ---- Addresses ---- */

struct address {
    char *scheme, *host, *port;
};

static void free_address(struct address *a)
{
    curl_free(a->scheme);
    curl_free(a->host);
    curl_free(a->port);
}

static bool parse_address(const char *url, struct address *a)
{
    CURLU *u = curl_url();
    *a = (struct address){ 0 };
    const bool ok = u && !curl_url_set(u, CURLUPART_URL, url, 0) && !curl_url_get(u, CURLUPART_SCHEME, &a->scheme, 0) &&
                    !curl_url_get(u, CURLUPART_HOST, &a->host, 0) &&
                    !curl_url_get(u, CURLUPART_PORT, &a->port, CURLU_DEFAULT_PORT);
    curl_url_cleanup(u);
    return ok;
}

static bool is_loopback(const char *host)
{
    unsigned a, b, c, d;
    int end = 0;
    return strcasecmp(host, "localhost") == 0 || strcmp(host, "[::1]") == 0 ||
           (sscanf(host, "%3u.%3u.%3u.%3u%n", &a, &b, &c, &d, &end) == 4 && host[end] == '\0' && a == 127);
}

bool qn_hub_http_is_loopback(const char *url)
{
    struct address a;
    const bool loopback = parse_address(url, &a) && is_loopback(a.host);
    free_address(&a);
    return loopback;
}

static bool is_same(const struct address *a, const struct address *b)
{
    return strcasecmp(a->scheme, b->scheme) == 0 && strcasecmp(a->host, b->host) == 0 && strcmp(a->port, b->port) == 0;
}

char *qn_hub_http_url(const qn_hub_http *http, const char *before, const char *after, const char *rest)
{
    const size_t size = 3 * strlen(after) + 1;
    char *encoded = malloc(size), *url = NULL;
    qn_text_buffer to = qn_append_to(encoded, encoded ? size : 0);
    for (const char *c = after; *c; c++) {
        const bool plain =
            (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || strchr("-._~/", *c);
        qn_append(&to, plain ? "%c" : "%%%02X", (unsigned char)*c);
    }
    if (!to.is_cut && asprintf(&url, "%s/%s%s%s", http->settings->endpoint, before, encoded, rest) < 0)
        url = NULL;
    free(encoded);
    if (!url)
        (void)qn_fail(QN_ERR_MEMORY, "no memory for the address of a file");
    return url;
}

/* ---- Callbacks of libcurl ---- */

static size_t on_header(char *line, size_t size, size_t count, void *user)
{
    qn_hub_http *http = user;
    qn_hub_header(http->response, line, size * count);
    return size * count;
}

static void read_status(qn_hub_http *http)
{
    long status = 0;
    curl_off_t length = -1, wait = 0;
    curl_easy_getinfo(http->curl, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(http->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    curl_easy_getinfo(http->curl, CURLINFO_RETRY_AFTER, &wait);
    http->response->status = (int)status;
    http->response->length = length;
    http->response->retry_after = wait > INT32_MAX ? INT32_MAX : (long)wait;
}

static bool has_content(const qn_hub_response *response)
{
    return response->status == 200 || response->status == 206;
}

/* Calls on_headers, once. */
static void begin_body(qn_hub_http *http)
{
    if (http->has_begun)
        return;
    http->has_begun = true;
    read_status(http);
    if (has_content(http->response) && http->request->on_headers)
        http->status = http->request->on_headers(http->request->user, http->response);
}

static size_t on_data(char *data, size_t size, size_t count, void *user)
{
    qn_hub_http *http = user;
    const size_t length = size * count;
    begin_body(http);
    if (!has_content(http->response)) {
        http->ignored += length;
        return http->ignored <= MAX_IGNORED ? length : 0;
    }
    if (!http->status && http->request->on_body)
        http->status = http->request->on_body(http->request->user, data, length);
    return http->status ? 0 : length;
}

static int on_transfer(void *user, curl_off_t total, curl_off_t now, curl_off_t total_up, curl_off_t now_up)
{
    qn_hub_http *http = user;
    const qn_hub_params *params = http->params;
    (void)total, (void)now, (void)total_up, (void)now_up;
    if (!http->status && params->on_progress && !params->on_progress(params->user, &http->request->progress))
        http->status = qn_fail(QN_ERR_CANCELLED, "%s: the download was cancelled", http->request->what);
    return http->status != QN_OK;
}

/* ---- The handle ---- */

/* The file of certificates to trust: that of SSL_CERT_FILE, else the system's if libcurl does not know where it is;
 * NULL if libcurl knows. */
static const char *find_certificates(void)
{
    const char *chosen = getenv("SSL_CERT_FILE");
    if (chosen && *chosen)
        return chosen;
    const curl_version_info_data *libcurl = curl_version_info(CURLVERSION_NOW);
    return libcurl->cainfo || libcurl->capath ? NULL : qn_system_certificates();
}

bool qn_hub_http_trust(void *curl)
{
    const char *certificates = find_certificates();
    /* Windows asks for lists of revoked certificates; a certificate that names none is not refused. */
    return (!certificates || !curl_easy_setopt(curl, CURLOPT_CAINFO, certificates)) &&
           !curl_easy_setopt(curl, CURLOPT_SSL_OPTIONS, (long)CURLSSLOPT_REVOKE_BEST_EFFORT);
}

static bool set_options(qn_hub_http *http)
{
    CURL *c = http->curl;
    char agent[64];
    snprintf(agent, sizeof agent, "quern/%s", qn_version());
    return !curl_easy_setopt(c, CURLOPT_ERRORBUFFER, http->error) && !curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L) &&
           !curl_easy_setopt(c, CURLOPT_USERAGENT, agent) &&
           !curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "https,http") &&
           !curl_easy_setopt(c, CURLOPT_SSL_VERIFYPEER, 1L) && !curl_easy_setopt(c, CURLOPT_SSL_VERIFYHOST, 2L) &&
           qn_hub_http_trust(c) && !curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L) &&
           !curl_easy_setopt(c, CURLOPT_BUFFERSIZE, 512L << 10) &&
           !curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_TIMEOUT) &&
           !curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L) &&
           !curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, http->settings->timeout) &&
           !curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header) && !curl_easy_setopt(c, CURLOPT_HEADERDATA, http) &&
           !curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_data) && !curl_easy_setopt(c, CURLOPT_WRITEDATA, http) &&
           !curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_transfer) &&
           !curl_easy_setopt(c, CURLOPT_XFERINFODATA, http) && !curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
}

/* Whether the token may be sent to the endpoint. */
static bool may_send_token(const qn_hub_settings *settings)
{
    struct address a;
    const bool may =
        parse_address(settings->endpoint, &a) && (strcasecmp(a.scheme, "https") == 0 || is_loopback(a.host));
    free_address(&a);
    return may;
}

qn_status qn_hub_http_create(const qn_hub_settings *settings, const qn_hub_params *params, qn_hub_http **out)
{
    *out = NULL;
    qn_hub_http *http;
    if (curl_global_init(CURL_GLOBAL_DEFAULT))
        return qn_fail(QN_ERR_UNSUPPORTED, "libcurl cannot be initialised");
    QN_TRY(qn_alloc(&http, 1, sizeof *http, "requests to the hub"));
    http->settings = settings;
    http->params = params;
    http->curl = curl_easy_init();
    bool ok = http->curl && set_options(http);
    if (ok && settings->token && !may_send_token(settings))
        qn_hub_log(params, "the token is not sent to %s, which is neither https nor this machine", settings->endpoint);
    else if (ok && settings->token)
        ok = asprintf(&http->authorization, "Authorization: Bearer %s", settings->token) >= 0;
    if (!ok) {
        http->authorization = NULL;
        qn_hub_http_free(http);
        return qn_fail(QN_ERR_UNSUPPORTED, "libcurl: %s lacks a feature that quern needs, or memory is short",
                       curl_version());
    }
    *out = http;
    return QN_OK;
}

void qn_hub_http_free(qn_hub_http *http)
{
    if (!http)
        return;
    if (http->authorization)
        qn_wipe(http->authorization, strlen(http->authorization));
    free(http->authorization);
    curl_easy_cleanup(http->curl);
    qn_free(http);
}

/* ---- One request ---- */

/* Sets the options that depend on the address: the token, and no proxy for this machine. */
static qn_status aim(qn_hub_http *http, const char *url, struct curl_slist **headers)
{
    struct address to, hub;
    const bool ok = parse_address(url, &to), known = parse_address(http->settings->endpoint, &hub);
    const bool own = ok && known && is_same(&to, &hub), loopback = ok && is_loopback(to.host);
    char range[64];
    *headers = NULL;
    free_address(&to);
    free_address(&hub);
    if (!ok)
        return qn_fail(QN_ERR_FORMAT, "%s: '%.200s' is not an address", http->request->what, url);
    snprintf(range, sizeof range, "%" PRIu64 "-", http->request->from);
    bool set = !curl_easy_setopt(http->curl, CURLOPT_URL, url) &&
               !curl_easy_setopt(http->curl, CURLOPT_NOPROXY, loopback ? "*" : NULL) &&
               !curl_easy_setopt(http->curl, CURLOPT_NOBODY, (long)http->request->head) &&
               (http->request->head || !curl_easy_setopt(http->curl, CURLOPT_HTTPGET, 1L)) &&
               !curl_easy_setopt(http->curl, CURLOPT_RANGE, http->request->from ? range : NULL);
    *headers = curl_slist_append(NULL, "Accept-Encoding: identity");
    if (set && own && http->authorization && *headers) {
        struct curl_slist *longer = curl_slist_append(*headers, http->authorization);
        set = longer != NULL;
    }
    set = set && *headers && !curl_easy_setopt(http->curl, CURLOPT_HTTPHEADER, *headers);
    return set ? QN_OK : qn_fail(QN_ERR_MEMORY, "%s: no memory for a request", http->request->what);
}

static bool is_transient(CURLcode code)
{
    switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM: return true;
    default: return false;
    }
}

/* Makes one request without redirects. *transient: the failure may be temporary. */
static qn_status perform_once(qn_hub_http *http, const char *url, bool *transient)
{
    char commit[QN_HUB_HEADER_SIZE];
    struct curl_slist *headers;
    strcpy(commit, http->response->commit);
    *http->response = (qn_hub_response){ .length = -1 };
    strcpy(http->response->commit, commit);
    http->status = QN_OK;
    http->has_begun = false;
    http->ignored = 0;
    http->error[0] = '\0';
    qn_status status = aim(http, url, &headers);
    if (!status) {
        const CURLcode code = curl_easy_perform(http->curl);
        if (code == CURLE_OK)
            begin_body(http); /* the body is empty */
        else
            read_status(http);
        status = http->status;
        if (!status && code != CURLE_OK && http->ignored <= MAX_IGNORED) {
            *transient = is_transient(code);
            status = qn_fail(QN_ERR_IO, "%s: %s", http->request->what,
                             *http->error ? http->error : curl_easy_strerror(code));
        }
    }
    curl_easy_setopt(http->curl, CURLOPT_HTTPHEADER, NULL);
    curl_slist_free_all(headers);
    return status;
}

/* Finds the target of a redirect, which the caller frees; NULL, without an error, if the answer is not a redirect. */
static qn_status redirect_target(const qn_hub_http *http, const char *from, char **to)
{
    const int status = http->response->status;
    char *location = NULL;
    *to = NULL;
    if (status != 301 && status != 302 && status != 303 && status != 307 && status != 308)
        return QN_OK;
    if (http->request->head && *http->response->linked_etag)
        return QN_OK;
    curl_easy_getinfo(http->curl, CURLINFO_REDIRECT_URL, &location); /* made absolute by libcurl */
    if (!location)
        return qn_fail(QN_ERR_FORMAT, "%s: a redirect (%d) without a usable address", http->request->what, status);
    if (strncasecmp(from, "https:", 6) == 0 && strncasecmp(location, "https:", 6) != 0)
        return qn_fail(QN_ERR_FORMAT, "%s: a redirect from https to '%.100s' is not followed", http->request->what,
                       location);
    *to = strdup(location);
    return *to ? QN_OK : qn_fail(QN_ERR_MEMORY, "%s: no memory for an address", http->request->what);
}

static qn_status perform(qn_hub_http *http, bool *transient)
{
    char *url = strdup(http->request->url);
    qn_status status = url ? QN_OK : qn_fail(QN_ERR_MEMORY, "%s: no memory for an address", http->request->what);
    http->response->commit[0] = '\0';
    for (int n = 0; !status; n++) {
        char *next = NULL;
        status = perform_once(http, url, transient);
        if (!status)
            status = redirect_target(http, url, &next);
        free(url);
        url = next;
        if (!next)
            break;
        if (n == MAX_REDIRECTS)
            status = qn_fail(QN_ERR_FORMAT, "%s: more than %d redirects", http->request->what, MAX_REDIRECTS);
    }
    free(url);
    return status;
}

/* ---- Answers and repetition ---- */

/* Sets the error of an answer without the requested content. */
static qn_status refuse(const qn_hub_http *http)
{
    const qn_hub_response *r = http->response;
    const char *what = http->request->what, *message = r->error_message, *colon = *message ? ": " : "";
    const bool gated = strcmp(r->error_code, "GatedRepo") == 0;
    const char *endpoint = http->settings->endpoint;
    if (gated || r->status == 403)
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "%s: the hub refuses access (%d): %s the conditions on %s/%s in a browser, and set HF_TOKEN to "
                       "a token of that account%s%s",
                       what, r->status, gated ? "the model is gated; accept" : "where the model is gated, accept",
                       endpoint, http->request->repo, colon, message);
    if (r->status == 401 && http->authorization)
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "%s: the hub does not accept the token (401); set HF_TOKEN to a valid one%s%s", what, colon,
                       message);
    if (r->status == 401)
        return qn_fail(
            QN_ERR_UNSUPPORTED,
            "%s: the hub requires a token (401): there is no such repository, or it is private; then set HF_TOKEN%s%s",
            what, colon, message);
    if (r->status == 404)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: not found on %s (404)%s%s", what, endpoint, colon, message);
    if (r->status == 429 && r->retry_after > LONGEST_WAIT)
        return qn_fail(
            QN_ERR_IO,
            "%s: too many requests (429); the hub requires a wait of %ld s, quern waits %d s at most: try again later",
            what, r->retry_after, LONGEST_WAIT);
    return qn_fail(QN_ERR_IO, "%s: %s answered with status %d%s%s", what, endpoint, r->status, colon, message);
}

static bool is_accepted(const qn_hub_http *http)
{
    const int status = http->response->status;
    return status == 200 || status == 206 || status == 416 || (http->request->head && status >= 300 && status < 400);
}

/* Whether a repeated request may succeed. */
static bool may_pass(const qn_hub_response *r)
{
    return r->status == 408 || r->status >= 500 || (r->status == 429 && r->retry_after <= LONGEST_WAIT);
}

qn_status qn_hub_http_get(qn_hub_http *http, qn_hub_request *request, qn_hub_response *response, unsigned *failures,
                          bool *again)
{
    http->request = request;
    http->response = response;
    if (again)
        *again = false;
    for (;;) {
        bool transient = false;
        qn_status status = perform(http, &transient);
        if (!status && is_accepted(http))
            return QN_OK;
        if (!status) {
            transient = may_pass(response);
            status = refuse(http);
        }
        if (!transient || ++*failures >= MAX_FAILURES)
            return status;
        const double seconds = response->retry_after > 0 && response->retry_after <= LONGEST_WAIT
                                   ? (double)response->retry_after
                                   : 0.5 * (1 << *failures);
        qn_hub_log(http->params, "%s; again in %.0f s", qn_error_text(), seconds);
        QN_TRY(qn_hub_wait(http->params, seconds));
        if (again) {
            *again = true;
            return status;
        }
    }
}
