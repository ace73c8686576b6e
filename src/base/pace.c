/* Trials of fewer threads, or of one more. */
#include "base/pace.h"

#include <string.h>

/* A number of threads is better if jobs take less than GAIN of the time. Jobs between two trials: MIN_WAIT at first,
 * at most MAX_WAIT. A team is disturbed if one of DISTURBED jobs was. */
#define GAIN 0.98
enum { MIN_WAIT = 16, MAX_WAIT = 4096, DISTURBED = 4 };

/* So many jobs of other kinds end a trial, or make their kind the one that is measured. */
enum { MAX_OTHERS = 4 * QN_PACE_JOBS };

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
    pace->n_times = pace->n_others = 0;
}

/* What became faster is tried again soon, in the same direction; what did not, later, and with more change. */
static void end_trial(qn_pace *pace, bool is_better)
{
    const int direction = pace->change > 0 ? MORE : FEWER;
    size_t *wait = &pace->wait[direction];
    *wait = is_better ? MIN_WAIT : *wait * 2 < MAX_WAIT ? *wait * 2 : MAX_WAIT;
    if (is_better) {
        pace->n += pace->change;
        pace->fewer = 1;
    } else if (direction == FEWER) {
        pace->fewer = 2 * pace->fewer < pace->n ? 2 * pace->fewer : 1;
    }
    if (direction == FEWER)
        pace->n_disturbed = 0;
    pace->n_jobs[direction] = 0;
    pace->change = 0;
    pace->n_times = pace->n_others = 0;
}

static void look_for_trial(qn_pace *pace)
{
    const bool is_disturbed = pace->n_disturbed * DISTURBED >= pace->n_jobs[FEWER];
    if (pace->n_times < QN_PACE_JOBS)
        return;
    if (pace->n > pace->fewer && is_disturbed && pace->n_jobs[FEWER] >= pace->wait[FEWER])
        begin_trial(pace, -pace->fewer);
    else if (pace->n < pace->most && pace->n_jobs[MORE] >= pace->wait[MORE])
        begin_trial(pace, 1);
}

/* A job whose time cannot be compared. */
static void note_other(qn_pace *pace, size_t kind)
{
    if (++pace->n_others < MAX_OTHERS)
        return;
    if (pace->change)
        end_trial(pace, false);
    pace->kind = kind;
    pace->n_times = pace->n_others = 0;
}

void qn_pace_note(qn_pace *pace, size_t kind, double seconds, bool disturbed)
{
    pace->n_jobs[FEWER]++;
    pace->n_jobs[MORE]++;
    pace->n_disturbed += disturbed;
    if (kind != pace->kind) {
        note_other(pace, kind);
        return;
    }
    if (pace->n_times == QN_PACE_JOBS)
        memmove(pace->times, pace->times + 1, (--pace->n_times) * sizeof *pace->times);
    pace->times[pace->n_times++] = seconds;
    if (pace->change) {
        if (pace->n_times == QN_PACE_JOBS)
            end_trial(pace, median(pace->times) < GAIN * pace->before);
        return;
    }
    pace->n_others = 0;
    look_for_trial(pace);
}
