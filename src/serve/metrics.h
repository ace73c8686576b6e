/* The server's counters, and their text for Prometheus. Names begin with quern_; aliases with vLLM's names are exported
 * too, for gateways.
 *
 * Threads: any, at any time, without a lock. Each number that is counted here only grows, and is read and written in
 * one piece; two numbers of one text may be of different moments. Times are in seconds. */
#ifndef QN_SERVE_METRICS_H
#define QN_SERVE_METRICS_H

#include "quern/scheduler.h"
#include "http/bytes.h"

typedef struct qn_metrics qn_metrics;             /* of a server */
typedef struct qn_model_metrics qn_model_metrics; /* of a model that it serves */

/* qn_metrics_create - routes [n_routes] are texts such as "/v1/models" and outlive the metrics. A request is counted by
 * the index of its route; n_routes is "other". Free it with qn_metrics_free. QN_ERR_MEMORY. */
qn_status qn_metrics_create(const char *const *routes, size_t n_routes, qn_metrics **out);
void qn_metrics_free(qn_metrics *metrics); /* NULL is allowed */

/* qn_metrics_request - count an answered request. The status is 100 to 599; 499: the client disconnected before. */
void qn_metrics_request(qn_metrics *metrics, size_t route, int status);

/* qn_metrics_connected - count a connection that was opened. */
void qn_metrics_connected(qn_metrics *metrics);

/* qn_metrics_disconnected - count a connection that was closed. */
void qn_metrics_disconnected(qn_metrics *metrics);

/* qn_metrics_refused - count a connection that was closed because there were too many. */
void qn_metrics_refused(qn_metrics *metrics);

/* qn_model_metrics_create - free it with qn_model_metrics_free. QN_ERR_MEMORY. */
qn_status qn_model_metrics_create(qn_model_metrics **out);
void qn_model_metrics_free(qn_model_metrics *metrics); /* NULL is allowed */

/* qn_metrics_first_token - count the seconds from the arrival of a request to its first token. */
void qn_metrics_first_token(qn_model_metrics *metrics, double seconds);

/* qn_metrics_next_token - count the seconds between two tokens of an answer. */
void qn_metrics_next_token(qn_model_metrics *metrics, double seconds);

/* qn_metrics_latency - count the seconds from the arrival of a request to its end. */
void qn_metrics_latency(qn_model_metrics *metrics, double seconds);

/* qn_metrics_ended - count an ended scheduler request by its on_end result: its tokens, cancelled or failed. The
 * choices of a prompt have one request each, whose first counts the prompt. */
void qn_metrics_ended(qn_model_metrics *metrics, const qn_request_result *result, bool is_first_choice);

/* The numbers of one model from which qn_metrics_write makes text. Borrowed for the call. `metrics` are counted by this
 * server; `counters` by the schedulers of the model, summed over all its loads. */
typedef struct qn_metrics_model {
    const char *name;
    const qn_model_metrics *metrics;
    qn_scheduler_counters counters;
    uint32_t page_tokens; /* tokens per page of the KV cache */
    uint64_t n_pages;     /* pages in its memory */
    bool is_loaded;
    bool is_unused; /* never requested: its numbers are 0, it has no histograms, and its cache is unknown */
    uint64_t n_loads;
    uint64_t bytes; /* of memory: weights, and the most that contexts may use */
} qn_metrics_model;

/* qn_metrics_write - append the text of all metrics, whose media type is QN_METRICS_TYPE. models [n_models]. */
#define QN_METRICS_TYPE "text/plain; version=0.0.4; charset=utf-8"
void qn_metrics_write(const qn_metrics *metrics, const qn_metrics_model *models, size_t n_models, qn_bytes *out);

#endif
