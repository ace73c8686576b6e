/* The cost of a barrier of the thread team, for two threads and for one thread per core. tests/unit/base/test_team.c
 * checks the barrier's correctness. */
#include "check.h"

#include "base/cpu.h"
#include "base/team.h"

enum { N_BARRIERS = 1000 };

static void barrier_loop(void *context, int thread)
{
    (void)thread;
    for (int i = 0; i < N_BARRIERS; i++)
        qn_team_barrier(context);
}

static void run_team(void *context)
{
    qn_team_run(context, barrier_loop, context);
}

void qn_check_barrier(bool bench)
{
    const int sizes[] = { 2, qn_cpu_cores() };
    for (int i = 0; bench && i < 2; i++) {
        qn_team *team;
        if (sizes[i] > qn_cpu_threads() || (i && sizes[1] == sizes[0]))
            continue;
        qn_case_begin("barrier", "team", "%d threads", sizes[i]);
        const bool started = qn_team_create(sizes[i], &team) == QN_OK;
        qn_expect(started, "the threads could not be started");
        if (!started)
            continue;
        qn_bench("barrier", "team", qn_text("%d threads, %d barriers", sizes[i], N_BARRIERS), N_BARRIERS, "barrier",
                 run_team, team);
        qn_team_free(team);
    }
}
