/* Results of bench-serve as a table or as JSON. */
#include "cli/bench_report.h"
#include "cli/bench_serve.h"

#include <stdlib.h>
#include <string.h>

static json_t *times_json(qn_bench_serve_times *times)
{
    const qn_bench_times t = qn_bench_summarize(times->at, times->n);
    if (!times->n)
        return json_null();
    return json_pack("{s:f, s:f, s:f, s:f, s:f}", "mean", t.mean, "p50", t.p50, "p95", t.p95, "p99", t.p99, "max",
                     t.max);
}

static json_t *failures_json(const qn_bench_serve_results *r)
{
    json_t *failures = json_object();
    for (size_t i = 0; i < r->n_failures; i++)
        json_object_set_new(failures, r->failures[i].kind, json_integer((json_int_t)r->failures[i].count));
    return failures;
}

static double rate(uint64_t n, double seconds)
{
    return seconds > 0 ? (double)n / seconds : 0;
}

/* The server's texts are printed as valid UTF-8 that cannot control a terminal. */
static void print_json(const qn_args *args, const qn_bench_serve_target *target, qn_bench_serve_results *r, size_t n)
{
    json_t *out = json_pack(
        "{s:s, s:s, s:s, s:s, s:I, s:I, s:f, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:O, s:s?, s:s, s:I, s:I, s:I, s:o, "
        "s:o, s:o, s:o, s:o}",
        "test", "serve", "url", target->url, "model", target->model, "api", target->chat ? "chat" : "completions",
        "requests", (json_int_t)n, "parallel", (json_int_t)(args->rate > 0 ? 0 : args->sequences), "rate",
        (double)args->rate, "sent", (json_int_t)r->n_sent, "answered", (json_int_t)r->n_answered, "failed",
        (json_int_t)r->n_failed, "cancelled", (json_int_t)r->n_cancelled, "seconds", r->seconds, "requests_per_s",
        rate(r->n_answered, r->seconds), "tok_per_s", rate(r->n_generated, r->seconds), "sampling", target->sampling,
        "json_schema", args->json_schema, "counted_by", r->n_uncounted ? "events" : "usage", "prompt_tokens",
        (json_int_t)r->n_prompt, "cached_tokens", (json_int_t)r->n_cached, "completion_tokens",
        (json_int_t)r->n_generated, "ttft_ms", times_json(&r->first), "inter_token_ms", times_json(&r->gaps),
        "per_token_ms", times_json(&r->per_token), "latency_ms", times_json(&r->latency), "errors", failures_json(r));
    char *text = out ? json_dumps(out, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(8)) : NULL;
    if (text)
        puts(text);
    else
        qn_cli_error("%s: cannot write the results as JSON", target->url);
    free(text);
    json_decref(out);
}

/* Prints "sampled: temperature 1, top_k 20, seed 1; JSON by FILE", unless decoding is greedy without a schema. */
static void print_sampling(const qn_args *args, const qn_bench_serve_target *target)
{
    const char *name, *before = "sampled: ";
    json_t *value;
    if (!qn_args_has_sampling(args) && !args->json_schema)
        return;
    json_object_foreach(target->sampling, name, value)
    {
        printf("%s%s ", before, name);
        if (json_is_integer(value))
            printf("%lld", (long long)json_integer_value(value));
        else
            printf("%g", json_real_value(value));
        before = ", ";
    }
    if (args->json_schema) {
        fputs("; JSON by ", stdout);
        qn_print_escaped(stdout, args->json_schema, strlen(args->json_schema));
    }
    putchar('\n');
}

static void print_table(const qn_args *args, const qn_bench_serve_target *target, qn_bench_serve_results *r, size_t n)
{
    print_sampling(args, target);
    printf("%zu of %zu requests in %.1f s: %zu answered, %zu failed, %zu cancelled; %.2f answered a second\n",
           r->n_sent, n, r->seconds, r->n_answered, r->n_failed, r->n_cancelled, rate(r->n_answered, r->seconds));
    if (r->n_answered) {
        printf("%.1f tok/s; answers of %.1f tokens", rate(r->n_generated, r->seconds),
               (double)r->n_generated / (double)r->n_answered);
        if (!r->n_uncounted)
            printf(", prompts of %.1f (%.1f cached)", (double)r->n_prompt / (double)r->n_answered,
                   (double)r->n_cached / (double)r->n_answered);
        printf(", %.2f tokens an event\n", r->n_events ? (double)r->n_generated / (double)r->n_events : 0);
        qn_bench_print_times_head();
        qn_bench_print_times("first token", r->first.at, r->first.n);
        qn_bench_print_times("between events", r->gaps.at, r->gaps.n);
        qn_bench_print_times("a later token", r->per_token.at, r->per_token.n);
        qn_bench_print_times("whole answer", r->latency.at, r->latency.n);
    }
    for (size_t i = 0; i < r->n_failures; i++) {
        printf("%zu x %s: ", r->failures[i].count, r->failures[i].kind);
        qn_print_escaped(stdout, r->failures[i].message, strlen(r->failures[i].message));
        putchar('\n');
    }
}

void qn_bench_serve_print(const qn_args *args, const qn_bench_serve_target *target, qn_bench_serve_results *results,
                          size_t n)
{
    if (strcmp(args->format, "json") == 0)
        print_json(args, target, results, n);
    else
        print_table(args, target, results, n);
    if (results->n_uncounted)
        qn_cli_error(
            "note: the server counted no tokens for %zu of %zu answers (stream_options.include_usage); their events "
            "were counted",
            results->n_uncounted, results->n_answered);
}
