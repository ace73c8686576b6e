/* A request of bench-serve: its body, the events of its answer (server-sent events, as OpenAI streams them) and its
 * end. Bytes from the server are untrusted: an event has limited length, and an invalid event ends the request. */
#include "cli/bench_serve.h"

#include "gguf/json_decode.h"
#include "hub/http.h"

#include "base/memory.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_EVENT = 1 << 20, MAX_LIST = 1 << 20, MAX_REFUSAL = 1 << 14, CONNECT_TIMEOUT = 30 };

/* Limits of an answer's bytes: a constant, and an addition for each token that it may have. */
enum { MAX_OF_ANSWER = 4 << 20, MAX_OF_TOKEN = 16 << 10 };

/* A growing text. */
struct text {
    char *at;
    size_t n, capacity;
};

struct qn_bench_serve_request {
    const qn_bench_serve_target *target;
    CURL *curl;
    char *body;
    char error[CURL_ERROR_SIZE];
    struct text line, event; /* event: the data lines of the current event */
    bool has_data;           /* the event has data */
    struct text refusal;     /* the beginning of an answer that is not an event stream */
    bool is_stream;          /* the answer is an event stream; known from its first bytes on */
    bool has_begun;
    size_t n_left; /* bytes that may still arrive */
    qn_bench_serve_answer answer;
};

static bool append(struct text *text, const char *data, size_t n)
{
    if (qn_realloc_array(&text->at, &text->capacity, text->n + n + 1, 1, "answer of a server"))
        return false;
    memcpy(text->at + text->n, data, n);
    text->n += n;
    text->at[text->n] = '\0';
    return true;
}

bool qn_bench_serve_add_time(qn_bench_serve_times *times, double seconds)
{
    if (qn_realloc_array(&times->at, &times->capacity, times->n + 1, sizeof *times->at, "results"))
        return false;
    times->at[times->n++] = seconds;
    return true;
}

/* Records a failure; only the first one counts. Returns false. */
static bool failed(qn_bench_serve_answer *answer, const char *kind, const char *format, ...) QN_PRINTF(3, 4);

static bool failed(qn_bench_serve_answer *answer, const char *kind, const char *format, ...)
{
    va_list args;
    if (*answer->kind)
        return false;
    snprintf(answer->kind, sizeof answer->kind, "%s", kind);
    va_start(args, format);
    vsnprintf(answer->message, sizeof answer->message, format, args);
    va_end(args);
    return false;
}

/* ---- Events ---- */

static bool is_text(const json_t *value)
{
    return json_string_length(value) > 0;
}

/* Whether a choice of an event has text of any kind, or a tool call. */
static bool has_text(const json_t *choice)
{
    const json_t *delta = json_object_get(choice, "delta");
    return is_text(json_object_get(choice, "text")) || is_text(json_object_get(delta, "content")) ||
           is_text(json_object_get(delta, "reasoning_content")) || is_text(json_object_get(delta, "reasoning")) ||
           json_array_size(json_object_get(delta, "tool_calls")) > 0;
}

static uint64_t count_of(const json_t *object, const char *name)
{
    const json_int_t n = json_integer_value(json_object_get(object, name));
    return n > 0 ? (uint64_t)n : 0;
}

static void take_usage(qn_bench_serve_answer *a, const json_t *usage)
{
    if (!json_is_object(usage))
        return;
    a->has_usage = true;
    a->n_prompt = count_of(usage, "prompt_tokens");
    a->n_cached = count_of(json_object_get(usage, "prompt_tokens_details"), "cached_tokens");
    a->n_generated = count_of(usage, "completion_tokens");
}

/* Returns the text in {"error": {"message": TEXT}}, {"error": TEXT} or {"message": TEXT}. */
static const char *error_text(const json_t *object)
{
    const json_t *error = json_object_get(object, "error");
    const char *text = json_string_value(json_object_get(json_is_object(error) ? error : object, "message"));
    return text ? text : json_string_value(error);
}

