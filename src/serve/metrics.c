/* Counters and histograms, and their text for Prometheus. */
#include "serve/metrics.h"

#include "base/memory.h"
#include "protocol/protocol.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { FIRST_STATUS = 100, N_STATUSES = 500 };

typedef _Atomic uint64_t counter;

struct qn_metrics {
    const char *const *routes; /* [n_routes] */
    size_t n_routes;
    counter *requests;               /* [n_routes + 1][N_STATUSES] */
    counter opened, closed, refused; /* connections; `refused` ones were opened, too */
};

/* Upper bounds of the buckets of all histograms, in seconds. */
static const double buckets[] = { 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                  1.0,   2.5,    5.0,   10.0, 25.0,  50.0, 100, 250,  500 };
enum { N_BUCKETS = sizeof buckets / sizeof *buckets };

typedef struct histogram {
    counter counts[N_BUCKETS + 1]; /* each value in one bucket only; the last: above all buckets */
    counter nanoseconds;           /* sum of all values */
} histogram;

struct qn_model_metrics {
    histogram first_token, next_token, latency;
    counter prompt_tokens, cached_tokens, generated_tokens, ended, cancelled, failed;
};

/* Adds to a counter. Relaxed: no other memory depends on it. */
static void add(counter *c, uint64_t n)
{
    atomic_fetch_add_explicit(c, n, memory_order_relaxed);
}

static uint64_t get(const counter *c)
{
    return atomic_load_explicit(c, memory_order_relaxed);
}

/* Counts a value in its histogram. */
static void observe(histogram *h, double seconds)
{
    size_t i = 0;
    seconds = seconds > 0.0 ? fmin(seconds, 1e9) : 0.0; /* NaN becomes 0 */
    while (i < N_BUCKETS && seconds > buckets[i])
        i++;
    add(&h->counts[i], 1);
    add(&h->nanoseconds, (uint64_t)(seconds * 1e9));
}

/* ---- Counting ---- */

qn_status qn_metrics_create(const char *const *routes, size_t n_routes, qn_metrics **out)
{
    qn_metrics *metrics;
    *out = NULL;
    QN_TRY(qn_alloc(&metrics, 1, sizeof *metrics, "metrics"));
    const qn_status status = qn_alloc(&metrics->requests, n_routes + 1, N_STATUSES * sizeof(counter), "metrics");
    if (status) {
        qn_free(metrics);
        return status;
    }
    metrics->routes = routes;
    metrics->n_routes = n_routes;
    *out = metrics;
    return QN_OK;
}

void qn_metrics_free(qn_metrics *metrics)
{
    if (metrics)
        qn_free(metrics->requests);
    qn_free(metrics);
}

void qn_metrics_request(qn_metrics *metrics, size_t route, int status)
{
    if (route <= metrics->n_routes && status >= FIRST_STATUS && status < FIRST_STATUS + N_STATUSES)
        add(&metrics->requests[route * N_STATUSES + (size_t)(status - FIRST_STATUS)], 1);
}

void qn_metrics_connected(qn_metrics *metrics)
{
    add(&metrics->opened, 1);
}

void qn_metrics_disconnected(qn_metrics *metrics)
{
    add(&metrics->closed, 1);
}

void qn_metrics_refused(qn_metrics *metrics)
{
    add(&metrics->refused, 1);
}

qn_status qn_model_metrics_create(qn_model_metrics **out)
{
    return qn_alloc(out, 1, sizeof **out, "metrics");
}

void qn_model_metrics_free(qn_model_metrics *metrics)
{
    qn_free(metrics);
}

void qn_metrics_first_token(qn_model_metrics *metrics, double seconds)
{
    observe(&metrics->first_token, seconds);
}

void qn_metrics_next_token(qn_model_metrics *metrics, double seconds)
{
    observe(&metrics->next_token, seconds);
}

void qn_metrics_latency(qn_model_metrics *metrics, double seconds)
{
    observe(&metrics->latency, seconds);
}

void qn_metrics_ended(qn_model_metrics *metrics, const qn_request_result *result, bool is_first_choice)
{
    add(&metrics->ended, 1);
    add(&metrics->prompt_tokens, is_first_choice ? result->n_prompt : 0);
    add(&metrics->cached_tokens, is_first_choice ? result->n_reused : 0);
    add(&metrics->generated_tokens, result->n_generated);
    add(&metrics->cancelled, qn_is_cancelled(result));
    add(&metrics->failed, result->finish == QN_FINISH_ERROR);
}

/* ---- Text ---- */

/* Appends a text of any length: names of metrics may be longer than qn_bytes_print takes. */
static void text(qn_bytes *out, const char *t)
{
    qn_bytes_add(out, t, strlen(t));
}

