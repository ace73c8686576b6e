/* When a thread shares its processor with other threads, the system takes the processor away every few milliseconds, at
 * any place. A thread that others may have to wait for gives it away itself, shortly before, at a place where nobody
 * waits for it; then it begins a new time slice when it comes back. */
#ifndef QN_BASE_PREEMPTED_H
#define QN_BASE_PREEMPTED_H

#include "base/ticks.h"

#include <stdbool.h>

/* What a thread knows of the processor that it runs on. Used by that thread alone. */
typedef struct qn_preempted {
    uint64_t interval, since; /* ticks: between two looks; the last look, or the return from giving way */
    long taken;               /* how often the system took the processor away, when that was last asked */
    int looks;                /* since then */
    int quiet;                /* times in a row that nobody wanted the processor */
    bool shares;              /* others want it too */
} qn_preempted;

/* qn_preempted_begin - begins to watch the calling thread. */
void qn_preempted_begin(qn_preempted *p);

/* qn_preempted_look - qn_preempted_soon, after an interval. */
bool qn_preempted_look(qn_preempted *p);

/* qn_preempted_soon - returns whether the thread should give way at the next good place. Costs some nanoseconds. */
static inline bool qn_preempted_soon(qn_preempted *p)
{
    return qn_ticks() - p->since >= p->interval && qn_preempted_look(p);
}

/* qn_preempted_give_way - lets threads run that want this processor. Returns whether there were any. */
bool qn_preempted_give_way(qn_preempted *p);

#endif
