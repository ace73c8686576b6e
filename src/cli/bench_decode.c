/* quern bench, decoding: requests to a scheduler, as a server makes them, of one sequence at a depth or of those of
 * --parallel after their prompts. Greedy decoding and, by the options, sampled decoding and decoding under a JSON
 * schema are measured in turn. */
#include "cli/bench_profile.h"
#include "cli/progress.h"
#include "quern/scheduler.h"

#include "base/memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_LIST = 32, MAX_PARALLEL = 4096, MAX_ROWS = 1 + QN_BENCH_MODES, POLL_NS = 20000000 };

struct run;

/* The user pointer of one sequence's callbacks. */
struct sequence {
    struct run *run;
    bool has_begun;
};

/* Sequences that decode together. Callbacks write under `lock`; they may still be called while the scheduler is freed,
 * so this outlives it. */
struct run {
    const qn_bench *bench;
    qn_scheduler *scheduler;
    size_t n, n_prompt, n_generate;
    size_t repetition; /* its number: each has seeds of its own, so that what is accepted is not one sample of it */
    uint64_t bytes_per_token;
    qn_token *tokens; /* [n][n_prompt] */
    struct sequence *sequences;
    qn_request_params *params; /* [n] */
    qn_bench_test *tests;      /* [MAX_ROWS]: prompts, then a row per mode */

    pthread_mutex_t lock;
    pthread_cond_t has_ended;
    size_t n_begun, n_ended, n_wrong;
    size_t n_decoded, n_drafted, n_accepted; /* tokens */
    size_t n_tokens;                         /* that each sequence generates */
    double begun, ended;                     /* when the last sequence had */
    char error[QN_ERROR_TEXT_MAX];           /* of the first sequence that failed */
};

static bool count_token(void *user, qn_token token, const qn_logprobs *logprobs)
{
    struct sequence *s = user;
    struct run *run = s->run;
    (void)token;
    (void)logprobs;
    if (s->has_begun)
        return true;
    const double now = qn_seconds();
    s->has_begun = true;
    pthread_mutex_lock(&run->lock);
    if (++run->n_begun == run->n)
        run->begun = now;
    pthread_mutex_unlock(&run->lock);
    return true;
}

static void count_end(void *user, const qn_request_result *result)
{
    struct run *run = ((struct sequence *)user)->run;
    const double now = qn_seconds();
    const char *error = NULL;
    if (result->finish != QN_FINISH_LENGTH || result->n_generated != run->n_tokens)
        error = *result->error ? result->error : "a sequence ended early";
    else if (result->n_set_aside)
        error = "the sequences do not fit in memory at the same time; see --memory";
    pthread_mutex_lock(&run->lock);
    run->n_decoded += result->n_generated;
    run->n_drafted += result->n_drafted;
    run->n_accepted += result->n_accepted;
    if (error && !run->n_wrong++)
        snprintf(run->error, sizeof run->error, "%s", error);
    if (++run->n_ended == run->n)
        run->ended = now;
    pthread_cond_signal(&run->has_ended);
    pthread_mutex_unlock(&run->lock);
}

/* ---- One repetition ---- */

static bool submit_all(struct run *run, qn_bench_mode mode)
{
    for (size_t i = 0; i < run->n; i++) {
        qn_request_params *params = &run->params[i];
        run->sequences[i] = (struct sequence){ .run = run };
        *params = (qn_request_params)QN_REQUEST_PARAMS_INIT;
        qn_bench_sample(run->bench, mode, run->repetition * run->n + i, params);
        params->tokens = run->tokens + i * run->n_prompt;
        params->n_tokens = run->n_prompt;
        params->max_tokens = (int64_t)run->n_tokens;
        params->on_token = count_token;
        params->on_end = count_end;
        params->user = &run->sequences[i];
    }
    return qn_scheduler_submit_all(run->scheduler, run->params, run->n, NULL, NULL) == QN_OK;
}

