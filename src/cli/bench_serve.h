/* What the parts of quern bench-serve share: the run, one request and its stream of events, and the texts of prompts. */
#ifndef QN_CLI_BENCH_SERVE_H
#define QN_CLI_BENCH_SERVE_H

#include "cli/bench_arrivals.h"
#include "cli/cli.h"

#include <curl/curl.h>
#include <jansson.h>

enum { QN_SERVE_KINDS = 24, QN_SERVE_KIND_SIZE = 24, QN_SERVE_MESSAGE_SIZE = 200 };

/* How requests ended that were not answered whole. */
typedef struct qn_serve_failure {
    char kind[QN_SERVE_KIND_SIZE], message[QN_SERVE_MESSAGE_SIZE]; /* of the first of them */
    size_t count;
} qn_serve_failure;

/* Seconds, in no order. */
typedef struct qn_serve_times {
    double *at;
    size_t n, capacity;
} qn_serve_times;

/* Of requests that were answered whole, but for the counts of others. */
typedef struct qn_serve_results {
    qn_serve_times first, gaps, per_token, latency;
    size_t n_sent, n_answered, n_failed, n_cancelled;
    uint64_t n_prompt, n_cached, n_generated, n_events;
    size_t n_uncounted; /* requests whose tokens the server did not count */
    qn_serve_failure failures[QN_SERVE_KINDS];
    size_t n_failures;
    double seconds; /* from the first request to the end of the last */
} qn_serve_results;

/* ---- Texts of prompts ---- */

typedef struct qn_serve_words {
    char *text;         /* of a file; owns the words. NULL: a list of frequent words */
    const char **words; /* [n] */
    size_t n;
    double tokens_per_word, tokens_around; /* as the server counts */
} qn_serve_words;

/* qn_serve_words_read - the words of a file, or frequent words for NULL; 1 token each until qn_serve_words_measured says
 * otherwise. False with an error line. Free with qn_serve_words_free, whatever the result. */
bool qn_serve_words_read(qn_serve_words *words, const char *path);
void qn_serve_words_free(qn_serve_words *words);

/* qn_serve_words_measured - two prompts of so many words had so many tokens. */
void qn_serve_words_measured(qn_serve_words *words, const size_t n_words[2], const uint64_t n_tokens[2]);

/* qn_serve_words_for - the words of a prompt of n tokens, at least 1. */
size_t qn_serve_words_for(const qn_serve_words *words, size_t n_tokens);

/* qn_serve_prompt - n words at random, or from a random word of a file on. NULL without memory; free with qn_free. */
char *qn_serve_prompt(const qn_serve_words *words, size_t n_words, uint64_t seed);

/* ---- One request ---- */

/* What all requests have in common. */
typedef struct qn_serve_target {
    char *base, *url; /* the server's address, and that of the endpoint */
    const char *model;
    json_t *sampling, *format;  /* members of a body: temperature and the like; response_format, or NULL */
    bool chat, may_end;         /* the endpoint; may_end: the model may end an answer before its length */
    long timeout;               /* seconds */
    struct curl_slist *headers; /* of a request for events */
} qn_serve_target;

/* An answer, event by event. */
typedef struct qn_serve_answer {
    double sent, first, last; /* seconds of qn_seconds(); first and last event with text, 0 for none */
    qn_serve_times gaps;
    size_t n_events; /* with text */
    bool has_usage, has_end;
    uint64_t n_prompt, n_cached, n_generated; /* by the usage */
    char kind[QN_SERVE_KIND_SIZE];            /* of the failure; "" for none */
    char message[QN_SERVE_MESSAGE_SIZE];
} qn_serve_answer;

typedef struct qn_serve_request qn_serve_request;

/* qn_serve_request_create - a request that is ready to be performed, by CURLOPT_PRIVATE of its handle found again.
 *
 *   due   when it arrives: latencies are counted from there
 *
 * NULL without memory. Free with qn_serve_request_free. */
qn_serve_request *qn_serve_request_create(const qn_serve_target *target, const char *prompt, size_t n_generate, double due);
CURL *qn_serve_request_handle(const qn_serve_request *request);
void qn_serve_request_free(qn_serve_request *request);

/* qn_serve_request_end - what became of it, after libcurl has ended with `code`. The answer lives as long as the request. */
const qn_serve_answer *qn_serve_request_end(qn_serve_request *request, CURLcode code);

/* qn_serve_first_model - the first model that the server lists, for json_decref; NULL with an error line. */
json_t *qn_serve_first_model(const qn_serve_target *target);

/* qn_serve_add_time - false without memory. */
bool qn_serve_add_time(qn_serve_times *times, double seconds);

/* ---- What requests are sampled by ---- */

/* qn_serve_take_sampling - `sampling` and `format` of the target, by the options. The caller frees them. False with an
 * error line. */
bool qn_serve_take_sampling(qn_serve_target *target, const qn_args *args);

/* ---- Results ---- */

/* qn_serve_print - as a table or as JSON. `n`: the requests that were to be sent. */
void qn_serve_print(const qn_args *args, const qn_serve_target *target, qn_serve_results *results, size_t n);

#endif
