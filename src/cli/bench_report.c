/* Tables and JSON of quern bench, sampling modes, and the limit that rates are compared with. */
#include "cli/bench_report.h"

#include "cli/bench_profile.h"

#include "base/splitmix.h"
#include "cli/draft.h"
#include "cli/grammar.h"
#include "engine/read_rate.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

void qn_bench_tokens(qn_token *tokens, size_t n, uint32_t n_vocab, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        tokens[i] = (qn_token)(qn_splitmix(&seed) % n_vocab);
}

bool qn_bench_limit(const qn_bench *bench, double *rate)
{
    if (!bench->on_cpu) {
        const qn_status status = qn_model_read_rate(bench->model, rate);
        if (status == QN_ERR_UNSUPPORTED)
            *rate = 0;
        return status == QN_OK || status == QN_ERR_UNSUPPORTED;
    }
    *rate = qn_bandwidth_measure(bench->bandwidth, bench->info.n_threads);
    return true;
}

/* ---- Modes ---- */

bool qn_bench_has(const qn_bench *bench, qn_bench_mode mode)
{
    return mode == QN_BENCH_GREEDY || (mode == QN_BENCH_SAMPLED && bench->is_sampled) ||
           (mode == QN_BENCH_SCHEMA && bench->grammar) ||
           (mode == QN_BENCH_DRAFTED && qn_find_draft(bench->args) != QN_DRAFT_OFF);
}

qn_bench_mode qn_bench_compared(const qn_bench *bench, qn_bench_mode mode)
{
    return mode != QN_BENCH_SAMPLED && bench->is_sampled ? QN_BENCH_SAMPLED : QN_BENCH_GREEDY;
}

qn_bench_mode qn_bench_last(const qn_bench *bench)
{
    return bench->grammar ? QN_BENCH_SCHEMA : bench->is_sampled ? QN_BENCH_SAMPLED : QN_BENCH_GREEDY;
}

static bool samples(const qn_bench *bench, qn_bench_mode mode)
{
    return mode != QN_BENCH_GREEDY && bench->is_sampled;
}

void qn_bench_sample(const qn_bench *bench, qn_bench_mode mode, size_t index, qn_request_params *params)
{
    if (samples(bench, mode))
        params->sampling = bench->args->sampling;
    else
        params->sampling.temperature = 0;
    params->sampling.seed += index;
    params->grammar = mode == QN_BENCH_SCHEMA ? bench->grammar : NULL;
    params->jump_forward = qn_find_jump_forward(bench->args);
    params->draft = mode == QN_BENCH_DRAFTED ? qn_find_draft(bench->args) : QN_DRAFT_OFF;
    params->draft_tokens = (size_t)bench->args->draft_tokens;
    params->draft_accept = bench->args->accept;
    params->ignore_end = true;
}

/* ---- Statistics ---- */

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double qn_bench_quantile(double *values, size_t n, double q)
{
    qsort(values, n, sizeof *values, compare);
    const double at = q * (double)(n - 1);
    const size_t below = (size_t)at, above = below + 1 < n ? below + 1 : below;
    return values[below] + (at - (double)below) * (values[above] - values[below]);
}

qn_bench_times qn_bench_summarize(double *seconds, size_t n)
{
    double sum = 0;
    if (!n)
        return (qn_bench_times){ 0 };
    for (size_t i = 0; i < n; i++)
        sum += seconds[i];
    const double p50 = qn_bench_quantile(seconds, n, 0.5), p95 = qn_bench_quantile(seconds, n, 0.95),
                 p99 = qn_bench_quantile(seconds, n, 0.99);
    return (qn_bench_times){ 1e3 * sum / (double)n, 1e3 * p50, 1e3 * p95, 1e3 * p99, 1e3 * seconds[n - 1] };
}

/* ---- Printing ---- */

void qn_bench_print_times_head(void)
{
    printf("%-16s %10s %10s %10s %10s %10s\n", "milliseconds", "mean", "p50", "p95", "p99", "max");
}

void qn_bench_print_times(const char *name, double *seconds, size_t n)
{
    const qn_bench_times t = qn_bench_summarize(seconds, n);
    printf("%-16s %10.2f %10.2f %10.2f %10.2f %10.2f\n", name, t.mean, t.p50, t.p95, t.p99, t.max);
}

