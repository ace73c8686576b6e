/* Responses: status, headers and body of refusals, resources and answers. */
#include "serve/http.h"

#include "http/clock.h"
#include "http/encoding.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes that libmicrohttpd reads from a stream at once, at most. */
enum { STREAM_BLOCK = 16384 };

/* ---- Headers ---- */

static void set(struct MHD_Response *response, const char *name, const char *value)
{
    (void)MHD_add_response_header(response, name, value); /* without memory the header is missing */
}

/* Sets the headers that all responses have. */
static void set_common(const qn_http_request *r, struct MHD_Response *response)
{
    set(response, "X-Request-Id", r->id);
    if (r->protocol->id_header) {
        char id[QN_HTTP_ID_BYTES + 16];
        snprintf(id, sizeof id, "%s%s", r->protocol->id_prefix, r->id);
        set(response, r->protocol->id_header, id);
    }
    set(response, "X-Content-Type-Options", "nosniff");
    if (r->connection->http->params.n_origins)
        set(response, "Vary", "Origin");
    if (!*r->origin)
        return;
    set(response, "Access-Control-Allow-Origin", r->origin);
    set(response, "Access-Control-Expose-Headers",
        "X-Request-Id, Request-Id, Retry-After, X-Quern-Omitted-Parts, X-Quern-Warning");
}

/* Sets the headers that belong to some statuses. */
static void set_of_status(const qn_http_request *r, int status, struct MHD_Response *response)
{
    if (status == 401)
        set(response, "WWW-Authenticate", "Bearer");
    if (status == 405 && r->route)
        set(response, "Allow", r->route->allow);
    if (status == 429 || status == 503) {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "%u", r->refusal.retry_after ? r->refusal.retry_after : 1);
        set(response, "Retry-After", seconds);
    }
}

/* Queues a response and takes it over. MHD_NO for NULL. */
static enum MHD_Result queue(qn_http_request *r, int status, struct MHD_Response *response, bool closes)
{
    if (!response)
        return MHD_NO;
    set_common(r, response);
    set_of_status(r, status, response);
    if (closes || r->closes || r->connection->http->is_draining)
        set(response, "Connection", "close");
    r->status = status;
    r->last_sent = qn_now();
    const enum MHD_Result result = MHD_queue_response(r->connection->mhd, (unsigned)status, response);
    MHD_destroy_response(response);
    return result;
}

/* Returns a response with a body, which it takes over. NULL: no memory. */
static struct MHD_Response *of_bytes(qn_http_request *r, qn_bytes *body, const char *type)
{
    if (body->has_failed) {
        qn_bytes_free(body);
        return NULL;
    }
    struct MHD_Response *response =
        MHD_create_response_from_buffer(body->length, body->data ? body->data : (void *)"",
                                        body->data ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
    if (response) {
        r->n_sent = body->length;
        set(response, "Content-Type", type);
    } else {
        qn_bytes_free(body);
    }
    return response;
}

/* ---- Refusals and resources ---- */

enum MHD_Result qn_respond_refusal(qn_http_request *r, bool closes)
{
    qn_bytes body = { 0 };
    r->refusal.id = r->id;
    r->protocol->refuse(&r->refusal, &body);
    return queue(r, r->refusal.status, of_bytes(r, &body, "application/json"), closes);
}

/* Whether If-None-Match has the tag: alone, in a list, or marked by a proxy that compressed an answer, W/"...". */
static bool is_known(const char *known, const char *etag)
{
    return known && etag && (!strcmp(known, "*") || strstr(known, etag));
}

enum MHD_Result qn_respond_resource(qn_http_request *r)
{
    struct MHD_Connection *mhd = r->connection->mhd;
    const bool sees_all = !r->connection->http->params.keys || r->key.is_operators;
    const char *const encodings = MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, MHD_HTTP_HEADER_ACCEPT_ENCODING);
    qn_resource resource = { .model = MHD_lookup_connection_value(mhd, MHD_GET_ARGUMENT_KIND, "model"),
                             .query = MHD_lookup_connection_value(mhd, MHD_GET_ARGUMENT_KIND, "fail_on_no_slot"),
                             .client = sees_all ? NULL : r->key.scope,
                             .accepts_gzip = qn_encoding_accepts_gzip(encodings),
                             .status = 200,
                             .type = "application/json" };
    const size_t length = strlen(r->route->path);
    const char *rest = r->route->path[length - 1] == '*' ? r->path + length - 1 : "";
    if (!r->route->get(r->connection->http, rest, &resource, &r->refusal)) {
        qn_bytes_free(&resource.body);
        return qn_respond_refusal(r, false);
    }
    const bool is_unchanged =
        is_known(MHD_lookup_connection_value(r->connection->mhd, MHD_HEADER_KIND, "If-None-Match"), resource.etag);
    struct MHD_Response *response;
    if (resource.bytes) {
        /* libmicrohttpd omits the body of a 304 and keeps its length. */
        response =
            MHD_create_response_from_buffer(resource.length, (void *)(uintptr_t)resource.bytes, MHD_RESPMEM_PERSISTENT);
        r->n_sent = is_unchanged ? 0 : resource.length;
        if (response)
            set(response, "Content-Type", resource.type);
    } else {
        response = of_bytes(r, &resource.body, resource.type);
    }
    if (response && resource.policy) {
        set(response, "Content-Security-Policy", resource.policy);
        set(response, "Referrer-Policy", "no-referrer");
    }
    if (response && resource.encoding && !is_unchanged)
        set(response, "Content-Encoding", resource.encoding);
    if (response && resource.varies)
        set(response, "Vary", "Accept-Encoding");
    if (response && resource.etag)
        set(response, "ETag", resource.etag);
    if (response)
        set(response, "Cache-Control", resource.etag ? "no-cache" : "no-store");
    return queue(r, is_unchanged ? 304 : resource.status, response, false);
}