/* Appends a label of the open sample, after a comma if it is not the first. The value may be any text. */
static void label(qn_bytes *out, const char *name, const char *value)
{
    const char last = out->length ? out->data[out->length - 1] : '\0';
    text(out, last == '{' ? "" : ",");
    text(out, name);
    text(out, "=\"");
    for (; *value; value++) {
        if (*value == '\n')
            text(out, "\\n");
        else if (*value == '"' || *value == '\\')
            qn_bytes_add(out, (const char[]){ '\\', *value }, 2);
        else
            qn_bytes_add(out, value, 1);
    }
    text(out, "\"");
}

/* Appends a number: an integer without a fraction. */
static void number(qn_bytes *out, double value)
{
    qn_bytes_print(out, value == floor(value) && fabs(value) < 1e15 ? "%.0f" : "%.9g", value);
}

/* Appends the two lines before the samples of a metric. type: "gauge", "counter" or "histogram". */
static void head(qn_bytes *out, const char *name, const char *type, const char *help)
{
    text(out, "# HELP ");
    text(out, name);
    text(out, " ");
    text(out, help);
    text(out, "\n# TYPE ");
    text(out, name);
    text(out, " ");
    text(out, type);
    text(out, "\n");
}

/* Writes a sample up to its labels; the first one is the model's. */
static void open_sample(qn_bytes *out, const char *name, const char *suffix, const char *model_label, const char *model)
{
    text(out, name);
    text(out, suffix);
    text(out, "{");
    label(out, model_label, model);
}

static void close_sample(qn_bytes *out, double value)
{
    text(out, "} ");
    number(out, value);
    text(out, "\n");
}

/* ---- Numbers of a model ---- */

static double of_waiting(const qn_metrics_model *m)
{
    return m->counters.queued;
}

static double of_running(const qn_metrics_model *m)
{
    return m->counters.running;
}

static double of_usage(const qn_metrics_model *m)
{
    return m->counters.memory_limit ? (double)m->counters.memory_bytes / (double)m->counters.memory_limit : 0.0;
}

static double of_memory(const qn_metrics_model *m)
{
    return (double)m->counters.memory_bytes;
}

static double of_memory_limit(const qn_metrics_model *m)
{
    return (double)m->counters.memory_limit;
}

static double of_kept_tokens(const qn_metrics_model *m)
{
    return (double)m->counters.prefix_tokens;
}

static double of_host_bytes(const qn_metrics_model *m)
{
    return (double)m->counters.prefix_host_bytes;
}

static double of_queries(const qn_metrics_model *m)
{
    return (double)m->counters.prompt_tokens;
}

static double of_hits(const qn_metrics_model *m)
{
    return (double)m->counters.reused_tokens;
}

static double of_set_aside(const qn_metrics_model *m)
{
    return (double)m->counters.set_aside;
}

static double of_steps(const qn_metrics_model *m)
{
    return (double)m->counters.steps;
}

static double of_rows(const qn_metrics_model *m)
{
    return (double)m->counters.rows;
}

static double of_step_seconds(const qn_metrics_model *m)
{
    return m->counters.step_seconds;
}

static double of_drafted(const qn_metrics_model *m)
{
    return (double)m->counters.drafted_tokens;
}

static double of_accepted(const qn_metrics_model *m)
{
    return (double)m->counters.accepted_tokens;
}

static double of_prompt_tokens(const qn_metrics_model *m)
{
    return (double)get(&m->metrics->prompt_tokens);
}

static double of_cached_tokens(const qn_metrics_model *m)
{
    return (double)get(&m->metrics->cached_tokens);
}

static double of_generated_tokens(const qn_metrics_model *m)
{
    return (double)get(&m->metrics->generated_tokens);
}

static double of_ended(const qn_metrics_model *m)
{
    return (double)get(&m->metrics->ended);
}

static double of_cancelled(const qn_metrics_model *m)
{
    return (double)get(&m->metrics->cancelled);
}

static double of_failed(const qn_metrics_model *m)
{
    return (double)get(&m->metrics->failed);
}

static double of_loaded(const qn_metrics_model *m)
{
    return m->is_loaded;
}

static double of_loads(const qn_metrics_model *m)
{
    return (double)m->n_loads;
}

static double of_bytes(const qn_metrics_model *m)
{
    return (double)m->bytes;
}

static const char gauge[] = "gauge", total[] = "counter";

