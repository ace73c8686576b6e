/* quern bench: measures tokens a second for a prompt, and for decoding (bench_decode.c). Each is compared with the read
 * bandwidth of the machine or the GPU, measured between the repetitions. */
#include "cli/bench_profile.h"
#include "cli/cli.h"
#include "cli/draft.h"
#include "cli/grammar.h"
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
    args->draft = "off";
    args->sampling = (qn_sampling)QN_SAMPLING_INIT;
    args->sampling.seed = 1;
}

/* ---- Prefill ---- */

/* Returns the tokens a second of one repetition, after which the session holds `depth` tokens again; negative:
 * failed. */
static double repeat(const qn_bench *bench, qn_bench_test *test, qn_session *session, const qn_token *tokens,
                     float *logits)
{
    if (!qn_bench_profile_start(bench))
        return -1;
    const double start = qn_seconds();
    const bool done = qn_session_eval(session, tokens, test->n_tokens, QN_LOGITS_LAST, logits) == QN_OK;
    const double seconds = qn_seconds() - start;
    qn_bench_profile_stop(bench, test);
    if (!done || qn_session_truncate(session, (uint32_t)test->depth))
        return -1;
    return (double)test->n_tokens / seconds;
}

/* Runs all repetitions on a session that holds `depth` tokens. */
static bool repeat_all(const qn_bench *bench, qn_bench_test *test, qn_session *session, const qn_token *tokens,
                       float *logits)
{
    const size_t n = (size_t)bench->args->repetitions;
    qn_progress progress;
    bool done = true;
    qn_progress_begin(&progress, test->name);
    for (size_t i = 0; i < n && done; i++)
        done = qn_progress_update(&progress, i, n) &&
               (test->rates[i] = repeat(bench, test, session, tokens, logits)) >= 0 &&
               qn_bench_limit(bench, &test->bandwidths[i]);
    qn_progress_end(&progress);
    return done;
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

static int run_prompt(const qn_bench *bench, qn_session *session, uint64_t bytes_per_token)
{
    const size_t n_prompt = (size_t)bench->args->n_prompt, depth = (size_t)bench->args->depth;
    qn_token *tokens = NULL;
    float *logits = NULL;
    qn_bench_test *test = NULL;
    bool done = !qn_alloc(&tokens, depth + n_prompt, sizeof *tokens, "token ids") &&
                !qn_alloc(&logits, bench->info.n_vocab, sizeof *logits, "logits") &&
                !qn_alloc(&test, 1, sizeof *test, "results");
    if (done) {
        qn_bench_tokens(tokens, depth + n_prompt, bench->info.n_vocab, 1);
        *test =
            (qn_bench_test){ .n_tokens = n_prompt, .depth = depth, .parallel = 1, .bytes_per_token = bytes_per_token };
        snprintf(test->name, sizeof test->name, "pp%zu", n_prompt);
        /* Evaluate one token first, so that no test includes reading the file. */
        done = !qn_session_eval(session, tokens, 1, QN_LOGITS_LAST, logits) && !qn_session_truncate(session, 0) &&
               fill_to_depth(session, tokens, depth) && !qn_session_checkpoint(session) &&
               repeat_all(bench, test, session, tokens + depth, logits);
    }
    if (done)
        qn_bench_print(bench, test);
    const int status = done ? QN_EXIT_DONE : qn_cli_fail();
    qn_free(tokens);
    qn_free(logits);
    qn_free(test);
    return status;
}

static int check_args(qn_args *args)
{
    qn_args_take_model(args, 0);
    if (qn_args_no_more("bench", args, 0) != QN_ARGS_OK)
        return QN_EXIT_USAGE;
    if (!args->n_prompt && !args->n_generate) {
        qn_cli_error("-p and -n: both are 0, so there is nothing to measure");
        return QN_EXIT_USAGE;
    }
    if (args->reuse && (args->soak || args->parallel)) {
        qn_cli_error("--reuse: sends one request after another and cannot be used with %s",
                     args->soak ? "--soak" : "--parallel");
        return QN_EXIT_USAGE;
    }
    if (args->reuse && !args->n_generate) {
        qn_cli_error("-n: --reuse needs at least 1 token per answer");
        return QN_EXIT_USAGE;
    }
    if ((args->parallel || args->soak || args->reuse) && args->depth) {
        qn_cli_error("-d: %s measures from an empty context; use a longer prompt, -p", args->soak       ? "--soak"
                                                                                       : args->parallel ? "--parallel"
                                                                                                        : "--reuse");
        return QN_EXIT_USAGE;
    }
    if (args->profile && (args->reuse || args->soak)) {
        qn_cli_error("--profile: cannot be used with %s", args->reuse ? "--reuse" : "--soak");
        return QN_EXIT_USAGE;
    }
    const bool is_drafted = qn_find_draft(args) != QN_DRAFT_OFF;
    if (is_drafted && (args->reuse || args->soak || !args->n_generate)) {
        qn_cli_error("--draft: %s", args->reuse  ? "--reuse measures only prompts"
                                    : args->soak ? "cannot be used with --soak"
                                                 : "at -n 0 nothing is decoded");
        return QN_EXIT_USAGE;
    }
    if (!is_drafted && (args->accept > 0 || args->draft_tokens)) {
        qn_cli_error("%s: needs --draft", args->accept > 0 ? "--accept" : "--draft-tokens");
        return QN_EXIT_USAGE;
    }
    const bool has_mode = qn_args_has_sampling(args) || args->json_schema;
    if (has_mode && (args->reuse || !args->n_generate)) {
        qn_cli_error("%s: %s", args->json_schema ? "--json-schema" : "--temp and other sampling options",
                     args->reuse ? "--reuse measures only prompts" : "at -n 0 nothing is decoded");
        return QN_EXIT_USAGE;
    }
    if (args->rate > 0 && !args->soak) {
        qn_cli_error("--rate: needs --soak");
        return QN_EXIT_USAGE;
    }
    int status = qn_check_breakers(args);
    status = status ? status : qn_check_draft(args);
    return status ? status : qn_check_grammar(args);
}

static bool is_on_cpu(const qn_model_info *info)
{
    qn_device_name device;
    return qn_device_name_parse("device", info->device, &device) == QN_OK && qn_device_is_cpu(&device);
}

/* Loads the schema. Output under a schema is text, so a model without a tokeniser is refused. */
static int load_schema(const qn_args *args, qn_model *model, qn_grammar **out)
{
    qn_token *tokens = NULL;
    size_t n;
    *out = NULL;
    if (args->json_schema && qn_tokenize(model, "", 0, false, false, &tokens, &n))
        return qn_cli_fail();
    qn_free_tokens(tokens);
    return qn_load_grammar(args, model, out);
}

/* Measures one sequence; a session evaluates the prompt. */
static int run_alone(qn_bench *bench)
{
    const qn_args *args = bench->args;
    const qn_model_info *info = &bench->info;
    qn_session *session;
    int status =
        qn_open_session(args, bench->model, args->n_prompt ? (uint32_t)(args->depth + args->n_prompt) : 64, &session);
    if (status != QN_EXIT_DONE)
        return status;
    bench->kv = qn_session_kv(session);
    const uint64_t cache_bytes =
        qn_session_cache_bytes(session, (uint32_t)args->depth) - qn_session_cache_bytes(session, 0);
    /* Recurrent states are read for every token, and written for every 64th; on a GPU for every one. */
    const uint64_t bytes_per_token =
        info->bytes_per_token + cache_bytes + info->recurrent_bytes + info->recurrent_bytes / (bench->on_cpu ? 64 : 1);
    qn_bench_print_head(bench);
    qn_signals_session(session);
    if (args->n_prompt)
        status = run_prompt(bench, session, bytes_per_token);
    qn_signals_session(NULL);
    qn_session_free(session);
    return status == QN_EXIT_DONE && args->n_generate ? qn_bench_decode(bench, bytes_per_token) : status;
}

int qn_cli_bench(qn_args *args)
{
    int status = check_args(args);
    if (status)
        return status;
    qn_bandwidth bandwidth;
    if (!qn_bandwidth_start(&bandwidth))
        return QN_EXIT_FAILED;
    qn_bench bench = { .args = args, .bandwidth = &bandwidth, .is_sampled = qn_args_has_sampling(args) };
    status = qn_load_model(args, false, false, &bench.model);
    if (status == QN_EXIT_DONE) {
        bench.info = *qn_model_get_info(bench.model);
        bench.on_cpu = is_on_cpu(&bench.info);
        status = load_schema(args, bench.model, &bench.grammar);
    }
    qn_token *breakers = NULL;
    if (status == QN_EXIT_DONE)
        status = qn_load_breakers(args, bench.model, &breakers);
    if (status == QN_EXIT_DONE)
        status = args->reuse      ? qn_bench_reuse(&bench)
                 : args->soak     ? qn_bench_soak(&bench)
                 : args->parallel ? qn_bench_parallel(&bench)
                                  : run_alone(&bench);
    qn_grammar_free(bench.grammar);
    qn_free_tokens(breakers);
    qn_model_free(bench.model);
    qn_bandwidth_stop(&bandwidth);
    return status;
}
