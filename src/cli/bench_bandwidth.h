/* Measures the memory's read bandwidth, the limit that decoding is compared with. On shared machines it changes from
 * minute to minute, so it is measured between the repetitions of a benchmark. */
#ifndef QN_CLI_BENCH_BANDWIDTH_H
#define QN_CLI_BENCH_BANDWIDTH_H

#include "base/program.h"

#include <stdbool.h>

typedef qn_child qn_bandwidth;

/* qn_bandwidth_start - start the measuring process, so that its buffer does not count as memory of this process. Call
 * it before any thread is created. False: an error line was printed. */
bool qn_bandwidth_start(qn_bandwidth *bandwidth);

/* qn_bandwidth_measure - returns the bytes a second that n_threads threads read together: the best of a few passes over
 * a buffer far larger than the caches; 0: it could not be measured. The first call also fills the buffer and takes
 * longer. */
double qn_bandwidth_measure(qn_bandwidth *bandwidth, int n_threads);

/* qn_bandwidth_stop - end the measuring process. */
void qn_bandwidth_stop(qn_bandwidth *bandwidth);

#endif
