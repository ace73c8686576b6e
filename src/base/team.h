/* A fixed team of threads that run one function together and meet at barriers inside it.
 *
 * Waiting spins for some microseconds, then sleeps in the kernel, so that a team is quick between the operations of a token and
 * quiet between tokens. With more threads than processors it sleeps at once: a spinning waiter would keep the worker off. */
#ifndef QN_BASE_TEAM_H
#define QN_BASE_TEAM_H

#include "base/status.h"

#include <stddef.h>

typedef struct qn_team qn_team;

enum { QN_TEAM_MAX = 1024 };

/* qn_team_create - a team of n threads (1 to QN_TEAM_MAX), the caller's own among them; qn_team_free ends the others. */
qn_status qn_team_create(int n_threads, qn_team **out);
void qn_team_free(qn_team *team);

int qn_team_size(const qn_team *team);

/* qn_team_run - call work(context, thread) on every thread of the team, thread 0 being the caller, and return when all are
 * done. One caller at a time. */
void qn_team_run(qn_team *team, void (*work)(void *context, int thread), void *context);

/* qn_team_barrier - inside the work: return when every thread of the team is here. What was written before is visible after. */
void qn_team_barrier(qn_team *team);

/* qn_team_range - the contiguous share [*begin, *end) of `count` units that falls to a thread, in whole multiples of `unit`
 * (the last share takes the rest): shares differ by at most one unit. */
void qn_team_range(size_t count, size_t unit, int thread, int n_threads, size_t *begin, size_t *end);

#endif
