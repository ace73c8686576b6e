/* Numbers of cores and threads, computed from a topology. posix/topology.c reads topologies. */
#include "base/topology.h"

#include "base/append.h"
#include "base/cpu.h"

void qn_topology_speeds(const qn_topology *topology, float speeds[QN_MAX_PROCESSORS])
{
    size_t n = 0;
    for (size_t i = 0; i < topology->n; i++) {
        const qn_processor *p = &topology->at[i];
        bool is_seen = false; /* an earlier hardware thread of the core */
        for (size_t before = 0; before < i && !is_seen; before++)
            is_seen = topology->at[before].core == p->core;
        if (is_seen)
            continue;
        size_t at = n++;
        for (; at > 0 && speeds[at - 1] < p->speed; at--)
            speeds[at] = speeds[at - 1];
        speeds[at] = p->speed;
    }
}

size_t qn_useful_cores(const float *speeds, size_t n)
{
    /* Pieces of a phase: the panels of 4096 rows, the width of an 8B model. On average the slowest core is in the
     * middle of a piece when the others have none left. */
    const double pieces = 64, rest = 0.5;
    double sum = 0, least = 0;
    size_t best = 1;
    for (size_t i = 0; i < n; i++) {
        sum += speeds[i];
        const double time = pieces / sum + rest / speeds[i];
        /* Cores of one speed are used all or none. */
        if (i + 1 < n && speeds[i + 1] == speeds[i])
            continue;
        if (!least || time < least) {
            least = time;
            best = i + 1;
        }
    }
    return best;
}

double qn_own_part(const float *speeds, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += speeds[i];
    return n ? speeds[n - 1] * (double)n / sum : 1;
}

void qn_topology_print(const qn_topology *topology, char *text, size_t bytes)
{
    float speeds[QN_MAX_PROCESSORS];
    const size_t n = topology->n_cores;
    qn_text_buffer line = qn_append_to(text, bytes);
    qn_topology_speeds(topology, speeds);
    qn_append(&line, "%zu core%s", n, n == 1 ? "" : "s");
    for (size_t i = 0, next; i < n && speeds[n - 1] < 1; i = next) {
        for (next = i; next < n && speeds[next] == speeds[i];)
            next++;
        if (!i)
            qn_append(&line, ", %zu fast", next);
        else
            qn_append(&line, "%s%zu of %.2f of their speed", next == n ? " and " : ", ", next - i, (double)speeds[i]);
    }
    if (topology->n > n)
        qn_append(&line, "; %zu hardware threads", topology->n);
    if (topology->n_nodes > 1)
        qn_append(&line, "; %zu NUMA nodes", topology->n_nodes);
}

int qn_cpu_cores(void)
{
    qn_topology topology;
    qn_topology_read("", &topology);
    return (int)topology.n_cores;
}

int qn_cpu_best_threads_in(const char *root)
{
    qn_topology topology;
    float speeds[QN_MAX_PROCESSORS];
    qn_topology_read(root, &topology);
    qn_topology_speeds(&topology, speeds);
    const int cores = (int)qn_useful_cores(speeds, topology.n_cores);
    const double quota = qn_cpu_quota_in(root);
    if (quota <= 0 || quota >= cores)
        return cores;
    return quota < 1.5 ? 1 : (int)(quota + 0.5);
}

int qn_cpu_best_threads(void)
{
    return qn_cpu_best_threads_in("");
}
