/* Measures the time of steps by their number of rows, and computes how many prompt rows a step may have next to its
 * decode rows. Independent of requests and devices: it only sees rows and seconds. Used by one thread at a time, the
 * scheduler's step thread. */
#ifndef QN_SCHEDULER_STEP_TIME_H
#define QN_SCHEDULER_STEP_TIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Classes of rows: 1, 2, 3 to 4, 5 to 8, ..., beyond 1024. */
enum { QN_STEP_CLASSES = 12 };

/* A mean over the steps of a class. */
typedef struct qn_step_mean {
    double rows, value; /* value: seconds; for prompts, seconds per row */
    uint64_t last;      /* number of the last measured step; 0: none */
} qn_step_mean;

typedef struct qn_step_times {
    uint64_t n_steps;                      /* measured so far */
    qn_step_mean decode[QN_STEP_CLASSES];  /* steps without prompts */
    qn_step_mean prompts[QN_STEP_CLASSES]; /* time that prompts add to a step */
    uint64_t n_mixed[QN_STEP_CLASSES]; /* by decode rows: number of steps with prompts since the last step without */
} qn_step_times;

/* qn_step_times_add - Records that a step of n_decode + n_prompt > 0 rows took `seconds`. */
void qn_step_times_add(qn_step_times *t, size_t n_decode, size_t n_prompt, double seconds);

/* qn_step_times_prompt_rows - Returns the number of prompt rows for a step with n_decode > 0 decode rows.
 *
 *   most       seconds that the step may take; INFINITY: only the limit of twice the step without prompts, or a few
 *              milliseconds
 *   multiple   the result is a multiple of this
 *
 * The result is at least `multiple`, so that prompts progress. Now and then it is 0, so that a step without prompts is
 * measured. */
size_t qn_step_times_prompt_rows(const qn_step_times *t, size_t n_decode, double most, size_t multiple);

#endif
