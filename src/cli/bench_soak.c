/* quern bench --soak: requests that arrive over time, with lengths from a file; measures the times of their first and
 * later tokens.
 *
 * With --rate the arrivals are a Poisson process. Without it there are --parallel clients, each of which sends its next
 * request after the answer to the last one; they begin one after another. */
#include "cli/bench_arrivals.h"
#include "cli/bench_report.h"
#include "cli/progress.h"
#include "quern/scheduler.h"

#include "base/memory.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct soak;

struct soak_request {
    struct soak *soak;
    size_t n_prompt, n_generate;
    double arrival, last; /* times of the request and of its last token */
};

struct soak {
    const qn_bench *bench;
    qn_scheduler *scheduler;
    struct soak_request *requests; /* [n] */
    size_t n, longest;
    qn_token *tokens;                 /* [longest + n]: the prompt of request i begins at i */
    double *first, *gaps;             /* seconds, to the first token and between tokens */
    size_t n_first, n_gaps, cap_gaps; /* written by callbacks, which come one at a time */
    size_t n_tokens, n_failed, n_ended;
    pthread_mutex_t lock; /* protects `next` and n_ended */
    size_t next;          /* the request that the next free client sends */
    bool is_closed_loop;
};

static bool take_lengths(struct soak *s, const qn_bench_length *lengths)
{
    if (qn_alloc(&s->requests, s->n, sizeof *s->requests, "requests"))
        return qn_cli_fail() == QN_EXIT_DONE;
    for (size_t i = 0; i < s->n; i++) {
        const size_t tokens = lengths[i].n_prompt + lengths[i].n_generate;
        s->requests[i] =
            (struct soak_request){ .soak = s, .n_prompt = lengths[i].n_prompt, .n_generate = lengths[i].n_generate };
        s->longest = tokens > s->longest ? tokens : s->longest;
    }
    return true;
}

/* ---- Requests ---- */

static bool on_token(void *user, qn_token token, const qn_logprobs *logprobs)
{
    struct soak_request *r = user;
    struct soak *s = r->soak;
    const double now = qn_seconds();
    (void)token;
    (void)logprobs;
    if (r->last == 0)
        s->first[s->n_first++] = now - r->arrival;
    else if (s->n_gaps < s->cap_gaps)
        s->gaps[s->n_gaps++] = now - r->last;
    r->last = now;
    s->n_tokens++;
    return true;
}

static void submit(struct soak_request *r);

/* Counts the end of a request, and sends the next one of its client. */
static void on_end(void *user, const qn_request_result *result)
{
    struct soak_request *r = user;
    struct soak *s = r->soak;
    if (result->finish == QN_FINISH_ERROR) {
        s->n_failed++;
        qn_cli_error("%s", result->error);
    }
    pthread_mutex_lock(&s->lock);
    s->n_ended++;
    struct soak_request *next =
        s->is_closed_loop && s->next < s->n && qn_progress_update(NULL, 0, 1) ? &s->requests[s->next++] : NULL;
    pthread_mutex_unlock(&s->lock);
    if (next)
        submit(next);
}

static void submit(struct soak_request *r)
{
    struct soak *s = r->soak;
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    params.tokens = s->tokens + (r - s->requests);
    params.n_tokens = r->n_prompt;
    params.max_tokens = (int64_t)r->n_generate;
    qn_bench_sample(s->bench, qn_bench_last(s->bench), (size_t)(r - s->requests), &params);
    params.on_token = on_token;
    params.on_end = on_end;
    params.user = r;
    r->arrival = qn_seconds();
    if (qn_scheduler_submit(s->scheduler, &params, NULL)) {
        qn_cli_error("%s", qn_error_text());
        pthread_mutex_lock(&s->lock);
        s->n_failed++;
        s->n_ended++;
        pthread_mutex_unlock(&s->lock);
    }
}

static void sleep_until(double when)
{
    const double left = when - qn_seconds();
    if (left > 0)
        nanosleep(&(struct timespec){ (time_t)left, (long)((left - floor(left)) * 1e9) }, NULL);
}

/* Waits until all requests have ended, or Ctrl-C. */
static bool wait_for_all(struct soak *s, qn_progress *progress)
{
    size_t ended = 0;
    while (ended < s->n) {
        pthread_mutex_lock(&s->lock);
        ended = s->n_ended;
        pthread_mutex_unlock(&s->lock);
        if (!qn_progress_update(progress, ended, s->n))
            return false;
        sleep_until(qn_seconds() + 0.02);
    }
    return true;
}

static bool send_all(struct soak *s, size_t n_clients, qn_progress *progress)
{
    const double rate = (double)s->bench->args->rate;
    uint64_t random = 1;
    double when = qn_seconds();
    const size_t n = s->is_closed_loop && n_clients < s->n ? n_clients : s->n;
    for (size_t i = 0; i < n; i++) {
        if (!qn_progress_update(progress, i, s->n))
            return false;
        sleep_until(when);
        pthread_mutex_lock(&s->lock);
        struct soak_request *r = s->next < s->n ? &s->requests[s->next++] : NULL;
        pthread_mutex_unlock(&s->lock);
        if (r)
            submit(r);
        when += s->is_closed_loop ? QN_BENCH_STAGGER : qn_bench_interval(&random, rate);
    }
    return wait_for_all(s, progress);
}

/* ---- Results ---- */

