/* NUMA by set_mempolicy and sched_setaffinity of Linux. */
#include "base/numa.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

#ifdef __linux__
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

static qn_status interleave(const qn_topology *topology)
{
    enum { MPOL_INTERLEAVE_MODE = 3, BITS = sizeof(unsigned long) * CHAR_BIT }; /* linux/mempolicy.h */
    unsigned long nodes[QN_MAX_NODES / BITS + 1] = { 0 };
    for (size_t i = 0; i < topology->n; i++)
        nodes[(size_t)topology->at[i].node / BITS] |= 1ul << (size_t)topology->at[i].node % BITS;
    if (syscall(SYS_set_mempolicy, MPOL_INTERLEAVE_MODE, nodes, sizeof nodes * CHAR_BIT))
        return qn_fail(QN_ERR_UNSUPPORTED, "memory is not distributed over NUMA nodes: %s", strerror(errno));
    return QN_OK;
}

static qn_status stay(const qn_topology *topology)
{
    bool picked[QN_MAX_PROCESSORS];
    cpu_set_t set;
    CPU_ZERO(&set);
    qn_numa_pick(topology, sched_getcpu(), picked);
    for (int id = 0; id < QN_MAX_PROCESSORS && id < CPU_SETSIZE; id++)
        if (picked[id])
            CPU_SET(id, &set);
    if (sched_setaffinity(0, sizeof set, &set))
        return qn_fail(QN_ERR_UNSUPPORTED, "threads are not kept on a NUMA node: %s", strerror(errno));
    return QN_OK;
}
#endif

qn_status qn_numa_apply(qn_numa mode, const qn_topology *topology)
{
    if (mode == QN_NUMA_OFF || topology->n_nodes < 2)
        return QN_OK;
#ifdef __linux__
    return mode == QN_NUMA_DISTRIBUTE ? interleave(topology) : stay(topology);
#else
    return qn_fail(QN_ERR_UNSUPPORTED, "NUMA is not supported on this system");
#endif
}
