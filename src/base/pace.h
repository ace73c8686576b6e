/* How many of a team's threads do its jobs, found by measuring. Where other processes use the processors, fewer threads
 * may be faster: a thread that is stopped often holds up the rest.
 *
 * While nobody disturbs the threads, all of them are used and nothing is tried. When they are disturbed, one thread
 * less is tried for some jobs, and kept if the jobs became faster; if they did not, next time two less, then four:
 * where three processors are shared, the first thread less changes nothing. After a while one more is tried in the same
 * way. Each trial that was in vain doubles the time to the next, so that trials cost little where nothing changes. */
#ifndef QN_BASE_PACE_H
#define QN_BASE_PACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Jobs whose times are compared, before and in a trial. */
enum { QN_PACE_JOBS = 9 };

/* Used by one thread at a time. Of arrays of two the first is for trials of fewer threads, the second of more. */
typedef struct qn_pace {
    int most, n;                /* threads that there are; that are used outside of trials */
    int change;                 /* what the trial adds to n; 0: no trial */
    int fewer;                  /* how many less the next trial of fewer has */
    size_t kind;                /* of the jobs that are measured */
    size_t n_others;            /* jobs of other kinds in a row, or in the trial */
    double times[QN_PACE_JOBS]; /* of the last jobs, or of the trial's */
    size_t n_times;
    double before;             /* the median before the trial */
    size_t n_jobs[2], wait[2]; /* since such a trial; to the next one */
    size_t n_disturbed;        /* of the jobs since a trial of fewer */
} qn_pace;

/* qn_pace_init - begins with all of `most` threads. */
void qn_pace_init(qn_pace *pace, int most);

/* qn_pace_threads - returns the number of threads for the next job. */
int qn_pace_threads(const qn_pace *pace);

/* qn_pace_note - notes how long a job took with that number.
 *
 *   kind        jobs of a kind have the same work; those of the kind that comes most are measured
 *   seconds     its time, in any unit that is always the same
 *   disturbed   whether other processes took a processor from one of the threads */
void qn_pace_note(qn_pace *pace, size_t kind, double seconds, bool disturbed);

#endif
