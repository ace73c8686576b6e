/* quern bench-serve: sends requests to a server of OpenAI's protocol, quern's or another, and measures the times of
 * their first and later tokens. One thread sends them with libcurl's multi interface.
 *
 * With --rate the arrivals are a Poisson process, and latencies count from the arrivals, even if no connection was
 * free. Without it there are --parallel clients, each of which sends its next request after the answer to the last
 * one. */
#include "base/socket.h"
#include "base/strings.h"
#include "cli/bench_report.h"
#include "cli/bench_serve.h"
#include "cli/progress.h"
#include "cli/signals.h"

#include "hub/http.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { POLL_MS = 100 };

struct run {
    const qn_args *args;
    qn_bench_serve_target target;
    json_t *model; /* listed by the server; or NULL */
    qn_bench_serve_words words;
    qn_bench_length *lengths; /* [n_lengths]; request i has lengths[i % n_lengths] */
    size_t n_lengths, n;      /* requests */
    CURLM *multi;
    qn_bench_serve_request **active; /* [n_active] */
    size_t n_active, cap_active;
    qn_bench_serve_results results;
    double next_due;
    uint64_t random;
};

void qn_bench_serve_defaults(qn_args *args)
{
    args->api = "chat";
    args->n_prompt = 512;
    args->n_generate = 128;
    args->sequences = 1;
    args->timeout = 600;
    args->format = "table";
    args->sampling.seed = 1;
}

/* ---- One request ---- */

static bool start(struct run *run, size_t n_words, size_t n_generate, uint64_t seed, double due)
{
    char *prompt = qn_bench_serve_prompt(&run->words, n_words, seed);
    qn_bench_serve_request *request =
        prompt ? qn_bench_serve_request_create(&run->target, prompt, n_generate, due) : NULL;
    qn_free(prompt);
    if (request &&
        !qn_realloc_array(&run->active, &run->cap_active, run->n_active + 1, sizeof *run->active, "requests") &&
        !curl_multi_add_handle(run->multi, qn_bench_serve_request_handle(request))) {
        run->active[run->n_active++] = request;
        return true;
    }
    qn_bench_serve_request_free(request);
    return false;
}

static void remove_request(struct run *run, qn_bench_serve_request *request)
{
    for (size_t i = 0; i < run->n_active; i++)
        if (run->active[i] == request) {
            run->active[i] = run->active[--run->n_active];
            break;
        }
    curl_multi_remove_handle(run->multi, qn_bench_serve_request_handle(request));
    qn_bench_serve_request_free(request);
}

static void count_failure(qn_bench_serve_results *r, const qn_bench_serve_answer *answer)
{
    size_t i = 0;
    while (i < r->n_failures && strcmp(r->failures[i].kind, answer->kind) != 0)
        i++;
    if (i == QN_BENCH_SERVE_KINDS)
        i--; /* too many kinds: the rest is counted as the last */
    if (i == r->n_failures) {
        r->n_failures++;
        strcpy(r->failures[i].kind, answer->kind);
        strcpy(r->failures[i].message, answer->message);
    }
    r->failures[i].count++;
    r->n_failed++;
}

static bool count_answer(qn_bench_serve_results *r, const qn_bench_serve_answer *a, double now)
{
    const uint64_t n_tokens = a->has_usage ? a->n_generated : a->n_events;
    bool ok =
        qn_bench_serve_add_time(&r->first, a->first - a->sent) && qn_bench_serve_add_time(&r->latency, now - a->sent);
    for (size_t i = 0; i < a->gaps.n && ok; i++)
        ok = qn_bench_serve_add_time(&r->gaps, a->gaps.at[i]);
    if (ok && n_tokens > 1)
        ok = qn_bench_serve_add_time(&r->per_token, (a->last - a->first) / (double)(n_tokens - 1));
    r->n_answered++;
    r->n_uncounted += !a->has_usage;
    r->n_prompt += a->n_prompt;
    r->n_cached += a->n_cached;
    r->n_generated += n_tokens;
    r->n_events += a->n_events;
    return ok;
}

/* ---- All requests ---- */

/* Sends the requests that are due. */
static bool start_due(struct run *run, double now)
{
    qn_bench_serve_results *r = &run->results;
    const bool closed = !(run->args->rate > 0);
    while (r->n_sent < run->n && now >= run->next_due) {
        const bool is_first = r->n_sent < (size_t)run->args->sequences;
        if (closed && run->n_active >= (size_t)run->args->sequences)
            return true;
        const qn_bench_length *length = &run->lengths[r->n_sent % run->n_lengths];
        if (!start(run, qn_bench_serve_words_for(&run->words, length->n_prompt), length->n_generate,
                   run->args->sampling.seed + 1000003 * (r->n_sent + 1), closed ? now : run->next_due))
            return false;
        r->n_sent++;
        if (!closed)
            run->next_due += qn_bench_interval(&run->random, (double)run->args->rate);
        else if (is_first)
            run->next_due += QN_BENCH_STAGGER;
    }
    return true;
}