static bool take_json(qn_bench_serve_answer *a, const json_t *event, double now)
{
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    if (json_is_object(json_object_get(event, "error")) || json_is_string(json_object_get(event, "error"))) {
        const char *text = error_text(event);
        return failed(a, "error event", "%s", text ? text : "without a message");
    }
    take_usage(a, json_object_get(event, "usage"));
    a->has_end |= json_is_string(json_object_get(choice, "finish_reason"));
    if (!has_text(choice))
        return true;
    if (a->n_events++ == 0)
        a->first = now;
    else if (!qn_bench_serve_add_time(&a->gaps, now - a->last))
        return failed(a, "memory", "%s", qn_error_text());
    a->last = now;
    return true;
}

static bool end_event(qn_bench_serve_request *r, double now)
{
    qn_bench_serve_answer *a = &r->answer;
    json_error_t error;
    if (!r->has_data)
        return true;
    const bool is_end = r->event.n == 6 && memcmp(r->event.at, "[DONE]", 6) == 0;
    json_t *event = is_end ? NULL : qn_json_load(r->event.at, r->event.n, 0, 0, &error);
    a->has_end |= is_end;
    bool ok = is_end;
    if (json_is_object(event))
        ok = take_json(a, event, now);
    else if (!is_end)
        failed(a, "bad event", "data is not a JSON object: %.80s", r->event.at);
    json_decref(event);
    r->event.n = 0;
    r->has_data = false;
    return ok;
}

/* Takes the current line without its end, and empties it. */
static bool take_line(qn_bench_serve_request *r, double now)
{
    static const char field[] = "data:";
    const size_t length = sizeof field - 1;
    if (r->line.n && r->line.at[r->line.n - 1] == '\r')
        r->line.n--;
    const char *line = r->line.at;
    const size_t n = r->line.n;
    r->line.n = 0;
    if (n == 0)
        return end_event(r, now);
    if (n < length || memcmp(line, field, length) != 0)
        return true; /* a comment, or a field that is ignored */
    const size_t at = n > length && line[length] == ' ' ? length + 1 : length;
    if (r->event.n + n > MAX_EVENT)
        return failed(&r->answer, "bad event", "longer than %d bytes", MAX_EVENT);
    if ((r->has_data && !append(&r->event, "\n", 1)) || !append(&r->event, line + at, n - at))
        return failed(&r->answer, "memory", "%s", qn_error_text());
    r->has_data = true;
    return true;
}

static bool take_stream(qn_bench_serve_request *r, const char *data, size_t n, double now)
{
    while (n) {
        const char *end = memchr(data, '\n', n);
        const size_t now_n = end ? (size_t)(end - data) : n;
        if (r->line.n + now_n > MAX_EVENT)
            return failed(&r->answer, "bad event", "a line longer than %d bytes", MAX_EVENT);
        if (!append(&r->line, data, now_n))
            return failed(&r->answer, "memory", "%s", qn_error_text());
        if (!end)
            return true;
        if (!take_line(r, now))
            return false;
        data += now_n + 1;
        n -= now_n + 1;
    }
    return true;
}

static size_t on_body(char *data, size_t size, size_t count, void *user)
{
    qn_bench_serve_request *r = user;
    const size_t n = size * count, left = MAX_REFUSAL - r->refusal.n;
    if (!r->has_begun) {
        long status = 0;
        const char *type = NULL;
        curl_easy_getinfo(r->curl, CURLINFO_RESPONSE_CODE, &status);
        curl_easy_getinfo(r->curl, CURLINFO_CONTENT_TYPE, &type);
        r->has_begun = true;
        r->is_stream = status == 200 && type && strncasecmp(type, "text/event-stream", 17) == 0;
    }
    if (n > r->n_left) {
        failed(&r->answer, "too long", "more bytes than an answer of this number of tokens may have");
        return CURL_WRITEFUNC_ERROR;
    }
    r->n_left -= n;
    if (r->is_stream)
        return take_stream(r, data, n, qn_seconds()) ? n : CURL_WRITEFUNC_ERROR;
    return append(&r->refusal, data, n < left ? n : left) ? n : CURL_WRITEFUNC_ERROR;
}

