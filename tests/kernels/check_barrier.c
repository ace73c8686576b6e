/* The cost of a phase of the thread team, for two threads and for one thread per core. tests/unit/base/test_team.c
 * checks that phases are in order. */
#include "check.h"

#include "base/cpu.h"
#include "base/team.h"

enum { N_PHASES = 1000 };

static qn_team_pieces one_each(void *context, size_t phase, int n_threads)
{
    (void)context, (void)phase, (void)n_threads;
    return (qn_team_pieces){ .own = 1 };
}

static void nothing(void *context, const qn_team_piece *piece)
{
    (void)context, (void)piece;
}

static void run_team(void *context)
{
    qn_team_do(context, &(qn_team_job){ .n_phases = N_PHASES, .pieces = one_each, .work = nothing });
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
        qn_bench("barrier", "team", qn_text("%d threads, %d phases", sizes[i], N_PHASES), N_PHASES, "phase", run_team,
                 team);
        qn_team_free(team);
    }
}