/* Performs pending transfers and waits until `due` at most. */
static bool perform(struct run *run, double due)
{
    int n_running, n_left;
    const double left = 1e3 * (due - qn_seconds());
    const CURLMcode code = curl_multi_perform(run->multi, &n_running);
    if (code) {
        qn_cli_error("%s: %s", run->target.url, curl_multi_strerror(code));
        return false;
    }
    for (CURLMsg *message; (message = curl_multi_info_read(run->multi, &n_left));) {
        qn_bench_serve_request *request = NULL;
        if (message->msg != CURLMSG_DONE)
            continue;
        const double now = qn_seconds();
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&request);
        const qn_bench_serve_answer *answer = qn_bench_serve_request_end(request, message->data.result);
        const bool ok = *answer->kind || count_answer(&run->results, answer, now);
        if (*answer->kind)
            count_failure(&run->results, answer);
        remove_request(run, request);
        if (!ok)
            return qn_cli_fail() == QN_EXIT_DONE;
        n_running = -1; /* a client is free: do not wait */
    }
    if (n_running >= 0)
        curl_multi_poll(run->multi, NULL, 0, left > POLL_MS ? POLL_MS : left > 0 ? (int)left + 1 : 0, NULL);
    return true;
}

static bool send_all(struct run *run)
{
    qn_bench_serve_results *r = &run->results;
    qn_progress progress;
    bool ok = true;
    qn_progress_begin(&progress, "requests");
    const double begin = qn_seconds();
    run->next_due = begin;
    run->random = run->args->sampling.seed;
    while (ok && r->n_answered + r->n_failed < run->n) {
        if (!qn_progress_update(&progress, r->n_answered + r->n_failed, run->n))
            break;
        if (!start_due(run, qn_seconds()))
            ok = qn_cli_fail() == QN_EXIT_DONE;
        const bool waits = r->n_sent < run->n && (run->args->rate > 0 || run->n_active < (size_t)run->args->sequences);
        ok = ok && perform(run, waits ? run->next_due : qn_seconds() + 1);
    }
    r->seconds = qn_seconds() - begin;
    r->n_cancelled = run->n_active;
    qn_progress_end(&progress);
    return ok;
}

/* ---- Before it ---- */

/* Sends one request and waits for its answer. NULL: an error line was printed. */
static qn_bench_serve_request *send_one(struct run *run, size_t n_words, const qn_bench_serve_answer **answer)
{
    CURLcode code = CURLE_OK;
    int n_running = 1, n_left;
    if (!start(run, n_words, 1, run->args->sampling.seed + n_words, qn_seconds())) {
        qn_cli_fail();
        return NULL;
    }
    qn_bench_serve_request *request = run->active[0];
    while (n_running && !qn_signals_stop_requested() && !curl_multi_perform(run->multi, &n_running) && n_running)
        curl_multi_poll(run->multi, NULL, 0, POLL_MS, NULL);
    if (n_running)
        return NULL; /* after Ctrl-C */
    for (CURLMsg *message; (message = curl_multi_info_read(run->multi, &n_left));)
        code = message->data.result;
    *answer = qn_bench_serve_request_end(request, code);
    if (!*(*answer)->kind || strcmp((*answer)->kind, "no text") == 0)
        return request;
    qn_cli_error("%s: %s: %s", run->target.url, (*answer)->kind, (*answer)->message);
    return NULL;
}

/* Measures how many tokens words are for the server, with two requests that are not among the results. */
static bool measure_words(struct run *run)
{
    static const size_t n_words[2] = { 32, 160 };
    uint64_t n_tokens[2] = { 0 };
    for (int i = 0; i < 2; i++) {
        const qn_bench_serve_answer *answer;
        qn_bench_serve_request *request = send_one(run, n_words[i], &answer);
        if (!request)
            return false;
        n_tokens[i] = answer->n_prompt;
        remove_request(run, request);
    }
    qn_bench_serve_words_measured(&run->words, n_words, n_tokens);
    return true;
}

