/* Requests: which are accepted, their bodies and their answers. A refusal waits until the body was read, so that a
 * client that is still sending reads the refusal. */
#include "serve/http.h"

#include "base/append.h"
#include "base/random.h"
#include "http/clock.h"
#include "http/framing.h"
#include "http/guard.h"
#include "protocol/json_body.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Begin and end ---- */

void qn_request_make_id(char id[QN_HTTP_ID_BYTES])
{
    unsigned char random[16] = { 0 };
    (void)qn_random_bytes(random, sizeof random); /* ids are names, not secrets */
    qn_text_buffer text = qn_append_to(id, QN_HTTP_ID_BYTES);
    qn_append_hex(&text, random, sizeof random);
}

void *qn_request_begin(void *http, const char *uri, struct MHD_Connection *mhd)
{
    qn_connection *c = qn_connection_of(mhd);
    if (c)
        qn_request_lose(c);
    qn_http_request *r = c ? calloc(1, sizeof *r) : NULL;
    if (!r)
        return NULL;
    r->http = http;
    r->connection = c;
    snprintf(r->address, sizeof r->address, "%s", c->address_text);
    r->started = qn_now();
    r->time = qn_time();
    qn_request_make_id(r->id);
    r->target = uri ? uri : "";
    r->n_target = strlen(r->target);
    r->why_invalid = qn_framing_target(r->target, r->n_target);
    if (!qn_guard_path(r->target, r->path, sizeof r->path))
        *r->path = 0;
    r->route = qn_route_find(r->path);
    r->protocol = qn_protocol_above(r->path);
    c->request = r;
    qn_connection_begin(c);
    return r;
}

/* Writes the line of the access log, if there is a log. */
static void log_request(const qn_http_request *r)
{
    qn_access_log *log = r->http->params.log;
    if (!log)
        return;
    const qn_answer_usage usage = r->answer ? qn_answer_look(r->answer).usage : (qn_answer_usage){ 0 };
    const qn_access access = { .time = r->time,
                               .id = r->id,
                               .address = r->address,
                               .key = r->has_key ? r->key.name : NULL,
                               .method = r->method,
                               .path = r->path,
                               .status = r->status,
                               .bytes = r->n_sent,
                               .n_prompt = usage.n_prompt,
                               .n_cached = usage.n_cached,
                               .n_generated = usage.n_generated,
                               .seconds = r->seconds,
                               .is_cancelled = r->is_lost };
    qn_access_log_write(log, &access);
}

/* Logs a request and frees it, with its references to the answer and the account. */
static void end_request(qn_http_request *r)
{
    log_request(r);
    if (r->answer) {
        qn_answer_forget(r->answer);
        qn_answer_release(r->answer);
    }
    qn_account_release(r->account);
    free(r);
}

/* Puts a request that lost its connection into http->ending, to be logged later: the tokens of its scheduler requests
 * are known only when they have ended. */
static void end_later(qn_http_request *r)
{
    qn_http *http = r->http;
    r->next = http->ending;
    if (http->ending)
        http->ending->previous = r;
    http->ending = r;
}

void qn_request_news(qn_http_request *r)
{
    if (r->connection) {
        qn_connection_resume(r->connection);
    } else if (qn_answer_look(r->answer).has_ended) {
        *(r->previous ? &r->previous->next : &r->http->ending) = r->next;
        if (r->next)
            r->next->previous = r->previous;
        end_request(r);
    }
}

void qn_requests_end(qn_http *http)
{
    for (qn_http_request *r = http->ending, *next; r; r = next) {
        next = r->next;
        end_request(r);
    }
    http->ending = NULL;
}

/* Finds the status of a request that the server did not answer, and whether its client disconnected. libmicrohttpd
 * answers requests that it refuses by itself, and ends them with or without an error. A request ends with an error,
 * too, if its client disconnected or the server dropped it. */
static void judge(qn_http_request *r, enum MHD_RequestTerminationCode code)
{
    if (r->is_answered)
        return;
    const bool is_refused = !r->status && !r->is_dropped && !r->connection->is_gone && !r->connection->is_shut &&
                            (code == MHD_REQUEST_TERMINATED_COMPLETED_OK || code == MHD_REQUEST_TERMINATED_WITH_ERROR);
    r->is_lost = !is_refused && (!r->status || code != MHD_REQUEST_TERMINATED_COMPLETED_OK);
    r->status = is_refused ? 400 : r->is_lost ? 499 : r->status;
}