/* ---- The request ---- */

static char *make_body(const qn_bench_serve_target *t, const char *prompt, size_t n_generate)
{
    json_t *body = json_pack("{s:s, s:I, s:b, s:{s:b}}", "model", t->model, "max_tokens", (json_int_t)n_generate,
                             "stream", 1, "stream_options", "include_usage", 1);
    json_t *input = t->chat ? json_pack("[{s:s, s:s}]", "role", "user", "content", prompt) : json_string(prompt);
    bool ok = body && input && json_object_set(body, t->chat ? "messages" : "prompt", input) == 0 &&
              json_object_update(body, t->sampling) == 0;
    if (ok && t->format)
        ok = json_object_set(body, "response_format", t->format) == 0;
    if (ok && !t->may_end)
        ok = json_object_set_new(body, "ignore_eos", json_true()) == 0;
    char *text = ok ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(input);
    json_decref(body);
    return text;
}

/* Sets the options of all handles. Redirects are not followed: the key is only for the server that the user named. */
static bool set_options(CURL *curl, const qn_bench_serve_target *target, const char *url, char *error)
{
    return !curl_easy_setopt(curl, CURLOPT_URL, url) && !curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, error) &&
           !curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L) &&
           !curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "https,http") &&
           !curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1) && qn_hub_http_trust(curl) &&
           !curl_easy_setopt(curl, CURLOPT_NOPROXY, qn_hub_http_is_loopback(url) ? "*" : NULL) &&
           !curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_TIMEOUT) &&
           !curl_easy_setopt(curl, CURLOPT_TIMEOUT, target->timeout) &&
           !curl_easy_setopt(curl, CURLOPT_HTTPHEADER, target->headers);
}

qn_bench_serve_request *qn_bench_serve_request_create(const qn_bench_serve_target *target, const char *prompt,
                                                      size_t n_generate, double due)
{
    qn_bench_serve_request *r;
    if (qn_alloc(&r, 1, sizeof *r, "request"))
        return NULL;
    size_t of_tokens;
    r->target = target;
    r->answer.sent = due;
    if (!qn_mul_size(n_generate, MAX_OF_TOKEN, &of_tokens) || !qn_add_size(of_tokens, MAX_OF_ANSWER, &r->n_left))
        r->n_left = SIZE_MAX;
    r->curl = curl_easy_init();
    r->body = make_body(target, prompt, n_generate);
    if (r->curl && r->body && set_options(r->curl, target, target->url, r->error) &&
        !curl_easy_setopt(r->curl, CURLOPT_POSTFIELDS, r->body) &&
        !curl_easy_setopt(r->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(r->body)) &&
        !curl_easy_setopt(r->curl, CURLOPT_WRITEFUNCTION, on_body) &&
        !curl_easy_setopt(r->curl, CURLOPT_WRITEDATA, r) && !curl_easy_setopt(r->curl, CURLOPT_PRIVATE, r))
        return r;
    (void)qn_fail(QN_ERR_MEMORY, "no memory for a request");
    qn_bench_serve_request_free(r);
    return NULL;
}

CURL *qn_bench_serve_request_handle(const qn_bench_serve_request *request)
{
    return request->curl;
}

void qn_bench_serve_request_free(qn_bench_serve_request *r)
{
    if (!r)
        return;
    curl_easy_cleanup(r->curl);
    free(r->body);
    free(r->line.at);
    free(r->event.at);
    free(r->refusal.at);
    free(r->answer.gaps.at);
    qn_free(r);
}

/* ---- The end ---- */

