/* What a server counts, and its text for Prometheus. Names begin with quern_; those that gateways for vLLM read stand beside
 * them under their names.
 *
 * Threads: all functions may be called by any thread at any time; what is written is consistent within a number. */
#ifndef QN_SERVE_METRICS_H
#define QN_SERVE_METRICS_H

#include "quern/scheduler.h"
#include "http/bytes.h"

typedef struct qn_metrics qn_metrics;             /* of a server */
typedef struct qn_model_metrics qn_model_metrics; /* of a model that it serves */

/* qn_metrics_create - routes are [n_routes] texts such as "/v1/models", which outlive the metrics; a request has the index of
 * its own, n_routes where it has none ("other"). */
qn_status qn_metrics_create(const char *const *routes, size_t n_routes, qn_metrics **out);
void qn_metrics_free(qn_metrics *metrics); /* NULL is allowed */

/* qn_metrics_request - a request was answered. Statuses are 100 to 599; a client that went away before is 499. */
void qn_metrics_request(qn_metrics *metrics, size_t route, int status);

/* qn_metrics_connected - a connection was opened. qn_metrics_disconnected - and closed. qn_metrics_refused - it was not taken,
 * because there are too many. */
void qn_metrics_connected(qn_metrics *metrics);
void qn_metrics_disconnected(qn_metrics *metrics);
void qn_metrics_refused(qn_metrics *metrics);

qn_status qn_model_metrics_create(qn_model_metrics **out);
void qn_model_metrics_free(qn_model_metrics *metrics); /* NULL is allowed */

/* Seconds from the arrival of a request to its first token; between its tokens; to its end. */
void qn_metrics_first_token(qn_model_metrics *metrics, double seconds);
void qn_metrics_next_token(qn_model_metrics *metrics, double seconds);
void qn_metrics_latency(qn_model_metrics *metrics, double seconds);

/* qn_metrics_ended - a request of the scheduler ended, as on_end says: its tokens, and whether it was cancelled. */
void qn_metrics_ended(qn_model_metrics *metrics, const qn_request_result *result);

/* What stands in the text of one model. */
typedef struct qn_metrics_model {
    const char *name;
    const qn_model_metrics *metrics;
    qn_scheduler_counters counters;
    uint32_t page_tokens; /* tokens of a page of the KV cache, and how many pages its memory has */
    uint64_t n_pages;
    bool is_loaded;
    bool is_unused; /* never asked for: it has numbers, which are 0, but no histograms, and no cache that is known */
    uint64_t n_loads;
    uint64_t bytes; /* of memory: weights, and what contexts may take */
} qn_metrics_model;

/* qn_metrics_write - append the text of all metrics; its type is QN_METRICS_TYPE. */
#define QN_METRICS_TYPE "text/plain; version=0.0.4; charset=utf-8"
void qn_metrics_write(const qn_metrics *metrics, const qn_metrics_model *models, size_t n_models, qn_bytes *out);

#endif
