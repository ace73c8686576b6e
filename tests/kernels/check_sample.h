/* The sampler of the CPU, qn_sample_token: part of the check of the operation "sample". */
#ifndef QN_CHECK_CHECK_SAMPLE_H
#define QN_CHECK_CHECK_SAMPLE_H

#include "base/cpu.h"

/* qn_check_sample_tokens - Compares the tokens of each level's kernels with the tokens of the reference. */
void qn_check_sample_tokens(void);

/* qn_bench_sample_tokens - Times the settings of clients on the vocabularies and distributions of models. */
void qn_bench_sample_tokens(const qn_cpu_level *level);

#endif