/* Sets the server's URLs from the operand, which is its URL, with or without /v1. */
static bool set_target(struct run *run)
{
    const qn_args *args = run->args;
    qn_bench_serve_target *t = &run->target;
    const char *url = args->operands[0], *const given = args->api_key ? args->api_key : getenv("QUERN_API_KEY");
    size_t length = strlen(url);
    char *key = NULL;
    while (length && url[length - 1] == '/')
        length--;
    if (length >= 3 && memcmp(url + length - 3, "/v1", 3) == 0)
        length -= 3;
    t->chat = strcmp(args->api, "chat") == 0;
    t->may_end = args->may_end;
    t->timeout = (long)args->timeout;
    bool ok = asprintf(&t->base, "%.*s", (int)length, url) >= 0 &&
              asprintf(&t->url, "%s/v1/%s", t->base, t->chat ? "chat/completions" : "completions") >= 0 &&
              asprintf(&key, "Authorization: Bearer %s", given ? given : "") >= 0;
    const char *const lines[] = { "Content-Type: application/json", "Accept: text/event-stream, application/json",
                                  "Expect:", given ? key : NULL };
    for (size_t i = 0; ok && i < sizeof lines / sizeof *lines && lines[i]; i++) {
        struct curl_slist *longer = curl_slist_append(t->headers, lines[i]);
        ok = longer != NULL;
        t->headers = longer ? longer : t->headers;
    }
    if (key)
        qn_wipe(key, strlen(key));
    free(key);
    if (args->api_key)
        qn_args_hide(args->api_key);
    if (!ok)
        qn_cli_error("no memory for requests");
    return ok;
}

static bool set_lengths(struct run *run)
{
    const qn_args *args = run->args;
    if (args->lengths) {
        if (!qn_bench_lengths(args->lengths, &run->lengths, &run->n_lengths))
            return false;
    } else {
        size_t capacity = 0;
        if (qn_realloc_array(&run->lengths, &capacity, 1, sizeof *run->lengths, "lengths of requests"))
            return qn_cli_fail() == QN_EXIT_DONE;
        run->lengths[0] = (qn_bench_length){ (size_t)args->n_prompt, (size_t)args->n_generate };
        run->n_lengths = 1;
    }
    run->n = args->requests ? (size_t)args->requests : args->lengths ? run->n_lengths : 32;
    return true;
}

static bool prepare(struct run *run)
{
    (void)qn_socket_allow(SIZE_MAX); /* with fewer, requests without a connection count as failed */
    if (curl_global_init(CURL_GLOBAL_DEFAULT) || !(run->multi = curl_multi_init()) ||
        curl_multi_setopt(run->multi, CURLMOPT_MAXCONNECTS, 4096L)) {
        qn_cli_error("libcurl cannot be initialised");
        return false;
    }
    if (!set_lengths(run) || !qn_bench_serve_words_read(&run->words, run->args->file) || !set_target(run) ||
        !qn_bench_serve_take_sampling(&run->target, run->args))
        return false;
    run->target.model = run->args->model;
    if (!run->target.model) {
        run->model = qn_bench_serve_first_model(&run->target);
        run->target.model = json_string_value(run->model);
    }
    return run->target.model && measure_words(run);
}

static void free_run(struct run *run)
{
    while (run->n_active)
        remove_request(run, run->active[0]);
    curl_multi_cleanup(run->multi);
    curl_slist_free_all(run->target.headers);
    free(run->target.base);
    free(run->target.url);
    json_decref(run->target.sampling);
    json_decref(run->target.format);
    json_decref(run->model);
    qn_bench_serve_words_free(&run->words);
    free(run->lengths);
    free(run->active);
    free(run->results.first.at);
    free(run->results.gaps.at);
    free(run->results.per_token.at);
    free(run->results.latency.at);
}

int qn_cli_bench_serve(qn_args *args)
{
    struct run run = { .args = args };
    const char *url = args->operands[0];
    if (strncasecmp(url, "http://", 7) != 0 && strncasecmp(url, "https://", 8) != 0) {
        qn_cli_error("'%s': expected the URL of a server, as in http://127.0.0.1:8080", url);
        return QN_EXIT_USAGE;
    }
    if (args->rate > 0 && args->sequences > 1) {
        qn_cli_error("--rate: cannot be used with --parallel; requests arrive independently of answers");
        return QN_EXIT_USAGE;
    }
    bool done = prepare(&run);
    if (done) {
        done = send_all(&run);
        qn_bench_serve_print(args, &run.target, &run.results, run.n);
    }
    done = done && !run.results.n_failed;
    free_run(&run);
    return done ? QN_EXIT_DONE : QN_EXIT_FAILED;
}
