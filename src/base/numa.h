/* Threads and memory on machines with several NUMA nodes, by system calls, without a library. */
#ifndef QN_BASE_NUMA_H
#define QN_BASE_NUMA_H

#include "base/status.h"
#include "base/topology.h"

typedef enum qn_numa {
    QN_NUMA_OFF,        /* memory is on the node of the thread that writes it first */
    QN_NUMA_DISTRIBUTE, /* page by page on all nodes in turn */
    QN_NUMA_ISOLATE     /* threads and memory on the node that the calling thread runs on */
} qn_numa;

/* qn_numa_apply - sets where the calling thread, and all threads that it starts later, run and get memory. Before a
 * model is loaded. `topology` is of qn_topology_read; with one node nothing is done.
 *
 * QN_ERR_UNSUPPORTED if the system refuses, as containers often do: nothing has changed then. */
qn_status qn_numa_apply(qn_numa mode, const qn_topology *topology);

/* qn_numa_pick - for QN_NUMA_ISOLATE: which processors of the topology are used, those of the node of processor `id`,
 * or of the first node if it is not in the topology. Returns their number. */
size_t qn_numa_pick(const qn_topology *topology, int id, bool picked[QN_MAX_PROCESSORS]);

#endif