static void print_times(const char *name, double *values, size_t n)
{
    const qn_bench_times t = qn_bench_summarize(values, n);
    printf("\"%s\":{\"mean\":%.3f,\"p50\":%.3f,\"p95\":%.3f,\"p99\":%.3f,\"max\":%.3f}", name, t.mean, t.p50, t.p95,
           t.p99, t.max);
}

static void print_results(struct soak *s, size_t n_clients, double seconds)
{
    qn_scheduler_counters c = QN_SCHEDULER_COUNTERS_INIT;
    (void)qn_scheduler_get_counters(s->scheduler, &c);
    const double rate = (double)s->n_tokens / seconds;
    if (strcmp(s->bench->args->format, "json") == 0) {
        printf("{\"test\":\"soak\",\"requests\":%zu,\"parallel\":%zu,\"rate\":%.4f,\"device\":\"%s\",\"threads\":%d,"
               "\"seconds\":%.3f,\"tok_per_s\":%.4f,\"steps\":%llu,\"longest_step_ms\":%.3f,\"set_aside\":%llu,",
               s->n, n_clients, (double)s->bench->args->rate, s->bench->info.device, s->bench->info.n_threads, seconds,
               rate, (unsigned long long)c.steps, 1e3 * c.longest_step_seconds, (unsigned long long)c.set_aside);
        print_times("ttft_ms", s->first, s->n_first);
        fputs(",", stdout);
        print_times("inter_token_ms", s->gaps, s->n_gaps);
        fputs(",", stdout);
        qn_bench_print_mode(s->bench, qn_bench_last(s->bench));
        puts("}");
        return;
    }
    qn_bench_print_modes(s->bench);
    printf("%zu requests in %.1f s, %.1f tok/s, %llu steps of %.1f ms (longest %.1f ms), %llu set aside\n", s->n,
           seconds, rate, (unsigned long long)c.steps, 1e3 * c.step_seconds / (double)c.steps,
           1e3 * c.longest_step_seconds, (unsigned long long)c.set_aside);
    qn_bench_print_times_head();
    qn_bench_print_times("first token", s->first, s->n_first);
    qn_bench_print_times("between tokens", s->gaps, s->n_gaps);
}

/* ---- The run ---- */

static int run_soak(struct soak *s, uint32_t n_clients)
{
    const qn_args *args = s->bench->args;
    const qn_scheduler_params params = { .size = sizeof(qn_scheduler_params),
                                         .kv = args->kv,
                                         .n_ctx = (uint32_t)s->longest,
                                         .max_sequences = n_clients,
                                         .max_queued = (uint32_t)s->n,
                                         .max_rows = (uint32_t)args->batch,
                                         .prefix_states = args->prefix_cache == QN_BYTES_OFF ? 0 : args->prefix_cache,
                                         .no_prefix_cache = args->prefix_cache == QN_BYTES_OFF,
                                         .prefix_host = args->prefix_host == QN_BYTES_OFF ? 0 : args->prefix_host,
                                         .no_prefix_host = args->prefix_host == QN_BYTES_OFF,
                                         .on_log = qn_cli_log_note };
    qn_progress progress;
    for (size_t i = 0; i < s->n; i++)
        s->cap_gaps += s->requests[i].n_generate;
    if (qn_alloc(&s->tokens, s->longest + s->n, sizeof *s->tokens, "token ids") ||
        qn_alloc(&s->first, s->n, sizeof *s->first, "results") ||
        qn_alloc(&s->gaps, s->cap_gaps, sizeof *s->gaps, "results") ||
        qn_scheduler_create(s->bench->model, &params, &s->scheduler))
        return qn_cli_fail();
    qn_bench_tokens(s->tokens, s->longest + s->n, s->bench->info.n_vocab, 1);
    qn_progress_begin(&progress, "soak");
    const double start = qn_seconds();
    bool done = send_all(s, n_clients, &progress);
    const double seconds = qn_seconds() - start;
    qn_progress_end(&progress);
    done = done && (!qn_scheduler_wait(s->scheduler) || qn_cli_fail() == QN_EXIT_DONE);
    if (done)
        print_results(s, n_clients, seconds);
    qn_scheduler_free(s->scheduler);
    return done && !s->n_failed ? QN_EXIT_DONE : QN_EXIT_FAILED;
}

int qn_bench_soak(const qn_bench *bench)
{
    const qn_args *args = bench->args;
    struct soak s = { .bench = bench, .is_closed_loop = !(args->rate > 0), .lock = PTHREAD_MUTEX_INITIALIZER };
    char *end = NULL;
    qn_bench_length *lengths = NULL;
    int status = QN_EXIT_FAILED;
    const unsigned long n_clients = args->parallel ? strtoul(args->parallel, &end, 10) : 0;
    if (args->parallel && (!n_clients || n_clients > 4096 || *end)) {
        qn_cli_error("--parallel: '%s' is not a number of sequences, 1 to 4096", args->parallel);
        return QN_EXIT_USAGE;
    }
    if (s.is_closed_loop && !n_clients) {
        qn_cli_error("--soak: needs --rate, requests a second, or --parallel, the number of clients");
        return QN_EXIT_USAGE;
    }
    if (qn_bench_lengths(args->soak, &lengths, &s.n) && take_lengths(&s, lengths))
        status = run_soak(&s, (uint32_t)n_clients);
    free(lengths);
    qn_free(s.requests);
    qn_free(s.tokens);
    qn_free(s.first);
    qn_free(s.gaps);
    return status;
}
