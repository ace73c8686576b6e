/* quern bench --parallel: prompts of N sequences, then decoding all of them, in steps of a scheduler. */
#include "cli/bench_report.h"
#include "cli/progress.h"
#include "quern/scheduler.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_LIST = 32, MAX_PARALLEL = 4096 };

/* What the callbacks of one repetition count. */
struct sequences {
    size_t n_begun, n_ended, n_wrong;
    size_t n_tokens;               /* that each is to generate */
    char error[QN_ERROR_TEXT_MAX]; /* of the first that is wrong */
};

/* One sequence: its callbacks' user. */
struct sequence {
    struct sequences *all;
    size_t n_tokens;
};

static bool count_token(void *user, qn_token token, const qn_logprobs *logprobs)
{
    struct sequence *s = user;
    (void)token;
    (void)logprobs;
    s->all->n_begun += s->n_tokens++ == 0;
    return true;
}

static void count_end(void *user, const qn_request_result *result)
{
    struct sequence *s = user;
    const char *error = NULL;
    s->all->n_ended++;
    if (result->finish != QN_FINISH_LENGTH || result->n_generated != s->all->n_tokens)
        error = *result->error ? result->error : "a sequence ended early";
    else if (result->n_set_aside)
        error = "memory: not all sequences fit at the same time; see --memory";
    if (error && !s->all->n_wrong++)
        snprintf(s->all->error, sizeof s->all->error, "%s", error);
}

/* All pointers are of one allocation each. */
struct run {
    const qn_bench *bench;
    qn_scheduler *scheduler;
    size_t n, n_prompt, n_generate;
    qn_token *tokens;
    struct sequence *sequences;
};

static bool submit_all(const struct run *run, struct sequences *all)
{
    for (size_t i = 0; i < run->n; i++) {
        qn_request_params params = qn_request_defaults();
        run->sequences[i] = (struct sequence){ .all = all };
        params.tokens = run->tokens + i * run->n_prompt;
        params.n_tokens = run->n_prompt;
        params.max_tokens = (int64_t)all->n_tokens;
        params.ignore_end = true;
        params.sampling.temperature = 0;
        params.on_token = count_token;
        params.on_end = count_end;
        params.user = &run->sequences[i];
        if (qn_scheduler_submit(run->scheduler, &params, NULL))
            return false;
    }
    return true;
}

/* Seconds until all prompts were evaluated, and from then on until all sequences had ended. */
static bool repeat(const struct run *run, double *prompt_seconds, double *decode_seconds)
{
    struct sequences all = { .n_tokens = run->n_generate + 1 };
    bool idle = false;
    const double start = qn_seconds();
    double begun = 0;
    if (!submit_all(run, &all))
        return false;
    while (!idle && !all.n_wrong && qn_progress_update(NULL, 0, 1)) {
        (void)qn_scheduler_step(run->scheduler, &idle);
        if (begun == 0 && all.n_begun == run->n)
            begun = qn_seconds();
    }
    *prompt_seconds = begun - start;
    *decode_seconds = qn_seconds() - begun;
    if (all.n_wrong)
        (void)qn_fail(QN_ERR_INVALID, "%s", all.error);
    return all.n_ended == run->n && !all.n_wrong;
}

static bool run_tests(const struct run *run, qn_bench_test *prompt, qn_bench_test *decode)
{
    const size_t n = (size_t)run->bench->args->repetitions;
    double prompt_seconds = 0, decode_seconds = 0;
    qn_progress progress;
    qn_progress_begin(&progress, decode->name);
    bool done = true;
    for (size_t i = 0; done && i < n; i++) {
        done = qn_progress_update(&progress, i, n) && repeat(run, &prompt_seconds, &decode_seconds) &&
               qn_bench_limit(run->bench, &prompt->bandwidths[i]);
        decode->bandwidths[i] = prompt->bandwidths[i];
        prompt->rates[i] = (double)(run->n * run->n_prompt) / prompt_seconds;
        decode->rates[i] = (double)(run->n * run->n_generate) / decode_seconds;
    }
    qn_progress_end(&progress);
    return done;
}

/* Bytes that decoding one token of each sequence reads and writes, a token. */
static uint64_t bytes_per_token(const struct run *run, qn_session *session)
{
    const qn_model_info *info = &run->bench->info;
    const uint64_t cache =
        qn_session_cache_bytes(session, (uint32_t)(run->n_prompt + run->n_generate / 2)) - qn_session_cache_bytes(session, 0);
    return info->bytes_per_token / run->n + cache + info->recurrent_bytes + info->recurrent_bytes / 64;
}

