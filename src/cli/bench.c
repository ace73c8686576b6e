/* quern bench: tokens a second for a prompt and for decoding, each beside the read bandwidth of the machine or of the GPU,
 * measured between its repetitions. */
#include "cli/bench_bandwidth.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/signals.h"

#include "base/memory.h"
#include "base/splitmix.h"
#include "device/registry.h"
#include "engine/read_rate.h"

#include <stdlib.h>
#include <string.h>

struct bench {
    const qn_args *args;
    const char *kv;     /* of the session; may differ from --kv */
    const char *device; /* of the model */
};

/* One line of the result. */
struct test {
    char name[32];
    size_t n_tokens;
    bool decode;
    double rates[QN_BENCH_MAX_REPETITIONS], bandwidths[QN_BENCH_MAX_REPETITIONS]; /* tokens and bytes a second */
    uint64_t bytes_per_token;
};

void qn_bench_defaults(qn_args *args)
{
    args->n_prompt = 512;
    args->n_generate = 128;
    args->repetitions = 5;
    args->format = "table";
}

/* Token ids that look like nothing, the same ones every time. */
static void random_tokens(qn_token *tokens, size_t n, uint32_t n_vocab)
{
    uint64_t state = 1;
    for (size_t i = 0; i < n; i++)
        tokens[i] = (qn_token)(qn_splitmix(&state) % n_vocab);
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts. */
static double median(double *values, size_t n)
{
    qsort(values, n, sizeof *values, compare);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* Decodes n tokens greedily, from one given token on. */
static bool decode(qn_session *session, const qn_token *first, size_t n)
{
    qn_generate_params params = qn_generate_defaults();
    qn_generate_result result;
    params.sampling.temperature = 0;
    params.max_tokens = (int64_t)n;
    params.ignore_end = true;
    return qn_generate(session, first, 1, &params, &result) == QN_OK && result.n_generated == n;
}

/* Tokens a second of one repetition, after which the session holds `depth` tokens again; negative on failure. */
static double repeat(qn_session *session, const struct test *test, const qn_token *tokens, uint32_t depth, float *logits)
{
    const double start = qn_seconds();
    const bool done = test->decode ? decode(session, tokens, test->n_tokens)
                                   : qn_session_eval(session, tokens, test->n_tokens, QN_LOGITS_LAST, logits) == QN_OK;
    const double seconds = qn_seconds() - start;
    if (!done || qn_session_truncate(session, depth))
        return -1;
    return (double)test->n_tokens / seconds;
}

static void print_table_head(void)
{
    printf("%-10s %8s %8s %8s %26s %12s %10s %10s\n", "test", "depth", "threads", "kv", "tok/s median (min..max)", "MB/token",
           "read GB/s", "of limit");
}

/* For decoding the share of the limit is what was read over what could have been; a prompt reads weights once a batch. */
static void print_table_line(const struct bench *bench, struct test *test, int n_threads)
{
    const size_t n = (size_t)bench->args->repetitions;
    const double rate = median(test->rates, n), limit = median(test->bandwidths, n);
    char rates[64], of_limit[16] = "-";
    snprintf(rates, sizeof rates, "%.2f (%.2f..%.2f)", rate, test->rates[0], test->rates[n - 1]);
    if (test->decode && limit > 0)
        snprintf(of_limit, sizeof of_limit, "%.0f%%", 100 * rate * (double)test->bytes_per_token / limit);
    printf("%-10s %8lld %8d %8s %26s %12.1f %10.1f %10s\n", test->name, (long long)bench->args->depth, n_threads, bench->kv,
           rates, (double)test->bytes_per_token * 1e-6, limit * 1e-9, of_limit);
}

static void print_json(const struct bench *bench, struct test *test, int n_threads)
{
    const size_t n = (size_t)bench->args->repetitions;
    const double rate = median(test->rates, n), limit = median(test->bandwidths, n);
    printf("{\"test\":\"%s\",\"n_tokens\":%zu,\"depth\":%lld,\"threads\":%d,\"device\":\"%s\",\"kv\":\"%s\","
           "\"tok_per_s\":{\"median\":%.4f,\"min\":%.4f,\"max\":%.4f},\"bytes_per_token\":%llu,",
           test->name, test->n_tokens, (long long)bench->args->depth, n_threads, bench->device, bench->kv, rate, test->rates[0],
           test->rates[n - 1], (unsigned long long)test->bytes_per_token);
    if (limit > 0)
        printf("\"read_gb_per_s\":%.3f,", limit * 1e-9);
    else
        fputs("\"read_gb_per_s\":null,", stdout);
    printf("\"peak_rss_bytes\":%llu}\n", (unsigned long long)qn_peak_rss());
}

/* What reads: a model's device, or as many threads in a process of its own. */
struct limit {
    qn_model *model;
    qn_bandwidth *threads;
    int n_threads;
    bool on_cpu;
};

static bool measure_limit(const struct limit *limit, double *rate)
{
    if (!limit->on_cpu)
        return qn_model_read_rate(limit->model, rate) == QN_OK;
    *rate = qn_bandwidth_measure(limit->threads, limit->n_threads);
    return true;
}

/* All repetitions of one test on a session that holds `depth` tokens. */
static int run_test(const struct bench *bench, struct test *test, qn_session *session, const qn_token *tokens, float *logits,
                    const struct limit *limit)
{
    const size_t n = (size_t)bench->args->repetitions;
    qn_progress progress;
    qn_progress_begin(&progress, test->name);
    int status = QN_EXIT_DONE;
    for (size_t i = 0; i < n && status == QN_EXIT_DONE; i++) {
        if (!qn_progress_update(&progress, i, n))
            status = QN_EXIT_FAILED;
        else if ((test->rates[i] = repeat(session, test, tokens, (uint32_t)bench->args->depth, logits)) < 0 ||
                 !measure_limit(limit, &test->bandwidths[i]))
            status = QN_EXIT_FAILED;
    }
    qn_progress_end(&progress);
    if (status)
        return qn_cli_fail();
    if (strcmp(bench->args->format, "json") == 0)
        print_json(bench, test, limit->n_threads);
    else
        print_table_line(bench, test, limit->n_threads);
    qn_out_flush(); /* a result is there as soon as it is known; a failure is main's to report */
    return QN_EXIT_DONE;
}

static bool fill_to_depth(qn_session *session, const qn_token *tokens, size_t depth)
{
    qn_progress progress;
    qn_progress_begin(&progress, "depth");
    qn_session_on_progress(session, qn_progress_update, &progress);
    const qn_status status = qn_session_eval(session, tokens, depth, QN_LOGITS_NONE, NULL);
    qn_session_on_progress(session, NULL, NULL);
    qn_progress_end(&progress);
    return status == QN_OK;
}

static int run_tests(const struct bench *bench, qn_session *session, const qn_model_info *info, const struct limit *limit)
{
    const size_t n_prompt = (size_t)bench->args->n_prompt, n_generate = (size_t)bench->args->n_generate,
                 depth = (size_t)bench->args->depth;
    const size_t longest = n_prompt > n_generate ? n_prompt : n_generate;
    const uint64_t cache_bytes = qn_session_cache_bytes(session, (uint32_t)depth) - qn_session_cache_bytes(session, 0);
    qn_token *tokens = NULL;
    float *logits = NULL;
    struct test *test = NULL;
    int status = QN_EXIT_DONE;
    if (qn_alloc(&tokens, depth + longest, sizeof *tokens, "token ids") ||
        qn_alloc(&logits, info->n_vocab, sizeof *logits, "logits") || qn_alloc(&test, 1, sizeof *test, "results"))
        status = qn_cli_fail();
    if (status == QN_EXIT_DONE) {
        random_tokens(tokens, depth + longest, info->n_vocab);
        /* One token first, so that no test pays for reading the file. */
        if (!decode(session, tokens, 1) || qn_session_truncate(session, 0) || !fill_to_depth(session, tokens, depth) ||
            qn_session_checkpoint(session))
            status = qn_cli_fail();
    }
    if (status == QN_EXIT_DONE && strcmp(bench->args->format, "table") == 0)
        print_table_head();
    for (int decode = 0; decode < 2 && status == QN_EXIT_DONE; decode++) {
        *test = (struct test){ .n_tokens = decode ? n_generate : n_prompt, .decode = decode };
        if (!test->n_tokens)
            continue;
        snprintf(test->name, sizeof test->name, "%s%zu", decode ? "tg" : "pp", test->n_tokens);
        /* States are read by every token, and written by every 64th, or on a GPU by every one. */
        test->bytes_per_token =
            info->bytes_per_token + cache_bytes + info->recurrent_bytes + info->recurrent_bytes / (limit->on_cpu ? 64 : 1);
        status = run_test(bench, test, session, tokens + depth, logits, limit);
    }
    qn_free(tokens);
    qn_free(logits);
    qn_free(test);
    return status;
}

static int check_args(qn_args *args)
{
    qn_args_take_model(args);
    if (qn_args_no_more("bench", args, 0) != QN_ARGS_OK)
        return QN_EXIT_USAGE;
    if (!args->n_prompt && !args->n_generate) {
        qn_cli_error("-p and -n: both are 0, so there is nothing to measure");
        return QN_EXIT_USAGE;
    }
    return QN_EXIT_DONE;
}

static bool is_on_cpu(const qn_model_info *info)
{
    qn_device_name device;
    return qn_device_name_parse("device", info->device, &device) == QN_OK && device.kind == QN_DEVICE_CPU;
}

int qn_cli_bench(qn_args *args)
{
    int status = check_args(args);
    if (status)
        return status;
    struct bench bench = { .args = args };
    qn_bandwidth bandwidth;
    if (!qn_bandwidth_start(&bandwidth))
        return QN_EXIT_FAILED;
    qn_model *model = NULL;
    qn_session *session = NULL;
    status = qn_load_model(args, false, false, &model);
    if (status == QN_EXIT_DONE) {
        const int64_t longest = args->n_prompt > args->n_generate ? args->n_prompt : args->n_generate;
        status = qn_open_session(args, model, (uint32_t)(args->depth + longest), &session);
    }
    if (status == QN_EXIT_DONE) {
        const qn_model_info info = qn_model_get_info(model);
        qn_signals_session(session);
        bench.kv = qn_session_kv(session);
        bench.device = info.device;
        const struct limit limit = {
            .model = model, .threads = &bandwidth, .n_threads = info.n_threads, .on_cpu = is_on_cpu(&info)
        };
        status = run_tests(&bench, session, &info, &limit);
        qn_signals_session(NULL);
    }
    qn_session_free(session);
    qn_model_free(model);
    qn_bandwidth_stop(&bandwidth);
    return status;
}