void qn_request_completed(void *http, struct MHD_Connection *mhd, void **context, enum MHD_RequestTerminationCode code)
{
    qn_http_request *r = *context;
    qn_http *h = http;
    (void)mhd;
    if (!r)
        return;
    *context = NULL;
    judge(r, code);
    r->seconds = qn_now() - r->started;
    qn_metrics_request(h->metrics, qn_route_index(r->route), r->status);
    qn_bytes_free(&r->body);
    r->connection->request = NULL;
    qn_connection_enter(r->connection, QN_CONNECTION_IDLE);
    qn_gate_expect(r->connection);
    r->connection = NULL;
    if (r->answer)
        qn_answer_abandon(r->answer);
    if (r->is_lost && r->answer && !qn_answer_look(r->answer).has_ended)
        end_later(r);
    else
        end_request(r);
}

void qn_request_lose(qn_connection *c)
{
    void *context = c->request;
    qn_request_completed(c->http, c->mhd, &context, MHD_REQUEST_TERMINATED_WITH_ERROR);
}

/* ---- Headers ---- */

/* Returns the value of a header, in libmicrohttpd's memory until the request has ended; NULL: there is none. */
static const char *header(struct MHD_Connection *mhd, const char *name)
{
    return MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, name);
}

bool qn_request_refuse(qn_http_request *r, int status, const char *code, const char *message)
{
    r->is_refused = true;
    return qn_refuse(&r->refusal, status, code, NULL, "%s", message);
}

/* Sets the protocol of a request on a path of no protocol, whose form errors have: the one whose request header is
 * present, else the first. */
static void choose_protocol(qn_http_request *r, struct MHD_Connection *mhd)
{
    for (size_t i = 0; !r->protocol && qn_protocols[i]; i++)
        if (qn_protocols[i]->request_header && header(mhd, qn_protocols[i]->request_header))
            r->protocol = qn_protocols[i];
    if (!r->protocol)
        r->protocol = qn_protocols[0];
}

/* Returns the schemes that a page's origin may have for a host. A name that had to be listed may be a proxy's, which
 * may speak TLS before a server without TLS. */
static unsigned schemes_of(const qn_http *http, const char *host)
{
    if (qn_guard_listed_host(host, http->params.hosts, http->params.n_hosts))
        return QN_GUARD_HTTP | QN_GUARD_HTTPS;
    return http->tls ? QN_GUARD_HTTPS : QN_GUARD_HTTP;
}

/* Checks path, Host and Origin. False: refused; so in all checks below. */
static bool check_client(qn_http_request *r, struct MHD_Connection *mhd)
{
    const qn_server_params *params = &r->http->params;
    const char *origin = header(mhd, "Origin"), *host = header(mhd, "Host");
    if (!*r->path)
        return qn_request_refuse(r, 400, "bad_request", "the path is invalid");
    if (!qn_guard_host(host, params->hosts, params->n_hosts) && !qn_guard_host(host, &params->host, 1))
        return qn_request_refuse(r, 403, "forbidden_host", "the Host header names another server; see --allowed-host");
    if (!qn_guard_origin(origin, host, schemes_of(r->http, host), params->origins, params->n_origins))
        return qn_request_refuse(r, 403, "forbidden_origin",
                                 "pages of this origin may not use the server; see --cors-origin");
    if (qn_guard_listed_origin(origin, params->origins, params->n_origins))
        snprintf(r->origin, sizeof r->origin, "%s", origin);
    return true;
}

/* Finds the key of a request, and checks that its route may be used with it. */
static bool check_key(qn_http_request *r, struct MHD_Connection *mhd)
{
    const qn_server_params *params = &r->http->params;
    if (!params->keys)
        return true;
    r->has_key = qn_keys_find(params->keys, header(mhd, "Authorization"), header(mhd, "X-Api-Key"), &r->key);
    if (r->route && r->route->whose == QN_ROUTE_OPEN)
        return true;
    if (!r->has_key)
        return qn_request_refuse(r, 401, "invalid_api_key", "a valid API key is needed");
    return !r->route || r->route->whose != QN_ROUTE_OPERATORS || r->key.is_operators ||
           qn_request_refuse(r, 403, "permission_denied", "this path needs the API key named '" QN_KEY_OPERATORS "'");
}