/* The sampling of a row belongs to its result as the model does. */
static const struct {
    const char *name;
    size_t offset;
    bool is_integer; /* int, else float */
} members[] = {
    { "temperature", offsetof(qn_sampling, temperature), false },
    { "top_k", offsetof(qn_sampling, top_k), true },
    { "top_p", offsetof(qn_sampling, top_p), false },
    { "min_p", offsetof(qn_sampling, min_p), false },
    { "typical_p", offsetof(qn_sampling, typical_p), false },
    { "top_n_sigma", offsetof(qn_sampling, top_n_sigma), false },
    { "xtc_probability", offsetof(qn_sampling, xtc_probability), false },
    { "xtc_threshold", offsetof(qn_sampling, xtc_threshold), false },
    { "mirostat", offsetof(qn_sampling, mirostat), true },
    { "mirostat_tau", offsetof(qn_sampling, mirostat_tau), false },
    { "mirostat_eta", offsetof(qn_sampling, mirostat_eta), false },
    { "dry_multiplier", offsetof(qn_sampling, dry_multiplier), false },
    { "dry_base", offsetof(qn_sampling, dry_base), false },
    { "dry_allowed_length", offsetof(qn_sampling, dry_allowed_length), true },
    { "dry_penalty_last_n", offsetof(qn_sampling, dry_penalty_last_n), true },
    { "repeat_penalty", offsetof(qn_sampling, repeat_penalty), false },
    { "repeat_last_n", offsetof(qn_sampling, repeat_last_n), true },
    { "frequency_penalty", offsetof(qn_sampling, frequency_penalty), false },
    { "presence_penalty", offsetof(qn_sampling, presence_penalty), false },
};

/* Prints ["\n",":"], on one line also in a table. Text that is not UTF-8 cannot be written as JSON. */
static void print_breakers(const qn_args *args)
{
    size_t n;
    const char *const *texts = qn_breaker_texts(args, &n);
    putchar('[');
    for (size_t i = 0; i < n; i++) {
        json_t *text = json_string(texts[i]);
        char *written = text ? json_dumps(text, JSON_ENCODE_ANY) : NULL;
        printf("%s%s", i ? "," : "", written ? written : "\"\"");
        free(written);
        json_decref(text);
    }
    putchar(']');
}

/* Prints each member as `quote`, name, `quote`, `between`, value, `after`; then the breakers and the seed. */
static void print_sampling(const qn_args *args, const char *quote, const char *between, const char *after)
{
    const qn_sampling *sampling = &args->sampling;
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        const void *value = (const char *)sampling + members[i].offset;
        printf("%s%s%s%s", quote, members[i].name, quote, between);
        if (members[i].is_integer)
            printf("%d%s", *(const int *)value, after);
        else
            printf("%g%s", (double)*(const float *)value, after);
    }
    printf("%sdry_sequence_breakers%s%s", quote, quote, between);
    print_breakers(args);
    printf("%s%sseed%s%s%llu", after, quote, quote, between, (unsigned long long)sampling->seed);
}

void qn_bench_print_mode(const qn_bench *bench, qn_bench_mode mode)
{
    json_t *path = mode == QN_BENCH_SCHEMA ? json_string(bench->args->json_schema) : NULL;
    char *text = path ? json_dumps(path, JSON_ENCODE_ANY) : NULL;
    fputs("\"sampling\":", stdout);
    if (samples(bench, mode)) {
        putchar('{');
        print_sampling(bench->args, "\"", ":", ",");
        putchar('}');
    } else {
        fputs("null", stdout);
    }
    /* A name that is not UTF-8 cannot be written as JSON. */
    printf(",\"json_schema\":%s", text ? text : mode == QN_BENCH_SCHEMA ? "\"\"" : "null");
    free(text);
    json_decref(path);
}

void qn_bench_print_modes(const qn_bench *bench)
{
    if (bench->is_sampled) {
        fputs("sampled: ", stdout);
        print_sampling(bench->args, "", " ", ", ");
        putchar('\n');
    }
    if (bench->grammar) {
        printf("schema: %s, ", bench->is_sampled ? "sampled" : "greedy");
        qn_print_escaped(stdout, bench->args->json_schema, strlen(bench->args->json_schema));
        putchar('\n');
    }
}

void qn_bench_print_head(const qn_bench *bench)
{
    if (strcmp(bench->args->format, "table") != 0)
        return;
    qn_bench_print_modes(bench);
    printf("%-18s %8s %8s %8s %26s %12s %10s %10s %10s\n", "test", "depth", "threads", "kv", "tok/s median (min..max)",
           "MB/token", "read GB/s", "of limit", "of free");
}