/* Waits for a while, or for an end. The caller holds the lock. */
static void wait_for_end(struct run *run)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += POLL_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&run->has_ended, &run->lock, &until);
}

/* Runs all sequences once and measures the tokens after their first. `filling` shows the progress of a long prompt;
 * NULL: none. False: Ctrl-C, or an error text. */
static bool repeat(struct run *run, qn_bench_mode mode, size_t n_generate, qn_progress *filling, double *prompt_seconds,
                   double *decode_seconds)
{
    qn_scheduler_counters counters = QN_SCHEDULER_COUNTERS_INIT;
    bool goes_on = true;
    run->n_begun = run->n_ended = run->n_wrong = 0;
    run->n_decoded = run->n_drafted = run->n_accepted = 0;
    run->n_tokens = n_generate + 1;
    const double start = qn_seconds();
    if (!submit_all(run, mode))
        return false;
    pthread_mutex_lock(&run->lock);
    while (goes_on && run->n_ended < run->n && !run->n_wrong) {
        wait_for_end(run);
        pthread_mutex_unlock(&run->lock);
        if (filling)
            (void)qn_scheduler_get_counters(run->scheduler, &counters);
        goes_on = qn_progress_update(filling, counters.rows < run->n_prompt ? (size_t)counters.rows : run->n_prompt,
                                     run->n_prompt);
        pthread_mutex_lock(&run->lock);
    }
    *prompt_seconds = run->begun - start;
    *decode_seconds = run->ended - run->begun;
    if (run->n_wrong)
        (void)qn_fail(QN_ERR_INVALID, "%s", run->error);
    const bool done = run->n_ended == run->n && !run->n_wrong;
    pthread_mutex_unlock(&run->lock);
    return done;
}

/* ---- All repetitions ---- */

static bool repeat_all(struct run *run)
{
    const qn_bench *bench = run->bench;
    const size_t n = (size_t)bench->args->repetitions;
    qn_bench_test *prompt = &run->tests[0];
    double prompt_seconds = 0, decode_seconds = 0;
    qn_progress progress;
    bool done = true;
    qn_progress_begin(&progress, run->tests[1].name);
    for (size_t i = 0; done && i < n; i++) {
        run->repetition = i;
        done = qn_progress_update(&progress, i, n) && qn_bench_limit(bench, &prompt->bandwidths[i]);
        for (qn_bench_mode mode = QN_BENCH_GREEDY; done && mode < QN_BENCH_MODES; mode++) {
            qn_bench_test *test = &run->tests[1 + mode];
            if (!qn_bench_has(bench, mode))
                continue;
            done = qn_bench_profile_start(bench) &&
                   repeat(run, mode, run->n_generate, NULL, &prompt_seconds, &decode_seconds);
            qn_bench_profile_stop(bench, test);
            test->n_decoded += run->n_decoded;
            test->n_drafted += run->n_drafted;
            test->n_accepted += run->n_accepted;
            test->bandwidths[i] = prompt->bandwidths[i];
            test->rates[i] = (double)(run->n * run->n_generate) / decode_seconds;
            if (mode == QN_BENCH_GREEDY)
                prompt->rates[i] = (double)(run->n * run->n_prompt) / prompt_seconds;
            else
                test->of_free[i] = test->rates[i] / run->tests[1 + qn_bench_compared(bench, mode)].rates[i];
        }
    }
    qn_progress_end(&progress);
    return done;
}

static void name_tests(struct run *run)
{
    static const char *const suffixes[] = { "", " sampled", " schema", " draft" };
    const qn_bench_test common = { .parallel = run->n, .bytes_per_token = run->bytes_per_token };
    run->tests[0] = common;
    run->tests[0].n_tokens = run->n_prompt;
    snprintf(run->tests[0].name, sizeof run->tests[0].name, "pp%zu", run->n_prompt);
    for (qn_bench_mode mode = QN_BENCH_GREEDY; mode < QN_BENCH_MODES; mode++) {
        qn_bench_test *test = &run->tests[1 + mode];
        *test = common;
        test->n_tokens = run->n_generate;
        test->decode = true;
        test->mode = mode;
        snprintf(test->name, sizeof test->name, "tg%zu%s", run->n_generate, suffixes[mode]);
    }
}

