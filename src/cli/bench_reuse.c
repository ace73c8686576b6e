/* quern bench --reuse P,N: measures how much prefixes of earlier requests save, in tokens evaluated and in time to the
 * first token.
 *
 *   turn 1, 2      a conversation: a prompt of P tokens; then the same, its answer and N more tokens
 *   shared 1 to 3  consecutive requests that begin with the same P tokens, which nothing marks, each with N tokens of
 *                  its own
 *
 * Each repetition has other tokens. */
#include "cli/bench_report.h"
#include "cli/progress.h"
#include "quern/scheduler.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { TURNS = 2, SHARED = 3, REQUESTS = TURNS + SHARED };

static const char *const names[REQUESTS] = { "turn 1", "turn 2", "shared 1", "shared 2", "shared 3" };

/* The results of one request in all repetitions. */
struct result {
    size_t n_tokens, n_reused; /* of the prompt */
    double first[QN_BENCH_MAX_REPETITIONS];
};

struct reuse {
    const qn_bench *bench;
    qn_scheduler *scheduler;
    size_t n_prefix, n_more, n_generate;
    qn_token *tokens; /* [longest] */
    struct result results[REQUESTS];
};

/* The user pointer of the callbacks. */
struct request {
    double start, first;
    qn_token *answer; /* receives its tokens */
    size_t n_reused;
    bool is_wrong;
};

static bool on_token(void *user, qn_token token, const qn_logprobs *logprobs)
{
    struct request *r = user;
    (void)logprobs;
    if (r->first == 0)
        r->first = qn_seconds() - r->start;
    *r->answer++ = token;
    return true;
}

static void on_end(void *user, const qn_request_result *result)
{
    struct request *r = user;
    r->n_reused = result->n_reused;
    r->is_wrong = result->finish != QN_FINISH_LENGTH;
    if (r->is_wrong)
        qn_cli_error("%s", *result->error ? result->error : "a request ended early");
}

/* Sends a prompt of the first n tokens; its answer is written after them. */
static bool run_request(struct reuse *u, const char *scope, size_t n, size_t index, size_t repetition)
{
    struct result *result = &u->results[index];
    struct request r = { .start = qn_seconds(), .answer = u->tokens + n };
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    bool idle = false;
    params.scope = scope;
    params.tokens = u->tokens;
    params.n_tokens = n;
    params.max_tokens = (int64_t)u->n_generate;
    params.ignore_end = true;
    params.sampling.temperature = 0;
    params.on_token = on_token;
    params.on_end = on_end;
    params.user = &r;
    if (qn_scheduler_submit(u->scheduler, &params, NULL))
        return false;
    while (!idle && qn_progress_update(NULL, 0, 1))
        (void)qn_scheduler_step(u->scheduler, &idle);
    result->n_tokens = n;
    result->n_reused = r.n_reused;
    result->first[repetition] = r.first;
    return idle && !r.is_wrong;
}

/* Runs one repetition, in scopes of its own. */
static bool repeat(struct reuse *u, size_t repetition)
{
    const uint32_t n_vocab = u->bench->info.n_vocab;
    char scope[32];
    size_t n = u->n_prefix;
    snprintf(scope, sizeof scope, "turns %zu", repetition);
    qn_bench_tokens(u->tokens, n, n_vocab, 2 * repetition);
    if (!run_request(u, scope, n, 0, repetition))
        return false;
    n += u->n_generate;
    qn_bench_tokens(u->tokens + n, u->n_more, n_vocab, 1000 + repetition);
    if (!run_request(u, scope, n + u->n_more, 1, repetition))
        return false;
    snprintf(scope, sizeof scope, "shared %zu", repetition);
    qn_bench_tokens(u->tokens, u->n_prefix, n_vocab, 2 * repetition + 1);
    for (size_t i = 0; i < SHARED; i++) {
        qn_bench_tokens(u->tokens + u->n_prefix, u->n_more, n_vocab, 2000 + SHARED * repetition + i);
        if (!run_request(u, scope, u->n_prefix + u->n_more, TURNS + i, repetition))
            return false;
    }
    return true;
}

