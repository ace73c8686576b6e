/* When requests of a benchmark arrive, and the lengths of their prompts and answers: for bench --soak and
 * bench-serve. */
#ifndef QN_CLI_BENCH_ARRIVALS_H
#define QN_CLI_BENCH_ARRIVALS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Seconds between the starts of two clients, when clients wait for their answers. */
#define QN_BENCH_STAGGER 0.1

typedef struct qn_bench_length {
    size_t n_prompt, n_generate; /* tokens, at least 1 */
} qn_bench_length;

/* qn_bench_lengths - read a file of lines "PROMPT ANSWER", at least one; '#' begins a comment. Free them with free().
 * False: an error line was printed. */
bool qn_bench_lengths(const char *path, qn_bench_length **lengths, size_t *n);

/* qn_bench_interval - seconds until the next arrival of a Poisson process with `rate` arrivals a second. */
double qn_bench_interval(uint64_t *random, double rate);

#endif
