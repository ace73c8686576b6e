/* quern bench: tokens a second for a prompt and for decoding, each beside the read bandwidth of the machine or of the GPU,
 * measured between its repetitions. */
#include "cli/bench_report.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/signals.h"

#include "base/memory.h"
#include "device/registry.h"

#include <stdlib.h>
#include <string.h>

void qn_bench_defaults(qn_args *args)
{
    args->n_prompt = 512;
    args->n_generate = 128;
    args->repetitions = 5;
    args->format = "table";
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
static double repeat(qn_session *session, const qn_bench_test *test, const qn_token *tokens, float *logits)
{
    const double start = qn_seconds();
    const bool done = test->decode ? decode(session, tokens, test->n_tokens)
                                   : qn_session_eval(session, tokens, test->n_tokens, QN_LOGITS_LAST, logits) == QN_OK;
    const double seconds = qn_seconds() - start;
    if (!done || qn_session_truncate(session, (uint32_t)test->depth))
        return -1;
    return (double)test->n_tokens / seconds;
}

/* All repetitions of one test on a session that holds `depth` tokens. */
static int run_test(const qn_bench *bench, qn_bench_test *test, qn_session *session, const qn_token *tokens, float *logits)
{
    const size_t n = (size_t)bench->args->repetitions;
    qn_progress progress;
    qn_progress_begin(&progress, test->name);
    int status = QN_EXIT_DONE;
    for (size_t i = 0; i < n && status == QN_EXIT_DONE; i++) {
        if (!qn_progress_update(&progress, i, n))
            status = QN_EXIT_FAILED;
        else if ((test->rates[i] = repeat(session, test, tokens, logits)) < 0 || !qn_bench_limit(bench, &test->bandwidths[i]))
            status = QN_EXIT_FAILED;
    }
    qn_progress_end(&progress);
    if (status)
        return qn_cli_fail();
    qn_bench_print(bench, test);
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

static int run_tests(const qn_bench *bench, qn_session *session)
{
    const size_t n_prompt = (size_t)bench->args->n_prompt, n_generate = (size_t)bench->args->n_generate,
                 depth = (size_t)bench->args->depth;
    const size_t longest = n_prompt > n_generate ? n_prompt : n_generate;
    const qn_model_info *info = &bench->info;
    const uint64_t cache_bytes = qn_session_cache_bytes(session, (uint32_t)depth) - qn_session_cache_bytes(session, 0);
    qn_token *tokens = NULL;
    float *logits = NULL;
    qn_bench_test *test = NULL;
    int status = QN_EXIT_DONE;
    if (qn_alloc(&tokens, depth + longest, sizeof *tokens, "token ids") ||
        qn_alloc(&logits, info->n_vocab, sizeof *logits, "logits") || qn_alloc(&test, 1, sizeof *test, "results"))
        status = qn_cli_fail();
    if (status == QN_EXIT_DONE) {
        qn_bench_tokens(tokens, depth + longest, info->n_vocab, 1);
        /* One token first, so that no test pays for reading the file. */
        if (!decode(session, tokens, 1) || qn_session_truncate(session, 0) || !fill_to_depth(session, tokens, depth) ||
            qn_session_checkpoint(session))
            status = qn_cli_fail();
    }
    if (status == QN_EXIT_DONE)
        qn_bench_print_head(bench);
    for (int decode = 0; decode < 2 && status == QN_EXIT_DONE; decode++) {
        *test = (qn_bench_test){ .n_tokens = decode ? n_generate : n_prompt, .depth = depth, .parallel = 1, .decode = decode };
        if (!test->n_tokens)
            continue;
        snprintf(test->name, sizeof test->name, "%s%zu", decode ? "tg" : "pp", test->n_tokens);
        /* States are read by every token, and written by every 64th, or on a GPU by every one. */
        test->bytes_per_token =
            info->bytes_per_token + cache_bytes + info->recurrent_bytes + info->recurrent_bytes / (bench->on_cpu ? 64 : 1);
        status = run_test(bench, test, session, tokens + depth, logits);
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
    if (args->reuse && (args->soak || args->parallel)) {
        qn_cli_error("--reuse: its requests come one after another, without %s", args->soak ? "--soak" : "--parallel");
        return QN_EXIT_USAGE;
    }
    if (args->reuse && !args->n_generate) {
        qn_cli_error("-n: with --reuse an answer has at least 1 token");
        return QN_EXIT_USAGE;
    }
    if ((args->parallel || args->soak || args->reuse) && args->depth) {
        qn_cli_error("-d: %s measures from an empty context; use a longer prompt, -p", args->soak       ? "--soak"
                                                                                       : args->parallel ? "--parallel"
                                                                                                        : "--reuse");
        return QN_EXIT_USAGE;
    }
    if (args->rate > 0 && !args->soak) {
        qn_cli_error("--rate: it is that of the requests of --soak");
        return QN_EXIT_USAGE;
    }
    return QN_EXIT_DONE;
}

static bool is_on_cpu(const qn_model_info *info)
{
    qn_device_name device;
    return qn_device_name_parse("device", info->device, &device) == QN_OK && device.kind == QN_DEVICE_CPU;
}

/* One session. */
static int run_alone(qn_bench *bench)
{
    const qn_args *args = bench->args;
    const int64_t longest = args->n_prompt > args->n_generate ? args->n_prompt : args->n_generate;
    qn_session *session;
    int status = qn_open_session(args, bench->model, (uint32_t)(args->depth + longest), &session);
    if (status != QN_EXIT_DONE)
        return status;
    qn_signals_session(session);
    bench->kv = qn_session_kv(session);
    status = run_tests(bench, session);
    qn_signals_session(NULL);
    qn_session_free(session);
    return status;
}

int qn_cli_bench(qn_args *args)
{
    int status = check_args(args);
    if (status)
        return status;
    qn_bandwidth bandwidth;
    if (!qn_bandwidth_start(&bandwidth))
        return QN_EXIT_FAILED;
    qn_bench bench = { .args = args, .bandwidth = &bandwidth };
    status = qn_load_model(args, false, false, &bench.model);
    if (status == QN_EXIT_DONE) {
        bench.info = qn_model_get_info(bench.model);
        bench.on_cpu = is_on_cpu(&bench.info);
        status = args->reuse      ? qn_bench_reuse(&bench)
                 : args->soak     ? qn_bench_soak(&bench)
                 : args->parallel ? qn_bench_parallel(&bench)
                                  : run_alone(&bench);
    }
    qn_model_free(bench.model);
    qn_bandwidth_stop(&bandwidth);
    return status;
}