/* Prints numbers of the steps of all repetitions. */
static void print_steps(const struct run *run)
{
    qn_scheduler_counters c = QN_SCHEDULER_COUNTERS_INIT;
    (void)qn_scheduler_get_counters(run->scheduler, &c);
    const double steps = (double)c.steps;
    char waits[128] = "";
    if (!run->bench->on_cpu)
        snprintf(
            waits, sizeof waits, ", %llu launched while the one before was in flight; %.4f ms (%.2f%%) between them",
            (unsigned long long)c.ahead_steps, 1e3 * c.idle_seconds / steps, 100 * c.idle_seconds / c.step_seconds);
    qn_cli_error("parallel %zu: %llu steps of %.4f ms%s", run->n, (unsigned long long)c.steps,
                 1e3 * c.step_seconds / steps, waits);
    if (c.draft_passes)
        qn_cli_error("parallel %zu: of the steps' time %llu draft passes of %.4f ms", run->n,
                     (unsigned long long)c.draft_passes, 1e3 * c.draft_seconds / (double)c.draft_passes);
}

static void print_rows(const struct run *run)
{
    for (qn_bench_mode mode = QN_BENCH_GREEDY; mode < QN_BENCH_MODES && run->n_generate; mode++)
        if (qn_bench_has(run->bench, mode))
            qn_bench_print(run->bench, &run->tests[1 + mode]);
}

static bool alloc_run(struct run *run, size_t most)
{
    size_t n_tokens;
    if (!qn_mul_size(most, run->n_prompt, &n_tokens))
        return qn_fail(QN_ERR_MEMORY, "token ids: they do not fit in memory") == QN_OK;
    if (qn_alloc(&run->tokens, n_tokens, sizeof *run->tokens, "token ids") ||
        qn_alloc(&run->sequences, most, sizeof *run->sequences, "sequences") ||
        qn_alloc(&run->params, most, sizeof *run->params, "requests") ||
        qn_alloc(&run->tests, MAX_ROWS, sizeof *run->tests, "results"))
        return false;
    qn_bench_tokens(run->tokens, n_tokens, run->bench->info.n_vocab, 1);
    return true;
}

static void free_run(struct run *run)
{
    qn_free(run->tokens);
    qn_free(run->sequences);
    qn_free(run->params);
    qn_free(run->tests);
}

/* ---- One sequence ---- */

int qn_bench_decode(const qn_bench *bench, uint64_t bytes_per_token)
{
    const qn_args *args = bench->args;
    struct run run = { .bench = bench,
                       .n = 1,
                       .n_prompt = (size_t)args->depth + 1, /* the logits of the last one give the first token */
                       .n_generate = (size_t)args->n_generate,
                       .bytes_per_token = bytes_per_token,
                       .lock = PTHREAD_MUTEX_INITIALIZER,
                       .has_ended = PTHREAD_COND_INITIALIZER };
    const qn_scheduler_params params = { .size = sizeof(qn_scheduler_params),
                                         .kv = args->kv,
                                         .n_ctx = (uint32_t)(run.n_prompt + run.n_generate + 1),
                                         .max_sequences = 1,
                                         .max_rows = (uint32_t)args->batch };
    double prompt_seconds, decode_seconds;
    qn_progress progress;
    bool done = alloc_run(&run, 1) && !qn_scheduler_create(bench->model, &params, &run.scheduler);
    if (done) {
        name_tests(&run);
        for (size_t i = 1; i < MAX_ROWS; i++)
            run.tests[i].depth = (size_t)args->depth;
        /* Answer one request first, so that no test includes reading the file, and later requests reuse the kept
         * prefix. */
        qn_progress_begin(&progress, "depth");
        done = repeat(&run, QN_BENCH_GREEDY, 0, args->depth ? &progress : NULL, &prompt_seconds, &decode_seconds);
        qn_progress_end(&progress);
    }
    done = done && repeat_all(&run);
    if (done)
        print_rows(&run);
    if (done && args->verbose)
        print_steps(&run);
    const int status = done ? QN_EXIT_DONE : qn_cli_fail();
    qn_scheduler_free(run.scheduler);
    free_run(&run);
    return status;
}