static bool has_free(const qn_bench_test *test)
{
    return test->decode && test->mode != QN_BENCH_GREEDY;
}

/* For decoding, the share of the limit is the bandwidth used over the bandwidth measured; a prompt reads weights once
 * per batch. */
static void print_table_line(const qn_bench *bench, qn_bench_test *test)
{
    const size_t n = (size_t)bench->args->repetitions;
    const double rate = qn_bench_quantile(test->rates, n, 0.5), limit = qn_bench_quantile(test->bandwidths, n, 0.5);
    char name[64], rates[64], read[16] = "-", of_limit[16] = "-", of_free[16] = "-", drafted[QN_DRAFT_TEXT];
    if (test->parallel > 1)
        snprintf(name, sizeof name, "%zu x %s", test->parallel, test->name);
    else
        snprintf(name, sizeof name, "%s", test->name);
    snprintf(rates, sizeof rates, "%.2f (%.2f..%.2f)", rate, test->rates[0], test->rates[n - 1]);
    if (limit > 0)
        snprintf(read, sizeof read, "%.1f", limit * 1e-9);
    if (test->decode && limit > 0)
        snprintf(of_limit, sizeof of_limit, "%.0f%%", 100 * rate * (double)test->bytes_per_token / limit);
    if (has_free(test))
        snprintf(of_free, sizeof of_free, "%.3f", qn_bench_quantile(test->of_free, n, 0.5));
    printf("%-18s %8zu %8d %8s %26s %12.1f %10s %10s %10s%s\n", name, test->depth, bench->info.n_threads, bench->kv,
           rates, (double)test->bytes_per_token * 1e-6, read, of_limit, of_free,
           qn_draft_text(test->n_decoded, 0, test->n_drafted, test->n_accepted, drafted));
    if (bench->args->profile)
        qn_bench_profile_print(&test->profile, bench->info.n_threads);
}

static void print_drafts(const qn_bench *bench, const qn_bench_test *test)
{
    const bool is_drafted = test->mode == QN_BENCH_DRAFTED;
    printf("\"draft\":\"%s\",", is_drafted ? bench->args->draft : "off");
    if (is_drafted && bench->args->accept > 0)
        printf("\"accept\":%g,", (double)bench->args->accept);
    else
        fputs("\"accept\":null,", stdout);
    printf("\"drafted\":%zu,\"accepted\":%zu,\"tokens_per_step\":%.4f,", test->n_drafted, test->n_accepted,
           qn_tokens_per_step(test->n_decoded, test->n_accepted));
}

static void print_json(const qn_bench *bench, qn_bench_test *test)
{
    const size_t n = (size_t)bench->args->repetitions;
    const double rate = qn_bench_quantile(test->rates, n, 0.5), limit = qn_bench_quantile(test->bandwidths, n, 0.5);
    printf("{\"test\":\"%s\",\"n_tokens\":%zu,\"depth\":%zu,\"threads\":%d,\"device\":\"%s\",\"kv\":\"%s\","
           "\"parallel\":%zu,\"tok_per_s\":{\"median\":%.4f,\"min\":%.4f,\"max\":%.4f},\"bytes_per_token\":%llu,",
           test->name, test->n_tokens, test->depth, bench->info.n_threads, bench->info.device, bench->kv,
           test->parallel, rate, test->rates[0], test->rates[n - 1], (unsigned long long)test->bytes_per_token);
    if (limit > 0)
        printf("\"read_gb_per_s\":%.3f,", limit * 1e-9);
    else
        fputs("\"read_gb_per_s\":null,", stdout);
    if (test->decode) {
        qn_bench_print_mode(bench, test->mode);
        if (has_free(test))
            printf(",\"of_free\":%.4f,", qn_bench_quantile(test->of_free, n, 0.5));
        else
            fputs(",\"of_free\":null,", stdout);
        print_drafts(bench, test);
    }
    if (bench->args->profile)
        qn_bench_profile_print_json(&test->profile, bench->info.n_threads);
    printf("\"peak_rss_bytes\":%llu}\n", (unsigned long long)qn_peak_rss());
}

void qn_bench_print(const qn_bench *bench, qn_bench_test *test)
{
    (strcmp(bench->args->format, "json") == 0 ? print_json : print_table_line)(bench, test);
    qn_out_flush(); /* print each result at once; main reports failures */
}
