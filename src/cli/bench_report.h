/* What the tests of quern bench share: what they run on, what tokens are sampled by, the limit that they are compared
 * with, and how results are printed. */
#ifndef QN_CLI_BENCH_REPORT_H
#define QN_CLI_BENCH_REPORT_H

#include "cli/bench_bandwidth.h"
#include "cli/cli.h"
#include "quern/grammar.h"
#include "quern/scheduler.h"

/* How tokens are decoded. */
typedef enum qn_bench_mode {
    QN_BENCH_GREEDY,
    QN_BENCH_SAMPLED, /* by the options */
    QN_BENCH_SCHEMA,  /* the same, or greedy without them, under --json-schema */
    QN_BENCH_MODES
} qn_bench_mode;

typedef struct qn_bench {
    const qn_args *args;
    qn_model *model;
    qn_model_info info;
    const char *kv;          /* of the cache; may differ from --kv */
    qn_bandwidth *bandwidth; /* threads that read, in a process of their own */
    bool on_cpu;
    bool is_sampled;     /* the options say how */
    qn_grammar *grammar; /* of --json-schema, or NULL */
} qn_bench;

/* One line of the result. */
typedef struct qn_bench_test {
    char name[32];
    size_t n_tokens, depth, parallel; /* of each of `parallel` sequences */
    bool decode;
    qn_bench_mode mode; /* with `decode` */
    double rates[QN_BENCH_MAX_REPETITIONS],
        bandwidths[QN_BENCH_MAX_REPETITIONS]; /* tokens, of all sequences, and bytes a second */
    double of_free[QN_BENCH_MAX_REPETITIONS]; /* `rates` over those of qn_bench_compared */
    uint64_t bytes_per_token;
} qn_bench_test;

/* qn_bench_tokens - token ids that look like nothing, the same ones for the same seed. */
void qn_bench_tokens(qn_token *tokens, size_t n, uint32_t n_vocab, uint64_t seed);

/* qn_bench_has - whether a mode is measured. qn_bench_compared - the one that it is compared with; not of QN_BENCH_GREEDY.
 * qn_bench_last - the last that is measured. */
bool qn_bench_has(const qn_bench *bench, qn_bench_mode mode);
qn_bench_mode qn_bench_compared(const qn_bench *bench, qn_bench_mode mode);
qn_bench_mode qn_bench_last(const qn_bench *bench);

/* qn_bench_sample - of a request: what its tokens are sampled by, with a seed by its index, and that it does not end early. */
void qn_bench_sample(const qn_bench *bench, qn_bench_mode mode, size_t index, qn_request_params *params);

/* qn_bench_print_mode - `"sampling":...,"json_schema":...` of JSON. qn_bench_print_modes - the same as lines, of what is not
 * greedy. */
void qn_bench_print_mode(const qn_bench *bench, qn_bench_mode mode);
void qn_bench_print_modes(const qn_bench *bench);

/* qn_bench_limit - measure the read bandwidth of the model's device, or of as many threads. False with an error text. */
bool qn_bench_limit(const qn_bench *bench, double *rate);

/* qn_bench_print_head - what tokens are sampled by, and the head of the table, if it is one. qn_bench_print - a test
 * whose repetitions are all there; they are sorted. */
void qn_bench_print_head(const qn_bench *bench);
void qn_bench_print(const qn_bench *bench, qn_bench_test *test);

/* qn_bench_quantile - of n > 0 values, which are sorted. */
double qn_bench_quantile(double *values, size_t n, double q);

/* Milliseconds; all 0 where there was nothing. */
typedef struct qn_bench_times {
    double mean, p50, p95, p99, max;
} qn_bench_times;

/* qn_bench_summarize - of n seconds, which are sorted. qn_bench_print_times_head, qn_bench_print_times - a table of them. */
qn_bench_times qn_bench_summarize(double *seconds, size_t n);
void qn_bench_print_times_head(void);
void qn_bench_print_times(const char *name, double *seconds, size_t n);

/* qn_bench_decode - one sequence at the depth, from -n on; qn_bench_parallel - those of --parallel, all together
 * (bench_decode.c). qn_bench_soak - requests that arrive in time (bench_soak.c). qn_bench_reuse - requests that begin
 * as earlier ones (bench_reuse.c). All return the exit status. */
int qn_bench_decode(const qn_bench *bench, uint64_t bytes_per_token);
int qn_bench_parallel(const qn_bench *bench);
int qn_bench_soak(const qn_bench *bench);
int qn_bench_reuse(const qn_bench *bench);

#endif