/* Of all repetitions. */
static void print_steps(const struct run *run, const qn_scheduler_counters *c)
{
    const double steps = (double)c->steps;
    char waits[128] = "";
    if (!run->bench->on_cpu)
        snprintf(waits, sizeof waits, ", %llu launched while the one before was in flight; %.4f ms (%.2f%%) between them",
                 (unsigned long long)c->ahead_steps, 1e3 * c->idle_seconds / steps, 100 * c->idle_seconds / c->step_seconds);
    qn_cli_error("parallel %zu: %llu steps of %.4f ms%s", run->n, (unsigned long long)c->steps, 1e3 * c->step_seconds / steps,
                 waits);
}

static int run_parallel(struct run *run, qn_session *session, qn_bench_test *tests)
{
    const qn_args *args = run->bench->args;
    const qn_scheduler_params params = {
        .kv = args->kv,
        .n_ctx = (uint32_t)(run->n_prompt + run->n_generate + 1),
        .max_sequences = (uint32_t)run->n,
        .max_queued = (uint32_t)run->n,
        .max_rows = (uint32_t)((uint64_t)args->batch > run->n || !args->batch ? (uint64_t)args->batch : run->n),
        .no_prefix_cache = true,
        .no_thread = true,
        .run_ahead = true,
        .prompts_first = true
    };
    for (int decode = 0; decode < 2; decode++) {
        tests[decode] = (qn_bench_test){ .n_tokens = decode ? run->n_generate : run->n_prompt,
                                         .depth = decode ? run->n_prompt : 0,
                                         .parallel = run->n,
                                         .decode = decode,
                                         .bytes_per_token = bytes_per_token(run, session) };
        snprintf(tests[decode].name, sizeof tests[decode].name, "%s%zu", decode ? "tg" : "pp", tests[decode].n_tokens);
    }
    if (qn_scheduler_create(run->bench->model, &params, &run->scheduler))
        return qn_cli_fail();
    const bool done = run_tests(run, &tests[0], &tests[1]);
    const qn_scheduler_counters counters = qn_scheduler_get_counters(run->scheduler);
    qn_scheduler_free(run->scheduler);
    if (!done)
        return qn_cli_fail();
    qn_bench_print(run->bench, &tests[0]);
    if (run->n_generate)
        qn_bench_print(run->bench, &tests[1]);
    if (args->verbose)
        print_steps(run, &counters);
    return QN_EXIT_DONE;
}

/* "1,8,32" */
static bool parse_list(const char *text, size_t list[MAX_LIST], size_t *n)
{
    char *end = NULL;
    for (*n = 0; *n < MAX_LIST; text = end + 1) {
        const unsigned long value = strtoul(text, &end, 10);
        if (end == text || *text < '0' || *text > '9' || !value || value > MAX_PARALLEL || (*end && *end != ','))
            return false;
        list[(*n)++] = value;
        if (!*end)
            return true;
    }
    return false;
}

int qn_bench_parallel(const qn_bench *bench)
{
    const qn_args *args = bench->args;
    size_t list[MAX_LIST], n_list, most = 0;
    qn_bench with_kv = *bench;
    struct run run = { .bench = &with_kv, .n_prompt = (size_t)args->n_prompt, .n_generate = (size_t)args->n_generate };
    qn_bench_test *tests = NULL;
    qn_session *session = NULL; /* says what a cache takes, and that it is not of the requested format */
    if (!parse_list(args->parallel, list, &n_list)) {
        qn_cli_error("--parallel: '%s' is not a list of up to %d numbers of sequences, each 1 to %d, as in 1,8,32",
                     args->parallel, MAX_LIST, MAX_PARALLEL);
        return QN_EXIT_USAGE;
    }
    if (!run.n_prompt) {
        qn_cli_error("-p: with --parallel a prompt has at least 1 token");
        return QN_EXIT_USAGE;
    }
    for (size_t i = 0; i < n_list; i++)
        most = list[i] > most ? list[i] : most;
    int status = qn_open_session(args, bench->model, 64, &session);
    if (status != QN_EXIT_DONE)
        return status;
    with_kv.kv = qn_session_kv(session);
    if (qn_alloc(&run.tokens, most * run.n_prompt, sizeof *run.tokens, "token ids") ||
        qn_alloc(&run.sequences, most, sizeof *run.sequences, "sequences") || qn_alloc(&tests, 2, sizeof *tests, "results"))
        status = qn_cli_fail();
    if (status == QN_EXIT_DONE) {
        qn_bench_tokens(run.tokens, most * run.n_prompt, bench->info.n_vocab, 1);
        qn_bench_print_head(bench);
    }
    for (size_t i = 0; i < n_list && status == QN_EXIT_DONE; i++) {
        run.n = list[i];
        status = run_parallel(&run, session, tests);
    }
    qn_session_free(session);
    qn_free(run.tokens);
    qn_free(run.sequences);
    qn_free(tests);
    return status;
}
