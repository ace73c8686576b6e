/* Tables and JSON of quern bench, and the limit that rates are compared with. */
#include "cli/bench_report.h"

#include "base/splitmix.h"
#include "engine/read_rate.h"

#include <stdlib.h>
#include <string.h>

void qn_bench_tokens(qn_token *tokens, size_t n, uint32_t n_vocab, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        tokens[i] = (qn_token)(qn_splitmix(&seed) % n_vocab);
}

bool qn_bench_limit(const qn_bench *bench, double *rate)
{
    if (!bench->on_cpu)
        return qn_model_read_rate(bench->model, rate) == QN_OK;
    *rate = qn_bandwidth_measure(bench->bandwidth, bench->info.n_threads);
    return true;
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

void qn_bench_print_head(const qn_bench *bench)
{
    if (strcmp(bench->args->format, "table") == 0)
        printf("%-10s %8s %8s %8s %26s %12s %10s %10s\n", "test", "depth", "threads", "kv", "tok/s median (min..max)",
               "MB/token", "read GB/s", "of limit");
}

/* For decoding the share of the limit is what was read over what could have been; a prompt reads weights once a batch. */
static void print_table_line(const qn_bench *bench, qn_bench_test *test)
{
    const size_t n = (size_t)bench->args->repetitions;
    const double rate = qn_bench_quantile(test->rates, n, 0.5), limit = qn_bench_quantile(test->bandwidths, n, 0.5);
    char name[64], rates[64], of_limit[16] = "-";
    if (test->parallel > 1)
        snprintf(name, sizeof name, "%zu x %s", test->parallel, test->name);
    else
        snprintf(name, sizeof name, "%s", test->name);
    snprintf(rates, sizeof rates, "%.2f (%.2f..%.2f)", rate, test->rates[0], test->rates[n - 1]);
    if (test->decode && limit > 0)
        snprintf(of_limit, sizeof of_limit, "%.0f%%", 100 * rate * (double)test->bytes_per_token / limit);
    printf("%-10s %8zu %8d %8s %26s %12.1f %10.1f %10s\n", name, test->depth, bench->info.n_threads, bench->kv, rates,
           (double)test->bytes_per_token * 1e-6, limit * 1e-9, of_limit);
}

static void print_json(const qn_bench *bench, qn_bench_test *test)
{
    const size_t n = (size_t)bench->args->repetitions;
    const double rate = qn_bench_quantile(test->rates, n, 0.5), limit = qn_bench_quantile(test->bandwidths, n, 0.5);
    printf("{\"test\":\"%s\",\"n_tokens\":%zu,\"depth\":%zu,\"threads\":%d,\"device\":\"%s\",\"kv\":\"%s\",\"parallel\":%zu,"
           "\"tok_per_s\":{\"median\":%.4f,\"min\":%.4f,\"max\":%.4f},\"bytes_per_token\":%llu,",
           test->name, test->n_tokens, test->depth, bench->info.n_threads, bench->info.device, bench->kv, test->parallel, rate,
           test->rates[0], test->rates[n - 1], (unsigned long long)test->bytes_per_token);
    if (limit > 0)
        printf("\"read_gb_per_s\":%.3f,", limit * 1e-9);
    else
        fputs("\"read_gb_per_s\":null,", stdout);
    printf("\"peak_rss_bytes\":%llu}\n", (unsigned long long)qn_peak_rss());
}

void qn_bench_print(const qn_bench *bench, qn_bench_test *test)
{
    (strcmp(bench->args->format, "json") == 0 ? print_json : print_table_line)(bench, test);
    qn_out_flush(); /* a result is there as soon as it is known; a failure is main's to report */
}