/* ---- --parallel ---- */

/* Returns the bytes per token that decoding one token of each sequence reads and writes. */
static uint64_t parallel_bytes(const struct run *run, qn_session *session)
{
    const qn_model_info *info = &run->bench->info;
    const uint64_t cache = qn_session_cache_bytes(session, (uint32_t)(run->n_prompt + run->n_generate / 2)) -
                           qn_session_cache_bytes(session, 0);
    return info->bytes_per_token / run->n + cache + info->recurrent_bytes + info->recurrent_bytes / 64;
}

static int run_parallel(struct run *run, qn_session *session)
{
    const qn_args *args = run->bench->args;
    const qn_scheduler_params params = {
        .size = sizeof(qn_scheduler_params),
        .kv = args->kv,
        .n_ctx = (uint32_t)(run->n_prompt + run->n_generate + 1),
        .max_sequences = (uint32_t)run->n,
        .max_queued = (uint32_t)run->n,
        .max_rows = (uint32_t)((uint64_t)args->batch > run->n || !args->batch ? (uint64_t)args->batch : run->n),
        .no_prefix_cache = true,
        .prompts_first = true
    };
    run->bytes_per_token = parallel_bytes(run, session);
    name_tests(run);
    for (size_t i = 1; i < MAX_ROWS; i++)
        run->tests[i].depth = run->n_prompt;
    if (qn_scheduler_create(run->bench->model, &params, &run->scheduler))
        return qn_cli_fail();
    const bool done = repeat_all(run);
    if (done) {
        qn_bench_print(run->bench, &run->tests[0]);
        print_rows(run);
    }
    if (done && args->verbose)
        print_steps(run);
    const int status = done ? QN_EXIT_DONE : qn_cli_fail();
    qn_scheduler_free(run->scheduler);
    return status;
}

/* Parses "1,8,32". */
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
    struct run run = { .bench = &with_kv,
                       .n_prompt = (size_t)args->n_prompt,
                       .n_generate = (size_t)args->n_generate,
                       .lock = PTHREAD_MUTEX_INITIALIZER,
                       .has_ended = PTHREAD_COND_INITIALIZER };
    qn_session *session = NULL; /* gives the size of a cache, and a note if its format is another one */
    if (!parse_list(args->parallel, list, &n_list)) {
        qn_cli_error("--parallel: '%s' is not a list of up to %d numbers of sequences, each 1 to %d, as in 1,8,32",
                     args->parallel, MAX_LIST, MAX_PARALLEL);
        return QN_EXIT_USAGE;
    }
    if (!run.n_prompt) {
        qn_cli_error("-p: --parallel needs at least 1 token per prompt");
        return QN_EXIT_USAGE;
    }
    for (size_t i = 0; i < n_list; i++)
        most = list[i] > most ? list[i] : most;
    int status = qn_open_session(args, bench->model, 64, &session);
    if (status != QN_EXIT_DONE)
        return status;
    with_kv.kv = qn_session_kv(session);
    if (!alloc_run(&run, most))
        status = qn_cli_fail();
    if (status == QN_EXIT_DONE)
        qn_bench_print_head(bench);
    for (size_t i = 0; i < n_list && status == QN_EXIT_DONE; i++) {
        run.n = list[i];
        status = run_parallel(&run, session);
    }
    qn_session_free(session);
    free_run(&run);
    return status;
}