/* Sets the failure to the message of an error answer, or its beginning. */
static void refuse(qn_bench_serve_request *r, const char *kind)
{
    json_error_t error;
    json_t *object = r->refusal.n ? qn_json_load(r->refusal.at, r->refusal.n, 0, 0, &error) : NULL;
    const char *text = error_text(object);
    failed(&r->answer, kind, "%s", text ? text : r->refusal.n ? r->refusal.at : "without a message");
    json_decref(object);
}

static void fail_by_network(qn_bench_serve_request *r, CURLcode code)
{
    const char *text = *r->error ? r->error : curl_easy_strerror(code);
    switch (code) {
    case CURLE_OPERATION_TIMEDOUT: failed(&r->answer, "timeout", "%s", text); break;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CONNECT_ERROR: failed(&r->answer, "no connection", "%s", text); break;
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR: failed(&r->answer, "closed", "%s", text); break;
    default: failed(&r->answer, "network", "%s", text);
    }
}

const qn_bench_serve_answer *qn_bench_serve_request_end(qn_bench_serve_request *r, CURLcode code)
{
    qn_bench_serve_answer *a = &r->answer;
    long status = 0;
    char kind[QN_BENCH_SERVE_KIND_SIZE];
    curl_easy_getinfo(r->curl, CURLINFO_RESPONSE_CODE, &status);
    snprintf(kind, sizeof kind, "HTTP %ld", status);
    if (*a->kind)
        return a;
    if (code == CURLE_OK && r->is_stream && take_line(r, qn_seconds())) /* the last event may lack line ends */
        end_event(r, qn_seconds());
    if (*a->kind)
        return a;
    if (status && status != 200 && code != CURLE_OPERATION_TIMEDOUT)
        refuse(r, kind);
    else if (code != CURLE_OK)
        fail_by_network(r, code);
    else if (!r->is_stream)
        refuse(r, "no stream");
    else if (!a->has_end)
        failed(a, "closed", "the stream ended after %zu events without [DONE]", a->n_events);
    else if (!a->n_events)
        failed(a, "no text", "the answer has no text");
    return a;
}

/* ---- The list of models ---- */

static size_t on_list(char *data, size_t size, size_t count, void *user)
{
    struct text *text = user;
    return text->n + size * count <= MAX_LIST && append(text, data, size * count) ? size * count : CURL_WRITEFUNC_ERROR;
}

json_t *qn_bench_serve_first_model(const qn_bench_serve_target *target)
{
    struct text text = { 0 };
    char error[CURL_ERROR_SIZE] = "", *url = NULL;
    json_error_t why;
    long status = 0;
    CURL *curl = curl_easy_init();
    const bool ready =
        curl && asprintf(&url, "%s/v1/models", target->base) >= 0 && set_options(curl, target, url, error) &&
        !curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_list) && !curl_easy_setopt(curl, CURLOPT_WRITEDATA, &text);
    const CURLcode code = ready ? curl_easy_perform(curl) : CURLE_OUT_OF_MEMORY;
    if (ready)
        curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    json_t *list = code == CURLE_OK && text.n ? qn_json_load(text.at, text.n, 0, 0, &why) : NULL;
    json_t *id = json_object_get(json_array_get(json_object_get(list, "data"), 0), "id");
    if (code != CURLE_OK)
        qn_cli_error("%s: %s", target->base, *error ? error : curl_easy_strerror(code));
    else if (status != 200)
        qn_cli_error("%s: HTTP %ld%s%s; --model NAME sends requests without asking for it", url, status,
                     error_text(list) ? ": " : "", error_text(list) ? error_text(list) : "");
    else if (!is_text(id))
        qn_cli_error("%s: lists no model; name one with --model", url);
    id = code == CURLE_OK && status == 200 && is_text(id) ? json_incref(id) : NULL;
    json_decref(list);
    curl_easy_cleanup(curl);
    free(text.at);
    free(url);
    return id;
}