static const struct model_number {
    const char *name, *vllm; /* vllm: vLLM's name, or NULL */
    const char *type, *help;
    double (*of)(const qn_metrics_model *);
} model_numbers[] = {
    { "quern_requests_waiting", "vllm:num_requests_waiting", gauge, "Requests in the queue.", of_waiting },
    { "quern_requests_running", "vllm:num_requests_running", gauge, "Requests that are evaluated.", of_running },
    { "quern_kv_cache_usage_ratio", "vllm:kv_cache_usage_perc", gauge,
      "Memory of sequences and kept prefixes that is in use, 0 to 1.", of_usage },
    { "quern_memory_bytes", NULL, gauge, "Memory of sequences and kept prefixes.", of_memory },
    { "quern_memory_limit_bytes", NULL, gauge, "Limit of that memory.", of_memory_limit },
    { "quern_prefix_tokens", NULL, gauge, "Tokens of kept prefixes.", of_kept_tokens },
    { "quern_prefix_host_bytes", NULL, gauge, "Kept prefixes in host memory.", of_host_bytes },
    { "quern_prefix_queried_tokens_total", "vllm:prefix_cache_queries_total", total,
      "Tokens of prompts that were looked up.", of_queries },
    { "quern_prefix_hit_tokens_total", "vllm:prefix_cache_hits_total", total,
      "Tokens of prompts that were found and not evaluated.", of_hits },
    { "quern_requests_set_aside_total", "vllm:num_preemptions_total", total, "Times that a request gave up its memory.",
      of_set_aside },
    { "quern_steps_total", NULL, total, "Steps of the model.", of_steps },
    { "quern_step_rows_total", NULL, total, "Rows of steps: tokens that were evaluated.", of_rows },
    { "quern_step_seconds_total", NULL, total, "Seconds in steps.", of_step_seconds },
    { "quern_drafted_tokens_total", "vllm:spec_decode_num_draft_tokens_total", total,
      "Drafted tokens that were evaluated.", of_drafted },
    { "quern_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens_total", total,
      "Of these, tokens that became part of an answer.", of_accepted },
    { "quern_prompt_tokens_total", "vllm:prompt_tokens_total", total, "Tokens of prompts of requests that have ended.",
      of_prompt_tokens },
    { "quern_cached_tokens_total", NULL, total, "Of these, tokens that were not evaluated.", of_cached_tokens },
    { "quern_generated_tokens_total", "vllm:generation_tokens_total", total, "Tokens of answers that have ended.",
      of_generated_tokens },
    { "quern_answers_total", NULL, total, "Answers that have ended; a request with n choices has n.", of_ended },
    { "quern_answers_cancelled_total", NULL, total, "Answers that were cancelled, mostly by a client that went away.",
      of_cancelled },
    { "quern_answers_failed_total", NULL, total, "Answers that ended with an error.", of_failed },
    { "quern_model_loaded", NULL, gauge, "1 for a model that is loaded, else 0.", of_loaded },
    { "quern_model_loads_total", NULL, total, "Times that the model was loaded.", of_loads },
    { "quern_model_memory_bytes", NULL, gauge,
      "Memory of the model: its weights, and the most that its contexts may use.", of_bytes },
};

static const struct model_histogram {
    const char *name, *vllm, *help;
    size_t offset;
} model_histograms[] = {
    { "quern_time_to_first_token_seconds", "vllm:time_to_first_token_seconds",
      "Seconds from the arrival of a request to its first token.", offsetof(qn_model_metrics, first_token) },
    { "quern_inter_token_latency_seconds", "vllm:inter_token_latency_seconds", "Seconds between tokens of an answer.",
      offsetof(qn_model_metrics, next_token) },
    { "quern_request_latency_seconds", "vllm:e2e_request_latency_seconds",
      "Seconds from the arrival of a request to its end.", offsetof(qn_model_metrics, latency) },
};

/* Writes one number of all models, under our own name or under vLLM's. */
static void write_number(const struct model_number *n, bool is_vllm, const qn_metrics_model *models, size_t n_models,
                         qn_bytes *out)
{
    const char *const name = is_vllm ? n->vllm : n->name;
    head(out, name, n->type, n->help);
    for (size_t i = 0; i < n_models; i++) {
        open_sample(out, name, "", is_vllm ? "model_name" : "model", models[i].name);
        close_sample(out, n->of(&models[i]));
    }
}

/* Writes a histogram of all models. Prometheus's buckets include all smaller ones, so counts are summed on the way. A
 * count that grows while it is written is in a later bucket, so that buckets never decrease. */
