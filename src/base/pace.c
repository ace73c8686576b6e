/* Trials of fewer threads, or of one more. */
#include "base/pace.h"

#include <string.h>

/* A number of threads is better if jobs take less than GAIN of the time. Jobs between two trials: MIN_WAIT at first,
 * at most MAX_WAIT. A team is disturbed if one of DISTURBED jobs was. */
#define GAIN 0.98
enum { MIN_WAIT = 16, MAX_WAIT = 4096, DISTURBED = 4 };
enum { FEWER, MORE };

void qn_pace_init(qn_pace *pace, int most)
{
    *pace = (qn_pace){ .most = most, .n = most, .fewer = 1, .wait = { MIN_WAIT, MIN_WAIT } };
}

int qn_pace_threads(const qn_pace *pace)
{
    return pace->n + pace->change;
}

static double median(const double *times)
{
    double sorted[QN_PACE_JOBS];
    for (size_t i = 0; i < QN_PACE_JOBS; i++) {
        size_t at = i;
        for (; at > 0 && sorted[at - 1] > times[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = times[i];
    }
    return sorted[QN_PACE_JOBS / 2];
}

static void begin_trial(qn_pace *pace, int change)
{
    pace->before = median(pace->times);
    pace->change = change;
    pace->n_times = 0;
}

/* What became faster is tried again soon, in the same direction; what did not, later, and with more change. */
static void end_trial(qn_pace *pace)
{
    const bool is_better = median(pace->times) < GAIN * pace->before;
    size_t *wait = &pace->wait[pace->change > 0 ? MORE : FEWER];
    *wait = is_better ? MIN_WAIT : *wait * 2 < MAX_WAIT ? *wait * 2 : MAX_WAIT;
    if (is_better) {
        pace->n += pace->change;
        pace->fewer = 1;
    } else if (pace->change < 0) {
        pace->fewer = 2 * pace->fewer < pace->n ? 2 * pace->fewer : 1;
    }
    pace->change = 0;
    pace->n_times = pace->n_jobs = pace->n_disturbed = 0;
}

static void look_for_trial(qn_pace *pace)
{
    const bool is_disturbed = pace->n_disturbed * DISTURBED >= pace->n_jobs;
    if (pace->n_times < QN_PACE_JOBS)
        return;
    if (pace->n > pace->fewer && is_disturbed && pace->n_jobs >= pace->wait[FEWER])
        begin_trial(pace, -pace->fewer);
    else if (pace->n < pace->most && pace->n_jobs >= pace->wait[MORE])
        begin_trial(pace, 1);
}

void qn_pace_note(qn_pace *pace, size_t kind, double seconds, bool disturbed)
{
    if (kind != pace->kind) { /* the times cannot be compared */
        pace->kind = kind;
        pace->change = 0;
        pace->n_times = 0;
    }
    pace->n_jobs++;
    pace->n_disturbed += disturbed;
    if (pace->n_times == QN_PACE_JOBS)
        memmove(pace->times, pace->times + 1, (--pace->n_times) * sizeof *pace->times);
    pace->times[pace->n_times++] = seconds;
    if (!pace->change)
        look_for_trial(pace);
    else if (pace->n_times == QN_PACE_JOBS)
        end_trial(pace);
}
