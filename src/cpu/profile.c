/* Counts of a profile, and their sums by the names of operations. */
#include "cpu/profile.h"

#include "base/memory.h"

#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

qn_status qn_cpu_profile_create(const qn_plan *plan, const size_t *phases, size_t n_phases, size_t n_threads,
                                qn_cpu_profile **out)
{
    qn_cpu_profile *p;
    const size_t line = QN_ALIGN / sizeof *p->busy;
    *out = NULL;
    QN_TRY(qn_alloc(&p, 1, sizeof *p, "profile"));
    /* Threads write in cache lines of their own. */
    *p = (qn_cpu_profile){ .plan = plan,
                           .phases = phases,
                           .n_phases = n_phases,
                           .n_threads = n_threads,
                           .stride = qn_round_up(plan->n_ops + 1, line) };
    qn_status status = qn_alloc(&p->busy, n_threads, p->stride * sizeof *p->busy, "profile");
    if (status == QN_OK)
        status = qn_alloc(&p->phase_ticks, n_phases + 1, sizeof *p->phase_ticks, "profile");
    if (status == QN_OK)
        status = qn_alloc(&p->available, n_phases + 1, sizeof *p->available, "profile");
    if (status != QN_OK) {
        qn_cpu_profile_free(p);
        return status;
    }
    p->began = now();
    p->began_ticks = qn_ticks();
    *out = p;
    return QN_OK;
}

void qn_cpu_profile_free(qn_cpu_profile *p)
{
    if (!p)
        return;
    qn_free(p->busy);
    qn_free(p->phase_ticks);
    qn_free(p->available);
    qn_free(p);
}

static void end_phase(qn_cpu_profile *p, uint64_t at)
{
    p->phase_ticks[p->open] += at - p->opened;
    p->available[p->open] += (at - p->opened) * p->open_threads;
}

void qn_cpu_profile_open(qn_cpu_profile *p, size_t phase, size_t n_threads)
{
    const uint64_t at = qn_ticks();
    if (p->open_threads)
        end_phase(p, at);
    p->n_steps += phase == 0;
    p->open = phase;
    p->opened = at;
    p->open_threads = n_threads;
}

void qn_cpu_profile_close(qn_cpu_profile *p)
{
    if (p->open_threads)
        end_phase(p, qn_ticks());
    p->open_threads = 0;
}

/* ---- Report ---- */

static uint64_t busy_ticks(const qn_cpu_profile *p, size_t op)
{
    uint64_t sum = 0;
    for (size_t t = 0; t < p->n_threads; t++)
        sum += p->busy[t * p->stride + op];
    return sum;
}

/* Divides a phase among its operations [first, end) by their busy time. */
static void report_phase(const qn_cpu_profile *p, size_t phase, size_t first, size_t end, double tick,
                         qn_profile *report)
{
    uint64_t all = 0;
    for (size_t op = first; op < end; op++)
        all += busy_ticks(p, op);
    for (size_t op = first; op < end; op++) {
        const uint64_t busy = busy_ticks(p, op);
        const double part = all ? (double)busy / (double)all : 1.0 / (double)(end - first);
        if (!p->phase_ticks[phase])
            continue;
        qn_profile_line *line = qn_profile_find_line(report, p->plan, op);
        line->seconds += part * (double)p->phase_ticks[phase] * tick;
        line->busy += (double)busy * tick;
        line->available += part * (double)p->available[phase] * tick;
    }
}

void qn_cpu_profile_report(const qn_cpu_profile *p, qn_profile *report)
{
    const double seconds = now() - p->began;
    const uint64_t ticks = qn_ticks() - p->began_ticks;
    const double tick = ticks ? seconds / (double)ticks : 0;
    uint64_t inside = 0;
    for (size_t phase = 0; phase <= p->n_phases; phase++) {
        const size_t first = phase < p->n_phases ? p->phases[phase] : p->plan->n_ops,
                     end = phase < p->n_phases ? p->phases[phase + 1] : p->plan->n_ops + 1;
        report_phase(p, phase, first, end, tick, report);
        inside += p->phase_ticks[phase];
    }
    report->seconds += seconds;
    report->outside += seconds - (double)inside * tick;
    report->n_steps += p->n_steps;
}
