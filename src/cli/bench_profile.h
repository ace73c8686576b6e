/* quern bench --profile: where the time of a test goes, by operation. */
#ifndef QN_CLI_BENCH_PROFILE_H
#define QN_CLI_BENCH_PROFILE_H

#include "cli/bench_report.h"

/* qn_bench_profile_start - begin a repetition of a test, if --profile is given. False: error text. */
bool qn_bench_profile_start(const qn_bench *bench);

/* qn_bench_profile_stop - end it and add its times to the test's. */
void qn_bench_profile_stop(const qn_bench *bench, qn_bench_test *test);

/* qn_bench_profile_print - print the profile as a table. */
void qn_bench_profile_print(const qn_profile *profile, int n_threads);

/* qn_bench_profile_print_json - print the member `"profile":{...},`. */
void qn_bench_profile_print_json(const qn_profile *profile, int n_threads);

#endif
