/* Shared by the parts of quern bench-serve: the run, one HTTP request and its stream of events, the texts of
 * prompts. */
#ifndef QN_CLI_BENCH_SERVE_H
#define QN_CLI_BENCH_SERVE_H

#include "cli/bench_arrivals.h"
#include "cli/cli.h"

#include <curl/curl.h>
#include <jansson.h>

enum { QN_BENCH_SERVE_KINDS = 24, QN_BENCH_SERVE_KIND_SIZE = 24, QN_BENCH_SERVE_MESSAGE_SIZE = 200 };

/* Failed requests of one kind. */
typedef struct qn_bench_serve_failure {
    char kind[QN_BENCH_SERVE_KIND_SIZE], message[QN_BENCH_SERVE_MESSAGE_SIZE]; /* of the first one */
    size_t count;
} qn_bench_serve_failure;

/* Seconds, unordered. */
typedef struct qn_bench_serve_times {
    double *at;
    size_t n, capacity;
} qn_bench_serve_times;

/* Results. Times and tokens are those of requests that were answered completely. */
typedef struct qn_bench_serve_results {
    qn_bench_serve_times first, gaps, per_token, latency;
    size_t n_sent, n_answered, n_failed, n_cancelled;
    uint64_t n_prompt, n_cached, n_generated, n_events;
    size_t n_uncounted; /* requests whose tokens the server did not count */
    qn_bench_serve_failure failures[QN_BENCH_SERVE_KINDS];
    size_t n_failures;
    double seconds; /* from the first request to the end of the last */
} qn_bench_serve_results;

/* ---- Texts of prompts ---- */

typedef struct qn_bench_serve_words {
    char *text;         /* the file's text, which the words point into; NULL: frequent words */
    const char **words; /* [n] */
    size_t n;
    double tokens_per_word, tokens_around; /* as counted by the server */
} qn_bench_serve_words;

/* qn_bench_serve_words_read - read the words of a file; path NULL: frequent words. A word counts as 1 token until
 * qn_bench_serve_words_measured. Free them with qn_bench_serve_words_free in either case. False: an error line was
 * printed. */
bool qn_bench_serve_words_read(qn_bench_serve_words *words, const char *path);
void qn_bench_serve_words_free(qn_bench_serve_words *words);

/* qn_bench_serve_words_measured - set the tokens per word from two prompts, of n_words[i] words and n_tokens[i]
 * tokens. */
void qn_bench_serve_words_measured(qn_bench_serve_words *words, const size_t n_words[2], const uint64_t n_tokens[2]);

/* qn_bench_serve_words_for - returns the number of words of a prompt of n_tokens tokens, at least 1. */
size_t qn_bench_serve_words_for(const qn_bench_serve_words *words, size_t n_tokens);

/* qn_bench_serve_prompt - returns n_words random words, or consecutive words of the file from a random one on. Free it
 * with qn_free. NULL: no memory. */
char *qn_bench_serve_prompt(const qn_bench_serve_words *words, size_t n_words, uint64_t seed);

/* ---- One request ---- */

/* The values that all requests share. */
typedef struct qn_bench_serve_target {
    char *base, *url; /* URLs of the server and of the endpoint */
    const char *model;
    json_t *sampling, *format;  /* members of bodies: temperature and so on; response_format, or NULL */
    bool chat, may_end;         /* the endpoint; may_end: the model may end an answer before its length */
    long timeout;               /* seconds */
    struct curl_slist *headers; /* of requests for event streams */
} qn_bench_serve_target;

/* An answer, event by event. */
typedef struct qn_bench_serve_answer {
    double sent, first, last; /* qn_seconds(); of the first and last event with text, 0: none */
    qn_bench_serve_times gaps;
    size_t n_events; /* events with text */
    bool has_usage, has_end;
    uint64_t n_prompt, n_cached, n_generated; /* from the usage */
    char kind[QN_BENCH_SERVE_KIND_SIZE];      /* of the failure; "": none */
    char message[QN_BENCH_SERVE_MESSAGE_SIZE];
} qn_bench_serve_answer;

typedef struct qn_bench_serve_request qn_bench_serve_request;

/* qn_bench_serve_request_create - prepare a request; CURLOPT_PRIVATE of its handle points back to it.
 *
 *   due   when it arrives; latencies count from there
 *
 * Free it with qn_bench_serve_request_free. NULL: no memory. */
qn_bench_serve_request *qn_bench_serve_request_create(const qn_bench_serve_target *target, const char *prompt,
                                                      size_t n_generate, double due);
CURL *qn_bench_serve_request_handle(const qn_bench_serve_request *request);
void qn_bench_serve_request_free(qn_bench_serve_request *request);

/* qn_bench_serve_request_end - returns the request's answer after libcurl has ended it with `code`. It lives as long as
 * the request. */
const qn_bench_serve_answer *qn_bench_serve_request_end(qn_bench_serve_request *request, CURLcode code);

/* qn_bench_serve_first_model - returns the first model that the server lists, for json_decref. NULL: an error line was
 * printed. */
json_t *qn_bench_serve_first_model(const qn_bench_serve_target *target);

/* qn_bench_serve_add_time - append a time. False: no memory. */
bool qn_bench_serve_add_time(qn_bench_serve_times *times, double seconds);

/* ---- Sampling of requests ---- */

/* qn_bench_serve_take_sampling - set `sampling` and `format` of the target from the options. The caller frees them.
 * False: an error line was printed. */
bool qn_bench_serve_take_sampling(qn_bench_serve_target *target, const qn_args *args);

/* ---- Results ---- */

/* qn_bench_serve_print - print the results as a table or as JSON. n: the number of requests planned. */
void qn_bench_serve_print(const qn_args *args, const qn_bench_serve_target *target, qn_bench_serve_results *results,
                          size_t n);

#endif
