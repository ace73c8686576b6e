/* Measures where the time of the CPU's steps goes: ticks of each thread in each operation, and of each phase. */
#ifndef QN_CPU_PROFILE_H
#define QN_CPU_PROFILE_H

#include "base/ticks.h"
#include "device/profile.h"
#include "plan/plan.h"

/* Counts of a running profile. Phases are opened and closed by one thread at a time; `busy` of a thread is written by
 * that thread alone. Sampling is one more operation, and one more phase, after those of the plan. */
typedef struct qn_cpu_profile {
    const qn_plan *plan;
    const size_t *phases; /* of the executor: the first operation of each phase */
    size_t n_phases, n_threads, stride;
    uint64_t *busy;                    /* [n_threads, stride] ticks in operations */
    uint64_t *phase_ticks, *available; /* [n_phases + 1] time of a phase; that times its threads */
    uint64_t opened;                   /* ticks when the open phase was opened */
    size_t open, open_threads;         /* the open phase, and its threads; threads 0: none is open */
    size_t n_steps;
    uint64_t began_ticks;
    double began;
} qn_cpu_profile;

/* qn_cpu_profile_create - begins a profile.
 *
 *   phases   [n_phases + 1] the first operation of each phase, then the number of operations; must outlive the profile
 *
 * QN_ERR_MEMORY. Free with qn_cpu_profile_free, which accepts NULL. */
qn_status qn_cpu_profile_create(const qn_plan *plan, const size_t *phases, size_t n_phases, size_t n_threads,
                                qn_cpu_profile **out);
void qn_cpu_profile_free(qn_cpu_profile *profile);

/* qn_cpu_profile_open - ends the open phase and opens another; n_phases is that of sampling. */
void qn_cpu_profile_open(qn_cpu_profile *profile, size_t phase, size_t n_threads);

/* qn_cpu_profile_close - ends the open phase. */
void qn_cpu_profile_close(qn_cpu_profile *profile);

/* qn_cpu_profile_add - adds the ticks of a piece; plan->n_ops is sampling. */
static inline void qn_cpu_profile_add(qn_cpu_profile *profile, int thread, size_t op, uint64_t ticks)
{
    profile->busy[(size_t)thread * profile->stride + op] += ticks;
}

/* qn_cpu_profile_report - adds all that was measured to `report`. No step may be running. Operations beyond
 * QN_PROFILE_LINES kinds are added to the last line. */
void qn_cpu_profile_report(const qn_cpu_profile *profile, qn_profile *report);

#endif
