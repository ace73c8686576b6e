/* A thread team: a fixed number of threads that run one function together, with barriers inside it.
 *
 * A waiting thread spins for some microseconds, then sleeps in the kernel: wake-up is fast between the operations of a
 * token, and an idle team uses no CPU time. If the team has more threads than the machine, it does not spin, since that
 * would take CPU time from working threads.
 *
 * The threads block all signals but SIGBUS, so that the process handles signals on its own threads. A team belongs to
 * the process that created it (base/process.h). */
#ifndef QN_BASE_TEAM_H
#define QN_BASE_TEAM_H

#include "base/status.h"

#include <stddef.h>

typedef struct qn_team qn_team;

enum { QN_TEAM_MAX = 1024 };

/* qn_team_create - creates a team.
 *
 *   n_threads   1 to QN_TEAM_MAX, including the thread that calls qn_team_run: n_threads - 1 threads are started
 *   out         the team; free it with qn_team_free
 *
 * QN_ERR_INVALID   n_threads is outside its range
 * QN_ERR_MEMORY    not enough memory, or a thread cannot be started */
qn_status qn_team_create(int n_threads, qn_team **out);

/* qn_team_free - ends the threads, waits for them and frees the team. No qn_team_run may be in progress. NULL is
 * allowed. */
void qn_team_free(qn_team *team);

/* qn_team_size - the number of threads. */
int qn_team_size(const qn_team *team);

/* qn_team_run - calls work(context, thread) on every thread of the team and returns when all calls have returned.
 * Thread 0 is the calling thread, which may be another one in each call; its writes before the call are visible to all.
 * Only one call at a time: the caller has a lock, or is the only user. `work` must not call it. */
void qn_team_run(qn_team *team, void (*work)(void *context, int thread), void *context);

/* qn_team_barrier - a barrier of all threads of the team, to be called from `work` by every thread. Writes before it
 * are visible to all threads after it. */
void qn_team_barrier(qn_team *team);

/* qn_team_range - divides [0, count) among threads: the contiguous range of one thread.
 *
 *   count       number of items
 *   unit        ranges begin at multiples of it; their sizes differ by at most one unit
 *   thread      0 to n_threads - 1
 *   n_threads   at least 1
 *   begin       the first item of the range
 *   end         the item after its last one; equal to begin for an empty range */
void qn_team_range(size_t count, size_t unit, int thread, int n_threads, size_t *begin, size_t *end);

#endif
