/* How long steps take, by their rows, as far as measured; and how many rows of prompts a step may have beside the
 * sequences that are decoded. Independent of requests and devices: it is given rows and seconds. */
#ifndef QN_SCHEDULER_STEP_TIME_H
#define QN_SCHEDULER_STEP_TIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Classes of rows: 1, 2, 3 to 4, 5 to 8, ..., beyond 1024. */
enum { QN_STEP_CLASSES = 12 };

/* A mean over the steps of a class. */
typedef struct qn_step_mean {
    double rows, value; /* value: seconds; of prompts seconds for each row */
    uint64_t last;      /* the step that was measured last; 0: none */
} qn_step_mean;

typedef struct qn_step_times {
    uint64_t n_steps;                      /* measured so far */
    qn_step_mean decode[QN_STEP_CLASSES];  /* steps without prompts */
    qn_step_mean prompts[QN_STEP_CLASSES]; /* what prompts add to a step */
    uint64_t n_mixed[QN_STEP_CLASSES];     /* by decode rows: steps with prompts since one without */
} qn_step_times;

/* qn_step_times_add - a step of n_decode + n_prompt > 0 rows took so long. */
void qn_step_times_add(qn_step_times *t, size_t n_decode, size_t n_prompt, double seconds);

/* qn_step_times_prompt_rows - the rows of prompts beside n_decode > 0 rows.
 *
 *   most      seconds that the step may take; INFINITY: no limit but that of twice the step without prompts, or a few
 *             milliseconds
 *   multiple  the rows are a multiple of it
 *
 * At least `multiple`, so that prompts progress, but for 0 now and then: a step without prompts is then to be
 * measured. */
size_t qn_step_times_prompt_rows(const qn_step_times *t, size_t n_decode, double most, size_t multiple);

#endif