/* Whether a text is a list of header names, as a preflight sends it. */
static bool is_header_list(const char *text)
{
    for (const char *c = text; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("-_, ", *c))
            return false;
    return strlen(text) < 1024;
}

enum MHD_Result qn_respond_options(qn_http_request *r)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(0, (void *)"", MHD_RESPMEM_PERSISTENT);
    const char *const allow = r->route ? r->route->allow : "GET, HEAD, POST, OPTIONS";
    const char *wanted =
        MHD_lookup_connection_value(r->connection->mhd, MHD_HEADER_KIND, "Access-Control-Request-Headers");
    if (response)
        set(response, "Allow", allow);
    if (response && *r->origin) {
        set(response, "Access-Control-Allow-Methods", allow);
        if (wanted && is_header_list(wanted))
            set(response, "Access-Control-Allow-Headers", wanted);
        set(response, "Access-Control-Max-Age", "600");
    }
    return queue(r, 204, response, false);
}

/* ---- Answers ---- */

/* libmicrohttpd's callback that reads a stream: copies up to `most` bytes that wait, or a comment. With nothing to send
 * it suspends the connection, which the answer's next news or a tick resumes. */
static ssize_t read_stream(void *request, uint64_t position, char *out, size_t most)
{
    qn_http_request *r = request;
    qn_connection *c = r->connection;
    (void)position;
    if (c->http->is_closing)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    long n = qn_answer_read(r->answer, out, most);
    if (n == QN_ANSWER_END)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (n == QN_ANSWER_LOST || (n == 0 && c->is_gone))
        return MHD_CONTENT_READER_END_WITH_ERROR;
    const size_t comment = strlen(r->protocol->keep_alive);
    if (n == 0 && r->needs_comment && comment <= most) {
        memcpy(out, r->protocol->keep_alive, comment);
        n = (long)comment;
    }
    if (n == 0) {
        qn_connection_suspend(c);
        return 0;
    }
    r->needs_comment = false;
    r->n_sent += (uint64_t)n;
    r->last_sent = qn_now();
    return n;
}

/* Sets the headers that tell what was left out of the body, and the warning. NULL is allowed. */
static void set_notices(const qn_answer_view *view, struct MHD_Response *response)
{
    char n[24];
    snprintf(n, sizeof n, "%zu", view->n_omitted);
    if (response && view->n_omitted)
        set(response, "X-Quern-Omitted-Parts", n);
    if (response && view->warning)
        set(response, "X-Quern-Warning", view->warning);
}

/* Tells the operator of an answer's warning, once. */
static void note_warning(qn_http *http, const qn_answer_view *view)
{
    char text[QN_REGISTRY_NAME_BYTES + 256];
    if (!view->warning || http->has_warned || !http->params.note)
        return;
    http->has_warned = true;
    snprintf(text, sizeof text, "%s: %s", view->model, view->warning);
    http->params.note(text);
}

enum MHD_Result qn_respond_answer(qn_http_request *r)
{
    const qn_answer_view view = qn_answer_look(r->answer);
    note_warning(r->connection->http, &view);
    if (!view.is_stream) {
        qn_bytes body = qn_answer_body(r->answer);
        r->refusal.retry_after = view.retry_after;
        struct MHD_Response *whole = of_bytes(r, &body, "application/json");
        set_notices(&view, whole);
        return queue(r, view.status, whole, false);
    }
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream, r, NULL);
    set_notices(&view, response);
    if (response) {
        set(response, "Content-Type", r->protocol->stream_type ? r->protocol->stream_type : "text/event-stream");
        set(response, "Cache-Control", "no-cache");
        set(response, "X-Accel-Buffering", "no");
    }
    r->is_streaming = true;
    return queue(r, view.status, response, false);
}
