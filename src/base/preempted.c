/* Notices by the system's counters that others want a thread's processor, and gives way to them by yielding. */
#include "base/preempted.h"

#include "base/thread.h"

/* A thread is looked at each millisecond, and its counter read at each LOOKS-th. It shares its processor if that was
 * taken away TAKEN times in between, which a busy process does every few milliseconds and the system's own threads do
 * not; and no longer, if QUIET times nobody used the processor when it gave way. */
enum { LOOKS = 20, TAKEN = 2, QUIET = 50 };

void qn_preempted_begin(qn_preempted *p)
{
    *p = (qn_preempted){ .interval = qn_ticks_per_ms(), .since = qn_ticks(), .taken = qn_thread_preemptions() };
}

bool qn_preempted_look(qn_preempted *p)
{
    if (p->shares)
        return true;
    p->since = qn_ticks();
    if (++p->looks < LOOKS)
        return false;
    const long before = p->taken;
    p->looks = 0;
    p->taken = qn_thread_preemptions();
    p->shares = p->taken - before >= TAKEN;
    p->quiet = 0;
    return p->shares;
}

bool qn_preempted_give_way(qn_preempted *p)
{
    const uint64_t begin = qn_ticks();
    qn_thread_yield();
    p->since = qn_ticks();
    const bool others_ran = p->since - begin >= p->interval / 16; /* else the call takes about a microsecond */
    p->quiet = others_ran ? 0 : p->quiet + 1;
    p->shares = p->quiet < QUIET;
    return others_ran;
}
