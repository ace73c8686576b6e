/* Shared by the tests of quern bench: the model under test, sampling modes, the bandwidth limit, and printing of
 * results. */
#ifndef QN_CLI_BENCH_REPORT_H
#define QN_CLI_BENCH_REPORT_H

#include "cli/bench_bandwidth.h"
#include "cli/cli.h"
#include "device/profile.h"
#include "quern/grammar.h"
#include "quern/scheduler.h"

/* How tokens are decoded. */
typedef enum qn_bench_mode {
    QN_BENCH_GREEDY,
    QN_BENCH_SAMPLED, /* by the sampling options */
    QN_BENCH_SCHEMA,  /* under --json-schema: sampled if there are sampling options, else greedy */
    QN_BENCH_DRAFTED, /* with the drafts of --draft: sampled if there are sampling options, else greedy */
    QN_BENCH_MODES
} qn_bench_mode;

typedef struct qn_bench {
    const qn_args *args;
    qn_model *model;
    qn_model_info info;
    const char *kv;          /* format of the KV cache; may differ from --kv */
    qn_bandwidth *bandwidth; /* measures in another process */
    bool on_cpu;
    bool is_sampled;     /* there are sampling options */
    qn_grammar *grammar; /* of --json-schema, or NULL */
} qn_bench;

/* One line of the result. */
typedef struct qn_bench_test {
    char name[32];
    size_t n_tokens, depth, parallel; /* of each of `parallel` sequences */
    bool decode;
    qn_bench_mode mode; /* with `decode` */
    /* Tokens a second, of all sequences; bytes a second. */
    double rates[QN_BENCH_MAX_REPETITIONS], bandwidths[QN_BENCH_MAX_REPETITIONS];
    double of_free[QN_BENCH_MAX_REPETITIONS]; /* `rates` over those of qn_bench_compared */
    uint64_t bytes_per_token;
    size_t n_decoded, n_drafted, n_accepted; /* tokens of all repetitions and sequences */
    qn_profile profile;                      /* of all repetitions, with --profile */
} qn_bench_test;

/* qn_bench_tokens - fill in random token ids; the same seed gives the same ids. */
void qn_bench_tokens(qn_token *tokens, size_t n, uint32_t n_vocab, uint64_t seed);

/* qn_bench_has - whether a mode is measured. */
bool qn_bench_has(const qn_bench *bench, qn_bench_mode mode);

/* qn_bench_compared - returns the mode that a mode other than QN_BENCH_GREEDY is compared with. */
qn_bench_mode qn_bench_compared(const qn_bench *bench, qn_bench_mode mode);

/* qn_bench_last - returns the last mode that is measured. */
qn_bench_mode qn_bench_last(const qn_bench *bench);

/* qn_bench_sample - set the sampling of request number `index`, with a seed of its own, so that it does not end
 * early. */
void qn_bench_sample(const qn_bench *bench, qn_bench_mode mode, size_t index, qn_request_params *params);

/* qn_bench_print_mode - print the JSON members `"sampling":...,"json_schema":...`. */
void qn_bench_print_mode(const qn_bench *bench, qn_bench_mode mode);

/* qn_bench_print_modes - print the modes that are not greedy, as lines. */
void qn_bench_print_modes(const qn_bench *bench);

/* qn_bench_limit - measure the read bandwidth of the model's device; on the CPU with the model's number of threads.
 * 0 where the device does not measure it. False: error text. */
bool qn_bench_limit(const qn_bench *bench, double *rate);

/* qn_bench_print_head - for a table, print the modes and the table's head. */
void qn_bench_print_head(const qn_bench *bench);

/* qn_bench_print - print a test with all its repetitions. Sorts them. */
void qn_bench_print(const qn_bench *bench, qn_bench_test *test);

/* qn_bench_quantile - returns the q-quantile of n > 0 values. Sorts them. */
double qn_bench_quantile(double *values, size_t n, double q);

/* Milliseconds; all 0 without values. */
typedef struct qn_bench_times {
    double mean, p50, p95, p99, max;
} qn_bench_times;

/* qn_bench_summarize - summarise n times in seconds. Sorts them. */
qn_bench_times qn_bench_summarize(double *seconds, size_t n);

/* qn_bench_print_times_head - print the head of a table of times. */
void qn_bench_print_times_head(void);

/* qn_bench_print_times - print a row of it. Sorts the seconds. */
void qn_bench_print_times(const char *name, double *seconds, size_t n);

/* The four functions below return the exit status. */

/* qn_bench_decode - decode one sequence after --depth tokens. In bench_decode.c. */
int qn_bench_decode(const qn_bench *bench, uint64_t bytes_per_token);

/* qn_bench_parallel - decode the sequences of --parallel together. In bench_decode.c. */
int qn_bench_parallel(const qn_bench *bench);

/* qn_bench_soak - requests that arrive over time. In bench_soak.c. */
int qn_bench_soak(const qn_bench *bench);

/* qn_bench_reuse - requests that begin as earlier ones. In bench_reuse.c. */
int qn_bench_reuse(const qn_bench *bench);

#endif