static void print(struct reuse *u)
{
    const bool json = strcmp(u->bench->args->format, "json") == 0;
    const size_t n = (size_t)u->bench->args->repetitions;
    if (!json)
        printf("%-10s %10s %10s %10s %32s\n", "request", "tokens", "reused", "evaluated", "first token ms (min..max)");
    for (size_t i = 0; i < REQUESTS; i++) {
        struct result *r = &u->results[i];
        const double median = 1e3 * qn_bench_quantile(r->first, n, 0.5), least = 1e3 * r->first[0],
                     most = 1e3 * r->first[n - 1];
        char times[64];
        snprintf(times, sizeof times, "%.1f (%.1f..%.1f)", median, least, most);
        if (json)
            printf("{\"test\":\"%s\",\"n_tokens\":%zu,\"reused\":%zu,\"evaluated\":%zu,\"threads\":%d,\"device\":\"%"
                   "s\",\"kv\":\"%s\",\"ttft_ms\":{\"median\":%.3f,\"min\":%.3f,\"max\":%.3f}}\n",
                   names[i], r->n_tokens, r->n_reused, r->n_tokens - r->n_reused, u->bench->info.n_threads,
                   u->bench->info.device, u->bench->kv, median, least, most);
        else
            printf("%-10s %10zu %10zu %10zu %32s\n", names[i], r->n_tokens, r->n_reused, r->n_tokens - r->n_reused,
                   times);
    }
    qn_out_flush();
}

static bool run_all(struct reuse *u)
{
    const size_t n = (size_t)u->bench->args->repetitions;
    qn_progress progress;
    qn_progress_begin(&progress, "reuse");
    bool done = true;
    for (size_t i = 0; done && i < n; i++)
        done = qn_progress_update(&progress, i, n) && repeat(u, i);
    qn_progress_end(&progress);
    if (done)
        print(u);
    return done;
}

int qn_bench_reuse(const qn_bench *bench)
{
    const qn_args *args = bench->args;
    struct reuse u = { .bench = bench, .n_generate = (size_t)args->n_generate };
    unsigned long prefix, more;
    char end;
    if (sscanf(args->reuse, "%lu,%lu%c", &prefix, &more, &end) != 2 || !prefix || !more || prefix > 1 << 24 ||
        more > 1 << 24) {
        qn_cli_error("--reuse: '%s' is not two numbers of tokens, of the prefix and after it, as in 8000,100",
                     args->reuse);
        return QN_EXIT_USAGE;
    }
    u.n_prefix = prefix;
    u.n_more = more;
    const size_t longest = u.n_prefix + u.n_more + 2 * u.n_generate;
    qn_session *session; /* prints a note if the cache has another format */
    int status = qn_open_session(args, bench->model, 64, &session);
    if (status != QN_EXIT_DONE)
        return status;
    qn_bench with_kv = *bench;
    with_kv.kv = qn_session_kv(session);
    u.bench = &with_kv;
    qn_session_free(session);
    const qn_scheduler_params params = { .size = sizeof(qn_scheduler_params),
                                         .kv = args->kv,
                                         .n_ctx = (uint32_t)longest,
                                         .max_sequences = 1,
                                         .max_rows = (uint32_t)args->batch,
                                         .no_thread = true,
                                         .prefix_states = args->prefix_cache == QN_BYTES_OFF ? 0 : args->prefix_cache,
                                         .no_prefix_cache = args->prefix_cache == QN_BYTES_OFF,
                                         .prefix_host = args->prefix_host == QN_BYTES_OFF ? 0 : args->prefix_host,
                                         .no_prefix_host = args->prefix_host == QN_BYTES_OFF };
    if (qn_alloc(&u.tokens, longest, sizeof *u.tokens, "token ids") ||
        qn_scheduler_create(bench->model, &params, &u.scheduler) || !run_all(&u))
        status = qn_cli_fail();
    qn_scheduler_free(u.scheduler);
    qn_free(u.tokens);
    return status;
}