/* Checks that the path has a route and the route the method. */
static bool check_route(qn_http_request *r)
{
    const bool is_post = !strcmp(r->method, "POST"), is_get = !strcmp(r->method, "GET") || !strcmp(r->method, "HEAD");
    if (!r->route)
        return qn_request_refuse(r, 404, "not_found", "there is nothing at this path");
    if (r->route->missing)
        return qn_request_refuse(r, 501, "not_supported", r->route->missing);
    if (!(r->route->protocol ? is_post : is_get))
        return qn_request_refuse(r, 405, "method_not_allowed", "the path does not allow this method");
    return true;
}

/* Whether a body is JSON by its type. A client of this machine may leave out the type. A browser, which sends Origin,
 * may not: without a preflight request any site could have it send bodies. */
static bool is_json(const qn_http_request *r, struct MHD_Connection *mhd)
{
    const char *type = header(mhd, "Content-Type");
    return type ? qn_guard_json(type) : r->connection->is_loopback && !header(mhd, "Origin");
}

/* Checks what the headers say of a body that a protocol reads. */
static bool check_body(qn_http_request *r, struct MHD_Connection *mhd)
{
    const char *length = header(mhd, "Content-Length"), *encoding = header(mhd, "Content-Encoding");
    if (!r->route->protocol)
        return true;
    if (!is_json(r, mhd))
        return qn_request_refuse(r, 415, "unsupported_media_type", "the Content-Type is not application/json");
    if (encoding && strcasecmp(encoding, "identity") != 0)
        return qn_request_refuse(r, 415, "unsupported_media_type", "the body has a Content-Encoding");
    if (length && strtoull(length, NULL, 10) > r->http->params.max_body)
        return qn_request_refuse(r, 413, "body_too_large", "the body is too long; see --max-body");
    if (r->http->is_draining)
        return qn_request_refuse(r, 503, "stopping", "the server is stopping");
    return true;
}

/* Checks the headers and decides whether the body is kept. Answers before the body only if the client expects it, or if
 * the body's length is in doubt or too large to discard. */
static enum MHD_Result take_headers(qn_http_request *r, struct MHD_Connection *mhd, const char *method,
                                    const char *version)
{
    const qn_http *http = r->http;
    const union MHD_ConnectionInfo *size = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    const char *length = header(mhd, "Content-Length");
    snprintf(r->method, sizeof r->method, "%s", method);
    choose_protocol(r, mhd);
    qn_connection_enter(r->connection, QN_CONNECTION_BODY);
    if (!qn_request_check_head(r, mhd, method, version))
        return qn_respond_refusal(r, true);
    if (size && size->header_size > http->params.max_header) {
        (void)qn_request_refuse(r, 431, "headers_too_large", "the headers are too long; see --max-header");
    } else if (check_client(r, mhd) && strcmp(method, "OPTIONS") != 0) {
        r->keeps_body = check_key(r, mhd) && check_route(r) && check_body(r, mhd) && r->route->protocol;
        qn_crowd_know(r->connection, r->has_key || r->keeps_body);
    }
    if (r->is_refused && (header(mhd, "Expect") || (length && strtoull(length, NULL, 10) > QN_HTTP_MAX_DISCARDED)))
        return qn_respond_refusal(r, true);
    return MHD_YES;
}

/* ---- The body ---- */

/* Opens the account of the request's client. False: no memory. */
static bool open_account(qn_http_request *r)
{
    r->account = r->body.account =
        qn_account_open(r->http->budget, r->has_key ? r->key.scope : r->connection->client_text);
    return r->account || qn_request_refuse(r, 500, "out_of_memory", "no memory for the request");
}