static void write_histogram(const struct model_histogram *h, bool is_vllm, const qn_metrics_model *models,
                            size_t n_models, qn_bytes *out)
{
    const char *const name = is_vllm ? h->vllm : h->name, *const key = is_vllm ? "model_name" : "model";
    head(out, name, "histogram", h->help);
    for (size_t i = 0; i < n_models; i++) {
        if (models[i].is_unused)
            continue;
        const histogram *values = (const histogram *)((const char *)models[i].metrics + h->offset);
        uint64_t sum = 0;
        for (size_t b = 0; b <= N_BUCKETS; b++) {
            char bound[32];
            snprintf(bound, sizeof bound, "%g", b < N_BUCKETS ? buckets[b] : 0.0);
            sum += get(&values->counts[b]);
            open_sample(out, name, "_bucket", key, models[i].name);
            label(out, "le", b < N_BUCKETS ? bound : "+Inf");
            close_sample(out, (double)sum);
        }
        open_sample(out, name, "_sum", key, models[i].name);
        close_sample(out, (double)get(&values->nanoseconds) * 1e-9);
        open_sample(out, name, "_count", key, models[i].name);
        close_sample(out, (double)sum);
    }
}

/* Writes the size of the KV cache of all models as labels, as vLLM does, under both names. */
static void write_cache(const qn_metrics_model *models, size_t n_models, qn_bytes *out)
{
    static const char *const names[] = { "quern_cache_config_info", "vllm:cache_config_info" };
    static const char *const keys[] = { "model", "model_name" };
    for (size_t k = 0; k < 2; k++) {
        head(out, names[k], gauge, "The KV cache: tokens per page, and pages in its memory.");
        for (size_t i = 0; i < n_models; i++) {
            char size[24], count[24];
            if (models[i].is_unused)
                continue;
            snprintf(size, sizeof size, "%u", (unsigned)models[i].page_tokens);
            snprintf(count, sizeof count, "%llu", (unsigned long long)models[i].n_pages);
            open_sample(out, names[k], "", keys[k], models[i].name);
            label(out, "block_size", size);
            label(out, "num_gpu_blocks", count);
            close_sample(out, 1.0);
        }
    }
}

/* ---- Numbers of the server ---- */

/* Writes vLLM's metric of adapters, which quern does not have; gateways for vLLM choose servers by it. */
static void write_adapters(qn_bytes *out)
{
    static const char name[] = "vllm:lora_requests_info";
    head(out, name, gauge, "Adapters of requests: there are none.");
    text(out, name);
    text(out, "{");
    label(out, "max_lora", "0");
    label(out, "running_lora_adapters", "");
    label(out, "waiting_lora_adapters", "");
    close_sample(out, 1.0);
}

/* Writes the counts of HTTP requests that are not 0. */
static void write_requests(const qn_metrics *metrics, qn_bytes *out)
{
    static const char name[] = "quern_http_requests_total";
    head(out, name, total, "Requests by route and status; 499: the client went away.");
    for (size_t route = 0; route <= metrics->n_routes; route++)
        for (size_t s = 0; s < N_STATUSES; s++) {
            const uint64_t n = get(&metrics->requests[route * N_STATUSES + s]);
            char status[8];
            if (!n)
                continue;
            snprintf(status, sizeof status, "%zu", s + FIRST_STATUS);
            open_sample(out, name, "", "route", route < metrics->n_routes ? metrics->routes[route] : "other");
            label(out, "status", status);
            close_sample(out, (double)n);
        }
}

/* Writes a number of the server, a metric without labels. */
static void write_plain(qn_bytes *out, const char *name, const char *type, const char *help, uint64_t value)
{
    head(out, name, type, help);
    text(out, name);
    text(out, " ");
    number(out, (double)value);
    text(out, "\n");
}

void qn_metrics_write(const qn_metrics *metrics, const qn_metrics_model *models, size_t n_models, qn_bytes *out)
{
    /* `closed` first: a connection that is opened and closed in between must not make the difference negative. */
    const uint64_t closed = get(&metrics->closed), opened = get(&metrics->opened);
    write_requests(metrics, out);
    write_plain(out, "quern_connections", gauge, "Connections that are open.", opened > closed ? opened - closed : 0);
    write_plain(out, "quern_connections_total", total, "Connections that were opened.", opened);
    write_plain(out, "quern_connections_refused_total", total, "Connections closed because there were too many.",
                get(&metrics->refused));
    for (size_t i = 0; i < sizeof model_numbers / sizeof *model_numbers; i++)
        for (int is_vllm = 0; is_vllm < 1 + (model_numbers[i].vllm != NULL); is_vllm++)
            write_number(&model_numbers[i], is_vllm, models, n_models, out);
    for (size_t i = 0; i < sizeof model_histograms / sizeof *model_histograms; i++)
        for (int is_vllm = 0; is_vllm < 2; is_vllm++)
            write_histogram(&model_histograms[i], is_vllm, models, n_models, out);
    write_cache(models, n_models, out);
    write_adapters(out);
}