/* Appends a piece to the body that is kept, or refuses the request. */
static void add_body(qn_http_request *r, const char *data, size_t length)
{
    if (length > r->http->params.max_body - r->body.length) {
        (void)qn_request_refuse(r, 413, "body_too_large", "the body is too long; see --max-body");
        return;
    }
    if (!r->account && !open_account(r))
        return;
    qn_account_raise(r->account, length);
    qn_bytes_add(&r->body, data, length);
    r->is_refused = r->body.has_failed && !qn_refuse_over(r->account, &r->refusal);
}

/* Keeps or discards a piece of the body. MHD_NO: too much was discarded. */
static enum MHD_Result take_body(qn_http_request *r, const char *data, size_t length)
{
    r->connection->may_have_rest = true;
    if (r->keeps_body && !r->is_refused)
        add_body(r, data, length);
    if (r->keeps_body && !r->is_refused)
        return MHD_YES;
    qn_bytes_free(&r->body);
    r->n_discarded += length;
    return r->n_discarded <= QN_HTTP_MAX_DISCARDED ? MHD_YES : MHD_NO;
}

/* ---- The answer ---- */

/* Member `restart` of qn_answer_params. Called by any thread. */
static void restart(void *workers, qn_answer *answer)
{
    qn_workers_add(workers, answer);
}

/* Hands the body to the workers; the connection is suspended until the answer has news. */
static enum MHD_Result start_answer(qn_http_request *r)
{
    qn_http *http = r->http;
    qn_answer_params params = { .protocol = r->route->protocol,
                                .limits = &http->limits,
                                .registry = &http->registry,
                                .account = r->account,
                                .scope = r->has_key ? r->key.scope : NULL,
                                .client = r->has_key ? r->key.scope : r->connection->client_text,
                                .shares_prefixes = http->params.shares_prefixes,
                                .has_seed = http->params.has_seed,
                                .seed = http->params.seed,
                                .arrived = r->started,
                                .restart = restart,
                                .restart_user = http->workers };
    memcpy(params.id, r->id, sizeof params.id);
    r->answer = qn_answer_create(&http->outbox, &params, &r->body, r);
    if (!r->answer) {
        (void)qn_request_refuse(r, 500, "out_of_memory", "no memory for the request");
        return qn_respond_refusal(r, false);
    }
    qn_workers_add(http->workers, r->answer);
    qn_connection_suspend(r->connection);
    return MHD_YES;
}

/* Answers a request whose headers and body are complete. */
static enum MHD_Result answer(qn_http_request *r)
{
    qn_connection_enter(r->connection, QN_CONNECTION_ANSWERING);
    if (r->is_refused)
        return qn_respond_refusal(r, false);
    if (!strcmp(r->method, "OPTIONS"))
        return qn_respond_options(r);
    if (!r->route->protocol)
        return qn_respond_resource(r);
    return r->connection->is_gone || r->http->is_closing ? MHD_NO : start_answer(r);
}

/* Continues after the connection was resumed: sends the answer, waits on, or drops the connection. */
static enum MHD_Result resume_answer(qn_http_request *r)
{
    const qn_answer_view view = qn_answer_look(r->answer);
    if (r->connection->is_gone || r->http->is_closing || (view.is_done && !view.is_accepted))
        return MHD_NO;
    if (view.is_done || (view.is_stream && view.is_accepted))
        return qn_respond_answer(r);
    qn_connection_suspend(r->connection);
    return MHD_YES;
}

static enum MHD_Result handle(qn_http_request *r, struct MHD_Connection *mhd, const char *method, const char *version,
                              const char *data, size_t *length)
{
    if (!r->has_headers) {
        r->has_headers = true;
        return take_headers(r, mhd, method, version);
    }
    if (*length) {
        const size_t n = *length;
        *length = 0;
        return take_body(r, data, n);
    }
    if (r->answer)
        return resume_answer(r);
    return answer(r);
}

enum MHD_Result qn_request_handle(void *http, struct MHD_Connection *mhd, const char *url, const char *method,
                                  const char *version, const char *data, size_t *length, void **context)
{
    qn_http_request *r = *context;
    (void)http;
    (void)url;
    if (!r || (!r->has_headers && r->connection->is_shut))
        return MHD_NO;
    const enum MHD_Result result = handle(r, mhd, method, version, data, length);
    r->is_dropped |= result != MHD_YES;
    return result;
}
